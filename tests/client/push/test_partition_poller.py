"""Partition poller of a push consumer, with a scripted consumer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_native.crypto import EncryptionContext
from pulsar_native.enums import CompressionType, ConsumerCryptoFailureAction
from pulsar_native.exceptions import PulsarException, ReadError
from pulsar_native.message import Message
from pulsar_native.push.config import PushConsumerConfig, TagFilter
from pulsar_native.push.partition_poller import FAILED, THROTTLED, Counts, PartitionPoller
from pulsar_native.schema import AutoConsumeSchema
from pulsar_native.topic import TopicName
from support.until import until

TOPIC = TopicName.parse("t")
OTHER = TopicName.parse("other")
NON_PERSISTENT = TopicName.parse("non-persistent://public/default/t")


class Given:
    """A message as far as an poller looks at it."""

    def __init__(self, entry: int, tag: str = "a", *, wants_schema: bool = False) -> None:
        schema = SimpleNamespace(needs_writer=wants_schema, wanted=lambda version: version)
        self.entry = SimpleNamespace(ledger_id=1, entry_id=entry, schema=schema)
        self.batch_index = -1
        self.tag = tag
        self.encryption: EncryptionContext | None = None

    def __len__(self) -> int:
        return 10

    def properties(self) -> dict[str, str]:
        return {"TAGS": self.tag}

    def encryption_context(self) -> EncryptionContext | None:
        return self.encryption

    def message_id(self) -> str:
        return f"1:{self.entry.entry_id}"

    def schema_version(self) -> None:
        return None

    def schema_version_bytes(self) -> bytes:
        return b"1"


class Child:
    """A partition's consumer."""

    def __init__(self) -> None:
        self.topic = TOPIC
        self.attachment = 1
        self.connection: object = object()
        self.is_active: bool | None = None
        self.is_alive = True
        self.undecodable = SimpleNamespace(undecrypted_count=0)
        self.waiting: deque[Given | PulsarException] = deque()
        self.acknowledged: list[Any] = []

    def dequeue(self) -> Given | None:
        if not self.waiting:
            return None
        given = self.waiting.popleft()
        if isinstance(given, PulsarException):
            raise given
        return given

    def may_have_more(self) -> bool:
        return bool(self.waiting)

    def acknowledge_message(self, message: Any) -> None:
        self.acknowledged.append(message)

    def describe(self) -> str:
        return "Consumer"


def intake_of(
    child: Child,
    *,
    orderly: bool = False,
    broadcasting: bool = False,
    wake: Callable[[], None] = lambda: None,
    **settings: Any,
) -> PartitionPoller:
    source: Any = SimpleNamespace(topic=TOPIC, tags=TagFilter("a"))
    return PartitionPoller(
        source,
        child,  # type: ignore[arg-type]
        PushConsumerConfig(consumer_group="g", **settings),
        Counts(),
        orderly=orderly,
        broadcasting=broadcasting,
        hooks=[],
        wake=wake,
    )


def entries(items: Any) -> list[int]:
    return [item.position.entry.entry_id for item in items]


@pytest.mark.proves("C207")
def test_poll_error_keeps_messages_and_delays(caplog: pytest.LogCaptureFixture) -> None:
    child = Child()
    child.waiting.extend([Given(0), ReadError("damaged"), Given(1)])
    poller = intake_of(child)
    assert entries(poller.poll(100.0)) == [0]
    assert "damaged" in caplog.text and FAILED == 1.0
    assert poller.poll(100.999) == [] and poller.may_have_more
    assert entries(poller.poll(101.0)) == [1]
    # Only every thousandth is told.
    child.waiting.append(ReadError("again"))
    poller.poll(102.0)
    assert "again" not in caplog.text


@pytest.mark.proves("C201", "C210")
def test_poll_pull_batch_and_interval() -> None:
    child = Child()
    child.waiting.extend(Given(number) for number in range(9))
    poller = intake_of(child, pull_threshold_for_queue=3, pull_batch_size=2, pull_interval=20)
    taken = poller.poll(0.0)
    assert entries(taken) == [0, 1] and poller.poll(0.019) == []
    more = poller.poll(0.020)
    assert entries(more) == [2, 3]
    assert poller.poll(0.05) == [] and THROTTLED == 0.050
    poller.finish([*taken, *more])
    assert poller.poll(0.09) == [] and entries(poller.poll(0.11)) == [4, 5]


