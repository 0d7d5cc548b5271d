"""HTTP lookup: malformed responses, hosts in turn, late responses."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.auth import AuthenticationBasic, AuthenticationToken
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.http_lookup import HttpLookup
from pulsar_native.engine.lookup import BrokerOfTopic
from pulsar_native.enums import RegexSubscriptionMode
from pulsar_native.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    ErrorGettingAuthenticationData,
    LookupError,
    PulsarException,
    ReadError,
    ServiceUnitNotReady,
    Timeout,
    TooManyLookupRequestException,
    TopicNotFound,
)
from pulsar_native.service_url import Address
from pulsar_native.topic import TopicName
from support.fake_broker import FakeBroker
from support.http_peer import Answer, Asked, hanging_peer, http_peer

Cores = Callable[..., ClientCore]

TOPIC = TopicName.parse("t")


def said(status: int, reason: str) -> Answer:
    return Answer(status, json.dumps({"reason": reason}).encode())


def lookup_at(cores: Cores, url: str) -> HttpLookup:
    core = cores(url)
    return HttpLookup(core.engine, core.config, core.service)


def broker_at(**urls: str) -> Answer:
    return Answer(body=json.dumps(urls).encode())


@pytest.mark.asyncio
@pytest.mark.proves("C30")
async def test_http_lookup_request_and_address(cores: Cores) -> None:
    both = broker_at(brokerUrl="pulsar://plain:6650", brokerUrlTls="pulsar+ssl://safe:6651", nativeUrl="pulsar://x:1")
    with http_peer(lambda asked: both) as peer:
        core = cores(peer.url, listener_name="out side", authentication=AuthenticationBasic("me", "secret"))
        plain = Address("plain", 6650)
        name = TopicName.parse("non-persistent://a/b/c d%/ü".replace("/ü", "ü"))
        assert await core.lookup.broker_of(name) == BrokerOfTopic(plain, plain)
        (asked,) = peer.asked
        assert asked.path == "/lookup/v2/topic/non-persistent/a/b/c%20d%25%C3%BC?listenerName=out+side"
        assert asked.headers["Authorization"].startswith("Basic ")
        assert asked.headers["X-Pulsar-Auth-Method-Name"] == "basic"
        encrypted = cores(peer.url, use_tls=True)
        assert (await encrypted.lookup.broker_of(TOPIC)).logical == Address("safe", 6651)


@pytest.mark.asyncio
@pytest.mark.proves("C30")
@pytest.mark.parametrize(
    ("answer", "kind", "retryable"),
    [
        (Answer(401), AuthenticationError, False),
        (said(401, "Failed to authenticate"), AuthenticationError, False),
        (said(401, "Don't have permission"), AuthorizationError, False),
        (said(403, "no"), AuthorizationError, False),
        (said(404, "Namespace not found"), TopicNotFound, False),
        (Answer(404), LookupError, False),
        (said(412, "bad name"), LookupError, False),
        (said(429, "slow down"), TooManyLookupRequestException, True),
        (said(500, "oops"), LookupError, True),
        (said(503, "moving"), ServiceUnitNotReady, True),
        (Answer(body=b"<html>"), ReadError, True),
        (Answer(body=b"[]"), ReadError, True),
        (broker_at(brokerUrl=""), LookupError, True),
        (Answer(307, headers={"Location": "ftp://elsewhere/"}), ReadError, True),
        (Answer(307, headers={"Location": "/another/path"}), ReadError, True),
        (Answer(307, headers={"Location": "http://[bad"}), ReadError, True),
    ],
)
async def test_http_lookup_refusals(cores: Cores, answer: Answer, kind: type[PulsarException], retryable: bool) -> None:
    with http_peer(lambda asked: answer) as peer:
        core = cores(peer.url)
        with pytest.raises(kind) as caught:
            await core.lookup.broker_of(TOPIC)
        assert type(caught.value) is kind and caught.value.retryable is retryable
        assert caught.value.topic == TOPIC.full
        assert ("no credentials were given" in str(caught.value)) is (kind is AuthenticationError)


class Refreshing(AuthenticationToken):
    """A plug-in with another token after one was refused."""

    def __init__(self) -> None:
        super().__init__(lambda: f"token-{self.refused}")
        self.refused = 0

    def on_refused(self) -> None:
        self.refused += 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("answer", "refused"), [(Answer(401), 1), (said(403, "no"), 0)], ids=["401", "403"])
async def test_http_lookup_refused_credentials_reported(cores: Cores, answer: Answer, refused: int) -> None:
    plugin = Refreshing()
    with http_peer(lambda asked: answer) as peer:
        core = cores(peer.url, authentication=plugin)
        for _ in range(2):
            with pytest.raises(PulsarException):
                await core.lookup.broker_of(TOPIC)
    sent = [asked.headers["Authorization"] for asked in peer.asked]
    assert (plugin.refused, sent) == (2 * refused, ["Bearer token-0", f"Bearer token-{refused}"])


@pytest.mark.asyncio
async def test_http_lookup_transient_errors_retried(fake: FakeBroker, cores: Cores) -> None:
    answers = [said(503, "moving"), Answer(body=b""), broker_at(brokerUrl=fake.url)]
    with http_peer(lambda asked: answers[min(len(peer.asked) - 1, 2)]) as peer:
        core = cores(peer.url, starting_backoff_interval_ms=10)
        assert (await core.lookup.broker_of(TOPIC, core.deadline())).logical == Address("127.0.0.1", fake.port)
        assert len(peer.asked) == 3


@pytest.mark.asyncio
@pytest.mark.proves("C1")
async def test_http_lookup_dead_hosts_quarantined(fake: FakeBroker, cores: Cores) -> None:
    with http_peer(lambda asked: broker_at(brokerUrl=fake.url)) as gone:
        dead = gone.url.removeprefix("http://")
    with http_peer(lambda asked: broker_at(brokerUrl=fake.url)) as peer:
        live = peer.url.removeprefix("http://")
        core = cores(f"http://{dead},{live}")
        for _ in range(3):
            await core.lookup.broker_of(TOPIC)
        assert {str(core.pool.next_host()) for _ in range(4)} == {live}
    with pytest.raises(ConnectError) as caught:
        await core.lookup.broker_of(TOPIC)
    assert caught.value.topic == TOPIC.full


@pytest.mark.asyncio
async def test_http_lookup_no_response_times_out(cores: Cores) -> None:
    with hanging_peer() as peer:
        core = cores(peer.url, operation_timeout_seconds=0.3)
        with pytest.raises(Timeout, match=peer.url.removeprefix("http://")) as caught:
            await core.lookup.partitions(TOPIC, core.deadline())
        assert caught.value.topic == TOPIC.full


@pytest.mark.asyncio
async def test_http_lookup_silent_hosts_all_named(cores: Cores) -> None:
    with hanging_peer() as first, hanging_peer() as second:
        names = {peer.url.removeprefix("http://") for peer in (first, second)}
        core = cores("http://" + ",".join(names), operation_timeout_seconds=0.6)
        with pytest.raises(Timeout) as caught:
            await core.lookup.partitions(TOPIC, core.deadline())
        (last,) = names - {caught.value.message.partition("tried before: ")[2]}
        assert last in caught.value.message and (len(first.asked), len(second.asked)) == (1, 1)


@pytest.mark.asyncio
async def test_http_lookup_silent_host_next_one_asked(cores: Cores) -> None:
    with hanging_peer() as silent, http_peer(lambda asked: Answer(body=b'{"partitions": 3}')) as peer:
        core = cores(f"{silent.url},{peer.url.removeprefix('http://')}", operation_timeout_seconds=1)
        # In turn, from a random one; then the silent one is in quarantine.
        for _ in range(4):
            assert await core.lookup.partitions(TOPIC, core.deadline()) == 3
        assert len(silent.asked) == 1


@pytest.mark.asyncio
async def test_http_lookup_plugin_error_without_text(cores: Cores) -> None:
    class Broken(AuthenticationBasic):
        def http_headers(self) -> dict[str, str]:
            raise RuntimeError("very-secret")

    with http_peer(lambda asked: Answer()) as peer:
        core = cores(peer.url, authentication=Broken("me", "secret"))
        with pytest.raises(ErrorGettingAuthenticationData, match="RuntimeError") as caught:
            await core.lookup.broker_of(TOPIC)
        assert "very-secret" not in str(caught.value) and peer.asked == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (None, "returned NoneType, not dict"),
        ({"Authorization": "very-secret\n"}, "a value of 'Authorization' that is not one line of text"),
        (StopIteration("very-secret"), "failed with StopIteration"),
        (asyncio.CancelledError("very-secret"), "failed with CancelledError"),
    ],
    ids=repr,
)
async def test_http_lookup_plugin_odd_headers_raise(cores: Cores, headers: Any, words: str) -> None:
    class Odd(AuthenticationBasic):
        def http_headers(self) -> dict[str, str]:
            if isinstance(headers, BaseException):
                raise headers
            return headers  # type: ignore[no-any-return]

    with http_peer(lambda asked: Answer()) as peer:
        core = cores(peer.url, authentication=Odd("me", "secret"))
        with pytest.raises(ErrorGettingAuthenticationData, match=words) as caught:
            async with asyncio.timeout(10):
                await core.lookup.broker_of(TOPIC)
        text = str(caught.value)
        assert "http_headers of" in text and "very" not in text and peer.asked == []


@pytest.mark.asyncio
@pytest.mark.parametrize("secrets", [None, [None, 5], RuntimeError("very-secret")], ids=repr)
async def test_http_lookup_plugin_odd_secrets_keep_error(cores: Cores, secrets: Any) -> None:
    threads: list[int] = []

    class Odd(AuthenticationBasic):
        def secrets(self) -> list[str]:
            threads.append(threading.get_ident())
            if isinstance(secrets, BaseException):
                raise secrets
            return secrets  # type: ignore[no-any-return]

    with http_peer(lambda asked: said(403, "not for you")) as peer:
        core = cores(peer.url, authentication=Odd("me", "secret"))
        with pytest.raises(AuthorizationError, match="not for you") as caught:
            await core.lookup.broker_of(TOPIC)
    assert "very-secret" not in str(caught.value) and threading.get_ident() not in threads


@pytest.mark.asyncio
@pytest.mark.proves("C20")
async def test_http_lookup_response_before_change_discarded(fake: FakeBroker, cores: Cores) -> None:
    asked_once, leave = threading.Event(), threading.Event()

    def late(asked: Asked) -> Answer:
        if asked.path.startswith("/lookup"):
            asked_once.set()
            leave.wait(10)
            return broker_at(brokerUrl=fake.url)
        return Answer(body=b'{"partitions": 0}')

    with http_peer(late) as peer, FakeBroker() as second:
        core = cores(peer.url, starting_backoff_interval_ms=10)
        making: Any = asyncio.create_task(core.create_producer(ProducerConfig(topic="t"), None))
        await asyncio.to_thread(asked_once.wait, 10)
        await core.update_service_url(second.url)
        leave.set()
        assert (await making).is_connected
        assert fake.peers == [] and len(second.peers) == 1


@pytest.mark.parametrize("answered", [{}, {"partitions": True}, {"partitions": "3"}, [3], "three"])
async def test_http_lookup_no_partition_count_raises(cores: Cores, answered: Any) -> None:
    with http_peer(lambda asked: Answer(body=json.dumps(answered).encode())) as peer:
        with pytest.raises(ReadError) as caught:
            await lookup_at(cores, peer.url).partitions(TOPIC, True)
        assert caught.value.topic == TOPIC.full


@pytest.mark.parametrize("count", [-1, 100_001, 10**30])
async def test_http_lookup_partitions_out_of_range(cores: Cores, count: int) -> None:
    with http_peer(lambda asked: Answer(body=json.dumps({"partitions": count}).encode())) as peer:
        core = cores(peer.url, operation_timeout_seconds=0.2)
        with pytest.raises(ReadError, match="number of partitions is not from 0 to 100000") as caught:
            await core.lookup.partitions(TOPIC, core.deadline())
        assert caught.value.topic == TOPIC.full


async def test_http_lookup_topics_of_namespace(cores: Cores) -> None:
    answers = [
        Answer(body=b'["a", "b"]'),
        said(404, "Namespace does not exist"),
        Answer(body=b'{"a": 1}'),
        Answer(body=b"[1]"),
    ]
    with http_peer(lambda asked: answers.pop(0)) as peer:
        lookup = lookup_at(cores, peer.url)
        assert await lookup.topics_of_namespace("public/default", RegexSubscriptionMode.AllTopics) == ["a", "b"]
        assert peer.asked[0].path == "/admin/v2/namespaces/public/default/topics?mode=ALL"
        # A namespace that does not exist has no topics.
        assert await lookup.topics_of_namespace("public/none", RegexSubscriptionMode.PersistentOnly) == []
        for _ in range(2):
            with pytest.raises(ReadError, match="something else than a list of topics"):
                await lookup.topics_of_namespace("public/default", RegexSubscriptionMode.PersistentOnly)


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        ({"type": "HOLOGRAM", "data": ""}, "unknown kind 'HOLOGRAM' of schema"),
        ({"type": "KEY_VALUE", "data": "{"}, "key-value schema that cannot be read"),
        ({"type": "KEY_VALUE", "data": "\ud800"}, "schema that cannot be read"),
        ({"type": "STRING", "data": "\ud800"}, "schema that cannot be read"),
        ({"type": "STRING", "data": "", "properties": {"\ud800": "x"}}, "schema that cannot be read"),
        ({"type": "STRING", "data": "", "version": 10**30}, "schema that cannot be read"),
        ({"type": "STRING", "data": "", "properties": "abc"}, "without text as data or an object as properties"),
        ({"type": "STRING", "data": "", "properties": [1]}, "without text as data or an object as properties"),
        ({"type": "AVRO", "data": {"type": "int"}}, "without text as data or an object as properties"),
    ],
)
async def test_http_lookup_unreadable_schema_raises(cores: Cores, answered: dict[str, Any], words: str) -> None:
    with (
        http_peer(lambda asked: Answer(body=json.dumps(answered).encode())) as peer,
        pytest.raises(ReadError, match=words),
    ):
        await lookup_at(cores, peer.url).schema(TOPIC, None)


async def test_http_lookup_plugin_refusal_passes_on(cores: Cores) -> None:
    class Refusing(AuthenticationBasic):
        def http_headers(self) -> dict[str, str]:
            raise ErrorGettingAuthenticationData("no token in the vault")

    with http_peer(lambda asked: Answer()) as peer:
        core = cores(peer.url, authentication=Refusing("me", "secret"))
        with pytest.raises(ErrorGettingAuthenticationData, match="no token in the vault"):
            await core.lookup.broker_of(TOPIC)
        assert peer.asked == []
