"""The Java client as a peer: one JVM per test session that takes JSON commands (tests/integration/java/Peer.java).

Rules: it is compiled once per source text, into .cache; every wait is bounded, and a failure shows the end of what the
JVM wrote; the JVM ends with the session, and by itself when the session dies, since it ends with its stdin. Options go
by the Java client's own names (`compressionType="LZ4"`, `batchingEnabled=False`), as its `loadConf` takes them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

import java_classes
from environments import SetupError
from support.brokers import Broker

SOURCES = Path(__file__).resolve().parent.parent / "integration" / "java"
# Longer than the peer's own limit of a minute, so that its error arrives first.
_LIMIT_SECONDS = 240
_STOP_SECONDS = 10
_OPTIONS = ("-Xmx384m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

Schema = str | Mapping[str, Any] | None


class JavaError(Exception):
    """Raised for an exception of the Java client; `type` is the name of its class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.type = kind


class PeerGone(Exception):
    """Raised when the peer did not compile, start or answer; has the end of its output."""


@dataclass(frozen=True)
class JavaMessage:
    """A message by the Java client's getters; `id` is what toByteArray gave, `data` None for a null value."""

    id: bytes
    topic: str
    data: bytes | None
    size: int
    value: Any
    value_error: str | None
    properties: dict[str, str]
    key: str | None
    has_key: bool
    key_is_base64: bool
    key_bytes: bytes | None
    ordering_key: bytes | None
    event_time: int
    publish_time: int
    sequence_id: int
    producer_name: str
    redelivery_count: int
    schema_version: bytes | None
    replicated_from: str | None
    broker_publish_time: int | None
    index: int | None
    encryption: dict[str, Any] | None

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> JavaMessage:
        """Make it from the peer's JSON."""
        fields = {"value": None, "value_error": None, "encryption": None, **answer}
        for name in ("id", "data", "key_bytes", "ordering_key", "schema_version"):
            fields[name] = from_base64(fields[name])
        return cls(**fields)


@dataclass(frozen=True)
class JavaEntry:
    """A stored entry by Java's parser: `metadata` holds the fields that are set, `body` is as stored."""

    checksum_right: bool
    metadata: dict[str, Any]
    metadata_bytes: bytes
    body: bytes


def to_base64(data: bytes) -> str:
    """Return bytes as the peer takes them."""
    return base64.b64encode(data).decode()


def from_base64(text: str | None) -> bytes | None:
    """Return bytes the peer gave."""
    return None if text is None else base64.b64decode(text)


