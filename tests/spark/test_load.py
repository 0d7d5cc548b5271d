"""The load application: decoded Parquet with a manifest, replays, replacement, how it ends; and by spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pulsar_native
from pulsar_native.diagnostics import codec
from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.schema import (
    AvroSchema,
    Int32Schema,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    StringSchema,
)
from pyspark_pulsar import load
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.output import Output
from pyspark_pulsar.request import LoadRequest
from support.brokers import Broker, NewTopic
from support.processes import command_lines
from support.publishing import Publish, publish_groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker import Standalone

SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": ["null", "string"]},
        {"name": "day", "type": "int"},
        {"name": "delay", "type": ["null", "double"]},
    ],
}


def flights(first: int, count: int) -> list[str]:
    """Return flights as JSON, numbered by their delay, spread over three days and two carriers."""
    return [
        json.dumps({"carrier": "UA" if number % 2 else None, "day": number % 3 + 1, "delay": float(number)})
        for number in range(first, first + count)
    ]


class Loads:
    """Run loads of one topic into one folder in the shared session."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder

    def request(self, topic: str, source: dict[str, str] | None = None, **parts: Any) -> dict[str, Any]:
        """Return a request for JSON flights by day, with other parts and options of the source."""
        output = {"path": f"file://{self.folder}/interval=1", "partition_by": ["day"]}
        options = {"service.url": self.broker.service_url, "topic": topic, **(source or {})}
        value = {"format": "json", "schema": "carrier STRING, day INT, delay DOUBLE"}
        whole = {} if any(name.startswith(("starting", "ending")) for name in options) else {"interval": "all"}
        return {"source": options, "value": value, "output": output, **whole, **parts}

    def run(self, topic: str, source: dict[str, str] | None = None, **parts: Any) -> load.Outcome:
        """Run one load."""
        request = LoadRequest.parse(json.dumps(self.request(topic, source, **parts)))
        return load.Load(self.spark, request, time.monotonic()).run()

    def dry_run(self, topic: str, source: dict[str, str] | None = None, **parts: Any) -> load.Outcome:
        """Plan one load."""
        request = LoadRequest.parse(json.dumps(self.request(topic, source, **parts)))
        return load.Load(self.spark, request, time.monotonic()).dry_run()

    def delays(self) -> list[int]:
        """Return the delays found on disk, sorted: the numbers of the flights."""
        rows = self.spark.read.parquet(f"file://{self.folder}").select("delay").collect()
        return sorted(int(row["delay"]) for row in rows)

    def manifest(self) -> dict[str, Any]:
        """Return the manifest beside the output."""
        found: dict[str, Any] = json.loads((self.folder / ".interval=1.manifest.json").read_text())
        return found


@pytest.fixture
def loads(spark: SparkSession, broker: Broker, tmp_path: Path) -> Loads:
    """Give a fresh folder to load into."""
    return Loads(spark, broker, tmp_path)


# ---- what is written -------------------------------------------------------------------------------------------------


