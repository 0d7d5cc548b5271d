"""The streaming reader in this process, against a real broker: offsets, limits, frozen ends, loss and the cursor."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

import pulsar_native
from pulsar_native import MessageId
from pulsar_native.exceptions import ConnectError, InvalidConfiguration, TopicNotFound
from pyspark_pulsar import stream_reader
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.offsets import Probe
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position
from pyspark_pulsar.stream_reader import PulsarStreamReader
from support.brokers import Broker, NewTopic
from support.publishing import Publish
from support.relay import TO_BROKER, Command, NewRelay
from support.until import wait_until

Offset = dict[str, Any]
NewReader = Callable[..., PulsarStreamReader]


@pytest.fixture
def reader(broker: Broker) -> Iterator[NewReader]:
    """Give what makes the reader that Spark would make for options; they are stopped at the end."""
    made: list[PulsarStreamReader] = []

    def make(topic: str | None, **options: str) -> PulsarStreamReader:
        given = {"service.url": broker.service_url, "columns": "value", "startingOffsets": "earliest"}
        if topic is not None:
            given["topic"] = topic
        given.update({name.replace("_", "."): value for name, value in options.items()})
        made.append(PulsarStreamReader(ReadOptions.parse(given, streaming=True)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def values(reader: PulsarStreamReader, start: Offset, end: Offset) -> list[str]:
    """Return the values between two offsets, as the tasks of a micro-batch would read them."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    batches = [batch for split in reader.partitions(start, end) for batch in reader.read(split)]
    return [value.decode() for batch in batches for value in batch["value"].to_pylist()]


def trigger(reader: PulsarStreamReader, start: Offset, limit: ReadLimit | None = None) -> tuple[list[str], Offset]:
    """Return the values of the next micro-batch and its end."""
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return values(reader, start, end), end


def text_of(message_id: MessageId) -> str:
    """Return the position of a message as a person writes it."""
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.batch_index()}"


def test_stream_small_topic_partitions_share_tasks(reader: NewReader, topic: NewTopic, publish: Publish) -> None:
    name = topic(partitions=66)
    one = reader(name)
    start = one.initialOffset()
    for index in range(66):
        publish(f"{name}-partition-{index}", [str(index)])
    end = one.latestOffset(start, ReadAllAvailable())
    assert len(one.partitions(start, end)) == 33
    assert repr(one.partitions(start, end)) == repr(one.partitions(start, end)), "a repeated one has the same tasks"
    assert sorted(map(int, values(one, start, end))) == list(range(66))


def test_offset_is_readable_json_of_positions(reader: NewReader, topic: NewTopic, publish: Publish) -> None:
    name = topic(partitions=2)
    ids = publish(f"{name}-partition-1", ["a", "b"], ["c"])
    stream = reader(name)
    start = stream.initialOffset()
    assert start == {
        "version": 1,
        "positions": {f"{name}-partition-0": "earliest", f"{name}-partition-1": f"{ids[0].ledger_id()}:0"},
    }
    found, end = trigger(stream, start)
    assert found == ["a", "b", "c"]
    assert end["positions"] == {f"{name}-partition-0": "earliest", f"{name}-partition-1": f"{ids[0].ledger_id()}:2"}
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    publish(f"{name}-partition-0", ["d"])
    assert trigger(stream, end)[0] == ["d"]


def test_start_at_latest_id_and_time(reader: NewReader, topic: NewTopic, publish: Publish, client: Any) -> None:
    name = topic()
    ids = publish(name, ["a", "b"], ["c"])
    latest = reader(name, startingOffsets="latest")
    by_default = PulsarStreamReader(ReadOptions.parse({"service.url": "pulsar://h", "topic": name}, streaming=True))
    assert by_default._options.starting_offsets.default == "latest"
    assert trigger(latest, latest.initialOffset())[0] == []
    at_id = reader(name, startingOffsets=json.dumps({name: text_of(ids[1])}))
    assert trigger(at_id, at_id.initialOffset())[0] == ["b", "c"]
    with client.create_reader(name, ids[2], start_message_id_inclusive=True) as third:
        published = third.read_next(10_000).publish_timestamp()
    publish(name, ["d"])
    at_time = reader(name, startingTime=str(published), timeSlackMs="0")
    assert trigger(at_time, at_time.initialOffset())[0][:1] == ["c"]
    start = latest.initialOffset()
    publish(name, ["e"])
    assert trigger(latest, start)[0] == ["e"]


