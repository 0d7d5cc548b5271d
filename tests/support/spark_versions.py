"""The version of PySpark in this environment, for tests of what older ones lack."""

from __future__ import annotations

import importlib.metadata


def spark_before(version: str) -> bool:
    """Return True if this environment's PySpark is older than a version such as "4.2"."""
    return _numbers(importlib.metadata.version("pyspark")) < _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
