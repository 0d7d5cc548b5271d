"""Set-up of the project's tools: Python environments under .envs/, the broker's jars under .cache/, and a browser.

The client's optional compiled module is made in place with the environment `dev`, for all of them; where no C compiler
is, the client runs in plain Python and setting up goes on.

Callable as `dev/setup NAME …`. May not import anything but the standard library, since it runs before anything is
installed. Rules: every target has a stamp that holds a hash of what it was made from, so that a second call costs
milliseconds and a changed pin is noticed; what is half made has no stamp and is made again; one call at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVS = ROOT / ".envs"
CACHE = ROOT / ".cache"
REQUIREMENTS = ROOT / "requirements"
POM = ROOT / "dev" / "broker-pom.xml"
TABLES_POM = ROOT / "dev" / "tables-pom.xml"
SPARK_JVM_POM = ROOT / "dev" / "spark-jvm-pom.xml"
BUILD = ROOT / "client" / "hatch_build.py"
SPEEDUPS = (
    ROOT / "client" / "pulsar_native" / "wire" / "_speedups.pyx",
    ROOT / "client" / "pulsar_native" / "_message_speedups.pyx",
)

# Which of our own distributions are installed (editable, without their dependencies) into which environment.
EDITABLE = {
    "dev": ("client",),
    "spark": ("client", "spark"),
    "spark-oldest": ("client", "spark"),
    "tables": ("client", "spark"),
    "airflow": ("client", "spark", "."),
    "airflow-oldest": ("client", "spark", "."),
    "browser": (),
    "docs": (),
    "spark-jvm": (),
    "spark-official": (),
}
# PySpark has its Python sources in archives too, where nothing compiled can be kept: each of the processes that Spark
# starts would compile them again, for a third of a second. With the variable set, as the tests have it, they import the
# same sources from the environment. Without it, as users and benchmarks have it, nothing changes.
COMPILED_PYSPARK = "PULSAR_TEST_COMPILED_PYSPARK"
_COMPILED_PYSPARK_PTH = (
    f"import os, sys; {COMPILED_PYSPARK!r} in os.environ and sys.path.__setitem__(slice(None),"
    " [path for path in sys.path if os.path.basename(path) != 'pyspark.zip'"
    " and not os.path.basename(path).startswith('py4j-')])\n"
)
# Peers of a benchmark, which makes them: no test needs them.
ONLY_BY_NAME = ("spark-jvm", "spark-official")
# Our own modules are compiled once as well, whatever this is set to.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A command that takes longer is ended, and tried once more: downloads that stall end by their own limits before. On a
# line of 2 Mbit/s the largest file, PySpark's, takes most of it.
_COMMAND_SECONDS = 1800.0
# Maven would wait half an hour for a repository that does not answer; the names are those of Maven 3.8 and 3.9.
_MAVEN_LIMITS = (
    "-Dmaven.wagon.rto=60000",
    "-Dmaven.wagon.http.retryHandler.count=3",
    "-Daether.connector.requestTimeout=60000",
)

NO_POSTGRES = "No PostgreSQL server here (initdb and postgres, on the path or in /usr/lib/postgresql/*/bin)."
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class SetupError(Exception):
    """Raised when something is missing for a set-up; the text names the fix."""


def say(text: str) -> None:
    """Print one progress line at once."""
    print(f"setup: {text}", flush=True)


def python_of(env: str) -> Path:
    """Return the interpreter of an environment, made or not."""
    return ENVS / env / "bin" / "python"


def pulsar_version() -> str:
    """Return the broker's version, which only the pom names."""
    found = re.search(r"<pulsar\.version>([^<]+)</pulsar\.version>", POM.read_text())
    if found is None:
        raise SetupError(f"{POM.relative_to(ROOT)} names no pulsar.version")
    return found.group(1)


def jars_folder() -> Path:
    """Return the folder of the broker's jars, there or not."""
    return CACHE / f"pulsar-{pulsar_version()}" / "lib"