@pytest.mark.proves("C211")
def test_poll_backward_position_logged(caplog: pytest.LogCaptureFixture) -> None:
    child = Child()
    child.waiting.extend([Given(5), Given(6)])
    poller = intake_of(child, broadcasting=True)
    poller.poll(0)
    assert not caplog.text
    child.waiting.append(Given(4))
    with caplog.at_level(logging.WARNING):
        assert entries(poller.poll(0)) == [4]
    assert "went backwards" in caplog.text and "1:6:-1 to 1:4" in caplog.text


@pytest.mark.proves("C212")
def test_poll_filtered_messages_acked() -> None:
    child = Child()
    child.waiting.extend([Given(0, "b"), Given(1, "b"), Given(2)])
    poller = intake_of(child)
    assert entries(poller.poll(0)) == [2]
    assert [message.entry.entry_id for message in child.acknowledged] == [0, 1]


def encrypted(*, failed: bool, batch_size: int) -> EncryptionContext:
    return EncryptionContext(
        keys=[],
        param=b"",
        algorithm="",
        compression_type=CompressionType.NONE,
        uncompressed_message_size=0,
        batch_size=batch_size,
        is_decryption_failed=failed,
    )


@pytest.mark.proves("C182", "C196")
@pytest.mark.parametrize(
    ("failed", "batch_size", "is_wanted"),
    [(True, 3, True), (True, -1, False), (False, 3, False)],
    ids=["encrypted-batch", "encrypted-single", "decrypted-batch"],
)
def test_poll_encrypted_batch_passes_tags(failed: bool, batch_size: int, is_wanted: bool) -> None:
    child = Child()
    poller = intake_of(child)
    message = Given(0, "")
    message.encryption = encrypted(failed=failed, batch_size=batch_size)
    child.waiting.append(message)
    assert entries(poller.poll(0.0)) == [0] * is_wanted


@pytest.mark.proves("C182", "C215")
@pytest.mark.parametrize("action", list(ConsumerCryptoFailureAction), ids=lambda action: action.name)
def test_position_stays_before_undelivered_entry(
    action: ConsumerCryptoFailureAction, caplog: pytest.LogCaptureFixture
) -> None:
    child = Child()
    poller = intake_of(child, broadcasting=True, crypto_failure_action=action)
    child.waiting.append(Given(0))
    poller.finish(poller.poll(0.0))
    # Entry 1 was passed over in the call that returns entry 2.
    for number in (2, 3):
        child.undecodable.undecrypted_count += 1
        child.waiting.append(Given(number))
        poller.finish(poller.poll(0.0))
    stays = action is ConsumerCryptoFailureAction.FAIL
    assert poller.position == ("1:0" if stays else "1:3")
    assert caplog.text.count("the stored position stays before it") == stays


async def _coroutine(_message: Any) -> bool:
    return False


def _cancelled(_message: Any) -> bool:
    raise asyncio.CancelledError


@pytest.mark.parametrize("hook", [lambda _message: None, lambda message: _coroutine(message), _cancelled])
def test_poll_failed_filter_keeps_message(hook: Any, caplog: pytest.LogCaptureFixture) -> None:
    child = Child()
    child.waiting.append(Given(0))
    poller = intake_of(child)
    poller._hooks.append(hook)
    assert entries(poller.poll(0)) == [0] and not child.acknowledged
    assert "1:0, which the handler gets" in caplog.text


@pytest.mark.parametrize(("result", "seen"), [(0, []), (1, [0]), (False, []), (True, [0])])
def test_poll_filter_result_decides(result: Any, seen: list[int]) -> None:
    child = Child()
    child.waiting.append(Given(0))
    poller = intake_of(child)
    poller._hooks.append(lambda _message: result)
    assert entries(poller.poll(0)) == seen


def test_poll_redelivery_of_started_and_waiting() -> None:
    child = Child()
    child.waiting.extend([Given(0), Given(1)])
    poller = intake_of(child)
    begun, waiting = poller.poll(0)
    begun.started = 1.0
    child.attachment += 1
    child.waiting.extend([Given(0), Given(1), Given(2)])
    again = poller.poll(1)
    assert entries(again) == [1, 2] and not poller.holds(waiting) and poller.holds(begun)
    assert poller.finish([begun, waiting]) == 1
    assert [message.entry.entry_id for message in child.acknowledged] == [0]


@pytest.mark.parametrize("broadcasting", [False, True], ids=["clustering", "broadcasting"])
def test_poll_equal_ids_non_persistent_all_accepted(broadcasting: bool, caplog: pytest.LogCaptureFixture) -> None:
    child = Child()
    child.topic = NON_PERSISTENT
    # Messages outside a batch, and two batches.
    child.waiting.extend(Given(0) for _ in range(6))
    for message, index in zip(child.waiting, (-1, -1, 0, 1, 0, 1), strict=True):
        assert isinstance(message, Given)
        message.batch_index = index
    poller = intake_of(child, broadcasting=broadcasting)
    items = poller.poll(0)
    assert entries(items) == [0] * 6 and not caplog.text
    assert poller.finish(items) == 6


