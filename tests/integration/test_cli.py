"""The command line against the real broker: publish, consume, tail, peek, lag, as people and scripts use them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from pyarrow import parquet

from pulsar_native import AdminClient, Client, ConsumerType, CryptoKeyReader, InitialPosition
from pulsar_native.schema import AvroSchema, ProtobufSchema
from support.brokers import Broker, NewTopic
from support.cli import Outcome, run
from support.key_files import key_pair
from support.processes import child_process
from support.until import wait_until

Cli = Callable[..., Outcome]


@pytest.fixture
def cli(broker: Broker) -> Cli:
    """Run a command on the shared broker."""

    def one(*arguments: str, **options: Any) -> Outcome:
        environment = {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url}
        return run(*arguments, **environment, **options)

    return one


def values(found: Outcome) -> list[str]:
    assert found.code == 0, found.err
    return [line["value"] for line in found.lines]


# ---- publish ---------------------------------------------------------------------------------------------------------


def test_publish_lines_and_tail_them(cli: Cli, topic: NewTopic) -> None:
    name = topic()
    found = cli("publish", name, "--property", "source=shell", stdin=b"a\nb\n")
    assert (found.code, found.out) == (0, b"") and f"published 2 messages to {name} in " in found.err
    cli("publish", name, "-m", "c", "--key", "k", "--compression", "zstd")
    lines = cli("tail", name).lines
    assert [line["value"] for line in lines] == ["a", "b", "c"]
    assert [line["properties"] for line in lines] == [{"source": "shell"}, {"source": "shell"}, {}]
    assert [line["key"] for line in lines] == [None, None, "k"]


def test_publish_large_message_in_chunks(cli: Cli, topic: NewTopic) -> None:
    name, large = topic(), b"x" * 6_000_000
    assert cli("publish", name, stdin=large).code != 0
    assert cli("publish", name, "--chunking", stdin=large).code == 0
    assert values(cli("tail", name)) == [large.decode()]


def test_publish_csv_with_a_schema(cli: Cli, topic: NewTopic, tmp_path: Path) -> None:
    name, file, schema = topic(), tmp_path / "day.csv", tmp_path / "order.avsc"
    file.write_text("id,price\n1,2.5\n2,3\n")
    fields = [{"name": "id", "type": "long"}, {"name": "price", "type": "double"}]
    schema.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    found = cli(
        "publish", name, str(file), "--key-field", "id", "--schema", "avro", "--schema-file", str(schema), "--json"
    )
    assert found.code == 0 and found.lines[0]["count"] == 2
    lines = cli("tail", name).lines
    assert [(line["key"], line["value"]) for line in lines] == [
        ("1", {"id": 1, "price": 2.5}),
        ("2", {"id": 2, "price": 3.0}),
    ]


def test_publish_bad_row_tells_its_number(cli: Cli, topic: NewTopic) -> None:
    found = cli("publish", topic(), "--input-format", "jsonl", "--key-field", "id", stdin=b'{"id":1}\n{"no":2}\n')
    assert found.code in (1, 4) and "message 1: the message has no field 'id'" in found.err


def test_publish_identity_stores_once(
    cli: Cli, topic: NewTopic, namespace: Callable[[], str], broker: Broker, tmp_path: Path
) -> None:
    own, file = namespace(), tmp_path / "day.txt"
    name = topic(namespace=own)
    file.write_text("a\nb\nc\n")
    options = ("publish", name, str(file), "--identity", "day 1", "--state", str(tmp_path / "state.json"), "--json")
    cli("publish", name, "--create-subscription", "s", "-m", "first")
    refused = cli(*options)
    assert refused.code == 4 and "or pass --allow-duplicates" in refused.err and not refused.out
    with AdminClient(broker.admin_url) as admin:
        admin.set_deduplication(own, True)
        wait_until(lambda: admin.stats(name).get("deduplicationStatus") == "Enabled")
    cli("consume", name, "-s", "s")
    first, second = cli(*options).lines[0], cli(*options).lines[0]
    assert (first["stored"], second["stored"], second["duplicates"]) == (3, 0, 3)
    assert values(cli("consume", name, "-s", "s")) == ["a", "b", "c"]
    file.write_text("a\nB\nc\n")
    changed = cli(*options)
    assert changed.code == 4 and "pass --on-changed republish" in changed.err
    assert cli(*options, "--on-changed", "republish").lines[0]["stored"] == 3
    assert values(cli("consume", name, "-s", "s")) == ["a", "B", "c"]


def test_publish_parquet_without_pyarrow_exits_with_4(
    cli: Cli, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "day.parquet"
    file.write_bytes(b"not read")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = cli("publish", topic(), str(file))
    assert found.code == 4 and "Parquet needs the package pyarrow: pip install 'pulsar-native[arrow]'" in found.err


def test_publish_to_nowhere_fails_with_1() -> None:
    found = run("publish", "t", "-m", "a", "--url", "pulsar://127.0.0.1:1", "--timeout", "1")
    assert found.code == 1 and "error: " in found.err


# ---- consume ---------------------------------------------------------------------------------------------------------


def test_consume_acknowledges_what_it_wrote(cli: Cli, topic: NewTopic) -> None:
    name = topic(partitions=2)
    cli("publish", name, "--create-subscription", "s", stdin=b"".join(b"%d\n" % n for n in range(20)))
    first = cli("consume", name, "-s", "s", "-n", "7")
    assert len(values(first)) == 7 and "consumed 7 messages in " in first.err
    rest = cli("consume", name, "-s", "s", "--as", "value")
    assert sorted(int(each["value"]) for each in first.lines) + sorted(map(int, rest.out.split())) != []
    assert sorted([*(int(each["value"]) for each in first.lines), *map(int, rest.out.split())]) == list(range(20))
    assert cli("consume", name, "-s", "s", "--fail-empty").code == 3


@pytest.mark.parametrize("size", [1, 70_000])
def test_consume_output_that_fails_acknowledges_nothing(cli: Cli, topic: NewTopic, broker: Broker, size: int) -> None:
    name = topic()
    cli("publish", name, "--create-subscription", "s", "-m", "a" * size, "-m", "b")
    command = [sys.executable, "-m", "pulsar_native", "consume", name, "-s", "s", "--url", broker.service_url]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=240, check=False)
    assert done.returncode == 1 and b"No space left" in done.stderr
    assert len(values(cli("consume", name, "-s", "s"))) == 2


def test_consume_output_dash_is_standard_output(
    cli: Cli, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = topic()
    cli("publish", name, "--create-subscription", "s", "-m", "a")
    found = cli("consume", name, "-s", "s", "-o", "-")
    assert values(found) == ["a"] and found.err.startswith("consumed 1 message in ")
    assert list(tmp_path.iterdir()) == []


def test_consume_parquet_run_is_repeatable(cli: Cli, topic: NewTopic, tmp_path: Path) -> None:
    name, path = topic(), tmp_path / "day.parquet"
    cli("publish", name, "--create-subscription", "s", "-m", "a", "-m", "b")
    options = ("consume", name, "-s", "s", "-o", str(path), "--run", "day 1", "--json")
    first = cli(*options).lines[0]
    cli("publish", name, "-m", "c")
    assert cli(*options).lines[0] == first and first["count"] == 2
    assert parquet.read_table(path)["value"].to_pylist() == [b"a", b"b"]
    path.unlink()
    assert cli(*options).code == 0 and parquet.read_table(path).num_rows == 2
    other = cli("consume", name, "-s", "s", "-o", str(path))
    assert other.code == 4 and "another run (run day 1)" in other.err
    assert (
        cli("consume", name, "-s", "s", "-o", str(path), "--if-exists", "append_part", "--json").lines[0]["count"] == 1
    )


def test_consume_parquet_without_pyarrow_exits_with_4(
    cli: Cli, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, path = topic(), tmp_path / "day.parquet"
    cli("publish", name, "-m", "a")
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "pyarrow", None)
        found = cli("consume", name, "-s", "s", "-o", str(path))
    assert found.code == 4 and "Parquet needs the package pyarrow: pip install 'pulsar-native[arrow]'" in found.err
    assert list(tmp_path.iterdir()) == []
    assert values(cli("consume", name, "-s", "s")) == ["a"]


@pytest.mark.parametrize(("unmatched", "left"), [("acknowledge", []), ("keep", ["b"])])
def test_consume_filter_keeps_or_acknowledges_others(
    unmatched: str, left: list[str], cli: Cli, topic: NewTopic
) -> None:
    name = topic()
    for key in ("a", "b", "a"):
        cli("publish", name, "--create-subscription", "s", "-m", key, "--key", key)
    found = cli(
        "consume", name, "-s", "s", "--type", "shared", "--key", "a", "--unmatched", unmatched, "--idle-seconds", "0.5"
    )
    assert values(found) == ["a", "a"]
    assert values(cli("consume", name, "-s", "s", "--type", "shared", "--idle-seconds", "0.5")) == left


def test_consume_undecodable_goes_as_told(cli: Cli, topic: NewTopic) -> None:
    name = topic()
    cli("publish", name, "--create-subscription", "s", "-m", "{}", "-m", "no json")
    options = ("consume", name, "-s", "s", "--decode", "json")
    failed = cli(*options)
    assert failed.code == 1 and "The message is not JSON" in failed.err
    moved = cli(*options, "--on-error", "dead_letter")
    assert values(moved) == [{}] and "1 moved to the dead-letter topic" in moved.err
    assert values(cli("tail", f"{name}-s-DLQ")) == ["no json"]


def test_consume_missing_topic_exits_with_4(cli: Cli, topic: NewTopic) -> None:
    found = cli("consume", f"{topic()}-none", "-s", "s")
    assert found.code == 4 and "TopicNotFound" in found.err


# ---- tail and peek ---------------------------------------------------------------------------------------------------


def test_tail_last_messages_of_batches_and_partitions(cli: Cli, topic: NewTopic, broker: Broker) -> None:
    name = topic(partitions=2)
    with Client(broker.service_url) as client:
        producer = client.create_producer(name, batching_max_messages=7)
        for number in range(100):
            producer.send_async(b"%d" % number, None, partition_key=str(number % 5))
        producer.flush()
        for number in range(100, 103):
            producer.send(b"%d" % number)
    assert values(cli("tail", name, "-n", "3")) == ["100", "101", "102"]
    found = values(cli("tail", name, "-n", "53", "--key-regex", "."))
    # The order of partitions among each other is that of publish times, which entries share.
    assert len(found) == 53
    for key in range(5):
        of_key = [int(each) for each in found if int(each) % 5 == key]
        assert of_key == list(range(100))[key::5][-len(of_key) :]
    assert len(values(cli("tail", name, "-n", "1000"))) == 103


def test_tail_filters_by_time_and_property(cli: Cli, topic: NewTopic) -> None:
    name = topic()
    for region in ("eu", "us"):
        cli("publish", name, "-m", region, "--property", f"region={region}")
    first, second = cli("tail", name).lines
    assert values(cli("tail", name, "--property", "region=us")) == ["us"]
    assert values(cli("tail", name, "--from", second["publish_time"])) == ["us"]
    assert values(cli("tail", name, "--from", "earliest", "--until", second["publish_time"])) == ["eu"]
    ledger, entry, *_ = second["message_id"].split(":")
    assert values(cli("tail", name, "--from", f"{ledger}:{entry}")) == ["us"]
    assert values(cli("tail", name, "--from", "earliest", "--max-messages", "1")) == ["eu"]
    empty = cli("tail", name, "--property", "region=none", "--fail-empty")
    assert (empty.code, empty.out) == (3, b"") and first["value"] == "eu"


def test_tail_decodes_by_the_writer_s_schema(cli: Cli, topic: NewTopic, broker: Broker) -> None:
    name, definition = topic(), {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    with Client(broker.service_url) as client:
        client.create_producer(name, schema=AvroSchema(None, definition)).send({"a": 5})
    assert values(cli("tail", name)) == [{"a": 5}]
    assert cli("tail", name, "--as", "value").out == b"\n\n"  # The zigzag number of 5 is a line feed.


def test_undecodable_schema_leaves_the_payload(cli: Cli, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    with Client(broker.service_url) as client:
        client.create_producer(name, schema=ProtobufSchema(StringValue)).send(StringValue(value="hello"))
    for command in ("tail", "peek"):
        (line,) = cli(command, name).lines
        assert (line["value"], line["encoding"]) == ("CgVoZWxsbw==", "base64")
        assert "cannot be decoded without their class" in line["error"]
    for number, output in enumerate((["--as", "value"], ["--format", r"%s\n"])):
        found = cli("consume", name, "-s", f"s{number}", *output)
        assert (found.code, found.out) == (0, b"\n\x05hello\n"), found.err


def test_encrypted_message_is_shown_as_it_is(cli: Cli, topic: NewTopic, broker: Broker, tmp_path: Path) -> None:
    name, keys = topic(), key_pair(tmp_path)
    with Client(broker.service_url) as client:
        reader = CryptoKeyReader(*keys)
        client.create_producer(name, crypto_key_reader=reader, encryption_key="k").send(b"hello")
    for command in ("tail", "peek"):
        (line,) = cli(command, name).lines
        assert line["encoding"] == "base64" and line["error"].startswith("The message is encrypted")
        assert cli(command, name, "--as", "value").out == b""
    found = cli("consume", name, "-s", "s")
    assert found.code == 4 and "the option private_keys of pulsar_native.jobs" in found.err


def test_publish_keeps_nothing_on_non_persistent_topic(cli: Cli, topic: NewTopic) -> None:
    name = topic().replace("persistent://", "non-persistent://")
    found = cli("publish", name, "-m", "a", "--create-subscription", "s")
    assert found.code == 2 and "keeps nothing: leave --create-subscription out" in found.err


def test_tail_leaves_nothing_and_creates_nothing(cli: Cli, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    cli("publish", name, "-m", "a")
    cli("tail", name)
    broker.wait_unsubscribed(name)
    assert cli("tail", f"{name}-none").code == 4
    assert cli("peek", f"{name}-none").code == 4


def test_peek_shows_what_the_subscription_gets_next(cli: Cli, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    with Client(broker.service_url) as client:
        consumer = client.subscribe(
            name, "s", consumer_type=ConsumerType.Shared, initial_position=InitialPosition.Earliest,
            ack_receipt_enabled=True,
        )  # fmt: skip
        producer = client.create_producer(name, batching_enabled=False)
        ids = [producer.send(b"%d" % number) for number in range(5)]
        for _ in ids:
            consumer.receive(5000)
        consumer.acknowledge([ids[0], ids[2]])
    for _ in range(2):
        assert values(cli("peek", name, "-s", "s", "-n", "10")) == ["1", "3", "4"]
    assert values(cli("peek", name)) == ["0"]
    assert cli("peek", name, "-s", "none").code == 4


def test_follow_shows_new_messages_until_interrupted(topic: NewTopic, broker: Broker, cli: Cli) -> None:
    name = topic(partitions=2)
    cli("publish", name, "-m", "old", "-m", "last", "--key", "k")
    command = [sys.executable, "-m", "pulsar_native", "tail", name, "-n", "1", "-f", "--as", "value"]
    env = {**os.environ, "PULSAR_SERVICE_URL": broker.service_url}
    with child_process(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"last\n"
        for text in ("new", "newer"):
            cli("publish", name, "-m", text)
            assert process.stdout.readline() == f"{text}\n".encode()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        told = process.stderr.read()
        assert b"Traceback" not in told and b"interrupted" in told


def test_reader_of_the_output_gone_exits_with_141(topic: NewTopic, broker: Broker, cli: Cli) -> None:
    name = topic()
    cli("publish", name, stdin=b"".join(b"%d %s\n" % (n, b"x" * 1000) for n in range(3000)))
    command = [sys.executable, "-m", "pulsar_native", "tail", name, "--from", "earliest", "--url", broker.service_url]
    with child_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == b""


# ---- lag, terminal, secrets ------------------------------------------------------------------------------------------


def test_lag_tells_backlog_and_limit(cli: Cli, topic: NewTopic) -> None:
    name = topic(partitions=2)
    for text in ("a", "b", "c"):
        cli("publish", name, "--create-subscription", "s", "-m", text)
    rows = cli("lag", name, "--json").lines
    assert [row["subscription"] for row in rows] == ["s", "s"] and sum(row["entries"] for row in rows) == 3
    assert cli("lag", name, "-s", "s", "--max", "3").code == 0
    over = cli("lag", name, "-s", "s", "--max", "2")
    assert over.code == 3 and f"more than 2 entries of backlog: s has 3 in {name}" in over.err
    assert cli("lag", name, "-s", "none").code == 4
    cli("consume", name, "-s", "s")
    wait_until(lambda: cli("lag", name, "--max", "0").code == 0)


def test_progress_is_for_terminals_only(topic: NewTopic, broker: Broker, cli: Cli) -> None:
    name = topic()
    text = b"".join(b"%d\n" % number for number in range(2000))
    assert "\r" not in cli("publish", name, stdin=text).err
    shown = cli("consume", name, "-s", "s", terminal=True)
    assert "\r" in shown.err and shown.err.endswith("(end)\n")
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "pulsar_native", "publish", name, "-m", "a", "--url", broker.service_url]
    try:
        subprocess.run(command, stderr=terminal, timeout=240, check=True)
        assert b"published 1 message to" in os.read(main, 10_000)
    finally:
        os.close(main)
        os.close(terminal)


def test_refused_token_exits_with_4_and_is_not_shown(secure_broker: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    good, bad = secure_broker.token("admin"), secure_broker.token("admin")[:-4] + "AAAA"
    for token, code in ((good, 0), (bad, 4)):
        file.write_text(token)
        found = run(
            "publish", "persistent://public/default/cli", "-m", "a", "--url", secure_broker.service_url,
            "--token-file", str(file), "--timeout", "10", "-v",
        )  # fmt: skip
        assert found.code == code, found.err
        assert token not in found.err and token.rpartition(".")[2] not in found.err
