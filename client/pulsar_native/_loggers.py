"""Loggers of the package, whose calls never raise.

Rules: handlers, filters and record factories are the application's, and run where the client logs, also on the engine's
thread between two steps that belong together; what they raise is printed, as `logging` does with a handler's errors.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from typing import Any


def get_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of this name, with calls that never raise an `Exception`. Thread-safe."""
    return _Logger(logging.getLogger(name))


class _Logger(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            if self.logger.isEnabledFor(level):
                # The caller's place, not this one.
                kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
                self.logger.log(level, msg, *args, **kwargs)
        except Exception:
            if logging.raiseExceptions:
                # Standard error may be closed, or the application's.
                with contextlib.suppress(Exception):
                    traceback.print_exc()
