"""Dead letters of a job: topics and properties as in Java, subscriptions first, failures reported."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pulsar_native import ConsumerBusy, InvalidTopicName, MessageId, Result
from pulsar_native.jobs import dead_letters
from pulsar_native.jobs.dead_letters import DeadLetterOptions, DeadLetterPublisher
from pulsar_native.jobs.failures import JobFailed
from pulsar_native.message import Message
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.topic import TopicName
from support.errors import Unprintable
from support.jobs import TOPIC, received

DLQ, RETRY = f"{TOPIC}-s-DLQ", f"{TOPIC}-s-RETRY"


class Producer:
    """A producer that keeps what is sent; `result` is what its receipts say."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._topic = client, topic
        self._waiting: list[Any] = []

    def send_async(self, payload: bytes | None, callback: Any, **options: Any) -> None:
        self._client.done.append(("send", self._topic))
        self._client.sent.append((self._topic, payload, options))
        self._waiting.append(callback)

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(self._client.result, MessageId())


class Client:
    """A client that keeps what is asked of it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.sent: list[tuple[str, bytes | None, dict[str, Any]]] = []
        self.subscribed: list[tuple[str, str]] = []
        self.result = Result.Ok
        self.is_busy = False

    def create_producer(
        self, topic: str, *, block_if_queue_full: bool, batching_enabled: bool, chunking_enabled: bool
    ) -> Producer:
        # A letter may be larger than a message can be.
        assert block_if_queue_full and not batching_enabled and chunking_enabled
        self.done.append(("producer", topic))
        return Producer(self, topic)

    def subscribe(self, topic: str, name: str, *_: object, **__: object) -> Client:
        self.done.append(("subscribe", topic))
        self.subscribed.append((topic, name))
        if self.is_busy:
            raise ConsumerBusy("there is one")
        return self

    def close(self) -> None:
        self.done.append(("close", ""))


def published(
    message: Message, cause: BaseException | None = None, *, retry: bool = False, redact: Any = str, **options: Any
) -> tuple[str, bytes | None, dict[str, Any]]:
    """Return what is sent for one letter."""
    client = Client()
    made = DeadLetterPublisher(lambda: client, DeadLetterOptions("s", **options), redact)  # type: ignore[arg-type,return-value]
    made.add(message, cause, retry=retry)
    assert not client.sent
    made.flush()
    (found,) = client.sent
    return found


# ---- topics ----------------------------------------------------------------------------------------------------------


def test_topics_default_to_javas_names() -> None:
    options = DeadLetterOptions("s")
    for topic in ("t", TOPIC, f"{TOPIC}-partition-3"):
        assert (options.dead_topic(topic), options.retry_topic(topic)) == (DLQ, RETRY)
    assert options.retry_topics([f"{TOPIC}-partition-0", "u", TOPIC]) == [
        RETRY,
        "persistent://public/default/u-s-RETRY",
    ]


def test_topics_given_replace_the_default() -> None:
    options = DeadLetterOptions("s", "dead", "again")
    assert (options.dead_topic(TOPIC), options.retry_topic(TOPIC)) == ("dead", "again")
    assert options.retry_topics(["a", "b"]) == ["again"]


@pytest.mark.parametrize("name", ["dead_letter_topic", "retry_letter_topic"])
def test_topics_not_persistent_are_refused(name: str) -> None:
    topic = "non-persistent://public/default/t"
    with pytest.raises(ValueError, match=f"{name}='{topic}' is not persistent: .*; use a persistent topic"):
        DeadLetterOptions("s", **{name: topic})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dead_letter_topic", "retry_letter_topic"])
@pytest.mark.parametrize(
    ("given", "topic"),
    [("t", "t"), ("t", TOPIC), ("public/default/t", "t"), (f"{TOPIC}-partition-1", "t"), ("t", "t-partition-0")],
    ids=["same", "full", "short", "partition", "of-partition"],
)
def test_topics_consumed_are_refused(name: str, given: str, topic: str) -> None:
    options = DeadLetterOptions("s", **{name: given})  # type: ignore[arg-type]
    options.check_apart(["u", f"{topic}-s-DLQ"])
    with pytest.raises(ValueError, match=f"{name}='{given}' is also a topic that is consumed .{topic}.: "):
        options.check_apart(["u", topic])


def test_one_topic_for_both_copies_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dead_letter_topic='t' and retry_letter_topic='.*/t' are the same topic"):
        DeadLetterOptions("s", "t", TOPIC)


# ---- patterns --------------------------------------------------------------------------------------------------------

OF_LETTERS = ["a-s-DLQ", "a-s-RETRY", "a-s-DLQ-partition-12", "dead", "dead-partition-0", "again"]
NAMES = ["a", "b", "a-partition-3", "a-other-DLQ", "a-s-DLQ-1", "deadly", *OF_LETTERS]
KEPT = [name for name in NAMES if name not in OF_LETTERS]


@pytest.mark.parametrize(
    ("pattern", "flags", "kept"),
    [
        ("persistent://public/default/.*", 0, KEPT),
        ("^public/default/.*$", 0, KEPT),
        (".*", 0, KEPT),
        ("persistent://public/default/(A|B)(-.*)?", re.IGNORECASE, [name for name in KEPT if name != "deadly"]),
        ("public/default/a|.*dead.*", 0, ["a", "a-partition-3", "deadly"]),
        (r"public/default/(?P<x>.)(?!.*-DLQ)-.*\b", 0, ["a-partition-3", "a-s-RETRY"]),
        ("public/default/.*-DLQ", 0, ["a-other-DLQ", "a-s-DLQ", "a-s-DLQ-partition-12"]),
        ("public/default/a.* # all", re.VERBOSE, [name for name in KEPT if name.startswith("a")]),
    ],
    ids=["all", "anchored", "short", "flags", "alternatives", "groups", "of-dead-letters", "verbose"],
)
def test_pattern_leaves_out_own_dead_letters(pattern: str, flags: int, kept: list[str]) -> None:
    options = DeadLetterOptions("s", "dead", "public/default/again")
    made = TopicPattern.parse(options.without_dead_letters(re.compile(pattern, flags)))
    assert [name for name in NAMES if TopicName.parse(name).base in made.collapsed([name])] == kept
    assert (made.namespace, made.for_broker) == ("public/default", "public/default/.*")


def test_pattern_keeps_topics_of_other_namespaces() -> None:
    pattern = DeadLetterOptions("s", "public/other/a").without_dead_letters(re.compile("public/default/.*"))
    assert TopicPattern.parse(pattern).matches(TopicName.parse("a"))


def test_pattern_of_dead_letters_ends() -> None:
    pattern = DeadLetterOptions("s").without_dead_letters(re.compile("public/default/(a|.*-DLQ)"))
    names = ["a", "a-s-DLQ", "a-s-DLQ-s-DLQ", "a-s-DLQ-s-DLQ-s-DLQ"]
    assert [name for name in names if TopicPattern.parse(pattern).matches(TopicName.parse(name))] == names[:2]


@pytest.mark.parametrize(
    "text", ["a/.*", "a/b", "p.*/n.*/a", "other://a/b/c"], ids=["parts", "two", "namespace", "domain"]
)
def test_pattern_wrong_is_left_to_the_client(text: str) -> None:
    with pytest.raises(InvalidTopicName, match=re.escape(text)):
        TopicPattern.parse(DeadLetterOptions("s").without_dead_letters(re.compile(text)))


# ---- content ---------------------------------------------------------------------------------------------------------


def test_letter_copies_message_with_origin() -> None:
    message = received(
        b"ab", 5, 1, 3, properties={"a": "1"}, partition_key="k", ordering_key=b"o", event_time=9,
    )  # fmt: skip
    topic, payload, options = published(message, ValueError("bad"))
    assert (topic, payload) == (DLQ, b"ab")
    assert options.pop("properties") == {
        "REAL_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_ID": "7:5:-1:1",
        "ORIGIN_MESSAGE_IDY_TIME": "7:5:-1:1",
        "REAL_SUBSCRIPTION": "s",
        "a": "1",
        "EXCEPTION_TYPE": "ValueError",
        "EXCEPTION_MESSAGE": "bad",
    }
    assert options == {"partition_key": "k", "ordering_key": "o", "event_timestamp": 9}


def test_letter_of_bytes_key_and_null_value() -> None:
    _, payload, options = published(
        received(b"", partition_key="/w==", partition_key_b64_encoded=True, null_value=True)
    )
    assert payload is None and options["partition_key"] == b"\xff"
    _, payload, options = published(received(b""))
    assert payload == b"" and set(options) == {"properties"} and "EXCEPTION_TYPE" not in options["properties"]


def test_letter_of_key_that_is_no_text_keeps_it() -> None:
    message = received(b"", partition_key="k")
    # As another client may write it: protobuf does not check the encoding.
    message.entry.fields(0, 0).MergeFromString(b"\x32\x02k\xff")
    _, _, options = published(message)
    assert options["partition_key"] == b"k\xff"


def test_letter_of_chunks_names_first_and_last() -> None:
    message = received(b"x", 5, first_chunk=MessageId(-1, 7, 2, -1))
    assert published(message)[2]["properties"]["ORIGIN_MESSAGE_ID"] == "7:2:-1;7:5:-1"


def test_letter_cause_redacted_then_cut() -> None:
    cause = ValueError("topsecret" + "x" * 2000)
    text = published(received(), cause, redact=lambda text: text.replace("topsecret", "***"))[2]["properties"]
    assert text["EXCEPTION_MESSAGE"] == "***" + "x" * 997


def test_letter_cause_with_lone_surrogate_is_encodable() -> None:
    # A producer cut an emoji in two; a property is UTF-8.
    properties = published(received(), KeyError("\ud83d"))[2]["properties"]
    assert properties["EXCEPTION_MESSAGE"].encode() == b"'\\ud83d'"
    assert published(received(), ValueError("no \ud83d"))[2]["properties"]["EXCEPTION_MESSAGE"] == "no ?"


def test_letter_cause_without_text_is_its_type() -> None:
    properties = published(received(), Unprintable())[2]["properties"]
    assert properties["EXCEPTION_TYPE"] == properties["EXCEPTION_MESSAGE"] == "Unprintable"


def test_retry_letter_counts_and_delays() -> None:
    topic, _, options = published(received(), retry=True, retry_delay_seconds=2.5)
    assert (topic, options["deliver_after"]) == (RETRY, 2500)
    assert (options["properties"]["RECONSUMETIMES"], options["properties"]["DELAY_TIME"]) == ("1", "2500")


@pytest.mark.parametrize(("tries", "topic"), [("1", "RETRY"), ("2", "DLQ"), ("x", "RETRY"), ("-1", "RETRY")])
def test_retry_letter_dead_after_maximum(tries: str, topic: str) -> None:
    """A message of the retry topic keeps its first origin; letters are named after that topic."""
    given = {"RECONSUMETIMES": tries, "REAL_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": "1:2:-1"}
    message = received(topic=RETRY, properties=given)
    name, _, options = published(message, retry=True, max_redeliver_count=2)
    assert name == f"{TOPIC}-s-{topic}"
    parts = options["properties"]
    assert (parts["REAL_TOPIC"], parts["ORIGIN_MESSAGE_ID"]) == (TOPIC, "1:2:-1")
    assert parts["RECONSUMETIMES"] == (tries if topic == "DLQ" else {"1": "2"}.get(tries, "1"))


@pytest.mark.parametrize("real", [TOPIC, "://"], ids=["topic", "wrong"])
def test_letter_of_letter_is_not_for_its_own_topic(real: str) -> None:
    """Whatever the property says, as a consumer of the dead letters may have the subscription's name."""
    assert published(received(topic=DLQ, properties={"REAL_TOPIC": real}))[0] == f"{DLQ}-s-DLQ"


