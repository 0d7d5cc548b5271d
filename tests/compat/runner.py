"""Runs programs on one client in processes of their own, and compares what both clients' programs observed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from compat.program import ERROR, Program

HERE = Path(__file__).resolve().parent
ACCEPTED = HERE / "accepted.toml"
OFFICIAL, OURS = "pulsar", "pulsar_native"


class Runner:
    """A worker process that runs one program after the other, started anew after a hang or a crash."""

    def __init__(
        self, package: str, service_url: str, admin_url: str, log: IO[str], secrets: Mapping[str, str]
    ) -> None:
        self._command = [sys.executable, str(HERE / "worker.py"), package, service_url, admin_url]
        self._log = log
        self._env = {**os.environ, "PYTHONHASHSEED": "0", "COMPAT_SECRETS": json.dumps(dict(secrets))}
        self._process: subprocess.Popen[str] | None = None

    def run(self, program: Program) -> dict[str, Any]:
        """Run it, and return what the worker says of it."""
        return self._run_alone(program) if program.own_process else self._ask(program)

    def _ask(self, program: Program) -> dict[str, Any]:
        if self._process is None:
            self._process = self._start()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        # The worker gives up first; this is for one that does not even get to that.
        watch = threading.Timer(program.seconds + 10, self._process.kill)
        watch.start()
        try:
            stdin.write(program.id + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        result: dict[str, Any] = json.loads(line) if line else {"died": self._process.wait()}
        if "hung" in result or "died" in result:
            self.stop()
        return result

    def _run_alone(self, program: Program) -> dict[str, Any]:
        process = self._start(program.id)
        try:
            printed, _ = process.communicate(timeout=program.seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            printed, _ = process.communicate()
            return {"hung": "the process did not end"} | (json.loads(printed) if printed else {})
        return (json.loads(printed) if printed else {"died": process.returncode}) | {"exit": process.returncode}

    def _start(self, *one: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *one],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._env,
        )

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                assert self._process.stdin is not None
                self._process.stdin.close()
                self._process.wait(10)
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@dataclass(frozen=True)
class Accepted:
    """A difference that is right as it is: where, both values (JSON, or a pattern after ~), and its group's title."""

    program: str
    field: str
    official: str
    ours: str
    title: str


@dataclass(frozen=True)
class Group:
    """Differences of one kind, which the migration page names, and why ours is better."""

    title: str
    why: str
    differences: tuple[Accepted, ...]


def load_groups() -> list[Group]:
    """Return the groups of accepted differences in the order of their file."""
    return [
        Group(
            each["title"], each["why"], tuple(Accepted(*map(str, [*row, each["title"]])) for row in each["differences"])
        )
        for each in tomllib.loads(ACCEPTED.read_text())["group"]
    ]


def load_accepted() -> list[Accepted]:
    """Return all accepted differences."""
    return [each for group in load_groups() for each in group.differences]


def differences(official: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the fields of two observations that differ, with both values as JSON (`absent` for none)."""
    absent = object()
    found = {}
    for field in [*official, *(name for name in ours if name not in official)]:
        theirs, own = official.get(field, absent), ours.get(field, absent)
        if not same(theirs, own):
            found[field] = tuple("absent" if each is absent else json.dumps(each) for each in (theirs, own))
    return found  # type: ignore[return-value]


def same(official: Any, ours: Any) -> bool:
    """Return whether two values agree; an error of ours may be caught by more names than the official one, and tell
    more.
    """
    if isinstance(official, dict) and isinstance(ours, dict):
        if ERROR in official and ERROR in ours:
            names, rest = official[ERROR], official.keys() - {ERROR}
            return bool(names) and names[0] in ours[ERROR] and all(same(official[key], ours.get(key)) for key in rest)
        return official.keys() == ours.keys() and all(same(official[key], ours[key]) for key in official)
    if isinstance(official, list) and isinstance(ours, list):
        return len(official) == len(ours) and all(map(same, official, ours))
    return type(official) is type(ours) and bool(official == ours)


def fits(value: str, expected: str) -> bool:
    """Return whether a value's JSON is the accepted one, or matches its pattern."""
    if expected.startswith("~"):
        return re.fullmatch(expected[1:], value, re.DOTALL) is not None
    return value == expected


def compare(program: Program, official: dict[str, Any], ours: dict[str, Any], accepted: list[Accepted]) -> list[str]:
    """Return what is wrong: differences nobody accepted, and accepted ones that are no more."""
    found = differences(_fields(official), _fields(ours))
    wrong = []
    for each in (each for each in accepted if each.program == program.id):
        values = found.pop(each.field, None)
        if values is None:
            wrong.append(f"{each.field}: no difference any more; take it out of accepted.toml")
        elif not (fits(values[0], each.official) and fits(values[1], each.ours)):
            wrong.append(f"{each.field}: official {values[0]}, ours {values[1]}; accepted.toml says otherwise")
    if "raised" in official:
        wrong.append(f"the program fails on the official client: {official['raised']}\n{official['where']}")
    if "hung" in official and "hung" in ours:
        wrong.append("the program hangs on both clients")
    wrong += [f"{field}: official {theirs}, ours {own}" for field, (theirs, own) in found.items()]
    return wrong


def _fields(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a program observed; how it ended, where it did not return, and the exit of its own process."""
    fields = dict(result.get("observed", {}))
    fields |= {key: result[key] for key in ("raised", "died", "exit") if key in result}
    if "hung" in result:
        fields["hung"] = True
    return fields
