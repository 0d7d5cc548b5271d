"""Table view of the sync API on a fake broker: filled when it is created, updated, refreshed, read after its end."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest

from pulsar_native import Client
from pulsar_native.exceptions import AlreadyClosed, NotAllowedError
from pulsar_native.sync import consumer, table_view
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.entry_bytes import single_entry
from support.fake_broker import FakeBroker, Peer, failure
from support.fake_schemas import SCHEMA, avro_entry, refuse_schema
from support.fake_topic import FakeTopic
from support.other_thread import OWN_ERRORS
from support.until import wait_until


@pytest.fixture
def client(fake: FakeBroker) -> Iterator[Client]:
    """Give a client of the fake broker."""
    with Client(fake.url, operation_timeout_seconds=5) as made:
        yield made


@pytest.fixture
def topic(fake: FakeBroker) -> FakeTopic:
    """Give a topic with two versions of one key, and another key."""
    made = FakeTopic(fake)
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        made.publish(value, partition_key=key)
    return made


def test_view_is_filled_when_created(topic: FakeTopic, client: Client) -> None:
    view = client.create_table_view("t")
    assert dict(view) == {"a": b"3", "b": b"2"} and len(view) == 2
    assert view.get("a") == b"3" and view.get("c", b"0") == b"0" and "c" not in view
    with pytest.raises(KeyError):
        view["c"]


def test_view_follows_the_topic(topic: FakeTopic, client: Client) -> None:
    view = client.create_table_view("t")
    topic.publish(b"4", partition_key="c")
    wait_until(lambda: view.get("c") == b"4")
    topic.publish(b"", partition_key="a")
    wait_until(lambda: "a" not in view)


def test_refresh_includes_everything_published_before(topic: FakeTopic, client: Client) -> None:
    view = client.create_table_view("t")
    for number in range(50):
        topic.publish(b"%d" % number, partition_key="n")
    view.refresh()
    assert view["n"] == b"49"


def test_refresh_waits_while_messages_are_available(
    fake: FakeBroker, topic: FakeTopic, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    view = client.create_table_view("t")
    topic.publish_entry(single_entry(b"4", partition_key="c"), later=True)
    before = len(fake.seen(Kind.GET_LAST_MESSAGE_ID))
    # A daemon, so that a refresh without end fails the test and nothing else.
    refreshing = threading.Thread(target=view.refresh, daemon=True)
    refreshing.start()
    # Its own request, and the broker asked again each time nothing was applied for a while.
    fake.wait(Kind.GET_LAST_MESSAGE_ID, before + 4)
    assert refreshing.is_alive()
    topic.deliver(3)
    refreshing.join(10)
    assert not refreshing.is_alive() and view["c"] == b"4"


def test_refresh_ends_where_last_entry_is_unreadable(
    topic: FakeTopic, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    view = client.create_table_view("t")
    topic.publish(b"4", partition_key="c")
    topic.publish_entry(b"damaged")
    refreshing = threading.Thread(target=view.refresh, daemon=True)
    refreshing.start()
    refreshing.join(10)
    assert not refreshing.is_alive() and view["c"] == b"4"


def test_view_schema_fetch_failed_retries(fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(consumer, "_RETRY_SECONDS", 0.05)
    topic = FakeTopic(fake)
    refuse_schema(fake, b"\1", 2)
    view = client.create_table_view("t", schema=SCHEMA)
    for number in range(3):
        topic.publish_entry(avro_entry(number, partition_key=f"k{number}"))
    refreshing = threading.Thread(target=view.refresh, daemon=True)
    refreshing.start()
    refreshing.join(10)
    assert not refreshing.is_alive() and dict(view) == {f"k{number}": {"n": number} for number in range(3)}


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_refresh_after_listener_error_of_any_class(
    topic: FakeTopic, client: Client, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def fail(*_arguments: object) -> None:
        raise kind

    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    view, seen = client.create_table_view("t"), list[str]()
    view.listen(fail)
    view.listen(lambda key, _value: seen.append(key))
    # Work of another consumer on the same thread.
    client._listeners.assign()(fail)
    for key in ("c", "d"):
        topic.publish(b"4", partition_key=key)
    refreshing = threading.Thread(target=view.refresh, daemon=True)
    refreshing.start()
    refreshing.join(10)
    assert not refreshing.is_alive() and view["d"] == b"4" and seen == ["c", "d"]


def test_refresh_on_listener_thread_refused(topic: FakeTopic, client: Client) -> None:
    view = client.create_table_view("t")
    raised: list[str] = []

    def refresh(*_arguments: object) -> None:
        try:
            view.refresh()
        except NotAllowedError as error:
            raised.append(error.message)

    # A listener of another consumer, then one of the table.
    client._listeners.assign()(refresh)
    wait_until(lambda: len(raised) == 1)
    view.listen(refresh)
    topic.publish(b"4", partition_key="c")
    wait_until(lambda: len(raised) == 2)
    assert all("call it in another thread" in text for text in raised)
    view.refresh()


def test_view_without_messages_is_ready_at_once(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    view = client.create_table_view("t")
    view.refresh()
    assert not view and view.is_connected() and view.topic() == "persistent://public/default/t"


def test_view_closed_is_readable_only(fake: FakeBroker, topic: FakeTopic, client: Client) -> None:
    view = client.create_table_view("t")
    view.close()
    assert view["a"] == b"3" and not view.is_connected()
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1
    with pytest.raises(AlreadyClosed):
        view.refresh()


def test_view_reads_without_durable_subscription(fake: FakeBroker, topic: FakeTopic, client: Client) -> None:
    view = client.create_table_view("t", subscription_name="mine")
    (seen,) = fake.seen(Kind.SUBSCRIBE)
    assert not seen.command.subscribe.durable and seen.command.subscribe.read_compacted
    assert "mine" in repr(view)


def test_view_not_filled_leaves_no_consumer(fake: FakeBroker, topic: FakeTopic, client: Client) -> None:
    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return [failure(command.getLastMessageId.request_id, pb.NotAllowedError)]

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = refuse
    with pytest.raises(NotAllowedError):
        client.create_table_view("t")
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1


def test_view_of_non_persistent_topic_has_no_history(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    view = client.create_table_view("non-persistent://public/default/t")
    view.refresh()
    assert not view and not fake.seen(Kind.GET_LAST_MESSAGE_ID)
    topic.publish(b"1", partition_key="a")
    wait_until(lambda: view.get("a") == b"1")


def test_view_with_last_entry_unreadable_is_filled(
    topic: FakeTopic, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    topic.publish_entry(b"damaged")
    assert dict(client.create_table_view("t")) == {"a": b"3", "b": b"2"}