def test_load_names_the_codec_of_its_tasks(
    loads: Loads, topic: NewTopic, publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic()
    publish(name, flights(0, 3))
    outcome = loads.run(name)
    assert outcome.codec == codec() and json.loads(outcome.to_line())["pulsar_load"]["codec"] == codec()
    assert f"{codec()} codec) to file://" in capsys.readouterr().out


def test_load_tells_the_seconds_of_its_stages(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, flights(0, 3))
    outcome = loads.run(name)
    assert outcome.stages is not None
    assert list(outcome.stages) == ["session", "plan", "read", "check", "commit", "publish", "complete"]
    assert min(outcome.stages.values()) >= 0
    assert sum(outcome.stages.values()) == pytest.approx(outcome.seconds, abs=0.5)


def test_load_rows_lost_on_disk_leave_output_unchanged(
    loads: Loads, topic: NewTopic, publish: Publish, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    publish(f"{name}-partition-0", flights(0, 3))
    publish(f"{name}-partition-1", flights(3, 5))
    write = Output.write

    def write_and_lose_a_file(output: Output, *given: Any) -> None:
        write(output, *given)
        folder = Path(output.staging.removeprefix("file:"))
        next(folder.rglob("*.parquet")).unlink()

    monkeypatch.setattr(Output, "write", write_and_lose_a_file)
    with pytest.raises(RuntimeError, match=r"8 rows were read and [0-7] written"):
        loads.run(name)
    assert not list(tmp_path.rglob("*.parquet"))


def test_load_dry_run_prints_plan_and_writes_nothing(
    loads: Loads, topic: NewTopic, publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic("dry", partitions=2)
    ids = publish(f"{name}-partition-0", flights(0, 2), flights(2, 3), flights(5, 1))
    parts = {"subscription": "kept", "replay": "auto"}
    ledger = ids[0].ledger_id()
    for admin, entries in (({"admin.url": loads.broker.admin_url}, 3), ({}, None)):
        outcome = loads.dry_run(name, admin, **parts)
        assert (outcome.exit_code, outcome.rows, outcome.partitions) == (0, None, 2)
        assert outcome.plan is not None
        assert outcome.plan[0] == {
            "topic": f"{name}-partition-0", "from": f"{ledger}:0", "to": f"{ledger}:3", "entries": entries,
        }  # fmt: skip
        assert outcome.plan[1]["entries"] == 0
        line = json.loads(outcome.to_line())["pulsar_load"]
        assert (line["status"], line["plan"][0]["entries"]) == ("planned", entries)
        said = capsys.readouterr().out
        count = "3 entries" if entries else "entries unknown without admin.url"
        assert f"would read {name}-partition-0 from {ledger}:0 up to {ledger}:3: {count}" in said
        assert "dry run: 2 topic partitions, nothing was written" in said
    assert list(loads.folder.iterdir()) == []
    loads.broker.wait_unsubscribed(f"{name}-partition-0")


def test_load_dry_run_shows_what_a_replay_would_read(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, flights(0, 2))
    (last,) = publish(name, flights(2, 1))
    end = {"startingOffsets": "earliest", "endingOffsets": json.dumps({name: f"{last.ledger_id()}:{last.entry_id()}"})}
    assert loads.run(name, end).rows == 2
    before = {file: file.stat().st_mtime_ns for file in loads.folder.rglob("*")}
    outcome = loads.dry_run(name, end)
    assert outcome.replayed and outcome.plan is not None and outcome.plan[0]["to"] == f"{last.ledger_id()}:1"
    assert {file: file.stat().st_mtime_ns for file in loads.folder.rglob("*")} == before


def test_load_json_to_parquet_by_day_with_manifest(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic(partitions=2)
    first = publish(f"{name}-partition-0", flights(0, 20), flights(20, 10), partition_key="k")
    last = publish(f"{name}-partition-1", flights(30, 12))
    outcome = loads.run(name, derive={"late": "delay > 35"})
    assert (outcome.exit_code, outcome.rows, outcome.partitions, outcome.replayed) == (0, 42, 2, False)
    assert loads.delays() == list(range(42))
    assert sorted(entry.name for entry in (loads.folder / "interval=1").glob("day=*")) == ["day=1", "day=2", "day=3"]
    rows = loads.spark.read.parquet(f"file://{loads.folder}/interval=1").collect()
    assert sum(row["late"] for row in rows) == 6
    assert Counter(row["carrier"] for row in rows) == {"UA": 21, None: 21}
    assert Counter(bytes(row["__key"] or b"-") for row in rows) == {b"k": 30, b"-": 12}
    assert len({(row["__topic"], row["__ledgerId"], row["__entryId"], row["__batchIndex"]) for row in rows}) == 42
    manifest = loads.manifest()
    assert (manifest["status"], manifest["rows"]) == ("done", 42)
    ledger, other = first[0].ledger_id(), last[0].ledger_id()
    assert manifest["partitions"] == [
        {
            "topic": f"{name}-partition-0",
            "start": f"{ledger}:0",
            "end": f"{ledger}:2",
            "rows": 30,
            "first": f"{ledger}:0:0",
            "last": f"{ledger}:1:9",
        },
        {
            "topic": f"{name}-partition-1",
            "start": f"{other}:0",
            "end": f"{other}:1",
            "rows": 12,
            "first": f"{other}:0:0",
            "last": f"{other}:0:11",
        },
    ]


@pytest.mark.parametrize("kind", ["JSON", pytest.param("AVRO", marks=pytest.mark.needs_spark("4.1"))])
def test_load_decodes_by_registered_schema(
    loads: Loads, topic: NewTopic, publish: Publish, broker: Broker, kind: str
) -> None:
    import io

    import fastavro

    name = topic()
    values: list[str | bytes] = list(flights(0, 5))
    if kind == "AVRO":
        for index, text in enumerate(flights(0, 5)):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), json.loads(text))
            values[index] = out.getvalue()
    publish(name, values)
    schema = {"type": kind, "schema": json.dumps(SCHEMA), "properties": {}}
    broker.admin("POST", f"schemas/{name.partition('://')[2]}/schema", schema)
    loads.run(name, {"admin.url": broker.admin_url}, value={"format": kind.lower()})
    assert loads.delays() == list(range(5))
    other = "avro" if kind == "JSON" else "json"
    with pytest.raises(InvalidConfiguration, match=f"has a schema of kind {kind}, not {other.upper()}"):
        loads.run(name, {"admin.url": broker.admin_url}, value={"format": other})


@pytest.mark.parametrize("until", ["bounds", "last_success"])
@pytest.mark.parametrize("kind", ["JSON", pytest.param("AVRO", marks=pytest.mark.needs_spark("4.1"))])
def test_load_again_keeps_registered_definition(
    loads: Loads, client: pulsar_native.Client, topic: NewTopic, kind: str, until: str
) -> None:
    name = topic()
    numbers = [{"name": field, "type": "int", "default": 0} for field in ("id", "amount")]
    first, second = (
        (AvroSchema if kind == "AVRO" else JsonSchema)({"type": "record", "name": "Order", "fields": fields})
        for fields in (numbers, numbers[:1])
    )
    producer = client.create_producer(name, schema=first)
    sent = [producer.send({"id": number, "amount": 7}) for number in (1, 2)]
    producer.close()
    ends = {"endingOffsets": json.dumps({name: f"{sent[1].ledger_id()}:{sent[1].entry_id()}"})}
    source = {"admin.url": loads.broker.admin_url, "startingOffsets": "earliest", **(ends if until == "bounds" else {})}
    parts: dict[str, Any] = {
        "value": {"format": kind.lower()},
        "output": {"path": f"file://{loads.folder}/interval=1"},
        "run": "r1",
        **({} if until == "bounds" else {"since": until, "commits": f"file://{loads.folder}/.log"}),
    }
    expected = [(1, 7)] if until == "bounds" else [(1, 7), (2, 7)]
    assert loads.run(name, source, **parts).rows == len(expected)
    client.create_producer(name, schema=second).close()
    assert loads.run(name, source, **parts).replayed
    rows = loads.spark.read.parquet(f"file://{loads.folder}/interval=1").orderBy("id").collect()
    assert [(row["id"], row["amount"]) for row in rows] == expected


def order_schema(*names: str) -> AvroSchema[Any]:
    """Return an Avro schema of an id and optional numbers."""
    more = [{"name": name, "type": ["null", "double"], "default": None} for name in names]
    fields = [{"name": "id", "type": "int"}, *more]
    return AvroSchema({"type": "record", "name": "Order", "fields": fields})


@pytest.mark.proves("S10")
def test_load_auto_decodes_by_each_message_version(loads: Loads, client: pulsar_native.Client, topic: NewTopic) -> None:
    name, admin = topic(), {"admin.url": loads.broker.admin_url}
    output = {"path": f"file://{loads.folder}/interval=1", "partition_by": ["id"]}
    ids = []
    for kind, order in (
        (order_schema(), {"id": 1}),
        (order_schema("value"), {"id": 2, "value": 2.5}),
        (order_schema(), {"id": 3}),
    ):
        producer = client.create_producer(name, schema=kind)
        ids.append(producer.send(order))
        producer.close()
    end = {
        "startingOffsets": "earliest",
        "endingOffsets": json.dumps({name: f"{ids[-1].ledger_id()}:{ids[-1].entry_id()}"}),
    }
    source = {**admin, **end}
    assert loads.run(name, source, value={"format": "auto"}, output=output, derive={"twice": "value * 2"}).rows == 2
    rows = loads.spark.read.parquet(f"file://{loads.folder}/interval=1").orderBy("id").collect()
    assert [(row["id"], row["value"], row["twice"]) for row in rows] == [(1, None, None), (2, 2.5, 5.0)]
    # A newer version of the schema changes no load that is done again, and every one that is planned anew.
    client.create_producer(name, schema=order_schema("value", "rebate")).close()
    again = loads.run(name, source, value={"format": "auto"}, output=output, derive={"twice": "value * 2"})
    assert again.replayed
    assert loads.spark.read.parquet(f"file://{loads.folder}/interval=1").orderBy("id").collect() == rows
    parts = {"value": {"format": "auto"}, "output": output, "replay": "never"}
    assert loads.run(name, source, **parts).rows == 2
    assert "rebate" in loads.spark.read.parquet(f"file://{loads.folder}/interval=1").columns


@pytest.mark.proves("S10")
def test_load_auto_of_pairs_has_key_and_value(loads: Loads, client: pulsar_native.Client, topic: NewTopic) -> None:
    name, admin = topic(), {"admin.url": loads.broker.admin_url}
    kind = KeyValueSchema(StringSchema(), order_schema("amount"), KeyValueEncodingType.SEPARATED)
    client.create_producer(name, schema=kind).send(KeyValue("k", {"id": 7, "amount": None}))
    output = {"path": f"file://{loads.folder}/pairs"}
    assert loads.run(name, admin, value={"format": "auto"}, output=output, metadata=["__schemaVersion"]).rows == 1
    (row,) = loads.spark.read.parquet(f"file://{loads.folder}/pairs").collect()
    assert (row["key"], row["value"].asDict()) == ("k", {"id": 7, "amount": None})
    assert "__schemaVersion" in row.asDict() and "__key" not in row.asDict()


@pytest.mark.proves("S10")
def test_load_auto_modes_of_corrupt_values(loads: Loads, client: pulsar_native.Client, topic: NewTopic) -> None:
    name, admin = topic(), {"admin.url": loads.broker.admin_url}
    producer = client.create_producer(name)
    for payload in (Int32Schema().encode(1), b"wrong", Int32Schema().encode(3)):
        producer.send(payload)
    producer.close()
    client.create_producer(name, schema=Int32Schema()).close()
    output = {"path": f"file://{loads.folder}/numbers"}
    with pytest.raises(Exception, match="cannot be decoded by the schema"):
        loads.run(name, admin, value={"format": "auto"}, output=output)
    assert loads.run(name, admin, value={"format": "auto", "mode": "DROPMALFORMED"}, output=output).rows == 2
    value = {"format": "auto", "mode": "PERMISSIVE", "corrupt_column": "bad"}
    assert loads.run(name, admin, value=value, output=output).rows == 3
    rows = loads.spark.read.parquet(f"file://{loads.folder}/numbers").orderBy("__entryId").collect()
    assert [(row["value"], row["bad"]) for row in rows] == [(1, None), (None, b"wrong"), (3, None)]


def test_load_without_schema_error_names_the_option(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, flights(0, 1))
    with pytest.raises(InvalidConfiguration, match=r"has no registered schema: give value\.schema"):
        loads.run(name, {"admin.url": loads.broker.admin_url}, value={"format": "json"})
    with pytest.raises(InvalidConfiguration, match=r"needs admin\.url, or give value\.schema"):
        loads.run(name, value={"format": "json"})


def test_load_writes_raw_values(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, [b"\x00\xff", b""])
    output = {"path": f"file://{loads.folder}/raw"}
    assert loads.run(name, value={"format": "raw"}, output=output, metadata=["__messageProperties"]).rows == 2
    frame = loads.spark.read.parquet(f"file://{loads.folder}/raw")
    assert sorted(bytes(row["value"]) for row in frame.collect()) == [b"", b"\x00\xff"]
    assert "__messageProperties" in frame.columns and "__key" not in frame.columns


def test_load_empty_interval_writes_empty_output(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, flights(0, 3))
    assert loads.run(name).rows == 3
    bounds = {"startingTime": "1000", "endingTime": "2000"}
    # The topic's retention reaches back over the interval: none of its messages can have been removed.
    outcome = loads.run(name, {**bounds, "admin.url": loads.broker.admin_url})
    assert (outcome.exit_code, outcome.rows) == (0, 0)
    assert list((loads.folder / "interval=1").glob("day=*")) == []
    assert (loads.folder / "interval=1" / "_SUCCESS").exists()


def test_load_shares_driver_secret_for_the_load_only(loads: Loads, secure_broker: Standalone) -> None:
    name = f"persistent://public/default/shared-{time.time_ns()}"
    token = secure_broker.token()
    with pulsar_native.Client(secure_broker.service_url, pulsar_native.AuthenticationToken(token)) as client:
        publish_groups(client, name, flights(0, 5))
    loads.spark.sparkContext._conf.set("spark.pulsar.load.token", token)
    source = {"service.url": secure_broker.service_url, "credentialsRef": "conf:spark.pulsar.load.token"}
    before = shared_files()
    assert loads.run(name, source).rows == 5
    assert shared_files() == before
    # Neither the secret nor its place: another one later is no other request.
    assert set(loads.manifest()["request"]["source"]) == {"service.url", "topic"}


def shared_files() -> set[Path]:
    """Return the files through which a configuration's credentials are shared."""
    return set(Path(tempfile.gettempdir()).glob("pulsar-credentials-*"))


# ---- again -----------------------------------------------------------------------------------------------------------


def test_load_open_end_is_new_fixed_end_replays(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, flights(0, 5))
    assert loads.run(name).rows == 5
    publish(name, flights(5, 5))
    up_to_now = loads.run(name)
    assert (up_to_now.rows, up_to_now.replayed) == (10, False)
    ids = {part["topic"]: part["end"] for part in loads.manifest()["partitions"]}
    bounded = {"startingOffsets": "earliest", "endingOffsets": json.dumps(ids)}
    assert loads.run(name, bounded).replayed is False, "another request"
    publish(name, flights(10, 5))
    again = loads.run(name, bounded)
    assert (again.rows, again.replayed) == (10, True)
    assert loads.delays() == list(range(10))
    assert loads.run(name, bounded, replay="never").replayed is False
    assert loads.run(name, bounded, run="another").replayed is False


def test_load_repeated_after_abort_has_same_messages(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, flights(0, 5), ["no json"])
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING") as failed:
        loads.run(name)
    assert load.judge(failed.value)[0] == load.FAILED
    assert "MALFORMED" in load.judge(failed.value)[1] and len(load.judge(failed.value)[1]) < 2001
    assert loads.manifest()["status"] == "planned"
    frozen = loads.manifest()["partitions"]
    publish(name, flights(6, 5))
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        loads.run(name)
    assert loads.manifest()["partitions"] == frozen
    assert loads.run(name, value={"format": "raw"}, output={"path": f"file://{loads.folder}/raw"}).rows == 11


def test_load_failed_leaves_output_unchanged(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, flights(0, 5))
    loads.run(name)
    publish(name, ["no json"])
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        loads.run(name)
    assert loads.delays() == list(range(5))


def test_load_replay_of_trimmed_messages_is_data_loss(
    loads: Loads, topic: NewTopic, publish: Publish, trimmable: str, trim: Callable[[str], object]
) -> None:
    name = topic(namespace=trimmable)
    publish(name, flights(0, 5))
    end = str(int(time.time() * 1000) + 1)
    loads.run(name, {"startingOffsets": "earliest", "endingTime": end, "timeSlackMs": "0"})
    trim(name)
    with pytest.raises(Exception, match="DataLoss") as lost:
        loads.run(name, loads.manifest()["request"]["source"], replay="require")
    assert load.judge(lost.value)[0] == load.LOST
    assert "are gone" in load.judge(lost.value)[1]
    assert loads.delays() == list(range(5)), "what was loaded stays"


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "left_out"])
def test_load_of_topic_deleted_after_plan_is_loss(
    loads: Loads, broker: Broker, topic: NewTopic, publish: Publish, fails: bool
) -> None:
    name = topic()
    publish(name, flights(0, 5))
    source = {} if fails else {"failOnDataLoss": "false"}
    loads.run(name, source)
    broker.admin("DELETE", f"{name.replace('://', '/')}?force=true")
    with pytest.raises(DataLoss, match=rf"{name} was deleted after its messages were planned") as lost:
        loads.run(name, source, replay="require")
    assert load.judge(lost.value)[0] == load.LOST and ("No rows" in str(lost.value)) is not fails
    if not fails:
        assert loads.run(name, source, replay="require", allow_empty=True).rows == 0
    assert name not in str(broker.admin("GET", "persistent/public/default")), "no reader has created it"


