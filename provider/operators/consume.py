"""Consume a batch of a subscription into a JSONL or Parquet file: bounded, and acknowledged only when it is safe.

Rules: the end is a position taken when the task begins, not a pause in the flow. Order of events: the output is written
under a temporary name, made durable and moved; `process` is called; what the batch holds is noted in Airflow's task
state; then the broker is told. A failure before the note acknowledges nothing: the next try gets the same messages and
overwrites the output. With the note, a next try of the same run (the worker died before Airflow knew of the success, or
the run was cleared) acknowledges what the output holds and returns the same manifest, as long as the output is there
unchanged: no message is lost, none is taken twice. Delivery is at least once: an acknowledgement lost on its way brings
its messages again in a later run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.context import storage_path
from airflow_provider_pulsar.exceptions import staged
from airflow_provider_pulsar.state import TaskState
from airflow_provider_pulsar.task_client import TaskClient
from pulsar_native.jobs import validation
from pulsar_native.jobs.formats import format_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from pulsar_native import Client, Consumer
    from pulsar_native.jobs.batch import Batch
    from pulsar_native.jobs.formats import BatchWriter

SUBSCRIPTION_TYPES = ("exclusive", "shared", "failover", "key_shared")
DECODERS = ("auto", "json", "text", "bytes")
_SLICE_MS = 200


class ConsumeBatchOperator(BaseOperator):
    """Take a bounded batch of messages from a subscription, write it as JSONL or Parquet, and acknowledge it.

    :param topic: one topic or a list; partitioned ones are read as a whole. Templated.
    :param subscription: the subscription's name. Templated.
    :param subscription_type: Exclusive, Shared, Failover or Key_Shared. The broker holds no more than 50,000
        unacknowledged messages for one consumer of the shared types (maxUnackedMessagesPerConsumer).
    :param initial_position: where a new subscription begins, Earliest or Latest.
    :param max_messages: stop after so many messages. Templated, as the next two.
    :param max_bytes: stop before the payloads exceed this; a first message that alone is larger is taken.
    :param max_seconds: stop after so many seconds.
    :param until_end: stop at the end the topic had when the task began; without it one of the other bounds is needed.
    :param idle_seconds: with `until_end`, how long to wait for messages that are there but do not come, as the broker
        keeps them for other consumers or for later.
    :param decode: auto (by the schema each message was published with; text or base64 without one), json, text, or
        bytes (base64). Not for Parquet, which holds payloads as they were published.
    :param path: the file, local or a URL that ObjectStoragePath knows; a file there is overwritten. Templated.
    :param format: jsonl or parquet; by default Parquet for a path that ends in .parquet, else JSONL. Parquet has the
        columns of the Spark source (value, __key, __topic, __messageId, __publishTime, __eventTime,
        __messageProperties, __partition, __sequenceId, __producerName, __ledgerId, __entryId, __batchIndex), and is
        much quicker, as no object is made for each message. It needs a path, and takes neither decode nor inline.
    :param inline: return the messages in the manifest too (at most `inline_limit_bytes`, which ends the batch).
    :param process: called with the manifest after the output is safe, before anything is acknowledged; if it raises,
        nothing is.
    :param progress_seconds: how often progress is logged.
    :param pulsar_conn_id: the connection.

    A partly consumed batch entry comes again from its start unless the broker keeps acknowledgements of single messages
    (acknowledgmentAtBatchIndexLevelEnabled). Returns path, format, count, bytes, topics, subscription, partitions
    (count, first and last id each), stop_reason (max_messages, max_bytes, max_seconds, inline_limit, end, idle),
    seconds, messages_per_second, and messages when inline.
    """

    template_fields: Sequence[str] = ("topic", "subscription", "path", "max_messages", "max_bytes", "max_seconds")
    ui_color = "#d5e8fb"

    def __init__(
        self,
        *,
        topic: str | Sequence[str],
        subscription: str,
        subscription_type: str = "Exclusive",
        initial_position: str = "Earliest",
        max_messages: int | str | None = None,
        max_bytes: int | str | None = None,
        max_seconds: float | str | None = None,
        until_end: bool = True,
        idle_seconds: float = 10,
        decode: str | None = None,
        path: str | None = None,
        format: str | None = None,
        inline: bool = False,
        inline_limit_bytes: int = 48 * 1024,
        process: Callable[[Mapping[str, Any]], object] | None = None,
        progress_seconds: float = 5,
        pulsar_conn_id: str = "pulsar_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.subscription = subscription
        self.subscription_type = subscription_type
        self.initial_position = initial_position
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.max_seconds = max_seconds
        self.until_end = until_end
        self.idle_seconds = idle_seconds
        self.decode = decode
        self.path = path
        self.format = format
        self.inline = inline
        self.inline_limit_bytes = inline_limit_bytes
        self.process = process
        self.progress_seconds = progress_seconds
        self.pulsar_conn_id = pulsar_conn_id
        self._task_client = TaskClient()
        self._check_plain()

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def _check_plain(self) -> None:
        validation.choice("subscription_type", self.subscription_type, SUBSCRIPTION_TYPES)
        validation.choice("initial_position", self.initial_position, ("earliest", "latest"))
        if self.decode is not None:
            validation.choice("decode", self.decode, DECODERS)
        self._format()
        if self.path is None and not self.inline:
            validation.refuse("ConsumeBatchOperator needs a path, or inline=True for a small result")
        if not self.until_end and self.max_messages is self.max_bytes is self.max_seconds is None:
            validation.refuse("with until_end=False one of max_messages, max_bytes and max_seconds must end the batch")
        if self.process is not None and not callable(self.process):
            validation.refuse("process must be callable")
        validation.number("idle_seconds", self.idle_seconds, 0.1)
        validation.number("inline_limit_bytes", self.inline_limit_bytes, 1)
        validation.number("progress_seconds", self.progress_seconds, 0.1)

    def _format(self) -> str:
        """Return the format of the output, whose path may be a template still when the DAG is read."""
        chosen = format_of(self.path, self.format)
        if chosen == "parquet":
            if self.path is None:
                validation.refuse("format='parquet' needs a path")
            if self.inline:
                validation.refuse("inline=True returns messages as JSON: it does not go with Parquet")
            if self.decode is not None:
                validation.refuse("decode= is for JSONL: Parquet holds payloads as they were published; leave it out")
        return chosen

    def _topics(self) -> list[str]:
        from pulsar_native.topic import TopicName

        given = [self.topic] if isinstance(self.topic, str) else self.topic
        if not isinstance(given, Sequence) or not given:
            validation.refuse("topic must be a name or a list of names")
        names = [TopicName.parse(name).full for name in given]
        if len(set(names)) < len(names):
            validation.refuse("topic names the same topic twice")
        return names

    # ---- the work ----------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Consume the batch and return its manifest."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native.jobs.batch import Batch, BatchLimits

        with self._task_client:
            with staged(self._action(), "arguments"):
                topics = self._topics()
                validation.text("subscription", self.subscription)
                self._format()
                inline = self.inline_limit_bytes if self.inline else None
                batch = Batch(BatchLimits.of(self.max_messages, self.max_bytes, self.max_seconds, inline))
            client = self._task_client.open(PulsarHook(self.pulsar_conn_id), self._action())
            state = TaskState(context, "consumed")
            with staged(self._action(), "subscribe"):
                consumers = [self._subscribe(client, topic) for topic in topics]
            return self._repeat(state, consumers, topics) or self._consume(state, consumers, batch, topics)

    def _action(self) -> str:
        return f"Consuming {self.topic} as {self.subscription}"

    def _subscribe(self, client: Client, topic: str) -> Consumer:
        from pulsar_native import ConsumerType, InitialPosition
        from pulsar_native.jobs.codecs import WriterSchema

        kinds = {
            "exclusive": ConsumerType.Exclusive,
            "shared": ConsumerType.Shared,
            "failover": ConsumerType.Failover,
            "key_shared": ConsumerType.KeyShared,
        }
        earliest = self.initial_position.lower() == "earliest"
        return client.subscribe(
            topic,
            self.subscription,
            consumer_type=kinds[self.subscription_type.lower()],
            initial_position=InitialPosition.Earliest if earliest else InitialPosition.Latest,
            schema=WriterSchema() if self._format() == "jsonl" and self.decode in (None, "auto") else None,
            # The batch may end inside an entry: the rest of it must come again, and only the rest.
            batch_index_ack_enabled=True,
        )

    def _repeat(self, state: TaskState, consumers: Sequence[Consumer], topics: list[str]) -> dict[str, Any] | None:
        """Return the manifest of an earlier try of this run that made its batch safe, acknowledged; else None."""
        from pulsar_native.jobs.batch import acknowledge
        from pulsar_native.jobs.output import size_of

        note = state.get()
        if note is None:
            return None
        manifest: dict[str, Any] = {"format": "jsonl", **note["manifest"]}
        if any(manifest[name] != value for name, value in self._identity(topics).items()):
            return None
        if self.path is not None and size_of(self.path, storage_path) != note["size"]:
            self.log.warning("%s is not as this run wrote it before: consuming what is there now", self.path)
            return None
        with staged(self._action(), "acknowledge"):
            acknowledge(consumers, note["entries"])
        self.log.info("This run consumed %s messages before; its output is there and acknowledged", manifest["count"])
        return manifest

    def _identity(self, topics: list[str]) -> dict[str, Any]:
        return {"path": self.path, "format": self._format(), "topics": topics, "subscription": self.subscription}

    def _consume(
        self, state: TaskState, consumers: Sequence[Consumer], batch: Batch, topics: list[str]
    ) -> dict[str, Any]:
        from pulsar_native.jobs.batch import acknowledge
        from pulsar_native.jobs.formats import JsonLinesWriter, ParquetWriter
        from pulsar_native.jobs.output import AtomicFile

        started = time.monotonic()
        output = AtomicFile(self.path, storage_path)
        form: BatchWriter = (
            ParquetWriter(output) if self._format() == "parquet" else JsonLinesWriter(output, self.decode or "auto")
        )
        try:
            with staged(self._action(), "write"):
                output.open()
            with staged(self._action(), "receive"):
                self._receive(consumers, batch, form, started)
            if self._task_client.killed:
                raise AirflowException(f"{self._action()} was killed; nothing is acknowledged")
            with staged(self._action(), "write"):
                form.finish()
                size = output.commit()
        finally:
            form.discard()
            output.discard()
        seconds = time.monotonic() - started
        manifest = {
            **self._identity(topics),
            **batch.manifest(),
            "seconds": round(seconds, 3),
            "messages_per_second": round(batch.count / seconds) if seconds else 0,
        }
        if self.process is not None:
            self.process(manifest)
        if self._task_client.killed:
            raise AirflowException(f"{self._action()} was killed; nothing is acknowledged")
        state.set({"manifest": manifest, "entries": batch.entries(), "size": size})
        with staged(self._action(), "acknowledge"):
            acknowledge(consumers, batch.entries())
        self._say("consumed", batch, started)
        return manifest

    def _receive(self, consumers: Sequence[Consumer], batch: Batch, form: BatchWriter, started: float) -> None:
        """Fill the batch until a limit, the end, or a kill."""
        from pulsar_native.jobs.receiver import BatchReceiver

        flow = BatchReceiver(consumers, until_end=self.until_end, idle_seconds=self.idle_seconds)
        limit = _seconds(self.max_seconds)
        said = started
        while batch.stop_reason is None and not self._task_client.killed:
            now = time.monotonic()
            if limit is not None and now - started >= limit:
                batch.stop_reason = "max_seconds"
                return
            if now - said >= self.progress_seconds:
                said = now
                self._say("consuming", batch, started)
            millis = _SLICE_MS if limit is None else min(_SLICE_MS, 1000 * (started + limit - now))
            if not form.take(flow, batch, millis):
                batch.stop_reason = flow.ended

    def _say(self, doing: str, batch: Batch, started: float) -> None:
        seconds = max(time.monotonic() - started, 0.001)
        self.log.info(
            "%s: %s %s messages, %.1f MB, %s messages/s%s",
            self.topic, doing, f"{batch.count:,}", batch.bytes / 1e6, f"{batch.count / seconds:,.0f}",
            f", stopped by {batch.stop_reason}" if batch.stop_reason else "",
        )  # fmt: skip

    def on_kill(self) -> None:
        """Stop, and drop the connection so that the broker gives the messages to others. Waits for nothing."""
        self._task_client.kill()


def _seconds(value: float | str | None) -> float | None:
    return None if value is None or value == "" else float(value)
