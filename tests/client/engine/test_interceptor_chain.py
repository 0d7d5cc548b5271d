"""Chains of interceptors: in order, exceptions isolated, live objects referenced weakly."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from pulsar_native.engine.interceptor_chain import ConsumerChain, ProducerChain
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.message_id import MessageId
from support.jobs import received
from support.other_thread import OWN_ERRORS, in_other_thread

Calls = list[tuple[Any, ...]]


class Live:
    """A producer or consumer."""


class Marking(ProducerInterceptor):
    """An interceptor that adds a property; `answer` replaces what a method returns or raises."""

    def __init__(self, calls: Calls, name: str, **answer: Any) -> None:
        self._calls, self._name, self._answer = calls, name, answer

    def _answered(self, method: str, usual: Any) -> Any:
        found = self._answer.get(method, usual)
        if isinstance(found, BaseException):
            raise found
        return found

    def eligible(self, message: OutgoingMessage) -> bool:
        return bool(self._answered("eligible", True))

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        self._calls.append((self._name, producer))
        marked = OutgoingMessage(message.payload, properties={**(message.properties or {}), self._name: "1"})
        found: OutgoingMessage = self._answered("before_send", marked)
        return found

    def on_send_acknowledgement(self, *given: Any) -> None:
        self._calls.append((self._name, *given))
        self._answered("on_send_acknowledgement", None)

    def close(self) -> None:
        self._calls.append((self._name, "close"))
        self._answered("close", None)


def producing(*interceptors: ProducerInterceptor) -> ProducerChain:
    """Return the chain of a producer."""
    return producing_of(interceptors)


def producing_of(interceptors: Any) -> ProducerChain:
    """Return the chain of what a caller gives as the interceptors of a producer."""
    return ProducerChain(interceptors, lambda message: b"")


def test_before_send_passes_through_all_in_order() -> None:
    calls: Calls = []
    live, chain = Live(), producing(one := Marking(calls, "a"), other := Marking(calls, "b"))
    chain.bind(live)
    message, caring = chain.before_send(OutgoingMessage(b"x"))
    assert list(message.properties or {}) == ["a", "b"] and caring == [one, other]
    assert calls == [("a", live), ("b", live)]


@pytest.mark.parametrize(
    ("answer", "cares"),
    [
        ({"eligible": False}, False),
        ({"eligible": ValueError("x")}, False),
        ({"eligible": asyncio.CancelledError("x")}, False),
        ({"before_send": ValueError("x")}, True),
        ({"before_send": asyncio.CancelledError("x")}, True),
        ({"before_send": None}, True),
        ({"before_send": b"x"}, True),
    ],
)
def test_before_send_failure_leaves_the_message(
    answer: dict[str, Any], cares: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chain = producing(Marking([], "a"), wrong := Marking([], "b", **answer), Marking([], "c"))
    message, caring = chain.before_send(OutgoingMessage(b"x"))
    assert list(message.properties or {}) == ["a", "c"] and (wrong in caring) is cares
    raised = any(isinstance(each, BaseException) for each in answer.values())
    assert ("The interceptor Marking failed in" in caplog.text) is raised


@pytest.mark.parametrize("fault", [SystemExit("x"), asyncio.CancelledError("x")], ids=repr)
@pytest.mark.parametrize("error", [None, ValueError("not stored")])
def test_receipt_reaches_those_that_care(error: Exception | None, fault: BaseException) -> None:
    calls: Calls = []
    first = Marking(calls, "a", on_send_acknowledgement=fault)
    chain = producing(first, Marking(calls, "b", eligible=False), Marking(calls, "c"))
    live = Live()
    chain.bind(live)
    message, caring = chain.before_send(OutgoingMessage(b"x"))
    calls.clear()
    message_id = None if error else MessageId(1, 2, 3, 4)
    chain.on_receipt(caring, message, message_id, error)
    assert calls == [("a", live, message, message_id, error), ("c", live, message, message_id, error)]


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_receipt_in_thread_reaches_all(kind: type[BaseException]) -> None:
    calls: Calls = []
    chain = producing(Marking(calls, "a", on_send_acknowledgement=kind("x")), Marking(calls, "b"))
    message, caring = chain.before_send(OutgoingMessage(b"x"))
    calls.clear()
    in_other_thread(chain.on_receipt, caring, message, None, None)
    assert [name for name, *_ in calls] == ["a", "b"]


@pytest.mark.parametrize("fault", [ValueError("x"), asyncio.CancelledError("x")], ids=repr)
def test_chain_closes_each_once_despite_errors(fault: BaseException) -> None:
    calls: Calls = []
    chain = producing(Marking(calls, "a", close=fault), Marking(calls, "b"))
    chain.close()
    chain.close()
    assert calls == [("a", "close"), ("b", "close")]


def test_chain_does_not_hold_its_live_object() -> None:
    calls: Calls = []
    chain, bound = producing(Marking(calls, "a")), []
    chain.on_bound = lambda: bound.append(chain.is_bound)
    live = Live()
    chain.bind(live)
    assert bound == [True]
    del live
    gc.collect()
    chain.before_send(OutgoingMessage(b"x"))
    assert calls == [("a", None)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: producing(ConsumerInterceptor()), "must be ProducerInterceptor objects, not ConsumerInterceptor"),  # type: ignore[arg-type]
        (lambda: ConsumerChain([ReaderInterceptor()], reads=False), "must be ConsumerInterceptor objects, not Reader"),
        (lambda: ConsumerChain([ConsumerInterceptor()], reads=True), "must be ReaderInterceptor objects, not Consumer"),
        (lambda: producing(Marking), "must be ProducerInterceptor objects, not type"),  # type: ignore[arg-type]
        (lambda: producing_of(5), "interceptors must be a list of ProducerInterceptor objects, not int$"),
        (
            lambda: producing_of(iter([Marking([], "a")])),
            "must be a list of ProducerInterceptor objects, not list_iter",
        ),
        (lambda: producing_of(Marking([], "a")), r"not Marking; write \[interceptor\] for a single one"),
    ],
)
def test_chain_of_another_kind_raises(make: Any, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        make()


async def coroutine(*_: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize("name", [name for name in vars(ProducerInterceptor) if not name.startswith("_")])
def test_chain_of_a_coroutine_method_raises(name: str) -> None:
    interceptor = type("Mine", (ProducerInterceptor,), {name: coroutine})()
    with pytest.raises(InvalidConfiguration, match=rf"Mine\.{name} must be a plain function"):
        producing(interceptor)


# --- consumers --------------------------------------------------------------------------------------------------


class Replacing(ConsumerInterceptor):
    """An interceptor that gives other messages."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.told: Calls = []

    def before_consume(self, consumer: Any, message: Message) -> Message:
        found = self._answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        answer: Message = found
        return answer

    def on_acknowledge(self, *given: Any) -> None:
        self.told.append(given)


