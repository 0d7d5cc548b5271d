#!/usr/bin/env python3
"""Start Airflow with the example DAG and the connections, and a broker behind it, to look at in a browser; Ctrl-C
ends it.

Uses the folder and the database of the demo, so that its runs are there. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import broker as brokers
import demo
import environments
from environments import python_of

_READY_SECONDS = 180


def main() -> int:
    """Run until Ctrl-C and return the exit code."""
    environments.make("spark", "airflow", *([] if "PULSAR_SERVICE_URL" in os.environ else ["broker"]))
    demo.DEMO.mkdir(exist_ok=True)
    demo.OUTPUT.mkdir(exist_ok=True)
    with demo.broker_urls() as (service_url, admin_url):
        env = demo.airflow_env(service_url, admin_url)
        demo.prepare_airflow(env)
        port = brokers.free_port()
        url = f"http://127.0.0.1:{port}"
        env.update(
            AIRFLOW__API__HOST="127.0.0.1",
            AIRFLOW__API__PORT=str(port),
            AIRFLOW__API__WORKERS="1",
            AIRFLOW__API__BASE_URL=url,
            AIRFLOW__CORE__EXECUTION_API_SERVER_URL=f"{url}/execution/",
        )
        log = (demo.DEMO / "standalone.log").open("w")
        process = subprocess.Popen(
            [str(python_of("airflow").parent / "airflow"), "standalone"],
            env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return _serve(process, url)
        except KeyboardInterrupt:
            return 0
        finally:
            _end(process)


def _serve(process: subprocess.Popen[bytes], url: str) -> int:
    demo.say("starting Airflow (about half a minute)")
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5).read()
            demo.say(
                f"Airflow is at {url} (no login). DAG: {url}/dags/flights_to_parquet  Connections: {url}/connections"
            )
            demo.say("Ctrl-C ends Airflow and the broker")
            return process.wait()
        time.sleep(0.5)
    demo.say(f"Airflow did not start; see {demo.DEMO / 'standalone.log'}")
    return 1


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
            return


if __name__ == "__main__":
    sys.exit(main())
