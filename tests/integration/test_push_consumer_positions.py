"""Where push consumers stand on a real broker: positions kept in a file or by the group, mended, and followed."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pulsar_native.push.core as push_core
from pulsar_native import (
    ConsumeFromWhere,
    ConsumeOrder,
    InitialPosition,
    MessageId,
    MessageModel,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.push_consumers import (
    IN_ORDER,
    Gate,
    Recorder,
    Started,
    backlog,
    messages_of,
    numbered,
    publish,
)

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]


@pytest.mark.proves("C214", "C215", "C224")
def test_a_broadcasting_member_keeps_its_position_in_a_file(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, tmp_path: Path
) -> None:
    name = topic()
    options = {
        "consumer_group": "everyone",
        "message_model": MessageModel.BROADCASTING,
        "offset_store_folder": str(tmp_path),
        "persist_consumer_offset_interval": 100,
    }
    path = tmp_path / f"{socket.gethostname()}@DEFAULT" / "everyone" / "offsets.json"
    ids = publish(api, client, name, numbered(6))
    gate = Gate(lambda content: content == b"3")
    push_consumer = consume(client, name, gate, **options)
    eventually(lambda: len(gate.recorder.seen) == 6)

    def kept() -> str:
        # While the file is replaced there is none for a moment.
        with contextlib.suppress(FileNotFoundError):
            return str(json.loads(path.read_text())["offsetTable"].get(name, {}).get("text"))
        return ""

    # Written while it runs, and never past what is not done: 4 and 5 are.
    eventually(lambda: kept() == str(ids[2]))
    time.sleep(0.3)
    eventually(lambda: kept() == str(ids[2]))
    eventually(lambda: push_consumer.stats().unfinished == 1)
    report = push_consumer.shutdown(0)
    assert (report.finished, report.unfinished) == (0, 1) and report.positions == {name: ids[3]}
    gate.opened.set()
    assert path.with_name("offsets.json.bak").exists() or path.exists()
    again = Recorder()
    second = consume(client, name, again, **options)
    publish(api, client, name, [b"new"])
    eventually(lambda: b"new" in again.seen)
    assert sorted(again.seen) == [b"3", b"4", b"5", b"new"]
    eventually(lambda: second.stats().unfinished == 0)
    second.shutdown()
    # What comes while nobody is there is not missed, though new members begin at the end.
    publish(api, client, name, [b"meanwhile"])
    third = Recorder()
    consume(client, name, third, **{**options, "consume_from_where": ConsumeFromWhere.LAST_OFFSET})
    eventually(lambda: third.seen == [b"meanwhile"])


@pytest.mark.proves("C214")
def test_a_member_that_begins_at_the_end_misses_nothing_while_it_is_away(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, tmp_path: Path
) -> None:
    name, empty = topic(), topic("empty")
    options = {
        "consumer_group": "away",
        "message_model": MessageModel.BROADCASTING,
        "offset_store_folder": str(tmp_path),
        "consume_from_where": ConsumeFromWhere.LAST_OFFSET,
    }
    publish(api, client, name, [b"old"])
    consume(client, [name, empty], Recorder(), **options).shutdown()
    for each in (name, empty):
        publish(api, client, each, [b"meanwhile"])
    recorder = Recorder()
    consume(client, [name, empty], recorder, **options)
    eventually(lambda: recorder.seen == [b"meanwhile"] * 2)


@pytest.mark.proves("C214")
@pytest.mark.parametrize("where", [ConsumeFromWhere.LAST_OFFSET, ConsumeFromWhere.TIMESTAMP], ids=["last", "time"])
def test_a_member_reads_added_partitions_from_the_beginning(
    api: Api, client: Any, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually, tmp_path: Path,
    where: ConsumeFromWhere,
) -> None:  # fmt: skip
    name, later = topic(partitions=2), int(time.time()) + 2
    options = {
        "consumer_group": "grown",
        "message_model": MessageModel.BROADCASTING,
        "offset_store_folder": str(tmp_path),
        "consume_from_where": where,
        "consume_timestamp": stamp(later),
        "poll_name_server_interval": 200,
    }

    def grow(count: int) -> None:
        broker.admin("POST", name.replace("://", "/") + "/partitions", count)
        for partition in range(count):
            publish(api, client, f"{name}-partition-{partition}", [b"%d of %d" % (partition, count)])

    publish(api, client, f"{name}-partition-0", [b"old"])
    first = Recorder()
    push_consumer = consume(client, name, first, **options)
    # Published since the time that was asked for.
    eventually(lambda: time.time() > later)
    grow(3)
    eventually(lambda: sorted(first.seen) == [b"0 of 3", b"1 of 3", b"2 of 3"])
    eventually(lambda: push_consumer.stats().unfinished == 0)
    push_consumer.shutdown()
    grow(4)
    second = Recorder()
    consume(client, name, second, **options)
    eventually(lambda: sorted(second.seen) == [b"0 of 4", b"1 of 4", b"2 of 4", b"3 of 4"])


def stamp(moment: float) -> str:
    """Return a time as `consume_timestamp`."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(moment))


