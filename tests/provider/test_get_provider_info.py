"""What Airflow is told of the package: valid for it, complete, and true."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import airflow
import jsonschema
import pytest
import yaml

import airflow_provider_pulsar
from airflow_provider_pulsar.get_provider_info import get_provider_info
from airflow_provider_pulsar.hooks.settings import EXTRA_FIELDS, METHODS

ROOT = Path(__file__).resolve().parents[2]
_AIRFLOW = Path(airflow.__file__).parent
_SECRET_WORDS = ("token", "password", "secret", "private_key")


def connection_type() -> dict[str, Any]:
    (described,) = get_provider_info()["connection-types"]
    assert isinstance(described, dict)
    return described


@pytest.mark.parametrize("schema", ["provider_info.schema.json", "provider.yaml.schema.json"])
def test_provider_info_fits_airflows_schemas(schema: str) -> None:
    validator = jsonschema.Draft7Validator(json.loads((_AIRFLOW / schema).read_text()))
    assert [error.message for error in validator.iter_errors(get_provider_info())] == []


def test_provider_info_equals_provider_yaml() -> None:
    path = Path(airflow_provider_pulsar.__file__).with_name("provider.yaml")
    assert get_provider_info() == yaml.safe_load(path.read_text())


def test_provider_info_entry_point_needs_no_airflow() -> None:
    (entry,) = importlib.metadata.entry_points(group="apache_airflow_provider", module=get_provider_info.__module__)
    assert entry.load() is get_provider_info
    code = (
        "import sys; from airflow_provider_pulsar.get_provider_info import get_provider_info as get; get();"
        "print([name for name in sys.modules if name.split('.')[0] in ('airflow', 'pyspark', 'google')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_provider_info_name_and_version() -> None:
    info = get_provider_info()
    assert importlib.metadata.version(info["package-name"]) == info["versions"][0]


def classes_and_modules(value: Any) -> Iterator[str]:
    """Return every text that names something of this package."""
    if isinstance(value, str):
        if value.startswith("airflow_provider_pulsar."):
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from classes_and_modules(each)
    elif isinstance(value, list):
        for each in value:
            yield from classes_and_modules(each)


@pytest.mark.parametrize("path", sorted(set(classes_and_modules(get_provider_info()))))
def test_provider_info_paths_import(path: str) -> None:
    head, _, last = path.rpartition(".")
    named = getattr(importlib.import_module(head), last, None)
    if last[0].isupper():
        assert isinstance(named, type)
    elif not callable(named):
        importlib.import_module(path)


def test_provider_info_lists_every_module() -> None:
    root = Path(airflow_provider_pulsar.__file__).parent
    listed = set(classes_and_modules(get_provider_info()))
    public = {
        "operators": "Operator",
        "transfers": "Operator",
        "hooks": "Hook",
        "sensors": "Sensor",
        "triggers": "Trigger",
    }
    expected = {
        module.__name__
        for folder, ending in public.items()
        for module in modules_of(root / folder)
        if any(name.endswith(ending) for name in public_classes(module))
    }
    # Each folder has some: a suffix of other names would find nothing.
    assert {name.split(".")[1] for name in expected} == set(public) and len(expected) >= 20
    assert expected - listed == set()


def modules_of(folder: Path) -> list[ModuleType]:
    """Return the modules of a package of this provider."""
    names = (f"airflow_provider_pulsar.{folder.name}.{file.stem}" for file in sorted(folder.glob("*.py")))
    return [importlib.import_module(name.removesuffix(".__init__")) for name in names]


def public_classes(module: ModuleType) -> list[str]:
    """Return the names of the classes a module defines."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    return [value.__name__ for value in own if isinstance(value, type) and value.__name__[0] != "_"]


def described_modules(page: str) -> set[str]:
    """Return the modules of a page of the reference."""
    return set(re.findall(r"^.. automodule:: (\S+)$", (ROOT / "docs" / "reference" / page).read_text(), re.MULTILINE))


def module_of(path: str) -> str:
    """Return the name of a module, or of the one that has the class or function of this name."""
    with suppress(ModuleNotFoundError):
        return importlib.import_module(path).__name__
    return importlib.import_module(path.rpartition(".")[0]).__name__


def test_reference_has_every_module_of_provider_yaml() -> None:
    modules = {module_of(path) for path in classes_and_modules(get_provider_info())}
    assert len(modules) >= 25
    assert modules - described_modules("airflow.md") == set()


