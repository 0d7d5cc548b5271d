"""What the APIs' methods ask for: their signatures against each other and the descriptions; what is made of them."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import ssl
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

import pulsar_native
import pulsar_native.asyncio
from pulsar_native import plans
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerConfig,
    DeadLetterPolicy,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    ProducerConfig,
    ReaderConfig,
)
from pulsar_native.crypto import CryptoKeyReader
from pulsar_native.engine.client import ClientCore
from pulsar_native.enums import (
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    SubscriptionMode,
)
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.schema import StringSchema

# --- signatures -------------------------------------------------------------------------------------------------------

APIS = {"blocking": pulsar_native, "asyncio": pulsar_native.asyncio}
CLASSES = ("Client", "Producer", "Consumer", "Reader", "TableView", "Transaction", "PushConsumer")
# Where the APIs differ on purpose, and how: the blocking one first, None where it has no such parameter.
_BY_POSITION, _BY_NAME = "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"
DIFFERENT: dict[str, dict[str, tuple[object, object]]] = {
    # These four are so in the official client.
    "Client.create_producer": {"batching_enabled": (("bool", False, _BY_POSITION), ("bool", True, _BY_POSITION))},
    "Client.create_reader": {
        "reader_listener": (("Callable[[Reader, Message], Any] | None", None, _BY_POSITION), None),
    },
    "Client.subscribe": {
        "message_listener": (("MessageListener | None", None, _BY_POSITION), None),
        "is_pattern_topic": (None, ("bool", False, _BY_POSITION)),
        "pattern_auto_discovery_period": (("int", 60, _BY_POSITION), ("float", 60, _BY_NAME)),
    },
    # As the official clients have it: None there only means the default.
    "Producer.send": {"disable_replication": (("bool", False, _BY_POSITION), ("bool | None", None, _BY_POSITION))},
    "Producer.flush": {"timeout": (("float | None", None, _BY_POSITION), None)},
    # An asyncio program may have its messages from an asynchronous source.
    "Producer.send_many": {
        "messages": (
            ("Iterable[Any]", inspect.Parameter.empty, _BY_POSITION),
            ("Iterable[Any] | AsyncIterable[Any]", inspect.Parameter.empty, _BY_POSITION),
        )
    },
}
OTHER_RESULTS = {"Reader.arrow_batches": ("Iterator[pyarrow.RecordBatch]", "AsyncIterator[pyarrow.RecordBatch]")}
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
def test_both_apis_have_the_same_methods_and_results(kind: str) -> None:
    blocking, on_loop = (getattr(api, kind) for api in APIS.values())
    own = ONLY_IN_ONE.get(kind, (set(), set()))
    assert (_public(blocking) - _public(on_loop), _public(on_loop) - _public(blocking)) == own
    for method in sorted(_public(blocking) & _public(on_loop)):
        name = f"{kind}.{method}"
        ours, theirs = _parameters(blocking, method), _parameters(on_loop, method)
        differ = {
            each: (ours.get(each), theirs.get(each))
            for each in ours.keys() | theirs.keys()
            if ours.get(each) != theirs.get(each)
        }
        assert differ == DIFFERENT.get(name, {}), name
        assert [each for each in ours if each not in differ] == [each for each in theirs if each not in differ], name
        results = tuple(_signature(api, method).return_annotation for api in (blocking, on_loop))
        assert results == OTHER_RESULTS.get(name, (results[0],) * 2), name


METHODS: dict[str, type[Any]] = {
    "create_producer": ProducerConfig,
    "subscribe": ConsumerConfig,
    "create_reader": ReaderConfig,
    "create_table_view": ReaderConfig,
}
# Types and defaults of parameters that are not those of the field.
PARAMETERS_APART: dict[tuple[str, str, str], tuple[object, object]] = {
    ("asyncio", "create_producer", "batching_enabled"): (bool, True),
    # The official client's type.
    ("blocking", "subscribe", "pattern_auto_discovery_period"): (int, 60),
    ("blocking", "create_reader", "topic"): (str | list[str], inspect.Parameter.empty),
    ("asyncio", "create_reader", "topic"): (str | list[str], inspect.Parameter.empty),
    ("blocking", "create_table_view", "topic"): (str, inspect.Parameter.empty),
    ("asyncio", "create_table_view", "topic"): (str, inspect.Parameter.empty),
}


def _field_default(field: dataclasses.Field[Any]) -> object:
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("method", METHODS)
def test_parameters_have_the_types_and_defaults_of_what_they_describe(api: str, method: str) -> None:
    kind, function = METHODS[method], getattr(APIS[api].Client, method)
    hints, wanted = typing.get_type_hints(function), typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in plans._BESIDES[kind]:
            continue
        if name in plans._MAY_BE_NONE:
            assert (hints[name], parameter.default) == (wanted[name] | None, None), name
        else:
            expected = PARAMETERS_APART.get((api, method, name), (wanted[name], _field_default(fields[name])))
            assert (hints[name], parameter.default) == expected, name


def test_a_clients_parameters_are_its_description() -> None:
    parameters = inspect.signature(pulsar_native.Client.__init__).parameters
    fields = {field.name: field for field in dataclasses.fields(ClientConfig)}
    options = parameters.keys() - plans._BESIDES[ClientConfig]
    # The text is for descriptions that travel, such as an Airflow connection's.
    assert fields.keys() - options == {"description"}
    for name in options:
        # As they are written: some are imported for type checkers only.
        expected = "object" if name == "meter_provider" else fields[name].type
        assert (parameters[name].annotation, parameters[name].default) == (expected, _field_default(fields[name])), name


# --- every argument arrives -------------------------------------------------------------------------------------------


class Asked(Exception):
    """What an API asked of the engine."""

    def __init__(self, plan: Any) -> None:
        super().__init__()
        self.plan = plan


Ask = Callable[..., Any]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Call an API's method and return the plan that reaches the engine, which does nothing of it."""

    async def create_producer(_core: object, *given: Any) -> None:
        raise Asked(plans.ProducerPlan(*given))

    async def subscribe(_core: object, *given: Any) -> None:
        raise Asked(plans.ConsumerPlan(*given))

    monkeypatch.setattr(ClientCore, "create_producer", create_producer)
    monkeypatch.setattr(ClientCore, "subscribe", subscribe)

    async def on_loop(method: str, options: dict[str, Any]) -> None:
        async with pulsar_native.asyncio.Client("pulsar://localhost:1") as client:
            await getattr(client, method)(**options)

    def call(api: str, method: str, options: dict[str, Any]) -> Any:
        with pytest.raises(Asked) as asked:
            if api == "asyncio":
                asyncio.run(on_loop(method, options))
            else:
                with pulsar_native.Client("pulsar://localhost:1") as client:
                    getattr(client, method)(**options)
        return asked.value.plan

    return call


