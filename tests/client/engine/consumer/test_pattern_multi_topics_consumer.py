"""Pattern topics watcher on a misbehaving broker: refusals, crossing responses, lost connections."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.consumer.pattern_multi_topics_consumer import topics_told, topics_told_on_loop
from pulsar_native.exceptions import AuthorizationError, InvalidConfiguration, PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.schema import BytesSchema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Peer, failure, frame, success
from support.other_thread import OWN_ERRORS, Own, in_other_thread
from support.until import until

Cores = Callable[..., ClientCore]

NS = "persistent://public/default/"
FAST = {"starting_backoff_interval_ms": 20}


class Namespace:
    """The topics of the fake broker's only namespace, and its answers about them."""

    def __init__(self, fake: FakeBroker, *locals_: str, watches: bool = True) -> None:
        self.fake = fake
        self.topics = {NS + local for local in locals_}
        self.watcher = -1
        fake.connected.feature_flags.supports_topic_watchers = watches
        fake.answers[Kind.GET_TOPICS_OF_NAMESPACE] = self.listing
        fake.answers[Kind.WATCH_TOPIC_LIST] = self.watching

    def listing(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.getTopicsOfNamespace
        answer = pb.CommandGetTopicsOfNamespaceResponse(
            request_id=asked.request_id, topics=sorted(self.topics), filtered=False, topics_hash="h", changed=True
        )
        return [frame(Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=answer)]

    def watching(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.watchTopicList
        self.watcher = asked.watcher_id
        answer = pb.CommandWatchTopicListSuccess(
            request_id=asked.request_id, watcher_id=asked.watcher_id, topic=sorted(self.topics), topics_hash="w"
        )
        return [frame(Kind.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=answer)]

    def update(self, new: Iterable[str] = (), deleted: Iterable[str] = (), *, tell: bool = True) -> None:
        """Change the topics and tell of it."""
        added, gone = [NS + local for local in new], [NS + local for local in deleted]
        self.topics = (self.topics - set(gone)) | set(added)
        if tell:
            self.fake.peers[-1].send(self.word(added, gone))

    def word(self, added: list[str], gone: list[str]) -> bytes:
        told = pb.CommandWatchTopicUpdate(
            watcher_id=self.watcher, new_topics=added, deleted_topics=gone, topics_hash="u"
        )
        return frame(Kind.WATCH_TOPIC_UPDATE, watchTopicUpdate=told)


async def follow(core: ClientCore, text: str = "a.*", changed: Any = None, **options: Any) -> MultiTopicsConsumer:
    config = ConsumerConfig(subscription_name="s", **options)
    pattern = TopicPattern.parse(re.compile(text))
    return await core.subscribe(pattern, config, VersionedDecoder(BytesSchema()), None, changed=changed)


def names(consumer: MultiTopicsConsumer) -> set[str]:
    return {topic.local_name for topic in consumer.topics}


def subscribes(fake: FakeBroker) -> list[pb.CommandSubscribe]:
    return [seen.command.subscribe for seen in fake.seen(Kind.SUBSCRIBE)]


@pytest.mark.asyncio
@pytest.mark.proves("C163", "C164")
async def test_pattern_list_and_updates(fake: FakeBroker, cores: Cores) -> None:
    place = Namespace(fake, "a1", "b")
    told: list[Any] = []
    consumer = await follow(cores(fake.url), changed=lambda added, removed: told.append((added, removed)))
    assert names(consumer) == {"a1"}
    # A consumer must not make a topic that was just deleted.
    assert [each.force_topic_creation for each in subscribes(fake)] == [False]
    await until(lambda: consumer.pattern is not None and consumer.pattern.is_watched)
    place.update(["a2", "c"])
    await until(lambda: names(consumer) == {"a1", "a2"})
    place.update([], ["a1"])
    await until(lambda: names(consumer) == {"a2"})
    await until(lambda: told == [([NS + "a2"], []), ([], [NS + "a1"])])
    await consumer.close()
    await asyncio.to_thread(fake.wait, Kind.WATCH_TOPIC_LIST_CLOSE)
    assert fake.seen(Kind.UNSUBSCRIBE) == []


@pytest.mark.asyncio
@pytest.mark.proves("C164")
async def test_pattern_update_before_list_not_lost(fake: FakeBroker, cores: Cores) -> None:
    place = Namespace(fake, "a1")
    consumer = await follow(cores(fake.url), pattern_auto_discovery_period=1)
    await until(lambda: consumer.pattern is not None and consumer.pattern.is_watched)
    told = False

    def crossed(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        nonlocal told
        # The list was made before the topic was, and is answered after the word of it.
        old = list(place.listing(peer, command))
        if not told:
            told = True
            place.topics.add(NS + "a2")
            return [place.word([NS + "a2"], []), *old]
        return old

    fake.answers[Kind.GET_TOPICS_OF_NAMESPACE] = crossed
    await until(lambda: names(consumer) == {"a1", "a2"})
    count = len(fake.seen(Kind.GET_TOPICS_OF_NAMESPACE))
    await until(lambda: len(fake.seen(Kind.GET_TOPICS_OF_NAMESPACE)) > count)
    assert names(consumer) == {"a1", "a2"} and len(fake.seen(Kind.CLOSE_CONSUMER)) == 0


@pytest.mark.asyncio
@pytest.mark.proves("C102", "C164")
@pytest.mark.parametrize("refusal", ["no flag", "too long"])
async def test_pattern_without_watch_uses_period(fake: FakeBroker, cores: Cores, refusal: str) -> None:
    place = Namespace(fake, "a1", watches=refusal == "too long")
    fake.answers[Kind.WATCH_TOPIC_LIST] = lambda peer, command: [
        failure(command.watchTopicList.request_id, pb.NotAllowedError)
    ]
    consumer = await follow(cores(fake.url), pattern_auto_discovery_period=1)
    place.update(["a2"], tell=False)
    await until(lambda: names(consumer) == {"a1", "a2"})
    assert bool(fake.seen(Kind.WATCH_TOPIC_LIST)) is (refusal == "too long")


@pytest.mark.asyncio
async def test_pattern_unsupported_by_broker_filtered_here(fake: FakeBroker, cores: Cores) -> None:
    place = Namespace(fake, "a1", "a2", "b")

    def picky(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if command.getTopicsOfNamespace.HasField("topics_pattern"):
            return [failure(command.getTopicsOfNamespace.request_id, pb.MetadataError)]
        return place.listing(peer, command)

    fake.answers[Kind.GET_TOPICS_OF_NAMESPACE] = picky
    consumer = await follow(cores(fake.url), "a(?!2).*")
    assert names(consumer) == {"a1"}


@pytest.mark.asyncio
@pytest.mark.proves("C163")
async def test_pattern_failing_topic_retried(fake: FakeBroker, cores: Cores) -> None:
    place = Namespace(fake, "a1")
    consumer = await follow(cores(fake.url, **FAST))
    await until(lambda: consumer.pattern is not None and consumer.pattern.is_watched)
    refusals = 3

    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        nonlocal refusals
        request_id = command.subscribe.request_id
        if command.subscribe.topic.endswith("a2") and refusals:
            refusals -= 1
            return [failure(request_id, pb.AuthorizationError)]
        return [success(request_id)]

    fake.answers[Kind.SUBSCRIBE] = refuse
    place.update(["a2", "a3"])
    await until(lambda: names(consumer) == {"a1", "a3"})
    assert consumer.dequeue() is None and consumer.is_connected
    await until(lambda: names(consumer) == {"a1", "a2", "a3"})
    assert refusals == 0


@pytest.mark.asyncio
async def test_pattern_open_failure_raised_except_deleted(fake: FakeBroker, cores: Cores) -> None:
    Namespace(fake, "a1", "a2")
    errors = {"a2": pb.TopicNotFound}

    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        error = errors.get(command.subscribe.topic.removeprefix(NS))
        request_id = command.subscribe.request_id
        return [success(request_id) if error is None else failure(request_id, error)]

    fake.answers[Kind.SUBSCRIBE] = refuse
    core = cores(fake.url, **FAST)
    consumer = await follow(core)
    assert names(consumer) == {"a1"}
    await consumer.close()
    closed = len(fake.seen(Kind.CLOSE_CONSUMER))
    errors["a2"] = pb.AuthorizationError
    with pytest.raises(AuthorizationError):
        await follow(core)
    await asyncio.to_thread(fake.wait, Kind.CLOSE_CONSUMER, closed + 1)
    assert not core.consumers


@pytest.mark.asyncio
@pytest.mark.proves("C161")
async def test_pattern_fewer_partitions_refused(
    fake: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture
) -> None:
    place = Namespace(fake, "a1-partition-0", "a1-partition-1")
    fake.partitions[NS + "a1"] = 2
    consumer = await follow(cores(fake.url))
    topic = next(iter(consumer.topics))
    assert len(consumer.children) == 2
    fake.partitions[NS + "a1"] = 1
    await consumer.subscriptions.update_partitions(topic)
    assert len(consumer.children) == 2 and "fewer than" in caplog.text
    fake.partitions[NS + "a1"] = 3
    await until(lambda: consumer.pattern is not None and consumer.pattern.is_watched)
    place.update(["a1-partition-2"])
    await until(lambda: len(consumer.children) == 3)


@pytest.mark.asyncio
@pytest.mark.parametrize("grows", [True, False])
async def test_pattern_missing_partition_joined_later(
    fake: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture, grows: bool
) -> None:
    place = Namespace(fake, "a1-partition-0", "a1-partition-2")
    fake.partitions[NS + "a1"] = 3
    missing = NS + "a1-partition-1"

    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.subscribe
        is_missing = asked.topic == missing and missing not in place.topics
        return [failure(asked.request_id, pb.TopicNotFound) if is_missing else success(asked.request_id)]

    fake.answers[Kind.SUBSCRIBE] = refuse
    consumer = await follow(cores(fake.url), auto_update_partitions=grows)
    (topic,) = consumer.topics
    assert consumer.topics == {topic: 3}
    assert [child.topic.partition for child in consumer.children] == [0, 2] and consumer.is_connected
    await until(lambda: consumer.pattern is not None and consumer.pattern.is_watched)
    # Tried again at each change of the list, and only that partition.
    place.update(["a2"])
    await until(lambda: names(consumer) == {"a1", "a2"})
    assert len(consumer.children) == 3 and caplog.text.count("do not exist") == 1
    fake.partitions[NS + "a1"] = 4
    place.update(["a1-partition-1", "a1-partition-3"])
    await until(lambda: len(consumer.children) == 4 + grows)
    asked = [each.topic for each in subscribes(fake)]
    assert asked.count(missing) >= 3 and asked.count(NS + "a1-partition-0") == 1
    assert consumer.topics[topic] == 3 + grows and not consumer.subscriptions.incomplete


@pytest.mark.asyncio
async def test_pattern_refused_leave_keeps_missing_partition(fake: FakeBroker, cores: Cores) -> None:
    Namespace(fake, "a1-partition-0")
    fake.partitions[NS + "a1"] = 2
    fake.answers[Kind.SUBSCRIBE] = lambda peer, command: [
        failure(command.subscribe.request_id, pb.TopicNotFound)
        if command.subscribe.topic.endswith("-1")
        else success(command.subscribe.request_id)
    ]
    fake.answers[Kind.UNSUBSCRIBE] = lambda peer, command: [failure(command.unsubscribe.request_id, pb.MetadataError)]
    consumer = await follow(cores(fake.url))
    (topic,) = consumer.topics
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.leave("a1")
    assert consumer.subscriptions.incomplete == [topic]
    del fake.answers[Kind.SUBSCRIBE]
    await consumer.subscriptions.update_partitions(topic)
    assert [child.topic.partition for child in consumer.children] == [0, 1]


@pytest.mark.asyncio
async def test_pattern_close_wakes_receivers_without_topics(fake: FakeBroker, cores: Cores) -> None:
    Namespace(fake)
    consumer = await follow(cores(fake.url))
    woken = asyncio.Event()
    consumer.wait_then(woken.set)
    assert not woken.is_set() and consumer.is_connected and not consumer.has_reached_end
    await consumer.close()
    assert woken.is_set() and consumer.is_closed and not consumer.is_connected


@pytest.mark.asyncio
async def test_pattern_start_id_for_one_partition(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[NS + "t"] = 2
    config = ConsumerConfig(subscription_name="s", start_message_id=MessageId(0, 1, 1))
    with pytest.raises(InvalidConfiguration, match="earliest or latest"):
        await cores(fake.url).subscribe(["t"], config, VersionedDecoder(BytesSchema()), None)


class Listener:
    """Remembers; fails once."""

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault
        self.heard: list[tuple[str, list[str]]] = []
        self.fails = True

    def on_topics_added(self, topics: list[str]) -> Any:
        self.heard.append(("added", topics))
        if self.fails:
            self.fails = False
            raise self.fault

    def on_topics_removed(self, topics: list[str]) -> Any:
        self.heard.append(("removed", topics))


class Waiting(Listener):
    """A listener of coroutines."""

    async def on_topics_added(self, topics: list[str]) -> None:
        for _ in range(20 if self.fails else 1):
            await asyncio.sleep(0)
        super().on_topics_added(topics)


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", [RuntimeError("x"), SystemExit(), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("kind", [Listener, Waiting])
async def test_pattern_listener_in_order_may_raise(kind: type[Listener], fault: BaseException) -> None:
    listener = kind(fault)
    changed = topics_told_on_loop(listener)
    changed(["a"], [])
    changed(["b"], ["a"])
    await until(lambda: len(listener.heard) == 3)
    assert listener.heard == [("added", ["a"]), ("removed", ["a"]), ("added", ["b"])]


@pytest.mark.asyncio
async def test_pattern_listener_goes_on_after_failed_task() -> None:
    # In the main thread the error is that of its task, which the next one waits for.
    listener, before = Listener(Own()), asyncio.all_tasks()
    changed = topics_told_on_loop(listener)
    changed(["a"], [])
    (failed,) = asyncio.all_tasks() - before
    changed([], ["a"])
    await until(lambda: len(listener.heard) == 2)
    assert isinstance(failed.exception(), Own)


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_pattern_listener_in_thread_error_of_any_class(kind: type[BaseException]) -> None:
    listener, work = Listener(kind()), []  # type: ignore[var-annotated]
    changed = topics_told(listener, work.append)
    changed(["a"], [])
    in_other_thread(work[0])
    assert listener.heard == [("added", ["a"])] and not listener.fails


@pytest.mark.asyncio
async def test_pattern_listener_cancelled_task_ends() -> None:
    class Endless(Listener):
        async def on_topics_added(self, topics: list[str]) -> None:
            await asyncio.get_running_loop().create_future()

    before = asyncio.all_tasks()
    topics_told_on_loop(Endless(RuntimeError()))(["a"], [])
    (task,) = asyncio.all_tasks() - before
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("fault", [RuntimeError("x"), SystemExit(), asyncio.CancelledError()], ids=repr)
def test_pattern_listener_on_thread(fault: BaseException) -> None:
    listener, work = Listener(fault), []  # type: ignore[var-annotated]
    changed = topics_told(listener, work.append)
    changed(["a"], [])
    changed([], ["a"])
    assert listener.heard == []
    for each in work:
        each()
    assert listener.heard == [("added", ["a"]), ("removed", ["a"])]
