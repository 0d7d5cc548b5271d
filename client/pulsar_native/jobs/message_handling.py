"""Handling of single messages: decode, call a function, and apply the policy to failures.

Rules: a message is added to the output, acknowledged without it, or left at the broker; nothing is acknowledged here. A
coroutine function runs up to `concurrency` calls at once, on a loop in the calling thread that runs only while this
module is called.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.batch import record_of
from pulsar_native.jobs.failures import JobFailed, JobRefused, reason_of
from pulsar_native.jobs.output import json_line

if TYPE_CHECKING:
    from pulsar_native import Message
    from pulsar_native.jobs.batch import Batch
    from pulsar_native.jobs.dead_letters import DeadLetterPublisher

ON_ERROR = ("fail", "skip", "dead_letter", "retry_letter")
# Number of failed messages with their cause in the manifest; the others are counted.
_TOLD = 100

Handled = tuple["Message", dict[str, Any], bytes]


class MessageResult(StrEnum):
    """Result of a function that handles single messages.

    ACK: in the output and acknowledged (None means the same). SKIP: acknowledged, not in the output. NACK: left at the
    broker for a later batch. DEAD_LETTER, RETRY_LETTER: copied to that topic and acknowledged.
    """

    ACK = "ack"
    SKIP = "skip"
    NACK = "nack"
    DEAD_LETTER = "dead_letter"
    RETRY_LETTER = "retry_letter"


class MessageFailed(JobFailed):
    """Raised when a message cannot be decoded or handled and the policy is to fail, or too many have failed."""


class ErrorPolicy:
    """Policy for failed messages, with counts. Not thread-safe."""

    def __init__(
        self,
        on_error: str,
        max_errors: int | None,
        dead_letters: DeadLetterPublisher | None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.on_error = on_error
        self._max_errors = max_errors
        self._dead_letters = dead_letters
        self._redact = redact
        self._errors = 0
        self._counts = dict.fromkeys(("skip", "nack", "dead_letter", "retry_letter"), 0)
        self._told: list[dict[str, str]] = []

    def failed(self, message: Message, error: Exception, batch: Batch) -> None:
        """Apply the policy to a failed message; raises `MessageFailed` if it is to fail."""
        self._errors += 1
        place = f"{message.message_id()} of {message.topic_name()}"
        reason = self._reason(error)
        if self.on_error == "fail":
            raise MessageFailed(
                f"message {place}: {reason}. on_error='skip', 'dead_letter' or 'retry_letter' lets the others go on"
            ) from error
        if self._max_errors is not None and self._errors > self._max_errors:
            raise MessageFailed(
                f"more than max_errors={self._max_errors} messages failed; the last, {place}: {reason}"
            ) from error
        self.apply(MessageResult(self.on_error), message, batch, error)

    def apply(self, result: MessageResult, message: Message, batch: Batch, error: Exception | None = None) -> None:
        """Apply a result other than ACK to a message."""
        self._counts[result.value] += 1
        if len(self._told) < _TOLD:
            told = {"id": str(message.message_id()), "topic": message.topic_name(), "action": result.value}
            self._told.append(told if error is None else told | {"error": self._reason(error)})
        if result is MessageResult.NACK:
            return
        if result is not MessageResult.SKIP:
            if self._dead_letters is None:
                raise JobRefused(
                    f"process_message returned {result.value!r}, but no dead-letter or retry topic is configured "
                    "here, or the messages were decrypted, and would not be encrypted there"
                )
            self._dead_letters.add(message, error, retry=result is MessageResult.RETRY_LETTER)
        batch.add_other(message)

    def _reason(self, error: BaseException) -> str:
        return reason_of(error, self._redact)

    def flush(self) -> None:
        """Publish the dead letters and wait until they are stored; raises if one is not."""
        if self._dead_letters is not None:
            self._dead_letters.flush()

    def manifest(self) -> dict[str, Any]:
        """Return counts, and id and cause of the first messages outside the output."""
        counts = self._counts
        return {
            "count": self._errors,
            "skipped": counts["skip"],
            "nacked": counts["nack"],
            "dead_letters": counts["dead_letter"],
            "retry_letters": counts["retry_letter"],
            "messages": self._told,
        }


class MessageHandler:
    """Decoder of messages and caller of a function, one call at a time or several. Not thread-safe."""

    def __init__(
        self,
        decoder: str,
        policy: ErrorPolicy,
        function: Callable[[Message], Any] | None = None,
        *,
        concurrency: int = 1,
        retries: bool = True,
        passing: tuple[type[Exception], ...] = (),
    ) -> None:
        """Set the handler; exceptions `passing` end the batch whatever the policy is.

        Without `retries` a retry letter would have no consumer: the function must not return one.
        """
        self.policy = policy
        self._decoder = decoder
        self._function = function
        self._concurrency = concurrency
        self._retries = retries
        self._passing = passing
        self._done: list[Handled] = []
        self._running: dict[asyncio.Future[Any], Handled] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # Exception of a signal handler during a callback of the loop, which would swallow it.
        self._interrupted: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """True while calls are running."""
        return bool(self._running)

    @property
    def is_full(self) -> bool:
        """True while as many calls as allowed are running."""
        return len(self._running) >= self._concurrency

    def start(self, message: Message, batch: Batch) -> None:
        """Start handling a received message; without room in the batch it stays at the broker."""
        if batch.cut and batch.cut.is_known(message):
            batch.add_other(message)
            return
        try:
            record = record_of(message, self._decoder)
            line = json_line(record)
            if batch.is_too_long(len(line)):
                if self.policy.on_error == "fail" and not batch.is_empty:
                    batch.stop_reason = "inline_limit"
                    return
                validation.refuse(f"it has {len(line)} bytes as JSON: too many for an inline result; give a path")
        except Exception as error:
            # A decoder may raise any exception for unexpected bytes.
            if batch.takes(len(message), 0):
                self.policy.failed(message, error, batch)
            return
        if batch.takes(len(message), len(line)):
            self._handle((message, record, line), batch)

    def _handle(self, handled: Handled, batch: Batch) -> None:
        if self._function is None:
            self._done.append(handled)
            return
        try:
            result = self._function(handled[0])
        except self._passing:
            raise
        except (Exception, asyncio.CancelledError) as error:
            self.policy.failed(handled[0], _ordinary(error), batch)
            return
        if inspect.isawaitable(result):
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_exception_handler(self._on_loop_error)
            self._running[self._loop.create_task(_awaited(result))] = handled
        else:
            self._apply(handled, result, batch)

    def _apply(self, handled: Handled, result: object, batch: Batch) -> None:
        if result is None or (isinstance(result, str) and result == MessageResult.ACK):
            self._done.append(handled)
            return
        if not isinstance(result, str) or result not in list(MessageResult):
            raise JobRefused(
                f"process_message returned {result!r} for {handled[0].message_id()}; it may return None or a "
                f"MessageResult: {', '.join(MessageResult)}"
            )
        known = MessageResult(result)
        if known is MessageResult.RETRY_LETTER and not self._retries:
            raise JobRefused(
                "process_message returned 'retry_letter', but retry letters are not received here: set "
                "retry_letter_topic, or on_error='retry_letter'"
            )
        self.policy.apply(known, handled[0], batch)

    def results(self, batch: Batch, millis: float) -> list[Handled]:
        """Return messages for the output; waits for a running call to end, up to a time limit."""
        if self._running:
            assert self._loop is not None
            wait = asyncio.wait(self._running, timeout=millis / 1000, return_when=asyncio.FIRST_COMPLETED)
            ended, _ = self._loop.run_until_complete(wait)
            if self._interrupted is not None:
                raise self._interrupted
            for each in ended:
                handled = self._running.pop(each)
                try:
                    result = each.result()
                except self._passing:
                    raise
                except (Exception, asyncio.CancelledError) as error:
                    self.policy.failed(handled[0], _ordinary(error), batch)
                else:
                    self._apply(handled, result, batch)
        done, self._done = self._done, []
        return done

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not isinstance(error, Exception):
            self._interrupted = error
        else:
            loop.default_exception_handler(context)

    def close(self) -> None:
        """Cancel running calls, run the loop once for them, and close it."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        for each in self._running:
            each.cancel()
        if self._running:
            loop.run_until_complete(asyncio.wait(self._running, timeout=0))
        for each in self._running:
            # Tasks that ignore cancellation are left to the garbage collector.
            if each.done() and not each.cancelled():
                each.exception()
        self._running.clear()
        loop.close()


def _ordinary(error: BaseException) -> Exception:
    """Return the error of a call; a RuntimeError for a CancelledError, which asyncio takes for a cancellation."""
    return error if isinstance(error, Exception) else RuntimeError("process_message raised CancelledError")


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