def test_load_required_replay_needs_same_manifest(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, flights(0, 1))
    with pytest.raises(InvalidConfiguration, match="there is no manifest at"):
        loads.run(name, replay="require")
    loads.run(name)
    with pytest.raises(InvalidConfiguration, match="is of another request"):
        loads.run(name, replay="require", run="x")
    assert loads.run(name, replay="require").replayed


def test_load_of_another_topic_keeps_the_output(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    first, second = topic(), topic()
    publish(first, flights(0, 2))
    publish(second, flights(5, 2))
    # The second one ends while the first one, planned before, writes.
    late = load.Load(loads.spark, LoadRequest.parse(json.dumps(loads.request(first))), time.monotonic())
    write = late._write

    def overtaken(*arguments: Any) -> Any:
        loads.run(second)
        return write(*arguments)

    late._write = overtaken  # type: ignore[method-assign, assignment]
    for refused in (late.run, lambda: loads.run(first)):
        with pytest.raises(InvalidConfiguration, match="give each topic an output path of its own"):
            refused()
    assert loads.delays() == [5, 6] and not list(loads.folder.glob(".*writing*"))


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"derive": {"Delay": "1"}, "metadata": ["__key"]}, None),
        ({"output": {"partition_by": ["dya"]}}, "partition_by names dya; the columns are"),
        (
            {
                "output": {
                    "partition_by": [
                        "carrier",
                        "Day",
                        "delay",
                        "__topic",
                        "__ledgerId",
                        "__entryId",
                        "__batchIndex",
                    ],
                },
                "metadata": [],
            },
            "partition_by names all columns",
        ),
        ({"value": {"format": "json", "schema": "a INT, A STRING, day INT"}}, "columns twice: a"),
        ({"value": {"format": "json", "schema": "a TINYINT, A STRING, day INT"}}, "columns twice: a"),
        ({"value": {"format": "json", "schema": "__key INT, day INT"}}, "columns twice: __key"),
        ({"value": {"format": "json", "schema": "a INTEGRAL"}}, "is not a list of columns"),
        ({"derive": {"late": "delay >"}}, r"derive\.late is not an expression of the columns: .*PARSE_SYNTAX_ERROR"),
        ({"derive": {"late": "dely > 1"}}, r"derive\.late is not an expression of the columns: .*dely"),
        ({"value": {"format": "json", "schema": "a MAP<INT,STRING>, day INT"}}, r"decoded into .*INVALID_JSON_MAP_KEY"),
        ({"value": {"format": "json", "schema": "a CHAR(3), day INT"}}, "cannot be decoded into these columns: .*char"),
        ({"value": {"format": "json", "schema": "a INTERVAL, day INT"}}, "cannot be written to Parquet: .*INTERVAL"),
        ({"derive": {"day": "map('a', 1)"}}, r'written to Parquet: .*"MAP<STRING, INT>" for partition column'),
        ({"time_zone": "Europe/Berln"}, "time_zone is 'Europe/Berln', which Spark does not know"),
    ],
)
def test_load_wrong_columns_raise_before_reading(
    loads: Loads, topic: NewTopic, publish: Publish, parts: dict[str, Any], message: str | None
) -> None:
    name = topic()
    publish(name, flights(0, 1))
    if "output" in parts:
        parts = {**parts, "output": {"path": f"file://{loads.folder}/out", **parts["output"]}}
    if message is None:
        assert loads.run(name, **parts).rows == 1
        return
    with pytest.raises(InvalidConfiguration, match=message):
        loads.run(name, **parts)