def browser_path() -> str | None:
    """Return the path of a Chromium on this machine, or None."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


# ---- running other programs ----------------------------------------------------------------------------------------


def run(what: str, command: Sequence[str], *, env: Mapping[str, str] | None = None, tries: int = 2) -> None:
    """Run a command quietly with a sign of life every ten seconds; show its output only when it fails for good."""
    for attempt in range(1, tries + 1):
        started = time.monotonic()
        with _heartbeat(what, started):
            code, output = _ended(command, dict(env or os.environ))
        if code == 0:
            say(f"{what}: done in {time.monotonic() - started:.0f} s")
            return
        tail = "\n".join(output.splitlines()[-25:])
        if attempt < tries:
            say(f"{what}: failed, trying once more ({tail.splitlines()[-1] if tail else 'no output'})")
    raise SetupError(f"{what} failed: {' '.join(map(str, command))}\n{tail}")


def _ended(command: Sequence[str], env: dict[str, str]) -> tuple[int, str]:
    """Run a command within the time limit and return its exit code and output; it is ended with all it started."""
    # Its own group: mvn is a script, and what it starts would keep the pipe open.
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=_COMMAND_SECONDS)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        output = _end(process)
        return -1, f"{output.rstrip()}\nended, as it was not done after {_COMMAND_SECONDS:.0f} s"
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> str:
    """End a process and its group, and return the rest of its output."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)[0]
    return ""


@contextlib.contextmanager
def _heartbeat(what: str, started: float) -> Iterator[None]:
    say(f"{what} …")
    over = threading.Event()

    def beat() -> None:
        while not over.wait(10):
            say(f"{what} … {time.monotonic() - started:.0f} s")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def index_settings() -> dict[str, str]:
    """Return the environment for uv: it reads no settings of pip, so an index or certificate given to pip is mapped."""
    env = dict(os.environ)
    pairs = (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("UV_INDEX", "PIP_EXTRA_INDEX_URL"), ("SSL_CERT_FILE", "PIP_CERT"))
    for ours, theirs in pairs:
        if theirs in env:
            env.setdefault(ours, env[theirs])
    env.setdefault("UV_HTTP_TIMEOUT", "180")
    env.setdefault("UV_LINK_MODE", "hardlink" if _same_device() else "copy")
    env.pop("VIRTUAL_ENV", None)
    return env


def _same_device() -> bool:
    home = Path.home()
    return home.exists() and home.stat().st_dev == ROOT.stat().st_dev


# ---- stamps ----------------------------------------------------------------------------------------------------------


