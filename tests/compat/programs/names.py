"""Names, signatures and kinds of calls."""

from __future__ import annotations

import asyncio
import inspect
import operator
import sys
import typing
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program

NAMES = {
    "": (
        "Authentication AuthenticationAthenz AuthenticationBasic AuthenticationOauth2 AuthenticationTLS "
        "AuthenticationToken AutoClusterFailover BatchReceivePolicy BatchingType BytesSchema Client CompressionType "
        "ConsoleLogger Consumer ConsumerBatchReceivePolicy ConsumerCryptoFailureAction ConsumerDeadLetterPolicy "
        "ConsumerKeySharedPolicy ConsumerType Context CryptoKeyReader DeadLetterPolicyBuilder EncryptionContext "
        "EncryptionKey FileLogger Function IdentitySerDe InitialPosition KeySharedMode KeySharedPolicy LoggerLevel "
        "Message MessageBatch MessageId PartitionsRoutingMode PickleSerDe Producer ProducerAccessMode Reader "
        "RegexSubscriptionMode Result SerDe ServiceInfo ServiceInfoProvider TableView schema exceptions __version__"
    ),
    "exceptions": (
        "PulsarException UnknownError InvalidConfiguration Timeout LookupError ConnectError ReadError "
        "AuthenticationError AuthorizationError ErrorGettingAuthenticationData BrokerMetadataError "
        "BrokerPersistenceError ChecksumError ConsumerBusy NotConnected AlreadyClosed InvalidMessage "
        "ConsumerNotInitialized ProducerNotInitialized ProducerBusy TooManyLookupRequestException InvalidTopicName "
        "InvalidUrl ServiceUnitNotReady OperationNotSupported ProducerBlockedQuotaExceededError "
        "ProducerBlockedQuotaExceededException ProducerQueueIsFull MessageTooBig TopicNotFound SubscriptionNotFound "
        "ConsumerNotFound UnsupportedVersionError TopicTerminated CryptoError IncompatibleSchema ConsumerAssignError "
        "CumulativeAcknowledgementNotAllowedError TransactionCoordinatorNotFoundError InvalidTxnStatusError "
        "NotAllowedError TransactionConflict TransactionNotFound ProducerFenced MemoryBufferIsFull Interrupted"
    ),
    "asyncio": (
        "BatchingType Client CompressionType Consumer ConsumerCryptoFailureAction InitialPosition "
        "PartitionsRoutingMode Producer ProducerAccessMode PulsarException Reader RegexSubscriptionMode"
    ),
    "schema": (
        "Array AvroSchema Boolean Bytes BytesSchema CustomEnum Double Field Float Integer JsonSchema Long Map Null "
        "ProtobufNativeSchema Record Schema String StringSchema"
    ),
    "schema.schema": "Schema BytesSchema StringSchema JsonSchema",
    "schema.definition": (
        "Record Field Null Boolean Integer Long Float Double Bytes String Array Map CustomEnum RecordMeta"
    ),
    "schema.schema_avro": "AvroSchema",
    "schema.schema_protobuf": "ProtobufNativeSchema",
    "tableview": "TableView",
    "functions.function": "Function",
    "functions.context": "Context",
    "functions.serde": "SerDe IdentitySerDe PickleSerDe",
    "functions": "",
    "__about__": "__version__",
}


@program(cases={name or "package": (name,) for name in NAMES})
def module_names(pulsar: ModuleType, env: Env, name: str) -> Observed:
    wanted = NAMES[name].split()
    module = env.module(name) if name else pulsar
    there = {each for each in dir(module) if isinstance(getattr(module, each), type) and each[0].isupper()}
    own = {each for each in there if getattr(module, each).__module__.split(".")[0] in ("pulsar", "_pulsar")}
    # The list must be complete for the official package; what ours has besides is no matter.
    listed = {each for names in NAMES.values() for each in names.split()}
    return {each: hasattr(module, each) for each in wanted} | {"unlisted": sorted(own - listed)}


@program()
def exceptions_are_in_the_package(pulsar: ModuleType, env: Env) -> Observed:
    names = NAMES["exceptions"].split()
    return {each: getattr(pulsar, each) is getattr(pulsar.exceptions, each) for each in names}


