"""Consume message service of a push consumer: calls of the handler, and processing of their results.

Rules: a concurrent handler receives chunks in any order, and a failed message is sent back with a delay or to the
dead-letter topic; it is acknowledged only when its copy is stored, and handled again locally after 5 s when it cannot
be. An orderly handler receives the messages of a queue one call after another, and failed ones stay first in their
queue, which pauses. Handlers run where the `MessageDispatcher` of the API runs them; `begin` and `end` are called
there, everything else on the loop.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from itertools import groupby
from typing import Any, Protocol

from pulsar_native._loggers import get_logger
from pulsar_native.engine.loop import Engine
from pulsar_native.exceptions import PulsarException, log_text
from pulsar_native.message import Message
from pulsar_native.protocol.dead_letter import RECONSUME_TIMES
from pulsar_native.push.config import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeContext,
    ConsumeMessageHook,
    ConsumeOrder,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageModel,
    PushConsumerConfig,
)
from pulsar_native.push.handler_errors import interrupts_program
from pulsar_native.push.key_queue import KeyQueue, KeyQueues
from pulsar_native.push.partition_poller import Counts, Item, PartitionPoller
from pulsar_native.push.send_message_back import FALLBACK_LEVEL, Again, next_step, tries_of

_log = get_logger("pulsar_native.push_consumer")

Status = ConsumeConcurrentlyStatus | ConsumeOrderlyStatus

# Delay in seconds before a message that could not be sent back is handled again locally.
LOCAL_RETRY = 5.0
# A queue of an orderly handler pauses no longer, whatever the handler asks for.
_LONGEST_SUSPENSION_MS = 30_000
# Maximum number of hanging messages of a partition sent back at a time.
_MOST_STUCK = 16


class Work:
    """One call of the handler: messages of one partition, and of one queue where order is kept."""

    __slots__ = ("called", "context", "items", "key_queue", "poller")

    def __init__(
        self,
        poller: PartitionPoller,
        items: list[Item],
        context: ConsumeContext,
        key_queue: KeyQueue[Item] | None = None,
    ) -> None:
        self.poller = poller
        self.items = items
        self.context = context
        self.key_queue = key_queue
        # False when none of the messages was ours any more.
        self.called = False

    @property
    def messages(self) -> list[Message]:
        """The messages, in a list of its own for each function called: it may change it."""
        return [item.position for item in self.items]


class MessageDispatcher(Protocol):
    """Executor that calls `begin` of the `ConsumeMessageService`, the handler, and `end`, for each work submitted."""

    def submit(self, work: Work) -> None: ...
    def is_in_handler(self) -> bool: ...
    def stop(self, *, cancel_running: bool = True) -> None: ...


class ConsumeMessageService(ABC):
    """Common part of concurrent and orderly services."""

    statuses: type[Status]

    def __init__(
        self,
        engine: Engine,
        config: PushConsumerConfig,
        counts: Counts,
        hooks: Sequence[ConsumeMessageHook],
        on_done: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._config = config
        self._counts = counts
        # Set by the code that creates both; see `MessageDispatcher`.
        self.dispatcher: MessageDispatcher
        self._hooks = hooks
        self._on_done = on_done
        self._broadcasting = config.message_model is MessageModel.BROADCASTING
        self._results: deque[tuple[Work, object]] = deque()
        self._notified = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self.stopped = False

    @abstractmethod
    def submit(self, poller: PartitionPoller, items: list[Item]) -> None:
        """Queue messages for handling, in their order where that is kept."""

    @abstractmethod
    def _finish(self, work: Work, status: Status | None) -> None:
        """Process the result of a call; None is a failure."""

    # --- around the handler (in its thread, or on the loop) ---------------------------------------------------------

    def begin(self, work: Work) -> bool:
        """Record that the handler receives a work now; return False when none of its messages is ours any more."""
        now = time.monotonic()
        for item in work.items:
            # Order of events: `started` is set first, so a message that is not ours afterwards was dropped before.
            item.started = now
        work.items = [item for item in work.items if work.poller.holds(item)]
        if self.stopped or not work.items:
            self._report(work, None)
            return False
        work.called = True
        for hook in self._hooks:
            self._trace(hook, "consume_message_before", work.messages, work.context)
        return True

    def end(self, work: Work, answer: object) -> None:
        """Process the handler's result, or the exception it raised."""
        status: Status | None = None
        if isinstance(answer, self.statuses):
            status = answer
        elif isinstance(answer, BaseException):
            _log.error("The handler failed for %s", _names(work), exc_info=answer)
        else:
            message = "The handler answered %r for %s, which counts as a failure%s"
            _log.warning(message, answer, _names(work), _advice(answer))
        for hook in self._hooks:
            self._trace(hook, "consume_message_after", work.messages, work.context, status)
        self._report(work, status)

    def _trace(self, hook: ConsumeMessageHook, method: str, *args: object) -> None:
        try:
            getattr(hook, method)(*args)
        except BaseException as error:
            if interrupts_program(error):
                raise
            _log.exception("Tracing failed; consuming goes on")

    def _report(self, work: Work, status: Status | None) -> None:
        # Order of events: a result is queued before the flag is read, and the loop clears the flag before it dequeues
        # results, so that one wake-up serves many and no result is missed.
        self._results.append((work, status))
        if not self._notified:
            self._notified = True
            self._engine.call(self._process_results)

    def _process_results(self) -> None:
        self._notified = False
        while self._results:
            work, status = self._results.popleft()
            if not self.stopped:
                self._finish(work, status)  # type: ignore[arg-type]
        self._on_done()

    # --- shared by both -----------------------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._engine.spawn(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._on_done()

    def _later(self, seconds: float, function: Callable[..., None], *args: object) -> None:
        def run() -> None:
            self._timers.discard(handle)
            if not self.stopped:
                function(*args)

        handle = self._engine.loop.call_later(max(seconds, 0), run)
        self._timers.add(handle)

    def _succeeded(self, poller: PartitionPoller, items: Sequence[Item]) -> None:
        self._counts.succeeded += poller.finish(items)

    def _drop(self, poller: PartitionPoller, items: Sequence[Item]) -> None:
        for item in items:
            _log.warning("Broadcasting: the handler failed for %s, which is dropped", item.position.message_id())
        self._counts.dropped += poller.finish(items)

    def stop(self) -> None:
        """Process no more results; background tasks end by themselves."""
        self.stopped = True
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()


