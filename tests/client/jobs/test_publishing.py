"""Publish job against a topic in memory that deduplicates: repetitions, failures, changed content."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import CompressionType, MessageId, Result
from pulsar_native.jobs.codecs import Codec
from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.publishing import PublishIncomplete, PublishJob, PublishOptions, Surroundings
from pulsar_native.jobs.sources import MessageMapping, Source
from support.errors import Unprintable
from support.jobs import TOPIC, MemoryLog, MemoryState


class Topic:
    """A topic without partitions; with `deduplicates` it drops sequence ids up to the highest of their producer."""

    def __init__(self, *, deduplicates: bool = True) -> None:
        self.deduplicates = deduplicates
        self.messages: list[bytes] = []
        self.highest: dict[str, int] = {}
        self.options: dict[str, Any] = {}
        # Result of the messages with these payloads, in order; of those that were sent before, too.
        self.results: dict[bytes, list[Result]] = {}

    def store(self, name: str, sequence_id: int, payload: bytes) -> tuple[Result, MessageId]:
        """Store a message and return its receipt."""
        if self.results.get(payload):
            return self.results[payload].pop(0), MessageId()
        if self.deduplicates:
            if sequence_id <= self.highest.get(name, -1):
                return Result.Ok, MessageId(-1, -1, -1, -1)
            self.highest[name] = sequence_id
        self.messages.append(payload)
        return Result.Ok, MessageId(-1, 7, len(self.messages) - 1, -1)


class Producer:
    """A producer of the topic, whose receipts come at once."""

    _is_zero_an_id = False

    def __init__(self, topic: Topic, name: str | None) -> None:
        self._topic, self._name = topic, name or "generated"
        self._last = topic.highest.get(self._name, -1)

    def topic(self) -> str:
        return TOPIC

    def producer_name(self) -> str:
        return self._name

    def last_sequence_id(self) -> int:
        return self._last

    def send_async(self, payload: bytes | None, callback: Any, *, sequence_id: int | None, **_: Any) -> None:
        is_none = sequence_id is None or (sequence_id == 0 and not self._is_zero_an_id)
        number = self._last + 1 if is_none else sequence_id
        result, message_id = self._topic.store(self._name, number, payload or b"")
        if result is Result.Ok:
            self._last = max(self._last, number)
        callback(result, message_id)

    def close(self) -> None:
        pass


class Client:
    """A client of the topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def create_producer(self, topic: str, *, producer_name: str | None, **options: Any) -> Producer:
        self._topic.options = options
        return Producer(self._topic, producer_name)

    def get_partition_count(self, topic: str) -> int:
        return 0

    @contextlib.contextmanager
    def create_reader(self, topic: str, start: MessageId) -> Iterator[Client]:
        yield self

    def get_last_message_ids(self) -> list[MessageId]:
        return [MessageId(-1, 7, len(self._topic.messages) - 1, -1)]


class Run:
    """A run of a publish job, tried as often as wanted with the same state."""

    def __init__(self, topic: Topic | None = None, **options: Any) -> None:
        self.topic = topic or Topic()
        self.state, self.log = MemoryState(), MemoryLog()
        self.reports: list[dict[str, Any]] = []
        self.killed: Callable[[], bool] = lambda: False
        self._options = PublishOptions(topic="t", producer_name="me", identity="me", **options)

    def job(
        self, items: Any, control: tuple[type[BaseException], ...] = (), mapping: MessageMapping | None = None
    ) -> PublishJob:
        """Return a job of these items."""
        around = Surroundings(
            self.state,
            self.log,
            lambda: self.killed(),
            self.reports.append,
            control,
            lambda text: text.replace("secret", "***"),
        )
        mapping = MessageMapping() if mapping is None else mapping
        return PublishJob(self._options, Codec(None, None), mapping, Source.of(items), None, around)

    def publish(self, items: Any, **options: Any) -> dict[str, Any]:
        """Try once and return the manifest."""
        job = self.job(items, **options)
        job.check()
        return job.run(Client(self.topic), None)  # type: ignore[arg-type]


ITEMS = [str(number) for number in range(10)]
STORED = [item.encode() for item in ITEMS]


