"""Requests about one topic partition: first and last message, and the first one at a time.

They use a non-durable reader, which leaves nothing at the broker; the admin interface is not needed. Rules: an answer
is valid at its time only, and every call has a time-out. GET_LAST_MESSAGE_ID names the last message that can be
delivered (never a transaction marker), so that an end taken from it is always reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar

from pulsar_native import Client, ConsumerCryptoFailureAction, MessageId, Reader
from pulsar_native.admin import AdminClient
from pulsar_native.auth import Authentication
from pulsar_native.exceptions import AlreadyClosed, TopicNotFound
from pulsar_native.schema import SchemaInfo
from pulsar_native.topic import TopicName
from pyspark_pulsar.clients import shared_client
from pyspark_pulsar.errors import ADVICE, DataLoss
from pyspark_pulsar.offsets import Found, Probe, Range, resolve
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position

# Number of partitions queried at once while planning.
PARALLEL = 8

_log = logging.getLogger("pyspark_pulsar")

T = TypeVar("T")
R = TypeVar("R")


class Ledger(NamedTuple):
    """Ledger of a topic partition: its id, its number of entries and their bytes as they are stored."""

    id: int
    entries: int
    size: int


class Broker:
    """Use of the process's client for a plan or a task; close it when done. Blocks; thread-safe."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._admin: AdminClient | None = None
        self._is_closed = False
        with ExitStack() as held:
            self._client, credentials = held.enter_context(shared_client(options))
            if options.admin_url is not None:
                self._admin = held.enter_context(admin_client(options, credentials))
            # An error before this gives the client back, which is not closed while it has a user.
            self._held = held.pop_all()

    @property
    def client(self) -> Client:
        """The process's client; raises `AlreadyClosed` after `close`."""
        if self._is_closed:
            raise AlreadyClosed("This plan or task is over")
        return self._client

    def topics(self) -> list[str]:
        """Return the topics of the options, or the matches of their pattern; raises `TopicNotFound` for none."""
        pattern = self._options.topics_pattern
        if pattern is None:
            return list(self._options.topics)
        there = self.client.get_topics_of_namespace(pattern.namespace)
        bases = dict.fromkeys(TopicName.parse(name).base.full for name in sorted(there))
        found = [name for name in bases if pattern.matches(name)]
        if not found:
            raise TopicNotFound(f"No topic of {pattern.namespace} matches topicsPattern {pattern.expression!r}")
        return found

    def partitions(self, topic: str) -> list[str]:
        """Return the partitions of a topic, or the topic itself; raises `TopicNotFound`, never creates it."""
        count = self.client.get_partition_count(topic)
        name = TopicName.parse(topic)
        return [name.with_partition(index).full for index in range(count)] if count else [name.full]

    def still_has(self, topic: str) -> bool:
        """Return True if a planned topic partition is there; a reader of one that was deleted would create it.

        Raises `DataLoss` for a deleted one. With failOnDataLoss=false that is logged, and the result is False.
        """
        try:
            self.partitions(topic)
        except TopicNotFound as error:
            self.leave_out(topic, error)
            return False
        return True

    def leave_out(self, topic: str, error: TopicNotFound) -> None:
        """Log that a planned topic partition was deleted; raises `DataLoss` unless failOnDataLoss=false."""
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{topic} was deleted after its messages were planned, and they with it. {ADVICE}", topic=topic
            ) from error
        _log.warning("%s was deleted after its messages were planned: they are left out (failOnDataLoss=false)", topic)

    def reader(
        self,
        topic: str,
        start: MessageId,
        queue_size: int | None = None,
        *,
        compacted: bool | None = None,
        decrypts: bool = True,
    ) -> Reader:
        """Return a non-durable reader that begins at `start`, that message included.

        `compacted` stands for the option readCompacted. Without `decrypts` encrypted entries are one message each, with
        their position and time.
        """
        action = ConsumerCryptoFailureAction.FAIL
        if not decrypts:
            action = ConsumerCryptoFailureAction.CONSUME
        elif self._options.discards_undecryptable:
            action = ConsumerCryptoFailureAction.DISCARD
        return self.client.create_reader(
            topic,
            start,
            receiver_queue_size=queue_size or self._options.receiver_queue_size,
            # What waits here is limited in bytes, too: to the client's memory, which the readers of a worker share.
            auto_scaled_receiver_queue_size_enabled=True,
            subscription_role_prefix=self._options.subscription_prefix,
            start_message_id_inclusive=True,
            is_read_compacted=self._options.read_compacted if compacted is None else compacted,
            crypto_key_reader=self._options.private_keys if decrypts else None,
            crypto_failure_action=action,
        )

    @contextmanager
    def probe(self, topic: str) -> Iterator[Probe]:
        """Open a probe of one topic partition, as a context manager."""
        # The queue size is the number of entries sent ahead: only the first message is needed.
        reader = self.reader(topic, MessageId.earliest, queue_size=1, decrypts=False)
        try:
            yield _ReaderProbe(self, topic, reader, self._options.poll_timeout_ms, self._admin)
        finally:
            reader.close()

    def ledgers(self, topic: str) -> list[Ledger]:
        """Return the ledgers of a topic partition in order; needs admin.url."""
        assert self._admin is not None
        stats = self._admin.internal_stats(topic)
        found = [Ledger(each["ledgerId"], each["entries"], each["size"]) for each in stats["ledgers"]]
        if found and found[-1].entries == 0:
            # The current ledger is not counted in its own row.
            found[-1] = Ledger(found[-1].id, stats["currentLedgerEntries"], stats["currentLedgerSize"])
        return found

    def schema(self, topic: str, version: int | None = None) -> SchemaInfo | None:
        """Return the registered schema of a topic, the newest or that version, None for none; needs admin.url."""
        assert self._admin is not None
        return self._admin.get_schema(topic, version)

    def close(self) -> None:
        """Release the client, which keeps its connections for the next task, and close the admin client."""
        self._is_closed = True
        self._held.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def admin_client(options: ReadOptions, credentials: Authentication | None) -> AdminClient:
    """Return a client of the admin interface (option admin.url) with the TLS settings of the client."""
    assert options.admin_url is not None
    config = options.client_config()
    return AdminClient(
        options.admin_url,
        credentials,
        tls_trust_certs_file_path=config.tls_trust_certs_file_path,
        tls_allow_insecure_connection=config.tls_allow_insecure_connection,
        tls_validate_hostname=bool(dict(options.client_settings).get("tls_validate_hostname", True)),
        timeout_seconds=config.operation_timeout_seconds,
    )


