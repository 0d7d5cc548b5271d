"""Handling of single messages: results, policies for failures, concurrent calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pulsar_native.jobs.batch import Batch, BatchLimits, CutEntries
from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.message_handling import ErrorPolicy, Handled, MessageFailed, MessageHandler, MessageResult
from pulsar_native.message import Message
from support.jobs import PUBLISHED, TOPIC, cut_note, received


class Letters:
    """Letters that are only counted."""

    def __init__(self) -> None:
        self.added: list[tuple[int, BaseException | None, bool]] = []
        self.flushed = 0

    def add(self, message: Message, cause: BaseException | None, *, retry: bool) -> None:
        self.added.append((message.message_id().entry_id(), cause, retry))

    def flush(self) -> None:
        self.flushed += 1


def policy_of(on_error: str = "fail", max_errors: int | None = None, redact: Any = str) -> tuple[ErrorPolicy, Letters]:
    """Return a policy and its letters."""
    letters = Letters()
    return ErrorPolicy(on_error, max_errors, letters, redact), letters  # type: ignore[arg-type]


def new_batch(**limits: Any) -> Batch:
    """Return an empty batch."""
    return Batch(BatchLimits(**{"messages": None, "bytes": None, "seconds": None, "inline_bytes": None, **limits}))


def values(handled: list[Handled]) -> list[Any]:
    """Return the values of messages for the output."""
    return [json.loads(line)["value"] for _, _, line in handled]


def handle(
    function: Any, count: int = 1, on_error: str = "fail", **options: Any
) -> tuple[list[Any], Any, Batch, Letters]:
    """Handle messages 0, 1, …; return the values in the output, the manifest, batch and letters."""
    policy, letters = policy_of(on_error)
    handler, batch, found = MessageHandler("text", policy, function, **options), new_batch(), []
    try:
        for number in range(count):
            handler.start(received(b"%d" % number, number), batch)
            found += values(handler.results(batch, 0))
        while handler.is_busy:
            found += values(handler.results(batch, 10_000))
    finally:
        handler.close()
    return found, policy.manifest(), batch, letters


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "output", "others", "letters"),
    [
        (None, ["0"], {}, []),
        ("ack", ["0"], {}, []),
        (MessageResult.ACK, ["0"], {}, []),
        ("skip", [], {TOPIC: [[7, 0, 0]]}, []),
        ("nack", [], {}, []),
        (MessageResult.DEAD_LETTER, [], {TOPIC: [[7, 0, 0]]}, [(0, None, False)]),
        ("retry_letter", [], {TOPIC: [[7, 0, 0]]}, [(0, None, True)]),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_result_of_function_decides(result: Any, output: list[str], others: Any, letters: Any, is_async: bool) -> None:
    async def later(message: Message) -> Any:
        await asyncio.sleep(0)
        return result

    found, manifest, batch, written = handle(later if is_async else lambda message: result)
    assert (found, batch.others(), written.added) == (output, others, letters)
    told = [] if result in (None, "ack") else [{"id": "7:0:-1:-1", "topic": TOPIC, "action": str(result)}]
    assert manifest["messages"] == told and manifest["count"] == 0


class Ambiguous:
    """Result whose comparison has no truth value, as that of a table."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("ambiguous")

    def __repr__(self) -> str:
        return "table"


@pytest.mark.parametrize("result", ["done", 0, False, Ambiguous()])
def test_result_of_another_kind_is_refused(result: Any) -> None:
    with pytest.raises(
        JobRefused, match=rf"returned {result!r} for 7:0:-1:-1; it may return None or .*: ack, skip, nack"
    ):
        handle(lambda message: result)


def test_result_retry_letter_without_retry_topic_is_refused() -> None:
    with pytest.raises(JobRefused, match="retry letters are not received here: set retry_letter_topic"):
        handle(lambda message: "retry_letter", retries=False)