class Arriving(ConsumerInterceptor):
    """An interceptor that sees messages arrive."""

    def on_arrival(self, consumer: Any, message: Message) -> Message:
        return received(b"seen", message.message_id().entry_id())


class Reading(ReaderInterceptor):
    """An interceptor of a reader."""

    def before_read(self, reader: Any, message: Message) -> Message:
        return received(b"read")


def test_arrived_takes_only_messages() -> None:
    message, other = received(b"a"), received(b"b")
    answers = other, None, ValueError("x"), asyncio.CancelledError("x"), "text"
    chain = ConsumerChain([Replacing(*answers)], reads=False)
    assert [chain.arrived(message) for _ in answers] == [other, *[message] * 4]


def test_arrived_asks_readers_by_their_own_method() -> None:
    assert ConsumerChain([Reading()], reads=True).arrived(received(b"a")).data() == b"read"


def test_arrival_seen_only_by_who_overrides_it() -> None:
    assert not ConsumerChain([Replacing()], reads=False).sees_arrival
    assert not ConsumerChain([Reading()], reads=True).sees_arrival
    chain = ConsumerChain([Replacing(), Arriving()], reads=False)
    assert chain.sees_arrival
    found = chain.arriving([received(b"a", 1), received(b"b", 2)])
    assert [(each.data(), each.message_id().entry_id()) for each in found] == [(b"seen", 1), (b"seen", 2)]


def test_acknowledgements_are_told_to_consumers_only() -> None:
    live, interceptor = Live(), Replacing()
    chain = ConsumerChain([interceptor], reads=False)
    chain.bind(live)
    chain.said("on_acknowledge", MessageId(), None)
    assert interceptor.told == [(live, MessageId(), None)]
    ConsumerChain([Reading()], reads=True).said("on_acknowledge", MessageId(), None)
