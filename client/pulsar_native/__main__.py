"""Entry point of `python -m pulsar_native`."""

from __future__ import annotations

import sys

from pulsar_native.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
