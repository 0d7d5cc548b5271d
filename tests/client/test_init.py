"""Import of the package: what it loads at once, and what at first use."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pulsar_native

HEAVY = ("asyncio", "socket", "ssl", "google.protobuf", "urllib3", "fastavro", "pyarrow", "pulsar_native.engine")

# What most programs with a client do not use, and would be a third of its import.
RARE = (
    "argparse", "email", "http.client", "importlib.metadata", "pulsar_native.auth.athenz", "pulsar_native.auth.oauth2",
    "pulsar_native.push.core", "urllib3", "fastavro", "pyarrow", "numpy", "concurrent.futures.process",
)  # fmt: skip


def run(program: str) -> str:
    """Run a program in a fresh interpreter and return what it prints."""
    # A measurement of coverage would load modules of its own.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=env).stdout.strip()


def test_import_loads_no_engine() -> None:
    loaded = run(f"import sys, pulsar_native; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded == "[]"


def test_import_config_and_errors_load_no_engine() -> None:
    used = "p.ClientConfig(service_url='pulsar://h:1'); p.Timeout('x'); p.MessageId.earliest"
    assert run(f"import sys, pulsar_native as p; {used}; print('asyncio' in sys.modules)") == "False"


@pytest.mark.parametrize("package", ["pulsar_native", "pulsar_native.asyncio"])
def test_import_client_loads_nothing_rare(package: str) -> None:
    loaded = f"[name for name in {RARE!r} if name in sys.modules]"
    assert run(f"import sys, {package} as p; p.Client; print({loaded})") == "[]"


@pytest.mark.parametrize(
    ("module", "name", "defined_in"),
    [
        ("sync", "PushConsumer", "sync.push_consumer"),
        ("asyncio", "PushConsumer", "asyncio.push_consumer"),
        ("auth", "AuthenticationAthenz", "auth.athenz"),
        ("auth", "ZtsClient", "auth.athenz"),
        ("auth", "AuthenticationOauth2", "auth.oauth2"),
    ],
)
def test_rare_name_is_loaded_at_first_use(module: str, name: str, defined_in: str) -> None:
    program = f"import pulsar_native.{module} as m; print(m.{name}.__module__, m.{name} is vars(m)['{name}'])"
    assert run(program) == f"pulsar_native.{defined_in} True"
    assert run(f"from pulsar_native.{module} import *; print({name}.__name__)") == name
    assert run(f"import pulsar_native.{module} as m; print(hasattr(m, 'Klient'))") == "False"


@pytest.mark.parametrize("name", ["schema", "functions", "tableview", "auth"])
def test_submodule_is_attribute_without_import(name: str) -> None:
    assert run(f"import pulsar_native as pulsar; print(pulsar.{name}.__name__)") == f"pulsar_native.{name}"


@pytest.mark.parametrize(
    "name",
    ["schema.schema_avro.AvroSchema", "schema.schema.JsonSchema", "schema.definition.Record", "__about__.__version__",
     "schema.schema_protobuf.ProtobufNativeSchema", "SchemaType.AVRO", "SchemaInfo"],
)  # fmt: skip
def test_name_is_there_after_import(name: str) -> None:
    assert run(f"import pulsar_native as pulsar; pulsar.{name}; print('there')") == "there"


def test_schema_loads_official_modules_at_first_use() -> None:
    loaded = "[name for name in sys.modules if name.startswith('pulsar_native.schema.schema')]"
    assert run(f"import sys, pulsar_native.schema as s; print({loaded}, 'schema_avro' in dir(s))") == "[] True"
    assert run("import pulsar_native.schema as s; print(hasattr(s, 'schemas'))") == "False"


def test_every_public_name_resolves() -> None:
    missing = [name for name in pulsar_native.__all__ if not hasattr(pulsar_native, name)]
    assert missing == []
    assert set(pulsar_native.__all__) <= set(dir(pulsar_native))
    assert run("from pulsar_native import *; print(Client.__module__)") == "pulsar_native.sync.client"


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pulsar_native' has no attribute 'Klient'"):
        pulsar_native.Klient  # noqa: B018


def test_names_for_type_checkers_are_those_at_run_time() -> None:
    tree = ast.parse(Path(pulsar_native.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        node.module: tuple(alias.name for alias in node.names)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }
    assert imported == pulsar_native._IMPORTED_AT_USE
