"""Subscribing by pattern on a real broker: what it means, and topics that come, go and grow meanwhile."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker import Standalone
from pulsar_native import (
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
    NotConnected,
    PulsarException,
    RegexSubscriptionMode,
    Timeout,
)
from support.apis import Api
from support.brokers import Broker, admin
from support.raw import commands_of
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]
NewNamespace = Callable[[], str]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest


@pytest.fixture
def namespace(broker: Broker) -> NewNamespace:
    """Give a factory of namespaces with short names: the broker watches patterns of at most 50 characters."""

    def create() -> str:
        name = f"public/p-{uuid.uuid4().hex[:8]}"
        broker.admin("PUT", f"namespaces/{name}")
        return name

    return create


class Told:
    """A listener that remembers what it was told."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.removed: list[str] = []

    def on_topics_added(self, topics: list[str]) -> None:
        self.added += topics

    def on_topics_removed(self, topics: list[str]) -> None:
        self.removed += topics


def publish(client: Any, *names: str) -> None:
    """Publish to each topic its own name."""
    for name in names:
        producer = client.create_producer(name)
        producer.send(name.encode())
        producer.close()


def values(consumer: Any, count: int) -> list[str]:
    """Receive so many messages and return what they hold."""
    return sorted(consumer.receive(15_000).data().decode() for _ in range(count))


@pytest.mark.proves("C162", "C88")
def test_whole_names_without_their_domain(
    api: Api, client: Any, broker: Broker, namespace: NewNamespace, stats: Stats
) -> None:
    place = namespace()
    names = {
        local: f"persistent://{place}/{local}" for local in ("a1", "xa1", "a2-more", "b", "a-split", "A9", "axb", "a.b")
    }
    broker.admin("PUT", f"persistent/{place}/a-split/partitions", 3)
    publish(client, *names.values())
    # The domain may be left out; partitions count as their topic; a name matches whole, or not at all.
    for pattern, wanted in (
        (f"persistent://{place}/a.*", {"a1", "a2-more", "a-split", "axb", "a.b"}),
        (f"{place}/a.*", {"a1", "a2-more", "a-split", "axb", "a.b"}),
        (f"{place}/a", set()),
        (f"{place}/a-split", {"a-split"}),
        (f"{place}/a1|{place}/b", {"a1", "b"}),
        (f"{place}/a[.]b", {"a.b"}),
        # Python's own words: the broker is not asked in them where it cannot be.
        (f"{place}/a1(?!x)|{place}/(?P<name>b)", {"a1", "b"}),
    ):
        consumer = client.subscribe(re.compile(pattern), "sub", ConsumerType.Shared)
        assert set(consumer.topics()) == {names[local] for local in wanted}, pattern
        assert consumer.topic() == pattern
        consumer.close()
    ignoring = client.subscribe(re.compile(f"{place}/a[0-9]", re.IGNORECASE), "sub", ConsumerType.Shared)
    assert set(ignoring.topics()) == {names["a1"], names["A9"]}
    # Longer than the 50 characters the broker's filter takes: it answers with all, and the filter here decides.
    long = client.subscribe(re.compile(f"{place}/a(1|{'2' * 60})"), "sub", ConsumerType.Shared)
    assert long.topics() == [names["a1"]]
    for each in (ignoring, long):
        each.close()
    consumer = client.subscribe(re.compile(f"{place}/a-.*"), "split", initial_position=EARLIEST)
    assert values(consumer, 1) == [names["a-split"]]
    for index in range(3):
        assert len(stats(f"{names['a-split']}-partition-{index}")["subscriptions"]["split"]["consumers"]) == 1


