"""MessageSensor on the real broker: matching, handing over, acknowledging on success, in every mode."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, TaskDeferred
from airflow.sdk.serde import deserialize, serialize

from airflow_provider_pulsar.assets.pulsar import cluster_uri
from airflow_provider_pulsar.sensors.message import MessageSensor
from airflow_provider_pulsar.triggers.message import MessageTrigger
from pulsar_native import AdminClient, Client, CryptoKeyReader, InitialPosition, Message
from pulsar_native.exceptions import Timeout
from pulsar_native.jobs.watching_message import acknowledge_found
from pulsar_native.schema import AvroSchema
from support.brokers import Broker, NewTopic
from support.key_files import key_pair
from support.relay import Relay
from support.tasks import StateStore, context_of, define_connection
from support.waiting import MODES, complete, event_of, options_of, wait_with

pytestmark = pytest.mark.usefixtures("pulsar_conn")


def sensor(topic: str, mode: str = "poke", **options: Any) -> MessageSensor:
    options = {"poke_interval": 0.2, "timeout": 20, **options_of(mode), **options}
    return MessageSensor(task_id="a_task", topic=topic, subscription="s", **options)


def publish(client: Client, topic: str, *messages: tuple[str | None, bytes], batch: bool = True) -> None:
    producer = client.create_producer(topic, batching_enabled=batch, block_if_queue_full=True)
    for key, value in messages:
        producer.send_async(value, None, partition_key=key, properties={"region": "eu" if key == "a" else "us"})
    producer.flush()
    producer.close()


def left_in(client: Client, topic: str, subscription: str = "s") -> list[bytes]:
    """Consume what the subscription still has."""
    consumer = client.subscribe(topic, subscription, initial_position=InitialPosition.Earliest)
    found: list[Message] = []
    try:
        while True:
            found.append(consumer.receive(1500))
    except Timeout:
        return sorted(message.data() for message in found)
    finally:
        consumer.close()


@pytest.mark.proves("A16")
@pytest.mark.parametrize("mode", MODES)
def test_matching_message_is_handed_over_and_acknowledged(mode: str, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    client.subscribe(name, "s", initial_position=InitialPosition.Earliest).close()
    publish(client, name, ("b", b"other"), ("b", b"another"))
    later = threading.Timer(1, publish, (client, name, ("a", b"the one"), ("a", b"later")))
    later.start()
    found = wait_with(sensor(name, mode, match={"key": ["a", "z"], "properties": {"region": "eu"}}), mode)
    later.join()
    assert (found["value"], found["key"], found["encoding"]) == ("the one", "a", "text") and "ids" not in found
    assert found["topic"].startswith(name) and found["properties"] == {"region": "eu"}
    assert left_in(client, name) == [b"another", b"later", b"other"]


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_message_not_acknowledged_stays(mode: str, client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, ("a", b"1"), ("a", b"2"))
    for _ in range(2):
        assert wait_with(sensor(name, mode, acknowledge=False), mode)["value"] == "1"
    assert left_in(client, name) == [b"1", b"2"]


def test_each_run_gets_the_next_message(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, ("a", b"1"), ("b", b"x"), ("a", b"2"))
    taken = [wait_with(sensor(name, mode, match={"key": "a"}), mode)["value"] for mode in ("poke", "deferrable")]
    assert taken == ["1", "2"]
    with pytest.raises(AirflowSensorTimeout, match=r"that matches \{'key': 'a'\} .*last: none of \d+ messages matches"):
        wait_with(sensor(name, match={"key": "a"}, timeout=3), "poke")
    assert left_in(client, name) == [b"x"]


def test_unmatched_messages_are_acknowledged_if_told(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, *[("b", b"%d" % number) for number in range(250)], ("a", b"a"), ("b", b"last"))
    found = wait_with(sensor(name, match={"key": "a"}, unmatched="acknowledge"), "poke")
    assert found["value"] == "a" and left_in(client, name) == [b"last"]


@pytest.mark.proves("A15")
def test_match_on_the_decoded_value(client: Client, topic: NewTopic) -> None:
    name = topic()
    definition = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    producer = client.create_producer(name, schema=AvroSchema(None, definition))
    for number in range(5):
        producer.send({"id": number})
    found = wait_with(sensor(name, match={"jsonpath": "@.id >= 3"}), "poke")
    assert (found["value"], found["encoding"]) == ({"id": 3}, "json")


@pytest.mark.parametrize("decode", ["auto", "text"])
def test_match_jsonpath_reads_text_as_json(decode: str, client: Client, topic: NewTopic) -> None:
    name = topic()
    deep = b"[" * 100_000
    publish(client, name, ("a", b"free"), ("a", b"\xff"), ("a", deep), ("a", b'{"status": "paid"}'), ("a", b"an ERROR"))
    found = wait_with(sensor(name, match={"jsonpath": "@.status == 'paid'"}, decode=decode), "poke")
    assert (found["value"], found["encoding"]) == ('{"status": "paid"}', "text")
    # Text that is not JSON is tested as it is.
    found = wait_with(sensor(name, match={"jsonpath": "search(@, 'ERROR')"}, decode=decode), "deferrable")
    assert found["value"] == "an ERROR"


def test_undecodable_message_matches_by_key_only(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, ("a", b"\xff\x00"), ("a", b"[" * 100_000), ("a", b'{"id": 1}'))
    by_value = sensor(name, match={"key": "a", "jsonpath": "$.id"}, decode="json", acknowledge=False)
    assert wait_with(by_value, "poke")["value"] == {"id": 1}
    found = wait_with(sensor(name, match={"key": "a"}, decode="json"), "deferrable")
    assert (found["value"], found["encoding"]) == ("/wA=", "base64") and "not JSON" in found["error"]


@pytest.mark.parametrize("mode", MODES)
def test_encrypted_message_matches_by_key_only(mode: str, client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    keys = CryptoKeyReader(*key_pair(tmp_path))
    producer = client.create_producer(name, encryption_key="k", crypto_key_reader=keys)
    for key in ("a", "b"):
        producer.send(b'{"id": 1}', partition_key=key)
    found = wait_with(sensor(name, mode, match={"key": "b"}), mode)
    assert (found["key"], found["encoding"]) == ("b", "base64") and "encrypted, with the key k" in found["error"]
    with pytest.raises(AirflowFailException, match=r"1 message cannot be checked.*private_keys"):
        wait_with(sensor(name, mode, match={"jsonpath": "$.id"}), mode)


@pytest.mark.parametrize("mode", MODES)
def test_decrypted_message_matches_by_value(mode: str, client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    keys = CryptoKeyReader(*key_pair(tmp_path))
    producer = client.create_producer(name, encryption_key="k", crypto_key_reader=keys, batching_enabled=True)
    for n in range(3):
        producer.send_async(b'{"id": %d}' % n, None, partition_key="a")
    producer.flush()
    private = {"k": str(tmp_path / "k.key")}
    made = sensor(name, mode, match={"key": "a", "jsonpath": "@.id == 1"}, private_keys=private)
    found = wait_with(made, mode)
    assert (found["value"], found["encoding"]) == ('{"id": 1}', "text") and "error" not in found
    # Nothing that Airflow stores of the trigger has the key itself.
    stored = json.dumps(MessageTrigger(**made.condition()).serialize()[1])
    assert private["k"] in stored and "PRIVATE" not in stored
    with client.subscribe(name, "s", crypto_key_reader=keys) as rest:
        assert [rest.receive(5000).data() for _ in range(2)] == [b'{"id": 0}', b'{"id": 2}']


def test_private_keys_are_rendered(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    keys = CryptoKeyReader(*key_pair(tmp_path))
    client.create_producer(name, encryption_key="k", crypto_key_reader=keys).send(b"x")
    made = sensor(name, private_keys={"k": "{{ params.folder }}/k.key"})
    made.render_template_fields({"params": {"folder": str(tmp_path)}})
    assert wait_with(made, "poke")["value"] == "x"
    made = sensor(name, private_keys={"k": "{{ params.folder }}/k.key"})
    made.private_keys = None
    with pytest.raises(ValueError, match=r"private_keys was given, .* returned None: leave it out"):
        made.execute(context_of())
    secret = (tmp_path / "k.key").read_text()
    with pytest.raises(ValueError, match="private_keys must be paths of files") as refused:
        sensor("{{ params.topic }}", private_keys={"k": secret})
    assert secret not in str(refused.value)
    with pytest.raises(AirflowFailException, match=r"The key file .*none\.key cannot be read: No such file"):
        wait_with(sensor(name, private_keys={"k": str(tmp_path / "none.key")}), "poke")


def test_large_value_is_left_out(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, ("a", b"x" * 1000))
    found = wait_with(sensor(name, value_limit_bytes=999), "poke")
    assert (found["value"], found["encoding"], found["value_bytes"]) == (None, "left_out", 1000)


@pytest.mark.parametrize("mode", ["poke", "start_from_trigger"])
def test_message_with_airflows_keys_is_text(mode: str, client: Client, topic: NewTopic) -> None:
    name, body = topic(), '{"a": {"__classname__": "os.system", "__version__": 1}}'
    publish(client, name, ("a", body.encode()))
    context = context_of(store=StateStore())
    for _ in range(2):
        found = wait_with(sensor(name, mode, decode="json"), mode, context)
        assert found["value"] == {"a": '{"__classname__": "os.system", "__version__": 1}'}
        assert deserialize(serialize(found)) == found
    assert left_in(client, name) == []


def test_resume_that_fails_keeps_the_message(client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    name = topic()
    publish(client, name, ("a", b"1"))
    made = sensor(name, "start_from_trigger")

    def broken(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("airflow_provider_pulsar.sensors.message.acknowledge_found", broken)
    with pytest.raises(
        AirflowException, match=r"Acknowledging .* failed at the stage 'acknowledge': OSError: no route"
    ):
        wait_with(made, "start_from_trigger")
    monkeypatch.undo()
    assert left_in(client, name) == [b"1"]


@pytest.mark.parametrize("mode", MODES)
def test_retry_returns_the_acknowledged_message(mode: str, client: Client, topic: NewTopic) -> None:
    name, store = topic(), StateStore()
    publish(client, name, ("a", b"1"), ("a", b"2"), ("a", b"3"))
    # The first try dies before Airflow has recorded its success; later the task is cleared, and again when it has fewer
    # retries, which leaves its limit of tries as it was.
    for max_tries, retries, value in ((1, 1, "1"), (1, 1, "1"), (3, 1, "2"), (3, 0, "3")):
        context = context_of(store=store, max_tries=max_tries)
        assert wait_with(sensor(name, mode, retries=retries), mode, context)["value"] == value
    assert left_in(client, name) == []


@pytest.mark.parametrize("silent_fail", [False, True])
def test_receipt_lost_returns_the_same_message(
    silent_fail: bool, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, store = topic(), StateStore()
    publish(client, name, ("a", b"1"), ("a", b"2"))

    errors = [OSError("no route")]

    def receipt_lost(*arguments: Any) -> bool:
        done = acknowledge_found(*arguments)
        if errors:
            raise errors.pop()
        return done

    monkeypatch.setattr("airflow_provider_pulsar.sensors.message.acknowledge_found", receipt_lost)
    if not silent_fail:
        with pytest.raises(AirflowException, match="no route"):
            wait_with(sensor(name), "poke", context_of(store=store))
    assert wait_with(sensor(name, silent_fail=silent_fail), "poke", context_of(store=store))["value"] == "1"
    assert left_in(client, name) == [b"2"]


@pytest.mark.parametrize("mode", MODES)
def test_message_of_another_run_is_left_to_it(
    mode: str, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    publish(client, name, ("a", b"1"), ("a", b"2"))
    acknowledged: list[str] = []

    def overtaken(*arguments: Any) -> bool:
        if not acknowledged:
            acknowledge_found(*arguments[:3])
        acknowledged.append(arguments[2]["value"])
        return acknowledge_found(*arguments)

    monkeypatch.setattr("airflow_provider_pulsar.sensors.message.acknowledge_found", overtaken)
    assert wait_with(sensor(name, mode), mode)["value"] == "2"
    assert acknowledged == ["1", "2"] and left_in(client, name) == []


class Elsewhere:
    """A connection that leads to the same broker by another name, which is another cluster as far as names tell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
        self._monkeypatch = monkeypatch
        self.there = broker.service_url
        self.here = broker.service_url.replace("127.0.0.1", "localhost")
        assert self.here != self.there

    def lead(self, url: str) -> None:
        define_connection(self._monkeypatch, service_url=url)


