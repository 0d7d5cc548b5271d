"""Loads that follow each other (since the last success), and loads without rows: nothing twice, nothing lost unsaid."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

import pulsar_native
from pulsar_native import AdminClient
from pulsar_native.exceptions import InvalidConfiguration, Timeout, TopicNotFound
from pyspark_pulsar import load, parquet_writer
from pyspark_pulsar.commits import Commit, CommitConflict, CommitLog
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.manifest import Document
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.output import Output
from pyspark_pulsar.positions import Position
from pyspark_pulsar.request import LoadRequest
from support.brokers import Broker, NewTopic
from support.publishing import Publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(600)


class Chain:
    """Loads since the last success of one topic, each into a path of its run."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, topic: str) -> None:
        self.spark, self.broker, self.folder, self.topic = spark, broker, folder, topic

    def load(self, run: str, source: dict[str, str] | None = None, **parts: Any) -> load.Load:
        """Return the load of a run."""
        options = {"service.url": self.broker.service_url, "topic": self.topic, **(source or {})}
        output = {"path": f"file://{self.folder}/run={run}"}
        log = {"since": "last_success", "commits": self.log().folder}
        request = {"source": options, "output": output, "run": run, **log, **parts}
        return load.Load(self.spark, LoadRequest.parse(json.dumps(request)), time.monotonic())

    def run(self, run: str, source: dict[str, str] | None = None, **parts: Any) -> load.Outcome:
        """Run one load from the first message on, or behind the last success."""
        return self.load(run, {"startingOffsets": "earliest", **(source or {})}, **parts).run()

    def values(self, run: str = "*") -> list[str]:
        """Return the values of one run's rows, or of all, sorted."""
        rows = self.spark.read.parquet(*[f"file://{path}" for path in sorted(self.folder.glob(f"run={run}"))])
        return sorted(bytes(row["value"]).decode() for row in rows.select("value").collect())

    def log(self) -> CommitLog:
        """Return the commit log."""
        return CommitLog(self.spark, f"file://{self.folder}/.commits")


@pytest.fixture
def chain(spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic) -> Chain:
    """Give a chain of loads of a fresh topic with two partitions."""
    return Chain(spark, broker, tmp_path, topic(partitions=2))


def texts(first: int, count: int) -> list[str]:
    """Return numbered texts."""
    return [f"m{number:03}" for number in range(first, first + count)]


# ---- since the last success ------------------------------------------------------------------------------------------


@pytest.mark.proves("A27")
def test_since_last_success_gives_each_row_once(chain: Chain, publish: Publish) -> None:
    for number, run in enumerate(("a", "b", "c")):
        publish(f"{chain.topic}-partition-{number % 2}", texts(number * 10, 10))
        assert chain.run(run).rows == 10
    assert chain.values() == texts(0, 30)
    # A run that is done again covers what it covered, whatever was loaded since.
    publish(f"{chain.topic}-partition-0", texts(30, 10))
    again = chain.run("b")
    assert (again.rows, again.replayed) == (10, True)
    assert chain.values("b") == texts(10, 10) and chain.values() == texts(0, 30)
    # Also where its output and its manifest are gone.
    shutil.rmtree(chain.folder / "run=a")
    (chain.folder / ".run=a.manifest.json").unlink()
    assert chain.run("a").rows == 10
    assert chain.run("d").rows == 10
    assert chain.values() == texts(0, 40)


def test_since_repeated_run_of_shortened_log(chain: Chain, publish: Publish) -> None:
    for number, run in enumerate(("a", "b", "c")):
        publish(f"{chain.topic}-partition-0", texts(number * 5, 5))
        chain.run(run)
    for number in (1, 2):
        (chain.folder / ".commits" / f"{number:012}.json").unlink()
    # The start is that of the first load, also where its document is gone.
    again = chain.load("c", {"startingTime": str(now() + 60_000)}).run()
    assert (again.rows, again.replayed) == (5, True)
    publish(f"{chain.topic}-partition-0", texts(15, 5))
    assert chain.run("d").rows == 5
    assert chain.values("c") == texts(10, 5) and chain.values("d") == texts(15, 5)


