"""ConsumeBatchOperator on the real broker: where it stops, what it writes, and when the broker is told."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.serde import deserialize, serialize

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from pulsar_native import AdminClient, Client, Consumer, ConsumerType, InitialPosition
from pulsar_native.jobs import consuming
from pulsar_native.schema import (
    AvroSchema,
    DoubleSchema,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    LocalDateSchema,
    ProtobufNativeSchema,
    StringSchema,
)
from support.brokers import NewTopic
from support.consuming import consume, fill, lines, texts
from support.tasks import StateStore, clear_and_run, context_of, dag_in, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")
Read = Callable[[], list[dict[str, Any]]]


# ---- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A9", "K9")
def test_consume_limit_inside_a_batch_is_exact(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(client, name, range(1000), batch=1000)
    got: list[str] = []
    for number in range(3):
        path = tmp_path / f"{number}.jsonl"
        manifest = consume(name, path, max_messages=10).execute(context_of(f"run{number}"))
        assert (manifest["count"], manifest["stop_reason"]) == (10, "max_messages")
        got += texts(path)
    assert got == [str(n) for n in range(30)]
    rest = consume(name, tmp_path / "rest.jsonl").execute(context_of("rest"))
    assert (rest["count"], rest["stop_reason"]) == (970, "end")
    assert texts(tmp_path / "rest.jsonl") == [str(n) for n in range(30, 1000)]


@pytest.mark.proves("A9")
def test_consume_max_bytes_limits_the_batch(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(client, name, ["x" * 100] * 50, batch=7)
    manifest = consume(name, tmp_path / "a.jsonl", max_bytes="1050").execute(context_of("a"))
    assert (manifest["count"], manifest["bytes"], manifest["stop_reason"]) == (10, 1000, "max_bytes")
    tiny = consume(name, tmp_path / "b.jsonl", max_bytes=1).execute(context_of("b"))
    assert (tiny["count"], tiny["stop_reason"]) == (1, "max_bytes")
    assert consume(name, tmp_path / "c.jsonl").execute(context_of("c"))["count"] == 39


@pytest.mark.proves("A9")
def test_consume_time_limits_the_batch(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(client, name, range(3))
    started = time.monotonic()
    manifest = consume(name, tmp_path / "a.jsonl", max_seconds=1.5, until_end=False).execute(context_of())
    assert 1.4 < time.monotonic() - started < 6
    assert (manifest["count"], manifest["stop_reason"]) == (3, "max_seconds")


@pytest.mark.proves("A9")
def test_consume_end_is_fixed_at_the_start(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic(partitions=3)
    fill(client, name, range(300), batch=10)
    stop = threading.Event()
    other = threading.Thread(target=_keep_publishing, args=(client, name, stop))
    path = tmp_path / "a.jsonl"
    other.start()
    try:
        manifest = consume(name, path).execute(context_of("a"))
    finally:
        stop.set()
        other.join()
    assert manifest["stop_reason"] == "end"
    assert set(map(str, range(300))) <= set(texts(path))
    total = manifest["count"] + consume(name, tmp_path / "b.jsonl").execute(context_of("b"))["count"]
    started = time.monotonic()
    nothing = consume(name, tmp_path / "c.jsonl").execute(context_of("c"))
    # That nothing is left is known from positions: no time is waited for it.
    assert time.monotonic() - started < 4
    assert (nothing["count"], nothing["stop_reason"], lines(tmp_path / "c.jsonl")) == (0, "end", [])
    everything = consume(name, tmp_path / "d.jsonl", subscription="other").execute(context_of("d"))
    assert everything["count"] == total


@pytest.mark.proves("A9")
def test_consume_leaves_messages_after_the_start(
    client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    few, many = f"{name}-partition-0", f"{name}-partition-1"
    fill(client, few, ["before"] * 2)
    fill(client, many, ["before"] * 2000, batch=10)
    real = Consumer.get_positions

    def then_more_comes(consumer: Consumer) -> Any:
        found = real(consumer)
        fill(client, few, ["after"] * 100, batch=10)
        return found

    monkeypatch.setattr(Consumer, "get_positions", then_more_comes)
    manifest = consume(name, tmp_path / "a.jsonl").execute(context_of("a"))
    assert (manifest["stop_reason"], texts(tmp_path / "a.jsonl")) == ("end", ["before"] * 2002)


def _keep_publishing(client: Client, topic: str, stop: threading.Event) -> None:
    producer = client.create_producer(topic)
    while not stop.is_set():
        producer.send(b"later")
    producer.close()


def test_consume_empty_topic_and_several_topics(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    empty, one, two = topic(partitions=1), topic(), topic(partitions=2)
    fill(client, one, ["a"] * 5)
    fill(client, two, ["b"] * 7, batch=1)
    manifest = consume([empty, one, two], tmp_path / "a.jsonl").execute(context_of())
    assert sorted(texts(tmp_path / "a.jsonl")) == ["a"] * 5 + ["b"] * 7
    assert manifest["partitions"][one]["count"] == 5
    assert sum(part["count"] for name, part in manifest["partitions"].items() if name.startswith(two)) == 7


def test_consume_ignores_messages_of_other_consumers(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    with client.subscribe(
        name, "sub", consumer_type=ConsumerType.Shared, initial_position=InitialPosition.Earliest
    ) as holder:
        fill(client, name, range(5), batch=1)
        holder.receive(5000)
        time.sleep(0.3)
        manifest = consume(name, tmp_path / "a.jsonl", subscription_type="Shared", idle_seconds=1).execute(context_of())
    assert (manifest["count"], manifest["stop_reason"]) == (0, "idle")


# ---- acknowledging ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("A11", "K4")
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_consume_failure_redelivers_same_messages(
    kind: str, client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient
) -> None:
    name = topic()
    fill(client, name, range(25), batch=10)
    path = tmp_path / "a.jsonl"
    store = StateStore()
    seen: list[list[str]] = []

    def fails(manifest: Mapping[str, Any]) -> None:
        seen.append(texts(Path(manifest["path"])))
        raise RuntimeError("the step after consuming failed")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="after consuming"):
            consume(name, path, max_messages=15, process=fails, subscription_type=kind).execute(context_of(store=store))
    # The precise backlog counts entries, and none is acknowledged, not even partly.
    assert admin.stats(name, precise_backlog=True)["subscriptions"]["sub"]["msgBacklog"] == 3
    manifest = consume(name, path, max_messages=15, subscription_type=kind).execute(context_of(store=store))
    assert sorted(seen[0]) == sorted(seen[1]) == sorted(texts(path))
    assert manifest["count"] == 15
    rest = consume(name, tmp_path / "b.jsonl", subscription_type=kind).execute(context_of("next"))
    assert sorted(map(int, texts(path) + texts(tmp_path / "b.jsonl"))) == list(range(25))
    assert rest["count"] == 10


@pytest.mark.proves("A11")
def test_consume_unwritable_output_acknowledges_nothing(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(client, name, range(10))
    (tmp_path / "file").write_text("")
    with pytest.raises(AirflowException, match="stage 'output': NotADirectoryError"):
        consume(name, tmp_path / "file" / "a.jsonl").execute(context_of())
    (tmp_path / "taken.jsonl").mkdir()
    with pytest.raises(AirflowException, match="already"):
        consume(name, tmp_path / "taken.jsonl").execute(context_of())
    assert os.listdir(tmp_path / "taken.jsonl") == [] and sorted(os.listdir(tmp_path)) == ["file", "taken.jsonl"]
    consume(name, tmp_path / "a.jsonl").execute(context_of())
    assert texts(tmp_path / "a.jsonl") == [str(n) for n in range(10)]


@pytest.mark.proves("A11")
@pytest.mark.parametrize("acknowledged", [False, True])
def test_consume_killed_after_output_gives_each_once(
    acknowledged: bool, client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    fill(client, name, range(100), batch=30)
    store, path = StateStore(), tmp_path / "a.jsonl"
    real = consuming.acknowledge

    def dies(*args: Any) -> None:
        if acknowledged:
            real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(consuming, "acknowledge", dies)
    with pytest.raises(KeyboardInterrupt):
        consume(name, path, max_messages=45).execute(context_of(store=store))
    monkeypatch.setattr(consuming, "acknowledge", real)
    written = texts(path)
    again = consume(name, path, max_messages=45).execute(context_of(store=json.loads(json.dumps(store)) and store))
    assert again["count"] == 45 and texts(path) == written
    consume(name, tmp_path / "b.jsonl").execute(context_of("next"))
    assert written + texts(tmp_path / "b.jsonl") == [str(n) for n in range(100)]


def test_consume_cleared_run_keeps_its_batch(
    airflow_home: Path, client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    fill(client, name, range(20), batch=5)
    dag = dag_in(
        airflow_home,
        "consuming",
        f"""
        batch = ConsumeBatchOperator(
            task_id="batch", topic={name!r}, subscription="{{{{ dag.dag_id }}}}",
            path={str(tmp_path)!r} + "/x/{{{{ run_id }}}}.jsonl",
        )

        @task
        def count(manifest):
            with open(manifest["path"]) as file:
                return sum(1 for _ in file)

        count(batch.output)
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    manifest = xcom_of(run, "batch")
    assert xcom_of(run, "count") == manifest["count"] == 20
    assert manifest["path"] == f"{tmp_path}/x/{run.run_id}.jsonl"
    got = lines(Path(manifest["path"]))
    assert {each["message_id"] for each in got} >= {part["first"] for part in manifest["partitions"].values()}
    assert sum(part["count"] for part in manifest["partitions"].values()) == 20
    assert "messages" not in manifest and len(json.dumps(manifest)) < 2000
    again = clear_and_run(dag, run)
    assert set(states_of(again).values()) == {"success"}
    assert xcom_of(again, "batch") == manifest and lines(Path(manifest["path"])) == got
    other = dag.test()
    assert xcom_of(other, "batch")["count"] == 0