@pytest.mark.parametrize(
    "expression",
    [
        "explode(parts)",
        "explode_outer(parts)",
        "posexplode(parts)",
        "inline(arrays_zip(parts))",
        "stack(2, day, day)",
    ],
    ids=lambda expression: expression.partition("(")[0],
)
def test_load_derive_of_rows_raises(loads: Loads, topic: NewTopic, publish: Publish, expression: str) -> None:
    name = topic()
    publish(name, [json.dumps({"day": 1, "parts": [1, 2]})])
    value = {"format": "json", "schema": "day INT, parts ARRAY<INT>"}
    # The second expression is none of rows, nor is the first.
    derive = {"many": "size(parts)", "part": expression, "last": "day + 1"}
    with pytest.raises(InvalidConfiguration, match=r"derive\.part (.*one row for each|is not an expression)"):
        loads.run(name, value=value, derive=derive)
    assert [path.name for path in loads.folder.iterdir()] == [".interval=1.manifest.json"], "nothing was staged"


def test_load_derive_within_a_row(loads: Loads, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, [json.dumps({"day": 1, "parts": [1, 2]}), json.dumps({"day": 2, "parts": []})])
    value = {"format": "json", "schema": "day INT, parts ARRAY<INT>"}
    derive = {
        "twice": "transform(parts, part -> 2 * part)",
        "field": "json_tuple('{\"a\": 5}', 'a')",
        "of": "count(*) OVER (PARTITION BY 1)",
        "sum": "(SELECT sum(part) FROM (SELECT explode(array(1, 2)) AS part))",
    }
    assert loads.run(name, value=value, derive=derive).rows == 2
    found = loads.spark.read.parquet(f"file://{loads.folder}").orderBy("day").select(*derive).collect()
    assert [tuple(row) for row in found] == [([2, 4], "5", 2, 3), ([], "5", 2, 3)]


