"""Retention checks: proof that an empty load lost no messages, and the subscription that keeps them.

A broker removes messages without a subscription or retention, by default at once, and a topic without a subscription
after a minute. So a load without rows may mean that nothing was published or that everything is gone. Proof of the
former is a message from before the interval, a retention that covers it, or, after an earlier load, the last message
that load read. Blocks; for the driver.

The subscription never passes a message that no load has read. Loads of intervals may run in any order, and one that
failed runs again later, so each interval that was loaded is noted in the subscription's properties, which need the
admin interface. One cumulative acknowledgement then reaches as far as the noted intervals go without a gap that has
messages. Individual acknowledgements would need the entries of all ledgers, one acknowledgement per entry, and could
not tell the last message of a load, which stays as proof, from one that was never loaded.

Messages arrive up to the slack (timeSlackMs) out of order, so that a message of a gap may be behind one of the interval
after it. A gap counts as empty only if no message published in it is found between the slack before its start and the
slack behind its end.

A plan from before the end of its interval and the slack lacks the messages of the interval that arrive later. Its end
is noted with the interval: what was published in the interval and stands behind that end was not loaded. The messages
of the interval are held, so that it can be loaded again, until a load that was planned after the slack finds none of
those.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from pulsar_native import ConsumerType, InitialPosition
from pulsar_native.admin import AdminClient, cursor_of
from pulsar_native.exceptions import AuthorizationError, PulsarException, SubscriptionNotFound, TopicNotFound
from pulsar_native.jobs.interval import iso
from pyspark_pulsar.broker import Broker, admin_client, last_entry
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.manifest import Delivered
from pyspark_pulsar.offsets import Found, Probe, Range, end_at
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position

_MINUTE_MS = 60_000
# Property of the subscription: the loaded intervals that it may still hold messages of, [[start, end], …] in ms, with
# the end of the plan, [start, end, "ledger:entry"], where more messages of the interval may arrive behind it.
_LOADED = "pyspark_pulsar.loaded"

_log = logging.getLogger("pyspark_pulsar")

# Publish times (ms) from the first one up to the second one, exclusive.
Interval = tuple[int, int]
# Loaded intervals whose plan was made before their end and the slack, each with the end of the plan's range.
Early = Mapping[Interval, Position]


def check_empty(
    options: ReadOptions, ranges: Sequence[Range], *, is_behind: bool, subscription: str | None = None
) -> None:
    """Raise `DataLoss` for the first topic partition that may have had messages of the interval.

    `is_behind`: the ranges begin after an earlier load, else at the starting time of the options. A partition without
    any message counts as unused if an earlier load or the load's own subscription has kept the topic, and another
    partition shows that.
    """
    unused: list[tuple[Range, int | None]] = []
    shown = False
    with Broker(options) as broker:
        admin = _admin(options)
        try:
            for item in ranges:
                start = None if is_behind else options.starting_time
                last, first = _ends(broker, item)
                if _is_shown(item, start, last, first):
                    shown = True
                elif not _is_proven(admin, item, start):
                    if first is not None or not (is_behind or subscription):
                        raise DataLoss(_unproven(item, start, admin, subscription), topic=item.topic)
                    unused.append((item, start))
            if unused and not shown:
                raise DataLoss(_unproven(*unused[0], admin, subscription), topic=unused[0][0].topic)
        finally:
            if admin is not None:
                admin.close()


def _ends(broker: Broker, item: Range) -> tuple[Position | None, Found | None]:
    """Return the last and the first message; raises `DataLoss` for a topic that had messages and is gone."""
    try:
        broker.partitions(item.topic)  # A reader of a topic that is gone would create it.
    except TopicNotFound as error:
        if item.is_empty:
            return None, None
        raise DataLoss(
            f"No rows, since {item.topic} was deleted after its messages were planned. Say allow_empty=true where "
            "this is fine",
            topic=item.topic,
        ) from error
    with broker.probe(item.topic) as probe:
        return probe.last(), probe.first()


def _is_shown(item: Range, start: int | None, last: Position | None, first: Found | None) -> bool:
    """Return True if a message from before the start, or the last one read, is still there."""
    if start is not None:
        return first is not None and first.publish_time <= start
    return last is not None and last.after_entry <= item.start


def _admin(options: ReadOptions) -> AdminClient | None:
    if options.admin_url is None:
        return None
    return admin_client(options, options.credentials.resolve() if options.credentials is not None else None)


def _is_proven(admin: AdminClient | None, item: Range, start: int | None) -> bool:
    """Return True if the admin interface shows that no message from the start on was removed."""
    if admin is None:
        return False
    try:
        minutes, megabytes = admin.get_applied_retention(item.topic)
        if start is not None:
            return megabytes < 0 and (minutes < 0 or start >= _now() - minutes * _MINUTE_MS)
        keeps_all, last = megabytes < 0 and minutes < 0, last_entry(admin, item.topic)
        if last is None or last.after_entry < item.start.entry_start:
            # A topic that holds less than was read was made again.
            return keeps_all and item.start.entry == 0
        return keeps_all or last.after_entry == item.start.entry_start
    except (PulsarException, KeyError):
        # Without permission there is no proof.
        return False


def _now() -> int:
    return int(time.time() * 1000)


def _unproven(item: Range, start: int | None, admin: AdminClient | None, subscription: str | None) -> str:
    since = f"behind {item.start}" if start is None else f"from before {iso(start)}"
    kept = "the connection names no admin URL to ask for the retention" if admin is None else "its retention is shorter"
    if subscription is None:
        advice = (
            "The broker removes what no subscription holds, and a topic without subscriptions after a minute. Set a "
            "retention for the namespace, let the load keep a subscription (subscription=NAME)"
        )
    else:
        advice = (
            f"The subscription {subscription} holds what was published since it was made, until it is loaded or the "
            "subscription is moved. To load older messages, or the same ones again, set a retention for the namespace"
        )
    return (
        f"No rows, and nothing shows that none were lost: no message {since} is left in the topic and {kept}. "
        f"{advice}, or say allow_empty=true where this is fine"
    )


def hold(options: ReadOptions, subscription: str) -> None:
    """Create the durable subscription of the topics unless it exists, at the earliest message."""
    with Broker(options) as broker:
        for topic in broker.topics():
            broker.client.get_partition_count(topic)  # A missing topic is not created.
            broker.client.subscribe(
                topic,
                subscription,
                consumer_type=ConsumerType.Failover,
                initial_position=InitialPosition.Earliest,
                receiver_queue_size=1,
            ).close()


def advance(
    options: ReadOptions,
    subscription: str,
    ranges: Sequence[Range],
    delivered: Mapping[str, Delivered],
    *,
    planned_at: datetime,
    in_order: bool,
) -> list[str]:
    """Acknowledge the loaded messages except the last one of each partition, which proves that none was lost.

    Returns the partitions whose subscription was moved. Messages after the end of the interval stay, and those within
    the slack before an end that is a time. `in_order`: the load begins where the one before it ended, so that nothing
    before it is still to be loaded. Else the subscription stays before the first message that no load has read, with a
    warning. `planned_at` is when the ranges were frozen: an interval that had not ended by then, and the slack after
    it, stays, as messages of it may still arrive.
    """
    moved = []
    with Broker(options) as broker, ExitStack() as held:
        admin = _admin(options)
        if admin is not None:
            held.enter_context(admin)
        cursor = _Cursor(options, subscription, broker, admin, planned_at)
        for item in ranges:
            loaded = delivered.get(item.topic)
            keep = cursor.end_of(item, loaded) if in_order and loaded is not None else None
            if not in_order:
                keep = cursor.reach(item, loaded)
            done = None if keep is None else cursor.entry_before(item.topic, keep)
            if done is None:
                continue
            consumer = broker.client.subscribe(
                item.topic, subscription, consumer_type=ConsumerType.Failover, receiver_queue_size=1
            )
            consumer.acknowledge_cumulative(done.message_id(item.partition))
            consumer.close()
            moved.append(item.topic)
    return moved


class _Cursor:
    """Limit of a move of the subscription, by partition: the first entry that stays unacknowledged."""

    def __init__(
        self, options: ReadOptions, subscription: str, broker: Broker, admin: AdminClient | None, planned_at: datetime
    ) -> None:
        self._options = options
        self._subscription = subscription
        self._broker = broker
        self._admin = admin
        self._planned_ms = planned_at.timestamp() * 1000

    def entry_before(self, topic: str, position: Position) -> Position | None:
        """Return the entry before that of a position; None if there is none, or only the admin interface knows it."""
        if position.entry > 0:
            return Position(position.ledger, position.entry - 1)
        if self._admin is None:
            return None
        before = [each for each in self._broker.ledgers(topic) if each.id < position.ledger and each.entries]
        return Position(before[-1].id, before[-1].entries - 1) if before else None

    def end_of(self, item: Range, loaded: Delivered | None) -> Position | None:
        """Return the last entry of this load, or before it the first one that the load of the next interval reads."""
        edge = _before_slack(self._broker, self._options, item)
        return self.entry_before(item.topic, edge) if loaded is None else min(loaded.last.entry_start, edge)

    def reach(self, item: Range, loaded: Delivered | None) -> Position | None:
        """Return the last entry of the loaded intervals that follow the subscription's position; None to stay."""
        begins_at_first = self._options.starting_time is None and self._options.starting_offsets.default == "earliest"
        own = self._interval(begins_at_first)
        if begins_at_first and (own is None or self._admin is None):
            return None if loaded is None else self.end_of(item, loaded)
        if self._admin is None:
            self._warn(
                item, "without an admin URL (admin.url) it is not known whether all before the interval was loaded"
            )
            return None
        try:
            held = self._first_held(self._admin, item.topic)
            if held is None:
                return None
            if own is not None:
                return self._reach_by_time(self._admin, item, loaded, held, own)
        except AuthorizationError as error:
            self._warn(item, f"the admin interface refuses to say what it holds ({error.message})")
            return None
        start = self._options.starting_time
        if held.position >= item.start and (start is None or held.publish_time >= start):
            return self.end_of(item, loaded)
        self._warn(item, f"it holds messages of {iso(held.publish_time)}, from before what was loaded")
        return None

    def _interval(self, begins_at_first: bool) -> Interval | None:
        start, end = 0 if begins_at_first else self._options.starting_time, self._options.ending_time
        return None if start is None or end is None else (start, end)

    def _reach_by_time(
        self, admin: AdminClient, item: Range, loaded: Delivered | None, held: Found, own: Interval
    ) -> Position | None:
        properties, slack = self._properties(admin, item.topic), self._options.time_slack_ms
        noted = properties.get(_LOADED, "[]")
        whole, early = with_own(noted, own, item.end if self._planned_ms < own[1] + slack else None)
        with self._broker.probe(item.topic) as probe:
            # The own one is for the next load to look at.
            late = {
                each: self._time_within(probe, item.topic, max(held.position, stop), each)
                for each, stop in early.items()
                if each != own
            }
            read = [each for each in early if late.get(each) is None]
            until, unread = loaded_until(
                held.publish_time,
                merged([*whole, *read]),
                lambda gap: self._time_within(probe, item.topic, held.position, gap),
            )
            whole = merged([*whole, *(each for each in read if self._planned_ms >= each[1] + slack)])
            early = {each: stop for each, stop in early.items() if not _is_within(each, whole)}
            # One of an earlier interval may have arrived behind the first held message: both differ from their
            # arrival by the slack at the most.
            notes = format_notes(whole, early, held.publish_time - 2 * slack)
            if notes != noted:
                self._note(admin, item.topic, {**properties, _LOADED: notes})
            if until is None or until < own[1]:
                # Behind the slack there is none of them, and what is before that was loaded now.
                reset = own[0] + slack if own[0] + slack < own[1] else own[0]
                first = next((at for at in (*late.values(), unread) if at is not None), held.publish_time)
                self._warn(
                    item,
                    f"it holds messages of {iso(first)}, which no load with this subscription has read. Load that "
                    f"interval, or reset the subscription to {iso(reset)} if nobody needs them",
                )
            if until is None:
                return None
            until = min([until, *(start for start, _ in early)])
            keep = self.end_of(item, loaded) if until == own[1] else self._last_before(probe, item.topic, until - slack)
            return None if keep is None or keep <= held.position else keep

    def _last_before(self, probe: Probe, topic: str, time_ms: int) -> Position | None:
        """Return the last entry before a time as the broker searches it; None if there is none, or it is not known."""
        found = probe.first_at(time_ms)
        if found is not None:
            return self.entry_before(topic, found.position)
        last = probe.last()
        return None if last is None else last.entry_start

    def _time_within(self, probe: Probe, topic: str, begin: Position, gap: Interval) -> int | None:
        """Return the publish time of a message from a position on that was published in a gap, None if there is none.

        Blocks: reads the messages around both ends of the gap, as far as the slack, up to the first one of the gap.
        """
        start, end = gap
        if start >= end:
            return None
        if start > 0:
            found = probe.first_at(start)
            if found is not None and found.position >= begin and start <= found.publish_time < end:
                return found.publish_time
            found = probe.first_at(start - self._options.time_slack_ms)
            if found is None:
                return None
            begin = max(begin, found.position)
        last = probe.last()  # First: later messages are not read.
        found = end_at(end, self._options.time_slack_ms, probe)
        stop = found.position if found is not None else None if last is None else last.after_entry
        if stop is None or stop <= begin:
            return None
        reader = self._broker.reader(topic, begin.entry_start.message_id(), compacted=False, decrypts=False)
        try:
            while reader.has_message_available():
                message = reader.read_next(self._options.poll_timeout_ms)
                if Position.of_message(message.message_id()) >= stop:
                    return None
                if start <= message.publish_timestamp() < end:
                    return message.publish_timestamp()
            return None
        finally:
            reader.close()

    def _first_held(self, admin: AdminClient, topic: str) -> Found | None:
        """Return the first message behind the subscription's position, None if there is none."""
        cursor = cursor_of(admin.internal_stats(topic), self._subscription)
        if cursor is None:
            raise SubscriptionNotFound(f"there is no subscription {self._subscription!r}", topic=topic)
        ledger, _, entry = str(cursor["markDeletePosition"]).partition(":")
        start = Position(int(ledger), int(entry) + 1).message_id()
        reader = self._broker.reader(topic, start, queue_size=1, compacted=False, decrypts=False)
        try:
            if not reader.has_message_available():
                return None
            message = reader.read_next(self._options.poll_timeout_ms)
            return Found(Position.of_message(message.message_id()), message.publish_timestamp())
        finally:
            reader.close()

    def _properties(self, admin: AdminClient, topic: str) -> dict[str, str]:
        found: Mapping[str, Any] = admin.stats(topic)["subscriptions"][self._subscription]
        return dict(found.get("subscriptionProperties") or {})

    def _note(self, admin: AdminClient, topic: str, properties: Mapping[str, str]) -> None:
        """Replace the properties. Of two loads at once one may be lost: then more is held than needed."""
        admin.update_subscription_properties(topic, self._subscription, properties)

    def _warn(self, item: Range, reason: str) -> None:
        _log.warning("The subscription %s of %s stays behind: %s", self._subscription, item.topic, reason)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order, with those that touch or overlap as one."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def with_own(noted: str, own: Interval, stop: Position | None) -> tuple[list[Interval], Early]:
    """Return the noted intervals with that of a load: those that were loaded wholly, and the early ones.

    `stop` is the end of the plan's range if the load is an early one, else None. An early interval that was loaded
    wholly by another load is left out.
    """
    found = json.loads(noted)
    whole = merged([*((each[0], each[1]) for each in found if len(each) == 2), *([] if stop is not None else [own])])
    early = {(each[0], each[1]): Position.parse(each[2]) for each in found if len(each) > 2}
    if stop is not None:
        early[own] = stop
    return whole, {each: at for each, at in early.items() if not _is_within(each, whole)}


