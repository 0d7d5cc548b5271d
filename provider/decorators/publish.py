"""`@task.pulsar_publish`: a function returns or yields messages, and the task publishes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_pulsar.context import call_with_context
from airflow_provider_pulsar.operators.publish import PublishOperator
from pulsar_native.jobs import validation
from pulsar_native.jobs.sources import Source

if TYPE_CHECKING:
    from airflow.sdk import Context


class _PublishDecoratedOperator(DecoratedOperator, PublishOperator):  # type: ignore[misc]  # both have op_kwargs
    """PublishOperator whose messages are what the decorated function returns."""

    template_fields: Sequence[str] = tuple(
        dict.fromkeys([*DecoratedOperator.template_fields, *PublishOperator.template_fields])
    )
    template_fields_renderers = {**PublishOperator.template_fields_renderers, "op_args": "py", "op_kwargs": "py"}  # noqa: RUF012
    custom_operator_name = "@task.pulsar_publish"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if {"messages", "file"} & kwargs.keys():
            validation.refuse("@task.pulsar_publish publishes what its function returns: leave messages and file out")
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream={"messages": python_callable, "op_kwargs": op_kwargs},
            **kwargs,
        )

    def _called(self, context: Context) -> Source:
        function = functools.partial(self.python_callable, *self.op_args)
        return Source.of(call_with_context(function, context, self._keywords()))


def pulsar_publish_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a task that publishes what a function returns: `@task.pulsar_publish(topic="orders")`.

    The function returns or yields what `PublishOperator` takes as `messages`: a list, a table, an iterator; it may be a
    coroutine function or an async generator function. It gets its call's arguments, and those parts of the context that
    its parameters name. With deduplication every try must give the same messages in the same order.

    :param python_callable: the function; given where the decorator is used without arguments.
    :param multiple_outputs: push each key of the manifest as an XCom of its own. Default: as the function's annotation.
    :param kwargs: the parameters of `PublishOperator`, but for messages, file and op_kwargs, and those of every task.

    The task returns the manifest of `PublishOperator`.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_PublishDecoratedOperator,
        **kwargs,
    )
