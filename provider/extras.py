"""Errors for features whose packages are extras: they name the command that installs the package.

May not import a package of an extra.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException


def missing(extra: str, feature: str) -> AirflowOptionalProviderFeatureException:
    """Return the error for a feature whose packages are not installed."""
    return AirflowOptionalProviderFeatureException(
        f"{feature} needs the extra {extra!r}: pip install 'airflow-provider-pulsar[{extra}]'"
    )
