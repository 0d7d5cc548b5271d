"""Exceptions of an application's function that end its own work only, never that of the client.

For functions that are called and not awaited. Rule: a cancellation that such a function raises is its own, such as that
of a future whose result it asked for, and never one of the task that calls it.
"""

from __future__ import annotations

import asyncio

CALLBACK_ERRORS = (Exception, SystemExit, asyncio.CancelledError)