def test_publish_stores_all_once_however_often() -> None:
    run = Run()
    first = run.publish(ITEMS)
    assert (first["count"], first["stored"], first["duplicates"]) == (10, 10, 0)
    assert (first["deduplicated"], first["repeatable"], first["generation"]) == (True, True, 1)
    assert (first["topic"], first["producer_name"], first["schema"]) == (TOPIC, "me", None)
    again = run.publish(ITEMS)
    assert (again["count"], again["stored"], again["duplicates"]) == (10, 0, 10)
    assert run.topic.messages == STORED and run.reports == []


def test_publish_options_reach_the_producer() -> None:
    run = Run(compression="ZSTD", send_timeout_seconds=1.5, batching=False, properties={"a": "1"})
    run.publish(ITEMS)
    given = run.topic.options
    assert given["compression_type"] is CompressionType.ZSTD and given["send_timeout_millis"] == 1500
    assert (given["batching_enabled"], given["properties"], given["auto_update_partitions"]) == (
        False,
        {"a": "1"},
        False,
    )


@given(st.lists(st.integers(0, 9), max_size=4), st.sampled_from([Result.Timeout, Result.UnknownError]))
def test_publish_tries_store_each_message_once(failures: list[int], result: Result) -> None:
    """Each failing try ends at a message that the broker rejects; the last one stores the rest."""
    run = Run()
    for number in failures:
        run.topic.results.setdefault(STORED[number], []).append(result)
    for _ in range(len(failures)):
        try:
            run.publish(ITEMS)
        except PublishIncomplete as error:
            assert error.can_retry and error.manifest["failed"] == 1
            assert run.topic.messages == STORED[: len(run.topic.messages)]
    run.publish(ITEMS)
    assert run.topic.messages == STORED


def test_publish_stops_at_first_failure_and_reports() -> None:
    run = Run()
    run.topic.results[b"4"] = [Result.MessageTooBig]
    with pytest.raises(
        PublishIncomplete, match=r"1 messages failed, 0 are unconfirmed, 4 were stored. .* message 4: Mess"
    ):
        run.publish(ITEMS)
    assert run.topic.messages == STORED[:4]
    (report,) = run.reports
    assert report["stored_ids"] == [f"7:{n}:-1:-1" for n in range(4)] and report["repeatable"]
    (warning,) = run.log.warnings
    counts = "4 stored, 0 duplicates dropped, 1 failed, 0 unconfirmed"
    assert f"Publishing to t ended early (1 message failed): {counts}. First error: message 4: Mess" in warning
    assert run.log.infos[-1] == "t: the producer me stored 7:0:-1:-1, 7:1:-1:-1, 7:2:-1:-1, 7:3:-1:-1"


def test_publish_interrupted_logs_counts_alone() -> None:
    def items() -> Iterator[str]:
        yield from ITEMS[:3]
        raise KeyboardInterrupt

    run = Run()
    with pytest.raises(KeyboardInterrupt):
        run.publish(items())
    counts = "3 stored, 0 duplicates dropped, 0 failed, 0 unconfirmed"
    assert run.log.warnings == [f"Publishing to t ended early (interrupted): {counts}"]
    assert run.reports[0]["first_error"] == "interrupted"


@pytest.mark.parametrize("deduplicate", [True, False])
@pytest.mark.parametrize(
    ("result", "can_retry"),
    [(Result.MessageTooBig, False), (Result.InvalidConfiguration, False), (Result.Timeout, True)],
    ids=lambda given: getattr(given, "name", None),
)
def test_publish_failed_receipt_says_whether_to_retry(result: Result, can_retry: bool, deduplicate: bool) -> None:
    run = Run(deduplicate=deduplicate)
    run.topic.results[b"9"] = [result]
    with pytest.raises(PublishIncomplete, match=f"First error: message 9: {result.name}: ") as caught:
        run.publish(ITEMS)
    assert caught.value.can_retry is can_retry
    assert "(1 message failed)" in run.log.warnings[0]


