#!/usr/bin/env python3
"""Build the documentation site into docs/_build/html; every warning is an error.

Standard library only; Sphinx lives in the environment `docs`. What follows on the command line goes to Sphinx
(`dev/docs.py -E` reads every page anew).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

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
    command += ["-d", str(BUILT / "read"), *more, str(ROOT / "docs"), str(BUILT / "html")]
    code = subprocess.run(command, cwd=ROOT).returncode
    if code == 0:
        print(f"docs: {(BUILT / 'html' / 'index.html').relative_to(ROOT)}", flush=True)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except environments.SetupError as error:
        sys.exit(f"docs: {error}")
