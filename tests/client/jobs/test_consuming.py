"""A batch without any orchestrator: the job alone, with a state and a log in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import AdminClient, Client, ConsumerBusy, ConsumerType, InitialPosition, MessageId, TopicNotFound
from pulsar_native.exceptions import NotConnected, Timeout
from pulsar_native.jobs import busy, consuming
from pulsar_native.jobs.batch import BatchLimits
from pulsar_native.jobs.consume_settings import ConsumeCallbacks, ConsumeSettings
from pulsar_native.jobs.consuming import BatchElsewhere, ConsumeJob, OutputLost, SourceChanged, TopicRecreated
from pulsar_native.jobs.dead_letters import DeadLetterOptions
from pulsar_native.jobs.failures import JobRefused, is_permanent
from support.brokers import Broker, NewTopic
from support.jobs import MemoryLog, MemoryState
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay, Relay

THREE = BatchLimits(3, None, None, None)


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """Give a client."""
    with Client(broker.service_url) as made:
        yield made


def publish(client: Client, name: str, count: int = 5) -> None:
    with client.create_producer(name) as producer:
        for number in range(count):
            producer.send(b"%d" % number)


def values(path: Path) -> list[Any]:
    return [json.loads(line)["value"] for line in path.read_text().splitlines()]


def test_job_runs_without_an_orchestrator(broker: Broker, topic: NewTopic, tmp_path: Path) -> None:
    name, state, seen = topic(), MemoryState(), []
    settings = ConsumeSettings([name], "sub", {"job": "nightly"}, path=str(tmp_path / "a.jsonl"), limits=THREE)
    callbacks = ConsumeCallbacks(process=lambda manifest: seen.append(manifest["count"]))
    with Client(broker.service_url) as client:
        publish(client, name)
        made = [ConsumeJob(settings, client, state, logging.getLogger(__name__), callbacks).run() for _ in range(2)]
    assert made[0] == made[1] and seen == [3, 3]
    assert values(tmp_path / "a.jsonl") == ["0", "1", "2"]


# --- a batch that is known --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
@pytest.mark.parametrize("harm", ["removed", "changed", "moved"])
def test_repeated_run_writes_lost_output_again(
    client: Client, topic: NewTopic, tmp_path: Path, harm: str, format_: str
) -> None:
    name, state, log, path = topic(), MemoryState(), MemoryLog(), tmp_path / "a"
    publish(client, name)
    # A batch that is read again must be stored yet.
    client.subscribe(name, "keeps").close()
    settings = ConsumeSettings([name], "sub", {"job": "j"}, path=str(path), format=format_, limits=THREE)
    first = ConsumeJob(settings, client, state, log).run()
    written = path.read_bytes()
    if harm == "removed":
        path.unlink()
    elif harm == "changed":
        path.write_bytes(written + b"more")
    else:
        path = tmp_path / "b"
        settings = dataclasses.replace(settings, path=str(path))
    again = ConsumeJob(settings, client, state, log).run()
    assert again == {**first, "path": str(path)} and path.read_bytes() == written
    assert f"reading its {first['count']} messages again" in log.warnings[0]
    # What was written again is known, and left alone.
    assert ConsumeJob(settings, client, state, log).run() == again and len(log.warnings) == 1


def test_repeated_run_of_lost_messages_raises(broker: Broker, client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, state, path = topic(), MemoryState(), tmp_path / "a.jsonl"
    publish(client, name, 3)
    settings = ConsumeSettings([name], "sub", {"job": "j"}, path=str(path))
    ConsumeJob(settings, client, state, MemoryLog()).run()
    path.unlink()
    broker.admin("DELETE", f"persistent/{name.removeprefix('persistent://')}?force=true")
    publish(client, name, 1)
    job = ConsumeJob(settings, client, state, MemoryLog())
    with pytest.raises(OutputLost, match="the only copy of 3 acknowledged messages"):
        job.run()
    assert job.stage == "read again" and not path.exists()


@pytest.mark.parametrize("once", [False, True])
def test_repeated_run_handles_messages_again(client: Client, topic: NewTopic, once: bool) -> None:
    name, state, seen = topic(), MemoryState(), []  # type: ignore[var-annotated]
    publish(client, name)
    client.subscribe(name, "keeps").close()
    callbacks = ConsumeCallbacks(handle=lambda message: seen.append(message.data()))
    settings = ConsumeSettings([name], "sub", {}, limits=THREE, process_once=once, concurrency=2)
    manifests = [ConsumeJob(settings, client, state, MemoryLog(), callbacks).run() for _ in range(2)]
    assert manifests[0] == manifests[1] and manifests[0]["path"] is None
    assert sorted(seen) == sorted([b"0", b"1", b"2"] * (1 if once else 2))


def test_process_coroutine_runs_and_keeps_the_record(client: Client, topic: NewTopic) -> None:
    name, state, seen = topic(), MemoryState(), []  # type: ignore[var-annotated]
    publish(client, name)

    async def process(manifest: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        seen.append([each["value"] for each in manifest["messages"]])
        manifest.clear()

    settings = ConsumeSettings([name], "sub", {}, limits=BatchLimits(3, None, None, 9999))
    callbacks = ConsumeCallbacks(process=process)  # type: ignore[arg-type]
    made = [ConsumeJob(settings, client, state, MemoryLog(), callbacks).run() for _ in range(2)]
    assert seen == [["0", "1", "2"]] * 2 and made[0] == made[1] and made[0]["count"] == 3


def test_process_generator_acknowledges_nothing(client: Client, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    publish(client, name)
    callbacks = ConsumeCallbacks(process=lambda manifest: (each for each in manifest))
    settings = ConsumeSettings([name], "sub", {}, limits=THREE)
    with Client(broker.service_url) as own, pytest.raises(JobRefused, match="process is a generator function"):
        ConsumeJob(settings, own, MemoryState(), MemoryLog(), callbacks).run()
    with client.subscribe(name, "sub") as consumer:
        assert consumer.receive(10_000).data() == b"0"


def test_repeated_run_without_messages_cannot_handle(broker: Broker, client: Client, topic: NewTopic) -> None:
    name, state = topic(), MemoryState()
    publish(client, name, 3)
    callbacks = ConsumeCallbacks(handle=lambda message: None)
    settings = ConsumeSettings([name], "sub", {})
    ConsumeJob(settings, client, state, MemoryLog(), callbacks).run()
    broker.admin("DELETE", f"persistent/{name.removeprefix('persistent://')}?force=true")
    publish(client, name, 1)
    with pytest.raises(OutputLost, match="process_once=True"):
        ConsumeJob(settings, client, state, MemoryLog(), callbacks).run()


def test_repeated_run_acknowledges_what_was_left(client: Client, topic: NewTopic) -> None:
    name, state = topic(), MemoryState()
    publish(client, name)

    class Killed(Exception):
        pass

    def check() -> None:
        if state.saved:
            raise Killed

    settings = ConsumeSettings([name], "sub", {}, limits=THREE)
    job = ConsumeJob(settings, client, state, MemoryLog(), ConsumeCallbacks(check=check))
    with pytest.raises(Killed):
        job.run()
    for consumer in job._consumers:
        consumer.close()
    note = state.get()
    assert note is not None and note["state"] == consuming.CONSUMED
    assert ConsumeJob(settings, client, state, MemoryLog()).run() == note["manifest"]
    with client.subscribe(name, "sub") as rest:
        assert [rest.receive(10_000).data() for _ in range(2)] == [b"3", b"4"]


@pytest.mark.parametrize("needs", ["acknowledgement", "output", "messages"])
def test_batch_of_another_cluster_is_not_touched(
    client: Client, topic: NewTopic, tmp_path: Path, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, state, path = topic(), MemoryState(), tmp_path / "a.jsonl"
    publish(client, name)
    client.subscribe(name, "keeps").close()
    callbacks = ConsumeCallbacks(handle=(lambda message: None) if needs == "messages" else None)
    here = ConsumeSettings([name], "sub", {"job": "j"}, path=str(path), limits=THREE, cluster="pulsar://a:6650")
    first = ConsumeJob(here, client, state, MemoryLog(), callbacks).run()
    if needs == "acknowledgement":
        note = {**state.get(), "state": consuming.CONSUMED}  # type: ignore[dict-item]
        state.set(note)
        beside = tmp_path / "_a.jsonl.manifest.json"
        beside.write_text(json.dumps({**json.loads(beside.read_text()), "state": consuming.CONSUMED}))
    elif needs == "output":
        path.unlink()
    there = dataclasses.replace(here, cluster="pulsar://b:6650")
    with pytest.raises(
        BatchElsewhere, match=r"3 messages is of pulsar://a:6650, .* connected to pulsar://b:6650: nothing"
    ):
        ConsumeJob(there, client, state, MemoryLog(), callbacks).run()
    with client.subscribe(name, "sub") as rest:
        assert rest.receive(10_000).data() == b"3"
    # Without need of its ids, the run keeps its batch.
    if needs == "messages":
        assert ConsumeJob(dataclasses.replace(there, process_once=True), client, state, MemoryLog()).run() == first
    assert ConsumeJob(here, client, state, MemoryLog(), callbacks).run() == first


@pytest.mark.parametrize("count", [0, 3])
def test_batch_of_topic_created_again_raises(client: Client, topic: NewTopic, tmp_path: Path, count: int) -> None:
    name, state, times = topic(partitions=2), MemoryState(), {"a": 1}
    asked: list[Sequence[str]] = []

    def created(topics: Sequence[str]) -> dict[str, int]:
        asked.append(topics)
        return {each: times["a"] for each in topics if "a" in times}

    publish(client, name, count)
    callbacks = ConsumeCallbacks(created=created)
    settings = ConsumeSettings([name], "sub", {"job": "j"}, path=str(tmp_path / "a.jsonl"), cluster="pulsar://a:6650")
    first = ConsumeJob(settings, client, state, MemoryLog(), callbacks).run()
    assert first["count"] == count and asked[0] and set(asked[0]) <= {f"{name}-partition-{n}" for n in range(2)}
    publish(client, name, 1)

    def again(**changes: Any) -> dict[str, Any]:
        changed = dataclasses.replace(settings, **changes)
        return ConsumeJob(changed, client, state, MemoryLog(), callbacks).run()

    # The same time, another cluster's time, and no time: the run keeps its batch.
    assert again() == first
    times["a"] = 2
    assert again(cluster="pulsar://b:6650") == first
    with pytest.raises(TopicRecreated, match=f"{name}-partition-. was deleted .* remove .*a.jsonl, .*'consumed'"):
        again()
    times.clear()
    assert again() == first
    with client.subscribe(name, "sub") as rest:
        assert rest.receive(10_000).data() == b"0"


def test_pattern_batch_without_deleted_topic_goes_on(client: Client, topic: NewTopic, broker: Broker) -> None:
    stem, state, log = topic(), MemoryState(), MemoryLog()
    names = [f"{stem}-{letter}" for letter in "ab"]
    for name in names:
        publish(client, name)
    settings = ConsumeSettings([], "sub", {}, pattern=re.compile(f"{stem}-.*"))
    first = ConsumeJob(settings, client, state, log).run()
    with client.subscribe(names[0], "sub") as consumer:
        consumer.seek(MessageId.earliest)
    state.set({**state.get(), "state": consuming.CONSUMED})  # type: ignore[dict-item]
    with AdminClient(broker.admin_url) as admin:
        admin.delete_topic(names[1], force=True)
        assert ConsumeJob(settings, client, state, log).run() == first
        assert admin.stats(names[0])["subscriptions"]["sub"]["msgBacklog"] == 0
    note = state.get()
    assert note is not None and note["state"] == consuming.ACKNOWLEDGED
    assert [each for each in log.warnings if names[1] in each] == [
        f"{names[1]} was deleted: nothing of the batch is acknowledged there"
    ]


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"topics": ["t"]}, ["t", "t-partition-3"]),
        ({"topics": ["t-partition-3"]}, ["t-partition-3"]),
        ({"topics": ["t"], "dead_letters": DeadLetterOptions("s")}, ["t", "t-partition-3"]),
        (
            {"topics": ["t"], "dead_letters": DeadLetterOptions("s"), "reads_retry_letters": True},
            ["t", "t-partition-3", "t-s-RETRY"],
        ),
        ({"topics": [], "pattern": re.compile("persistent://public/default/t")}, ["t", "t-partition-3"]),
        (
            {"topics": [], "pattern": re.compile("public/default/T.*", re.IGNORECASE)},
            ["t", "t-partition-3", "t-s-RETRY"],
        ),
    ],
    ids=["name", "partition", "no-retry", "retry", "pattern", "pattern-without-domain"],
)
def test_settings_take_topics_and_partitions(options: dict[str, Any], taken: list[str]) -> None:
    settings = ConsumeSettings(subscription="s", run={}, **options)
    names = ["t", "t-partition-3", "t-s-RETRY", "u"]
    assert [name for name in names if settings.takes(f"persistent://public/default/{name}")] == taken


@pytest.mark.parametrize(
    "note", [{"version": 2}, {"version": 1, "source": ["another"], "manifest": {"subscription": "sub", "count": 0}}]
)
def test_state_of_an_empty_batch_is_not_repeated(client: Client, topic: NewTopic, note: dict[str, Any]) -> None:
    name = topic()
    publish(client, name, 2)
    assert ConsumeJob(ConsumeSettings([name], "sub", {}), client, MemoryState(note), MemoryLog()).run()["count"] == 2


@pytest.mark.parametrize("state", [consuming.CONSUMED, consuming.ACKNOWLEDGED])
@pytest.mark.parametrize("change", ["topic", "subscription", "pattern"])
def test_batch_of_another_source_is_kept(client: Client, topic: NewTopic, change: str, state: str) -> None:
    """A cleared task whose list or template changed: the messages of its batch are acknowledged, and nowhere else."""
    name, other, kept = topic(), topic(), MemoryState()
    publish(client, name)
    publish(client, other)
    settings = ConsumeSettings([name], "sub", {}, limits=BatchLimits(3, None, None, 9999))
    first = ConsumeJob(settings, client, kept, MemoryLog()).run()
    kept.set({**kept.get(), "state": state})  # type: ignore[dict-item]
    changed, asked = {
        "topic": (dataclasses.replace(settings, topics=[other]), f"{other} as sub"),
        "subscription": (dataclasses.replace(settings, subscription="second"), f"{name} as second"),
        "pattern": (dataclasses.replace(settings, pattern=re.compile(other)), f"the pattern {other} as sub"),
    }[change]
    wanted = f"3 messages of {name} as sub before, and is asked for {asked} now: nothing"
    with pytest.raises(SourceChanged, match=f"{wanted} .* in this run, remove the task's stored state") as error:
        ConsumeJob(changed, client, kept, MemoryLog()).run()
    assert is_permanent(error.value)
    assert ConsumeJob(settings, client, kept, MemoryLog()).run() == first
    # What the error says: a new run.
    assert ConsumeJob(changed, client, MemoryState(), MemoryLog()).run()["count"] == 3


@pytest.mark.parametrize("if_exists", ["fail", "overwrite", "append_part"])
def test_output_of_another_source_is_kept(client: Client, topic: NewTopic, tmp_path: Path, if_exists: str) -> None:
    name, other, state = topic(), topic(), MemoryState()
    publish(client, name)
    publish(client, other)
    settings = ConsumeSettings([name], "sub", {"job": "j"}, path=str(tmp_path / "a"), if_exists=if_exists)
    path = Path(ConsumeJob(settings, client, state, MemoryLog()).run()["path"])
    written, changed = path.read_bytes(), dataclasses.replace(settings, topics=[other])
    beside = tmp_path / f"_{path.name}.manifest.json"
    # A caller that has lost its state has the record beside the output.
    for store in (state, MemoryState()):
        with pytest.raises(SourceChanged, match=f"remove {path}, {beside} and the task's stored state"):
            ConsumeJob(changed, client, store, MemoryLog()).run()
    assert path.read_bytes() == written
    elsewhere = dataclasses.replace(changed, path=str(tmp_path / "b"))
    with pytest.raises(SourceChanged, match="in this run, remove the task's stored state"):
        ConsumeJob(elsewhere, client, state, MemoryLog()).run()
    path.unlink()
    beside.unlink()
    assert ConsumeJob(changed, client, MemoryState(), MemoryLog()).run()["count"] == 5


def test_batch_of_topics_in_another_order_is_kept(client: Client, topic: NewTopic) -> None:
    names, state = [topic() for _ in range(5)], MemoryState()
    for name in names:
        publish(client, name, 1)
    settings = ConsumeSettings(names, "sub", {}, limits=BatchLimits(None, None, None, 9999))
    first = ConsumeJob(settings, client, state, MemoryLog()).run()
    again = dataclasses.replace(settings, topics=names[::-1])
    assert first["count"] == 5 and ConsumeJob(again, client, state, MemoryLog()).run() == first
    fewer = dataclasses.replace(settings, topics=names[1:2])
    with pytest.raises(SourceChanged, match=f"5 messages of {', '.join(names[:3])} and 2 more as .* {names[1]} as"):
        ConsumeJob(fewer, client, state, MemoryLog()).run()


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", ["near", "none near", "not allowed"])
def test_unknown_topic_raises_with_hint(client: Client, topic: NewTopic, hint: str) -> None:
    name = topic()

    def names(_namespace: str) -> Sequence[str]:
        if hint == "not allowed":
            raise PermissionError
        return [f"{name}s-partition-0", "persistent://public/default/zz"] if hint == "near" else []

    job = ConsumeJob(
        ConsumeSettings([name], "s", {}), client, MemoryState(), MemoryLog(), ConsumeCallbacks(names=names)
    )
    with pytest.raises(TopicNotFound, match=f"there is no topic {name}.*create_topic=True makes it") as caught:
        job.run()
    assert (f"did you mean {name}s?" in str(caught.value)) is (hint == "near")
    failed = job.failure_manifest(caught.value)
    assert (failed["stage"], failed["count"], failed["acknowledged"]) == ("look-up", 0, "nothing")
    assert failed["error"].startswith("TopicNotFound: there is no topic") and failed["topic"] == [name]


@pytest.mark.parametrize("pattern", [False, True], ids=["topic", "pattern"])
def test_settings_non_persistent_topic_refused(pattern: bool) -> None:
    name = "non-persistent://public/default/t"
    with pytest.raises(ValueError, match=f"{name}'? (is|are) not persistent: .*; use a persistent topic"):
        ConsumeSettings([] if pattern else [name], "sub", {}, pattern=re.compile(name) if pattern else None)


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        (["a", "persistent://public/default/a"], "topic names the same topic twice"),
        (["a-partition-1", "a"], "topic names persistent://public/default/a and its partition .*/a-partition-1"),
        ([], "topics must be a list of names"),
        ("a", "topics must be a list of names"),
        ([" "], "topic must be a text that is not blank"),
    ],
    ids=["twice", "partition", "none", "text", "blank"],
)
def test_settings_wrong_topics_raise(topics: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ConsumeSettings(topics, "sub", {})


def test_settings_blank_subscription_raises() -> None:
    with pytest.raises(ValueError, match="subscription must be a text that is not blank, not ' '"):
        ConsumeSettings(["a"], " ", {})


def test_record_with_short_names_is_repeated(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name)
    state, short = MemoryState(), name.rpartition("/")[2]
    settings = ConsumeSettings([short], "sub", {}, limits=THREE)
    assert settings.source == [name]
    first = ConsumeJob(settings, client, state, MemoryLog()).run()
    # As earlier versions noted it.
    note = state.get()
    assert note is not None and note["source"] == [name]
    job = ConsumeJob(settings, client, MemoryState({**note, "source": [short]}), MemoryLog())
    assert job.run() == first and job.is_repeated


@pytest.mark.parametrize("allowed", [False, True])
def test_pattern_without_topics_raises_unless_allowed(client: Client, topic: NewTopic, allowed: bool) -> None:
    pattern = re.compile(re.escape(topic()) + "-none")
    settings = ConsumeSettings([], "sub", {}, pattern=pattern, allow_empty_pattern=allowed, idle_seconds=0.2)
    job = ConsumeJob(settings, client, MemoryState(), MemoryLog())
    if not allowed:
        with pytest.raises(TopicNotFound, match="no topic matches the pattern"):
            job.run()
        return
    manifest = job.run()
    assert (manifest["count"], manifest["topics"]) == (0, []) and settings.source == pattern.pattern


@pytest.mark.parametrize("chosen", [False, True], ids=["default", "chosen"])
def test_pattern_leaves_out_own_dead_letters(client: Client, topic: NewTopic, chosen: bool) -> None:
    """The subscription of an earlier letter is Shared, and that of the job Exclusive."""
    name = topic()
    options = DeadLetterOptions("sub", *([f"{name}-dead", f"{name}-again"] if chosen else []))
    settings = ConsumeSettings(
        [], "sub", {}, pattern=re.compile(f"{name}.*"), decode="json", on_error="dead_letter", idle_seconds=0.2,
        dead_letters=options, reads_retry_letters=chosen,
    )  # fmt: skip
    made = []
    for _ in range(3):
        with client.create_producer(name) as producer:
            producer.send(b"bad")
        made.append(ConsumeJob(settings, client, MemoryState(), MemoryLog()).run())
    assert [(each["errors"]["dead_letters"], each["stop_reason"]) for each in made] == [(1, "end")] * 3
    assert made[2]["topics"] == [name]
    with client.create_reader(options.dead_topic(name), MessageId.earliest) as reader:
        assert [reader.read_next(10_000).data() for _ in range(3)] == [b"bad"] * 3
        assert not reader.has_message_available()


@pytest.mark.parametrize("on_error", ["dead_letter", "retry_letter"])
def test_copies_of_large_messages_are_stored(client: Client, topic: NewTopic, on_error: str) -> None:
    name = topic()
    # The largest message, to which the properties of a letter are added, and one in chunks.
    large = [b"x" * (5 * 1024 * 1024 - 100), b"y" * (6 * 1024 * 1024)]
    with client.create_producer(name, batching_enabled=False, chunking_enabled=True) as producer:
        for each in large:
            producer.send(each)
    options = DeadLetterOptions("sub", retry_delay_seconds=0)
    settings = ConsumeSettings([name], "sub", {}, decode="json", on_error=on_error, dead_letters=options)
    ConsumeJob(settings, client, MemoryState(), MemoryLog()).run()
    letters = options.dead_topic(name) if on_error == "dead_letter" else options.retry_topic(name)
    with client.create_reader(letters, MessageId.earliest) as reader:
        assert [reader.read_next(10_000).data() for _ in large] == large


@pytest.mark.parametrize("name", ["dead_letter_topic", "retry_letter_topic"])
def test_settings_consumed_dead_letter_topic_raises(name: str) -> None:
    letters = DeadLetterOptions("sub", **{name: "public/default/b"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{name}='public/default/b' is also a topic that is consumed"):
        ConsumeSettings(["a", "b"], "sub", {}, dead_letters=letters)


def test_subscription_in_use_is_waited_for(client: Client, topic: NewTopic, broker: Broker) -> None:
    name, log = topic(), MemoryLog()
    publish(client, name, 2)
    other = Client(broker.service_url)
    held, released = other.subscribe(name, "sub", initial_position=InitialPosition.Earliest), threading.Event()

    def check() -> None:
        # The first check after the refusal frees the subscription.
        if job.stage == "subscribe" and not released.is_set():
            released.set()
            held.close()

    job = ConsumeJob(ConsumeSettings([name], "sub", {}), client, MemoryState(), log, ConsumeCallbacks(check=check))
    assert job.run()["count"] == 2 and released.is_set()
    assert "holds the subscription sub: waiting" in log.infos[0]
    other.close()


def test_subscription_in_use_too_long_raises(
    client: Client, topic: NewTopic, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    publish(client, name, 1)
    monkeypatch.setattr(busy, "BUSY_SECONDS", -1)
    with Client(broker.service_url) as other, other.subscribe(name, "sub"), pytest.raises(ConsumerBusy):
        ConsumeJob(ConsumeSettings([name], "sub", {}), client, MemoryState(), MemoryLog()).run()


# --- a broker that is away --------------------------------------------------------------------------------------------


def faulty_job(
    settings: ConsumeSettings, client: Client, state: MemoryState, fault: Callable[[], None], after: int = 0
) -> ConsumeJob:
    """Return a job that calls `fault` once, when it has received so many messages."""
    to_call = [fault]

    def check() -> None:
        if job.stage == "receive" and to_call and job.failure_manifest(Exception())["count"] >= after:
            to_call.pop()()

    job = ConsumeJob(settings, client, state, MemoryLog(), ConsumeCallbacks(check=check))
    return job


def lose(through: Relay, fault: str) -> None:
    """End all connections and refuse new ones, or leave them open without a byte."""
    if fault == "away":
        through.refuse()
        through.cut()
    else:
        through.stall()


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
@pytest.mark.parametrize("fault", ["away", "stalled"])
def test_broker_away_then_back_batch_is_complete(
    broker: Broker, client: Client, topic: NewTopic, relay: NewRelay, tmp_path: Path, fault: str, format_: str
) -> None:
    name, through, path = topic(), relay(broker.service_url), tmp_path / "a"
    publish(client, name)
    # Nothing arrives before the fault.
    through.hold(Command.MESSAGE, TO_CLIENT)

    def begin() -> None:
        lose(through, fault)
        threading.Timer(2, end).start()

    def end() -> None:
        through.release()
        if fault == "away":
            through.accept()
        else:
            through.resume()

    settings = ConsumeSettings([name], "sub", {}, path=str(path), format=format_, idle_seconds=1)
    with Client(through.service_url, operation_timeout_seconds=20) as own:
        manifest = faulty_job(settings, own, MemoryState(), begin).run()
    assert (manifest["count"], manifest["stop_reason"]) == (5, "end")


def test_connection_lost_while_positions_asked(
    broker: Broker, client: Client, topic: NewTopic, relay: NewRelay, tmp_path: Path
) -> None:
    name, through = topic(), relay(broker.service_url)
    publish(client, name)
    # Nothing arrives before the brokers are asked at the end of the quiet time.
    through.hold(Command.MESSAGE, TO_CLIENT)

    def cut(frame: bytes) -> None:
        through.cut()
        through.release()

    settings = ConsumeSettings([name], "sub", {}, path=str(tmp_path / "a"), idle_seconds=0.5)
    with Client(through.service_url, operation_timeout_seconds=20) as own:
        begin = partial(through.replace, Command.GET_LAST_MESSAGE_ID, TO_BROKER, cut)
        manifest = faulty_job(settings, own, MemoryState(), begin).run()
    assert (manifest["count"], manifest["stop_reason"]) == (5, "end")


@pytest.mark.parametrize("fault", ["away", "stalled"])
def test_broker_away_too_long_fails(
    broker: Broker, client: Client, topic: NewTopic, relay: NewRelay, tmp_path: Path, fault: str
) -> None:
    name, through, state, path = topic(), relay(broker.service_url), MemoryState(), tmp_path / "a.jsonl"
    publish(client, name)
    # Two of five messages are received before.
    through.let_pass(Command.MESSAGE, TO_CLIENT, times=2)
    through.hold(Command.MESSAGE, TO_CLIENT)
    settings = ConsumeSettings([name], "sub", {}, path=str(path), idle_seconds=0.5)

    with Client(through.service_url, operation_timeout_seconds=1) as own:
        job = faulty_job(settings, own, state, partial(lose, through, fault), after=2)
        with pytest.raises(NotConnected if fault == "away" else Timeout, match="operation_timeout_seconds") as caught:
            job.run()
        assert job.failure_manifest(caught.value)["count"] == 2
        if fault == "stalled":
            through.cut()
    assert (job.stage, state.get(), path.exists()) == ("receive", None, False) and not is_permanent(caught.value)
    assert ConsumeJob(settings, client, state, MemoryLog()).run()["count"] == 5


@pytest.mark.parametrize("by_pattern", [False, True], ids=["names", "pattern"])
def test_topic_deleted_meanwhile_batch_ends_idle(
    broker: Broker, client: Client, topic: NewTopic, by_pattern: bool
) -> None:
    namespace = f"public/gone-{uuid.uuid4().hex[:8]}"
    broker.admin("PUT", f"namespaces/{namespace}")
    gone, stays = (topic(each, namespace=namespace) for each in ("gone", "stays"))
    publish(client, gone)
    publish(client, stays)
    broker.admin("POST", f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})

    def delete() -> None:
        broker.admin("DELETE", f"{gone.replace('://', '/')}?force=true")

    pattern = re.compile(f"persistent://{namespace}/.*") if by_pattern else None
    settings = ConsumeSettings(
        [] if by_pattern else [gone, stays], "sub", {}, pattern, subscription_type="shared", idle_seconds=0.5
    )
    with Client(broker.service_url) as other, Client(broker.service_url, operation_timeout_seconds=3) as own:
        # This one has the messages of the topic that is deleted.
        held = other.subscribe(gone, "sub", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        held.receive(5_000)
        manifest = faulty_job(settings, own, MemoryState(), delete).run()
    assert (manifest["count"], manifest["stop_reason"]) == (5, "idle")


# --- a new batch ------------------------------------------------------------------------------------------------------


def test_empty_topic_warns_of_retention(client: Client, topic: NewTopic) -> None:
    name, log = topic(), MemoryLog()
    settings = ConsumeSettings([name], "sub", {}, create_topic=True)
    assert ConsumeJob(settings, client, MemoryState(), log).run()["count"] == 0
    assert "If this subscription is new" in log.warnings[0]


def test_batch_ends_at_max_seconds_with_progress(client: Client, topic: NewTopic) -> None:
    name, log = topic(), MemoryLog()
    publish(client, name, 2)
    limits = BatchLimits(None, None, 1.0, None)
    settings = ConsumeSettings([name], "sub", {}, limits=limits, until_end=False, progress_seconds=0.1)
    manifest = ConsumeJob(settings, client, MemoryState(), log).run()
    assert (manifest["count"], manifest["stop_reason"]) == (2, "max_seconds")
    assert any("consuming 2 messages" in line for line in log.infos)
    assert log.infos[-1].endswith("stopped by max_seconds")