def test_a_pattern_as_text(broker: Broker, namespace: NewNamespace) -> None:
    place = namespace()
    asyncio_api = Api("asyncio")
    try:
        client = asyncio_api.client(broker.service_url)
        publish(client, f"persistent://{place}/a1", f"persistent://{place}/b1")
        consumer = client.subscribe(f"persistent://{place}/a.*", "sub", is_pattern_topic=True)
        assert consumer.topics() == [f"persistent://{place}/a1"]
        with pytest.raises(InvalidConfiguration, match="exclude each other"):
            client.subscribe([f"{place}/a.*"], "sub", is_pattern_topic=True)
        with pytest.raises(InvalidConfiguration, match="no regular expression"):
            client.subscribe(f"{place}/(", "sub", is_pattern_topic=True)
    finally:
        asyncio_api.close()


@pytest.mark.proves("C88", "C105")
def test_contradictions_fail_before_any_io(api: Api, broker: Broker, relay: NewRelay) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    for topic, told in (
        ([], "at least one topic"),
        ([re.compile("public/default/a")], "list of str"),
        (("public/default/a", re.compile("b")), "list of str"),
        (5, "list of str"),
        (None, "list of str"),
        ("", "topic"),
        ("a/b", "Invalid short topic name"),
        (["fine", "http://a/b/c"], "domain"),
        (re.compile("persistent://public/a.*"), "tenant/namespace/topic"),
        (re.compile("persistent://public/(default|other)/a.*"), "plain names"),
        (re.compile("http://public/default/a.*"), "domain"),
        (re.compile("public/default/"), "tenant/namespace/topic"),
        (re.compile(b"public/default/a.*"), "of str, not of bytes"),
    ):
        with pytest.raises(PulsarException, match=told):
            client.subscribe(topic, "sub")
    with pytest.raises(InvalidConfiguration, match="topics_changed_listener needs a pattern"):
        client.subscribe("public/default/a", "sub", topics_changed_listener=Told())
    with pytest.raises(InvalidConfiguration, match="pattern_auto_discovery_period"):
        client.subscribe(re.compile("a.*"), "sub", pattern_auto_discovery_period=-1)
    assert through.accepted == 0


@pytest.mark.proves("C105")
def test_the_three_modes(api: Api, client: Any, namespace: NewNamespace) -> None:
    place = namespace()
    kept, passing = f"persistent://{place}/a1", f"non-persistent://{place}/a2"
    # A non-persistent topic is there as long as somebody uses it.
    producers = [client.create_producer(name) for name in (kept, passing)]
    for mode, wanted in (
        (RegexSubscriptionMode.PersistentOnly, {kept}),
        (RegexSubscriptionMode.NonPersistentOnly, {passing}),
        (RegexSubscriptionMode.AllTopics, {kept, passing}),
    ):
        consumer = client.subscribe(
            re.compile(f"persistent://{place}/a.*"), f"sub-{mode}", regex_subscription_mode=mode
        )
        assert set(consumer.topics()) == wanted
        for producer in producers:
            producer.send(producer.topic().encode())
        assert set(values(consumer, len(wanted))) == wanted
        with pytest.raises(Timeout):
            consumer.receive(100)
        consumer.close()


@pytest.mark.proves("C163", "C164")
def test_topics_that_come_and_go_are_followed_at_once(
    api: Api, client: Any, broker: Broker, namespace: NewNamespace, stats: Stats, eventually: Eventually
) -> None:
    place, told = namespace(), Told()
    first, second, split, other = (f"persistent://{place}/{local}" for local in ("a1", "a2", "a-split", "b"))
    publish(client, first)
    consumer = client.subscribe(
        re.compile(f"persistent://{place}/a.*"), "sub", initial_position=EARLIEST, topics_changed_listener=told
    )
    assert values(consumer, 1) == [first] and told.added == []
    # The period is a minute: only the broker's word can be this quick.
    publish(client, second, other)
    assert values(consumer, 1) == [second]
    broker.admin("PUT", f"persistent/{place}/a-split/partitions", 2)
    publish(client, split, split)
    assert values(consumer, 2) == [split, split]
    eventually(lambda: told.added == [second, split])
    broker.admin("POST", f"persistent/{place}/a-split/partitions", 4)
    eventually(lambda: "sub" in stats(f"{split}-partition-3")["subscriptions"])
    broker.admin("DELETE", f"persistent/{place}/a2?force=true")
    eventually(lambda: told.removed == [second])
    broker.admin("DELETE", f"persistent/{place}/a-split/partitions?force=true")
    eventually(lambda: told.removed == [second, split])
    assert consumer.topics() == [first] and consumer.is_connected()
    # The consumer does not bring a deleted topic back.
    assert sorted(broker.admin("GET", f"persistent/{place}")) == [first, other]  # type: ignore[type-var]
    # What is left is served on, and what comes again is joined again.
    publish(client, first, second)
    assert values(consumer, 2) == [first, second]
    eventually(lambda: told.added == [second, split, second])


