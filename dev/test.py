#!/usr/bin/env python3
"""Run the tests: the checks, and each suite in its own environment, against real brokers.

`dev/test.py` runs everything; `dev/test.py SUITE … [-- pytest arguments]` only those suites, without the checks. Most
suites wait more than they compute: two run at a time, each with a broker of its own, the checks beside the first. They
print their output when they end, and until then a line a minute.
Standard library only: it runs before anything is installed. Rules: a suite whose folder exists must have tests; a
skipped test is a failure unless ALLOWED_SKIPS names it with its reason; tests marked slow run only with --long, and
count as neither passed, failed nor skipped elsewhere; the last line counts what passed, failed and was skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import class_archive
import covered
import environments
from broker import BrokerError, Standalone
from environments import ROOT, python_of

RESULTS = ROOT / ".results"

# Suites that run at a time, where there are two cores.
JOBS = 2 if (os.cpu_count() or 1) > 1 else 1
_PROGRESS_SECONDS = 60
# A suite that prints nothing for so long does not go on: more than any test may take (tests/conftest.py).
_IDLE_SECONDS = 1500
_IDLE_SECONDS_OF_SLOW = 2400
# Failed tests that are shown once more at the end, and lines of each.
_SHOWN_FAILURES = 20
_SHOWN_LINES = 12

# Node id of a test that may be skipped -> why that is right. Nothing else may be.
ALLOWED_SKIPS: dict[str, str] = {}


@dataclass(frozen=True)
class Suite:
    """Folder of tests and its environments, of which the first one runs them."""

    name: str
    needs: tuple[str, ...]
    # How many processes share its tests.
    processes: int = 1
    # How xdist shares them. Files stay whole unless a suite says otherwise: their tests share brokers.
    dist: str = "loadfile"
    # True if its processes do not share the runner's broker: a test may unload a whole namespace.
    has_own_brokers: bool = False
    # The suite whose tests it runs, in another environment: such a suite runs with --long, or when it is named.
    again: str = ""

    @property
    def spark(self) -> str | None:
        """Environment of the Spark drivers that its tests start, None if they start none."""
        return next((name for name in self.needs if name in ("spark", "spark-oldest", "tables")), None)

    @property
    def folder(self) -> str:
        """Return the folder below the project's root."""
        return f"tests/{self.again or self.name}"


_PROVIDER = ("spark", "tables", "browser", "postgres", "dev")
SUITES = (
    Suite("support", ("dev",)),
    Suite("client", ("dev",), processes=2),
    # Mostly waiting, for time-outs and for brokers.
    Suite("integration", ("dev",), processes=3, has_own_brokers=True),
    # Programs on the official client and on ours: one file, mostly waiting, and no program needs another, but for those
    # of one group, which share a broker.
    Suite("compat", ("dev",), processes=2, dist="loadgroup"),
    Suite("spark", ("spark",), processes=2),
    # The same on the oldest Spark that ours allows, without the tests of what it lacks (mark needs_spark). Benchmarks
    # always run on the newest one.
    Suite("spark-oldest", ("spark-oldest", "spark"), processes=2, again="spark"),
    # The load application with table formats, which have no packages for the newest Spark.
    Suite("tables", ("tables",)),
    # Two processes have an Airflow of their own and wait for it most of the time; the third one runs the other files.
    Suite("provider", ("airflow", *_PROVIDER), processes=3),
    # The same on the oldest Airflow and the oldest of its providers that ours allows.
    Suite("provider-oldest", ("airflow-oldest", *_PROVIDER), processes=3, again="provider"),
)

# Those that take longest are started first, so that none of them runs by itself at the end.
LONGEST = ("provider-oldest", "provider", "client", "integration", "spark", "spark-oldest", "compat", "tables")


@dataclass
class Count:
    """Numbers of tests passed, failed and skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Count) -> None:
        """Add another count to this one."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def say(text: str) -> None:
    """Print one progress line at once, and whole, though other threads print too."""
    print(f"test: {text}\n", end="", flush=True)


