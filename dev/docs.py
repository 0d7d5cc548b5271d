#!/usr/bin/env python3
"""Build the documentation site into docs/_build/html; every warning, and a link without a host, is an error.

Standard library only; Sphinx lives in the environment `docs`. What follows on the command line goes to Sphinx
(`dev/docs.py -E` reads every page anew).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import checks
import environments
from environments import ROOT, python_of

BUILT = ROOT / "docs" / "_build"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, and return Sphinx's exit code."""
    environments.make("docs")
    checks.link_provider()
    more = list(sys.argv[1:] if arguments is None else arguments)
    # -d: what was read is kept, so that a second build reads changed pages only.
    command = [str(python_of("docs")), "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    if not (BUILT / "html" / "searchindex.js").exists():
        # A build that was interrupted left pages that were read; the index is made of those that are written.
        command.append("-a")
    command += ["-d", str(BUILT / "read"), *more, str(ROOT / "docs"), str(BUILT / "html")]
    code = subprocess.run(command, cwd=ROOT).returncode
    if "-E" not in command and dead_links(BUILT / "html"):
        # A page built before keeps descriptions of options, which come from other modules than those it names.
        code = subprocess.run([*command[:-2], "-E", *command[-2:]], cwd=ROOT).returncode
    for page in dead_links(BUILT / "html"):
        code = code or 1
        print(f"docs: {page} has a link without a host: put the bare http:// into backticks", file=sys.stderr)
    if code == 0:
        print(f"docs: {(BUILT / 'html' / 'index.html').relative_to(ROOT)}", flush=True)
    return code


def dead_links(folder: Path) -> list[str]:
    """Return the pages with a link to `http://` or `https://` alone, which Sphinx makes of the bare words."""
    return [
        page.relative_to(folder).as_posix()
        for page in sorted(folder.rglob("*.html"))
        if re.search(r'href="https?://"', page.read_text(encoding="utf-8"))
    ]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except environments.SetupError as error:
        sys.exit(f"docs: {error}")