class JavaPeer:
    """The JVM. Not thread-safe: one command at a time."""

    def __init__(self, folder: Path, *, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._limit_seconds = limit_seconds
        self.folder, self._log = folder, folder / "peer.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes] = queue.Queue()

    @property
    def process_id(self) -> int:
        """Return the JVM's process id."""
        assert self._process is not None, "start() comes first"
        return self._process.pid

    def start(self) -> None:
        """Start the JVM unless it runs: the first time, and after a test that broke it."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        try:
            classes = java_classes.compiled(sorted(SOURCES.glob("*.java")), "java-peer")
            command = java_classes.command(classes, "Peer", _OPTIONS)
        except SetupError as error:
            raise PeerGone(str(error)) from None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._answers = queue.Queue()
        arguments = (self._process.stdout, self._answers)
        threading.Thread(target=_read, args=arguments, name="java-peer", daemon=True).start()

    def ask(self, do: str, **request: Any) -> Any:
        """Run one command and return its answer; raises `JavaError` for what Java raised, else `PeerGone`."""
        process = self._process
        assert process is not None and process.stdin is not None, "start() comes first"
        try:
            process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            process.stdin.flush()
            answer = self._answers.get(timeout=self._limit_seconds)
        except (OSError, queue.Empty):
            # Its next answer would be taken for that of another command.
            self._end(process)
            raise PeerGone(f"the Java peer did not answer {do!r}:\n{self.tail()}") from None
        if not answer:
            self._end(process)
            raise PeerGone(f"the Java peer ended during {do!r}:\n{self.tail()}")
        told = json.loads(answer)
        if "error" in told:
            raise JavaError(told["error"]["type"], told["error"]["message"])
        return told["ok"]

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        # Waited for, so that `start` sees that it is gone.
        process.kill()
        process.wait(_STOP_SECONDS)

    def tail(self, lines: int = 40) -> str:
        """Return the end of what the JVM logged."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End the JVM: it ends with its stdin, and is killed when it does not."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._end(process)

    # ---- what needs no broker ----------------------------------------------------------------------------------------

    def schema_info(self, schema: Schema) -> dict[str, Any]:
        """Return name, type, schema (bytes) and properties of a schema as Java registers it."""
        info: dict[str, Any] = self.ask("schema_info", schema=schema)
        return {**info, "schema": from_base64(info["schema"])}

    def encode(self, schema: Schema, value: Any) -> bytes:
        """Return the bytes Java's schema makes of a value."""
        return base64.b64decode(self.ask("encode", schema=schema, value=value))

    def decode(self, schema: Schema, data: bytes) -> Any:
        """Return the value Java's schema reads from bytes."""
        return self.ask("decode", schema=schema, data=to_base64(data))

    def partition(self, key: str, scheme: str, partitions: int) -> int:
        """Return the partition of a key by a HashingScheme's name."""
        return int(self.ask("partition", key=key, scheme=scheme, partitions=partitions))

    def id(self, message_id: bytes | str) -> dict[str, Any]:
        """Return what Java reads in a message id's bytes; also of "earliest" and "latest"."""
        given = message_id if isinstance(message_id, str) else to_base64(message_id)
        return _place(self.ask("id", id=given))

    def compare(self, one: bytes, other: bytes) -> tuple[bool, int]:
        """Return whether Java holds two ids for equal, and their order: -1, 0 or 1."""
        told = self.ask("compare", one=to_base64(one), other=to_base64(other))
        return told["equal"], told["order"]

    def client(self, service_url: str, **options: Any) -> JavaClient:
        """Return the session's client of a service URL (`token`, `trust_certificates`, `transactions`)."""
        name = f"{service_url} {json.dumps(options, sort_keys=True)}"
        self.ask("client", **{"as": name}, service_url=service_url, **options)
        return JavaClient(self, name)


def _place(told: dict[str, Any]) -> dict[str, Any]:
    if "first_chunk" in told:
        told["first_chunk"] = _place(told["first_chunk"])
    return {**told, "id": from_base64(told["id"])}


class JavaClient:
    """A Java client; what it makes is closed by `release`, itself with the JVM."""

    def __init__(self, peer: JavaPeer, name: str) -> None:
        self.peer = peer
        self._name = name

    def _open(self, do: str, **request: Any) -> tuple[str, Any]:
        handle = f"{do}-{uuid.uuid4().hex[:12]}"
        told = self.peer.ask(do, **{"as": handle}, client=self._name, **request)
        return handle, told

    def producer(
        self,
        topic: str,
        schema: Schema = None,
        *,
        key_based: bool = False,
        keys: Mapping[str, Mapping[str, str]] | None = None,
        encrypt_with: Sequence[str] = (),
        **options: Any,
    ) -> JavaProducer:
        """Create a producer; keys are {"public": {name: PEM text}}."""
        handle, told = self._open(
            "producer", topic=topic, schema=schema, key_based=key_based, keys=keys, encrypt_with=list(encrypt_with),
            options=options,
        )  # fmt: skip
        return JavaProducer(self.peer, handle, schema, told["producer_name"], told["last_sequence_id"])

    def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str = "java",
        schema: Schema = None,
        *,
        inclusive: bool = False,
        keys: Mapping[str, Mapping[str, str]] | None = None,
        dead_letter: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> JavaSource:
        """Subscribe, from the topic's start unless told otherwise; dead_letter is {max, topic, retry_topic, …}."""
        names = [topics] if isinstance(topics, str) else list(topics)
        handle, _ = self._open(
            "consumer", topics=names, subscription=subscription, schema=schema, inclusive=inclusive, keys=keys,
            dead_letter=dead_letter, options={"subscriptionInitialPosition": "Earliest", **options},
        )  # fmt: skip
        return JavaSource(self.peer, handle)

    def reader(
        self,
        topic: str,
        start: bytes | str = "earliest",
        schema: Schema = None,
        *,
        inclusive: bool = False,
        keys: Mapping[str, Mapping[str, str]] | None = None,
        **options: Any,
    ) -> JavaSource:
        """Create a reader from an id's bytes, "earliest" or "latest"."""
        given = start if isinstance(start, str) else to_base64(start)
        handle, _ = self._open(
            "reader", topic=topic, schema=schema, start=given, inclusive=inclusive, keys=keys, options=options
        )
        return JavaSource(self.peer, handle)

    def raw(self, topic: str, count: int) -> list[JavaEntry]:
        """Return the first entries of a topic as they are stored. Leaves a subscription behind."""
        _, told = self._open("raw", topic=topic, count=count)
        return [
            JavaEntry(
                checksum_right=entry.get("checksum_right", False),
                metadata=entry["metadata"],
                metadata_bytes=base64.b64decode(entry["metadata_bytes"]),
                body=base64.b64decode(entry["body"]),
            )
            for entry in told
        ]

    def begin(self, timeout_ms: int = 30_000) -> JavaTransaction:
        """Begin a transaction; the client needs `transactions=True`."""
        handle, told = self._open("begin", timeout_ms=timeout_ms)
        return JavaTransaction(self.peer, handle, told)

    def release(self) -> None:
        """Close all producers, consumers and readers of the JVM and abort its transactions."""
        self.peer.ask("release")


class JavaTransaction:
    """A transaction of the Java client."""

    def __init__(self, peer: JavaPeer, handle: str, text: str) -> None:
        self._peer, self.handle, self.text = peer, handle, text

    def commit(self) -> None:
        """Commit it."""
        self._peer.ask("end", of=self.handle, commit=True)

    def abort(self) -> None:
        """Abort it."""
        self._peer.ask("end", of=self.handle, commit=False)


class JavaProducer:
    """A producer of the Java client."""

    def __init__(self, peer: JavaPeer, handle: str, schema: Schema, name: str, last_sequence_id: int) -> None:
        self._peer, self._handle, self._schema = peer, handle, schema
        self.name, self.last_sequence_id = name, last_sequence_id

    def send_all(self, values: Sequence[Any], **parts: Any) -> list[bytes]:
        """Send values without waiting in between, all with the same parts (see `send`); return their ids' bytes."""
        return self.send_messages([{"value": value, **parts} for value in values])

    def send(self, value: Any, **parts: Any) -> bytes:
        """Send one value: bytes without schema, else as Render.java shows values. Returns the id's bytes.

        Parts: key, key_bytes, ordering_key (bytes), properties, event_time, sequence_id, deliver_at,
        deliver_after_ms, replicate_to, disable_replication, txn.
        """
        return self.send_all([value], **parts)[0]

    def send_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Send messages, each with parts of its own, without waiting in between; return their ids' bytes."""
        given = [{name: _part(part) for name, part in message.items()} for message in messages]
        told = self._peer.ask("send", of=self._handle, schema=self._schema, messages=given)
        return [base64.b64decode(each) for each in told]

    def close(self) -> None:
        """Close it."""
        self._peer.ask("close", of=self._handle)


def _part(part: Any) -> Any:
    if isinstance(part, bytes):
        return to_base64(part)
    return part.handle if isinstance(part, JavaTransaction) else part


class JavaSource:
    """A consumer or a reader of the Java client."""

    def __init__(self, peer: JavaPeer, handle: str) -> None:
        self._peer, self._handle = peer, handle

    def receive(self, count: int = 1, *, timeout_ms: int = 20_000) -> list[JavaMessage]:
        """Return so many messages; fewer fail the test."""
        messages = self.poll(count, timeout_ms=timeout_ms)
        assert len(messages) == count, f"Java got {len(messages)} of {count} messages in {timeout_ms} ms"
        return messages

    def poll(self, count: int = 1, *, timeout_ms: int) -> list[JavaMessage]:
        """Return up to so many messages, fewer when the time is over."""
        told = self._peer.ask("receive", of=self._handle, count=count, timeout_ms=timeout_ms)
        return [JavaMessage.from_answer(each) for each in told]

    def acknowledge(
        self, messages: Sequence[JavaMessage | bytes], how: str = "each", txn: JavaTransaction | None = None
    ) -> None:
        """Acknowledge "each" one, as one "list", or "cumulative" up to the only one."""
        self._peer.ask(
            "acknowledge", of=self._handle, ids=_ids(messages), how=how, txn=None if txn is None else txn.handle
        )

    def negative_acknowledge(self, *messages: JavaMessage) -> None:
        """Ask for messages again after the delay."""
        self._peer.ask("negative_acknowledge", of=self._handle, ids=_ids(messages))

    def reconsume_later(self, *messages: JavaMessage, delay_ms: int) -> None:
        """Put messages to the retry topic."""
        self._peer.ask("reconsume_later", of=self._handle, ids=_ids(messages), delay_ms=delay_ms)

    def redeliver(self) -> None:
        """Ask for everything unacknowledged again."""
        self._peer.ask("redeliver", of=self._handle)

    def seek(self, target: bytes | str | int) -> None:
        """Seek to an id's bytes, "earliest", "latest", or a publish time in milliseconds."""
        if isinstance(target, int):
            self._peer.ask("seek", of=self._handle, time=target)
        else:
            self._peer.ask("seek", of=self._handle, id=target if isinstance(target, str) else to_base64(target))

    def has_message(self) -> bool:
        """Return what a reader's hasMessageAvailable says."""
        return bool(self._peer.ask("has_message", of=self._handle))

    def last_ids(self) -> list[bytes]:
        """Return the last message ids of the topic's partitions."""
        return [base64.b64decode(each) for each in self._peer.ask("last_ids", of=self._handle)]

    def close(self, *, unsubscribe: bool = False) -> None:
        """Close it, with the subscription if wanted."""
        self._peer.ask("close", of=self._handle, unsubscribe=unsubscribe)


def _ids(messages: Sequence[JavaMessage | bytes]) -> list[str]:
    return [to_base64(each if isinstance(each, bytes) else each.id) for each in messages]


def _read(stdout: IO[bytes], answers: queue.Queue[bytes]) -> None:
    """Hand the answers over as they come, so that waiting for one can be bounded; an empty one is the end."""
    with stdout:
        for line in stdout:
            answers.put(line)
    answers.put(b"")


# ---- fixtures ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def java_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    """Give the JVM of this session."""
    made = JavaPeer(tmp_path_factory.mktemp("java_peer"))
    yield made
    made.stop()


@pytest.fixture
def java(java_peer: JavaPeer, broker: Broker) -> Iterator[JavaClient]:
    """Give the Java client on the shared broker; what a test leaves open is closed after it."""
    java_peer.start()
    made = java_peer.client(broker.service_url)
    yield made
    # A peer that is gone holds nothing open; the test itself has failed by it.
    with contextlib.suppress(PeerGone):
        made.release()
