"""REST submission server of a Spark standalone master: create, status and kill of drivers.

spark-submit refuses Python applications in the deploy mode cluster of a standalone master. The REST server takes them:
the driver's main class is spark-submit itself, which runs the application in client mode beside the driver. Rules: no
secret is sent, since the master keeps and shows a driver's command. A submission is sent again only where the one
before has started nothing: to a master, the same submission again is another driver. httpx is imported where it is
used.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    import httpx

_SECONDS = 30
_MAIN_CLASS = "org.apache.spark.deploy.SparkSubmit"
ACTIVE = ("SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN")
"""States of a driver that is not done: UNKNOWN is that of a master in recovery."""
FINISHED = "FINISHED"
NOT_FOUND = "NOT_FOUND"
"""State of a driver that its master does not know: restarted without recovery, or it keeps fewer drivers."""
TIMEOUT = "TIMEOUT"
"""State of a driver that was killed because its time was over."""
UNREACHABLE = "UNREACHABLE"
UNREACHABLE_SECONDS = 600
"""Seconds that a driver is waited for while no master answers; then its state is UNREACHABLE."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DriverStatus:
    """State of a driver as the master tells it; `message` is its exception, if any."""

    state: str
    message: str = ""

    @property
    def is_active(self) -> bool:
        """True while the driver may still end well."""
        return self.state in ACTIVE


class DriverWatch:
    """State of a driver across a restart of its master: without an answer it is UNKNOWN for a time, no failure."""

    def __init__(self, unreachable_seconds: float = UNREACHABLE_SECONDS) -> None:
        self._seconds = unreachable_seconds
        self._answered = time.monotonic()

    def answered(self, status: DriverStatus) -> DriverStatus:
        """Return the status of a master that has answered."""
        self._answered = time.monotonic()
        return status

    def failed(self, error: Exception) -> DriverStatus:
        """Return the status while no master answers."""
        is_over = time.monotonic() - self._answered >= self._seconds
        return DriverStatus(UNREACHABLE if is_over else "UNKNOWN", str(error))


