#!/usr/bin/env python3
"""Mutation test: change one operator of the source at a time and see whether the module's own tests notice.

`dev/mutants.py [--count N] [--seed S] [MODULE …]`; without modules a sample over protocol, wire and the provider.
Standard library only. Rules: the working tree is never changed, each process mutates a copy of its own, which shadows
the installed package; the tests of a module must pass unchanged first; a run is repeatable by its seed; a mutant whose
tests do not end in time counts as killed. The last line is the kill rate; survivors are printed with file and line.
Own code, since mutmut and cosmic-ray run one test command for all modules, which takes hours here.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import environments
from environments import ROOT, python_of
from test import other_brokers, shared_broker

PROCESSES = 2


@dataclass(frozen=True)
class Target:
    """A package to mutate: its folder, the folder of its tests, the environment, and the default number of mutants."""

    source: str
    tests: str
    environment: str
    count: int


TARGETS = (
    Target("client/pulsar_native/protocol", "tests/client/protocol", "dev", 60),
    Target("client/pulsar_native/wire", "tests/client/wire", "dev", 40),
    Target("provider", "tests/provider", "airflow", 12),
)


@dataclass(frozen=True)
class Mutant:
    """One change: the text between two offsets of a file is replaced."""

    target: Target
    path: Path
    line: int
    start: int
    end: int
    new: str
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


# ---- changes ---------------------------------------------------------------------------------------------------------

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (replacement, description) for each change of one node."""
    if isinstance(node, ast.expr):
        yield from _expression_changes(node)
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "pass", f"statement dropped: {ast.unparse(node)[:60]}"
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return None", f"returns None instead of {ast.unparse(node.value)[:60]}"


