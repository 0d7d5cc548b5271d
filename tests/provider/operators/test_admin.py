"""Administration operators on the real broker: by themselves, tried again, and as setup and teardown of a DAG."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.operators.admin import (
    PulsarCompactTopicOperator,
    PulsarCreateSubscriptionOperator,
    PulsarCreateTopicOperator,
    PulsarDeleteSchemaOperator,
    PulsarDeleteSubscriptionOperator,
    PulsarDeleteTopicOperator,
    PulsarResetCursorOperator,
    PulsarSkipMessagesOperator,
    PulsarUploadSchemaOperator,
    _position_after,
)
from airflow_provider_pulsar.operators.policies import PulsarSetPoliciesOperator
from pulsar_native import AdminClient, Client, ConsumerType
from pulsar_native.admin import AdminError
from pulsar_native.exceptions import (
    AuthorizationError,
    ConnectError,
    NotAllowedError,
    PulsarException,
    ReadError,
    TopicNotFound,
)
from support.brokers import NewTopic
from support.tasks import StateStore, context_of, dag_in, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")

DEFINITION = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "long"}]}
OTHER = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "string"}]}


def run(operator: type[Any], context: Any = None, **options: Any) -> dict[str, Any]:
    """Execute an operator alone and return what it returns."""
    done: dict[str, Any] = operator(task_id="t", **options).execute(context_of() if context is None else context)
    return done


def publish(client: Client, topic: str, count: int, **options: Any) -> list[Any]:
    """Publish numbers one by one and return their ids."""
    producer = client.create_producer(topic)
    try:
        return [producer.send(str(number).encode(), **options) for number in range(count)]
    finally:
        producer.close()


def backlog(admin: AdminClient, topic: str) -> int:
    """Return how many messages the subscription s has not consumed."""
    return admin.stats(topic, precise_backlog=True)["subscriptions"]["s"]["msgBacklog"]


def deleting(kind: str, admin: AdminClient, name: str, **options: Any) -> Callable[..., bool]:
    """Return a function that runs a try of a task that deletes a topic, or its subscription s, with if_missing="fail",
    and returns whether it has deleted it.
    """
    store = StateStore()
    operator = PulsarDeleteTopicOperator if kind == "topic" else PulsarDeleteSubscriptionOperator
    place = {"topic": name} if kind == "topic" else {"topic": name, "subscription": "s"}

    def attempt(max_tries: int = 1) -> bool:
        context = context_of(store=store, max_tries=max_tries)
        return bool(run(operator, context, **place, if_missing="fail", **options)["deleted"])

    admin.create_topic(name)
    if kind == "subscription":
        admin.create_subscription(name, "s")
    return attempt


def tries(admin: AdminClient, client: Client, topic: str, operator: type[Any], **options: Any) -> Callable[..., int]:
    """Publish 4 messages, and return a function that runs a try of a task, with its limit of tries and its `retries`,
    and returns how many messages are left then.
    """
    store = StateStore()
    client.subscribe(topic, "s").close()
    publish(client, topic, 4)

    def left_after(max_tries: int, retries: int = 0) -> int:
        context = context_of(store=store, max_tries=max_tries)
        run(operator, context, topic=topic, subscription="s", retries=retries, **options)
        return backlog(admin, topic)

    return left_after


# ---- topics ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A26")
def test_create_and_delete_topic(admin: AdminClient, topic: NewTopic) -> None:
    name = topic()
    assert run(PulsarCreateTopicOperator, topic=name)["created"] is True
    assert run(PulsarCreateTopicOperator, topic=name)["created"] is False
    with pytest.raises(AirflowFailException, match="has 0 partitions, not 2"):
        run(PulsarCreateTopicOperator, topic=name, partitions=2)
    assert run(PulsarDeleteTopicOperator, topic=name) == {"topic": name, "deleted": True}
    assert run(PulsarDeleteTopicOperator, topic=name)["deleted"] is False
    with pytest.raises(AirflowFailException, match="not found"):
        run(PulsarDeleteTopicOperator, topic=name, if_missing="fail")
    with pytest.raises(TopicNotFound):
        admin.partitions(name)


@pytest.mark.proves("A26")
def test_create_topic_grows_partitions(admin: AdminClient, topic: NewTopic) -> None:
    name = topic()
    assert run(PulsarCreateTopicOperator, topic=name, partitions=2)["created"] is True
    grown = run(PulsarCreateTopicOperator, topic=name, partitions=3)
    assert (grown["created"], grown["partitions_before"], admin.partitions(name)) == (False, 2, 3)
    with pytest.raises(AirflowFailException, match="has 3 partitions, not 2"):
        run(PulsarCreateTopicOperator, topic=name, partitions=2)


@pytest.mark.proves("A26")
def test_create_topic_if_exists_fail_allows_a_retry(admin: AdminClient, topic: NewTopic) -> None:
    name, store = topic(), StateStore()
    options: dict[str, Any] = {"topic": name, "if_exists": "fail"}
    assert run(PulsarCreateTopicOperator, context_of(store=store), **options)["created"] is True
    # The next try of the same task finds its own topic; another task does not.
    assert run(PulsarCreateTopicOperator, context_of(store=store), **options)["created"] is False
    with pytest.raises(AirflowFailException, match="exists already"):
        run(PulsarCreateTopicOperator, **options)


@pytest.mark.parametrize(
    ("error", "message"),
    [(ReadError("the answer is lost"), None), (ConnectError("there is no server"), "exists already")],
    ids=["lost", "not sent"],
)
def test_create_topic_answer_lost_retry_succeeds(
    error: PulsarException, message: str | None, admin: AdminClient, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, store = topic(), StateStore()
    options: dict[str, Any] = {"topic": name, "if_exists": "fail"}

    def fails(*arguments: Any) -> None:
        create(*arguments)
        raise error

    create = AdminClient.create_topic
    with monkeypatch.context() as patch, pytest.raises(AirflowException, match=error.message):
        patch.setattr(AdminClient, "create_topic", fails)
        run(PulsarCreateTopicOperator, context_of(store=store), **options)
    if message is None:
        assert run(PulsarCreateTopicOperator, context_of(store=store), **options)["created"] is False
        return
    # A request that was not sent has created nothing: the topic is another's, for every later try too.
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=message):
            run(PulsarCreateTopicOperator, context_of(store=store), **options)


@pytest.mark.proves("A26")
def test_delete_topic_in_use_needs_force(client: Client, topic: NewTopic) -> None:
    name = topic()
    consumer = client.subscribe(name, "s")
    with pytest.raises(AirflowException, match="HTTP 412") as caught:
        run(PulsarDeleteTopicOperator, topic=name)
    # The consumer may be gone at the next try.
    assert not isinstance(caught.value, AirflowFailException)
    consumer.close()
    assert run(PulsarDeleteTopicOperator, topic=name, force=True)["deleted"] is True


@pytest.mark.parametrize("kind", ["topic", "subscription"])
def test_delete_if_missing_fail_allows_a_retry(kind: str, admin: AdminClient, topic: NewTopic) -> None:
    attempt = deleting(kind, admin, topic())
    # The first try dies before Airflow has recorded its success.
    assert (attempt(), attempt(), attempt()) == (True, False, False)
    # Cleared, it asks for another deletion, in every try of its own.
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="not found"):
            attempt(max_tries=3)


@pytest.mark.parametrize("kind", ["topic", "subscription"])
@pytest.mark.parametrize(
    ("error", "is_own"),
    [
        (ReadError("the answer is lost"), True),
        (ConnectError("there is no server"), False),
        (AdminError("refused", status=412), False),
        (AuthorizationError("no rights"), False),
    ],
    ids=["lost", "not sent", "refused", "no rights"],
)
def test_delete_failed_retry_takes_only_its_own(
    kind: str,
    error: PulsarException,
    is_own: bool,
    admin: AdminClient,
    topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt, method = deleting(kind, admin, topic()), f"delete_{kind}"
    delete = getattr(AdminClient, method)

    def fails(*arguments: Any, **options: Any) -> None:
        # By this request, or meanwhile by somebody else.
        delete(*arguments, **options)
        raise error

    with monkeypatch.context() as patch, pytest.raises(AirflowException, match=error.message):
        patch.setattr(AdminClient, method, fails)
        attempt()
    for _ in range(2):
        if is_own:
            assert attempt() is False
        else:
            with pytest.raises(AirflowFailException, match="not found"):
                attempt()


@pytest.mark.parametrize(
    ("suffix", "partitions", "message"),
    [
        ("-partition-7", 0, "followed by a number smaller"),
        ("-other-partition-0", 0, "if there isn't a partitioned topic"),
        ("-partition-1", 3, "should not contain '-partition-'"),
    ],
    ids=["beyond", "without topic", "partitioned"],
)
def test_create_topic_impossible_name_is_final(suffix: str, partitions: int, message: str, topic: NewTopic) -> None:
    name = topic(partitions=2)
    with pytest.raises(AirflowFailException, match=message):
        run(PulsarCreateTopicOperator, topic=f"{name}{suffix}", partitions=partitions)


def test_requested_not_allowed_is_final(topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise NotAllowedError("not for this topic")

    monkeypatch.setattr(AdminClient, "delete_topic", refuses)
    with pytest.raises(AirflowFailException, match="not for this topic"):
        run(PulsarDeleteTopicOperator, topic=topic())


# ---- subscriptions ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("A26")
def test_subscription_created_reset_skipped_deleted(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic()
    ids = publish(client, name, 4)
    place: dict[str, Any] = {"topic": name, "subscription": "s"}
    assert run(PulsarCreateSubscriptionOperator, **place, position=str(ids[1]))["created"] is True
    assert backlog(admin, name) == 3
    # It stays where it is.
    assert run(PulsarCreateSubscriptionOperator, **place, position="latest")["created"] is False
    assert backlog(admin, name) == 3
    run(PulsarResetCursorOperator, **place, position="earliest")
    assert backlog(admin, name) == 4
    run(PulsarResetCursorOperator, **place, position=str(ids[1]), excluded=True)
    assert backlog(admin, name) == 2
    assert run(PulsarSkipMessagesOperator, **place, count="1")["skipped"] == 1
    assert backlog(admin, name) == 1
    assert run(PulsarSkipMessagesOperator, **place)["skipped"] == "all"
    assert backlog(admin, name) == 0
    assert run(PulsarDeleteSubscriptionOperator, **place)["deleted"] is True
    assert run(PulsarDeleteSubscriptionOperator, **place)["deleted"] is False
    with pytest.raises(AirflowFailException, match="s"):
        run(PulsarDeleteSubscriptionOperator, **place, if_missing="fail")
    with pytest.raises(AirflowException, match="s"):
        run(PulsarSkipMessagesOperator, **place, count=1)


def test_skip_messages_count_name_is_encoded(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    """The broker's internal statistics have another name than the subscription's: `a+b` is there `a%2Bb`."""
    name, subscription = topic(), "scheduled__2026-01-01T00:00:00+00:00 ~*/ü"
    client.subscribe(name, subscription).close()
    publish(client, name, 3)
    assert run(PulsarSkipMessagesOperator, topic=name, subscription=subscription, count=1)["skipped"] == 1
    assert admin.stats(name, precise_backlog=True)["subscriptions"][subscription]["msgBacklog"] == 2


def test_create_topic_most_partitions_are_accepted() -> None:
    assert PulsarCreateTopicOperator(task_id="t", topic="t", partitions=10_000).partitions == 10_000


def test_skip_messages_returns_what_was_skipped(
    admin: AdminClient, client: Client, topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    place: dict[str, Any] = {"topic": topic(), "subscription": "s"}
    consumer = client.subscribe(place["topic"], "s", ConsumerType.Shared)
    publish(client, place["topic"], 5)
    received = [consumer.receive(timeout_millis=10_000) for _ in range(5)]
    # The broker passes over what is acknowledged already.
    consumer.acknowledge(received[1])
    consumer.close()
    assert run(PulsarSkipMessagesOperator, **place, count=2)["skipped"] == 2
    assert backlog(admin, place["topic"]) == 2
    assert "entries to skip" not in capsys.readouterr().out
    assert run(PulsarSkipMessagesOperator, **place, count=3)["skipped"] == 2
    assert "the backlog had 2 entries to skip, not 3" in capsys.readouterr().out
    assert run(PulsarSkipMessagesOperator, **place, count=3)["skipped"] == 0
    assert "the backlog had 0 entries to skip, not 3" in capsys.readouterr().out


@contextlib.contextmanager
def skip_answer_lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lose the broker's answer to a request to skip messages, which fails the task in the block."""
    skip = AdminClient.skip_messages

    def answer_lost(*arguments: Any) -> None:
        skip(*arguments)
        raise ReadError("the connection broke")

    with monkeypatch.context() as patch, pytest.raises(AirflowException, match="the connection broke"):
        patch.setattr(AdminClient, "skip_messages", answer_lost)
        yield