def test_since_last_success_takes_new_partitions(chain: Chain, publish: Publish) -> None:
    publish(f"{chain.topic}-partition-1", texts(0, 5))
    chain.run("a")
    with AdminClient(chain.broker.admin_url) as admin:
        admin.update_partitions(chain.topic, 3)
    publish(f"{chain.topic}-partition-2", texts(5, 5))
    assert chain.run("b").rows == 5
    assert chain.values() == texts(0, 10)


def test_first_load_needs_a_start(chain: Chain, publish: Publish) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    with pytest.raises(InvalidConfiguration, match=r"no successful load yet .* the first one needs a start"):
        chain.load("a").run()
    between = int(time.time() * 1000) + 20
    time.sleep(0.05)
    publish(f"{chain.topic}-partition-0", texts(5, 5))
    assert chain.load("a", {"startingTime": str(between)}).run().rows == 5
    publish(f"{chain.topic}-partition-0", texts(10, 5))
    # The start belongs to the first load; a later one must not be cut by it.
    assert chain.load("b", {"startingTime": str(int(time.time() * 1000) + 60_000)}).run().rows == 5
    assert chain.values() == texts(5, 10)


def test_failed_load_is_covered_by_the_next(chain: Chain, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    chain.run("a")
    publish(f"{chain.topic}-partition-0", texts(5, 5))

    def broken(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Output, "count_rows", broken)
        with pytest.raises(OSError, match="disk full"):
            chain.run("b")
    assert not list(chain.folder.glob(".run=b.writing*")), "what was staged is removed"
    publish(f"{chain.topic}-partition-0", texts(10, 5))
    assert chain.run("c").rows == 10
    # The failed run has nothing of its own any more; done again it takes what is new.
    publish(f"{chain.topic}-partition-0", texts(15, 5))
    assert chain.run("b").rows == 5
    assert chain.values() == texts(0, 20)


class Killed(BaseException):
    """Raised where a process would be gone."""


def kill_before_publish(chain: Chain, run: str) -> Path:
    """Run a load that is gone when it is committed and not yet in place; return its staging folder."""

    def killed(_: Output, **_options: bool) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Output, "publish", killed)
        with pytest.raises(Killed):
            chain.run(run)
    (staging,) = chain.folder.glob(f".run={run}.writing*")
    return staging


def test_crash_between_commit_and_rename_is_recovered(chain: Chain, publish: Publish) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    kill_before_publish(chain, "a")
    assert not (chain.folder / "run=a").exists()
    publish(f"{chain.topic}-partition-0", texts(5, 5))
    assert chain.run("b").rows == 5
    assert chain.values() == texts(0, 10), "the next load puts the committed rows in place"


@pytest.mark.parametrize("kind", ["empty", "other"])
def test_recover_replaces_existing_output_folder(chain: Chain, publish: Publish, kind: str) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    kill_before_publish(chain, "a")
    (chain.folder / "run=a").mkdir()
    if kind == "other":
        (chain.folder / "run=a" / "part.parquet").write_text("partly copied")
    publish(f"{chain.topic}-partition-0", texts(5, 5))
    assert chain.run("b").rows == 5
    assert chain.values("a") == texts(0, 5) and chain.values("b") == texts(5, 5)
    assert not list(chain.folder.glob(".run=a.*ing*"))


@pytest.mark.parametrize("kind", ["gone", "cut"])
def test_recover_of_missing_rows_is_data_loss(chain: Chain, publish: Publish, kind: str) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    staging = kill_before_publish(chain, "a")
    if kind == "gone":
        shutil.rmtree(staging)
    else:
        next(staging.glob("*.parquet")).unlink()
    publish(f"{chain.topic}-partition-0", texts(5, 5))
    with pytest.raises(DataLoss, match=rf"run a into file:.*/run=a, was not finished, .*{staging.name}.*run it again"):
        chain.run("b")
    assert chain.run("a").rows == 5
    assert chain.run("b").rows == 5
    assert chain.values() == texts(0, 10)


@pytest.mark.parametrize("manifest", [None, "elsewhere.json"])
def test_removed_output_of_last_load_stays_removed(chain: Chain, publish: Publish, manifest: str | None) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    chain.run("a", manifest=manifest and f"file://{chain.folder}/{manifest}")
    shutil.rmtree(chain.folder / "run=a")
    publish(f"{chain.topic}-partition-0", texts(5, 5))
    assert chain.run("b").rows == 5
    assert chain.values() == texts(5, 5)


