"""PublishOperator on the real broker: what gets there, what does not, and that it is there once."""

from __future__ import annotations

import copy
import gzip
import io
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from airflow_provider_pulsar.operators.publish import PublishFailed, PublishNotRepeatable, PublishOperator
from airflow_provider_pulsar.task_client import TaskKilled
from broker import Standalone
from pulsar_native import AdminClient
from pulsar_native.schema import AvroSchema
from support.brokers import Broker, NewTopic
from support.publish_tasks import publish, read_all
from support.relay import TO_CLIENT, Command, Relay
from support.tasks import context_of, dag_in, define_connection, states_of, xcom_of
from support.until import wait_until

pytestmark = pytest.mark.usefixtures("pulsar_conn")

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
        {"name": "at", "type": "string"},
    ],
}
ROWS = [
    {"carrier": "UA", "delay": 11, "at": "2013-01-01T05:00:00"},
    {"carrier": "AA", "delay": None, "at": "2013-01-01T06:00:00Z"},
    {"carrier": "B6", "delay": -3, "at": "2013-01-01T07:30:00+01:00"},
]


# ---- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A6", "A30")
def test_publish_list_callable_file_and_xcom_in_a_dag(
    airflow_home: Path, tmp_path: Path, broker: Broker, topic: NewTopic
) -> None:
    names = {kind: topic(kind, partitions=2) for kind in ("list", "call", "file", "xcom", "text")}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    dag = dag_in(
        airflow_home,
        "publishing_sources",
        f"""
        @task
        def rows():
            return [{{"n": n}} for n in range(7)]

        def made(count, run_id):
            return ({{"n": n, "run": run_id}} for n in range(count))

        common = dict(deduplicate=False, batching_max_messages=2)
        PublishOperator(task_id="list", topic={names["list"]!r}, messages=["{{{{ task.task_id }}}}", "b"], **common)
        PublishOperator(task_id="call", topic={names["call"]!r}, messages=made, op_kwargs={{"count": 5}}, **common)
        PublishOperator(task_id="file", topic={names["file"]!r}, file={str(tmp_path / "rows.jsonl")!r}, **common)
        PublishOperator(task_id="xcom", topic={names["xcom"]!r}, messages=rows(), **common)
        PublishOperator(
            task_id="text", topic={names["text"]!r}, messages='["{{{{ run_id }}}}", {{"a": 1}}]', **common
        )
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    data = {kind: sorted(message.data() for message in read_all(broker, name)) for kind, name in names.items()}
    assert data["list"] == [b"b", b"list"]
    assert [json.loads(each) for each in data["call"]] == [{"n": n, "run": run.run_id} for n in range(5)]
    assert sorted(map(json.loads, data["file"]), key=str) == sorted(ROWS, key=str)
    assert [json.loads(each) for each in data["xcom"]] == [{"n": n} for n in range(7)]
    assert data["text"] == sorted([run.run_id.encode(), b'{"a":1}'])
    manifest = xcom_of(run, "xcom")
    assert manifest["count"] == manifest["stored"] == 7 and manifest["duplicates"] == 0
    ids = {str(message.message_id()) for message in read_all(broker, names["xcom"])}
    assert {part[end] for part in manifest["partitions"].values() for end in ("first", "last")} <= ids
    assert sum(part["count"] for part in manifest["partitions"].values()) == 7


@pytest.mark.parametrize("schema", ["json", "avro"])
@pytest.mark.parametrize("packed", [False, True])
def test_publish_csv_takes_registered_types(
    schema: str, packed: bool, tmp_path: Path, broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    text = "carrier,delay,at\n" + "".join(f"{r['carrier']},{r['delay'] or ''},{r['at']}\n" for r in ROWS)
    path = tmp_path / ("rows.csv.gz" if packed else "rows.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    name = topic()
    manifest = publish(
        name,
        file=str(path),
        schema=schema,
        schema_definition=json.dumps(FLIGHT),
        key_field="carrier",
        event_time_field="at",
        property_fields=["delay"],
        properties={"source": "csv"},
        compression="zstd",
    ).execute(context_of())
    assert manifest["count"] == 3
    registered = admin.get_schema(name)
    assert registered is not None and registered.type.name.lower() == schema
    messages = read_all(broker, name)
    assert [message.partition_key() for message in messages] == ["UA", "AA", "B6"]
    assert [message.event_timestamp() for message in messages] == [1357016400000, 1357020000000, 1357021800000]
    assert messages[0].properties() == {"source": "csv", "delay": "11"}
    assert messages[1].properties() == {"source": "csv"}
    if schema == "json":
        assert [json.loads(message.data()) for message in messages] == ROWS


def _time(logical: str) -> dict[str, str]:
    return {"type": "long", "logicalType": logical}


def times_of(kind: Any) -> dict[str, Any]:
    """Return the definition of records with the field `at`."""
    return {"type": "record", "name": "T", "fields": [{"name": "at", "type": kind}]}


@pytest.mark.parametrize("schema", ["json", "avro"])
def test_publish_csv_key_and_properties_as_written(
    schema: str, tmp_path: Path, broker: Broker, topic: NewTopic
) -> None:
    definition = times_of(_time("timestamp-millis"))
    definition["fields"].append({"name": "id", "type": {"type": "string", "logicalType": "uuid"}})
    id_, at = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "2013-01-01T05:00:00Z"
    path, name = tmp_path / "rows.csv", topic()
    path.write_text(f"id,at\n{id_},{at}\n")
    options: dict[str, Any] = {"key_field": "at", "property_fields": ["at", "id"], "event_time_field": "at"}
    publish(name, file=str(path), schema=schema, schema_definition=definition, **options).execute(context_of())
    (message,) = read_all(broker, name)
    assert (message.partition_key(), message.properties()) == (at, {"at": at, "id": id_})
    assert message.event_timestamp() == 1357016400000 and id_.encode() in message.data()


@pytest.mark.parametrize("kind", [pandas.Series, pandas.DatetimeIndex], ids=["series", "index"])
def test_publish_pandas_arrays_of_times_in_utc(kind: Any, broker: Broker, topic: NewTopic) -> None:
    name, definition = topic(), times_of({"type": "array", "items": _time("timestamp-millis")})
    items = [{"at": kind([datetime(2013, 1, 1, 5)])}]
    publish(name, items, schema="json", schema_definition=definition).execute(context_of())
    assert [message.data() for message in read_all(broker, name)] == [b'{"at":[1357016400000]}']


@pytest.mark.parametrize("schema", ["json", "avro"])
@pytest.mark.parametrize("source", ["frame", "arrow", "list"])
def test_publish_pandas_times_keep_nanoseconds(schema: str, source: str, broker: Broker, topic: NewTopic) -> None:
    name, definition = topic(), times_of(_time("timestamp-nanos"))
    nanos = [1357016400_123456789, -1]
    at = [pandas.Timestamp(each) for each in nanos]
    frame = pandas.DataFrame({"at": at})
    sources = {"frame": frame, "arrow": pa.Table.from_pandas(frame), "list": [{"at": each} for each in at]}
    publish(name, sources[source], schema=schema, schema_definition=definition).execute(context_of())
    messages = read_all(broker, name)
    decode = json.loads if schema == "json" else AvroSchema(None, definition).decode
    assert [decode(message.data())["at"] for message in messages] == nanos


def test_publish_envelope_has_key_properties_and_time(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    items = [
        {"value": b"\x00\xff", "key": "k", "properties": {"a": "b"}, "event_time": 1700000000000},
        {"value": {"x": 1}, "key": b"\xfe"},
        {"value": None, "key": "gone"},
    ]
    publish(name, items, envelope=True).execute(context_of())
    first, second, third = read_all(broker, name)
    assert (first.data(), first.partition_key(), first.properties()) == (b"\x00\xff", "k", {"a": "b"})
    assert first.event_timestamp() == 1700000000000
    assert (second.data(), second.key_bytes()) == (b'{"x":1}', b"\xfe")
    assert third.has_null_value()


def test_publish_iterator_is_streamed(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    alive = 0
    most = 0

    class Row(dict[str, str]):
        def __init__(self) -> None:
            nonlocal alive, most
            super().__init__(text="x" * 2000)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    manifest = publish(name, lambda: (Row() for _ in range(20_000))).execute(context_of())
    assert manifest["count"] == 20_000
    assert most < 10


@pytest.mark.proves("A6")
def test_publish_data_frames_directly_and_through_xcom(
    airflow_home: Path, tmp_path: Path, broker: Broker, topic: NewTopic
) -> None:
    names = {kind: topic(kind) for kind in ("frame", "xcom", "arrow", "parquet")}
    path = tmp_path / "rows.parquet"
    dag = dag_in(
        airflow_home,
        "publishing_tables",
        f"""
        import pandas

        def frame():
            # The integers have a gap, which makes floats of them; the column with objects is mixed.
            return pandas.DataFrame(
                {{
                    "carrier": ["UA", "AA", "B6"],
                    "delay": [11, None, -3],
                    "at": pandas.to_datetime(["2013-01-01T05:00", None, "2013-01-01T07:30"]),
                    "tags": [["a"], None, "b"],
                }}
            )

        def arrow():
            import pyarrow
            return pyarrow.Table.from_pandas(frame()[["carrier", "delay"]]).to_reader(1)

        @task
        def framed():
            return frame()[["carrier", "delay", "at"]]

        @task
        def written():
            frame()[["carrier", "at"]].to_parquet({str(path)!r})
            return {str(path)!r}

        PublishOperator(task_id="frame", topic={names["frame"]!r}, messages=frame, key_field="carrier")
        PublishOperator(task_id="xcom", topic={names["xcom"]!r}, messages=framed(), event_time_field="at")
        PublishOperator(task_id="arrow", topic={names["arrow"]!r}, messages=arrow, property_fields=["delay"])
        PublishOperator(task_id="parquet", topic={names["parquet"]!r}, file=written())
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    messages = {kind: read_all(broker, name) for kind, name in names.items()}
    first = {"carrier": "UA", "delay": 11.0, "at": "2013-01-01T05:00:00"}
    assert json.loads(messages["frame"][0].data()) == {**first, "tags": ["a"]}
    assert json.loads(messages["frame"][1].data()) == {"carrier": "AA", "delay": None, "at": None, "tags": None}
    assert [message.partition_key() for message in messages["frame"]] == ["UA", "AA", "B6"]
    assert json.loads(messages["xcom"][0].data()) == first
    assert [message.event_timestamp() for message in messages["xcom"]] == [1357016400000, 0, 1357025400000]
    assert [message.properties() for message in messages["arrow"]] == [{"delay": "11.0"}, {}, {"delay": "-3.0"}]
    assert [json.loads(message.data())["carrier"] for message in messages["parquet"]] == ["UA", "AA", "B6"]


def test_publish_data_frame_takes_the_registered_types(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    frame = pandas.DataFrame(ROWS)
    frame["at"] = pandas.to_datetime(frame["at"], utc=True, format="ISO8601")
    publish(name, frame, schema="avro", schema_definition=FLIGHT).execute(context_of())
    found = [AvroSchema(None, FLIGHT).decode(message.data()) for message in read_all(broker, name)]
    assert [(each["carrier"], each["delay"]) for each in found] == [("UA", 11), ("AA", None), ("B6", -3)]
    assert found[0]["at"] == "2013-01-01T05:00:00+00:00"


def test_publish_json_array_file_and_file_format(broker: Broker, topic: NewTopic, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}, {"a": 2}]')
    first, second = topic(), topic()
    assert publish(first, file=path).execute(context_of())["count"] == 2
    assert [message.data() for message in read_all(broker, first)] == [b'{"a":1}', b'{"a":2}']
    assert publish(second, file=str(path), file_format="jsonl").execute(context_of())["count"] == 1
    assert [message.data() for message in read_all(broker, second)] == [b'[{"a":1},{"a":2}]']


@pytest.mark.parametrize("ending", ["jsonl", "csv.gz", "parquet"])
def test_publish_file_of_object_storage(ending: str, broker: Broker, topic: NewTopic) -> None:
    from airflow.sdk import ObjectStoragePath
    from airflow.sdk.io import attach
    from fsspec.implementations.memory import MemoryFileSystem

    attach("memory", fs=MemoryFileSystem())
    parquet = io.BytesIO()
    pq.write_table(pa.table({"a": ["1", "2"]}), parquet)
    content = {"jsonl": b'{"a":"1"}\n{"a":"2"}\n', "csv.gz": gzip.compress(b"a\n1\n2\n"), "parquet": parquet.getvalue()}
    name = topic()
    path = f"memory://bucket/{name.rpartition('/')[2]}.{ending}"
    ObjectStoragePath(path).write_bytes(content[ending])
    assert (
        publish(name, file=path if ending == "jsonl" else ObjectStoragePath(path)).execute(context_of())["count"] == 2
    )
    assert [message.data() for message in read_all(broker, name)] == [b'{"a":"1"}', b'{"a":"2"}']


def test_publish_async_callables(broker: Broker, topic: NewTopic) -> None:
    async def listed(run_id: str) -> list[str]:
        return [run_id, "b"]

    async def streamed(count: int) -> AsyncIterator[str]:
        for number in range(count):
            yield str(number)

    name = topic()
    publish(name, listed).execute(context_of())
    publish(name, streamed, op_kwargs={"count": 3}).execute(context_of())
    assert [message.data() for message in read_all(broker, name)] == [b"a_run", b"b", b"0", b"1", b"2"]


def test_publish_producer_properties_name_the_task(topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    seen: list[dict[str, Any]] = []

    def rows() -> Iterator[str]:
        seen.extend(dict(each) for each in admin.stats(name)["publishers"])
        yield "a"

    publish(name, rows, deduplicate="auto").execute(context_of())
    assert seen[0]["metadata"] == {
        "airflow.dag_id": "a_dag",
        "airflow.task_id": "a_task",
        "airflow.run_id": "a_run",
        "airflow.map_index": "-1",
        "airflow.deployment_id": "tests",
    }


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": None}, "exactly one of messages and file"),
        ({"messages": ["a"], "file": "a.csv"}, "exactly one of messages and file"),
        ({"messages": ["a"], "schema": "avor"}, "'avro'"),
        ({"messages": ["a"], "schema": "avro"}, "schema_definition"),
        ({"messages": ["a"], "schema": "JSON"}, "schema='json' needs schema_definition"),
        ({"messages": ["a"], "compression": "lz5"}, "'lz4'"),
        ({"messages": ["a"], "envelope": True, "key_field": "k"}, "envelope"),
        ({"messages": ["a"], "property_fields": "k"}, "list"),
        ({"messages": ["a"], "send_timeout_seconds": 0}, "send_timeout_seconds"),
        ({"messages": ["a"], "deduplicate": "maybe"}, "deduplicate must be True, False or 'auto'"),
        ({"messages": ["a"], "deduplicate": 1}, "deduplicate must be True, False or 'auto'"),
        ({"messages": ["a"], "on_changed": "ignore"}, "'fail'|fail, republish"),
        ({"messages": ["a"], "file_format": "csv"}, "file_format belongs to file"),
        ({"file": "a", "file_format": "xml"}, "file_format"),
        ({"messages": ["a"], "retention_minutes": 0}, "retention_minutes must be a whole number from 1, or -1"),
        ({"messages": ["a"], "retention_mb": 1.5}, "retention_mb must be a whole number"),
        ({"messages": ["a"], "retention_mb": -2}, "retention_mb"),
        ({"messages": ["a"], "send_timeout_seconds": float("inf")}, "send_timeout_seconds"),
        ({"messages": ["a"], "property_fields": None}, "property_fields must be a list of field names, not None"),
        ({"messages": ["a"], "property_fields": [5]}, "property_fields must be a list"),
        ({"messages": ["a"], "key_field": ["k"]}, "key_field must be the name of a field"),
        ({"messages": ["a"], "event_time_field": 5}, "event_time_field must be the name of a field"),
    ],
)
def test_publish_wrong_arguments_raise_at_parsing(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PublishOperator(task_id="a_task", topic="t", **options)


def test_publish_choices_in_any_case() -> None:
    options: dict[str, Any] = {"file": "a", "file_format": "CSV", "compression": "ZSTD", "on_changed": "Republish"}
    made = PublishOperator(task_id="a_task", topic="t", schema="Avro", schema_definition={}, **options)
    found = (made.file_format, made.compression, made.on_changed, made.schema)
    assert found == ("csv", "zstd", "republish", "avro")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": "no json"}, "JSON array"),
        ({"messages": '{"a": 1}'}, "list"),
        ({"messages": lambda: 7}, "list or an iterator"),
        ({"messages": [{"a": 1}], "key_field": "b"}, "message 0: .*'b'"),
        ({"messages": ["a", object()]}, "message 1"),
        ({"messages": [{"carrier": "UA"}], "schema": "json", "schema_definition": FLIGHT}, "message 0"),
        ({"messages": ["a"], "properties": {"a": 1}}, "properties"),
        ({"file": "rows.xml"}, r"ending.*file_format"),
        ({"messages": pandas.Series(["a"])}, r"\.tolist"),
        ({"messages": {"a", "b"}}, "sorted"),
        ({"file": 5}, "file must be a text"),
        ({"messages": lambda: ["a"], "op_kwargs": "abc"}, "op_kwargs must be a dict of keyword arguments"),
        ({"messages": lambda: ["a"], "op_kwargs": {5: 1}}, "op_kwargs must be a dict of keyword arguments"),
        (
            {"messages": ["a"], "schema": "json", "schema_definition": {**FLIGHT, "fields": [{"name": "x"}]}},
            "the schema's definition is no Avro record: KeyError: 'type'",
        ),
        (
            {"messages": ["a"], "schema": "avro", "schema_definition": {**FLIGHT, "fields": 5}},
            "the schema's definition is no Avro record: TypeError",
        ),
        ({"messages": [{"value": "a"}, {"value": "b", "key": 5}], "envelope": True}, "message 1: key must be a text"),
        (
            {"messages": ["a"], "topic": "non-persistent://public/default/t", "create_subscription": "s"},
            "non-persistent topic keeps nothing",
        ),
        ({"messages": ["a"], "topic": "non-persistent://public/default/t", "deduplicate": True}, "non-persistent"),
        ({"messages": ["a"], "create_subscription": 20260101}, "create_subscription must be a text .*, not 20260101"),
    ],
)
def test_publish_wrong_templates_raise_before_sending(
    options: dict[str, Any], words: str, topic: NewTopic, admin: AdminClient
) -> None:
    name = options.pop("topic", None) or topic()
    with pytest.raises((ValueError, AirflowException), match=words):
        publish(name, **options).execute(context_of())
    assert name not in admin.topics("public/default")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encryption_keys", {"orders": "/keys/{{ params.key }}"}),
        ("identity", "{{ params.batch }}"),
        ("create_subscription", "{{ params.reader }}"),
    ],
)
@pytest.mark.parametrize("rendered", [None, ""])
def test_publish_argument_rendered_to_nothing_raises(
    rendered: object, name: str, value: object, topic: NewTopic, admin: AdminClient
) -> None:
    place = topic()
    operator = publish(place, lambda count=1: ["a"] * count, deduplicate="auto", **{name: value})
    # As Airflow does it: a copy is rendered.
    copied = copy.copy(operator)
    setattr(copied, name, rendered)
    with pytest.raises(ValueError, match=f"{name} was given, but its template or upstream task returned"):
        copied.execute(context_of())
    assert place not in admin.topics("public/default")


