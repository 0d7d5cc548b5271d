"""Messages that must still be there: proof that an empty load lost none, and the subscription that holds them.

A broker removes what no subscription holds and no retention keeps, by default at once, and a whole topic without
subscription after a minute. So no rows may mean that nothing was published, or that everything is gone: what proves
the first is a message from before the interval, a retention that reaches back over it, or, behind an earlier load, the
last message that load read. Blocking; for the driver.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pulsar_native import ConsumerType, InitialPosition
from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import PulsarException
from pulsar_native.jobs.interval import iso
from pyspark_pulsar.broker import Broker, admin_client
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.manifest import Delivered
from pyspark_pulsar.offsets import Found, Range
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position

_MINUTE_MS = 60_000


def check_empty(
    options: ReadOptions, ranges: Sequence[Range], *, is_behind: bool, subscription: str | None = None
) -> None:
    """Raise `DataLoss` for the first topic partition that may have held messages of the interval.

    `is_behind` says that the ranges begin behind an earlier load, else at the starting time of the options. A partition
    without any message counts as never used where an earlier load or a subscription of the load's own has held the
    topic, and another partition shows that it has.
    """
    unused: list[tuple[Range, int | None]] = []
    shown = False
    with Broker(options) as broker:
        admin = _admin(options)
        try:
            for item in ranges:
                start = None if is_behind else options.starting_time
                with broker.probe(item.topic) as probe:
                    last, first = probe.last(), probe.first()
                if _is_shown(item, start, last, first):
                    shown = True
                elif not _is_proven(admin, item, start):
                    if first is not None or not (is_behind or subscription):
                        raise DataLoss(_unproven(item, start, admin), topic=item.topic)
                    unused.append((item, start))
            if unused and not shown:
                raise DataLoss(_unproven(*unused[0], admin), topic=unused[0][0].topic)
        finally:
            if admin is not None:
                admin.close()


def _is_shown(item: Range, start: int | None, last: Position | None, first: Found | None) -> bool:
    """Return whether a message from before the start, or the last one that was read, is still there."""
    if start is not None:
        return first is not None and first.publish_time <= start
    return last is not None and last.after_entry <= item.start


def _admin(options: ReadOptions) -> AdminClient | None:
    if options.admin_url is None:
        return None
    return admin_client(options, options.credentials.resolve() if options.credentials is not None else None)


def _is_proven(admin: AdminClient | None, item: Range, start: int | None) -> bool:
    """Return whether the admin interface shows that no message from the start on can have been removed."""
    if admin is None:
        return False
    try:
        minutes, megabytes = admin.get_applied_retention(item.topic)
        if megabytes < 0 and (minutes < 0 or (start is not None and start >= _now() - minutes * _MINUTE_MS)):
            return True
        return start is None and _nothing_behind(admin.internal_stats(item.topic)["lastConfirmedEntry"], item.start)
    except (PulsarException, KeyError):
        # Without the right to ask there is no proof.
        return False


def _now() -> int:
    return int(time.time() * 1000)


def _nothing_behind(last_entry: str, start: Position) -> bool:
    ledger, _, entry = last_entry.partition(":")
    return not entry.startswith("-") and Position(int(ledger), int(entry)).after_entry == start.entry_start


def _unproven(item: Range, start: int | None, admin: AdminClient | None) -> str:
    since = f"behind {item.start}" if start is None else f"from before {iso(start)}"
    kept = "the connection names no admin URL to ask for the retention" if admin is None else "its retention is shorter"
    return (
        f"No rows, and nothing shows that none were lost: no message {since} is left in the topic and {kept}. The "
        "broker removes what no subscription holds, and a topic without subscriptions after a minute. Set a retention "
        "for the namespace, let the load keep a subscription (subscription=NAME), or say allow_empty=true where this "
        "is fine"
    )


def hold(options: ReadOptions, subscription: str) -> None:
    """Make sure that a durable subscription holds the topics' messages; a new one holds what is there already."""
    with Broker(options) as broker:
        for topic in broker.topics():
            broker.client.get_partition_count(topic)  # a topic that is not there is not created
            broker.client.subscribe(
                topic,
                subscription,
                consumer_type=ConsumerType.Failover,
                initial_position=InitialPosition.Earliest,
                receiver_queue_size=1,
            ).close()


def advance(
    options: ReadOptions, subscription: str, ranges: Sequence[Range], delivered: Mapping[str, Delivered]
) -> list[str]:
    """Let go of what has been loaded but for the last message of each partition, which shows that none was lost.

    Returns the partitions whose subscription was moved. What is behind the end of the interval stays, and so do, where
    the end is a time, the messages within the slack before it.
    """
    moved = []
    with Broker(options) as broker:
        for item in ranges:
            loaded = delivered.get(item.topic)
            if loaded is None:
                continue
            keep = min(loaded.last.entry_start, _before_slack(broker, options, item))
            if keep.entry < 1:
                continue
            consumer = broker.client.subscribe(
                item.topic, subscription, consumer_type=ConsumerType.Failover, receiver_queue_size=1
            )
            consumer.acknowledge_cumulative(Position(keep.ledger, keep.entry - 1).message_id(item.partition))
            consumer.close()
            moved.append(item.topic)
    return moved


def _before_slack(broker: Broker, options: ReadOptions, item: Range) -> Position:
    """Return the entry before which everything belongs to this interval or an earlier one."""
    if options.ending_time is None:
        return item.end
    with broker.probe(item.topic) as probe:
        found = probe.first_at(options.ending_time - options.time_slack_ms)
    return item.end if found is None else min(found.position.entry_start, item.end)