def _names(work: Work) -> str:
    return ", ".join(str(item.position.message_id()) for item in work.items)


def _advice(answer: object) -> str:
    """Return what to do about an answer that is a status of the other kind of handlers."""
    if isinstance(answer, ConsumeOrderlyStatus):
        return "; register the handler by register_message_listener(orderly=…)"
    if isinstance(answer, ConsumeConcurrentlyStatus):
        return "; register the handler by register_message_listener(concurrently=…)"
    return ""


def _whole(name: str, value: object, otherwise: int) -> int:
    """Return the value a handler set in its context, or the default when it is no integer."""
    if isinstance(value, int):
        return value
    _log.warning("The handler set %s to %r, which is no whole number", name, value)
    return otherwise


class ConsumeMessageConcurrentlyService(ConsumeMessageService):
    """Service that dispatches chunks to any worker at any time."""

    statuses = ConsumeConcurrentlyStatus

    def submit(self, poller: PartitionPoller, items: list[Item]) -> None:
        """Split messages into chunks and queue them for the workers."""
        most = self._config.consume_message_batch_max_size
        for topic, group in groupby(items, lambda item: poller.topic_of(item.position)):
            same = list(group)
            for start in range(0, len(same), most):
                context = ConsumeConcurrentlyContext(topic.base.full, topic.partition)
                self.dispatcher.submit(Work(poller, same[start : start + most], context))

    def _finish(self, work: Work, status: Status | None) -> None:
        context = work.context
        assert isinstance(context, ConsumeConcurrentlyContext)
        count = 0
        if status is ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
            count = max(0, min(_whole("ack_index", context.ack_index, -1) + 1, len(work.items)))
        self._succeeded(work.poller, work.items[:count])
        failed = [item for item in work.items[count:] if work.poller.holds(item) and not item.is_going_back]
        if not work.called:
            # The handler was never called.
            return
        self._counts.failed += len(failed)
        if self._broadcasting:
            self._drop(work.poller, failed)
            return
        level = _whole("delay_level_when_next_consume", context.delay_level_when_next_consume, 0)
        for item in failed:
            self._go_back(work.poller, item, level)

    def _go_back(self, poller: PartitionPoller, item: Item, level: int) -> None:
        # Noted before the copy is stored, which takes time: `give_back_stuck` must not begin a second one.
        item.is_going_back = True
        self._spawn(self._send_back(poller, item, level))

    async def _send_back(self, poller: PartitionPoller, item: Item, level: int) -> None:
        """Store a copy for redelivery, or in the dead-letter topic, and acknowledge; on failure retry locally later."""
        try:
            dead = await self._store_copy(poller, item, level)
        except Exception as error:
            # Of whatever kind: a message that is neither put back nor tried again would stay unfinished.
            _log.warning(
                "%s cannot be put back, it is tried here again in %g s: %s",
                item.position.message_id(), LOCAL_RETRY, log_text(error),
            )  # fmt: skip
            item.tries += 1
            self._later(LOCAL_RETRY, self._try_here, poller, item)
            return
        if dead:
            self._counts.dead_letters += 1
        else:
            self._counts.sent_back += 1
        poller.finish([item])

    async def _store_copy(self, poller: PartitionPoller, item: Item, level: int) -> bool:
        """Store a copy in the topic decided on; return True if that is the dead-letter topic."""
        router, message, config = poller.child.dead_letter_router, item.position, self._config
        assert router is not None
        times = tries_of(message.properties().get(RECONSUME_TIMES)) + item.tries
        counted = {RECONSUME_TIMES: str(times)} if item.tries else None
        step = next_step(times, config.max_reconsume_times, level, config.delay_levels_ms)
        try:
            if isinstance(step, Again):
                await router.send_again(message, step.delay_ms, counted)
                return False
            await router.send_to_dlq(message)
            return True
        except PulsarException as error:
            if isinstance(step, Again):
                raise
            _log.warning("%s cannot be sent to the dead-letter topic, retrying: %s", message.message_id(), error)
        # The retry topic may accept what the dead-letter topic rejects: it is redelivered once more.
        again = next_step(times, times + 1, FALLBACK_LEVEL + times, config.delay_levels_ms)
        assert isinstance(again, Again)
        await router.send_again(message, again.delay_ms, counted)
        return False

    def _try_here(self, poller: PartitionPoller, item: Item) -> None:
        if poller.holds(item):
            self.submit(poller, [poller.queue.renew(item)])

    def give_back_stuck(self, pollers: Sequence[PartitionPoller], now: float) -> None:
        """Send back, at the level a failed send-back starts at, messages a handler has had for the time-out."""
        if self._broadcasting:
            return
        before = now - self._config.consume_timeout_minutes * 60
        for poller in pollers:
            for item in poller.queue.stuck(before, _MOST_STUCK):
                _log.warning("The handler hangs at %s, which is put back", item.position.message_id())
                self._go_back(poller, item, FALLBACK_LEVEL)


