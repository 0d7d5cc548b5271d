"""PulsarNotifier as a callback of tasks and runs, and awaited as the triggerer does."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.log import mask_secret

from airflow_provider_pulsar.notifications.pulsar import PulsarNotifier
from support.brokers import Broker, NewTopic
from support.errors import Unprintable
from support.publish_tasks import read_all
from support.tasks import dag_in, states_of


@pytest.mark.proves("A7")
@pytest.mark.usefixtures("pulsar_conn")
def test_notifier_as_callback_of_tasks(airflow_home: Path, broker: Broker, topic: NewTopic) -> None:
    alerts, done = topic("alerts"), topic("done")
    dag = dag_in(
        airflow_home,
        "notifying_tasks",
        f"""
        from airflow_provider_pulsar.notifications.pulsar import PulsarNotifier

        done = PulsarNotifier(
            topic="{{{{ params.done }}}}", message={{"task": "{{{{ ti.task_id }}}}"}}, key="k", properties={{"a": "b"}}
        )

        @task(on_success_callback=done, params={{"done": {done!r}}})
        def good():
            pass

        @task(on_failure_callback=PulsarNotifier(topic={alerts!r}))
        def bad():
            raise RuntimeError("no more")

        good(), bad()
        """,
    )
    run = dag.test()
    assert states_of(run) == {"good": "success", "bad": "failed"}
    (alert,) = read_all(broker, alerts)
    told = json.loads(alert.data())
    wanted = {"dag_id": "notifying_tasks", "task_id": "bad", "run_id": run.run_id, "try_number": 1}
    assert told.items() >= {**wanted, "exception": "no more"}.items(), told
    assert told.get("state") == "failed", told
    assert alert.partition_key() == f"notifying_tasks/{run.run_id}"
    assert alert.properties() == {f"airflow.{name}": wanted[name] for name in ("dag_id", "task_id", "run_id")}
    (note,) = read_all(broker, done)
    assert (json.loads(note.data()), note.partition_key()) == ({"task": "good"}, "k")
    assert note.properties()["a"] == "b"


@pytest.mark.usefixtures("pulsar_conn")
async def test_notifier_awaited(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    run = SimpleNamespace(dag_id="d", run_id="r", state="failed", logical_date=datetime(2026, 1, 1, tzinfo=UTC))
    context: Any = {"dag_run": run, "reason": "late"}
    await PulsarNotifier(topic=name, context=context)
    (message,) = read_all(broker, name)
    assert json.loads(message.data()) == {
        "dag_id": "d", "run_id": "r", "state": "failed", "logical_date": "2026-01-01T00:00:00+00:00", "reason": "late"
    }  # fmt: skip


@pytest.mark.parametrize("deadline_time", [datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"])
@pytest.mark.usefixtures("pulsar_conn")
async def test_notifier_deadline_names_the_run(deadline_time: object, broker: Broker, topic: NewTopic) -> None:
    """The context of a deadline alert has mappings, and the run's id by another name."""
    name = topic()
    run = {"dag_id": "d", "dag_run_id": "r", "state": "running", "logical_date": None, "conf": {}}
    context: Any = {"dag_run": run, "deadline": {"id": "i", "deadline_time": deadline_time}}
    await PulsarNotifier(topic=name, context=context)
    (message,) = read_all(broker, name)
    expected = {"dag_id": "d", "run_id": "r", "state": "running", "deadline_time": "2026-01-01T00:00:00+00:00"}
    assert json.loads(message.data()) == expected
    assert message.partition_key() == "d/r"
    assert message.properties() == {"airflow.dag_id": "d", "airflow.run_id": "r"}


