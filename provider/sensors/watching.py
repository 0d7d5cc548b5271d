"""Base of sensors that look at a condition of a topic: poke, reschedule, deferrable, or started in the triggerer.

Rules: all modes share the watchers of `pulsar_native.jobs`. Each look is logged. A broker that does not answer is
waited for until the time-out, whose error names the stage; refused credentials, a missing permission and a wrong name
fail at once and without retries. Arguments that no template can change are checked when the DAG file is parsed. A look
runs in a thread, so that Airflow's execution time-out ends it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Coroutine, Iterator, Mapping
from concurrent import futures
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue, XComArg
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferralError,
)
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_pulsar.arguments import Given, is_of_worker
from airflow_provider_pulsar.exceptions import CheckedArguments, staged
from airflow_provider_pulsar.links.pulsar import PulsarTopicLink
from airflow_provider_pulsar.triggers.watching import GRACE_SECONDS
from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import is_permanent
from pulsar_native.jobs.interval import is_template
from pulsar_native.jobs.watching import MIN_LOOK_SECONDS, config_of_look

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native import AdminClient, ClientConfig
    from pulsar_native.jobs.watching import Watcher

_T = TypeVar("_T")
# Failures of a poke that Airflow's `soft_fail` skips and `silent_fail` does not ignore; others fail, or are ignored.
_ENDS = (AirflowSensorTimeout, AirflowTaskTimeout, AirflowFailException)
# An interrupted look has so long to drop its connections. Every second of it delays Airflow's execution time-out.
_STOP_SECONDS = 2
# What a template reads by a request that no triggerer answers: the task would wait for it until the time-out.
_WORKER_ONLY = re.compile(r"\b(?:xcom_pull|inlet_events|prev_\w+_success|get_previous_dagrun)\b")


class WatchingSensor(CheckedArguments, BaseSensorOperator):
    """Wait until a condition holds; a subclass has the condition.

    :param deferrable: wait in the triggerer.
    :param start_from_trigger: begin in the triggerer, without a worker for the first look; needs `deferrable`. Not for
        mapped tasks, nor for arguments that are or pull the result of another task, or are those of an expanded task
        group. The triggerer renders templates without the DAG's macros, filters and native rendering.
    :param pulsar_conn_id: the connection.
    :param poke_interval: seconds between two looks.
    :param exponential_backoff: as in every sensor, but not with `deferrable`: the triggerer looks at even intervals.
    """

    ui_color = "#d5e8fb"
    operator_extra_links = (PulsarTopicLink(),)
    start_trigger_args = StartTriggerArgs(
        trigger_cls="", trigger_kwargs={}, next_method="execute_complete", next_kwargs=None, timeout=None
    )
    start_from_trigger = False
    # Class path of the trigger, whose arguments have the names of the sensor's.
    trigger_class = ""
    topic: str

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        start_from_trigger: bool = False,
        pulsar_conn_id: str = "pulsar_default",
        poke_interval: timedelta | float = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.deferrable = deferrable
        self.pulsar_conn_id = pulsar_conn_id
        self.start_from_trigger = start_from_trigger
        self._watch: Watcher | None = None
        self._is_begun = False
        self._deadline: float | None = None
        if start_from_trigger and not deferrable:
            validation.refuse("start_from_trigger=True needs deferrable=True: the triggerer takes the task over")
        if self.exponential_backoff and deferrable:
            validation.refuse(
                "exponential_backoff=True does not go with deferrable=True: the triggerer looks every poke_interval "
                "seconds. Leave it out, or give deferrable=False"
            )

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return the mapped task's arguments, as every operator's `partial`; raises ValueError for a wrong one."""
        # The scheduler starts a mapped task with the class's trigger arguments: no constructor has filled them in.
        if kwargs.get("start_from_trigger"):
            validation.refuse(
                "start_from_trigger=True is not possible for mapped tasks: leave it out, deferrable=True looks once in "
                "the worker"
            )
        return super().partial(**kwargs)

    # ---- the condition -----------------------------------------------------------------------------------------------

    @abstractmethod
    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition, which are those of the trigger too."""

    @abstractmethod
    def watcher(self) -> Watcher:
        """Return the watcher of the condition; raises ValueError naming a wrong argument."""

    def prepare(self) -> None:
        """Check the condition at parse time unless it has templates, and set up the start in the triggerer.

        The last call of a subclass's constructor.
        """
        self._given = Given(self, *self.template_fields)
        given = self.condition()
        if not any(_has_template(given[name]) for name in self.template_fields if name in given):
            self.watcher()
        if self.start_from_trigger:
            self._refuse_results(given)
            # Replaced, since the class attribute belongs to all tasks.
            self.start_trigger_args = dataclasses.replace(
                self.start_trigger_args,
                trigger_cls=self.trigger_class,
                trigger_kwargs={**given, **self._trigger_options(), "timeout_seconds": self.timeout},
                timeout=timedelta(seconds=self.timeout + GRACE_SECONDS),
            )

    def _refuse_results(self, given: Mapping[str, Any]) -> None:
        """Raise for the first argument that is or has what a worker alone can read, as the result of another task."""
        # A mapped task with this flag from `default_args` starts in the worker, which can read results.
        if getattr(self, "_BaseOperator__from_mapped", False):
            return
        for name, value in given.items():
            if any(True for _ in XComArg.iter_xcom_references(value)):
                validation.refuse(
                    f"{name} is the result of another task, which the triggerer cannot read: leave out "
                    "start_from_trigger"
                )
            for part in _parts(value):
                _refuse_worker_only(name, part)

    def restore(self, context: Context) -> None:
        """Continue from an earlier process of this try."""

    def keep(self, context: Context, *, is_done: bool) -> None:
        """Keep what a later process of this try continues from."""

    def completed(self, context: Context, found: Any) -> Any:
        """Return the result of the task; called once, in the worker, when the condition holds."""
        return found

    def found_at(self, hook: PulsarHook, found: dict[str, Any]) -> dict[str, Any]:
        """Return what a look found with this connection, as `completed` is to have it."""
        return found

    # ---- poke and reschedule -----------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Wait, and return the result of the check."""
        self._is_begun = False
        # In reschedule mode each check is a process of its own, and the base class knows the total time.
        is_rescheduled = self.reschedule and not self.deferrable
        self._deadline = None if is_rescheduled else time.monotonic() + self.timeout
        if self.deferrable:
            found = self._first_look(context)
            if found:
                return self.completed(context, found.xcom_value)
            self._defer()
        try:
            found_value: Any = super().execute(context)
        except AirflowSensorTimeout as error:
            assert self._watch is not None
            last = self._watch.seen or "no look succeeded"
            raise AirflowSensorTimeout(f"{error} Waited for {self._watch.wanted}; last: {last}") from error
        return self.completed(context, found_value)

    def _name_topic(self) -> None:
        """Replace a short name by that in the connection's default namespace, which is read for such a name only."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        if isinstance(self.topic, str) and "/" not in self.topic:
            self.topic = PulsarHook(self.pulsar_conn_id).topic_name(self.topic)

    def begin(self, context: Context) -> None:
        """Check the arguments, read the connection for a short name, and what an earlier process has kept; once.

        Part of the first look: an error here counts for Airflow's `soft_fail`, `never_fail` and `silent_fail`.
        """
        if self._is_begun:
            return
        with staged(f"Waiting for {self.topic}", "arguments"):
            self._given.check(self)
            # For the text of a time-out, where the connection that names the topic is missing.
            self._watch = self.watcher()
            self._name_topic()
            self._watch = self.watcher()
        self.restore(context)
        self._is_begun = True

    def _first_look(self, context: Context) -> PokeReturnValue:
        """Check before deferring; `soft_fail`, `never_fail` and `silent_fail` apply as Airflow has it for a poke."""
        try:
            return self.poke(context)
        except AirflowSkipException:
            raise
        except _ENDS as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipped as soft_fail or never_fail says: {error}") from error
            raise
        except Exception as error:
            if self.silent_fail:
                self.log.exception("The first look failed")
                return PokeReturnValue(False)
            if self.never_fail:
                raise AirflowSkipException(f"Skipped as never_fail says: {error}") from error
            raise

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after the trigger; skip by `soft_fail` and `never_fail` what is skipped in a poke, and no more."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSkipException as skipped:
            failure = skipped.__cause__
            if self.soft_fail:
                skips = isinstance(failure, (*_ENDS, TaskDeferralError))
            else:
                # The time-out is no exception of a poke.
                skips = not isinstance(failure, AirflowSensorTimeout)
            if skips or failure is None:
                raise
            raise failure from failure.__cause__

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once. Raises permanent errors only."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native import PulsarException

        self.begin(context)
        assert self._watch is not None
        left = self.timeout if self._deadline is None else self._deadline - time.monotonic()
        # Read here: Airflow's asyncio call finds no connection of the database in `dag.test()`.
        hook = PulsarHook(self.pulsar_conn_id)
        source = hook.get_admin() if self._watch.uses == "admin" else hook.client_config()
        try:
            found = _run_in_thread(_look(self._watch, source, max(MIN_LOOK_SECONDS, left)))
        except (PulsarException, OSError) as error:
            self._watch.failed(error)
            self.keep(context, is_done=False)
            if is_permanent(error):
                raise AirflowFailException(self._watch.seen) from error
            self.log.warning("%s", self._watch.seen)
            return PokeReturnValue(False)
        self.log.info("Waiting for %s: %s", self._watch.wanted, self._watch.seen)
        self.keep(context, is_done=found is not None)
        return PokeReturnValue(found is not None, None if found is None else self.found_at(hook, found))

    # ---- deferrable --------------------------------------------------------------------------------------------------

    def _trigger_options(self) -> dict[str, Any]:
        return {
            "poll_interval": self.poke_interval,
            "pulsar_conn_id": self.pulsar_conn_id,
            "silent_fail": self.silent_fail,
        }

    def trigger(self, end_time: float) -> BaseTrigger:
        """Return the trigger that continues this wait."""
        module, _, name = self.trigger_class.rpartition(".")
        kind: type[BaseTrigger] = getattr(import_module(module), name)
        return kind(**self.condition(), **self._trigger_options(), end_time=end_time)

    def _defer(self) -> None:
        self.defer(
            trigger=self.trigger(time.time() + max(1.0, (self._deadline or 0) - time.monotonic())),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout + GRACE_SECONDS),
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Return the trigger's result, or raise its error."""
        if event is None or "status" not in event:
            raise AirflowException(f"The trigger waiting for {self.condition()['topic']} sent no event")
        if event["status"] == "found":
            self._name_topic()
            self.log.info("Found %s", {name: value for name, value in event["found"].items() if name != "value"})
            return self.completed(context, dict(event["found"]))
        if event["status"] == "timeout":
            raise AirflowSensorTimeout(event["message"])
        raise AirflowFailException(event["message"]) if event.get("permanent") else AirflowException(event["message"])


