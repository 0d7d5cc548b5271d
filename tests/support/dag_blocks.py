"""The DAGs that README.md and the pages of docs/ print.

Standard library only. Rule: a block is run as it is printed; only what a test cannot share is replaced: absolute paths,
which are moved below a folder of the test, and the names of DAGs and topics, which get a suffix.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from environments import ROOT

_FENCE = re.compile(r"^(<!-- not run: .*? -->\n)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class DagBlock:
    """One printed DAG file: its page, from the project's root, and its text."""

    page: str
    text: str

    @property
    def dag_ids(self) -> list[str]:
        """Return the ids of the DAGs the block makes, in the order printed."""
        calls = (node for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Call))
        named = (call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "DAG")
        return [str(each.value) for each in named if isinstance(each, ast.Constant)]

    def moved(self, root: Path, suffix: str) -> DagBlock:
        """Return the block with its paths below `root`, whose folders are made, and with its own names."""
        constants = {node.value for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Constant)}
        text = self.text
        for path in sorted(each for each in constants if isinstance(each, str) and re.match(r"/\w", each)):
            (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            text = text.replace(f'"{path}"', f'"{root}{path}"')
        text = re.sub(r'\b(DAG\(|topic=)"([\w-]+)"', rf'\1"\2{suffix}"', text)
        return DagBlock(self.page, text)


def dag_blocks() -> list[DagBlock]:
    """Return every Python block of README.md and of the pages below docs/ that makes a DAG and is not marked as a
    fragment.
    """
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        DagBlock(str(page.relative_to(ROOT)), text)
        for page in pages
        if "_build" not in page.parts
        for is_fragment, text in _FENCE.findall(page.read_text(encoding="utf-8"))
        if "DAG(" in text and not is_fragment
    ]
