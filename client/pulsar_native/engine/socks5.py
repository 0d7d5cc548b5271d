"""Client side of SOCKS5 (RFC 1928), with user name and password (RFC 1929): CONNECT, names resolved by the proxy.

Rules: exactly the proxy's bytes are read, never one of the broker's; the caller limits the time; no text has the user
name or the password.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field

from pulsar_native.exceptions import ConnectError
from pulsar_native.service_url import Address

_NO_LOGIN, _LOGIN = 0, 2
_IPV4, _NAME, _IPV6 = 1, 3, 4
_SIZES = {_IPV4: 4, _IPV6: 16}
# By reply code: what the proxy says, and whether it may say something else later.
_REPLIES = {
    1: ("it has failed", True),
    2: ("its rules do not allow the connection", False),
    3: ("the network cannot be reached from there", True),
    4: ("the host cannot be reached from there, or its name is not known there", True),
    5: ("the connection was refused", True),
    6: ("the connection took too long", True),
    7: ("it does not make connections for its clients", False),
    8: ("it does not know this kind of address", False),
}


@dataclass(frozen=True)
class Socks5Proxy:
    """Address of a proxy, and the login there: user name and password as bytes, or None."""

    address: Address
    login: tuple[bytes, bytes] | None = field(default=None, repr=False)

    async def connect(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, target: Address) -> None:
        """Have the proxy at the other end of a non-blocking socket connect to the target; raises `ConnectError`."""
        destination = _encoded(target)
        methods = bytes([_NO_LOGIN]) if self.login is None else bytes([_NO_LOGIN, _LOGIN])
        await loop.sock_sendall(sock, bytes([5, len(methods)]) + methods)
        version, method = await self._read(loop, sock, 2)
        if version != 5:
            raise self._failure("does not answer in SOCKS5; is this its port?")
        if method == _LOGIN and self.login is not None:
            await self._log_in(loop, sock, *self.login)
        elif method != _NO_LOGIN:
            given = "takes no user name and password, or not these" if self.login else "wants a user name and password"
            raise self._failure(f"{given}: look at socks5_proxy_username and socks5_proxy_password", False)
        await loop.sock_sendall(sock, bytes([5, 1, 0]) + destination + target.port.to_bytes(2))
        version, code, _, kind = await self._read(loop, sock, 4)
        if version != 5:
            raise self._failure("does not answer in SOCKS5; is this its port?")
        if code != 0:
            reason, may_change = _REPLIES.get(code, ("for a reason that SOCKS5 does not have", True))
            raise self._failure(f"did not connect to {target}: {reason} (code {code})", may_change)
        size = (await self._read(loop, sock, 1))[0] if kind == _NAME else _SIZES.get(kind)
        if size is None:
            raise self._failure(f"answered with an address of the unknown kind {kind}")
        await self._read(loop, sock, size + 2)

    async def _log_in(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, name: bytes, password: bytes) -> None:
        await loop.sock_sendall(sock, bytes([1, len(name)]) + name + bytes([len(password)]) + password)
        _, status = await self._read(loop, sock, 2)
        if status != 0:
            raise self._failure("rejected socks5_proxy_username and socks5_proxy_password", False)

    async def _read(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = await loop.sock_recv(sock, size - len(found))
            if not more:
                raise self._failure("closed the connection during its handshake")
            found += more
        return found

    def _failure(self, what: str, retryable: bool = True) -> ConnectError:
        error = ConnectError(f"The SOCKS5 proxy {self.address} {what}", broker=str(self.address))
        error.retryable = retryable
        return error


def _encoded(target: Address) -> bytes:
    for kind, family in ((_IPV4, socket.AF_INET), (_IPV6, socket.AF_INET6)):
        with contextlib.suppress(OSError, ValueError):
            return bytes([kind]) + socket.inet_pton(family, target.host)
    try:
        name = target.host.encode("ascii" if target.host.isascii() else "idna")
        return bytes([_NAME, len(name)]) + name
    except ValueError as error:
        # No name, or one of more than 255 bytes.
        raise ConnectError(f"{target.host[:300]!r} is not a host name", broker=str(target)[:300]) from error