def _make_broker(*needs: str) -> None:
    """Make the environment of the broker and those named, and meanwhile what all brokers of the tests start with, in
    other processes too.
    """
    environments.make("broker")
    if "PULSAR_EXTRA_OPTS" in os.environ:
        environments.make(*needs)
        return
    with ThreadPoolExecutor(1) as pool:
        options = pool.submit(class_archive.broker_options)
        environments.make(*needs)
        os.environ["PULSAR_EXTRA_OPTS"] = options.result()


def run_suite(
    suite: Suite, more: Sequence[str], env: dict[str, str], *, slow: bool = False, shown: bool = True
) -> Count:
    """Make a suite's environments, run its tests and count them; pytest dying without results is one failure.

    Their output is shown while they run, or, with `shown=False`, when they have ended.
    """
    env = {**env, **_make_environments(suite, env)}
    written = RESULTS / f"{suite.name}.json"
    if more:
        # Part of a suite proves nothing about the whole: the suite's own results stay.
        written = RESULTS / "last.json"
    else:
        env = {**env, "PULSAR_TEST_SUITE": suite.name}
    written.unlink(missing_ok=True)
    if suite.has_own_brokers:
        env = {**env, "PULSAR_TEST_BROKER_EACH": suite.name}
    say(f"{suite.name}: starts")
    pytest = covered.COMMAND if covered.is_on(env) else ("-m", "pytest")
    command = [str(python_of(suite.needs[0])), *pytest, suite.folder, "-q", *_selection(slow, more)]
    if suite.processes > 1 and not more:
        # A process that dies fails the suite at once: a new one would be given the same test again.
        command += ["-n", str(suite.processes), "--dist", suite.dist, "--max-worker-restart", "0"]
    code, cpu_seconds = _run(command, env, None if shown else _output_of(suite.name))
    if suite.has_own_brokers and "PULSAR_TEST_BROKERS" in env:
        _stop_brokers(Path(env["PULSAR_TEST_BROKERS"]), f"{suite.name}-*")
    if not written.exists():
        _fail(f"{suite.name}: pytest ended with {code} and wrote no results")
        return Count(failed=1)
    result = json.loads(written.read_text())
    count = _count(result["tests"])
    if code not in (0, 1, 5) or (code == 1 and not count.failed):
        _fail(f"{suite.name}: pytest ended with {code}")
        count.failed += 1
    elif not result["tests"]:
        _fail(f"{suite.name}: {suite.folder} has no tests")
        count.failed += 1
    say(f"{suite.name}: {count} in {result['seconds']:.0f} s, {cpu_seconds:.1f} s of CPU")
    return count


def _make_environments(suite: Suite, env: dict[str, str]) -> dict[str, str]:
    """Make a suite's environments, and meanwhile what its Spark drivers start with; return the variables of those."""
    if suite.spark is None:
        environments.make(*suite.needs)
        return {}
    # The JVM that puts a driver's command line together lives for half a second.
    variables = {environments.COMPILED_PYSPARK: "1", "SPARK_LAUNCHER_OPTS": class_archive.JVM_OPTIONS}
    if "SPARK_SUBMIT_OPTS" in env:
        environments.make(*suite.needs)
        return variables
    with ThreadPoolExecutor(1) as pool:
        options = pool.submit(_driver_options, suite.spark)
        environments.make(*suite.needs)
        return {**variables, "SPARK_SUBMIT_OPTS": options.result()}


def _driver_options(spark: str) -> str:
    if spark == "tables":
        # For the few drivers of "tables", to make an archive would take longer than to do without.
        return class_archive.JVM_OPTIONS
    environments.make(spark)
    return class_archive.driver_options(spark)


def _selection(slow: bool, more: Sequence[str]) -> list[str]:
    """Return pytest's arguments, without the slow tests unless they are wanted or a -m of its own chooses."""
    chosen = slow or any(word.startswith("-m") for word in more)
    return [*([] if chosen else ["-m", "not slow"]), *more]


