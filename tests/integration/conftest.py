"""What the integration tests share: both APIs, clients of the shared broker, and reading back what was published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_native import Client, MessageId
from support.apis import Api
from support.brokers import Broker
from support.push_consumers import Started
from support.until import wait_until


@pytest.fixture(params=["blocking", "asyncio"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """Give each of the two APIs in turn."""
    made = Api(request.param)
    yield made
    made.close()


@pytest.fixture
def client(api: Api, broker: Broker) -> Any:
    """Give a client of the API on the shared broker."""
    return api.client(broker.service_url)


@pytest.fixture
def consume(api: Api) -> Iterator[Started]:
    """Give a function that starts push consumers of the API, which are shut down after the test."""
    made = Started(api)
    yield made
    made.close()


@pytest.fixture
def plain_client(broker: Broker) -> Iterator[Client]:
    """Give a blocking client, where the API makes no difference."""
    with Client(broker.service_url) as made:
        yield made


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Give a function that asks until the answer is true, and returns it; fails after `seconds`."""
    return wait_until


@pytest.fixture
def read_all(broker: Broker) -> Callable[..., list[Any]]:
    """Give a function that reads a topic (or a partition) from its first message to its last."""

    def read(topic: str, service_url: str = broker.service_url) -> list[Any]:
        with Client(service_url) as reading:
            messages = []
            for name in reading.get_topic_partitions(topic):
                with reading.create_reader(name, MessageId.earliest) as reader:
                    while reader.has_message_available():
                        messages.append(reader.read_next(20_000))
            return messages

    return read


@pytest.fixture
def stats(broker: Broker) -> Callable[[str], Any]:
    """Give a function that returns the admin statistics of a topic."""

    def ask(topic: str) -> Any:
        return broker.admin("GET", topic.replace("://", "/") + "/stats?getPreciseBacklog=true")

    return ask


@pytest.fixture
def backlog(stats: Callable[[str], Any]) -> Callable[[str], int]:
    """Give a function that returns how many messages the subscription "sub" has not had acknowledged."""
    return lambda name: int(stats(name)["subscriptions"]["sub"]["msgBacklog"])
