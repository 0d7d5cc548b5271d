"""Arguments of the wrong type or value, and odd ones that are right."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program

Value = Callable[[ModuleType], Any]


def _cases(table: dict[str, list[Any]]) -> dict[str, tuple[str, list[Any]]]:
    return {name: (name, values) for name, values in table.items()}


# Parameter -> values to try. Plain values, or functions of the module.
CLIENT: dict[str, list[Any]] = {
    "service_url": [5, None, b"pulsar://localhost:1", "", "localhost", "http:/x", "kafka://x:1", "pulsar://"],
    "authentication": ["token", 5],
    "operation_timeout_seconds": ["5", None, 1.5, 0, -1],
    "io_threads": ["1", 0, -1, None],
    "message_listener_threads": ["1", None, 0],
    "concurrent_lookup_requests": ["1", None, 0],
    "log_conf_file_path": [5, "/nowhere/log.conf", ""],
    "stats_interval_in_seconds": ["1", None, 0, -1],
    "use_tls": ["yes", 1, None, True],
    "tls_trust_certs_file_path": [5, "", "/nowhere/ca.pem"],
    "tls_allow_insecure_connection": ["no", 1, True],
    "tls_validate_hostname": ["no", 1, True],
    "logger": ["x", 5, object()],
    "connection_timeout_ms": ["1", None, 1.5, 0, -1],
    "listener_name": [5, ""],
    "tls_private_key_file_path": [5, "", "/nowhere/key.pem"],
    "tls_certificate_file_path": [5, "", "/nowhere/cert.pem"],
}


@program(cases=_cases(CLIENT))
def client(pulsar: ModuleType, env: Env, name: str, values: list[Any]) -> Observed:
    found = {}
    for value in values:
        options = {"service_url": "pulsar://127.0.0.1:1"} | {name: value}
        label = "object" if type(value) is object else repr(value)
        found[label] = env.error(lambda: pulsar.Client(**options).close())  # noqa: B023
    return found


PRODUCER: dict[str, list[Any]] = {
    "topic": [5, None, b"x", "", "a/b", "persistent://a", "kafka://a/b/c", "persistent://public/default/"],
    "producer_name": [5, b"x", ""],
    "schema": [5, "STRING", bytes, None],
    "initial_sequence_id": ["1", 1.5, 0, 5, -1],
    "send_timeout_millis": ["1", None, 1.5, 0, -1],
    "compression_type": ["LZ4", 1, None],
    "max_pending_messages": ["1", None, -1, 0],
    "max_pending_messages_across_partitions": ["1", None, -1, 0],
    "block_if_queue_full": ["no", 1, None],
    "batching_enabled": ["no", 1, None],
    "batching_max_messages": ["1", None, -1, 0, 1],
    "batching_max_allowed_size_in_bytes": ["1", None, -1, 0, 1],
    "batching_max_publish_delay_ms": ["1", None, -1, 0],
    "chunking_enabled": ["no", 1, True],
    "message_routing_mode": ["x", 1, None],
    "lazy_start_partitioned_producers": ["no", 1, None],
    "properties": ["x", [("a", "b")], {}, {"a": 1}, {1: "a"}, {"a": None}],
    "batching_type": ["x", 1, None],
    "encryption_key": [5, b"x", ""],
    "crypto_key_reader": [5, "x"],
    "access_mode": ["x", 1, None],
    "message_router": [5, "x"],
}


@program(cases=_cases(PRODUCER))
def create_producer(pulsar: ModuleType, env: Env, name: str, values: list[Any]) -> Observed:
    made, found = env.client(), {}
    for number, value in enumerate(values):
        options = {"topic": env.topic(str(number))} | {name: value}
        found[repr(value)] = env.error(lambda: made.create_producer(**options).close())  # noqa: B023
    return found


@program()
def create_producer_batching_and_chunking(pulsar: ModuleType, env: Env) -> Observed:
    made = env.client()
    return {
        "both": env.error(lambda: made.create_producer(env.topic(), batching_enabled=True, chunking_enabled=True)),
        "unknown": env.error(lambda: made.create_producer(env.topic(), nonsense=1)),
        "none": env.error(lambda: made.create_producer()),
    }


@program()
def option_combinations(pulsar: ModuleType, env: Env) -> Observed:
    made, policy = env.client(), pulsar.ConsumerKeySharedPolicy
    kinds, modes, delay = pulsar.ConsumerType, pulsar.RegexSubscriptionMode, datetime.timedelta(milliseconds=1)
    ranges = policy(pulsar.KeySharedMode.AutoSplit, False, [(0, 10)])
    subscribing: dict[str, dict[str, Any]] = {
        "policy exclusive": {"key_shared_policy": policy()},
        "policy shared": {"key_shared_policy": policy(), "consumer_type": kinds.Shared},
        "ranges": {"key_shared_policy": ranges, "consumer_type": kinds.KeyShared},
        "all topics": {"regex_subscription_mode": modes.AllTopics},
        "no listener": {"message_listener": False},
    }
    reader = pulsar.CryptoKeyReader("/nowhere/public.pem", "/nowhere/private.pem")
    creating: dict[str, dict[str, Any]] = {
        "reader": {"crypto_key_reader": reader, "topic": env.topic("a")},
        "chunks": {"chunking_enabled": True, "topic": env.topic("b").replace("persistent://", "non-persistent://")},
    }
    sending: dict[str, dict[str, Any]] = {
        "replication": {"disable_replication": True, "replication_clusters": ["standalone"]},
        "delivery": {"deliver_at": 1, "deliver_after": delay},
    }
    producer = made.create_producer(env.topic("c"))
    found = {"sticky ranges": ranges.sticky_ranges}
    for number, (label, options) in enumerate(subscribing.items()):
        found[label] = env.error(lambda: made.subscribe(env.topic(str(number)), "sub", **options).close())  # noqa: B023
    for label, options in creating.items():
        found[label] = env.error(lambda: made.create_producer(**options).close())  # noqa: B023
    for label, options in sending.items():
        found[label] = env.error(lambda: producer.send(b"x", **options))  # noqa: B023
    return found


CONSUMER: dict[str, list[Any]] = {
    "topic": [5, None, b"x", "", [], ["persistent://a"], [5], ("a", "b"), re.compile(""), "persistent://a"],
    "subscription_name": [5, None, b"x", ""],
    "consumer_type": ["Shared", 1, None],
    "schema": [5, "STRING", None],
    "message_listener": [5, "x"],
    "receiver_queue_size": ["1", None, 1.5, -1, 1],
    "max_total_receiver_queue_size_across_partitions": ["1", None, -1, 0],
    "consumer_name": [5, b"x", ""],
    "unacked_messages_timeout_ms": ["1", 1.5, 5000, 0, -1, 10_000, 10_001],
    "broker_consumer_stats_cache_time_ms": ["1", None, -1, 0],
    "negative_ack_redelivery_delay_ms": ["1", None, 1.5, -1, 0],
    "is_read_compacted": ["no", 1, None],
    "properties": ["x", [("a", "b")], {}, {"a": 1}, {1: "a"}],
    "pattern_auto_discovery_period": ["1", None, 1.5, -1, 0],
    "initial_position": ["Latest", 1, None],
    "crypto_key_reader": [5, "x"],
    "replicate_subscription_state_enabled": ["no", 1, None],
    "max_pending_chunked_message": ["1", None, -1, 0],
    "auto_ack_oldest_chunked_message_on_queue_full": ["no", 1, None],
    "start_message_id_inclusive": ["no", 1, None],
    "batch_receive_policy": [5, "x"],
    "key_shared_policy": [5, "x"],
    "batch_index_ack_enabled": ["no", 1, None],
    "regex_subscription_mode": ["x", 1, None],
    "dead_letter_policy": [5, "x"],
    "crypto_failure_action": ["x", 1, None],
}


@program(cases=_cases(CONSUMER))
def subscribe(pulsar: ModuleType, env: Env, name: str, values: list[Any]) -> Observed:
    made, found = env.client(), {}
    for number, value in enumerate(values):
        options = {"topic": env.topic(str(number)), "subscription_name": "sub"} | {name: value}
        label = value.pattern if isinstance(value, re.Pattern) else repr(value)
        found[label] = env.error(lambda: made.subscribe(**options).close())  # noqa: B023
    return found


READER: dict[str, list[Any]] = {
    "topic": [5, None, b"x", "", "persistent://a"],
    "start_message_id": [5, None, "earliest", b"x"],
    "schema": [5, "STRING", None],
    "reader_listener": [5, "x"],
    "receiver_queue_size": ["1", None, -1, 1],
    "reader_name": [5, b"x", ""],
    "subscription_role_prefix": [5, b"x", ""],
    "is_read_compacted": ["no", 1, None],
    "crypto_key_reader": [5, "x"],
    "start_message_id_inclusive": ["no", 1, None],
    "crypto_failure_action": ["x", 1, None],
}


@program(cases=_cases(READER))
def create_reader(pulsar: ModuleType, env: Env, name: str, values: list[Any]) -> Observed:
    made, found = env.client(), {}
    for number, value in enumerate(values):
        options = {"topic": env.topic(str(number)), "start_message_id": pulsar.MessageId.earliest} | {name: value}
        found[repr(value)] = env.error(lambda: made.create_reader(**options).close())  # noqa: B023
    return found


@program()
def create_table_view(pulsar: ModuleType, env: Env) -> Observed:
    made, topic = env.client(), env.topic()
    tries: dict[str, dict[str, Any]] = {
        "topic number": {"topic": 5}, "topic none": {"topic": None}, "topic empty": {"topic": ""},
        "name number": {"topic": topic, "subscription_name": 5},
        "name empty": {"topic": topic, "subscription_name": ""},
        "schema": {"topic": topic, "schema": 5}, "schema none": {"topic": topic, "schema": None},
    }  # fmt: skip
    return {label: env.error(lambda: made.create_table_view(**options).close()) for label, options in tries.items()}  # noqa: B023


@program()
def get_topic_partitions(pulsar: ModuleType, env: Env) -> Observed:
    made = env.client()
    values = [5, None, b"x", "", "persistent://a", "a/b/c/d/e"]
    return {repr(value): env.error(lambda: made.get_topic_partitions(value)) for value in values}  # noqa: B023


SEND: dict[str, list[Any]] = {
    "content": ["text", 5, bytearray(b"x"), memoryview(b"x"), [b"x"]],
    "properties": ["x", [("a", "b")], {}, {"a": 1}, {1: "a"}, {"a": None}, {"": ""}],
    "partition_key": [5, b"x", ""],
    "ordering_key": [5, b"x", ""],
    "sequence_id": ["1", 1.5, 0, 2**64],
    "replication_clusters": ["x", ("a",), [], [5]],
    "disable_replication": ["no", 1, None],
    "event_timestamp": ["1", 1.5, 0, -1],
    "deliver_at": ["1", 1.5, 0, 1, -1, datetime.datetime(2020, 1, 1)],
    "deliver_after": ["1", 5, 1.5, datetime.timedelta(0), datetime.timedelta(milliseconds=-5)],
}


@program(cases=_cases(SEND))
def send(pulsar: ModuleType, env: Env, name: str, values: list[Any]) -> Observed:
    producer, found = env.client().create_producer(env.topic()), {}
    for value in values:
        options = {"content": b"x"} | {name: value}
        label = "memoryview" if isinstance(value, memoryview) else repr(value)
        found[label] = env.error(lambda: producer.send(**options))  # noqa: B023
    return found


@program(cases=_cases(SEND))
def send_async(pulsar: ModuleType, env: Env, name: str, values: list[Any]) -> Observed:
    producer, found = env.client().create_producer(env.topic()), {}
    for value in values:
        options = {"content": b"x", "callback": lambda result, place: None} | {name: value}
        label = "memoryview" if isinstance(value, memoryview) else repr(value)
        found[label] = env.error(lambda: producer.send_async(**options))  # noqa: B023
    producer.flush()
    return found


@program()
def send_async_callback(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    return {
        "number": env.error(lambda: producer.send_async(b"x", 5)),
        "absent": env.error(lambda: producer.send_async(b"x")),
        "none": env.error(lambda: producer.send_async(b"x", None)),
    }


@program(cases=_cases({"receive": ["1", 1.5, b"x", -1, 0], "read_next": ["1", 1.5, b"x", -1, 0]}))
def time_outs(pulsar: ModuleType, env: Env, name: str, values: list[Any]) -> Observed:
    made, topic = env.client(), env.topic()
    if name == "receive":
        call = made.subscribe(topic, "sub").receive
    else:
        call = made.create_reader(topic, pulsar.MessageId.earliest).read_next
    producer, found = made.create_producer(topic), {}
    for value in values:
        producer.send(b"x")
        # A negative one waits for ever: there is a message for each.
        found[repr(value)] = env.error(lambda: call(value))  # noqa: B023
    return {each: error for each, error in found.items() if each not in ("0", "-1")} | {
        "0": env.until(lambda: env.error(lambda: call(0)) is None),
        "keyword": env.error(lambda: call(timeout_millis=5000)),
    }


I32, U32, I64, U64 = 2**31, 2**32, 2**63, 2**64
# Call -> the least number of each option that does not fit into the C type the official client has it in.
TOO_LARGE: dict[str, dict[str, int]] = {
    "client": {
        "operation_timeout_seconds": I32, "io_threads": I32, "concurrent_lookup_requests": I32,
        "stats_interval_in_seconds": U32, "connection_timeout_ms": I32,
    },
    "create_producer": {
        "initial_sequence_id": I64, "send_timeout_millis": I32, "max_pending_messages": I32,
        "max_pending_messages_across_partitions": I32, "batching_max_messages": U32,
        "batching_max_allowed_size_in_bytes": U64, "batching_max_publish_delay_ms": U64,
    },
    "subscribe": {
        "receiver_queue_size": I32, "max_total_receiver_queue_size_across_partitions": I32,
        "unacked_messages_timeout_ms": U64, "broker_consumer_stats_cache_time_ms": I64,
        "negative_ack_redelivery_delay_ms": I64, "max_pending_chunked_message": U64,
    },
    "create_reader": {"receiver_queue_size": I32},
    "send": {"sequence_id": I64, "event_timestamp": U64},
    "policies": {"max_num_message": I32, "max_num_bytes": I32, "timeout_ms": I64, "max_redeliver_count": I32},
    "ids": {"partition": I32, "ledger_id": I64, "entry_id": I64, "batch_index": I32},
    "others": {"receive": I32, "read_next": I32, "seek": U64},
}  # fmt: skip


@program(cases={name: (name, sizes) for name, sizes in TOO_LARGE.items()})
def too_large(pulsar: ModuleType, env: Env, call: str, sizes: dict[str, int]) -> Observed:
    made, topic = env.client(), env.topic()
    consumer, reader = made.subscribe(topic, "sub"), made.create_reader(topic, pulsar.MessageId.earliest)
    producer = made.create_producer(topic)

    def policy(name: str, size: int) -> object:
        if name == "max_redeliver_count":
            return pulsar.ConsumerDeadLetterPolicy(size)
        return pulsar.ConsumerBatchReceivePolicy(
            **{"max_num_message": 1, "max_num_bytes": 1, "timeout_ms": 1, name: size}
        )

    calls: dict[str, Callable[[str, int], object]] = {
        "client": lambda name, size: pulsar.Client("pulsar://127.0.0.1:1", **{name: size}),
        "create_producer": lambda name, size: made.create_producer(topic, **{name: size}),
        "subscribe": lambda name, size: made.subscribe(topic, "other", **{name: size}),
        "create_reader": lambda name, size: made.create_reader(topic, pulsar.MessageId.earliest, **{name: size}),
        "send": lambda name, size: producer.send(b"x", **{name: size}),
        "policies": policy,
        "ids": lambda name, size: pulsar.MessageId(**{name: size}),
        "others": lambda name, size: getattr(reader if name == "read_next" else consumer, name)(size),
    }
    return {name: env.error(lambda: calls[call](name, size)) for name, size in sizes.items()}  # noqa: B023


@program()
def acknowledge(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe(env.topic(), "sub")
    found = {}
    values: tuple[Any, ...] = (None, 5, "x", b"x", [])
    for name in ("acknowledge", "acknowledge_cumulative", "negative_acknowledge"):
        for value in values:
            found[f"{name} {value!r}"] = env.error(lambda: getattr(consumer, name)(value))  # noqa: B023
    return found


@program(cases={"consumer": ("consumer",), "reader": ("reader",)})
def seek(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    made, topic = env.client(), env.topic()
    if kind == "consumer":
        target = made.subscribe(topic, "sub")
    else:
        target = made.create_reader(topic, pulsar.MessageId.earliest)
    values: list[Any] = [None, "x", b"x", 1.5, [], -1, 0]
    return {repr(value): env.error(lambda: target.seek(value)) for value in values}  # noqa: B023


@program()
def authentication(pulsar: ModuleType, env: Env) -> Observed:
    tries: dict[str, Callable[[], Any]] = {
        "tls number": lambda: pulsar.AuthenticationTLS(5, "x"),
        "tls none": lambda: pulsar.AuthenticationTLS("x", None),
        "tls": lambda: pulsar.AuthenticationTLS("/nowhere/a", "/nowhere/b"),
        "token number": lambda: pulsar.AuthenticationToken(5),
        "token none": lambda: pulsar.AuthenticationToken(None),
        "token bytes": lambda: pulsar.AuthenticationToken(b"x"),
        "token empty": lambda: pulsar.AuthenticationToken(""),
        "athenz number": lambda: pulsar.AuthenticationAthenz(5),
        "oauth2 number": lambda: pulsar.AuthenticationOauth2(5),
        "oauth2 dict": lambda: pulsar.AuthenticationOauth2({}),
        "oauth2 garbage": lambda: pulsar.AuthenticationOauth2("garbage"),
        "oauth2 empty": lambda: pulsar.AuthenticationOauth2("{}"),
        "basic none": lambda: pulsar.AuthenticationBasic(),
        "basic user": lambda: pulsar.AuthenticationBasic("user"),
        "basic number": lambda: pulsar.AuthenticationBasic("user", 5),
        "basic method": lambda: pulsar.AuthenticationBasic("user", "pw", 5),
        "basic method none": lambda: pulsar.AuthenticationBasic("user", "pw", None),
        "basic text": lambda: pulsar.AuthenticationBasic(auth_params_string='{"username": "a", "password": "b"}'),
        "basic number text": lambda: pulsar.AuthenticationBasic(auth_params_string=5),
        "plug-in number": lambda: pulsar.Authentication(5, "x"),
        "plug-in params": lambda: pulsar.Authentication("x", 5),
        "plug-in token": lambda: pulsar.Authentication("token", "token:abc"),
        "plug-in java": lambda: pulsar.Authentication(
            "org.apache.pulsar.client.impl.auth.AuthenticationToken", "token:abc"
        ),
        "plug-in java tls": lambda: pulsar.Authentication(
            "org.apache.pulsar.client.impl.auth.AuthenticationTls", "tlsCertFile:/a,tlsKeyFile:/b"
        ),
        "plug-in tls": lambda: pulsar.Authentication("tls", "tlsCertFile:/a,tlsKeyFile:/b"),
        "plug-in basic": lambda: pulsar.Authentication("basic", '{"username": "a", "password": "b"}'),
    }
    return {label: env.error(call) for label, call in tries.items()}


@program()
def policies(pulsar: ModuleType, env: Env) -> Observed:
    sticky = pulsar.KeySharedMode.Sticky
    tries: dict[str, Callable[[], Any]] = {
        "dead letter 0": lambda: pulsar.ConsumerDeadLetterPolicy(0),
        "dead letter none": lambda: pulsar.ConsumerDeadLetterPolicy(None),
        "dead letter text": lambda: pulsar.ConsumerDeadLetterPolicy("3"),
        "dead letter topic": lambda: pulsar.ConsumerDeadLetterPolicy(3, 5),
        "dead letter negative": lambda: pulsar.ConsumerDeadLetterPolicy(-1),
        "batch none": lambda: pulsar.ConsumerBatchReceivePolicy(None, 1, 1),
        "batch text": lambda: pulsar.ConsumerBatchReceivePolicy("1", 1, 1),
        "batch unlimited": lambda: pulsar.ConsumerBatchReceivePolicy(-1, -1, -1),
        "batch few": lambda: pulsar.ConsumerBatchReceivePolicy(1),
        "sticky without": lambda: pulsar.ConsumerKeySharedPolicy(sticky),
        "sticky empty": lambda: pulsar.ConsumerKeySharedPolicy(sticky, sticky_ranges=[]),
        "sticky wide": lambda: pulsar.ConsumerKeySharedPolicy(sticky, sticky_ranges=[(0, 65536)]),
        "sticky turned": lambda: pulsar.ConsumerKeySharedPolicy(sticky, sticky_ranges=[(5, 1)]),
        "sticky over": lambda: pulsar.ConsumerKeySharedPolicy(sticky, sticky_ranges=[(0, 5), (5, 9)]),
        "sticky text": lambda: pulsar.ConsumerKeySharedPolicy(sticky, sticky_ranges="x"),
        "mode": lambda: pulsar.ConsumerKeySharedPolicy("Sticky"),
        "mode number": lambda: pulsar.ConsumerKeySharedPolicy(1),
        "order": lambda: pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery="no"),
        "reader number": lambda: pulsar.CryptoKeyReader(5, "x"),
        "reader none": lambda: pulsar.CryptoKeyReader("x", None),
        "reader": lambda: pulsar.CryptoKeyReader("/nowhere/a", "/nowhere/b"),
        "console": lambda: pulsar.ConsoleLogger("Info"),
        "console number": lambda: pulsar.ConsoleLogger(1),
        "file": lambda: pulsar.FileLogger(pulsar.LoggerLevel.Info, 5),
        "file level": lambda: pulsar.FileLogger("Info", "/tmp/x"),
    }
    return {label: env.error(call) for label, call in tries.items()}


@program()
def failover(pulsar: ModuleType, env: Env) -> Observed:
    info = pulsar.ServiceInfo("pulsar://127.0.0.1:1")
    make = pulsar.AutoClusterFailover
    tries: dict[str, Callable[[], Any]] = {
        "url number": lambda: pulsar.ServiceInfo(5),
        "url none": lambda: pulsar.ServiceInfo(None),
        "authentication": lambda: pulsar.ServiceInfo("pulsar://x:1", "token"),
        "certificates": lambda: pulsar.ServiceInfo("pulsar://x:1", None, 5),
        "primary": lambda: make("pulsar://x:1", [info]),
        "secondary": lambda: make(info, info),
        "secondary tuple": lambda: make(info, (info,)),
        "secondary empty": lambda: make(info, []),
        "secondary text": lambda: make(info, ["pulsar://x:1"]),
        "interval": lambda: make(info, [info], 0),
        "interval text": lambda: make(info, [info], "1"),
        "threshold": lambda: make(info, [info], 1, 0),
        "back": lambda: make(info, [info], 1, 1, 0),
        "with authentication": lambda: pulsar.Client(
            make(info, [info]), authentication=pulsar.AuthenticationToken("x")
        ),
        "with certificates": lambda: pulsar.Client(make(info, [info]), tls_trust_certs_file_path="/x"),
    }
    found = {label: env.error(call) for label, call in tries.items()}
    made = make(info, [info], 10, 2, 3)
    return found | {
        "repr": repr(made),
        "info": repr(pulsar.ServiceInfo("pulsar+ssl://h:1", tls_trust_certs_file_path="/ca")),
        "values": [made.check_interval_ms, made.failover_threshold, made.switch_back_threshold, len(made.secondary)],
        "tls": [info.use_tls, info.tls_trust_certs_file_path, info.service_url],
    }
