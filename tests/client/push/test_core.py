"""Push consumer core on a fake broker: start and stop once, groups, positions, errors of one partition."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pulsar_native.config import ClientConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.loop import Engine
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, NotAllowedError, PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.push.config import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrder,
    ConsumeOrderlyStatus,
    MessageModel,
    PushConsumerConfig,
)
from pulsar_native.push.consume_message_service import ConsumeMessageService, Work
from pulsar_native.push.core import PushConsumerCore, ServiceState
from pulsar_native.push.offset_store import OffsetStore
from pulsar_native.schema import BytesSchema, KeyValue, KeyValueEncodingType, KeyValueSchema, StringSchema
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.entry_bytes import batch_entry
from support.fake_broker import FakeBroker, Peer, delivery, failure, success
from support.fake_topic import FakeTopic
from support.until import until

TOPIC = "persistent://public/default/t"


class Handled:
    """Dispatcher that calls a handler at once; `held` keeps the works instead."""

    def __init__(self, service: ConsumeMessageService, answer: object, *, held: bool) -> None:
        self._service, self.answer, self._held = service, answer, held
        self.works: list[Work] = []
        self.stopped = False

    def is_in_handler(self) -> bool:
        return False

    def submit(self, work: Work) -> None:
        self.works.append(work)
        if not self._held:
            asyncio.get_running_loop().call_soon(self.finish, work)

    def finish(self, work: Work) -> None:
        """Run a call of the handler to its end."""
        if self._service.begin(work):
            self._service.end(work, self.answer)

    def stop(self, *, cancel_running: bool = True) -> None:
        self.stopped = True


class Push:
    """A push consumer core, its client, and its dispatcher after the start."""

    dispatcher: Handled

    def __init__(self, client: ClientCore, *, orderly: bool = False, held: bool = False, **options: Any) -> None:
        self.client, self._held = client, held
        self.core = PushConsumerCore(PushConsumerConfig(**{"consumer_group": "g", **options}))
        self._answer = ConsumeOrderlyStatus.SUCCESS if orderly else ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        self.core.subscribe("t", "*", BytesSchema())
        self.core.register(orderly=orderly)

    async def start(self) -> None:
        """Start it."""
        await self.core.start(self.client, self._dispatcher)

    def _dispatcher(self, service: ConsumeMessageService) -> Handled:
        self.dispatcher = Handled(service, self._answer, held=self._held)
        return self.dispatcher


@pytest_asyncio.fixture
async def push(fake: FakeBroker) -> AsyncIterator[Callable[..., Push]]:
    """Give a function that makes a push consumer of a client of its own on this loop."""
    made: list[Push] = []

    def make(**options: Any) -> Push:
        config = ClientConfig(service_url=fake.url, operation_timeout_seconds=5.0)
        client = ClientCore(Engine(asyncio.get_running_loop(), threading.get_ident()), config)
        made.append(Push(client, **options))
        return made[-1]

    yield make
    for each in made:
        await each.core.shutdown(0)
        if not each.client.closed:
            await each.client.close()


async def test_start_without_handler_or_topic_refused(push: Callable[..., Push]) -> None:
    client = push().client
    core = PushConsumerCore(PushConsumerConfig(consumer_group="g"))
    with pytest.raises(InvalidConfiguration, match="needs a handler"):
        await core.start(client, lambda _service: pytest.fail("nothing is started"))
    # It cannot be mended: a half-started one might have changed the group.
    with pytest.raises(NotAllowedError, match="start failed"):
        core.register(orderly=False)
    other = PushConsumerCore(PushConsumerConfig(consumer_group="g"))
    other.register(orderly=False)
    with pytest.raises(InvalidConfiguration, match="needs a topic"):
        await other.start(client, lambda _service: pytest.fail("nothing is started"))


async def test_two_kinds_of_handler_refused(push: Callable[..., Push]) -> None:
    with pytest.raises(InvalidConfiguration, match="never both"):
        push(orderly=True).core.register(orderly=False)


async def test_group_is_in_a_process_once(fake: FakeBroker, push: Callable[..., Push]) -> None:
    FakeTopic(fake)
    first, second, third = push(), push(), push(instance_name="another")
    await first.start()
    with pytest.raises(NotAllowedError, match="instance_name"):
        await second.start()
    await third.start()
    await first.core.shutdown(0)
    # The refused one may be started now: it had begun nothing.
    await second.start()
    assert second.core.state is ServiceState.RUNNING


async def test_failed_start_leaves_the_group(fake: FakeBroker, push: Callable[..., Push]) -> None:
    fake.answers[Kind.SUBSCRIBE] = lambda _peer, command: [failure(command.subscribe.request_id, pb.AuthorizationError)]
    first = push()
    with pytest.raises(PulsarException):
        await first.start()
    assert first.core.state is ServiceState.START_FAILED and first.dispatcher.stopped
    del fake.answers[Kind.SUBSCRIBE]
    FakeTopic(fake)
    await push().start()


async def test_messages_are_handled_and_acknowledged(fake: FakeBroker, push: Callable[..., Push]) -> None:
    topic = FakeTopic(fake, b"a", b"b")
    made = push(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    await made.start()
    assert sorted(await asyncio.to_thread(topic.acknowledged, 2)) == [0, 1]
    topic.publish(b"c")
    await until(lambda: made.core.stats().succeeded == 3)
    stats = made.core.stats()
    assert (stats.taken, stats.failed, stats.unfinished) == (3, 0, 0)


async def test_shutdown_reports_what_is_left(fake: FakeBroker, push: Callable[..., Push]) -> None:
    topic = FakeTopic(fake, b"a", b"b", b"c")
    made = push(held=True, consume_message_batch_max_size=1)
    await made.start()
    await until(lambda: len(made.dispatcher.works) == 3)
    made.dispatcher.finish(made.dispatcher.works[0])
    assert await asyncio.to_thread(topic.acknowledged, 1) == [0]
    report = await made.core.shutdown(10)
    assert (report.unfinished, {name: place.entry_id() for name, place in report.positions.items()}) == (2, {TOPIC: 1})
    assert made.dispatcher.stopped and len(fake.seen(Kind.CLOSE_CONSUMER)) >= 1
    again = await made.core.shutdown(10)
    assert again == report


async def test_shutdown_waits_for_running_handlers(fake: FakeBroker, push: Callable[..., Push]) -> None:
    FakeTopic(fake, b"a")
    made = push(held=True)
    await made.start()
    await until(lambda: made.dispatcher.works)
    stopping = asyncio.create_task(made.core.shutdown(10_000))
    await made.client.topic_partition_count("t", auto_create=True)
    assert not stopping.done()
    made.dispatcher.finish(made.dispatcher.works[0])
    assert (await asyncio.wait_for(stopping, 10)).unfinished == 0


RETRY = "persistent://public/default/r"
U = "persistent://public/default/u"


@pytest.mark.parametrize("receiver", [0, 1, 2])
async def test_shared_retry_topic_decodes_by_origin(fake: FakeBroker, push: Callable[..., Push], receiver: int) -> None:
    made = push(held=True, retry_letter_topic="r")
    made.core.subscribe("t", "none", StringSchema())
    pairs = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    made.core.subscribe("u", "none", pairs)
    # It is a topic of its own, too.
    made.core.subscribe("r", "wanted", BytesSchema())
    await made.start()
    consumers = [seen for seen in fake.seen(Kind.SUBSCRIBE) if seen.command.subscribe.topic == RETRY]
    assert len(consumers) == 3
    properties: list[dict[str, str]] = [{"REAL_TOPIC": TOPIC}, {"REAL_TOPIC": f"{U}-partition-1"}]
    # The last one is filtered out.
    properties += [{"TAGS": "wanted"}, {"TAGS": "none"}]
    singles = [{"properties": each, "partition_key": "k"} for each in properties]
    subscribe = consumers[receiver].command.subscribe
    fake.peer().send(delivery(subscribe.consumer_id, batch_entry([b"1"] * 4, singles=singles), 0))
    await until(lambda: len(made.dispatcher.works) == 3)
    given = [(work.context.topic, work.items[0].position.value()) for work in made.dispatcher.works]
    assert given == [(TOPIC, "1"), (U, KeyValue("k", "1")), (RETRY, b"1")]
    assert made.core.stats().filtered == 1


async def test_own_topic_as_retry_topic_filters(fake: FakeBroker, push: Callable[..., Push]) -> None:
    topic = FakeTopic(fake)
    made = push(held=True, retry_letter_topic="t")
    made.core.subscribe("t", "wanted", BytesSchema())
    await made.start()
    topic.publish(b"a", properties=[pb.KeyValue(key="TAGS", value="other")])
    topic.publish(b"b", properties=[pb.KeyValue(key="TAGS", value="wanted")])
    await until(lambda: made.dispatcher.works)
    assert [work.items[0].position.data() for work in made.dispatcher.works] == [b"b"]


async def test_error_in_a_round_does_not_end_polling(
    fake: FakeBroker, push: Callable[..., Push], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = FakeTopic(fake, b"a")
    made = push()
    await made.start()
    await until(lambda: made.core.stats().succeeded == 1)
    poller = made.core._pollers[0]

    def broken(_now: float) -> Any:
        raise KeyError("in the poller")

    with monkeypatch.context() as patch:
        patch.setattr(poller, "poll", broken)
        made.core.round(0.0)
    assert "the poller failed" in caplog.text and made.core.state is ServiceState.RUNNING
    poller.not_before = 0.0
    topic.publish(b"b")
    await until(lambda: made.core.stats().succeeded == 2)


async def test_client_closed_ends_the_push_consumer(fake: FakeBroker, push: Callable[..., Push]) -> None:
    FakeTopic(fake)
    made, other = push(), push()
    await made.start()
    await made.client.close()
    made.core._wake.set()
    await until(lambda: made.core.state is ServiceState.SHUTDOWN_ALREADY)
    assert made.dispatcher.stopped
    await other.start()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, pb.CommandSubscribe.Shared),
        ({"orderly": True, "consume_order": ConsumeOrder.KEY}, pb.CommandSubscribe.Key_Shared),
        ({"orderly": True, "consume_order": ConsumeOrder.PARTITION}, pb.CommandSubscribe.Failover),
    ],
    ids=["concurrent", "key", "partition"],
)
async def test_order_decides_the_subscription(
    fake: FakeBroker, push: Callable[..., Push], options: dict[str, Any], kind: int
) -> None:
    FakeTopic(fake)
    await push(**options).start()
    asked = fake.seen(Kind.SUBSCRIBE)[0].command.subscribe
    assert (asked.subscription, asked.subType, asked.durable) == ("g", kind, True)


@pytest.mark.parametrize("has_subscription", [False, True], ids=["new", "known"])
async def test_group_by_time_seeks_without_subscription(
    fake: FakeBroker, push: Callable[..., Push], has_subscription: bool
) -> None:
    refused: list[bool] = []

    def subscribed(_peer: Peer, command: pb.BaseCommand) -> list[bytes]:
        asked = command.subscribe
        # For a moment the broker still has the non-durable subscription, or another member has one.
        is_refused = len(refused) == 1 if asked.durable else has_subscription
        refused.append(is_refused)
        return [failure(asked.request_id, pb.NotAllowedError) if is_refused else success(asked.request_id)]

    FakeTopic(fake, b"a")
    fake.answers[Kind.SUBSCRIBE] = subscribed
    made = push(consume_from_where=ConsumeFromWhere.TIMESTAMP)
    await made.start()
    assert len(fake.seen(Kind.SEEK)) == (0 if has_subscription else 1)
    asked = [each.command.subscribe for each in fake.seen(Kind.SUBSCRIBE)]
    assert [each.durable for each in asked[:3]] == [False, True, True]
    assert {each.subscription for each in asked} == {"g"}


async def test_new_broadcasting_member_begins_at_the_end(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path
) -> None:
    FakeTopic(fake, b"a", b"b")
    made = push(message_model=MessageModel.BROADCASTING, offset_store_folder=str(tmp_path))
    await made.start()
    place = fake.wait(Kind.SEEK)[0].command.seek.message_id
    assert (place.ledgerId, place.entryId) == (1, 1)


async def test_broadcasting_member_keeps_its_own_positions(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path
) -> None:
    FakeTopic(fake, b"a", b"b")
    made = push(
        message_model=MessageModel.BROADCASTING,
        offset_store_folder=str(tmp_path),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    await made.start()
    asked = fake.seen(Kind.SUBSCRIBE)[0].command.subscribe
    assert not asked.durable and asked.subscription != "g"
    await until(lambda: made.core.stats().succeeded == 2)
    await made.core.shutdown(0)
    config = made.core.config
    kept = OffsetStore(config.offset_store_folder, config.member_name, config.consumer_group).load()
    assert {name: (place.ledger_id(), place.entry_id()) for name, place in kept.items()} == {TOPIC: (1, 1)}
    # The next start goes on behind them.
    again = push(
        message_model=MessageModel.BROADCASTING,
        offset_store_folder=str(tmp_path),
    )
    await again.start()
    seek = fake.wait(Kind.SEEK)[0].command.seek
    assert (seek.message_id.ledgerId, seek.message_id.entryId) == (1, 1)
    assert again.core._pollers[0].start == MessageId(-1, 1, 1, -1)


def broadcasting(folder: Path, **options: Any) -> dict[str, Any]:
    """Return options of a broadcasting member that writes its positions when it starts and ends only."""
    return {
        "message_model": MessageModel.BROADCASTING,
        "offset_store_folder": str(folder),
        "persist_consumer_offset_interval": 3_600_000,
        **options,
    }


def kept(made: Push) -> dict[str, MessageId]:
    """Return the positions in the file of a member."""
    config = made.core.config
    return OffsetStore(config.offset_store_folder, config.member_name, config.consumer_group).load()


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
@pytest.mark.parametrize("has_messages", [False, True], ids=["empty", "messages"])
async def test_broadcasting_positions_kept_at_start(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, where: ConsumeFromWhere, has_messages: bool
) -> None:
    if has_messages:
        fake.set_last(7, mark=4)
    made = push(**broadcasting(tmp_path, consume_from_where=where))
    await made.start()
    last, mark = MessageId(-1, 1, 7), MessageId(-1, 1, 4)
    skipped = {ConsumeFromWhere.LAST_OFFSET: last, ConsumeFromWhere.TIMESTAMP: mark} if has_messages else {}
    # Before any message is done: a crash from now on loses nothing of what is published meanwhile.
    assert kept(made) == {TOPIC: skipped.get(where, MessageId.earliest)}


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
async def test_broadcasting_partition_added_while_down(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, where: ConsumeFromWhere
) -> None:
    fake.set_last(7, mark=4)
    fake.partitions[TOPIC] = 1
    first = push(**broadcasting(tmp_path, consume_from_where=where))
    await first.start()
    await first.core.shutdown(0)
    place, before = kept(first)[f"{TOPIC}-partition-0"], len(fake.seen(Kind.SEEK))
    fake.partitions[TOPIC] = 3
    again = push(**broadcasting(tmp_path, consume_from_where=where))
    again.core.subscribe("other", "*", BytesSchema())
    await again.start()
    sought = len(fake.seen(Kind.SEEK)) - before
    places = kept(again)
    # The partition that was there goes on, those that were added are read from their beginning, another topic is new.
    assert [places[f"{TOPIC}-partition-{number}"] for number in (1, 2)] == [MessageId.earliest] * 2
    assert places[f"{TOPIC}-partition-0"] == place
    assert sought == (0 if where is ConsumeFromWhere.FIRST_OFFSET else 2)


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
async def test_broadcasting_partition_added_while_running(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, where: ConsumeFromWhere
) -> None:
    fake.set_last(7, mark=4)
    fake.partitions[TOPIC] = 1
    made = push(**broadcasting(tmp_path, consume_from_where=where, poll_name_server_interval=10))
    await made.start()
    before = len(fake.seen(Kind.SEEK))
    fake.partitions[TOPIC] = 2
    await until(lambda: len(made.core._pollers) == 2)
    await made.core.shutdown(0)
    assert kept(made)[f"{TOPIC}-partition-1"] == MessageId.earliest and len(fake.seen(Kind.SEEK)) == before


async def test_broadcasting_partition_joins_during_start(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.partitions[TOPIC] = 1
    made = push(**broadcasting(tmp_path, poll_name_server_interval=10))
    made.core.subscribe("other", "*", BytesSchema())
    opened = made.core._open

    async def then_grow(client: ClientCore, topic: TopicName) -> None:
        await opened(client, topic)
        if topic.full == TOPIC:
            fake.partitions[TOPIC] = 2
            await until(lambda: len(made.core._sources[0].consumer.children) == 2)

    monkeypatch.setattr(made.core, "_open", then_grow)
    await made.start()
    await until(lambda: len(made.core._pollers) == 3)


async def test_broadcasting_file_with_odd_names(fake: FakeBroker, push: Callable[..., Push], tmp_path: Path) -> None:
    made = push(**broadcasting(tmp_path))
    config = made.core.config
    odd = {"persistent://a": MessageId(0, 1, 1)}
    OffsetStore(config.offset_store_folder, config.member_name, config.consumer_group).save(odd)
    await made.start()
    assert kept(made) == {**odd, TOPIC: MessageId.earliest}


@pytest.mark.parametrize("failure_of", ["damaged", "cancelled"])
async def test_start_failed_keeps_the_offset_file(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, failure_of: str
) -> None:
    FakeTopic(fake, b"a")
    made = push(message_model=MessageModel.BROADCASTING, offset_store_folder=str(tmp_path))
    config = made.core.config
    store = OffsetStore(config.offset_store_folder, config.member_name, config.consumer_group)
    store.save({TOPIC: MessageId(-1, 1, 0, -1)})
    if failure_of == "damaged":
        store.path.write_text("x")
    before = store.path.read_text()
    if failure_of == "damaged":
        with pytest.raises(InvalidConfiguration, match="remove the damaged files"):
            await made.start()
    else:
        starting = asyncio.create_task(made.start())
        await asyncio.sleep(0)
        assert made.core.state is ServiceState.START_FAILED
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await made.core.shutdown(0)
    assert store.path.read_text() == before


async def test_start_with_unwritable_offset_folder_raises(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path
) -> None:
    FakeTopic(fake)
    folder = tmp_path / "file"
    folder.touch()
    made = push(message_model=MessageModel.BROADCASTING, offset_store_folder=str(folder))
    with pytest.raises(InvalidConfiguration, match="offset_store_folder"):
        await made.start()
    assert not fake.seen(Kind.SUBSCRIBE)


@pytest.mark.parametrize("has_file", [False, True], ids=["new", "known"])
async def test_broadcasting_start_on_full_disk_raises(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_file: bool
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    FakeTopic(fake, b"a")
    made = push(**broadcasting(tmp_path))
    config = made.core.config
    store = OffsetStore(config.offset_store_folder, config.member_name, config.consumer_group)
    before = {TOPIC: MessageId(-1, 1, 0, -1)} if has_file else {}
    if has_file:
        store.save(before)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InvalidConfiguration, match=r"No space left.*set offset_store_folder"):
            await made.start()
    # Left as it was, with nothing beside it that takes room.
    assert kept(made) == before
    assert {path.name for path in store.path.parent.iterdir()} - {"offsets.json"} == {"offsets.lock"}
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1
    await push(**broadcasting(tmp_path)).start()


async def test_full_disk_later_does_not_end_consuming(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    FakeTopic(fake, b"a")
    made = push(**broadcasting(tmp_path, consume_from_where=ConsumeFromWhere.FIRST_OFFSET))
    await made.start()
    await until(lambda: made.core.counts.succeeded == 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        await made.core._persist()
    assert made.core.state is ServiceState.RUNNING and "No space left" in caplog.text
    await made.core.shutdown(0)
    assert kept(made) != {TOPIC: MessageId.earliest}


@pytest.mark.parametrize(
    "options",
    [
        {"message_model": MessageModel.BROADCASTING},
        {"message_model": MessageModel.BROADCASTING, "consume_from_where": ConsumeFromWhere.TIMESTAMP},
        {"consume_from_where": ConsumeFromWhere.TIMESTAMP},
    ],
    ids=["last", "time", "clustering time"],
)
async def test_start_on_non_persistent_topic_asks_no_position(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, options: dict[str, Any]
) -> None:
    FakeTopic(fake)
    made = push(offset_store_folder=str(tmp_path), **options)
    made.core.unsubscribe("t")
    made.core.subscribe("non-persistent://public/default/t", "*", BytesSchema())
    await made.start()
    assert not fake.seen(Kind.GET_LAST_MESSAGE_ID) and not fake.seen(Kind.SEEK)


async def test_shutdown_cancelled_leaves_the_group(fake: FakeBroker, push: Callable[..., Push]) -> None:
    FakeTopic(fake, b"a")
    made = push(held=True)
    await made.start()
    await until(lambda: made.dispatcher.works)
    stopping = asyncio.create_task(made.core.shutdown(60_000))
    await until(lambda: made.core._drained)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await made.core.shutdown(0)
    assert made.dispatcher.stopped and len(fake.seen(Kind.CLOSE_CONSUMER)) == len(fake.seen(Kind.SUBSCRIBE))
    await push().start()


async def test_shutdown_cancelled_at_its_end_leaves_the_group(fake: FakeBroker, push: Callable[..., Push]) -> None:
    FakeTopic(fake)
    made = push()
    await made.start()
    stopping = asyncio.create_task(made.core.shutdown(0))
    await asyncio.sleep(0)
    assert made.core.state is ServiceState.SHUTDOWN_ALREADY and not made.core._over.is_set()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await made.core.shutdown(0)
    await push().start()


async def test_shutdown_closes_consumers_when_offsets_fail(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def no_thread(*_args: Any) -> Any:
        raise RuntimeError("can't start new thread")

    FakeTopic(fake)
    made = push(message_model=MessageModel.BROADCASTING, offset_store_folder=str(tmp_path))
    await made.start()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "to_thread", no_thread)
        await made.core.shutdown(0)
    assert fake.seen(Kind.CLOSE_CONSUMER) and "can't start new thread" in caplog.text


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
async def test_polling_that_fails_leaves_the_group(
    fake: FakeBroker, push: Callable[..., Push], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def broken(_now: float) -> Any:
        raise error

    FakeTopic(fake)
    made = push()
    await made.start()
    monkeypatch.setattr(made.core, "round", broken)
    made.core._wake.set()
    await until(lambda: made.core.state is ServiceState.SHUTDOWN_ALREADY)
    await made.core.shutdown(0)
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == len(fake.seen(Kind.SUBSCRIBE))
    await push().start()


async def test_send_back_with_any_error_is_tried_again(
    fake: FakeBroker, push: Callable[..., Push], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_args: Any) -> Any:
        raise KeyError("not the broker's")

    FakeTopic(fake, b"a")
    made = push(held=True)
    await made.start()
    await until(lambda: made.dispatcher.works)
    monkeypatch.setattr("pulsar_native.push.consume_message_service.LOCAL_RETRY", 0.0)
    monkeypatch.setattr(made.core.service, "_store_copy", broken)
    made.dispatcher.answer = None
    made.dispatcher.finish(made.dispatcher.works[0])
    await until(lambda: len(made.dispatcher.works) == 2)


@pytest.mark.parametrize(
    ("orderly", "answer", "advice"),
    [
        (
            False,
            ConsumeOrderlyStatus.SUCCESS,
            "; register the handler by register_message_listener(orderly=",
        ),
        (True, ConsumeConcurrentlyStatus.CONSUME_SUCCESS, "register_message_listener(concurrently="),
        (False, "done", "counts as a failure\n"),
    ],
    ids=["concurrent", "orderly", "other"],
)
async def test_status_of_the_other_kind_has_advice(
    fake: FakeBroker, push: Callable[..., Push], caplog: pytest.LogCaptureFixture,
    orderly: bool, answer: Any, advice: str,
) -> None:  # fmt: skip
    FakeTopic(fake, b"a")
    made = push(orderly=orderly, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    made._answer = answer
    await made.start()
    await until(lambda: made.core.counts.failed)
    assert advice in caplog.text


async def test_orderly_suspension_of_any_length_bounded(fake: FakeBroker, push: Callable[..., Push]) -> None:
    FakeTopic(fake, b"a", b"b")
    made = push(orderly=True, held=True, consume_order=ConsumeOrder.PARTITION, max_reconsume_times=-1)
    await made.start()
    for milliseconds in (-(10**400), 10**400):
        await until(lambda: made.dispatcher.works)
        work = made.dispatcher.works.pop()
        work.context.suspend_current_queue_time_millis = milliseconds  # type: ignore[union-attr]
        made.dispatcher.answer = None
        made.dispatcher.finish(work)
    service: Any = made.core.service
    await until(lambda: service._key_queues.next_wake())


@pytest.mark.parametrize("model", list(MessageModel))
async def test_orderly_newcomers_outlive_dead_messages(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: MessageModel
) -> None:
    topic, dead = FakeTopic(fake, b"dead"), list[bytes]()

    async def keep(message: Any) -> None:
        dead.append(message.data())

    made = push(
        orderly=True, held=True, consume_order=ConsumeOrder.PARTITION, consume_message_batch_max_size=2,
        max_reconsume_times=1, suspend_current_queue_time_millis=10, message_model=model,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, offset_store_folder=str(tmp_path),
    )  # fmt: skip
    await made.start()
    if model is MessageModel.CLUSTERING:
        monkeypatch.setattr(made.core._pollers[0].child.dead_letter_router, "send_to_dlq", keep)
    made.dispatcher.answer = None
    calls = []
    for number in range(3):
        work = await until(lambda: made.dispatcher.works and made.dispatcher.works.pop())
        calls.append(([message.data() for message in work.messages], work.context.attempts))
        if number == 0:
            topic.publish(b"new")
            await until(lambda: made.core.stats().taken == 2)
        if number < 2:
            made.dispatcher.finish(work)
    assert calls == [([b"dead"], 0), ([b"dead", b"new"], 1), ([b"new"], 1)]
    stats = made.core.stats()
    assert (dead, stats.dead_letters, stats.dropped) == (
        ([], 0, 1) if model is MessageModel.BROADCASTING else ([b"dead"], 1, 0)
    )


@pytest.mark.parametrize("copy", ["kept waiting", "failed"])
async def test_stuck_ignores_what_is_going_back(
    fake: FakeBroker, push: Callable[..., Push], monkeypatch: pytest.MonkeyPatch, copy: str
) -> None:
    stored, goes_on = list[object](), asyncio.Event()

    async def store(_poller: Any, item: Any, _level: int) -> bool:
        stored.append(item)
        if copy == "failed":
            raise PulsarException("not now")
        await goes_on.wait()
        return False

    FakeTopic(fake, b"a")
    made = push(held=True)
    await made.start()
    await until(lambda: made.dispatcher.works)
    service: Any = made.core.service
    monkeypatch.setattr(service, "_store_copy", store)
    made.dispatcher.answer = None
    made.dispatcher.finish(made.dispatcher.works[0])
    await until(lambda: stored and (copy != "failed" or service._timers))
    # Its handler has ended: it does not hang, however long the copy takes or the next try is waited for.
    service.give_back_stuck(made.core._pollers, float("inf"))
    goes_on.set()
    await until(lambda: not service._tasks)
    assert len(stored) == 1 and made.core.stats().failed == 1


@pytest.mark.parametrize("answer", [ConsumeConcurrentlyStatus.CONSUME_SUCCESS, None], ids=["success", "failure"])
async def test_late_result_of_a_former_try_no_effect(
    fake: FakeBroker, push: Callable[..., Push], monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    stored = list[object]()

    async def store(_poller: Any, item: Any, _level: int) -> bool:
        stored.append(item)
        raise PulsarException("not now")

    FakeTopic(fake, b"a")
    made = push(held=True)
    await made.start()
    await until(lambda: made.dispatcher.works)
    service: Any = made.core.service
    monkeypatch.setattr("pulsar_native.push.consume_message_service.LOCAL_RETRY", 0.0)
    monkeypatch.setattr(service, "_store_copy", store)
    # The first handler hangs, its message cannot be put back, and a second one has it.
    hanging = made.dispatcher.works[0]
    assert service.begin(hanging)
    service.give_back_stuck(made.core._pollers, float("inf"))
    again = await until(lambda: len(made.dispatcher.works) == 2 and made.dispatcher.works[1])
    assert service.begin(again)
    service.end(hanging, answer)
    assert (len(stored), made.core.stats().unfinished, made.core.stats().failed) == (1, 1, 0)
    service.end(again, ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    await until(lambda: made.core.stats().succeeded == 1 and not made.core.stats().unfinished)


async def test_offsets_in_use_elsewhere_start_refused(
    fake: FakeBroker, push: Callable[..., Push], tmp_path: Path
) -> None:
    FakeTopic(fake)
    options = {"message_model": MessageModel.BROADCASTING, "offset_store_folder": str(tmp_path)}
    first, late = push(**options), push(**options)
    config = first.core.config
    other = OffsetStore(config.offset_store_folder, config.member_name, config.consumer_group)
    other.claim()
    with pytest.raises(NotAllowedError, match="instance_name"):
        await first.start()
    assert not fake.seen(Kind.SUBSCRIBE)
    other.release()
    await late.start()
    # Until it has ended: as with the client, which abandons it.
    with pytest.raises(NotAllowedError):
        OffsetStore(config.offset_store_folder, config.member_name, config.consumer_group).claim()
    await late.client.close()
    late.core._wake.set()
    await until(lambda: late.core.state is ServiceState.SHUTDOWN_ALREADY)
    await push(**options).start()


async def test_shutdown_calls_share_the_report(fake: FakeBroker, push: Callable[..., Push]) -> None:
    FakeTopic(fake, b"a", b"b")
    made = push(held=True, consume_message_batch_max_size=1)
    await made.start()
    await until(lambda: len(made.dispatcher.works) == 2)
    calls = [asyncio.create_task(made.core.shutdown(60_000)) for _ in range(2)]
    await until(lambda: made.core._drained)
    # A handler is waited for, and does not wait.
    inside = await made.core.shutdown(60_000, in_handler=True)
    assert inside.unfinished == 2 and not any(call.done() for call in calls)
    for work in made.dispatcher.works:
        made.dispatcher.finish(work)
    first, second = await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert first == second == await made.core.shutdown(0) and (first.finished, first.unfinished) == (2, 0)


async def test_shutdown_after_cancelled_one_waits(fake: FakeBroker, push: Callable[..., Push]) -> None:
    FakeTopic(fake, b"a")
    made = push(held=True)
    await made.start()
    await until(lambda: made.dispatcher.works)
    first = asyncio.create_task(made.core.shutdown(60_000))
    await until(lambda: made.core._drained)
    second = asyncio.create_task(made.core.shutdown(60_000))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await asyncio.wait_for(second, 10)).unfinished == 1
    await push().start()


@pytest.mark.parametrize("rounds", [1, 2, 20])
async def test_shutdown_ends_a_start(fake: FakeBroker, push: Callable[..., Push], rounds: int) -> None:
    if rounds == 20:
        # The broker does not answer.
        fake.answers[Kind.SUBSCRIBE] = lambda _peer, _command: []
    else:
        FakeTopic(fake)
    made = push()
    starting = asyncio.create_task(made.start())
    for _ in range(rounds):
        await asyncio.sleep(0)
    if rounds == 20:
        await until(lambda: fake.seen(Kind.SUBSCRIBE))
    assert not starting.done()
    report = await asyncio.wait_for(made.core.shutdown(60_000), 10)
    with pytest.raises(AlreadyClosed, match="while it was starting"):
        await starting
    assert report.unfinished == 0 and made.core.state is ServiceState.SHUTDOWN_ALREADY
    fake.answers.pop(Kind.SUBSCRIBE, None)
    FakeTopic(fake)
    await push().start()


async def test_shutdown_at_the_last_step_of_a_start(
    fake: FakeBroker, push: Callable[..., Push], monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeTopic(fake)
    made, calls = push(), list[asyncio.Task[Any]]()
    start = made.core._start

    async def started(*args: Any) -> None:
        await start(*args)
        # Order of events: it runs when the start is done, and before its caller goes on.
        calls.append(asyncio.create_task(made.core.shutdown(0)))

    monkeypatch.setattr(made.core, "_start", started)
    with pytest.raises(AlreadyClosed):
        await made.start()
    await asyncio.wait_for(calls[0], 10)
    assert made.core.state is ServiceState.SHUTDOWN_ALREADY
    await push().start()
