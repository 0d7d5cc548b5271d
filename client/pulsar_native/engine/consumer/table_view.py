"""Table of the latest value of each key of a topic, kept up to date; the core of both APIs' table views.

Rules: a message without value removes its key, and so does an empty one, as in the Java client; a message without a key
is ignored. Changes are applied, and listeners called, one at a time and in the order of each partition; a listener
registered with `for_each_and_listen` misses no change and receives none twice. Reading is thread-safe and never blocks.
A value of a type that can be changed is decoded at each access, as by the official client: a caller's changes are in
its own object only.
"""

from __future__ import annotations

import datetime
import decimal
import threading
import uuid
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar, overload

from pulsar_native._callback_errors import callback_errors
from pulsar_native._loggers import get_logger
from pulsar_native._type_vars import T_co
from pulsar_native.config.base import check_function
from pulsar_native.engine.loop import check_generation, generation
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message import KeyedMessage, Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema import SchemaType

_log = get_logger("pulsar_native.table_view")

Action = Callable[[str, Any], Any]
"""Called with a key and its value; None (b"" under the schema of bytes) means that the key was removed."""

D = TypeVar("D")

_Position = tuple[int, int, int]

# Types of values that all callers share, since nobody can change them.
_IMMUTABLE = frozenset(
    {
        bytes,
        str,
        int,
        float,
        bool,
        datetime.date,
        datetime.datetime,
        datetime.time,
        datetime.timedelta,
        decimal.Decimal,
        uuid.UUID,
    }
)


class _Encoded:
    """Value of a message, to be decoded at each access. Without the entry, which may be a large batch."""

    __slots__ = ("_decoder", "_parts", "_version")

    def __init__(self, message: Message) -> None:
        self._decoder = message.entry.schema
        self._version = message.entry.schema_version
        self._parts = message._parts() if isinstance(message, KeyedMessage) else message.data()

    def decode(self) -> Any:
        if isinstance(self._parts, tuple):
            return self._decoder.decode_separated(*self._parts, self._version)
        return self._decoder.decode(self._parts, self._version)


def _decoded(kept: Any) -> Any:
    """Return the value of what a table has for a key."""
    return kept.decode() if type(kept) is _Encoded else kept


class Table:
    """Keys with their values, and listeners. Thread-safe.

    Listeners receive a removal as None, under the schema of bytes as b"", like those of the official client.
    """

    def __init__(self, schema_type: SchemaType) -> None:
        self._removed = b"" if schema_type is SchemaType.BYTES else None
        # Values of immutable types, and `_Encoded` ones.
        self.values: dict[str, Any] = {}
        self._listeners: list[Action] = []
        # Held while listeners are called, which keeps their calls in order. They may call back from the same thread.
        self._telling = threading.RLock()
        self._generation = generation()
        self._reached: dict[str, _Position] = {}
        self._told_of_missing_key = False
        # Called by the applying thread after every message; used to wait until the table has caught up.
        self.waiters: list[Callable[[], None]] = []

    def apply(self, message: Message) -> None:
        """Apply a message; errors of listeners are logged."""
        with self._telling:
            if message.has_key():
                self._set(message)
            elif not self._told_of_missing_key:
                self._told_of_missing_key = True
                _log.warning("Passing over messages without a key, such as %s", message.message_id())
            entry = message.entry
            self._reached[entry.topic] = (entry.ledger_id, entry.entry_id, message.batch_index)
        for wake in list(self.waiters):
            wake()

    def _set(self, message: Message) -> None:
        key = message.partition_key()
        value = None
        # The broker's compaction treats an empty payload as a removal.
        if len(message) and not message.has_null_value():
            try:
                value = message.value()
            except callback_errors():
                _log.exception("The value of key %r cannot be read; the one before stays", key)
                return
        kept: Any
        if value is None:
            self.values.pop(key, None)
            kept = value = self._removed
        else:
            self.values[key] = kept = value if type(value) in _IMMUTABLE else _Encoded(message)
        # Without those that one of them adds, which may have been called with the change already.
        for number, listener in enumerate(tuple(self._listeners)):
            # The first one is given what was decoded above.
            _call(listener, key, kept if number else value)

    def for_each(self, action: Action) -> None:
        """Call `action` for every key; its exceptions propagate."""
        check_function("callback", action)
        for key, kept in dict(self.values).items():
            action(key, _decoded(kept))

    def listen(self, action: Action) -> None:
        """Call `action` for every change from now on."""
        check_function("callback", action)
        check_generation(self._generation)
        with self._telling:
            self._listeners.append(action)

    def for_each_and_listen(self, action: Action) -> None:
        """Call `action` for every key, then for every change."""
        check_generation(self._generation)
        with self._telling:
            self.for_each(action)
            self._listeners.append(action)

    def is_behind(self, ends: Iterable[MessageId]) -> bool:
        """Return True if messages up to these ids, one per partition, are still to be applied."""
        return any(end.entry_id() >= 0 and self._is_behind(end) for end in ends)

    def _is_behind(self, end: MessageId) -> bool:
        reached = self._reached.get(end.topic_name() or "")
        if reached is None:
            return True
        here = (end.ledger_id(), end.entry_id())
        return reached[:2] < here or (reached[:2] == here and reached[2] < end.batch_index())