def last_entry(admin: AdminClient, topic: str) -> Position | None:
    """Return the last entry of a topic partition, also a transaction marker; None if its ledger has none. Blocks."""
    ledger, _, entry = str(admin.internal_stats(topic)["lastConfirmedEntry"]).partition(":")
    return None if entry.startswith("-") else Position(int(ledger), int(entry))


class _ReaderProbe:
    """Probe that answers by seeking one reader. Not thread-safe."""

    def __init__(self, broker: Broker, topic: str, reader: Reader, timeout_ms: int, admin: AdminClient | None) -> None:
        self._broker = broker
        self._topic = topic
        self._admin = admin
        self._reader = reader
        self._timeout_ms = timeout_ms
        self._fresh = True

    def last(self) -> Position | None:
        return self._last_of(self._reader)

    def last_stored(self) -> Position | None:
        # A reader that reads compacted is told the last message that compaction left.
        reader = self._broker.reader(self._topic, MessageId.latest, queue_size=1, compacted=False, decrypts=False)
        try:
            return self._last_of(reader)
        finally:
            reader.close()

    def _last_of(self, reader: Reader) -> Position | None:
        last = reader.get_last_message_id()
        # An empty topic answers with -1; a ledger without an entry yet with entry -1.
        return None if last.ledger_id() < 0 or last.entry_id() < 0 else Position.of_message(last)

    def first(self) -> Found | None:
        if not self._fresh:
            self._reader.seek(MessageId.earliest)
        return self._next()

    def first_at(self, time_ms: int) -> Found | None:
        # The broker treats times of 0 and below as missing.
        self._reader.seek(max(1, time_ms))
        return self._next()

    def is_trimmed(self) -> bool:
        if self._admin is None:
            return False
        stats = self._admin.internal_stats(self._topic)
        # The counter starts when the broker loads the topic, so that it may be too low.
        return stats["entriesAddedCounter"] > stats["numberOfEntries"]

    def entries_before(self, ledger: int) -> int:
        if self._admin is None:
            return 0
        return sum(each.entries for each in self._broker.ledgers(self._topic) if each.id < ledger)

    def last_entry(self) -> Position | None:
        return last_entry(self._admin, self._topic) if self._admin is not None else None

    def empty_ledger(self) -> Position | None:
        if self._admin is None:
            return None
        found = self._broker.ledgers(self._topic)
        return Position(found[-1].id, 0) if found and not any(each.entries for each in found) else None

    def is_held_back(self, last: Position | None, until_ms: int) -> bool:
        if self._admin is None:
            return False
        end = last_entry(self._admin, self._topic)
        if end is None or (last is not None and end < last.after_entry):
            return False
        # Markers and aborted messages stand there, too, which only an open transaction makes doubtful.
        stats: Mapping[str, object] = self._admin.stats(self._topic)
        if not stats.get("ongoingTxnCount"):
            return False
        bound = self._admin.message_id_by_time(self._topic, max(1, until_ms))
        begin = last.after_entry if last is not None else Position(self._broker.ledgers(self._topic)[0].id, 0)
        return Position(bound.ledger_id(), bound.entry_id()) > begin

    def _next(self) -> Found | None:
        self._fresh = False
        if not self._reader.has_message_available():
            return None
        message = self._reader.read_next(self._timeout_ms)
        message_id = message.message_id()
        last_chunk = Position(message_id.ledger_id(), message_id.entry_id())
        is_chunked = message_id.first_chunk_message_id() is not None
        return Found(
            Position.of_message(message_id),
            message.publish_timestamp(),
            message.index(),
            last_chunk if is_chunked else None,
        )