@pytest.mark.proves("C215")
@pytest.mark.parametrize("later", [True, False], ids=["time-behind-backlog", "time-before-all"])
def test_group_by_time_continues_after_unload(
    api: Api, client: Any, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats,
    later: bool,
) -> None:  # fmt: skip
    name, before = topic(), int(time.time()) - 600
    options = {"consumer_group": "moved", "consume_from_where": ConsumeFromWhere.TIMESTAMP}
    consume(client, name, Recorder(), **options, consume_timestamp=stamp(before)).shutdown()
    publish(api, client, name, [b"done"])
    first = Recorder()
    push_consumer = consume(client, name, first, **options, consume_timestamp=stamp(before))
    eventually(lambda: first.seen == [b"done"])
    eventually(lambda: push_consumer.stats().unfinished == 0)
    push_consumer.shutdown()
    eventually(lambda: backlog(stats, name, "moved") == 0)
    # The cursor moves to the beginning of a new ledger.
    broker.admin("PUT", name.replace("://", "/") + "/unload")
    publish(api, client, name, [b"backlog"])
    moment = int(time.time()) + 2 if later else before
    eventually(lambda: time.time() > moment)
    publish(api, client, name, [b"new"])
    second = Recorder()
    consume(client, name, second, **options, consume_timestamp=stamp(moment))
    eventually(lambda: b"new" in second.seen)
    eventually(lambda: backlog(stats, name, "moved") == 0)
    assert sorted(second.seen) == [b"backlog", b"new"]


