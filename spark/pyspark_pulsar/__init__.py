"""Apache Pulsar as a PySpark data source: `spark.read.format("pulsar")`.

Spark finds `DefaultSource` by this package's name if the package is installed for the driver; with `--py-files` call
`register(spark)` first. Rules: importing this package imports nothing else, and a part that cannot be loaded makes only
this source unknown, since an ImportError would end Spark's search for all data sources.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_pulsar.source import DefaultSource

__all__ = ["DefaultSource", "connection_options", "register", "share_credentials"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pyspark_pulsar.source import DefaultSource
    except Exception as error:
        # Spark's search calls hasattr, which handles an AttributeError only.
        warnings.warn(f"The data source pulsar cannot be loaded: {error}", RuntimeWarning, stacklevel=2)
        raise AttributeError(f"The data source pulsar cannot be loaded: {error}") from error
    return DefaultSource


def register(spark: SparkSession) -> None:
    """Register `format("pulsar")` in a session; needed after `--py-files` only. Blocks briefly."""
    try:
        from pyspark.errors import AnalysisException
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}: pip install 'pyspark-pulsar[spark]'", name=error.name) from error

    from pyspark_pulsar.source import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        # Spark 4.0 rejects a name that it has found itself; later versions replace it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def connection_options(spark: SparkSession) -> dict[str, str]:
    """Return the options of the Pulsar connection that Spark's configuration has.

    `spark.read.format("pulsar").options(**connection_options(spark))`, and likewise for writes and streams. Operators
    made of `PulsarSparkSubmitMixin` put an Airflow connection there; `spark-submit --conf` or `spark-defaults.conf` do
    as well.

    :param spark: the session, a classic one or one of Spark Connect. The option service.url is read from
        spark.pulsar.service.url, admin.url and credentialsRef likewise, and pulsar.client.NAME from
        spark.pulsar.client.NAME, in upper or lower case. Other properties are left out.

    Returns texts by option name; none of them is a secret. Blocks briefly for the session. Raises
    `InvalidConfiguration` without a service URL, for an unknown client option, and for a wrong value.
    """
    from pyspark_pulsar.connection import options_of

    return options_of(spark.conf.getAll)


def share_credentials(spark: SparkSession, reference: str) -> str:
    """Return a credentialsRef that tasks can resolve, for a `conf:KEY` that only the driver can resolve.

    The value goes into a private file that Spark ships to the executors and that is removed when this process ends.
    Blocks; call it in the driver, with a classic session: over Spark Connect `conf:KEY` raises `InvalidConfiguration`.
    """
    import atexit

    from pyspark_pulsar.credentials import CredentialsRef, share

    shared, forget = share(spark, CredentialsRef.parse(reference))
    atexit.register(forget)
    return str(shared)
