"""Exceptions of an author's function: its failure, or the end of the program."""

from __future__ import annotations

import threading

import pytest

from pulsar_native.push.handler_errors import interrupts_program


class Own(BaseException):
    """Exception of an application's own that is no Exception."""


@pytest.mark.parametrize(
    ("error", "of_hook", "of_handler"),
    [
        (ValueError(), False, False),
        (Own(), False, False),
        (GeneratorExit(), False, False),
        (SystemExit(), False, True),
        (KeyboardInterrupt(), True, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_interrupts_pass_in_the_main_thread_only(error: BaseException, of_hook: bool, of_handler: bool) -> None:
    assert (interrupts_program(error), interrupts_program(error, also_exit=True)) == (of_hook, of_handler)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(interrupts_program(error, also_exit=True)))
    thread.start()
    thread.join()
    assert found == [False]
