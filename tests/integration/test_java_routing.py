"""The partition of a key: the Java client and ours agree, by every scheme and mode, and so does the order of a key."""

from __future__ import annotations

import base64
import contextlib
import random
import time
from typing import Any

import pytest

from pulsar_native import ConsumerType, HashingScheme, InitialPosition, MessageId, PartitionsRoutingMode, Timeout
from pulsar_native.wire.hashing import choose_partition
from support.apis import Api
from support.brokers import NewTopic
from support.java_peer import JavaClient, JavaPeer, JavaSource

PARTITIONS = 7
# Java's names; the hash of the C++ client it has not.
SCHEME = {HashingScheme.JavaStringHash: "JavaStringHash", HashingScheme.Murmur3_32Hash: "Murmur3_32Hash"}
MODE = {
    PartitionsRoutingMode.RoundRobinDistribution: "RoundRobinPartition",
    PartitionsRoutingMode.UseSinglePartition: "SinglePartition",
}
KEYS: list[str | bytes] = [
    "", " ", "a", "key1", "user-42", "0", "\u00e9t\u00e9", "\u4e2d\u6587", "\U0001f600", "a\U0001f600b\u4e2d", "\x00",
    "\ufffe", "k" * 1000, b"", b"key1", b"\x00", b"\xff\xfe",
    bytes(range(256)), *(f"key-{number}" for number in range(30)),
]  # fmt: skip


def key_for_java(key: str | bytes) -> dict[str, Any]:
    """Return the key as a part of a message of the Java peer."""
    return {"key_bytes": key} if isinstance(key, bytes) else {"key": key}


@pytest.mark.proves("C48", "C86")
@pytest.mark.parametrize("mode", list(MODE), ids=lambda mode: mode.name)
@pytest.mark.parametrize("scheme", list(SCHEME), ids=lambda scheme: scheme.name)
def test_the_same_key_goes_to_the_same_partition(
    api: Api, client: Any, java: JavaClient, topic: NewTopic, scheme: HashingScheme, mode: PartitionsRoutingMode
) -> None:
    name = topic(partitions=PARTITIONS)
    ours = client.create_producer(name, hashing_scheme=scheme, message_routing_mode=mode, batching_enabled=True)
    theirs = java.producer(name, hashingScheme=SCHEME[scheme], messageRoutingMode=MODE[mode])
    sent = [api.enqueue(ours, b"o", partition_key=key) for key in KEYS]
    ours.flush()
    places = theirs.send_messages([{"value": b"t", **key_for_java(key)} for key in KEYS])
    chosen = [place.partition() if (place := each.result(30)[1]) else None for each in sent]
    assert chosen == [MessageId.deserialize(place).partition() for place in places]
    assert len(set(chosen)) == PARTITIONS, "the keys say nothing about some partition"
    # In other words: on every partition one finds the keys of both.
    consumer = client.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    found: dict[bytes, set[tuple[bytes, int]]] = {b"o": set(), b"t": set()}
    for _ in range(2 * len(KEYS)):
        message = consumer.receive(20_000)
        found[message.data()].add((message.key_bytes(), message.message_id().partition()))
    assert found[b"o"] == found[b"t"]


@pytest.mark.proves("C48")
@pytest.mark.parametrize("scheme", list(SCHEME), ids=lambda scheme: scheme.name)
def test_any_key_has_javas_hash(java_peer: JavaPeer, scheme: HashingScheme) -> None:
    java_peer.start()
    chance = random.Random(11)
    for _ in range(300):
        length = chance.randrange(40)
        key = "".join(chr(chance.choice((chance.randrange(128), chance.randrange(0xD800)))) for _ in range(length))
        key += chance.choice(("", "\U0001f600", "\U0010ffff"))
        partitions = chance.choice((1, 2, 7, 1000, 2**31 - 1))
        assert choose_partition(key, scheme, partitions) == java_peer.partition(key, SCHEME[scheme], partitions), key
        text = base64.b64encode(chance.randbytes(length)).decode()
        assert choose_partition(text, scheme, 997) == java_peer.partition(text, SCHEME[scheme], 997)


@pytest.mark.proves("C86")
def test_only_the_partition_key_decides(api: Api, client: Any, java: JavaClient, topic: NewTopic) -> None:
    """An ordering key alone goes round, with one producer as with the other; beside a key it changes nothing."""
    name = topic(partitions=PARTITIONS)
    ours = client.create_producer(name, batching_enabled=False)
    theirs = java.producer(name, batchingEnabled=False, messageRoutingMode="RoundRobinPartition")
    round_ours = api.send_all(ours, [b"x"] * PARTITIONS, ordering_key="same")
    round_theirs = theirs.send_all([b"x"] * PARTITIONS, ordering_key=b"same")
    assert {place.partition() for place in round_ours} == set(range(PARTITIONS))
    assert {MessageId.deserialize(place).partition() for place in round_theirs} == set(range(PARTITIONS))
    (mine,) = api.send_all(ours, [b"x"], partition_key="user-42", ordering_key="other")
    assert mine.partition() == MessageId.deserialize(theirs.send(b"x", key="user-42")).partition()


def take_from_both(ours: Any, theirs: JavaSource, count: int) -> tuple[list[bytes], list[bytes]]:
    """Receive so many messages from two members of a subscription, whichever gets them."""
    got_ours: list[bytes] = []
    got_theirs: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(got_ours) + len(got_theirs) < count and time.monotonic() < deadline:
        got_theirs += [message.data or b"" for message in theirs.poll(count, timeout_ms=100)]
        with contextlib.suppress(Timeout):
            while True:
                got_ours.append(ours.receive(100).data())
    return got_ours, got_theirs


@pytest.mark.proves("C81", "C82")
def test_members_of_both_share_keys_by_the_same_ranges(
    api: Api, client: Any, java: JavaClient, topic: NewTopic
) -> None:
    """On a Key_Shared subscription a key has one owner, whoever published it and by which kind of key."""
    name = topic()
    ours = client.subscribe(name, "shared", ConsumerType.KeyShared)
    theirs = java.consumer(name, "shared", subscriptionType="Key_Shared")
    keys = [f"key-{number}" for number in range(40)]
    # One message per entry: the broker hands out whole entries, and a batch has the key of its first message.
    producer = client.create_producer(name, batching_enabled=False)
    other = java.producer(name, batchingEnabled=False)
    for key in keys:
        api.enqueue(producer, key.encode(), partition_key="all", ordering_key=key)
    producer.flush()
    other.send_messages([{"value": key.encode(), "key": key} for key in keys])
    got_ours, got_theirs = take_from_both(ours, theirs, 2 * len(keys))
    assert got_ours and got_theirs and not set(got_ours) & set(got_theirs)
    assert sorted(got_ours + got_theirs) == sorted(2 * [key.encode() for key in keys])
