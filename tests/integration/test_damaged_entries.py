"""The order of the steps on an arriving entry: each looks only at what the ones before it have passed.

An encrypted, compressed batch of a real broker, with its metadata in front (persistent) or without (non-persistent), is
damaged on its way at one step and at all those behind it: what is told is the first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import CompressionType, ConsumerCryptoFailureAction, ConsumerType, CryptoKeyReader
from pulsar_native.protocol import entry_decoder
from pulsar_native.protocol.data_keys import KeyWanted
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.checksum import crc32c
from pulsar_native.wire.entry import parse_entry
from pulsar_native.wire.frames import FrameDecoder
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.key_files import key_pair
from support.raw import commands_of
from support.relay import TO_CLIENT, Command, NewRelay

Reasons = pb.CommandAck.ValidationError

CONTENTS = [b"a" * 3000, b"b" * 3000, b"c" * 3000]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> CryptoKeyReader:
    """Give the reader of one key pair."""
    return CryptoKeyReader(*key_pair(tmp_path_factory.mktemp("keys")))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0xFF])


def payload_of(frame: bytes) -> bytes:
    (received,) = FrameDecoder(1 << 26).receive(frame)
    return received.payload


def changed(frame: bytes, step: str) -> bytes:
    """Return a MESSAGE damaged from one step on; the checksum is right for all but its own."""
    payload = payload_of(frame)
    front = payload[: 6 + struct.unpack_from(">I", payload, 2)[0]] if payload[:2] == b"\x0e\x02" else b""
    metadata, body = parse_entry(payload).metadata, bytes(parse_entry(payload).body)
    assert metadata.encryption_keys and metadata.compression and metadata.num_messages_in_batch == 3
    if step == "whole":
        return frame
    if step in ("decompression", "batch"):
        # Not encrypted any more, as nobody could damage what is encrypted without the decryption noticing.
        metadata.ClearField("encryption_keys")
        metadata.ClearField("encryption_algo")
        metadata.ClearField("encryption_param")
    if step == "batch":
        metadata.ClearField("compression")
    written = metadata.SerializeToString()
    if step in ("checksum", "metadata"):
        written = b"\xff" * len(written)
    sized = struct.pack(">I", len(written)) + written + flipped(body)
    checksum = crc32c(sized) ^ (1 if step == "checksum" else 0)
    return _framed(frame, front + b"\x0e\x01" + struct.pack(">I", checksum) + sized)


def _framed(frame: bytes, payload: bytes) -> bytes:
    (size,) = struct.unpack_from(">I", frame, 4)
    command = frame[8 : 8 + size]
    return struct.pack(">II", 4 + size + len(payload), size) + command + payload


# What is told of an entry that is damaged from there on, and what was begun with it.
STEPS: dict[str, tuple[int | None, list[str]]] = {
    "checksum": (Reasons.ChecksumMismatch, ["parse"]),
    "metadata": (Reasons.ChecksumMismatch, ["parse"]),
    "decryption": (Reasons.DecryptionError, ["parse", "decrypt"]),
    "decompression": (Reasons.DecompressionError, ["parse", "decompress"]),
    "batch": (Reasons.BatchDeSerializeError, ["parse", "split"]),
    "whole": (None, ["parse", "decrypt", "decompress", "split"]),
}


@pytest.mark.proves("C123")
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("step", list(STEPS))
def test_the_first_step_that_fails_is_the_one_that_is_told(
    api: Api,
    broker: Broker,
    client: Any,
    relay: NewRelay,
    topic: NewTopic,
    keys: CryptoKeyReader,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
    stats: Callable[[str], Any],
    domain: str,
    step: str,
) -> None:
    name = topic().replace("persistent", domain)
    through = relay(broker.service_url)
    fronts: list[bool] = []
    steps = _watched(monkeypatch)

    def change(frame: bytes) -> bytes:
        # Only at the beginning: the encrypted key may hold these bytes, too.
        fronts.append(payload_of(frame).startswith(b"\x0e\x02"))
        # The first entry only.
        return changed(frame, step) if len(fronts) == 1 else frame

    through.replace(Command.MESSAGE, TO_CLIENT, change)
    consumer = api.client(through.service_url).subscribe(
        name,
        "sub",
        ConsumerType.Shared,
        crypto_key_reader=keys,
        crypto_failure_action=ConsumerCryptoFailureAction.DISCARD,
    )
    # A non-persistent topic drops what no consumer has permits for, and the relay may hold these up.
    eventually(lambda: stats(name)["subscriptions"]["sub"]["consumers"][0]["availablePermits"] > 0)
    producer = client.create_producer(
        name,
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        compression_type=CompressionType.ZSTD,
        encryption_key="key",
        crypto_key_reader=keys,
    )
    api.send_all(producer, CONTENTS)
    api.send_all(producer, CONTENTS)
    expected = CONTENTS * (2 if step == "whole" else 1)
    assert [consumer.receive(10_000).data() for _ in expected] == expected
    assert fronts == [domain == "persistent"] * 2
    reason, begun = STEPS[step]
    assert steps == [*begun, *STEPS["whole"][1]]
    discarded = consumer.discarded_message_ids()
    assert len(discarded) == (0 if step == "whole" else 1)
    if domain == "persistent" and discarded:
        through.wait_for(Command.ACK)
        (ack,) = commands_of(through, Command.ACK)
        assert ack.ack.validation_error == reason
        assert (ack.ack.message_id[0].ledgerId, ack.ack.message_id[0].entryId) == (
            discarded[0].ledger_id(),
            discarded[0].entry_id(),
        )


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that is told of each step that is begun."""
    steps: list[str] = []
    for name, function in (
        ("parse", "parse_entry"),
        ("decrypt", "_decrypt"),
        ("decompress", "decompress"),
        ("split", "_spans_of"),
    ):
        inner = getattr(entry_decoder, function)

        def told(*arguments: Any, _name: str = name, _inner: Any = inner) -> Any:
            steps.append(_name)
            try:
                return _inner(*arguments)
            except BaseException as error:
                if isinstance(error, KeyWanted):
                    # The key is fetched, and the entry looked at again from its beginning.
                    del steps[-2:]
                raise

        monkeypatch.setattr(entry_decoder, function, told)
    return steps
