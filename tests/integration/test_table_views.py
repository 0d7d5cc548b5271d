"""Table views on a real broker: the newest value of every key, kept up to date."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import BytesSchema, Client, CryptoKeyReader, InvalidConfiguration, InvalidTopicName, TableView
from pulsar_native.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.compaction import compact
from support.key_files import key_pair
from support.relay import NewRelay

Eventually = Callable[..., Any]
Change = tuple[str, Any]


class Numbers(BytesSchema):
    """A schema that cannot read everything."""

    def decode(self, data: bytes) -> Any:
        return int(data)


class Price(Record):
    """A value of a table."""

    name = String()
    cents = Integer()


def put(client: Any, name: str, *changes: tuple[str | None, Any], schema: Any = None) -> None:
    """Publish keys with values; None as the value is a null value."""
    producer = client.create_producer(name, schema=schema or StringSchema())
    for key, value in changes:
        producer.send(value, **({} if key is None else {"partition_key": key}))
    producer.close()


def table(view: Any) -> dict[str, Any]:
    """Return what a view holds now."""
    return dict(view.snapshot())


def test_all_there_is_and_all_that_follows(api: Api, client: Any, topic: NewTopic, eventually: Eventually) -> None:
    name = topic()
    put(client, name, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", None))
    view = client.create_table_view(name, schema=StringSchema())
    # Complete when it is handed out.
    assert table(view) == {"a": "2", "b": "1"}
    assert view.get("a") == "2" and view.get("c") is None and view.get("c", "none") == "none"
    put(client, name, ("d", "1"), ("b", None), ("a", "3"))
    eventually(lambda: table(view) == {"a": "3", "d": "1"})
    # An empty payload removes a key as well: compaction does so, too. Without a key a message is nobody's value.
    put(client, name, ("d", b""), (None, b"nobody"), schema=BytesSchema())
    put(client, name, ("e", "1"))
    view.refresh()
    assert table(view) == {"a": "3", "e": "1"}
    assert view.topic() == name and view.is_connected()
    view.close()
    view.close()
    assert table(view) == {"a": "3", "e": "1"} and not view.is_connected()


def test_a_view_is_a_mapping(plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    put(plain_client, name, ("a", "1"), ("b", "2"))
    with plain_client.create_table_view(name, schema=StringSchema()) as view:
        assert isinstance(view, TableView) and isinstance(view, Mapping)
        assert len(view) == 2 and set(view) == {"a", "b"} and "a" in view and "z" not in view
        assert view["b"] == "2" and dict(view) == {"a": "1", "b": "2"} == view
        assert sorted(view.items()) == [("a", "1"), ("b", "2")] and sorted(view.values()) == ["1", "2"]
        with pytest.raises(KeyError):
            view["z"]
        # Changing while somebody goes over it does him no harm.
        for number, _ in enumerate(view.items()):
            put(plain_client, name, (f"new{number}", "x"), ("a", None))
            view.refresh()
        assert "a" not in view and len(view) == 3
        assert not hasattr(view, "__setitem__")


def test_refresh_waits_for_what_was_published(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=2)
    view = client.create_table_view(name, schema=StringSchema())
    producer = client.create_producer(name, schema=StringSchema())
    for number in range(30):
        producer.send(str(number), partition_key=f"k{number % 7}")
        view.refresh()
        assert view.get(f"k{number % 7}") == str(number)


def test_listeners_hear_everything_once(api: Api, client: Any, topic: NewTopic, eventually: Eventually) -> None:
    name = topic()
    put(client, name, ("a", "1"), ("b", "1"))
    view = client.create_table_view(name, schema=StringSchema())
    there: list[Change] = []
    later: list[Change] = []
    whole: list[Change] = []

    def failing(key: str, value: Any) -> None:
        raise RuntimeError("as the test wants it")

    view.for_each(lambda key, value: there.append((key, value)))
    view.listen(failing)
    view.listen(lambda key, value: later.append((key, value)))
    view.for_each_and_listen(lambda key, value: whole.append((key, value)))
    assert sorted(there) == [("a", "1"), ("b", "1")] == sorted(whole) and later == []
    changes: list[Change] = [("a", "2"), ("b", None), ("c", "1"), ("a", "3")]
    put(client, name, *changes)
    eventually(lambda: whole[2:] == changes == later)
    assert len(there) == 2 and table(view) == {"a": "3", "c": "1"}
    with pytest.raises(RuntimeError, match="as the test"):
        view.for_each(failing)


def test_who_begins_to_listen_in_the_middle_misses_nothing(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    view = client.create_table_view(name, schema=StringSchema())

    def write() -> None:
        with Client(broker.service_url) as other:
            producer = other.create_producer(
                name, schema=StringSchema(), batching_enabled=True, batching_max_messages=50, block_if_queue_full=True
            )
            for number in range(3000):
                producer.send_async(str(number), lambda result, place: None, partition_key="k")
            producer.flush()

    writing = threading.Thread(target=write)
    writing.start()
    heard: list[list[int]] = []
    eventually(lambda: view.get("k"))
    for _ in range(10):
        values: list[int] = []
        heard.append(values)
        view.for_each_and_listen(lambda key, value, values=values: values.append(int(value)))
    writing.join(60)
    for values in heard:
        eventually(lambda values=values: bool(values) and values[-1] == 2999)
        assert values == list(range(values[0], 3000)), "in order, without a gap, nothing twice"


def test_a_compacted_topic(api: Api, client: Any, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    put(client, name, *((f"k{number % 5}", str(number)) for number in range(50)), ("k0", None))
    compact(broker, name)
    put(client, name, ("k1", "late"), ("k2", None))
    view = client.create_table_view(name, schema=StringSchema())
    assert table(view) == {"k1": "late", "k3": "48", "k4": "49"}
    inner = (view.target if api.name == "asyncio" else view)._inner
    assert inner.config.is_read_compacted


def test_a_topic_whose_keys_were_all_removed(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    put(client, name, ("a", "1"), ("b", "1"), ("a", None), ("b", None))
    compact(broker, name)
    # Nothing of it is delivered, and there is no end to wait for.
    view = client.create_table_view(name, schema=StringSchema())
    assert table(view) == {}
    put(client, name, ("c", "1"))
    view.refresh()
    assert table(view) == {"c": "1"}


def test_partitions_and_their_growth(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic(partitions=2)
    put(client, name, *((f"k{number}", str(number)) for number in range(20)))
    view = client.create_table_view(name, "mine", schema=StringSchema(), auto_update_partitions_interval_seconds=0.3)
    assert table(view) == {f"k{number}": str(number) for number in range(20)}
    path = name.replace("://", "/")
    found: Any = broker.admin("GET", f"{path}-partition-0/stats")
    assert set(found["subscriptions"]) == {"mine"} and not found["subscriptions"]["mine"]["durable"]
    broker.admin("POST", f"{path}/partitions", 4)
    # Written before the view can know of the partition.
    put(client, f"{name}-partition-3", ("grown", "1"))
    eventually(lambda: view.get("grown") == "1")
    assert len(table(view)) == 21


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_values_of_a_schema(api: Api, client: Any, topic: NewTopic, kind: Any) -> None:
    name = topic()
    put(client, name, ("a", Price(name="a", cents=1)), ("b", Price(name="b", cents=2)), schema=kind(Price))
    view = client.create_table_view(name, schema=kind(Price))
    assert {key: value.cents for key, value in table(view).items()} == {"a": 1, "b": 2}
    put(client, name, ("a", Price(name="a", cents=3)), schema=kind(Price))
    view.refresh()
    assert view.get("a").cents == 3


def test_a_value_that_cannot_be_read_leaves_the_one_before(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name)
    producer.send(b"none", partition_key="never")
    producer.send(b"7", partition_key="n")
    view = client.create_table_view(name, schema=Numbers())
    assert table(view) == {"n": 7}
    producer.send(b"seven", partition_key="n")
    view.refresh()
    assert table(view) == {"n": 7}
    producer.send(b"8", partition_key="n")
    view.refresh()
    assert table(view) == {"n": 8}


def test_a_lost_connection_loses_no_change(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    put(client, name, ("a", "1"))
    through = relay(broker.service_url)
    view = api.client(through.service_url, starting_backoff_interval_ms=20).create_table_view(
        name, schema=StringSchema()
    )
    for number in range(2, 6):
        through.cut()
        put(client, name, ("a", str(number)), (f"k{number}", "x"))
        eventually(lambda number=number: view.get("a") == str(number))
    broker.admin("PUT", name.replace("://", "/") + "/unload")
    put(client, name, ("a", None))
    eventually(lambda: table(view) == {f"k{number}": "x" for number in range(2, 6)})


def test_values_that_are_encrypted(api: Api, client: Any, topic: NewTopic, tmp_path: Path) -> None:
    name, reader = topic(), CryptoKeyReader(*key_pair(tmp_path))
    producer = client.create_producer(name, encryption_key="mine", crypto_key_reader=reader)
    producer.send(b"secret", partition_key="a")
    view = client.create_table_view(name, crypto_key_reader=reader)
    assert table(view) == {"a": b"secret"}
    producer.send(b"more", partition_key="b")
    view.refresh()
    assert table(view) == {"a": b"secret", "b": b"more"}


def test_a_non_persistent_topic_is_followed_from_now_on(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic().replace("persistent://", "non-persistent://")
    view = client.create_table_view(name, schema=StringSchema())
    assert table(view) == {}
    view.refresh()
    put(client, name, ("a", "1"))
    eventually(lambda: table(view) == {"a": "1"})


def test_wrong_arguments_fail_before_any_io(api: Api, broker: Broker, relay: NewRelay) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    with pytest.raises(InvalidTopicName):
        client.create_table_view("a/b")
    with pytest.raises(InvalidConfiguration, match="subscription_name"):
        client.create_table_view("a", 5)
    with pytest.raises(InvalidConfiguration, match="auto_update_partitions_interval_seconds"):
        client.create_table_view("a", auto_update_partitions_interval_seconds=0)
    assert through.accepted == 0


def test_the_client_closes_its_views(api: Api, broker: Broker, topic: NewTopic) -> None:
    client = api.client(broker.service_url)
    view = client.create_table_view(topic())
    client.close()
    assert not view.is_connected() and table(view) == {}


def test_a_changed_record_is_the_callers_own(api: Api, client: Any, topic: NewTopic, eventually: Eventually) -> None:
    name, schema = topic(), JsonSchema(Price)
    put(client, name, ("tea", Price(name="tea", cents=250)), schema=schema)
    view = client.create_table_view(name, schema=schema)
    seen: list[int] = []

    def rob(_key: str, price: Any) -> None:
        seen.append(price.cents)
        price.cents = 0

    view.for_each(rob)
    view.for_each_and_listen(rob)
    view.listen(rob)
    view.get("tea").cents = 0
    assert view.get("tea") == Price(name="tea", cents=250) and seen == [250, 250]
    put(client, name, ("tea", Price(name="tea", cents=300)), schema=schema)
    eventually(lambda: seen == [250, 250, 300, 300])
    assert table(view) == {"tea": Price(name="tea", cents=300)}
