"""The batch reader in this process, against a real broker: frozen plans, Arrow batches, and loss in the middle."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from pulsar_native import Client, MessageId
from pulsar_native.diagnostics import codec
from pulsar_native.exceptions import Timeout, TopicNotFound
from pyspark_pulsar.batch_reader import PulsarBatchReader, log_codec, make_splits
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position
from support.brokers import Broker, NewTopic
from support.compaction import compact
from support.publishing import Publish
from support.relay import TO_CLIENT, Command, NewRelay
from support.until import wait_until


def reader_of(broker: Broker, topic: str, **options: str) -> PulsarBatchReader:
    """Return the reader Spark would make for these options."""
    given = {"service.url": broker.service_url, "topic": topic, "columns": "value", **options}
    return PulsarBatchReader(ReadOptions.parse(given))


def values(reader: PulsarBatchReader) -> list[bytes]:
    """Return the values of all partitions, planned now."""
    return [value for split in reader.partitions() for value in read_split(reader, split)]


def read_split(reader: PulsarBatchReader, split: InputPartition) -> list[bytes]:
    """Return the values of one planned split."""
    return [value for batch in reader.read(split) for value in batch["value"].to_pylist()]


def test_read_without_partitions_returns_no_rows(broker: Broker, topic: NewTopic) -> None:
    assert list(reader_of(broker, topic()).read(InputPartition(None))) == []


@pytest.mark.proves("S2")
def test_read_yields_batches_of_chosen_columns(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    import pyarrow

    name = topic()
    publish(name, ["a", "b"], ["c"])
    reader = reader_of(broker, name, columns="value,__topic")
    (split,) = reader.partitions()
    batches = list(reader.read(split))
    assert all(isinstance(batch, pyarrow.RecordBatch) for batch in batches)
    table = pyarrow.Table.from_batches(batches)
    assert table.schema.names == ["value", "__topic"]
    assert table.to_pydict() == {"value": [b"a", b"b", b"c"], "__topic": [name] * 3}


def test_partitions_end_is_frozen_at_planning(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, ["1", "2"], ["3"])
    reader = reader_of(broker, name)
    (split,) = reader.partitions()
    publish(name, ["4"], ["5", "6"])
    assert read_split(reader, split) == [b"1", b"2", b"3"]
    assert read_split(reader, split) == [b"1", b"2", b"3"], "a second try of the task reads the same"
    assert values(reader) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_read_of_terminated_topic_without_last_id(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    path = name.replace("://", "/")
    publish(name, ["1"], ["2", "3"])
    # Terminated while its last ledger is empty, a topic has no last id once it is loaded again, as an empty one.
    broker.admin("PUT", f"{path}/unload")
    wait_until(lambda: broker.admin("POST", f"{path}/terminate"))
    broker.admin("PUT", f"{path}/unload")
    assert values(reader_of(broker, name)) == [b"1", b"2", b"3"]
    last = broker.admin("GET", f"{path}/lastMessageId")
    assert isinstance(last, dict) and last["entryId"] == -1


@pytest.mark.proves("S3")
def test_partitions_one_split_per_topic_partition(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name, plain = topic("many", partitions=3), topic("plain")
    for index in range(3):
        publish(f"{name}-partition-{index}", [f"p{index}"])
    publish(plain, ["q"])
    both = reader_of(broker, name).partitions()
    assert [split.value for split in both] == [f"{name}-partition-{index}" for index in range(3)]
    assert values(reader_of(broker, f"{name}-partition-1")) == [b"p1"]
    options = {"service.url": broker.service_url, "topics": f"{name},{plain}", "columns": "value"}
    assert values(PulsarBatchReader(ReadOptions.parse(options))) == [b"p0", b"p1", b"p2", b"q"]


def test_partitions_small_topic_partitions_share_tasks(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic(partitions=66)
    for index in range(66):
        publish(f"{name}-partition-{index}", [f"{index}a", f"{index}b"])
    splits = reader_of(broker, name).partitions()
    assert [len(split.parts()) for split in splits] == [2] * 33
    wanted = [f"{index}{each}".encode() for index in range(66) for each in "ab"]
    assert values(reader_of(broker, name)) == wanted
    # With a limit that the user gives nothing is joined.
    limits = {"admin.url": broker.admin_url, "maxEntriesPerPartition": "1000"}
    assert len(reader_of(broker, name, **limits).partitions()) == 66
    # A task ends with the first of its ranges that cannot be read.
    reader = reader_of(broker, name)
    first = reader.partitions()[0]
    for _ in range(2):
        assert read_split(reader, first) == wanted[:4], "a second try of the task reads the same"
    broker.admin("DELETE", f"persistent/{name.removeprefix('persistent://')}-partition-1?force=true")
    with pytest.raises(DataLoss, match="partition-1 was deleted"):
        read_split(reader, first)
    assert read_split(reader_of(broker, name, failOnDataLoss="false"), first) == wanted[:2], "the rest of the task"


@pytest.mark.proves("S3")
def test_partitions_pattern_takes_existing_topics(
    broker: Broker, publish: Publish, topic: NewTopic, namespace: Callable[[], str]
) -> None:
    space = namespace()
    for name in ("a-1", "a-2", "b-1"):
        publish(f"persistent://{space}/{name}", [name])
    broker.admin("PUT", f"persistent/{space}/a-3/partitions", 2)
    publish(f"persistent://{space}/a-3-partition-1", ["a-3"])

    def matching(pattern: str) -> list[bytes]:
        options = {"service.url": broker.service_url, "columns": "value"}
        return values(PulsarBatchReader(ReadOptions.parse({**options, "topicsPattern": pattern})))

    assert sorted(matching(f"{space}/a-.")) == [b"a-1", b"a-2", b"a-3"]
    assert matching(f"persistent://{space}/.*-2") == [b"a-2"]
    assert sorted(matching(f"{space}/.*")) == [b"a-1", b"a-2", b"a-3", b"b-1"]
    with pytest.raises(TopicNotFound, match=r"No topic of .* matches"):
        matching(f"{space}/a")


def test_partitions_empty_topic_partition_has_no_split(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic(partitions=3)
    publish(f"{name}-partition-2", ["only"])
    assert [split.value for split in reader_of(broker, name).partitions()] == [f"{name}-partition-2"]


@pytest.mark.proves("D4")
def test_read_end_without_an_entry_is_passed_by_order(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    first = publish(name, ["1"], ["2"])[-1]
    broker.admin("PUT", f"{name.replace('://', '/')}/unload")
    second = publish(name, ["3"])[-1]
    assert second.ledger_id() > first.ledger_id()
    for end in (f"{first.ledger_id()}:{first.entry_id() + 1}", f"{first.ledger_id()}:999:5"):
        assert values(reader_of(broker, name, endingOffsets=f'{{"{name}": "{end}"}}')) == [b"1", b"2"]


@pytest.mark.proves("D4", "D5")
def test_read_of_trimmed_range_is_data_loss_or_rest(
    broker: Broker, topic: NewTopic, publish: Publish, trimmable: str, trim: Callable[[str], MessageId]
) -> None:
    name = topic(namespace=trimmable)
    first, *_, last = publish(name, ["1"], ["2"], ["3"])
    trim(name)
    gone = {
        "startingOffsets": f'{{"{name}": "{first.ledger_id()}:{first.entry_id()}"}}',
        "endingOffsets": f'{{"{name}": "{last.ledger_id()}:{last.entry_id()}"}}',
    }
    with pytest.raises(DataLoss, match="on are gone: the first one still there is"):
        reader_of(broker, name, **gone).partitions()
    assert values(reader_of(broker, name, failOnDataLoss="false", **gone)) == []
    assert values(reader_of(broker, name, failOnDataLoss="false", startingOffsets=gone["startingOffsets"])) == [b"kept"]
    assert values(reader_of(broker, name)) == [b"kept"], "earliest means the first message that is there"


def values_soon(reader: PulsarBatchReader) -> list[bytes]:
    """Return the values of all partitions; fails where reading waits for messages that never come."""
    started = time.monotonic()
    found = values(reader)
    # A read that waits for an end which does not exist waits for pollTimeoutMs, which is 60 s in these tests.
    assert time.monotonic() - started < 30
    return found


PATIENT = {"pollTimeoutMs": "60000"}


@pytest.mark.proves("D4")
def test_an_end_that_was_compacted_away_ends_the_read(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    ids = []
    # The last two entries remove keys, so that compaction leaves nothing of them.
    for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", ""), ("d", "")):
        ids += publish(name, [value], partition_key=key)
    compact(broker, name)
    wanted = [b"2", b"1"]
    assert values_soon(reader_of(broker, name, readCompacted="true", **PATIENT)) == wanted
    for number, kept in enumerate(([], [], [], [b"2"], wanted, wanted, wanted)):
        entry = ids[number].entry_id() if number < len(ids) else ids[-1].entry_id() + 1
        end = f'{{"{name}": "{ids[0].ledger_id()}:{entry}"}}'
        assert values_soon(reader_of(broker, name, readCompacted="true", endingOffsets=end, **PATIENT)) == kept, number
    gone = f'{{"{name}": "{ids[0].ledger_id()}:{ids[4].entry_id()}"}}'
    assert values_soon(reader_of(broker, name, readCompacted="true", startingOffsets=gone, **PATIENT)) == []
    late = f'{{"{name}": "{ids[0].ledger_id()}:{ids[-1].entry_id() + 2}"}}'
    with pytest.raises(DataLoss, match="not there yet"):
        values_soon(reader_of(broker, name, readCompacted="true", endingOffsets=late, **PATIENT))
    (new,) = publish(name, ["3"], partition_key="e")
    assert new.entry_id() == ids[-1].entry_id() + 1
    # The ends lie between two messages now, and nobody waits for what lies behind.
    for number in (4, 5):
        end = f'{{"{name}": "{ids[0].ledger_id()}:{ids[number].entry_id()}"}}'
        assert values_soon(reader_of(broker, name, readCompacted="true", endingOffsets=end, **PATIENT)) == wanted
    assert values_soon(reader_of(broker, name, readCompacted="true", **PATIENT)) == [*wanted, b"3"]


@pytest.mark.proves("D4")
def test_an_end_compacted_away_after_the_plan_ends_the_read(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    for key, value in (("a", "1"), ("b", "1"), ("b", ""), ("c", "")):
        publish(name, [value], partition_key=key)
    reader = reader_of(broker, name, readCompacted="true", **PATIENT)
    (split,) = reader.partitions()
    assert read_split(reader, split) == [b"1", b"1", b"", b""]
    compact(broker, name)
    started = time.monotonic()
    # Nothing will ever come at or behind the end: the last message there is proves it.
    assert read_split(reader, split) == [b"1"]
    assert time.monotonic() - started < 30


@pytest.mark.proves("D4")
@pytest.mark.parametrize("behind", [False, True], ids=["last", "followed"])
def test_an_end_that_was_aborted_ends_the_read(
    broker: Broker, client: Client, topic: NewTopic, publish: Publish, behind: bool
) -> None:
    name = topic()
    (first,) = publish(name, ["1"])
    producer = client.create_producer(name, batching_enabled=False, send_timeout_millis=0)
    transaction = client.new_transaction()
    aborted = [producer.send(b"aborted", txn=transaction) for _ in range(3)]
    transaction.abort()
    assert [each.entry_id() for each in aborted] == [1, 2, 3]
    # Behind them stands the marker of the abort, entry 4.
    last = publish(name, ["2"])[-1].entry_id() if behind else 4
    wanted = [b"1", b"2"] if behind else [b"1"]
    assert values_soon(reader_of(broker, name, **PATIENT)) == wanted
    for entry in range(1, last + 1):
        reader = reader_of(broker, name, endingOffsets=f'{{"{name}": "{first.ledger_id()}:{entry}"}}', **PATIENT)
        if behind or entry == 1:
            assert values_soon(reader) == [b"1"], entry
            continue
        # The broker names the last message that can be delivered: what lies behind may be an open transaction's.
        with pytest.raises(DataLoss, match="held back by an open transaction"):
            values_soon(reader)
        end = f'{{"{name}": "{first.ledger_id()}:{entry}"}}'
        assert values_soon(reader_of(broker, name, endingOffsets=end, failOnDataLoss="false", **PATIENT)) == [b"1"]
    if behind:
        start, end = (f'{{"{name}": "{first.ledger_id()}:{entry}"}}' for entry in (1, 4))
        assert values_soon(reader_of(broker, name, startingOffsets=start, endingOffsets=end, **PATIENT)) == []


@pytest.mark.proves("S9")
def test_read_trimmed_before_task_fails_before_first_row(
    broker: Broker, publish: Publish, namespace: Callable[[], str]
) -> None:
    space = namespace()
    name = f"persistent://{space}/t"
    (first,) = publish(name, ["1"])
    broker.admin("PUT", f"persistent/{space}/t/unload")
    publish(name, ["2"])
    reader = reader_of(broker, name)
    (split,) = reader.partitions()
    assert read_split(reader, split) == [b"1", b"2"]
    drop_closed_ledgers(broker, space, "t", first.ledger_id())
    with pytest.raises(DataLoss, match=r"Messages from .* on are gone: the first one still there is"):
        next(reader.read(split))


@pytest.mark.proves("S9")
def test_read_emptied_before_task_fails(broker: Broker, publish: Publish, namespace: Callable[[], str]) -> None:
    space = namespace()
    name = f"persistent://{space}/t"
    (first,) = publish(name, ["1"])
    reader = reader_of(broker, name)
    (split,) = reader.partitions()
    broker.admin("PUT", f"persistent/{space}/t/unload")
    drop_closed_ledgers(broker, space, "t", first.ledger_id())
    with pytest.raises(DataLoss, match="the topic holds none"):
        next(reader.read(split))


def drop_closed_ledgers(broker: Broker, space: str, topic: str, closed: int) -> None:
    """Let the broker delete what is not in the topic's open ledger, and wait until it has."""
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    broker.admin("POST", f"namespaces/{space}/retention", nothing)
    deadline = time.monotonic() + 20
    while True:
        broker.admin("POST", f"persistent/{space}/{topic}/trim")
        stats = broker.admin("GET", f"persistent/{space}/{topic}/internalStats")
        assert isinstance(stats, dict)
        if closed not in [ledger["ledgerId"] for ledger in stats["ledgers"]]:
            return
        assert time.monotonic() < deadline, stats
        time.sleep(0.1)


