"""PublishOperator: publishes messages, each with a receipt, and stored once however often the task is tried.

Airflow's part: arguments and templates, identity and deployment, state, XComs, exceptions. The publication is
`pulsar_native.jobs.publishing`, with its rules on deduplication and content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    DagRunTriggerException,
    DownstreamTasksSkipped,
    TaskAwaitingInput,
    TaskDeferred,
)

from airflow_provider_pulsar.arguments import Given, known_values
from airflow_provider_pulsar.context import TaskIdentity, call_with_context, path_text, redacted, storage_path
from airflow_provider_pulsar.exceptions import CheckedArguments, failure, staged
from airflow_provider_pulsar.lineage import LineageMethods, TaskLineage
from airflow_provider_pulsar.links.pulsar import PulsarTopicLink
from airflow_provider_pulsar.state import TaskState
from airflow_provider_pulsar.task_client import TaskClient
from pulsar_native.jobs import secrets, validation
from pulsar_native.jobs.publish_options import check_keeps_nothing, checked
from pulsar_native.jobs.publishing import PublishIncomplete, PublishJob, PublishOptions, Surroundings
from pulsar_native.jobs.sources import FILE_FORMATS, MessageMapping, Source, format_of

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context, ObjectStoragePath

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native.jobs.codecs import Codec

# Options of the job that no template can change.
_PLAIN = (
    *("schema", "compression", "batching_max_messages", "batching_max_bytes", "deduplicate"),
    *("retention_minutes", "retention_mb", "send_timeout_seconds", "progress_seconds"),
)
FAILURE_KEY = "publish_failure"
STATE_KEY = "published"
# Airflow's exceptions for another outcome than failed: raised by the author, they pass unchanged.
_CONTROL = (
    AirflowSkipException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    DagRunTriggerException,
    DownstreamTasksSkipped,
    TaskAwaitingInput,
    TaskDeferred,
)


class PublishFailed(AirflowException):
    """Raised when not every message was stored; `manifest` lists the stored and the failed ones."""

    def __init__(self, message: str, manifest: dict[str, Any]) -> None:
        super().__init__(message)
        self.manifest = manifest


class PublishNotRepeatable(PublishFailed, AirflowFailException):
    """Raised when not every message was stored and a retry cannot store the rest."""


class PublishOperator(LineageMethods, CheckedArguments, BaseOperator):
    """Publish messages to a topic and return a manifest of what the broker stored.

    A wrong argument raises ValueError when the DAG file is parsed, or before anything is sent if a template, a file or
    another task returns it; so does one that was given and is None or empty once it is rendered (of `properties` and
    `op_kwargs`, an empty mapping means none).

    :param topic: the topic, in any spelling. Templated.
    :param messages: a list of values; a DataFrame of pandas or polars, an Arrow table, batch or reader, whose rows
        become dicts by column name (missing values None); the JSON text of a list; the output of another task; or a
        callable that returns one of these or an iterator, also a coroutine function or an async generator function. It
        is called with `op_kwargs` and with those parts of the context its parameters name. For deduplication every
        try must give the same messages in the same order. One text, bytes or dict, a set, and tables of other kinds
        are refused. Templated.
    :param file: path (also an os.PathLike or an ObjectStoragePath) or URL of a file instead of `messages`: .jsonl or
        .ndjson (a message a line), .json (one array, whose elements are messages, or a message a line), .csv, .txt or
        .log (a line is a message), these also packed as .gz or .zip; .parquet or .pq. Texts of a CSV take the types of
        `schema_definition`. Files are streamed. With deduplication a file is read once more before, for its digest.
        Templated.
    :param file_format: jsonl, json, csv, text or parquet; by default the file's ending decides, and a line of a .jsonl
        file may then not be an array, as that is rather a mistake. With "jsonl" a line's array is one message.
    :param op_kwargs: keyword arguments of the callable, default none. Templated.
    :param envelope: each item is {"value": …} with "key", "ordering_key", "properties", "event_time" or "deliver_at".
        Default False.
    :param schema: None (default; bytes and texts as they are, anything else as JSON, times in ISO-8601), "string",
        "json" or "avro"; the schema is registered at the topic, an incompatible one fails the task without retries.
    :param schema_definition: the Avro record definition that json and avro need, as a dict or as JSON. Templated.
    :param key_field: field of dict messages (column of a table) whose value is the key; it stays in the message.
    :param event_time_field: field with the event time: milliseconds, ISO-8601 text (UTC without a zone), a datetime.
    :param property_fields: fields whose values also become properties, default none.
    :param properties: properties of every message, texts by text. Templated.
    :param compression: none (default), lz4, zlib, zstd or snappy.
    :param batching: put messages together in entries (default True) of up to `batching_max_messages` (default 1000)
        and `batching_max_bytes` (bytes, default 131072).
    :param chunking: send a message beyond the broker's maximum size (5 MB as installed) in chunks, which consumers put
        together; every message is then an entry of its own. Default False: such a message fails the task.
    :param encryption_keys: encrypt the messages for these keys: names, with the path or the `file:` URL of each public
        key, a PEM file. The private key of any of them decrypts. Default none. Templated.
    :param deduplicate: "auto" (default) stores each message once over retries and cleared runs where the broker has
        deduplication on for the topic, and where it has not logs so and publishes plainly: a retry then publishes all
        messages again, and logs which may be twice. True fails without retries where deduplication is off; without an
        admin URL in the connection only the first message, which is published, can tell. False never deduplicates.
    :param identity: what the broker remembers the messages by, together with the deployment id of the connection;
        default "dag_id/task_id/map_index/run_id". Two tasks may not share one. Another one publishes all messages
        again. Templated.
    :param on_changed: "fail" (default) fails without retries, before anything is sent where the source can be read
        twice, when a retry or a cleared run has other messages than before, or when the broker knows this identity and
        the task's state is gone (deleted and re-created run, `[state_store] clear_on_success`). "republish" publishes
        all messages then under a new generation of the identity; those stored before stay.
    :param create_subscription: name of a durable subscription to make before publishing, at the earliest message,
        where it is missing, so that messages wait for it on a broker without retention. Default none. Templated.
    :param retention_minutes: keep messages that no subscription waits for at least so many minutes, -1 for ever; a
        policy of this topic, only raised, which needs an admin URL and the permission. Default: as it is.
    :param retention_mb: as `retention_minutes`, up to so many megabytes. -1, without limit, where only the other is
        given.
    :param send_timeout_seconds: seconds that a message may wait for its receipt, from 0.1, default 30.
    :param progress_seconds: seconds between two log lines about progress, from 0.1, default 5.
    :param pulsar_conn_id: the connection, default pulsar_default.

    Returns topic, count, stored, duplicates, partitions (count, stored, first and last id each), bytes, seconds,
    messages_per_second, producer_name, schema, deduplicated (None for not known, as nothing was sent), generation (of
    the identity, from 1), and repeatable: whether publishing again leaves each message once.

    Raises `PublishFailed` when any message failed, and `PublishNotRepeatable` where a retry would not help, also for a
    message that cannot be sent as it is (in a list it raises ValueError before anything is sent); the manifest of
    these, in XCom as `publish_failure` and in the log too, also after an execution time-out, has also failed,
    unconfirmed, first_error (without secrets that Airflow masks) and stored_ids. Airflow's own exceptions raised by a
    callable (AirflowSkipException, AirflowFailException, TaskDeferred and so on) pass as they are when what was sent
    before has its receipts.
    """

    template_fields: Sequence[str] = (
        *("topic", "messages", "file", "op_kwargs", "schema_definition", "properties"),
        *("identity", "create_subscription", "encryption_keys"),
    )
    template_fields_renderers = {"messages": "json", "op_kwargs": "json", "schema_definition": "json"}  # noqa: RUF012
    # Optional arguments that may be empty, but not None, once they are given.
    _mappings: ClassVar[Sequence[str]] = ("properties", "op_kwargs")
    ui_color = "#d5e8fb"
    operator_extra_links = (PulsarTopicLink(),)

    def __init__(
        self,
        *,
        topic: str,
        messages: object = None,
        file: str | os.PathLike[str] | ObjectStoragePath | None = None,
        file_format: str | None = None,
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
        chunking: bool = False,
        encryption_keys: Mapping[str, str] | None = None,
        deduplicate: bool | Literal["auto"] = "auto",
        identity: str | None = None,
        on_changed: Literal["fail", "republish"] = "fail",
        create_subscription: str | None = None,
        retention_minutes: int | None = None,
        retention_mb: int | None = None,
        send_timeout_seconds: float = 30,
        progress_seconds: float = 5,
        pulsar_conn_id: str = "pulsar_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        # Airflow would call a function in a templated field while rendering, and store its result.
        self.messages = None if callable(messages) else messages
        self._supplier: Callable[..., Any] | None = messages if callable(messages) else None
        self.file: str | None = path_text(file)
        self.file_format = file_format
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
        self.chunking = chunking
        self.encryption_keys = encryption_keys
        self.deduplicate = deduplicate
        self.identity = identity
        self.on_changed: str = on_changed
        self.create_subscription = create_subscription
        self.retention_minutes = retention_minutes
        self.retention_mb = retention_mb
        self.send_timeout_seconds = send_timeout_seconds
        self.progress_seconds = progress_seconds
        self.pulsar_conn_id = pulsar_conn_id
        self._task_client = TaskClient()
        self._lineage = TaskLineage()
        self._given = Given(
            self,
            *("file", "schema_definition", "identity", "create_subscription", "encryption_keys"),
            mappings=self._mappings,
        )
        self._check_plain()

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def _check_plain(self) -> None:
        """Check everything that no template can change, when the DAG file is parsed."""
        self._check_given()
        self._check_choices()
        if isinstance(self.encryption_keys, Mapping):
            self._public_keys()
        if self.schema in ("json", "avro") and self.schema_definition is None:
            validation.refuse(
                f"schema={self.schema!r} needs schema_definition, an Avro record definition; "
                "for JSON without a registered schema leave schema out"
            )
        if self.schema not in ("json", "avro") and self.schema_definition is not None:
            validation.refuse("schema_definition belongs to schema='json' or schema='avro'")
        self._check_fields()

    def _check_fields(self) -> None:
        if self.envelope and (self.key_field or self.event_time_field or self.property_fields):
            validation.refuse("with envelope=True key, event time and properties are in the envelope, not in fields")
        fields = self.property_fields
        if isinstance(fields, str) or not isinstance(fields, Sequence) or not all(isinstance(f, str) for f in fields):
            validation.refuse(f"property_fields must be a list of field names, not {fields!r}")
        for name, field in (("key_field", self.key_field), ("event_time_field", self.event_time_field)):
            if field is not None and not isinstance(field, str):
                validation.refuse(f"{name} must be the name of a field, not {field!r}")

    def _check_given(self) -> None:
        """Raise unless there is one source of messages."""
        has_messages, has_file = self.messages is not None or self._supplier is not None, self.file is not None
        if has_messages == has_file:
            found = "both were given" if has_file else "both are None"
            validation.refuse(f"PublishOperator needs exactly one of messages and file: {found}")

    def _public_keys(self) -> dict[str, str]:
        keys = validation.texts("encryption_keys", known_values(self.encryption_keys))
        if any(map(secrets.looks_secret, keys.values())):
            validation.refuse("encryption_keys must be paths of public keys, not private keys")
        return keys

    def _check_choices(self) -> None:
        for name in _PLAIN:
            setattr(self, name, checked(name, getattr(self, name)))
        self.on_changed = validation.choice("on_changed", self.on_changed, ("fail", "republish"))
        if self.file_format is not None:
            self.file_format = validation.choice("file_format", self.file_format, FILE_FORMATS)
            if self.file is None:
                validation.refuse("file_format belongs to file")

    def _shape(self) -> MessageMapping:
        properties = {} if self.properties is None else self.properties
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
        is_csv = self.file is not None and (self.file_format or format_of(validation.text("file", self.file))) == "csv"
        if is_csv and self.envelope:
            validation.refuse("the rows of a CSV are no envelopes: use key_field, event_time_field and property_fields")
        return Codec(self.schema, definition, from_texts=is_csv)

    def _source(self, context: Context) -> Source:
        if self.file is not None:
            return Source.of_file(validation.text("file", self.file), self.file_format, storage_path)
        return Source.of(self.messages) if self._supplier is None else self._called(context)

    def _again(self, context: Context) -> Callable[[], Source] | None:
        """Return what makes the source once more, for sources that cannot be read twice."""
        return None if self._supplier is None else lambda: self._called(context)

    def _called(self, context: Context) -> Source:
        assert self._supplier is not None
        return Source.of(call_with_context(self._supplier, context, self._keywords()))

    def _keywords(self) -> Mapping[str, Any]:
        """Return the keyword arguments of the callable."""
        found = {} if self.op_kwargs is None else self.op_kwargs
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            validation.refuse("op_kwargs must be a dict of keyword arguments")
        return found

    def _options(self, topic: str, is_persistent: bool, hook: PulsarHook, context: Context) -> PublishOptions:
        """Return the options of the job; gets the deployment id from Airflow if deduplication needs it."""
        from airflow_provider_pulsar.deployment import deployment_id

        task = TaskIdentity.of(context)
        properties, name = task.as_properties(), None
        # A native template may render to a number, also to 0.
        identity = "" if self.identity is None else str(self.identity)
        if self.deduplicate is not False and is_persistent:
            deployment = deployment_id(hook.deployment_id())
            name = task.producer_name(deployment, identity)
            properties["airflow.deployment_id"] = deployment
        return PublishOptions(
            topic=topic,
            schema=self.schema,
            compression=self.compression,
            batching=self.batching,
            batching_max_messages=self.batching_max_messages,
            batching_max_bytes=self.batching_max_bytes,
            chunking=self.chunking,
            encryption_keys=self._public_keys(),
            deduplicate=self.deduplicate,
            republish_changed=self.on_changed == "republish",
            send_timeout_seconds=self.send_timeout_seconds,
            progress_seconds=self.progress_seconds,
            create_subscription=self.create_subscription,
            retention_minutes=self.retention_minutes,
            retention_mb=self.retention_mb,
            producer_name=name,
            identity=identity or task.text,
            properties=properties,
        )

    # ---- execution ---------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish all messages and return the manifest."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native import PulsarException

        action = f"Publishing to {self.topic}"
        with self._task_client:
            self._task_client.check(action)
            hook = PulsarHook(self.pulsar_conn_id)
            with staged(action, "arguments"):
                job = self._job(hook, context)
                job.check()
            client = self._task_client.open(hook, action)
            self._lineage.begin(hook)
            try:
                manifest = job.run(client, hook.get_admin())
            except (PulsarException, OSError, validation.InvalidValue) as error:
                raise failure(error, action=action, stage=job.stage) from error
            except PublishIncomplete as error:
                self._lineage.fail(error.manifest)
                kind = PublishFailed if error.can_retry else PublishNotRepeatable
                raise kind(str(error), error.manifest) from error.__cause__
            self._lineage.succeed(self, context, hook, manifest, written=[manifest["topic"]])
            return manifest

    def _job(self, hook: PulsarHook, context: Context) -> PublishJob:
        from pulsar_native.topic import TopicName

        self._given.check(self)
        # The result of another task may be a path.
        self.file = path_text(self.file)
        # Also where no callable gets them.
        self._keywords()
        self.topic = hook.topic_name(validation.text("topic", self.topic))
        topic = TopicName.parse(self.topic)
        if not topic.is_persistent:
            self._check_not_persistent()
        mapping, codec = self._shape(), self._codec()
        options = self._options(self.topic, topic.is_persistent, hook, context)
        source = self._source(context)
        surroundings = Surroundings(
            TaskState(context, STATE_KEY),
            self.log,
            lambda: self._task_client.killed,
            lambda manifest: _push(context, manifest),
            _CONTROL,
            redacted,
        )
        return PublishJob(options, codec, mapping, source, self._again(context), surroundings)

    def _check_not_persistent(self) -> None:
        """Raise for options that a non-persistent topic does not support."""
        if self.deduplicate is True:
            validation.refuse("a non-persistent topic has no deduplication: pass deduplicate='auto' or False")
        check_keeps_nothing(self.create_subscription, self.retention_minutes, self.retention_mb)

    # ---- OpenLineage -------------------------------------------------------------------------------------------------

    def _openlineage(self) -> OperatorLineage[Any, Any]:
        from airflow_provider_pulsar import openlineage
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        hook = PulsarHook(self.pulsar_conn_id)
        url, topic = self._lineage.service_url or hook.service_url(), hook.topic_name(self.topic)
        result, fields = self._lineage.result, openlineage.avro_fields(self.schema_definition)
        return openlineage.lineage(
            self.pulsar_conn_id,
            result,
            inputs=[] if self.file is None else [openlineage.input_dataset(openlineage.path_name(str(self.file)))],
            outputs=[openlineage.output_dataset(openlineage.topic_name(url, topic), result, fields)],
        )

    def on_kill(self) -> None:
        """Stop sending and drop the connection. Runs inside a signal handler, so it does not wait."""
        self._task_client.kill()


def _push(context: Context, manifest: dict[str, Any]) -> None:
    """Store the manifest of a publication that ended early; Airflow rejects XComs of a task that it has ended."""
    ti: Any = context.get("ti")
    if ti is not None:
        with suppress(Exception):
            ti.xcom_push(key=FAILURE_KEY, value=manifest)
