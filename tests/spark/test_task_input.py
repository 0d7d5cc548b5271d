"""Input of a task's Python worker, without Spark."""

from __future__ import annotations

from io import BufferedReader, BytesIO

import pytest

from pulsar_native.exceptions import OperationNotSupported
from pyspark_pulsar.errors import WriteFailed
from pyspark_pulsar.task_input import TaskInput


def main(infile: BufferedReader) -> None:
    """Check an input as a worker's function of this name has it."""
    TaskInput().check_complete()


def test_input_with_end_is_complete() -> None:
    end = BufferedReader(BytesIO(b"\xff\xff\xff\xfc"))
    main(end)
    assert end.read() == b"\xff\xff\xff\xfc"


def test_input_without_end_raises() -> None:
    with pytest.raises(WriteFailed, match="broke off") as caught:
        main(BufferedReader(BytesIO(b"")))
    assert caught.value.retryable


def test_input_outside_a_worker_raises() -> None:
    with pytest.raises(OperationNotSupported, match="use deduplicated"):
        TaskInput()
