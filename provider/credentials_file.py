"""Credentials as private files, for Spark clusters and for PEM texts of a connection.

They are named after their process and removed after its end.
Rules: the folder belongs to this user with mode 0700, the files have mode 0600. A file whose process has ended is
removed by the next writer, since a killed process removes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import re
import secrets
import stat
import tempfile
import threading
from pathlib import Path

from airflow.sdk.exceptions import AirflowException

_NAME = re.compile(r"(?P<host>[\w.-]+)_(?P<pid>\d+)_(?P<start>\d+)_[0-9a-f]{16}\.(json|pem)")


def folder() -> Path:
    """Return this user's folder of credentials, created if missing; raises if another user owns it."""
    path = Path(tempfile.gettempdir()) / f"airflow-pulsar-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise AirflowException(f"{path} must be a folder that only user {os.getuid()} may enter (0700); remove it")
    return path


# Files of PEM texts by process and content. A forked child writes its own: its parent may end first.
_kept: dict[tuple[int, str], Path] = {}
_lock = threading.Lock()


def keep_pem(text: str) -> Path:
    """Return the path of a file with a PEM text, the same for the same text as long as this process lives.

    The TLS library reads certificates and keys from files only. Thread-safe.
    """
    with _lock:
        path = _kept.get((os.getpid(), text))
        if path is None or not path.exists():
            # A forked child inherits the files of its parent, but not in every case the registration.
            if not any(pid == os.getpid() for pid, _ in _kept):
                atexit.register(_remove_kept)
            path = _kept[os.getpid(), text] = write(text, "pem")
        return path


def _remove_kept() -> None:
    for (pid, _), path in _kept.items():
        if pid == os.getpid():
            path.unlink(missing_ok=True)


def write(secret: str, ending: str = "json") -> Path:
    """Write credentials to a file of this process and return the path; stale files are removed first.

    Raises `AirflowException` if they cannot be written, as on a full disk.
    """
    try:
        remove_stale()
        name = f"{_host()}_{os.getpid()}_{_start_of(os.getpid())}_{secrets.token_hex(8)}.{ending}"
        path = folder() / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secret)
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        raise AirflowException(f"credentials cannot be kept in {tempfile.gettempdir()}: {error}") from error
    return path


def remove_stale() -> None:
    """Remove the files of ended processes of this host."""
    for path in folder().iterdir():
        match = _NAME.fullmatch(path.name)
        if match is None or match["host"] != _host() or _start_of(int(match["pid"])) == match["start"]:
            continue
        # What is no file, or belongs to another user, does not keep this process from writing.
        with contextlib.suppress(OSError):
            path.unlink()


def _host() -> str:
    return re.sub(r"[^\w.-]", "-", platform.node()) or "localhost"


def _start_of(pid: int) -> str:
    """Return the start time of a process, which tells it from a later one with the same id; "0" if unknown."""
    try:
        # After the command's name in parentheses, which may have any characters: the 20th field is the start in ticks.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return "ended"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "ended"
    except PermissionError:
        pass
    return "0"
