"""One runner for each client, for all programs of the run, against the shared broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker import Standalone
from broker_keys import make_certificates, make_client_pair
from compat.program import Program
from compat.runner import OFFICIAL, OURS, Runner
from support.brokers import PASSWORD, Broker


class Pair:
    """Both clients' runners; a program runs on both at once."""

    def __init__(self, official: Runner, ours: Runner) -> None:
        self._runners = (official, ours)
        self._threads = ThreadPoolExecutor(2)

    def run(self, program: Program) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the official client's runner and ours say."""
        official, ours = self._threads.map(lambda runner: runner.run(program), self._runners)
        return official, ours

    def run_official(self, program: Program) -> dict[str, Any]:
        """Return what the official client's runner alone says."""
        return self._runners[0].run(program)

    def stop(self) -> None:
        """End both."""
        for runner in self._runners:
            runner.stop()
        self._threads.shutdown()


@contextlib.contextmanager
def _started(folder: Path, service_url: str, admin_url: str, secrets: Mapping[str, str]) -> Iterator[Pair]:
    with (folder / "official.log").open("w") as theirs, (folder / "ours.log").open("w") as own:
        made = Pair(
            Runner(OFFICIAL, service_url, admin_url, theirs, secrets),
            Runner(OURS, service_url, admin_url, own, secrets),
        )
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="session")
def pair(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give the runners of both clients."""
    with _started(tmp_path_factory.mktemp("compat"), broker.service_url, broker.admin_url, {}) as made:
        yield made


@pytest.fixture(scope="session")
def secure_pair(secure_broker: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give the runners of both clients for programs with credentials."""
    ours, folder = secure_broker.certificates, tmp_path_factory.mktemp("compat")
    stranger = make_certificates(folder / "stranger")
    nobody = make_client_pair(folder / "nobody", "nobody", authority_folder=ours.authority.parent)
    secrets = {
        "tls url": secure_broker.service_url_tls,
        "https url": secure_broker.admin_url_tls,
        "authority": str(ours.authority),
        "certificate": str(ours.client_certificate),
        "key": str(ours.client_key),
        "other authority": str(stranger.authority),
        "other certificate": str(stranger.client_certificate),
        "other key": str(stranger.client_key),
        "nobody certificate": str(nobody[0]),
        "nobody key": str(nobody[1]),
        "token": secure_broker.token(),
        "nobody token": secure_broker.token("nobody"),
        "expired token": secure_broker.token(lifetime_seconds=-60),
        "password": PASSWORD,
    }
    with _started(folder, secure_broker.service_url, secure_broker.admin_url, secrets) as made:
        yield made