@pytest.mark.proves("C163")
@pytest.mark.parametrize("partitioned", [False, True], ids=["with-partitions", "without-partitions"])
def test_topic_recreated_in_other_form_is_joined(
    api: Api, broker: Broker, namespace: NewNamespace, partitioned: bool
) -> None:
    place = namespace()
    name, path = f"persistent://{place}/a", f"persistent/{place}/a"

    def create(split: bool) -> None:
        broker.admin("PUT", f"{path}/partitions" if split else path, 2 if split else None)

    create(partitioned)
    # Over HTTP topics are listed once a period: the two changes are one.
    client = api.client(broker.admin_url)
    consumer = client.subscribe(
        re.compile(f"{place}/a"), "sub", initial_position=EARLIEST, pattern_auto_discovery_period=5
    )
    assert consumer.topics() == [name]
    broker.admin("DELETE", f"{path}/partitions?force=true" if partitioned else f"{path}?force=true")
    create(not partitioned)
    publish(client, name, name)
    assert values(consumer, 2) == [name] * 2
    client.close()


@pytest.mark.proves("C163")
def test_a_topic_that_is_gone_cannot_be_acknowledged(
    api: Api, client: Any, broker: Broker, namespace: NewNamespace, eventually: Eventually
) -> None:
    place = namespace()
    names = [f"persistent://{place}/a{number}" for number in range(2)]
    publish(client, *names)
    consumer = client.subscribe(re.compile(f"{place}/a.*"), "sub", initial_position=EARLIEST)
    messages = {message.topic_name(): message for message in (consumer.receive(10_000) for _ in range(2))}
    broker.admin("DELETE", f"persistent/{place}/a0?force=true")
    eventually(lambda: consumer.topics() == [names[1]])
    for use in (consumer.acknowledge, consumer.negative_acknowledge, consumer.acknowledge_cumulative):
        with pytest.raises(NotConnected, match="a0"):
            use(messages[names[0]])
    consumer.acknowledge(messages[names[1]])


@pytest.mark.proves("C163")
def test_a_missing_partition_is_joined_when_it_exists(
    api: Api, client: Any, broker: Broker, namespace: NewNamespace
) -> None:
    place = namespace()
    broker.admin("PUT", f"persistent/{place}/a-split/partitions", 3)
    name = f"persistent://{place}/a-split"
    parts = [f"{name}-partition-{index}" for index in range(3)]
    publish(client, *parts)
    broker.admin("DELETE", f"persistent/{place}/a-split-partition-1?force=true")
    consumer = client.subscribe(re.compile(f"persistent://{place}/a.*"), "sub", initial_position=EARLIEST)
    assert consumer.topics() == [name] and values(consumer, 2) == [parts[0], parts[2]]
    publish(client, parts[1])
    # Of the others nothing is delivered again.
    assert values(consumer, 1) == [parts[1]]


