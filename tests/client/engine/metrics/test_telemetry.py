"""Recorders of connections and lookups: none without a meter provider, and the failure attributes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.metrics import telemetry
from pulsar_native.engine.service_url_provider import ServiceUrlProvider
from pulsar_native.exceptions import ConnectError, InvalidConfiguration, PulsarException
from pulsar_native.topic import TopicName
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, not_found, swallow
from support.other_thread import OWN_ERRORS, in_other_thread
from support.until import until

Cores = Callable[..., ClientCore]
Points = Callable[[str], dict[tuple[str, ...], Any]]

TOPIC = TopicName.parse("t")


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> MeterProvider:
    return MeterProvider([reader])


@pytest.fixture
def points(reader: InMemoryMetricReader) -> Points:
    """Collect a metric's points by the values of their attributes, sorted by name."""

    def collect(name: str) -> dict[tuple[str, ...], Any]:
        data = reader.get_metrics_data()
        return {
            tuple(str(value) for _, value in sorted((point.attributes or {}).items())): getattr(
                point, "count", getattr(point, "value", None)
            )
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"pulsar.client.{name}"
            for point in metric.data.data_points
        }

    return collect


@pytest.mark.asyncio
async def test_telemetry_without_provider_no_recorder(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    await core.partition_count(TOPIC)
    assert core.pool.meter is None and core.lookup.meter is None
    (connection,) = core.pool.connections()
    assert connection._attempt is None


def test_telemetry_without_provider_not_imported() -> None:
    program = "import pulsar_native, sys; print([name for name in sys.modules if 'opentelemetry' in name])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=240).strip() == "[]"


@pytest.mark.asyncio
async def test_telemetry_connections_and_lookups(
    fake: FakeBroker, cores: Cores, provider: MeterProvider, points: Points
) -> None:
    core = cores(fake.url, meter_provider=provider)
    await core.partition_count(TOPIC)
    assert points("connection.opened") == {(): 1} and points("connection.closed") == {}
    assert points("lookup.duration") == {("binary", "metadata", "success"): 1}
    for _ in range(2):
        core.pool.connections()[0].close()
        assert points("connection.closed")[()] == points("connection.opened")[()]
        await core.partition_count(TOPIC)
    assert points("connection.opened") == {(): 3} and points("connection.failed") == {}
    core.shutdown()
    assert points("connection.closed") == {(): 3}


@pytest.mark.asyncio
async def test_telemetry_connection_without_pool(
    fake: FakeBroker, cores: Cores, provider: MeterProvider, points: Points
) -> None:
    core = cores(fake.url, meter_provider=provider, connections_per_broker=0)
    for _ in range(2):
        await core.partition_count(TOPIC)
    core.shutdown()
    assert points("connection.opened") == points("connection.closed") == {(): 2}


@pytest.mark.asyncio
async def test_telemetry_failed_handshake_opened_and_closed(
    fake: FakeBroker, cores: Cores, provider: MeterProvider, points: Points
) -> None:
    core = cores(fake.url, meter_provider=provider, connection_timeout_ms=200, operation_timeout_seconds=0.5)
    fake.answers[Kind.CONNECT] = swallow
    with pytest.raises(PulsarException):
        await core.partition_count(TOPIC)
    failed = points("connection.failed")
    assert failed.keys() == {("handshake",)} and failed[("handshake",)] >= 1
    core.shutdown()
    opened = points("connection.opened")[()]
    # The last attempt may have been given up instead: its task needs some rounds of the loop to end.
    assert failed[("handshake",)] <= opened
    await until(lambda: points("connection.closed")[()] == opened)
    assert points("connection.closed")[()] == opened == points("connection.opened")[()]


@pytest.mark.asyncio
async def test_telemetry_refused_certificate_fails_handshake(
    tls_fake: FakeBroker, cores: Cores, provider: MeterProvider, points: Points
) -> None:
    url = f"pulsar+ssl://127.0.0.1:{tls_fake.port}"
    # A second attempt would begin when the time is over.
    core = cores(url, meter_provider=provider, operation_timeout_seconds=20, starting_backoff_interval_ms=60_000)
    with pytest.raises(ConnectError, match="TLS"):
        await core.partition_count(TOPIC)
    assert points("connection.failed").keys() == {("handshake",)} and points("connection.opened") == {}


@pytest.mark.asyncio
async def test_telemetry_lookup_each_attempt(
    fake: FakeBroker, cores: Cores, provider: MeterProvider, points: Points
) -> None:
    core = cores(fake.url, meter_provider=provider, starting_backoff_interval_ms=10)
    # ServiceNotReady may pass; the third attempt is answered.
    answers = iter([6, 6])
    usual = fake.answers[Kind.LOOKUP]

    def answer(peer: Any, command: Any) -> Any:
        code = next(answers, None)
        return usual(peer, command) if code is None else [not_found(command, code)]

    fake.answers[Kind.LOOKUP] = answer
    await core.partition_count(TOPIC)
    await core.lookup.broker_of(TOPIC, core.deadline())
    assert points("lookup.duration") == {
        ("binary", "metadata", "success"): 1,
        ("binary", "topic", "failed"): 2,
        ("binary", "topic", "success"): 1,
    }


@pytest.mark.asyncio
async def test_telemetry_lookup_without_cluster_failed(
    cores: Cores, provider: MeterProvider, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_service: object) -> None:
        raise ConnectError("nobody tells")

    monkeypatch.setattr(ServiceUrlProvider, "known", unknown)
    core = cores(lambda: "pulsar://localhost", meter_provider=provider, operation_timeout_seconds=0.2)
    with pytest.raises(PulsarException):
        await core.partition_count(TOPIC)
    assert points("lookup.duration").keys() == {("binary", "metadata", "failed")}


class _OldMeter:
    """A meter of the time before histograms took advice."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def create_histogram(self, name: str, unit: str = "", description: str = "") -> object:
        self.made.append(name)
        return self


class _NewMeter(_OldMeter):
    def __init__(self) -> None:
        super().__init__()
        self.boundaries: Sequence[float] = ()

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] = (),
    ) -> object:
        self.boundaries = explicit_bucket_boundaries_advisory
        return super().create_histogram(name, unit, description)


def test_telemetry_histograms_in_seconds() -> None:
    old, new = _OldMeter(), _NewMeter()
    for meter in (old, new):
        assert telemetry._histogram(meter, "lookup.duration", "text") is meter
        assert meter.made == ["pulsar.client.lookup.duration"]
    assert new.boundaries[0] < 0.001 and new.boundaries[-1] >= 60
    assert list(new.boundaries) == sorted(new.boundaries)


class _Provider:
    """A provider that records nothing: what `get_meter` and its instruments do is the test's."""

    # As of an object that compares by value.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, meter: Callable[[], Any] | None = None, record: Callable[[], None] = lambda: None) -> None:
        self._meter = meter
        self._record = record

    def get_meter(self, _name: str, _version: str) -> Any:
        return self if self._meter is None else self._meter()

    def create_counter(self, _name: str, *_options: object, **_keywords: object) -> Any:
        return self

    create_histogram = create_observable_counter = create_observable_up_down_counter = create_counter

    def add(self, _number: float, _attributes: object) -> None:
        self._record()

    record = add


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_telemetry_raising_meter_logged_once(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    instruments = telemetry.instruments_of(_Provider(record=raising(error)))
    for _ in range(3):
        for topic in (TOPIC, TopicName.parse("another")):
            durations = instruments.durations_of(topic)
            durations.message(1.0, False)
            durations.rpc(1.0, True)
            instruments.dead_letter(topic, "s")
        attempt = instruments.attempt()
        attempt.opened()
        attempt.failed(ConnectError("lost"))
        attempt.closed()
        instruments.looked_up("topic", "binary", 1.0, failed=False)
    records = [each for each in caplog.records if each.name == "pulsar_native.metrics"]
    assert sorted(str(each.args[0]) for each in records if each.args) == [  # type: ignore[index]
        "connection.closed",
        "connection.failed",
        "connection.opened",
        "consumer.message.dlq",
        "lookup.duration",
        "producer.message.send.duration",
        "producer.rpc.send.duration",
    ]
    assert {each.exc_info and each.exc_info[1] for each in records} == {error}


@pytest.mark.parametrize(
    ("meter", "message"),
    [
        (raising(ValueError("no")), "meter_provider failed with ValueError"),
        (raising(SystemExit(3)), "meter_provider failed with SystemExit"),
        (raising(asyncio.CancelledError()), "meter_provider failed with CancelledError"),
        (lambda: None, "get_meter of meter_provider must return an OpenTelemetry Meter, not NoneType"),
        (_OldMeter, "meter_provider failed with AttributeError"),
    ],
)
@pytest.mark.asyncio
async def test_telemetry_unusable_provider_raises(
    fake: FakeBroker, cores: Cores, meter: Callable[[], Any], message: str
) -> None:
    core = cores(fake.url, meter_provider=_Provider(meter))
    with pytest.raises(InvalidConfiguration, match=message):
        await core.partition_count(TOPIC)


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_telemetry_error_of_any_class_in_thread(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    instruments = telemetry.instruments_of(_Provider(record=raising(kind())))
    for _ in range(2):
        in_other_thread(instruments.durations_of(TOPIC).message, 1.0, False)
    assert len([each for each in caplog.records if each.name == "pulsar_native.metrics"]) == 1
    with pytest.raises(InvalidConfiguration, match=f"meter_provider failed with {kind.__name__}"):
        in_other_thread(telemetry.instruments_of, _Provider(raising(kind())))


def test_telemetry_unhashable_provider_shares_instruments() -> None:
    first, second = _Provider(), _Provider()
    assert telemetry.instruments_of(first) is telemetry.instruments_of(first)
    assert telemetry.instruments_of(first) is not telemetry.instruments_of(second)