def test_publish_changed_content_is_refused_before_sending() -> None:
    run = Run()
    run.publish(ITEMS)
    with pytest.raises(JobRefused, match=r"Nothing was published to t: message 1 is not .*on_changed='republish'"):
        run.publish([ITEMS[0], "other", *ITEMS[2:]])
    assert run.topic.messages == STORED


def test_publish_changed_content_as_next_generation() -> None:
    run = Run(republish_changed=True)
    run.publish(ITEMS)
    found = run.publish(["a", "b"])
    assert (found["generation"], found["producer_name"], found["stored"]) == (2, "me/2", 2)
    assert run.publish(["a", "b"])["duplicates"] == 2
    assert run.topic.messages == [*STORED, b"a", b"b"]
    assert "Publishing all messages as generation 2" in run.log.warnings[0]


def test_publish_name_of_others_is_refused() -> None:
    run = Run()
    run.topic.highest["me"] = 3
    with pytest.raises(JobRefused, match="the broker knows the producer 'me' of t up to message 3"):
        run.publish(ITEMS)
    assert run.topic.messages == []


def test_publish_without_deduplication_says_so() -> None:
    run = Run(Topic(deduplicates=False))
    first = run.publish(ITEMS)
    assert (first["deduplicated"], first["repeatable"]) == (False, False)
    assert "the broker does not remember the first message, which was published" in run.log.infos[-2]
    run.publish(ITEMS)
    assert run.topic.messages == STORED * 2
    assert "An earlier try stored 10 messages in t without deduplication" in run.log.warnings[0]


def test_publish_required_deduplication_is_refused() -> None:
    run = Run(Topic(deduplicates=False), deduplicate=True)
    with pytest.raises(PublishIncomplete, match="deduplicate=True, but t has no deduplication") as caught:
        run.publish(ITEMS)
    assert not caught.value.can_retry and run.topic.messages == STORED[:1] and run.reports[0]["stored"] == 1


def test_publish_without_names_sends_all_despite_failures() -> None:
    run = Run(deduplicate=False)
    run.topic.results[b"4"] = [Result.Timeout]
    with pytest.raises(PublishIncomplete, match="A retry publishes all messages again") as caught:
        run.publish(ITEMS)
    assert caught.value.can_retry and run.topic.messages == [each for each in STORED if each != b"4"]


def test_publish_killed_sends_nothing_more() -> None:
    run = Run()
    run.killed = lambda: len(run.topic.messages) >= 3
    with pytest.raises(PublishIncomplete, match="First error: the task was killed"):
        run.publish(ITEMS)
    assert run.topic.messages == STORED[:3]
    run.killed = lambda: False
    run.publish(ITEMS)
    assert run.topic.messages == STORED


def test_publish_control_exception_raised_after_report() -> None:
    class Deferred(BaseException):
        pass

    def items() -> Iterator[str]:
        yield from ITEMS[:3]
        raise Deferred

    run = Run()
    with pytest.raises(Deferred):
        run.publish(items(), control=(Deferred,))
    assert run.topic.messages == STORED[:3] and run.reports[0]["stored"] == 3


def test_publish_source_error_keeps_receipts() -> None:
    def items() -> Iterator[str]:
        yield from ITEMS[:3]
        raise OSError("the disk broke")

    run = Run()
    with pytest.raises(PublishIncomplete, match=r"3 were stored\. First error: OSError: the disk broke") as caught:
        run.publish(items())
    assert caught.value.can_retry
    run.publish(iter(ITEMS))
    assert run.topic.messages == STORED


def test_publish_error_text_is_redacted_and_storable() -> None:
    def items() -> Iterator[str]:
        yield ITEMS[0]
        raise RuntimeError("GET /?key=secret of \ud83d failed")

    run = Run()
    with pytest.raises(PublishIncomplete) as caught:
        run.publish(items())
    text = r"RuntimeError: GET /?key=*** of ? failed"
    assert caught.value.manifest["first_error"] == run.reports[0]["first_error"] == text
    assert text in str(caught.value) and text in run.log.warnings[0]
    for each in (str(caught.value), *run.log.warnings):
        assert "secret" not in each and each.encode()


class Key:
    """A key that has no text either."""

    def __str__(self) -> str:
        raise Unprintable