@pytest.mark.parametrize("partitions", [0, 2])
def test_load_topic_with_comma(loads: Loads, topic: NewTopic, publish: Publish, partitions: int) -> None:
    name = topic("a,b", partitions=partitions)
    if partitions:
        with pytest.raises(InvalidConfiguration, match="has a comma, and cannot be loaded together with other"):
            loads.run(name)
        return
    publish(name, flights(0, 3))
    assert loads.run(name).rows == 3


def test_load_command_line_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "request.json"
    file.write_text("{}")
    assert load.request_text(["--request", "{1}"]) == "{1}"
    assert load.request_text(["--request-file", str(file)]) == "{}"
    given: list[tuple[str, bool]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_run", lambda text, started, dry: given.append((text, dry)) or load.Outcome(load.DONE))
        assert load.main(["--request", "{1}", "--dry-run"]) == load.main(["--request", "{2}"]) == load.DONE
    assert given == [("{1}", True), ("{2}", False)]
    for wrong in (
        [],
        ["--request", "{}", "--request-file", str(file)],
        ["--request-file", "/no/such"],
        ["--reqest", "x"],
    ):
        assert load.main(wrong) == load.REFUSED
        last = capsys.readouterr().out.splitlines()[-1]
        assert json.loads(last)["pulsar_load"]["status"] == "failed"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            "… pyspark_pulsar.errors.DataLoss: Messages from 1:2 on are gone. [topic=t]\n…",
            load.LOST,
            "Messages from 1:2",
        ),
        ("… pulsar_native.exceptions.AuthenticationError: no such token\n", load.REFUSED, "no such token"),
        (
            "… pulsar_native.exceptions.InvalidConfiguration: There is no option x\n",
            load.REFUSED,
            "There is no option x",
        ),
        ("… pulsar_native.exceptions.Timeout: nothing came\n", load.FAILED, "nothing came"),
        ("pulsar_native.exceptions.ConnectError: a\n…\npyspark_pulsar.errors.DataLoss: b\n", load.LOST, "b"),
        ("a Java trace: SparkException: [FAILED_READ_FILE.X] why\n\tat org", load.FAILED, "[FAILED_READ_FILE.X] why"),
        (
            "… PythonException: [PYTHON_EXCEPTION] …: Traceback (most recent call last):\n"
            '  File "/x.py", line 1, in f\n    g()\n    ~^^\nOSError: no space\n SQLSTATE: 38000\n\tat org',
            load.FAILED,
            "OSError: no space",
        ),
        ("", load.FAILED, "RuntimeError"),
    ],
)
def test_load_exit_code_of_wrapped_spark_error(text: str, code: int, message: str) -> None:
    found = load.judge(RuntimeError(text))
    assert found[0] == code and found[1].startswith(message)