@pytest.mark.proves("S9")
def test_read_trimmed_while_reading_fails_at_the_end(
    broker: Broker, topic: NewTopic, publish: Publish, trimmable: str, trim: Callable[[str], MessageId]
) -> None:
    name = topic(namespace=trimmable)
    publish(name, ["1"], ["2"])
    reader = reader_of(broker, name)
    (split,) = reader.partitions()
    batches = reader.read(split)
    next(batches)
    trim(name)
    with pytest.raises(DataLoss, match=r"Messages from .* on are gone"):
        list(batches)


def test_read_trimmed_before_interval_is_data_loss(
    broker: Broker, topic: NewTopic, publish: Publish, trimmable: str, trim: Callable[[str], MessageId]
) -> None:
    name = topic(namespace=trimmable)
    publish(name, ["1"], ["2"])
    timed = {"startingTime": "1000", "admin.url": broker.admin_url}
    assert values(reader_of(broker, name, **timed)) == [b"1", b"2"]
    trim(name)
    with pytest.raises(DataLoss, match="The topic was trimmed"):
        reader_of(broker, name, **timed).partitions()
    assert values(reader_of(broker, name, failOnDataLoss="false", **timed)) == [b"kept"]


def test_read_of_trimmed_topic_is_empty_or_data_loss(
    broker: Broker, publish: Publish, namespace: Callable[[], str]
) -> None:
    space = namespace()
    name = f"persistent://{space}/t"
    first, last = publish(name, ["1"], ["2"])
    broker.admin("PUT", f"persistent/{space}/t/unload")
    drop_closed_ledgers(broker, space, "t", first.ledger_id())
    assert values(reader_of(broker, name)) == []
    gone = {"endingOffsets": f'{{"{name}": "{last.ledger_id()}:{last.entry_id()}"}}'}
    with pytest.raises(DataLoss, match=r"the topic holds none|it holds no message"):
        reader_of(
            broker, name, startingOffsets=f'{{"{name}": "{first.ledger_id()}:{first.entry_id()}"}}', **gone
        ).partitions()


