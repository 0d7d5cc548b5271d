"""REST submission server of a Spark master: which answers leave it open whether a driver was started."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.hooks import spark_rest
from airflow_provider_pulsar.hooks.spark_rest import SparkRestServer
from support.http_peer import Answer, Asked, http_peer

NOWHERE = "http://127.0.0.1:1"
STARTED = Answer(200, json.dumps({"success": True, "submissionId": "driver-1"}).encode())
STANDBY = {"success": False, "message": "Can only accept driver submissions in ALIVE state"}
UNKNOWN = "Look at the master's page before this is run again"
UNREACHABLE = "It must be enabled"


def started(_: Asked) -> Answer:
    return STARTED


def answered(status: int, body: object) -> Callable[[Asked], Answer]:
    return lambda _: Answer(status, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize("is_last", [False, True])
def test_create_late_answer_sends_no_second_request(is_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_rest, "_SECONDS", 0.3)
    has_given_up = threading.Event()

    def late(_: Asked) -> Answer:
        # Without a body, since nobody reads it any more.
        return Answer() if has_given_up.wait(30) else STARTED

    with http_peer(late) as slow, http_peer(started) as other:
        try:
            with pytest.raises(AirflowFailException, match=r"may have started a driver.*ReadTimeout") as failed:
                SparkRestServer([slow.url] if is_last else [slow.url, other.url]).create([], {}, {})
        finally:
            has_given_up.set()
    assert UNKNOWN in str(failed.value) and UNREACHABLE not in str(failed.value)
    assert len(slow.asked) == 1 and not other.asked


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, {}), (502, b"<html>Bad Gateway</html>"), (504, {"message": "no answer in time"}), (200, {"success": True})],
    ids=["500", "502", "504", "no-id"],
)
def test_create_unclear_answer_sends_no_second(status: int, body: object) -> None:
    with (
        http_peer(answered(status, body)) as unclear,
        http_peer(started) as other,
        pytest.raises(AirflowFailException, match=UNKNOWN),
    ):
        SparkRestServer([unclear.url, other.url]).create([], {}, {})
    assert len(unclear.asked) == 1 and not other.asked


@pytest.mark.parametrize(
    ("status", "body"), [(200, STANDBY), (404, b"<html>Not Found</html>"), (400, {})], ids=["standby", "404", "400"]
)
def test_create_refused_asks_the_next_master(status: int, body: object) -> None:
    with http_peer(answered(status, body)) as refusing, http_peer(started) as active:
        assert SparkRestServer([NOWHERE, refusing.url, active.url]).create([], {}, {}) == "driver-1"
        with pytest.raises(AirflowException, match=UNREACHABLE) as failed:
            SparkRestServer([NOWHERE, refusing.url]).create([], {}, {})
    # A retry finds nothing that runs.
    assert not isinstance(failed.value, AirflowFailException)
    assert len(active.asked) == 1


@pytest.mark.parametrize("url", [NOWHERE, "ftp://127.0.0.1:1"])
def test_create_without_a_server_may_be_retried(url: str) -> None:
    with pytest.raises(AirflowException, match=rf"(ConnectError|UnsupportedProtocol).*{UNREACHABLE}") as failed:
        SparkRestServer([url]).create([], {}, {})
    assert not isinstance(failed.value, AirflowFailException)


@pytest.mark.parametrize("call", ["status", "kill"])
def test_call_that_repeats_asks_the_next_master(call: str) -> None:
    with http_peer(answered(502, b"<html>Bad Gateway</html>")) as first, http_peer(started) as second:
        getattr(SparkRestServer([first.url, second.url]), call)("driver-1")
    assert len(first.asked) == len(second.asked) == 1
