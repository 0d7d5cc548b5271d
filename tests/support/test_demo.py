"""The demo waits as long as something goes on, gives up what stands still, and starts over after a failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import demo
import environments
from broker import BrokerError, Standalone


class Slow:
    """A broker that logs a line at every look and is ready at the last one."""

    def __init__(self, log: Path, looks: int, *, quiet: bool = False) -> None:
        self.log, self.looks, self.quiet = log, looks, quiet

    def wait_ready(self, timeout: float) -> Slow:
        """Wait shortly; raises until the last look."""
        time.sleep(0.1)
        self.looks -= 1
        if not self.looks:
            return self
        if not self.quiet:
            with self.log.open("a") as log:
                log.write("goes on\n")
        raise BrokerError("the broker is not ready")

    def process_id(self) -> int:
        """Return the id of a process that runs."""
        return os.getpid()


def test_wait_ready_lasts_while_the_log_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_BROKER_QUIET_SECONDS", 0.3)
    slow: Any = Slow(tmp_path / "log", 10)
    demo.wait_ready(slow)
    assert slow.looks == 0


def test_wait_ready_gives_up_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_BROKER_QUIET_SECONDS", 0.3)
    still: Any = Slow(tmp_path / "log", 1000, quiet=True)
    with pytest.raises(BrokerError):
        demo.wait_ready(still)
    assert still.looks > 900


def test_watchdog_kills_what_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_QUIET_SECONDS", 2)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    watchdog = demo.Watchdog(process.pid)
    for _ in range(5):
        time.sleep(0.6)
        watchdog.pat()
    assert process.poll() is None, "signs of life keep it"
    assert process.wait(30) == -signal.SIGKILL
    watchdog.stop()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty folder for the demo; nothing is installed, no broker, no Airflow and no Spark is started."""
    for name in ("HOME", "OUTPUT", "BROKER", "UNFINISHED", "FINISHED", "LOG", "RESULT"):
        monkeypatch.setattr(demo, name, tmp_path / getattr(demo, name).relative_to(demo.DEMO))
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    monkeypatch.setattr(demo, "DEMO", tmp_path)
    monkeypatch.delenv("PULSAR_SERVICE_URL", raising=False)
    monkeypatch.setattr(environments, "make", lambda *names: None)

    @contextlib.contextmanager
    def urls() -> Iterator[tuple[str, str]]:
        yield "pulsar://localhost:6650", "http://localhost:8080"

    def prepare(env: dict[str, str]) -> None:
        for kept in (demo.HOME / "airflow.db", demo.BROKER / "data", demo.OUTPUT / "rows"):
            kept.parent.mkdir(exist_ok=True)
            kept.touch()

    monkeypatch.setattr(demo, "broker_urls", urls)
    monkeypatch.setattr(demo, "prepare_airflow", prepare)
    return tmp_path


def left(folder: Path) -> set[str]:
    """Return the names of the files of the demo's folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def failed_run(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let a run of the demo fail, with a broker, a database and output left behind."""
    with monkeypatch.context() as patch:
        patch.setattr(demo, "run_dag", lambda env, month: False)
        assert demo.main([]) == 1
    assert left(folder) == {"airflow/airflow.db", "broker/data", "output/rows", "unfinished"}


def test_demo_after_failure_starts_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed_run(monkeypatch, folder)
    found: list[set[str]] = []

    def begin(env: dict[str, str]) -> None:
        found.append(left(folder))
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "prepare_airflow", begin)
    with pytest.raises(KeyboardInterrupt):
        demo.main([])
    assert found == [{"unfinished"}], "nothing of the failed run, and this one has not finished either"


@pytest.fixture
def successful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of the demo succeed."""

    def succeed(env: dict[str, str], month: str) -> bool:
        demo.RESULT.write_text('{"loaded": {"path": "p"}, "consumed": {"path": "p"}}')
        return True

    monkeypatch.setattr(demo, "run_dag", succeed)
    monkeypatch.setattr(demo, "draw", lambda parquet: None)
    monkeypatch.setattr(demo, "table", lambda result: "")


_KEPT = {"airflow/airflow.db", "broker/data", "output/rows", "result.json", "finished.json"}


@pytest.mark.usefixtures("successful")
def test_demo_after_success_keeps_its_folder(folder: Path) -> None:
    assert demo.main([]) == 0
    assert left(folder) == _KEPT
    demo.clear_unfinished()
    assert demo.clear_finished("2013-02") and left(folder) == _KEPT


@pytest.mark.usefixtures("successful")
def test_demo_of_the_same_month_starts_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for month in ("2013-01", "2013-02"):
        assert demo.main(["--month", month]) == 0
    (folder / "broker" / "old").touch()
    with monkeypatch.context() as patch:
        patch.setattr(Standalone, "process_id", lambda self: os.getpid())
        assert demo.clear_finished("2013-01") and "broker/old" in left(folder), "somebody uses that broker"
    assert demo.main([]) == 0
    assert left(folder) == _KEPT
    assert demo.finished() == {"2013-01": ""}, "the other month went with the broker"


@pytest.mark.usefixtures("successful")
def test_demo_of_the_same_month_on_a_named_broker_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PULSAR_SERVICE_URL", "pulsar://broker.example.org:6650")
    assert demo.main([]) == 0
    assert demo.main([]) == 1
    assert "2013-01 was run before with the broker at pulsar://broker.example.org:6650" in capsys.readouterr().out
    monkeypatch.setenv("PULSAR_SERVICE_URL", "pulsar://other.example.org:6650")
    assert demo.main([]) == 0


def test_demo_failed_on_named_broker_keeps_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed_run(monkeypatch, folder)
    monkeypatch.setenv("PULSAR_SERVICE_URL", "pulsar://broker.example.org:6650")
    demo.clear_unfinished()
    assert "airflow/airflow.db" in left(folder)


def test_demo_failed_beside_running_broker_keeps_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed_run(monkeypatch, folder)
    monkeypatch.setattr(Standalone, "process_id", lambda self: os.getpid())
    demo.clear_unfinished()
    assert {"broker/data", "unfinished"} <= left(folder)
