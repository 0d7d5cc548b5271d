"""Log targets: forwarding of the package's log records to the `logger` option of clients.

Rules: while no client has a logger, the package's loggers stay as the application configured them. While any client has
one, all records of the package go to the loggers of all clients, since a record does not name its client, and nowhere
else. The level is the target's.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import threading
from collections.abc import Callable

from pulsar_native._type_names import type_name
from pulsar_native.enums import LoggerLevel
from pulsar_native.exceptions import InvalidConfiguration

_LEVELS = {
    LoggerLevel.Debug: logging.DEBUG,
    LoggerLevel.Info: logging.INFO,
    LoggerLevel.Warn: logging.WARNING,
    LoggerLevel.Error: logging.ERROR,
}
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-5s [%(threadName)s] %(name)s | %(message)s"
_package = logging.getLogger("pulsar_native")
_lock = threading.Lock()
_targets: list[logging.Logger] = []


def _after_fork_in_child() -> None:
    # Another thread may have held it.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _checked_level(level: object) -> LoggerLevel:
    if not isinstance(level, LoggerLevel):
        raise InvalidConfiguration(f"log_level must be a LoggerLevel, not {type_name(level)}")
    return level


class ConsoleLogger:
    """Log to standard output; for the `logger` option of a client.

    :param log_level: lowest level of the records written. Default Info. Raises `InvalidConfiguration` for another type.
    """

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        self.log_level = _checked_level(log_level)


class FileLogger:
    """Log to the end of a file; for the `logger` option of a client.

    :param log_level: lowest level of the records written. Raises `InvalidConfiguration` for another type.
    :param log_file: path of the file, opened with the first record.
    """

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        self.log_level = _checked_level(log_level)
        if not isinstance(log_file, str):
            raise InvalidConfiguration(f"log_file must be a str, not {type(log_file).__name__}")
        self.log_file = log_file


class _Forward(logging.Handler):
    """Handler that forwards the package's records to the targets, under the targets' names."""

    def emit(self, record: logging.LogRecord) -> None:
        for target in list(_targets):
            if target.isEnabledFor(record.levelno):
                copied = copy.copy(record)
                copied.name = target.name
                target.handle(copied)


_forward = _Forward()
# Level and propagation of the package's logger before the first target.
_before: list[tuple[int, bool]] = []


def check_log_options(logger: object, log_conf_file_path: object) -> None:
    """Raise `InvalidConfiguration` for arguments of another type; the path has no further effect."""
    if log_conf_file_path is not None and not isinstance(log_conf_file_path, str):
        raise InvalidConfiguration(f"log_conf_file_path must be a str or None, not {type(log_conf_file_path).__name__}")
    if logger is not None and not isinstance(logger, logging.Logger | ConsoleLogger | FileLogger):
        raise InvalidConfiguration(
            f"logger must be a logging.Logger, a ConsoleLogger, a FileLogger or None, not {type_name(logger)}"
        )


def send_records_to(logger: logging.Logger | ConsoleLogger | FileLogger) -> Callable[[], None]:
    """Forward the package's records to a logger until the returned function is called. Thread-safe."""
    if isinstance(logger, logging.Logger):
        target, handler = logger, None
    else:
        handler = (
            logging.FileHandler(logger.log_file, delay=True)
            if isinstance(logger, FileLogger)
            else logging.StreamHandler(sys.stdout)
        )
        handler.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))
        # A logger outside the tree of loggers: only this handler gets its records.
        target = logging.Logger("pulsar", _LEVELS[logger.log_level])
        target.addHandler(handler)
    with _lock:
        if not _targets:
            _before.append((_package.level, _package.propagate))
            _package.addHandler(_forward)
            _package.propagate = False
        _targets.append(target)
        _set_level()
    return lambda: _remove(target, handler)


def _set_level() -> None:
    _package.setLevel(min(target.getEffectiveLevel() or logging.DEBUG for target in _targets))


def _remove(target: logging.Logger, handler: logging.Handler | None) -> None:
    with _lock:
        _targets.remove(target)
        if _targets:
            _set_level()
        else:
            _package.removeHandler(_forward)
            level, _package.propagate = _before.pop()
            _package.setLevel(level)
    if handler is not None:
        handler.close()