@pytest.mark.proves("S9")
def test_read_of_topic_deleted_after_plan_is_loss(
    broker: Broker, topic: NewTopic, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    kept, name, many = topic("kept"), topic(), topic("many", partitions=1)
    first = [publish(each, ["1"])[0] for each in (kept, name, f"{many}-partition-0")]
    topics = [kept, name, f"{many}-partition-0"]
    splits = [reader_of(broker, each).partitions()[0] for each in topics]
    broker.admin("DELETE", f"{name.replace('://', '/')}?force=true")
    broker.admin("DELETE", f"{many.replace('://', '/')}/partitions?force=true")
    for each, split in zip(topics[1:], splits[1:], strict=True):
        with pytest.raises(DataLoss, match=rf"{each} was deleted after its messages were planned"):
            read_split(reader_of(broker, each), split)
        caplog.clear()
        assert read_split(reader_of(broker, each, failOnDataLoss="false"), split) == []
        assert f"{each} was deleted" in caplog.text and "left out" in caplog.text
    # A stored plan, as a load has it, is planned again.
    starts = {each: f"{at.ledger_id()}:0" for each, at in zip(topics, first, strict=True)}
    ends = {each: f"{at.ledger_id()}:1" for each, at in zip(topics, first, strict=True)}
    options = {"service.url": broker.service_url, "topics": ",".join(topics), "columns": "value"}
    stored = {**options, "startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    with pytest.raises(DataLoss, match=rf"{name} was deleted"):
        PulsarBatchReader(ReadOptions.parse(stored)).partitions()
    assert values(PulsarBatchReader(ReadOptions.parse({**stored, "failOnDataLoss": "false"}))) == [b"1"]
    with pytest.raises(TopicNotFound):
        PulsarBatchReader(ReadOptions.parse({**options, "failOnDataLoss": "false"})).partitions()
    left = str(broker.admin("GET", "persistent/public/default"))
    assert name not in left and many not in left


@pytest.mark.proves("D7")
def test_read_over_broken_connections_gives_rows_once(
    broker: Broker, topic: NewTopic, publish: Publish, relay: NewRelay
) -> None:
    name = topic()
    groups = [[f"{batch:04d}-{index:04d}" + "x" * 290 for index in range(100)] for batch in range(400)]
    publish(name, *groups)
    between = relay(broker.service_url)
    options = {"service.url": between.service_url, "topic": name, "columns": "value"}
    # The broker takes the first permits for entries, not for messages: few, or all is on its way before the first cut.
    reader = PulsarBatchReader(ReadOptions.parse({**options, "pulsar.reader.receiverQueueSize": "10"}))
    (split,) = reader.partitions()
    found: list[bytes] = []
    for number, batch in enumerate(reader.read(split)):
        found += batch["value"].to_pylist()
        if number == 0:
            between.cut_after(300_000, TO_CLIENT)  # in the middle of a frame
        elif number == 1:
            broker.admin("PUT", f"{name.replace('://', '/')}/unload")
        elif number == 2:
            between.cut(reset=True)
    assert between.count(Command.SUBSCRIBE) >= 4, "a probe to plan, and the reader three times"
    assert found == [value.encode() for group in groups for value in group]


def test_read_in_open_ledger_subscribes_once(
    broker: Broker, topic: NewTopic, publish: Publish, relay: NewRelay
) -> None:
    name = topic()
    publish(name, ["1"], ["2"])
    between = relay(broker.service_url)
    reader = PulsarBatchReader(ReadOptions.parse({"service.url": between.service_url, "topic": name}))
    (split,) = reader.partitions()
    planned = between.count(Command.SUBSCRIBE)
    assert read_split(reader, split) == [b"1", b"2"]
    assert between.count(Command.SUBSCRIBE) == planned + 1


def test_read_from_silent_broker_times_out(broker: Broker, topic: NewTopic, publish: Publish, relay: NewRelay) -> None:
    name = topic()
    publish(name, *([f"{batch}" * 1000] * 500 for batch in range(20)))
    between = relay(broker.service_url)
    options = {"service.url": between.service_url, "topic": name, "columns": "value", "pollTimeoutMs": "2000"}
    options.update({"pulsar.reader.receiverQueueSize": "100", "pulsar.client.operationTimeoutMs": "2000"})
    reader = PulsarBatchReader(ReadOptions.parse(options))
    (split,) = reader.partitions()
    batches = reader.read(split)
    next(batches)
    between.stall()
    started = time.monotonic()
    with pytest.raises(Timeout):
        list(batches)
    assert time.monotonic() - started < 20


def test_read_abandoned_closes_its_client(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, *(["x" * 1000] * 20 for _ in range(20)))
    reader = reader_of(broker, name)
    (split,) = reader.partitions()
    batches = reader.read(split)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    broker.wait_unsubscribed(name)


def test_partitions_pickled_hold_no_secret(
    broker: Broker, topic: NewTopic, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_TEST_CREDENTIALS", "s3cret-value")
    name = topic()
    publish(name, ["1"])
    reader = reader_of(broker, name, credentialsRef="env:PULSAR_TEST_CREDENTIALS")
    (split,) = reader.partitions()
    list(reader.read(split))
    assert b"s3cret" not in cloudpickle.dumps((reader, split))


@pytest.mark.proves("S16")
def test_read_compacted_returns_newest_of_each_key(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    ids = []
    for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", ""), ("a", "3")):
        ids += publish(name, [value], partition_key=key)
    compact(broker, name)
    assert values(reader_of(broker, name, readCompacted="true")) == [b"1", b"3"]
    behind = f'{{"{name}": "{ids[0].ledger_id()}:4"}}'
    assert values(reader_of(broker, name, readCompacted="true", startingOffsets=behind)) == [b"3"]
    assert values(reader_of(broker, name)) == [b"1", b"1", b"2", b"1", b"", b"3"]


PREFIX = "persistent://public/default/t-partition-"


def test_splits_of_ranges_pickle() -> None:
    ranges = [Range(f"{PREFIX}{i}", Position(1, 0), Position(1, end)) for i, end in enumerate((5, 0, 7))]
    splits = make_splits(ranges)
    assert [split.ranges for split in splits] == [(ranges[0],), (ranges[2],)]
    assert [split.value for split in splits] == [f"{PREFIX}0", f"{PREFIX}2"]
    assert [pickle.loads(pickle.dumps(split)).ranges for split in splits] == [(ranges[0],), (ranges[2],)]
    assert repr(splits[0]) == f"Split({PREFIX}0 [1:0, 1:5))"


def test_splits_of_empty_plan_are_none() -> None:
    assert make_splits([]) == []


def test_reader_logs_its_codec_once(caplog: pytest.LogCaptureFixture) -> None:
    log_codec.cache_clear()
    with caplog.at_level(logging.INFO, "pyspark_pulsar"):
        log_codec()
        log_codec()
    assert caplog.messages == [f"reading with the {codec()} codec"]