@pytest.mark.parametrize("limit", [{}, {"maxMessagesPerTrigger": "1"}], ids=["unlimited", "limited"])
@pytest.mark.parametrize("later", [True, False], ids=["later", "none"])
def test_starting_time_is_that_of_the_checkpoint(
    reader: NewReader, topic: NewTopic, client: Any, later: bool, limit: dict[str, str]
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    producer.send(b"too early")
    time.sleep(0.02)
    (first, *_) = (producer.send(value) for value in (b"a", b"b"))
    with client.create_reader(name, first, start_message_id_inclusive=True) as found:
        began = found.read_next(10_000).publish_timestamp()
    # The slack puts the start position before the message that is too early.
    query = reader(name, startingTime=str(began), **limit)
    start = query.initialOffset()
    assert start["startingTime"] == began
    changed = {"startingTime": str(began + 10**9)} if later else {}
    restarted, offset = reader(name, **changed, **limit), start
    rows: list[str] = []
    for _ in range(3):
        more, end = trigger(restarted, offset)
        assert values(query, offset, end) == more, "a repeated micro-batch has the same rows"
        assert end["startingTime"] == began
        rows, offset = rows + more, end
    assert rows == ["a", "b"]


def test_offset_of_earlier_version_has_no_time(reader: NewReader, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, ["a"])
    start = {"version": 1, "positions": {name: "earliest"}}
    assert trigger(reader(name, startingTime="4102444800000"), start)[0] == ["a"]


@pytest.mark.proves("S7")
def test_max_messages_bounds_each_trigger_exactly(reader: NewReader, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    numbers = [str(number) for number in range(25)]
    publish(name, numbers[:10], numbers[10:12], numbers[12:])
    stream = reader(name, maxMessagesPerTrigger="7")
    assert stream.getDefaultReadLimit() == ReadMaxRows(7)
    offset, found = stream.initialOffset(), []
    for _ in range(5):
        values_of, offset = trigger(stream, offset)
        found.append(values_of)
    assert found == [numbers[:7], numbers[7:14], numbers[14:21], numbers[21:], []]
    assert trigger(stream, stream.initialOffset(), ReadAllAvailable())[0] == numbers, "Trigger.Once takes everything"


@pytest.mark.proves("S7")
def test_limits_are_shared_by_the_partitions(reader: NewReader, topic: NewTopic, publish: Publish) -> None:
    name = topic(partitions=3)
    for partition, count in enumerate((2, 20, 20)):
        publish(f"{name}-partition-{partition}", [f"{partition}-{number}" for number in range(count)])
    stream = reader(name, maxMessagesPerTrigger="12")
    found, end = trigger(stream, stream.initialOffset())
    counts = [sum(value.startswith(f"{partition}-") for value in found) for partition in range(3)]
    assert counts == [2, 5, 5]
    rest: list[str] = []
    for _ in range(4):
        more, end = trigger(stream, end)
        rest += more
    assert len(found) + len(rest) == len(set(found + rest)) == 42
    few = reader(name, maxMessagesPerTrigger="1")
    offset, seen = few.initialOffset(), ""
    for _ in range(3):
        (one,), offset = trigger(few, offset)
        seen += one[0]
    assert sorted(seen) == ["0", "1", "2"], "each partition has its turn"


@pytest.mark.proves("S7", "D8")
def test_max_bytes_counts_values_and_lets_one_pass(reader: NewReader, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, ["x" * 40, "y" * 40], ["z" * 500], ["a" * 10] * 12)
    stream = reader(name, maxBytesPerTrigger="100")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(100)
    offset, sizes = stream.initialOffset(), []
    for _ in range(5):
        found, offset = trigger(stream, offset)
        sizes.append([len(value) for value in found])
    assert sizes == [[40, 40], [500], [10] * 10, [10] * 2, []]


@pytest.mark.proves("S7")
@pytest.mark.parametrize("limit", [{"maxMessagesPerTrigger": "1"}, {"maxBytesPerTrigger": "1000"}])
def test_limits_bound_triggers_of_chunked_messages(
    broker: Broker, reader: NewReader, topic: NewTopic, client: Any, relay: NewRelay, limit: dict[str, str]
) -> None:
    name, between = topic(), relay(broker.service_url)
    chunking = {"chunking_enabled": True, "batching_enabled": False, "chunk_max_message_size": 1000}
    with pulsar_native.Client(between.service_url) as other:
        interleaved, producer = other.create_producer(name, **chunking), client.create_producer(name, **chunking)
        ids = [producer.send(letter * 2500) for letter in (b"A", b"B")]
        between.let_pass(Command.SEND, TO_BROKER)
        between.hold(Command.SEND, TO_BROKER)
        done: Queue[Any] = Queue()
        interleaved.send_async(b"C" * 2500, lambda result, message_id: done.put(message_id))
        # The broker has its first chunk.
        between.wait_for(Command.SEND_RECEIPT)
        ids.append(producer.send(b"D" * 2500))
        between.release()
        ids.append(done.get(timeout=10))
        ids += [producer.send(b"E" * 2500), producer.send(b"end")]
    assert [each.entry_id() for each in ids] == [2, 5, 9, 11, 14, 15]
    stream = reader(name, **limit)
    offset, found, ends = stream.initialOffset(), [], []
    for _ in range(7):
        values_of, offset = trigger(stream, offset)
        found.append([value[:1] for value in values_of])
        ends.append(int(offset["positions"][name].split(":")[1]))
    assert found == [["A"], ["B"], ["D"], ["C"], ["E"], ["e"], []]
    # Before the first chunk of the next message, but for C, which began before D.
    assert ends == [3, 7, 10, 12, 15, 16, 16]


@pytest.mark.proves("S8")
def test_available_now_is_frozen_at_the_start(
    reader: NewReader, broker: Broker, topic: NewTopic, publish: Publish
) -> None:
    name = topic(partitions=1)
    publish(f"{name}-partition-0", ["a", "b"], ["c"])
    stream = reader(name, maxMessagesPerTrigger="2", pulsar_reader_autoUpdatePartitionsIntervalSeconds="1")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    publish(f"{name}-partition-0", ["too late"])
    broker.admin("POST", f"{name.replace('://', '/')}/partitions", 2)
    publish(f"{name}-partition-1", ["too late, too"])
    found: list[str] = []
    offset = start
    for _ in range(4):
        more, offset = trigger(stream, offset)
        found += more
    assert found == ["a", "b", "c"]
    assert stream.latestOffset(offset, stream.getDefaultReadLimit()) == offset
    again = reader(name)
    again.prepareForTriggerAvailableNow()
    assert sorted(trigger(again, offset)[0]) == ["too late", "too late, too"]


def test_added_partition_is_read_from_its_beginning(
    reader: NewReader, broker: Broker, topic: NewTopic, publish: Publish
) -> None:
    name = topic(partitions=1)
    publish(f"{name}-partition-0", ["a"])
    stream = reader(name, startingOffsets="latest", pulsar_reader_autoUpdatePartitionsIntervalSeconds="1")
    offset = stream.initialOffset()
    broker.admin("POST", f"{name.replace('://', '/')}/partitions", 2)
    publish(f"{name}-partition-1", ["b"])
    found: list[str] = []

    def reads_it() -> bool:
        nonlocal offset
        more, offset = trigger(stream, offset)
        found.extend(more)
        return bool(found)

    wait_until(reads_it, 20)
    assert found == ["b"]
    assert set(offset["positions"]) == {f"{name}-partition-0", f"{name}-partition-1"}


@pytest.mark.proves("S9")
def test_loss_between_offsets_fails_in_task_and_plan(
    reader: NewReader, publish: Publish, trimmable: str, trim: Callable[[str], MessageId]
) -> None:
    name = f"persistent://{trimmable}/stream-loss"
    publish(name, ["a"], ["b"])
    stream = reader(name)
    start = stream.initialOffset()
    _, end = trigger(stream, start)
    trim(name)
    # A query that goes on finds it when it reads, a restarted one when it plans.
    splits = stream.partitions(start, end)
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        list(stream.read(splits[0]))
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        reader(name).partitions(start, end)
    assert trigger(reader(name, failOnDataLoss="false"), start)[0] == ["kept"]


@pytest.mark.proves("S9")
def test_first_messages_of_topic_begin_in_end_offset(
    reader: NewReader, broker: Broker, publish: Publish, trimmable: str, trim: Callable[[str], MessageId]
) -> None:
    name = f"persistent://{trimmable}/stream-begin"
    broker.admin("PUT", name.replace("://", "/"))
    stream = reader(name)
    start = stream.initialOffset()
    assert start["positions"] == {name: "earliest"}
    ledger = publish(name, ["a"], ["b"])[0].ledger_id()
    found, end = trigger(stream, start)
    assert found == ["a", "b"]
    assert end == {"version": 1, "positions": {name: f"{ledger}:2"}, "begins": {name: f"{ledger}:0"}}
    assert stream.latestOffset(end, ReadAllAvailable()) == end, "equal, or Spark plans an empty micro-batch"
    earlier = {"version": 1, "positions": end["positions"]}
    assert values(reader(name), start, earlier) == ["a", "b"], "an offset of an earlier version"
    publish(name, ["c"])
    assert trigger(stream, end) == (["c"], {"version": 1, "positions": {name: f"{ledger}:3"}})
    kept = trim(name)
    partly = {**end, "positions": {name: f"{kept.ledger_id()}:1"}}
    for repeated in (end, partly):
        with pytest.raises(DataLoss, match=rf"Messages from {ledger}:0 on are gone"):
            reader(name).partitions(start, repeated)
    lenient = reader(name, failOnDataLoss="false")
    assert (values(lenient, start, end), values(lenient, start, partly)) == ([], ["kept"])


@pytest.mark.parametrize("frozen", [False, True], ids=["unbounded", "available_now"])
def test_first_messages_within_limits_repeat_exactly(
    reader: NewReader, topic: NewTopic, publish: Publish, frozen: bool
) -> None:
    name = topic(partitions=2)
    stream = reader(name, maxMessagesPerTrigger="1")
    start = stream.initialOffset()
    begins = {}
    for partition in range(2):
        (first, _) = publish(f"{name}-partition-{partition}", [f"{partition}a", f"{partition}b"])
        begins[f"{name}-partition-{partition}"] = f"{first.ledger_id()}:0"
    if frozen:
        stream.prepareForTriggerAvailableNow()
    found: list[str] = []
    offset = start
    for number in range(5):
        more, end = trigger(stream, offset)
        assert values(reader(name), offset, end) == more
        assert end.get("begins") == (begins if number == 0 else None)
        found, offset = found + more, end
    assert sorted(found) == ["0a", "0b", "1a", "1b"] and more == []


@pytest.mark.parametrize("partitions", [0, 1], ids=["plain", "partitioned"])
def test_topic_deleted_in_unfinished_batch_is_loss(
    reader: NewReader,
    broker: Broker,
    publish: Publish,
    namespace: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
    partitions: int,
) -> None:
    space = namespace()
    kept, gone = f"persistent://{space}/kept", f"persistent://{space}/gone"
    if partitions:
        broker.admin("PUT", f"persistent/{space}/gone/partitions", partitions)
    publish(kept, ["a"])
    publish(gone, ["b"])
    first = reader(None, topics=f"{kept},{gone}")
    known: Offset = first.initialOffset()
    unknown: Offset = {"version": 1, "positions": {}}
    found, end = trigger(first, unknown)
    assert sorted(found) == ["a", "b"] and len(end["begins"]) == 2
    first.stop()
    path = f"persistent/{space}/gone" + ("/partitions" if partitions else "")
    broker.admin("DELETE", f"{path}?force=true")
    earlier = {"version": 1, "positions": end["positions"]}
    for start, last in ((known, end), (unknown, end), (unknown, earlier)):
        with pytest.raises(DataLoss, match=r"gone.* was deleted after its messages were planned"):
            reader(kept).partitions(start, last)
        caplog.clear()
        assert values(reader(kept, failOnDataLoss="false"), start, last) == ["a"]
        assert "they are left out" in caplog.text
    both = reader(None, topics=f"{kept},{gone}")
    both.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=r"gone.* was deleted after its messages were planned"):
        both.partitions(known, end)
    for names in (f"{kept},{gone}", gone):
        with pytest.raises(DataLoss, match=r"gone.* was read and is no longer there"):
            reader(None, topics=names).latestOffset(end, ReadAllAvailable())
        for start in (unknown, None):
            with pytest.raises(TopicNotFound):
                reader(None, topics=names).latestOffset(start, ReadAllAvailable())
        with pytest.raises(TopicNotFound):
            reader(None, topics=names).initialOffset()
    assert broker.admin("GET", f"persistent/{space}") == [kept], "no reader has created it"


def test_deleted_topic_of_a_pattern_is_data_loss(
    reader: NewReader, broker: Broker, publish: Publish, namespace: Callable[[], str]
) -> None:
    space = namespace()
    for one in ("t-1", "t-2"):
        publish(f"persistent://{space}/{one}", [one])
    options = {"topicsPattern": f"{space}/t-."}
    stream = reader(None, **options)
    found, end = trigger(stream, stream.initialOffset())
    assert sorted(found) == ["t-1", "t-2"]
    stream.stop()
    broker.admin("DELETE", f"persistent/{space}/t-2?force=true")
    with pytest.raises(DataLoss, match=r"t-2 .*no longer there"):
        reader(None, **options).latestOffset(end, ReadAllAvailable())
    frozen = reader(None, **options)
    frozen.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=r"t-2 .*no longer there"):
        frozen.latestOffset(end, ReadAllAvailable())
    lenient = reader(None, failOnDataLoss="false", **options)
    assert set(lenient.latestOffset(end, ReadAllAvailable())["positions"]) == {f"persistent://{space}/t-1"}