def test_consume_writes_to_object_storage(client: Client, topic: NewTopic) -> None:
    from airflow.sdk import ObjectStoragePath
    from airflow.sdk.io import attach
    from fsspec.implementations.memory import MemoryFileSystem

    attach("memory", fs=MemoryFileSystem())
    name = topic()
    fill(client, name, ["a", "b"])
    path = f"memory://bucket/{name.rpartition('/')[2]}.jsonl"
    options = {"task_id": "a_task", "topic": name}
    ConsumeBatchOperator(subscription="sub", path=path, **options).execute(context_of())
    with ObjectStoragePath(path).open("rb") as file:
        assert [json.loads(line)["value"] for line in file] == ["a", "b"]
    # As a path itself, whose last part is a template.
    stored = ObjectStoragePath(f"memory://bucket/{name.rpartition('/')[2]}") / "{{ params.day }}.jsonl"
    operator = ConsumeBatchOperator(subscription="other", path=stored, **options)
    operator.render_template_fields({"params": {"day": "2026-01-31"}})
    assert operator.execute(context_of())["path"] == str(stored).replace("{{ params.day }}", "2026-01-31")
    with ObjectStoragePath(operator.path).open("rb") as file:
        assert [json.loads(line)["value"] for line in file] == ["a", "b"]