def test_skip_messages_retry_returns_the_same(
    admin: AdminClient, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: dict[str, Any] = {"topic": topic(), "subscription": "s", "count": 3}
    store = StateStore()
    client.subscribe(place["topic"], "s").close()
    publish(client, place["topic"], 2)
    with skip_answer_lost(monkeypatch):
        run(PulsarSkipMessagesOperator, context_of(store=store), **place)
    publish(client, place["topic"], 2)
    # Once for the lost answer, once for the success that Airflow may not have recorded.
    for _ in range(2):
        assert run(PulsarSkipMessagesOperator, context_of(store=store), **place)["skipped"] == 2
    assert backlog(admin, place["topic"]) == 2


@pytest.mark.parametrize(
    ("published", "consumed", "skipped"),
    [(7, 5, 3), (7, 2, 0), (7, 1, 0), (7, 9, 4), (0, -4, 3), (None, 0, 3), (-1, 0, 3)],
    ids=["fewer", "none", "moved back", "consumers too", "loaded again", "no answer", "no subscription"],
)
def test_skip_messages_counts_by_the_counters(
    published: int | None, consumed: int, skipped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Admin:
        def internal_stats(self, topic: str) -> dict[str, Any]:
            if published is None:
                raise ReadError("no answer")
            cursors = {} if published < 0 else {"s": {"messagesConsumedCounter": consumed}}
            return {"entriesAddedCounter": published, "cursors": cursors}

    operator = PulsarSkipMessagesOperator(task_id="t", topic="t", subscription="s", count=4)
    assert operator._consumed_since(Admin(), (6, 2), 3, 4) == skipped  # type: ignore[arg-type]  # of an AdminClient


@pytest.mark.parametrize("limit", ["count", "older_than_seconds"])
def test_skip_messages_mapped_none_clears_nothing(
    admin: AdminClient, client: Client, topic: NewTopic, limit: str
) -> None:
    name = topic()
    client.subscribe(name, "s").close()
    publish(client, name, 3)
    with DAG("mapped_skip", schedule=None):
        mapped = PulsarSkipMessagesOperator.partial(task_id="t", topic=name, subscription="s").expand(**{limit: [None]})
    with pytest.raises(ValueError, match="rendered to nothing"):
        mapped.unmap({limit: None}).execute(context_of())
    assert backlog(admin, name) == 3


@pytest.mark.proves("A26")
def test_reset_cursor_to_a_time(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    place: dict[str, Any] = {"topic": name, "subscription": "s"}
    run(PulsarCreateTopicOperator, topic=name, partitions=2)
    run(PulsarCreateSubscriptionOperator, **place)
    publish(client, name, 4)
    time.sleep(0.05)
    moment = int(time.time() * 1000)
    publish(client, name, 2)
    done = run(PulsarResetCursorOperator, **place, timestamp=moment)
    assert done["position"] == str(moment)
    parts = admin.partitioned_stats(name, precise_backlog=True)["partitions"].values()
    assert sum(part["subscriptions"]["s"]["msgBacklog"] for part in parts) == 2


@pytest.mark.proves("A26")
def test_reset_cursor_moves_all_partitions(
    admin: AdminClient, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, context = topic(partitions=2), context_of(store=StateStore())
    place: dict[str, Any] = {"topic": name, "subscription": "s"}
    run(PulsarCreateSubscriptionOperator, **place, position="latest")
    publish(client, name, 4)
    reset = AdminClient.reset_cursor

    def left() -> list[int]:
        return [backlog(admin, f"{name}-partition-{number}") for number in range(2)]

    def refused(self: AdminClient, topic: str, *arguments: Any, **options: Any) -> None:
        if topic.endswith("-1"):
            raise ReadError("the connection broke")
        reset(self, topic, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(AirflowException, match="the connection broke"):
        patch.setattr(AdminClient, "reset_cursor", refused)
        run(PulsarResetCursorOperator, context, **place, position="latest")
    assert left() == [0, 2]
    # The failed try is no one that has done it: the next one moves all.
    assert run(PulsarResetCursorOperator, context, **place, position="latest")["topic"] == name
    assert left() == [0, 0]
    run(PulsarResetCursorOperator, context, **place, position="earliest")
    assert left() == [2, 2]


def test_create_subscription_partitioned_takes_no_id(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    ids = publish(client, name, 4)
    with pytest.raises(AirflowFailException, match=r"is partitioned, and the id .* reset it on the partitions"):
        run(PulsarCreateSubscriptionOperator, topic=name, subscription="s", position=str(ids[2]))
    assert admin.subscriptions(name) == []


@pytest.mark.parametrize(
    ("partitions", "suffix", "partition", "message"),
    [
        (2, "-partition-0", 1, "is of partition 1, which is another topic"),
        (2, "", 7, "names no partition of .*, which has 0 to 1"),
        (2, "", -1, "names no partition of .*: write 'ledger:entry:partition'"),
        (0, "", 0, "is of partition 0, but .* has no partitions"),
    ],
    ids=["another", "beyond", "none named", "unpartitioned"],
)
def test_reset_cursor_id_of_another_partition_is_final(
    partitions: int, suffix: str, partition: int, message: str, admin: AdminClient, client: Client, topic: NewTopic
) -> None:
    name = topic(partitions=partitions)
    client.subscribe(name, "s").close()
    last = publish(client, name, 4)[-1]
    options = {"topic": f"{name}{suffix}", "position": f"{last.ledger_id()}:{last.entry_id()}:{partition}"}
    with pytest.raises(AirflowFailException, match=message):
        run(PulsarResetCursorOperator, subscription="s", **options)
    parts = [f"{name}-partition-{number}" for number in range(partitions)] or [name]
    assert sum(backlog(admin, part) for part in parts) == 4


def test_reset_cursor_id_moves_its_partition(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    client.subscribe(name, "s").close()
    last = publish(client, name, 4)[-1]
    own = f"{name}-partition-{last.partition()}"
    for place in (name, own):
        done = run(PulsarResetCursorOperator, topic=place, subscription="s", position=str(last))
        assert done["topic"] == own
        assert sum(backlog(admin, f"{name}-partition-{number}") for number in range(2)) == 3


def test_skip_messages_count_partitioned_is_final(topic: NewTopic) -> None:
    name = topic(partitions=2)
    with pytest.raises(AirflowFailException, match=r"count is for one topic .* such as .*-partition-0"):
        run(PulsarSkipMessagesOperator, topic=name, subscription="s", count=1)


@pytest.mark.parametrize(
    ("place", "left"),
    [({"position": "latest"}, (0, 1, 0)), ({"position": "earliest"}, (4, 1, 5)), ({"timestamp": 1}, (4, 1, 5))],
    ids=["latest", "earliest", "time"],
)
def test_reset_cursor_done_retry_changes_nothing(
    admin: AdminClient, client: Client, topic: NewTopic, place: dict[str, Any], left: tuple[int, int, int]
) -> None:
    name = topic()
    left_after = tries(admin, client, name, PulsarResetCursorOperator, **place)
    # The try dies before Airflow has recorded its success, while others consume; later the task is cleared.
    after_first = left_after(1)
    admin.clear_backlog(name, "s")
    publish(client, name, 1)
    assert (after_first, left_after(1), left_after(3)) == left


def test_skip_messages_cleared_with_fewer_retries_skips(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    left_after = tries(admin, client, topic(), PulsarSkipMessagesOperator, count=1)
    # Cleared after one try: its limit is that try and `retries` more.
    assert (left_after(1, retries=1), left_after(1, retries=0)) == (3, 2)


@pytest.mark.proves("A26")
def test_skip_messages_retry_skips_once(
    admin: AdminClient, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, store = topic(), StateStore()
    place: dict[str, Any] = {"topic": name, "subscription": "s"}
    run(PulsarCreateTopicOperator, topic=name)
    run(PulsarCreateSubscriptionOperator, **place)
    publish(client, name, 5)
    with skip_answer_lost(monkeypatch):
        run(PulsarSkipMessagesOperator, context_of(store=store), **place, count=2)
    assert backlog(admin, name) == 3
    run(PulsarSkipMessagesOperator, context_of(store=store), **place, count=2)
    assert backlog(admin, name) == 3
    # The task is cleared.
    run(PulsarSkipMessagesOperator, context_of(store=store, max_tries=1), **place, count=2)
    assert backlog(admin, name) == 1
    time.sleep(2.1)
    run(PulsarSkipMessagesOperator, **place, older_than_seconds=1)
    deadline = time.monotonic() + 10
    while backlog(admin, name):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("limit", "left"), [({"count": 2}, (2, 3, 1)), ({}, (0, 1, 0))], ids=["count", "all"])
def test_skip_messages_done_retry_skips_nothing(
    admin: AdminClient, client: Client, topic: NewTopic, limit: dict[str, Any], left: tuple[int, int, int]
) -> None:
    name = topic()
    left_after = tries(admin, client, name, PulsarSkipMessagesOperator, **limit)
    # The try dies before Airflow has recorded its success; later the task is cleared.
    after_first = left_after(1)
    publish(client, name, 1)
    assert (after_first, left_after(1), left_after(3)) == left


@pytest.mark.parametrize(
    ("error", "consumed"),
    [
        (ReadError("the answer is lost"), 1),
        (ConnectError("there is no server"), 2),
        (AdminError("refused", status=412), 2),
        (AuthorizationError("no rights"), 2),
    ],
    ids=["lost", "not sent", "refused", "no rights"],
)
def test_skip_messages_failed_is_done_by_retry(
    error: PulsarException,
    consumed: int,
    admin: AdminClient,
    client: Client,
    topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, store = topic(), StateStore()
    consumer = client.subscribe(name, "s")
    publish(client, name, 5)

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch, pytest.raises(AirflowException, match=error.message):
        patch.setattr(AdminClient, "skip_messages", fails)
        run(PulsarSkipMessagesOperator, context_of(store=store), topic=name, subscription="s", count=2)
    for _ in range(consumed):
        consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    consumer.close()
    assert backlog(admin, name) == 5 - consumed
    run(PulsarSkipMessagesOperator, context_of(store=store), topic=name, subscription="s", count=2)
    assert backlog(admin, name) == 3 - consumed


@pytest.mark.parametrize(
    ("at", "count", "after"),
    [
        ([5, -1], 2, [5, 1]),
        ([5, 1], 2, [7, 0]),
        ([5, 2], 1, [7, 0]),
        ([3, 9], 4, [7, 0]),
        ([5, 0], 9, [9, 1]),
        ([9, 1], 1, [9, 1]),
    ],
)
def test_skip_messages_position_after_entries(at: list[int], count: int, after: list[int]) -> None:
    stats = {
        "ledgers": [{"ledgerId": 5, "entries": 3}, {"ledgerId": 7, "entries": 1}, {"ledgerId": 9, "entries": 0}],
        "currentLedgerEntries": 2,
    }
    assert _position_after(stats, at, count) == after


# ---- policies, schemas, compaction -----------------------------------------------------------------------------------


@pytest.mark.proves("A26")
@pytest.mark.parametrize("kind", ["topic", "namespace"])
def test_policies_hold_when_the_task_ends(
    kind: str, admin: AdminClient, topic: NewTopic, namespace: Callable[[], str]
) -> None:
    place = topic() if kind == "topic" else namespace()
    if kind == "topic":
        admin.create_topic(place)
    given: dict[str, Any] = {
        "retention_minutes": 10,
        "retention_mb": -1,
        "message_ttl_seconds": 60,
        "backlog_quota_bytes": 1_000_000,
        "backlog_quota_seconds": 300,
        "backlog_quota_policy": "producer_exception",
        "deduplication": True,
    }
    done = run(PulsarSetPoliciesOperator, **{kind: place}, **given)
    assert done == {
        kind: place,
        "retention": [10, -1],
        "message_ttl": 60,
        "deduplication": True,
        "backlog_quota": {
            "destination_storage": [1_000_000, "producer_exception"],
            "message_age": [300, "producer_exception"],
        },
    }
    assert (admin.get_retention(place), admin.get_message_ttl(place)) == ((10, -1), 60)
    assert admin.get_deduplication(place) is True and len(admin.get_backlog_quotas(place)) == 2
    removed = dict.fromkeys(
        ("retention_minutes", "message_ttl_seconds", "backlog_quota_bytes", "deduplication"), "remove"
    )
    run(PulsarSetPoliciesOperator, **{kind: place}, **removed)
    assert (admin.get_retention(place), admin.get_message_ttl(place)) == (None, None)
    assert admin.get_deduplication(place) is None and admin.get_backlog_quotas(place) == {}


@pytest.mark.proves("A26")
def test_schema_uploaded_and_deleted(admin: AdminClient, topic: NewTopic) -> None:
    name = topic()
    admin.create_topic(name)
    upload: dict[str, Any] = {"topic": name, "schema_type": "avro", "schema_definition": DEFINITION}
    for _ in range(2):
        assert run(PulsarUploadSchemaOperator, **upload) == {"topic": name, "version": 0, "type": "AVRO"}
    with pytest.raises(AirflowFailException, match="HTTP 409"):
        run(PulsarUploadSchemaOperator, **(upload | {"schema_definition": OTHER}))
    assert run(PulsarDeleteSchemaOperator, topic=name)["deleted"] is True
    assert run(PulsarDeleteSchemaOperator, topic=name)["deleted"] is False
    assert admin.get_schema(name) is None


@pytest.mark.parametrize(
    ("kind", "definition", "message"),
    [
        pytest.param("avro", None, "was given, but .* returned None", id="none"),
        pytest.param("avro", "", "was given, but .* returned ''", id="empty"),
        pytest.param("json", {}, "was given, but .* returned {}", id="empty-dict"),
        pytest.param("string", None, "was given, but .* returned None", id="none-unneeded"),
        pytest.param("avro", "None", "schema_definition is not JSON", id="text-none"),
        pytest.param("json", " ", "schema_definition is not JSON", id="blank"),
        pytest.param("protobuf", "7", "must be an Avro definition, not '7'", id="number"),
        pytest.param("avro", 7, "must be a dict or its JSON text, not 7", id="int"),
        pytest.param("string", 7, "must be a dict or its JSON text, not 7", id="int-unneeded"),
        pytest.param("avro", b"{}", "must be a dict or its JSON text, not b'{}'", id="bytes"),
        pytest.param("avro", {"type": b"record"}, "schema_definition is not JSON", id="bytes-within"),
        pytest.param("avro", {"default": float("nan")}, "schema_definition is not JSON", id="nan"),
        pytest.param("string", "\ud800", "schema_definition is not JSON", id="surrogate"),
        pytest.param("key_value", "x", "definition of a KEY_VALUE schema ends too early", id="key-value"),
    ],
)
def test_upload_schema_rendered_wrong_sends_nothing(
    kind: str, definition: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(AdminClient, "upload_schema")
    made = PulsarUploadSchemaOperator(task_id="t", topic="t", schema_type=kind, schema_definition="{{ 'later' }}")
    made.schema_definition = definition
    with pytest.raises(AirflowFailException, match=message):
        made.execute(context_of())


@pytest.mark.parametrize("definition", ['{"type":"array","items":"string"}', [DEFINITION]], ids=["text", "union"])
def test_upload_schema_definition_is_sent_as_given(admin: AdminClient, topic: NewTopic, definition: Any) -> None:
    name = topic()
    run(PulsarUploadSchemaOperator, topic=name, schema_type="json", schema_definition=definition)
    found = admin.get_schema(name)
    text = definition if isinstance(definition, str) else json.dumps(definition)
    assert found is not None and json.loads(found.data) == json.loads(text)


@pytest.mark.proves("A26")
@pytest.mark.parametrize("partitions", [0, 2])
def test_compact_waits_until_it_is_done(partitions: int, admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=partitions)
    publish(client, name, 6, partition_key="k")
    done = run(PulsarCompactTopicOperator, topic=name, timeout_seconds=60)
    assert set(done["status"].values()) == {"SUCCESS"} and len(done["status"]) == max(1, partitions)
    reader = client.create_reader(name, start_message_id=_earliest(), is_read_compacted=True)
    assert reader.read_next(timeout_millis=10_000).data() == b"5"
    assert not reader.has_message_available()
    reader.close()


def test_compact_running_without_wait_is_running(
    admin: AdminClient, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    publish(client, name, 1, partition_key="k")

    def runs(*_: object) -> None:
        raise AdminError("Compaction already in progress", status=409)

    monkeypatch.setattr(AdminClient, "compact", runs)
    monkeypatch.setattr(AdminClient, "compaction_status", lambda *_: {"status": "RUNNING"})
    full = f"persistent://public/default/{name.rpartition('/')[2]}"
    assert run(PulsarCompactTopicOperator, topic=name, wait=False)["status"] == {full: "RUNNING"}


def _earliest() -> Any:
    from pulsar_native import MessageId

    return MessageId.earliest


# ---- in a DAG --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A26")
def test_admin_operators_as_setup_and_teardown(
    airflow_home: Path, admin: AdminClient, client: Client, topic: NewTopic
) -> None:
    name = topic()
    dag = dag_in(
        airflow_home,
        "administration",
        f"""
        from airflow_provider_pulsar.operators.admin import (
            PulsarCreateSubscriptionOperator, PulsarCreateTopicOperator, PulsarDeleteTopicOperator,
        )

        create = PulsarCreateTopicOperator(
            task_id="create", topic="{{{{ params.topic }}}}", params={{"topic": {name!r}}}
        )
        subscribe = PulsarCreateSubscriptionOperator(task_id="subscribe", topic={name!r}, subscription="s")
        delete = PulsarDeleteTopicOperator(task_id="delete", topic={name!r}, force=True)
        create.as_setup() >> subscribe >> delete.as_teardown(setups=create)

        @task
        def work():
            raise RuntimeError("the work failed")

        subscribe >> work() >> delete
        """,
    )
    run_ = dag.test()
    assert states_of(run_) == {"create": "success", "subscribe": "success", "work": "failed", "delete": "success"}
    assert xcom_of(run_, "create")["topic"] == name
    assert xcom_of(run_, "delete") == {"topic": name, "deleted": True}
    with pytest.raises(TopicNotFound):
        admin.partitions(name)


@pytest.mark.parametrize("operator", [PulsarCreateTopicOperator, PulsarSetPoliciesOperator])
def test_admin_without_admin_url_fails(operator: type[Any], connection: Callable[..., str]) -> None:
    connection(service_url="pulsar://127.0.0.1:1")
    options = {"message_ttl_seconds": 1} if operator is PulsarSetPoliciesOperator else {}
    with pytest.raises(AirflowFailException, match="has no admin URL"):
        run(operator, topic="t", **options)


@pytest.mark.parametrize(
    ("operator", "options", "message"),
    [
        (PulsarCreateTopicOperator, {"topic": "t", "partitions": -1}, "partitions must be"),
        (
            PulsarCreateTopicOperator,
            {"topic": "t", "partitions": 2.5},
            "partitions must be a whole number of at least 0",
        ),
        (PulsarCreateTopicOperator, {"topic": "t", "partitions": 10_001}, "at least 0 and at most 10000, not 10001"),
        (PulsarCreateTopicOperator, {"topic": "t", "if_exists": "maybe"}, "if_exists='maybe'"),
        (PulsarDeleteTopicOperator, {"topic": "t", "if_missing": "maybe"}, "if_missing='maybe'"),
        (PulsarResetCursorOperator, {"topic": "t", "subscription": "s"}, "exactly one of timestamp"),
        (
            PulsarSkipMessagesOperator,
            {"topic": "t", "subscription": "s", "count": 1, "older_than_seconds": 1},
            "not both",
        ),
        (PulsarSetPoliciesOperator, {"topic": "t"}, "no policy to set"),
        (PulsarSetPoliciesOperator, {"message_ttl_seconds": 1}, "exactly one of topic and namespace"),
        (PulsarSetPoliciesOperator, {"topic": "t", "retention_minutes": 1}, "belong together"),
        (PulsarSetPoliciesOperator, {"topic": "t", "message_ttl_seconds": -1}, "at least 0"),
        (PulsarSetPoliciesOperator, {"topic": "t", "retention_mb": "remove"}, "retention_mb must be a number"),
        (PulsarSetPoliciesOperator, {"topic": "t", "deduplication": "yes"}, "True, False or 'remove'"),
        (PulsarSetPoliciesOperator, {"topic": "t", "message_ttl_seconds": 90.0}, "message_ttl_seconds must be a whole"),
        (
            PulsarSetPoliciesOperator,
            {"topic": "t", "retention_minutes": 60.0, "retention_mb": 100},
            "retention_minutes must be a whole number, not 60.0",
        ),
        (
            PulsarSetPoliciesOperator,
            {"topic": "t", "retention_minutes": 60, "retention_mb": 0.5},
            "retention_mb must be a whole number",
        ),
        (PulsarSetPoliciesOperator, {"topic": "t", "backlog_quota_bytes": 1.5}, "backlog_quota_bytes must be a whole"),
        (
            PulsarSetPoliciesOperator,
            {"topic": "t", "backlog_quota_seconds": 1.5},
            "backlog_quota_seconds must be a whole",
        ),
        (
            PulsarSetPoliciesOperator,
            {"topic": "t", "retention_minutes": "remove", "retention_mb": 5},
            "leave retention_mb out",
        ),
        (
            PulsarSetPoliciesOperator,
            {"topic": "t", "backlog_quota_bytes": "remove", "backlog_quota_seconds": 5},
            "leave backlog_quota_seconds out",
        ),
        (
            PulsarSetPoliciesOperator,
            {"topic": "t", "message_ttl_seconds": 1, "backlog_quota_policy": "producer_exception"},
            "backlog_quota_policy belongs to",
        ),
        (
            PulsarSetPoliciesOperator,
            {"topic": "t", "backlog_quota_bytes": 1, "backlog_quota_policy": "drop"},
            "backlog_quota_policy='drop'",
        ),
        (PulsarUploadSchemaOperator, {"topic": "t", "schema_type": "avro"}, "needs schema_definition"),
        (PulsarUploadSchemaOperator, {"topic": "t", "schema_type": "xml"}, "schema_type='xml'"),
        (PulsarCompactTopicOperator, {"topic": "t", "timeout_seconds": 0}, "timeout_seconds must be"),
    ],
)
def test_admin_wrong_arguments_raise_at_parsing(operator: type[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operator(task_id="t", **options)


@pytest.mark.parametrize(
    ("operator", "options", "message"),
    [
        (PulsarCreateTopicOperator, {"topic": "a/b"}, "short topic name"),
        (PulsarResetCursorOperator, {"topic": "t", "subscription": "s", "position": "1-2"}, "position must be"),
        (PulsarResetCursorOperator, {"topic": "t", "subscription": "s", "timestamp": "None"}, "rendered to nothing"),
        (
            PulsarResetCursorOperator,
            {"topic": "t", "subscription": "s", "timestamp": "20260101"},
            "write a date as 2026-",
        ),
        (PulsarSkipMessagesOperator, {"topic": "t", "subscription": "s", "count": ""}, "rendered to nothing"),
        (PulsarSkipMessagesOperator, {"topic": "t", "subscription": "s", "count": "-1"}, "count must be"),
        (PulsarSkipMessagesOperator, {"topic": "t", "subscription": 7, "count": 1}, "subscription must be a text"),
    ],
)
def test_admin_wrong_rendered_arguments_raise(operator: type[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, AirflowException), match=message):
        run(operator, **options)
