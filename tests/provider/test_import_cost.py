"""Modules that DAG files import: those load no client. benchmarks/import_cost.py measures the time."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Of the client, what checks arguments and names errors.
_LIGHT = {"_version", "enums", "exceptions", "jobs", "topic"}
_HEAVY = {"google.protobuf", "pyarrow", "fastavro", "pyspark", "airflow_provider_pulsar.hooks.pulsar"}
_PROGRAM = """
import importlib, sys
base, *modules = sys.argv[1:]
importlib.import_module(base)
before = set(sys.modules)
for module in modules:
    importlib.import_module(f"airflow_provider_pulsar.{module}")
print(*set(sys.modules) - before)
"""
_MODULES = {
    "airflow.sdk": (
        "operators.publish",
        "operators.consume",
        "operators.admin",
        "operators.policies",
        "sensors.message",
        "sensors.schema",
        "sensors.subscription",
        "sensors.topic",
        "notifications.pulsar",
        "decorators.publish",
        "decorators.consume",
        "spark_properties",
    ),
    "airflow.providers.apache.spark.operators.spark_submit": ("operators.spark", "operators.spark_submit"),
}


@pytest.mark.parametrize("base", _MODULES)
def test_import_for_a_dag_file_loads_no_client(base: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, base, *_MODULES[base]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    found = set(done.stdout.split())
    assert {f"airflow_provider_pulsar.{module}" for module in _MODULES[base]} <= found
    ours = {name.split(".")[1] for name in found if name.startswith("pulsar_native.")}
    assert ours <= _LIGHT, sorted(ours - _LIGHT)
    assert not _HEAVY & found
