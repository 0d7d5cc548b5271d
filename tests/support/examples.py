"""The Python examples of the README files and the documentation pages, as programs to run.

May not import anything of ours: every environment loads it. Rules: every ```python block is an example. One that
imports `airflow` needs Airflow's own processes and is run elsewhere; one that imports `pyspark` runs in Spark's
environment; all others run with the client. The comment `<!-- prints: TEXT -->` above a block says what it must print
(\\n for a line's end); `<!-- not run: REASON -->` leaves out a fragment, and is an error without a reason. Names of
topics begin with docs-, greetings, orders or invoices, so that each run has topics of its own.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "client" / "README.md",
    ROOT / "spark" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
_BLOCK = re.compile(
    r"(?:^<!-- (prints|not run): ((?:(?!-->).)*?) -->\n+)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_SERVICE_URL = "pulsar://localhost:6650"
_ADMIN_URL = "http://localhost:8080"


@dataclass(frozen=True)
class Example:
    """One block: where it is, what it is, and what it prints ("" for nothing in particular)."""

    page: str
    line: int
    code: str
    prints: str
    not_run: str

    @property
    def kind(self) -> str:
        """Return what it runs with: airflow, spark or client."""
        for package, kind in (("airflow", "airflow"), ("pyspark", "spark")):
            if re.search(rf"^\s*(from|import) {package}\b", self.code, re.MULTILINE):
                return kind
        return "client"

    def program(self, service_url: str, admin_url: str = _ADMIN_URL) -> str:
        """Return the example against a broker, with topics the broker has not seen."""
        code = self.code.replace(_SERVICE_URL, service_url).replace(_ADMIN_URL, admin_url)
        fresh = f"t{secrets.token_hex(3)}-"
        return re.sub(r'(["\'])(greetings|orders|invoices|docs-)', rf"\g<1>{fresh}\g<2>", code)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_page(path: Path) -> list[Example]:
    """Return the examples of a page."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        comment, said, code = match.groups()
        if comment and not said.strip():
            raise ValueError(f"{path}: <!-- {comment}: --> says nothing")
        line = text.count("\n", 0, match.start(3)) + 1
        prints = said.replace("\\n", "\n") if comment == "prints" else ""
        not_run = said if comment == "not run" else ""
        found.append(Example(path.relative_to(ROOT).as_posix(), line, code, prints, not_run))
    return found


def examples(kind: str) -> list[Example]:
    """Return all examples of a kind that are to be run."""
    return [
        each for path in PAGES if path.exists() for each in read_page(path) if each.kind == kind and not each.not_run
    ]