# ---- decoding --------------------------------------------------------------------------------------------------------

POINT: dict[str, object] = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "raw", "type": ["null", "bytes"], "default": None}],
}
WIDER: dict[str, object] = {**POINT, "fields": [*POINT["fields"], {"name": "y", "type": "double", "default": 0.0}]}  # type: ignore[misc]


def test_consume_decodes_by_writer_schema(client: Client, topic: NewTopic) -> None:
    avro, as_json, plain = topic(), topic(), topic()
    fill(client, avro, [{"x": 1, "raw": b"\xff"}], schema=AvroSchema(None, POINT))
    fill(client, avro, [{"x": 2, "raw": None, "y": 0.5}], schema=AvroSchema(None, WIDER))
    fill(client, as_json, [{"x": 3, "raw": None}], schema=JsonSchema(None, POINT))
    fill(client, plain, ["text", b"\xfe\x00"])
    manifest = consume([avro, as_json, plain], inline=True).execute(context_of())
    by_topic: dict[str, list[Any]] = {}
    for each in manifest["messages"]:
        by_topic.setdefault(each["topic"], []).append((each["encoding"], each["value"]))
    assert by_topic[avro] == [
        ("json", {"x": 1, "raw": {"base64": "/w=="}}),
        ("json", {"x": 2, "raw": None, "y": 0.5}),
    ]
    assert by_topic[as_json] == [("json", {"x": 3, "raw": None})]
    assert by_topic[plain] == [("text", "text"), ("base64", "/gA=")]