def test_topic_left_out_of_options_is_data_loss(reader: NewReader, topic: NewTopic, publish: Publish) -> None:
    one, two = topic("one"), topic("two")
    for name in (one, two):
        publish(name, ["a"])
    first = reader(None, topics=f"{one},{two}")
    end = trigger(first, first.initialOffset())[1]
    with pytest.raises(DataLoss, match=rf"{two} .* or the options do not name it any more: begin a new checkpoint"):
        reader(one).latestOffset(end, ReadAllAvailable())
    lenient = reader(one, failOnDataLoss="false")
    assert set(lenient.latestOffset(end, ReadAllAvailable())["positions"]) == {one}


@pytest.mark.parametrize("frozen", [False, True], ids=["unbounded", "available_now"])
def test_deleted_topic_of_a_list_is_left_out(
    reader: NewReader, broker: Broker, publish: Publish, namespace: Callable[[], str], frozen: bool
) -> None:
    space = namespace()
    names = [f"persistent://{space}/t-{number}" for number in (1, 2)]
    for name in names:
        publish(name, ["a"])
    options = {"topics": ",".join(names), "failOnDataLoss": "false"}
    first = reader(None, **options)
    start = trigger(first, first.initialOffset())[1]
    first.stop()
    broker.admin("DELETE", f"{names[1].replace('://', '/')}?force=true")
    publish(names[0], ["b"])
    stream = reader(None, **options)
    if frozen:
        stream.prepareForTriggerAvailableNow()
    assert trigger(stream, start)[0] == ["b"]
    with pytest.raises(TopicNotFound):
        stream.initialOffset()
    # Its reader would connect again, and create the topic that is deleted here.
    stream.stop()
    broker.admin("DELETE", f"{names[0].replace('://', '/')}?force=true")
    with pytest.raises(TopicNotFound):
        reader(None, **options).latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("frozen", [False, True], ids=["unbounded", "available_now"])