class Listener:
    """Everything a consumer may tell."""

    def on_topics_added(self, topics: list[str]) -> None: ...
    def on_topics_removed(self, topics: list[str]) -> None: ...
    def became_active(self, consumer: Any, partition: int) -> None: ...
    def became_inactive(self, consumer: Any, partition: int) -> None: ...


KEYS = CryptoKeyReader("public", "private")
NEEDED: dict[str, dict[str, Any]] = {
    "create_producer": {"topic": "t"},
    "subscribe": {"topic": "t", "subscription_name": "s"},
    "create_reader": {"topic": "t", "start_message_id": MessageId.earliest},
    "create_table_view": {"topic": "t"},
}
# A value for what its default does not tell one of.
VALUES: dict[str, Any] = {
    "topic": "another",
    "subscription_name": "another",
    "start_message_id": MessageId(1, 2, 3),
    "initial_sequence_id": 5,
    "unacked_messages_timeout_ms": 5000,
    "properties": {"a": "b"},
    "subscription_properties": {"a": "b"},
    "encryption_keys": ["k"],
    "crypto_key_reader": KEYS,
    "message_router": lambda message, count: 0,
    "batch_receive_policy": BatchReceivePolicy(max_num_messages=3),
    "dead_letter_policy": DeadLetterPolicy(max_redeliver_count=3),
    "key_shared_policy": KeySharedPolicy(key_shared_mode=KeySharedMode.AutoSplit),
    "key_hash_range": [(0, 5)],
    "ack_timeout_redelivery_backoff": MultiplierRedeliveryBackoff(),
    "negative_ack_redelivery_backoff": MultiplierRedeliveryBackoff(),
    "schema": StringSchema(),
    "topics_changed_listener": Listener(),
    "consumer_event_listener": Listener(),
}
INTERCEPTORS: dict[str, Any] = {
    "create_producer": ProducerInterceptor(),
    "subscribe": ConsumerInterceptor(),
    "create_reader": ReaderInterceptor(),
}
# What else must be said for an argument to be taken.
BESIDES: dict[str, dict[str, Any]] = {
    "chunking_enabled": {"batching_enabled": False},
    "encryption_key": {"crypto_key_reader": KEYS},
    "encryption_keys": {"crypto_key_reader": KEYS},
    "ack_timeout_redelivery_backoff": {"unacked_messages_timeout_ms": 5000},
    "key_shared_policy": {"consumer_type": ConsumerType.KeyShared},
    "regex_subscription_mode": {"topic": re.compile("a.*")},
    "topics_changed_listener": {"topic": re.compile("a.*")},
    "consumer_event_listener": {"consumer_type": ConsumerType.Failover},
}
# Of no effect here, or kept by the API: its own tests show that they are called.
NOT_ASKED = {"self", "broker_consumer_stats_cache_time_ms", "message_listener", "reader_listener"}