@pytest.mark.proves("A14")
def test_consume_decodes_pairs_protobuf_and_primitives(client: Client, topic: NewTopic) -> None:
    from google.protobuf.api_pb2 import Mixin

    inline, separated, protobuf, number, day = (topic() for _ in range(5))
    pairs = [KeyValue("a", {"x": 1, "raw": None}), KeyValue(None, {"x": 2, "raw": None})]
    for name, kind in ((inline, KeyValueEncodingType.INLINE), (separated, KeyValueEncodingType.SEPARATED)):
        fill(client, name, pairs, schema=KeyValueSchema(StringSchema(), AvroSchema(None, POINT), kind))
    fill(client, protobuf, [Mixin(name="m")], schema=ProtobufNativeSchema(Mixin))
    fill(client, number, [2.5], schema=DoubleSchema())
    fill(client, day, [date(2026, 1, 2)], schema=LocalDateSchema())
    manifest = consume([inline, separated, protobuf, number, day], inline=True).execute(context_of())
    by_topic: dict[str, list[Any]] = {}
    for each in manifest["messages"]:
        by_topic.setdefault(each["topic"], []).append((each["encoding"], each["value"]))
    found = [
        ("json", {"key": "a", "value": {"x": 1, "raw": None}}),
        ("json", {"key": None, "value": {"x": 2, "raw": None}}),
    ]
    assert (by_topic[inline], by_topic[separated]) == (found, found)
    assert by_topic[protobuf] == [("json", {"name": "m", "root": ""})]
    assert (by_topic[number], by_topic[day]) == ([("json", 2.5)], [("json", "2026-01-02")])


