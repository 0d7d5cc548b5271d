"""Publish to a topic: every message confirmed by the broker, and there once however often the task is tried.

Rules: nothing is sent before all arguments (and, of a list, all messages) were checked; rows of files and iterators are
streamed. With `deduplicate` the producer's name is the task instance's and message n has the sequence id n, so that
the broker drops what an earlier try stored; this holds only if every try of a run gives the same messages in the same
order, while the number of partitions stays, and within the time the broker remembers a producer that is gone
(brokerDeduplicationProducerInactivityTimeoutMinutes, 6 hours unless set). To keep that promise sending stops at the
first message that fails: a message stored behind it would make the broker drop the failed one in the next try.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.context import TaskIdentity, call_with_context, storage_path
from airflow_provider_pulsar.exceptions import staged
from airflow_provider_pulsar.state import TaskState
from airflow_provider_pulsar.task_client import TaskClient
from pulsar_native.jobs import validation
from pulsar_native.jobs.deduplication import Deduplication
from pulsar_native.jobs.failures import is_permanent
from pulsar_native.jobs.sources import MessageMapping, Source, format_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native import Client, Producer
    from pulsar_native.jobs.codecs import Codec
    from pulsar_native.jobs.publish_result import PublishResult
    from pulsar_native.jobs.sources import MessageParts

SCHEMAS = ("string", "json", "avro")
COMPRESSIONS = ("none", "lz4", "zlib", "zstd", "snappy")
FAILURE_KEY = "publish_failure"
# How long a try waits for the broker to notice that the producer of the try before is gone.
_BUSY_SECONDS = 30.0
_PENDING = 20_000


class PublishFailed(AirflowException):
    """Tell that not every message was stored; `manifest` says what was, and which failed."""

    def __init__(self, message: str, manifest: dict[str, Any]) -> None:
        super().__init__(message)
        self.manifest = manifest


class PublishNotRepeatable(PublishFailed, AirflowFailException):
    """Tell that not every message was stored, and that a retry would not store the rest."""


class PublishOperator(BaseOperator):
    """Publish messages to a topic and return a manifest of what the broker stored.

    :param topic: the topic, in any spelling. Templated.
    :param messages: a list of values, the JSON text of one, the output of another task, or a callable that returns a
        list or an iterator; it is called with `op_kwargs` and with those parts of the context its parameters name.
        Templated.
    :param file: path or URL of a .jsonl, .csv or .txt file (one message a line), also packed as .gz or .zip, instead of
        `messages`. Texts of a CSV take the types of `schema_definition`. Templated.
    :param op_kwargs: keyword arguments of the callable. Templated.
    :param envelope: each item is {"value": …} with "key", "ordering_key", "properties", "event_time" or "deliver_at".
    :param schema: None (bytes and texts as they are, anything else as JSON), "string", "json" or "avro"; the schema is
        registered at the topic.
    :param schema_definition: the Avro record definition that json and avro need, as a dict or as JSON. Templated.
    :param key_field: field of dict messages whose value is the key; the field stays in the message.
    :param event_time_field: field with the event time: milliseconds, ISO-8601 text (UTC without a zone), a datetime.
    :param property_fields: fields whose values also become properties.
    :param properties: properties of every message. Templated.
    :param compression: none, lz4, zlib, zstd or snappy.
    :param batching: put messages together in entries of up to `batching_max_messages` and `batching_max_bytes`.
    :param deduplicate: store each message once over retries and cleared runs; see the module. The broker must have
        deduplication on for the namespace or the topic, which is checked where the connection has an admin URL.
    :param send_timeout_seconds: how long a message may wait for its receipt.
    :param progress_seconds: how often progress is logged.
    :param pulsar_conn_id: the connection.

    Returns topic, count, stored, duplicates, partitions (count, stored, first and last id each), bytes, seconds,
    messages_per_second, producer_name and schema. Raises `PublishFailed` when any message failed; its manifest, in XCom
    as `publish_failure` too, has also failed, first_error, stored_ids and repeatable. Without deduplication a retry
    publishes everything again.
    """

    template_fields: Sequence[str] = ("topic", "messages", "file", "op_kwargs", "schema_definition", "properties")
    template_fields_renderers = {"messages": "json", "op_kwargs": "json", "schema_definition": "json"}  # noqa: RUF012
    ui_color = "#d5e8fb"

    def __init__(
        self,
        *,
        topic: str,
        messages: object = None,
        file: str | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        envelope: bool = False,
        schema: str | None = None,
        schema_definition: Mapping[str, Any] | str | None = None,
        key_field: str | None = None,
        event_time_field: str | None = None,
        property_fields: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        compression: str = "none",
        batching: bool = True,
        batching_max_messages: int = 1000,
        batching_max_bytes: int = 128 * 1024,
        deduplicate: bool = True,
        send_timeout_seconds: float = 30,
        progress_seconds: float = 5,
        pulsar_conn_id: str = "pulsar_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        # Airflow would call a function in a templated field while rendering, and store what it returns.
        self.messages = None if callable(messages) else messages
        self._supplier: Callable[..., Any] | None = messages if callable(messages) else None
        self.file = file
        self.op_kwargs = op_kwargs
        self.envelope = envelope
        self.schema = schema
        self.schema_definition = schema_definition
        self.key_field = key_field
        self.event_time_field = event_time_field
        self.property_fields = property_fields
        self.properties = properties
        self.compression = compression
        self.batching = batching
        self.batching_max_messages = batching_max_messages
        self.batching_max_bytes = batching_max_bytes
        self.deduplicate = deduplicate
        self.send_timeout_seconds = send_timeout_seconds
        self.progress_seconds = progress_seconds
        self.pulsar_conn_id = pulsar_conn_id
        self._task_client = TaskClient()
        self._check_plain()

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def _check_plain(self) -> None:
        """Check what no template can change, when the DAG file is read."""
        if (self.messages is None and self._supplier is None) == (self.file is None):
            validation.refuse("PublishOperator needs exactly one of messages and file")
        if self.schema is not None:
            validation.choice("schema", self.schema, SCHEMAS)
        validation.choice("compression", self.compression, COMPRESSIONS)
        if self.schema in ("json", "avro") and self.schema_definition is None:
            validation.refuse(
                f"schema={self.schema!r} needs schema_definition, an Avro record definition; "
                "for JSON without a registered schema leave schema out"
            )
        if self.schema not in ("json", "avro") and self.schema_definition is not None:
            validation.refuse("schema_definition belongs to schema='json' or schema='avro'")
        if self.envelope and (self.key_field or self.event_time_field or self.property_fields):
            validation.refuse("with envelope=True key, event time and properties are in the envelope, not in fields")
        if isinstance(self.property_fields, str):
            validation.refuse("property_fields must be a list of field names, not a text")
        validation.number("send_timeout_seconds", self.send_timeout_seconds, 0.1)
        validation.number("progress_seconds", self.progress_seconds, 0.1)
        validation.number("batching_max_messages", self.batching_max_messages, 1)
        validation.number("batching_max_bytes", self.batching_max_bytes, 1)

    def _shape(self) -> MessageMapping:
        properties = self.properties or {}
        if not isinstance(properties, Mapping) or not all(
            isinstance(name, str) and isinstance(text, str) for name, text in properties.items()
        ):
            validation.refuse("properties must be a dict of texts")
        return MessageMapping(
            self.envelope, self.key_field, self.event_time_field, tuple(self.property_fields), dict(properties)
        )

    def _codec(self) -> Codec:
        from pulsar_native.jobs.codecs import Codec

        definition = self.schema_definition
        if isinstance(definition, str):
            try:
                definition = json.loads(definition)
            except ValueError as error:
                validation.refuse(f"schema_definition is not JSON: {error}")
        if definition is not None and not isinstance(definition, Mapping):
            validation.refuse("schema_definition must be an Avro record definition: a dict, or its JSON text")
        is_csv = self.file is not None and format_of(self.file) == "csv"
        if is_csv and self.envelope:
            validation.refuse("the rows of a CSV are no envelopes: use key_field, event_time_field and property_fields")
        return Codec(self.schema, definition, from_texts=is_csv)

    # ---- the work ----------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish everything and return the manifest."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native.topic import TopicName

        with self._task_client:
            with staged(f"Publishing to {self.topic}", "arguments"):
                topic = TopicName.parse(validation.text("topic", self.topic))
                if self.deduplicate and not topic.is_persistent:
                    validation.refuse("a non-persistent topic has no deduplication: pass deduplicate=False")
                shape, codec = self._shape(), self._codec()
                source = (
                    Source.of_file(self.file, None, storage_path) if self.file is not None else self._source(context)
                )
                if source.is_list:
                    for number, item in enumerate(source):
                        _ready(shape, codec, number, item)
            hook = PulsarHook(self.pulsar_conn_id)
            client = self._task_client.open(hook, f"Publishing to {self.topic}")
            return self._publish(hook, client, codec, shape, source, context)

    def _source(self, context: Context) -> Source:
        given = self.messages if self._supplier is None else self._supplier
        return Source.of(call_with_context(given, context, self.op_kwargs or {}) if callable(given) else given)

    def _publish(
        self, hook: PulsarHook, client: Client, codec: Codec, shape: MessageMapping, source: Source, context: Context
    ) -> dict[str, Any]:
        from pulsar_native.jobs.publish_result import PublishResult

        name = TaskIdentity.of(context).producer_name if self.deduplicate else None
        with staged(f"Publishing to {self.topic}", "connect"):
            producer = self._producer(client, name, codec)
            partitions = client.get_partition_count(self.topic)
        guard = None
        if name is not None:
            guard = Deduplication(self.topic, partitions, TaskState(context, "published"), self.log)
            with staged(f"Publishing to {self.topic}", "deduplication"):
                guard.before(client, hook.get_admin(), producer)
        receipts = PublishResult(partitions)
        started = time.monotonic()
        problem = self._send_all(producer, receipts, codec, shape, source)
        seconds = time.monotonic() - started
        if guard is not None:
            guard.note(producer)
        manifest = {
            "topic": producer.topic(),
            **receipts.manifest(),
            "seconds": round(seconds, 3),
            "messages_per_second": round(receipts.resolved / seconds) if seconds else 0,
            "producer_name": producer.producer_name(),
            "schema": self.schema,
        }
        if problem is not None or receipts.failed or receipts.resolved < receipts.accepted or self._task_client.killed:
            raise self._failure(manifest, receipts, problem, context) from problem
        self._say("published", receipts, started)
        if guard is not None:
            producer.close()
            guard.after(lambda: self._producer(client, name, codec))
        return manifest

    def _producer(self, client: Client, name: str | None, codec: Codec) -> Producer:
        from pulsar_native import CompressionType
        from pulsar_native.exceptions import ProducerBusy

        kinds = {kind.name.lower(): kind for kind in CompressionType}
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                return client.create_producer(
                    self.topic,
                    producer_name=name,
                    schema=codec.to_register,
                    send_timeout_millis=round(self.send_timeout_seconds * 1000),
                    compression_type=kinds[self.compression.lower()],
                    batching_enabled=self.batching,
                    batching_max_messages=self.batching_max_messages,
                    batching_max_allowed_size_in_bytes=self.batching_max_bytes,
                    max_pending_messages=_PENDING,
                    block_if_queue_full=True,
                    # The partition of a message must not change while it is published.
                    auto_update_partitions=False,
                )
            except ProducerBusy:
                if name is None or self._task_client.killed or time.monotonic() > deadline:
                    raise
                self.log.info("The producer of an earlier try is still connected; waiting for the broker to drop it")
                time.sleep(1)

    def _send_all(
        self, producer: Producer, receipts: PublishResult, codec: Codec, shape: MessageMapping, source: Source
    ) -> BaseException | None:
        """Send until the end or the first failure, wait for all receipts, and return the error that ended it."""
        started = said = time.monotonic()
        problem: BaseException | None = None
        try:
            for number, item in enumerate(source):
                if self._task_client.killed or (receipts.failed and self.deduplicate):
                    break
                try:
                    self._send(producer, receipts, number, _ready(shape, codec, number, item))
                except ValueError as error:
                    # This message cannot be sent (too big, not of the schema); others may.
                    receipts.refuse(number, _reason(error))
                    problem = problem or error
                if time.monotonic() - said >= self.progress_seconds:
                    said = time.monotonic()
                    self._say("publishing", receipts, started)
        except Exception as error:
            # Of the source or the client: what was sent until here still gets its receipts, for the manifest.
            problem = problem or error
        self._settle(producer, receipts, started)
        return problem

    def _send(
        self, producer: Producer, receipts: PublishResult, number: int, ready: tuple[bytes | None, MessageParts]
    ) -> None:
        payload, parts = ready
        producer.send_async(
            payload,
            partial(receipts.receipt, number),
            properties=parts.properties,
            partition_key=parts.key,
            ordering_key=parts.ordering_key,
            sequence_id=number if self.deduplicate else None,
            event_timestamp=parts.event_time,
            deliver_at=parts.deliver_at,
        )
        receipts.accept(len(payload or b""), keyed=parts.key is not None)

    def _settle(self, producer: Producer, receipts: PublishResult, started: float) -> None:
        """Wait for the receipts of everything taken; the send time-out ends it if the broker does not."""
        deadline = time.monotonic() + self.send_timeout_seconds + 10
        said = time.monotonic()
        while not self._task_client.killed and time.monotonic() < deadline:
            if receipts.wait(0.2):
                return
            if time.monotonic() - said >= self.progress_seconds:
                said = time.monotonic()
                self._say("waiting for receipts", receipts, started)

    def _failure(
        self, manifest: dict[str, Any], receipts: PublishResult, problem: BaseException | None, context: Context
    ) -> PublishFailed:
        repeatable = not self.deduplicate or receipts.is_repeatable()
        first = receipts.first_error() or ("the task was killed" if self._task_client.killed else _reason(problem))
        unconfirmed = receipts.accepted - receipts.resolved
        manifest |= {
            "failed": receipts.failed,
            "unconfirmed": unconfirmed,
            "first_error": first,
            "stored_ids": receipts.stored_ids(),
            "repeatable": repeatable,
        }
        _push(context, FAILURE_KEY, manifest)
        text = (
            f"Publishing to {self.topic} failed: {receipts.failed} messages failed, {unconfirmed} are unconfirmed, "
            f"{manifest['stored']} were stored. First error: {first}"
        )
        if not repeatable:
            return PublishNotRepeatable(
                f"{text}. A retry or clearing this run would not store the failed messages, since the broker stored "
                "later sequence ids: publish them by another run, or with deduplicate=False",
                manifest,
            )
        kind = PublishNotRepeatable if problem is not None and is_permanent(problem) else PublishFailed
        return kind(text, manifest)

    def _say(self, doing: str, receipts: PublishResult, started: float) -> None:
        seconds = max(time.monotonic() - started, 0.001)
        self.log.info(
            "%s %s: %s confirmed of %s sent, %s duplicates dropped, %s messages/s, %.1f MB",
            self.topic, doing, f"{receipts.resolved:,}", f"{receipts.accepted:,}", f"{receipts.duplicates:,}",
            f"{receipts.resolved / seconds:,.0f}", receipts.sent_bytes / 1e6,
        )  # fmt: skip

    def on_kill(self) -> None:
        """Stop sending and drop the connection. Runs inside a signal handler, so it waits for nothing."""
        self._task_client.kill()


def _ready(shape: MessageMapping, codec: Codec, number: int, item: object) -> tuple[bytes | None, MessageParts]:
    """Return a message's bytes and parts; raises ValueError with the message's number."""
    try:
        parts = shape.parts(codec.typed(item))
        return codec.encode(parts.value), parts
    except ValueError as error:
        raise ValueError(f"message {number}: {error}") from error


def _reason(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None else "unknown"


def _push(context: Context, key: str, value: object) -> None:
    ti: Any = context.get("ti")
    if ti is not None:
        ti.xcom_push(key=key, value=value)