def test_checkpoint_behind_topic_end_is_data_loss(
    reader: NewReader, topic: NewTopic, publish: Publish, frozen: bool
) -> None:
    name = topic()
    (first,) = publish(name, ["a"])
    behind = {"version": 1, "positions": {name: f"{first.ledger_id() + 1_000_000}:1"}}
    stream, lenient = reader(name), reader(name, failOnDataLoss="false")
    if frozen:
        stream.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=rf"the topic ends at {first.ledger_id()}:1: it was made again"):
        stream.latestOffset(behind, ReadAllAvailable())
    assert lenient.latestOffset(behind, ReadAllAvailable()) == behind


def test_start_later_than_frozen_end_is_no_loss(reader: NewReader, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, ["a"])
    stream = reader(name, startingOffsets="latest")
    stream.prepareForTriggerAvailableNow()
    publish(name, ["b"])
    start = stream.initialOffset()
    assert trigger(stream, start) == ([], start)


def test_partition_after_frozen_end_is_not_started(
    reader: NewReader, broker: Broker, topic: NewTopic, publish: Publish
) -> None:
    name = topic(partitions=1)
    stream = reader(name, pulsar_reader_autoUpdatePartitionsIntervalSeconds="1")
    stream.prepareForTriggerAvailableNow()
    broker.admin("POST", f"{name.replace('://', '/')}/partitions", 2)
    publish(f"{name}-partition-1", ["too late"])
    assert stream._planner is not None
    stream._planner._looked_at = float("-inf")
    start = stream.initialOffset()
    assert trigger(stream, start) == ([], start)


