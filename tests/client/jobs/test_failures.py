"""Failures of jobs: whether a retry can help, and the line told."""

from __future__ import annotations

import pytest

from pulsar_native import exceptions as errors
from pulsar_native.jobs.failures import JobFailed, JobRefused, counted, explain, is_permanent, reason_of, text_of
from pulsar_native.jobs.validation import InvalidValue
from support.errors import Unprintable, Untyped


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JobRefused("x"), True),
        (JobFailed("x"), False),
        (errors.AuthenticationError("x"), True),
        (errors.InvalidTopicName("x"), True),
        (errors.IncompatibleSchema("x"), True),
        (errors.TopicTerminated("x"), True),
        (errors.MessageTooBig("x"), True),
        (errors.Timeout("x"), False),
        (errors.ConnectError("x"), False),
        (errors.TopicNotFound("x"), False),
        (errors.ProducerBusy("x"), False),
        (ValueError("x"), False),
        (InvalidValue("x"), True),
        (KeyboardInterrupt(), False),
    ],
)
def test_is_permanent_by_type(error: BaseException, expected: bool) -> None:
    assert is_permanent(error) is expected


@pytest.mark.parametrize(("messages", "words"), [(0, "0 messages"), (1, "1 message"), (1234, "1,234 messages")])
def test_counted_has_the_right_number(messages: int, words: str) -> None:
    assert counted(messages) == words


def test_reason_is_redacted_cut_and_encodable() -> None:
    error = ValueError("topsecret: no city \ud83d\0" + "x" * 999)
    found = reason_of(error, lambda text: text.replace("topsecret", "***"), 20)
    assert found == "ValueError: ***: no city ??" + "x" * 5
    assert reason_of(KeyError("a")) == "KeyError: 'a'"
    assert reason_of(OSError("no such file.")) == "OSError: no such file"


@pytest.mark.parametrize("kind", [Unprintable, Untyped])
def test_text_of_error_without_text_is_its_type(kind: type[Exception]) -> None:
    name = kind.__name__
    assert text_of(kind()) == name
    assert reason_of(kind()) == f"{name}: {name}"
    assert explain(kind(), action="a", stage="b") == f"a failed at the stage 'b': {name}: {name}"


def test_explain_names_stage_reason_and_fix() -> None:
    text = explain(errors.TopicNotFound("no such topic."), action="publishing to t", stage="connect")
    assert text == (
        "publishing to t failed at the stage 'connect': TopicNotFound: no such topic"
        " - create the topic or its namespace, or correct the name"
    )


def test_explain_other_errors_have_no_hint() -> None:
    assert (
        explain(OSError(), action="reading", stage="source") == "reading failed at the stage 'source': OSError: OSError"
    )
    assert explain(ValueError("bad"), action="a", stage="b").endswith("ValueError: bad")
