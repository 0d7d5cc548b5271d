"""Service URL provider: initial value, changes during the client's life, and close."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_native import (
    AutoClusterFailover,
    Client,
    ClientConfig,
    ControlledClusterFailover,
    PolledServiceInfo,
    ServiceInfo,
    ServiceInfoProvider,
)
from pulsar_native.asyncio import Client as AsyncClient
from pulsar_native.auth import Authentication
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.exceptions import (
    AlreadyClosed,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
    InvalidUrl,
    Timeout,
)
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, found, frame, swallow
from support.http_peer import Answer, http_peer
from support.until import until, wait_until

Cores = Callable[..., ClientCore]


@pytest.fixture
def second() -> Iterator[FakeBroker]:
    """Give another cluster."""
    with FakeBroker() as broker:
        yield broker


class Provider(ServiceInfoProvider):
    """Remember what the client does with it."""

    def __init__(self, first: Any, *, fails: int = 0) -> None:
        self.first, self.fails = first, fails
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.push: Callable[[ServiceInfo], None] = lambda info: None

    def initial_service_info(self) -> ServiceInfo:
        self.calls.append("initial")
        self.threads.add(threading.get_ident())
        if self.fails:
            self.fails -= 1
            raise OSError("very-secret")
        return self.first  # type: ignore[no-any-return]

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        self.calls.append("initialize")
        self.threads.add(threading.get_ident())
        self.push = on_service_info_update

    def close(self) -> None:
        self.calls.append("close")
        self.threads.add(threading.get_ident())


class Counting(Authentication):
    """Count starts and closes."""

    method_name = "token"

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.counts = [0, 0]
        self.threads: set[int] = set()
        # What the next start or close raises.
        self.failure: BaseException | None = None

    def auth_data(self) -> bytes:
        return self.token

    def start(self) -> None:
        self._count(0)

    def close(self) -> None:
        self._count(1)

    def _count(self, index: int) -> None:
        self.counts[index] += 1
        self.threads.add(threading.get_ident())
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


@pytest.mark.asyncio
@pytest.mark.proves("C2")
async def test_provider_called_lazily_off_loop_and_closed(fake: FakeBroker, cores: Cores) -> None:
    provider = Provider(ServiceInfo(fake.url))
    core = cores(provider)
    assert provider.calls == []
    assert await asyncio.gather(core.topic_partitions("t"), core.topic_partitions("u"), core.service_info())
    assert provider.calls == ["initial", "initialize"]
    await core.close()
    assert provider.calls == ["initial", "initialize", "close"]
    assert threading.get_ident() not in provider.threads


@pytest.mark.asyncio
async def test_provider_error_raised_and_called_again(fake: FakeBroker, cores: Cores) -> None:
    provider = Provider(ServiceInfo(fake.url), fails=1)
    core = cores(provider)
    with pytest.raises(InvalidConfiguration, match="OSError") as caught:
        await core.topic_partitions("t")
    assert "very-secret" not in str(caught.value)
    assert await core.topic_partitions("t")
    wrong = cores(Provider(17))
    with pytest.raises(InvalidConfiguration, match="int"):
        await wrong.topic_partitions("t")


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["supply", "initial_service_info", "initialize"])
@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_provider_odd_error_raised(
    fake: FakeBroker, cores: Cores, method: str, error: type[BaseException]
) -> None:
    def fails(*args: object) -> Any:
        raise error("very-secret")

    provider = Provider(ServiceInfo(fake.url))
    setattr(provider, method, fails)
    core = cores(fails if method == "supply" else provider)
    with pytest.raises(InvalidConfiguration, match=f"failed with {error.__name__}") as caught:
        async with asyncio.timeout(10):
            await core.topic_partitions("t")
    assert "very-secret" not in str(caught.value)


@pytest.mark.asyncio
async def test_provider_hanging_times_out(fake: FakeBroker, cores: Cores) -> None:
    leave = threading.Event()

    def supply() -> str:
        leave.wait(10)
        return fake.url

    core = cores(supply, operation_timeout_seconds=0.2)
    for call in (core.service_info, lambda: core.topic_partitions("t"), lambda: core.update_service_url(fake.url)):
        with pytest.raises(Timeout):
            await call()
    with pytest.raises(Timeout, match="; the provider of the service URL has not answered yet"):
        await core.lookup.broker_of(TopicName.parse("t"), core.deadline())
    waiting = asyncio.create_task(core.service.known())
    await asyncio.sleep(0)
    core.shutdown()
    leave.set()
    with pytest.raises(AlreadyClosed):
        await waiting


@pytest.mark.asyncio
@pytest.mark.proves("C2", "C22")
async def test_provider_push_closes_connections_new_credentials(
    fake: FakeBroker, second: FakeBroker, cores: Cores
) -> None:
    here, there = Counting(b"here"), Counting(b"there")
    provider = Provider(ServiceInfo(fake.url, here))
    core = cores(provider)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    (before,) = core.pool.connections()
    await asyncio.to_thread(provider.push, ServiceInfo(second.url, there))
    await asyncio.to_thread(second.wait, Kind.PRODUCER)
    assert not before.is_open and fake.peers[0].gone.wait(10)
    assert [seen.command.connect.auth_data for seen in (*fake.seen(Kind.CONNECT), *second.seen(Kind.CONNECT))] == [
        b"here",
        b"there",
    ]
    await until(lambda: producer.is_connected)
    assert (await core.service_info()).service_url == second.url
    with pytest.raises(ValueError, match="ServiceInfo"):
        provider.push("pulsar://elsewhere")  # type: ignore[arg-type]
    await core.close()
    provider.push(ServiceInfo(fake.url))
    assert here.counts == there.counts == [1, 1]


@pytest.mark.asyncio
async def test_provider_push_same_cluster_no_effect(fake: FakeBroker, cores: Cores) -> None:
    provider = Provider(ServiceInfo(fake.url))
    core = cores(provider)
    await core.topic_partitions("t")
    provider.push(ServiceInfo(fake.url))
    await core.topic_partitions("t")
    await core.topic_partitions("t")
    assert len(fake.peers) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C2")
async def test_provider_callable_polled(fake: FakeBroker, second: FakeBroker, cores: Cores) -> None:
    answers: list[Any] = [fake.url]

    asked: list[Any] = []

    def supply() -> Any:
        asked.append(answers[0])
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    core = cores(PolledServiceInfo(supply, check_interval_ms=10))
    await core.topic_partitions("t")
    failures = len(asked)
    answers[0] = OSError()
    await until(lambda: len(asked) > failures + 1)
    answers[0] = second.url
    await until(lambda: core.service.info.service_url == second.url)
    await core.topic_partitions("t")
    assert len(fake.peers) == len(second.peers) == 1
    simple = cores(lambda: second.url)
    await simple.topic_partitions("t")
    assert len(second.peers) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [StopIteration, SystemExit, asyncio.CancelledError])
async def test_provider_polled_outlives_odd_error(
    fake: FakeBroker, second: FakeBroker, cores: Cores, error: type[BaseException]
) -> None:
    answers: list[str | BaseException] = [fake.url]

    def supply() -> str:
        answer = answers.pop() if len(answers) > 1 else answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    core = cores(PolledServiceInfo(supply, check_interval_ms=10))
    await core.topic_partitions("t")
    answers[:] = [second.url, error()]
    await until(lambda: core.service.info.service_url == second.url, 10)
    assert len(answers) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_provider_polled_outlives_failed_change(
    fake: FakeBroker, second: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    urls = [fake.url]
    core = cores(PolledServiceInfo(lambda: urls[0], check_interval_ms=10))
    await core.topic_partitions("t")
    core.service.on_change = fails_once(core.service.on_change, error("very-secret"))
    urls[0] = second.url
    await until(lambda: "stays as it is" in caplog.text, 10)
    assert error.__name__ in caplog.text and "very-secret" not in caplog.text
    urls[0] = fake.url
    await until(lambda: core.service.info.service_url == fake.url, 10)


@pytest.mark.asyncio
@pytest.mark.proves("C2", "C22")
async def test_controlled_failover_default_until_good_answer(
    fake: FakeBroker, second: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture
) -> None:
    token, own = {"authPluginClassName": "token", "authParamsString": "token:very-secret"}, Counting(b"own")
    answer: list[dict[str, str]] = [{"serviceUrl": second.url, **token, "authParamsString": "very-secret"}]
    caplog.set_level("DEBUG")
    with http_peer(lambda _: Answer(200, json.dumps(answer[0]).encode())) as peer:
        failover = ControlledClusterFailover(fake.url, peer.url, {"X": "very-secret"}, check_interval_ms=20)
        core = cores(failover, authentication=own, tls_trust_certs_file_path="/own.pem")
        await core.topic_partitions("t")
        await until(lambda: caplog.text.count("The service URL stays as it is: ") > 1, 10)
        assert (core.service.info.service_url, len(fake.peers)) == (fake.url, 1)
        answer[0] = {"serviceUrl": second.url, **token}
        await until(lambda: core.service.info.service_url == second.url, 10)
        # What the answer leaves out is the client's own.
        assert core.service.info.tls_trust_certs_file_path == "/own.pem"
        await core.topic_partitions("t")
        asked = len(peer.asked)
        await until(lambda: len(peer.asked) > asked + 2, 10)
        await core.topic_partitions("t")
        answer[0] = {"serviceUrl": fake.url}
        await until(lambda: core.service.info.service_url == fake.url, 10)
        await core.topic_partitions("t")
    used = [[seen.command.connect.auth_data for seen in each.seen(Kind.CONNECT)] for each in (fake, second)]
    assert used == [[b"own", b"own"], [b"very-secret"]]
    assert "very-secret" not in caplog.text


def fails_once(function: Callable[[], None], error: BaseException) -> Callable[[], None]:
    """Return a function that raises at its first call."""
    errors = [error]

    def called() -> None:
        if errors:
            raise errors.pop()
        function()

    return called


@pytest.mark.asyncio
async def test_plugin_started_off_loop_once(fake: FakeBroker, cores: Cores) -> None:
    plug_in = Counting(b"t")
    core = cores(fake.url, authentication=plug_in)
    plug_in.failure = StopIteration("very-secret")
    with pytest.raises(ErrorGettingAuthenticationData, match=r"start .* failed with StopIteration") as caught:
        async with asyncio.timeout(10):
            await core.topic_partitions("t")
    assert "very-secret" not in str(caught.value) and fake.seen(Kind.CONNECT) == []
    # It is started again after a failure, and by one of several callers.
    await asyncio.gather(*(core.service.begin_with(plug_in) for _ in range(3)))
    await core.topic_partitions("t")
    assert plug_in.counts == [2, 0]
    await core.close()
    assert plug_in.counts == [2, 1] and threading.get_ident() not in plug_in.threads


@pytest.mark.asyncio
async def test_plugin_in_start_closed_with_client(fake: FakeBroker, cores: Cores) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Counting):
        def start(self) -> None:
            super().start()
            entered.set()
            leave.wait(10)

    plug_in = Slow(b"t")
    core = cores(fake.url, authentication=plug_in)
    lookup = asyncio.create_task(core.topic_partitions("t"))
    assert await asyncio.to_thread(entered.wait, 10)
    await core.close()
    leave.set()
    with pytest.raises(AlreadyClosed):
        await lookup
    assert plug_in.counts == [1, 1]


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["start", "close"])
async def test_plugin_coroutine_method_refused(
    fake: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    async def coroutine() -> None:
        raise AssertionError

    plug_in = Counting(b"t")
    setattr(plug_in, method, coroutine)
    core = cores(fake.url, authentication=plug_in)
    words = f"{method} of the authentication plug-in must be a plain function"
    if method == "start":
        with pytest.raises(ErrorGettingAuthenticationData, match=words):
            await core.topic_partitions("t")
    else:
        await core.topic_partitions("t")
        await core.close()
        assert words in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
async def test_close_plugin_error_closes_the_others(
    fake: FakeBroker, second: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    here, there = Counting(b"here"), Counting(b"there")
    provider = Provider(ServiceInfo(fake.url, here))
    core = cores(provider)
    await core.topic_partitions("t")
    core.service.change(ServiceInfo(second.url, there))
    await core.topic_partitions("t")
    here.failure = error("very-secret")
    async with asyncio.timeout(4):
        await core.close()
    assert (here.counts, there.counts, provider.calls[-1]) == ([1, 1], [1, 1], "close")
    assert f"close of the authentication plug-in failed with {error.__name__}" in caplog.text
    assert "very-secret" not in caplog.text


@pytest.mark.asyncio
@pytest.mark.proves("C20")
async def test_change_url_keeps_credentials_and_validates(fake: FakeBroker, second: FakeBroker, cores: Cores) -> None:
    plug_in = Counting(b"t")
    core = cores(fake.url, authentication=plug_in)
    await core.topic_partitions("t")
    with pytest.raises(InvalidUrl):
        await core.update_service_url("nonsense")
    assert core.pool.connections()
    await core.update_service_url(second.url)
    assert core.pool.connections() == []
    await core.topic_partitions("t")
    assert second.seen(Kind.CONNECT)[0].command.connect.auth_data == b"t"
    assert plug_in.counts == [1, 0]
    ended = core.shutdown()
    assert ended is not None
    await ended
    assert plug_in.counts == [1, 1]
    with pytest.raises(AlreadyClosed):
        await core.update_service_url(fake.url)


@pytest.mark.asyncio
@pytest.mark.proves("C20")
@pytest.mark.parametrize("held", [Kind.CONNECT, Kind.LOOKUP, Kind.PRODUCER])
async def test_change_during_operation_ends_at_new_cluster(
    fake: FakeBroker, second: FakeBroker, cores: Cores, held: int
) -> None:
    fake.answers[held] = swallow
    core = cores(fake.url, starting_backoff_interval_ms=10)
    making = asyncio.create_task(core.create_producer(ProducerConfig(topic="t"), None))
    seen = (await asyncio.to_thread(fake.wait, held))[0]
    await core.update_service_url(second.url)
    # What the old cluster still says does not count.
    late = {
        Kind.CONNECT: lambda: frame(Kind.CONNECTED, connected=fake.connected),
        Kind.LOOKUP: lambda: found(seen.command, fake.url),
        Kind.PRODUCER: lambda: frame(Kind.PING),
    }
    seen.peer.send(late[held]())
    producer = await making
    assert producer.is_connected and len(second.seen(Kind.PRODUCER)) == 1
    assert {connection.broker for connection in core.pool.connections()} == {second.address}
    assert all([await asyncio.to_thread(peer.gone.wait, 10) for peer in fake.peers])


@pytest.mark.asyncio
async def test_failover_and_back(fake: FakeBroker, second: FakeBroker, cores: Cores) -> None:
    second.close()
    failover = AutoClusterFailover(
        ServiceInfo(second.url), [ServiceInfo("pulsar://127.0.0.1:1"), ServiceInfo(fake.url)], check_interval_ms=20
    )
    core = cores(failover, starting_backoff_interval_ms=10)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    assert (await core.service_info()).service_url == fake.url and producer.is_connected


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_failover_outlives_odd_error(
    fake: FakeBroker,
    second: FakeBroker,
    cores: Cores,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    core = cores(AutoClusterFailover(ServiceInfo(fake.url), [ServiceInfo(second.url)], check_interval_ms=10))
    await core.topic_partitions("t")
    core.service.on_change = fails_once(core.service.on_change, error("very-secret"))
    fake.close()
    await until(lambda: "The check of the clusters failed" in caplog.text, 10)
    assert error.__name__ in caplog.text and "very-secret" not in caplog.text
    checks = len(second.peers)
    await until(lambda: len(second.peers) > checks, 10)


def test_shutdown_after_loop_closed_closes_plugin(fake: FakeBroker) -> None:
    plug_in = Counting(b"t")

    async def use() -> AsyncClient:
        client = AsyncClient(fake.url, authentication=plug_in)
        await client.get_topic_partitions("t")
        return client

    asyncio.run(use()).shutdown()
    wait_until(lambda: plug_in.counts == [1, 1], 10)


def test_close_at_the_end_of_the_interpreter_closes_plugin(fake: FakeBroker) -> None:
    program = """
    import atexit, sys
    import pulsar_native

    class Own(pulsar_native.AuthenticationToken):
        def close(self):
            print("closed")

    client = pulsar_native.Client(sys.argv[1], authentication=Own("t"))
    client.get_topic_partitions("t")
    atexit.register(client.close)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), fake.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def test_provider_dropped_client_closes_it(fake: FakeBroker) -> None:
    provider = Provider(ServiceInfo(fake.url))
    client = Client(provider)
    client.get_topic_partitions("t")
    client.shutdown()
    wait_until(lambda: provider.calls[-1] == "close")
    unused = Provider(ServiceInfo(fake.url))
    Client(unused).close()
    assert unused.calls == []
    assert Client.from_config(ClientConfig(service_url=unused)).config.service_url is unused


