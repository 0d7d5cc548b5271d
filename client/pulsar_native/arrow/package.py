"""Import of the optional package pyarrow (extra `arrow`) where a feature begins that needs it."""

from __future__ import annotations

from typing import Any

from pulsar_native.exceptions import InvalidConfiguration, PulsarException


def import_pyarrow(feature: str, error: type[PulsarException] = InvalidConfiguration) -> Any:
    """Return pyarrow; raises `error` with the fix when the package is missing."""
    try:
        import pyarrow
    except ImportError as missing:
        raise error(f"{feature} needs the package pyarrow: pip install 'pulsar-native[arrow]'") from missing
    return pyarrow
