"""Consume job: one bounded batch of a subscription, received, written, processed, and then acknowledged.

Order of events: 1. the output is claimed; 2. messages are received; 3. the output is made durable and renamed; 4.
`process` is called; 5. dead and retry letters are published; 6. the ids are recorded beside the output and in the
caller's state; 7. the messages are acknowledged, with receipts; 8. that is recorded. A failure before 6 acknowledges
nothing, and the next try receives the same messages. After 6 the run keeps its batch: every further try returns the
same manifest, writes a missing or changed output again from exactly those ids, and repeats an acknowledgement without a
receipt, but for topics that were deleted since. It fails where a topic of the batch was created again, as far as the
caller can tell, and where it is asked for other topics or another subscription. Delivery is at least once. Blocking;
not thread-safe.
"""

from __future__ import annotations

import copy
import difflib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.async_iteration import completed
from pulsar_native.jobs.batch import Batch, BatchLimits, CutEntries, acknowledge
from pulsar_native.jobs.batch_output import ACKNOWLEDGED, CONSUMED, WRITTEN, BatchOutput, manifest_path
from pulsar_native.jobs.busy import when_free
from pulsar_native.jobs.consume_options import ORDERED, consumer_type_of, initial_position_of
from pulsar_native.jobs.consume_settings import ConsumeCallbacks, ConsumeSettings
from pulsar_native.jobs.dead_letters import DeadLetterPublisher
from pulsar_native.jobs.failures import JobRefused, counted, reason_of
from pulsar_native.jobs.formats import JsonLinesWriter, ParquetWriter, SinkWriter
from pulsar_native.jobs.id_ranges import describe
from pulsar_native.jobs.message_handling import ErrorPolicy, MessageHandler
from pulsar_native.jobs.output import AtomicFile, Content, content_of, json_line
from pulsar_native.jobs.part_files import PartFiles, content_of_parts
from pulsar_native.jobs.receiver import BatchReceiver
from pulsar_native.jobs.rereading import MessageRereader, MessagesGone

if TYPE_CHECKING:
    from pulsar_native import Client, Consumer, MessageId
    from pulsar_native.jobs.formats import BatchWriter
    from pulsar_native.jobs.interfaces import JobLog, JobState

_SLICE_MS = 200


class OutputLost(JobRefused):
    """Raised when the output of acknowledged messages is missing or changed, and they cannot be read again."""


class BatchElsewhere(JobRefused):
    """Raised when the ids of this run's batch are needed, which hold in another cluster only."""


class SourceChanged(JobRefused):
    """Raised when this run has consumed a batch already, of other topics or of another subscription."""


class TopicRecreated(JobRefused):
    """Raised when a topic of this run's batch was deleted and created again, so that other messages may be there."""


