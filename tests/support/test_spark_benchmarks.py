"""Benchmark of Spark reads: its arithmetic, the CPU of a process tree, the check of what was read, command lines.

Sessions of Spark are started in tests/spark/test_benchmark.py; the peer that is the official client is read with here.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import environments
from environments import ROOT
from support.brokers import Broker


@pytest.fixture(scope="module")
def benchmark_path() -> Iterator[None]:
    """Let modules of benchmarks/ be imported by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield


@pytest.fixture(scope="module")
def worker(benchmark_path: None) -> Any:
    """Import benchmarks/spark_worker.py."""
    return importlib.import_module("spark_worker")


@pytest.fixture(scope="module")
def sessions(benchmark_path: None) -> Any:
    """Import benchmarks/spark_sessions.py."""
    return importlib.import_module("spark_sessions")


@pytest.fixture(scope="module")
def run(benchmark_path: None) -> Any:
    """Import benchmarks/spark_run.py."""
    return importlib.import_module("spark_run")


@pytest.fixture(scope="module")
def growth(benchmark_path: None) -> Any:
    """Import benchmarks/spark_growth.py."""
    return importlib.import_module("spark_growth")


def session(sessions: Any, *reads: float, wall: float = 10.0, python: int = 0) -> Any:
    """Return a session whose reads took these seconds, and half of them of CPU."""
    figures = [{"wall": seconds, "cpu": seconds / 2} for seconds in reads]
    return sessions.Session(wall, wall * 2, 3.0, 0.5, figures, 900_000_000, python)


# ---- CPU and memory of a process tree --------------------------------------------------------------------------------


def test_parse_stat_name_with_parenthesis(worker: Any) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    fields = f"S 41 7 7 0 -1 4194304 10 20 0 0 {ticks} {2 * ticks} {3 * ticks} {4 * ticks} 20 0 1 0"
    assert worker.parse_stat(f"42 (a) (b c) {fields}\n") == (41, 10.0)


def test_descendants_leave_out_other_trees(worker: Any) -> None:
    assert sorted(worker.descendants({2: 1, 3: 2, 4: 3, 5: 1, 6: 2, 1: 0}, 2)) == [3, 4, 6]
    assert worker.descendants({2: 1}, 9) == []


def test_parse_status_of_ended_process_has_no_peak(worker: Any) -> None:
    assert worker.parse_status("Name:\tjava\nVmHWM:\t  2048 kB\n")["VmHWM"].split() == ["2048", "kB"]
    assert "VmHWM" not in worker.parse_status("Name:\tpython\nState:\tZ (zombie)\n")


# More than the tests ask for: /proc counts in ticks, and may lag behind the process's own clock.
_BUSY = "import time\nwhile time.process_time() < 0.7: pass\n"
# A child that starts a grandchild and ends at once: the grandchild's CPU is nobody's unless orphans are adopted.
_ORPHAN = f"""
import subprocess, sys
import spark_worker

spark_worker.adopt_orphans()
child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
with spark_worker.Usage() as usage:
    before = usage.seconds()
    subprocess.Popen([sys.executable, "-c", child, {_BUSY!r}])
    usage.wait_for_all(60)
    print(usage.seconds() - before, usage.lost)
"""

# Ignores SIGCHLD, as Spark's daemon does; its own child ends when it is told to.
_DAEMON = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as busy:
    print(busy.stdout.readline(), flush=True)
    sys.stdin.readline()
"""
_FORGOTTEN = f"""
import subprocess, sys
import spark_worker

spark_worker.adopt_orphans()
with spark_worker.Usage() as usage:
    before = usage.seconds()
    busy = {_BUSY!r} + "print(1, flush=True); input()"
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    daemon = subprocess.Popen([sys.executable, "-c", {_DAEMON!r}, busy], **pipes)
    daemon.stdout.readline()
    running = usage.seconds() - before
    daemon.stdin.close()
    usage.wait_for_all(60)
    print(usage.seconds() - before, running, usage.lost)
"""

_LEFT = """
import subprocess, sys
import spark_worker

spark_worker.adopt_orphans()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
with spark_worker.Usage() as usage:
    usage.wait_for_all(0.2)
