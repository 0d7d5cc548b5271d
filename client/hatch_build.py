"""Compile the optional modules of `pulsar_native`: for hatchling's wheels, and in place when run by itself.

Rules: never a reason to fail. Without Cython, without a compiler, or when compiling goes wrong, the wheel is the one in
plain Python for every platform, and is named so. The C files stay in a temporary folder; no debugging symbols.
Who publishes wheels says which is wanted, by the variable users have too: PULSAR_NATIVE_IMPL=python makes the one for
every platform, =compiled fails where it cannot compile.
Run as a program (`python hatch_build.py`), it puts the modules beside their sources and ends with 1 when that failed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by itself, where hatchling is not needed
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
SOURCES = (ROOT / "pulsar_native/wire/_speedups.pyx", ROOT / "pulsar_native/_message_speedups.pyx")


def _built(folder: Path, extensions: list[Any]) -> list[Path]:
    """Compile and link extension modules within a folder and return their files."""
    from setuptools import Distribution

    command: Any = Distribution({"name": "speedups", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib = str(folder / "lib")
    command.build_temp = str(folder / "temp")
    command.parallel = len(extensions)
    command.ensure_finalized()
    command.run()
    return [Path(command.get_ext_fullpath(extension.name)) for extension in extensions]


def compiled(folder: Path) -> list[Path]:
    """Compile the modules within a folder and return their files, in the order of `SOURCES`; raises what goes wrong."""
    from Cython.Build import cythonize
    from setuptools import Extension

    # A missing compiler or missing headers of Python show here, before Cython has worked for seconds.
    probe = folder / "probe.c"
    probe.write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_probe(void) { return NULL; }\n")
    _built(folder, [Extension("probe", [str(probe)])])
    # CFLAGS with a level of optimization keep it.
    level = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]
    flags = [] if sys.platform == "win32" else [*level, "-g0"]
    strip = ["-Wl,-s"] if sys.platform.startswith("linux") else []
    names, extensions = [], []
    for source in SOURCES:
        # From a copy: Cython tells the module's name from where the source lies, and writes beside it.
        copied = folder / source.name
        shutil.copy(source, copied)
        names.append(".".join(source.relative_to(ROOT).with_suffix("").parts))
        extensions.append(Extension(names[-1], [str(copied)], extra_compile_args=flags, extra_link_args=strip))
    return _built(folder, cythonize(extensions, build_dir=str(folder), quiet=True))


class SpeedupsHook(BuildHookInterface):
    """hatchling's hook. An editable install is left alone: its modules are built in place (see above)."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the modules to a wheel, and name the wheel after the platform then."""
        wanted = os.environ.get("PULSAR_NATIVE_IMPL")
        if self.target_name != "wheel" or version == "editable" or wanted == "python":
            return
        self.folder = tempfile.mkdtemp(prefix="speedups-")
        try:
            modules = compiled(Path(self.folder))
        except (Exception, SystemExit) as error:  # setuptools ends the program where a compiler is missing
            shutil.rmtree(self.folder, ignore_errors=True)
            if wanted == "compiled":
                raise
            self.app.display_warning(f"pulsar-native is built in plain Python: {type(error).__name__}: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for source, module in zip(SOURCES, modules, strict=True):
            build_data["force_include"][str(module)] = str(source.relative_to(ROOT).with_name(module.name))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made on the way."""
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)


def main() -> None:
    """Build in place."""
    with tempfile.TemporaryDirectory(prefix="speedups-") as name:
        try:
            for source, module in zip(SOURCES, compiled(Path(name)), strict=True):
                made = source.with_name(module.name)
                # Programs that have the old one loaded keep it: a new file takes its name.
                fresh = made.with_suffix(".new")
                shutil.copyfile(module, fresh)
                fresh.replace(made)
        except (Exception, SystemExit) as error:
            sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