class ConsumeJob:
    """One try of a batch; `run` is called once. `stage` is the current stage."""

    def __init__(
        self,
        settings: ConsumeSettings,
        client: Client,
        state: JobState,
        log: JobLog,
        callbacks: ConsumeCallbacks | None = None,
        *,
        cut: CutEntries | None = None,
    ) -> None:
        """`cut` has the entries that earlier batches of the subscription consumed in part.

        `self.cut` is the note for the `cut` of later batches, empty if they need none.
        """
        self._settings = settings
        self._client = client
        self._state = state
        self._log = log
        self._calls = ConsumeCallbacks() if callbacks is None else callbacks
        self._batch = Batch(settings.limits, cut)
        self._dead_letters = (
            None
            if settings.dead_letters is None or settings.private_keys
            else DeadLetterPublisher(lambda: client, settings.dead_letters, self._calls.redact)
        )
        self._policy = ErrorPolicy(settings.on_error, settings.max_errors, self._dead_letters, self._calls.redact)
        self._consumers: list[Consumer] = []
        self._started = time.monotonic()
        self.stage = "output"
        self.cut: dict[str, Any] = {}
        # True if an earlier try has consumed the batch.
        self.is_repeated = False

    def run(self) -> dict[str, Any]:
        """Return the manifest of the batch: this try's, or an earlier one's."""
        output, note = self._find()
        if note is not None:
            return self._repeat(output, note)
        self.stage = "look-up"
        self._require_topics()
        self._calls.check()
        self.stage = "output"
        if output is not None:
            output.claim()
        try:
            return self._consume(output)
        except BaseException:
            if output is not None:
                with suppress(Exception):
                    output.release()
            raise

    def failure_manifest(self, error: BaseException) -> dict[str, Any]:
        """Return what a failed try had received, for a log or a report."""
        found = self._batch.manifest()
        found.pop("messages", None)
        return {
            "topic": self._settings.source,
            "subscription": self._settings.subscription,
            "stage": self.stage,
            **found,
            "errors": self._policy.manifest(),
            # The request may have reached the broker in part; the next try repeats it.
            "acknowledged": "begun" if self.stage == "acknowledge" else "nothing",
            "error": reason_of(error, self._calls.redact, 1000),
        }

    # ---- a batch that is known ---------------------------------------------------------------------------------------

    def _find(self) -> tuple[BatchOutput | None, dict[str, Any] | None]:
        """Return the output, and the record of this run's batch if there is one.

        Raises `SourceChanged` if that batch is of other topics or of another subscription.
        """
        settings = self._settings
        note = self._state.get()
        if note is not None and note.get("version") != 1:
            note = None
        output = None
        if settings.path is not None:
            output = BatchOutput(
                settings.path,
                settings.run,
                if_exists=settings.if_exists,
                open_path=self._calls.open_path,
                in_parts=settings.parts is not None,
            )
            beside = output.find(None if note is None else note["manifest"]["path"])
            if beside is None and note is not None and note["asked"] == settings.path:
                output.path = note["manifest"]["path"]
            note = beside or note
        if note is not None and not self._is_of_source(note):
            if note["manifest"]["count"]:
                raise self._source_changed(output, note)
            # Nothing is lost with an empty batch.
            note = None
        return output, note

    def _is_of_source(self, note: Mapping[str, Any]) -> bool:
        settings = self._settings
        same = _whole_names(note["source"]) == _whole_names(settings.source)
        return same and bool(note["manifest"]["subscription"] == settings.subscription)

    def _source_changed(self, output: BatchOutput | None, note: Mapping[str, Any]) -> SourceChanged:
        settings, manifest = self._settings, note["manifest"]
        # An output at another path is not in the way.
        in_the_way = output if output is not None and output.path == manifest["path"] else None
        return SourceChanged(
            f"this run has consumed {counted(manifest['count'])} of {_named(note['source'])} as "
            f"{manifest['subscription']} before, and is asked for {_named(settings.source)} as "
            f"{settings.subscription} now: nothing is consumed, as that batch would be lost. A new run consumes what "
            f"is asked for. To give that batch up and consume in this run, {self._giving_up(in_the_way)}"
        )

    def _repeat(self, output: BatchOutput | None, note: dict[str, Any]) -> dict[str, Any]:
        count = note["manifest"]["count"]
        self._log.info("This run consumed %s messages before: it keeps them", count)
        self.is_repeated = True
        self.cut = note.get("cut", {})
        if output is not None:
            note = self._with_output(output, note)
        # Behind the output: that its messages are gone with it is the worse news.
        self._require_topics_of(output, note)
        if note["state"] != ACKNOWLEDGED:
            self._require_cluster(output, note, "is perhaps not acknowledged there")
            self.stage = "subscribe"
            self._consumers = self._subscribe()
            self._acknowledge(output, note)
        manifest: dict[str, Any] = note["manifest"]
        if not self._settings.process_once:
            if self._calls.handle is not None:
                self._handle_again(note)
            self._process(manifest)
        return manifest

    def _require_cluster(self, output: BatchOutput | None, note: Mapping[str, Any], why: str) -> None:
        """Raise `BatchElsewhere` if the batch is of another cluster, where its ids are needed."""
        there, here = note.get("cluster"), self._settings.cluster
        # Records of earlier versions do not tell.
        if there is None or there == here:
            return
        raise BatchElsewhere(
            f"this run's batch of {note['manifest']['count']} messages is of {there}, and {why}, but the client is "
            f"connected to {here}: nothing is acknowledged or read here. Connect to {there} again, and clear the task. "
            f"To give that batch up and consume a new one here, {self._giving_up(output)}"
        )

    def _require_topics_of(self, output: BatchOutput | None, note: Mapping[str, Any]) -> None:
        """Raise `TopicRecreated` if a topic of the batch is certainly another one of the same name."""
        if changed := self._created_again(note):
            raise TopicRecreated(
                f"this run has consumed {note['manifest']['count']} messages before, and {', '.join(changed[:3])} was "
                "deleted and created again since: nothing is acknowledged or read there. A new run consumes what is "
                f"there now. To give that batch up and consume a new one in this run, {self._giving_up(output)}"
            )

    def _created_again(self, note: Mapping[str, Any]) -> list[str]:
        """Return the topics of a batch that are certainly other ones of the same name."""
        then = note.get("created")
        # In another cluster they have other times.
        if not then or note.get("cluster") != self._settings.cluster:
            return []
        self.stage = "look-up"
        now = self._calls.created(list(then))
        return [topic for topic in then if now.get(topic, then[topic]) != then[topic]]

    def _giving_up(self, output: BatchOutput | None) -> str:
        files = "" if output is None else f"{output.path}, {manifest_path(output.path)} and "
        return f"remove {files}{self._calls.stored_state}, and clear the task"

    def _with_output(self, output: BatchOutput, note: dict[str, Any]) -> dict[str, Any]:
        """Return the record once its output is there as written, or was written again."""
        settings = self._settings
        self.stage = "output"
        if note["asked"] != settings.path:
            # The batch moves to another path, which must be free.
            output.claim()
            content = None
        else:
            content = self._content(output, note)
        output.require_restorable()
        noted = (note["manifest"]["format"], note["decode"], note.get("parts"))
        same = noted == (settings.format, settings.decode, _limits(settings))
        if content is not None and same and content == Content(note["size"], note["sha256"]):
            output.take_back(note["state"], _kept(note))
            return note
        self._require_cluster(output, note, "its output is missing or changed")
        self._log.warning(
            "%s is %s: reading its %s messages again", output.path,
            "not there" if content is None else "not as this run wrote it", note["manifest"]["count"],
        )  # fmt: skip
        self.stage = "read again"
        content, files = self._write_again(output, note)
        manifest = {**note["manifest"], "path": output.path, "format": settings.format}
        manifest.pop("files", None)
        manifest.update({} if files is None else {"files": files})
        kept = {
            **_kept(note),
            "manifest": manifest,
            "asked": settings.path,
            "decode": settings.decode,
            "parts": _limits(settings),
            "size": content.size,
            "sha256": content.sha256,
        }
        self.stage = "note"
        output.take_back(note["state"], kept)
        found = {"version": 1, "state": note["state"], **kept}
        self._state.set(found)
        return found

    def _content(self, output: BatchOutput, note: Mapping[str, Any]) -> Content | None:
        """Return size and digest of the output as it is, None if it is missing."""
        files = note["manifest"].get("files")
        if files is None:
            return content_of(output.path, self._calls.open_path)
        return content_of_parts([each["path"] for each in files], self._calls.open_path)

    def _file(self, output: BatchOutput | None) -> AtomicFile | PartFiles:
        if output is None:
            return AtomicFile(None, self._calls.open_path)
        if self._settings.parts is None:
            return AtomicFile(output.path, self._calls.open_path, output.token)
        return PartFiles(output.path, self._settings.parts, self._calls.open_path, output.token)

    def _write_again(self, output: BatchOutput, note: dict[str, Any]) -> tuple[Content, list[dict[str, Any]] | None]:
        file = self._file(output)
        try:
            file.open()
            count = self._copy(file, note)
            if count != note["manifest"]["count"]:
                raise MessagesGone(f"{count} of {note['manifest']['count']} messages are left")
            content = file.finish()
            self._calls.check()
            output.require_restorable()
            file.commit()
            return content, _described(file)
        except MessagesGone as error:
            ids: dict[str, list[Any]] = {}
            for chunk in note["chunks"]:
                for topic, ranges in chunk.items():
                    ids.setdefault(topic, []).extend(ranges)
            raise OutputLost(
                f"{output.path}, the only copy of {note['manifest']['count']} acknowledged messages "
                f"({describe(ids, 5)}), is missing or changed, and cannot be written again: {error}. Put it back from "
                "a backup; a retention policy of the namespace keeps acknowledged messages longer. To give this batch "
                f"up and consume new messages, remove {manifest_path(output.path)} and {self._calls.stored_state}, "
                "and clear the task"
            ) from error
        finally:
            file.discard()

    def _copy(self, file: AtomicFile | PartFiles, note: dict[str, Any]) -> int:
        """Write the messages of a record, chunk by chunk, and return their number."""
        from pulsar_native.jobs.batch import record_of

        count = 0
        if self._settings.format == "parquet":
            writer = ParquetWriter(file)
            try:
                with MessageRereader(self._client, self._calls.check, None, self._settings.key_reader) as again:
                    for chunk in note["chunks"]:
                        batches = list(again.rows(chunk))
                        count += sum(batch.num_rows for batch in batches)
                        writer.write_rows(batches)
                    if not note["chunks"]:
                        writer.write_rows([])
                writer.close()
            finally:
                writer.discard()
            return count
        with self._rereader() as again:
            for chunk in note["chunks"]:
                for message in again.messages(chunk):
                    file.write(json_line(record_of(message, self._settings.decode)))
                    count += 1
        return count

    def _rereader(self) -> MessageRereader:
        from pulsar_native.jobs.codecs import WriterSchema

        schema = WriterSchema if self._settings.decode == "auto" else None
        return MessageRereader(self._client, self._calls.check, schema, self._settings.key_reader)

    def _handle_again(self, note: dict[str, Any]) -> None:
        """Call the function with each message of the output again; the output stays unchanged."""
        self.stage = "process_message"
        self._require_cluster(
            None, note, "process_message is to get its messages again (process_once=True spares that)"
        )
        handler = self._handler()
        batch = Batch(BatchLimits(None, None, None, None))
        try:
            with self._rereader() as again:
                for chunk in note["chunks"]:
                    for message in again.messages(chunk):
                        while handler.is_full:
                            handler.results(batch, _SLICE_MS)
                            self._calls.check()
                        handler.start(message, batch)
                        handler.results(batch, 0)
            while handler.is_busy:
                handler.results(batch, _SLICE_MS)
                self._calls.check()
        except MessagesGone as error:
            raise OutputLost(
                f"the messages of this run cannot be given to process_message again: {error}. With process_once=True "
                "a run that is repeated leaves them alone"
            ) from error
        finally:
            handler.close()
        self._policy.flush()

    # ---- topics ------------------------------------------------------------------------------------------------------

    def _require_topics(self) -> None:
        """Raise `TopicNotFound` for a topic that does not exist; the check creates none."""
        from pulsar_native import TopicNotFound

        if self._settings.create_topic:
            return
        for topic in self._settings.topics:
            try:
                self._client.get_partition_count(topic)
            except TopicNotFound as error:
                raise TopicNotFound(
                    f"there is no topic {topic}{self._nearest(topic)}; create_topic=True makes it"
                ) from error

    def _nearest(self, topic: str) -> str:
        from pulsar_native.topic import TopicName

        if self._calls.names is None:
            return ""
        with suppress(Exception):
            # A failure of the hint must not hide the error.
            existing = {TopicName.parse(name).base.full for name in self._calls.names(TopicName.parse(topic).namespace)}
            near = difflib.get_close_matches(topic, existing, 1, 0.8)
            return f" (did you mean {near[0]}?)" if near else ""
        return ""

    def _subscribe(self) -> list[Consumer]:
        settings = self._settings
        consumers = []
        for topic in [*settings.subscribed, *settings.retry_topics]:
            consumers.append(self._consumer(topic))
            self._calls.check()
        if settings.pattern is not None and not consumers[0].topics() and not settings.allow_empty_pattern:
            from pulsar_native import TopicNotFound

            raise TopicNotFound(
                f"no topic matches the pattern {settings.pattern.pattern}; it must match whole names such as "
                "persistent://tenant/namespace/topic. allow_empty_pattern=True makes that an empty batch"
            )
        return consumers

    def _consumer(self, topic: str | re.Pattern[str]) -> Consumer:
        from pulsar_native.jobs.codecs import WriterSchema

        settings = self._settings
        return when_free(
            lambda: self._client.subscribe(
                topic,
                settings.subscription,
                consumer_type=consumer_type_of(settings.subscription_type),
                initial_position=initial_position_of(settings.initial_position),
                schema=WriterSchema() if settings.format == "jsonl" and settings.decode == "auto" else None,
                consumer_name=settings.consumer_name,
                properties=dict(settings.properties),
                # The batch may end inside an entry, whose rest only must be redelivered.
                batch_index_ack_enabled=True,
                ack_receipt_enabled=True,
                crypto_key_reader=settings.key_reader,
            ),
            self._log_busy,
            self._goes_on,
        )

    def _log_busy(self, seconds: float) -> None:
        self._log.info(
            "Another consumer, perhaps of an earlier try, holds the subscription %s: waiting up to %d s",
            self._settings.subscription, seconds,
        )  # fmt: skip

    def _goes_on(self) -> bool:
        self._calls.check()
        return True

    # ---- a new batch -------------------------------------------------------------------------------------------------

    def _handler(self) -> MessageHandler:
        return MessageHandler(
            self._settings.decode,
            self._policy,
            self._calls.handle,
            concurrency=self._settings.concurrency,
            retries=self._settings.reads_retry_letters,
            passing=self._calls.passing,
        )

    def _writer(self, file: AtomicFile | PartFiles) -> BatchWriter:
        if self._calls.sink is not None:
            return SinkWriter(self._calls.sink, self._calls.sink_rows, self._handler())
        if self._settings.format == "parquet":
            return ParquetWriter(file)
        return JsonLinesWriter(file, self._handler())

    def _consume(self, output: BatchOutput | None) -> dict[str, Any]:
        self.stage = "subscribe"
        self._consumers = self._subscribe()
        path = None if output is None else output.path
        file = self._file(output)
        writer = self._writer(file)
        try:
            self.stage = "write"
            file.open()
            self.stage = "receive"
            self._receive(writer)
            self._calls.check()
            self.stage = "write"
            content = file.finish()
            note = self._note(path, content, _described(file))
            if output is not None:
                output.keep(WRITTEN, {"manifest": _small(note["manifest"])})
                self._calls.check()
                file.commit()
        finally:
            writer.discard()
            file.discard()
        self._process(note["manifest"])
        self._calls.check()
        self.stage = "dead letters"
        self._policy.flush()
        self._calls.check()
        self.stage = "note"
        if output is not None:
            output.keep(CONSUMED, _kept(note))
        self._state.set(note)
        self._calls.check()
        self._acknowledge(output, note)
        self._say("consumed")
        manifest: dict[str, Any] = note["manifest"]
        return manifest

    def _process(self, manifest: Mapping[str, Any]) -> None:
        """Call `process` with a copy, since the manifest is what further tries of this run return."""
        if self._calls.process is not None:
            self.stage = "process"
            completed(self._calls.process(copy.deepcopy(manifest)), "process")

    def _note(self, path: str | None, content: Content, files: list[dict[str, Any]] | None) -> dict[str, Any]:
        settings, batch = self._settings, self._batch
        seconds = time.monotonic() - self._started
        self.cut = batch.cut.as_json()
        manifest = {
            "path": path,
            "format": settings.format,
            "topics": list(settings.topics) or self._consumers[0].topics(),
            "subscription": settings.subscription,
            **batch.manifest(),
            "seconds": round(seconds, 3),
            "messages_per_second": round(batch.count / seconds) if seconds else 0,
        }
        if settings.format == "jsonl":
            manifest["errors"] = self._policy.manifest()
        if files is not None:
            manifest["files"] = files
        chunks, others = batch.chunks(), batch.others()
        # A batch without messages is of all topics.
        topics = {topic for each in [*chunks, others] for topic in each} or {topic for topic, _ in self._positions()}
        return {
            "version": 1,
            "state": CONSUMED,
            "manifest": manifest,
            "created": dict(self._calls.created(sorted(topics))),
            "cluster": settings.cluster,
            "source": settings.source,
            "asked": settings.path,
            "decode": settings.decode,
            "parts": _limits(settings),
            "size": content.size,
            "sha256": content.sha256,
            "chunks": chunks,
            "others": others,
            "cut": self.cut,
        }

    def _receive(self, writer: BatchWriter) -> None:
        """Fill the batch up to a limit or the end; `check` may end it."""
        settings, batch = self._settings, self._batch
        flow = BatchReceiver(
            self._client,
            self._consumers,
            until_end=settings.until_end,
            idle_seconds=settings.idle_seconds,
            ordered=settings.subscription_type in ORDERED,
        )
        if batch.cut:
            for topic, acknowledged in self._positions():
                batch.cut.check_position(topic, acknowledged)
        limit, said = settings.limits.seconds, self._started
        while batch.stop_reason is None:
            self._calls.check()
            now = time.monotonic()
            if limit is not None and now - self._started >= limit:
                batch.stop_reason = "max_seconds"
                break
            if now - said >= settings.progress_seconds:
                said = now
                self._say("consuming")
            millis = _SLICE_MS if limit is None else min(_SLICE_MS, 1000 * (self._started + limit - now))
            if not writer.take(flow, batch, millis):
                flow.check_connected()
                batch.stop_reason = flow.ended
        flow.check_decrypted()
        writer.finish(batch, self._calls.check)
        self._warn_of_nothing(flow)

    def _warn_of_nothing(self, flow: BatchReceiver) -> None:
        if not self._batch.is_empty or self._settings.initial_position != "earliest" or not flow.positions:
            return
        if all(last.entry_id() < 0 and acknowledged.entry_id() < 0 for last, acknowledged in flow.positions):
            self._log.warning(
                "There is no message in %s, and no stored one that %s has acknowledged. If this subscription is new, "
                "what was published before may be gone: a broker without retention removes what no subscription waits "
                "for. Make the subscription first (run this once), or set a retention policy on the namespace",
                self._settings.source, self._settings.subscription,
            )  # fmt: skip

    def _acknowledge(self, output: BatchOutput | None, note: dict[str, Any]) -> None:
        """Acknowledge, wait for all receipts, and record that, or the topics that are left for later tries."""
        self.stage = "acknowledge"
        if output is not None:
            output.check()
        left = self._left(acknowledge(self._consumers, _unacknowledged(note)))
        self._mark(note.get("cut", {}))
        for consumer in self._consumers:
            consumer.close()
        self.stage = "note"
        note.pop("left", None)
        note |= {"state": CONSUMED, "left": left} if left else {"state": ACKNOWLEDGED}
        if output is not None:
            output.keep(note["state"], _kept(note))
        self._state.set(note)

    def _left(self, without: set[str]) -> list[str]:
        """Return which of the topics without a consumer still have messages of the batch to acknowledge."""
        from pulsar_native import TopicNotFound
        from pulsar_native.topic import TopicName

        left = []
        for topic in sorted(without):
            try:
                self._client.get_partition_count(TopicName.parse(topic).base.full)
            except TopicNotFound:
                self._log.warning("%s was deleted: nothing of the batch is acknowledged there", topic)
                continue
            self._log.warning("%s is not consumed here: messages of the batch stay unacknowledged there", topic)
            left.append(topic)
        return left

    def _mark(self, cut: dict[str, Any]) -> None:
        """Add the mark-delete positions to the note on partly consumed entries."""
        if cut.get("entries"):
            places = {topic: [at.ledger_id(), at.entry_id()] for topic, at in self._positions()}
            cut["marks"] = {topic: places[topic] for topic in cut["entries"] if topic in places}

    def _positions(self) -> Iterator[tuple[str, MessageId]]:
        """Yield the mark-delete position of each partition."""
        for consumer in self._consumers:
            for last, acknowledged in consumer.get_positions():
                yield last.topic_name() or consumer.topic(), acknowledged

    def _say(self, doing: str) -> None:
        batch = self._batch
        seconds = max(time.monotonic() - self._started, 0.001)
        self._log.info(
            "%s: %s %s messages, %.1f MB, %s messages/s%s",
            self._settings.source, doing, f"{batch.count:,}", batch.bytes / 1e6, f"{batch.count / seconds:,.0f}",
            f", stopped by {batch.stop_reason}" if batch.stop_reason else "",
        )  # fmt: skip


