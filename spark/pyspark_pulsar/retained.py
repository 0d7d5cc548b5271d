"""Retention checks: proof that an empty load lost no messages, and the subscription that keeps them.

A broker removes messages without a subscription or retention, by default at once, and a topic without a subscription
after a minute. So a load without rows may mean that nothing was published or that everything is gone. Proof of the
former is a message from before the interval, a retention that covers it, or, after an earlier load, the last message
that load read. Blocks; for the driver.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pulsar_native import ConsumerType, InitialPosition
from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import PulsarException, TopicNotFound
from pulsar_native.jobs.interval import iso
from pyspark_pulsar.broker import Broker, admin_client, last_entry
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.manifest import Delivered
from pyspark_pulsar.offsets import Found, Range
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position

_MINUTE_MS = 60_000


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
                        raise DataLoss(_unproven(item, start, admin), topic=item.topic)
                    unused.append((item, start))
            if unused and not shown:
                raise DataLoss(_unproven(*unused[0], admin), topic=unused[0][0].topic)
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
    options: ReadOptions, subscription: str, ranges: Sequence[Range], delivered: Mapping[str, Delivered]
) -> list[str]:
    """Acknowledge the loaded messages except the last one of each partition, which proves that none was lost.

    Returns the partitions whose subscription was moved. Messages after the end of the interval stay, and those within
    the slack before an end that is a time.
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
    """Return the entry before which all messages belong to this interval or an earlier one."""
    if options.ending_time is None:
        return item.end
    with broker.probe(item.topic) as probe:
        found = probe.first_at(options.ending_time - options.time_slack_ms)
    return item.end if found is None else min(found.position.entry_start, item.end)
