"""OpenTelemetry instruments: the statistics as metrics, named as the Java client names them (PIP-342).

Rules: opentelemetry is imported when a client with a meter provider is first used. All clients of one provider share
its instruments, since creating an instrument twice is an error there; the counts of closed producers and consumers stay
in the sums, since counters may not fall. Values are read when they are collected; rare events are recorded as they
happen: connections, lookups, dead letters, and the duration of each entry. What the provider raises then, such as an
exemplar filter's error, is logged and ends no work of the client. Collecting may happen in any thread.
"""

from __future__ import annotations

import os
import ssl
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pulsar_native._callback_errors import callback_errors
from pulsar_native._loggers import get_logger
from pulsar_native._version import __version__
from pulsar_native.config.base import require
from pulsar_native.engine.metrics.reports import StatsSource, consumer_counts, producer_counts
from pulsar_native.engine.metrics.statistics import Durations
from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.topic import TopicName

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.consumer import PartitionConsumer
    from pulsar_native.engine.producer.producer import PartitionProducer

_log = get_logger("pulsar_native.metrics")

_Attributes = tuple[tuple[str, str | int], ...]
_Count = Callable[[Any], int]
# Records a number with attributes.
_Record = Callable[..., None]

# Seconds; OpenTelemetry's default boundaries are made for milliseconds.
_BOUNDARIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_STATUS = ("success", "failed")

# name, unit, description, counter of one producer or consumer
_PRODUCER_COUNTERS = (
    ("producer.message.send.size", "By", "Bytes of messages sent", "bytes_sent"),
    ("producer.message.send.count", "{message}", "Messages the broker confirmed", "acks_received"),
    ("producer.message.send.failed", "{message}", "Messages that failed", "send_failed"),
)
_CONSUMER_COUNTERS = (
    ("consumer.message.received.count", "{message}", "Messages the application received", "msgs_received"),
    ("consumer.message.received.size", "By", "Bytes of messages the application received", "bytes_received"),
    ("consumer.message.ack", "{message}", "Messages whose acknowledgement was sent", "acks_sent"),
    ("consumer.message.nack", "{message}", "Messages that were refused", "negative_acks"),
    ("consumer.message.ack.timeout", "{message}", "Entries that were not acknowledged in time", "ack_timeouts"),
)


