"""Filters of a query that a batch read applies itself, so that less is read.

Spark hands them over where its setting spark.sql.python.filterPushdown.enabled is on (Spark 4.1 and newer), and a read
with the option pushDownPredicate takes them; all of them must hold. Rules: a filter that is taken is applied exactly;
one that only narrows the range is handed back to Spark as well. A filter never makes a read fail that would succeed
without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pulsar_native import MessageId
from pulsar_native.exceptions import PulsarException
from pulsar_native.topic import TopicName
from pyspark_pulsar.offsets import Probe, Range, end_at
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position

if TYPE_CHECKING:
    import pyarrow

_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_Times = tuple[int | None, int | None]
# Behind the last publish time that the column can hold: later ones are null, which no comparison selects.
_BEHIND_LAST = ((1 << 63) - 1) // 1000 + 1


def pushes_filters() -> bool:
    """Return True in the process in which Spark hands filters over.

    In any other, a reader that takes filters is an error of Spark's, unless they are switched on.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _WORKER in sys.modules or getattr(main, "name", None) == _WORKER


@dataclass(frozen=True, slots=True)
class Pushed:
    """Filters that a read applies. Immutable and picklable.

    `publish_from` and `publish_until` are the publish times `[from, until)` in ms; `topics` are filters of names and
    numbers of topic partitions; `ids` the positions `[start, end)` of wanted messages by number of the partition, and
    `keys` the wanted keys with None for no key: both None for all.
    """

    publish_from: int | None = None
    publish_until: int | None = None
    topics: tuple[Any, ...] = ()
    ids: dict[int, tuple[Position, Position]] | None = field(default=None, hash=False)
    keys: frozenset[bytes | None] | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing is filtered."""
        return self == Pushed()

    def wants(self, topic: str) -> bool:
        """Return True if messages of the topic partition may be wanted."""
        partition = TopicName.parse(topic).partition
        values = {"__topic": topic, "__partition": partition}
        named = all(_holds(each, values[_column(each)]) for each in self.topics)
        return named and (self.ids is None or partition in self.ids)

    def within(self, options: ReadOptions) -> tuple[int | None, int | None]:
        """Return the publish times of a read, of its options and its filters together."""
        return _overlap((options.starting_time, options.ending_time), (self.publish_from, self.publish_until))

    def of_keys(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return the rows of the wanted keys; the batch has the column `__key` if `keys` is not None."""
        if self.keys is None:
            return batch
        import pyarrow as pa
        import pyarrow.compute as pc

        column = batch["__key"]
        named = pa.array([key for key in self.keys if key is not None], pa.binary())
        mask = pc.is_in(column, named)  # A null is in no list without null.
        return batch.filter(pc.or_(mask, column.is_null()) if None in self.keys else mask)


def push(filters: Iterable[Any]) -> tuple[Pushed, list[Any]]:
    """Return the filters that are applied, and those that Spark must apply. Pure."""
    pushed, rest = Pushed(), []
    for each in filters:
        taken, is_exact = _taken(pushed, each)
        pushed = taken or pushed
        if taken is None or not is_exact:
            rest.append(each)
    return pushed, rest


def _taken(pushed: Pushed, each: Any) -> tuple[Pushed | None, bool]:
    """Return the filters with another one, None if it is not taken; and whether it is applied exactly."""
    column = _column(each)
    if column in ("__topic", "__partition"):
        known = _is_known(each)
        return (replace(pushed, topics=(*pushed.topics, each)) if known else None), True
    if column == "__publishTime":
        return _with_time(pushed, each), _name(each) != "In"
    if column == "__key":
        return _with_keys(pushed, each), True
    if column == "__messageId":
        return _with_ids(pushed, each), False
    return None, False


def _name(each: Any) -> str:
    return type(each).__name__


def _column(each: Any) -> str:
    inner = each.child if _name(each) == "Not" else each
    attribute: Sequence[str] = getattr(inner, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


# ---- names and numbers of topic partitions, the same for all rows of a range ----------------------------------------

_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda value, wanted: value == wanted,
    "EqualNullSafe": lambda value, wanted: value == wanted,
    "GreaterThan": lambda value, wanted: value > wanted,
    "GreaterThanOrEqual": lambda value, wanted: value >= wanted,
    "LessThan": lambda value, wanted: value < wanted,
    "LessThanOrEqual": lambda value, wanted: value <= wanted,
    "In": lambda value, wanted: value in wanted,
    "StringStartsWith": lambda value, wanted: value.startswith(wanted),
    "StringEndsWith": lambda value, wanted: value.endswith(wanted),
    "StringContains": lambda value, wanted: wanted in value,
}


def _is_known(each: Any) -> bool:
    """Return True for a test of a text or a number; one with null has rules that are left to Spark."""
    inner = each.child if _name(each) == "Not" else each
    if _name(inner) in ("IsNull", "IsNotNull"):
        return True
    if _name(inner) not in _TESTS:
        return False
    kind = str if _column(each) == "__topic" else int
    values = inner.value if _name(inner) == "In" else (inner.value,)
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _holds(each: Any, value: Any) -> bool:
    if _name(each) == "Not":
        return not _holds(each.child, value)
    if _name(each) in ("IsNull", "IsNotNull"):
        return _name(each) == "IsNotNull"
    return _TESTS[_name(each)](value, each.value)