@pytest.mark.parametrize("value", [0, "0"])
def test_publish_identity_of_a_native_template(value: object, once: Callable[..., str]) -> None:
    operator = publish(once(), ["a"], deduplicate=True, identity="{{ params.batch }}")
    operator.identity = value  # type: ignore[assignment]
    assert operator.execute(context_of())["producer_name"] == "airflow/tests/0"


def test_publish_bad_topic_name_fails_without_retries() -> None:
    with pytest.raises(AirflowFailException, match=r"stage 'arguments'.*InvalidTopicName"):
        publish("persistent://a/b", ["x"]).execute(context_of())


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A6", "K5")
def test_publish_oversize_message_reports_stored_ones(broker: Broker, topic: NewTopic) -> None:
    name = topic(partitions=2)
    context = context_of()
    with pytest.raises(PublishNotRepeatable, match=r"1 messages failed.*message 3: MessageTooBig") as caught:
        publish(name, ["a", "b", "c", "x" * 6_000_000, "d", "e"]).execute(context)
    manifest = caught.value.manifest
    assert context["ti"].xcoms["publish_failure"] == manifest
    assert (manifest["stored"], manifest["failed"], manifest["unconfirmed"]) == (5, 1, 0)
    messages = read_all(broker, name)
    assert sorted(message.data() for message in messages) == [b"a", b"b", b"c", b"d", b"e"]
    assert _spelled_out(manifest["stored_ids"]) == {str(message.message_id()) for message in messages}


