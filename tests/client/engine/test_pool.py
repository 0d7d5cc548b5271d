"""Connection pool: shared attempts, several hosts, and removal."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.connection import Connection
from pulsar_native.exceptions import AlreadyClosed, AuthenticationError, ConnectError, Timeout
from pulsar_native.service_url import Address
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.clock import LoopClock
from support.fake_broker import HOST, FakeBroker, Peer, failure, swallow
from support.until import until

Cores = Callable[..., ClientCore]


async def connection_to(core: ClientCore, broker: FakeBroker) -> Connection:
    return await core.pool.get(Address(HOST, broker.port), Address(HOST, broker.port))


def closed_broker() -> str:
    with FakeBroker() as broker:
        return broker.address


@pytest.mark.asyncio
async def test_pool_concurrent_requests_share_attempt(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    made = await asyncio.gather(*(connection_to(core, fake) for _ in range(20)))
    assert len(set(made)) == 1 and len(fake.peers) == 1
    assert await connection_to(core, fake) is made[0]
    assert core.pool.connections() == [made[0]]


@pytest.mark.asyncio
@pytest.mark.proves("C8")
@pytest.mark.parametrize("slots", [1, 3])
async def test_pool_connections_per_broker(fake: FakeBroker, cores: Cores, slots: int) -> None:
    core = cores(fake.url, connections_per_broker=slots)
    made = [await connection_to(core, fake) for _ in range(60)]
    assert len(set(made)) == len(fake.peers) == slots
    assert min(Counter(made).values()) >= 60 // slots // 4


@pytest.mark.asyncio
@pytest.mark.proves("C8")
async def test_pool_zero_connections_per_broker_not_shared(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, connections_per_broker=0)
    made = [await connection_to(core, fake) for _ in range(5)]
    assert len(set(made)) == len(fake.peers) == 5
    made[0].close()
    assert set(core.pool.connections()) == set(made[1:])
    core.shutdown()
    assert all(peer.gone.wait(10) for peer in fake.peers)


@pytest.mark.asyncio
@pytest.mark.proves("C26")
async def test_pool_closed_connection_removed(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    first = await connection_to(core, fake)
    fake.peers[0].close()
    await until(lambda: not first.is_open)
    assert core.pool.connections() == []
    second = await connection_to(core, fake)
    assert second is not first and second.is_open and len(fake.peers) == 2
    second.close()
    assert (await connection_to(core, fake)) is not second


@pytest.mark.asyncio
@pytest.mark.proves("C26")
async def test_pool_failed_attempt_removed(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    welcome = fake.answers[Kind.CONNECT]

    def hang_up(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        peer.close()
        return ()

    fake.answers[Kind.CONNECT] = hang_up
    failures = await asyncio.gather(*(connection_to(core, fake) for _ in range(3)), return_exceptions=True)
    assert [type(failure) for failure in failures] == [ConnectError] * 3
    assert len(fake.peers) == 1
    fake.answers[Kind.CONNECT] = welcome
    assert (await connection_to(core, fake)).is_open


@pytest.mark.asyncio
async def test_pool_shared_attempt_separate_errors(fake: FakeBroker, cores: Cores) -> None:
    # Credentials that are refused end a lookup: no time-out can come first.
    fake.answers[Kind.CONNECT] = lambda peer, command: [failure(-1 & (1 << 64) - 1, pb.AuthenticationError)]
    core = cores(fake.url)
    topics = [f"persistent://public/default/t{number}" for number in range(4)]
    asked = (core.topic_partition_count(topic, auto_create=True) for topic in topics)
    failures = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in failures] == [AuthenticationError] * 4 and len(fake.peers) == 1
    assert [getattr(error, "topic", None) for error in failures] == topics


@pytest.mark.asyncio
async def test_pool_cancelled_caller_keeps_attempt(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    welcome = fake.answers[Kind.CONNECT]
    fake.answers[Kind.CONNECT] = swallow
    impatient = asyncio.create_task(connection_to(core, fake))
    patient = asyncio.create_task(connection_to(core, fake))
    await asyncio.to_thread(fake.wait, Kind.CONNECT)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    peer = fake.peers[0]
    peer.send(*welcome(peer, pb.BaseCommand()))
    assert (await patient).is_open and len(fake.peers) == 1


# --- several hosts ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_pool_hosts_in_turn_after_random_first(cores: Cores) -> None:
    firsts = set()
    for _ in range(40):
        pool = cores("pulsar://a:1,b:2,c:3").pool
        visited = [pool.next_host().host for _ in range(300)]
        firsts.add(visited[0])
        assert all("abc".index(after) == ("abc".index(before) + 1) % 3 for before, after in pairwise(visited))
    assert firsts == {"a", "b", "c"}


@pytest.mark.asyncio
async def test_pool_dead_hosts_skipped(fake: FakeBroker, cores: Cores) -> None:
    url = f"pulsar://{closed_broker()},{fake.address},{closed_broker()}"
    for _ in range(6):  # whatever comes first
        core = cores(url)
        started = time.monotonic()
        assert (await core.pool.to_service()).broker == fake.address
        assert time.monotonic() - started < 2


@pytest.mark.asyncio
async def test_pool_silent_host_skipped(fake: FakeBroker, cores: Cores) -> None:
    with FakeBroker() as silent:
        silent.answers[Kind.CONNECT] = swallow
        url = f"pulsar://{silent.address},{fake.address}"
        for _ in range(3):
            core = cores(url, connection_timeout_ms=200)
            assert (await core.pool.to_service()).broker == fake.address


@pytest.mark.asyncio
async def test_pool_all_hosts_dead_raises_last_error(cores: Cores) -> None:
    dead = [closed_broker(), closed_broker()]
    with pytest.raises(ConnectError, match="Connection refused") as caught:
        await cores(f"pulsar://{','.join(dead)}").pool.to_service()
    assert caught.value.broker in dead


# --- the handshake and the end ----------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C15", "C24")
async def test_pool_handshake_timeout_raises(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.CONNECT] = swallow
    # Long enough to connect in it on a busy machine.
    core = cores(fake.url, operation_timeout_seconds=9, connection_timeout_ms=1000)
    started = time.monotonic()
    with pytest.raises(Timeout, match="did not answer the handshake") as caught:
        await connection_to(core, fake)
    assert 1 <= time.monotonic() - started < 4
    assert caught.value.broker == fake.address
    assert fake.peers[0].gone.wait(10)


@pytest.mark.asyncio
async def test_pool_close_ends_connections_and_attempts(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    open_one = await connection_to(core, fake)
    with FakeBroker() as silent:
        silent.answers[Kind.CONNECT] = swallow
        attempt = asyncio.create_task(connection_to(core, silent))
        await asyncio.to_thread(silent.wait, Kind.CONNECT)
        core.pool.close()
        with pytest.raises(AlreadyClosed, match="closed meanwhile"):
            await attempt
        assert silent.peers[0].gone.wait(10)
    assert not open_one.is_open and fake.peers[0].gone.wait(10)
    with pytest.raises(AlreadyClosed):
        await connection_to(core, fake)


@pytest.mark.asyncio
@pytest.mark.parametrize("rounds", range(5))
async def test_pool_close_cancelled_caller_stays_cancelled(fake: FakeBroker, cores: Cores, rounds: int) -> None:
    fake.answers[Kind.CONNECT] = swallow
    core = cores(fake.url)
    attempt = asyncio.create_task(connection_to(core, fake))
    await asyncio.to_thread(fake.wait, Kind.CONNECT)
    core.pool.close()
    for _ in range(rounds):
        await asyncio.sleep(0)
    is_cancelled = attempt.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else AlreadyClosed):
        await attempt


@pytest.mark.asyncio
async def test_pool_close_ends_unpooled_attempt(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, connections_per_broker=0)
    welcome = fake.answers[Kind.CONNECT]
    fake.answers[Kind.CONNECT] = swallow
    attempt = asyncio.create_task(connection_to(core, fake))
    await asyncio.to_thread(fake.wait, Kind.CONNECT)
    core.pool.close()
    peer = fake.peers[0]
    peer.send(*welcome(peer, pb.BaseCommand()))
    with pytest.raises(AlreadyClosed, match="closed meanwhile"):
        await attempt
    assert core.pool.connections() == [] and await asyncio.to_thread(peer.gone.wait, 10)


# --- quarantine and idleness --------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C1")
async def test_pool_dead_host_in_quarantine_skipped(fake: FakeBroker, cores: Cores) -> None:
    dead = closed_broker()
    core = cores(f"pulsar://{dead},{fake.address}", connections_per_broker=0)
    for _ in range(2):
        assert (await core.pool.to_service()).broker == fake.address
    assert {str(core.pool.next_host()) for _ in range(6)} == {fake.address}
    # Alone among the dead it would be tried again at once.
    fake.close()
    with pytest.raises(ConnectError):
        await core.pool.to_service()
    assert {str(core.pool.next_host()) for _ in range(6)} == {fake.address, dead}


@pytest.mark.asyncio
@pytest.mark.proves("C1")
async def test_pool_recovered_host_used_after_quarantine(
    fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    dead = closed_broker()
    core = cores(
        f"pulsar://{dead},{fake.address}",
        service_url_quarantine_init_duration_seconds=60,
        service_url_quarantine_max_duration_seconds=60,
    )
    await core.pool.to_service()
    await core.pool.to_service()
    assert {str(core.pool.next_host()) for _ in range(6)} == {fake.address}
    await clock.advance(61)
    assert {str(core.pool.next_host()) for _ in range(6)} == {fake.address, dead}


@pytest.mark.asyncio
@pytest.mark.parametrize("slots", [1, 0])
async def test_pool_idle_connection_closed_and_reopened(
    fake: FakeBroker, cores: Cores, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    core = cores(fake.url, connection_max_idle_seconds=100, keep_alive_interval_seconds=0, connections_per_broker=slots)
    idle = await connection_to(core, fake)
    await clock.advance(90)
    assert idle.is_open
    await clock.advance(40)
    assert not idle.is_open
    assert core.pool.connections() == [] and fake.peers[0].gone.wait(10)
    assert (await connection_to(core, fake)).is_open


@pytest.mark.asyncio
async def test_pool_used_connection_not_idle(fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    core = cores(fake.url, connection_max_idle_seconds=1, operation_timeout_seconds=60)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    await clock.advance(6)
    assert producer.is_connected and len(fake.peers) == 1
    await producer.close()
    await clock.advance(6)
    assert core.pool.connections() == []
    # A question that waits for its answer is use, too.
    fake.answers[Kind.LOOKUP] = swallow
    asking = asyncio.create_task(core.lookup.broker_of(TopicName.parse("t")))
    await asyncio.to_thread(fake.wait, Kind.LOOKUP, 2)
    await clock.advance(6)
    assert core.pool.connections() and not asking.done()
    asking.cancel()
    await clock.advance(6)
    assert core.pool.connections() == []


@pytest.mark.asyncio
async def test_pool_idle_release_disabled(fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    core = cores(fake.url, connection_max_idle_seconds=0, keep_alive_interval_seconds=0)
    connection = await connection_to(core, fake)
    await clock.advance(100_000)
    assert connection.is_open