def format_notes(whole: Sequence[Interval], early: Early, after_ms: int) -> str:
    """Return the text that `with_own` reads, without the intervals that end at a time (ms) or before it."""
    notes: list[list[Any]] = [[*each] for each in whole]
    notes += [[*each, str(stop)] for each, stop in sorted(early.items())]
    return json.dumps([each for each in notes if each[1] > after_ms])


def _is_within(interval: Interval, loaded: Sequence[Interval]) -> bool:
    return any(start <= interval[0] and interval[1] <= end for start, end in loaded)


def loaded_until(
    time_ms: int, loaded: Sequence[Interval], first_within: Callable[[Interval], int | None]
) -> tuple[int | None, int | None]:
    """Return up to when all messages behind the subscription's position were loaded, and the time of one that was not.

    `time_ms` is the time of the first message there. The former is the end of the last interval before which no gap has
    messages, None if there is none; the latter is None if no gap has any. `loaded` is as `merged` returns it;
    `first_within` returns the time of a message in a gap, None for an empty one, and the gap before the first interval
    begins at 0.
    """
    if not any(start <= time_ms < end for start, end in loaded):
        return None, time_ms
    until: int | None = None
    for start, end in loaded:
        unread = first_within((until or 0, start))
        if unread is not None:
            return until, unread
        until = end
    return until, None


def _before_slack(broker: Broker, options: ReadOptions, item: Range) -> Position:
    """Return the entry before which all messages belong to this interval or an earlier one."""
    if options.ending_time is None:
        return item.end
    with broker.probe(item.topic) as probe:
        found = probe.first_at(options.ending_time - options.time_slack_ms)
    return item.end if found is None else min(found.position.entry_start, item.end)
