"""Producers on a topic whose backlog is at its quota: refused, or held until there is room, on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    MessageId,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    PulsarException,
    Result,
)
from support.apis import Api
from support.brokers import Broker, NewTopic

Eventually = Callable[..., Any]


class Quota:
    """A topic in a namespace of its own whose quota one message fills."""

    def __init__(self, broker: Broker, space: str, name: str, client: Any, policy: str) -> None:
        self._broker = broker
        self._path = f"namespaces/{space}/backlogQuota?backlogQuotaType=destination_storage"
        self.topic = name
        self.limit(10, policy)
        client.subscribe(name, "never reads")
        self.producer = client.create_producer(name, send_timeout_millis=0)
        self.producer.send(bytes(1000))

    def limit(self, size: int, policy: str) -> None:
        self._broker.admin("POST", self._path, {"limitSize": size, "limitTime": -1, "policy": policy})

    def move(self) -> None:
        """Have the broker put the producer out: it finds out when it comes back."""
        self._broker.admin("PUT", self.topic.replace("://", "/") + "/unload")

    def is_closed_to(self, client: Any, error: type[PulsarException]) -> bool:
        """Return whether a further producer is refused so; the policy takes its time to arrive."""
        try:
            client.create_producer(self.topic).close()
        except error:
            return True
        return False


@pytest.mark.proves("C69")
def test_a_full_topic_that_refuses(
    api: Api, client: Any, broker: Broker, namespace: Callable[[], str], topic: NewTopic, eventually: Eventually
) -> None:
    space = namespace()
    quota = Quota(broker, space, topic(namespace=space), client, "producer_exception")
    eventually(lambda: quota.is_closed_to(client, ProducerBlockedQuotaExceededException))
    quota.move()
    eventually(lambda: not quota.producer.is_connected())
    # Each attempt to come back fails what was sent meanwhile.
    for _ in range(2):
        outcomes = [api.enqueue(quota.producer, b"x") for _ in range(3)]
        assert {each.result(20)[0] for each in outcomes} == {Result.ProducerBlockedQuotaExceededException}
    quota.limit(10**9, "producer_exception")
    eventually(quota.producer.is_connected)
    assert quota.producer.send(b"again").entry_id() >= 0


@pytest.mark.proves("C69")
def test_a_full_topic_that_holds(
    api: Api, broker: Broker, namespace: Callable[[], str], topic: NewTopic, eventually: Eventually
) -> None:
    space = namespace()
    client = api.client(broker.service_url, operation_timeout_seconds=2)
    quota = Quota(broker, space, topic(namespace=space), client, "producer_request_hold")
    # Creating another one goes on trying for as long as the operation may take.
    eventually(lambda: quota.is_closed_to(client, ProducerBlockedQuotaExceededError))
    quota.move()
    eventually(lambda: not quota.producer.is_connected())
    outcomes = [api.enqueue(quota.producer, b"%d" % number) for number in range(3)]
    with pytest.raises(ProducerBlockedQuotaExceededError):
        client.create_producer(quota.topic)
    assert not any(each.done() for each in outcomes), "held, not failed"
    quota.limit(10**9, "producer_request_hold")
    assert {each.result(30)[0] for each in outcomes} == {Result.Ok}
    reader = client.create_reader(quota.topic, MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(4)][1:] == [b"0", b"1", b"2"]
