"""Event loops other than asyncio's own: uvloop under both APIs, and gevent under the blocking one."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
import uvloop

import pulsar_native.asyncio
from broker import Standalone
from pulsar_native import AuthenticationToken, MessageId
from support.brokers import Broker, NewTopic

_COUNT = 500


async def _round_trip(client: pulsar_native.asyncio.Client, topic: str) -> list[bytes]:
    """Send many messages at a time, receive them all, and return what a reader then reads from the beginning."""
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "sub")
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(_COUNT)))
    received = set()
    for _ in range(_COUNT):
        message = await consumer.receive()
        received.add(message.data())
        await consumer.acknowledge(message)
    assert received == {b"%d" % number for number in range(_COUNT)}
    # A wait that is cancelled takes no message along.
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(consumer.receive(), 0.2)
    await producer.send(b"last")
    assert (await asyncio.wait_for(consumer.receive(), 20)).data() == b"last"
    reader = await client.create_reader(topic, MessageId.earliest)
    read = []
    while await reader.has_message_available():
        read.append((await reader.read_next()).data())
    return read


@pytest.mark.parametrize("partitions", [0, 3])
def test_uvloop_asyncio_round_trip(broker: Broker, topic: NewTopic, partitions: int) -> None:
    name = topic(partitions=partitions)

    async def body() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        async with pulsar_native.asyncio.Client(broker.service_url) as client:
            assert len(await _round_trip(client, name)) == _COUNT + 1

    uvloop.run(body())


def test_uvloop_asyncio_round_trip_tls(secure_broker: Standalone) -> None:
    async def body() -> None:
        async with pulsar_native.asyncio.Client(
            secure_broker.service_url_tls,
            authentication=AuthenticationToken(secure_broker.token()),
            tls_trust_certs_file_path=str(secure_broker.certificates.authority),
        ) as client:
            read = await _round_trip(client, "persistent://public/default/uvloop-tls")
            assert len(read) == _COUNT + 1 and read[-1] == b"last"

    uvloop.run(body())


# What an application does before it uses the blocking API, and what must be seen while a call waits.
_UVLOOP = """
import asyncio, threading, uvloop
made = []

class Policy(uvloop.EventLoopPolicy):
    def new_event_loop(self):
        made.append(super().new_event_loop())
        return made[-1]

asyncio.set_event_loop_policy(Policy())

def meanwhile():
    return lambda: None

def check():
    # The engine's loop is of the process's policy.
    assert [loop.is_running() for loop in made] == [True], made
"""
_GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent
turns = []

def meanwhile():
    return gevent.spawn(lambda: [(gevent.sleep(0.02), turns.append(1)) for _ in range(10)]).join

def check():
    # Other greenlets ran while receive() waited.
    assert len(turns) == 10, turns
"""
_PROGRAM = """
import pulsar_native
with pulsar_native.Client({url!r}) as client:
    producer = client.create_producer({topic!r})
    consumer = client.subscribe({topic!r}, "sub")
    sent = [producer.send(b"%d" % number) for number in range(50)]
    for number in range(50):
        producer.send_async(b"%d" % (50 + number), None)
    producer.flush()
    received = []
    for _ in range(100):
        message = consumer.receive(20_000)
        consumer.acknowledge(message)
        received.append(message.data())
    assert received == [b"%d" % number for number in range(100)], received
    assert sent == sorted(sent)
    join = meanwhile()
    try:
        consumer.receive(1_000)
        raise AssertionError("a message nobody sent")
    except pulsar_native.Timeout:
        check()
    join()
print("done")
"""


@pytest.mark.parametrize("setting", [_UVLOOP, _GEVENT], ids=["uvloop", "gevent"])
def test_blocking_api_on_another_loop(broker: Broker, topic: NewTopic, setting: str) -> None:
    program = setting + _PROGRAM.format(url=broker.service_url, topic=topic())
    # Setting a policy is deprecated since Python 3.14.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