class AcknowledgeJob(ConsumeJob):
    """Acknowledgement of another run's batch of the subscription, of which nothing else is needed.

    What is of topics that the settings lack is left to a job that consumes them. In topics that were deleted, or
    created again, there is nothing left to acknowledge.
    """

    def run(self) -> dict[str, Any]:
        """Acknowledge, and return the manifest of the batch; empty if nothing of it is of the job's topics."""
        note = self._state.get()
        topics = {topic for each in _unacknowledged(note) for topic in each} if note is not None else set[str]()
        if note is None or not any(map(self._settings.takes, topics)):
            return {}
        self._log.info("A batch of another run is stored but not acknowledged: acknowledging it first")
        self.cut = note.get("cut", {})
        if changed := topics.intersection(self._created_again(note)):
            self._log.warning(
                "%s was deleted and created again since: nothing of that batch is acknowledged there",
                ", ".join(sorted(changed)[:3]),
            )  # fmt: skip
        note["left"] = sorted(topics - changed)
        if any(map(self._settings.takes, note["left"])):
            self._require_topics()
            self.stage = "subscribe"
            self._consumers = self._subscribe()
        self._acknowledge(None, note)
        manifest: dict[str, Any] = note["manifest"]
        return manifest


def _whole_names(source: list[str] | str) -> set[str] | str:
    """Return the topics of a record, which are short names where an earlier version stored it, or its pattern."""
    from pulsar_native.topic import TopicName

    return source if isinstance(source, str) else {TopicName.parse(topic).full for topic in source}


def _named(source: list[str] | str) -> str:
    """Return topics or a pattern for a text."""
    if isinstance(source, str):
        return f"the pattern {source}"
    more = f" and {len(source) - 3} more" if len(source) > 3 else ""
    return f"{', '.join(source[:3])}{more}"


def _kept(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the manifest beside the output that a record lacks."""
    return {name: value for name, value in note.items() if name not in ("version", "state", "run", "token")}


def _unacknowledged(note: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ids of a record that are perhaps not acknowledged: at first all, then those of the topics left."""
    left = note.get("left")
    ranges = [*note["chunks"], note["others"]]
    return [{topic: own for topic, own in each.items() if left is None or topic in left} for each in ranges]


def _described(file: AtomicFile | PartFiles) -> list[dict[str, Any]] | None:
    return file.described() if isinstance(file, PartFiles) else None


def _limits(settings: ConsumeSettings) -> list[int | None] | None:
    """Return the limits of the files as JSON, None for one file."""
    return None if settings.parts is None else [settings.parts.messages, settings.parts.size]


def _small(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in manifest.items() if name != "messages"}
