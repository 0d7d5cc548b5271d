"""Fake broker with answers given by the test, for behaviour that a real broker cannot be made to show.

Listens on 127.0.0.1 with one thread per connection, keeps every command it was sent, and answers as a broker without
topics would, unless the test gives other answers. Rules: nothing is stored, nothing is checked; every method may be
called from any thread; `close` ends all threads.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.frames import Frame, FrameDecoder, encode_command

HOST = "127.0.0.1"
MAXU = (1 << 64) - 1

# What is sent back for a command: frames in order; nothing swallows it.
Answer = Callable[["Peer", pb.BaseCommand], Iterable[bytes]]


@dataclass(frozen=True)
class Seen:
    """One command that arrived: when (monotonic seconds), over which connection, and what stood behind it."""

    at: float
    peer: Peer
    command: pb.BaseCommand
    payload: bytes = field(repr=False)


class Peer:
    """Broker side of one connection."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.muted = False
        self.gone = threading.Event()
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, *frames: bytes) -> None:
        """Send bytes; a client that has gone does not matter."""
        with self._lock, contextlib.suppress(OSError):
            self._sock.sendall(b"".join(frames))

    def close(self, *, reset: bool = False) -> None:
        """Close the connection, with RST instead of FIN if wanted."""
        with contextlib.suppress(OSError):
            if reset:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._sock.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
        self._sock.close()


