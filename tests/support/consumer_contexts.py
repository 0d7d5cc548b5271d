"""Contexts of a partition's consumer for its helpers, without a client: what they ask and have done is the test's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.engine.loop import Engine
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.frames import FrameDecoder
from support.consumer_cores import TOPIC


class DirectEngine:
    """Engine whose calls run at once, on the loop of the test."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def on_loop(self) -> bool:
        return True

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        function(*arguments)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(work)


class Written:
    """Connection that keeps the frames written to it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write(self, frames: list[bytes]) -> None:
        self.frames += frames

    def commands(self) -> list[pb.BaseCommand]:
        """Return the commands written since the last call."""
        frames, self.frames = self.frames, []
        return [frame.command for frame in FrameDecoder().receive(b"".join(frames))]


@dataclass
class ConsumerState:
    """State of a consumer, and its context; timers are kept, and run by the test."""

    config: ConsumerConfig = field(default_factory=lambda: ConsumerConfig(subscription_name="s"))
    connection: Written | None = field(default_factory=Written)
    is_alive: bool = True
    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    notes: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = ConsumerContext(
            TopicName.parse(TOPIC),
            self.config,
            consumer_id=3,
            name="c",
            engine=cast(Engine, DirectEngine()),
            lock=threading.Lock(),
            connection=lambda: cast(Connection | None, self.connection),
            is_alive=lambda: self.is_alive,
            check_usable=lambda: None,
            call_later=self._call_later,
            note=lambda name, number: self.notes.append((name, number)),
        )

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        # One of the same function is replaced, as the handler does.
        self.timers[:] = [each for each in self.timers if each[1] != function]
        self.timers.append((seconds, function))

    def run_timer(self) -> float:
        """Run the only timer and return its seconds."""
        ((seconds, function),) = self.timers
        self.timers.clear()
        function()
        return seconds