# ---- publish times -------------------------------------------------------------------------------------------------


def _with_time(pushed: Pushed, each: Any) -> Pushed | None:
    bounds = _times(each)
    if bounds is None:
        return None
    start, end = _overlap((pushed.publish_from, pushed.publish_until), bounds)
    return replace(pushed, publish_from=start, publish_until=end)


def _overlap(*intervals: _Times) -> _Times:
    """Return the times that are in all intervals `[start, end)`; None is no bound."""
    starts = [start for start, _ in intervals if start is not None]
    ends = [end for _, end in intervals if end is not None]
    return max(starts, default=None), min(ends, default=None)


def _times(each: Any) -> tuple[int | None, int] | None:
    """Return the publish times `[start, end)` in ms that a filter selects, None for another filter."""
    name = _name(each)
    if name == "IsNotNull":
        return None, _BEHIND_LAST
    if name == "In":
        found = [_micros(value) for value in each.value]
        known = [value for value in found if value is not None]
        # Null in a list selects nothing.
        return (min(known) // 1000, max(known) // 1000 + 1) if known and len(known) == len(found) else None
    micros = _micros(getattr(each, "value", None))
    if micros is None:
        return None
    at, is_between = divmod(micros, 1000)
    ceiling = at + 1 if is_between else at
    known_bounds: dict[str, tuple[int | None, int]] = {
        "GreaterThan": (at + 1, _BEHIND_LAST),
        "GreaterThanOrEqual": (ceiling, _BEHIND_LAST),
        "LessThan": (None, ceiling),
        "LessThanOrEqual": (None, at + 1),
        "EqualTo": (ceiling, at + 1),  # Empty between two milliseconds.
        "EqualNullSafe": (ceiling, at + 1),
    }
    return known_bounds.get(name)


def _micros(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND


# ---- keys and message ids ------------------------------------------------------------------------------------------


def _with_keys(pushed: Pushed, each: Any) -> Pushed | None:
    name = _name(each)
    keys: frozenset[bytes | None]
    if name == "IsNull":
        keys = frozenset((None,))
    elif name in ("EqualTo", "EqualNullSafe", "In"):
        values = each.value if name == "In" else (each.value,)
        if not all(isinstance(value, bytes | bytearray) for value in values):
            return None
        keys = frozenset(bytes(value) for value in values)
    else:
        return None
    return replace(pushed, keys=keys if pushed.keys is None else pushed.keys & keys)


def _with_ids(pushed: Pushed, each: Any) -> Pushed | None:
    if _name(each) not in ("EqualTo", "EqualNullSafe", "In"):
        return None
    values = each.value if _name(each) == "In" else (each.value,)
    found: dict[int, tuple[Position, Position]] = {}
    for value in values:
        try:
            message_id = MessageId.deserialize(bytes(value))
        except (PulsarException, TypeError, ValueError):
            return None  # Spark finds no row with it.
        first, behind = Position.of_message(message_id), _behind(message_id)
        known = found.get(message_id.partition(), (first, behind))
        found[message_id.partition()] = min(known[0], first), max(known[1], behind)
    if pushed.ids is not None:
        both = pushed.ids.keys() & found.keys()
        found = {
            at: (max(pushed.ids[at][0], found[at][0]), min(pushed.ids[at][1], found[at][1])) for at in sorted(both)
        }
    return replace(pushed, ids=found)


def _behind(message_id: MessageId) -> Position:
    """Return the position behind a message; its own one is that of its last chunk."""
    own = Position(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
    return own.after_entry if own.batch < 0 else own._replace(batch=own.batch + 1)


# ---- ranges --------------------------------------------------------------------------------------------------------


def narrow(item: Range, pushed: Pushed, slack: int, probe: Probe) -> Range:
    """Return a range without messages that no filter selects.

    Publish times use the broker's search, widened by the slack (ms) as those of the options. Blocks for a few requests
    if there is a publish time.
    """
    kept = _within_ids(item, pushed)
    if kept.is_empty or (pushed.publish_from is None and pushed.publish_until in (None, _BEHIND_LAST)):
        return kept
    return _within_times(kept, pushed, slack, probe)


def _within_ids(item: Range, pushed: Pushed) -> Range:
    if pushed.ids is None:
        return item
    first, behind = pushed.ids[item.partition]
    start, end = max(item.start, first), min(item.end, behind)
    return Range(item.topic, min(start, end), end)


def _within_times(item: Range, pushed: Pushed, slack: int, probe: Probe) -> Range:
    start, end = item.start, item.end
    if pushed.publish_from is not None:
        found = probe.first_at(pushed.publish_from - slack)
        start = end if found is None else max(start, found.position.entry_start)
    if start < end and pushed.publish_until not in (None, _BEHIND_LAST):
        assert pushed.publish_until is not None
        found = end_at(pushed.publish_until, slack, probe)
        end = end if found is None else min(end, found.position.entry_start)
    return Range(item.topic, min(start, end), end)