# --- where the broker sends us ------------------------------------------------------------------------------------


def closing(producer_id: int, url: str) -> bytes:
    told = pb.CommandCloseProducer(producer_id=producer_id, request_id=(1 << 64) - 1, assignedBrokerServiceUrl=url)
    return frame(Kind.CLOSE_PRODUCER, close_producer=told)


@pytest.mark.asyncio
@pytest.mark.proves("C190")
async def test_producer_assigned_broker_without_lookup(fake: FakeBroker, second: FakeBroker, cores: Cores) -> None:
    # A back-off nobody would wait for.
    core = cores(fake.url, starting_backoff_interval_ms=60_000)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    lookups = len(fake.seen(Kind.LOOKUP))
    fake.peers[0].send(closing(0, second.url))
    await asyncio.to_thread(second.wait, Kind.PRODUCER)
    await until(lambda: producer.is_connected)
    assert len(fake.seen(Kind.LOOKUP)) == lookups and second.seen(Kind.LOOKUP) == []


@pytest.mark.asyncio
@pytest.mark.proves("C190")
async def test_consumer_assigned_broker_without_lookup(
    fake: FakeBroker, second: FakeBroker, cores: Cores, subscribed: Callable[..., Any]
) -> None:
    core = cores(fake.url, starting_backoff_interval_ms=60_000)
    consumer = await subscribed(core)
    told = pb.CommandCloseConsumer(consumer_id=0, request_id=(1 << 64) - 1, assignedBrokerServiceUrl=second.url)
    fake.peers[0].send(frame(Kind.CLOSE_CONSUMER, close_consumer=told))
    await asyncio.to_thread(second.wait, Kind.FLOW)
    await until(lambda: consumer.is_connected)
    assert len(fake.seen(Kind.LOOKUP)) == 1 and second.seen(Kind.LOOKUP) == []


