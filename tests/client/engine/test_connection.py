"""Connection: handshake, keep-alive, time-outs, and hostile peers."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import pulsar_native
from broker_keys import Certificates
from pulsar_native.auth import AuthenticationToken
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.connection import Connection
from pulsar_native.exceptions import (
    AuthenticationError,
    ConnectError,
    ErrorGettingAuthenticationData,
    NotConnected,
    ProtocolViolation,
    PulsarException,
    Timeout,
    UnknownError,
)
from pulsar_native.service_url import Address
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.clock import LoopClock
from support.entry_bytes import single_entry
from support.fake_broker import HOST, FakeBroker, Peer, delivery, failure, frame, success, swallow
from support.until import until

Cores = Callable[..., ClientCore]


async def connect(core: ClientCore, broker: FakeBroker) -> Connection:
    address = Address(HOST, broker.port)
    return await core.pool.get(address, address)


async def ask(core: ClientCore, connection: Connection, **options: Any) -> Any:
    """Send some request."""
    number = core.next_request_id()
    frame = commands.get_last_message_id(0, number)
    return await connection.request(number, frame, pb.CommandGetLastMessageIdResponse, **options)


class Plugin:
    """An authentication plug-in of the application."""

    def __init__(self, data: Any, method_name: Any = "mine") -> None:
        self.data, self.method_name = data, method_name
        self.asked_in: list[int] = []

    def auth_data(self) -> bytes:
        self.asked_in.append(threading.get_ident())
        if isinstance(self.data, BaseException):
            raise self.data
        return self.data  # type: ignore[no-any-return]

    def http_headers(self) -> dict[str, str]:
        return {}

    def tls_certificate(self) -> None:
        return None

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


# --- handshake --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C24")
async def test_handshake_first_and_stored(fake: FakeBroker, cores: Cores) -> None:
    fake.connected.max_message_size = 1 << 20
    fake.connected.protocol_version = 19
    released = threading.Event()
    welcome = fake.answers[Kind.CONNECT]

    def slow(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        assert released.wait(10)
        return welcome(peer, command)

    fake.answers[Kind.CONNECT] = slow
    core = cores(fake.url)
    asked = asyncio.create_task(core.topic_partition_count("t", auto_create=True))
    await asyncio.to_thread(fake.wait, Kind.CONNECT)
    for _ in range(10):
        await asyncio.sleep(0)
    # Nothing is sent before the handshake is done: what the loop had to write, it has written.
    assert [seen.command.type for seen in fake.seen()] == [Kind.CONNECT]
    released.set()
    await asked
    assert [seen.command.type for seen in fake.seen()] == [Kind.CONNECT, Kind.PARTITIONED_METADATA]
    (connection,) = core.pool.connections()
    assert (connection.max_message_size, connection.core.protocol_version) == (1 << 20, 19)
    assert connection.core.server_version == "Fake" and connection.local_port > 0
    command = fake.seen(Kind.CONNECT)[0].command.connect
    assert command.client_version.startswith("Pulsar-Native-Python-v") and command.auth_method_name == "none"


@pytest.mark.asyncio
async def test_request_before_ready_raises(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    connection = Connection(core.engine, core.config, Address(HOST, fake.port))
    with pytest.raises(NotConnected):
        await ask(core, connection)
    opened = await connect(core, fake)
    opened.close()
    with pytest.raises(NotConnected):
        await ask(core, opened)


@pytest.mark.asyncio
async def test_credentials_sent_and_read_off_loop(fake: FakeBroker, cores: Cores) -> None:
    plugin = Plugin(b"topsecret")
    await connect(cores(fake.url, authentication=plugin), fake)
    command = fake.seen(Kind.CONNECT)[0].command.connect
    assert (command.auth_method_name, command.auth_data) == ("mine", b"topsecret")
    assert plugin.asked_in and threading.get_ident() not in plugin.asked_in


@pytest.mark.asyncio
async def test_credentials_plugin_error_without_text(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, authentication=Plugin(ValueError("topsecret is wrong")))
    with pytest.raises(ErrorGettingAuthenticationData, match="failed with ValueError") as caught:
        await connect(core, fake)
    assert "topsecret" not in str(caught.value)
    assert fake.peer().gone.wait(10) and fake.seen() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_credentials_plugin_odd_exception_raises(
    fake: FakeBroker, cores: Cores, error: type[BaseException]
) -> None:
    core = cores(fake.url, authentication=Plugin(error("topsecret")))
    with pytest.raises(ErrorGettingAuthenticationData, match=f"auth_data .* failed with {error.__name__}") as caught:
        async with asyncio.timeout(10):
            await connect(core, fake)
    assert "topsecret" not in str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (Plugin("topsecret"), "auth_data .* returned str, not bytes"),
        (Plugin(bytearray(b"topsecret")), "auth_data .* returned bytearray, not bytes"),
        (Plugin(5), "auth_data .* returned int, not bytes"),
        (Plugin(b"topsecret", 5), "method_name .* is int, not str"),
    ],
    ids=["str", "bytearray", "int", "method-name"],
)
async def test_credentials_of_another_type_raise(fake: FakeBroker, cores: Cores, plugin: Plugin, words: str) -> None:
    with pytest.raises(ErrorGettingAuthenticationData, match=words) as caught:
        await connect(cores(fake.url, authentication=plugin), fake)
    assert "topsecret" not in str(caught.value) and fake.seen() == []


@pytest.mark.asyncio
async def test_credentials_plugin_timeout_kept(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, authentication=Plugin(Timeout("the issuer did not answer")))
    with pytest.raises(Timeout, match="the issuer did not answer"):
        await connect(core, fake)


@pytest.mark.asyncio
@pytest.mark.proves("C37")
async def test_credentials_refused_ends_immediately(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.CONNECT] = lambda peer, command: [
        failure(-1 & (1 << 64) - 1, pb.AuthenticationError, "bad token")
    ]
    core = cores(fake.url)
    started = time.monotonic()
    with pytest.raises(AuthenticationError, match="The broker refused the credentials: bad token") as caught:
        await core.topic_partition_count("t", auto_create=True)
    assert time.monotonic() - started < 2 and len(fake.peers) == 1
    assert caught.value.broker == fake.address
    assert caught.value.message.endswith("; no credentials were given: set authentication")
    core = cores(fake.url, authentication=AuthenticationToken("x"))
    with pytest.raises(AuthenticationError, match=r"refused the credentials: bad token \["):
        await core.topic_partition_count("t", auto_create=True)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "hint"),
    [("fake", "binary port, and does TLS match"), ("tls_fake", "accept the client's certificate, or ask for one")],
    ids=["plain", "tls"],
)
async def test_handshake_peer_hangs_up_hint(
    kind: str, hint: str, request: pytest.FixtureRequest, certificates: Certificates, cores: Cores
) -> None:
    def hang_up(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        peer.close()
        return ()

    fake: FakeBroker = request.getfixturevalue(kind)
    fake.answers[Kind.CONNECT] = hang_up
    with pytest.raises(ConnectError, match=f"The handshake failed: .*{hint}"):
        await connect(cores(fake.url, tls_trust_certs_file_path=str(certificates.authority)), fake)


@pytest.mark.asyncio
async def test_handshake_web_server_raises(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.CONNECT] = lambda peer, command: [b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"]
    match = "is this a Pulsar broker's binary port.* An HTTP server answered: .* 6650 by default"
    with pytest.raises(ProtocolViolation, match=match) as caught:
        await connect(cores(fake.url), fake)
    assert caught.value.broker == fake.address


# --- requests ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C27")
async def test_request_lost_response_fails_alone(fake: FakeBroker, cores: Cores) -> None:
    answer = fake.answers[Kind.GET_LAST_MESSAGE_ID]

    def lose_the_second(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return () if len(fake.seen(Kind.GET_LAST_MESSAGE_ID)) == 2 else answer(peer, command)

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = lose_the_second
    core = cores(fake.url, operation_timeout_seconds=0.3)
    connection = await connect(core, fake)
    started = time.monotonic()
    results = await asyncio.gather(*(ask(core, connection) for _ in range(4)), return_exceptions=True)
    assert 0.29 <= time.monotonic() - started < 2
    assert [isinstance(result, Timeout) for result in results] == [False, True, False, False]
    assert connection.is_open and len(fake.peers) == 1
    assert (await ask(core, connection)).request_id


@pytest.mark.asyncio
@pytest.mark.proves("C226")
async def test_request_unsent_unanswered_unknown_errors(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, operation_timeout_seconds=0.25)
    connection = await connect(core, fake)
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = lambda _peer, command: [
        failure(command.getLastMessageId.request_id, pb.UnknownError, "who knows")
    ]
    with pytest.raises(UnknownError, match="who knows") as unknown:
        await ask(core, connection)
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = swallow
    with pytest.raises(Timeout, match=r"within 0\.25 s") as unanswered:
        await ask(core, connection)
    with pytest.raises(Timeout, match=r"within 0\.125 s"):
        await ask(core, connection, timeout=0.125)
    sent = len(fake.seen(Kind.GET_LAST_MESSAGE_ID))
    connection.close()
    with pytest.raises(NotConnected) as unsent:
        await ask(core, connection)
    assert len(fake.seen(Kind.GET_LAST_MESSAGE_ID)) == sent
    assert len({type(caught.value) for caught in (unknown, unanswered, unsent)}) == 3


@pytest.mark.asyncio
@pytest.mark.proves("C27", "C225")
async def test_request_deadlines_independent(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = swallow
    core = cores(fake.url, operation_timeout_seconds=9)
    connection = await connect(core, fake)
    ended: list[float] = []
    started = time.monotonic()

    async def one(timeout: float) -> None:
        with pytest.raises(Timeout):
            await ask(core, connection, timeout=timeout)
        ended.append(time.monotonic() - started - timeout)

    # Also one that is due before those registered earlier.
    await asyncio.gather(one(0.4), one(0.1), one(0.25))
    assert all(-0.01 <= late < 1.5 for late in ended)


@pytest.mark.asyncio
async def test_request_cancelled_is_removed(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = swallow
    core = cores(fake.url)
    connection = await connect(core, fake)
    task = asyncio.create_task(ask(core, connection))
    await asyncio.to_thread(fake.wait, Kind.GET_LAST_MESSAGE_ID)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert connection.core.next_deadline() is None


@pytest.mark.asyncio
@pytest.mark.proves("C40")
async def test_response_without_request_ignored(
    fake: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture
) -> None:
    core = cores(fake.url)
    connection = await connect(core, fake)
    with caplog.at_level(logging.DEBUG, "pulsar_native"):
        fake.peers[0].send(success(4711), failure(4712, pb.UnknownError), frame(Kind.PONG))
        assert await ask(core, connection)
    assert "4711" in caplog.text and "4712" in caplog.text
    assert connection.is_open


@pytest.mark.asyncio
async def test_lost_connection_fails_requests(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = swallow
    core = cores(fake.url)
    connection = await connect(core, fake)
    tasks = [asyncio.create_task(ask(core, connection)) for _ in range(3)]
    await asyncio.to_thread(fake.wait, Kind.GET_LAST_MESSAGE_ID, 3)
    started = time.monotonic()
    fake.peers[0].close(reset=True)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert time.monotonic() - started < 2
    assert [type(result) for result in results] == [ConnectError] * 3
    assert len({id(result) for result in results}) == 3


class RaisingAttempt:
    """A recorder of a connection whose method of this name raises."""

    def __init__(self, failing: str) -> None:
        self._failing = failing

    def opened(self) -> None:
        self._record("opened")

    def closed(self) -> None:
        self._record("closed")

    def failed(self, _error: Exception) -> None:
        raise AssertionError("only the pool calls it")

    def _record(self, name: str) -> None:
        if name == self._failing:
            raise ValueError(name)


async def open_with(core: ClientCore, broker: FakeBroker, attempt: RaisingAttempt) -> Connection:
    address = Address(HOST, broker.port)
    return await Connection.open(
        core.engine, core.config, physical=address, logical=address, tls=None, authentication=None, attempt=attempt
    )


@pytest.mark.asyncio
async def test_open_raising_recorder_closes_socket(fake: FakeBroker, cores: Cores) -> None:
    with pytest.raises(ValueError, match="opened"):
        await open_with(cores(fake.url), fake, RaisingAttempt("opened"))
    assert await asyncio.to_thread(fake.peer().gone.wait, 10)


@pytest.mark.asyncio
async def test_lost_connection_raising_recorder_notifies(fake: FakeBroker, cores: Cores) -> None:
    class Coordinator:
        def on_connection_lost(self, connection: Connection, reason: str) -> None:
            lost.append((connection, reason))

    lost: list[tuple[Connection, str]] = []
    connection = await open_with(cores(fake.url), fake, RaisingAttempt("closed"))
    connection.on_gone = lambda gone: lost.append((gone, "gone"))
    connection.add_coordinator(0, Coordinator())
    with pytest.raises(ValueError, match="closed"):
        connection.close("the test")
    assert lost == [(connection, "gone"), (connection, "the test")]


@pytest.mark.asyncio
async def test_unknown_command_skipped(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    connection = await connect(core, fake)
    # Of an unknown type, of a type that is known but never sent to clients, and for nobody we know.
    closing = pb.CommandCloseConsumer(consumer_id=77, request_id=1)
    fake.peers[0].send(
        b"\0\0\0\x06\0\0\0\x02\x08\x78",
        commands.flow(3, 1),
        frame(Kind.CLOSE_CONSUMER, close_consumer=closing),
        delivery(77, single_entry(b"x"), 0),
    )
    assert await ask(core, connection)
    assert connection.is_open


# --- hostile bytes ----------------------------------------------------------------------------------------------

HOSTILE = {
    "a frame over the limit": b"\x7f\xff\xff\xff\0\0\0\x08",
    "a command larger than its frame": b"\0\0\0\x08\0\0\0\x64aaaa",
    "an empty command": b"\0\0\0\x04\0\0\0\0",
    "no protobuf": b"\0\0\0\x08\0\0\0\x04\xff\xff\xff\xff",
    "a command without its fields": b"\0\0\0\x06\0\0\0\x02\x08\x0d",
    "connected a second time": frame(Kind.CONNECTED, connected=pb.CommandConnected(server_version="again")),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("what", HOSTILE)
async def test_hostile_frames_close_connection(fake: FakeBroker, cores: Cores, what: str) -> None:
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = lambda peer, command: [HOSTILE[what]]
    core = cores(fake.url)
    connection = await connect(core, fake)
    started = time.monotonic()
    results = await asyncio.gather(*(ask(core, connection) for _ in range(3)), return_exceptions=True)
    assert time.monotonic() - started < 2
    assert all(isinstance(result, PulsarException) for result in results)
    assert not connection.is_open and fake.peer().gone.wait(10)
    # And the next request dials again.
    assert await core.topic_partition_count("t", auto_create=True) == 0
    assert len(fake.peers) == 2


# --- keep-alive -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C14")
async def test_keep_alive_black_hole_closes_after_two_intervals(
    fake: FakeBroker, cores: Cores, subscribed: Callable[..., Any]
) -> None:
    interval = 0.2
    core = cores(fake.url, keep_alive_interval_seconds=interval, starting_backoff_interval_ms=20)
    consumer = await subscribed(core)
    assert consumer.is_connected
    started = time.monotonic()
    fake.peers[0].muted = True
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 2)
    assert time.monotonic() - started < 2 * interval + 1
    assert fake.peer().gone.wait(10)
    await until(lambda: consumer.is_connected)
    pings = [seen.at for seen in fake.seen(Kind.PING) if seen.peer.number == 0]
    assert len(pings) <= 2


@pytest.mark.asyncio
@pytest.mark.proves("C14")
async def test_keep_alive_responding_peer_kept(fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    core = cores(fake.url, keep_alive_interval_seconds=1000, connection_max_idle_seconds=0)
    connection = await connect(core, fake)
    for number in range(4):
        await clock.advance(700)
        # Answered behind any ping, as is the ping.
        await core.topic_partition_count("t", auto_create=True)
        assert len(fake.seen(Kind.PING)) == number
        await clock.advance(310)
        await core.topic_partition_count("t", auto_create=True)
        assert len(fake.seen(Kind.PING)) == number + 1
    assert connection.is_open and len(fake.peers) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C14")
async def test_keep_alive_disabled(fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    core = cores(fake.url, keep_alive_interval_seconds=0)
    await connect(core, fake)
    await clock.advance(1000)
    # Answered behind any ping.
    await core.topic_partition_count("t", auto_create=True)
    assert fake.seen(Kind.PING) == []


@pytest.mark.proves("C14")
def test_ping_answered_while_application_blocks(fake: FakeBroker) -> None:
    entered, leave = threading.Event(), threading.Event()

    def listener(_consumer: object, _message: object) -> None:
        entered.set()
        assert leave.wait(20)

    fake.answers[Kind.FLOW] = lambda peer, command: [delivery(command.flow.consumer_id, single_entry(b"x"), 0)]
    with pulsar_native.Client(fake.url) as client:
        client.subscribe("t", "s", message_listener=listener)
        assert entered.wait(10)
        before = time.monotonic()
        fake.peers[0].send(frame(Kind.PING))
        (pong,) = fake.wait(Kind.PONG)
        assert pong.at - before < 1
        leave.set()


# --- proxies that lie, and the rest -----------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_auth_challenge_answered_with_fresh_credentials(fake: FakeBroker, cores: Cores) -> None:
    plugin = Plugin(b"first")
    core = cores(fake.url, authentication=plugin)
    connection = await connect(core, fake)
    plugin.data = b"second"
    challenge = pb.CommandAuthChallenge(challenge=pb.AuthData(auth_method_name="mine", auth_data=b"refresh"))
    fake.peers[0].send(frame(Kind.AUTH_CHALLENGE, authChallenge=challenge))
    (answered,) = await asyncio.to_thread(fake.wait, Kind.AUTH_RESPONSE)
    assert answered.command.authResponse.response.auth_data == b"second"
    plugin.data = ValueError("no more")
    fake.peers[0].send(frame(Kind.AUTH_CHALLENGE, authChallenge=challenge))
    await until(lambda: not connection.is_open)


class CachingPlugin(Plugin):
    """A plug-in that gives the same credentials until it is told that they were refused."""

    def __init__(self, *data: bytes) -> None:
        super().__init__(data[0])
        self._others = list(data[1:])
        self.refused_in: list[int] = []

    def on_refused(self) -> None:
        """Give others from now on."""
        self.refused_in.append(threading.get_ident())
        self.data = self._others.pop(0)
        if isinstance(self.data, BaseException):
            raise self.data


REFRESH = pb.CommandAuthChallenge(challenge=pb.AuthData(auth_method_name="mine", auth_data=b"PulsarAuthRefresh"))


@pytest.mark.asyncio
async def test_auth_challenge_same_credentials_refused(fake: FakeBroker, cores: Cores) -> None:
    plugin = CachingPlugin(b"first", b"second", b"third")
    await connect(cores(fake.url, authentication=plugin), fake)
    assert not plugin.refused_in
    for count in (1, 2):
        fake.peers[0].send(frame(Kind.AUTH_CHALLENGE, authChallenge=REFRESH))
        await asyncio.to_thread(fake.wait, Kind.AUTH_RESPONSE, count)
    answers = [seen.command.authResponse.response.auth_data for seen in fake.seen(Kind.AUTH_RESPONSE)]
    assert answers == [b"second", b"third"]
    assert threading.get_ident() not in plugin.refused_in


@pytest.mark.asyncio
async def test_auth_challenge_renewed_credentials_kept(fake: FakeBroker, cores: Cores) -> None:
    plugin = CachingPlugin(b"first")
    await connect(cores(fake.url, authentication=plugin), fake)
    # For another connection, meanwhile.
    plugin.data = b"renewed"
    fake.peers[0].send(frame(Kind.AUTH_CHALLENGE, authChallenge=REFRESH))
    (answered,) = await asyncio.to_thread(fake.wait, Kind.AUTH_RESPONSE)
    assert answered.command.authResponse.response.auth_data == b"renewed" and not plugin.refused_in


@pytest.mark.asyncio
async def test_handshake_refused_tells_plugin(fake: FakeBroker, cores: Cores) -> None:
    def answer(peer: Peer, command: pb.BaseCommand) -> list[bytes]:
        if command.connect.auth_data == b"first":
            return [failure(-1 & (1 << 64) - 1, pb.AuthenticationError, "it has ended")]
        return list(usual(peer, command))

    usual, fake.answers[Kind.CONNECT] = fake.answers[Kind.CONNECT], answer
    plugin = CachingPlugin(b"first", b"second")
    core = cores(fake.url, authentication=plugin)
    with pytest.raises(AuthenticationError, match="it has ended"):
        await connect(core, fake)
    assert len(plugin.refused_in) == 1 and threading.get_ident() not in plugin.refused_in
    await connect(core, fake)
    assert len(plugin.refused_in) == 1


@pytest.mark.asyncio
async def test_handshake_refused_plugin_fails_logged(
    fake: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers[Kind.CONNECT] = lambda peer, command: [
        failure(-1 & (1 << 64) - 1, pb.AuthenticationError, "it has ended")
    ]
    plugin = CachingPlugin(b"first", SystemExit("topsecret"))  # type: ignore[arg-type]
    with pytest.raises(AuthenticationError, match="it has ended"):
        await connect(cores(fake.url, authentication=plugin), fake)
    assert "on_refused of the authentication plug-in failed with SystemExit" in caplog.text
    assert "topsecret" not in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "answer", ["topsecret", StopIteration("topsecret"), asyncio.CancelledError("topsecret")], ids=repr
)
async def test_auth_challenge_odd_answer_closes_connection(
    fake: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    plugin = Plugin(b"first")
    connection = await connect(cores(fake.url, authentication=plugin), fake)
    plugin.data = answer
    challenge = pb.CommandAuthChallenge(challenge=pb.AuthData(auth_method_name="mine", auth_data=b"refresh"))
    fake.peers[0].send(frame(Kind.AUTH_CHALLENGE, authChallenge=challenge))
    await until(lambda: not connection.is_open, 10)
    assert "Cannot refresh the credentials" in caplog.text and "topsecret" not in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_large_frames_both_directions(
    request: pytest.FixtureRequest, cores: Cores, subscribed: Callable[..., Any], certificates: Certificates, tls: bool
) -> None:
    fake: FakeBroker = request.getfixturevalue("tls_fake" if tls else "fake")
    body = bytes(range(256)) * 12_000  # several read buffers, and more than a socket takes at once
    fake.answers[Kind.FLOW] = lambda peer, command: [
        delivery(command.flow.consumer_id, single_entry(body), number) for number in range(3)
    ]
    core = cores(fake.url, **({"tls_trust_certs_file_path": str(certificates.authority)} if tls else {}))
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    outcomes: list[Any] = []

    def publish() -> None:
        for _ in range(3):
            producer.enqueue(body, b"", None, lambda error, place: outcomes.append(error))

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    consumer = await subscribed(core, receiver_queue_size=3)
    taken: list[Any] = []

    def all_there() -> bool:
        message = consumer.dequeue()
        if message is not None:
            taken.append(message)
        return len(taken) == 3 and len(outcomes) == 6

    await until(all_there)
    for thread in threads:
        thread.join()
    assert all(message.data() == body for message in taken)
    assert outcomes == [None] * 6
    assert all(parse_entry(seen.payload).body == body for seen in fake.seen(Kind.SEND))
    assert len(fake.peers) == 1


@pytest.mark.asyncio
async def test_tls_untrusted_certificate_raises(tls_fake: FakeBroker, cores: Cores) -> None:
    with pytest.raises(ConnectError, match=r"TLS with .* failed: .*"):
        await connect(cores(tls_fake.url), tls_fake)
    assert tls_fake.seen() == []


@pytest.mark.asyncio
async def test_tls_refused_certificate_is_the_clients(certificates: Certificates, cores: Cores) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server_certificate, certificates.server_key)
    context.load_verify_locations(certificates.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with FakeBroker(tls=context) as fake:
        core = cores(fake.url, tls_trust_certs_file_path=str(certificates.authority))
        with pytest.raises(ConnectError, match="HANDSHAKE_FAILURE; does it accept the client's certificate, or ask"):
            await connect(core, fake)


@pytest.mark.asyncio
async def test_connection_dropped_after_handshake(cores: Cores) -> None:
    with FakeBroker() as fake:

        def welcome_and_leave(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
            peer.send(frame(Kind.CONNECTED, connected=fake.connected))
            peer.close()
            return ()

        fake.answers[Kind.CONNECT] = welcome_and_leave
        core = cores(fake.url, operation_timeout_seconds=0.5, starting_backoff_interval_ms=50)
        with pytest.raises(PulsarException):
            await core.topic_partition_count("t", auto_create=True)
        # The time-out may come between a handshake and the loss of its connection.
        await until(lambda: core.pool.connections() == [])
        assert 2 <= len(fake.peers) < 30
