"""The package itself: light to import, and harmless to Spark's search when it cannot work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str, *blocked: str) -> str:
    """Return what code prints in a fresh interpreter in which some packages cannot be imported."""
    block = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
    done = subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.strip()


def test_import_loads_no_heavy_package() -> None:
    code = "import pyspark_pulsar, pyspark_pulsar.load as load\nprint(load.application())\n"
    heavy = "print([name for name in ('pyspark', 'pyarrow', 'pulsar_native') if name in sys.modules])"
    path, modules = run(code + heavy).splitlines()
    assert Path(path).is_file() and path.endswith("load.py")
    assert modules == "[]"


def test_request_checks_without_pyspark() -> None:
    request = '{"source": {"service.url": "pulsar://h", "topic": "t"}, "interval": "all", "output": {"path": "/x"}}'
    code = f"from pyspark_pulsar.request import LoadRequest\nprint(LoadRequest.parse({request!r}).path)"
    assert run(code, "pyspark", "pyarrow") == "/x"


@pytest.mark.parametrize("blocked", ["pyspark", "pyspark.sql.datasource"])
def test_source_with_missing_part_is_unknown(blocked: str) -> None:
    code = "import pyspark_pulsar\nprint(hasattr(pyspark_pulsar, 'DefaultSource'), hasattr(pyspark_pulsar, 'other'))"
    assert run(code, blocked) == "False False"


def test_register_without_pyspark_names_the_extra() -> None:
    code = (
        "import pyspark_pulsar\ntry: pyspark_pulsar.register(None)\nexcept ModuleNotFoundError as error: print(error)\n"
    )
    assert run(code, "pyspark").endswith(": pip install 'pyspark-pulsar[spark]'")


def test_source_with_broken_client_fails_when_used() -> None:
    code = (
        "import pyspark_pulsar\n"
        "source = pyspark_pulsar.DefaultSource({})\n"
        "print(source.name())\n"
        "try: source.schema()\n"
        "except ImportError as error: print('pulsar_native' in str(error))\n"
    )
    assert run(code, "pulsar_native", "pulsar_native.config").split() == ["pulsar", "True"]
