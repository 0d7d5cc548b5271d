"""ConsumeOperator: consumes a bounded batch of a subscription into a JSONL or Parquet file, then acknowledges it.

The work is `pulsar_native.jobs.consuming`; here is Airflow's part: arguments and templates, the task's identity, state,
log, XComs and exceptions. Rules: nothing is received, completed or acknowledged after a kill. A batch belongs to its
run, whatever is done to the run.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_pulsar.arguments import Given, known_values
from airflow_provider_pulsar.assets.pulsar import cluster_uri
from airflow_provider_pulsar.context import TaskIdentity, path_text, redacted, storage_path
from airflow_provider_pulsar.cut_notes import cut_entries, cut_notes, push_cut
from airflow_provider_pulsar.exceptions import CheckedArguments, failure, staged
from airflow_provider_pulsar.lineage import LineageMethods, TaskLineage
from airflow_provider_pulsar.links.pulsar import PulsarTopicLink
from airflow_provider_pulsar.state import TaskState
from airflow_provider_pulsar.task_client import TaskClient
from airflow_provider_pulsar.xcom import xcom_value
from pulsar_native.jobs import validation
from pulsar_native.jobs.consume_options import checked
from pulsar_native.jobs.formats import format_of
from pulsar_native.jobs.private_keys import checked_paths

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context, ObjectStoragePath

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native import Message
    from pulsar_native.jobs.consume_settings import ConsumeCallbacks, ConsumeSettings
    from pulsar_native.jobs.consuming import ConsumeJob
    from pulsar_native.jobs.part_files import PartLimits

# Readers would unpack such a file by its name.
_PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst", ".lz4")
_UNPACKED = "end it in .jsonl, or in .parquet, which is compressed inside"
# Options of the job that no template can change; decode and format have other defaults here.
_PLAIN = (
    *("subscription_type", "initial_position", "if_exists", "on_error", "max_errors"),
    *("idle_seconds", "concurrency", "progress_seconds", "max_messages_per_file", "max_bytes_per_file"),
)
# Limit of each request for the creation time of a topic.
_CREATED_SECONDS = 10
FAILURE_KEY = "consume_failure"
"""The XCom of a failed try: what it had received, and whether anything was acknowledged."""


class ConsumeBatchOperator(LineageMethods, CheckedArguments, BaseOperator):
    """Consume a bounded batch of messages of a subscription, write it as JSONL or Parquet, and acknowledge it.

    Acknowledged messages are in the output, one batch per run. A try that fails before its batch is recorded
    acknowledges nothing, and the next one receives the same messages. After that every try (retry, cleared run, run
    deleted and recreated under its id, expired state) returns the same manifest; a missing or changed output is written
    again from exactly those messages while the topic still has them, else the task fails and names them. The record is
    in the task's state, and beside the output in `_NAME.manifest.json`. Delivery is at least once: messages are
    redelivered to a later run if this one fails for good, or dies before the broker's receipts.

    :param topic: one topic, a list of them, or a compiled pattern (`re.compile`, with its flags) as `topic_pattern`;
        partitioned topics are read as a whole. Exactly one of `topic` and `topic_pattern` is needed. Templated.
    :param topic_pattern: a regular expression for whole names, `persistent://tenant/namespace/…`, tenant and namespace
        literally: all topics that match when the batch begins, but not the dead-letter and retry topics of its own
        subscription, unless the pattern names `-DLQ` or `-RETRY`. Default none. Templated.
    :param create_topic: make topics that do not exist by subscribing to them. Default False: they raise TopicNotFound,
        before anything is made. Does not apply to patterns.
    :param allow_empty_pattern: make a pattern that matches no topic an empty batch. Default False: it raises.
    :param subscription: the subscription's name, not blank. It is made where it does not exist. Templated.
    :param subscription_type: Exclusive (default), Shared, Failover or Key_Shared. The broker holds no more than 50,000
        unacknowledged messages for one consumer of the shared types (maxUnackedMessagesPerConsumer). A consumer of an
        earlier try that is still connected is waited for up to 30 s, then ConsumerBusy is raised.
    :param initial_position: where a new subscription begins, Earliest (default) or Latest.
    :param max_messages: stop after so many messages, those that fail included; at least 1. Default no limit. Templated,
        as the next two.
    :param max_bytes: stop before the payloads exceed so many bytes; a first message that alone is larger is taken.
        Default no limit.
    :param max_seconds: stop after so many seconds. Default no limit.
    :param until_end: stop at the end the topics had when the batch began (default). With False one of the three limits
        is needed.
    :param idle_seconds: with `until_end`, how many seconds to wait for messages that are there but do not come, as the
        broker keeps them for other consumers or for later. Time without a connection does not count. Default 10, at
        least 0.1.
    :param decode: auto (default: by the schema each message was published with; text or base64 without one), json,
        text, or bytes (base64). Not for Parquet, which holds payloads as they were published.
    :param path: the file, local or a URL that ObjectStoragePath knows, or such a path itself; not the name of a packed
        file (.gz, .zip). None (default) needs `inline` or `process_message`; the batch is then remembered as long as
        Airflow keeps the task's state. Templated.
    :param format: jsonl or parquet; by default Parquet for a path that ends in .parquet, else JSONL. Parquet has the
        columns of the Spark source (value, __key, __topic, __messageId, __publishTime, __eventTime,
        __messageProperties, __partition, __sequenceId, __producerName, __ledgerId, __entryId, __batchIndex,
        __schemaVersion), and is much quicker, as no object is made for each message. It needs a path, and takes neither
        decode, inline, on_error nor process_message.
    :param if_exists: what to do about an output that is not of this run: fail (default; before anything is received),
        overwrite it, or append_part: write `NAME-00001.EXT`, the next free number (a new run looks into the manifests
        of all parts for one of its own).
    :param max_messages_per_file: divide the output into `NAME.part-00000.EXT` and so on, of so many messages. Default
        None: one file. The manifest then lists the files.
    :param max_bytes_per_file: begin another such file when one has this size; in Parquet a file may exceed it by a row
        group. Default None.
    :param inline: return the messages in the manifest too. Default False.
    :param inline_limit_bytes: with `inline`, end the batch before the messages have more bytes as JSON. Default 49152.
        A message that alone has more goes by `on_error`.
    :param process: called with a copy of the manifest after the output is safe, before anything is acknowledged; if it
        raises, nothing is. May be a coroutine function; it may name values of Airflow's context as further parameters.
        Default none.
    :param process_message: called with each message and Airflow's context, before it is put into the output; may be a
        coroutine function. It returns None or a `pulsar_native.jobs.message_handling.MessageResult` (ack, skip, nack,
        dead_letter, retry_letter); an exception goes by `on_error`. Default none.
    :param concurrency: how many calls of a coroutine function `process_message` run at once. Default 1.
    :param process_once: do not call `process` and `process_message` again in a run that has its batch already. Default
        False: a cleared run calls them again, with the same manifest and messages.
    :param on_error: what to do with a message that cannot be decoded or processed: fail the task (default), skip it,
        or publish it as dead_letter or retry_letter. All but fail acknowledge it with the batch. A retry letter is
        received by later batches of this operator, and becomes a dead letter after `max_redeliver_count` tries. Letters
        are published before anything is acknowledged, at least once, with the properties the Java client gives them,
        and EXCEPTION_TYPE and EXCEPTION_MESSAGE.
    :param max_errors: fail when more messages than this fail. Default no limit.
    :param dead_letter_topic: default `TOPIC-SUBSCRIPTION-DLQ`. Not one of the topics consumed. Like the next
        templated.
    :param retry_letter_topic: default `TOPIC-SUBSCRIPTION-RETRY`.
    :param initial_subscription_name: the subscription that a dead-letter topic gets before its first letter, so that a
        broker without retention keeps it. Default the name of `subscription`.
    :param max_redeliver_count: after how many retry letters a message becomes a dead letter. Default 16.
    :param retry_delay_seconds: how long a retry letter is held back; Shared and Key_Shared subscriptions only. Default
        60.
    :param private_keys: decrypt messages with these keys: names, with the path or the `file:` URL of each private key,
        a PEM file of the worker. The output is not encrypted; dead-letter and retry topics, where messages would not be
        either, are refused. Default none: encrypted messages stay in the subscription, and fail the task. Templated.
    :param progress_seconds: how often progress is logged, in seconds. Default 5, at least 0.1.
    :param pulsar_conn_id: the connection. Default pulsar_default.

    A broker that keeps acknowledgements of whole entries only (acknowledgmentAtBatchIndexLevelEnabled=false) delivers
    an entry cut by a limit again as a whole. What earlier runs of this task hold of it is left out; that is known from
    their XComs, so not after such a run was deleted, nor for runs of an earlier logical date: those hold it twice.
    After the subscription was moved back (PulsarResetCursorOperator, a seek) nothing is left out, unless it was moved
    to the very entry that was cut, or in a Shared or Key_Shared subscription behind messages that were still
    unacknowledged then: such a move cannot be distinguished from going on.

    A batch belongs to its cluster, too. Once the connection leads to another one, a retry or cleared run returns the
    manifest of a batch that is acknowledged and in its output; where it would need the messages or acknowledge them, it
    fails, and names what to do.

    A task that is cleared keeps its batch as well, and consumes no other messages. If its topics or subscription are
    other ones now (a template, or the list that it is mapped over), it fails, and names both. If a topic of the batch
    was deleted and created again meanwhile, it fails, and names what to do. Only the broker's statistics tell: the
    connection needs an admin URL, and the statistics the time of creation (topicCreationTimeStamp); otherwise the batch
    is returned.

    Returns path, format, count, bytes, topics, subscription, partitions (count, first and last id each), stop_reason
    (max_messages, max_bytes, max_seconds, inline_limit, end, idle), seconds, messages_per_second; files (path, count,
    size of each) if the output is divided; for JSONL errors (counts, and id, action, cause of the first 100 messages
    that are not in the output), and messages when inline. A failed try pushes the XCom consume_failure. Raises
    AirflowFailException where no retry can help: credentials, arguments, an output that exists or is lost.
    """

    template_fields: Sequence[str] = (
        "topic",
        "topic_pattern",
        "subscription",
        "path",
        "max_messages",
        "max_bytes",
        "max_seconds",
        "dead_letter_topic",
        "retry_letter_topic",
        "private_keys",
    )
    ui_color = "#d5e8fb"
    operator_extra_links = (PulsarTopicLink(),)

    def __init__(
        self,
        *,
        topic: str | Sequence[str] | re.Pattern[str] | None = None,
        topic_pattern: str | None = None,
        create_topic: bool = False,
        allow_empty_pattern: bool = False,
        subscription: str,
        subscription_type: str = "Exclusive",
        initial_position: str = "Earliest",
        max_messages: int | str | None = None,
        max_bytes: int | str | None = None,
        max_seconds: float | str | None = None,
        until_end: bool = True,
        idle_seconds: float = 10,
        decode: str | None = None,
        path: str | os.PathLike[str] | ObjectStoragePath | None = None,
        format: str | None = None,
        if_exists: str = "fail",
        max_messages_per_file: int | None = None,
        max_bytes_per_file: int | None = None,
        inline: bool = False,
        inline_limit_bytes: int = 48 * 1024,
        process: Callable[..., object] | None = None,
        process_message: Callable[..., object] | None = None,
        concurrency: int = 1,
        process_once: bool = False,
        on_error: str = "fail",
        max_errors: int | None = None,
        dead_letter_topic: str | None = None,
        retry_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
        max_redeliver_count: int = 16,
        retry_delay_seconds: float = 60,
        private_keys: Mapping[str, str] | None = None,
        progress_seconds: float = 5,
        pulsar_conn_id: str = "pulsar_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        is_pattern = isinstance(topic, re.Pattern)
        if (topic is None) == (topic_pattern is None):
            validation.refuse("ConsumeBatchOperator needs exactly one of topic and topic_pattern")
        self.topic = None if is_pattern else topic
        self.topic_pattern = topic.pattern if isinstance(topic, re.Pattern) else topic_pattern
        self._pattern_flags = topic.flags if isinstance(topic, re.Pattern) else 0
        self.create_topic = create_topic
        self.allow_empty_pattern = allow_empty_pattern
        self.subscription = subscription
        self.subscription_type = subscription_type
        self.initial_position = initial_position
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.max_seconds = max_seconds
        self.until_end = until_end
        self.idle_seconds = idle_seconds
        self.decode = decode
        self.path: str | None = path_text(path)
        self.format = format
        self.if_exists = if_exists
        self.max_messages_per_file = max_messages_per_file
        self.max_bytes_per_file = max_bytes_per_file
        self.inline = inline
        self.inline_limit_bytes = inline_limit_bytes
        self.process = process
        self.process_message = process_message
        self.concurrency = concurrency
        self.process_once = process_once
        self.on_error = on_error
        self.max_errors = max_errors
        self.dead_letter_topic = dead_letter_topic
        self.retry_letter_topic = retry_letter_topic
        self.initial_subscription_name = initial_subscription_name
        self.max_redeliver_count = max_redeliver_count
        self.retry_delay_seconds = retry_delay_seconds
        self.private_keys = private_keys
        self.progress_seconds = progress_seconds
        self.pulsar_conn_id = pulsar_conn_id
        self._task_client = TaskClient()
        self._lineage = TaskLineage()
        self._given = Given(
            self,
            *("path", "max_messages", "max_bytes", "max_seconds"),
            *("dead_letter_topic", "retry_letter_topic", "private_keys"),
        )
        self._check_plain()

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def _check_plain(self) -> None:
        """Check everything that no template can change, when the DAG file is parsed."""
        for name in _PLAIN:
            setattr(self, name, checked(name, getattr(self, name)))
        if self.decode is not None:
            self.decode = checked("decode", self.decode)
        self._format()
        self._check_output()
        self._check_dead_letter_topics()
        if isinstance(self.private_keys, Mapping):
            self._keys()
        if not self.until_end and self.max_messages is self.max_bytes is self.max_seconds is None:
            validation.refuse("with until_end=False one of max_messages, max_bytes and max_seconds must end the batch")
        for name, function in (("process", self.process), ("process_message", self.process_message)):
            if function is not None and not callable(function):
                validation.refuse(f"{name} must be callable")
            validation.no_generator(name, function)
        validation.number("inline_limit_bytes", self.inline_limit_bytes, 1)
        validation.number("max_redeliver_count", self.max_redeliver_count, 1)
        validation.number("retry_delay_seconds", self.retry_delay_seconds, 0)
        for name in ("max_messages_per_file", "max_bytes_per_file"):
            if getattr(self, name) is not None and self.path is None:
                validation.refuse(f"{name} needs a path")

    def _keys(self) -> dict[str, str]:
        """Return the paths of private keys; raises for a key itself, and for dead letters of decrypted messages."""
        keys = checked_paths(known_values(self.private_keys))
        if self.private_keys and (
            self.on_error.endswith("_letter") or self.dead_letter_topic or self.retry_letter_topic
        ):
            validation.refuse("private_keys exclude dead-letter and retry topics: nothing would be encrypted there")
        return keys

    def _check_dead_letter_topics(self) -> None:
        """Raise for a dead-letter or retry topic that is consumed, as far as the spelling tells before the rendering.

        The job compares whole names.
        """
        topics = [self.topic] if isinstance(self.topic, str) else self.topic
        for name in ("dead_letter_topic", "retry_letter_topic"):
            given = getattr(self, name)
            if isinstance(given, str) and isinstance(topics, list | tuple) and given in topics:
                validation.refuse(f"{name}={given!r} is also a topic that is consumed: name another one")

    def _check_output(self) -> None:
        """Raise unless the messages go somewhere."""
        if self.path is None and not self.inline and self.process_message is None:
            validation.refuse("ConsumeBatchOperator needs a path, process_message, or inline=True for a small result")

    def _format(self) -> str:
        """Return the format of the output, whose path may be a template when the DAG is parsed."""
        if isinstance(self.path, str) and self.path.lower().endswith(_PACKED):
            validation.refuse(f"path={self.path!r} is the name of a packed file, and the output is none: {_UNPACKED}")
        chosen = format_of(self.path, self.format)
        if chosen == "parquet":
            if self.path is None:
                validation.refuse("format='parquet' needs a path")
            if self.inline:
                validation.refuse("inline=True returns messages as JSON: it does not go with Parquet")
            if self.decode is not None:
                validation.refuse("decode= is for JSONL: Parquet holds payloads as they were published; leave it out")
            if self.process_message is not None:
                validation.refuse("process_message= is for JSONL and inline: for Parquet no message is made")
            if self.on_error != "fail":
                validation.refuse("on_error= is for JSONL and inline: for Parquet nothing is decoded that could fail")
        return chosen

    def _topics(self, hook: PulsarHook) -> list[str]:
        """Return the names that the job checks."""
        if self.topic_pattern is not None:
            return []
        given = [self.topic] if isinstance(self.topic, str) else self.topic
        if not isinstance(given, Sequence) or not given:
            validation.refuse("topic must be a name or a list of names")
        return [hook.topic_name(validation.text("topic", name)) for name in given]

    def _pattern(self) -> re.Pattern[str] | None:
        if self.topic_pattern is None:
            return None
        try:
            return re.compile(validation.text("topic_pattern", self.topic_pattern), self._pattern_flags)
        except re.error as error:
            validation.refuse(f"topic_pattern={self.topic_pattern!r} is no regular expression: {error}")

    def _parts(self) -> PartLimits | None:
        from pulsar_native.jobs.part_files import PartLimits

        limits = PartLimits(self.max_messages_per_file, self.max_bytes_per_file)
        return None if limits == PartLimits() else limits

    def _settings(self, context: Context, hook: PulsarHook) -> ConsumeSettings:
        """Return the options of the job after rendering; raises ValueError for wrong results of templates.

        Gets the deployment id from Airflow: another deployment's run of the same names has its own batch.
        """
        from airflow_provider_pulsar.deployment import deployment_id
        from pulsar_native.jobs.batch import BatchLimits
        from pulsar_native.jobs.consume_settings import ConsumeSettings
        from pulsar_native.jobs.dead_letters import DeadLetterOptions

        self._given.check(self)
        # The result of another task may be a path.
        self.path = path_text(self.path)
        if self.path is not None:
            storage_path(validation.text("path", self.path))
        for name in ("dead_letter_topic", "retry_letter_topic"):
            if getattr(self, name) not in (None, ""):
                validation.text(name, getattr(self, name))
        topics, pattern = self._topics(hook), self._pattern()
        limits = BatchLimits.of(
            self.max_messages, self.max_bytes, self.max_seconds, self.inline_limit_bytes if self.inline else None
        )
        identity = TaskIdentity.of(context)
        cluster = cluster_uri(hook.service_url())
        if self.on_error == "retry_letter" and self.topic_pattern is not None and not self.retry_letter_topic:
            validation.refuse("on_error='retry_letter' with a pattern needs retry_letter_topic: one for all topics")
        deployment = deployment_id(hook.deployment_id())
        return ConsumeSettings(
            topics=topics,
            pattern=pattern,
            subscription=self.subscription,
            run={
                "dag_id": identity.dag_id,
                "task_id": identity.task_id,
                "run_id": identity.run_id,
                "map_index": identity.map_index,
                "deployment_id": deployment,
            },
            cluster=cluster,
            subscription_type=self.subscription_type,
            initial_position=self.initial_position,
            limits=limits,
            until_end=self.until_end,
            idle_seconds=self.idle_seconds,
            decode=self.decode or "auto",
            path=self.path,
            format=self._format(),
            if_exists=self.if_exists,
            parts=self._parts(),
            on_error=self.on_error,
            max_errors=self.max_errors,
            dead_letters=DeadLetterOptions(
                self.subscription,
                dead_letter_topic=hook.topic_name(self.dead_letter_topic) if self.dead_letter_topic else None,
                retry_letter_topic=hook.topic_name(self.retry_letter_topic) if self.retry_letter_topic else None,
                max_redeliver_count=self.max_redeliver_count,
                retry_delay_seconds=self.retry_delay_seconds,
                initial_subscription_name=self.initial_subscription_name,
            ),
            reads_retry_letters=self.on_error == "retry_letter" or bool(self.retry_letter_topic),
            create_topic=self.create_topic,
            allow_empty_pattern=self.allow_empty_pattern,
            process_once=self.process_once,
            concurrency=self.concurrency,
            private_keys=self._keys(),
            progress_seconds=self.progress_seconds,
            consumer_name=f"airflow/{deployment}/{identity.text}",
            properties={**identity.as_properties(), "airflow.deployment_id": deployment},
        )

    # ---- execution ---------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Consume the batch and return its manifest."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native.jobs.consuming import ConsumeJob

        with self._task_client:
            hook = PulsarHook(self.pulsar_conn_id)
            with staged(self._action(), "arguments"):
                settings = self._settings(context, hook)
                callbacks = self._callbacks(context, hook)
            client = self._task_client.open(hook, self._action())
            self._lineage.begin(hook)
            job = ConsumeJob(
                settings,
                client,
                TaskState(context, "consumed"),
                self.log,
                callbacks,
                cut=cut_entries(cut_notes(context, settings), settings),
            )
            manifest = self._run(job, context)
            push_cut(context, job, settings)
            self._lineage.succeed(self, context, hook, manifest, read=manifest["topics"])
            result: dict[str, Any] = xcom_value(manifest)
            return result

    def _run(self, job: ConsumeJob, context: Context) -> dict[str, Any]:
        from pulsar_native import PulsarException

        try:
            return job.run()
        except BaseException as error:
            self._report(job, error, context)
            # Exceptions of the DAG's functions pass unchanged.
            if isinstance(error, PulsarException | OSError) and job.stage != "process":
                # A kill drops the client, and what waits for the broker says that it is closed.
                self._task_client.check(self._action())
                raise failure(error, action=self._action(), stage=job.stage) from error
            raise

    def _report(self, job: ConsumeJob, error: BaseException, context: Context) -> None:
        """Log and push the messages that the failed try had received. The log has them if Airflow rejects the XCom."""
        found = job.failure_manifest(error)
        self._lineage.fail(found)
        self.log.error("%s failed: %s", self._action(), found)
        # A time-out may have interrupted a request to Airflow: no further one is sent.
        if job.stage != "note":
            with suppress(Exception):
                context["ti"].xcom_push(key=FAILURE_KEY, value=found)

    def _action(self) -> str:
        return f"Consuming {self.topic_pattern or self.topic} as {self.subscription}"

    def _callbacks(self, context: Context, hook: PulsarHook) -> ConsumeCallbacks:
        from pulsar_native.jobs.consume_settings import ConsumeCallbacks

        def names(namespace: str) -> Sequence[str]:
            admin = hook.get_admin()
            if admin is None:
                return ()
            with admin:
                return admin.topics(namespace)

        def created(topics: Sequence[str]) -> Mapping[str, int]:
            from pulsar_native import PulsarException, TopicNotFound

            found: dict[str, int] = {}
            admin = hook.get_admin(_CREATED_SECONDS)
            if admin is None:
                return found
            # Without an answer the batch is right as it is.
            with admin, suppress(PulsarException, OSError):
                for topic in topics:
                    with suppress(TopicNotFound):
                        # Older brokers do not tell.
                        if time := admin.stats(topic).get("topicCreationTimeStamp"):
                            found[topic] = time
            return found

        return ConsumeCallbacks(
            check=lambda: self._task_client.check(self._action()),
            process=self._processor(context),
            handle=self._handler(context),
            passing=(AirflowFailException, AirflowSkipException),
            redact=redacted,
            names=names,
            created=created,
            open_path=storage_path,
        )

    def _processor(self, context: Context) -> Callable[[Mapping[str, Any]], object] | None:
        """Return the function of the manifest to call before anything is acknowledged."""
        return None if self.process is None else _bound("process", self.process, "manifest", context)

    def _handler(self, context: Context) -> Callable[[Message], Any] | None:
        function = self.process_message
        return None if function is None else _bound("process_message", function, "message", context)

    # ---- OpenLineage -------------------------------------------------------------------------------------------------

    def _openlineage(self) -> OperatorLineage[Any, Any]:
        from airflow_provider_pulsar import openlineage
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        hook = PulsarHook(self.pulsar_conn_id)
        url = self._lineage.service_url or hook.service_url()
        result = self._lineage.result
        topics = list(result.get("topics") or self._topics(hook))
        # A manifest counts by partition over all topics: with several, no count belongs to one.
        counted = result if len(topics) == 1 else None
        path = result.get("path") or self.path
        outputs = []
        # A failed try leaves no output.
        if path is not None and "stage" not in result:
            counted_only = {"count": result["count"]} if "count" in result else None
            outputs = [openlineage.output_dataset(openlineage.path_name(str(path)), counted_only)]
        inputs = [openlineage.input_dataset(openlineage.topic_name(url, topic), counted) for topic in topics]
        return openlineage.lineage(self.pulsar_conn_id, result, inputs=inputs, outputs=outputs)

    def on_kill(self) -> None:
        """Stop, and drop the connection so that the broker redelivers the messages. Does not wait."""
        self._task_client.kill()


def _bound(argument: str, function: Callable[..., Any], name: str, context: Context) -> Callable[[Any], Any]:
    """Return the function of one value, by position or by `name`, with its other parameters from the context.

    Raises ValueError naming the operator's argument if the function cannot be called so.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        # A function in C may have no signature.
        return function
    parameters = list(signature.parameters.values())
    values: Mapping[str, Any] = {**context, "context": context}
    by_name = next((each for each in parameters if each.name == name and each.kind is not each.POSITIONAL_ONLY), None)
    positional = None
    if by_name is None:
        positional = next((each for each in parameters if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)), None)
    more: dict[str, Any] = {}
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        more = {each: value for each, value in values.items() if each != name}
    else:
        named = [each.name for each in parameters if each not in (by_name, positional)]
        more = {each: values[each] for each in named if each in values}
    if positional is not None:
        more.pop(positional.name, None)
    try:
        signature.bind(*(() if positional is None else (None,)), **({name: None} if positional is None else {}), **more)
    except TypeError as error:
        validation.refuse(
            f"{argument} cannot be called with {name}, and what its parameters name of Airflow's context: {error}"
        )
    if positional is not None:
        return lambda value: function(value, **more)
    return lambda value: function(**{name: value}, **more)
