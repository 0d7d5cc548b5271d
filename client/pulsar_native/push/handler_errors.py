"""Exceptions of handlers, filters and hooks of a push consumer: each is the failure of its call, of whatever class.

Only what interrupts the program passes: `KeyboardInterrupt` in the main thread, and there `SystemExit` of a handler.
"""

from __future__ import annotations

import threading


def interrupts_program(error: BaseException, *, also_exit: bool = False) -> bool:
    """Return True if an exception is no failure of the function that raised it, but the end of the program."""
    kinds = (KeyboardInterrupt, SystemExit) if also_exit else (KeyboardInterrupt,)
    return isinstance(error, kinds) and threading.current_thread() is threading.main_thread()
