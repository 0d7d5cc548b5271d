#!/usr/bin/env python3
"""Build the wheels and sdists of the three packages, and install the provider from its wheels into an own environment.

`dev/wheels.py build [--output FOLDER]` writes the wheels, by default to dist/; `dev/wheels.py install FOLDER [EXTRA …]`
makes a virtual environment that holds the provider as a user has it: from the wheels, with the versions of
requirements/airflow.txt, and nothing of this checkout on its path. Standard library only. Rules: a project is built
from a copy of its committed and its new files, by its own backend, so building needs no network and leaves nothing in
the checkout; our own packages are installed from files, never by name.

PULSAR_NATIVE_IMPL chooses the client's wheel: python (any platform), compiled, or unset (compiled where that works).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import environments
from environments import REQUIREMENTS, ROOT, SetupError, python_of

_BUILD = "import sys, {module} as backend; backend.build_{kind}(sys.argv[1])"
_BUILD_SECONDS = 300


@dataclass(frozen=True)
class Project:
    """A distribution: folder of its pyproject.toml, what a build of it needs, its package and that package's folder."""

    name: str
    folder: str
    parts: tuple[str, ...]
    package: str
    source: str


PROJECTS = {
    project.name: project
    for project in (
        Project("pulsar-native", "client", ("client",), "pulsar_native", "client/pulsar_native"),
        Project("pyspark-pulsar", "spark", ("spark",), "pyspark_pulsar", "spark/pyspark_pulsar"),
        Project(
            "airflow-provider-pulsar",
            ".",
            ("provider", "pyproject.toml", "setup.py", "README.md", "LICENSE"),
            "airflow_provider_pulsar",
            "provider",
        ),
    )
}


def tracked(*parts: str) -> list[str]:
    """Return the committed and the new files below folders or files of the checkout, by their names from its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *parts]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def build(project: Project, output: Path, kind: Literal["wheel", "sdist"] = "wheel") -> Path:
    """Build one distribution and return its file; raises SetupError with the backend's output when that fails."""
    backend = tomllib.loads((ROOT / project.folder / "pyproject.toml").read_text())["build-system"]["build-backend"]
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheels-") as copy, tempfile.TemporaryDirectory(prefix="wheels-") as built:
        for name in tracked(*project.parts):
            target = Path(copy) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
        done = subprocess.run(
            [str(python_of("dev")), "-c", _BUILD.format(module=backend, kind=kind), built],
            cwd=Path(copy) / project.folder, capture_output=True, text=True, timeout=_BUILD_SECONDS,
        )  # fmt: skip
        if done.returncode:
            raise SetupError(f"building the {kind} of {project.name} failed:\n{done.stderr[-3000:]}")
        (file,) = Path(built).iterdir()
        return Path(shutil.move(file, output / file.name))


def install(folder: Path, wheels: Path, extras: Sequence[str] = (), *, pins: str = "airflow") -> Path:
    """Install the provider with extras from its wheels into a virtual environment, and return its Python.

    The environment is made where there is none; in one that is there already, extras are added to what it has. Versions
    are those of requirements/PINS.txt. Raises SetupError when the installer fails.
    """
    uv, env = str(environments.make_tools()), environments.index_settings()
    python = folder / "bin" / "python"
    if not python.exists():
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        environments.run(f"{folder.name}: virtual environment", make, env=env)
    named = {project.name: _wheel(project, wheels) for project in PROJECTS.values()}
    wanted = [f"{name} @ {path.as_uri()}" for name, path in named.items()]
    wanted[-1] = wanted[-1].replace(" @", f"[{','.join(extras)}] @" if extras else " @", 1)
    if "spark" not in extras:
        wanted = [each for each in wanted if not each.startswith("pyspark-pulsar")]
    command = [uv, "pip", "install", "--quiet", "--python", str(python)]
    command += ["--constraint", str(REQUIREMENTS / f"{pins}.txt"), *wanted]
    environments.run(f"{folder.name}: the provider from its wheels", command, env=env)
    return python


def _wheel(project: Project, folder: Path) -> Path:
    """Return the newest wheel of a project in a folder."""
    found = sorted(folder.resolve().glob(f"{project.package}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SetupError(f"{folder} has no wheel of {project.name}; dev/wheels.py build --output {folder}")
    return found[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="dev/wheels.py", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="write the wheels of the three packages")
    installing = commands.add_parser("install", help="install the provider from wheels into an environment of its own")
    installing.add_argument("folder", type=Path, help="folder of the virtual environment")
    installing.add_argument("extras", nargs="*", help="extras of the provider, such as messaging")
    for each, option, what in ((building, "--output", "written to"), (installing, "--wheels", "taken from")):
        each.add_argument(option, dest="wheels", type=Path, default=ROOT / "dist", help=f"folder the wheels are {what}")
    options = parser.parse_args(arguments)
    environments.make("dev")
    if options.command == "build":
        for project in PROJECTS.values():
            print(build(project, options.wheels))
    else:
        print(install(options.folder, options.wheels, options.extras))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(f"wheels: {error}")
