"""Descriptions of options, written once at a configuration class and shown at the methods of both APIs.

Rules: a description is a `:param name:` field of a class's docstring. It is appended to the docstrings of the methods
that take the option under this name, in the order of their parameters; a field of the method's own docstring has
precedence. Docstrings only: nothing here is called after the import, and under `python -OO` nothing happens.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_FIELD = re.compile(r"^:param (\w+): ", re.MULTILINE)


def option_docs(*sources: type, options: type | None = None) -> Callable[[T], T]:
    """Return a decorator that appends the descriptions of the options which a method, or a class, takes.

    :param sources: classes whose docstrings describe the options; the first one that has a name gives its description.
    :param options: the TypedDict of the keyword arguments that are not named in the signature (`**options`); they are
        described last, in its order. Default None.
    """

    def decorate(documented: T) -> T:
        text = inspect.cleandoc(documented.__doc__ or "")
        if text:
            head, own = _parted(text)
            fields = {**_fields_of(sources), **own}
            names = [*parameters(documented), *(() if options is None else options.__annotations__)]
            documented.__doc__ = "\n".join([head, "", *(fields[name] for name in names if name in fields)])
        return documented

    return decorate


def _fields_of(sources: tuple[type, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in reversed(sources):
        found.update(_parted(inspect.cleandoc(source.__doc__ or ""))[1])
    return found


def _parted(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's text before the first field, and its fields by the parameter's name."""
    starts = [*_FIELD.finditer(text)]
    if not starts:
        return text, {}
    ends = [*(start.start() for start in starts[1:]), len(text)]
    fields = {start[1]: text[start.start() : end].rstrip() for start, end in zip(starts, ends, strict=True)}
    return text[: starts[0].start()].rstrip(), fields


def parameters(documented: Any) -> tuple[str, ...]:
    """Return the named parameters of a function, or of a class's `__init__`."""
    function: Any = vars(documented)["__init__"] if isinstance(documented, type) else documented
    code = function.__code__
    named: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return named
