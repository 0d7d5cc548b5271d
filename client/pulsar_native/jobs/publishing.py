"""Publish job: one bounded publication, with a receipt for every message, stored once however often it is repeated.

Rules: nothing is sent before all arguments (and all messages that are in memory) are checked; the rest is streamed.
With deduplication, message n has the sequence id n under a producer name shared by all tries, so that the broker drops
messages stored by an earlier try. This holds while every try has the same messages in the same order (checked by a
digest in the job's state), while the number of partitions stays, and while the broker remembers the inactive producer.
A topic that was created again has no message of an earlier try, and gets all of them.
Sending stops at the first message that fails: one stored after it would make the broker drop the failed one in the next
try. Blocks; for one thread, but `killed` may change at any time: nothing is sent afterwards.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import topic_setup, validation
from pulsar_native.jobs.busy import when_free
from pulsar_native.jobs.deduplication import FIX, Deduplication, check_switched_off, is_created_again
from pulsar_native.jobs.failures import JobRefused, counted, is_permanent, reason_of, text_of
from pulsar_native.jobs.publication import (
    ContentChanged,
    ContentDigest,
    ExpectedContent,
    Publication,
    Record,
    merged,
    new_record,
    restarted,
    shown_ids,
)
from pulsar_native.jobs.publish_options import CHECKED, check_keeps_nothing, checked
from pulsar_native.jobs.publish_result import PublishResult

if TYPE_CHECKING:
    from pulsar_native import AdminClient, Client, Producer
    from pulsar_native.jobs.codecs import Codec
    from pulsar_native.jobs.interfaces import JobLog, JobState
    from pulsar_native.jobs.sources import MessageMapping, MessageParts, Source

_PENDING = 20_000
_SHOWN_IDS = 20
_REASON_LENGTH = 1000
_REMEDY = (
    "To publish the messages as they are now, besides those already stored, pass on_changed='republish' (which needs "
    "messages that can be read again: a list, a table, a file, or a callable) or another identity, or start a new run"
)


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """Options of a publication; names, units and defaults are those of `PublishOperator`.

    Choices become lower case. Raises ValueError naming a wrong option.
    """

    topic: str
    schema: str | None = None
    compression: str = "none"
    batching: bool = True
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    chunking: bool = False
    encryption_keys: Mapping[str, str] = field(default_factory=dict)
    deduplicate: bool | str = "auto"
    republish_changed: bool = False
    send_timeout_seconds: float = 30
    progress_seconds: float = 5
    create_subscription: str | None = None
    retention_minutes: int | None = None
    retention_mb: int | None = None
    producer_name: str | None = None
    identity: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in CHECKED:
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        if self.topic.startswith("non-persistent://"):
            check_keeps_nothing(self.create_subscription, self.retention_minutes, self.retention_mb)


class PublishIncomplete(Exception):
    """Raised when messages were not stored, or other ones than intended were.

    `manifest` lists the stored messages; `can_retry` is True if a retry can store the rest.
    """

    def __init__(self, message: str, manifest: dict[str, Any], *, can_retry: bool) -> None:
        super().__init__(message)
        self.manifest = manifest
        self.can_retry = can_retry


@dataclass(frozen=True)
class Surroundings:
    """Functions of the caller.

    `killed` is called before each message. `report` gets the manifest of a publication that ended early, before the
    error is raised, and must not raise. Exceptions of the types `control` are the caller's own way to end, and are
    raised unchanged after the receipts of the messages sent. `redact` removes secrets from a text.
    """

    state: JobState
    log: JobLog
    killed: Callable[[], bool]
    report: Callable[[dict[str, Any]], None]
    control: tuple[type[BaseException], ...] = ()
    redact: Callable[[str], str] = str


class PublishJob:
    """Publication of one source to one topic; `check` and then `run`, once.

    `again` returns the source for a second reading, None if that is impossible.
    """

    def __init__(
        self,
        options: PublishOptions,
        codec: Codec,
        mapping: MessageMapping,
        source: Source,
        again: Callable[[], Source] | None,
        surroundings: Surroundings,
    ) -> None:
        self._options = options
        self._codec, self._mapping = codec, mapping
        self._source = source
        self._again = (lambda: source) if source.can_reread else again
        self._around = surroundings
        self._checked: ContentDigest | None = None
        # Stage of an error of the client.
        self.stage = "connect"

    def check(self) -> None:
        """Check every message of a source in memory; raises `InvalidValue` with its number. No I/O."""
        if self._source.is_list:
            try:
                self._checked = self._read(self._source, None)
            except ValueError as error:
                raise validation.InvalidValue(text_of(error)) from error

    def run(self, client: Client, admin: AdminClient | None) -> dict[str, Any]:
        """Publish and return the manifest.

        Raises `PublishIncomplete`, `JobRefused` if nothing was sent, and errors of the client.
        """
        from pulsar_native.topic import TopicName

        topic = TopicName.parse(self._options.topic).full
        publication = Publication(self._around.state, self._options.identity, topic)
        while True:
            attempt = _Attempt(self, publication, client, admin)
            try:
                return attempt.publish(self._source, self._checked)
            except ContentChanged as error:
                attempt.close()
                self._go_on(publication, attempt.producer_name, error)

    def _go_on(self, publication: Publication, producer_name: str | None, error: ContentChanged) -> None:
        """Continue with another generation if that is wanted, or raise the error."""
        if not self.can_republish:
            raise JobRefused(f"Nothing was published to {self._options.topic}: {error}. {_REMEDY}") from error
        assert self._again is not None
        publication.next_generation(producer_name)
        self._around.log.warning(
            "%s: %s. Publishing all messages as generation %s", self._options.topic, error, publication.number
        )
        self._source, self._checked = self._again(), None
        self.check()

    @property
    def can_republish(self) -> bool:
        """True if changed content is published as another generation."""
        return self._options.republish_changed and self._again is not None

    # ---- messages ----------------------------------------------------------------------------------------------------

    def ready(self, number: int, item: object, rows: str | None) -> tuple[bytes | None, MessageParts]:
        """Return a message's bytes and fields; raises ValueError with the message's number."""
        try:
            texts = item if rows == "texts" and isinstance(item, Mapping) else None
            parts = self._mapping.parts(self._codec.typed(item, rows), texts)
            return self._codec.encode(parts.value), parts
        except ValueError as error:
            raise ValueError(f"message {number}: {text_of(error)}") from error

    def digest(self) -> ContentDigest:
        """Return an empty digest."""
        return ContentDigest(self._codec.description)

    def fingerprint(self, source: Source) -> str | None:
        """Return a digest of a file and the options that make messages of it, None for another source. Blocks."""
        if (found := source.fingerprint()) is None:
            return None
        text = repr((found, self._codec.description, self._mapping))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _read(self, source: Source, expected: ExpectedContent | None) -> ContentDigest:
        """Read a source to its end without sending, comparing it with the expected content."""
        digest = self.digest()
        for number, item in enumerate(source):
            if self._around.killed():
                break
            digest.add(*self.ready(number, item, source.rows))
            if expected is not None:
                expected.check(digest)
        if expected is not None and not self._around.killed():
            expected.end(digest)
        return digest

    def compare(self, source: Source, file: str | None, record: Record) -> ExpectedContent | None:
        """Compare a source with an earlier try's content before anything is sent, if it can be read twice.

        Returns the comparison left for sending; raises `ContentChanged`.
        """
        if file is not None and file == record["file"]:
            return None
        if not source.can_reread:
            return ExpectedContent(record)
        if file is not None and record["phase"] == "sending":
            raise ContentChanged("the file is not the one that an earlier try was killed over")
        self._read(source, ExpectedContent(record))
        return None


class _Attempt:
    """One try of one generation: producer, record and receipts."""

    def __init__(self, job: PublishJob, publication: Publication, client: Client, admin: AdminClient | None) -> None:
        self._job, self._publication, self._client, self._admin = job, publication, client, admin
        self._options, self._around = job._options, job._around
        self._log = self._around.log
        self._guard = Deduplication(self._options.topic, self._options.deduplicate, self._log)
        self._earlier = publication.record
        self._expected: ExpectedContent | None = None
        self._digest: ContentDigest | None = None
        self._on: bool | None = False
        self._creation: dict[str, Any] = {}
        self._producer: Producer
        self._record: Record
        self._results: PublishResult
        self._started = time.monotonic()
        self.producer_name = self._name()

    def _name(self) -> str | None:
        base = self._options.producer_name
        if self._options.deduplicate is False or base is None:
            return None
        if self._earlier is not None and self._earlier["producer_name"] is not None:
            found: str = self._earlier["producer_name"]
            return found
        number = self._publication.number
        return base if number == 1 else f"{base}/{number}"

    def publish(self, source: Source, checked: ContentDigest | None) -> dict[str, Any]:
        """Publish and return the manifest."""
        self._open(source, checked)
        self._started = time.monotonic()
        problem: BaseException | None = None
        try:
            problem = self._send_all(source)
            self._settle()
        except BaseException as error:
            # A time-out, or the caller's own way to end: reported at once and raised unchanged.
            self._end(self._reason(error), is_complete=False)
            raise
        if problem is None and not self._around.killed() and not self._results.failed:
            problem = self._contradiction()
        if isinstance(problem, self._around.control):
            self._end(self._reason(problem), is_complete=False)
            raise problem
        if self._is_whole(problem):
            return self._manifest_of_success()
        if isinstance(problem, ContentChanged) and self._job.can_republish:
            self._keep(is_complete=False)
            raise problem
        raise self._incomplete(problem) from problem

    def close(self) -> None:
        """Close the producer if there is one."""
        producer = getattr(self, "_producer", None)
        if producer is not None:
            producer.close()

    # ---- before sending ----------------------------------------------------------------------------------------------

    def _open(self, source: Source, checked: ContentDigest | None) -> None:
        """Open the producer, get the broker's sequence id, compare, and store the record."""
        from pulsar_native.topic import TopicName

        topic, is_persistent = self._options.topic, TopicName.parse(self._options.topic).is_persistent
        self._job.stage = "connect"
        self._producer = self._open_producer()
        partitions = self._client.get_partition_count(topic)
        known = self._producer.last_sequence_id()
        self._job.stage = "deduplication"
        self._on = self._guard.ask(self._admin, partitions, known, is_persistent=is_persistent)
        if is_persistent and self.producer_name is not None:
            self._creation = self._guard.creation(self._client, self._admin, partitions)
        self._job.stage = "source"
        file = self._job.fingerprint(source) if self._on is not False else None
        self._job.stage = "deduplication"
        if self._earlier is not None:
            self._check_repetition(source, file, known, partitions)
        elif self.producer_name is not None:
            self._guard.check_first(self.producer_name, known)
        self._job.stage = "topic"
        if self._options.create_subscription is not None:
            topic_setup.create_subscription(self._client, topic, self._options.create_subscription, self._log)
        if is_persistent:
            minutes, mb = self._options.retention_minutes, self._options.retention_mb
            topic_setup.ensure_retention(self._admin, topic, minutes, mb, self._log)
            topic_setup.warn_if_not_kept(self._admin, topic, partitions, self._log)
        self._results = PublishResult(partitions)
        self._record = new_record(self.producer_name, partitions, self._on, self._earlier)
        self._record |= {"file": file, **self._creation}
        self._record["last"] = max(known, self._record["last"])
        if self._on is not False:
            self._digest = self._job.digest()
            if checked is not None:
                self._record["checkpoints"] = merged(self._record["checkpoints"], checked.with_end())
                self._record["count"] = checked.count
        self._publication.begin(self._record)
        self._job.stage = "publish"

    def _check_repetition(self, source: Source, file: str | None, known: int, partitions: int) -> None:
        earlier = before = self._earlier
        assert before is not None and earlier is not None
        if is_created_again(before, self._creation):
            self._log.info(
                "%s was deleted and created again since this job published to it: publishing all messages",
                self._options.topic,
            )
            earlier = self._earlier = restarted(before)
        check_switched_off(self._options.topic, earlier, self._on, self._options.deduplicate)
        if self._on is False or (not earlier["deduplicated"] and known < 0):
            self._guard.warn_of_repetition(earlier)
        else:
            self._guard.check_repetition(self._client, earlier, known, partitions, self._creation)
            self._expected = self._job.compare(source, file, before)

    def _open_producer(self) -> Producer:
        from pulsar_native import CompressionType, DefaultCryptoKeyReader

        options = self._options
        keys = dict(options.encryption_keys)
        kinds = {kind.name.lower(): kind for kind in CompressionType}

        def create() -> Producer:
            producer: Producer = self._client.create_producer(
                options.topic,
                producer_name=self.producer_name,
                schema=self._job._codec.to_register,
                send_timeout_millis=round(options.send_timeout_seconds * 1000),
                compression_type=kinds[options.compression],
                # The client has one or the other.
                batching_enabled=options.batching and not options.chunking,
                chunking_enabled=options.chunking,
                encryption_keys=list(keys),
                crypto_key_reader=DefaultCryptoKeyReader(public_keys=keys) if keys else None,
                batching_max_messages=options.batching_max_messages,
                batching_max_allowed_size_in_bytes=options.batching_max_bytes,
                max_pending_messages=_PENDING,
                block_if_queue_full=True,
                properties=dict(options.properties),
                # The partition of a message must not change during the publication.
                auto_update_partitions=False,
            )
            # The first message is number 0, which a retry must repeat.
            producer._is_zero_an_id = True
            return producer

        if self.producer_name is None:
            return create()
        return when_free(create, self._log_busy, lambda: not self._around.killed())

    def _log_busy(self, seconds: float) -> None:
        self._log.info("The producer of an earlier try is still connected: waiting up to %d s", seconds)

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _send_all(self, source: Source) -> BaseException | None:
        """Send until the end or the first failure, and return the error that ended it."""
        expected: tuple[type[BaseException], ...] = (Exception, *self._around.control)
        said = time.monotonic()
        problem: BaseException | None = None
        try:
            for number, item in enumerate(source):
                if self._around.killed() or (self._results.failed and self._on is not False):
                    return problem
                try:
                    self._send(number, *self._job.ready(number, item, source.rows))
                except ValueError as error:
                    # This message cannot be sent (too large, wrong schema); others may.
                    self._results.refuse(number, self._reason(error))
                    problem = problem or error
                if number == 0 and self._on is None:
                    self._probe()
                if time.monotonic() - said >= self._options.progress_seconds:
                    said = time.monotonic()
                    self._say("publishing")
                    self._checkpoint()
            if self._expected is not None and self._digest is not None and not self._around.killed():
                self._expected.end(self._digest)
        except expected as error:
            # Error of the source or the client: messages sent so far still get their receipts, for the manifest.
            return error if isinstance(error, self._around.control) else problem or error
        return problem

    def _send(self, number: int, payload: bytes | None, parts: MessageParts) -> None:
        digest = self._digest
        if digest is not None:
            digest.add(payload, parts)
            if self._expected is not None:
                self._expected.check(digest)
        self._producer.send_async(
            payload,
            partial(self._results.receipt, number),
            properties=parts.properties,
            partition_key=parts.key,
            ordering_key=parts.ordering_key,
            sequence_id=number if self.producer_name is not None else None,
            event_timestamp=parts.event_time,
            deliver_at=parts.deliver_at,
        )
        self._results.accept(number, len(payload or b""), keyed=parts.key is not None)
        if digest is not None and number and digest.checkpoints.get(number + 1) and number.bit_length() % 2 == 0:
            self._checkpoint()  # After messages 4, 16, 64, …

    def _probe(self) -> None:
        """Detect deduplication by the first message: only then the broker returns the producer's sequence id."""
        self._settle()
        if self._around.killed() or self._results.failed or not self._results.resolved:
            return
        if self._results.stored:
            self._producer.close()
            self._producer = self._open_producer()
            if self._producer.last_sequence_id() < 0:
                self._on = self._record["deduplicated"] = False
                self._keep(is_complete=False)
                self._guard.without("the broker does not remember the first message, which was published")
                return
        self._on = self._record["deduplicated"] = True

    def _checkpoint(self) -> None:
        """Store the progress, for the try after a kill."""
        if self._digest is not None:
            self._record["checkpoints"] = merged(self._record["checkpoints"], self._digest.checkpoints)
        self._note()
        self._save()

    def _settle(self) -> None:
        """Wait for all receipts; the send time-out ends the wait if the broker does not."""
        deadline = time.monotonic() + self._options.send_timeout_seconds + 10
        said = time.monotonic()
        while not self._around.killed() and time.monotonic() < deadline:
            if self._results.wait(0.2):
                return
            if time.monotonic() - said >= self._options.progress_seconds:
                said = time.monotonic()
                self._say("waiting for receipts")

    # ---- after sending -----------------------------------------------------------------------------------------------

    def _contradiction(self) -> BaseException | None:
        """Return an error for a complete publication without the promised result."""
        if self._earlier is None and self._results.duplicates:
            return JobRefused(
                f"the broker dropped {self._results.duplicates} messages as duplicates of others under the producer "
                f"name {self.producer_name!r}, although this is the first try. Another Airflow or task publishes under "
                "the same deployment_id and identity: give each its own"
            )
        return None

    def _is_whole(self, problem: BaseException | None) -> bool:
        results = self._results
        is_resolved = not results.failed and results.resolved == results.accepted
        return problem is None and is_resolved and not self._around.killed()

    def _manifest_of_success(self) -> dict[str, Any]:
        self._keep(is_complete=True)
        self._say("published")
        return self._manifest()

    def _manifest(self) -> dict[str, Any]:
        seconds = time.monotonic() - self._started
        return {
            "topic": self._producer.topic(),
            **self._results.manifest(),
            "seconds": round(seconds, 3),
            "messages_per_second": round(self._results.resolved / seconds) if seconds else 0,
            "producer_name": self._producer.producer_name(),
            "schema": self._options.schema,
            "deduplicated": self._on,
            "generation": self._publication.number,
            "repeatable": self._on is True,
        }

    def _incomplete(self, problem: BaseException | None) -> PublishIncomplete:
        reason = "the task was killed" if self._around.killed() else self._reason(problem)
        manifest = self._end(reason, is_complete=False)
        results = self._results
        can_store_rest = self._on is False or results.is_repeatable()
        text = (
            f"Publishing to {self._options.topic} failed: {results.failed} messages failed, "
            f"{manifest['unconfirmed']} are unconfirmed, {manifest['stored']} were stored. "
            f"First error: {manifest['first_error']}"
        )
        if isinstance(problem, ContentChanged):
            text += f". {_REMEDY}"
        elif not can_store_rest:
            text += (
                ". A retry or clearing this run would not store the failed messages, since the broker stored later "
                "sequence ids: publish them by another run, or with deduplicate=False"
            )
        is_final = results.is_final or (problem is not None and is_permanent(problem))
        can_retry = can_store_rest and not is_final
        if can_retry and self._on is False and manifest["stored"]:
            text += f". A retry publishes all messages again, as the topic has no deduplication. {FIX}"
        return PublishIncomplete(text, manifest, can_retry=can_retry)

    def _end(self, reason: str, is_complete: bool) -> dict[str, Any]:
        """Report the stored messages of a publication that ended early: to the log, the state and the caller."""
        results = self._results
        manifest = self._manifest() | {
            "failed": results.failed,
            "unconfirmed": results.accepted - results.resolved,
            "first_error": results.first_error() or reason,
            "stored_ids": results.stored_ids(),
        }
        manifest["repeatable"] = self._on is True and results.is_repeatable()
        counts = [f"{manifest[name]:,}" for name in ("stored", "duplicates", "failed", "unconfirmed")]
        first = "" if manifest["first_error"] == reason else f". First error: {manifest['first_error']}"
        self._log.warning(
            "Publishing to %s ended early (%s): %s stored, %s duplicates dropped, %s failed, %s unconfirmed%s",
            self._options.topic, reason, *counts, first,
        )  # fmt: skip
        if ids := manifest["stored_ids"]:
            self._log.info(
                "%s: the producer %s stored %s%s", self._options.topic, manifest["producer_name"],
                ", ".join(ids[:_SHOWN_IDS]), ", …" if len(ids) > _SHOWN_IDS else "",
            )  # fmt: skip
        self._keep(is_complete=is_complete)
        self._around.report(manifest)
        return manifest

    def _keep(self, *, is_complete: bool) -> None:
        """Store the record of a try that ended by itself: the content as far as sent."""
        record, digest = self._record, self._digest
        self._note()
        record["phase"] = "stored" if is_complete else "failed"
        if digest is not None:
            earlier = self._earlier or {}
            record["checkpoints"] = merged(earlier.get("checkpoints", []), self._verified(digest, is_complete))
            record["count"] = digest.count if is_complete else earlier.get("count")
        self._save()

    def _verified(self, digest: ContentDigest, is_complete: bool) -> dict[int, str]:
        """Return the checkpoints of sent messages that do not contradict those of an earlier try."""
        accepted = self._results.accepted
        if self._expected is not None and not is_complete and not self._expected.is_behind(accepted):
            return {}
        if digest.count == accepted:
            return digest.with_end()
        # The last message was rejected and not sent.
        return {count: value for count, value in digest.checkpoints.items() if count <= accepted}

    def _note(self) -> None:
        record, results = self._record, self._results
        record["last"] = max(record["last"], self._producer.last_sequence_id())
        before: Record = self._earlier or {}
        record["stored"] = before.get("stored", 0) + results.stored
        record["ids"] = shown_ids(before.get("ids", []), results.first_ids())

    def _save(self) -> None:
        try:
            self._publication.save()
        except Exception as error:
            # The messages are stored: failing to store the record for a later try must not fail this one.
            self._log.warning("The caller did not store the state of this publication: %s", error)

    def _say(self, doing: str) -> None:
        results = self._results
        seconds = max(time.monotonic() - self._started, 0.001)
        self._log.info(
            "%s %s: %s confirmed of %s sent, %s duplicates dropped, %s messages/s, %.1f MB",
            self._options.topic, doing, f"{results.resolved:,}", f"{results.accepted:,}", f"{results.duplicates:,}",
            f"{results.resolved / seconds:,.0f}", results.sent_bytes / 1e6,
        )  # fmt: skip

    def _reason(self, error: BaseException | None) -> str:
        if isinstance(error, KeyboardInterrupt):
            return "interrupted"
        if error is not None:
            return reason_of(error, self._around.redact, _REASON_LENGTH)
        if failed := self._results.failed:
            return f"{counted(failed)} failed"
        return "the broker did not confirm all messages within send_timeout_seconds"
