"""Push consumers on a real broker: their life, who gets what, where they begin, and what holds polling back."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import (
    ConsumeFromWhere,
    InvalidConfiguration,
    MessageModel,
    NotAllowedError,
    PushConsumerConfig,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.push_consumers import (
    IN_ORDER,
    LATER,
    SUCCESS,
    Gate,
    Recorder,
    Started,
    backlog,
    messages_of,
    numbered,
    publish,
)

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]


# --- life -------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("C191", "C209")
def test_one_loop_serves_all_topics_and_does_not_poll(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    names = [topic(f"t{number}") for number in range(6)]
    producers = [client.create_producer(name) for name in names]
    before = threading.active_count()
    recorder = Recorder()
    push_consumer = consume(client, names, recorder, consume_thread_max=2)
    for number, producer in enumerate(producers):
        producer.send(b"%d" % number)
    eventually(lambda: len(recorder.seen) == 6)
    assert sorted(recorder.seen) == numbered(6)
    # Two workers, whichever the API; the engine's thread, or the test's loop, was there before.
    dispatcher = [thread for thread in threading.enumerate() if thread.name.startswith("pulsar-native-push-consumer")]
    assert len(dispatcher) <= 2
    assert threading.active_count() - before <= (2 if api.name == "blocking" else 32)
    eventually(lambda: push_consumer.stats().unfinished == 0)

    def is_quiet() -> bool:
        rounds = push_consumer.stats().rounds
        time.sleep(1.2)
        return bool(push_consumer.stats().rounds == rounds)

    # The last handler's result may still wake the loop, once.
    assert is_quiet() or is_quiet()


@pytest.mark.proves("C192")
def test_a_push_consumer_starts_once_and_stops_once(client: Any, topic: NewTopic, consume: Started) -> None:
    push_consumer = consume.make(client, topic(), Recorder())
    assert push_consumer.state.name == "CREATE_JUST"
    push_consumer.start()
    assert push_consumer.state.name == "RUNNING"
    for call in (
        push_consumer.start,
        lambda: push_consumer.subscribe("other"),
        lambda: push_consumer.unsubscribe("other"),
    ):
        with pytest.raises(NotAllowedError, match="started before"):
            call()
    assert push_consumer.shutdown().unfinished == 0
    assert push_consumer.state.name == "SHUTDOWN_ALREADY"
    assert push_consumer.shutdown().finished == 0
    with pytest.raises(NotAllowedError, match="make a new one"):
        push_consumer.start()


@pytest.mark.proves("C192")
def test_a_group_is_in_a_process_once_under_each_name(api: Api, client: Any, topic: NewTopic, consume: Started) -> None:
    name = topic()
    first = consume(client, name, Recorder(), consumer_group="twice")
    second = consume.make(client, name, Recorder(), consumer_group="twice")
    with pytest.raises(NotAllowedError, match="instance_name"):
        second.start()
    assert second.state.name == "CREATE_JUST"
    consume(client, name, Recorder(), consumer_group="twice", instance_name="second")
    first.shutdown()
    second.start()
    assert second.state.name == "RUNNING"


@pytest.mark.proves("C192")
def test_a_start_that_failed_leaves_nothing_and_is_not_tried_again(
    client: Any, topic: NewTopic, consume: Started, stats: Stats
) -> None:
    name = topic()
    push_consumer = consume.make(client, [name, "persistent://public/nowhere/topic"], Recorder())
    with pytest.raises(Exception, match=r"(?i)namespace|not found|metadata"):
        push_consumer.start()
    assert push_consumer.state.name == "START_FAILED"
    assert not stats(name)["subscriptions"][push_consumer.config.consumer_group]["consumers"]
    with pytest.raises(NotAllowedError):
        push_consumer.start()
    assert push_consumer.shutdown().unfinished == 0
    consume(client, name, Recorder(), consumer_group=push_consumer.config.consumer_group)


@pytest.mark.proves("C193", "C198")
def test_the_group_is_the_subscription_and_members_tell_host_and_process(
    client: Any, topic: NewTopic, consume: Started, stats: Stats
) -> None:
    name = topic()
    consume(client, name, Recorder(), consumer_group="billing")
    consume(client, name, Recorder(), consumer_group="billing", instance_name="second")
    subscription = stats(name)["subscriptions"]["billing"]
    assert subscription["type"] == "Shared"
    names = {each["consumerName"] for each in subscription["consumers"]}
    assert names == {f"{socket.gethostname()}@{os.getpid()}", f"{socket.gethostname()}@second"}


@pytest.mark.proves("C197")
def test_a_push_consumer_has_one_kind_of_handler(api: Api, client: Any, topic: NewTopic) -> None:
    def new() -> Any:
        made = api.push_consumer(client, PushConsumerConfig(consumer_group="kinds"))
        made.subscribe(topic())
        return made

    both = new()
    for arguments in ({}, {"concurrently": len, "orderly": len}):
        with pytest.raises(InvalidConfiguration, match="one handler"):
            both.register_message_listener(**arguments)
    with pytest.raises(InvalidConfiguration, match="cannot be called"):
        both.register_message_listener(5)
    both.register_message_listener(lambda _messages, _context: SUCCESS)
    with pytest.raises(InvalidConfiguration, match="never both"):
        both.register_message_listener(orderly=lambda _messages, _context: IN_ORDER)
    with pytest.raises(InvalidConfiguration, match="register_message_listener"):
        new().start()
    empty = api.push_consumer(client, PushConsumerConfig(consumer_group="kinds"))
    empty.register_message_listener(lambda _messages, _context: SUCCESS)
    with pytest.raises(InvalidConfiguration, match=r"subscribe\(\)"):
        empty.start()


def test_what_a_push_consumer_is_made_of_is_checked(api: Api, client: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="PushConsumerConfig"):
        api.push_consumer(client, {"consumer_group": "g"})  # type: ignore[arg-type]
    if api.name == "blocking":
        with pytest.raises(InvalidConfiguration, match="client of pulsar_native"):
            api.push_consumer("client", PushConsumerConfig(consumer_group="g"))

        async def handle(_messages: Any, _context: Any) -> Any:
            return SUCCESS

        with pytest.raises(InvalidConfiguration, match=r"pulsar_native\.asyncio"):
            api.push_consumer(client, PushConsumerConfig(consumer_group="g")).register_message_listener(handle)


@pytest.mark.proves("C199")
def test_the_phases_of_a_start_are_logged_in_order(
    client: Any, topic: NewTopic, consume: Started, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level("INFO", "pulsar_native.push_consumer"):
        push_consumer = consume(
            client, topic(), Recorder(), message_model=MessageModel.BROADCASTING, offset_store_folder=str(tmp_path)
        )
        push_consumer.shutdown()
    phases = [text.rpartition(": ")[2] for text in messages_of(caplog)]
    assert phases == [
        "check configuration", "join group", "load positions", "start workers", "subscribe", "find positions",
        "start poller", "running", "stop poller", "leave group",
    ]  # fmt: skip


def test_a_push_consumer_ends_with_its_client(
    api: Api, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    own = api.client(broker.service_url)
    name = topic()
    push_consumer = consume(own, name, Recorder(), consumer_group="ends")
    own.close()
    eventually(lambda: push_consumer.state.name == "SHUTDOWN_ALREADY")
    assert push_consumer.shutdown(1000).unfinished == 0
    other = api.client(broker.service_url)
    consume(other, name, Recorder(), consumer_group="ends")


@pytest.mark.proves("C214")
def test_positions_are_kept_when_the_client_goes_first(
    api: Api, client: Any, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually, tmp_path: Path
) -> None:
    name = topic()
    options = {
        "consumer_group": "first",
        "message_model": MessageModel.BROADCASTING,
        "offset_store_folder": str(tmp_path),
    }
    own = api.client(broker.service_url)
    publish(api, client, name, numbered(3))
    push_consumer = consume(own, name, Recorder(), **options)
    eventually(lambda: push_consumer.stats().succeeded == 3)
    own.close()
    eventually(lambda: push_consumer.state.name == "SHUTDOWN_ALREADY")
    recorder = Recorder()
    consume(client, name, recorder, **options)
    publish(api, client, name, [b"new"])
    eventually(lambda: recorder.seen == [b"new"])


# --- who gets what, and from where ------------------------------------------------------------------------------------


@pytest.mark.proves("C194")
def test_the_members_of_a_group_share(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    first, second = Recorder(), Recorder()
    consume(client, name, first, consumer_group="share", instance_name="1")
    consume(client, name, second, consumer_group="share", instance_name="2")
    publish(api, client, name, numbered(40))
    eventually(lambda: len(first.seen) + len(second.seen) == 40)
    assert sorted(first.seen + second.seen) == sorted(numbered(40))
    assert first.seen and second.seen


@pytest.mark.proves("C194")
def test_broadcasting_gives_everything_to_everyone_and_drops_failures(
    api: Api,
    client: Any,
    topic: NewTopic,
    consume: Started,
    eventually: Eventually,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = topic(partitions=2)
    options = {"message_model": MessageModel.BROADCASTING, "offset_store_folder": str(tmp_path)}
    first = Recorder(lambda messages, _context: LATER if messages[0].data() == b"7" else SUCCESS)
    second = Recorder()
    failing = consume(client, name, first, instance_name="1", **options)
    consume(client, name, second, instance_name="2", **options)
    publish(api, client, name, numbered(20))
    eventually(lambda: len(first.seen) == len(second.seen) == 20)
    assert sorted(first.seen) == sorted(second.seen) == sorted(numbered(20))
    eventually(lambda: failing.stats().dropped == 1)
    assert any("Broadcasting" in text and "dropped" in text for text in messages_of(caplog))
    # Seen is not yet counted: the handler returns first.
    eventually(lambda: failing.stats().unfinished == 0)
    assert first.seen.count(b"7") == 1


@pytest.mark.proves("C194")
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("model", MessageModel, ids=lambda model: model.name.lower())
def test_burst_on_non_persistent_topic_all_handled(
    api: Api,
    client: Any,
    topic: NewTopic,
    consume: Started,
    eventually: Eventually,
    tmp_path: Path,
    model: MessageModel,
    orderly: bool,
) -> None:
    name = topic().replace("persistent", "non-persistent")
    gate = Gate(answer=IN_ORDER if orderly else SUCCESS)
    options = {"message_model": model, "offset_store_folder": str(tmp_path)}
    push_consumer = consume(client, name, gate, orderly=orderly, **options)
    # Their ids are all the same, and the handler has the first ones until all have arrived.
    publish(api, client, name, numbered(50))
    eventually(lambda: push_consumer.stats().unfinished == 50)
    gate.opened.set()
    eventually(lambda: push_consumer.stats().succeeded == 50)
    assert sorted(gate.recorder.seen) == sorted(numbered(50)) and push_consumer.stats().duplicates == 0


@pytest.mark.proves("C195")
def test_a_new_group_begins_at_the_end_the_beginning_or_a_time(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, [b"old"])
    # The time of a start has whole seconds.
    time.sleep(1.1)
    moment = time.strftime("%Y%m%d%H%M%S", time.localtime(int(time.time()) + 1))
    time.sleep(1.1)
    publish(api, client, name, [b"new"])
    groups = {where: Recorder() for where in ConsumeFromWhere}
    for where, recorder in groups.items():
        consume(client, name, recorder, consumer_group=where.value, consume_from_where=where, consume_timestamp=moment)
    publish(api, client, name, [b"now"])
    expected = {
        ConsumeFromWhere.LAST_OFFSET: [b"now"],
        ConsumeFromWhere.TIMESTAMP: [b"new", b"now"],
        ConsumeFromWhere.FIRST_OFFSET: [b"old", b"new", b"now"],
    }
    for where, recorder in groups.items():
        eventually(lambda where=where, recorder=recorder: sorted(recorder.seen) == sorted(expected[where]))


@pytest.mark.proves("C195")
def test_a_group_with_a_position_goes_on_from_there(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    publish(api, client, name, numbered(3))
    first, second = Recorder(), Recorder()
    options = {"consumer_group": "stays", "consume_from_where": ConsumeFromWhere.TIMESTAMP}
    push_consumer = consume(client, name, first, **options)
    eventually(lambda: len(first.seen) == 3)
    push_consumer.shutdown(5000)
    eventually(lambda: backlog(stats, name, "stays") == 0)
    consume(client, name, second, **options)
    publish(api, client, name, [b"new"])
    eventually(lambda: b"new" in second.seen)
    assert second.seen == [b"new"]


@pytest.mark.proves("C196", "C212")
def test_messages_are_chosen_by_tag_and_the_others_acknowledged(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    recorder, nothing = Recorder(), Recorder()
    chosen = consume(client, name, recorder, consumer_group="chosen", expression="a || b")
    nobody = consume(client, name, nothing, consumer_group="nobody", expression="none")
    for tag in ("a", "b", "c", None):
        publish(api, client, name, [str(tag).encode()] * 2, properties={"TAGS": tag} if tag else None)
    eventually(lambda: sorted(recorder.seen) == [b"a", b"a", b"b", b"b"])
    for push_consumer in (chosen, nobody):
        eventually(lambda group=push_consumer.config.consumer_group: backlog(stats, name, group) == 0)
    assert chosen.stats().filtered == 4 and nobody.stats().filtered == 8 and not nothing.seen


@pytest.mark.proves("C196")
def test_filters_of_ones_own_and_expressions_that_are_refused(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    def even(message: Any) -> bool:
        return int(message.data()) % 2 == 0  # raises for what is no number, which is given to the handler

    name = topic()
    recorder = Recorder()
    push_consumer = consume.make(client, name, recorder)
    for wrong in ("a ||", "price > 5", 5):
        with pytest.raises(InvalidConfiguration, match="tag"):
            push_consumer.subscribe(name, wrong)
    push_consumer.register_filter_message_hook(even)
    push_consumer.start()
    publish(api, client, name, [*numbered(6), b"x"])
    eventually(lambda: sorted(recorder.seen) == [b"0", b"2", b"4", b"x"])


# --- flow control -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("C201", "C202")
def test_intake_stops_at_too_many_unfinished_messages_and_says_why(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    publish(api, client, name, numbered(60))
    gate = Gate()
    push_consumer = consume(client, name, gate, pull_threshold_for_queue=10, pull_batch_size=4)
    eventually(lambda: push_consumer.stats().throttled["count"] >= 3)
    # The limit and one batch.
    assert 10 < push_consumer.stats().unfinished <= 14
    (text,) = [text for text in messages_of(caplog) if "poller stops" in text]
    assert f"{push_consumer.stats().unfinished} unfinished messages are over 10" in text
    assert "numbers 0 to" in text and "MiB" in text and "span" in text and "time 1" in text
    gate.opened.set()
    eventually(lambda: len(gate.recorder.seen) == 60)
    assert sorted(gate.recorder.seen) == sorted(numbered(60))


@pytest.mark.proves("C203")
def test_intake_stops_at_too_much_unfinished_memory(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, [os.urandom(700_000) for _ in range(9)])
    gate = Gate()
    push_consumer = consume(client, name, gate, pull_threshold_size_for_queue=1, pull_batch_size=1)
    eventually(lambda: push_consumer.stats().throttled["size"] >= 2)
    # More than one whole MiB is two of them, which the third message makes.
    assert push_consumer.stats().unfinished == 3 and push_consumer.stats().unfinished_bytes == 2_100_000
    gate.opened.set()
    eventually(lambda: len(gate.recorder.seen) == 9)


@pytest.mark.proves("C204")
def test_intake_stops_when_one_old_message_holds_back_too_many_done_ones(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, numbered(80))
    gate = Gate(lambda content: content == b"0")
    push_consumer = consume(client, name, gate, consume_concurrently_max_span=30, pull_batch_size=8)
    eventually(lambda: push_consumer.stats().throttled["span"] >= 2)
    eventually(lambda: push_consumer.stats().unfinished == 1)
    assert 30 < len(gate.recorder.seen) <= 31 + 8
    gate.opened.set()
    eventually(lambda: len(gate.recorder.seen) == 80)


@pytest.mark.proves("C205")
def test_a_topics_limits_are_shared_among_its_partitions_also_when_they_grow(
    api: Api, client: Any, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic(partitions=1)
    gate = Gate()
    push_consumer = consume(
        client, name, gate, pull_threshold_for_topic=20, pull_batch_size=1, poll_name_server_interval=200
    )
    publish(api, client, name, numbered(40))
    eventually(lambda: push_consumer.stats().unfinished == 21)
    gate.opened.set()
    eventually(lambda: push_consumer.stats().succeeded == 40)
    gate.opened.clear()
    broker.admin("POST", name.replace("://", "/") + "/partitions", 2)
    publish(api, client, f"{name}-partition-1", [b"joined"])
    eventually(lambda: push_consumer.stats().unfinished == 1)
    for partition in (0, 1):
        publish(api, client, f"{name}-partition-{partition}", numbered(30, "p"))
    # Half of it for each: 10, and the one that is over.
    eventually(lambda: push_consumer.stats().unfinished == 22)
    gate.opened.set()


@pytest.mark.proves("C206")
def test_a_push_consumer_can_be_suspended_and_resumed(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    recorder = Recorder()
    push_consumer = consume(client, name, recorder)
    publish(api, client, name, [b"before"])
    eventually(lambda: recorder.seen == [b"before"])
    push_consumer.suspend()
    publish(api, client, name, numbered(5))
    time.sleep(0.5)
    assert recorder.seen == [b"before"]
    push_consumer.resume()
    eventually(lambda: sorted(recorder.seen[1:]) == numbered(5))


@pytest.mark.proves("C206")
def test_resume_takes_effect_at_once(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    recorder = Recorder()
    push_consumer = consume(client, name, recorder)
    delays = []
    for number in range(3):
        push_consumer.suspend()
        publish(api, client, name, [b"%d" % number])
        # A suspended push consumer looks once a second, and has just done so.
        rounds, began = push_consumer.stats().rounds, time.monotonic()
        eventually(lambda rounds=rounds: push_consumer.stats().rounds > rounds)
        assert len(recorder.seen) == number
        resumed = time.monotonic()
        push_consumer.resume()
        eventually(lambda number=number: len(recorder.seen) == number + 1)
        delays.append(time.monotonic() - resumed)
        assert resumed - began < 5
    # The shortest, for a busy machine may delay any of them.
    assert min(delays) < 0.5, delays
    push_consumer.suspend()
    publish(api, client, name, [b"last"])
    rounds = push_consumer.stats().rounds
    time.sleep(1.5)
    assert push_consumer.stats().rounds - rounds <= 3, "a suspended push consumer polls"


@pytest.mark.proves("C208")
def test_the_brokers_own_limit_of_unacknowledged_messages_is_kept(
    api: Api, client: Any, broker: Broker, topic: NewTopic, namespace: Any, consume: Started, eventually: Eventually
) -> None:
    space = namespace()
    broker.admin("POST", f"namespaces/{space}/maxUnackedMessagesPerConsumer", 5)
    name = topic(namespace=space)
    publish(api, client, name, numbered(30))
    gate = Gate()
    push_consumer = consume(client, name, gate)
    eventually(lambda: push_consumer.stats().unfinished >= 5)
    time.sleep(0.5)
    assert push_consumer.stats().unfinished < 30
    gate.opened.set()
    eventually(lambda: sorted(gate.recorder.seen) == sorted(numbered(30)))


@pytest.mark.proves("C210")
def test_the_size_of_a_fetch_and_the_pause_between_two_can_be_set(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, numbered(20))
    recorder = Recorder()
    started = time.monotonic()
    consume(client, name, recorder, pull_batch_size=5, pull_interval=300, consume_message_batch_max_size=3)
    eventually(lambda: len(recorder.seen) == 20)
    assert time.monotonic() - started >= 0.9
    # Of a fetch of five: three, and two.
    assert {len(call) for call in recorder.calls} <= {1, 2, 3} and max(map(len, recorder.calls)) <= 3


@pytest.mark.proves("C211")
def test_what_is_fetched_is_handed_on_in_order(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, numbered(100))
    recorder = Recorder()
    consume(client, name, recorder, consume_thread_max=1, consume_message_batch_max_size=7)
    eventually(lambda: len(recorder.seen) == 100)
    assert recorder.seen == numbered(100)
    assert max(map(len, recorder.calls)) == 7


# --- tracing and shutdown ---------------------------------------------------------------------------------------------


class Trace:
    """A hook that notes what it is told, and fails when it should."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.told: list[Any] = []

    def consume_message_before(self, messages: Any, context: Any) -> None:
        self._tell(("before", [message.data() for message in messages], context.topic))

    def consume_message_after(self, messages: Any, context: Any, status: Any) -> None:
        self._tell(("after", [message.data() for message in messages], context.topic, status))

    def _tell(self, what: Any) -> None:
        self.told.append(what)
        if self.fails:
            raise RuntimeError("no trace")


