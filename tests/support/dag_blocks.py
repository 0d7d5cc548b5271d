"""The DAGs that the README and the pages of docs/ print: found, and given what they name to run on this machine.

Standard library only. Rule: a block is run as it is printed; only its absolute paths are moved below a folder of the
test, since nobody's machine has them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from environments import ROOT

_FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ROWS = 100
# Spark's names of types (those of the examples), and a value for a row's number.
_VALUES: Mapping[str, Callable[[str, int], object]] = {
    "STRING": lambda name, number: f"{name}-{number}",
    "DOUBLE": lambda name, number: number * 0.5,
    "INT": lambda name, number: number,
    "LONG": lambda name, number: number,
    "BIGINT": lambda name, number: number,
    "BOOLEAN": lambda name, number: number % 2 == 0,
}


@dataclass(frozen=True)
class DagBlock:
    """One printed DAG file: the page, the number of the block on it, and its text."""

    page: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"

    @property
    def dag_ids(self) -> list[str]:
        """Return the ids of the DAGs the block makes, as they are printed."""
        found = []
        for call in self._calls("DAG"):
            named = [each.value for each in call.keywords if each.arg == "dag_id"]
            literal = [*call.args[:1], *named][0]
            assert isinstance(literal, ast.Constant), f"{self}: the id of a DAG is no literal"
            found.append(str(literal.value))
        return found

    def literals(self, argument: str) -> set[str]:
        """Return the texts that any call of the block is given as an argument of that name."""
        calls = (node for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Call))
        values = (each.value for call in calls for each in call.keywords if each.arg == argument)
        return {value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)}

    def moved(self, root: Path) -> DagBlock:
        """Return the block with its absolute paths below `root`, whose first folders are made."""
        text = self.text
        constants = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
        for path in sorted(each for each in constants if isinstance(each, str) and re.match(r"/\w", each)):
            (root / path.split("/")[1]).mkdir(parents=True, exist_ok=True)
            text = re.sub(rf"(?<=[\"']){re.escape(path)}(?=[\"'])", lambda found: f"{root}{found[0]}", text)
        return DagBlock(self.page, self.number, text)

    def rows(self, first: int) -> list[dict[str, Any]]:
        """Return rows of the columns the block names (value_schema, key_field), numbered from `first`."""
        columns = {"number": "INT"}
        for schema in self.literals("value_schema"):
            columns = dict(each.split()[:2] for each in schema.split(",") if len(each.split()) > 1)
        columns |= {name: "STRING" for name in self.literals("key_field") if name not in columns}
        return [
            {name: _VALUES[kind.upper()](name, number) for name, kind in columns.items()}
            for number in range(first, first + _ROWS)
        ]

    def write_inputs(self, render: Callable[[str], str], first: int) -> list[dict[str, Any]]:
        """Write the files that operators of the block read and return their rows; `render` fills in templates."""
        written: list[dict[str, Any]] = []
        for template in sorted(self.literals("file")):
            path = Path(render(template))
            assert path.suffix == ".jsonl", f"{self}: add to write_inputs how a {path.suffix} file is made"
            rows = self.rows(first + len(written))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            written += rows
        return written

    def _calls(self, name: str) -> Iterator[ast.Call]:
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield node


def dag_blocks() -> list[DagBlock]:
    """Return every Python block of README.md and docs/*.md that makes a DAG."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        blocks = _FENCE.findall(page.read_text(encoding="utf-8"))
        found += [DagBlock(page.stem, number, text) for number, text in enumerate(blocks) if "DAG(" in text]
    return found


def template_context(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of templates that depend on a run, from what the REST interface tells of it."""
    context: dict[str, Any] = {"run_id": run["dag_run_id"], "run_after": datetime.fromisoformat(run["run_after"])}
    for name in ("logical_date", "data_interval_start", "data_interval_end"):
        if run[name] is not None:
            context[name] = datetime.fromisoformat(run[name])
    if (date := context.get("logical_date")) is not None:
        context |= {
            "ds": f"{date:%Y-%m-%d}",
            "ds_nodash": f"{date:%Y%m%d}",
            "ts": date.isoformat(),
            "ts_nodash": f"{date:%Y%m%dT%H%M%S}",
        }
    return context