@pytest.mark.proves("S13", "D6")
def test_nothing_is_left_without_a_named_cursor(
    reader: NewReader, broker: Broker, topic: NewTopic, publish: Publish
) -> None:
    name = topic()
    publish(name, ["a"])
    stream = reader(name)
    _, end = trigger(stream, stream.initialOffset())
    stream.commit(end)
    stream.stop()
    broker.wait_unsubscribed(name)


def mark_delete(broker: Broker, name: str, cursor: str) -> str:
    """Return the position up to which a subscription has acknowledged."""
    stats = broker.admin("GET", f"{name.replace('://', '/')}/internalStats")
    assert isinstance(stats, dict)
    return str(stats["cursors"][cursor]["markDeletePosition"])


@pytest.mark.proves("S13", "D6")
def test_named_cursor_keeps_unread_messages(
    reader: NewReader, broker: Broker, topic: NewTopic, publish: Publish
) -> None:
    name = topic()
    ids = publish(name, ["a", "b"], ["c", "d"], ["e"])
    ledger = ids[0].ledger_id()
    stream = reader(name, predefinedSubscription="loads", maxMessagesPerTrigger="3")
    start = stream.initialOffset()
    assert mark_delete(broker, name, "loads") == f"{ledger}:-1"
    _, first = trigger(stream, start)
    assert first["positions"][name] == f"{ledger}:1:1"
    assert mark_delete(broker, name, "loads") == f"{ledger}:-1", "a batch that was only planned moves nothing"
    found, second = trigger(stream, first)
    stream.commit(first)
    wait_until(lambda: mark_delete(broker, name, "loads") == f"{ledger}:0", 5)
    assert found == ["d", "e"], "the entry read in part is kept"
    stream.commit(second)
    wait_until(lambda: mark_delete(broker, name, "loads") == f"{ledger}:1", 5)
    stream.stop()
    assert broker.admin("GET", f"{name.replace('://', '/')}/subscriptions") == ["loads"]
    again = reader(name, predefinedSubscription="loads")
    publish(name, ["f"])
    assert trigger(again, second)[0] == ["f"]