@pytest.mark.proves("C228")
def test_tracing_that_fails_stops_nothing(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    push_consumer = consume.make(client, name, Recorder())
    failing, working = Trace(fails=True), Trace(fails=False)
    push_consumer.register_consume_message_hook(failing)
    push_consumer.register_consume_message_hook(working)
    push_consumer.start()
    publish(api, client, name, [b"x"])
    eventually(lambda: push_consumer.stats().succeeded == 1)
    assert failing.told == working.told == [("before", [b"x"], name), ("after", [b"x"], name, SUCCESS)]


@pytest.mark.proves("C229")
def test_a_shutdown_waits_for_handlers_within_its_limit(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    publish(api, client, name, numbered(6))
    gate = Gate()
    push_consumer = consume(client, name, gate, consume_thread_max=2, consumer_group="drained")
    eventually(lambda: push_consumer.stats().unfinished == 6)
    threading.Timer(0.5, gate.opened.set).start()
    report = push_consumer.shutdown(30_000)
    # Those that waited for a worker are done, too.
    assert (report.finished, report.unfinished, report.positions) == (6, 0, {})
    eventually(lambda: backlog(stats, name, "drained") == 0)
    assert not stats(name)["subscriptions"]["drained"]["consumers"]


@pytest.mark.proves("C229")
def test_a_shutdown_does_not_wait_for_ever(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    ids = publish(api, client, name, numbered(3))
    gate = Gate()
    push_consumer = consume(client, name, gate, await_termination_millis_when_shutdown=300, consume_thread_max=1)
    eventually(lambda: push_consumer.stats().unfinished == 3 and len(gate.recorder.seen) == 1)
    started = time.monotonic()
    report = push_consumer.shutdown()
    assert 0.3 <= time.monotonic() - started < 20
    assert (report.finished, report.unfinished, report.positions) == (0, 3, {name: ids[0]})
    for wrong in (-1, "1", 1.5, True):
        with pytest.raises(InvalidConfiguration, match="await_termination_millis"):
            push_consumer.shutdown(wrong)
    gate.opened.set()
    # The handler that was left alone changes nothing, and none is begun after it.
    time.sleep(0.3)
    assert len(gate.recorder.seen) == 1


def test_as_a_context_manager_a_push_consumer_starts_and_stops(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    recorder = Recorder()
    push_consumer = consume.make(client, name, recorder)
    enter, leave = ("__enter__", "__exit__") if api.name == "blocking" else ("__aenter__", "__aexit__")
    getattr(push_consumer, enter)()
    publish(api, client, name, [b"x"])
    eventually(lambda: recorder.seen == [b"x"])
    getattr(push_consumer, leave)(None, None, None)
    assert push_consumer.state.name == "SHUTDOWN_ALREADY"
    assert "shut down" in repr(getattr(push_consumer, "target", push_consumer))
