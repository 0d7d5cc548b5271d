"""Waiting for a message of a subscription: conditions, looks on one client, and acknowledging what was found."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import AdminClient, Client, CryptoKeyReader, InitialPosition
from pulsar_native.asyncio import Client as AsyncClient
from pulsar_native.exceptions import ConnectError, ConsumerBusy, CryptoError, NotConnected, Timeout
from pulsar_native.jobs import busy
from pulsar_native.jobs.id_ranges import IdRanges
from pulsar_native.jobs.watching_message import IDS, MessageCondition, MessageWatcher, acknowledge_found
from support.brokers import Broker, NewTopic
from support.jobs import TOPIC
from support.key_files import key_pair
from support.relay import Relay


def test_message_condition_of_rendered_templates() -> None:
    made = MessageCondition.of("t", "s", {"key": "a"}, "Shared", "Latest", "JSON", "Acknowledge", 5)
    assert made == MessageCondition(TOPIC, "s", {"key": "a"}, "shared", "latest", "json", "acknowledge", 5)
    assert str(made) == f"a message that matches {{'key': 'a'}} in {TOPIC}, as 's'"
    assert str(MessageCondition.of("t", "s")) == f"a message in {TOPIC}, as 's'"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": ""}, "topic must be a text"),
        ({"subscription": None}, "subscription must be a text"),
        ({"match": ["a"]}, "match must be a mapping"),
        ({"subscription_type": "x"}, "subscription_type='x' is not known"),
        ({"initial_position": "x"}, "initial_position='x' is not known"),
        ({"decode": "x"}, "decode='x' is not known"),
        ({"unmatched": "x"}, "unmatched='x' is not known"),
        ({"value_limit_bytes": "x"}, "value_limit_bytes must be a number"),
        ({"private_keys": ["k"]}, "private_keys must be a dict of texts"),
        ({"private_keys": {"k": "data:,x"}}, "private_keys must be paths of files"),
    ],
)
def test_message_condition_wrong_raises(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MessageCondition.of(**{"topic": "t", "subscription": "s", **arguments})


async def test_message_watcher_looks_go_on_where_the_last_ended(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    watch = MessageWatcher(MessageCondition.of(name, "s", {"key": "a"}))
    async with AsyncClient(broker.service_url) as client:
        assert await watch.look(client) is None and watch.seen == "there is no message"
        producer = await client.create_producer(name)
        await producer.send(b"x", partition_key="b")
        for _ in range(2):
            assert await watch.look(client) is None and watch.seen == "none of 1 messages matches"
        watch.failed(ConnectError("lost"))
        assert "ConnectError: lost" in watch.seen and "1 messages, none matched" in watch.seen
        await producer.send(b"y", partition_key="a")
        found = await watch.look(client)
    assert found is not None and found["value"] == "y" and "after 1 others" in watch.seen
    # Another client has a consumer of its own, which gets everything that is not acknowledged.
    async with AsyncClient(broker.service_url) as client:
        again = await watch.look(client)
    assert again is not None and again["message_id"] == found["message_id"]


@pytest.mark.parametrize("reconnects", [True, False], ids=["same-client", "next-client"])
async def test_message_watcher_topic_made_again(reconnects: bool, broker: Broker, topic: NewTopic) -> None:
    """A watcher that was attached finds what is published to a new topic before it has subscribed again."""
    name = topic()
    watch = MessageWatcher(MessageCondition.of(name, "s", initial_position="latest"))
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:

        def publish(value: bytes) -> None:
            with client.create_producer(name) as producer:
                producer.send(value)

        publish(b"before")
        found = None
        async with AsyncClient(broker.service_url) as first, AsyncClient(broker.service_url) as following:
            assert await watch.look(first) is None
            if not reconnects:
                await first.close()
            # The loop stands still until the message is there.
            admin.delete_topic(name, force=True)
            publish(b"after")
            for _ in range(40):
                with suppress(NotConnected):
                    if found := await watch.look(first if reconnects else following):
                        break
    assert found is not None and found["value"] == "after"


async def test_acknowledge_found_leaves_the_rest_of_the_batch(broker: Broker, topic: NewTopic) -> None:
    name = topic(partitions=2)
    watch = MessageWatcher(MessageCondition.of(name, "s", {"properties": {"n": "1"}}))
    with Client(broker.service_url) as client:
        producer = client.create_producer(name)
        for number in range(3):
            producer.send_async(b"%d" % number, None, partition_key="k", properties={"n": str(number)})
        producer.flush()
        async with AsyncClient(broker.service_url) as loop_client:
            found = await watch.look(loop_client)
        assert found is not None and found[IDS]
        acknowledge_found(client, watch.wanted, found)
        consumer = client.subscribe(name, "s", initial_position=InitialPosition.Earliest)
        assert [consumer.receive(5000).data(), consumer.receive(5000).data()] == [b"0", b"2"]
        with pytest.raises(Timeout):
            consumer.receive(300)


@pytest.mark.parametrize(
    ("kind", "later", "is_done"), [("exclusive", 0, False), ("exclusive", 2, False), ("shared", 0, True)]
)
async def test_acknowledge_found_acknowledged_since_is_left(
    kind: str, later: int, is_done: bool, broker: Broker, topic: NewTopic
) -> None:
    name, called = topic(), []
    watch = MessageWatcher(MessageCondition.of(name, "s", {"key": "a"}, kind))
    with Client(broker.service_url) as client:
        producer = client.create_producer(name, batching_enabled=False)
        for key in ("b", "a", *["c"] * later):
            producer.send(b"x", partition_key=key)
        async with AsyncClient(broker.service_url) as loop_client:
            found = await watch.look(loop_client)
        assert found is not None
        assert acknowledge_found(client, watch.wanted, found, lambda: called.append("first")) is True
        assert acknowledge_found(client, watch.wanted, found, lambda: called.append("again")) is is_done
        assert called == (["first", "again"] if is_done else ["first"])
        # Without a function to call it is a repetition.
        assert acknowledge_found(client, watch.wanted, found) is True
        with client.subscribe(name, "s") as rest:
            assert [rest.receive(5000).partition_key() for _ in range(1 + later)] == ["b", *["c"] * later]


@pytest.mark.parametrize("begin", ["earliest", "latest"])
async def test_acknowledge_found_subscription_deleted(begin: str, broker: Broker, topic: NewTopic) -> None:
    name, called = topic(), []
    watch = MessageWatcher(MessageCondition.of(name, "s", initial_position=begin))
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:
        client.subscribe(name, "keeps", initial_position=InitialPosition.Earliest).close()
        async with AsyncClient(broker.service_url) as loop_client:
            assert await watch.look(loop_client) is None
            with client.create_producer(name, batching_enabled=False) as producer:
                producer.send(b"one")
                producer.send(b"two")
            found = await watch.look(loop_client)
        assert found is not None
        admin.delete_subscription(name, "s", force=True)
        is_found = begin == "earliest"
        assert acknowledge_found(client, watch.wanted, found, lambda: called.append("noted")) is is_found
        assert called == ["noted"] * is_found
        with client.subscribe(name, "s") as rest:
            if is_found:
                assert rest.receive(5000).data() == b"two"
            else:
                with pytest.raises(Timeout):
                    rest.receive(300)


async def test_message_watcher_without_connection_raises(broker: Broker, topic: NewTopic) -> None:
    watch = MessageWatcher(MessageCondition.of(topic(), "s"))
    with Relay(broker.service_url) as relay:
        async with AsyncClient(relay.service_url) as client:
            assert await watch.look(client) is None and watch.seen == "there is no message"
            relay.refuse()
            relay.cut()
            with pytest.raises(NotConnected, match="lost its connection"):
                await watch.look(client)
    async with AsyncClient(broker.service_url) as client:
        assert await watch.look(client) is None


async def test_message_watcher_acknowledges_others_if_told(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    watch = MessageWatcher(MessageCondition.of(name, "s", {"key": "a"}, unmatched="acknowledge"))
    with Client(broker.service_url) as client:
        producer = client.create_producer(name)
        for _ in range(3):
            producer.send(b"x", partition_key="b")
        async with AsyncClient(broker.service_url) as loop_client:
            assert await watch.look(loop_client) is None
        consumer = client.subscribe(name, "s")
        with pytest.raises(Timeout):
            consumer.receive(500)


async def found_by(watch: MessageWatcher, client: AsyncClient) -> dict[str, Any]:
    """Return what a look finds, by a Failover consumer the third at the latest: it gets nothing in its first second."""
    for _ in range(3 if watch.wanted.subscription_type == "failover" else 1):
        if (found := await watch.look(client)) is not None:
            return found
    raise AssertionError(watch.seen)


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key_shared"])
async def test_message_found_too_large_or_unreadable(broker: Broker, topic: NewTopic, kind: str) -> None:
    name = topic()
    watch = MessageWatcher(
        MessageCondition.of(name, "s", {"key": "a"}, kind, decode="json", value_limit_bytes=3, unmatched="acknowledge")
    )
    async with AsyncClient(broker.service_url) as client:
        assert await watch.look(client) is None
        producer = await client.create_producer(name)
        await producer.send(b'"a long one"', partition_key="a")
        found = await found_by(watch, client)
        assert (found["value"], found["encoding"], found["value_bytes"]) == (None, "left_out", 12)
    name = topic()
    watch = MessageWatcher(MessageCondition.of(name, "s", {"key": "a"}, kind, decode="json"))
    async with AsyncClient(broker.service_url) as client:
        assert await watch.look(client) is None
        producer = await client.create_producer(name)
        await producer.send(b"{", partition_key="a")
        # A key needs no value; it is handed over as bytes, with the error.
        found = await found_by(watch, client)
    assert "error" in found and found["encoding"] == "base64"


def publish_encrypted(broker: Broker, name: str, folder: Path, *, batched: bool) -> None:
    """Publish three messages with numbers as keys, properties and values, and a plain one with the key `plain`."""
    with Client(broker.service_url) as client:
        keys = CryptoKeyReader(*key_pair(folder))
        options = {"batching_enabled": batched, "batching_max_publish_delay_ms": 10_000}
        producer = client.create_producer(name, encryption_key="k", crypto_key_reader=keys, **options)
        for n in range(3):
            producer.send_async(b'{"n": %d}' % n, None, partition_key=str(n), properties={"n": str(n)})
        producer.flush()
        client.create_producer(name).send(b'{"n": 3}', partition_key="plain")


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
@pytest.mark.parametrize("match", [{"key": "1"}, {"properties": {"n": "1"}}], ids=["key", "properties"])
async def test_encrypted_message_matches_by_metadata(
    match: dict[str, Any], kind: str, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    name = topic()
    wanted = MessageCondition.of(name, "s", match, kind)
    publish_encrypted(broker, name, tmp_path, batched=False)
    async with AsyncClient(broker.service_url) as client:
        found = await found_by(MessageWatcher(wanted), client)
    assert (found["key"], found["properties"], found["encoding"]) == ("1", {"n": "1"}, "base64")
    assert found["error"].startswith("The message is encrypted, with the key k: give private_keys with this key")
    with Client(broker.service_url) as client:
        assert acknowledge_found(client, wanted, found, lambda: None)
    watch = MessageWatcher(wanted)
    async with AsyncClient(broker.service_url) as loop_client:
        assert await watch.look(loop_client) is None and watch.seen == "none of 3 messages matches"


@pytest.mark.parametrize(
    ("match", "batched", "count"),
    [
        ({"jsonpath": "@.n == 1"}, False, "3 messages"),
        ({"key": "1", "jsonpath": "@.n == 1"}, False, "1 message"),
        ({"key": "1"}, True, "1 message"),
    ],
    ids=["value", "key-and-value", "batch"],
)
async def test_encrypted_payload_needed_raises(
    match: dict[str, Any], batched: bool, count: str, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    name = topic()
    publish_encrypted(broker, name, tmp_path, batched=batched)
    watch = MessageWatcher(MessageCondition.of(name, "s", match, unmatched="acknowledge"))
    async with AsyncClient(broker.service_url) as client:
        for _ in range(2):
            with pytest.raises(CryptoError, match=f"{count} cannot be checked, the first .*: encrypted.*private_keys"):
                await watch.look(client)
    # They stay; a message that matches is returned all the same.
    watch = MessageWatcher(MessageCondition.of(name, "s", match))
    with Client(broker.service_url) as client:
        client.create_producer(name).send(b'{"n": 1}', partition_key="1")
    async with AsyncClient(broker.service_url) as loop_client:
        found = await watch.look(loop_client)
        assert found is not None and found["value"] == '{"n": 1}'
    watch = MessageWatcher(MessageCondition.of(name, "s", {"key": "none", "jsonpath": "@"}))
    async with AsyncClient(broker.service_url) as loop_client:
        if batched:
            with pytest.raises(CryptoError, match="1 message cannot be checked"):
                await watch.look(loop_client)
        else:
            assert await watch.look(loop_client) is None


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batch"])
async def test_decrypted_message_is_found_and_acked(
    batched: bool, kind: str, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    name, called = topic(), []
    publish_encrypted(broker, name, tmp_path, batched=batched)
    keys = {"k": f"file://{tmp_path}/k.key"}
    wanted = MessageCondition.of(name, "s", {"key": "1", "jsonpath": "@.n == 1"}, kind, private_keys=keys)
    async with AsyncClient(broker.service_url) as client:
        found = await found_by(MessageWatcher(wanted), client)
    assert (found["value"], found["key"], found["properties"]) == ('{"n": 1}', "1", {"n": "1"})
    with Client(broker.service_url) as client:
        assert acknowledge_found(client, wanted, found, lambda: called.append(1)) is True
        if kind == "exclusive":
            assert acknowledge_found(client, wanted, found, lambda: called.append(2)) is False
        assert called == [1]
        reader = CryptoKeyReader(str(tmp_path / "k.pub"), str(tmp_path / "k.key"))
        with client.subscribe(name, "s", crypto_key_reader=reader) as rest:
            assert [rest.receive(5000).data() for _ in range(3)] == [b'{"n": 0}', b'{"n": 2}', b'{"n": 3}']


async def test_private_key_missing_or_other_raises(broker: Broker, topic: NewTopic, tmp_path: Path) -> None:
    name, others = topic(), tmp_path / "others"
    others.mkdir()
    publish_encrypted(broker, name, tmp_path, batched=True)
    key_pair(others)
    match = {"jsonpath": "@.n == 1"}
    by_key, by_other, by_none = (
        MessageCondition.of(name, "s", match, private_keys={"k": str(path / "k.key")})
        for path in (tmp_path, others, tmp_path / "none")
    )
    async with AsyncClient(broker.service_url) as client:
        with pytest.raises(CryptoError, match=r"The key file .*none/k\.key cannot be read: No such file"):
            await MessageWatcher(by_none).look(client)
    async with AsyncClient(broker.service_url) as client:
        with pytest.raises(CryptoError, match=r"1 message cannot be checked.*Give private_keys with the keys they"):
            await MessageWatcher(by_other).look(client)
    async with AsyncClient(broker.service_url) as client:
        found = await found_by(MessageWatcher(by_key), client)
    # The worker that acknowledges may have other files than the triggerer: that is no acknowledgement by another run.
    with Client(broker.service_url) as sync_client:
        with pytest.raises(CryptoError, match=r"The key file .*none/k\.key cannot be read"):
            acknowledge_found(sync_client, by_none, found, lambda: None)
        with pytest.raises(CryptoError, match=r"its batch is not decrypted with the private_keys here"):
            acknowledge_found(sync_client, by_other, found, lambda: None)
    with Client(broker.service_url) as sync_client:
        assert acknowledge_found(sync_client, by_key, found, lambda: None) is True


def test_acknowledge_found_waits_for_subscription(
    broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    with Client(broker.service_url) as client, Client(broker.service_url) as other:
        held = client.subscribe(name, "s", initial_position=InitialPosition.Earliest)
        client.create_producer(name).send(b"x")
        message = held.receive(10_000)
        ids = IdRanges()
        ids.add(message)
        found = {"topic": name, IDS: ids.as_json()}
        wanted = MessageCondition.of(name, "s")
        monkeypatch.setattr(busy, "BUSY_SECONDS", -1)
        with pytest.raises(ConsumerBusy):
            acknowledge_found(other, wanted, found)
        monkeypatch.setattr(busy, "BUSY_SECONDS", 30)
        refused = threading.Event()

        class Watched:
            def subscribe(self, *arguments: Any, **options: Any) -> Any:
                try:
                    return other.subscribe(*arguments, **options)
                except ConsumerBusy:
                    refused.set()
                    raise

        caller = threading.Thread(target=acknowledge_found, args=(Watched(), wanted, found))
        caller.start()
        assert refused.wait(20)
        held.close()
        caller.join(20)
        assert not caller.is_alive()
        with other.subscribe(name, "s") as rest, pytest.raises(Timeout):
            rest.receive(300)
