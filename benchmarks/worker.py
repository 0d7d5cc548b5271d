"""One measurement in a process of its own: prints {"wall": seconds, "cpu": seconds} as its last line.

The same program text for both clients, since one is a drop-in for the other; `columns` differs where the official
client has no columns: it makes the same Arrow batches from its messages.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

Action = Callable[[Any, Any, dict[str, Any]], Callable[[], None]]


def main() -> None:
    """Do what the request on the command line says."""
    request = json.loads(sys.argv[1])
    pulsar = importlib.import_module(request["peer"])
    client = pulsar.Client(request["url"], **_client_options(pulsar, request))
    prepared = ACTIONS[request["action"]](pulsar, client, request)
    cpu, wall = time.process_time(), time.perf_counter()
    prepared()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    client.close()
    print(json.dumps({"wall": wall, "cpu": cpu}))


def _client_options(pulsar: Any, request: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if request["peer"] == "pulsar":
        options["logger"] = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    else:
        # The official Python client has no such limit to set; its library's default is none.
        options["memory_limit_bytes"] = 0
    if request["authority"]:
        options["tls_trust_certs_file_path"] = request["authority"]
    return options


def _producer(pulsar: Any, client: Any, request: dict[str, Any], **options: Any) -> Any:
    return client.create_producer(
        request["topic"],
        **options,
        batching_enabled=request["batched"],
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=128 * 1024,
        max_pending_messages=50_000,
        block_if_queue_full=True,
        compression_type=getattr(pulsar.CompressionType, request["compression"]),
    )


def _payloads(size: int) -> list[bytes]:
    # Half text-like, half random, so that compressors have something to do and something to fail at.
    return [(b"flight,%d," % number * size)[: size // 2] + os.urandom(size - size // 2) for number in range(256)]


def publish(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Send without callbacks, then flush."""
    producer = _producer(pulsar, client, request)
    payloads = _payloads(request["size"])

    def run() -> None:
        send = producer.send_async
        for number in range(request["count"]):
            send(payloads[number & 255], None)
        producer.flush()

    def described() -> None:
        _send_described(producer, payloads, request["count"], None)

    return described if request["described"] else run


def _send_described(
    producer: Any, payloads: list[bytes], count: int, callback: Callable[[Any, Any], None] | None
) -> None:
    for number in range(count):
        producer.send_async(
            payloads[number & 255],
            callback,
            partition_key=f"flight-{number}",
            properties={"carrier": f"C{number % 16}", "origin": f"airport-{number}"},
            event_timestamp=1_700_000_000_000 + number,
        )
    producer.flush()


def _flight(pulsar: Any, request: dict[str, Any]) -> tuple[Any, Any]:
    """Return a record class and the schema that the action names."""
    schema = importlib.import_module(f"{request['peer']}.schema")

    class Flight(schema.Record):  # type: ignore[misc, name-defined]  # one class for either client
        carrier = schema.String()
        number = schema.Integer()
        origin = schema.String()
        delay = schema.Double()
        on_time = schema.Boolean()

    kind = schema.JsonSchema if request["action"].endswith("json") else schema.AvroSchema
    return Flight, kind(Flight)