@pytest.mark.parametrize("mode", MODES)
def test_message_of_another_cluster_is_not_acknowledged(
    mode: str, client: Client, topic: NewTopic, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, urls = topic(), Elsewhere(monkeypatch, broker)
    publish(client, name, ("a", b"1"))
    urls.lead(urls.there)
    seen: list[str] = []

    def moved(sensor: MessageSensor, hook: Any, found: dict[str, Any]) -> dict[str, Any]:
        # Between the find and the acknowledgement the connection is changed, once.
        seen.append(cluster_uri(hook.service_url()))
        urls.lead(urls.here)
        return found_at(sensor, hook, found)

    owner: Any = MessageTrigger if mode == "start_from_trigger" else MessageSensor
    found_at = owner.found_at
    monkeypatch.setattr(owner, "found_at", moved)
    acknowledged: list[str] = []

    def acknowledge(*arguments: Any) -> bool:
        acknowledged.append(arguments[2]["cluster"])
        return acknowledge_found(*arguments)

    monkeypatch.setattr("airflow_provider_pulsar.sensors.message.acknowledge_found", acknowledge)
    found = wait_with(sensor(name, mode), mode)
    assert found["value"] == "1" and "cluster" not in found
    assert seen[0] == urls.there and acknowledged == [urls.here] and left_in(client, name) == []


@pytest.mark.parametrize("mode", ["poke", "start_from_trigger"])
def test_noted_message_of_another_cluster_fails(
    mode: str, client: Client, topic: NewTopic, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, store, urls = topic(), StateStore(), Elsewhere(monkeypatch, broker)
    publish(client, name, ("a", b"1"), ("a", b"2"))
    urls.lead(urls.there)
    assert wait_with(sensor(name, mode), mode, context_of(store=store))["value"] == "1"
    urls.lead(urls.here)
    with pytest.raises(AirflowFailException, match=f"message is of {urls.there}, .* leads to {urls.here}: nothing"):
        wait_with(sensor(name, mode), mode, context_of(store=store))
    assert left_in(client, name) == [b"2"]
    # A note of an earlier version does not tell its cluster.
    del store["message_found"]["found"]["cluster"]
    assert wait_with(sensor(name, mode), mode, context_of(store=store))["value"] == "1"


@pytest.mark.proves("K8")
def test_filter_passes_ten_thousand_misses_in_seconds(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, *[("b", b"x")] * 10_000, ("a", b"hit"))
    started = time.monotonic()
    made = sensor(name, "deferrable", match={"key": "a"}, timeout=60)
    assert wait_with(made, "deferrable")["value"] == "hit"
    assert time.monotonic() - started < 30


def test_trigger_keeps_its_consumer_between_looks(client: Client, topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    publish(client, name, ("b", b"x"))
    made = sensor(name, "deferrable", match={"key": "a"})
    context = context_of()
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(context)
    later = threading.Timer(1, publish, (client, name, ("a", b"hit")))
    later.start()
    assert complete(made, deferred.value.trigger, context)["value"] == "hit"
    later.join()
    assert admin.stats(name)["subscriptions"]["s"].get("consumers", []) == []


def test_trigger_follows_a_connection_that_moved(
    client: Client, topic: NewTopic, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    with Relay(broker.service_url) as relay:
        define_connection(monkeypatch, service_url=relay.service_url)
        made = MessageTrigger(name, "s", poll_interval=0.2, end_time=time.time() + 60)
        told: list[str] = []

        def tell(text: str, *values: object) -> None:
            told.append(text % values)
            if len(told) == 1:
                define_connection(monkeypatch, service_url=broker.service_url)
                relay.refuse()
                relay.cut()
                publish(client, name, ("a", b"1"))

        monkeypatch.setattr(made.log, "info", tell)
        event = asyncio.run(event_of(made))
    assert event["found"]["value"] == "1" and "there is no message" in told[0]


def test_match_rendered_to_nothing_takes_no_message(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, ("b", b"foreign"))
    made = sensor(name, match="{{ params.match }}")
    made.match = None
    with pytest.raises(ValueError, match=r"match was given, .* returned None: leave it out"):
        made.execute(context_of())
    assert left_in(client, name) == [b"foreign"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"match": {"keys": "a"}}, "match has no 'keys'; did you mean 'key'"),
        ({"match": {"key": 5}}, "must be a text or a list of texts"),
        ({"match": {"jsonpath": "$["}}, "is not valid in RFC 9535"),
        ({"unmatched": "drop"}, "unmatched='drop' is not known"),
        ({"subscription_type": "none"}, "subscription_type='none' is not known"),
        ({"initial_position": "middle"}, "initial_position='middle' is not known"),
        ({"decode": "xml"}, "decode='xml' is not known"),
        ({"private_keys": {"k": ""}}, "private_keys must be a dict of texts"),
        ({"value_limit_bytes": -1}, "value_limit_bytes must be a number of at least 0"),
    ],
)
def test_wrong_argument_fails_when_parsed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sensor("t", **options)


@pytest.mark.parametrize("mode", ["poke", "start_from_trigger"])
def test_missing_permission_fails_at_once(mode: str, secure_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url, guest = secure_broker.service_url, secure_broker.token("guest")
    define_connection(monkeypatch, "guest", service_url=url, auth_method="token", token=guest)
    with pytest.raises(AirflowFailException) as raised:
        wait_with(sensor("persistent://public/default/secret", mode, pulsar_conn_id="guest", timeout=60), mode)
    assert guest not in str(raised.value)