def plan(
    options: ReadOptions,
    wants: Callable[[str], bool] | None = None,
    narrowed: Callable[[Range, Probe], Range] | None = None,
) -> list[Range]:
    """Resolve the options into one frozen range per topic partition, in order of topics and partitions.

    `wants` returns False for the topic partitions to leave out; None for none. `narrowed` returns the wanted part of a
    range and may ask the partition's probe; None for the whole range.
    Blocks for a few requests per partition, several partitions at once. Raises `TopicNotFound`, `DataLoss`, also for a
    missing topic whose range the options give, as those of a load do, `Timeout` for an open transaction before
    endingTime, and errors of the connection.
    """
    with Broker(options) as broker:
        topics, gone = _partitions(options, broker)
        options.starting_offsets.check_names(topics + gone)
        options.ending_offsets.check_names(topics + gone)
        topics = [topic for topic in topics if wants is None or wants(topic)]

        def of_topic(topic: str) -> Range:
            with broker.probe(topic) as probe:
                found = resolve(topic, options, probe)
                return found if narrowed is None else narrowed(found, probe)

        return map_partitions(of_topic, topics)


def _partitions(options: ReadOptions, broker: Broker) -> tuple[list[str], list[str]]:
    """Return the topic partitions of the options, and the planned ones that were deleted and are left out."""
    found: list[str] = []
    gone: list[str] = []
    for topic in broker.topics():
        try:
            found += broker.partitions(topic)
        except TopicNotFound as error:
            if not options.has_range(topic):
                raise
            broker.leave_out(topic, error)
            gone.append(topic)
    return list(dict.fromkeys(found)), gone


def map_partitions(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of a blocking function for each topic partition, in order; several are called at once."""
    if len(items) <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(PARALLEL, len(items)), thread_name_prefix="pulsar-plan") as pool:
        return list(pool.map(function, items))