def test_load_exit_code_of_driver_error() -> None:
    assert load.judge(InvalidConfiguration("x"))[0] == load.REFUSED
    assert load.judge(PulsarException("x"))[0] == load.FAILED
    assert load.judge(OSError("x")) == (load.FAILED, "x")


_STOP = """
import sys
from pyspark.sql import SparkSession
from pyspark_pulsar import load

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
if sys.argv[1] == "killed":
    jvm = spark.sparkContext._gateway.proc
    jvm.kill()
    jvm.wait()
else:
    stopped = spark.sparkContext._jsc.sc().isStopped
    load._stop(spark)
    assert stopped(), "the session's JVM part goes on"
load._stop(spark)
"""


@pytest.mark.usefixtures("spark_environment")
@pytest.mark.parametrize("jvm", ["alive", "killed"])
def test_load_stop_ends_the_session(jvm: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STOP, jvm], env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


# ---- by spark-submit, as the provider runs it ------------------------------------------------------------------------


@dataclass
class Submitted:
    """What a spark-submit left: its exit code, its output, and the command lines of all processes while it ran."""

    code: int
    stdout: str
    stderr: str
    command_lines: set[str]

    def result(self) -> dict[str, Any]:
        """Return the result the load printed last."""
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])["pulsar_load"]
        return found