@pytest.mark.asyncio
@pytest.mark.proves("C190")
@pytest.mark.parametrize("url", ["pulsar://127.0.0.1:1", "nonsense", ""])
async def test_assigned_broker_unreachable_falls_back_to_lookup(fake: FakeBroker, cores: Cores, url: str) -> None:
    core = cores(fake.url, starting_backoff_interval_ms=10)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    fake.peers[0].send(closing(0, url))
    await asyncio.to_thread(fake.wait, Kind.PRODUCER, 2)
    await until(lambda: producer.is_connected)
    assert len(fake.seen(Kind.LOOKUP)) == 2


@pytest.mark.asyncio
@pytest.mark.proves("C190", "C25")
async def test_assigned_broker_behind_proxy(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.LOOKUP] = lambda peer, command: [found(command, "pulsar://one.internal:6650", through_proxy=True)]
    core = cores(fake.url, starting_backoff_interval_ms=60_000)
    await core.create_producer(ProducerConfig(topic="t"), None)
    fake.peers[1].send(closing(0, "pulsar://two.internal:6650"))
    await asyncio.to_thread(fake.wait, Kind.PRODUCER, 2)
    through = [seen.command.connect.proxy_to_broker_url for seen in fake.seen(Kind.CONNECT)]
    assert through == ["", "one.internal:6650", "two.internal:6650"]