@pytest.mark.proves("S13", "D6")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_named_cursor_keeps_last_read_message(
    reader: NewReader, broker: Broker, publish: Publish, trimmable: str, count: int
) -> None:
    name = f"persistent://{trimmable}/stream-kept"
    path = name.replace("://", "/")
    broker.admin("PUT", path)
    stream = reader(name, predefinedSubscription="loads", admin_url=broker.admin_url)
    start = stream.initialOffset()
    (first,) = publish(name, ["first"])
    _, middle = trigger(stream, start)
    stream.commit(middle)
    broker.admin("PUT", f"{path}/unload")
    ledger = publish(name, *([str(number)] for number in range(count)))[0].ledger_id()
    _, end = trigger(stream, middle)
    stream.commit(end)
    done = f"{ledger}:{count - 2}" if count > 1 else f"{first.ledger_id()}:0"
    wait_until(lambda: mark_delete(broker, name, "loads") == done, 5)
    stream.stop()
    broker.admin("PUT", f"{path}/unload")
    publish(name, ["next"])

    def trimmed() -> list[int]:
        broker.admin("POST", f"{path}/trim")
        stats = broker.admin("GET", f"{path}/internalStats")
        assert isinstance(stats, dict)
        ledgers = [each["ledgerId"] for each in stats["ledgers"]]
        return ledgers if ledgers[0] >= ledger else []

    assert wait_until(trimmed, 20)[0] == ledger
    again = reader(name, predefinedSubscription="loads", admin_url=broker.admin_url)
    assert trigger(again, end)[0] == ["next"]


