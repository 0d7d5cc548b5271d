"""Rows of a DB-API cursor, in whatever form the connection's cursors give them.

May not do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def row_values(row: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any]:
    """Return the values of a row, in the order of its columns: a dictionary cursor gives them by name."""
    return tuple(row.values()) if isinstance(row, Mapping) else row
