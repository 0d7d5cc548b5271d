"""Search for credentials in everything that a Spark job leaves or shows: nothing is found, whatever the form.

The same search must find the topic's name in each place, so that a place that was not looked at fails the test, and
each form of a planted secret in bytes like those of the places.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

import pulsar_native
from broker import Standalone
from support.brokers import Broker, NewTopic
from support.processes import command_lines
from support.publishing import publish_groups
from support.spark_versions import spark_before

pytestmark = pytest.mark.timeout(600)

DRIVER = Path(__file__).parent.parent / "support" / "secret_driver.py"
ROWS = 40


def forms(secret: str) -> set[bytes]:
    """Return the bytes a text may be in files: plain, quoted for a URL, in base64 and base64url, UTF-16, hex."""
    raw = secret.encode()
    # In base64 the bytes before decide how the text is cut; without its ends the middle is the same.
    encoded = {base64.b64encode(raw[start:])[:-4] for start in range(3)}
    encoded |= {base64.urlsafe_b64encode(raw[start:])[:-4] for start in range(3)}
    return {raw, quote(secret, safe="").encode(), raw.hex().encode(), secret.encode("utf-16-le"), *encoded}


def files(folder: Path) -> bytes:
    """Return the contents of all files below a folder, with their names."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return b"\n".join(str(path).encode() + b"\n" + path.read_bytes() for path in found)


def search(places: dict[str, bytes], secret: str) -> list[str]:
    """Return the places that have the secret in some form."""
    wanted = forms(secret)
    return [place for place, found in places.items() if any(form in found for form in wanted)]


def run(arguments: list[str], variables: dict[str, str], folder: Path, **settings: str) -> dict[str, bytes]:
    """Run the job by spark-submit, with more settings of Spark, and return what it left and showed, by place."""
    for name in ("events", "left"):
        (folder / name).mkdir()
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.sql.warehouse.dir": str(folder / "left" / "warehouse"),
        # Plans and the generated code, which Spark logs at this level only.
        "spark.sql.planChangeLog.level": "WARN",
        **settings,
    }
    words = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    environment = Path(sys.executable).parent
    command = [str(environment / "spark-submit"), "--master", "local[2]", *words, str(DRIVER), *arguments]
    env = {**os.environ, "PATH": f"{environment}:{os.environ['PATH']}", **variables}
    seen: set[str] = set()
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(command, env=env, cwd=folder / "left", stdout=stdout, stderr=stderr)
        deadline = time.monotonic() + 240
        while process.poll() is None:
            seen |= command_lines()
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(0.1)
    out, err = (folder / "stdout").read_bytes(), (folder / "stderr").read_bytes()
    assert process.returncode == 0, (out[-2000:] + err[-4000:]).decode(errors="replace")
    return {
        "plans": out,
        "driver's log": err,
        "event log": files(folder / "events"),
        "process list": "\n".join(seen).encode(),
        "checkpoint of a read": files(folder / "left" / "checkpoint-read"),
        "checkpoint of a write": files(folder / "left" / "checkpoint-write"),
        "everything else": files(folder / "left"),
    }


@pytest.mark.proves("D10")
@pytest.mark.usefixtures("spark_environment")
def test_job_leaves_no_credentials_anywhere(secure_broker: Standalone, tmp_path: Path) -> None:
    token = secure_broker.token()
    name = f"persistent://public/default/searched-{time.time_ns()}"
    with pulsar_native.Client(secure_broker.service_url, pulsar_native.AuthenticationToken(token)) as client:
        publish_groups(client, name, [f"row {number}" for number in range(ROWS)])
    credentials = json.dumps({"method": "token", "token": token})
    arguments = [
        secure_broker.service_url, name, f"{name}-copy", str(tmp_path / "left"), "env:PULSAR_CREDENTIALS",
        "subscriptionPrefix=searched",
    ]  # fmt: skip
    places = run(arguments, {"PULSAR_CREDENTIALS": credentials}, tmp_path)
    assert f"ROWS {ROWS}".encode() in places["plans"]
    assert search(places, name) == list(places), "what is there is found in each place"
    assert {place for part in token.split(".")[1:] for place in search(places, part)} == set()