def test_publish_error_without_text_keeps_manifest() -> None:
    def items() -> Iterator[str]:
        yield ITEMS[0]
        raise Unprintable

    with pytest.raises(PublishIncomplete, match="First error: Unprintable: Unprintable") as caught:
        Run().publish(items())
    assert caught.value.manifest["stored"] == 1


def test_check_error_without_text_names_the_message() -> None:
    with pytest.raises(ValueError, match="message 0: Unprintable"):
        Run().publish([{"k": Key()}], mapping=MessageMapping(key_field="k"))


_WRONG = [{"value": "a"}, {"value": "b"}, {"value": "c", "properties": {"n": 5}}]


def test_check_names_a_wrong_field_before_any_sending() -> None:
    run = Run(deduplicate=False)
    with pytest.raises(ValueError, match="message 2: the property 'n' must be a text, not int"):
        run.publish(_WRONG, mapping=MessageMapping(envelope=True))
    assert run.topic.messages == [] and run.state.get() is None


@pytest.mark.parametrize("deduplicate", [True, False])
def test_publish_refused_message_is_not_retried(deduplicate: bool) -> None:
    run = Run(deduplicate=deduplicate)
    with pytest.raises(
        PublishIncomplete, match="First error: message 2: ValueError: message 2: the property"
    ) as caught:
        run.publish(iter(_WRONG), mapping=MessageMapping(envelope=True))
    assert not caught.value.can_retry and run.topic.messages == [b"a", b"b"]


def test_publish_changed_stream_found_while_sending() -> None:
    run = Run()
    run.publish(iter(ITEMS))
    with pytest.raises(PublishIncomplete, match=r"ContentChanged: message 1 is not .*on_changed='republish'"):
        run.publish(iter([ITEMS[0], "other", *ITEMS[2:]]))
    assert run.topic.messages == STORED
    with pytest.raises(PublishIncomplete, match="there are 5 messages, fewer than the 10 published before"):
        run.publish(iter(ITEMS[:5]))
    run.publish(iter(ITEMS))


def test_check_names_the_message_before_any_sending() -> None:
    run = Run()
    with pytest.raises(ValueError, match="message 1: it is neither bytes nor text"):
        run.publish(["a", object()])
    assert run.state.get() is None


def test_publish_record_written_before_first_message() -> None:
    run = Run()

    def items() -> Iterator[str]:
        record = (run.state.get() or {})["generations"][0]
        assert (record["phase"], record["producer_name"]) == ("sending", "me")
        yield from ITEMS

    run.publish(items())
    record = (run.state.get() or {})["generations"][0]
    assert (record["phase"], record["stored"], record["last"], record["count"]) == ("stored", 10, 9, 10)


def test_publish_state_lost_afterwards_is_only_told() -> None:
    class Failing(MemoryState):
        def set(self, value: Any) -> None:
            if self.saved:
                raise OSError("no database")
            super().set(value)

    run = Run()
    run.state = Failing()
    run.publish(ITEMS)
    assert run.topic.messages == STORED
    assert "The caller did not store the state of this publication: no database" in run.log.warnings[-1]


def test_publish_foreign_duplicates_in_first_try_raise() -> None:
    """Another program took the name after this try had asked for it."""
    run = Run(deduplicate="auto")

    def items() -> Iterator[str]:
        yield ITEMS[0]
        run.topic.highest["me"] = 3
        yield from ITEMS[1:]

    with pytest.raises(PublishIncomplete, match="dropped 3 messages as duplicates of others") as caught:
        run.publish(items())
    assert not caught.value.can_retry


def test_publish_busy_producer_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from pulsar_native.exceptions import ProducerBusy

    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("pulsar_native.jobs.busy.time", clock)
    real = Client.create_producer
    until = 5.0

    def busy(self: Client, *arguments: Any, **options: Any) -> Producer:
        if now[0] < until:
            raise ProducerBusy("connected")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Client, "create_producer", busy)
    Run().publish(ITEMS)
    until = 1e9
    with pytest.raises(ProducerBusy):
        Run().publish(ITEMS)
    assert 35 < now[0] < 37
