#!/usr/bin/env python3
"""Take the pictures of the documentation site: the connection form, the graph of a run, and assets with their events.

`dev/screenshots.py [--output FOLDER]` writes the PNG files, by default to docs/images/. A real broker and a real
Airflow with the DAG of docs/getting-started/event-driven.md are started for it, a message begins a run, and Chromium
visits the pages when the run has succeeded. Standard library only; the browser is driven by screenshots_browser.py in
an environment of its own, Airflow by Airflow's. Rules: nothing is drawn or altered; PULSAR_SERVICE_URL with
PULSAR_ADMIN_URL names a broker to use instead, on which the topic `orders` must be unused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import environments
from demo import broker_urls, say
from environments import ROOT, SetupError, browser_path, python_of

sys.path.insert(0, str(ROOT / "tests"))

from support.airflow_stack import AirflowStack
from support.dag_blocks import dag_blocks

IMAGES = ROOT / "docs" / "images"
DAG_ID = "paid-orders"
NAMES = ("airflow-connection-form", "airflow-event-graph", "airflow-asset-events")
# Larger pictures would be most of what the repository holds.
MOST_BYTES = 150_000
_GUIDE = "docs/getting-started/event-driven.md"
_ORDER = {"customer": "ann", "status": "paid", "amount": 250}
_SECONDS = 240


def take(output: Path, service_url: str, admin_url: str) -> list[Path]:
    """Run the DAG once in an Airflow of its own, take the pictures and return their files."""
    extra = {"service_url": service_url, "admin_url": admin_url}
    connection = json.dumps({"conn_type": "pulsar", "extra": extra})
    (block,) = [each for each in dag_blocks() if each.page == _GUIDE]
    with tempfile.TemporaryDirectory(prefix="screenshots-") as folder:
        env = {"AIRFLOW_CONN_PULSAR_DEFAULT": connection}
        stack = AirflowStack(Path(folder) / "airflow", env, python=python_of("airflow"))
        try:
            say("starting Airflow (about half a minute)")
            stack.start()
            stack.write_dag_file(DAG_ID, block.text)
            publish(service_url)
            (run, *_) = stack.wait_runs(DAG_ID, 1)
            run.succeeded()
            say("taking the pictures")
            visit(output, stack.processes.url, run.run_id)
        finally:
            stack.stop()
    return [output / f"{name}.png" for name in NAMES]


def publish(service_url: str) -> None:
    """Publish an order that the DAG waits for."""
    command = [str(python_of("airflow")), "-m", "pulsar_native", "publish", "orders", "-q", "-b", service_url]
    subprocess.run([*command, "-m", json.dumps(_ORDER)], check=True, timeout=60)


def visit(output: Path, url: str, run_id: str) -> None:
    """Let the browser visit the pages."""
    chromium = browser_path()
    if chromium is None:
        raise SetupError("there is no Chromium; dev/setup browser installs one")
    output.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("screenshots_browser.py")
    command = [str(python_of("browser")), str(script), chromium, url, str(output), DAG_ID, run_id, *NAMES]
    subprocess.run(command, check=True, timeout=_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the pictures and return 1 when one is too large."""
    parser = argparse.ArgumentParser(prog="dev/screenshots.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder of the PNG files (default docs/images)")
    options = parser.parse_args(arguments)
    environments.make("airflow", "browser", *([] if "PULSAR_SERVICE_URL" in os.environ else ["broker"]))
    with broker_urls() as (service_url, admin_url):
        files = take(options.output.resolve(), service_url, admin_url)
    for file in files:
        say(f"{file} ({file.stat().st_size // 1000} KB)")
    return int(any(file.stat().st_size > MOST_BYTES for file in files))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(f"screenshots: {error}")