def _other_value(method: str, parameter: inspect.Parameter) -> Any:
    """Return a value that is not the default."""
    name, default = parameter.name, parameter.default
    if name == "interceptors":
        return [INTERCEPTORS[method]]
    if name in VALUES:
        return VALUES[name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, Enum):
        return next(each for each in type(default) if each is not default)
    if isinstance(default, int | float):
        return default + 1
    assert default is None and "str" in str(parameter.annotation), f"this test needs a value for {name}"
    return f"another {name}"


def _arrived(plan: Any, name: str) -> Any:
    """Return what became of an argument."""
    config = plan.config
    if name == "schema":
        return plan.schema if isinstance(plan, plans.ProducerPlan) else plan.decoder._schema
    if name == "interceptors":
        return list(plan.chain.interceptors)
    if name == "topic" and isinstance(plan, plans.ConsumerPlan):
        assert isinstance(plan.topics, list)
        return plan.topics[0]
    if name == "is_pattern_topic":
        return isinstance(plan.topics, TopicPattern)
    if name == "consumer_event_listener":
        return plan.activity._listener
    if name == "topics_changed_listener":
        # What is told of nothing calls nobody.
        return None if plan.changed is None else VALUES[name]
    if name == "reader_name":
        return config.consumer_name
    if name == "subscription_role_prefix":
        return config.subscription_name.partition("-reader-")[0]
    if name == "key_hash_range":
        return list(config.key_shared_policy.sticky_ranges)
    return getattr(config, name)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("method", METHODS)
def test_every_argument_arrives(ask: Ask, api: str, method: str) -> None:
    for name, parameter in inspect.signature(getattr(APIS[api].Client, method)).parameters.items():
        if name in NOT_ASKED:
            continue
        value = _other_value(method, parameter)
        extra = {"encryption_key": "k"} if (method, name) == ("create_producer", "crypto_key_reader") else {}
        plan = ask(api, method, {**NEEDED[method], **BESIDES.get(name, {}), **extra, name: value})
        found = _arrived(plan, name)
        assert found == value and value != parameter.default, name


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("method", METHODS)
def test_nothing_more_is_asked_for_than_was_said(ask: Ask, api: str, method: str) -> None:
    plan = ask(api, method, NEEDED[method])
    if method == "create_producer":
        assert plan.config == ProducerConfig(topic="t", batching_enabled=api == "asyncio")
        assert plan.chain is None
    elif method == "subscribe":
        assert plan.config == ConsumerConfig(subscription_name="s") and plan.topics == ["t"]
        assert (plan.wire_schema, plan.chain, plan.changed, plan.activity) == (None, None, None, None)
    else:
        config = ReaderConfig(
            topic="t",
            start_message_id=MessageId.earliest,
            subscription_name=plan.config.subscription_name,
            is_read_compacted=method == "create_table_view",
        )
        assert plan.config == plans.reader_config(config)