def test_no_function_keeps_every_message() -> None:
    assert handle(None, 3)[0] == ["0", "1", "2"]


# ---- failures --------------------------------------------------------------------------------------------------------


def fail_odd(message: Message) -> None:
    """Fail for every other message."""
    if int(message.data()) % 2:
        raise RuntimeError(f"no {message.data().decode()}.")


def test_failure_ends_the_batch_by_default() -> None:
    with pytest.raises(
        MessageFailed, match=f"message 7:1:-1:-1 of {TOPIC}: RuntimeError: no 1. on_error='skip'"
    ) as caught:
        handle(fail_odd, 3)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("on_error", "name"), [("skip", "skipped"), ("dead_letter", "dead_letters"), ("retry_letter", "retry_letters")]
)
def test_failure_by_policy_lets_others_go_on(on_error: str, name: str) -> None:
    found, manifest, batch, letters = handle(fail_odd, 4, on_error)
    assert found == ["0", "2"] and batch.others() == {TOPIC: [[7, 1, 1], [7, 3, 3]]}
    assert (manifest["count"], manifest[name]) == (2, 2)
    assert manifest["messages"][0] == {
        "id": "7:1:-1:-1",
        "topic": TOPIC,
        "action": on_error,
        "error": "RuntimeError: no 1",
    }
    assert [(entry, str(cause), retry) for entry, cause, retry in letters.added] == (
        [] if on_error == "skip" else [(n, f"no {n}.", on_error == "retry_letter") for n in (1, 3)]
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_cancelled_error_of_the_function_is_a_failure(is_async: bool) -> None:
    """As the result of a future that was cancelled raises it."""

    def now(message: Message) -> None:
        if message.data() == b"0":
            raise asyncio.CancelledError

    async def later(message: Message) -> None:
        now(message)

    found, manifest, batch, _ = handle(later if is_async else now, 2, "skip")
    assert found == ["1"] and batch.others() == {TOPIC: [[7, 0, 0]]}
    assert manifest["messages"][0]["error"] == "RuntimeError: process_message raised CancelledError"


def test_failure_to_decode_follows_the_policy() -> None:
    policy, _ = policy_of("skip")
    handler, batch = MessageHandler("json", policy), new_batch()
    handler.start(received(b"{", 0), batch)
    handler.start(received(b"1", 1), batch)
    assert values(handler.results(batch, 0)) == [1]
    assert policy.manifest()["messages"][0]["error"].startswith("InvalidRecord: The message is not JSON")


def test_failures_beyond_max_errors_end_the_batch() -> None:
    policy, _ = policy_of("skip", 2)
    handler, batch = MessageHandler("json", policy), new_batch()
    for entry in range(2):
        handler.start(received(b"{", entry), batch)
    with pytest.raises(MessageFailed, match=r"more than max_errors=2 messages failed; the last, 7:2:-1:-1"):
        handler.start(received(b"{", 2), batch)


def test_failure_text_redacted_and_cut() -> None:
    policy, _ = policy_of("skip", redact=lambda text: text.replace("topsecret", "***"))
    batch = new_batch()
    policy.failed(received(), ValueError("topsecret" + "x" * 999), batch)
    assert policy.manifest()["messages"][0]["error"] == "ValueError: ***" + "x" * 297


def test_failures_told_are_limited() -> None:
    policy, letters = policy_of("dead_letter")
    batch = new_batch()
    for entry in range(120):
        policy.failed(received(entry=entry), ValueError("x"), batch)
    found = policy.manifest()
    assert (found["count"], found["dead_letters"], len(found["messages"])) == (120, 120, 100)
    policy.flush()
    assert letters.flushed == 1
    ErrorPolicy("fail", None, None).flush()


@pytest.mark.parametrize("is_async", [False, True])
def test_passing_exception_is_no_failure(is_async: bool) -> None:
    class Skipped(Exception):
        pass

    def now(message: Message) -> None:
        raise Skipped

    async def later(message: Message) -> None:
        raise Skipped

    with pytest.raises(Skipped):
        handle(later if is_async else now, on_error="skip", passing=(Skipped,))


# ---- room in the batch -----------------------------------------------------------------------------------------------


def test_message_known_by_earlier_batch_is_not_handled() -> None:
    policy, _ = policy_of()
    batch = Batch(BatchLimits(None, None, None, None), CutEntries([cut_note({TOPIC: [[7, 3, "1", 2, PUBLISHED]]})]))
    handler = MessageHandler("text", policy, lambda message: 1 / 0)
    handler.start(received(b"x", 3, 0, 2), batch)
    assert handler.results(batch, 0) == [] and batch.others() == {TOPIC: [[7, 3, 0, 0, 2]]}


def test_message_without_room_stays_at_the_broker() -> None:
    seen: list[bytes] = []
    policy, _ = policy_of()
    handler, batch = MessageHandler("text", policy, lambda message: seen.append(message.data())), new_batch(messages=1)
    for entry in range(3):
        handler.start(received(b"%d" % entry, entry), batch)
    assert seen == [b"0"] and batch.stop_reason == "max_messages" and batch.others() == {}


def test_message_too_long_inline_ends_or_fails() -> None:
    long = received(b"x" * 500, 1)
    policy, _ = policy_of()
    handler, batch = MessageHandler("text", policy), new_batch(inline_bytes=400)
    with pytest.raises(MessageFailed, match="bytes as JSON: too many for an inline result; give a path"):
        handler.start(long, batch)
    batch = new_batch(inline_bytes=400)
    handler.start(received(b"x", 0), batch)
    handler.start(long, batch)  # The messages before it are returned first.
    assert (values(handler.results(batch, 0)), batch.stop_reason) == (["x"], "inline_limit")
    policy, _ = policy_of("skip")
    handler, batch = MessageHandler("text", policy), new_batch(inline_bytes=400)
    handler.start(long, batch)
    assert batch.others() == {TOPIC: [[7, 1, 1]]} and batch.stop_reason is None


# ---- concurrency -----------------------------------------------------------------------------------------------------


def test_concurrent_calls_up_to_the_limit() -> None:
    running, most = 0, 0
    gate: dict[str, asyncio.Event] = {}

    async def call(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.setdefault("all", asyncio.Event()).wait()
        running -= 1

    policy, _ = policy_of()
    handler, batch = MessageHandler("text", policy, call, concurrency=3), new_batch()
    started = 0
    while not handler.is_full:
        handler.start(received(b"%d" % started, started), batch)
        started += 1
    assert started == 3 and handler.is_busy
    assert handler.results(batch, 0) == [] and most == 3
    gate["all"].set()
    found: list[Any] = []
    while handler.is_busy:
        found += values(handler.results(batch, 10_000))
    assert sorted(found) == ["0", "1", "2"] and not handler.is_full
    handler.close()


def test_close_cancels_running_calls() -> None:
    ended: list[str] = []

    async def call(message: Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(message.data().decode())

    policy, _ = policy_of()
    handler, batch = MessageHandler("text", policy, call, concurrency=2), new_batch()
    for entry in range(2):
        handler.start(received(b"%d" % entry, entry), batch)
    handler.results(batch, 0)
    handler.close()
    handler.close()
    assert sorted(ended) == ["0", "1"] and not handler.is_busy


def test_interruption_during_a_loop_callback_is_raised() -> None:
    """A signal handler that raises within a callback of the loop is reported to the loop, not to its caller."""

    class Killed(BaseException):
        pass

    async def call(message: Message) -> None:
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "in a callback", "exception": Killed()})

    policy, _ = policy_of()
    handler, batch = MessageHandler("text", policy, call), new_batch()
    handler.start(received(), batch)
    with pytest.raises(Killed):
        for _ in range(10):
            handler.results(batch, 100)
    handler.close()