# As docs/spark.md says: Spark prints the options of a write in its plan, but for those of this pattern and those that
# its version knows as secrets.
_REDACTED = {"spark.sql.redaction.options.regex": "(?i)url|credentials|auth"}
_SECRET = "s3cret-of-the-user-4711"
_OF_4_3 = {
    "pulsar.client.authParams": (f"token:{_SECRET}", "Hand the secret over by reference"),
    "credentialsRef": (_SECRET, "not the secret itself"),
    "service.url": (f"pulsar://me:{_SECRET}@127.0.0.1:6650", "must not hold credentials"),
    "pulsar.client.listenerName": (f"token:{_SECRET}", "looks like a secret"),
}
_OF_NONE = {"pulsar.client.authParams": (_SECRET, "Hand the secret over by reference")}


@pytest.mark.proves("D10")
@pytest.mark.usefixtures("spark_environment")
@pytest.mark.parametrize(
    ("tries", "settings"),
    [(_OF_4_3, _REDACTED if spark_before("4.3") else {}), (_OF_NONE, _REDACTED)],
    ids=["known-to-spark", "redacted"],
)
def test_literal_secret_is_refused_and_left_nowhere(
    broker: Broker, topic: NewTopic, tmp_path: Path, tries: dict[str, tuple[str, str]], settings: dict[str, str]
) -> None:
    secret, name = _SECRET, topic()
    arguments = [broker.service_url, name, topic(), str(tmp_path / "left"), "env:PULSAR_CREDENTIALS"]
    literals = json.dumps({option: value for option, (value, _) in tries.items()})
    places = run(arguments, {"LITERAL_OPTIONS": literals}, tmp_path, **settings)
    refused = [line for line in places["plans"].decode().splitlines() if line.startswith("REFUSED ")]
    queries = ("read", "write", "stream read", "stream write")
    wanted = [(f"REFUSED {option}, {query}", error) for option, (_, error) in tries.items() for query in queries]
    assert [line.split(":")[0] for line in refused] == [head for head, _ in wanted]
    assert [line for line, (_, error) in zip(refused, wanted, strict=True) if error not in line] == []
    assert search(places, secret) == []


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "in a line": lambda raw: b'{"authParams": "token:' + raw + b'"}',
    "quoted": lambda raw: quote(raw, safe="").encode(),
    "base64": base64.b64encode,
    "base64 behind one byte": lambda raw: base64.b64encode(b"x" + raw),
    "base64url behind two bytes": lambda raw: base64.urlsafe_b64encode(b"xy" + raw),
    "hex": lambda raw: raw.hex().encode(),
    "utf-16": lambda raw: raw.decode().encode("utf-16-le"),
}


@pytest.mark.parametrize("encode", ENCODERS.values(), ids=list(ENCODERS))
def test_search_finds_planted_secret(tmp_path: Path, encode: Callable[[bytes], bytes]) -> None:
    secret = "pl4nted/secret+of?the=test~"
    clean, planted = tmp_path / "clean", tmp_path / "planted" / "deep"
    for folder in (clean, planted):
        folder.mkdir(parents=True)
        (folder / "events").write_bytes(b"\0\xffevents" * 100)
    places = {"clean": files(clean), "planted": files(planted)}
    assert search(places, secret) == []
    (planted / ".hidden").write_bytes(b"\0\xff before " + encode(secret.encode()) + b" after")
    assert search({"clean": files(clean), "planted": files(planted.parent)}, secret) == ["planted"]


def test_search_finds_secret_in_command_line() -> None:
    secret = f"planted-{time.time_ns()}"
    assert search({"process list": "\n".join(command_lines()).encode()}, secret) == []
    program = "print('started', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", program, secret], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        # The command line of a new process reads as empty until the kernel has set up its stack.
        assert child.stdout.readline() == b"started\n"
        assert search({"process list": "\n".join(command_lines()).encode()}, secret) == ["process list"]
    finally:
        child.communicate(b"\n", timeout=240)
