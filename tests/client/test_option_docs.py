"""Descriptions of options on the methods of both APIs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import pytest

import pulsar_native
import pulsar_native.asyncio
from pulsar_native import _options
from pulsar_native._option_docs import option_docs

_CLIENTS = (pulsar_native.Client, pulsar_native.asyncio.Client)
_DOCUMENTED: list[Callable[..., Any]] = [
    *(getattr(client, name) for client in _CLIENTS for name in ("create_producer", "subscribe", "create_reader")),
    *(client.create_table_view for client in _CLIENTS),
    *(producer.send for producer in (pulsar_native.Producer, pulsar_native.asyncio.Producer)),
    pulsar_native.Producer.send_async,
    pulsar_native.asyncio.Producer.enqueue,
]
# TypedDict of the keyword arguments that are not named in the signature.
_OPTIONS: dict[str, Any] = {
    "create_producer": _options.ProducerOptions,
    "subscribe": _options.ConsumerOptions,
    "create_reader": _options.ReaderOptions,
    "create_table_view": _options.TableViewOptions,
}


def described(documented: Any) -> list[str]:
    """Return the names of the parameters that a docstring describes, in their order."""
    return re.findall(r"^:param (\w+): \S", inspect.getdoc(documented) or "", re.MULTILINE)


def parameters_of(documented: Callable[..., Any], options: Any) -> list[str]:
    """Return the names of a signature's parameters, those of `**options` last."""
    names = [name for name in inspect.signature(documented).parameters if name != "self"]
    return names if options is None else [*names[: names.index("options")], *options.__annotations__]


@pytest.mark.parametrize("method", _DOCUMENTED, ids=lambda method: f"{method.__module__}.{method.__qualname__}")
def test_option_docs_of_methods_have_every_parameter(method: Callable[..., Any]) -> None:
    assert described(method) == parameters_of(method, _OPTIONS.get(method.__name__))


@pytest.mark.parametrize("client", _CLIENTS, ids=("sync", "asyncio"))
def test_option_docs_of_clients_have_every_option(client: type) -> None:
    assert described(client) == parameters_of(client, _options.ClientOptions)


class Options:
    """Options.

    :param limit: number of messages,
        at least 1.
    :param unit: unit of the limit.
    """


def test_option_docs_keep_own_text_and_signature_order() -> None:
    @option_docs(Options)
    def method(unit: str, other: int, limit: int, undocumented: int) -> None:
        """Do it.

        :param limit: another number.
        :param other: another option.
        """

    assert method.__doc__ == (
        "Do it.\n\n:param unit: unit of the limit.\n:param other: another option.\n:param limit: another number."
    )


def test_option_docs_without_docstring_change_nothing() -> None:
    @option_docs(Options)
    def method(limit: int) -> None: ...

    assert method.__doc__ is None


def test_option_docs_of_keyword_options_come_last() -> None:
    class Keywords(TypedDict, total=False):
        limit: int

    @option_docs(Options, options=Keywords)
    def method(unit: str, **options: Unpack[Keywords]) -> None:
        """Do it."""

    assert described(method) == ["unit", "limit"]
