"""Public methods of the sync and the asyncio API: the same names, parameters and results, but for what is listed."""

from __future__ import annotations

import inspect

import pytest

import pulsar_native
import pulsar_native.asyncio

APIS = {"sync": pulsar_native, "asyncio": pulsar_native.asyncio}
CLASSES = ("Client", "Producer", "Consumer", "Reader", "TableView", "Transaction", "PushConsumer")
# Where the APIs differ on purpose, and how: the sync API first, None where it has no such parameter.
_BY_POSITION, _BY_NAME = "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"
DIFFERENT: dict[str, dict[str, tuple[object, object]]] = {
    # These four are so in the official client.
    "Client.create_producer": {"batching_enabled": (("bool", False, _BY_POSITION), ("bool", True, _BY_POSITION))},
    "Client.create_reader": {
        "reader_listener": (("Callable[[Reader[S], Message[S]], Any] | None", None, _BY_POSITION), None),
    },
    "Client.subscribe": {
        "message_listener": (("MessageListener[S] | None", None, _BY_POSITION), None),
        # As Java's futures, the asyncio API has no listeners: a task that iterates is one.
        "message_listener_executor": (("MessageListenerExecutor | None", None, _BY_NAME), None),
        "is_pattern_topic": (None, ("bool", False, _BY_POSITION)),
        "pattern_auto_discovery_period": (("int", 60, _BY_POSITION), ("float", 60, _BY_NAME)),
    },
    # As the official clients have it: None there only means the default.
    "Producer.send": {"disable_replication": (("bool", False, _BY_POSITION), ("bool | None", None, _BY_POSITION))},
    "Producer.flush": {"timeout": (("float | None", None, _BY_POSITION), None)},
    # An asyncio program may have its messages from an asynchronous source.
    "Producer.send_many": {
        "messages": (
            ("Iterable[T_contra | NewMessage | None]", inspect.Parameter.empty, _BY_POSITION),
            (
                "Iterable[T_contra | NewMessage | None] | AsyncIterable[T_contra | NewMessage | None]",
                inspect.Parameter.empty,
                _BY_POSITION,
            ),
        )
    },
}
OTHER_RESULTS = {
    "Producer.send": ("MessageId", "Coroutine[Any, Any, MessageId]"),
    "Reader.arrow_batches": ("Iterator[pyarrow.RecordBatch]", "AsyncIterator[pyarrow.RecordBatch]"),
}
ONLY_IN_ONE = {
    "Producer": ({"send_async"}, {"enqueue"}),
    "Consumer": ({"pause_message_listener", "resume_message_listener"}, {"negative_acknowledge_now"}),
}


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def _signature(kind: type, name: str) -> inspect.Signature:
    found = inspect.getattr_static(kind, name)
    return inspect.signature(getattr(found, "fget", None) or getattr(kind, name))


def _parameters(kind: type, name: str) -> dict[str, tuple[object, object, str]]:
    return {
        each.name: (each.annotation, each.default, each.kind.name)
        for each in _signature(kind, name).parameters.values()
    }


@pytest.mark.parametrize("kind", CLASSES)
def test_both_apis_have_the_same_methods(kind: str) -> None:
    sync, on_loop = (getattr(api, kind) for api in APIS.values())
    own = ONLY_IN_ONE.get(kind, (set(), set()))
    assert (_public(sync) - _public(on_loop), _public(on_loop) - _public(sync)) == own
    for method in sorted(_public(sync) & _public(on_loop)):
        name = f"{kind}.{method}"
        ours, theirs = _parameters(sync, method), _parameters(on_loop, method)
        differ = {
            each: (ours.get(each), theirs.get(each))
            for each in ours.keys() | theirs.keys()
            if ours.get(each) != theirs.get(each)
        }
        assert differ == DIFFERENT.get(name, {}), name
        assert [each for each in ours if each not in differ] == [each for each in theirs if each not in differ], name
        results = tuple(_signature(api, method).return_annotation for api in (sync, on_loop))
        assert results == OTHER_RESULTS.get(name, (results[0],) * 2), name
