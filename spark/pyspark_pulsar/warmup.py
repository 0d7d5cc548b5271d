"""Warm-up of a load: imports and the connection to the broker, made in a thread while the JVM starts the session.

Rules: the plan repeats every request, so that its result and its errors never depend on the warm-up; an error here is
left to the plan. Nothing is created at the broker but a non-durable reader, which is closed. References to credentials
that only a session can resolve are left to the plan.
"""

from __future__ import annotations

import importlib
import logging
import threading

from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.request import LoadRequest

# PySpark's own modules are imported by the main thread meanwhile: only `pyspark.sql.datasource` is imported here.
_MODULES = (
    "pyspark.sql.datasource",
    "pyspark_pulsar.broker",
    "pyarrow.parquet",
    "pyspark_pulsar.planning",
    "pyspark_pulsar.batch_reader",
    "pyspark_pulsar.source",
    "pyspark_pulsar.output",
    "pyspark_pulsar.retained",
)

_log = logging.getLogger("pyspark_pulsar")


def start_warm_up(request: LoadRequest) -> threading.Thread:
    """Start the warm-up of a load in a daemon thread and return it; it need not be joined."""
    thread = threading.Thread(target=_warm_up, args=(request,), name="pulsar-load-warm-up", daemon=True)
    thread.start()
    return thread


def _warm_up(request: LoadRequest) -> None:
    try:
        for name in _MODULES[:2]:
            importlib.import_module(name)
        options = request.read_options()
        if not _needs_session(options):
            _connect(options)
        for name in _MODULES[2:]:
            importlib.import_module(name)
    except Exception as error:
        _log.debug("warm-up ended early: %s", type(error).__name__)


def _needs_session(options: ReadOptions) -> bool:
    """Return True if the credentials are in Spark's configuration or among the files that Spark ships."""
    reference = options.credentials
    if reference is None or reference.kind == "env":
        return False
    return reference.kind != "file" or not reference.name.startswith("/")


def _connect(options: ReadOptions) -> None:
    """Connect the process's client to a broker of the topics, by a request about the first topic partition."""
    from pyspark_pulsar.broker import Broker

    with Broker(options) as broker:
        # A missing topic raises here; a reader of it would create it.
        partition = broker.partitions(broker.topics()[0])[0]
        with broker.probe(partition) as probe:
            probe.last()
