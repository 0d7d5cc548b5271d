"""Loggers of the package: whose place a record has, and handlers that raise."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pulsar_native
from pulsar_native._loggers import get_logger

NAME = "pulsar_native.test_loggers"


@pytest.fixture
def handled() -> Iterator[logging.Logger]:
    """Give a logger whose handler raises."""

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("collector is down")

    logger, handler = logging.getLogger(NAME), Raising()
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


def test_record_has_callers_place(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, NAME):
        log = get_logger(NAME)
        log.debug("not written")
        log.info("one %s", "argument")
        try:
            raise ValueError("x")
        except ValueError:
            log.exception("failed")
    info, error = caplog.records
    assert (info.name, info.getMessage(), info.funcName) == (NAME, "one argument", "test_record_has_callers_place")
    assert (info.pathname, error.pathname) == (__file__, __file__)
    assert error.exc_info is not None and error.exc_info[0] is ValueError


def test_raising_handler_is_printed(handled: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    get_logger(NAME).warning("x")
    assert "RuntimeError: collector is down" in capsys.readouterr().err
    with pytest.raises(RuntimeError):
        handled.warning("x")


def test_raising_handler_silent_on_request(
    handled: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    get_logger(NAME).warning("x")
    assert capsys.readouterr().err == ""


def test_package_logs_through_these_loggers() -> None:
    folder = Path(pulsar_native.__file__).parent
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"^_log = logging\.getLogger", path.read_text(encoding="utf-8"), re.M)
    }
    assert found == set()
