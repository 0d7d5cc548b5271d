"""`@task.pulsar_consume`: a function handles a batch of messages, which is acknowledged when it has returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator

from airflow_provider_pulsar.context import call_with_context
from airflow_provider_pulsar.decorators._signature import original, refuse_given, task_decorator, without_parameters
from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.xcom import xcom_value
from pulsar_native.jobs import validation
from pulsar_native.jobs.async_iteration import completed

if TYPE_CHECKING:
    from airflow.sdk import Context

# Parameters of the function that the task fills.
GIVEN = ("messages", "manifest")
MANIFEST_KEY = "manifest"
"""The XCom with the manifest of the batch, without its messages."""


class _ConsumeDecoratedOperator(DecoratedOperator, ConsumeBatchOperator):
    """ConsumeBatchOperator whose batch is handled by the decorated function before it is acknowledged."""

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *ConsumeBatchOperator.template_fields)
    custom_operator_name = "@task.pulsar_consume"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        path: str | None = None,
        inline: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.pop("process", None) is not None:
            validation.refuse("@task.pulsar_consume calls its own function: leave process out")
        validation.no_generator("the function of @task.pulsar_consume", original(python_callable))
        if op_args:
            validation.refuse("@task.pulsar_consume takes arguments of its function by name only")
        refuse_given("@task.pulsar_consume", GIVEN, op_kwargs)
        if inline is None:
            inline = path is None and kwargs.get("process_message") is None
        if not inline and "messages" in inspect.signature(original(python_callable)).parameters:
            validation.refuse(
                "a function with the parameter messages needs inline=True: it gets them from the manifest"
            )
        super().__init__(
            python_callable=without_parameters(python_callable, GIVEN),
            op_args=op_args,
            op_kwargs=op_kwargs,
            # A process given here is not filled from `default_args`, whose process is that of other tasks.
            kwargs_to_upstream={"path": path, "inline": inline, "process": None},
            **kwargs,
        )
        self._returned: object = None

    def _processor(self, context: Context) -> Callable[[Mapping[str, Any]], object]:
        def process(manifest: Mapping[str, Any]) -> None:
            batch = {"messages": manifest.get("messages"), "manifest": manifest}
            values: Any = {**context, **batch}
            found = call_with_context(original(self.python_callable), values, self.op_kwargs or {})
            self._returned = self._storable(completed(found, "the function"))

        return process

    def _storable(self, returned: object) -> object:
        """Return a result as Airflow can store it: its refusal, after the acknowledgement, would be for good."""
        value: object = xcom_value(returned)
        if self.multiple_outputs and value is not None and not isinstance(value, Mapping):
            validation.refuse(
                "with multiple_outputs the function must return a dict, without a key that Airflow keeps for itself "
                f"(__classname__, __id__, or __type with __var), not {type(returned).__name__}"
            )
        return value

    def execute(self, context: Context) -> Any:
        """Consume the batch and return what the function returns."""
        self._returned = None
        manifest = ConsumeBatchOperator.execute(self, context)
        small = {name: value for name, value in manifest.items() if name != "messages"}
        context["ti"].xcom_push(key=MANIFEST_KEY, value=small)
        return self._handle_output(self._returned)


def pulsar_consume_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a task that hands a batch to a function: `@task.pulsar_consume(topic="orders", subscription="bill")`.

    The function gets, where its parameters name them, `messages` (a list of dicts with value, key, properties, times
    and ids), `manifest`, parts of the context, and its call's arguments, by name. A call, `partial` or `expand` that
    gives `messages` or `manifest` itself is refused. The batch is acknowledged after the function has returned; if it
    raises, nothing is, and the next try gets the same messages. It may be a coroutine function. A cleared run calls it
    again with the same messages, unless `process_once` is True: then a try after the batch was recorded returns None.

    :param python_callable: the function; given where the decorator is used without arguments.
    :param multiple_outputs: push each key of a returned dict as an XCom of its own. Default: as the annotation says.
    :param kwargs: the parameters of `ConsumeBatchOperator` but for process, and those of every task. Without `path` and
        `process_message`, `inline` is True, and the batch ends at `inline_limit_bytes` (default 49152).

    The task returns what the function returns, and pushes the manifest without messages as the XCom `manifest`. A dict
    with the key `__classname__` or `__id__`, or with both `__type` and `__var`, becomes its JSON text: Airflow keeps
    these keys for itself.
    """
    return task_decorator(
        python_callable,
        GIVEN,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_ConsumeDecoratedOperator,
        **kwargs,
    )
