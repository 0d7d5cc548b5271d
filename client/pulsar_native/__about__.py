"""The official client's module of this name."""

from pulsar_native._version import __version__

__all__ = ["__version__"]