@pytest.mark.proves("C163")
def test_one_topic_fails_without_the_others(
    api: Api, client: Any, broker: Broker, relay: NewRelay, namespace: NewNamespace, eventually: Eventually
) -> None:
    place = namespace()
    through = relay(broker.service_url)
    taken, free = f"persistent://{place}/a-taken", f"persistent://{place}/a-free"
    consumer = api.client(through.service_url).subscribe(re.compile(f"{place}/a.*"), "sub", initial_position=EARLIEST)
    assert consumer.topics() == []
    with pytest.raises(Timeout):
        consumer.receive(100)
    # Another client is on that subscription before the topic is noticed: it makes the topic by subscribing.
    through.wait_for(Command.WATCH_TOPIC_LIST_SUCCESS)
    through.hold(Command.WATCH_TOPIC_UPDATE, TO_CLIENT)
    exclusive = client.subscribe(taken, "sub", initial_position=EARLIEST)
    publish(client, free, taken)
    eventually(lambda: through.held >= 2)
    through.release()
    assert values(consumer, 1) == [free]
    assert consumer.topics() == [free]
    exclusive.close()
    # Tried again with a back-off, and not only at the next look at the list.
    assert values(consumer, 1) == [taken]
    eventually(lambda: set(consumer.topics()) == {taken, free})


@pytest.mark.proves("C160")
def test_leaving_one_topic_of_a_pattern(
    api: Api, client: Any, broker: Broker, namespace: NewNamespace, stats: Stats, eventually: Eventually
) -> None:
    place = namespace()
    names = [f"persistent://{place}/a{number}" for number in range(3)]
    publish(client, *names)
    consumer = client.subscribe(
        re.compile(f"{place}/a.*"), "sub", initial_position=EARLIEST, pattern_auto_discovery_period=1
    )
    assert values(consumer, 3) == names
    consumer.unsubscribe(names[1])
    assert set(consumer.topics()) == {names[0], names[2]} and "sub" not in stats(names[1])["subscriptions"]
    with pytest.raises(InvalidConfiguration, match="a1"):
        consumer.unsubscribe(names[1])
    # It stays away while the others are followed on.
    publish(client, names[1], f"persistent://{place}/a3")
    assert values(consumer, 1) == [f"persistent://{place}/a3"]
    assert names[1] not in consumer.topics() and "sub" not in stats(names[1])["subscriptions"]
    consumer.unsubscribe()
    for name in consumer.topics():
        assert "sub" not in stats(name)["subscriptions"]


@pytest.mark.proves("C164")
def test_the_watch_is_asked_for_with_the_hash_and_comes_back(
    api: Api, broker: Broker, client: Any, relay: NewRelay, namespace: NewNamespace, eventually: Eventually
) -> None:
    place = namespace()
    publish(client, f"persistent://{place}/a1")
    through = relay(broker.service_url)
    options = {"starting_backoff_interval_ms": 50}
    consumer = api.client(through.service_url, **options).subscribe(
        re.compile(f"persistent://{place}/a.*"), "sub", initial_position=EARLIEST
    )
    through.wait_for(Command.WATCH_TOPIC_LIST_SUCCESS, 1)
    (asked,) = commands_of(through, Command.GET_TOPICS_OF_NAMESPACE)
    (watch,) = commands_of(through, Command.WATCH_TOPIC_LIST)
    assert asked.getTopicsOfNamespace.topics_pattern == watch.watchTopicList.topics_pattern == f"{place}/a.*"
    (answer,) = commands_of(through, Command.WATCH_TOPIC_LIST_SUCCESS, TO_CLIENT)
    # The list has not changed since it was asked for, so it is left out.
    assert watch.watchTopicList.topics_hash == answer.watchTopicListSuccess.topics_hash
    assert list(answer.watchTopicListSuccess.topic) == []
    assert values(consumer, 1) == [f"persistent://{place}/a1"]
    # What comes while the connection is lost is in the answer to the next watch.
    through.refuse()
    through.cut()
    publish(client, f"persistent://{place}/a2")
    through.accept()
    assert values(consumer, 2)[-1] == f"persistent://{place}/a2"
    assert through.count(Command.WATCH_TOPIC_LIST, TO_BROKER) >= 2
    through.wait_for(Command.WATCH_TOPIC_LIST_SUCCESS, 2)
    publish(client, f"persistent://{place}/a3")
    eventually(lambda: f"persistent://{place}/a3" in consumer.topics())
    assert through.count(Command.GET_TOPICS_OF_NAMESPACE, TO_BROKER) == 1, "the period is a minute"
    consumer.close()
    through.wait_for(Command.WATCH_TOPIC_LIST_CLOSE, 1)


