"""End-to-end encryption: what leaves is unreadable, who has a key reads it, here and in the other clients."""

from __future__ import annotations

import logging
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pulsar as official
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pulsar_native import (
    Client,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    CryptoError,
    CryptoKeyReader,
    DefaultCryptoKeyReader,
    EncryptionContext,
    EncryptionKeyInfo,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
    ProducerCryptoFailureAction,
    PulsarException,
    Timeout,
)
from pulsar_native.protocol import data_keys as protocol_encryption
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import split_batch
from pulsar_native.wire.compression import decompress
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.java_peer import JavaClient
from support.key_files import key_pair
from support.raw import commands_of, sent_entries
from support.relay import Command, Relay

CONTENTS = [b"a" * 10_000, bytes(range(256)) * 20, b"z"]
FAIL, DISCARD, CONSUME = ConsumerCryptoFailureAction
HIDDEN = [b"hidden-%d" % number for number in range(3)]


class Keys:
    """Key pairs in a folder: NAME.pub and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def make(self, name: str, key: Any = None) -> None:
        key_pair(self.folder, name, key)

    def reader(self, name: str) -> CryptoKeyReader:
        return CryptoKeyReader(self.path(f"{name}.pub"), self.path(f"{name}.key"))

    def java(self, side: str, *names: str) -> dict[str, dict[str, str]]:
        """Return keys of a side ("public" or "private") as the Java peer takes them."""
        ending = "pub" if side == "public" else "key"
        return {side: {name: (self.folder / f"{name}.{ending}").read_text() for name in names}}

    def official(self, name: str) -> official.CryptoKeyReader:
        return official.CryptoKeyReader(self.path(f"{name}.pub"), self.path(f"{name}.key"))

    def private(self, name: str) -> Any:
        return serialization.load_pem_private_key((self.folder / f"{name}.key").read_bytes(), None)

    def sealed(self, name: str = "alice", **more: Any) -> dict[str, Any]:
        """Return the options of a producer that encrypts for one key."""
        return {"encryption_key": name, "crypto_key_reader": self.reader(name), **more}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    made = Keys(tmp_path_factory.mktemp("keys"))
    for name in ("alice", "bob", "stranger"):
        made.make(name)
    made.make("carol", ec.generate_private_key(ec.SECP256R1()))
    made.make("dave", ec.generate_private_key(ec.SECP521R1()))
    return made


@pytest.fixture(scope="module")
def peer(broker: Broker) -> Iterator[Any]:
    """Give a client of the official package."""
    made = official.Client(broker.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    yield made
    made.close()


def taken(client: Any, topic: str, count: int, **options: Any) -> list[Any]:
    """Return the first messages of a topic."""
    reader = client.create_reader(topic, MessageId.earliest, **options)
    return [reader.read_next(20_000) for _ in range(count)]


def data_of(messages: list[Any]) -> list[bytes]:
    return [message.data() for message in messages]


def metadata_by_name(context: EncryptionContext) -> dict[str, dict[str, str]]:
    wrapped = context.keys()
    return {key.key: key.metadata for key in wrapped}


class Opening:
    """A reader of keys that refuses until it is told otherwise, or waits until it is."""

    def __init__(self, inner: CryptoKeyReader, *, waits: bool) -> None:
        self.inner = inner
        self.waits = waits
        self.asked = threading.Event()
        self.open = threading.Event()
        self.names: list[str] = []

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        return self.inner.get_public_key(key_name, metadata)

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        self.names.append(key_name)
        self.asked.set()
        if self.waits:
            assert self.open.wait(60)
        if not self.open.is_set():
            raise PermissionError("not yet")
        return self.inner.get_private_key(key_name, metadata)


# --- what leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("C181")
@pytest.mark.proves("C180")
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD], ids=lambda kind: kind.name)
def test_what_leaves_is_compressed_then_encrypted(
    api: Api,
    broker: Broker,
    relay: Callable[[str], Relay],
    topic: NewTopic,
    keys: Keys,
    compression: CompressionType,
    batching: bool,
) -> None:
    link = relay(broker.service_url)
    producer = api.client(link.service_url).create_producer(
        topic(), **keys.sealed(), batching_enabled=batching, batching_max_publish_delay_ms=60_000,
        compression_type=compression,
    )  # fmt: skip
    api.send_all(producer, CONTENTS)
    (asked,) = commands_of(link, Command.PRODUCER)
    assert asked.producer.encrypted
    entries = sent_entries(link)
    assert len(entries) == (1 if batching else 3)
    read: list[bytes] = []
    for entry in entries:
        metadata = entry.metadata
        (key,) = metadata.encryption_keys
        assert (key.key, len(key.value), len(key.metadata)) == ("alice", 256, 0)
        assert len(metadata.encryption_param) == 12 and not metadata.HasField("encryption_algo")
        oaep = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
        data_key = keys.private("alice").decrypt(key.value, oaep)
        assert len(data_key) == 32
        body = AESGCM(data_key).decrypt(metadata.encryption_param, entry.body, None)
        assert len(entry.body) == len(body) + 16
        if compression is not CompressionType.NONE:
            body = decompress(compression, body, metadata.uncompressed_size, 1 << 20)
        if batching:
            assert metadata.uncompressed_size in (0, len(body))
            read += [body[start:stop] for _, start, stop in split_batch(body, 3)]
        else:
            assert metadata.uncompressed_size == len(body)
            read.append(body)
    assert read == CONTENTS
    # What was encrypted first could not be compressed any more.
    size = sum(len(entry.body) for entry in entries)
    assert size < 1000 if compression is not CompressionType.NONE else size > 15_000
    # A vector is never used twice under one key.
    assert len({entry.metadata.encryption_param for entry in entries}) == len(entries)


# --- with the other clients -----------------------------------------------------------------------------------------


@pytest.mark.proves("C181")
@pytest.mark.proves("C180")
@pytest.mark.parametrize("batching", [True, False])
class TestWithJava:
    """Both ways, every compression."""

    @pytest.mark.parametrize("names", [["alice"], ["bob", "alice"], ["carol"], ["dave", "alice"]], ids="-".join)
    def test_ours_is_read(
        self,
        api: Api,
        client: Any,
        java: JavaClient,
        topic: NewTopic,
        keys: Keys,
        batching: bool,
        names: list[str],
    ) -> None:
        pairs = DefaultCryptoKeyReader(public_keys={name: keys.path(f"{name}.pub") for name in names})
        for compression in CompressionType:
            name = topic()
            producer = client.create_producer(
                name, encryption_keys=names, crypto_key_reader=pairs, compression_type=compression,
                batching_enabled=batching, batching_max_publish_delay_ms=60_000,
            )  # fmt: skip
            api.send_all(producer, CONTENTS)
            # Whoever has one of the keys reads it.
            for reader in names if compression is CompressionType.NONE else names[:1]:
                read = java.reader(name, keys=keys.java("private", reader)).receive(len(CONTENTS))
                assert [message.data for message in read] == CONTENTS
                context = read[0].encryption
                assert context is not None and sorted(context["keys"]) == sorted(names)
            assert not java.reader(name, keys=keys.java("private", "stranger")).poll(timeout_ms=200)

    @pytest.mark.parametrize("names", [["alice"], ["bob", "alice"], ["carol"], ["dave", "alice"]], ids="-".join)
    def test_theirs_is_read(
        self,
        client: Any,
        java: JavaClient,
        topic: NewTopic,
        keys: Keys,
        batching: bool,
        names: list[str],
    ) -> None:
        for compression in CompressionType:
            name = topic()
            producer = java.producer(
                name, keys=keys.java("public", *names), encrypt_with=names, compressionType=compression.name.upper(),
                batchingEnabled=batching, batchingMaxPublishDelayMicros=60_000_000,
            )  # fmt: skip
            producer.send_all(CONTENTS)
            for reader in names:
                pairs = DefaultCryptoKeyReader(private_keys={reader: keys.path(f"{reader}.key")})
                messages = taken(client, name, len(CONTENTS), crypto_key_reader=pairs)
                assert data_of(messages) == CONTENTS
                context = messages[0].encryption_context()
                assert metadata_by_name(context) == {each: {"owner": each} for each in names}
                assert not context.is_decryption_failed()


@pytest.mark.proves("C80", "C181")
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD], ids=lambda kind: kind.name)
def test_encrypted_chunks_both_ways_with_java(
    api: Api, client: Any, java: JavaClient, topic: NewTopic, keys: Keys, compression: CompressionType
) -> None:
    """Each chunk is encrypted by itself, after the whole was compressed and cut."""
    ours, theirs = topic("ours"), topic("theirs")
    contents = [random.Random(7).randbytes(9000), b"small", b"z" * 100_000]
    producer = client.create_producer(
        ours, **keys.sealed(), batching_enabled=False, chunking_enabled=True, chunk_max_message_size=2000,
        compression_type=compression,
    )  # fmt: skip
    ids = api.send_all(producer, contents)
    assert ids[0].first_chunk_message_id() is not None
    read = java.reader(ours, keys=keys.java("private", "alice")).receive(len(contents))
    assert [message.data for message in read] == contents
    assert [MessageId.deserialize(message.id) for message in read] == ids
    sender = java.producer(
        theirs, keys=keys.java("public", "alice"), encrypt_with=["alice"], batchingEnabled=False, chunkingEnabled=True,
        chunkMaxMessageSize=2000, compressionType=compression.name.upper(),
    )  # fmt: skip
    places = sender.send_all(contents)
    messages = taken(client, theirs, len(contents), crypto_key_reader=keys.reader("alice"))
    assert data_of(messages) == contents
    assert [message.message_id().serialize() for message in messages] == places


@pytest.mark.proves("C181")
@pytest.mark.proves("C180")
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("compression", list(CompressionType), ids=lambda kind: kind.name)
def test_with_the_official_client(
    api: Api,
    client: Any,
    peer: Any,
    topic: NewTopic,
    keys: Keys,
    compression: CompressionType,
    batching: bool,
) -> None:
    ours, theirs = topic(), topic()
    options = {"batching_enabled": batching, "batching_max_publish_delay_ms": 60_000}
    api.send_all(client.create_producer(ours, **keys.sealed(), compression_type=compression, **options), CONTENTS)
    reader = peer.create_reader(ours, official.MessageId.earliest, crypto_key_reader=keys.official("alice"))
    assert [reader.read_next(20_000).data() for _ in CONTENTS] == CONTENTS
    reader.close()

    producer = peer.create_producer(
        theirs, encryption_key="alice", crypto_key_reader=keys.official("alice"),
        compression_type=official.CompressionType(int(compression)), **options,
    )  # fmt: skip
    for content in CONTENTS:
        producer.send_async(content, None)
    producer.flush()
    producer.close()
    for name in (ours, theirs):
        for without in ({}, {"crypto_key_reader": keys.reader("alice")}):
            # The same message makes the same context, whoever reads it, decrypted or not.
            action = {} if without else {"crypto_failure_action": CONSUME}
            (message,) = taken(client, name, 1, **without, **action)
            with_theirs = {"crypto_key_reader": keys.official("alice")} if without else {}
            their_action = {} if without else {"crypto_failure_action": official.ConsumerCryptoFailureAction.CONSUME}
            reader = peer.create_reader(name, official.MessageId.earliest, **with_theirs, **their_action)
            same = reader.read_next(20_000)
            assert message.data() == same.data()
            assert described(message) == described(same)
            reader.close()
    assert data_of(taken(client, theirs, 3, crypto_key_reader=keys.reader("alice"))) == CONTENTS


def described(message: Any) -> list[Any]:
    context = message.encryption_context()
    wrapped = context.keys()
    return [
        [(key.key, key.value, key.metadata) for key in wrapped], context.param(), context.algorithm(),
        int(context.compression_type()), context.uncompressed_message_size(), context.batch_size(),
        context.is_decryption_failed(), str(context),
    ]  # fmt: skip


# --- producers ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("C60")
def test_a_producer_without_a_usable_key(
    client: Any, topic: NewTopic, keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "garbage").write_text("no key")
    for public in (tmp_path / "missing", tmp_path / "garbage", Path(keys.path("alice.key"))):
        reader = CryptoKeyReader(str(public), "")
        with pytest.raises(CryptoError) as caught:
            client.create_producer(topic(), encryption_key="alice", crypto_key_reader=reader)
        assert "'alice'" in caught.value.message and caught.value.topic and not caught.value.retryable
        assert "PRIVATE" not in str(caught.value)
        # Sending unencrypted must have been configured, and is logged.
        name = topic()
        with caplog.at_level(logging.WARNING, "pulsar_native.producer"):
            producer = client.create_producer(
                name, encryption_key="alice", crypto_key_reader=reader,
                crypto_failure_action=ProducerCryptoFailureAction.SEND,
            )  # fmt: skip
        assert "unencrypted" in caplog.text and name in caplog.text
        caplog.clear()
        producer.send(b"open")
        (message,) = taken(client, name, 1)
        assert message.data() == b"open" and message.encryption_context() is None


@pytest.mark.proves("C60")
def test_one_missing_key_of_several_is_a_failure(client: Any, topic: NewTopic, keys: Keys) -> None:
    reader = DefaultCryptoKeyReader(public_keys={"alice": keys.path("alice.pub")})
    with pytest.raises(CryptoError, match="'bob'"):
        client.create_producer(topic(), encryption_keys=["alice", "bob"], crypto_key_reader=reader)


def test_half_a_description_is_refused(client: Any, topic: NewTopic, keys: Keys) -> None:
    for options, fix in (
        ({"encryption_key": "alice"}, "needs a crypto_key_reader"),
        ({"crypto_key_reader": keys.reader("alice")}, "needs encryption_key"),
        ({"encryption_keys": "alice", "crypto_key_reader": keys.reader("alice")}, "list of str"),
        ({"encryption_key": "", "crypto_key_reader": keys.reader("alice")}, "needs encryption_key"),
        ({"encryption_key": "alice", "crypto_key_reader": object()}, "get_public_key"),
        ({**keys.sealed(), "crypto_failure_action": "SEND"}, "ProducerCryptoFailureAction"),
    ):
        with pytest.raises(InvalidConfiguration, match=fix):
            client.create_producer(topic(), **options)


@pytest.mark.proves("C60")
def test_a_namespace_that_demands_encryption(
    api: Api, client: Any, topic: NewTopic, keys: Keys, broker: Broker, namespace: Callable[[], str]
) -> None:
    place = namespace()
    broker.admin("POST", f"namespaces/{place}/encryptionRequired", True)
    name = topic(namespace=place)
    with pytest.raises(PulsarException, match=r"(?i)encrypt"):
        api.client(broker.service_url, operation_timeout_seconds=2).create_producer(name)
    client.create_producer(name, **keys.sealed()).send(b"sealed")
    assert data_of(taken(client, name, 1, crypto_key_reader=keys.reader("alice"))) == [b"sealed"]


@pytest.mark.proves("C180")
def test_data_keys_are_renewed_and_public_keys_read_again(
    client: Any,
    topic: NewTopic,
    keys: Keys,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., Any],
) -> None:
    monkeypatch.setattr(protocol_encryption, "RENEWAL_SECONDS", 0.3)
    public = tmp_path / "current.pub"
    shutil.copy(keys.path("alice.pub"), public)
    name = topic(partitions=2)
    producer = client.create_producer(name, encryption_key="k", crypto_key_reader=CryptoKeyReader(str(public), ""))
    consumer = client.subscribe(
        name, "sub", initial_position=InitialPosition.Earliest, crypto_failure_action=CONSUME
    )  # fmt: skip
    numbers = iter(range(1_000_000))

    def next_wrapped() -> bytes:
        producer.send(b"%d" % next(numbers))
        (key,) = consumer.receive(20_000).encryption_context().keys()
        return bytes(key.value)

    def opens(private: str, wrapped: bytes) -> bool:
        oaep = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
        try:
            return len(keys.private(private).decrypt(wrapped, oaep)) == 32
        except ValueError:
            return False

    first = next_wrapped()
    assert opens("alice", first)
    changed = eventually(lambda: (value := next_wrapped()) != first and value)
    assert opens("alice", changed)
    shutil.copy(keys.path("bob.pub"), public)
    eventually(lambda: opens("bob", next_wrapped()))
    # A key that cannot be read any more stops nothing: the last data key goes on.
    public.unlink()
    eventually(lambda: "cannot be renewed yet" in caplog.text)
    assert opens("bob", next_wrapped())


# --- consumers ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("C109", "C182")
@pytest.mark.parametrize("lacking", ["no reader", "wrong key"])
@pytest.mark.parametrize("batching", [True, False])
class TestFailureActions:
    """Three ways to deal with what cannot be decrypted."""

    @pytest.fixture
    def name(self, topic: NewTopic, plain_client: Client, keys: Keys, batching: bool) -> str:
        """Give a topic with three encrypted messages and an open one behind them."""
        made = topic()
        producer = plain_client.create_producer(
            made, **keys.sealed(), batching_enabled=batching, batching_max_publish_delay_ms=60_000
        )
        for content in HIDDEN:
            producer.send_async(content, None)
        producer.flush()
        plain_client.create_producer(made).send(b"open")
        return made

    def options(self, keys: Keys, lacking: str, action: ConsumerCryptoFailureAction) -> dict[str, Any]:
        made: dict[str, Any] = {"initial_position": InitialPosition.Earliest, "crypto_failure_action": action}
        return made if lacking == "no reader" else {**made, "crypto_key_reader": keys.reader("stranger")}

    def test_fail(
        self, client: Any, name: str, keys: Keys, lacking: str, batching: bool, stats: Callable[[str], Any],
        eventually: Callable[..., Any],
    ) -> None:  # fmt: skip
        consumer = client.subscribe(name, "sub", ConsumerType.Shared, **self.options(keys, lacking, FAIL))
        message = consumer.receive(20_000)
        assert message.data() == b"open"
        consumer.acknowledge(message)
        with pytest.raises(Timeout):
            consumer.receive(300)
        # In entries: of the broker's view nothing else was acknowledged.
        left = 1 if batching else 3
        eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == left)
        assert consumer.stats().total_decryption_failed == left
        consumer.close()
        # Nothing is lost: with the right key it is all there.
        again = client.subscribe(name, "sub", ConsumerType.Shared, crypto_key_reader=keys.reader("alice"))
        assert data_of([again.receive(20_000) for _ in HIDDEN]) == HIDDEN

    def test_discard(
        self, api: Api, broker: Broker, relay: Callable[[str], Relay], name: str, keys: Keys, lacking: str,
        batching: bool, stats: Callable[[str], Any], eventually: Callable[..., Any],
    ) -> None:  # fmt: skip
        link = relay(broker.service_url)
        client = api.client(link.service_url)
        consumer = client.subscribe(name, "sub", **self.options(keys, lacking, DISCARD))
        message = consumer.receive(20_000)
        assert message.data() == b"open"
        count = 1 if batching else 3
        acks = eventually(lambda: len(seen := commands_of(link, Command.ACK)) >= count and seen)
        assert [command.ack.validation_error for command in acks] == [pb.CommandAck.DecryptionError] * count
        consumer.acknowledge(message)
        eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)

    @pytest.mark.proves("C130")
    def test_consume(
        self, client: Any, name: str, keys: Keys, lacking: str, batching: bool, stats: Callable[[str], Any],
        eventually: Callable[..., Any],
    ) -> None:  # fmt: skip
        consumer = client.subscribe(name, "sub", **self.options(keys, lacking, CONSUME))
        # A batch comes as one message, whole.
        messages = [consumer.receive(20_000) for _ in range(1 if batching else 3)]
        for message in messages:
            context = message.encryption_context()
            assert context.is_decryption_failed() and context.batch_size() == (3 if batching else -1)
            assert message.message_id().batch_index() == -1
            (key,) = context.keys()
            oaep = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
            data_key = keys.private("alice").decrypt(key.value, oaep)
            plain = AESGCM(data_key).decrypt(context.param(), message.data(), None)
            assert HIDDEN[0] in plain if batching else plain in HIDDEN
        last = consumer.receive(20_000)
        assert last.data() == b"open" and last.encryption_context() is None
        consumer.acknowledge([*messages, last])
        eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)

    def test_columns_are_never_wrong(self, client: Any, name: str, keys: Keys, lacking: str, batching: bool) -> None:
        for action in ConsumerCryptoFailureAction:
            options = self.options(keys, lacking, action)
            del options["initial_position"]
            reader = client.create_reader(name, MessageId.earliest, **options)
            if action is DISCARD:
                batches = reader.arrow_batches(columns=["value"], timeout_millis=20_000)
                assert [row for batch in batches for row in batch.column(0).to_pylist()] == [b"open"]
                continue
            with pytest.raises(CryptoError, match="cannot be decrypted"):
                list(reader.arrow_batches())
        right = client.create_reader(name, MessageId.earliest, crypto_key_reader=keys.reader("alice"))
        rows = [row for batch in right.arrow_batches(columns=["value"]) for row in batch.column(0).to_pylist()]
        assert rows == [*HIDDEN, b"open"]


@pytest.mark.proves("C130")
@pytest.mark.parametrize("queue", [0, 1, 6], ids="queue-{}".format)
@pytest.mark.parametrize("action", list(ConsumerCryptoFailureAction), ids=lambda action: action.name.lower())
def test_undecryptable_batches_return_their_permits(
    api: Api, broker: Broker, relay: Callable[[str], Relay], topic: NewTopic, plain_client: Client, keys: Keys,
    action: ConsumerCryptoFailureAction, queue: int, eventually: Callable[..., Any],
) -> None:  # fmt: skip
    name = topic()
    sealed = plain_client.create_producer(
        name, **keys.sealed(), batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=60_000
    )
    # Nine times the permits of the longest queue, in batches that each take nearly all of them.
    for number in range(60):
        sealed.send_async(b"%d" % number, None)
    sealed.flush()
    producer = plain_client.create_producer(name, batching_enabled=False)
    contents = [b"open-%d" % number for number in range(20)]
    for content in contents:
        producer.send(content)
    link = relay(broker.service_url)
    consumer = api.client(link.service_url).subscribe(
        name, "sub", receiver_queue_size=queue, initial_position=InitialPosition.Earliest, crypto_failure_action=action
    )
    whole = 12 if action is CONSUME else 0
    messages = [consumer.receive(20_000) for _ in range(whole + len(contents))]
    assert data_of(messages[whole:]) == contents
    assert [each.encryption_context().batch_size() for each in messages[:whole]] == [5] * whole
    # Delivered are 80 messages for their permits, which are never more than that and the queue.
    granted = sum(each.flow.messagePermits for each in commands_of(link, Command.FLOW))
    assert 80 <= granted <= 80 + queue


@pytest.mark.proves("C182")
def test_what_failed_comes_again_after_its_time_out(
    api: Api, client: Any, topic: NewTopic, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each message fails with the first call.
    monkeypatch.setattr(protocol_encryption, "ATTEMPTS", 1)
    name = topic()
    opening = Opening(keys.reader("alice"), waits=False)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, unacked_messages_timeout_ms=1000, crypto_key_reader=opening
    )
    api.send_all(client.create_producer(name, **keys.sealed()), HIDDEN)
    with pytest.raises(Timeout):
        consumer.receive(300)
    assert opening.asked.is_set() and consumer.stats().total_decryption_failed
    opening.open.set()
    # The broker redelivers in the order of the requests.
    assert sorted(data_of([consumer.receive(30_000) for _ in HIDDEN])) == HIDDEN


class Flaky(Opening):
    """A reader of keys that fails the first time."""

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        try:
            return super().get_private_key(key_name, metadata)
        finally:
            self.open.set()


@pytest.mark.proves("C109", "C182")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=lambda kind: kind.name)
@pytest.mark.parametrize("action", list(ConsumerCryptoFailureAction), ids=lambda action: action.name.lower())
def test_key_reader_fails_once_costs_no_message(
    api: Api, client: Any, topic: NewTopic, keys: Keys, stats: Callable[[str], Any], eventually: Callable[..., Any],
    action: ConsumerCryptoFailureAction, kind: ConsumerType,
) -> None:  # fmt: skip
    name = topic()
    contents = [b"%d" % number for number in range(100)]
    api.send_all(client.create_producer(name, **keys.sealed(), batching_enabled=False), contents)
    flaky = Flaky(keys.reader("alice"), waits=False)
    consumer = client.subscribe(
        name, "sub", kind, initial_position=InitialPosition.Earliest, crypto_key_reader=flaky,
        crypto_failure_action=action,
    )  # fmt: skip
    messages = [consumer.receive(20_000) for _ in contents]
    assert data_of(messages) == contents and flaky.names == ["alice", "alice"]
    assert consumer.stats().total_decryption_failed == 0 and not consumer.discarded_message_ids()
    consumer.acknowledge(messages)
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.mark.proves("C182")
def test_table_view_key_reader_fails_once_complete(api: Api, client: Any, topic: NewTopic, keys: Keys) -> None:
    name = topic()
    client.create_producer(name).send(b"old", partition_key="k")
    producer = client.create_producer(name, **keys.sealed())
    producer.send(b"new", partition_key="k")
    # Created while the key reader fails, the table waits for it.
    view = client.create_table_view(name, crypto_key_reader=Flaky(keys.reader("alice"), waits=False))
    assert view.snapshot() == {"k": b"new"}
    # Without the key the messages are left out, as the docstring says.
    assert client.create_table_view(name).snapshot() == {"k": b"old"}


def test_a_key_is_asked_for_once(api: Api, client: Any, topic: NewTopic, keys: Keys) -> None:
    name = topic()
    contents = [b"%d" % number for number in range(300)]
    opening = Opening(keys.reader("alice"), waits=False)
    opening.open.set()
    producer = client.create_producer(name, **keys.sealed(), batching_enabled=True, batching_max_messages=10)
    api.send_all(producer, contents)
    assert data_of(taken(client, name, 300, crypto_key_reader=opening)) == contents
    assert opening.names == ["alice"]


def test_a_slow_key_reader_blocks_its_consumer_only(api: Api, client: Any, topic: NewTopic, keys: Keys) -> None:
    name, other = topic(), topic()
    opening = Opening(keys.reader("alice"), waits=True)
    consumer = client.subscribe(name, "sub", crypto_key_reader=opening)
    api.send_all(client.create_producer(name, **keys.sealed()), HIDDEN)
    try:
        with pytest.raises(Timeout):
            consumer.receive(300)
        assert opening.asked.wait(20)
        # Meanwhile the loop is free: another topic goes on, and so does this consumer's connection.
        producer = client.create_producer(other)
        producer.send(b"free")
        assert data_of(taken(client, other, 1)) == [b"free"]
    finally:
        opening.open.set()
    assert data_of([consumer.receive(20_000) for _ in HIDDEN]) == HIDDEN


def test_closing_while_a_key_is_awaited(api: Api, client: Any, topic: NewTopic, keys: Keys) -> None:
    name = topic()
    opening = Opening(keys.reader("alice"), waits=True)
    consumer = client.subscribe(name, "sub", crypto_key_reader=opening)
    try:
        client.create_producer(name, **keys.sealed()).send(b"x")
        with pytest.raises(Timeout):
            consumer.receive(300)
        assert opening.asked.wait(20)
        consumer.close()
        with pytest.raises(PulsarException):
            consumer.receive(300)
    finally:
        opening.open.set()


@pytest.mark.proves("C180")
def test_many_partitions_and_several_readers(api: Api, client: Any, topic: NewTopic, keys: Keys) -> None:
    name = topic(partitions=3)
    pairs = DefaultCryptoKeyReader(public_keys={each: keys.path(f"{each}.pub") for each in ("alice", "bob", "carol")})
    producer = client.create_producer(
        name,
        encryption_key="alice",
        encryption_keys=["bob", "carol", "alice"],
        crypto_key_reader=pairs,
        batching_enabled=False,
    )
    consumers = [
        client.subscribe(name, each, crypto_key_reader=keys.reader(each), initial_position=InitialPosition.Earliest)
        for each in ("alice", "bob", "carol")
    ]
    contents = sorted(b"%d" % number for number in range(30))
    api.send_all(producer, contents)
    for consumer in consumers:
        messages = [consumer.receive(20_000) for _ in contents]
        assert sorted(data_of(messages)) == contents
        assert {message.topic_name()[-1] for message in messages} == {"0", "1", "2"}
        assert list(metadata_by_name(messages[0].encryption_context())) == ["alice", "bob", "carol"]