class SparkRestServer:
    """REST submission server of one master, or of several of which one is active. Each call blocks up to 30 s."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Set the addresses, such as http://master:6066."""
        self.urls = list(urls)

    @staticmethod
    def of(connection: Mapping[str, Any]) -> SparkRestServer:
        """Return the server of a resolved Spark connection: its master's hosts with the REST scheme and port."""
        scheme, port = connection.get("rest_scheme", "http"), connection.get("rest_port", 6066)
        hosts = str(connection["master"]).removeprefix("spark://").split(",")
        return SparkRestServer([f"{scheme}://{_host(host.strip())}:{port}" for host in hosts])

    def create(self, arguments: Sequence[str], properties: Mapping[str, str], env: Mapping[str, str]) -> str:
        """Start a driver that runs spark-submit with these arguments, and return its id.

        Raises AirflowException if nothing was started, AirflowFailException if that is not known: a retry could start a
        second driver beside the first.
        """
        request = {
            "action": "CreateSubmissionRequest",
            "appResource": "",
            "mainClass": _MAIN_CLASS,
            "appArgs": list(arguments),
            "sparkProperties": dict(properties),
            "environmentVariables": dict(env),
            "clientSparkVersion": "",
        }
        driver_id = self._started(request).get("submissionId")
        if not isinstance(driver_id, str) or not driver_id:
            raise _unknown("its answer to the submission has no submissionId")
        return driver_id

    def status(self, driver_id: str) -> DriverStatus:
        """Return the state of a driver, NOT_FOUND if the master does not know it; raises AirflowException."""
        return _status(self._first("GET", _path("status", driver_id)))

    def wait(self, driver_id: str, poll_interval: float) -> DriverStatus:
        """Block until a driver is done and return its last status, UNREACHABLE after 600 s without an answer."""
        watch, logged = DriverWatch(), ""
        while True:
            try:
                status = watch.answered(self.status(driver_id))
            except AirflowException as error:
                status = watch.failed(error)
            if not status.is_active:
                return status
            if status.message != logged:
                logged = status.message
                _log.warning("Waiting for the Spark driver %s: %s", driver_id, logged or status.state)
            time.sleep(poll_interval)

    def kill(self, driver_id: str) -> None:
        """End a driver."""
        self._first("POST", _path("kill", driver_id))

    async def astatus(self, driver_id: str) -> DriverStatus:
        """Return the state of a driver without blocking the loop."""
        return _status(await self._afirst("GET", _path("status", driver_id)))

    async def akill(self, driver_id: str) -> None:
        """End a driver without blocking the loop."""
        await self._afirst("POST", _path("kill", driver_id))

    def _started(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the active master to a submission, which the others have not got or have refused."""
        import httpx

        problem = "there is no master"
        with httpx.Client(timeout=_SECONDS, trust_env=False) as client:
            for url in self.urls:
                try:
                    return _answer(client.post(f"{url}/v1/submissions/create", json=request), url)
                except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, _Refused) as error:
                    problem = _problem(url, error)
                except (httpx.HTTPError, _NotServed) as error:
                    raise _unknown(_problem(url, error)) from error
        raise self._failed(problem)

    def _first(self, method: str, path: str) -> dict[str, Any]:
        import httpx

        problem = "there is no master"
        with httpx.Client(timeout=_SECONDS, trust_env=False) as client:
            for url in self.urls:
                try:
                    return _answer(client.request(method, url + path), url)
                except (httpx.HTTPError, _Refused, _NotServed) as error:
                    problem = _problem(url, error)
        raise self._failed(problem)

    async def _afirst(self, method: str, path: str) -> dict[str, Any]:
        import httpx

        problem = "there is no master"
        async with httpx.AsyncClient(timeout=_SECONDS, trust_env=False) as client:
            for url in self.urls:
                try:
                    return _answer(await client.request(method, url + path), url)
                except (httpx.HTTPError, _Refused, _NotServed) as error:
                    problem = _problem(url, error)
        raise self._failed(problem)

    def _failed(self, problem: str) -> AirflowException:
        return AirflowException(
            f"The REST submission server of the Spark master does not serve this: {problem}. It must be enabled "
            "(spark.master.rest.enabled=true); rest-port and rest-scheme of the Spark connection name another place"
        )


class _Refused(Exception):
    """Raised when a master answers that it does not do what was asked."""


class _NotServed(Exception):
    """Raised when a server answers with an error after which it is not known what was done: 500 and up."""


def _unknown(problem: str) -> AirflowFailException:
    return AirflowFailException(
        f"The Spark master may have started a driver, but which is not known: {problem}. Look at the master's page "
        "before this is run again: another driver would run beside the first. If no master is there, rest-port and "
        "rest-scheme of the Spark connection name another place"
    )


def _problem(url: str, error: Exception) -> str:
    return f"{url}: {type(error).__name__.lstrip('_')}: {error}"


def _path(action: str, driver_id: str) -> str:
    return f"/v1/submissions/{action}/{driver_id}"


def _host(address: str) -> str:
    """Return the host of an address with or without a port; an IPv6 address keeps its brackets."""
    found = re.match(r"\[[^\]]*\]|[^:]*", address)
    return found[0] if found else address


def _answer(response: httpx.Response, url: str) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        found = None
    answer: dict[str, Any] = found if isinstance(found, dict) else {}
    if answer.get("success"):
        return answer
    # A master that is not the active one, or recovers, gives a message.
    message = answer.get("message")
    if not message and answer.get("action") == "SubmissionStatusResponse":
        return {"driverState": NOT_FOUND, "message": f"the master of {url} does not know the driver"}
    kind = _NotServed if response.status_code >= 500 else _Refused
    raise kind(message or f"HTTP {response.status_code}")


def _status(found: Mapping[str, Any]) -> DriverStatus:
    return DriverStatus(str(found.get("driverState") or "UNKNOWN").upper(), str(found.get("message") or ""))