class Instruments:
    """The instruments of one meter provider, for all its clients. Thread-safe."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.metrics import Observation

        # Kept, so that no other provider gets its id.
        self._provider = provider
        self._observation = Observation
        self._lock = threading.Lock()
        self._cores: weakref.WeakSet[StatsSource] = weakref.WeakSet()
        # Counts of closed objects, by instrument and attributes.
        self._retired: dict[str, Counter[_Attributes]] = {}
        meter = provider.get_meter("pulsar_native", __version__)
        require(
            hasattr(meter, "create_histogram"),
            f"get_meter of meter_provider must return an OpenTelemetry Meter, not {type(meter).__name__}",
        )
        self._message_duration = _duration(
            meter, "producer.message.send.duration", "Time from sending a message (a batch's first) to its receipt"
        )
        self._rpc_duration = _duration(
            meter, "producer.rpc.send.duration", "Time from handing an entry to the connection to its receipt"
        )
        self._lookup_duration = _duration(meter, "lookup.duration", "Duration of a lookup, per attempt")
        self.connections = {
            name: _counter(meter, f"connection.{name}", "{connection}", text)
            for name, text in (
                ("opened", "Connections opened"),
                ("closed", "Connections closed"),
                ("failed", "Attempts to connect that failed"),
            )
        }
        self._dead_letters = _counter(
            meter, "consumer.message.dlq", "{message}", "Messages sent to the dead-letter topic"
        )
        for name, unit, text, count in _PRODUCER_COUNTERS:
            self._observe(
                meter.create_observable_counter, name, unit, text, self._producers, _of(producer_counts, count)
            )
        for name, unit, text, count in _CONSUMER_COUNTERS:
            self._observe(
                meter.create_observable_counter, name, unit, text, self._consumers, _of(consumer_counts, count)
            )
        for kind, live in (("producer", self._producers), ("consumer", self._consumers)):
            self._observe(meter.create_observable_counter, f"{kind}.opened", "{session}", f"{kind}s opened", live, _one)
            self._observe(
                meter.create_observable_counter, f"{kind}.closed", "{session}", f"{kind}s closed", live, _none
            )
        gauge = meter.create_observable_up_down_counter
        for name, unit, text, live, number in (
            ("producer.message.pending.count", "{message}", "Messages without receipt", self._producers, _pending),
            (
                "producer.message.pending.size",
                "By",
                "Bytes of messages without receipt",
                self._producers,
                _pending_bytes,
            ),
            (
                "consumer.receive_queue.count",
                "{message}",
                "Messages received and not dequeued",
                self._consumers,
                _queued,
            ),
            ("consumer.receive_queue.size", "By", "Bytes received and not dequeued", self._consumers, _queued_bytes),
        ):
            self._observe(gauge, name, unit, text, live, number)
        memory = ("By", "Bytes of pending messages and of received ones not dequeued")
        gauge("pulsar.client.memory.buffer.usage", [lambda _: self._memory("used")], *memory)
        gauge(
            "pulsar.client.memory.buffer.limit",
            [lambda _: self._memory("limit")],
            memory[0],
            "The limit of these bytes",
        )

    def _observe(
        self,
        create: Callable[..., Any],
        name: str,
        unit: str,
        text: str,
        live: Callable[[], Iterable[Any]],
        count: _Count,
    ) -> None:
        def collect(_options: object) -> list[Any]:
            with self._lock:
                sums = Counter(self._retired.get(name, ()))
                for each in live():
                    sums[attributes_of(each)] += count(each)
            return [self._observation(number, dict(key)) for key, number in sums.items()]

        create(f"pulsar.client.{name}", [collect], unit, text)

    def _memory(self, name: str) -> list[Any]:
        return [self._observation(sum(getattr(core.memory, name) for core in list(self._cores)))]

    def _producers(self) -> Iterator[PartitionProducer]:
        for core in list(self._cores):
            for producer in list(core.producers):
                yield from producer.children

    def _consumers(self) -> Iterator[PartitionConsumer]:
        for core in list(self._cores):
            for consumer in list(core.consumers):
                yield from consumer.children

    def clear_after_fork(self) -> None:
        """Have a lock that no thread holds, in a forked child."""
        self._lock = threading.Lock()

    def add(self, core: StatsSource) -> None:
        """Collect a client's metrics from now on, until it is garbage-collected."""
        self._cores.add(core)

    def durations_of(self, topic: TopicName) -> Durations:
        """Return the recorder of the duration of a topic's entries, and of failures."""
        names = dict(_topic_attributes(topic))
        outcomes = [{**names, "pulsar.response.status": status} for status in _STATUS]
        return Durations(
            message=lambda seconds, failed: self._message_duration(seconds, outcomes[failed]),
            rpc=lambda seconds, failed: self._rpc_duration(seconds, outcomes[failed]),
        )

    def attempt(self) -> ConnectionAttempt:
        """Return the recorder of one connection."""
        return ConnectionAttempt(self)

    def looked_up(self, kind: str, transport: str, seconds: float, *, failed: bool) -> None:
        """Record a lookup: topic, metadata, schema or list-topics, over binary or http."""
        attributes = {
            "pulsar.lookup.transport-type": transport,
            "pulsar.lookup.type": kind,
            "pulsar.response.status": _STATUS[failed],
        }
        self._lookup_duration(seconds, attributes)

    def dead_letter(self, topic: TopicName, subscription_name: str) -> None:
        """Count a message of a subscription that was sent to the dead-letter topic."""
        self._dead_letters(1, dict(_subscription_attributes(topic, subscription_name)))

    def retire(self, forget: Callable[[], None], closed: Iterable[PartitionProducer | PartitionConsumer]) -> None:
        """Keep the counts of producers or consumers while they are removed; `forget` removes them."""
        # Both under one lock, so that no collection counts them twice or not at all.
        with self._lock:
            for each in closed:
                key, kind = attributes_of(each), "consumer" if _is_consumer(each) else "producer"
                counts = consumer_counts(each) if _is_consumer(each) else producer_counts(each)  # type: ignore[arg-type]
                for name, _, _, count in _CONSUMER_COUNTERS if kind == "consumer" else _PRODUCER_COUNTERS:
                    self._retired.setdefault(name, Counter())[key] += counts[count]
                for name in (f"{kind}.opened", f"{kind}.closed"):
                    self._retired.setdefault(name, Counter())[key] += 1
            forget()


