"""Producer of the sync API on a fake broker: when a call blocks, what it raises, and what a callback is told."""

from __future__ import annotations

import base64
import io
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from pulsar_native import Client, CompressionType, MessageId, Result
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.engine.transport import Transport
from pulsar_native.exceptions import (
    AlreadyClosed,
    BulkSendError,
    InvalidConfiguration,
    InvalidMessage,
    OperationNotSupported,
    ProducerQueueIsFull,
    Timeout,
)
from pulsar_native.protocol.producer import ProducerCore
from pulsar_native.schema import StringSchema
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.wire.codec import parse_single, split_batch
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.encodes_to import EncodesTo, ReadsFiles
from support.fake_broker import FakeBroker, Seen, receipt, swallow
from support.until import wait_until

TOPIC = "persistent://public/default/t"


@pytest.fixture
def client(fake: FakeBroker) -> Iterator[Client]:
    """Give a client of the fake broker."""
    with Client(fake.url, operation_timeout_seconds=5) as made:
        yield made


def answer(seen: Seen, entry: int) -> None:
    """Send the receipt of an entry that the fake broker has kept to itself."""
    seen.peer.send(receipt(seen.command.send, entry))


def test_send_returns_id_after_the_receipt(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = client.create_producer("t")
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(producer.send, b"x")
        (seen,) = fake.wait(Kind.SEND)
        assert not sending.done()
        answer(seen, 8)
        message_id = sending.result(10)
    assert (message_id.ledger_id(), message_id.entry_id(), message_id.topic_name()) == (1, 8, TOPIC)
    assert producer.last_sequence_id() == 0


def test_send_flushes_the_open_batch(fake: FakeBroker, client: Client) -> None:
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    told: list[tuple[Result, MessageId]] = []
    producer.send_async(b"first", lambda result, place: told.append((result, place)))
    place = producer.send(b"second")
    assert (place.batch_index(), place.batch_size()) == (1, 2)
    producer.flush()
    assert [(result, at.batch_index()) for result, at in told] == [(Result.Ok, 0)]
    (seen,) = fake.seen(Kind.SEND)
    entry = parse_entry(seen.payload)
    assert [bytes(entry.body[a:b]) for _, a, b in split_batch(entry.body, 2)] == [b"first", b"second"]


def test_send_options_reach_the_entry(fake: FakeBroker, client: Client) -> None:
    producer = client.create_producer("t", batching_enabled=False, compression_type=CompressionType.LZ4)
    producer.send(
        b"x" * 1000, properties={"a": "1"}, partition_key="k", ordering_key="o", sequence_id=17, event_timestamp=5
    )
    (seen,) = fake.seen(Kind.SEND)
    found = parse_entry(seen.payload).metadata
    assert {pair.key: pair.value for pair in found.properties} == {"a": "1"}
    assert (found.partition_key, found.ordering_key, found.sequence_id, found.event_time) == ("k", b"o", 17, 5)
    assert found.uncompressed_size == 1000 > len(parse_entry(seen.payload).body)


def test_sequence_id_zero_means_none(fake: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    producer = client.create_producer("t", producer_name="p", initial_sequence_id=0)
    for _ in range(2):
        producer.send(b"x", sequence_id=0)
        producer.send_async(b"x", None, sequence_id=0)
    producer.flush()
    found = [parse_entry(each.payload).metadata.sequence_id for each in fake.seen(Kind.SEND)]
    assert found == [0, 1, 2, 3]
    assert [record.message[:22] for record in caplog.records if record.levelname == "WARNING"] == [
        "sequence_id=0 means none"[:22]
    ]


def test_send_time_out_raises(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = client.create_producer("t", send_timeout_millis=50)
    with pytest.raises(Timeout, match="send_timeout_millis"):
        producer.send(b"x")


@pytest.mark.parametrize("options", [{"sequence_id": -1}, {"properties": {"a": 1}}, {"deliver_after": "1"}])
def test_send_bad_option_sends_nothing(fake: FakeBroker, client: Client, options: dict[str, object]) -> None:
    producer = client.create_producer("t")
    told: list[Result] = []
    with pytest.raises(InvalidMessage):
        producer.send(b"x", **options)  # type: ignore[call-overload]
    with pytest.raises(InvalidMessage):
        producer.send_async(b"x", lambda result, _place: told.append(result), **options)  # type: ignore[call-overload]
    producer.flush()
    assert not told and not fake.seen(Kind.SEND)


def test_send_of_bytes_like_payload_of_a_schema(fake: FakeBroker, client: Client) -> None:
    one_batch = {"batching_enabled": True, "batching_max_publish_delay_ms": 60_000}
    producer = client.create_producer("t", schema=EncodesTo(bytearray(b"xyz")), **one_batch)
    outcomes: list[Result] = []
    for _ in range(3):
        producer.send_async(b"", lambda result, _id: outcomes.append(result))
    producer.flush()
    assert outcomes == [Result.Ok] * 3 and bytes(parse_entry(fake.seen(Kind.SEND)[0].payload).body).count(b"xyz") == 3


CONTENTS = [b"first", b"second", b"array", b"third", b"x" * 150_000, b"last"]


def test_send_async_encodes_each_content_once(fake: FakeBroker, client: Client) -> None:
    producer: Any = client.create_producer("t", schema=ReadsFiles(), batching_enabled=True)
    outcomes: list[Result] = []
    for number, content in enumerate(CONTENTS):
        options = {"properties": {"a": "b"}} if number % 2 else {}
        producer.send_async(io.BytesIO(content), lambda result, _id: outcomes.append(result), **options)
    for _ in range(2):
        # Also where the fast path is open, after a message.
        with pytest.raises(OSError, match="gone"):
            producer.send_async(Mock(read=Mock(side_effect=[OSError("gone"), b"again"])), None)
        producer.send_async(io.BytesIO(b"y"), None)
    producer.flush()
    found = b"".join(bytes(parse_entry(seen.payload).body) for seen in fake.seen(Kind.SEND))
    assert outcomes == [Result.Ok] * len(CONTENTS)
    assert [found.count(content) for content in CONTENTS] == [1] * len(CONTENTS) and b"again" not in found


@pytest.mark.parametrize("schema", ["text", StringSchema], ids=["str", "class"])
def test_send_schema_of_wrong_type_refused(fake: FakeBroker, client: Client, schema: Any) -> None:
    producer = client.create_producer("t")
    with pytest.raises(InvalidConfiguration, match="schema must be a Schema, such as StringSchema"):
        producer.send("x", schema=schema)
    with pytest.raises(InvalidConfiguration, match="schema must be a Schema, such as StringSchema"):
        producer.send_async("x", lambda *_: None, schema=schema)
    producer.flush()
    assert not fake.seen(Kind.SEND)


def test_send_of_no_payload_of_a_schema_refused(fake: FakeBroker, client: Client) -> None:
    producer = client.create_producer("t", schema=EncodesTo("text"), batching_enabled=True)
    # A table's column is encoded by the same schema.
    table = pa.table({"value": [b""]})
    for call in (
        lambda: producer.send(b""),
        lambda: producer.send_async(b"", None),
        lambda: producer.send_async(b"", lambda *_: None, {"a": "1"}),
        lambda: producer.send_many([b""]),
        lambda: producer.send_table(table),
    ):
        with pytest.raises(InvalidRecord, match="The payload of EncodesTo must be bytes, not str"):
            call()
    producer.flush()
    assert not fake.seen(Kind.SEND)


@pytest.mark.parametrize("batching", [False, True])
def test_send_async_exit_in_callback_ends_nothing(fake: FakeBroker, client: Client, batching: bool) -> None:
    producer = client.create_producer("t", batching_enabled=batching)
    results: list[Result] = []
    producer.send_async(b"a", lambda *_: sys.exit(3))
    producer.send_async(b"b", lambda result, _id: results.append(result))
    producer.flush()
    assert results == [Result.Ok] and producer.send(b"c").ledger_id() >= 0


def test_send_async_callback_not_callable_refused(client: Client) -> None:
    with pytest.raises(InvalidConfiguration, match="callback must be callable or None, not int"):
        client.create_producer("t").send_async(b"x", 5)  # type: ignore[call-overload]


def test_send_async_full_queue_told_or_raised(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = client.create_producer("t", max_pending_messages=1, batching_enabled=False)
    told: list[tuple[Result, MessageId]] = []
    producer.send_async(b"x", None)
    producer.send_async(b"y", lambda result, place: told.append((result, place)))
    assert told == [(Result.ProducerQueueIsFull, MessageId())]
    with pytest.raises(ProducerQueueIsFull):
        producer.send_async(b"y", None)


def test_send_async_blocks_until_the_queue_has_room(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = client.create_producer("t", max_pending_messages=1, batching_enabled=False, block_if_queue_full=True)
    producer.send_async(b"x", None)
    (first,) = fake.wait(Kind.SEND)
    passed = threading.Event()

    def second() -> None:
        producer.send_async(b"y", None)
        passed.set()

    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(second)
        # The engine has answered a request since; the thread still waits.
        client.get_topic_partitions("t")
        assert not passed.is_set() and len(fake.seen(Kind.SEND)) == 1
        answer(first, 0)
        sending.result(10)
    answer(fake.wait(Kind.SEND, 2)[1], 1)
    producer.flush()


def test_send_waiting_for_memory_ends_at_close(fake: FakeBroker) -> None:
    fake.answers[Kind.SEND] = swallow
    with (
        Client(fake.url, memory_limit_bytes=1000, operation_timeout_seconds=2) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        other = client.create_producer("other", block_if_queue_full=True, batching_enabled=False)
        other.send_async(bytes(1000), None)
        producer = client.create_producer("t", block_if_queue_full=True, batching_enabled=False)
        sending = pool.submit(producer.send, bytes(1000))
        # The engine has answered a request since; the thread still waits.
        client.get_topic_partitions("t")
        assert not sending.done()
        producer.close()
        with pytest.raises(AlreadyClosed):
            sending.result(10)
        # Its memory is the other producer's still.
        assert len(fake.seen(Kind.SEND)) == 1
        other.close(timeout=0.1)


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("call", ["many", "table"])
def test_bulk_waiting_for_memory_ends_at_close(fake: FakeBroker, call: str, batching: bool) -> None:
    fake.answers[Kind.SEND] = swallow
    with Client(fake.url, memory_limit_bytes=1000, operation_timeout_seconds=2) as client:
        other = client.create_producer("other", batching_enabled=False, send_timeout_millis=0)
        other.send_async(bytes(1000), None)
        producer = client.create_producer("t", batching_enabled=batching, send_timeout_millis=0)
        with ThreadPoolExecutor(1) as pool:
            if call == "many":
                sending = pool.submit(producer.send_many, [b"x", b"y"])
            else:
                sending = pool.submit(producer.send_table, pa.table({"value": [b"x", b"y"]}))
            wait_until(lambda: other._inner.client.memory._waiters)
            producer.close()
            try:
                with pytest.raises(BulkSendError) as caught:
                    sending.result(10)
            finally:
                # It ends the call in any case.
                other.close(timeout=0)
        assert isinstance(caught.value.__cause__, AlreadyClosed) and caught.value.not_stored == (range(2),)
        assert len(fake.seen(Kind.SEND)) == 1


def test_callback_must_not_wait_for_itself(fake: FakeBroker, client: Client) -> None:
    producer = client.create_producer("t", batching_enabled=False)
    raised: list[type[Exception]] = []
    done = threading.Event()

    def callback(_result: Result, _place: MessageId) -> None:
        calls: list[Callable[[], object]] = [
            lambda: producer.send(b"y"),
            lambda: producer.send("y", schema=StringSchema()),
            lambda: producer.send_many([b"y"]),
            lambda: producer.send_async("z", None, schema=StringSchema()),
        ]
        for call in calls:
            try:
                call()
            except Exception as error:
                raised.append(type(error))
        done.set()

    fake.answers[Kind.SEND] = swallow
    producer.send_async(b"x", callback)
    answer(fake.wait(Kind.SEND)[0], 0)
    assert done.wait(10) and raised == [OperationNotSupported] * 4
    # Nothing was queued.
    assert len(fake.seen(Kind.SEND)) == 1 and producer.stats().pending_queue_size == 0


def test_flush_time_out_leaves_the_message(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = client.create_producer("t")
    told: list[Result] = []
    producer.send_async(b"x", lambda result, _place: told.append(result))
    with pytest.raises(Timeout, match=r"0\.01 s"):
        producer.flush(timeout=0.01)
    assert not told
    answer(fake.wait(Kind.SEND)[0], 4)
    producer.flush(timeout=10)
    assert told == [Result.Ok]


def test_flush_raises_the_last_messages_error(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = client.create_producer("t", send_timeout_millis=50)
    producer.send_async(b"x", None)
    with pytest.raises(Timeout, match="send_timeout_millis"):
        producer.flush()


def test_close_idle_runs_in_the_calling_thread(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.create_producer("t")
    for _ in range(3):
        producer.send(b"x")

    def fail(*_arguments: object) -> None:
        pytest.fail("the loop was asked")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", fail)
        report = producer.close()
    assert [each.sent for each in report.producers] == [0] and len(fake.seen(Kind.CLOSE_PRODUCER)) == 1
    for call in (producer.close, producer.flush, lambda: producer.send(b"x")):
        with pytest.raises(AlreadyClosed):
            call()


def test_send_many_tells_progress_and_ids(fake: FakeBroker, client: Client) -> None:
    producer = client.create_producer("t", batching_enabled=True, batching_max_messages=2)
    progress: list[int] = []
    ids = producer.send_many([b"%d" % number for number in range(5)], progress=progress.append)
    assert [(each.entry_id(), each.batch_index()) for each in ids][:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(ids) == 5 and progress == sorted(progress) and progress[-1] == 5


# ---- keys and properties ---------------------------------------------------------------------------------------------

ODD: list[tuple[dict[str, Any], str]] = [
    ({"properties": {"a": 1}}, "properties must be a mapping of str to str"),
    ({"properties": [("a", "b")]}, "properties must be a mapping of str to str"),
    ({"partition_key": 7}, "partition_key must be str or bytes"),
    ({"ordering_key": b"o"}, "ordering_key must be str"),
    ({"event_timestamp": -1}, "event_timestamp must be a non-negative int"),
    ({"event_timestamp": True}, "event_timestamp must be a non-negative int"),
    ({"partition_key": "\ud800"}, "cannot be written as UTF-8"),
    ({"properties": {"\ud800": ""}}, "cannot be written as UTF-8"),
    ({"ordering_key": "\ud800"}, "cannot be written as UTF-8"),
]


def test_send_async_described_messages_all_arrive_as_sent(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    given: list[dict[str, Any]] = [
        {"partition_key": "k", "properties": {"a": "b", "c": ""}, "event_timestamp": 5},
        {"properties": {}},
        {"partition_key": b"\x00\xff"},
        {"ordering_key": "o", "partition_key": ""},
        {"ordering_key": "\xe9"},
        {"properties": MappingProxyType({"x": "y"})},
        {"event_timestamp": 1 << 63},
        {},
    ] * 5
    # The last one closes the batch.
    producer = client.create_producer(
        "t", batching_enabled=True, batching_max_publish_delay_ms=60_000, batching_max_messages=len(given)
    )
    results: list[Result] = []
    for number, options in enumerate(given):
        producer.send_async(b"%d" % number, lambda result, _id: results.append(result), **options)
    (seen,) = fake.wait(Kind.SEND)
    entry = parse_entry(seen.payload)
    places = split_batch(entry.body, len(given))
    for number, ((meta, start, end), options) in enumerate(zip(places, given, strict=True)):
        single = parse_single(bytes(entry.body[meta:start]))
        assert bytes(entry.body[start:end]) == b"%d" % number
        assert {pair.key: pair.value for pair in single.properties} == dict(options.get("properties", {}))
        key = options.get("partition_key")
        assert single.HasField("partition_key") is (key is not None)
        assert single.partition_key_b64_encoded is isinstance(key, bytes)
        assert single.partition_key == (base64.b64encode(key).decode() if isinstance(key, bytes) else key or "")
        assert single.ordering_key == options.get("ordering_key", "").encode()
        assert single.event_time == options.get("event_timestamp", 0)
    answer(seen, 3)
    wait_until(lambda: len(results) == len(given))
    assert set(results) == {Result.Ok}


@pytest.mark.parametrize(("options", "text"), ODD)
def test_send_async_odd_fields_refused(fake: FakeBroker, client: Client, options: dict[str, Any], text: str) -> None:
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"x", None)
    with pytest.raises(InvalidMessage, match=text):
        producer.send_async(b"y", None, **options)
    producer.flush()
    assert [seen.command.send.num_messages for seen in fake.wait(Kind.SEND)] == [1]


def test_send_async_described_to_full_queue(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = client.create_producer("t", batching_enabled=True, max_pending_messages=3)
    for _ in range(3):
        producer.send_async(b"x", None, partition_key="k")
    with pytest.raises(ProducerQueueIsFull):
        producer.send_async(b"x", None, partition_key="k")


def contents(seen: Seen) -> list[bytes]:
    """Return the payloads of an entry."""
    entry = parse_entry(seen.payload)
    if not entry.is_batch:
        return [bytes(entry.body)]
    return [bytes(entry.body[start:stop]) for _, start, stop in split_batch(entry.body, entry.num_messages)]


# ---- exceptions of signal handlers -----------------------------------------------------------------------------------


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: str) -> list[str]:
    """Raise KeyboardInterrupt at the next call of a method by this thread, before or after it; return a list of it."""
    original, caller, done = getattr(owner, name), threading.get_ident(), list[str]()

    def method(*arguments: Any, **options: Any) -> Any:
        is_due = not done and threading.get_ident() == caller
        if is_due:
            done.append(name)
        if is_due and when == "before":
            raise KeyboardInterrupt
        result = original(*arguments, **options)
        if is_due:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, method)
    return done


@pytest.mark.parametrize("call", ["flush", "send"])
@pytest.mark.parametrize(
    ("owner", "name", "when"),
    [
        (ProducerCore, "_frame", "before"),
        (ProducerCore, "_close", "after"),
        (PartitionProducer, "_give_back_ahead", "before"),
        (Connection, "write", "before"),
        (Transport, "_send_now", "after"),
    ],
    ids=["encode", "queue", "reserve", "write", "written"],
)
def test_interrupted_call_loses_no_accepted_message(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: str, call: str
) -> None:
    with Client(fake.url, starting_backoff_interval_ms=1) as client:
        producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
        results: list[Result] = []
        for number in range(3):
            producer.send_async(b"%d" % number, lambda result, _: results.append(result))
        done = interrupt_once(monkeypatch, owner, name, when)
        with pytest.raises(KeyboardInterrupt):
            producer.flush() if call == "flush" else producer.send(b"interrupted")
        assert done
        producer.flush(timeout=5)
        assert results == [Result.Ok] * 3
    last = {message: place for place, message in enumerate(chain(*map(contents, fake.seen(Kind.SEND))))}
    # What was in doubt is sent again, with all that was behind it.
    accepted = [b"0", b"1", b"2"]
    assert sorted(accepted, key=lambda message: last[message]) == accepted