@pytest.mark.asyncio
@pytest.mark.proves("C190")
async def test_migrated_topic_looked_up_in_new_cluster(
    fake: FakeBroker, second: FakeBroker, cores: Cores, subscribed: Callable[..., Any]
) -> None:
    core = cores(fake.url, starting_backoff_interval_ms=10)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    consumer = await subscribed(core)
    stays = await core.create_producer(ProducerConfig(topic="other"), None)
    kinds = pb.CommandTopicMigrated
    for kind, close in (
        (kinds.Producer, closing(0, "")),
        (
            kinds.Consumer,
            frame(Kind.CLOSE_CONSUMER, close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=1)),
        ),
    ):
        told = kinds(resource_id=0, resource_type=kind, brokerServiceUrl=second.url)
        fake.peers[0].send(frame(Kind.TOPIC_MIGRATED, topicMigrated=told), close)
    await asyncio.to_thread(second.wait, Kind.PRODUCER)
    await asyncio.to_thread(second.wait, Kind.FLOW)
    await until(lambda: producer.is_connected and consumer.is_connected)
    assert len(second.seen(Kind.LOOKUP)) == 2 and stays.is_connected
    # Lost there, they come back there.
    second.peers[0].close()
    await asyncio.to_thread(second.wait, Kind.PRODUCER, 2)
    assert len(fake.seen(Kind.PRODUCER)) == 2
    # When the whole client moves, they move along.
    with FakeBroker() as third:
        await core.update_service_url(third.url)
        await asyncio.to_thread(third.wait, Kind.PRODUCER, 2)
