"""Drain of a topic: reads the socket, counts the messages by the entries' metadata and throws everything away.

Called as worker.py is, with the same request, and prints the same last line. It is the limit for receiving: what the
broker, the kernel and one reading Python thread take. Nothing is checked, decompressed, split, acknowledged or kept.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
import uuid
from urllib.parse import urlsplit

from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import BROKER_METADATA_MAGIC
from pulsar_native.wire.frames import CHECKSUM_MAGIC, FrameDecoder, encode_command

_BUFFER_BYTES = 1024 * 1024
# Of a frame, the sizes, the command and the metadata of its entry are within these many bytes.
_HEAD_BYTES = 1024
_SOCKET_SECONDS = 60
# More than any case has: the broker is never kept waiting.
_PERMITS = 1_000_000_000
_SIZES = struct.Struct(">II")
_SIZE = struct.Struct(">I")
# The first field of a command is its type.
_MESSAGE = b"\x08%c" % pb.BaseCommand.MESSAGE
_PING = b"\x08%c" % pb.BaseCommand.PING
_ERROR = b"\x08%c" % pb.BaseCommand.ERROR


class MessageCounter:
    """Count the messages in a stream of frames that arrives in pieces, keeping no more of it than a frame's head."""

    def __init__(self) -> None:
        self.messages = 0
        self.pings = 0
        self._kept = b""
        self._skip = 0

    def feed(self, data: memoryview) -> None:
        """Count what these bytes complete; raises SystemExit on an ERROR of the broker."""
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        position, self._skip = self._skip, 0
        if self._kept:
            data, position, self._kept = memoryview(self._kept + data[position:]), 0, b""
        end = len(data)
        while end - position >= _SIZES.size:
            whole = _SIZE.unpack_from(data, position)[0] + _SIZE.size
            if end - position < min(whole, _HEAD_BYTES):
                break
            self._count(data, position)
            position += whole
        self._kept = bytes(data[position:])
        self._skip = max(0, position - end)

    def _count(self, data: memoryview, start: int) -> None:
        position = start + _SIZES.size
        kind = data[position : position + 2]
        if kind == _PING:
            self.pings += 1
        elif kind == _MESSAGE:
            self.messages += messages_of(data, position + _SIZES.unpack_from(data, start)[1])
        elif kind == _ERROR:
            raise SystemExit(
                f"the broker answered {bytes(data[position : position + _SIZES.unpack_from(data, start)[1]])!r}"
            )


def messages_of(data: memoryview, position: int) -> int:
    """Return the number of messages of the entry that begins there."""
    if data[position : position + 2] == BROKER_METADATA_MAGIC:
        position += 6 + _SIZE.unpack_from(data, position + 2)[0]
    if data[position : position + 2] == CHECKSUM_MAGIC:
        position += 6
    start = position + _SIZE.size
    metadata = pb.MessageMetadata()
    metadata.ParseFromString(data[start : start + _SIZE.unpack_from(data, position)[0]])  # type: ignore[arg-type]
    return metadata.num_messages_in_batch


def connect(url: str, authority: str | None) -> socket.socket:
    """Return a connection whose handshake is done."""
    place = urlsplit(url)
    plain = socket.create_connection((place.hostname, place.port), _SOCKET_SECONDS)
    if place.scheme == "pulsar+ssl":
        plain = ssl.create_default_context(cafile=authority).wrap_socket(plain, server_hostname=place.hostname)
    plain.sendall(commands.connect(client_version="drain", method="none", auth_data=b"", proxy_to=None))
    await_answers(plain, pb.BaseCommand.CONNECTED, 1)
    return plain


def await_answers(connection: socket.socket, kind: int, count: int) -> None:
    """Wait for responses of a kind; raises SystemExit on an error. There are no permits yet, so no messages arrive."""
    decoder = FrameDecoder()
    while count > 0:
        data = connection.recv(_BUFFER_BYTES)
        for frame in decoder.receive(data):
            if frame.command.type == pb.BaseCommand.ERROR:
                raise SystemExit(f"the broker answered {frame.command}")
            count -= frame.command.type == kind
        if not data:
            raise SystemExit("the broker closed the connection")


def subscribe(topic: str, number: int) -> bytes:
    """Return the command that subscribes from the topic's first message on."""
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=f"bench-{uuid.uuid4().hex}",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=number,
        request_id=number,
        # A subscription that is not durable ends with the connection.
        durable=False,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
    command.start_message_id.ledgerId = command.start_message_id.entryId = 2**64 - 1
    return encode_command(pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=command))


def drain(connection: socket.socket, topics: list[str], count: int) -> None:
    """Read until as many messages have arrived; raises SystemExit if they do not."""
    connection.sendall(b"".join(subscribe(topic, number) for number, topic in enumerate(topics)))
    # The broker ignores permits of a consumer that it has not made yet.
    await_answers(connection, pb.BaseCommand.SUCCESS, len(topics))
    connection.sendall(b"".join(commands.flow(number, _PERMITS) for number in range(len(topics))))
    buffer = bytearray(_BUFFER_BYTES)
    view, counter, answered = memoryview(buffer), MessageCounter(), 0
    while counter.messages < count:
        size = connection.recv_into(buffer)
        if not size:
            raise SystemExit(f"the broker closed the connection after {counter.messages} of {count} messages")
        counter.feed(view[:size])
        if counter.pings > answered:
            answered = counter.pings
            connection.sendall(encode_command(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong())))


def main() -> None:
    """Do what the request on the command line says."""
    request = json.loads(sys.argv[1])
    topics = [request["topic"]]
    if request["partitions"]:
        topics = [f"{request['topic']}-partition-{number}" for number in range(request["partitions"])]
    with connect(request["url"], request["authority"]) as connection:
        cpu, wall = time.process_time(), time.perf_counter()
        drain(connection, topics, request["count"])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"wall": wall, "cpu": cpu}))


if __name__ == "__main__":
    main()
