"""SOCKS5 handshake: what is sent, every refusal by its name, hostile answers, and nothing read of what follows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from pulsar_native.engine.socks5 import Socks5Proxy
from pulsar_native.exceptions import ConnectError
from pulsar_native.service_url import Address

PROXY = Address("proxy", 1080)
BROKER = Address("broker.internal", 6650)
LOGIN = (b"me", b"very-secret")
NAMED = b"\x05\x01\x00\x03\x0fbroker.internal\x19\xfa"
DONE = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x04\x38"


class Ends(NamedTuple):
    """The client's end of a connection to a proxy, and the proxy's."""

    client: socket.socket
    proxy: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    client, proxy = socket.socketpair()
    client.setblocking(False)
    proxy.setblocking(False)
    with client, proxy:
        yield Ends(client, proxy)


async def connect(ends: Ends, answer: bytes, login: tuple[bytes, bytes] | None = None, to: Address = BROKER) -> bytes:
    """Have the proxy, which says all at once, connect; return what it was sent."""
    ends.proxy.send(answer)
    async with asyncio.timeout(10):
        await Socks5Proxy(PROXY, login).connect(asyncio.get_running_loop(), ends.client, to)
    return ends.proxy.recv(1000)


@pytest.mark.parametrize(
    ("login", "chosen", "greeting"),
    [
        (None, b"\x05\x00", b"\x05\x01\x00"),
        (LOGIN, b"\x05\x00", b"\x05\x02\x00\x02"),
        (LOGIN, b"\x05\x02\x01\x00", b"\x05\x02\x00\x02\x01\x02me\x0bvery-secret"),
    ],
    ids=["no login", "login not wanted", "login"],
)
async def test_connect_by_name(ends: Ends, login: tuple[bytes, bytes] | None, chosen: bytes, greeting: bytes) -> None:
    assert await connect(ends, chosen + DONE + b"broker", login) == greeting + NAMED
    # What follows is the broker's.
    assert ends.client.recv(100) == b"broker"


@pytest.mark.parametrize(
    ("host", "encoded"),
    [
        ("127.0.0.1", b"\x01\x7f\x00\x00\x01"),
        ("::1", b"\x04" + bytes(15) + b"\x01"),
        ("bröker", b"\x03\x0dxn--brker-kua"),
        ("a" * 255, b"\x03\xff" + b"a" * 255),
    ],
)
async def test_connect_encodes_address(ends: Ends, host: str, encoded: bytes) -> None:
    sent = await connect(ends, b"\x05\x00" + DONE, to=Address(host, 1))
    assert sent == b"\x05\x01\x00\x05\x01\x00" + encoded + b"\x00\x01"


@pytest.mark.parametrize("host", ["a" * 256, "ä" * 64, "a..ö"])
async def test_connect_no_host_name_raises_before_sending(ends: Ends, host: str) -> None:
    with pytest.raises(ConnectError, match="is not a host name"):
        await connect(ends, b"\x05\x00" + DONE, to=Address(host, 1))
    with pytest.raises(BlockingIOError):
        ends.proxy.recv(1)


@pytest.mark.parametrize(
    "bound", [b"\x01" + bytes(6), b"\x04" + bytes(18), b"\x03\x00\x00\x00", b"\x03\x03out\x00\x01"]
)
async def test_connect_reads_each_kind_of_bound_address(ends: Ends, bound: bytes) -> None:
    await connect(ends, b"\x05\x00\x05\x00\x00" + bound + b"broker")
    assert ends.client.recv(100) == b"broker"


@pytest.mark.parametrize(
    ("code", "words", "retryable"),
    [
        (1, "it has failed", True),
        (2, "its rules do not allow", False),
        (3, "the network cannot be reached", True),
        (4, "the host cannot be reached", True),
        (5, "the connection was refused", True),
        (6, "took too long", True),
        (7, "does not make connections", False),
        (8, "this kind of address", False),
        (0x5B, "a reason that SOCKS5 does not have", True),
    ],
)
async def test_connect_refused_tells_why(ends: Ends, code: int, words: str, retryable: bool) -> None:
    with pytest.raises(
        ConnectError, match=rf"The SOCKS5 proxy proxy:1080 did not connect to broker\.internal:6650: .*{words}"
    ) as caught:
        await connect(ends, b"\x05\x00" + bytes([5, code, 0, 1]) + bytes(6))
    assert f"(code {code})" in str(caught.value) and caught.value.retryable is retryable


@pytest.mark.parametrize(
    ("login", "answer", "words", "retryable"),
    [
        (None, b"\x05\xff", "wants a user name and password: look at socks5_proxy_username", False),
        (None, b"\x05\x02", "wants a user name and password: look at socks5_proxy_username", False),
        (LOGIN, b"\x05\xff", "takes no user name and password, or not these", False),
        (LOGIN, b"\x05\x01", "takes no user name and password, or not these", False),
        (LOGIN, b"\x05\x02\x01\x01", "rejected socks5_proxy_username and socks5_proxy_password", False),
        (None, b"HTTP/1.1 400 Bad Request", "does not answer in SOCKS5", True),
        (None, b"\x04\x00", "does not answer in SOCKS5", True),
        (None, b"\x05\x00HTTP", "does not answer in SOCKS5", True),
        (None, b"\x05\x00\x05\x00\x00\x02", "an address of the unknown kind 2", True),
    ],
)
async def test_connect_hostile_answer_raises_without_secrets(
    ends: Ends, login: tuple[bytes, bytes] | None, answer: bytes, words: str, retryable: bool
) -> None:
    with pytest.raises(ConnectError, match=words) as caught:
        await connect(ends, answer, login)
    assert "secret" not in str(caught.value) and caught.value.retryable is retryable


@pytest.mark.parametrize("size", range(len(b"\x05\x02\x01\x00" + DONE)))
async def test_connect_cut_off_anywhere_raises(ends: Ends, size: int) -> None:
    ends.proxy.send((b"\x05\x02\x01\x00" + DONE)[:size])
    ends.proxy.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectError, match="closed the connection during its handshake"):
        await Socks5Proxy(PROXY, LOGIN).connect(asyncio.get_running_loop(), ends.client, BROKER)


async def test_connect_byte_by_byte(ends: Ends) -> None:
    connecting = asyncio.create_task(Socks5Proxy(PROXY, LOGIN).connect(asyncio.get_running_loop(), ends.client, BROKER))
    for byte in b"\x05\x02\x01\x00" + DONE:
        assert not connecting.done()
        ends.proxy.send(bytes([byte]))
        await asyncio.sleep(0.001)
    await connecting


def test_repr_has_no_login() -> None:
    assert repr(Socks5Proxy(PROXY, LOGIN)) == "Socks5Proxy(address=Address(host='proxy', port=1080))"
