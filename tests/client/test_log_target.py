"""Log targets of clients: forwarding while a client has one, and the application's set-up untouched after."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import ConsoleLogger, FileLogger, InvalidConfiguration, LoggerLevel
from pulsar_native._log_target import check_log_options, send_records_to

PACKAGE = logging.getLogger("pulsar_native")
INNER = logging.getLogger("pulsar_native.tests.log_target")


class Kept(logging.Handler):
    """A handler that keeps its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.name, record.getMessage()))


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Look that the package's logger is left as it was."""
    before = (PACKAGE.level, PACKAGE.propagate, list(PACKAGE.handlers))
    yield
    assert (PACKAGE.level, PACKAGE.propagate, PACKAGE.handlers) == before


def target(name: str, level: int) -> tuple[logging.Logger, Kept]:
    """Return a logger of the application, outside the tree of loggers."""
    logger, kept = logging.Logger(name, level), Kept()
    logger.addHandler(kept)
    return logger, kept


def test_records_go_to_the_target_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    logger, kept = target("app", logging.INFO)
    remove = send_records_to(logger)
    INNER.debug("too low")
    INNER.info("number %s", 1)
    remove()
    INNER.warning("after")
    assert kept.records == [("app", "number 1")]
    assert [record.getMessage() for record in caplog.records] == ["after"]


def test_each_target_has_its_own_level() -> None:
    (low, all_of), (high, few) = target("low", logging.DEBUG), target("high", logging.ERROR)
    removals = [send_records_to(high), send_records_to(low)]
    INNER.debug("a")
    INNER.error("b")
    removals[1]()
    INNER.debug("c")
    INNER.error("d")
    removals[0]()
    assert all_of.records == [("low", "a"), ("low", "b")]
    assert few.records == [("high", "b"), ("high", "d")]


def test_same_target_twice_is_removed_twice() -> None:
    logger, kept = target("app", logging.INFO)
    removals = [send_records_to(logger), send_records_to(logger)]
    removals[0]()
    INNER.info("still")
    removals[1]()
    assert kept.records == [("app", "still")]


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (LoggerLevel.Debug, ["debug", "info", "warning", "error"]),
        (LoggerLevel.Info, ["info", "warning", "error"]),
        (LoggerLevel.Warn, ["warning", "error"]),
        (LoggerLevel.Error, ["error"]),
    ],
)
def test_console_logger_by_level(level: LoggerLevel, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    remove = send_records_to(ConsoleLogger(level))
    for name in ("debug", "info", "warning", "error"):
        getattr(INNER, name)(f"message {name}")
    remove()
    found = capsys.readouterr()
    assert [line.rpartition("message ")[2] for line in found.out.splitlines()] == shown and found.err == ""
    assert " pulsar | message" in found.out


def test_file_logger_appends_and_opens_late(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for text in ("one", "two"):
        remove = send_records_to(FileLogger(LoggerLevel.Info, str(path)))
        assert path.exists() is (text == "two")
        INNER.info(text)
        remove()
    assert [line.rpartition("| ")[2] for line in path.read_text().splitlines()] == ["one", "two"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ConsoleLogger(1), "log_level must be a LoggerLevel, not int"),
        (lambda: FileLogger("Info", "f"), "log_level must be a LoggerLevel, not str"),
        (lambda: FileLogger(LoggerLevel.Info, None), "log_file must be a str, not NoneType"),
        (
            lambda: check_log_options(print, None),
            "logger must be a logging.Logger, a ConsoleLogger, a FileLogger or None",
        ),
        (lambda: check_log_options(None, Path("x")), "log_conf_file_path must be a str or None, not PosixPath"),
    ],
)
def test_log_options_of_another_type_raise(make: Any, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        make()


def test_log_options_of_every_kind_pass(tmp_path: Path) -> None:
    for logger in (None, logging.getLogger("x"), ConsoleLogger(), FileLogger(LoggerLevel.Warn, str(tmp_path / "f"))):
        check_log_options(logger, "ignored.conf")
