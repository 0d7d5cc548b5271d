"""Compiled Java programs against the broker's jars: once per source text, into .cache, with the Java that runs them.

Standard library only. Rule: a folder of classes is complete or absent, also when several processes compile at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from environments import CACHE, SetupError, jars_folder, java_path, pulsar_version

_COMPILE_SECONDS = 120
# Packages that Netty opens by reflection.
_OPEN = ("java.nio", "jdk.internal.misc", "sun.net", "jdk.internal.platform", "java.util.zip")
_LOGGING_FILE = "log4j2.properties"
_LOGGING = """\
status = error
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{HH:mm:ss.SSS} [%t] %-5level %c{1} - %msg%n
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
"""


def java() -> str:
    """Return the path of Java; raises SetupError if it or the broker's jars are missing."""
    found = java_path()
    if found is None or not jars_folder().is_dir():
        raise SetupError("Java or the broker's jars are missing: run `dev/setup broker`")
    return found


def compiled(sources: Sequence[Path], name: str) -> Path:
    """Return the folder of the sources' classes, compiled now if there is none for this text.

    `name` is the folder in .cache. Blocks up to two minutes. Raises SetupError with the compiler's output.
    """
    text = b"".join(source.read_bytes() for source in sources)
    digest = hashlib.sha256((pulsar_version() + _LOGGING).encode() + text).hexdigest()[:16]
    done = CACHE / name / digest
    if done.is_dir():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=done.parent, prefix="new-"))
    # The compiler as a module of the Java that runs: there need not be a `javac` beside it. It expands no wildcards.
    compiler = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-encoding", "UTF-8", "-proc:none", "-nowarn"]
    jars = os.pathsep.join(str(jar) for jar in sorted(jars_folder().glob("*.jar")))
    command = [*compiler, "-cp", jars, "-d", str(fresh), *map(str, sources)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, cwd=fresh)
    if ran.returncode != 0:
        shutil.rmtree(fresh)
        raise SetupError(f"{name} does not compile (it needs a JDK, not only a JRE):\n{ran.stderr}{ran.stdout}")
    (fresh / _LOGGING_FILE).write_text(_LOGGING)
    try:
        fresh.rename(done)
    except OSError:
        # Another process was faster.
        shutil.rmtree(fresh)
    return done


def command(classes: Path, main: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a compiled program; it logs warnings to stderr. `options` are the JVM's."""
    return [
        java(),
        *options,
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPEN),
        f"-Dlog4j2.configurationFile={classes / _LOGGING_FILE}",
        "-cp",
        f"{classes}{os.pathsep}{jars_folder()}/*",
        main,
    ]
