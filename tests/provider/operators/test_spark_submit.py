"""PulsarSparkSubmitMixin: the connection that an application gets, and where its secret is meanwhile."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralTimeout, TaskDeferred

import pulsar_native
from airflow_provider_pulsar.hooks.spark_rest import SparkRestServer
from airflow_provider_pulsar.links.pulsar import SparkUILink
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from airflow_provider_pulsar.operators.spark_submit import PulsarSparkSubmitMixin
from airflow_provider_pulsar.triggers.spark import SparkDriverTrigger
from broker import Standalone
from environments import ROOT
from support.http_peer import HOST, Answer, Asked, http_peer
from support.processes import ProcessWatch
from support.spark_submits import RecordedSubmit
from support.tasks import StateStore, context_of, dag_in, rendered_of, states_of, xcom_of

SYSTEM = ROOT / "tests" / "system"
EXAMPLE = "example_spark_application"
SECRET = "hush-hush"
REFERENCE = "spark.pulsar.credentialsRef"


class Job(PulsarSparkSubmitMixin, SparkSubmitOperator):
    """The mixin as its documentation says."""


class OwnHook(SparkSubmitHook):
    """A user's hook: it changes the command, and its `submit` takes no more than it needs."""

    submitted: str | None = None

    def _build_spark_common_args(self) -> list[str]:
        return [*super()._build_spark_common_args(), "--conf", "spark.own.hook=yes"]

    def submit(self, application: str = "") -> str | None:  # type: ignore[override]
        self.submitted = application
        driver_id: str | None = super().submit(application)
        return driver_id


