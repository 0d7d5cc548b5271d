"""Proxies of a client between it and the brokers: where its sockets go.

Rules: every socket for the binary protocol is opened here, so that none goes round a proxy; the server name of the TLS
handshake is the broker's, whatever is in between; a function that returns the password is called off the loop.
"""

from __future__ import annotations

import socket
import ssl

from pulsar_native._callback_errors import result_of
from pulsar_native.config import ClientConfig
from pulsar_native.config.client import socks5_bytes
from pulsar_native.engine.loop import Engine, to_plugin_thread
from pulsar_native.engine.socks5 import Socks5Proxy
from pulsar_native.engine.transport import dial
from pulsar_native.exceptions import ErrorGettingAuthenticationData
from pulsar_native.service_url import Address


def first_hop(config: ClientConfig, address: Address) -> Address:
    """Return the address that is resolved and connected to here for a connection to a broker."""
    return config.socks5_address or config.proxy_address or address


async def dial_broker(
    engine: Engine, config: ClientConfig, address: Address, *, timeout: float, tls: ssl.SSLContext | None
) -> socket.socket:
    """Connect to a broker, or another host of a service URL, and finish TLS; raises `ConnectError`."""
    return await dial(
        engine,
        config.proxy_address or address,
        timeout=timeout,
        tls=tls,
        server_name=address.host,
        socks5=await _socks5_of(config),
    )


async def _socks5_of(config: ClientConfig) -> Socks5Proxy | None:
    address, name, password = config.socks5_address, config.socks5_proxy_username, config.socks5_proxy_password
    if address is None or name is None:
        return None if address is None else Socks5Proxy(address)
    if callable(password):
        password = await to_plugin_thread(result_of, "socks5_proxy_password", ErrorGettingAuthenticationData, password)
    login = socks5_bytes("socks5_proxy_username", name), socks5_bytes("socks5_proxy_password", password)
    return Socks5Proxy(address, login)
