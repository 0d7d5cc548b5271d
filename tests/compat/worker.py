"""A process that runs compatibility programs on one client: `worker.py PACKAGE SERVICE_URL ADMIN_URL [PROGRAM]`.

Reads program ids from its input, one a line, and answers each with one line of JSON: {"observed": …}, {"raised": …} or
{"hung": …} (after which it ends). With a PROGRAM it runs that one in its main thread and ends as a program would. What
programs and clients print goes to stderr. COMPAT_SECRETS in the environment holds what `Env.secrets` is, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compat.program import PROGRAMS, Env, Program
from compat.programs import __path__ as _folders


def load() -> None:
    """Import every module of programs."""
    for file in sorted(Path(_folders[0]).glob("*.py")):
        if file.stem != "__init__":
            importlib.import_module(f"compat.programs.{file.stem}")


def _run(program: Program, pulsar: ModuleType, urls: tuple[str, str]) -> dict[str, Any]:
    env = Env(pulsar, *urls, json.loads(os.environ.get("COMPAT_SECRETS", "{}")))
    try:
        return {"observed": program.body(pulsar, env, *program.arguments)}
    except BaseException as error:
        return {"raised": f"{type(error).__name__}: {error}", "where": traceback.format_exc(limit=-3)}
    finally:
        # A program of its own process leaves the closing to the interpreter's end.
        if not program.own_process:
            env.close()


def _run_guarded(program: Program, pulsar: ModuleType, urls: tuple[str, str]) -> dict[str, Any]:
    """Run it in a thread, and give up on it after its time."""
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(_run(program, pulsar, urls)), daemon=True)
    thread.start()
    thread.join(program.seconds)
    if answers:
        return answers[0]
    frame = sys._current_frames().get(thread.ident or 0)
    return {"hung": "".join(traceback.format_stack(frame)[-4:])}


def main() -> None:
    """Serve, or run one program."""
    package, service_url, admin_url, *one = sys.argv[1:]
    # The client's own output must not get between the answers.
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    load()
    pulsar = importlib.import_module(package)
    importlib.import_module(f"{package}.schema")

    def answer(result: dict[str, Any]) -> None:
        # What JSON cannot hold shows by its type: it is a difference, unless both return the like.
        answers.write(json.dumps(result, default=lambda value: f"<{type(value).__name__}>") + "\n")
        answers.flush()

    if one:
        began = time.monotonic()
        result = _run(PROGRAMS[one[0]], pulsar, (service_url, admin_url))
        answer(result | {"seconds": time.monotonic() - began})
        return
    for line in sys.stdin:
        began = time.monotonic()
        result = _run_guarded(PROGRAMS[line.strip()], pulsar, (service_url, admin_url))
        answer(result | {"seconds": time.monotonic() - began})
        if "hung" in result:
            os._exit(3)


if __name__ == "__main__":
    main()
