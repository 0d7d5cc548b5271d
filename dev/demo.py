#!/usr/bin/env python3
"""Run the example DAG from an empty folder: broker, Airflow, Spark, and the flights of a month, shown as they go.

Usage: dev/demo.py [--month 2013-01]. DEMO_ROWS=all takes the whole year in one run. PULSAR_SERVICE_URL
(with PULSAR_ADMIN_URL) names a broker to use instead of a private one; that one is configured as Pulsar is installed,
or with DEMO_PROFILE=testing as for the tests, which keeps the topics for the next call. Standard library only; the work
happens in the environments. Everything lies under .demo/; the broker it starts is stopped at the end. What takes long
is waited for as long as it goes on, however slow the machine is. After a call that did not finish, the next one starts
over on a broker of its own: what tasks and topics kept of the run may no longer belong together. So does one for a
month that was run before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import broker as brokers
import environments
from environments import ENVS, ROOT, python_of

DEMO = ROOT / ".demo"
HOME = DEMO / "airflow"
OUTPUT = DEMO / "output"
LOG = DEMO / "run.log"
RESULT = DEMO / "result.json"
PICTURE = OUTPUT / "delays_by_carrier.png"
BROKER = DEMO / "broker"
# There from the start of a run to its success.
UNFINISHED = DEMO / "unfinished"
# The months that were run, each with the URL of the broker named, "" for the private one.
FINISHED = DEMO / "finished.json"
# Log lines shown to the user: progress of the operators, and results of tasks.
_SHOWN = re.compile(r"(?:pulsar-load: |\S+ published: |consumed |Waiting for )[^\n]*")
# Behind the text of a log line Airflow puts the logger, in brackets, and the place.
_LOGGER = re.compile(r"\s+\[[\w.]+\].*")
# Seconds without output after which a step counts as hung.
_QUIET_SECONDS = 600
_BROKER_QUIET_SECONDS = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--month", default="2013-01", help="the data interval, a month of 2013 (default 2013-01)")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"2013-(0[1-9]|1[0-2])", options.month):
        parser.error(f"--month must be a month of 2013 such as 2013-01, not {options.month!r}")
    started = time.monotonic()
    environments.make("spark", "airflow", *([] if "PULSAR_SERVICE_URL" in os.environ else ["broker"]))
    DEMO.mkdir(exist_ok=True)
    clear_unfinished()
    if not clear_finished(options.month):
        return 1
    OUTPUT.mkdir(exist_ok=True)
    UNFINISHED.touch()
    with broker_urls() as (service_url, admin_url):
        env = airflow_env(service_url, admin_url)
        prepare_airflow(env)
        say(f"running the DAG flights_to_parquet for {options.month} (full log: {LOG.relative_to(ROOT)})")
        run_started = time.monotonic()
        if not run_dag(env, options.month):
            return 1
        run_seconds = time.monotonic() - run_started
    UNFINISHED.unlink()
    FINISHED.write_text(json.dumps(finished() | {options.month: os.environ.get("PULSAR_SERVICE_URL", "")}))
    result = json.loads(RESULT.read_text())
    draw(result["loaded"]["path"])
    print(table(result), flush=True)
    print(f"\nParquet  {result['loaded']['path']}\nJSONL    {result['consumed']['path']}\nPicture  {PICTURE}")
    seconds = time.monotonic() - started
    say(f"done in {seconds:.0f} s, {run_seconds:.0f} of them in the DAG; `make ui` shows it in Airflow")
    return 0


def say(text: str) -> None:
    """Print one progress line at once."""
    print(f"demo: {text}", flush=True)


def clear_unfinished() -> None:
    """Remove the database, output and private broker of a run that failed or was stopped.

    Nothing is removed where a broker is named: its topics would stay, and only that database knows which messages are
    there already. Nor is it while a broker runs in the folder, whoever started it.
    """
    if not UNFINISHED.exists() or os.environ.get("PULSAR_SERVICE_URL"):
        return
    if brokers.Standalone(BROKER).process_id() is not None:
        return
    say("the last run did not finish: starting over without what it left in .demo/")
    _clear()
    UNFINISHED.unlink()


def finished() -> dict[str, str]:
    """Return the months that were run with the brokers named, "" for the private one."""
    found: dict[str, str] = json.loads(FINISHED.read_text()) if FINISHED.exists() else {}
    return found


def clear_finished(month: str) -> bool:
    """Start over for a month that was run before on the private broker; return False if that was on the one named.

    Airflow replaces a run that is tested again, and with it what its tasks know of the messages they published: they
    refuse to publish them twice, and cannot compare.
    """
    named = os.environ.get("PULSAR_SERVICE_URL", "")
    if finished().get(month) != named:
        return True
    if named:
        say(f"{month} was run before with the broker at {named}: take another --month, or a broker without its topics")
        return False
    if brokers.Standalone(BROKER).process_id() is None:
        say(f"{month} was run before: starting over without what is in .demo/")
        _clear()
    return True


def _clear() -> None:
    """Remove the database, output and private broker, and with them the months that were run."""
    for folder in (HOME, OUTPUT, BROKER):
        shutil.rmtree(folder, ignore_errors=True)
    FINISHED.unlink(missing_ok=True)


@contextlib.contextmanager
def broker_urls() -> Iterator[tuple[str, str]]:
    """Give the URLs of the broker named by the environment, or of one started for as long as needed."""
    named = os.environ.get("PULSAR_SERVICE_URL")
    if named:
        say(f"using the broker at {named}")
        yield named, os.environ.get("PULSAR_ADMIN_URL", "")
        return
    profile = os.environ.get("DEMO_PROFILE") or "default"
    say(f"starting a Pulsar 4.2.4 standalone in .demo/broker (profile {profile})")
    standalone = brokers.Standalone(BROKER, profile=profile)
    standalone.start()
    try:
        wait_ready(standalone)
        say(f"broker ready: {standalone.service_url}, admin {standalone.admin_url}")
        yield standalone.service_url, standalone.admin_url
    finally:
        standalone.stop()


def wait_ready(standalone: brokers.Standalone) -> None:
    """Wait for a broker as long as it logs something new; raises BrokerError when it has ended or stands still."""
    size, moved = -1, time.monotonic()
    while True:
        try:
            standalone.wait_ready(timeout=5)
            return
        except brokers.BrokerError:
            now = standalone.log.stat().st_size if standalone.log.exists() else 0
            if now != size:
                size, moved = now, time.monotonic()
            elif standalone.process_id() is None or time.monotonic() - moved > _BROKER_QUIET_SECONDS:
                raise


def airflow_env(service_url: str, admin_url: str) -> dict[str, str]:
    """Return the environment of an Airflow of its own, with the DAG and where it finds things."""
    return {
        **os.environ,
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "FLIGHTS_OUTPUT": str(OUTPUT),
        "SPARK_ENVIRONMENT": str(ENVS / "spark"),
        # Nothing of the demo leaves this machine.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "DEMO_SERVICE_URL": service_url,
        "DEMO_ADMIN_URL": admin_url,
        "DEMO_RESULT": str(RESULT),
        "PATH": f"{python_of('airflow').parent}{os.pathsep}{os.environ['PATH']}",
    }


def prepare_airflow(env: Mapping[str, str]) -> None:
    """Migrate the database and write the connections; quick when that was done before."""
    say("migrating the Airflow database and writing the connections pulsar_default and spark_default")
    pulsar = {
        "conn_type": "pulsar",
        "extra": {"service_url": env["DEMO_SERVICE_URL"], "admin_url": env["DEMO_ADMIN_URL"]},
    }  # fmt: skip
    spark = {"conn_type": "spark", "host": "local[2]"}
    wanted = {"pulsar_default": pulsar, "spark_default": spark}
    path = DEMO / "connections.json"
    path.write_text(json.dumps(wanted))
    with LOG.open("w") as log:
        for command in (("db", "migrate"), ("connections", "import", "--overwrite", str(path))):
            done = subprocess.run(
                [str(python_of("airflow").parent / "airflow"), *command],
                env=dict(env), stdout=log, stderr=subprocess.STDOUT, timeout=1200, check=False,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"demo: `airflow {' '.join(command)}` failed; see {LOG}")


def run_dag(env: Mapping[str, str], month: str) -> bool:
    """Run the DAG for one interval, showing its progress; return whether it succeeded."""
    RESULT.unlink(missing_ok=True)
    command = [str(python_of("airflow")), str(ROOT / "dev" / "demo_run.py"), month]
    with LOG.open("a") as log:
        process = subprocess.Popen(
            command, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        watchdog = Watchdog(process.pid)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                watchdog.pat()
                log.write(line)
                show(line)
            code = process.wait(timeout=60)
        finally:
            watchdog.stop()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
    if code:
        tail = LOG.read_text().splitlines()[-30:]
        print("\n".join(tail), file=sys.stderr)
        say(f"the DAG run failed; the whole log is {LOG}")
    return code == 0


class Watchdog:
    """Kill a process group that has printed nothing for a long time: waiting is bounded by progress, not by a clock."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._moved = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def pat(self) -> None:
        """Record output of the watched process."""
        self._moved = time.monotonic()

    def stop(self) -> None:
        """End the watch."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(1):
            if time.monotonic() - self._moved > _QUIET_SECONDS:
                say(f"giving up: nothing was printed for {_QUIET_SECONDS} s")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._group, 9)
                return


def show(line: str) -> None:
    """Print a log line if it is for the user."""
    if line.startswith("demo: "):
        print(line, end="", flush=True)
        return
    found = _SHOWN.search(line)
    if found:
        print(f"      {_LOGGER.sub('', found[0])}", flush=True)


def draw(parquet: str) -> None:
    """Draw the picture from the Parquet, in Spark's environment, which has matplotlib."""
    command = [str(python_of("spark")), str(ROOT / "dev" / "demo_picture.py"), parquet, str(PICTURE)]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, "MPLBACKEND": "Agg"})


def table(result: Mapping[str, dict[str, float]]) -> str:
    """Return the final table: step, count, seconds and rate."""
    rows = [("", "messages", "seconds", "messages/s")]
    for name, key, count in (
        ("published", "published", "count"),
        ("  of them new to the topic", "published", "stored"),
        ("published late flights", "published_late", "count"),
        ("loaded into Parquet", "loaded", "rows"),
        ("consumed into JSONL", "consumed", "count"),
    ):
        part = result[key]
        seconds = float(part["seconds"])
        speed = "" if count == "stored" else f"{part[count] / seconds:,.0f}" if seconds else "-"
        rows.append((name, f"{part[count]:,}", "" if count == "stored" else f"{seconds:.1f}", speed))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        row[0].ljust(widths[0])
        + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    return "\n" + "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())
