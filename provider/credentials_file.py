"""Credentials as a file for Spark clusters: private, named after its process, and removed when that is gone.

Rules: the folder belongs to this user and nobody else may enter it (0700), the files are 0600; a file whose process
has ended, in whatever way, is removed by the next one that writes, since a killed process removes nothing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import stat
import tempfile
from pathlib import Path

from airflow.sdk.exceptions import AirflowException

_NAME = re.compile(r"(?P<host>[\w.-]+)_(?P<pid>\d+)_(?P<start>\d+)_[0-9a-f]{16}\.json")


def folder() -> Path:
    """Return this user's folder of credentials, made if it is not there; raises where somebody else owns it."""
    path = Path(tempfile.gettempdir()) / f"airflow-pulsar-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise AirflowException(f"{path} must be a folder that only user {os.getuid()} may enter (0700); remove it")
    return path


def write(secret: str) -> Path:
    """Write credentials for this process to a file of its own and return the path; stale ones are removed before."""
    remove_stale()
    name = f"{_host()}_{os.getpid()}_{_start_of(os.getpid())}_{secrets.token_hex(8)}.json"
    path = folder() / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret)
    return path


def remove_stale() -> None:
    """Remove the files of processes of this host that have ended."""
    for path in folder().iterdir():
        match = _NAME.fullmatch(path.name)
        if match is None or match["host"] != _host() or _start_of(int(match["pid"])) == match["start"]:
            continue
        path.unlink(missing_ok=True)


def _host() -> str:
    return re.sub(r"[^\w.-]", "-", platform.node()) or "localhost"


def _start_of(pid: int) -> str:
    """Return when a process began, which tells it from a later one with the same id; "0" where that is unknown."""
    try:
        # Behind the command's name, which may hold anything, in parentheses: the 20th field is the start in ticks.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return "ended"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "ended"
    except PermissionError:
        pass
    return "0"
