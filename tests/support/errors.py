"""Exceptions of an application whose text cannot be had."""

from __future__ import annotations


class Unprintable(ValueError):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Untyped(ValueError):
    """An exception whose text is none."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value]
