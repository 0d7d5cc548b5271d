"""Push consumer core on a fake broker: start and stop once, groups, positions, errors of one partition."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pulsar_native.config import ClientConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.loop import Engine
from pulsar_native.exceptions import InvalidConfiguration, NotAllowedError, PulsarException
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
from pulsar_native.schema import BytesSchema
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, failure
from support.fake_topic import FakeTopic
from support.until import until

TOPIC = "persistent://public/default/t"


class Handled:
    """Dispatcher that calls a handler at once; `held` keeps the works instead."""

    def __init__(self, service: ConsumeMessageService, answer: object, *, held: bool) -> None:
        self._service, self._answer, self._held = service, answer, held
        self.works: list[Work] = []
        self.stopped = False

    def submit(self, work: Work) -> None:
        self.works.append(work)
        if not self._held:
            asyncio.get_running_loop().call_soon(self.finish, work)

    def finish(self, work: Work) -> None:
        """Run a call of the handler to its end."""
        if self._service.begin(work):
            self._service.end(work, self._answer)

    def stop(self) -> None:
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
    assert (again.unfinished, again.positions) == (0, {})


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
