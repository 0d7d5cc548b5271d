"""One runner for each client, for all programs of the run, against the shared broker."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from compat.program import Program
from compat.runner import OFFICIAL, OURS, Runner
from support.brokers import Broker


class Pair:
    """Both clients' runners; a program runs on both at once."""

    def __init__(self, official: Runner, ours: Runner) -> None:
        self._runners = (official, ours)
        self._threads = ThreadPoolExecutor(2)

    def run(self, program: Program) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the official client's runner and ours say."""
        official, ours = self._threads.map(lambda runner: runner.run(program), self._runners)
        return official, ours

    def stop(self) -> None:
        """End both."""
        for runner in self._runners:
            runner.stop()
        self._threads.shutdown()


@pytest.fixture(scope="session")
def pair(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give the runners of both clients."""
    folder = tmp_path_factory.mktemp("compat")
    with (folder / "official.log").open("w") as theirs, (folder / "ours.log").open("w") as own:
        made = Pair(
            Runner(OFFICIAL, broker.service_url, broker.admin_url, theirs),
            Runner(OURS, broker.service_url, broker.admin_url, own),
        )
        try:
            yield made
        finally:
            made.stop()
