"""Chains of interceptors: call them in order and isolate their exceptions.

Rules: a chain references the producer, consumer or reader weakly, since that references the chain.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_native._callback_errors import callback_errors
from pulsar_native._loggers import get_logger
from pulsar_native._type_names import type_name
from pulsar_native.config.base import check_no_coroutine
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.message_id import MessageId

_log = get_logger("pulsar_native.interceptor")

# Methods that are called within a call of the application, which gets what ends more than their own work.
_IN_CALLS = frozenset({"eligible", "before_send", "before_consume", "before_read"})


def _ends_nothing_else(name: str, error: BaseException) -> bool:
    """Return True if what a method raised ends its own work only.

    On an application's loop the other methods are called by the engine: what left them would only be logged by asyncio,
    after a send had lost its outcome or a message its place. Ctrl-C ends the loop.
    """
    if isinstance(error, callback_errors()):
        return True
    return name not in _IN_CALLS and not isinstance(error, KeyboardInterrupt) and _is_on_loop()


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Chain:
    """Interceptors of one live object, called in order."""

    def __init__(self, interceptors: Any, kind: type) -> None:
        if not isinstance(interceptors, Sequence):
            hint = "; write [interceptor] for a single one" if isinstance(interceptors, kind) else ""
            given = type_name(interceptors)
            raise InvalidConfiguration(f"interceptors must be a list of {kind.__name__} objects, not {given}{hint}")
        for each in interceptors:
            if not isinstance(each, kind):
                raise InvalidConfiguration(f"interceptors must be {kind.__name__} objects, not {type(each).__name__}")
            for name in vars(kind):
                if not name.startswith("_"):
                    check_no_coroutine(f"{type(each).__name__}.{name}", getattr(each, name))
        self.interceptors = tuple(interceptors)
        self._live: Callable[[], Any] = lambda: None
        self._closed = False
        self.is_bound = False
        self.on_bound: Callable[[], None] | None = None

    def bind(self, live: Any) -> None:
        """Set the producer, consumer or reader that interceptors receive as an argument."""
        self._live = weakref.ref(live)
        self.is_bound = True
        if self.on_bound is not None:
            self.on_bound()

    def notify(self, name: str, *arguments: Any) -> None:
        """Call a method of each with the live object; exceptions are logged."""
        live = self._live()
        for each in self.interceptors:
            self._guarded(each, name, live, *arguments)

    def notify_plain(self, name: str, *arguments: Any) -> None:
        """Call a method of each without the live object; exceptions are logged."""
        for each in self.interceptors:
            self._guarded(each, name, *arguments)

    def pass_on(self, name: str, kind: type, item: Any) -> Any:
        """Pass an item through a method of each, in order; one that raises or returns another type is skipped."""
        live = self._live()
        for each in self.interceptors:
            found = self._guarded(each, name, live, item)
            if isinstance(found, kind):
                item = found
        return item

    def close(self) -> None:
        """Call `close` of each, once."""
        if not self._closed:
            self._closed = True
            self.notify_plain("close")

    def _guarded(self, interceptor: Any, name: str, *arguments: Any) -> Any:
        try:
            return getattr(interceptor, name)(*arguments)
        except BaseException as error:
            if not _ends_nothing_else(name, error):
                raise
            _log.exception("The interceptor %s failed in %s", type(interceptor).__name__, name)
            return None


class ProducerChain(_Chain):
    """Interceptor chain of a producer."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor], encode: Callable[[OutgoingMessage], bytes]) -> None:
        super().__init__(interceptors, ProducerInterceptor)
        # Encoder of a message's optional fields, called after the interceptors.
        self.encode = encode

    def before_send(self, message: OutgoingMessage) -> tuple[OutgoingMessage, list[ProducerInterceptor]]:
        """Return the message to send, and the interceptors to notify of its outcome."""
        live = self._live()
        caring = []
        for each in self.interceptors:
            if not self._guarded(each, "eligible", message):
                continue
            caring.append(each)
            found = self._guarded(each, "before_send", live, message)
            if isinstance(found, OutgoingMessage):
                message = found
        return message, caring

    def on_receipt(
        self,
        caring: list[ProducerInterceptor],
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: Exception | None,
    ) -> None:
        """Notify interceptors of a message's outcome."""
        live = self._live()
        for each in caring:
            self._guarded(each, "on_send_acknowledgement", live, message, message_id, error)


class ConsumerChain(_Chain):
    """Interceptor chain of a consumer or reader."""

    def __init__(
        self, interceptors: Sequence[ConsumerInterceptor] | Sequence[ReaderInterceptor], *, reads: bool
    ) -> None:
        super().__init__(interceptors, ReaderInterceptor if reads else ConsumerInterceptor)
        self._reads = reads
        # Messages are decoded on arrival only for interceptors that implement `on_arrival`.
        self.sees_arrival = any(
            isinstance(each, ConsumerInterceptor) and type(each).on_arrival is not ConsumerInterceptor.on_arrival
            for each in interceptors
        )

    def arriving(self, messages: list[Message]) -> list[Message]:
        """Return the messages to queue."""
        return [self.pass_on("on_arrival", Message, message) for message in messages]

    def arrived(self, message: Message) -> Message:
        """Return the message to return from receive."""
        found: Message = self.pass_on("before_read" if self._reads else "before_consume", Message, message)
        return found

    def said(self, name: str, *arguments: Any) -> None:
        """Notify interceptors of an acknowledgement or redelivery; readers have none."""
        if not self._reads:
            self.notify(name, *arguments)
