"""Table view of the asyncio API on a fake broker: filled when it is created, updated, refreshed, ended."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from pulsar_native.asyncio import Client, table_view
from pulsar_native.engine.consumer.table_view import Table
from pulsar_native.exceptions import AlreadyClosed, NotAllowedError, Timeout
from pulsar_native.message import Message
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.entry_bytes import batch_entry, single_entry
from support.fake_broker import FakeBroker, Peer, failure
from support.fake_schemas import SCHEMA, avro_entry, refuse_schema
from support.fake_topic import FakeTopic
from support.until import until


@pytest.fixture
def topic(fake: FakeBroker) -> FakeTopic:
    """Give a topic with two versions of one key, and another key."""
    made = FakeTopic(fake)
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        made.publish(value, partition_key=key)
    return made


async def test_view_is_filled_when_created(topic: FakeTopic, client: Client) -> None:
    view = await client.create_table_view("t")
    assert dict(view) == {"a": b"3", "b": b"2"} and view.get("c", b"0") == b"0"


async def test_view_follows_the_topic(topic: FakeTopic, client: Client) -> None:
    view = await client.create_table_view("t")
    topic.publish(b"4", partition_key="c")
    await until(lambda: view.get("c") == b"4")
    topic.publish(b"", partition_key="a")
    await until(lambda: "a" not in view)


async def test_refresh_includes_everything_published_before(topic: FakeTopic, client: Client) -> None:
    view = await client.create_table_view("t")
    # More than are applied before other tasks run.
    for number in range(500):
        topic.publish(b"%d" % number, partition_key="n")
    await view.refresh()
    assert view["n"] == b"499"


async def test_refresh_waits_while_messages_are_available(
    fake: FakeBroker, topic: FakeTopic, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    view = await client.create_table_view("t")
    topic.publish_entry(single_entry(b"4", partition_key="c"), later=True)
    before = len(fake.seen(Kind.GET_LAST_MESSAGE_ID))
    refreshing = asyncio.create_task(view.refresh())
    # Its own request, and the broker asked again each time nothing was applied for a while.
    await until(lambda: len(fake.seen(Kind.GET_LAST_MESSAGE_ID)) >= before + 4)
    assert not refreshing.done()
    topic.deliver(3)
    async with asyncio.timeout(10):
        await refreshing
    assert view["c"] == b"4"


async def test_messages_applied_leave_turns_to_other_tasks(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied, at_turns = 0, [0]
    apply = Table.apply

    def counting(table: Table, message: Message) -> None:
        nonlocal applied
        applied += 1
        apply(table, message)

    monkeypatch.setattr(Table, "apply", counting)
    # One entry: all its messages arrive at once.
    topic = FakeTopic(fake)
    topic.publish_entry(batch_entry([b"%d" % at for at in range(900)], singles=[{"partition_key": "n"}] * 900))
    creating = asyncio.create_task(client.create_table_view("t"))
    deadline = asyncio.get_running_loop().time() + 10
    while applied < 900 and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0)
        at_turns.append(applied)
    assert (await creating)["n"] == b"899"
    assert max(after - before for before, after in pairwise(at_turns)) <= 200


async def test_view_without_messages_is_ready_at_once(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    view = await client.create_table_view("t")
    await view.refresh()
    assert not view and view.is_connected() and view.topic() == "persistent://public/default/t"


async def test_view_closed_is_readable_only(fake: FakeBroker, topic: FakeTopic, client: Client) -> None:
    view = await client.create_table_view("t")
    await view.close()
    assert view["a"] == b"3" and not view.is_connected() and len(fake.seen(Kind.CLOSE_CONSUMER)) == 1
    with pytest.raises(AlreadyClosed):
        await view.refresh()


async def test_view_dropped_with_its_client_ends(fake: FakeBroker, topic: FakeTopic) -> None:
    view = await Client(fake.url).create_table_view("t")
    assert view["a"] == b"3"
    del view
    gc.collect()
    await until(fake.peers[0].gone.is_set)


async def test_view_not_filled_leaves_no_consumer(fake: FakeBroker, topic: FakeTopic, client: Client) -> None:
    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return [failure(command.getLastMessageId.request_id, pb.NotAllowedError)]

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = refuse
    with pytest.raises(NotAllowedError):
        await client.create_table_view("t")
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1


async def test_view_of_non_persistent_topic_has_no_history(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    view = await client.create_table_view("non-persistent://public/default/t")
    await view.refresh()
    assert not view and not fake.seen(Kind.GET_LAST_MESSAGE_ID)
    topic.publish(b"1", partition_key="a")
    await until(lambda: view.get("a") == b"1")


async def test_view_with_last_entry_unreadable_is_filled(
    topic: FakeTopic, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    topic.publish_entry(b"damaged")
    assert dict(await client.create_table_view("t")) == {"a": b"3", "b": b"2"}


async def test_view_closed_ends_its_refresh(topic: FakeTopic, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    view = await client.create_table_view("t")
    topic.publish_entry(single_entry(b"4", partition_key="c"), later=True)
    refreshing = asyncio.create_task(view.refresh())
    for _ in range(5):
        await asyncio.sleep(0)
    await view.close()
    with pytest.raises(AlreadyClosed):
        await asyncio.wait_for(refreshing, 10)


async def test_view_schema_fetch_failed_retries(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_view, "_SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(table_view, "_RETRY_SECONDS", 0.05)
    topic = FakeTopic(fake)
    refuse_schema(fake, b"\1", 2)
    view = await client.create_table_view("t", schema=SCHEMA)
    for number in range(3):
        topic.publish_entry(avro_entry(number, partition_key=f"k{number}"))
    async with asyncio.timeout(10):
        await view.refresh()
    assert dict(view) == {f"k{number}": {"n": number} for number in range(3)}


async def test_view_goes_on_after_missing_schema(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_view, "_RETRY_SECONDS", 0)
    given: list[Any] = [Timeout("no schema"), "message", AlreadyClosed("the end")]
    applied: list[Any] = []

    class Receiving:
        async def _take(self, _deadline: float | None) -> Any:
            if isinstance(given[0], Exception):
                raise given.pop(0)
            return given.pop(0)

        def topic(self) -> str:
            return "t"

    class Applied:
        apply = applied.append

    await table_view._Intake(Receiving(), Applied()).follow()  # type: ignore[arg-type]
    assert applied == ["message"] and not given
    assert "Cannot fetch the writer's schema of a message for the table view of t" in caplog.text