@pytest.mark.proves("C215")
def test_group_by_time_reads_partition_added_while_down(
    api: Api, client: Any, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic(partitions=1)
    options = {"consumer_group": "grown", "consume_from_where": ConsumeFromWhere.TIMESTAMP}
    consume(client, name, Recorder(), **options).shutdown()
    broker.admin("POST", name.replace("://", "/") + "/partitions", 2)
    publish(api, client, f"{name}-partition-1", [b"old"])
    moment = int(time.time()) + 2
    eventually(lambda: time.time() > moment)
    publish(api, client, name, [b"new"])
    recorder = Recorder()
    consume(client, name, recorder, **options, consume_timestamp=stamp(moment))
    eventually(lambda: sorted(recorder.seen) == [b"new", b"old"])


@pytest.mark.proves("C213")
def test_a_kept_position_that_does_not_exist_is_mended(
    api: Api,
    client: Any,
    topic: NewTopic,
    consume: Started,
    eventually: Eventually,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(push_core, "MEND", 1.0)
    name = topic()
    options = {
        "consumer_group": "mended",
        "message_model": MessageModel.BROADCASTING,
        "offset_store_folder": str(tmp_path),
    }
    publish(api, client, name, numbered(3))
    folder = tmp_path / f"{socket.gethostname()}@DEFAULT" / "mended"
    folder.mkdir(parents=True)
    beyond = MessageId(-1, 1 << 40, 5).serialize().hex()
    (folder / "offsets.json").write_text(json.dumps({"offsetTable": {name: {"id": beyond}}}))
    recorder = Recorder()
    started = time.monotonic()
    push_consumer = consume(client, name, recorder, **options)
    eventually(lambda: sorted(recorder.seen) == numbered(3))
    assert time.monotonic() - started >= 1.0
    assert any("there is no position" in text for text in messages_of(caplog))
    eventually(lambda: push_consumer.stats().unfinished == 0)
    push_consumer.shutdown()
    assert json.loads((folder / "offsets.json").read_text())["offsetTable"][name]["id"] != beyond


@pytest.mark.proves("C213")
def test_a_kept_position_whose_ledger_was_trimmed_goes_on_at_the_earliest(
    api: Api, client: Any, broker: Broker, topic: NewTopic, namespace: Any, consume: Started, eventually: Eventually,
    tmp_path: Path,
) -> None:  # fmt: skip
    # Deduplication and retention would hold the old ledger.
    space = namespace()
    broker.admin("POST", f"namespaces/{space}/deduplication", False)
    broker.admin("POST", f"namespaces/{space}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    name = topic(namespace=space)
    options = {
        "consumer_group": "trimmed",
        "message_model": MessageModel.BROADCASTING,
        "offset_store_folder": str(tmp_path),
    }
    keeper = client.subscribe(name, "keeper", initial_position=InitialPosition.Earliest)
    old = publish(api, client, name, numbered(3))
    first = Recorder()
    push_consumer = consume(client, name, first, **options)
    eventually(lambda: push_consumer.stats().succeeded == 3)
    push_consumer.shutdown()
    # A new ledger; the old one goes as soon as nobody needs it.
    path = name.replace("://", "/")
    broker.admin("PUT", f"{path}/unload")
    new = publish(api, client, name, numbered(2, "n"))
    assert new[0].ledger_id() > old[0].ledger_id()
    for _ in range(5):
        keeper.acknowledge(keeper.receive(15_000))

    def trimmed() -> bool:
        broker.admin("POST", f"{path}/trim")
        ledgers = broker.admin("GET", f"{path}/internalStats")["ledgers"]  # type: ignore[index]
        return all(ledger["ledgerId"] != old[0].ledger_id() for ledger in ledgers)

    eventually(trimmed)
    second = Recorder()
    consume(client, name, second, **options)
    eventually(lambda: sorted(second.seen) == numbered(2, "n"))


@pytest.mark.proves("C213")
def test_a_group_whose_cursor_was_reset_follows_it(
    api: Api, client: Any, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    recorder = Recorder(IN_ORDER)
    publish(api, client, name, numbered(4))
    push_consumer = consume(client, name, recorder, orderly=True, consume_order=ConsumeOrder.PARTITION)
    eventually(lambda: push_consumer.stats().succeeded == 4)
    group = push_consumer.config.consumer_group
    # Acknowledged at the broker, too, before it is moved.
    eventually(lambda: backlog(stats, name, group) == 0)
    broker.admin("POST", name.replace("://", "/") + f"/subscription/{group}/resetcursor/0")
    eventually(lambda: recorder.seen == numbered(4) * 2)


@pytest.mark.proves("C215")
def test_the_groups_position_never_passes_what_is_not_done(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    publish(api, client, name, numbered(8))
    gate = Gate(lambda content: content == b"2")
    push_consumer = consume(client, name, gate, consumer_group="left")
    eventually(lambda: push_consumer.stats().succeeded == 7)
    report = push_consumer.shutdown(100)
    assert (report.finished, report.unfinished) == (0, 1)
    gate.opened.set()
    assert backlog(stats, name, "left") >= 1
    recorder = Recorder()
    consume(client, name, recorder, consumer_group="left")
    eventually(lambda: recorder.seen == [b"2"])
    eventually(lambda: backlog(stats, name, "left") == 0)