def _has_template(value: object) -> bool:
    return any(map(is_template, _parts(value)))


def _refuse_worker_only(name: str, part: object) -> None:
    """Raise for what only a worker can resolve or render."""
    if is_of_worker(part):
        validation.refuse(
            f"{name} is known in a worker only, as an argument of an expanded task group is: leave out "
            "start_from_trigger"
        )
    read = _WORKER_ONLY.search(part) if isinstance(part, str) and is_template(part) else None
    if read is not None:
        validation.refuse(
            f"{name} has the template {part!r}, and {read[0]} can be read in a worker only: leave out "
            "start_from_trigger"
        )


def _parts(value: object) -> Iterator[object]:
    """Yield what is in mappings and lists, or the value itself if it is neither."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each)
    else:
        yield value


def _run_in_thread(look: Coroutine[Any, Any, _T]) -> _T:
    """Run a look in a thread, and return its result. An exception of a signal handler cancels it.

    Airflow's execution time-out is an exception raised at whatever line the main thread executes. In a loop there, it
    would end any task of the client, and the look would wait for that task.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(look)
    ended: futures.Future[None] = futures.Future()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(asyncio.wait([task]))
        finally:
            ended.set_result(None)

    threading.Thread(target=run, name="pulsar-look", daemon=True).start()
    try:
        ended.result()
    except BaseException:
        # The loop may have been closed by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)
        futures.wait([ended], _STOP_SECONDS)
        raise
    return task.result()


async def _look(watch: Watcher, source: AdminClient | ClientConfig | None, seconds: float) -> dict[str, Any] | None:
    from pulsar_native import ClientConfig
    from pulsar_native.asyncio import Client

    if not isinstance(source, ClientConfig):
        async with asyncio.timeout(seconds):
            return await watch.look(source)
    client = Client.from_config(config_of_look(source, seconds))
    try:
        async with asyncio.timeout(seconds):
            found = await watch.look(client)
            await client.close()
            return found
    except BaseException:
        # A broker that does not answer would not answer closing commands either.
        client.shutdown()
        raise