# Method -> how many parameters of the official one count (self included); ours may have more behind them.
SIGNATURES = {
    "Client.__init__": 18, "Client.create_producer": 23, "Client.subscribe": 27, "Client.create_reader": 12,
    "Client.create_table_view": 4, "Client.get_topic_partitions": 2, "Client.get_service_info": 1,
    "Client.shutdown": 1, "Client.close": 1, "Producer.send": 11, "Producer.send_async": 12, "Producer.flush": 1,
    "Producer.close": 1, "Producer.topic": 1, "Producer.producer_name": 1, "Producer.last_sequence_id": 1,
    "Producer.is_connected": 1, "Consumer.receive": 2, "Consumer.batch_receive": 1, "Consumer.acknowledge": 2,
    "Consumer.acknowledge_cumulative": 2, "Consumer.negative_acknowledge": 2, "Consumer.seek": 2,
    "Consumer.pause_message_listener": 1, "Consumer.resume_message_listener": 1, "Consumer.unsubscribe": 1,
    "Consumer.redeliver_unacknowledged_messages": 1, "Consumer.get_last_message_id": 1, "Consumer.close": 1,
    "Consumer.topic": 1, "Consumer.subscription_name": 1, "Consumer.consumer_name": 1, "Consumer.is_connected": 1,
    "Reader.read_next": 2, "Reader.has_message_available": 1, "Reader.seek": 2, "Reader.close": 1, "Reader.topic": 1,
    "Reader.is_connected": 1, "TableView.get": 2, "TableView.for_each": 2, "TableView.for_each_and_listen": 2,
    "TableView.close": 1, "MessageId.__init__": 5, "MessageId.deserialize": 2, "MessageId.wrap": 1,
    "Authentication.__init__": 3, "AuthenticationTLS.__init__": 3, "AuthenticationToken.__init__": 2,
    "AuthenticationAthenz.__init__": 2, "AuthenticationOauth2.__init__": 2, "AuthenticationBasic.__init__": 5,
    "ServiceInfo.__init__": 4, "AutoClusterFailover.__init__": 6, "ConsumerBatchReceivePolicy.__init__": 4,
    "ConsumerKeySharedPolicy.__init__": 4, "ConsumerDeadLetterPolicy.__init__": 4, "CryptoKeyReader.__init__": 3,
    "ConsoleLogger.__init__": 2, "FileLogger.__init__": 3,
}  # fmt: skip

ASYNC_SIGNATURES = {
    "Client.create_producer": 23, "Client.subscribe": 25, "Client.create_reader": 11, "Client.get_topic_partitions": 2,
    "Client.close": 1, "Client.shutdown": 1, "Producer.send": 11, "Producer.flush": 1, "Producer.close": 1,
    "Producer.topic": 1, "Producer.producer_name": 1, "Producer.last_sequence_id": 1, "Producer.is_connected": 1,
    "Consumer.receive": 1, "Consumer.acknowledge": 2, "Consumer.acknowledge_cumulative": 2,
    "Consumer.negative_acknowledge": 2, "Consumer.unsubscribe": 1, "Consumer.seek": 2, "Consumer.close": 1,
    "Consumer.get_last_message_id": 1, "Consumer.redeliver_unacknowledged_messages": 1, "Consumer.topic": 1,
    "Consumer.subscription_name": 1, "Consumer.consumer_name": 1, "Reader.read_next": 1,
    "Reader.has_message_available": 1, "Reader.seek": 2, "Reader.close": 1, "Reader.topic": 1,
    "Reader.is_connected": 1, "PulsarException.__init__": 3,
}  # fmt: skip