@pytest.fixture(scope="module")
def silent_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Give a broker that neither filters nor tells of changes."""
    folder = tmp_path_factory.mktemp("silent")
    with Standalone(folder, conf={"enableBrokerSideSubscriptionPatternEvaluation": "false"}) as started:
        yield started


@pytest.mark.proves("C102", "C164")
def test_without_the_brokers_word_the_period_does(api: Api, silent_broker: Standalone, eventually: Eventually) -> None:
    client = api.client(silent_broker.service_url)
    stem = f"persistent://public/default/{api.name}-a"
    publish(client, f"{stem}1", f"persistent://public/default/x{api.name}-a1")
    told = Told()
    pattern = re.compile(f"{stem}.*")
    often, seldom = (
        client.subscribe(
            pattern, name, initial_position=EARLIEST, pattern_auto_discovery_period=period, topics_changed_listener=told
        )
        for name, period in (("often", 1), ("seldom", 3600))
    )
    # Unfiltered, the list is filtered here.
    assert often.topics() == [f"{stem}1"] == seldom.topics()
    inner = (often.target if api.name == "asyncio" else often)._inner
    assert not inner.pattern.is_watched
    started = time.monotonic()
    publish(client, f"{stem}2")
    assert values(often, 2) == [f"{stem}1", f"{stem}2"]
    assert time.monotonic() - started < 30
    admin(silent_broker.admin_url, "DELETE", f"{stem}2".replace("://", "/") + "?force=true")
    eventually(lambda: often.topics() == [f"{stem}1"])
    assert seldom.topics() == [f"{stem}1"], "an hour has not passed"
    eventually(lambda: told.added == [f"{stem}2"] and told.removed == [f"{stem}2"])


@pytest.mark.proves("C102")
def test_a_web_service_is_asked_every_period(api: Api, broker: Broker, client: Any, namespace: NewNamespace) -> None:
    place = namespace()
    publish(client, f"persistent://{place}/a1", f"persistent://{place}/xa1")
    consumer = api.client(broker.admin_url).subscribe(
        re.compile(f"{place}/a.*"), "sub", initial_position=EARLIEST, pattern_auto_discovery_period=1
    )
    publish(client, f"persistent://{place}/a2")
    assert values(consumer, 2) == [f"persistent://{place}/a1", f"persistent://{place}/a2"]


@pytest.mark.proves("C102")
def test_a_period_below_a_second_is_one(
    api: Api, broker: Broker, client: Any, relay: NewRelay, namespace: NewNamespace
) -> None:
    place = namespace()
    through = relay(broker.service_url)
    started = time.monotonic()
    api.client(through.service_url).subscribe(re.compile(f"{place}/a.*"), "sub", pattern_auto_discovery_period=0)
    through.wait_for(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE, 4)
    assert time.monotonic() - started > 2.5
    # Nothing has changed, so the list itself is asked for and sent but once.
    asked = [each.getTopicsOfNamespace for each in commands_of(through, Command.GET_TOPICS_OF_NAMESPACE)]
    assert not asked[0].topics_hash and all(each.topics_hash == "00000000" for each in asked[1:])
    answers = commands_of(through, Command.GET_TOPICS_OF_NAMESPACE_RESPONSE, TO_CLIENT)
    assert [each.getTopicsOfNamespaceResponse.changed for each in answers][1:4] == [False] * 3


def test_seek_and_ends_over_a_pattern(api: Api, client: Any, namespace: NewNamespace) -> None:
    place = namespace()
    names = [f"persistent://{place}/a{number}" for number in range(3)]
    publish(client, *names)
    consumer = client.subscribe(re.compile(f"{place}/a.*"), "sub", initial_position=EARLIEST)
    assert values(consumer, 3) == names
    assert sorted(each.topic_name() for each in consumer.get_last_message_ids()) == names
    consumer.seek(MessageId.earliest)
    assert values(consumer, 3) == names
