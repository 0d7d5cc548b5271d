"""ConsumeBatchOperator with messages that cannot be decoded or processed, and with a function for each message."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.log import mask_secret

from pulsar_native import AdminClient, Client, Consumer, InitialPosition, Message, Producer
from pulsar_native.jobs.codecs import EncodedBytes
from pulsar_native.jobs.message_handling import MessageResult
from pulsar_native.schema import AvroSchema
from support.brokers import NewTopic
from support.consuming import consume, fill, lines, texts
from support.tasks import StateStore, context_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")
ROWS = ['{"n": 0}', "no json", '{"n": 2}', "neither", '{"n": 4}']


def received(client: Client, topic: str, count: int, subscription: str = "sub") -> list[Message]:
    """Return the messages a subscription of a topic waits for."""
    with client.subscribe(topic, subscription, initial_position=InitialPosition.Earliest) as consumer:
        return [consumer.receive(10_000) for _ in range(count)]


def backlog(admin: AdminClient, topic: str, subscription: str = "sub") -> int:
    """Return how many entries a subscription has not acknowledged."""
    return int(admin.stats(topic, precise_backlog=True)["subscriptions"][subscription]["msgBacklog"])


# ---- on_error --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A10")
@pytest.mark.parametrize("batch", [1, 5])
def test_on_error_skip_goes_on(batch: int, client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(client, name, ROWS, batch=batch)
    manifest = consume(name, path, decode="json", on_error="skip").execute(context_of())
    assert [each["value"]["n"] for each in lines(path)] == [0, 2, 4]
    errors = manifest["errors"]
    assert (manifest["count"], errors["count"], errors["skipped"]) == (3, 2, 2)
    assert [each["action"] for each in errors["messages"]] == ["skip"] * 2
    assert "not JSON" in errors["messages"][0]["error"] and errors["messages"][0]["topic"] == name
    assert backlog(admin, name) == 0
    # What is written again is what was written: without those that were skipped.
    written = path.read_bytes()
    path.unlink()
    assert consume(name, path, decode="json", on_error="skip").execute(context_of()) == manifest
    assert path.read_bytes() == written


@pytest.mark.proves("A10")
def test_on_error_fail_names_the_message(client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient) -> None:
    name = topic()
    fill(client, name, ROWS, batch=1)
    for _ in range(2):
        with pytest.raises(AirflowException, match=rf"message \d+:1:-1:-1 of {name}: .*on_error='skip'"):
            consume(name, tmp_path / "a.jsonl", decode="json").execute(context_of())
    assert backlog(admin, name) == 5


@pytest.mark.proves("A10")
def test_max_errors_bounds_what_is_skipped(client: Client, topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    fill(client, name, ROWS, batch=1)
    with pytest.raises(AirflowException, match="more than max_errors=1"):
        consume(name, inline=True, decode="json", on_error="skip", max_errors=1).execute(context_of())
    assert backlog(admin, name) == 5
    found = consume(name, inline=True, decode="json", on_error="skip", max_errors=2).execute(context_of())
    assert found["count"] == 3


@pytest.mark.proves("A10")
def test_dead_letter_tells_origin_and_cause(
    client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient
) -> None:
    name = topic(partitions=1)
    fill(client, name, [b"\xff\xfe"], partition_key="k", properties={"own": "1"}, event_timestamp=1357016400123)
    manifest = consume(name, tmp_path / "a.jsonl", decode="json", on_error="dead_letter").execute(context_of())
    assert (manifest["count"], manifest["errors"]["dead_letters"]) == (0, 1)
    (letter,) = received(client, f"{name}-sub-DLQ", 1)
    told = manifest["errors"]["messages"][0]
    properties = letter.properties()
    assert (letter.data(), letter.partition_key(), letter.event_timestamp()) == (b"\xff\xfe", "k", 1357016400123)
    assert properties["REAL_TOPIC"] == told["topic"] == f"{name}-partition-0"
    assert properties["ORIGIN_MESSAGE_ID"] == ":".join(told["id"].split(":")[:3])
    assert (properties["REAL_SUBSCRIPTION"], properties["own"]) == ("sub", "1")
    assert properties["EXCEPTION_TYPE"] == "InvalidRecord" and "not JSON" in properties["EXCEPTION_MESSAGE"]
    assert backlog(admin, f"{name}-partition-0") == 0


def test_dead_letter_topic_is_chosen(client: Client, topic: NewTopic) -> None:
    name, letters = topic(), topic("letters")
    fill(client, name, ["x"])
    options: dict[str, Any] = {"dead_letter_topic": letters, "initial_subscription_name": "inspect"}
    consume(name, inline=True, decode="json", on_error="dead_letter", **options).execute(context_of())
    assert received(client, letters, 1, "inspect")[0].data() == b"x"


def test_letter_that_is_not_stored_fails(
    client: Client, topic: NewTopic, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pulsar_native import Result

    name = topic()
    fill(client, name, ROWS, batch=1)
    real = Producer.send_async

    def send(self: Producer, content: Any, callback: Any, **options: Any) -> None:
        if "DLQ" in self.topic():
            callback(Result.Timeout, None)
        else:
            real(self, content, callback, **options)

    monkeypatch.setattr(Producer, "send_async", send)
    with pytest.raises(AirflowException, match=r"stage 'dead letters': JobFailed: 2 of 2 dead letters"):
        consume(name, inline=True, decode="json", on_error="dead_letter").execute(context_of())
    assert backlog(admin, name) == 5


@pytest.mark.proves("A10")
def test_retry_letter_is_redelivered_then_dead_letter(client: Client, topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    fill(client, name, ["no json"])
    options: dict[str, Any] = {"decode": "json", "on_error": "retry_letter", "max_redeliver_count": 2}
    options |= {"subscription_type": "Shared", "retry_delay_seconds": 0, "inline": True}
    counts = []
    for run in range(4):
        errors = consume(name, **options).execute(context_of(f"run{run}"))["errors"]
        counts.append(errors["count"])
    assert counts == [1, 1, 1, 0]
    (letter,) = received(client, f"{name}-sub-DLQ", 1)
    assert letter.data() == b"no json" and letter.properties()["REAL_TOPIC"] == name
    assert backlog(admin, name) == backlog(admin, f"{name}-sub-RETRY") == 0


@pytest.mark.proves("A10", "A14")
def test_undecodable_avro_follows_on_error(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    point: dict[str, object] = {"type": "record", "name": "P", "fields": [{"name": "s", "type": "string"}]}
    schema, name = AvroSchema(None, point), topic()
    with client.create_producer(name, schema=EncodedBytes(schema.schema_info())) as producer:
        for data in (schema.encode({"s": "good"}), b"\x7f", b"", schema.encode({"s": "also"})):
            producer.send(data)
    with pytest.raises(AirflowException, match=r"message \d+:1:"):
        consume(name, tmp_path / "a.jsonl").execute(context_of())
    manifest = consume(name, tmp_path / "a.jsonl", on_error="skip").execute(context_of())
    assert [each["value"] for each in lines(tmp_path / "a.jsonl")] == [{"s": "good"}, {"s": "also"}]
    assert manifest["errors"]["count"] == 2


@pytest.mark.proves("A10")
def test_first_message_too_long_for_inline(client: Client, topic: NewTopic) -> None:
    name = topic()
    fill(client, name, ["x" * 5000, "small"], batch=1)
    options: dict[str, Any] = {"inline": True, "inline_limit_bytes": 1000}
    with pytest.raises(AirflowException, match="give a path"):
        consume(name, **options).execute(context_of())
    found = consume(name, on_error="dead_letter", **options).execute(context_of())
    assert [each["value"] for each in found["messages"]] == ["small"]
    assert received(client, f"{name}-sub-DLQ", 1)[0].data() == b"x" * 5000


# ---- process_message -------------------------------------------------------------------------------------------------


@pytest.mark.proves("A10")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_process_message_decides_each(
    asynchronous: bool, client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient
) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    words = ["ack", "nack", "skip", "dead_letter", "none", "raise"]
    fill(client, name, words, batch=1)

    def decide(message: Message, context: Any) -> Any:
        assert context["ti"].task_id == "a_task"
        word = message.data().decode()
        if word == "raise":
            raise KeyError("s3cr3t-of-a-connection")
        return None if word == "none" else MessageResult(word)

    async def decide_async(message: Message, context: Any) -> Any:
        await asyncio.sleep(0.01)
        return decide(message, context)

    mask_secret("s3cr3t-of-a-connection")
    function = decide_async if asynchronous else decide
    operator = consume(name, path, process_message=function, on_error="dead_letter", concurrency=3)
    manifest = operator.execute(context_of())
    assert texts(path) == ["ack", "none"]
    errors = manifest["errors"]
    assert [errors[key] for key in ("count", "skipped", "nacked", "dead_letters")] == [1, 1, 1, 2]
    assert "s3cr3t" not in json.dumps(manifest)
    letters = received(client, f"{name}-sub-DLQ", 2)
    assert sorted(letter.data() for letter in letters) == [b"dead_letter", b"raise"]
    causes = {letter.data(): letter.properties().get("EXCEPTION_MESSAGE") for letter in letters}
    assert causes == {b"dead_letter": None, b"raise": "'***'"}
    # Only the refused one is left, and comes again.
    assert backlog(admin, name) == 1
    assert [each["value"] for each in consume(name, inline=True).execute(context_of("next"))["messages"]] == ["nack"]


@pytest.mark.proves("A10")
def test_process_message_alone_needs_no_output(client: Client, topic: NewTopic, admin: AdminClient) -> None:
    name, store = topic(), StateStore()
    fill(client, name, range(5), batch=2)
    seen: list[bytes] = []
    operator = consume(name, process_message=lambda message: seen.append(message.data()))
    assert operator.execute(context_of(store=store))["count"] == 5
    assert seen == [b"0", b"1", b"2", b"3", b"4"] and backlog(admin, name) == 0
    # A cleared run gives it the same messages again, and process_once=True does not.
    operator.execute(context_of(store=store))
    assert len(seen) == 10 and seen[5:] == seen[:5]
    operator.process_once = True
    operator.execute(context_of(store=store))
    assert len(seen) == 10


def test_process_message_runs_at_once(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, running, most = topic(), 0, 0
    fill(client, name, range(40), batch=10)

    async def slow(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.3)
        running -= 1

    started = time.monotonic()
    consume(name, tmp_path / "a.jsonl", process_message=slow, concurrency=20).execute(context_of())
    assert most == 20 and time.monotonic() - started < 9, "one after the other they take 12 s"
    assert texts(tmp_path / "a.jsonl") == [str(n) for n in range(40)]


@pytest.mark.proves("A11")
def test_process_message_error_acknowledges_nothing(client: Client, topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    fill(client, name, range(6), batch=2)

    async def third_fails(message: Message) -> None:
        await asyncio.sleep(0 if message.data() == b"2" else 30)
        raise RuntimeError("the third failed")

    started = time.monotonic()
    with pytest.raises(AirflowException, match=r"RuntimeError: the third failed.*on_error"):
        consume(name, inline=True, process_message=third_fails, concurrency=6).execute(context_of())
    assert time.monotonic() - started < 5
    assert backlog(admin, name) == 3


@pytest.mark.parametrize("kind", [AirflowFailException, AirflowSkipException])
def test_airflow_exceptions_pass_through(kind: type[Exception], client: Client, topic: NewTopic) -> None:
    name = topic()
    fill(client, name, range(2))

    def stop(message: Message) -> None:
        raise kind("for the whole task")

    with pytest.raises(kind, match="for the whole task"):
        consume(name, inline=True, process_message=stop, on_error="skip").execute(context_of())


@pytest.mark.parametrize("answer", [False, "acknowledge", 7])
def test_process_message_wrong_result_raises(answer: Any, client: Client, topic: NewTopic) -> None:
    name = topic()
    fill(client, name, range(2))
    with pytest.raises(AirflowFailException, match="process_message returned"):
        consume(name, inline=True, process_message=lambda message: answer, on_error="skip").execute(context_of())


def test_retry_letter_without_receiver_raises(client: Client, topic: NewTopic) -> None:
    name = topic()
    fill(client, name, range(2))
    with pytest.raises(AirflowFailException, match="set retry_letter_topic"):
        consume(name, inline=True, process_message=lambda message: "retry_letter").execute(context_of())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_error": "ignore"}, "on_error"),
        ({"max_errors": -1}, "max_errors"),
        ({"concurrency": 0}, "concurrency"),
        ({"process_message": 1}, "process_message"),
        ({"if_exists": "append"}, "append_part"),
        ({"path": "a.parquet", "on_error": "skip"}, "on_error"),
        ({"path": "a.parquet", "process_message": print}, "process_message"),
    ],
)
def test_on_error_wrong_options_raise_at_parsing(options: dict[str, Any], words: str) -> None:
    path = options.pop("path", "a.jsonl")
    with pytest.raises(ValueError, match=words):
        consume("t", Path(path), **options)


def test_redelivered_message_is_in_the_batch_once(
    client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost connection the broker delivers again what is not acknowledged."""
    for kind in ("Exclusive", "Shared"):
        name = topic()
        fill(client, name, range(60), batch=7)
        for ending in ("jsonl", "parquet"):
            calls = 0
            method = "receive" if ending == "jsonl" else "receive_arrow"
            real = getattr(Consumer, method)

            def again(self: Consumer, *arguments: Any, _real: Any = real, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == 3:
                    self.redeliver_unacknowledged_messages()
                if "max_rows" in options:
                    options["max_rows"] = 10
                return _real(self, *arguments, **options)

            with monkeypatch.context() as patch:
                patch.setattr(Consumer, method, again)
                operator = consume(name, tmp_path / f"{kind}.{ending}", subscription=ending, subscription_type=kind)
                assert operator.execute(context_of(f"{kind}{ending}"))["count"] == 60
            assert calls > 3