def _default(name: str, value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return "required"
    if name == "schema":
        # The default is made once there and for each call here: the schema of bytes, both.
        return "bytes"
    if isinstance(value, Enum) or hasattr(value, "__members__"):
        return str(value)
    return value


# A function can be marked as one that returns coroutines: for inspect from Python 3.12 on, for asyncio up to then.
_is_coroutine_function = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction


def _signature(module: ModuleType, path: str, count: int) -> Observed:
    owner, name = path.split(".")
    method = inspect.getattr_static(getattr(module, owner), name)
    function = getattr(method, "__func__", method)
    parameters = list(inspect.signature(function).parameters.values())[:count]
    return {
        "parameters": [[each.name, _default(each.name, each.default)] for each in parameters],
        "coroutine": _is_coroutine_function(function),
        "by position": all(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters),
    }


@program(cases={path: (path,) for path in SIGNATURES})
def signature(pulsar: ModuleType, env: Env, path: str) -> Observed:
    return _signature(pulsar, path, SIGNATURES[path])


@program(cases={path: (path,) for path in ASYNC_SIGNATURES})
def async_signature(pulsar: ModuleType, env: Env, path: str) -> Observed:
    return _signature(env.module("asyncio"), path, ASYNC_SIGNATURES[path])


@program()
def functions_classes(pulsar: ModuleType, env: Env) -> Observed:
    identity, pickled = pulsar.IdentitySerDe(), pulsar.PickleSerDe()

    class Mine(pulsar.Function):  # type: ignore[misc, name-defined]
        def process(self, input: Any, context: Any) -> Any:
            return input

    return {
        "text": identity.serialize("x").decode(),
        "number": identity.serialize(5).decode(),
        "bytes": identity.serialize(b"x").decode(),
        "list": env.error(lambda: identity.serialize([])),
        "back": [identity.deserialize(each) for each in (b"5", b"1.5", b"word")],
        "pickle": pickled.deserialize(pickled.serialize({"a": [1]})),
        "process": Mine().process("x", None),
        "subclasses": [issubclass(each, pulsar.SerDe) for each in (pulsar.IdentitySerDe, pulsar.PickleSerDe)],
        "context": sorted(each for each in dir(pulsar.Context) if not each.startswith("_")),
    }


# Methods and properties of classes that take part in no signature above.
METHODS = {
    "Message": (
        "data value properties partition_key ordering_key publish_timestamp event_timestamp message_id topic_name "
        "redelivery_count schema_version producer_name has_null_value encryption_context"
    ),
    "MessageId": "ledger_id entry_id batch_index partition serialize deserialize wrap earliest latest",
    "MessageBatch": "with_message_id parse_from",
    "EncryptionContext": (
        "keys param algorithm compression_type uncompressed_message_size batch_size is_decryption_failed"
    ),
    "schema.Record": "schema schema_info type python_type validate_type default required_default",
    "schema.Field": "type python_type validate_type schema schema_info default required_default",
    "schema.Schema": "encode decode schema_info attach_client",
    "SerDe": "serialize deserialize",
    "Function": "process",
}


@program(cases={path: (path,) for path in METHODS})
def methods(pulsar: ModuleType, env: Env, path: str) -> Observed:
    owner, _, name = path.rpartition(".")
    kind = getattr(env.module(owner) if owner else pulsar, name)
    wanted = METHODS[path].split()
    official = kind.__module__.split(".")[0] in ("pulsar", "_pulsar")
    public = {each for each in dir(kind) if not each.startswith("_")}
    return {each: hasattr(kind, each) for each in wanted} | {"unlisted": sorted(public - {*wanted}) if official else []}


@program()
def everything_is_imported_by_star(pulsar: ModuleType, env: Env) -> Observed:
    found = {}
    for module in ("", ".schema", ".exceptions"):
        names: dict[str, Any] = {}
        exec(f"from {pulsar.__name__}{module} import *", names)
        wanted = [each for each in NAMES[module.lstrip(".")].split() if not each.startswith("_")]
        found[module] = [each for each in wanted if each not in names]
    return found


SUBMODULES = (
    "schema.schema_avro.AvroSchema", "schema.schema.JsonSchema", "schema.definition.Record", "__about__.__version__",
    "schema.schema_protobuf.ProtobufNativeSchema", "functions.function.Function", "functions.context.Context",
    "functions.serde.SerDe", "tableview.TableView", "exceptions.Timeout",
)  # fmt: skip


@program(own_process=True)
def submodules_are_attributes(pulsar: ModuleType, env: Env) -> Observed:
    """In a process that has imported the package and its `schema` only."""
    found = {}
    for path in SUBMODULES:
        try:
            operator.attrgetter(path)(pulsar)
            found[path] = True
        except AttributeError:
            found[path] = False
    return found


@program()
def type_hints(pulsar: ModuleType, env: Env) -> Observed:
    methods = {"send": pulsar.Producer.send, "send_async": pulsar.Producer.send_async}
    return {name: env.error(partial(typing.get_type_hints, method)) for name, method in methods.items()}


@program()
def made_without_arguments(pulsar: ModuleType, env: Env) -> Observed:
    return {name: env.error(getattr(pulsar, name)) for name in ("Message", "Producer", "Consumer", "Reader")}
