"""The official client's module of this name."""

from pulsar_native.sync import TableView

__all__ = ["TableView"]