@pytest.mark.parametrize(("given", "content"), [("text", b"text"), (b"\xff", b"\xff"), ([1], b"[1]"), (None, b"{}")])
@pytest.mark.usefixtures("pulsar_conn")
def test_notifier_message_kinds(given: object, content: bytes, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    PulsarNotifier(topic=name, message=given)({})
    assert [each.data() for each in read_all(broker, name)] == [content]


@pytest.mark.parametrize(
    ("exception", "text"), [(Unprintable(), "Unprintable"), (RuntimeError("x" * 6_000_000), "x" * 65_536)]
)
@pytest.mark.usefixtures("pulsar_conn")
def test_notifier_exception_any_text_is_published(
    exception: Exception, text: str, broker: Broker, topic: NewTopic
) -> None:
    name = topic()
    context: Any = {"exception": exception}
    PulsarNotifier(topic=name)(context)
    (message,) = read_all(broker, name)
    assert json.loads(message.data()) == {"exception": text}


class Refused(Exception):
    """An error with an attribute."""

    code = 7
    reply = "s3cret-of-test refused"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ exception }}", "no login with ***"),
        ("{{ task_id }}: {{ exception | truncate(8, true, '') }}", "t: no login"),
        ("{{ exception.args[0] }}, {{ exception.code }}, {{ exception.reply }}", "no login with ***, 7, *** refused"),
        ({"error": ["{{ exception }}"]}, '{"error": ["no login with ***"]}'),
    ],
)
@pytest.mark.usefixtures("pulsar_conn")
def test_notifier_template_exception_is_redacted(template: object, text: str, broker: Broker, topic: NewTopic) -> None:
    mask_secret("s3cret-of-test")
    name, error = topic(), Refused("no login with s3cret-of-test")
    context: Any = {"exception": error, "task_id": "t"}
    PulsarNotifier(topic=name, message=template)(context)
    (message,) = read_all(broker, name)
    assert message.data().decode() == text
    assert context["exception"] is error


@pytest.mark.parametrize(
    ("exception", "text"),
    [(Unprintable(), "Unprintable"), (RuntimeError("x" * 6_000_000), "x" * 65_536), ("late", "late")],
)
@pytest.mark.usefixtures("pulsar_conn")
async def test_notifier_template_exception_any_text(
    exception: object, text: str, broker: Broker, topic: NewTopic
) -> None:
    name = topic()
    context: Any = {"exception": exception}
    await PulsarNotifier(topic=name, message="{{ exception }}", context=context)
    (message,) = read_all(broker, name)
    assert message.data().decode() == text


@pytest.mark.usefixtures("pulsar_conn")
def test_notifier_message_is_json_without_nan(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    PulsarNotifier(topic=name, message={(1, 2): float("nan"), "b": b"\xff"})({})
    (message,) = read_all(broker, name)
    assert message.data() == b'{"(1, 2)": "nan", "b": {"base64": "/w=="}}'


_ENDLESS: list[Any] = []
_ENDLESS.append(_ENDLESS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"message": _ENDLESS}, "RecursionError"),
        ({"message": "\ud800"}, "UnicodeEncodeError"),
        ({"message": [Unprintable()]}, "ValueError: no text"),
        ({"key": 5}, "key must be a text, not int"),
        ({"properties": None}, "properties must be a dict of texts, not NoneType"),
        ({"properties": ["a"]}, "properties must be a dict of texts, not list"),
    ],
)
@pytest.mark.usefixtures("pulsar_conn")
async def test_notifier_unwritable_raises_airflow_exception(
    options: dict[str, Any], words: str, topic: NewTopic
) -> None:
    made = PulsarNotifier(topic=topic())
    # As after rendering.
    vars(made).update(options)
    with pytest.raises(AirflowException, match=f"failed at the stage 'message': .*{words}"):
        made.notify({})
    with pytest.raises(AirflowException, match=words):
        await made.async_notify({})


def test_notifier_broker_down_raises_in_time(connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    connection(service_url="pulsar://127.0.0.1:1", operation_timeout_seconds=1)
    with pytest.raises(AirflowException, match="Notifying t failed"):
        PulsarNotifier(topic="t")({})


@pytest.mark.parametrize(
    "options", [{"topic": ""}, {"topic": "t", "send_timeout_seconds": 0}, {"topic": "t", "properties": ["ab"]}]
)
def test_notifier_wrong_arguments_raise(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"topic|send_timeout_seconds|properties must be a dict"):
        PulsarNotifier(**options)