@pytest.mark.parametrize("method", ["create", "read"])
def test_failure_after_commit_keeps_rows(
    chain: Chain, publish: Publish, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    plain: Callable[..., Any] = getattr(Document, method)

    def failing(self: Document, *arguments: str) -> Any:
        found = plain(self, *arguments)
        if "/.commits/0" in str(self._path):
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Document, method, failing)
        with pytest.raises(Killed):
            chain.run("a")
    publish(f"{chain.topic}-partition-0", texts(5, 5))
    assert chain.run("b").rows == 5
    assert chain.values("a") == texts(0, 5) and chain.values("b") == texts(5, 5)


def test_commit_log_add_by_two_at_once_adds_one(spark: SparkSession, tmp_path: Path) -> None:
    ranges = [Range("persistent://public/default/t", Position(1, 0), Position(1, 5))]
    for number in range(15):
        log = CommitLog(spark, f"file://{tmp_path}/{number}")
        both = Barrier(2)

        def add(run: str, log: CommitLog = log, both: Barrier = both) -> str | None:
            both.wait(30)
            try:
                log.add(Commit(1, run, f"/{run}", f"/.{run}", ranges, 5))
            except CommitConflict:
                return None
            return run

        with ThreadPoolExecutor(2) as pool:
            added = [run for run in pool.map(add, ("a", "b")) if run is not None]
        assert [commit.run for commit in log.commits()] == added