def _hash(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.read_bytes() if isinstance(part, Path) and part.is_file() else str(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _build_settings(project: Path) -> str:
    """Return what of a project decides how it is installed: a linter's setting is no reason to install anew."""
    settings = tomllib.loads((project / "pyproject.toml").read_text())
    tools = {name: settings.get("tool", {}).get(name) for name in ("hatch", "setuptools")}
    script = project / "setup.py"
    return repr((settings["build-system"], settings["project"], tools, script.read_text() if script.exists() else ""))


def _fresh(stamp: Path, key: str) -> bool:
    return stamp.exists() and stamp.read_text() == key


# ---- targets ---------------------------------------------------------------------------------------------------------


def make_tools() -> Path:
    """Make the environment that holds uv and return uv's path."""
    with alone(ENVS, "tools"):
        return _make_tools(ENVS / "tools")


def _make_tools(folder: Path) -> Path:
    uv = folder / "bin" / "uv"
    stamp, key = folder / ".stamp", _hash("uv", ROOT, sys.version)
    if _fresh(stamp, key) and uv.exists():
        return uv
    shutil.rmtree(folder, ignore_errors=True)
    try:
        run("tools: virtual environment", [sys.executable, "-m", "venv", str(folder)], tries=1)
    except SetupError as error:
        raise SetupError(
            f"{error}\nThis Python has no working venv module (Debian: apt-get install python3-venv)."
        ) from None
    run("tools: uv", [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
    stamp.write_text(key)
    return uv


def make_env(name: str) -> None:
    """Make or refresh one Python environment from its pins, our own packages editable."""
    pins = REQUIREMENTS / f"{name}.txt"
    folder, ours = ENVS / name, EDITABLE[name]
    if "client" in ours:
        with alone(ENVS, "speedups"):
            _drop_old_speedups()
    key = _hash("2", ROOT, sys.version, pins, *(_build_settings(ROOT / part) for part in ours))
    stamp = folder / ".stamp"
    if _fresh(stamp, key):
        return
    uv, env = str(make_tools()), index_settings()
    stamp.unlink(missing_ok=True)
    python = python_of(name)
    if not python.exists() or _version_of(python) != sys.version:
        run(
            f"{name}: virtual environment",
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            env=env,
        )
    # Processes are many, and short: Airflow's would spend most of their time on compiling what they import.
    sync = [uv, "pip", "sync", "--quiet", "--compile-bytecode", "--python", str(python), str(pins)]
    run(f"{name}: {_count(pins)} packages", sync, env=env)
    if ours:
        editable = [part for project in ours for part in ("--editable", str(ROOT / project))]
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python), *editable]
        run(f"{name}: our packages", install, env=env)
    stamp.write_text(key)


def _version_of(python: Path) -> str:
    asked = subprocess.run([python, "-c", "import sys; print(sys.version, end='')"], capture_output=True, text=True)
    return asked.stdout


def _count(pins: Path) -> int:
    return sum(1 for line in pins.read_text().splitlines() if line and not line.startswith((" ", "#")))


def make_dev() -> None:
    """Make the environment the client is developed in, and with its tools the client's compiled module."""
    make_env("dev")
    make_speedups()


def make_speedups() -> None:
    """Compile the client's optional modules beside their sources; where that fails, say so and leave plain Python."""
    with alone(ENVS, "speedups"):
        if not _drop_old_speedups():
            _build_speedups()


def _build_speedups() -> None:
    reason = no_speedups()
    if not reason:
        try:
            run("dev: the client's compiled codec", [str(python_of("dev")), str(BUILD)], tries=1)
        except SetupError as error:
            reason = str(error).splitlines()[-1]
    if reason:
        say(f"dev: the client stays in plain Python, its optional compiled codec cannot be built: {reason}")
    else:
        (ENVS / ".speedups").write_text(_speedups_key())


def _drop_old_speedups() -> bool:
    """Remove modules built from another source or for another Python; return whether good ones are there."""
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    built = [source.with_name(source.stem + suffix) for source in SPEEDUPS]
    stamp = ENVS / ".speedups"
    if _fresh(stamp, _speedups_key()) and all(module.exists() for module in built):
        return True
    for old in (stamp, *built):
        old.unlink(missing_ok=True)
    return False


def _speedups_key() -> str:
    return _hash("1", ROOT, sys.version, *SPEEDUPS, BUILD)


@cache
def no_speedups() -> str:
    """Return why no module in C can be compiled here, "" when one can; tried out once, which takes part of a second."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return f"there is no C compiler ({compiler[0]}; Debian: apt-get install gcc libc6-dev)"
    with tempfile.TemporaryDirectory(prefix="speedups-") as folder:
        source = Path(folder) / "trial.c"
        source.write_text("#include <Python.h>\n")
        include = sysconfig.get_path("include")
        command = [*compiler, "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(source.with_suffix(".so"))]
        tried = subprocess.run(command, capture_output=True, text=True)
    if tried.returncode:
        lines = tried.stderr.splitlines() or ["no message"]
        said = next((line for line in lines if "error" in line), lines[0])
        return f"{compiler[0]} fails: {said} (Debian: apt-get install gcc libc6-dev python3-dev)"
    return ""


def make_broker() -> None:
    """Copy the broker's jars (about 240 MB, once) to .cache/."""
    need_java()
    _copy_jars(POM, jars_folder(), f"broker: jars of Pulsar {pulsar_version()} (240 MB the first time)")


def make_tables() -> None:
    """Make the Spark environment for table formats, and copy their jars (about 60 MB, once) to .cache/."""
    make_spark("tables")
    _copy_jars(TABLES_POM, tables_folder(), "tables: jars of Delta Lake and Apache Iceberg (60 MB the first time)")


def tables_folder() -> Path:
    """Return the folder of the table formats' jars, there or not."""
    return CACHE / "tables" / "lib"


def make_spark_jvm() -> None:
    """Make the Spark environment of the JVM connector, and copy its jar (about 36 MB, once) to .cache/."""
    need_java()
    make_env("spark-jvm")
    _copy_jars(SPARK_JVM_POM, spark_jvm_folder(), "spark-jvm: jar of the JVM connector (36 MB the first time)")


def spark_jvm_folder() -> Path:
    """Return the folder of the JVM connector's jar, there or not."""
    return CACHE / "spark-jvm" / "lib"


def make_spark_official() -> None:
    """Make the Spark environment of the official client."""
    need_java()
    make_env("spark-official")


def _copy_jars(pom: Path, folder: Path, what: str) -> None:
    stamp, key = folder.parent / ".stamp", _hash("1", pom)
    if _fresh(stamp, key):
        return
    if shutil.which("mvn") is None:
        raise SetupError("Maven (mvn) is not here; it fetches jars. Debian: apt-get install maven")
    fresh = folder.with_name("lib.new")
    shutil.rmtree(fresh, ignore_errors=True)
    copy = ["mvn", "-B", "-q", *_MAVEN_LIMITS, "-f", str(pom), "dependency:copy-dependencies"]
    run(what, [*copy, "-DincludeScope=runtime", f"-DoutputDirectory={fresh}"])
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    stamp.write_text(key)


def need_java() -> None:
    """Raise unless a Java of at least 17 is here: the broker and Spark need it."""
    java = java_path()
    if java is None:
        advice = "Debian: apt-get install openjdk-17-jdk-headless"
        raise SetupError(f"Java is not here; the broker and Spark need Java 17 or newer. {advice}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', shown)
    if found is None or int(found.group(1)) < 17:
        first = (shown.splitlines() or ["no version"])[0]
        raise SetupError(f"{java} is {first}; the broker and Spark need Java 17 or newer (set JAVA_HOME to one)")


def java_path() -> str | None:
    """Return the java of JAVA_HOME, else the one on the path, else None."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def make_spark(name: str = "spark") -> None:
    """Make a Spark environment and see that Java is there."""
    need_java()
    make_env(name)
    import_compiled_pyspark(python_of(name))


def import_compiled_pyspark(python: Path) -> None:
    """Let an environment's processes import PySpark from its packages, where the variable is set."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    target = packages / "compiled_pyspark.pth"
    if not target.exists() or target.read_text() != _COMPILED_PYSPARK_PTH:
        target.write_text(_COMPILED_PYSPARK_PTH)


def make_browser() -> None:
    """Make the browser environment; install Chromium where it is missing and this is allowed."""
    make_env("browser")
    if browser_path() is None:
        _install("browser", "Chromium", "chromium", f"No Chromium here ({', '.join(BROWSERS)}).")
        if browser_path() is None:
            raise SetupError(f"apt-get installed Chromium, but none of {', '.join(BROWSERS)} is on the path")


def make_postgres() -> None:
    """Install PostgreSQL, for tests of the transfers, where it is missing and this is allowed."""
    if postgres_folder() is None:
        # Debian's package makes a cluster of its own as well; the tests start a server apart from it.
        _install("postgres", "PostgreSQL", "postgresql", NO_POSTGRES)
        if postgres_folder() is None:
            raise SetupError(f"apt-get installed PostgreSQL, but: {NO_POSTGRES}")


def postgres_folder() -> Path | None:
    """Return the folder of PostgreSQL's initdb and postgres, the newest of several, or None."""
    places = [*map(Path, os.environ.get("PATH", "").split(os.pathsep)), *_debian_postgres()]
    return next((each for each in places if all((each / name).is_file() for name in ("initdb", "postgres"))), None)


def _debian_postgres() -> list[Path]:
    """Return the folders where Debian keeps the programs, off the path, the newest version first."""
    found = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    return sorted(found, key=lambda path: int(path.parent.name), reverse=True)


def _install(target: str, what: str, package: str, missing: str) -> None:
    """Install a Debian package with its package lists; raises SetupError with the advice where that is not allowed."""
    advice = f"{missing} Debian: apt-get install {package}"
    apt = shutil.which("apt-get")
    if apt is None:
        raise SetupError(advice)
    before: list[str] = []
    if os.geteuid() != 0:
        asked = subprocess.run(["sudo", "-n", "true"], capture_output=True) if shutil.which("sudo") else None
        if asked is None or asked.returncode != 0:
            raise SetupError(f"{advice}\n(installing it from here needs root or a sudo that asks no password)")
        before = ["sudo", "-n"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(f"{target}: package lists", [*before, apt, "-qq", "update"], env=env)
    run(f"{target}: {what}", [*before, apt, "-qq", "-y", "--no-install-recommends", "install", package], env=env)


def compile_pins(upgrade: bool) -> None:
    """Compile requirements/*.in to *.txt: exact versions, no index, no host."""
    uv, env = str(make_tools()), index_settings()
    for source in sorted(REQUIREMENTS.glob("*.in")):
        target = source.with_suffix(".txt")
        command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--no-header"]
        command += ["--no-emit-index-url", "--no-emit-find-links", *(["--upgrade"] if upgrade else [])]
        command += [str(source.relative_to(ROOT)), "--output-file", str(target.relative_to(ROOT))]
        run(f"pins of {source.stem}", command, env=env)


TARGETS: dict[str, Callable[[], None]] = {
    "dev": make_dev,
    "spark": make_spark,
    "spark-oldest": lambda: make_spark("spark-oldest"),
    "tables": make_tables,
    "airflow": lambda: make_env("airflow"),
    "airflow-oldest": lambda: make_env("airflow-oldest"),
    "browser": make_browser,
    "postgres": make_postgres,
    "broker": make_broker,
    "docs": lambda: make_env("docs"),
    "spark-jvm": make_spark_jvm,
    "spark-official": make_spark_official,
}


@contextlib.contextmanager
def alone(folder: Path, name: str = "", *, work: str = "set-up") -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is missing, or of a part of it, so that two processes do not do
    the same work there at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}{'-' if name else ''}lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another {work} is at work, waiting for it …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(*names: str) -> None:
    """Make the named targets that are not made yet; blocking, safe to call from several processes and threads.

    Others are made meanwhile: a suite does not wait for what only another one needs.
    """
    for name in names:
        with alone(ENVS, name):
            TARGETS[name]()


def chosen(targets: Sequence[str]) -> list[str]:
    """Return what to make for the targets of a command line: `all` leaves out what only a benchmark needs."""
    named = [name for name in TARGETS if name not in ONLY_BY_NAME] if "all" in targets else []
    return list(dict.fromkeys([*named, *(name for name in targets if name not in ("all", "pins"))]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="dev/setup", description="Make what is missing; quick when done.")
    parser.add_argument("targets", nargs="+", choices=[*TARGETS, "all", "pins"], help="what to make")
    parser.add_argument("--upgrade", action="store_true", help="with pins: take newer versions where there are any")
    options = parser.parse_args(arguments)
    try:
        if "pins" in options.targets:
            with alone(ENVS):
                compile_pins(options.upgrade)
        make(*chosen(options.targets))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: stopped; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