def _expression_changes(node: ast.expr) -> Iterator[tuple[str, str]]:
    fresh: ast.expr | None = None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        fresh = ast.Compare(node.left, [_COMPARE[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        fresh = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        fresh = node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY and not _is_text(node):
        fresh = ast.BinOp(node.left, _BINARY[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        fresh = ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        fresh = ast.Constant(node.value + 1)
    if fresh is not None:
        yield f"({ast.unparse(fresh)})", f"{ast.unparse(node)[:60]} -> {ast.unparse(fresh)[:60]}"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(each, ast.JoinedStr | ast.Constant) for each in (node.left, node.right)) and not any(
        isinstance(each, ast.Constant) and isinstance(each.value, int) for each in (node.left, node.right)
    )


def _code_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of code that runs: no annotations, no decorators, no formatted texts, no log calls."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        if isinstance(tree, ast.AnnAssign | ast.arg) and child is tree.annotation:
            continue
        if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child in tree.decorator_list:
            continue
        if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) and child is tree.returns:
            continue
        if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
            continue
        if isinstance(child, ast.Expr) and "log" in ast.unparse(child)[:20].lower():
            continue
        yield child
        yield from _code_nodes(child)


def mutants_of(target: Target, path: Path) -> list[Mutant]:
    """Return every possible mutant of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _code_nodes(ast.parse(source)):
        for new, what in changes(node):
            start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            found.append(Mutant(target, path, node.lineno, start, end, new, what))  # type: ignore[attr-defined]
    return found


# ---- tests -----------------------------------------------------------------------------------------------------------


def tests_of(target: Target, path: Path) -> list[str]:
    """Return the test files named after a source file: test_NAME.py and test_NAME_….py."""
    folder = ROOT / target.tests / path.parent.relative_to(ROOT / target.source)
    if not folder.is_dir():
        return []
    found = [*folder.glob(f"test_{path.stem}.py"), *folder.glob(f"test_{path.stem}_*.py")]
    return sorted(str(each.relative_to(ROOT)) for each in found)


def make_copy(folder: Path) -> Path:
    """Copy what may be mutated, with the names the packages are imported by."""
    for name in ("client", "spark", "tests", "dev", "docs", "dags"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "provider", folder / "provider", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "linked").mkdir()
    (folder / "linked" / "airflow_provider_pulsar").symlink_to(folder / "provider")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in (".envs", ".cache"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run_tests(copy: Path, target: Target, tests: Sequence[str], env: dict[str, str], seconds: float) -> bool | None:
    """Return whether the tests pass in a copy; None when they did not end in time."""
    env = {
        **env,
        "PYTHONPATH": os.pathsep.join(str(copy / name) for name in ("client", "spark", "linked")),
        "PYTHONDONTWRITEBYTECODE": "1",
        # The compiled codec would answer for the Python source that is mutated.
        "PULSAR_NATIVE_IMPL": "python",
    }
    command = [str(python_of(target.environment)), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(
        command, cwd=copy, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None


class Worker:
    """One copy of the tree and the mutants tried in it, one after another."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._copy = make_copy(folder)
        self._env = env
        self._seconds: dict[Path, float] = {}

    def try_out(self, mutant: Mutant) -> bool | None:
        """Return whether the tests noticed; None when they do not pass without the change either."""
        tests = tests_of(mutant.target, mutant.path)
        if mutant.path not in self._seconds:
            started = time.monotonic()
            if not run_tests(self._copy, mutant.target, tests, self._env, 300):
                self._seconds[mutant.path] = -1
            else:
                self._seconds[mutant.path] = time.monotonic() - started
        if self._seconds[mutant.path] < 0:
            return None
        file = self._copy / mutant.path.relative_to(ROOT)
        source = file.read_bytes()
        try:
            file.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
            seconds = 15 + 3 * self._seconds[mutant.path]
            return not run_tests(self._copy, mutant.target, tests, self._env, seconds)
        finally:
            file.write_bytes(source)


def choose(target: Target, names: Sequence[str], count: int | None, chance: random.Random) -> list[Mutant]:
    """Return the mutants to try: spread over the files that have tests of their own."""
    by_file = []
    for path in sorted((ROOT / target.source).rglob("*.py")):
        if names and not any(str(path).endswith(name) for name in names):
            continue
        if "_pb2" not in path.name and tests_of(target, path) and (found := mutants_of(target, path)):
            chance.shuffle(found)
            by_file.append(found)
    wanted = target.count if count is None else count
    chosen: list[Mutant] = []
    while len(chosen) < wanted and any(by_file):
        for found in by_file:
            if found and len(chosen) < wanted:
                chosen.append(found.pop())
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when every module's tests passed unchanged."""
    parser = argparse.ArgumentParser(prog="dev/mutants.py", description="Mutation tests with a kill rate.")
    parser.add_argument("modules", nargs="*", help="ends of paths, such as protocol/producer.py")
    parser.add_argument("--count", type=int, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    environments.make("broker", *dict.fromkeys(target.environment for target in TARGETS))
    chance = random.Random(options.seed)
    chosen = [each for target in TARGETS for each in choose(target, options.modules, options.count, chance)]
    print(f"mutants: {len(chosen)} of seed {options.seed}", flush=True)
    survivors, broken, killed = [], set(), 0
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        other_brokers() as others,
        shared_broker(others) as env,
    ):
        workers = [Worker(Path(folder) / str(number), env) for number in range(PROCESSES)]
        with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
            # Each worker has its files: what it has measured of one serves all its mutants.
            files = {path: number % PROCESSES for number, path in enumerate(dict.fromkeys(m.path for m in chosen))}
            of = [[m for m in chosen if files[m.path] == number] for number in range(PROCESSES)]
            results = pool.map(
                lambda pair: [(each, pair[0].try_out(each)) for each in pair[1]], zip(workers, of, strict=True)
            )
            for mutant, noticed in (each for found in results for each in found):
                if noticed is None:
                    broken.add(mutant.path)
                elif noticed:
                    killed += 1
                else:
                    survivors.append(mutant)
                    print(f"survived: {mutant}", flush=True)
    for path in sorted(broken):
        print(f"mutants: the tests of {path.relative_to(ROOT)} do not pass unchanged")
    tried = killed + len(survivors)
    print(f"mutants: {killed} of {tried} killed, {100 * killed / max(1, tried):.0f} %")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