def test_a_clients_arguments_arrive() -> None:
    needs = {
        "authentication": pulsar_native.AuthenticationToken("secret"),
        "tls_context": ssl.create_default_context(),
        "tls_certificate_file_path": "cert",
        "tls_private_key_file_path": "key",
        "meter_provider": True,
    }
    for name, parameter in inspect.signature(pulsar_native.Client.__init__).parameters.items():
        if name in plans._BESIDES[ClientConfig] or name == "service_url":
            continue
        value = needs[name] if name in needs else _other_value("", parameter)
        options = {name: value}
        if name in ("tls_certificate_file_path", "tls_private_key_file_path"):
            options = {"tls_certificate_file_path": "cert", "tls_private_key_file_path": "key"}
        for api in APIS.values():
            assert getattr(api.Client("pulsar://localhost:1", **options).config, name) == value, name


def test_what_a_description_does_not_know_is_no_option() -> None:
    with pytest.raises(TypeError, match="colour"):
        plans.producer({"self": None, "topic": "t", "schema": None, "interceptors": (), "colour": "red"})


# --- topics, readers, table views -------------------------------------------------------------------------------------


def test_topics() -> None:
    config = ConsumerConfig(subscription_name="s")
    assert plans.topics_of("a", config) == ["a"]
    assert plans.topics_of(["a", "b"], config) == ["a", "b"]
    for wrong in (None, 5, b"a", [b"a"], {"a"}, ("a",)):
        with pytest.raises(InvalidConfiguration, match="a list of str, or a compiled pattern"):
            plans.topics_of(wrong, config)  # type: ignore[arg-type]
    for pattern in (
        plans.topics_of(re.compile("a.*"), config),
        plans.topics_of("a.*", config, is_pattern=True),
    ):
        assert isinstance(pattern, TopicPattern) and pattern.for_broker == "public/default/a.*"


def test_topics_of_a_reader() -> None:
    several = ReaderConfig(topic=["a", "b"], start_message_id=MessageId.latest)
    assert several.topics == ["a", "b"] and several.replace(topic="a").topics == ["a"]
    plans.reader_config(several)
    start = MessageId(0, 1, 2)
    with pytest.raises(InvalidConfiguration, match="earliest or"):
        plans.reader_config(several.replace(start_message_id=start))
    assert plans.reader_config(several.replace(topic=["a", "a"], start_message_id=start)).start_message_id == start
    for wrong in ([], [""], 5, None, ["a", 5]):
        with pytest.raises((InvalidConfiguration, InvalidTopicName), match="a reader needs a topic"):
            several.replace(topic=wrong)
    assert plans.reader_config(several.replace(subscription_name="mine")).subscription_name == "mine"


def test_the_reader_behind_a_table_view(ask: Ask) -> None:
    plan = ask("blocking", "create_table_view", {"topic": "a", "subscription_name": "mine"})
    assert plan.config.is_read_compacted and plan.config.start_message_id == MessageId.earliest
    assert (plan.config.subscription_name, plan.config.subscription_mode) == ("mine", SubscriptionMode.NonDurable)
    name = "non-persistent://public/default/a"
    assert not ask("blocking", "create_table_view", {"topic": name}).config.is_read_compacted


def test_the_consumer_behind_a_reader() -> None:
    start = MessageId(0, 1, 2)
    config = ReaderConfig(
        topic="t",
        start_message_id=start,
        start_message_id_inclusive=True,
        receiver_queue_size=5,
        reader_name="me",
        is_read_compacted=True,
        crypto_key_reader=CryptoKeyReader("public", "private"),
        crypto_failure_action=ConsumerCryptoFailureAction.DISCARD,
    )
    consumer = plans.reader_config(config)
    assert consumer.subscription_mode is SubscriptionMode.NonDurable
    assert consumer.consumer_type is ConsumerType.Exclusive
    assert consumer.initial_position is InitialPosition.Latest
    assert (consumer.start_message_id, consumer.start_message_id_inclusive) == (start, True)
    assert (consumer.receiver_queue_size, consumer.consumer_name, consumer.is_read_compacted) == (5, "me", True)
    assert consumer.crypto_key_reader is config.crypto_key_reader
    assert consumer.crypto_failure_action is ConsumerCryptoFailureAction.DISCARD
    names = {plans.reader_config(config).subscription_name for _ in range(50)}
    assert len(names) == 50 and all(name.startswith("reader-") for name in names)
    prefixed = plans.reader_config(config.replace(subscription_role_prefix="job"))
    assert prefixed.subscription_name.startswith("job-reader-")
    with pytest.raises(InvalidConfiguration, match=r"MessageId\.earliest"):
        plans.reader_config(config.replace(start_message_id="earliest"))