def test_two_loads_at_once_cannot_both_commit(chain: Chain, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    write = Output.write_scan

    def overtaken(self: Output, *arguments: Any) -> None:
        monkeypatch.setattr(Output, "write_scan", write)
        assert chain.run("b").rows == 5
        write(self, *arguments)

    monkeypatch.setattr(Output, "write_scan", overtaken)
    with pytest.raises(CommitConflict, match="max_active_runs=1") as conflict:
        chain.run("a")
    assert load.judge(conflict.value)[0] == load.FAILED, "a retry helps"
    assert chain.values() == texts(0, 5)
    assert chain.run("a", allow_empty=True).rows == 0
    assert [commit.run for commit in chain.log().commits()] == ["b", "a"]


def test_replaced_rows_of_the_next_load_stay(chain: Chain, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    put = Output.publish

    def overtaken(self: Output, **options: bool) -> None:
        # Another run begins when the first one is committed and not yet in place.
        monkeypatch.setattr(Output, "publish", put)
        publish(f"{chain.topic}-partition-0", texts(5, 5))
        assert chain.run("b").rows == 5
        put(self, **options)

    monkeypatch.setattr(Output, "publish", overtaken)
    assert chain.run("a").rows == 5
    assert chain.values("a") == texts(0, 5)
    assert chain.values() == texts(0, 10)


def test_path_of_several_runs_raises(chain: Chain, publish: Publish) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    output = {"path": f"file://{chain.folder}/run=one"}
    chain.run("a", output=output)
    with pytest.raises(InvalidConfiguration, match=r"holds the rows of the run a, .*run_id \| replace\(':', ''\)"):
        chain.run("b", output=output)
    assert chain.run("a", output=output).rows == 5


def test_mapped_run_of_a_changed_list_is_replayed(chain: Chain, publish: Publish) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    chain.run("a", map_index=0)
    publish(f"{chain.topic}-partition-0", texts(5, 5))
    again = chain.run("a", map_index=1)
    assert again.replayed and chain.values() == texts(0, 5)


def test_two_mapped_loads_of_one_log_raise(chain: Chain, publish: Publish) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    chain.run("a", map_index=0)
    publish(f"{chain.topic}-partition-0", texts(5, 5))
    other = {"path": f"file://{chain.folder}/run=a-too"}
    with pytest.raises(InvalidConfiguration, match="by another mapped task"):
        chain.run("a", map_index=1, output=other)
    # The log of a later run may be of another index, and a try into another path is the same task.
    assert chain.run("a", map_index=0, output=other).rows == 5
    assert chain.run("b", map_index=1, allow_empty=True).rows == 0


def test_commit_log_of_another_topic_raises(chain: Chain, publish: Publish, topic: NewTopic) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    chain.run("a")
    other = topic()
    publish(other, texts(0, 5))
    with pytest.raises(InvalidConfiguration, match="name another folder with commits"):
        chain.run("b", {"topic": other})


@pytest.fixture
def load_five(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic, publish: Publish
) -> Callable[[], Any]:
    """Give the load of an interval with five rows."""
    name = topic()
    publish(name, texts(0, 5))
    source = {"topic": name, "startingOffsets": "earliest", "endingTime": str(int(time.time() * 1000) + 1000)}
    return lambda: bounded(spark, broker, tmp_path, source)


def overtake(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, load_five: Callable[[], Any]) -> None:
    """Have the same load run as a whole just before the next call of a function."""
    plain: Callable[..., Any] = getattr(owner, name)

    def overtaken(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, plain)
        assert load_five().rows == 5
        return plain(*arguments, **options)

    monkeypatch.setattr(owner, name, overtaken)


@pytest.mark.parametrize("point", ["write", "count_rows", "publish"])
def test_two_loads_of_one_interval_leave_it_whole(
    spark: SparkSession, load_five: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    overtake(monkeypatch, Output, point, load_five)
    if point == "write":
        assert load_five().rows == 5
    else:
        # What the slower one had staged was removed by the other: it fails, and what is in place stays.
        with pytest.raises(Exception, match=r"is gone|does not exist|PATH_NOT_FOUND"):
            load_five()
    values = [bytes(row["value"]).decode() for row in spark.read.parquet(f"file://{tmp_path}/out").collect()]
    assert sorted(values) == texts(0, 5)
    assert not list(tmp_path.glob(".out.writing*"))


def test_load_overtaken_while_writing_says_so(
    load_five: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtake(monkeypatch, parquet_writer, "_write_splits", load_five)
    with pytest.raises(OSError, match=r"is gone: another load into the same path ended at the same time"):
        load_five()
    assert not list(tmp_path.glob(".out.writing*"))


def test_since_after_retention_emptied_topic_is_empty(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    topic: NewTopic,
    trimmable: str,
    publish: Publish,
    empty: Callable[[str], None],
) -> None:
    name = topic(namespace=trimmable)
    chain = Chain(spark, broker, tmp_path, name)
    publish(name, texts(0, 5))
    assert chain.run("a").rows == 5
    empty(name)
    with pytest.raises(DataLoss, match="allow_empty=true"):
        chain.run("b")
    # The admin interface shows that the last entry is the last one read.
    for run in ("b", "c"):
        assert chain.run(run, {"admin.url": broker.admin_url}).rows == 0
    assert chain.log().commits()[0].ends() == chain.log().commits()[-1].ends()


def test_since_emptied_partition_needs_proof(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    topic: NewTopic,
    trimmable: str,
    publish: Publish,
    empty: Callable[[str], None],
) -> None:
    name = topic(partitions=2, namespace=trimmable)
    chain = Chain(spark, broker, tmp_path, name)
    for number in range(2):
        publish(f"{name}-partition-{number}", texts(number * 5, 5))
    assert chain.run("a").rows == 10
    publish(f"{name}-partition-1", texts(10, 5))
    empty(f"{name}-partition-0")
    with pytest.raises(DataLoss, match="nothing shows that none were lost") as lost:
        chain.run("b")
    assert "partition-0" in str(lost.value)
    assert chain.run("b", {"admin.url": broker.admin_url}).rows == 5
    assert chain.values() == texts(0, 15)


@pytest.mark.parametrize("has_admin", [True, False], ids=["admin", "no_admin"])
def test_since_trimmed_after_empty_load_is_data_loss(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    topic: NewTopic,
    trimmable: str,
    publish: Publish,
    trim: Callable[[str], object],
    has_admin: bool,
) -> None:
    name = topic(partitions=2, namespace=trimmable)
    chain = Chain(spark, broker, tmp_path, name)
    admin = {"admin.url": broker.admin_url} if has_admin else {}
    publish(f"{name}-partition-0", texts(0, 5))
    assert chain.run("a", admin).rows == 5
    (noted,) = (end for partition, end in chain.log().commits()[-1].ends().items() if partition.endswith("1"))
    assert noted.entry == 0 and (noted.ledger > 0) == has_admin
    publish(f"{name}-partition-1", texts(5, 5))
    trim(f"{name}-partition-1")
    publish(f"{name}-partition-0", texts(10, 5))
    with pytest.raises(DataLoss, match=r"The last load found no message in .*-partition-1; the topic was trimmed"):
        chain.run("b", admin)
    assert chain.run("b", {**admin, "failOnDataLoss": "false"}).rows == 6
    assert chain.values("b") == ["kept", *texts(10, 5)]


def test_since_emptied_after_empty_load_is_data_loss(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    topic: NewTopic,
    trimmable: str,
    publish: Publish,
    empty: Callable[[str], None],
) -> None:
    name = topic(partitions=2, namespace=trimmable)
    chain, admin = Chain(spark, broker, tmp_path, name), {"admin.url": broker.admin_url}
    publish(f"{name}-partition-0", texts(0, 5))
    assert chain.run("a", admin).rows == 5
    publish(f"{name}-partition-1", texts(5, 5))
    empty(f"{name}-partition-1")
    publish(f"{name}-partition-0", texts(10, 5))
    with pytest.raises(DataLoss, match="-partition-1; the topic was trimmed and no message is left"):
        chain.run("b", admin)
    # What is accepted once is noted: the next load finds nothing new missing.
    assert chain.run("b", {**admin, "failOnDataLoss": "false"}).rows == 5
    publish(f"{name}-partition-1", texts(15, 5))
    assert chain.run("c", admin).rows == 5
    assert chain.values("c") == texts(15, 5)


def test_since_topic_made_again_empty_is_data_loss(chain: Chain, publish: Publish) -> None:
    publish(f"{chain.topic}-partition-0", texts(0, 5))
    with AdminClient(chain.broker.admin_url) as admin:
        admin.set_retention(chain.topic, -1, -1)
        source = {"admin.url": chain.broker.admin_url}
        assert chain.run("a", source).rows == 5
        assert chain.run("b", source).rows == 0, "its retention shows that nothing was lost"
        admin.delete_topic(chain.topic, force=True)
        admin.create_partitioned_topic(chain.topic, 2)
        admin.set_retention(chain.topic, -1, -1)
        with pytest.raises(DataLoss, match="nothing shows that none were lost") as lost:
            chain.run("c", source)
    assert "-partition-0" in str(lost.value)


@pytest.mark.parametrize("partitions", [0, 3], ids=["plain", "fewer"])
def test_since_topic_made_again_is_data_loss(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic, publish: Publish, partitions: int
) -> None:
    name = topic(partitions=partitions) if partitions else topic()
    gone = f"{name}-partition-2" if partitions else name
    chain = Chain(spark, broker, tmp_path, name)
    publish(gone, texts(0, 5))
    assert chain.run("a").rows == 5
    with AdminClient(broker.admin_url) as admin:
        admin.delete_topic(name, force=True)
        admin.create_partitioned_topic(name, 2)
    publish(f"{name}-partition-1", texts(5, 5))
    with pytest.raises(DataLoss, match=rf"{gone} was read by the last load and is no longer there: .*made again"):
        chain.run("b")
    assert chain.run("b", {"failOnDataLoss": "false"}).rows == 5
    publish(f"{name}-partition-0", texts(10, 5))
    assert chain.run("c").rows == 5
    assert chain.values() == texts(0, 15)


def test_since_deleted_topic_of_a_pattern_is_data_loss(
    spark: SparkSession, broker: Broker, tmp_path: Path, namespace: Callable[[], str], publish: Publish
) -> None:
    space = namespace()
    names = [f"persistent://{space}/t-{number}" for number in (1, 2)]
    for number, name in enumerate(names):
        publish(name, texts(number * 5, 5))
    chain = Chain(spark, broker, tmp_path, names[0])

    def run(run: str, **more: str) -> load.Outcome:
        source = {"service.url": broker.service_url, "topicsPattern": f"{space}/t-.", "startingOffsets": "earliest"}
        request = {
            "source": {**source, **more},
            "output": {"path": f"file://{tmp_path}/run={run}"},
            "since": "last_success",
            "commits": chain.log().folder,
            "run": run,
        }
        return load.Load(spark, LoadRequest.parse(json.dumps(request)), time.monotonic()).run()

    assert run("a").rows == 10
    with AdminClient(broker.admin_url) as admin:
        admin.delete_topic(names[1], force=True)
    publish(names[0], texts(10, 5))
    with pytest.raises(DataLoss, match=r"t-2 was read by the last load and is no longer there"):
        run("b")
    assert run("b", failOnDataLoss="false").rows == 5
    publish(names[1], texts(15, 5))
    assert run("c").rows == 5
    assert chain.values() == texts(0, 20)


# ---- open transactions -----------------------------------------------------------------------------------------------


def test_load_of_open_transaction_fails_then_is_whole(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    topic: NewTopic,
    client: pulsar_native.Client,
    publish: Publish,
) -> None:
    name = topic()
    publish(name, ["a"])
    transaction = client.new_transaction()
    producer = client.create_producer(name, batching_enabled=False)
    producer.send(b"b", txn=transaction)
    publish(name, ["c"])
    end = now() + 1
    source = {"topic": name, "startingTime": str(end - 600_000), "endingTime": str(end), "admin.url": broker.admin_url}
    with pytest.raises(Timeout, match="An open transaction holds back") as late:
        bounded(spark, broker, tmp_path, {**source, "pollTimeoutMs": "1000"})
    assert load.judge(late.value)[0] == load.FAILED, "a retry helps"
    assert not list(tmp_path.iterdir()), "nothing is noted"
    transaction.commit()
    assert bounded(spark, broker, tmp_path, source).rows == 3


# ---- no rows ---------------------------------------------------------------------------------------------------------


def bounded(spark: SparkSession, broker: Broker, folder: Path, source: dict[str, str], **parts: Any) -> load.Outcome:
    """Run a load of an interval into a folder."""
    options = {"service.url": broker.service_url, **source}
    request = {"source": options, "output": {"path": f"file://{folder}/out"}, **parts}
    return load.Load(spark, LoadRequest.parse(json.dumps(request)), time.monotonic()).run()


def now() -> int:
    """Return the time in milliseconds."""
    return int(time.time() * 1000)


@pytest.mark.proves("A27")
def test_no_rows_after_trimming_is_data_loss(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    topic: NewTopic,
    trimmable: str,
    publish: Publish,
    trim: Callable[[str], object],
) -> None:
    name = topic(namespace=trimmable)
    start = now()
    time.sleep(0.05)
    publish(name, texts(0, 5))
    end = now() + 1
    time.sleep(0.1)
    trim(name)
    source = {"topic": name, "startingTime": str(start), "endingTime": str(end), "timeSlackMs": "0"}
    # The broker that numbers messages shows the trimming; one that does not leaves the missing proof.
    for more in ({"admin.url": broker.admin_url}, {}, {"failOnDataLoss": "false"}):
        with pytest.raises(DataLoss) as lost:
            bounded(spark, broker, tmp_path, {**source, **more})
        assert load.judge(lost.value)[0] == load.LOST
    assert "allow_empty=true" in str(lost.value) and "retention" in str(lost.value)
    assert not (tmp_path / "out").exists()
    outcome = bounded(spark, broker, tmp_path, {**source, "failOnDataLoss": "false"}, allow_empty=True)
    assert outcome.rows == 0
    # What was accepted once is accepted when the run is done again.
    assert bounded(spark, broker, tmp_path, {**source, "failOnDataLoss": "false"}).rows == 0


def test_no_rows_with_an_earlier_message_succeeds(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic, trimmable: str, publish: Publish
) -> None:
    name = topic(namespace=trimmable)
    publish(name, texts(0, 1))
    time.sleep(0.05)
    source = {"topic": name, "startingTime": str(now()), "endingTime": str(now() + 1), "timeSlackMs": "0"}
    assert bounded(spark, broker, tmp_path, source).rows == 0


@pytest.mark.parametrize("stage", ["staged", "published", "done"])
def test_failed_plan_of_open_interval_is_made_again(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic, publish: Publish, stage: str
) -> None:
    name = topic()
    publish(name, texts(0, 3))
    source = {"topic": name, "startingTime": str(now() - 60_000), "endingTime": str(now() + 60_000)}
    publisher, writer = Output.publish, Document.write

    def stopped(output: Output, **options: bool) -> None:
        if stage == "published":
            publisher(output, **options)
        raise Killed

    def written(document: Document, text: str) -> None:
        if json.loads(text)["status"] == "done":
            raise Killed
        writer(document, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*(Document, "write", written) if stage == "done" else (Output, "publish", stopped))
        with pytest.raises(Killed):
            bounded(spark, broker, tmp_path, source)
    assert (tmp_path / "out").exists() == (stage != "staged")
    publish(name, texts(3, 3))
    outcome = bounded(spark, broker, tmp_path, source)
    assert (outcome.rows, outcome.replayed) == (6, False)
    rows = spark.read.parquet(f"file://{tmp_path}/out").select("value").collect()
    assert sorted(bytes(row["value"]).decode() for row in rows) == texts(0, 6), "no row is doubled"
    assert {each.name for each in tmp_path.iterdir()} == {"out", ".out.manifest.json"}


@pytest.mark.parametrize("change", ["deleted", "made_again", "trimmed"])
def test_new_plan_without_loaded_messages_is_loss(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    trimmable: str,
    publish: Publish,
    trim: Callable[[str], object],
    change: str,
) -> None:
    first, second = (f"persistent://{trimmable}/{name}" for name in "ab")
    start = now() - 60_000
    publish(first, texts(0, 2))
    publish(second, texts(2, 2))
    # The plan is from before the end and the slack, so that it is made again.
    source = {
        **({"topicsPattern": f"{trimmable}/."} if change == "deleted" else {"topics": f"{first},{second}"}),
        # A start that is a time may show what was trimmed before it.
        **({"startingOffsets": "earliest"} if change == "trimmed" else {"startingTime": str(start)}),
        "endingTime": str(now() + 1),
    }
    assert bounded(spark, broker, tmp_path, source, run="r").rows == 4
    if change == "trimmed":
        trim(second)
    else:
        broker.admin("DELETE", f"{second.replace('://', '/')}?force=true")
    if change == "made_again":
        publish(second, texts(4, 1))
    for parts in ({"run": "r"}, {"run": "s"}, {"run": "r", "replay": "never"}):
        with pytest.raises(DataLoss, match=r"finished load of this interval that a new plan lacks: .*/b") as lost:
            bounded(spark, broker, tmp_path, source, **parts)
        assert load.judge(lost.value)[0] == load.LOST
    assert len(spark.read.parquet(f"file://{tmp_path}/out").collect()) == 4
    assert bounded(spark, broker, tmp_path, {**source, "failOnDataLoss": "false"}, run="r").rows == 2


def test_load_of_another_cluster_keeps_the_output(
    spark: SparkSession, broker: Broker, default_broker: Broker, tmp_path: Path, topic: NewTopic, publish: Publish
) -> None:
    name = topic()
    publish(name, texts(0, 3))
    with pulsar_native.Client(default_broker.service_url) as other:
        other.create_producer(name).send(b"other")
        assert bounded(spark, broker, tmp_path, {"topic": name}, interval="all", run="r").rows == 3
        with pytest.raises(InvalidConfiguration, match=r"/out has the rows .*same run read from another service\.url"):
            bounded(spark, default_broker, tmp_path, {"topic": name}, interval="all", run="r")
    assert len(spark.read.parquet(f"file://{tmp_path}/out").collect()) == 3


def test_min_rows_keeps_the_output(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic, publish: Publish
) -> None:
    name = topic()
    publish(name, texts(0, 5))
    assert bounded(spark, broker, tmp_path, {"topic": name}, interval="all", min_rows=5).rows == 5
    with pytest.raises(RuntimeError, match=r"5 rows are fewer than min_rows=6: .* stays as it was"):
        bounded(spark, broker, tmp_path, {"topic": name}, interval="all", min_rows=6)
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_missing_topic_error_names_the_option(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic
) -> None:
    with pytest.raises(TopicNotFound, match=r"set a retention .* keep a subscription"):
        bounded(spark, broker, tmp_path, {"topic": topic()}, interval="all")


# ---- a subscription that holds the messages --------------------------------------------------------------------------


@pytest.mark.proves("A27")
def test_subscription_holds_until_loaded(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic, trimmable: str, publish: Publish
) -> None:
    name = topic(namespace=trimmable)
    with pulsar_native.Client(broker.service_url) as client:
        client.subscribe(name, "load", initial_position=pulsar_native.InitialPosition.Earliest).close()
    chain = Chain(spark, broker, tmp_path, name)
    for number, run in enumerate(("a", "b", "c")):
        publish(name, *([text] for text in texts(number * 4, 4)))
        # All that the subscription has let go of is removed at once.
        broker.admin("PUT", f"{name.replace('://', '/')}/unload")
        broker.admin("POST", f"{name.replace('://', '/')}/trim")
        assert chain.run(run, subscription="load").rows == 4
    assert chain.values() == texts(0, 12)
    # The last loaded message is kept, and shows that an empty load lost none.
    with AdminClient(broker.admin_url) as admin:
        assert admin.stats(name)["subscriptions"]["load"]["msgBacklog"] == 1
    assert chain.run("d", subscription="load").rows == 0


def test_subscription_keeps_messages_after_interval(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic, publish: Publish
) -> None:
    name = topic()
    publish(name, *([text] for text in texts(0, 5)))
    time.sleep(0.05)
    end = now()
    time.sleep(0.05)
    publish(name, *([text] for text in texts(5, 5)))
    source = {"topic": name, "startingTime": str(end - 60_000), "endingTime": str(end), "timeSlackMs": "0"}
    source["admin.url"] = broker.admin_url
    assert bounded(spark, broker, tmp_path, source, subscription="load").rows == 5
    with AdminClient(broker.admin_url) as admin:
        # Those behind the interval, and the last one of it.
        assert admin.stats(name)["subscriptions"]["load"]["msgBacklog"] == 6


class Hours:
    """Intervals of a topic without retention, each with its messages in a ledger of its own, and their loads."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, topic: str, publish: Publish) -> None:
        self.spark, self.broker, self.folder, self.topic, self.publish = spark, broker, folder, topic, publish
        with pulsar_native.Client(broker.service_url) as client:
            client.subscribe(topic, "load", initial_position=pulsar_native.InitialPosition.Earliest).close()
        self.cuts = [now()]

    def add(self, count: int) -> None:
        """Publish the messages of the next interval, numbered on."""
        time.sleep(0.05)
        if count:
            self.publish(self.topic, *([text] for text in texts(10 * len(self.cuts), count)))
            self.broker.admin("PUT", f"{self.topic.replace('://', '/')}/unload")
        time.sleep(0.05)
        self.cuts.append(now())

    def run(self, hour: int, **source: str) -> int | None:
        """Load one interval, after the broker has removed what the subscription has let go of; return its rows."""
        self.broker.admin("POST", f"{self.topic.replace('://', '/')}/trim")
        start, end = self.cuts[hour : hour + 2]
        given = {"topic": self.topic, "startingTime": str(start), "endingTime": str(end), "timeSlackMs": "0", **source}
        return bounded(self.spark, self.broker, self.folder / str(hour), given, subscription="load").rows

    def backlog(self) -> int:
        """Return the number of messages that the subscription holds."""
        with AdminClient(self.broker.admin_url) as admin:
            return admin.stats(self.topic)["subscriptions"]["load"]["msgBacklog"]


@pytest.fixture
def hours(
    spark: SparkSession, broker: Broker, tmp_path: Path, topic: NewTopic, trimmable: str, publish: Publish
) -> Hours:
    """Give intervals of a fresh topic."""
    return Hours(spark, broker, tmp_path, topic(namespace=trimmable), publish)


def test_subscription_holds_earlier_intervals(hours: Hours, caplog: pytest.LogCaptureFixture) -> None:
    admin = {"admin.url": hours.broker.admin_url}
    # A single message before the interval looks like the proof that a load leaves.
    for count in (1, 3, 0, 2):
        hours.add(count)
    assert hours.run(1, **admin) == 3
    assert hours.backlog() == 6
    assert "which no load with this subscription has read. Load that interval, or reset" in caplog.text
    assert hours.run(0, **admin) == 1
    # Both are loaded: only the last message of the later one stays.
    assert hours.backlog() == 3
    caplog.clear()
    assert hours.run(2, **admin) == 0
    assert hours.run(3, **admin) == 2
    assert hours.backlog() == 1 and not caplog.records


def test_subscription_without_admin_url_stays(hours: Hours, caplog: pytest.LogCaptureFixture) -> None:
    hours.add(2)
    hours.add(2)
    assert hours.run(1) == 2
    assert hours.backlog() == 4
    assert "without an admin URL (admin.url) it is not known" in caplog.text
    assert hours.run(0) == 2
