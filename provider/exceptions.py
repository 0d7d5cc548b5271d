"""Airflow's exceptions for errors of the client and of the operating system.

May not do I/O. Operators and sensors raise no other ones: a permanent error (refused credentials, a wrong name or
argument) fails the task at once, every other error fails the try.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.context import redacted
from pulsar_native.jobs.failures import explain, is_permanent
from pulsar_native.jobs.validation import InvalidValue

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment


class ArgumentRefused(AirflowFailException, ValueError):
    """Raised when an argument is wrong, also once its template or the result of another task is rendered."""


class CheckedArguments:
    """Base of operators and sensors: a wrong argument and an undefined template raise `ArgumentRefused`.

    The worker calls the constructor of a mapped task, with what it was expanded over, and Airflow tries a task again
    after any other ValueError.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        constructor = vars(cls).get("__init__")
        if constructor is not None:
            # Airflow, too, wraps the constructor of each class, afterwards.
            cls.__init__ = _refusing(constructor)  # type: ignore[method-assign]

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a template, also one within a list or a dict; raise `ArgumentRefused` for one that is undefined.

        Native rendering returns what is undefined as an object, which can be iterated like an empty list. A text that
        is no template stays as it is: Jinja would change its line ends, and native rendering make "1.50" a number.
        """
        from jinja2 import Undefined

        environment = jinja_env or self.get_template_env()  # type: ignore[attr-defined]  # Airflow's
        if isinstance(content, str) and not _is_template(content, environment, self.template_ext):  # type: ignore[attr-defined]
            return content
        rendered = super().render_template(content, context, environment, seen_oids)  # type: ignore[misc]  # Airflow's
        if isinstance(rendered, Undefined):
            raise ArgumentRefused(redacted(f"the template {content!r} is undefined: {rendered._undefined_message}"))
        return rendered


def _is_template(text: str, environment: Environment, endings: Sequence[str]) -> bool:
    """Return True for the path of a template's file, and for a text with a delimiter of Jinja."""
    marks = (
        *(environment.variable_start_string, environment.block_start_string, environment.comment_start_string),
        *(environment.line_statement_prefix, environment.line_comment_prefix),
    )
    return text.endswith(tuple(endings)) or any(mark in text for mark in marks if mark)


def _refusing(constructor: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(constructor)
    def construct(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            constructor(self, *args, **kwargs)
        except ValueError as error:
            # A constructor of the DAG's author may raise others, of what it reads.
            if not is_permanent(error):
                raise
            raise ArgumentRefused(str(error)) from error

    return construct


def failure(error: BaseException, *, action: str, stage: str) -> AirflowException:
    """Return Airflow's exception for an error of the client; without retries for a permanent one."""
    if isinstance(error, InvalidValue):
        # Of an argument the text names it, as when the DAG file is parsed.
        return ArgumentRefused(str(error) if stage == "arguments" else explain(error, action=action, stage=stage))
    kind = AirflowFailException if is_permanent(error) else AirflowException
    return kind(explain(error, action=action, stage=stage))


@contextmanager
def staged(action: str, stage: str) -> Iterator[None]:
    """Convert errors of the client, the operating system and arguments in the block to Airflow's, with the stage.

    Other errors, such as those of functions of the DAG's author, pass.
    """
    from pulsar_native import PulsarException

    try:
        yield
    except (PulsarException, OSError, InvalidValue) as error:
        raise failure(error, action=action, stage=stage) from error
