"""Forks in measured processes: coverage.py's lock is renewed in the child, where nobody would release it.

A thread holds that lock whenever it enters a function that is measured, for as long as it has to wait for the
interpreter. A child forked meanwhile would stop at its first function, or in `os._exit`, where it saves what it has
measured. Imported before anything that is measured: a child calls such functions in the order of their registration.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


def _renew_lock() -> None:
    coverage = sys.modules.get("coverage")
    measuring = None if coverage is None else coverage.Coverage.current()
    collector: Any = getattr(measuring, "_collector", None)
    if getattr(collector, "data_lock", None) is not None:
        collector.data_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