def _spelled_out(ids: list[str]) -> set[str]:
    """Return every single id of "7:12:0:0..99" texts."""
    found = set()
    for text in ids:
        place, _, index = text.rpartition(":")
        first, _, last = index.partition("..")
        found |= {f"{place}:{number}" for number in range(int(first), int(last or first) + 1)}
    return found


@pytest.mark.proves("K5")
def test_publish_forbidden_topic_fails_at_once(
    secure_broker: Standalone, monkeypatch: pytest.MonkeyPatch, topic: NewTopic
) -> None:
    conn = define_connection(
        monkeypatch,
        "pulsar_guest",
        service_url=secure_broker.service_url,
        auth_method="token",
        token=secure_broker.token("guest"),
    )
    started = time.monotonic()
    with pytest.raises(AirflowFailException, match=r"stage 'connect': AuthorizationError.*grant") as caught:
        publish(topic(), ["a"], pulsar_conn_id=conn).execute(context_of())
    assert time.monotonic() - started < 20
    assert secure_broker.token("guest") not in str(caught.value)


def test_publish_source_error_shows_no_secret(broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = define_connection(
        monkeypatch, "pulsar_masked", service_url=broker.service_url, auth_method="token", token="token-of-the-source"
    )

    def rows() -> Iterator[str]:
        yield "a"
        raise RuntimeError("GET https://api/?key=token-of-the-source failed for \ud83d")

    context = context_of()
    with pytest.raises(PublishFailed) as caught:
        publish(topic(), rows, pulsar_conn_id=conn).execute(context)
    assert context["ti"].xcoms["publish_failure"] == caught.value.manifest
    assert caught.value.manifest["first_error"] == "RuntimeError: GET https://api/?key=*** failed for ?"
    assert "token-of-the-source" not in str(caught.value)


def test_publish_refused_message_fails_for_good(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    items = iter([{"value": "a"}, {"value": "b", "key": 5}])
    with pytest.raises(PublishNotRepeatable, match="message 1: key must be a text or bytes, not int"):
        publish(name, items, envelope=True).execute(context_of())
    assert [message.data() for message in read_all(broker, name)] == [b"a"]


def test_publish_source_error_fails_the_task(broker: Broker, topic: NewTopic) -> None:
    name = topic()

    def rows() -> Iterator[str]:
        yield "a"
        raise RuntimeError("the source broke")

    with pytest.raises(PublishFailed, match="the source broke") as caught:
        publish(name, rows).execute(context_of())
    assert caught.value.manifest["stored"] == 1
    assert [message.data() for message in read_all(broker, name)] == [b"a"]


# ---- outcomes of the author's own ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome",
    [
        AirflowSkipException("nothing more"),
        AirflowFailException("hopeless"),
        AirflowRescheduleException(datetime(2030, 1, 1, tzinfo=UTC)),
        TaskDeferred(trigger=None, method_name="execute"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
@pytest.mark.parametrize("sent", [0, 3])
def test_publish_passes_exceptions_of_airflow_on(
    sent: int, outcome: BaseException, broker: Broker, topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic()

    def rows() -> Iterator[str]:
        yield from ["a", "b", "c"][:sent]
        raise outcome

    def call() -> list[str]:
        raise outcome

    context = context_of()
    with pytest.raises(type(outcome)) as caught:
        publish(name, rows if sent else call).execute(context)
    assert caught.value is outcome
    if sent:
        manifest = context["ti"].xcoms["publish_failure"]
        assert (manifest["stored"], manifest["unconfirmed"]) == (3, 0)
        assert "ended early" in capsys.readouterr().out
        assert len(read_all(broker, name)) == 3


@pytest.mark.proves("A6")
def test_publish_skip_raised_by_a_generator_skips_the_task(airflow_home: Path, topic: NewTopic) -> None:
    dag = dag_in(
        airflow_home,
        "publishing_skip",
        f"""
        def rows():
            yield "a"
            from airflow.sdk.exceptions import AirflowSkipException
            raise AirflowSkipException("nothing more today")

        PublishOperator(task_id="skipping", topic={topic()!r}, messages=rows)
        """,
    )
    assert states_of(dag.test()) == {"skipping": "skipped"}


# ---- kill ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A29")
def test_publish_killed_disconnects(broker: Broker, topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    begun = threading.Event()

    def rows() -> Iterator[str]:
        for number in range(100_000):
            if number == 100:
                begun.set()
            time.sleep(0.001)
            yield str(number)

    operator = publish(name, rows)
    killer = threading.Thread(target=lambda: (begun.wait(20), operator.on_kill()))
    killer.start()
    started = time.monotonic()
    with pytest.raises(PublishFailed):
        operator.execute(context_of())
    assert time.monotonic() - started < 15
    killer.join()
    # The connection is dropped, which the broker finds out by itself.
    wait_until(lambda: admin.stats(name).get("publishers") == [], 10)


def test_publish_killed_before_start_sends_nothing(topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    called: list[bool] = []
    operator = publish(name, lambda: called.append(True) or ["a"])
    operator.on_kill()
    with pytest.raises(TaskKilled, match="the task was killed"):
        operator.execute(context_of())
    assert not called and name not in admin.topics("public/default")


def test_publish_killed_within_the_callable_sends_nothing(topic: NewTopic, admin: AdminClient) -> None:
    name = topic()

    def call() -> list[str]:
        operator.on_kill()
        return ["a"]

    operator = publish(name, call)
    with pytest.raises(TaskKilled):
        operator.execute(context_of())
    assert name not in admin.topics("public/default")


def test_publish_killed_within_the_generator_sends_no_more(broker: Broker, topic: NewTopic) -> None:
    name = topic()

    def rows() -> Iterator[str]:
        yield "a"
        while not read_all(broker, name):
            time.sleep(0.01)
        operator.on_kill()
        yield "b"

    operator = publish(name, rows, batching=False)
    context = context_of()
    with pytest.raises(PublishFailed, match="the task was killed"):
        operator.execute(context)
    assert [message.data() for message in read_all(broker, name)] == [b"a"]
    assert context["ti"].xcoms["publish_failure"]["stored"] == 1


# ---- time-out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["source", "receipts"])
def test_publish_timeout_ends_at_once_with_a_manifest(
    place: str,
    broker: Broker,
    topic: NewTopic,
    relay: Callable[[str], Relay],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    through = relay(broker.service_url)
    conn = define_connection(monkeypatch, "pulsar_relayed", service_url=through.service_url)
    ended: list[float] = []

    def ring(number: int, frame: object) -> None:
        ended.append(time.monotonic())
        raise AirflowTaskTimeout("the time is over")

    def rows() -> Iterator[str]:
        yield "a"
        through.wait_for(Command.SEND_RECEIPT)
        through.hold(Command.SEND_RECEIPT, TO_CLIENT)
        signal.setitimer(signal.ITIMER_REAL, 1)
        if place == "source":
            time.sleep(60)
        yield "b"

    context = context_of()
    previous = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(AirflowTaskTimeout):
            publish(topic(), rows, pulsar_conn_id=conn).execute(context)
        assert time.monotonic() - ended[0] < 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    manifest = context["ti"].xcoms["publish_failure"]
    assert (manifest["stored"], manifest["unconfirmed"]) == (1, 0 if place == "source" else 1)
    assert len(manifest["stored_ids"]) == 1
    assert "ended early (AirflowTaskTimeout" in capsys.readouterr().out
