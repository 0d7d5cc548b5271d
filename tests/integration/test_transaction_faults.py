"""Transactions when something breaks: exactly once all the same."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import (
    Client,
    ConsumerType,
    InitialPosition,
    MessageId,
    NotConnected,
    OperationNotSupported,
    PulsarException,
    Result,
    TransactionState,
)
from support.apis import Api
from support.brokers import Broker, NewTopic, OwnBroker
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

pytestmark = pytest.mark.proves("N7")

Eventually = Callable[..., Any]
ReadAll = Callable[..., list[Any]]

EARLIEST = InitialPosition.Earliest
SHARED = ConsumerType.Shared
PROGRAM = Path(__file__).parent / "transaction_program.py"
KILLED = -9
KINDS = {"blocking": "Shared", "asyncio": "Failover"}


def values_of(service_url: str, topic: str) -> list[int]:
    """Return the numbers in a topic, each time they are there."""
    with Client(service_url) as client, client.create_reader(topic, MessageId.earliest) as reader:
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(20_000).data()))
        return found


def moved(count: int) -> list[int]:
    """Return what the program makes of the numbers."""
    return [2 * number for number in range(count)]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """Start the program."""
    return subprocess.Popen([sys.executable, str(PROGRAM), *arguments], stderr=subprocess.PIPE)


def finished(count: int, name: str, service_url: str, source: str, target: str, kind: str) -> list[int]:
    """Run the program until nothing is left, and return what it has made, sorted.

    What a dead one had acknowledged comes to an Exclusive subscription with its next attachment only; and on a slow
    machine a program may end before what was aborted has come again.
    """
    for _ in range(4):
        process = start(name, service_url, source, target, kind, "-")
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr.decode()
        if len(values_of(service_url, target)) >= count:
            break
    return sorted(values_of(service_url, target))


@pytest.mark.parametrize(
    ("name", "kind"), [("blocking", "Shared"), ("asyncio", "Exclusive")], ids=["blocking", "asyncio"]
)
def test_exactly_once_however_often_the_client_is_killed(
    name: str, kind: str, plain_client: Client, broker: Broker, topic: NewTopic
) -> None:
    source, target, count = topic("in"), topic("out"), 60
    plain_client.create_producer(source, batching_enabled=True).send_many([b"%d" % each for each in range(count)])
    for death in ("2:sent", "2:acked", "1:committing", "3:committing"):
        process = start(name, broker.service_url, source, target, kind, death)
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == KILLED, stderr.decode()
    assert finished(count, name, broker.service_url, source, target, kind) == moved(count)


def scaled(admin_url: str, coordinators: int) -> bool:
    """Have more coordinators in a cluster; False as long as it has none yet."""
    url = f"{admin_url}/admin/v3/transactions/transactionCoordinator/replicas"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=b"%d" % coordinators, method="POST", headers=headers)
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True


def left_open(client: Any, name: str) -> list[Any]:
    """Return transactions that have a message each, 0 and 1."""
    producer, made = client.create_producer(name), [client.new_transaction() for _ in range(2)]
    for number, transaction in enumerate(made):
        producer.send(b"%d" % number, txn=transaction)
    return made


def test_exactly_once_over_a_killed_broker_with_two_coordinators(own_broker: OwnBroker, eventually: Eventually) -> None:
    broker = own_broker()
    eventually(lambda: scaled(broker.admin_url, 2))
    count = 400
    apis = {name: Api(name) for name in ("blocking", "asyncio")}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        clients = {name: api.client(broker.service_url, max_backoff_interval_ms=500) for name, api in apis.items()}
        for name, client in clients.items():
            ids = [client.new_transaction().txn_id() for _ in range(4)]
            assert sorted({txn_id.most_bits for txn_id in ids}) == [0, 1]
            assert all(a.most_bits != b.most_bits for a, b in pairwise(ids))
            client.create_producer(f"in-{name}", batching_enabled=True).send_many([b"%d" % n for n in range(count)])
        open_ones = [left_open(client, f"kept-{name}") for name, client in clients.items()]
        processes = [
            start(name, broker.service_url, f"in-{name}", f"out-{name}", kind, "-") for name, kind in KINDS.items()
        ]
        with Client(broker.service_url) as watching:
            for name in apis:
                watching.subscribe(f"out-{name}", "watch", initial_position=EARLIEST).receive(30_000)
        broker.kill()
        broker.start().wait_ready()
        # Of what was open when the broker died, the one goes on and the other is undone.
        for keep, undo in open_ones:
            keep.commit()
            undo.abort()
        for process in processes:
            _, stderr = process.communicate(timeout=240)
            assert process.returncode == 0, stderr.decode()
        for name, kind in KINDS.items():
            made = sorted(values_of(broker.service_url, f"out-{name}"))
            if len(made) < count:
                made = finished(count, name, broker.service_url, f"in-{name}", f"out-{name}", kind)
            assert made == moved(count)
            assert values_of(broker.service_url, f"kept-{name}") == [0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for api in apis.values():
            api.close()


def test_a_cluster_without_transactions_says_so(own_broker: OwnBroker) -> None:
    broker = own_broker(conf={"transactionCoordinatorEnabled": "false"})
    for name in ("blocking", "asyncio"):
        api = Api(name)
        try:
            client = api.client(broker.service_url)
            with pytest.raises(OperationNotSupported, match="transactionCoordinatorEnabled=true"):
                client.new_transaction()
            client.create_producer("plain").send(b"x")
        finally:
            api.close()


def test_nothing_is_written_before_the_partition_is_registered(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, read_all: ReadAll
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    consumer = client.subscribe(name, "sub", SHARED, initial_position=EARLIEST)
    producer.send(b"plain")
    message = consumer.receive(20_000)
    through.hold(Command.ADD_PARTITION_TO_TXN_RESPONSE, TO_CLIENT)
    through.hold(Command.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, TO_CLIENT)
    transaction = client.new_transaction()
    work = [
        threading.Thread(target=lambda: producer.send(b"in it", txn=transaction)),
        threading.Thread(target=lambda: consumer.acknowledge(message, txn=transaction)),
    ]
    for thread in work:
        thread.start()
    through.wait_for(Command.ADD_PARTITION_TO_TXN_RESPONSE)
    through.wait_for(Command.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)
    time.sleep(0.2)
    assert through.count(Command.SEND, TO_BROKER) == 1 and not through.count(Command.ACK, TO_BROKER)
    through.release()
    for thread in work:
        thread.join(20)
    # Once is enough.
    producer.send(b"more", txn=transaction)
    transaction.commit()
    assert through.count(Command.ADD_PARTITION_TO_TXN, TO_BROKER) == 1
    assert through.count(Command.TC_CLIENT_CONNECT_REQUEST, TO_BROKER) == 1
    order = [
        seen.command
        for seen in through.frames(direction=TO_BROKER)
        if seen.command in (Command.SEND, Command.ACK, Command.END_TXN)
    ]
    assert order[-1] == Command.END_TXN
    assert [message.data() for message in read_all(name)] == [b"plain", b"in it", b"more"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_the_end_is_told_again_when_its_answer_is_lost(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, read_all: ReadAll, end: str
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    name = topic()
    producer = client.create_producer(name)
    transaction = client.new_transaction()
    producer.send(b"one", txn=transaction)
    through.cut_at(Command.END_TXN_RESPONSE, TO_CLIENT)
    getattr(transaction, end)()
    assert transaction.state() is (TransactionState.COMMITTED if end == "commit" else TransactionState.ABORTED)
    assert through.count(Command.END_TXN, TO_BROKER) == 2
    producer.send(b"plain")
    assert [each.data() for each in read_all(name)] == ([b"one", b"plain"] if end == "commit" else [b"plain"])


def test_what_is_sent_again_stays_in_its_transaction(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, read_all: ReadAll, deduplicating: str
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    name = topic(namespace=deduplicating)
    producer = client.create_producer(name, batching_enabled=False)
    kept, gone = client.new_transaction(), client.new_transaction()
    for transaction in (kept, gone):
        producer.send(b"first", txn=transaction)
    # The broker has it, the client does not know: it goes out again, and is dropped as a duplicate.
    through.drop(Command.SEND_RECEIPT, TO_CLIENT)
    outcomes = [api.enqueue(producer, b"kept", txn=kept)]
    outcomes.append(api.enqueue(producer, b"gone", txn=gone))
    outcomes.append(api.enqueue(producer, b"plain"))
    through.wait_for(Command.SEND, 5)
    through.cut()
    kept.commit()
    gone.abort()
    for outcome in outcomes:
        outcome.result(30)
    assert [each.data() for each in read_all(name)] == [b"first", b"kept", b"plain"]


def test_without_deduplication_nothing_is_twice_in_a_transaction(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually, read_all: ReadAll
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, max_backoff_interval_ms=200)
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    doubtful, later = client.new_transaction(), client.new_transaction()
    for transaction in (doubtful, later):
        producer.send(b"first", txn=transaction)
    through.drop(Command.SEND_RECEIPT, TO_CLIENT, times=None)
    outcomes = [api.enqueue(producer, b"stored", txn=doubtful), api.enqueue(producer, b"plain")]
    through.wait_for(Command.SEND_RECEIPT, 4)
    through.refuse()
    through.release()
    through.cut()
    eventually(lambda: not producer.is_connected())
    # What is written for the first time on the next connection is no matter of doubt.
    outcomes.append(api.enqueue(producer, b"later", txn=later))
    through.accept()
    assert [each.result(30)[0] for each in outcomes] == [Result.NotConnected, Result.Ok, Result.Ok]
    # What may be there twice takes the rest of its transaction with it.
    with pytest.raises(NotConnected, match=r"\(the connection was lost: the broker closed it\).* deduplication"):
        doubtful.commit()
    later.commit()
    assert doubtful.state() is TransactionState.ABORTED
    found = [each.data() for each in read_all(name)]
    assert found == [b"first", b"plain", b"plain", b"later"]


def test_messages_of_a_transaction_that_is_over_are_not_sent_again(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually, read_all: ReadAll
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, max_backoff_interval_ms=200)
    name = topic()
    producer = client.create_producer(name, batching_enabled=True)
    transaction = client.new_transaction(timeout_seconds=1.5)
    producer.send(b"before", partition_key="a", txn=transaction)
    through.refuse()
    through.cut()
    lost = [api.enqueue(producer, b"%d" % number, txn=transaction) for number in range(3)]
    plain = api.enqueue(producer, b"plain")
    eventually(lambda: transaction.state() is TransactionState.TIME_OUT)
    assert all(each.result(20)[1] is None for each in lost)
    through.accept()
    # Written, they would hold it back for ever.
    assert plain.result(30)[1] is not None
    eventually(lambda: [each.data() for each in read_all(name)] == [b"plain"])


def test_unloads_in_the_middle(
    api: Api, broker: Broker, topic: NewTopic, eventually: Eventually, read_all: ReadAll
) -> None:
    source, target, count = topic("in"), topic("out"), 30
    client = api.client(broker.service_url, max_backoff_interval_ms=300)
    api.send_all(client.create_producer(source, batching_enabled=False), [b"%d" % each for each in range(count)])
    consumer = client.subscribe(source, "sub", ConsumerType.Failover, initial_position=EARLIEST)
    producer = client.create_producer(target, batching_enabled=True)
    done, unloads = 0, 0
    deadline = time.monotonic() + 60
    while done < count:
        assert time.monotonic() < deadline
        try:
            with client.new_transaction(timeout_seconds=20) as transaction:
                numbers = []
                for _ in range(10):
                    message = consumer.receive(20_000)
                    api.enqueue(producer, message.data(), txn=transaction)
                    if len(numbers) == 5 and unloads < 2:
                        unloads += 1
                        for name in (source, target):
                            broker.admin("PUT", name.replace("://", "/") + "/unload")
                    consumer.acknowledge(message, txn=transaction)
                    numbers.append(int(message.data()))
            done = max(numbers) + 1
        except PulsarException:
            consumer.redeliver_unacknowledged_messages()
    assert unloads == 2
    assert [int(each.data()) for each in read_all(target)] == list(range(count))