@pytest.mark.proves("A20")
def test_consume_bytes_become_json(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    payloads = [os.urandom(size) for size in range(0, 300, 7)] + [b"\xed\xa0\x80", "naïve \u2028 😀\x00".encode(), b""]
    fill(
        client,
        name,
        payloads,
        batch=11,
        partition_key=b"\xff\xfe",
        properties={"p\n": "é\x00"},
        event_timestamp=1357016400123,
    )
    path = tmp_path / "a.jsonl"
    manifest = consume(name, path).execute(context_of())
    json.dumps(manifest)
    got = lines(path)
    assert [_bytes(each) for each in got] == payloads
    for each in got:
        assert (each["key"], each["key_encoding"]) == ("//4=", "base64")
        assert each["properties"] == {"p\n": "é\x00"}
        assert each["event_time"] == "2013-01-01T05:00:00.123+00:00"
        assert each["publish_time"].startswith("20") and each["topic"] == name
    assert len({each["message_id"] for each in got}) == len(payloads)
    forced = consume(name, inline=True, subscription="raw", decode="bytes").execute(context_of("raw"))
    assert [base64.b64decode(each["value"]) for each in forced["messages"]] == payloads


MEASURED: dict[str, object] = {
    "type": "record",
    "name": "Measured",
    "fields": [
        {"name": "double", "type": "double"},
        {"name": "float", "type": "float"},
        {"name": "list", "type": {"type": "array", "items": "double"}},
        {"name": "map", "type": {"type": "map", "values": ["null", "double"]}},
    ],
}
NAN, INFINITY = float("nan"), float("inf")
SPECIAL = {"double": NAN, "float": INFINITY, "list": [-INFINITY, 0.5, NAN], "map": {"a": -INFINITY, "b": None}}
# JSON has no numbers for them.
SPECIAL_TEXTS = {"double": "nan", "float": "inf", "list": ["-inf", 0.5, "nan"], "map": {"a": "-inf", "b": None}}


def strict(text: str) -> Any:
    """Return what JSON says; fails for the NaN and Infinity that Python reads and writes, and JSON does not have."""
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


@pytest.mark.proves("A20")
@pytest.mark.parametrize("form", ["avro", "json", "decoded"])
def test_nan_and_infinities_of_records_come_out_as_json(
    client: Client, topic: NewTopic, tmp_path: Path, form: str
) -> None:
    name, options = topic(), {}
    if form == "decoded":
        # Python writes NaN and Infinity, and such a topic has no schema; 1e999 is a number no float can hold.
        payload = json.dumps(SPECIAL).encode()
        fill(client, name, [payload, b"[1e999, -1e999]", b"NaN"])
        options = {"decode": "json"}
        wanted: list[Any] = [SPECIAL_TEXTS, ["inf", "-inf"], "nan"]
    else:
        made = AvroSchema(None, MEASURED) if form == "avro" else JsonSchema(None, MEASURED)
        fill(client, name, [SPECIAL, {**SPECIAL, "double": 1.5, "list": []}], schema=made)
        wanted = [SPECIAL_TEXTS, {**SPECIAL_TEXTS, "double": 1.5, "list": []}]
    path = tmp_path / "a.jsonl"
    manifest = consume(name, path, **options).execute(context_of())
    got = [strict(line) for line in path.read_text().splitlines()]
    assert [(each["value"], each["encoding"]) for each in got] == [(each, "json") for each in wanted]
    # The task's result travels as JSON, too.
    strict(json.dumps(manifest, allow_nan=False))
    inline = consume(name, inline=True, subscription="inline", **options).execute(context_of("inline"))
    sent = strict(json.dumps(inline, allow_nan=False))
    assert [each["value"] for each in sent["messages"]] == wanted


def test_consume_inline_airflows_keys_are_text(client: Client, topic: NewTopic) -> None:
    name, kept = topic(), {"__classname__": "os.system", "__version__": 1, "__data__": {}}
    fill(client, name, [json.dumps(kept), '{"a": 1}'])
    context = context_of(store=StateStore())
    for _ in range(2):
        manifest = consume(name, inline=True, decode="json").execute(context)
        assert [each["value"] for each in manifest["messages"]] == [json.dumps(kept), {"a": 1}]
        assert deserialize(serialize(manifest)) == manifest


def _bytes(record: dict[str, Any]) -> bytes:
    value = record["value"]
    return base64.b64decode(value) if record["encoding"] == "base64" else value.encode()


def test_consume_undecodable_value_acknowledges_nothing(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(client, name, ['{"a": 1}', "no json"])
    with pytest.raises(AirflowException, match="not JSON"):
        consume(name, tmp_path / "a.jsonl", decode="json").execute(context_of())
    assert os.listdir(tmp_path) == []
    assert consume(name, tmp_path / "a.jsonl", decode="text").execute(context_of())["count"] == 2


def test_consume_inline_result_is_limited(client: Client, topic: NewTopic) -> None:
    name = topic()
    fill(client, name, ["x" * 1000] * 20)
    first = consume(name, inline=True, inline_limit_bytes=7000).execute(context_of("a"))
    assert first["stop_reason"] == "inline_limit" and 3 < first["count"] < 7
    assert len(json.dumps(first["messages"])) < 8000
    second = consume(name, inline=True).execute(context_of("b"))
    assert first["count"] + second["count"] == 20
    fill(client, name, ["x" * 1000])
    with pytest.raises(AirflowException, match="give a path"):
        consume(name, inline=True, inline_limit_bytes=500).execute(context_of("c"))


def generator(value: object) -> Iterator[object]:
    """Yield the value."""
    yield value


# ---- arguments and kill ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "path"),
        ({"inline": True, "subscription_type": "Sharde"}, "'shared'"),
        ({"inline": True, "decode": "avro"}, "decode"),
        ({"inline": True, "initial_position": "first"}, "initial_position"),
        ({"inline": True, "until_end": False}, "max_messages"),
        ({"inline": True, "process": "a.b"}, "callable"),
        ({"inline": True, "process": generator}, "process is a generator function"),
        ({"process_message": generator}, "process_message is a generator function"),
        ({"inline": True, "idle_seconds": -1}, "idle_seconds"),
        ({"path": "/x/{{ ds }}.jsonl.gz"}, "the name of a packed file"),
        ({"path": "/x/a.ZIP"}, "the name of a packed file"),
    ],
)
def test_consume_wrong_arguments_raise_at_parsing(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        consume("t", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_messages": "ten"}, "max_messages"),
        ({"max_messages": 0}, "max_messages"),
        ({"max_bytes": "-5"}, "max_bytes"),
        ({"subscription": " "}, "subscription"),
        ({"topic": []}, "topic"),
        # What a native template may render to.
        ({"topic": [20260101]}, "topic must be a text that is not blank, not 20260101"),
        ({"dead_letter_topic": 20260101}, "dead_letter_topic must be a text that is not blank, not 20260101"),
        ({"retry_letter_topic": 0}, "retry_letter_topic must be a text that is not blank, not 0"),
        ({"topic": ["a", "persistent://public/default/a"]}, "twice"),
        ({"topic": ["a", "a-partition-1"]}, "default/a and its partition .*/a-partition-1"),
        ({"topic": "a/b"}, "InvalidTopicName"),
        ({"topic": "non-persistent://public/default/t"}, "topic .*/t is not persistent: it stores no messages"),
        ({"max_messages": float("inf")}, "max_messages must be a number"),
        ({"process": lambda: None}, r"process cannot be called with manifest, .*: .*unexpected keyword argument"),
        ({"process_message": lambda message, typo: None}, r"process_message cannot be .*: .* argument: 'typo'"),
        ({"path": "/x/a.jsonl.gz"}, "the name of a packed file"),
        ({"path": "smb://host/a.jsonl"}, "smb://host/a.jsonl' cannot be opened: .* scheme smb. .*install"),
        ({"path": "nosuch://host/a.jsonl"}, "nosuch://host/a.jsonl' cannot be opened: .*. Check the scheme"),
        ({"path": "file:a.jsonl"}, "file:a.jsonl' names no file in full"),
        ({"path": "file://localhost/a.jsonl"}, "names no file in full: write file:///"),
    ],
)
def test_consume_wrong_templates_raise_before_subscribing(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, AirflowException), match=words):
        # As a template has rendered it.
        made = consume(options.pop("topic", "t"), inline=True, **options | {"path": None})
        made.path = options.get("path")
        made.execute(context_of())