@pytest.mark.proves("S9")
@pytest.mark.parametrize("frozen", [False, True], ids=["unbounded", "available_now"])
def test_emptied_topic_is_data_loss_with_admin_url(
    reader: NewReader,
    broker: Broker,
    publish: Publish,
    trimmable: str,
    empty: Callable[[str], None],
    frozen: bool,
) -> None:
    name = f"persistent://{trimmable}/stream-emptied"
    admin = {"admin_url": broker.admin_url}
    publish(name, ["a"], ["b"])
    first = reader(name)
    end = trigger(first, first.initialOffset())[1]
    publish(name, ["c"])
    first.stop()
    empty(name)
    stream, lenient = reader(name, **admin), reader(name, failOnDataLoss="false", **admin)
    if frozen:
        stream.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=r"messages from \d+:2 on are gone: the topic holds none"):
        stream.latestOffset(end, ReadAllAvailable())
    for other in (lenient, reader(name)):
        assert other.latestOffset(end, ReadAllAvailable()) == end
    publish(name, ["d"])
    with pytest.raises(DataLoss, match="on are gone: the first one still there"):
        trigger(reader(name), end)


def test_emptied_topic_without_loss_has_no_error(
    reader: NewReader, broker: Broker, publish: Publish, trimmable: str, empty: Callable[[str], None]
) -> None:
    name = f"persistent://{trimmable}/stream-read"
    publish(name, ["a"], ["b"])
    stream = reader(name, admin_url=broker.admin_url)
    end = trigger(stream, stream.initialOffset())[1]
    empty(name)
    assert reader(name, admin_url=broker.admin_url).latestOffset(end, ReadAllAvailable()) == end


def test_emptied_topic_is_looked_at_once_a_minute(
    reader: NewReader, broker: Broker, publish: Publish, trimmable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"persistent://{trimmable}/stream-idle"
    broker.admin("PUT", name.replace("://", "/"))
    asked: list[Position] = []

    def unknown(topic: str, start: Position, probe: Probe) -> None:
        asked.append(start)
        raise ConnectError("the admin interface does not answer")

    monkeypatch.setattr(stream_reader, "check_emptied", unknown)
    stream = reader(name)
    end = {"version": 1, "positions": {name: "3:1"}}
    for _ in range(3):
        assert stream.latestOffset(end, ReadAllAvailable()) == end
    assert asked == [Position(3, 1)]
    monkeypatch.setattr(stream_reader, "_EMPTIED_SECONDS", 0.0)
    stream.latestOffset(end, ReadAllAvailable())
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"sourceVersion": 1}, "another source"),
        ({"version": 9, "positions": {}}, "version 9"),
        ({"version": 1}, "no positions"),
        ({"version": 1, "positions": {"t": "x"}}, "is not a position"),
        ({"version": 1, "positions": {}, "begins": ["t"]}, "no beginnings"),
        ({"version": 1, "positions": {}, "startingTime": "now"}, "no startingTime in milliseconds"),
        ({"version": 1, "positions": {}, "begins": {"t": "earliest"}}, "is not a position"),
    ],
)
def test_checkpoint_of_another_form_raises(reader: NewReader, topic: NewTopic, offset: Offset, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        reader(topic()).latestOffset(offset, ReadAllAvailable())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingTime": "5"}, "a stream has no end"),
        ({"endingOffsets": "latest"}, "availableNow"),
        ({"minPartitions": "2"}, "the tasks of a micro-batch depend on its offsets alone"),
        ({"pushDownPredicate": "true"}, "Spark pushes no filters into a stream"),
        ({"maxMessagesPerTrigger": "0"}, "at least 1"),
        ({"maxBytesPerTrigger": "many"}, "whole number"),
        ({"startingOffsets": "now"}, "'earliest' or 'latest' or JSON"),
        ({"maxMessagesPerTriger": "5"}, "did you mean maxMessagesPerTrigger"),
    ],
)
def test_wrong_stream_option_names_the_fix(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        ReadOptions.parse({"service.url": "pulsar://h", "topic": "t", **options}, streaming=True)


@pytest.mark.parametrize("option", ["maxMessagesPerTrigger", "maxBytesPerTrigger"])
def test_limit_is_refused_by_spark_without_limits(
    reader: NewReader, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("pyspark_pulsar.stream_reader._HAS_LIMITS", False)
    with pytest.raises(InvalidConfiguration, match=r"need Spark 4\.2 or newer"):
        reader("t", **{option: "100"})


def test_stream_of_spark_without_limits_reads_all(
    reader: NewReader, topic: NewTopic, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_pulsar.stream_reader._HAS_LIMITS", False)
    name = topic()
    publish(name, ["a", "b", "c"])
    stream = reader(name)
    # Older versions pass neither the start nor a limit.
    assert values(stream, stream.initialOffset(), stream.latestOffset()) == ["a", "b", "c"]