class OwnOperator(SparkSubmitOperator):
    """A user's operator with a parameter, a template field and a hook of its own."""

    template_fields = (*SparkSubmitOperator.template_fields, "team")

    def __init__(self, *, team: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.team = team

    def _get_hook(self) -> SparkSubmitHook:
        return OwnHook(conf={**(self.conf or {}), "spark.team": self.team}, application_args=self.application_args)


class BehindMixin(PulsarSparkSubmitMixin, OwnOperator):
    """The mixin before a user's operator."""


class BesideMixin(PulsarSparkSubmitMixin, SparkSubmitOperator):
    """A class that makes its hook itself, without the mixin's knowledge."""

    def _get_hook(self) -> SparkSubmitHook:
        return OwnHook(conf={**(self.conf or {}), "spark.team": "b"}, application_args=self.application_args)


def job(spark: RecordedSubmit, kind: type[PulsarSparkSubmitMixin] = Job, **options: Any) -> Any:
    """Return an operator on a recorded spark-submit."""
    return kind(task_id="job", application="/jobs/job.py", spark_environment=str(spark.environment), **options)


def define_spark(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> None:
    """Define spark_default."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Define spark_default as this machine."""
    define_spark(monkeypatch, host="local[1]")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Define spark_default as a cluster, with the driver here."""
    define_spark(monkeypatch, host="spark://c", port=7)


@pytest.fixture
def secret(connection: Callable[..., str]) -> None:
    """Define pulsar_default with a token."""
    connection(
        service_url="pulsar://h:1", admin_url="http://h:2", listener_name="inner", auth_method="token", token=SECRET
    )


# ---- real Spark ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("local")
@pytest.mark.proves("A27", "K6")
def test_submit_example_reads_secured_topic(
    secure_broker: Standalone,
    connection: Callable[..., str],
    airflow_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    token = secure_broker.token()
    connection(
        service_url=secure_broker.service_url, admin_url=secure_broker.admin_url, auth_method="token", token=token
    )
    topic = f"persistent://public/default/orders-{time.time_ns()}"
    with pulsar_native.Client(secure_broker.service_url, pulsar_native.AuthenticationToken(token)) as client:
        orders = [{"customer": f"c{number % 3}", "amount": number} for number in range(30)]
        client.create_producer(topic).send_many(json.dumps(order).encode() for order in orders)
    monkeypatch.setenv("SPARK_APPLICATIONS", str(SYSTEM / "applications"))
    monkeypatch.setenv("EXAMPLES_FOLDER", str(tmp_path))
    monkeypatch.setenv("SPARK_ENVIRONMENT", str(ROOT / ".envs" / "spark"))
    path = airflow_home / "dags" / f"{EXAMPLE}.py"
    shutil.copy(SYSTEM / path.name, path)
    spec = importlib.util.spec_from_file_location(EXAMPLE, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    events = tmp_path / "events"
    events.mkdir()
    task = module.dag.task_dict["totals"]
    task.params = {"topic": topic}
    task.conf |= {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }
    with ProcessWatch("totals_by_customer") as watch:
        run = module.dag.test()
    assert states_of(run) == {"totals": "success"}
    totals = {row["customer"]: row["total"] for row in pq.read_table(tmp_path / "totals").to_pylist()}
    assert totals == {"c0": 135.0, "c1": 145.0, "c2": 155.0}

    printed = capfd.readouterr()
    places = {
        "process list": "\n".join(watch.command_lines),
        "task log": caplog.text + printed.out + printed.err,
        "rendered fields": json.dumps(rendered_of(run, "totals"), default=str),
        "XCom": json.dumps(xcom_of(run, "totals")),
        "Spark event log": "\n".join(each.read_text() for each in events.rglob("*") if each.is_file()),
    }
    # What was looked at is really there, and has the reference where it belongs.
    for place in ("process list", "task log", "Spark event log"):
        assert f"{REFERENCE}" in places[place], place
    assert topic in places["rendered fields"] and "spark.pulsar" not in places["rendered fields"]
    assert [place for place, text in places.items() if token in text] == []


# ---- what is handed over ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local", "secret")
@pytest.mark.proves("A27")
def test_submit_local_connection_in_conf_secret_in_variable(tmp_path: Path) -> None:
    operator = job(spark := RecordedSubmit(tmp_path, "exit 0"), conf={"spark.own": "1"}, application_args=["a"])
    operator.execute(context_of())
    assert spark.properties == {
        "spark.own": "1",
        "spark.pulsar.service.url": "pulsar://h:1",
        "spark.pulsar.admin.url": "http://h:2",
        "spark.pulsar.client.listenerName": "inner",
        "spark.pulsar.client.tlsAllowInsecureConnection": "false",
        "spark.pulsar.client.tlsHostnameVerificationEnable": "true",
        "spark.pulsar.client.operationTimeoutMs": "30000",
        REFERENCE: "env:PULSAR_CREDENTIALS",
    }
    assert json.loads(spark.variable) == {"method": "token", "token": SECRET}
    assert spark.words[-2:] == ["/jobs/job.py", "a"]
    assert SECRET not in " ".join(spark.words)
    # Neither for a later attempt of this process, nor in the fields of the task.
    assert "PULSAR_CREDENTIALS" not in operator._hook.process_env | (operator._hook._env or {})
    assert operator.conf == {"spark.own": "1"}


@pytest.mark.usefixtures("cluster", "secret")
@pytest.mark.proves("K6")
def test_submit_cluster_secret_file_is_private_and_removed(tmp_path: Path) -> None:
    spark = RecordedSubmit(tmp_path)
    with pytest.raises(AirflowException) as failure:
        job(spark, files="/etc/hosts").execute(context_of())
    copied, place = Path(f"{tmp_path}/seen.file"), spark.words[spark.words.index("--files") + 1]
    own, _, ours = place.partition(",")
    assert own == "/etc/hosts" and spark.properties[REFERENCE] == f"file:{Path(ours).name}"
    assert not copied.exists() and not Path(ours).exists(), "the file must be gone after the task"
    assert spark.variable == "" and SECRET not in f"{spark.words} {failure.value}"
    with pytest.raises(AirflowException):
        job(RecordedSubmit(tmp_path / "alone")).execute(context_of())
    copied = tmp_path / "alone" / "seen.file"
    assert json.loads(copied.read_text()) == {"method": "token", "token": SECRET}
    assert stat.S_IMODE(os.stat(copied).st_mode) == 0o600


@pytest.mark.usefixtures("cluster", "secret")
@pytest.mark.parametrize("place", ["conf", "properties_file", "spark-defaults.conf"])
def test_submit_secret_file_keeps_files_of_user(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "spark-defaults.conf"
    written.write_text("#spark.files /none\nspark.files.overwrite true\nspark.files = /etc/hosts,/etc/passwd\n")
    options: dict[str, Any] = {"conf": {"spark.files": "/etc/hosts,/etc/passwd"}} if place == "conf" else {}
    if place == "properties_file":
        options = {place: str(written)}
    if place == written.name:
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(AirflowException):
        job(spark := RecordedSubmit(tmp_path), **options).execute(context_of())
    own, _, ours = spark.words[spark.words.index("--files") + 1].rpartition(",")
    assert (own, spark.properties[REFERENCE]) == ("/etc/hosts,/etc/passwd", f"file:{Path(ours).name}")


@pytest.mark.usefixtures("local", "secret")
def test_submit_conf_of_user_wins(tmp_path: Path) -> None:
    own = {"spark.pulsar.service.url": "pulsar://mine:1", "spark.pulsar.CLIENT.listenername": "mine"}
    job(spark := RecordedSubmit(tmp_path, "exit 0"), conf=own).execute(context_of())
    found = spark.properties
    assert {name: found[name] for name in own} == own
    assert "spark.pulsar.client.listenerName" not in found
    assert (found["spark.pulsar.admin.url"], found[REFERENCE]) == ("http://h:2", "env:PULSAR_CREDENTIALS")
    # With a reference of the user's there is nothing to hand over.
    referring = job(spark := RecordedSubmit(tmp_path / "r", "exit 0"), conf={REFERENCE: "env:MINE"})
    referring.execute(context_of())
    assert (spark.properties[REFERENCE], spark.variable) == ("env:MINE", "")


@pytest.mark.usefixtures("cluster")
def test_submit_credentials_that_spark_has(connection: Callable[..., str], tmp_path: Path) -> None:
    connection(service_url="pulsar://h:1", token=SECRET, spark_credentials_ref="file:/run/token")
    job(spark := RecordedSubmit(tmp_path, "exit 0")).execute(context_of())
    assert spark.properties[REFERENCE] == "file:/run/token" and "--files" not in spark.words
    connection(service_url="pulsar://h:1")
    job(spark := RecordedSubmit(tmp_path / "open", "exit 0")).execute(context_of())
    assert REFERENCE not in spark.properties and "--files" not in spark.words


@pytest.mark.usefixtures("local", "secret")
def test_submit_openlineage_properties_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "airflow.providers.apache.spark.operators.spark_submit"
    monkeypatch.setattr(
        f"{module}.inject_parent_job_information_into_spark_properties",
        lambda properties, _: {**properties, "spark.openlineage.parentJobName": "j"},
    )
    operator = job(spark := RecordedSubmit(tmp_path, "exit 0"), openlineage_inject_parent_job_info=True)
    operator.execute(context_of())
    assert spark.properties["spark.openlineage.parentJobName"] == "j"
    assert spark.properties["spark.pulsar.service.url"] == "pulsar://h:1"


# ---- users' own classes ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local", "secret")
@pytest.mark.parametrize(("kind", "options", "team"), [(BehindMixin, {"team": "a"}, "a"), (BesideMixin, {}, "b")])
def test_submit_own_hook_keeps_its_methods(kind: Any, options: dict[str, str], team: str, tmp_path: Path) -> None:
    operator = job(spark := RecordedSubmit(tmp_path, "exit 0"), kind, conf={"spark.own": "1"}, **options)
    operator.execute(context_of())
    hook = operator._hook
    assert isinstance(hook, OwnHook) and type(hook).__name__ == "OwnHook" and hook.submitted == "/jobs/job.py"
    own = {"spark.own.hook": "yes", "spark.team": team, "spark.own": "1"}
    ours = {"spark.pulsar.service.url": "pulsar://h:1", REFERENCE: "env:PULSAR_CREDENTIALS"}
    assert own.items() | ours.items() <= spark.properties.items()
    assert json.loads(spark.variable)["token"] == SECRET


def test_submit_own_operator_keeps_fields_and_order() -> None:
    assert BehindMixin.template_fields == OwnOperator.template_fields
    with pytest.raises(TypeError, match="missing keyword argument 'team'"):
        BehindMixin(task_id="job")
    with pytest.raises(TypeError, match="MRO"):
        type("Wrong", (SparkSubmitOperator, PulsarSparkSubmitMixin), {})


def test_submit_hook_of_another_kind_raises(tmp_path: Path) -> None:
    operator = Job(task_id="job", application="a.py")
    with pytest.raises(TypeError, match="must be a SparkSubmitHook, not object"):
        operator._hook = object()


@pytest.mark.usefixtures("local", "secret")
def test_submit_link_to_spark_ui(tmp_path: Path) -> None:
    class Linked(PulsarSparkSubmitMixin, SparkSubmitOperator):
        operator_extra_links = (SparkUILink(),)

    line = "echo 'INFO SparkUI: Bound SparkUI to 0.0.0.0, and started at http://driver:4040'"
    for number, (kind, found) in enumerate(((Linked, "http://driver:4040"), (Job, None))):
        context = context_of()
        operator = job(RecordedSubmit(tmp_path / str(number), line), kind)
        operator.execute(context)
        key: Any = None
        assert SparkUILink().get_link(operator, ti_key=key) == "http://driver:4040"
        assert context["ti"].xcoms.get(SparkUILink().xcom_key) == found


@pytest.mark.usefixtures("local", "secret")
def test_submit_mapped_task(airflow_home: Path, tmp_path: Path) -> None:
    then = f'for word in "$@"; do last="$word"; done; echo "$PULSAR_CREDENTIALS" > {tmp_path}/$last'
    spark = RecordedSubmit(tmp_path, then)
    dag = dag_in(
        airflow_home,
        "mapped_applications",
        f"""
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
        from airflow_provider_pulsar.operators.spark_submit import PulsarSparkSubmitMixin

        class Job(PulsarSparkSubmitMixin, SparkSubmitOperator):
            def __init__(self, *, day=None, **kwargs):
                super().__init__(**kwargs)

        options = dict(
            application="/jobs/job.py", pulsar_conn_id="pulsar_default", spark_environment={str(spark.environment)!r}
        )
        Job.partial(task_id="job", **options).expand(application_args=[["one"], ["two"]])
        Job.partial(task_id="leaking", conf={{"spark.pulsar.x": "{{{{ params.brought }}}}"}},
            params={{"brought": "token:of-another"}}, **options).expand(application_args=[["three"]])
        """,
    )
    run = dag.test()
    assert states_of(run) == {"job[0]": "success", "job[1]": "success", "leaking[0]": "failed"}
    assert [json.loads((tmp_path / name).read_text())["token"] for name in ("one", "two")] == [SECRET, SECRET]
    # What a template has brought is found before Airflow stores it, which knows neither the name nor the value.
    assert not (tmp_path / "three").exists() and "of-another" not in json.dumps(rendered_of(run, "leaking"))


# ---- secrets of the user's -------------------------------------------------------------------------------------------


@pytest.mark.proves("K6")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"conf": {"spark.pulsar.client.authParams": SECRET}}, "conf must not hold Pulsar's secrets"),
        ({"conf": {"spark.pulsar.x": "token:hush-hush"}}, "conf must not hold Pulsar's secrets"),
        ({"conf": {REFERENCE: SECRET}}, r"conf must not hold a secret \(credentialsRef\)"),
        ({"conf": {REFERENCE: "conf:spark.my.key", "spark.my.key": SECRET}}, r"Pulsar's secrets \(spark.my.key\)"),
        ({"env_vars": {"PULSAR_TOKEN": SECRET}}, "env_vars must not hold Pulsar's secrets"),
    ],
)
def test_submit_secret_in_spark_options_raises(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    spark = RecordedSubmit(tmp_path)
    with pytest.raises(ValueError, match=message) as refused:
        job(spark, **arguments)
    assert SECRET not in str(refused.value)
    operator = job(spark)
    for name, value in arguments.items():
        setattr(operator, name, value)
    for use in (operator.render_template_fields, operator.execute):
        with pytest.raises(ValueError, match=message):
            use(context_of())
    assert not spark.was_called


@pytest.mark.parametrize("kind", [Job, PulsarSparkLoadOperator])
@pytest.mark.parametrize("name", ["conf", "env_vars"])
@pytest.mark.parametrize("value", [f"spark.pulsar.token={SECRET}", [SECRET]])
def test_submit_spark_options_no_mapping_raise(name: str, value: Any, kind: Any, tmp_path: Path) -> None:
    load = {"topic": "t", "output_path": "/x", "interval": "all"} if kind is PulsarSparkLoadOperator else {}
    spark, message = (
        RecordedSubmit(tmp_path),
        f"{name} must be a mapping of names to values, not {type(value).__name__}",
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        job(spark, kind, **load, **{name: value})
    operator = job(spark, kind, **load, **{name: "{{ params.brought }}"})
    setattr(operator, name, value)
    for use in (operator.render_template_fields, operator.execute):
        with pytest.raises(ValueError, match=f"^{message}$"):
            use(context_of())
    assert not spark.was_called


# ---- drivers of a standalone master ----------------------------------------------------------------------------------


@pytest.mark.parametrize("application", ["/jobs/job.py", "/jobs/job.jar"])
@pytest.mark.usefixtures("secret")
@pytest.mark.proves("K6")
def test_submit_secret_for_standalone_driver_is_refused(
    application: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    define_spark(monkeypatch, host="spark://c", port=7, extra={"deploy-mode": "cluster"})
    operator = job(spark := RecordedSubmit(tmp_path))
    operator.application = application
    with pytest.raises(AirflowFailException, match="spark_credentials_ref") as refused:
        operator.execute(context_of(store=StateStore()))
    assert not spark.was_called and SECRET not in str(refused.value)


class FinishedHook(SparkSubmitHook):
    """A hook whose driver has ended well."""

    def _start_driver_status_tracking(self) -> None:
        self._driver_status = "FINISHED"


class JarJob(PulsarSparkSubmitMixin, SparkSubmitOperator):
    """An application of the Java machine."""

    def _get_hook(self) -> SparkSubmitHook:
        return FinishedHook(conf=self.conf, java_class="org.example.Main")


def test_submit_jar_in_standalone_cluster_is_left_to_spark(
    connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connection(service_url="pulsar://h:1")
    define_spark(monkeypatch, host="spark://c", port=7, extra={"deploy-mode": "cluster"})

    def create(*_: object) -> str:
        raise AssertionError("Java needs no REST server")

    monkeypatch.setattr(SparkRestServer, "create", create)
    operator = job(spark := RecordedSubmit(tmp_path, "echo submitted as driver-20260101-0001"), JarJob)
    operator.application = "/jobs/job.jar"
    operator.execute(context_of(store=(store := StateStore())))
    assert spark.words[-3:] == ["--deploy-mode", "cluster", "/jobs/job.jar"]
    assert spark.properties["spark.pulsar.service.url"] == "pulsar://h:1"
    assert operator._hook._driver_id == "driver-20260101-0001"
    # A cleared run submits again.
    assert store == {}


@pytest.fixture
def restarting(monkeypatch: pytest.MonkeyPatch, connection: Callable[..., str]) -> Iterator[str]:
    """Define spark_default as a standalone master that answers no question between RUNNING and FINISHED."""
    connection(service_url="pulsar://h:1")
    states = iter(("RUNNING", "", "FINISHED"))

    def answer(asked: Asked) -> Answer:
        state = "SUBMITTED" if asked.method == "POST" else next(states)
        body = {"success": True, "submissionId": "driver-1", "driverState": state}
        return Answer(200, json.dumps(body).encode()) if state else Answer(503)

    with http_peer(answer) as peer:
        extra = {"deploy-mode": "cluster", "rest-port": int(peer.url.rpartition(":")[2])}
        define_spark(monkeypatch, host=f"spark://{HOST}", port=7, extra=extra)
        yield peer.url


@pytest.mark.usefixtures("restarting")
@pytest.mark.parametrize("kind", [Job, PulsarSparkLoadOperator])
@pytest.mark.proves("A28")
def test_submit_waits_across_master_restart(kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load = {"topic": "t", "output_path": "/x", "interval": "all", "value_format": "raw", "verify_manifest": False}
    options = load if kind is PulsarSparkLoadOperator else {}
    operator = job(RecordedSubmit(tmp_path), kind, status_poll_interval=0, **options)
    operator.execute(context_of(store=StateStore()))
    assert "Waiting for the Spark driver driver-1: " in caplog.text and "NotServed: HTTP 503" in caplog.text


def test_driver_trigger_waits_across_master_restart(restarting: str) -> None:
    event = asyncio.run(anext(SparkDriverTrigger([restarting], "driver-1", 0).run()))  # type: ignore[arg-type]
    assert event.payload == {"driver_id": "driver-1", "state": "FINISHED", "message": ""}


def test_driver_trigger_unreachable_master_ends() -> None:
    with http_peer(lambda _: Answer(503)) as peer:
        trigger = SparkDriverTrigger([peer.url], "driver-1", 0, unreachable_seconds=0)
        event = asyncio.run(anext(trigger.run()))  # type: ignore[arg-type]
    assert event.payload["state"] == "UNREACHABLE"


@dataclass
class Master:
    """REST server of a standalone master; a driver that it starts ends at once. `states` are those still to come."""

    states: dict[str, list[str]] = field(default_factory=dict)
    created: list[dict[str, Any]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    status: int = 200

    def answer(self, asked: Asked) -> Answer:
        """Return the answer to a request."""
        action, _, driver_id = asked.path.removeprefix("/v1/submissions/").partition("/")
        body: dict[str, Any] = {"action": "SubmissionStatusResponse", "success": True}
        if action == "create":
            self.created.append(json.loads(asked.body))
            body["submissionId"] = driver_id = f"driver-{len(self.created)}"
            self.states[driver_id] = ["FINISHED"]
        elif action == "kill":
            self.killed.append(driver_id)
            self.states[driver_id] = ["KILLED"]
        elif states := self.states.get(driver_id):
            body["driverState"] = states.pop(0) if len(states) > 1 else states[0]
        else:
            body["success"] = False
        return Answer(self.status, json.dumps(body).encode() if self.status == 200 else b"")


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch, connection: Callable[..., str]) -> Iterator[Master]:
    """Define spark_default as a standalone master that knows no driver yet."""
    connection(service_url="pulsar://h:1")
    made = Master()
    with http_peer(made.answer) as peer:
        extra = {"deploy-mode": "cluster", "rest-port": int(peer.url.rpartition(":")[2])}
        define_spark(monkeypatch, host=f"spark://{HOST}", port=7, extra=extra)
        yield made


def driver(kind: Any, folder: Path, **options: Any) -> Any:
    """Return an operator whose driver a master starts: an application, or a load into the path `out`."""
    load = {
        "topic": "t",
        "output_path": str(folder / "out"),
        "interval": "all",
        "value_format": "raw",
        "verify_manifest": False,
    }
    given = {**load, **options} if kind is PulsarSparkLoadOperator else options
    (spark := folder / "spark").mkdir(exist_ok=True)
    return job(RecordedSubmit(Path(tempfile.mkdtemp(dir=spark))), kind, status_poll_interval=0, **given)


@pytest.mark.parametrize("kind", [Job, PulsarSparkLoadOperator])
def test_submit_cleared_after_success_submits_again(kind: Any, master: Master, tmp_path: Path) -> None:
    store = StateStore()
    for number in (1, 2):
        driver(kind, tmp_path).execute(context_of(store=store))
        assert (len(master.created), store) == (number, {})


@pytest.mark.parametrize("kind", [Job, PulsarSparkLoadOperator])
@pytest.mark.proves("A28")
def test_submit_driver_unknown_to_master_submits_again(kind: Any, master: Master, tmp_path: Path) -> None:
    store = StateStore({"spark_job_id": "driver-old", "pulsar_load": {"attempt": "a"}})
    driver(kind, tmp_path).execute(context_of(store=store))
    assert (len(master.created), master.killed) == (1, [])


@pytest.mark.parametrize("kind", [Job, PulsarSparkLoadOperator])
def test_submit_retry_master_unreachable_raises(kind: Any, master: Master, tmp_path: Path) -> None:
    master.status = 503
    store = StateStore({"spark_job_id": "driver-old"})
    with pytest.raises(AirflowException, match=rf"driver-old, which an earlier try started.*http://{HOST}:"):
        driver(kind, tmp_path).execute(context_of(store=store))
    assert (master.created, store["spark_job_id"]) == ([], "driver-old")


def written_by(attempt: str, folder: Path) -> None:
    """Write the manifest of a finished load into the path `out`."""
    found = {"status": "done", "rows": 7, "seconds": 1.5, "partitions": [{}], "attempt": attempt}
    (folder / ".out.manifest.json").write_text(json.dumps(found))


def test_load_driver_unknown_to_master_takes_result(master: Master, tmp_path: Path) -> None:
    written_by("a", tmp_path)
    store = StateStore({"spark_job_id": "driver-old", "pulsar_load": {"attempt": "a"}})
    result = driver(PulsarSparkLoadOperator, tmp_path, verify_manifest=True).execute(context_of(store=store))
    assert (result["rows"], master.created, store) == (7, [], {})


@pytest.mark.parametrize("states", [["RUNNING", "FINISHED"], ["FINISHED"]])
@pytest.mark.parametrize(
    "changed", [{"topic": "other"}, {"source_options": {"timeSlackMs": "5"}}, {"min_rows": 1}, {"manifest": "/m"}]
)
@pytest.mark.proves("A28")
def test_load_changed_request_replaces_driver(
    changed: dict[str, Any], states: list[str], master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the worker died"):
        patch.setattr(SparkRestServer, "wait", dies)
        driver(PulsarSparkLoadOperator, tmp_path).execute(context_of(store=store))
    first, master.states["driver-1"] = dict(store), list(states)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the worker died"):
        patch.setattr(SparkRestServer, "kill", dies)
        patch.setattr(PulsarSparkLoadOperator, "_forget_job", dies)
        driver(PulsarSparkLoadOperator, tmp_path, **changed).execute(context_of(store=store))
    assert store == first, "the state must be that of the driver until it is replaced"
    master.states["driver-1"] = list(states)
    driver(PulsarSparkLoadOperator, tmp_path, **changed).execute(context_of(store=store))
    requests = [json.loads(made["appArgs"][made["appArgs"].index("--request") + 1]) for made in master.created]
    assert len(requests) == 2 and requests[0]["attempt"] != requests[1]["attempt"]
    assert (master.killed, store) == (["driver-1"] if "RUNNING" in states else [], {})


def dies(*_: object) -> None:
    """End as a worker that is killed."""
    raise RuntimeError("the worker died")


def test_load_changed_request_replaces_yarn_application(
    connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connection(service_url="pulsar://h:1")
    old = "application_1_0001"

    def answer(asked: Asked) -> Answer:
        state = {"state": "RUNNING" if old in asked.path else "FINISHED", "finalStatus": "SUCCEEDED"}
        return Answer(200, json.dumps({"app": state}).encode())

    store = StateStore({"spark_job_id": old, "pulsar_load": {"attempt": "a", "request": "of another"}})
    spark = RecordedSubmit(tmp_path, "echo Submitted application application_1_0002")
    options = {"topic": "t", "output_path": "/x", "interval": "all", "value_format": "raw", "verify_manifest": False}
    with http_peer(answer) as peer:
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": peer.url}
        define_spark(monkeypatch, host="yarn", extra=extra)
        job(spark, PulsarSparkLoadOperator, yarn_track_via_rm_api=True, **options).execute(context_of(store=store))
    ended = [asked.path for asked in peer.asked if asked.method == "PUT"]
    assert (ended, spark.was_called, store) == ([f"/ws/v1/cluster/apps/{old}/state"], True, {})


@pytest.mark.parametrize("options", [{}, {"verify_manifest": True}, {"execution_timeout": timedelta(hours=1)}])
@pytest.mark.parametrize("has_digest", [True, False])
def test_load_same_request_keeps_driver(
    has_digest: bool, options: dict[str, Any], master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the worker died"):
        patch.setattr(SparkRestServer, "wait", dies)
        driver(PulsarSparkLoadOperator, tmp_path).execute(context_of(store=store))
    attempt = store["pulsar_load"]["attempt"]
    if not has_digest:  # that of an older version
        store.set("pulsar_load", {"attempt": attempt})
    written_by(attempt, tmp_path)
    master.states["driver-1"] = ["RUNNING", "FINISHED"]
    driver(PulsarSparkLoadOperator, tmp_path, **options).execute(context_of(store=store))
    assert (len(master.created), master.killed, store) == (1, [], {})


def deferred_load(folder: Path, **options: Any) -> tuple[SparkDriverTrigger, TaskDeferred]:
    """Return the trigger of a deferred load as the triggerer makes it, and what it was made of."""
    with pytest.raises(TaskDeferred) as deferred:
        driver(PulsarSparkLoadOperator, folder, deferrable=True, **options).execute(context_of(store=StateStore()))
    return SparkDriverTrigger(**deferred.value.trigger.serialize()[1]), deferred.value


def test_load_deferred_driver_unknown_to_master(master: Master, tmp_path: Path) -> None:
    trigger, deferred = deferred_load(tmp_path)
    master.states.clear()
    event = asyncio.run(anext(trigger.run())).payload  # type: ignore[arg-type]
    assert event["state"] == "NOT_FOUND"

    def resume(**options: Any) -> Any:
        operator = driver(PulsarSparkLoadOperator, tmp_path, **options)
        return operator.execute_complete(context_of(store=StateStore()), event, **deferred.kwargs or {})

    with pytest.raises(AirflowException, match=r"driver-1 of the load of t is gone: .*next try submits it again"):
        resume()
    written_by((deferred.kwargs or {})["attempt"], tmp_path)
    assert resume(verify_manifest=True)["rows"] == 7


@pytest.mark.parametrize(
    ("status", "message"), [(200, "driver-1: it was killed"), (503, "driver-1: it could not be killed .*http://")]
)
@pytest.mark.proves("A29")
def test_load_deferred_timeout_kills_driver(status: int, message: str, master: Master, tmp_path: Path) -> None:
    limit = timedelta(milliseconds=1)
    trigger, deferred = deferred_load(tmp_path, execution_timeout=limit)
    # Airflow's own time-out is later, as it ends no driver.
    assert deferred.timeout == limit + timedelta(seconds=60)
    master.states["driver-1"], master.status = ["RUNNING"], status
    event = asyncio.run(anext(trigger.run())).payload  # type: ignore[arg-type]
    assert (event["state"], master.killed) == ("TIMEOUT", ["driver-1"])
    operator = driver(PulsarSparkLoadOperator, tmp_path, execution_timeout=limit)
    with pytest.raises(TaskDeferralTimeout, match=message):
        operator.execute_complete(context_of(store=StateStore()), event, **deferred.kwargs or {})


def test_driver_trigger_of_older_version_has_no_limit(restarting: str) -> None:
    kept = {"rest_urls": [restarting], "driver_id": "driver-1", "poll_interval": 0, "unreachable_seconds": 600}
    event = asyncio.run(anext(SparkDriverTrigger(**kept).run()))  # type: ignore[arg-type]
    assert event.payload["state"] == "FINISHED"


@pytest.mark.parametrize(
    ("address", "url"),
    [("spark://[::1]:7077", "http://[::1]:6066"), ("spark://[fe80::1]", "http://[fe80::1]:6066"),
     ("spark://h:7077, i", "http://h:6066 http://i:6066")],
)  # fmt: skip
def test_rest_server_address_of_master(address: str, url: str) -> None:
    assert SparkRestServer.of({"master": address}).urls == url.split()


@pytest.mark.parametrize("body", [{}, {"submissionId": None}, {"submissionId": ""}])
def test_rest_server_create_without_id_raises(body: dict[str, Any]) -> None:
    with http_peer(lambda _: Answer(200, json.dumps({"success": True, **body}).encode())) as peer:
        server = SparkRestServer([peer.url])
        with pytest.raises(AirflowException, match="has no submissionId"):
            server.create([], {}, {})
        assert server.status("driver-1").state == "UNKNOWN"


# ---- the end of the task ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster", "secret")
@pytest.mark.proves("A29", "K6")
def test_submit_killed_task_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    spark = RecordedSubmit(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    child = os.fork()
    if child == 0:  # the task's process, which Airflow tells to end while spark-submit runs
        operator = job(spark)

        def end(*_: object) -> None:
            operator.on_kill()
            os._exit(0)

        try:
            signal.signal(signal.SIGTERM, end)
            operator.execute(context_of())
        finally:
            os._exit(1)
    deadline = time.monotonic() + 60
    while not ((pid := tmp_path / "pid").exists() and pid.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    place = spark.file[1]
    assert place.exists()
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == 0
    assert not place.exists()
    while Path(f"/proc/{int(pid.read_text())}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("cluster", "secret")
def test_submit_killed_before_it_began_reads_no_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_PULSAR_DEFAULT")
    job(spark := RecordedSubmit(tmp_path)).on_kill()
    assert not spark.was_called
