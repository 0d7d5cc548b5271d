"""Settings of the documentation site (Sphinx); `make docs` builds it with every warning an error.

Rules: the packages are imported from this checkout; Airflow and Spark are mocked, so the site builds without them.
Docstrings are plain text with single backticks, bullets, indented examples and `:param name:` fields; `_to_rst` turns
that into reStructuredText, so that no docstring needs markup for Sphinx alone.
"""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

ROOT = Path(__file__).resolve().parent.parent
# The provider's folder has another name than its package; dev/docs.py makes the link.
sys.path[:0] = [str(ROOT / "client"), str(ROOT / "spark"), str(ROOT / ".typing")]

project = "Apache Pulsar for Airflow, Spark and Python"
author = "The airflow-provider-pulsar contributors"
project_copyright = author
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build", "rows.toml"]
default_role = "py:obj"

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_mock_imports = ["airflow", "pyspark"]
autodoc_member_order = "groupwise"
autodoc_class_signature = "mixed"
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "inherited-members": "object, BaseException, Enum, int, str, tuple, dict, list, Mapping, Protocol",
}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
maximum_signature_line_length = 100

# Annotations name classes without their module, and both APIs have the same names: that is no broken reference.
suppress_warnings = ["ref.python"]

# Public modules, the one that owns a name first: names are shown as they are imported, not where they are defined.
PUBLIC_MODULES = (
    "pulsar_native.exceptions",
    "pulsar_native.schema",
    "pulsar_native.auth",
    "pulsar_native.admin",
    "pulsar_native.asyncio",
    "pulsar_native",
    "pyspark_pulsar",
)

# Page -> the module whose public names it describes.
PAGES = {
    "reference/client": "pulsar_native",
    "reference/asyncio": "pulsar_native.asyncio",
    "reference/exceptions": "pulsar_native.exceptions",
    "reference/schema": "pulsar_native.schema",
    "reference/auth": "pulsar_native.auth",
    "reference/admin": "pulsar_native.admin",
    "reference/push": "pulsar_native",
    "reference/spark": "pyspark_pulsar",
}

_BACKTICKS = re.compile(r"(`+[^`]+`+)")
_SPECIAL = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")
_FIELD = re.compile(r":[a-z]+( [^:]+)?: ")


def _escaped(line: str) -> str:
    """Escape what reStructuredText would read as markup, outside backticks and fields' names."""
    field = _FIELD.match(line.lstrip())
    cut = len(line) - len(line.lstrip()) + field.end() if field else 0
    parts = _BACKTICKS.split(line[cut:])
    parts[::2] = [_SPECIAL.sub(r"\\\g<0>", part) for part in parts[::2]]
    for number in range(2, len(parts), 2):
        if parts[number][:1].isalnum():  # the plural of a name, as in `Message`s
            parts[number] = "\\ " + parts[number]
    return line[:cut] + "".join(parts)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_item(line: str) -> bool:
    return line.lstrip().startswith(("- ", ":")) and not line.lstrip().startswith("::")


def _to_rst(lines: list[str]) -> list[str]:
    """Return a docstring's lines as reStructuredText."""
    out: list[str] = []
    example: int | None = None
    previous = ""
    for line in lines:
        if not line.strip():
            out.append("")
            continue
        if example is not None and _indent(line) >= example:
            out.append("    " + line)
            previous = line
            continue
        example = None
        after_blank = bool(out) and not out[-1]
        if after_blank and previous and _indent(line) >= _indent(previous) + 4 and not _is_item(previous):
            example = _indent(line)
            out += [" " * _indent(previous) + "::", "", "    " + line]
            previous = line
            continue
        begins_list = _is_item(line) and previous and not _is_item(previous) and _indent(line) <= _indent(previous)
        if begins_list and not after_blank and not _in_item(out):
            out.append("")
        out.append(_escaped(line))
        previous = line
    return out


def _in_item(out: list[str]) -> bool:
    """Return whether the paragraph that ends `out` is an item of a list already."""
    for line in reversed(out):
        if not line:
            return False
        if _is_item(line):
            return True
    return False


def _process_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = _to_rst(lines)


# Public names -> the pages that describe them.
_PAGE_OF: dict[str, str] = {}


def _own_public_names(app: Any) -> None:
    """Let every public class and function name the public module it is imported from, and choose its page."""
    owned: set[int] = set()
    with mock(autodoc_mock_imports):
        for name in PUBLIC_MODULES:
            module = importlib.import_module(name)
            for member in getattr(module, "__all__", vars(module)):
                found = getattr(module, member)
                if not isinstance(found, (type, types.FunctionType)) or id(found) in owned:
                    continue
                if member.startswith("_") or found.__module__.partition(".")[0] != name.partition(".")[0]:
                    continue
                owned.add(id(found))
                is_push = ".push" in found.__module__ and name == "pulsar_native"
                pages = [page for page, of in PAGES.items() if of == name]
                _PAGE_OF[f"{name}.{member}"] = "reference/push" if is_push else pages[0]
                found.__module__ = name


def _check_public_names(app: Any, env: Any) -> None:
    """Warn of public names that no page describes."""
    described = env.domains.python_domain.objects
    for name in sorted(set(_PAGE_OF) - set(described)):
        logging.getLogger(__name__).warning("%s is public and not in the reference", name)


def _skip_member(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what another page describes."""
    if what != "module" or not isinstance(obj, (type, types.FunctionType)):
        return None
    page = _PAGE_OF.get(f"{obj.__module__}.{obj.__name__}")
    return True if page is not None and page != app.env.docname else None


def setup(app: Any) -> None:
    """Connect the hooks, and name what is public by its public module."""
    app.connect("builder-inited", _own_public_names)
    app.connect("env-check-consistency", _check_public_names)
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("autodoc-skip-member", _skip_member)