def publish_values(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Make records and send them by a schema, without callbacks, then flush."""
    flight, schema = _flight(pulsar, request)
    producer = _producer(pulsar, client, request, schema=schema)

    def run() -> None:
        send = producer.send_async
        for number in range(request["count"]):
            value = flight(carrier="UA", number=number, origin="EWR", delay=number / 8, on_time=not number & 1)
            send(value, None)
        producer.flush()

    return run


def receive_values(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Receive and acknowledge one by one, reading the value of each message."""
    _, schema = _flight(pulsar, request)

    def run() -> None:
        consumer = _consumer(pulsar, client, request, schema=schema)
        total = 0
        for _ in range(request["count"]):
            message = consumer.receive(30_000)
            total += message.value().number
            consumer.acknowledge(message)
        assert total == request["count"] * (request["count"] - 1) // 2

    return run


def publish_asyncio(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Send by the asyncio API, 1,000 at a time."""
    module = importlib.import_module(f"{request['peer']}.asyncio")
    payloads = _payloads(request["size"])

    async def send_all() -> None:
        own = module.Client(request["url"])
        producer = await own.create_producer(
            request["topic"], batching_enabled=True, max_pending_messages=50_000, batching_max_messages=1000
        )
        for start in range(0, request["count"], 1000):
            stop = min(start + 1000, request["count"])
            await asyncio.gather(*(producer.send(payloads[number & 255]) for number in range(start, stop)))
        await own.close()

    return lambda: asyncio.run(send_all())


def publish_callback(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Send with a callback that counts, then flush."""
    producer = _producer(pulsar, client, request)
    payloads = _payloads(request["size"])
    done = []

    def run() -> None:
        send, note = producer.send_async, lambda result, _id: done.append(result)
        if request["described"]:
            _send_described(producer, payloads, request["count"], note)
        else:
            for number in range(request["count"]):
                send(payloads[number & 255], note)
            producer.flush()
        assert len(done) == request["count"]

    return run


def send_many(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Send a list in one call; the official client has no such call and sends without callbacks."""
    if request["peer"] == "pulsar":
        return publish(pulsar, client, request)
    producer = _producer(pulsar, client, request)
    payloads = _payloads(request["size"])
    contents = [payloads[number & 255] for number in range(request["count"])]
    return lambda: producer.send_many(contents)


def send_table(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Send an Arrow column in one call; the official client sends without callbacks what it takes out of it."""
    import pyarrow as pa

    producer = _producer(pulsar, client, request)
    payloads = _payloads(request["size"])
    table = pa.table({"value": [payloads[number & 255] for number in range(request["count"])]})

    def official() -> None:
        for content in table["value"].to_pylist():
            producer.send_async(content, None)
        producer.flush()

    return official if request["peer"] == "pulsar" else lambda: producer.send_table(table)


def _consumer(pulsar: Any, client: Any, request: dict[str, Any], **options: Any) -> Any:
    return client.subscribe(
        request["topic"], f"bench-{uuid.uuid4().hex}", initial_position=pulsar.InitialPosition.Earliest, **options
    )


def receive_getters(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Receive and acknowledge one by one, reading all that a message carries."""

    def run() -> None:
        consumer = _consumer(pulsar, client, request)
        size = 0
        for _ in range(request["count"]):
            message = consumer.receive(30_000)
            size += len(message.data()) + len(message.partition_key()) + len(message.properties())
            message.message_id(), message.topic_name(), message.redelivery_count()
            message.event_timestamp(), message.publish_timestamp(), message.ordering_key()
            consumer.acknowledge(message)
        assert size > request["count"] * request["size"]

    return run


def receive_with(**options: Any) -> Action:
    """Return what receives and acknowledges with options of the consumer; a text names its type."""

    def prepare(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
        own = {name: getattr(pulsar.ConsumerType, each) if isinstance(each, str) else each
               for name, each in options.items()}  # fmt: skip

        def run() -> None:
            consumer = _consumer(pulsar, client, request, **own)
            size = 0
            for _ in range(request["count"]):
                message = consumer.receive(30_000)
                size += len(message.data())
                consumer.acknowledge(message)
            assert size == request["count"] * request["size"]

        return run

    return prepare


def listener(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Acknowledge in a message listener, reading each payload."""

    def run() -> None:
        done = threading.Event()
        left = request["count"]

        def on_message(consumer: Any, message: Any) -> None:
            nonlocal left
            assert len(message.data()) == request["size"]
            consumer.acknowledge(message)
            left -= 1
            if not left:
                done.set()

        consumer = _consumer(pulsar, client, request, message_listener=on_message)
        assert done.wait(120), f"{left} messages are missing"
        consumer.close()

    return run


def listeners(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Acknowledge in the listeners of many consumers of a Shared subscription what another process publishes.

    The consumers are there, and that process is connected, before anything is measured.
    """
    done, arrivals = threading.Event(), itertools.count(1)

    def on_message(consumer: Any, message: Any) -> None:
        assert len(message.data()) == request["size"]
        consumer.acknowledge(message)
        # Listeners may run in several threads; this step is one.
        if next(arrivals) == request["count"]:
            done.set()

    name, shared = f"bench-{uuid.uuid4().hex}", pulsar.ConsumerType.Shared
    kept = [
        client.subscribe(request["topic"], name, shared, message_listener=on_message)
        for _ in range(request["consumers"])
    ]
    own = {**request, "peer": "pulsar_native", "action": "fill-on-signal"}
    filling = subprocess.Popen(
        [sys.executable, __file__, json.dumps(own)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert filling.stdin is not None and filling.stdout is not None
    filling.stdout.readline()

    def run() -> None:
        assert filling.stdin is not None
        filling.stdin.close()
        assert done.wait(120), f"after {next(arrivals) - 1} messages no more arrived at {len(kept)} consumers"
        filling.wait()

    return run


def fill_on_signal(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Publish when stdin ends; the first line of output says that all is prepared."""
    run = publish(pulsar, client, request)
    print("ready", flush=True)
    sys.stdin.read()
    return run


def receive_asyncio(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Receive and acknowledge one by one by the asyncio API."""
    module = importlib.import_module(f"{request['peer']}.asyncio")

    async def receive_all() -> None:
        own = module.Client(request["url"])
        consumer = await own.subscribe(
            request["topic"], f"bench-{uuid.uuid4().hex}", initial_position=pulsar.InitialPosition.Earliest
        )
        size = 0
        for _ in range(request["count"]):
            message = await consumer.receive()
            size += len(message.data())
            await consumer.acknowledge(message)
        await own.close()
        assert size == request["count"] * request["size"]

    return lambda: asyncio.run(receive_all())


def batch_receive(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Receive in batches and acknowledge cumulatively."""
    policy = pulsar.ConsumerBatchReceivePolicy(1000, 10 * 1024 * 1024, 1000)

    def run() -> None:
        consumer = _consumer(pulsar, client, request, batch_receive_policy=policy)
        count = size = 0
        while count < request["count"]:
            messages = consumer.batch_receive()
            count += len(messages)
            size += sum(len(message.data()) for message in messages)
            if messages:
                consumer.acknowledge_cumulative(messages[-1])
        assert size == request["count"] * request["size"]

    return run


def columns(pulsar: Any, client: Any, request: dict[str, Any], full: bool = False) -> Callable[[], None]:
    """Read the topic into Arrow record batches: value, publish time, ledger, entry, batch index.

    `full` reads the key, the event time and the properties as well.
    """
    import pyarrow as pa

    def ours() -> None:
        reader = client.create_reader(request["topic"], pulsar.MessageId.earliest)
        wanted = ["value", "__publishTime", "__ledgerId", "__entryId", "__batchIndex"]
        wanted += ["__key", "__eventTime", "__messageProperties"] if full else []
        count = sum(batch.num_rows for batch in reader.arrow_batches(columns=wanted))
        assert count == request["count"]

    def official() -> None:
        reader = client.create_reader(request["topic"], pulsar.MessageId.earliest)
        left = request["count"]
        while left:
            rows = []
            for _ in range(min(left, 10_000)):
                message = reader.read_next(30_000)
                place = message.message_id()
                rows.append(
                    (
                        message.data(),
                        message.publish_timestamp(),
                        place.ledger_id(),
                        place.entry_id(),
                        place.batch_index(),
                        *_own(message),
                    )
                )
            left -= len(rows)
            pa.record_batch(
                [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)],
                names=[f"{number}" for number in range(len(kinds))],
            )

    def _own(message: Any) -> tuple[Any, ...]:
        if not full:
            return ()
        return message.partition_key(), message.event_timestamp(), list(message.properties().items())

    time_type = pa.timestamp("ms", "UTC")
    kinds = [pa.binary(), time_type, pa.int64(), pa.int64(), pa.int32()]
    kinds += [pa.string(), time_type, pa.map_(pa.string(), pa.string())] if full else []

    return ours if request["peer"] == "pulsar_native" else official


def columns_full(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Read all that messages carry into Arrow record batches."""
    return columns(pulsar, client, request, full=True)


def latency(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Send one by one, each waiting for its receipt."""
    producer = client.create_producer(request["topic"])
    payload = os.urandom(request["size"])

    def run() -> None:
        for _ in range(request["count"]):
            producer.send(payload)

    return run


def has_more(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Read to the end by the usual loop, which asks before each message whether there is one."""

    def run() -> None:
        reader = client.create_reader(request["topic"], pulsar.MessageId.earliest)
        count = 0
        while reader.has_message_available():
            reader.read_next(30_000)
            count += 1
        assert count == request["count"]

    return run


def message_ids(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Serialize message ids and read them back."""
    ids = [pulsar.MessageId(-1, 7, number, number & 63) for number in range(request["count"])]

    def run() -> None:
        for each in ids:
            pulsar.MessageId.deserialize(each.serialize())

    return run


def create_client(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Create a client, ask for the partitions of a topic, since it connects only then, and close it."""
    client.create_producer(request["topic"]).close()
    options = _client_options(pulsar, request)

    def run() -> None:
        for _ in range(request["count"]):
            own = pulsar.Client(request["url"], **options)
            own.get_topic_partitions(request["topic"])
            own.close()

    return run


def fill(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Put the messages there that another measurement reads."""
    return publish(pulsar, client, request)


ACTIONS = {
    "publish": publish,
    "publish-callback": publish_callback,
    "publish-asyncio": publish_asyncio,
    "publish-json": publish_values,
    "publish-avro": publish_values,
    "send-many": send_many,
    "send-table": send_table,
    "receive": receive_with(),
    "receive-getters": receive_getters,
    "receive-timeout": receive_with(unacked_messages_timeout_ms=30_000),
    "receive-key-shared": receive_with(consumer_type="KeyShared"),
    "receive-asyncio": receive_asyncio,
    "receive-json": receive_values,
    "receive-avro": receive_values,
    "listener": listener,
    "listeners": listeners,
    "batch-receive": batch_receive,
    "columns": columns,
    "columns-full": columns_full,
    "latency": latency,
    "has-more": has_more,
    "message-ids": message_ids,
    "fill": fill,
    "fill-on-signal": fill_on_signal,
    "client": create_client,
}

if __name__ == "__main__":
    main()