def swallow(_peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
    """Answer nothing."""
    return ()


class FakeBroker:
    """A listening socket and its answers; use it in a `with` block."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, handshakes: bool = True) -> None:
        self.answers: dict[int, Answer] = {
            Kind.CONNECT: self._connected,
            Kind.PING: lambda peer, command: [frame(Kind.PONG)],
            Kind.PARTITIONED_METADATA: self._partitions,
            Kind.LOOKUP: self._lookup,
            Kind.PRODUCER: self._producer,
            Kind.SEND: self._receipt,
            Kind.GET_LAST_MESSAGE_ID: self._last_message_id,
            Kind.CONSUMER_STATS: lambda peer, command: [consumer_stats(command)],
            Kind.SEEK: self._seek,
        }
        self.partitions: dict[str, int] = {}
        self.connected = pb.CommandConnected(
            server_version="Fake", protocol_version=21, max_message_size=5 * 1024 * 1024
        )
        self.peers: list[Peer] = []
        self._handshakes = handshakes
        self._tls = tls
        self._entries = 0
        self._seen: list[Seen] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"{HOST}:{self.port}"
        self.url = f"{'pulsar+ssl' if tls else 'pulsar'}://{self.address}"
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in list(self.peers):
            peer.close()
        for thread in list(self._threads):
            thread.join(10)

    # --- what the test asks -------------------------------------------------------------------------------------

    def seen(self, *kinds: int) -> list[Seen]:
        """Return the commands that arrived, in order; only of these kinds if any are given."""
        with self._changed:
            return [seen for seen in self._seen if not kinds or seen.command.type in kinds]

    def wait(self, kind: int, count: int = 1, *, seconds: float = 10.0) -> list[Seen]:
        """Wait until so many commands of a kind have arrived, and return them; fails after `seconds`."""
        with self._changed:
            enough = self._changed.wait_for(lambda: self._count(kind) >= count, seconds)
        found = self.seen(kind)
        assert enough, f"{len(found)} instead of {count} commands of type {Kind.Name(kind)} arrived"
        return found

    def peer(self, number: int = 0, *, seconds: float = 10.0) -> Peer:
        """Wait until so many connections were accepted, and return that one; fails after `seconds`."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.peers) > number, seconds)
        assert enough, f"only {len(self.peers)} connections came"
        return self.peers[number]

    def _count(self, kind: int) -> int:
        return sum(1 for seen in self._seen if seen.command.type == kind)

    # --- connections --------------------------------------------------------------------------------------------

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="fake-broker", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
        except OSError:
            sock.close()
            return
        with self._changed:
            peer = Peer(len(self.peers), sock)
            self.peers.append(peer)
            self._changed.notify_all()
        decoder = FrameDecoder(1 << 26)
        try:
            while data := sock.recv(1 << 16):
                if self._handshakes:
                    for received in decoder.receive(data):
                        self._take(peer, received)
        except OSError:
            pass
        finally:
            peer.gone.set()
            sock.close()

    def _take(self, peer: Peer, received: Frame) -> None:
        with self._changed:
            self._seen.append(Seen(time.monotonic(), peer, received.command, received.payload))
            self._changed.notify_all()
        if peer.muted:
            return
        self._answer(peer, received.command)

    def _answer(self, peer: Peer, command: pb.BaseCommand) -> None:
        answer = self.answers.get(command.type, _default)
        for piece in answer(peer, command):
            peer.send(piece)

    # --- answers ------------------------------------------------------------------------------------------------

    def _connected(self, _peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        return [frame(Kind.CONNECTED, connected=self.connected)]

    def _partitions(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.partitionMetadata
        answer = pb.CommandPartitionedTopicMetadataResponse(
            request_id=asked.request_id,
            partitions=self.partitions.get(asked.topic, 0),
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        )
        return [frame(Kind.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer)]

    def _lookup(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return [found(command, self.url)]

    def _producer(self, peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.producer
        name = asked.producer_name if asked.HasField("producer_name") else f"fake-{peer.number}-{asked.producer_id}"
        answer = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name=name, last_sequence_id=-1)
        return [frame(Kind.PRODUCER_SUCCESS, producer_success=answer)]

    def _receipt(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        self._entries += 1
        return [receipt(command.send, self._entries - 1)]

    def set_last(self, entry: int, *, mark: int | None = None) -> None:
        """Answer from now on that the last entry is this one of ledger 1, and name a mark-delete position if given."""

        def answer(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
            response = pb.CommandGetLastMessageIdResponse(
                request_id=command.getLastMessageId.request_id,
                last_message_id=pb.MessageIdData(ledgerId=1, entryId=entry),
            )
            if mark is not None:
                response.consumer_mark_delete_position.ledgerId = 1
                response.consumer_mark_delete_position.entryId = mark
            return [frame(Kind.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=response)]

        self.answers[Kind.GET_LAST_MESSAGE_ID] = answer

    def _last_message_id(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        nothing = pb.MessageIdData(ledgerId=MAXU, entryId=MAXU)
        answer = pb.CommandGetLastMessageIdResponse(
            request_id=command.getLastMessageId.request_id, last_message_id=nothing
        )
        return [frame(Kind.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer)]

    def _seek(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        # In this order, as a real one.
        closing = pb.CommandCloseConsumer(consumer_id=command.seek.consumer_id, request_id=MAXU)
        return [frame(Kind.CLOSE_CONSUMER, close_consumer=closing), success(command.seek.request_id)]


def _default(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
    """Answer SUCCESS to whatever has a request id."""
    for description, value in command.ListFields():
        if description.name != "type" and "request_id" in value.DESCRIPTOR.fields_by_name:
            return [success(value.request_id)]
    return ()


# --- frames of a broker -----------------------------------------------------------------------------------------


def consumer_stats(command: pb.BaseCommand, *, backlog: int = 0, unacked: int = 0) -> bytes:
    """Return the answer to CONSUMER_STATS."""
    answer = pb.CommandConsumerStatsResponse(
        request_id=command.consumerStats.request_id, unackedMessages=unacked, msgBacklog=backlog
    )
    return frame(Kind.CONSUMER_STATS_RESPONSE, consumerStatsResponse=answer)


def frame(kind: int, **fields: Any) -> bytes:
    """Return the frame of a command."""
    command = pb.BaseCommand(type=kind, **fields)  # type: ignore[arg-type]
    if kind == Kind.PING:
        command.ping.SetInParent()
    elif kind == Kind.PONG:
        command.pong.SetInParent()
    return encode_command(command)


def success(request_id: int) -> bytes:
    """Return SUCCESS."""
    return frame(Kind.SUCCESS, success=pb.CommandSuccess(request_id=request_id))


def failure(request_id: int, code: int, text: str = "as the test wants it") -> bytes:
    """Return ERROR."""
    return frame(Kind.ERROR, error=pb.CommandError(request_id=request_id, error=code, message=text))  # type: ignore[arg-type]


def found(
    command: pb.BaseCommand,
    url: str,
    *,
    redirect: bool = False,
    authoritative: bool = False,
    through_proxy: bool = False,
) -> bytes:
    """Return the answer to a LOOKUP: the broker at this URL, or whom to ask next."""
    kind = pb.CommandLookupTopicResponse.Redirect if redirect else pb.CommandLookupTopicResponse.Connect
    answer = pb.CommandLookupTopicResponse(
        request_id=command.lookupTopic.request_id,
        response=kind,
        authoritative=authoritative,
        proxy_through_service_url=through_proxy,
    )
    if url.startswith("pulsar+ssl"):
        answer.brokerServiceUrlTls = url
    else:
        answer.brokerServiceUrl = url
    return frame(Kind.LOOKUP_RESPONSE, lookupTopicResponse=answer)


def not_found(command: pb.BaseCommand, code: int, text: str = "as the test wants it") -> bytes:
    """Return the answer to a LOOKUP that failed."""
    answer = pb.CommandLookupTopicResponse(
        request_id=command.lookupTopic.request_id,
        response=pb.CommandLookupTopicResponse.Failed,
        error=code,  # type: ignore[arg-type]
        message=text,
    )
    return frame(Kind.LOOKUP_RESPONSE, lookupTopicResponse=answer)


def receipt(sent: pb.CommandSend, entry: int, *, sequence_id: int | None = None) -> bytes:
    """Return the receipt of a SEND."""
    answer = pb.CommandSendReceipt(
        producer_id=sent.producer_id,
        sequence_id=sent.sequence_id if sequence_id is None else sequence_id,
        highest_sequence_id=sent.highest_sequence_id if sent.HasField("highest_sequence_id") else MAXU,
        message_id=pb.MessageIdData(ledgerId=1, entryId=entry),
    )
    return frame(Kind.SEND_RECEIPT, send_receipt=answer)


def registry(fake: FakeBroker, *outcomes: bytes | int) -> list[str]:
    """Let the fake broker answer registrations by versions or error codes, in turn; return the topics asked for."""
    asked: list[str] = []

    def answer(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        request = command.getOrCreateSchema
        asked.append(request.topic)
        outcome = outcomes[min(len(asked), len(outcomes)) - 1]
        made = pb.CommandGetOrCreateSchemaResponse(request_id=request.request_id)
        if isinstance(outcome, bytes):
            made.schema_version = outcome
        else:
            made.error_code, made.error_message = outcome, "as the test wants it"  # type: ignore[assignment]
        return [frame(Kind.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=made)]

    fake.answers[Kind.GET_OR_CREATE_SCHEMA] = answer
    return asked


def delivery(
    consumer_id: int,
    entry: bytes,
    entry_id: int,
    *,
    ack_set: Sequence[int] = (),
    epoch: int | None = None,
    ledger_id: int = 1,
    redelivery_count: int = 0,
) -> bytes:
    """Return a MESSAGE with an entry."""
    message = pb.CommandMessage(
        consumer_id=consumer_id, message_id=pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id), ack_set=ack_set
    )
    if redelivery_count:
        message.redelivery_count = redelivery_count
    if epoch is not None:
        message.consumer_epoch = epoch
    head = frame(Kind.MESSAGE, message=message)
    total = int.from_bytes(head[:4], "big") + len(entry)
    return total.to_bytes(4, "big") + head[4:] + entry


def permits(broker: FakeBroker) -> list[int]:
    """Return the permits of every FLOW seen."""
    return [seen.command.flow.messagePermits for seen in broker.seen(Kind.FLOW)]