def _output_of(name: str) -> Path:
    return RESULTS / f"{name}.log"


_began = time.monotonic()
# Processes of the suites that run now, with the files of their output.
_running: dict[subprocess.Popen[bytes], Path | None] = {}
# What failed, to be shown once more at the end, where it is found.
_failures: list[str] = []
# Nothing is started any more once it is set.
_stopping = threading.Event()
_lock = threading.Lock()


def _run(command: list[str], env: dict[str, str], output: Path | None) -> tuple[int, float]:
    """Run a command in a process group of its own, so that an interrupt can end it with all it started.

    Returns its exit code and the CPU seconds it took, with the processes it started and waited for.
    """
    with contextlib.ExitStack() as stack:
        target = None if output is None else stack.enter_context(output.open("wb"))
        with _lock:
            if _stopping.is_set():
                return int(signal.SIGINT), 0.0
            process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, stdout=target, stderr=target)
            _running[process] = output
        try:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, used.ru_utime + used.ru_stime
        except ChildProcessError:
            # The thread that stops the run was first.
            return process.wait(), 0.0
        except BaseException:
            _end(process)
            raise
        finally:
            _running.pop(process, None)
            if output is not None:
                with _lock:
                    print(output.read_text(errors="replace"), end="", flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGINT, 10), (signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(patience)


def _end_idle(limit: float) -> None:
    """End suites that have printed nothing for `limit` seconds; their Python processes print their stacks before."""
    for process, output in list(_running.items()):
        with contextlib.suppress(OSError):
            if output is None or time.time() - output.stat().st_mtime < limit:
                continue
            _fail(f"{output.stem}: printed nothing for {limit:.0f} s, ended; the stacks are in its output")
            for pid in _pythons_of(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    # pytest has enabled faulthandler, which prints the stack of every thread.
                    os.kill(pid, signal.SIGABRT)
            _end(process)


def _pythons_of(group: int) -> list[int]:
    """Return the Python processes of a process group (Linux; none elsewhere)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            if name.startswith("python") and int(rest.split()[2]) == group:
                found.append(int(stat.parent.name))
    return found


def _fail(text: str) -> None:
    """Print what is wrong, now and at the end."""
    say(text)
    _failures.append(text)


def _show_failures() -> None:
    """Print once more what failed: the output of a suite may be far above."""
    for text in _failures[:_SHOWN_FAILURES]:
        say(f"FAILED {text}")
    if len(_failures) > _SHOWN_FAILURES:
        say(f"and {len(_failures) - _SHOWN_FAILURES} more")


def _count(tests: dict[str, dict[str, str]]) -> Count:
    count = Count()
    not_run = []
    for name, test in tests.items():
        if test["outcome"] == "passed":
            count.passed += 1
        elif test["outcome"] == "skipped" and name in ALLOWED_SKIPS:
            count.skipped += 1
        else:
            count.failed += 1
            if test["outcome"] == "failed":
                lines = test.get("message", "").splitlines()
                _failures.append("\n  ".join([name, *lines[-_SHOWN_LINES:]]))
            elif test["outcome"] == "not run":
                not_run.append(name)
            else:
                _fail(f"{name}: {test['outcome']} ({test.get('message', 'no reason')}), which counts as a failure")
    if not_run:
        _fail(f"{len(not_run)} not run, which counts as failures: {', '.join(not_run[:_SHOWN_LINES])} …")
    return count


@contextlib.contextmanager
def other_brokers() -> Iterator[dict[str, str]]:
    """Give the environment by which tests find other kinds of broker than the runner's, and stop those at the end.

    The first test that needs one starts it, in a folder the environment names, and it serves all suites: a start takes
    seconds of CPU, and a broker without work takes 3 % of a core.
    """
    env = {name: value for name, value in os.environ.items() if name != "PULSAR_TEST_SUITE"}
    env.pop("PYTHONPATH", None)
    folder = RESULTS / f"brokers-{os.getpid()}"
    try:
        yield {**env, "PULSAR_TEST_BROKERS": str(folder), "PULSAR_TEST_RUNNER": str(os.getpid())}
    finally:
        _stop_brokers(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _stop_brokers(folder: Path, kind: str = "*") -> None:
    for started in sorted(folder.glob(f"{kind}/broker.json")):
        Standalone(started.parent).stop()


@contextlib.contextmanager
def shared_broker(env: dict[str, str], number: int = 1) -> Iterator[dict[str, str]]:
    """Give the environment that points tests to a broker started here, or to the one they already point to.

    Brokers that run at a time have different numbers.
    """
    if "PULSAR_TEST_SERVICE_URL" in env and "PULSAR_TEST_ADMIN_URL" in env:
        yield env
        return
    folder = RESULTS / f"broker-{os.getpid()}-{number}"
    broker = Standalone(folder)
    try:
        say("broker: starts")
        started = time.monotonic()
        broker.start().wait_ready()
        say(f"broker: ready in {time.monotonic() - started:.0f} s")
        yield {**env, "PULSAR_TEST_SERVICE_URL": broker.service_url, "PULSAR_TEST_ADMIN_URL": broker.admin_url}
    finally:
        broker.stop()
        if broker.log.exists():
            shutil.move(broker.log, RESULTS / ("broker.log" if number == 1 else f"broker-{number}.log"))
        shutil.rmtree(folder, ignore_errors=True)


def choose(names: Sequence[str], missing_only: bool, *, slow: bool = False) -> list[Suite]:
    """Return the suites to run; those without a folder are told and left out."""
    chosen = []
    for suite in SUITES:
        if suite.name not in names if names else suite.again and not slow:
            continue
        if not (ROOT / suite.folder).is_dir():
            say(f"{suite.name}: no tests yet")
        elif not (missing_only and (RESULTS / f"{suite.name}.json").exists()):
            chosen.append(suite)
    return chosen


def run(
    suites: Sequence[Suite],
    more: Sequence[str],
    *,
    with_checks: bool,
    slow: bool,
    measured: Collection[str] = (),
    with_started: bool = False,
    jobs: int = 1,
) -> Count:
    """Check, run the suites, `jobs` at a time and those named with coverage, and return the sum.

    The coverage, of processes that tests start too if `with_started`, is reported and judged as soon as the last of
    those suites has ended, beside the others.
    """
    total = Count()
    RESULTS.mkdir(exist_ok=True)
    jobs = min(jobs, len(suites))
    unmeasured = set(measured)

    def run_one(suite: Suite, env: dict[str, str]) -> Count:
        if suite.name not in measured:
            return run_suite(suite, more, env, slow=slow, shown=jobs == 1)
        own = covered.measuring(env, with_started=with_started)
        count = run_suite(suite, more, own, slow=slow, shown=jobs == 1)
        with _lock:
            unmeasured.discard(suite.name)
            is_last = not unmeasured
        if is_last and not _stopping.is_set():
            count.failed += covered.report(measured, whole=not more)
        return count

    if jobs > 1:
        order = sorted(suites, key=lambda suite: LONGEST.index(suite.name) if suite.name in LONGEST else len(LONGEST))
        steps: list[Callable[[dict[str, str]], Count]] = [partial(run_one, suite) for suite in order]
        if with_checks:
            # After the suites that need no other environment than the client's: the longest one makes meanwhile those
            # that the checks need too.
            steps.insert(jobs, lambda _env: run_checks(shown=False))
        with other_brokers() as env:
            for count in _run_beside(steps, jobs, env, _IDLE_SECONDS_OF_SLOW if slow else _IDLE_SECONDS):
                total.add(count)
        return total
    if with_checks:
        total.add(run_checks())
    if suites:
        with other_brokers() as others, shared_broker(others) as env:
            for suite in suites:
                total.add(run_one(suite, env))
    return total


def run_checks(*, shown: bool = True) -> Count:
    """Run the checks in a process of their own; any that fail are one failure."""
    command = [sys.executable, str(Path(__file__).with_name("checks.py"))]
    code, _ = _run(command, dict(os.environ), None if shown else _output_of("checks"))
    if code:
        _fail(f"checks: ended with {code}")
    return Count(failed=int(code != 0))


def _run_beside(
    steps: Sequence[Callable[[dict[str, str]], Count]],
    jobs: int,
    others: dict[str, str],
    idle_seconds: float = _IDLE_SECONDS,
) -> list[Count]:
    """Run steps `jobs` at a time, in their order, each with the next free broker, and return their counts."""
    left = list(steps)
    counts: list[Count] = []
    for suite in SUITES:
        _output_of(suite.name).unlink(missing_ok=True)

    def work(number: int) -> None:
        with shared_broker(others, number) as env:
            while not _stopping.is_set():
                with _lock:
                    if not left:
                        return
                    step = left.pop(0)
                counts.append(step(env))

    with ThreadPoolExecutor(jobs) as pool:
        workers = [pool.submit(work, number + 1) for number in range(jobs)]
        try:
            while wait(workers, timeout=_PROGRESS_SECONDS, return_when=FIRST_EXCEPTION).not_done:
                # An environment that cannot be made ends the other suites too.
                _raise_error(workers)
                _say_progress()
                _end_idle(idle_seconds)
        except BaseException:
            with _lock:
                _stopping.set()
            for process in list(_running):
                _end(process)
            raise
    _raise_error(workers)
    return counts


def _raise_error(workers: Sequence[Future[None]]) -> None:
    """Raise the error that one of the workers has ended with, if any."""
    for worker in workers:
        if worker.done():
            worker.result()


def _say_progress() -> None:
    """Print how far the suites are whose output is not shown yet."""
    for suite in SUITES:
        output = _output_of(suite.name)
        with contextlib.suppress(OSError):
            # pytest ends each line of dots with the percentage of tests that are done.
            found = re.findall(r"\[ *(\d+)%\]", output.read_text(errors="replace"))
            if found and found[-1] != "100":
                say(f"{suite.name}: {found[-1]} % after {time.monotonic() - _began:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return 0 only if all is well."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    words, more = words[:cut], words[cut + 1 :]
    parser = argparse.ArgumentParser(prog="dev/test.py", epilog="What follows -- goes to pytest, such as -k or -x.")
    parser.add_argument("suites", nargs="*", metavar="suite", help=", ".join(suite.name for suite in SUITES))
    parser.add_argument("--missing", action="store_true", help="only suites without results in .results/")
    parser.add_argument("--coverage", action="store_true", help="measure lines and branches; fail with too few")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"suites that run at a time (default {JOBS})")
    parser.add_argument("--long", action="store_true", help="the tests marked slow, and the suites …-oldest, too")
    options = parser.parse_args(words)
    if unknown := set(options.suites) - {suite.name for suite in SUITES}:
        parser.error(
            f"no such suite: {', '.join(sorted(unknown))} (there are {', '.join(suite.name for suite in SUITES)})"
        )
    # Ctrl-C as well: a shell's background jobs start with it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    started = time.monotonic()
    if options.long:
        # Of each property, as many examples as Hypothesis tries by default (tests/conftest.py).
        os.environ.setdefault("PULSAR_TEST_PROFILE", "long")
    try:
        suites = choose(options.suites, options.missing, slow=options.long)
        with_checks = not options.suites and not options.missing and not options.coverage
        measured = {suite.name for suite in suites if options.coverage}
        if with_checks and not more:
            measured = {suite.name for suite in suites} & covered.SUITES
        if measured:
            covered.begin()
        if suites:
            _make_broker(*suites[0].needs)
        # Parts of suites share one file of results.
        jobs = 1 if more else options.jobs
        total = run(
            suites,
            more,
            with_checks=with_checks,
            slow=options.long,
            measured=measured,
            with_started=options.coverage,
            jobs=jobs,
        )
    except (environments.SetupError, BrokerError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    _show_failures()
    say(f"took {time.monotonic() - started:.0f} s; results are in .results/")
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
