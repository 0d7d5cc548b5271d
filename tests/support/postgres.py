"""A real PostgreSQL server of its own for a test session: `Postgres` starts one in a folder of its own, and ends it.

It listens on 127.0.0.1 only, asks for a password, and keeps nothing safe from a crash of the machine (no fsync).
PostgreSQL refuses to run as root: there it runs as the user postgres, or nobody. The server ends with the process that
started it, killed too.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from broker import free_port

USER = "tests"
_READY_SECONDS = 240
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class Postgres:
    """One server; blocking. `start` it once, `stop` it at the end; `programs` is the folder of initdb and postgres."""

    def __init__(self, programs: Path) -> None:
        self.port = free_port()
        self.password = secrets.token_urlsafe(16)
        self._programs = programs
        self._home = Path()
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> Postgres:
        """Make a cluster, start the server, and return when it answers."""
        # Not below a test's folder: those are root's alone.
        self._home = Path(tempfile.mkdtemp(prefix="postgres-tests-"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        owner = _owner()
        secret, data = self._home / "password", self._home / "data"
        secret.write_text(self.password)
        if owner:
            for path in (self._home, secret):
                shutil.chown(path, **owner)
        command = [str(self._programs / "initdb"), "-D", str(data), "-U", USER, "-E", "UTF8", "--locale=C", "-N"]
        command += ["-A", "scram-sha-256", f"--pwfile={secret}"]
        made = subprocess.run(
            command, cwd=self._home, capture_output=True, text=True, timeout=240, check=False, **_as(owner)
        )
        if made.returncode:
            raise AssertionError(f"initdb failed:\n{made.stdout[-1000:]}{made.stderr[-1000:]}")
        settings = {**_SETTINGS, "port": str(self.port)}
        command = [str(self._programs / "postgres"), "-D", str(data)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._home / "log").open("wb") as log:
            self._server = subprocess.Popen(
                command, cwd=self._home, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=_end_with_parent, **_as(owner),
            )  # fmt: skip
        self._wait_ready()

    def _wait_ready(self) -> None:
        import psycopg2

        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg2.OperationalError as error:
                ended = self._server is None or self._server.poll() is not None
                if ended or time.monotonic() > deadline:
                    log = (self._home / "log").read_text(errors="replace")[-2000:]
                    raise AssertionError(f"PostgreSQL did not start: {error}\n{log}") from error
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server at once, and remove its folder."""
        if self._server is not None:
            # Immediate shutdown: nothing of it is used again.
            with suppress(ProcessLookupError):
                self._server.send_signal(signal.SIGQUIT)
            try:
                self._server.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._server.pid, signal.SIGKILL)
                self._server.wait(10)
        shutil.rmtree(self._home, ignore_errors=True)

    def connect(self, database: str) -> Any:
        """Return a connection with autocommit."""
        import psycopg2

        made = psycopg2.connect(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname=database, connect_timeout=10
        )
        made.autocommit = True
        return made

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make a database, give its name, and drop it whoever is still connected."""
        name = f"d{secrets.token_hex(6)}"
        self.rows("postgres", f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            self.rows("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    def rows(self, database: str, sql: str, parameters: Any = None) -> list[Any]:
        """Run a statement and return its rows, single columns as values."""
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            found = cursor.fetchall() if cursor.description is not None else []
        return [row[0] if len(row) == 1 else row for row in found]


class Shop:
    """A PostgreSQL database with the connection "shop" to it."""

    def __init__(self, server: Postgres, name: str, connect: Callable[..., str]) -> None:
        self.server, self.name = server, name
        self._connect = connect
        self.define()

    def define(self, **extra: object) -> None:
        """Define the connection again, with extra fields."""
        address = {"host": "127.0.0.1", "port": self.server.port, "login": USER, "password": self.server.password}
        self._connect("shop", conn_type="postgres", schema=self.name, **address, **extra)

    @contextmanager
    def role(self, *grants: str) -> Iterator[str]:
        """Make a role with grants such as "ALL ON orders", give its name, and drop it with what it owns."""
        name = f"r{secrets.token_hex(6)}"
        self.rows(f"CREATE ROLE {name}; " + "; ".join(f"GRANT {grant} TO {name}" for grant in grants))
        try:
            yield name
        finally:
            self.rows(f"DROP OWNED BY {name}; DROP ROLE {name}")

    def rows(self, sql: str, parameters: Any = None) -> list[Any]:
        """Run statements and return the rows of the last, single columns as values."""
        return self.server.rows(self.name, sql, parameters)


def _owner() -> dict[str, int] | None:
    """Return user and group for the server, None where this process may run it."""
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = users.get("postgres") or users["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid}


def _as(owner: dict[str, int] | None) -> dict[str, Any]:
    """Return the options of a subprocess that runs as the owner."""
    return {} if owner is None else {**owner, "extra_groups": []}


def _end_with_parent() -> None:
    """Have the kernel end the server when the process of the tests is gone, killed too."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG, Linux only