def _call(listener: Action, key: str, kept: Any) -> None:
    try:
        listener(key, _decoded(kept))
    except callback_errors():
        _log.exception("A listener of the table view failed for key %r", key)


class TableMapping(Mapping[str, T_co]):
    """Read-only mapping over a table; an iteration covers the keys present at its start.

    Values are the caller's own: those of types that can be changed are decoded at each access.
    """

    _table: Table

    def __getitem__(self, key: str) -> T_co:
        found: T_co = _decoded(self._table.values[key])
        return found

    @overload
    def get(self, key: str | bytes) -> T_co | None: ...
    @overload
    def get(self, key: str | bytes, default: D) -> T_co | D: ...
    def get(self, key: str | bytes, default: Any = None) -> Any:
        """Return the newest value of a key. Does not block; raises `InvalidConfiguration` for a key that is no text.

        :param key: the key; bytes stand for their text in UTF-8, as in the official client.
        :param default: result for a key that is not in the table. Default None.
        """
        if isinstance(key, bytes):
            key = key.decode("utf-8", "surrogateescape")
        elif not isinstance(key, str):
            raise InvalidConfiguration(f"The key of a table view must be a str, not {type(key).__name__}")
        return _decoded(self._table.values.get(key, default))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._table.values))

    def __len__(self) -> int:
        return len(self._table.values)

    def __contains__(self, key: object) -> bool:
        return key in self._table.values

    def _shown(self, topic: str, subscription: str | None) -> str:
        named = "" if subscription is None else f", subscription={subscription}"
        return f"TableView(topic={topic}{named})"

    def snapshot(self) -> dict[str, T_co]:
        """Return a copy of all keys and values."""
        return {key: _decoded(kept) for key, kept in dict(self._table.values).items()}

    def keys(self) -> KeysView[str]:
        """Return a view of the current keys."""
        return dict(self._table.values).keys()

    def items(self) -> ItemsView[str, T_co]:
        """Return a view of the current keys and values."""
        return self.snapshot().items()

    def values(self) -> ValuesView[T_co]:
        """Return a view of the current values."""
        return self.snapshot().values()

    def for_each(self, callback: Callable[[str, T_co], Any]) -> None:
        """Call `callback` with every key and its value, in the calling thread; its exceptions propagate.

        Raises `InvalidConfiguration` for what is no function, and for a coroutine function.
        """
        self._table.for_each(callback)

    def listen(self, callback: Callable[[str, T_co | None], Any]) -> None:
        """Call with every key that changes from now on, and its new value; None, b"" under the schema of bytes,
        when it was removed.

        One call at a time, from a listener thread (on the loop in the asyncio API). Exceptions are logged. Raises
        `InvalidConfiguration` for what is no function, and for a coroutine function.
        """
        self._table.listen(callback)

    def for_each_and_listen(self, callback: Callable[[str, T_co | None], Any]) -> None:
        """Call `callback` with every key and its value, then as `listen` with every change; no change is missed in
        between. Raises as `listen` does.
        """
        self._table.for_each_and_listen(callback)
