"""Deduplication of a publication: asked of the broker, required, and never assumed for a repetition."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_native import MessageId, PulsarException, ServiceInfo
from pulsar_native.jobs.deduplication import Deduplication, check_switched_off, is_created_again
from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.publication import ContentChanged
from support.jobs import MemoryLog


class Admin:
    """The admin interface with the states of a topic's partitions (None fails) and the policies by place."""

    def __init__(
        self, *states: str | None, policies: dict[str, bool | None] | None = None, is_forbidden: bool = False
    ) -> None:
        self._states = states
        self._policies = policies or {}
        self._is_forbidden = is_forbidden

    def get_deduplication(self, place: str) -> bool | None:
        if place not in self._policies and (place != "public/default" or self._is_forbidden):
            raise PulsarException("topic policies are disabled, or these are not for this role")
        return self._policies.get(place)

    def _state(self, state: str | None) -> dict[str, str]:
        if state is None:
            raise PulsarException("no answer")
        return {"deduplicationStatus": state} if state else {}

    def stats(self, topic: str) -> dict[str, str]:
        return self._state(self._states[0])

    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        return {"partitions": {str(index): self._state(state) for index, state in enumerate(self._states)}}


class CreatedAdmin(Admin):
    """The admin interface of a topic whose partitions have these times of creation, None where it does not tell."""

    def __init__(self, *times: int | None) -> None:
        super().__init__()
        self._times = times

    def _created(self, time_: int | None) -> dict[str, Any]:
        return {} if time_ is None else {"topicCreationTimeStamp": time_}

    def stats(self, topic: str) -> dict[str, Any]:
        return self._created(self._times[0])

    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        return {"partitions": {str(index): self._created(time_) for index, time_ in enumerate(self._times)}}


class Client:
    """A client whose topic has these last ids."""

    def __init__(self, *entries: int) -> None:
        self._entries = entries

    @contextlib.contextmanager
    def create_reader(self, topic: str, start: MessageId) -> Iterator[Client]:
        yield self

    def get_last_message_ids(self) -> list[MessageId]:
        return [MessageId(index, 7, entry, -1) for index, entry in enumerate(self._entries)]


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.mark.parametrize(
    ("states", "partitions", "expected"),
    [
        (["Enabled"], 0, True),
        (["Disabled"], 0, False),
        ([""], 0, None),
        ([None], 0, None),
        (["Enabled", "Enabled"], 2, True),
        (["Enabled", "Removing"], 2, False),
        (["Enabled", "Failed"], 2, False),
        (["Enabled", ""], 2, None),
        ([], 2, None),
    ],
)
def test_ask_takes_the_brokers_states(
    states: list[str | None], partitions: int, expected: bool | None, log: MemoryLog
) -> None:
    deduplication = Deduplication("t", "auto", log)
    assert deduplication.ask(Admin(*states), partitions, -1, is_persistent=True) is expected  # type: ignore[arg-type]
    assert ("a retry publishes all messages again" in "".join(log.infos)) is (expected is False)