# ---- publishing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("initial", "name"), [(None, "s"), ("keep", "keep")])
def test_dead_letter_topic_subscribed_before_producer(initial: str | None, name: str) -> None:
    client = Client()
    options = DeadLetterOptions("s", initial_subscription_name=initial)
    made = DeadLetterPublisher(lambda: client, options)  # type: ignore[arg-type,return-value]
    for _ in range(2):
        made.add(received(), None, retry=False)
        made.flush()
    made.add(received(), None, retry=True)
    made.flush()
    assert client.subscribed == [(DLQ, name)]
    assert client.done == [
        ("subscribe", DLQ), ("close", ""), ("producer", DLQ), ("send", DLQ), ("send", DLQ),
        ("producer", RETRY), ("send", RETRY),
    ]  # fmt: skip


def test_dead_letter_topic_in_use_is_no_failure() -> None:
    client = Client()
    client.is_busy = True
    made = DeadLetterPublisher(lambda: client, DeadLetterOptions("s"))  # type: ignore[arg-type,return-value]
    made.add(received(), None, retry=False)
    made.flush()
    assert client.done == [("subscribe", DLQ), ("producer", DLQ), ("send", DLQ)]


def test_dead_letters_flushed_when_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_HELD_BYTES", 10)
    client = Client()
    made = DeadLetterPublisher(lambda: client, DeadLetterOptions("s"))  # type: ignore[arg-type,return-value]
    for count in (0, 0, 3, 3):
        made.add(received(b"x" * 4), None, retry=False)
        assert len(client.sent) == count


def test_dead_letters_not_stored_raise_and_are_not_repeated() -> None:
    client = Client()
    made = DeadLetterPublisher(lambda: client, DeadLetterOptions("s"))  # type: ignore[arg-type,return-value]
    client.result = Result.TopicTerminated
    made.add(received(entry=3), None, retry=False)
    made.add(received(entry=4), None, retry=False)
    with pytest.raises(
        JobFailed, match=f"2 of 2 dead letters were not stored; the first: 7:3:-1:-1 of {TOPIC} to {DLQ}: Topic"
    ):
        made.flush()
    client.result = Result.Ok
    made.flush()
    assert len(client.sent) == 2


def test_dead_letters_without_any_use_no_client() -> None:
    def client() -> Any:
        raise AssertionError("the client is not needed")

    DeadLetterPublisher(client, DeadLetterOptions("s")).flush()
