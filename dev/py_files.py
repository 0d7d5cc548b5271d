#!/usr/bin/env python3
"""Build the zip for Spark's --py-files: pulsar_native and pyspark_pulsar in plain Python, for clusters without them.

`dev/py_files.py [--output PATH]`; by default dist/pulsar-py-files-VERSION.zip. Standard library only. What both need of
others (protobuf, pyarrow, and crc32c, lz4, zstandard where they are wanted) must be installed on the cluster. The same
sources give the same bytes, so that a cluster's cache of files by digest holds.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from environments import ROOT

PACKAGES = {"pulsar_native": ROOT / "client" / "pulsar_native", "pyspark_pulsar": ROOT / "spark" / "pyspark_pulsar"}
_MOMENT = (1980, 1, 1, 0, 0, 0)


def version() -> str:
    """Return the version of the packages."""
    about: dict[str, str] = {}
    exec((PACKAGES["pulsar_native"] / "_version.py").read_text(encoding="utf-8"), about)
    return about["__version__"]


def build(target: Path) -> Path:
    """Write the zip and return its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(".new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, folder in PACKAGES.items():
            for file in sorted(folder.rglob("*.py")):
                entry = zipfile.ZipInfo(f"{name}/{file.relative_to(folder).as_posix()}", _MOMENT)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, file.read_bytes())
    fresh.replace(target)
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the zip and print its path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / f"pulsar-py-files-{version()}.zip")
    target = build(parser.parse_args(arguments).output)
    print(f"{target} ({target.stat().st_size // 1024} KB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