Submit = Callable[..., Submitted]


@pytest.fixture
def submit(spark_environment: None, tmp_path: Path) -> Submit:
    """Give what runs spark-submit with a request and credentials in its environment, its events logged in clear."""
    (tmp_path / "events").mkdir()
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{tmp_path}/events",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    folder = os.path.dirname(sys.executable)
    command = [f"{folder}/spark-submit", "--master", "local[2]", *settings]

    def run(request: dict[str, Any], credentials: str, *more: str) -> Submitted:
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PULSAR_CREDENTIALS": credentials}
        out, err = tmp_path / "stdout", tmp_path / "stderr"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [*command, *more, load.application(), "--request", json.dumps(request)],
                env=env,
                cwd=tmp_path,
                stdout=stdout,
                stderr=stderr,
            )
            seen: set[str] = set()
            deadline = time.monotonic() + 200
            while process.poll() is None:
                seen |= command_lines()
                if time.monotonic() > deadline:
                    process.kill()
                time.sleep(0.2)
        return Submitted(process.returncode, out.read_text(), err.read_text(), seen)

    return run


@pytest.mark.timeout(600)
@pytest.mark.proves("D10")
def test_spark_submit_never_shows_the_token(submit: Submit, secure_broker: Standalone, tmp_path: Path) -> None:
    token = secure_broker.token()
    name = f"persistent://public/default/submitted-{time.time_ns()}"
    with pulsar_native.Client(secure_broker.service_url, pulsar_native.AuthenticationToken(token)) as client:
        publish_groups(client, name, flights(0, 50))
    request = {
        "source": {
            "service.url": secure_broker.service_url,
            "topic": name,
            "credentialsRef": "env:PULSAR_CREDENTIALS",
        },
        "value": {"format": "json", "schema": "carrier STRING, day INT, delay DOUBLE"},
        "output": {"path": f"file://{tmp_path}/table/interval=1", "partition_by": ["day"]},
        "interval": "all",
    }
    done = submit(request, json.dumps({"method": "token", "token": token}), "--name", "load of orders")
    assert done.code == 0, done.stdout + done.stderr[-3000:]
    assert (done.result()["status"], done.result()["rows"], done.result()["exit_code"]) == ("done", 50, 0)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("pulsar-load: planned 1 topic partitions, 1 with messages")]
    events = "".join(file.read_text() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert "SparkListenerApplicationEnd" in events and "pulsar" in events
    assert '"App Name":"load of orders"' in events
    processes = "\n".join(done.command_lines)
    assert "load.py --request" in processes and "PULSAR_CREDENTIALS" in processes
    places = {
        "stdout": done.stdout,
        "stderr": done.stderr,
        "event log": events,
        "manifest": (tmp_path / "table" / ".interval=1.manifest.json").read_text(),
        "process list": processes,
    }
    secret = token.rpartition(".")[2]
    assert [place for place, text in places.items() if secret in text] == []
    assert "operation_timeout" not in done.stderr + done.stdout, "the client's configuration is not logged"


@pytest.mark.timeout(600)
def test_spark_submit_exit_codes(submit: Submit, secure_broker: Standalone, tmp_path: Path) -> None:
    shipped = tmp_path / "pulsar.token"
    shipped.write_text(expired := secure_broker.token(lifetime_seconds=-60))
    request = {
        "source": {
            "service.url": secure_broker.service_url,
            "topic": "persistent://public/default/any",
            "credentialsRef": "file:pulsar.token",
        },
        "output": {"path": f"file://{tmp_path}/out"},
        "interval": "all",
    }
    done = submit(request, "", "--files", str(shipped))
    assert done.code == load.REFUSED, done.stdout + done.stderr[-3000:]
    assert done.result()["status"] == "failed"
    assert "refused the credentials" in done.result()["error"], "the broker saw the token of the shipped file"
    assert expired.rpartition(".")[2] not in done.stdout + done.stderr