@pytest.mark.parametrize(
    ("name", "rendered"),
    [
        *((name, None) for name in ("path", "max_messages", "dead_letter_topic", "private_keys")),
        *(("path", ""), ("max_bytes", ""), ("max_seconds", None), ("retry_letter_topic", "")),
    ],
)
def test_consume_template_rendered_to_nothing_raises(
    client: Client, topic: NewTopic, admin: AdminClient, name: str, rendered: object
) -> None:
    source = topic()
    fill(client, source, ["x"])
    client.subscribe(source, "sub", initial_position=InitialPosition.Earliest).close()
    operator = consume(source, inline=True, **{name: "{{ params.given }}"})
    setattr(operator, name, rendered)
    with pytest.raises(ValueError, match=f"{name} was given, .* returned {rendered!r}: leave it out"):
        operator.execute(context_of())
    assert admin.stats(source, precise_backlog=True)["subscriptions"]["sub"]["msgBacklog"] == 1


def test_consume_path_object_and_later_result(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    """A path may be an object, and what an upstream task returns, which is not known when the DAG is parsed."""
    name = topic()
    fill(client, name, ["x"] * 3)
    with DAG("a_dag"):
        made = ConsumeBatchOperator(
            task_id="a", topic=name, subscription="sub", path=tmp_path / "a.jsonl", max_messages_per_file="2"
        )
        later = ConsumeBatchOperator(task_id="b", topic=name, subscription="sub", path=made.output["path"])
    assert later.upstream_task_ids == {"a"}
    assert [each["count"] for each in made.execute(context_of())["files"]] == [2, 1]


def test_consume_path_and_file_of_another_task(airflow_home: Path, tmp_path: Path, topic: NewTopic) -> None:
    name, path = topic(), f"file://{tmp_path}/rows.jsonl"
    dag = dag_in(
        airflow_home,
        "object_paths",
        f"""
        from airflow.sdk import ObjectStoragePath

        @task
        def where():
            return ObjectStoragePath({path!r})

        made = PublishOperator(task_id="made", topic={name!r}, messages=[{{"a": 1}}], create_subscription="s")
        took = ConsumeBatchOperator(task_id="took", topic={name!r}, subscription="s", path=where(), decode="json")
        sent = PublishOperator(task_id="sent", topic={topic()!r}, file=where(), deduplicate=False)
        made >> took >> sent
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    assert (xcom_of(run, "took")["path"], xcom_of(run, "sent")["count"]) == (path, 1)


@pytest.mark.proves("A29")
def test_consume_killed_returns_the_messages(
    client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient
) -> None:
    name = topic()
    fill(client, name, range(30), batch=10)
    operator = consume(name, tmp_path / "a.jsonl", until_end=False, max_seconds=60)
    killer = threading.Timer(2, operator.on_kill)
    killer.start()
    started = time.monotonic()
    with pytest.raises(AirflowException):
        operator.execute(context_of())
    assert time.monotonic() - started < 15
    assert os.listdir(tmp_path) == []
    subscription = admin.stats(name, precise_backlog=True)["subscriptions"]["sub"]
    # The precise backlog counts entries.
    assert (subscription["consumers"], subscription["msgBacklog"]) == ([], 3)
    consume(name, tmp_path / "a.jsonl").execute(context_of("next"))
    assert texts(tmp_path / "a.jsonl") == [str(n) for n in range(30)]