"""


def in_process(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that imports the worker."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=240)


def test_usage_counts_ended_orphan() -> None:
    done = in_process(_ORPHAN)
    assert done.returncode == 0, done.stderr
    seconds, lost = map(float, done.stdout.split())
    assert 0.5 <= seconds < 5 and lost == 0


def test_usage_counts_what_nobody_waited_for() -> None:
    done = in_process(_FORGOTTEN)
    assert done.returncode == 0, done.stderr
    seconds, running, lost = map(float, done.stdout.split())
    # The kernel has forgotten these seconds; what the process used after it was last seen may be missing.
    assert 0.45 <= lost < 5
    assert 0.5 <= running <= seconds < 5


def test_usage_kills_what_does_not_end() -> None:
    done = in_process(_LEFT)
    assert done.returncode == 1 and "still there after 0.2 s" in done.stderr
    state = Path(f"/proc/{int(done.stdout)}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


# ---- command lines ---------------------------------------------------------------------------------------------------

_GIVEN = ["--url", "pulsar://127.0.0.1:1", "--topic", "a", "--topic", "b", "--output", "out"]


def test_worker_parse_keeps_topics_in_order(worker: Any) -> None:
    options = worker.parse(["--peer", "ours", *_GIVEN])
    assert (options.topic, options.cores, options.output) == (["a", "b"], 2, Path("out"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--peer", "jvm", *_GIVEN], "--peer jvm needs --admin-url and --jar"),
        (["--peer", "jvm", "--jar", "x.jar", *_GIVEN], "--peer jvm needs --admin-url and --jar"),
        (["--peer", "ours", "--jar", "x.jar", *_GIVEN], "two sources of the name pulsar"),
        (["--peer", "ours", "--cores", "0", *_GIVEN], "--cores must be at least 1"),
        (["--peer", "ours", "--min-partitions", "2", *_GIVEN], "--min-partitions is of --peer ours and needs"),
        (
            ["--peer", "load", "--min-partitions", "2", "--admin-url", "x", *_GIVEN],
            "--min-partitions is of --peer ours",
        ),
        (["--peer", "kafka", *_GIVEN], "invalid choice: 'kafka'"),
        (["--peer", "ours"], "--url, --topic, --output"),
    ],
)
def test_worker_parse_refuses(
    worker: Any, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        worker.parse(arguments)
    assert ended.value.code == 2 and error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--url", "pulsar://127.0.0.1:1"], "--url and --admin-url belong together"),
        (["--rounds", "0"], "must be above 0"),
        (["--scale", "0"], "must be above 0"),
        (["--growth", "--most", "0"], "must be above 0"),
        (["--case", "lukewarm"], "no case has such a name; there are: 3 M x 100 B, warm;"),
        (["--growth", "--case", "3 M"], "there are: rows; partitions; equal partitions; bytes"),
        (["--side", "kafka"], "invalid choice: 'kafka'"),
    ],
)
def test_run_parse_refuses(run: Any, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.parse(arguments)
    assert ended.value.code == 2 and error in capsys.readouterr().err


def test_session_command_of_jvm_names_its_jar(
    sessions: Any, worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "connector.jar"
    jar.touch()
    monkeypatch.setattr(sessions, "spark_jvm_folder", lambda: tmp_path)
    broker = sessions.Broker("pulsar://127.0.0.1:1", "http://127.0.0.1:2")
    python, script, *words = sessions.command(sessions.JVM, broker, ["a", "b"], tmp_path)
    options = worker.parse(words)
    assert (python, script) == (str(environments.python_of("spark-jvm")), str(ROOT / "benchmarks" / "spark_worker.py"))
    assert (options.peer, options.topic, options.jar) == ("jvm", ["a", "b"], str(jar))
    own = worker.parse(sessions.command(sessions.PYTHON, broker, ["a"], tmp_path)[2:])
    assert (own.jar, own.min_partitions) == (None, None)
    split = worker.parse(sessions.command(sessions.SPLIT, broker, ["a"], tmp_path)[2:])
    assert (split.min_partitions, split.admin_url) == (2, broker.admin_url)


def test_session_environment_has_own_python(sessions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PULSAR_NATIVE_IMPL", "SPARK_HOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(name, "foreign")
    for side, codec in ((sessions.OFFICIAL, None), (sessions.PYTHON, "python"), (sessions.COMPILED, "compiled")):
        env = sessions.environment(side, tmp_path)
        assert env.get("PULSAR_NATIVE_IMPL") == codec
        assert env["PYSPARK_PYTHON"] == str(environments.python_of(side.env))
        assert env["PATH"].startswith(str(environments.python_of(side.env).parent))
        assert not {"SPARK_HOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"} & set(env)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import sys; sys.exit('no such topic')", r"compiled failed:\n\nno such topic"),
        ('print(\'{"codec": "python", "lost": 0}\')', "The compiled codec is not there; make it with dev/setup dev"),
    ],
)
def test_session_that_fails_ends_the_run(
    sessions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, error: str
) -> None:
    monkeypatch.setattr(sessions, "command", lambda *given: [sys.executable, "-c", program])
    with pytest.raises(SystemExit, match=error):
        sessions.run(sessions.COMPILED, sessions.Broker("", ""), ["a"], [], tmp_path)


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_figures_warm_leaves_out_the_warm_up(run: Any, sessions: Any) -> None:
    case = run.Case("warm", run.Content(10, 1), {}, warm_up=2, reads=2)
    found = run.figures(case, [session(sessions, 9, 8, 2, 4), session(sessions, 9, 8, 6, 8)])
    assert found == {"wall": [2, 4, 6, 8], "cpu": [1, 2, 3, 4]}


def test_figures_cold_is_the_whole_session(run: Any, sessions: Any) -> None:
    case = run.Case("cold", run.Content(10, 1), {}, cold=True)
    assert run.figures(case, [session(sessions, 4, wall=12)]) == {"wall": [12], "cpu": [24]}


@pytest.mark.parametrize(("cold", "names"), [(False, ["jvm", "split", "load"]), (True, ["jvm", "load"])])
def test_measure_sides_take_turns(
    run: Any, sessions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool, names: list[str]
) -> None:
    calls: list[tuple[str, int]] = []

    def called(side: Any, broker: Any, topics: list[str], contents: list[Any], folder: Path) -> Any:
        assert topics == ["filled"] * len(contents) and {each.rows for each in contents} == {2_000}
        calls.append((side.name, len(topics)))
        return session(sessions, 1)

    monkeypatch.setattr(sessions, "run", called)
    monkeypatch.setattr(sessions, "fill", lambda broker, content: "filled")
    case = run.Case("any", run.Content(20_000, 100), {}, warm_up=2, reads=3, cold=cold)
    sides = [sessions.JVM, sessions.SPLIT, sessions.LOAD, sessions.LOAD_PYTHON]
    found = run.measure(case, sessions.Broker("", ""), sides, 2, 0.1, tmp_path)
    assert calls == [(name, 1 if cold else 5) for name in names] * 2
    assert {side.name: len(each) for side, each in found.items()} == dict.fromkeys(names, 2)


def test_case_plain_load_takes_part_with_a_goal(run: Any, sessions: Any) -> None:
    assert [case.name for case in run.CASES if case.has(sessions.LOAD_PYTHON)] == ["3 M x 100 B, warm"]


def test_lines_ratios_are_peer_through_side(run: Any, sessions: Any) -> None:
    case = run.Case("warm", run.Content(10, 1), {"compiled": 2.5}, warm_up=1, reads=1)
    found = {
        sessions.JVM: [session(sessions, 99, 8)],
        sessions.OFFICIAL: [session(sessions, 99, 20, python=5)],
        sessions.COMPILED: [session(sessions, 99, 3, python=70_000_000), session(sessions, 99, 5, python=60_000_000)],
    }
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in run.lines(case, found)]
    assert cells[0] == ["warm", "jvm", "8.00", "4.00", "1.00", "1.00", "", "", "0%", ""]
    assert cells[1] == ["warm", "official", "20.00", "10.00", "0.40", "0.40", "", "", "0%", "0"]
    assert cells[2] == ["warm", "compiled", "4.00", "2.00", "2.00", "2.00", "2.5", "5.00", "50%", "70"]
    assert len(run.heading().splitlines()[0].split("|")) == len(cells[0]) + 2


def test_lines_without_jvm_have_no_ratio(run: Any, sessions: Any) -> None:
    case = run.Case("warm", run.Content(10, 1), {}, warm_up=0, reads=1)
    (line,) = run.lines(case, {sessions.PYTHON: [session(sessions, 4)]})
    assert [cell.strip() for cell in line.split("|")[5:9]] == ["", "", "", ""]


def test_stages_of_cold_sessions_only(run: Any, sessions: Any) -> None:
    found = {sessions.JVM: [session(sessions, 4), session(sessions, 6), session(sessions, 7)]}
    cold = run.Case("cold", run.Content(10, 1), {}, cold=True)
    assert run.stages(cold, found) == ["  cold, jvm: session 3.00, read 6.00, end 0.50 s; CPU of the read 3.00 s"]
    assert run.stages(run.Case("warm", run.Content(10, 1), {}), found) == []


def test_case_scaled_keeps_the_kind(run: Any) -> None:
    case = run.Case("warm", run.Content(3_000_000, 100, 4, described=True), {})
    assert case.scaled(0.1) == run.Content(300_000, 100, 4, described=True)
    assert case.scaled(1e-9).rows == 1_000


def test_case_split_has_one_partition_to_split(run: Any, sessions: Any) -> None:
    assert [run.Case("", run.Content(1, 1, each), {}).has(sessions.SPLIT) for each in (0, 1, 4)] == [True, True, False]


def test_chosen_by_a_part_of_the_name(run: Any) -> None:
    assert {case.cold for case in run.chosen(["cold"])} == {True}
    assert len(run.chosen(["cold", "3 M"])) == 3 and run.chosen([]) == list(run.CASES)


def test_growth_scaled_rows_end_at_most(growth: Any) -> None:
    rows, partitions, equal, sizes = growth.SERIES
    assert list(rows.scaled(1.0, 1_000_000)) == [100_000, 1_000_000]
    assert {point: each.rows for point, each in partitions.scaled(0.00001, 1).items()} == {
        1: 20, 4: 20, 16: 20, 64: 64, 256: 256,
    }  # fmt: skip
    assert {each.rows / each.partitions for each in equal.scaled(1.0, 1).values()} == {100_000}
    assert [each.rows * each.size for each in sizes.scaled(1.0, 1).values()] == [536_870_900, *[512 << 20] * 3]


def test_growth_table_compares_with_the_point_before(growth: Any, sessions: Any) -> None:
    contents = {10: sessions.Content(1_000, 100), 20: sessions.Content(2_000, 100), 30: sessions.Content(2_000, 100)}
    found = {
        10: [session(sessions, 99, 0.5, python=70_000_000)],
        20: [session(sessions, 99, 0.7, python=80_000_000)],
        30: [session(sessions, 99, 0.9)],
    }
    lines = growth.table(growth.Series("rows", "rows", contents), "compiled", contents, found).splitlines()
    assert lines[2] == "| 10 | 1,000 | 500.00 | 250.00 | 0 |  | 70 | 900 |"
    assert lines[3] == "| 20 | 2,000 | 350.00 | 175.00 | 0 | 200.00 | 80 | 900 |"
    assert lines[4].split("|")[6].strip() == ""


# ---- what was read ---------------------------------------------------------------------------------------------------


def rows_of(sessions: Any, content: Any) -> Any:
    """Return the rows that a read of a topic gives, as an Arrow table."""
    import pyarrow as pa

    sent = sessions.messages(content, 0, content.rows)
    count = content.rows
    properties = [[("source", "a"), ("trace", "b")] if content.described else [] for _ in range(count)]
    return pa.table(
        {
            "value": sent["value"],
            "__key": sent["key"].cast(pa.binary()) if content.described else pa.nulls(count, pa.binary()),
            "__topic": pa.array(["t"] * count),
            "__messageId": pa.array([b"id"] * count),
            "__publishTime": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "__eventTime": pa.array(
                [each * 1000 for each in sent["event_time"].to_pylist()], pa.timestamp("us", "UTC")
            ),
            "__messageProperties": pa.array(properties, pa.map_(pa.string(), pa.string())),
        }
    )


@pytest.mark.parametrize("described", [False, True])
def test_check_read_of_all_rows_passes(sessions: Any, tmp_path: Path, described: bool) -> None:
    import pyarrow.parquet as pq

    content = sessions.Content(500, 100, described=described)
    rows = rows_of(sessions, content)
    pq.write_table(rows[:123], tmp_path / "part-0.parquet")
    pq.write_table(rows[123:], tmp_path / "part-1.parquet")
    sessions.check(sessions.JVM, content, sessions.summary(tmp_path))


def test_check_names_what_differs(sessions: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = sessions.Content(500, 100, described=True)
    rows = rows_of(sessions, content)
    # One row is lost and another one doubled: the count is right.
    pq.write_table(pa.concat_tables([rows[:499], rows[:1]]), tmp_path / "part-0.parquet")
    with pytest.raises(SystemExit, match=r"jvm did not read what was published: .*event_time is 124251 instead of"):
        sessions.check(sessions.JVM, content, sessions.summary(tmp_path))
    pq.write_table(rows.drop_columns("__key").append_column("__key", rows["__key"]), tmp_path / "part-0.parquet")
    with pytest.raises(SystemExit, match=r"published: columns is \['value', '__topic'"):
        sessions.check(sessions.JVM, content, sessions.summary(tmp_path))
    (tmp_path / "part-0.parquet").unlink()
    with pytest.raises(SystemExit, match="rows is 0 instead of 500"):
        sessions.check(sessions.JVM, content, sessions.summary(tmp_path))


def test_official_batches_read_to_the_end(sessions: Any, worker: Any, broker: Broker) -> None:
    import pyarrow as pa

    content = sessions.Content(3_000, 100, 2, described=True)
    topic = sessions.fill(sessions.Broker(broker.service_url, broker.admin_url), content)
    ends = worker.official_ends(broker.service_url, topic)
    assert [name for name, _ in ends] == [f"{topic}-partition-0", f"{topic}-partition-1"]
    found = pa.Table.from_batches(
        [batch for name, end in ends for batch in worker.official_batches(broker.service_url, name, end)]
    )
    assert found.column_names == list(worker.COLUMNS) and found.num_rows == 3_000
    keys = {f"customer-{number}".encode() for number in range(3_000)}
    assert set(found["__key"].to_pylist()) == keys
    assert {len(value) for value in found["value"].to_pylist()} == {100}
    assert dict(found["__messageProperties"][0].as_py()).keys() == {"source", "trace"}
    milliseconds = sorted(moment.value // 1000 for moment in found["__eventTime"].combine_chunks())
    assert milliseconds == list(range(1_700_000_000_000, 1_700_000_003_000))
    # No subscription is left behind.
    broker.wait_unsubscribed(f"{topic}-partition-0")


# ---- environments ----------------------------------------------------------------------------------------------------


def test_setup_all_leaves_out_the_peers() -> None:
    named = environments.chosen(["all"])
    assert not set(environments.ONLY_BY_NAME) & set(named)
    assert {*named, *environments.ONLY_BY_NAME} == set(environments.TARGETS)
    assert environments.chosen(["spark-jvm", "pins"]) == ["spark-jvm"]


def test_setup_peers_have_exact_pins() -> None:
    pins = (environments.REQUIREMENTS / "spark-jvm.txt").read_text().splitlines()
    assert "pyspark==3.5.8" in pins
    assert "<version>3.1.1.4</version>" in environments.SPARK_JVM_POM.read_text()
    assert "pulsar-client==3.13.0" in (environments.REQUIREMENTS / "spark-official.txt").read_text()


def test_save_makes_the_folder(run: Any, tmp_path: Path) -> None:
    run.save(tmp_path / "new" / "bench.json", {"scale": 0.1})
    assert json.loads((tmp_path / "new" / "bench.json").read_text()) == {"scale": 0.1}
    run.save(None, {})
