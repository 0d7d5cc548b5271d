"""The newest value of every key of a topic, kept up to date: what both APIs' table views hold.

Rules: a message without value removes its key, and so does an empty one, as in the Java client;
a message without a key is passed over. Changes are applied, and listeners told, one at a time and in the order of
each partition; whoever is told of all there is and of what follows misses nothing and hears nothing twice. Reading is
thread-safe and waits for nobody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from pulsar_native.message import Message
from pulsar_native.message_id import MessageId

_log = logging.getLogger("pulsar_native.table_view")

Action = Callable[[str, Any], Any]
"""Called with a key and its value; None as the value tells that the key was removed."""

_Place = tuple[int, int, int]


class Table:
    """Keys with their values, and who listens. Thread-safe."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._listeners: list[Action] = []
        # Held while the application is called: what it is told keeps its order. It may call back from the same thread.
        self._telling = threading.RLock()
        self._reached: dict[str, _Place] = {}
        self._told_of_missing_key = False
        # Called, by whoever applies, after every message: who waits until the table has caught up.
        self.waiters: list[Callable[[], None]] = []

    def apply(self, message: Message) -> None:
        """Take a message; errors of listeners are logged."""
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
        # The empty payload is what the broker's compaction takes for a removal.
        if len(message) and not message.has_null_value():
            try:
                value = message.value()
            except Exception:
                _log.exception("The value of key %r cannot be read; the one before stays", key)
                return
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value
        for listener in self._listeners:
            _call(listener, key, value)

    def for_each(self, action: Action) -> None:
        """Call for every key; what the action raises comes through."""
        for key, value in dict(self.values).items():
            action(key, value)

    def listen(self, action: Action) -> None:
        """Call for every change from now on."""
        with self._telling:
            self._listeners.append(action)

    def for_each_and_listen(self, action: Action) -> None:
        """Call for every key, then for every change."""
        with self._telling:
            self.for_each(action)
            self._listeners.append(action)

    def is_behind(self, ends: Iterable[MessageId]) -> bool:
        """Return whether messages up to these ids, one a partition, are still to come."""
        return any(end.entry_id() >= 0 and self._is_behind(end) for end in ends)

    def _is_behind(self, end: MessageId) -> bool:
        reached = self._reached.get(end.topic_name() or "")
        if reached is None:
            return True
        here = (end.ledger_id(), end.entry_id())
        return reached[:2] < here or (reached[:2] == here and reached[2] < end.batch_index())


def _call(listener: Action, key: str, value: Any) -> None:
    try:
        listener(key, value)
    except Exception:
        _log.exception("A listener of the table view failed for key %r", key)


class TableMapping(Mapping[str, Any]):
    """A read-only mapping over a table; iterating goes over the keys there were at its beginning."""

    _table: Table

    def __getitem__(self, key: str) -> Any:
        return self._table.values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._table.values))

    def __len__(self) -> int:
        return len(self._table.values)

    def __contains__(self, key: object) -> bool:
        return key in self._table.values

    def snapshot(self) -> dict[str, Any]:
        """Return all keys and values as they are at this moment."""
        return dict(self._table.values)

    def keys(self) -> KeysView[str]:
        """Return the keys there are at this moment."""
        return self.snapshot().keys()

    def items(self) -> ItemsView[str, Any]:
        """Return the keys and values there are at this moment."""
        return self.snapshot().items()

    def values(self) -> ValuesView[Any]:
        """Return the values there are at this moment."""
        return self.snapshot().values()

    def for_each(self, callback: Action) -> None:
        """Call with every key and its value, in the calling thread."""
        self._table.for_each(callback)

    def listen(self, callback: Action) -> None:
        """Call with every key that changes from now on, and its new value; None when it was removed.

        One call at a time, from a listener thread (on the loop in the asyncio API). What it raises is logged.
        """
        self._table.listen(callback)

    def for_each_and_listen(self, callback: Action) -> None:
        """Call with every key and its value, then as `listen` does with every change; nothing falls in between."""
        self._table.for_each_and_listen(callback)