class ConsumeMessageOrderlyService(ConsumeMessageService):
    """Service with one worker at a time per queue: a partition, or a key of it."""

    statuses = ConsumeOrderlyStatus

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._key_queues: KeyQueues[Item] = KeyQueues()
        self._running = 0
        self._by_key = self._config.consume_order is ConsumeOrder.KEY
        self._wake_at: float | None = None

    def submit(self, poller: PartitionPoller, items: list[Item]) -> None:
        """Append messages to their queues."""
        for item in items:
            self._key_queues.add((poller, self._key(item.position)), [item])
        self._pump()

    def _key(self, message: Message) -> Hashable:
        if not self._by_key:
            return None
        ordering = message.ordering_key_bytes()
        if ordering is not None:
            return ordering
        return message.key_bytes() if message.has_key() else None

    def _pump(self) -> None:
        """Assign queues to workers while both are available."""
        while not self.stopped and self._running < self._config.consume_thread_max:
            key_queue = self._key_queues.claim(time.monotonic())
            if key_queue is None:
                self._wake_later()
                return
            self._start(key_queue)

    def _wake_later(self) -> None:
        at = self._key_queues.next_wake()
        if at is None or (self._wake_at is not None and self._wake_at <= at):
            return
        self._wake_at = at
        self._later(at - time.monotonic(), self._rested)

    def _rested(self) -> None:
        self._wake_at = None
        self._pump()

    def _start(self, key_queue: KeyQueue[Item]) -> None:
        poller: PartitionPoller = key_queue.key[0]  # type: ignore[index]
        poller.check_right()
        key_queue.uncommitted = [item for item in key_queue.uncommitted if poller.holds(item)]
        items: list[Item] = []
        while not items and key_queue.waiting:
            taken = self._key_queues.dequeue(key_queue, self._config.consume_message_batch_max_size)
            # Messages that are not ours any more are redelivered here or went to another member.
            items = [item for item in taken if poller.holds(item)]
        if not items:
            self._key_queues.release(key_queue, time.monotonic())
            return
        first = items[0].position
        topic = poller.topic_of(first)
        context = ConsumeOrderlyContext(
            topic.base.full,
            topic.partition,
            first.partition_key() if first.has_key() else None,
            attempts=max(item.tries for item in items),
            suspend_current_queue_time_millis=self._config.suspend_current_queue_time_millis,
        )
        self._running += 1
        for item in items:
            item.started = time.monotonic()
        self.dispatcher.submit(Work(poller, items, context, key_queue))

    def _finish(self, work: Work, status: Status | None) -> None:
        key_queue, context = work.key_queue, work.context
        assert key_queue is not None and isinstance(context, ConsumeOrderlyContext)
        self._running -= 1
        if not work.called:
            self._key_queues.release(key_queue, time.monotonic())
        elif status is ConsumeOrderlyStatus.COMMIT or (status is ConsumeOrderlyStatus.SUCCESS and context.auto_commit):
            self._succeeded(work.poller, [*self._key_queues.commit(key_queue), *work.items])
            self._key_queues.release(key_queue, time.monotonic())
        elif status is ConsumeOrderlyStatus.SUCCESS:
            self._key_queues.note(key_queue, work.items)
            for item in work.items:
                item.started = None
            self._key_queues.release(key_queue, time.monotonic())
        else:
            self._failed(work, key_queue, context, rolled_back=status is ConsumeOrderlyStatus.ROLLBACK)
        self._pump()

    def _failed(
        self, work: Work, key_queue: KeyQueue[Item], context: ConsumeOrderlyContext, *, rolled_back: bool
    ) -> None:
        self._counts.failed += len(work.items)
        uncommitted = self._key_queues.roll_back(key_queue) if rolled_back else []
        most = self._config.max_reconsume_times
        # Each message has its own number of tries: newcomers in a call are not dead with the others.
        dead = [item for item in work.items if most != -1 and item.tries >= most]
        left = [*uncommitted, *work.items]
        for item in work.items:
            item.tries += 1
        if not dead:
            self._suspend(key_queue, left, context)
        elif self._broadcasting:
            self._drop(work.poller, dead)
            self._go_on(key_queue, [item for item in left if item not in dead], context)
        else:
            self._spawn(self._send_to_dlq(work.poller, dead, left, key_queue, context))

    def _go_on(self, key_queue: KeyQueue[Item], left: list[Item], context: ConsumeOrderlyContext) -> None:
        """Let a queue go on without its dead messages, after a pause where others have failed with them."""
        if left:
            self._suspend(key_queue, left, context)
        else:
            self._key_queues.release(key_queue, time.monotonic())

    def _suspend(self, key_queue: KeyQueue[Item], items: list[Item], context: ConsumeOrderlyContext) -> None:
        for item in items:
            item.started = None
        milliseconds = _whole("suspend_current_queue_time_millis", context.suspend_current_queue_time_millis, -1)
        if milliseconds == -1:
            milliseconds = self._config.suspend_current_queue_time_millis
        # A handler may set an int of any size, which is not a float then.
        seconds = min(max(milliseconds, 0), _LONGEST_SUSPENSION_MS) / 1000
        self._key_queues.suspend(key_queue, items, seconds, time.monotonic())

    async def _send_to_dlq(
        self,
        poller: PartitionPoller,
        dead: list[Item],
        left: list[Item],
        key_queue: KeyQueue[Item],
        context: ConsumeOrderlyContext,
    ) -> None:
        """Send messages that failed too often to the dead-letter topic, so that their queue can go on with the others;
        on failure it pauses.
        """
        router = poller.child.dead_letter_router
        assert router is not None
        for item in dead:
            try:
                await router.send_to_dlq(item.position)
            except Exception as error:
                # Of whatever kind: the queue would never be released.
                _log.warning(
                    "%s cannot be sent to the dead-letter topic, retrying: %s",
                    item.position.message_id(), log_text(error),
                )  # fmt: skip
                break
            left.remove(item)
            self._counts.dead_letters += poller.finish([item])
        self._go_on(key_queue, left, context)
        self._pump()
