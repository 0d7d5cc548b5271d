"""The proxies of the tests lead where they should."""

from __future__ import annotations

import socket
import ssl

import pytest

from support.proxies import HOST, SniProxy, Socks5Server, server_name_of


def hello(name: str) -> bytes:
    """Return the first bytes of a TLS client that wants this host."""
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


def test_server_name_of_whole_hello_only() -> None:
    whole = hello("broker.internal")
    assert server_name_of(whole) == ["broker.internal"] and server_name_of(whole[:100]) == []
    assert server_name_of(hello("127.0.0.1")) == [None] and server_name_of(b"GET / HTTP/1.1\r\n\r\n") == []


def test_sni_proxy_leads_by_name() -> None:
    with socket.create_server((HOST, 0)) as target, SniProxy({"a.internal": target.getsockname()[1]}) as proxy:
        whole = hello("a.internal")
        with socket.create_connection((HOST, proxy.port), timeout=10) as client:
            client.sendall(whole[:50])
            client.sendall(whole[50:])
            there, _ = target.accept()
            with there:
                assert there.recv(65536) == whole
                there.sendall(b"back")
                assert client.recv(100) == b"back"
        with socket.create_connection((HOST, proxy.port), timeout=10) as client:
            client.sendall(hello("b.internal"))
            assert client.recv(100) == b""
    assert proxy.names == ["a.internal", "b.internal"]


@pytest.mark.parametrize("login", [None, ("me", "secret")])
def test_socks5_server_connects_and_refuses(login: tuple[str, str] | None) -> None:
    begin = b"\x05\x01\x00" if login is None else b"\x05\x02\x00\x02\x01\x02me\x06secret"
    chosen = b"\x05\x00" if login is None else b"\x05\x02\x01\x00"
    with socket.create_server((HOST, 0)) as target, Socks5Server({"a.internal": HOST}, login) as proxy:
        port = target.getsockname()[1]
        for address in (b"\x03\x0aa.internal", b"\x01" + socket.inet_aton(HOST)):
            with socket.create_connection((HOST, proxy.port), timeout=10) as client:
                client.sendall(begin + b"\x05\x01\x00" + address + port.to_bytes(2))
                there, _ = target.accept()
                with there:
                    there.sendall(b"back")
                    answer = client.makefile("rb").read(len(chosen) + 14)
                    assert answer == chosen + b"\x05\x00\x00\x03\x03out\x00\x00back"
        with socket.create_connection((HOST, proxy.port), timeout=10) as client:
            client.sendall(begin + b"\x05\x01\x00\x03\x0bno.internal\x00\x01")
            assert client.makefile("rb").read()[len(chosen) :][:2] == b"\x05\x04"
    assert proxy.asked == [("a.internal", port), (HOST, port), ("no.internal", 1)]
    assert proxy.logins == ([] if login is None else [login] * 3)