async def test_reattachment_drops_the_message_awaiting_its_schema() -> None:
    child, fetched = Child(), asyncio.Event()
    child.engine = SimpleNamespace(spawn=asyncio.ensure_future)  # type: ignore[attr-defined]
    child.client = SimpleNamespace(load_writer_schema=lambda *_: _done(fetched.set))  # type: ignore[attr-defined]
    poller = intake_of(child, orderly=True)
    child.waiting.extend([Given(0), Given(1, wants_schema=True)])
    assert entries(poller.poll(100.0)) == [0]
    await until(lambda: fetched.is_set() and poller.may_have_more)
    child.attachment += 1
    child.waiting.extend([Given(0), Given(1)])
    assert entries(poller.poll(101.0)) == [0, 1]


def test_reattachment_forgets_schemas_of_shared_retry_topic() -> None:
    class Sent(Given):
        def __reduce__(self) -> Any:
            return Message, (SimpleNamespace(schema_version=None), -1, 0, 0, 0)

        def properties(self) -> dict[str, str]:
            return {"REAL_TOPIC": OTHER.full}

    child = Child()
    poller = intake_of(child)
    poller.sharing = {OTHER: (TagFilter("a"), AutoConsumeSchema())}

    def decoder() -> Any:
        child.waiting.append(Sent(0))
        poller.check_attachment()
        message = poller._next()
        assert message is not None
        return message.entry.schema

    first = decoder()
    assert decoder() is first
    child.attachment += 1
    assert decoder() is not first


@pytest.mark.parametrize("kind", [ReadError, ValueError, SystemExit, asyncio.CancelledError])
async def test_schema_fetch_any_error_delays(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    async def fail(*_: object) -> None:
        raise kind("why")

    child, woken = Child(), asyncio.Event()
    loop = SimpleNamespace(time=lambda: 100.0)
    child.engine = SimpleNamespace(spawn=asyncio.ensure_future, loop=loop)  # type: ignore[attr-defined]
    child.client = SimpleNamespace(load_writer_schema=fail)  # type: ignore[attr-defined]
    poller = intake_of(child, wake=woken.set)
    child.waiting.append(Given(0, wants_schema=True))
    assert poller.poll(100.0) == []
    await asyncio.wait_for(woken.wait(), 10)
    assert poller.not_before == 100.0 + FAILED and poller.may_have_more
    (record,) = caplog.records
    # The text of an error that is not the client's may contain a secret.
    assert record.getMessage().endswith("why" if kind is ReadError else kind.__name__)


async def _done(function: Callable[[], None]) -> None:
    function()


@pytest.mark.parametrize("orderly", [False, True])
def test_reattachment_non_persistent_keeps_waiting(orderly: bool) -> None:
    child = Child()
    child.topic = NON_PERSISTENT
    child.waiting.extend([Given(0), Given(0)])
    poller = intake_of(child, orderly=orderly)
    begun, waiting = poller.poll(0)
    begun.started = 1.0
    child.attachment += 1
    child.connection = None
    poller.check_right()
    # Nobody gets it again.
    assert poller.holds(begun) and poller.holds(waiting)


@pytest.mark.proves("C216")
@pytest.mark.parametrize("lost", ["connection", "turn"])
def test_check_right_after_lost_connection_or_turn(lost: str) -> None:
    child = Child()
    child.waiting.extend([Given(0), Given(1)])
    poller = intake_of(child, orderly=True)
    begun, waiting = poller.poll(0)
    begun.started = 1.0
    poller.check_right()
    assert poller.holds(waiting)
    if lost == "connection":
        child.connection = None
    else:
        child.is_active = False
    poller.check_right()
    assert poller.holds(begun) and not poller.holds(waiting)


def test_topic_of_retry_message() -> None:
    def of(properties: dict[str, str]) -> str:
        message = Given(0)
        message.properties = lambda: properties  # type: ignore[method-assign]
        return poller.topic_of(message).full  # type: ignore[arg-type]

    child = Child()
    child.topic = TopicName.parse("t-g-RETRY")
    poller = intake_of(child)
    assert poller.is_retry and of({"REAL_TOPIC": "t-partition-3"}) == TOPIC.with_partition(3).full
    for wrong in ({}, {"REAL_TOPIC": ""}, {"REAL_TOPIC": "a/b"}):
        assert of(wrong) == child.topic.full
