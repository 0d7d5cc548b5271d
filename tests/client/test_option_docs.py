"""Descriptions of options on the methods of both APIs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_native
import pulsar_native.asyncio
from pulsar_native._option_docs import option_docs

_CLIENTS = (pulsar_native.Client, pulsar_native.asyncio.Client)
_DOCUMENTED: list[Callable[..., Any]] = [
    *(getattr(client, name) for client in _CLIENTS for name in ("create_producer", "subscribe", "create_reader")),
    *(client.create_table_view for client in _CLIENTS),
    *(producer.send for producer in (pulsar_native.Producer, pulsar_native.asyncio.Producer)),
    pulsar_native.Producer.send_async,
    pulsar_native.asyncio.Producer.enqueue,
]


def described(documented: Any) -> list[str]:
    """Return the names of the parameters that a docstring describes, in their order."""
    return re.findall(r"^:param (\w+): \S", inspect.getdoc(documented) or "", re.MULTILINE)


@pytest.mark.parametrize("method", _DOCUMENTED, ids=lambda method: f"{method.__module__}.{method.__qualname__}")
def test_option_docs_of_methods_have_every_parameter(method: Callable[..., Any]) -> None:
    parameters = [name for name in inspect.signature(method).parameters if name != "self"]
    assert described(method) == parameters


def test_option_docs_of_sync_client_have_every_option() -> None:
    parameters = list(inspect.signature(pulsar_native.Client).parameters)
    assert described(pulsar_native.Client) == parameters


def test_option_docs_of_asyncio_client_have_every_option() -> None:
    options = inspect.signature(pulsar_native.Client).parameters
    assert set(described(pulsar_native.asyncio.Client)) == {*options, "description"}


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