def test_reference_has_every_job_module_docs_import() -> None:
    texts = [page.read_text() for page in (ROOT / "docs").glob("**/*.md") if "_build" not in page.parts]
    imported = {name for text in texts for name in re.findall(r"(?:from|import) (pulsar_native\.jobs\.\w+)", text)}
    assert len(imported) >= 6
    assert imported - described_modules("jobs.md") == set()


def test_configuration_page_has_every_option() -> None:
    page = (ROOT / "docs" / "airflow-configuration.md").read_text()
    found = re.findall(r"^(?:## `\[(\w+)\]`|\| `(\w+)` \| (.*) \| (.*) \| (.*) \|)$", page, re.MULTILINE)
    expected: list[tuple[str, ...]] = []
    for section, described in get_provider_info()["config"].items():
        expected.append((section, "", "", "", ""))
        for name, option in described["options"].items():
            values = (f"`{option[key]}`" if option[key] else "–" for key in ("default", "example"))
            expected.append(("", name, " ".join(option["description"].split()), *values))
    assert len(expected) >= 18
    assert found == expected


def test_provider_info_names_files_that_exist() -> None:
    info = get_provider_info()
    (integration,) = info["integrations"]
    guides = [*integration["how-to-guide"], *(each["how-to-guide"] for each in info["transfers"])]
    assert [path for path in guides if not (ROOT / path.lstrip("/")).is_file()] == []
    assert (ROOT / "docs" / integration["logo"].lstrip("/")).read_text().startswith("<svg")


_WITHOUT_EXTRAS = """
import importlib, sys

class Missing:
    # Airflow itself reads what each installed provider tells of itself.
    names = ("airflow.providers.apache.spark.hooks", "airflow.providers.apache.spark.operators",
             "airflow.providers.common.messaging.providers", "airflow.providers.common.messaging.triggers",
             "airflow.providers.common.sql.hooks", "airflow.providers.openlineage.extractors", "openlineage",
             "pyspark", "pyspark_pulsar")

    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in self.names):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException
from airflow_provider_pulsar.get_provider_info import get_provider_info

info = get_provider_info()
needs = {}
modules = [each for kind in ("operators", "sensors", "hooks", "triggers") for each in info[kind][0]["python-modules"]]
modules += [each["python-module"] for each in info["transfers"]]
modules += [path.rpartition(".")[0] for path in [*info["queues"], *info["notifications"], *info["extra-links"]]]
modules += [each["class-name"].rpartition(".")[0] for each in info["task-decorators"]]
for name in modules:
    try:
        importlib.import_module(name)
    except AirflowOptionalProviderFeatureException as error:
        needs[name.removeprefix("airflow_provider_pulsar.")] = str(error).rpartition("pip install ")[2]
for name in needs:
    print(name, needs[name])
"""


def test_modules_need_their_own_extras_only() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXTRAS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "operators.spark 'airflow-provider-pulsar[spark]'",
        "operators.spark_submit 'airflow-provider-pulsar[spark]'",
        "hooks.spark_submit 'airflow-provider-pulsar[spark]'",
        "queues.pulsar 'airflow-provider-pulsar[messaging]'",
        "decorators.spark 'airflow-provider-pulsar[spark]'",
    ]


def test_conn_fields_are_the_extras_of_the_hook() -> None:
    assert list(connection_type()["conn-fields"]) == list(EXTRA_FIELDS)


def test_conn_fields_method_choices_are_the_hooks() -> None:
    assert tuple(connection_type()["conn-fields"]["auth_method"]["schema"]["enum"]) == METHODS


@pytest.mark.proves("A3")
def test_conn_fields_hidden_are_the_secret_ones() -> None:
    from airflow.sdk._shared.secrets_masker import should_hide_value_for_key

    for name, field in connection_type()["conn-fields"].items():
        secret = field["schema"].get("format") == "password"
        assert should_hide_value_for_key(name) is secret, name
        assert secret is any(word in name for word in _SECRET_WORDS), name


def test_provider_info_is_read_by_airflow() -> None:
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    hook = ProvidersManagerTaskRuntime().hooks["pulsar"]
    assert hook is not None
    assert hook.hook_class_name == connection_type()["hook-class-name"]
    assert hook.hook_name == "Apache Pulsar"