class ApplyingAdmin(Admin):
    """The admin interface of a broker that applies the policies only after some requests."""

    def __init__(self, requests: int, policies: dict[str, bool | None]) -> None:
        super().__init__("Disabled", policies=policies)
        self.requests = requests

    def stats(self, topic: str) -> dict[str, str]:
        self.requests -= 1
        return {"deduplicationStatus": "Disabled" if self.requests >= 0 else "Enabled"}


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({"t": True}, True),
        ({"t": None, "public/default": True}, True),
        ({"public/default": True}, True),
        ({"t": False, "public/default": True}, False),
        ({"public/default": False}, False),
    ],
)
def test_ask_policy_not_applied_yet_waits(
    policies: dict[str, bool | None], expected: bool, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_native.jobs.deduplication._POLL_SECONDS", 0)
    admin = ApplyingAdmin(3, policies)
    assert Deduplication("t", "auto", log).ask(admin, 0, -1, is_persistent=True) is expected  # type: ignore[arg-type]
    assert admin.requests == (-1 if expected else 2)


def test_ask_disabled_without_right_to_policies_is_off(log: MemoryLog) -> None:
    deduplication, admin = Deduplication("t", True, log), Admin("Disabled", is_forbidden=True)
    with pytest.raises(JobRefused, match="disabled at the broker"):
        deduplication.ask(admin, 0, -1, is_persistent=True)  # type: ignore[arg-type]


def test_ask_policy_never_applied_is_refused(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_native.jobs.deduplication._POLL_SECONDS", 0)
    monkeypatch.setattr("pulsar_native.jobs.deduplication._APPLIES_SECONDS", 0.05)
    deduplication = Deduplication("t", True, log)
    with pytest.raises(JobRefused, match="disabled at the broker"):
        deduplication.ask(Admin("Disabled", policies={"t": True}), 0, -1, is_persistent=True)  # type: ignore[arg-type]


def test_ask_known_id_shows_deduplication(log: MemoryLog) -> None:
    assert Deduplication("t", True, log).ask(None, 0, 0, is_persistent=True) is True
    assert Deduplication("t", True, log).ask(None, 0, -1, is_persistent=True) is None


def test_ask_switched_off_asks_nobody(log: MemoryLog) -> None:
    assert Deduplication("t", False, log).ask(Admin(None), 0, 9, is_persistent=True) is False  # type: ignore[arg-type]
    assert log.infos == []


def test_ask_required_but_off_is_refused(log: MemoryLog) -> None:
    deduplication = Deduplication("t", True, log)
    with pytest.raises(JobRefused, match=r"t has no deduplication: it is disabled at the broker\. Turn it on .*'auto'"):
        deduplication.ask(Admin("Disabled"), 0, -1, is_persistent=True)  # type: ignore[arg-type]
    with pytest.raises(JobRefused, match="the topic is not persistent"):
        deduplication.ask(None, 0, 5, is_persistent=False)


def test_check_first_known_producer_is_refused(log: MemoryLog) -> None:
    deduplication = Deduplication("t", "auto", log)
    deduplication.check_first("p", -1)
    with pytest.raises(ContentChanged, match="the broker knows the producer 'p' of t up to message 0"):
        deduplication.check_first("p", 0)


def earlier(**fields: Any) -> dict[str, Any]:
    """Return the record of an earlier try."""
    given = {"last": 9, "phase": "failed", "at": time.time(), "partitions": 2, "deduplicated": True, "stored": 10}
    return {**given, "ids": ["7:1:0:0"], **fields}


@pytest.mark.parametrize(
    ("record", "known", "partitions", "words"),
    [
        ({}, 9, 2, None),
        ({}, 50, 2, None),
        ({}, 8, 2, "no longer knows what this job published to t before .up to message 9, it remembers 8"),
        ({}, -1, 2, "brokerDeduplicationProducerInactivityTimeoutMinutes"),
        ({}, 9, 3, "t had 2 partitions when this job published to it before, and has 3 now"),
        ({"last": -1}, -1, 3, None),
        ({"last": -1, "phase": "sending"}, -1, 3, None),
        ({"last": -1, "phase": "sending", "at": 0}, -1, 2, "no longer knows"),
        ({"last": -1, "phase": "sending", "at": 0}, 3, 2, None),
        ({"last": -1, "phase": "sending", "at": 0}, 3, 1, "partitions"),
    ],
)
def test_check_repetition_refuses_second_copies(
    record: dict[str, Any], known: int, partitions: int, words: str | None, log: MemoryLog
) -> None:
    deduplication, client = Deduplication("t", "auto", log), Client(5, -1)
    if words is None:
        deduplication.check_repetition(client, earlier(**record), known, partitions, {})  # type: ignore[arg-type]
    else:
        with pytest.raises(JobRefused, match=words):
            deduplication.check_repetition(client, earlier(**record), known, partitions, {})  # type: ignore[arg-type]


def test_check_repetition_empty_topic_may_be_filled(log: MemoryLog) -> None:
    deduplication, client = Deduplication("t", "auto", log), Client(-1, -1)
    deduplication.check_repetition(client, earlier(), -1, 7, CREATED)  # type: ignore[arg-type]
    # The same one, whose messages were consumed and removed, may be stored once more.
    with pytest.raises(JobRefused, match="would store it twice"):
        deduplication.check_repetition(client, earlier(**CREATED), -1, earlier()["partitions"], CREATED)  # type: ignore[arg-type]


CREATED = {"cluster": "pulsar://a:6650", "created": {"p0": 5, "p1": 5}}


@pytest.mark.parametrize(
    ("creation", "expected"),
    [
        ({}, False),
        ({"created": {"p0": 8, "p1": 9}}, True),
        ({"created": {"p0": 8}}, True),
        ({"created": {"p0": 5, "p1": 9}}, False),
        ({"created": {"p0": 5, "p1": 5, "p2": 9}}, False),
        ({"created": {"": 9}}, False),
        ({"created": {"p0": 8, "p1": 9}, "cluster": "pulsar://b:6650"}, False),
    ],
    ids=["same", "again", "fewer", "one-partition", "more", "not-partitioned", "other-cluster"],
)
def test_created_again_only_if_certain(creation: dict[str, Any], expected: bool) -> None:
    assert is_created_again(earlier(**CREATED), CREATED | creation) is expected
    assert not is_created_again(earlier(), CREATED | creation) and not is_created_again(earlier(**CREATED), {})


@pytest.mark.parametrize(
    ("times", "partitions", "created"),
    [([5], 0, {"": 5}), ([5, None, 6], 3, {"0": 5, "2": 6})],
    ids=["topic", "partitions"],
)
def test_creation_asks_the_statistics(
    times: list[int | None], partitions: int, created: dict[str, int], log: MemoryLog
) -> None:
    client: Any = SimpleNamespace(get_service_info=lambda: ServiceInfo("pulsar://a:6650"))
    found = Deduplication("t", "auto", log).creation(client, CreatedAdmin(*times), partitions)  # type: ignore[arg-type]
    assert found == {"cluster": "pulsar://a:6650", "created": created}


@pytest.mark.parametrize("admin", [None, Admin(None), Admin(""), CreatedAdmin(0)], ids=["no", "fails", "old", "zero"])
def test_creation_unknown_is_empty(admin: Any, log: MemoryLog) -> None:
    client: Any = object()
    assert Deduplication("t", "auto", log).creation(client, admin, 0) == {}


def test_warn_of_repetition_by_phase(log: MemoryLog) -> None:
    deduplication = Deduplication("t", "auto", log)
    deduplication.warn_of_repetition(earlier(stored=0))
    assert log.warnings == []
    deduplication.warn_of_repetition(earlier())
    deduplication.warn_of_repetition(earlier(phase="sending", stored=0, ids=[]))
    assert "stored 10 messages in t without deduplication (ids 7:1:0:0): they will be there twice" in log.warnings[0]
    assert "if it has the same messages" in log.warnings[0]
    assert "was killed: at least 0 messages were stored (ids none known)" in log.warnings[1]


@pytest.mark.parametrize(
    ("record", "deduplicated", "demanded", "refused"),
    [
        ({}, False, "auto", True),
        ({}, False, True, True),
        ({}, False, False, False),
        ({}, True, "auto", False),
        ({}, None, "auto", False),
        ({"deduplicated": False}, False, "auto", False),
        ({"last": -1}, False, "auto", False),
    ],
)
def test_switched_off_since_is_refused(
    record: dict[str, Any], deduplicated: bool | None, demanded: bool | str, refused: bool
) -> None:
    if refused:
        with pytest.raises(JobRefused, match=r"10 messages would be stored twice\. Turn it on .*deduplicate=False"):
            check_switched_off("t", earlier(**record), deduplicated, demanded)
    else:
        check_switched_off("t", earlier(**record), deduplicated, demanded)