class ConnectionAttempt:
    """Recorder of one connection. What was opened is closed once, whether the handshake succeeded or not."""

    def __init__(self, instruments: Instruments) -> None:
        self._counters = instruments.connections
        self._was_opened = False

    def opened(self) -> None:
        """Record that the socket is connected."""
        self._was_opened = True
        self._counters["opened"](1)

    def failed(self, error: Exception) -> None:
        """Record that the attempt ended without a usable connection."""
        reached = self._was_opened or isinstance(error.__cause__, ssl.SSLError)
        self._counters["failed"](1, {"pulsar.failure.type": "handshake" if reached else "tcp-failed"})

    def closed(self) -> None:
        """Record the end of what was opened."""
        self._counters["closed"](1)


def _counter(meter: Any, name: str, unit: str, text: str) -> _Record:
    return _guarded(name, meter.create_counter(f"pulsar.client.{name}", unit, text).add)


def _duration(meter: Any, name: str, text: str) -> _Record:
    return _guarded(name, _histogram(meter, name, text).record)


def _guarded(name: str, record: _Record) -> _Record:
    """Return an instrument's function that raises nothing and logs its first exception."""
    has_failed = False

    def guarded(number: float, attributes: dict[str, Any] | None = None) -> None:
        nonlocal has_failed
        try:
            record(number, attributes)
        except callback_errors():
            if not has_failed:
                has_failed = True
                _log.exception("The meter provider failed to record pulsar.client.%s; later failures are ignored", name)

    return guarded


def _histogram(meter: Any, name: str, text: str) -> Any:
    named = (f"pulsar.client.{name}", "s", text)
    try:
        return meter.create_histogram(*named, explicit_bucket_boundaries_advisory=_BOUNDARIES)
    except TypeError:
        # Versions before 1.28 have no advisory boundaries.
        return meter.create_histogram(*named)


# By the id of the provider, which need not be hashable and lives as long as its process.
_instruments: dict[int, Instruments] = {}
_making = threading.Lock()


def _after_fork_in_child() -> None:
    # Other threads may have held the locks.
    global _making
    _making = threading.Lock()
    for each in _instruments.values():
        each.clear_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def instruments_of(provider: Any) -> Instruments:
    """Return the instruments of a meter provider, True for the process's.

    Raises `InvalidConfiguration` when opentelemetry is missing, or the provider fails.
    """
    try:
        from opentelemetry.metrics import get_meter_provider
    except ImportError as error:
        raise InvalidConfiguration(
            "meter_provider needs the package opentelemetry-api: pip install 'pulsar-native[opentelemetry]'"
        ) from error
    with _making:
        try:
            used = get_meter_provider() if provider is True else provider
            found = _instruments.get(id(used))
            if found is None:
                found = _instruments[id(used)] = Instruments(used)
        except PulsarException:
            raise
        except callback_errors() as error:
            raise InvalidConfiguration(
                f"meter_provider failed with {type(error).__name__} when its instruments were created"
            ) from error
        return found


def attributes_of(live: PartitionProducer | PartitionConsumer) -> _Attributes:
    """Return the attributes of a producer's or consumer's metrics."""
    if _is_consumer(live):
        return _subscription_attributes(live.topic, live.config.subscription_name)  # type: ignore[union-attr]
    return _topic_attributes(live.topic)


def _subscription_attributes(topic: TopicName, subscription_name: str) -> _Attributes:
    return (*_topic_attributes(topic), ("pulsar.subscription", subscription_name))


def _topic_attributes(topic: TopicName) -> _Attributes:
    base = topic.base
    names: _Attributes = (
        ("pulsar.tenant", base.tenant),
        ("pulsar.namespace", base.namespace),
        ("pulsar.topic", base.full),
    )
    return (*names, ("pulsar.partition", topic.partition)) if topic.is_partition else names


def _is_consumer(live: object) -> bool:
    return hasattr(live, "consumer_id")


def _of(counts: Callable[[Any], dict[str, int]], name: str) -> _Count:
    return lambda live: counts(live)[name]


def _one(_live: object) -> int:
    return 1


def _none(_live: object) -> int:
    return 0


def _pending(live: PartitionProducer) -> int:
    return live.core.pending_messages


def _pending_bytes(live: PartitionProducer) -> int:
    return live.core.pending_bytes


def _queued(live: PartitionConsumer) -> int:
    return live.queued_messages()


def _queued_bytes(live: PartitionConsumer) -> int:
    return live.queued_bytes()
