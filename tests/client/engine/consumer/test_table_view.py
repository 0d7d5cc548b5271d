"""Table: effect of each type of message, failing listeners, and progress."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import threading
from collections.abc import Callable
from typing import Any

import pydantic
import pytest

from pulsar_native.engine.consumer.table_view import Table, TableMapping
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.entry_decoder import Delivery, StartFilter, decode
from pulsar_native.schema import (
    Array,
    AvroSchema,
    BooleanSchema,
    BytesSchema,
    DoubleSchema,
    InstantSchema,
    Int64Schema,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    LocalDateSchema,
    LocalTimeSchema,
    ProtobufSchema,
    Record,
    Schema,
    SchemaType,
    String,
    StringSchema,
)
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.entry_bytes import single_entry
from support.other_thread import OWN_ERRORS, in_other_thread

TOPIC = "persistent://public/default/t"


class Picky(BytesSchema):
    """A schema that cannot read everything."""

    def decode(self, data: bytes) -> Any:
        if data == b"bad":
            raise ValueError(data)
        return data.decode()


class Order(Record):
    """A record."""

    status = String()
    tags = Array(String())


@dataclasses.dataclass
class OrderData:
    """A dataclass."""

    status: str
    tags: list[str]


class OrderModel(pydantic.BaseModel):
    """A pydantic model."""

    status: str
    tags: list[str]


class Tagged(Schema[Any]):
    """Schema of the application, with values of a class of its own."""

    def decode(self, data: bytes) -> Any:
        """Return an object with a list."""
        return OrderData(data.decode(), [])


DEFINITION = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def message(entry: int, body: bytes, schema: Schema[Any] | None = None, **fields: Any) -> Message:
    """Return a message as a consumer gives it out."""
    command = pb.CommandMessage(consumer_id=0, message_id=pb.MessageIdData(ledgerId=1, entryId=entry))
    delivery = Delivery(command, single_entry(body, **fields), 1)
    decoded = decode(
        delivery,
        topic=TOPIC,
        partition=-1,
        schema=VersionedDecoder(schema or Picky()),
        start=StartFilter(None, False),
        missing=None,
        max_message_size=1 << 20,
        together=lambda *_: None,
    )
    (made,) = decoded.messages()
    return made


class View(TableMapping):
    """The mapping alone."""

    def __init__(self) -> None:
        self._table = Table(SchemaType.STRING)


def test_table_apply_each_message() -> None:
    table, heard = Table(SchemaType.STRING), []  # type: ignore[var-annotated]
    table.listen(lambda key, value: heard.append((key, value)))
    for number, (body, fields) in enumerate(
        [
            (b"1", {"partition_key": "a"}),
            (b"2", {"partition_key": "a"}),
            (b"bad", {"partition_key": "a"}),
            (b"3", {"partition_key": ""}),
            (b"nobody", {}),
            (b"4", {"partition_key": "b"}),
            (b"", {"partition_key": "b"}),
            (b"", {"partition_key": "a", "null_value": True}),
            (b"", {"partition_key": "never"}),
        ]
    ):
        table.apply(message(number, body, **fields))
    assert table.values == {"": "3"}
    assert heard == [("a", "1"), ("a", "2"), ("", "3"), ("b", "4"), ("b", None), ("a", None), ("never", None)]


def test_table_remove_missing_key_notifies_once(caplog: pytest.LogCaptureFixture) -> None:
    table = Table(SchemaType.STRING)
    for number in range(3):
        table.apply(message(number, b"x"))
    assert caplog.text.count("without a key") == 1 and table.values == {}


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, asyncio.CancelledError])
def test_table_listener_exception_isolated(caplog: pytest.LogCaptureFixture, kind: type[BaseException]) -> None:
    table, heard = Table(SchemaType.STRING), []  # type: ignore[var-annotated]

    def fail(key: str, value: Any) -> None:
        raise kind("as the test wants it")

    table.listen(fail)
    table.listen(lambda key, value: heard.append(key))
    table.apply(message(0, b"1", partition_key="a"))
    assert heard == ["a"] and "as the test wants it" in caplog.text


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_table_errors_of_any_class_in_thread_isolated(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    table, heard = Table(SchemaType.STRING), list[str]()

    def fail(*_arguments: object) -> None:
        raise kind("as the test wants it")

    table.listen(fail)
    table.listen(lambda key, value: heard.append(key))
    in_other_thread(table.apply, message(0, b"1", partition_key="a"))
    assert heard == ["a"] and "A listener of the table view failed" in caplog.text
    monkeypatch.setattr(Picky, "decode", fail)
    in_other_thread(table.apply, message(1, b"2", partition_key="a"))
    assert table.values == {"a": "1"} and "cannot be read; the one before stays" in caplog.text
    # Reached, so that a refresh does not wait for it.
    assert not table.is_behind([MessageId(-1, 1, 1, topic=TOPIC)])


def test_table_listener_may_use_table() -> None:
    table, heard = Table(SchemaType.STRING), []  # type: ignore[var-annotated]

    def use(key: str, value: Any) -> None:
        heard.append((key, value, dict(table.values)))
        if len(heard) == 1:
            table.for_each_and_listen(use)

    table.listen(use)
    table.apply(message(0, b"1", partition_key="a"))
    # The change, and the key: the listener that was added receives later changes.
    assert heard == [("a", "1", {"a": "1"})] * 2
    table.apply(message(1, b"2", partition_key="a"))
    assert heard[2:] == [("a", "2", {"a": "2"})] * 2


async def _coroutine_function(*_arguments: Any) -> None:
    """Stand for a listener that would have to be awaited."""


@pytest.mark.parametrize("method", ["for_each", "listen", "for_each_and_listen"])
@pytest.mark.parametrize("unusable", [None, 5, _coroutine_function])
def test_table_listener_unusable_refused(method: str, unusable: Any) -> None:
    view = View()
    with pytest.raises(InvalidConfiguration, match=r"^callback must be a (plain )?function, not "):
        getattr(view, method)(unusable)
    view._table.apply(message(0, b"1", partition_key="a"))


def test_table_for_each_and_listen_misses_no_change() -> None:
    table = Table(SchemaType.STRING)
    table.apply(message(0, b"1", partition_key="a"))
    heard: list[Any] = []
    applied = threading.Thread(target=table.apply, args=(message(1, b"2", partition_key="a"),))

    def slow(key: str, value: Any) -> None:
        if not heard:
            # The change comes while the keys are being told.
            applied.start()
            applied.join(0.1)
            assert applied.is_alive(), "it waits for its turn"
        heard.append(value)

    table.for_each_and_listen(slow)
    applied.join(10)
    assert heard == ["1", "2"]


def test_table_is_behind() -> None:
    table = Table(SchemaType.STRING)
    end = MessageId(-1, 1, 1, -1, topic=TOPIC)
    empty = MessageId(-1, -1, -1, -1, topic=TOPIC)
    assert table.is_behind([end]) and not table.is_behind([empty]) and not table.is_behind([])
    woken: list[int] = []
    table.waiters.append(lambda: woken.append(1))
    table.apply(message(0, b"1", partition_key="a"))
    assert table.is_behind([empty, end])
    table.apply(message(1, b"bad", partition_key="a"))
    assert not table.is_behind([end]) and len(woken) == 2
    assert table.is_behind([MessageId(-1, 1, 1, 2, topic=TOPIC)])
    assert table.is_behind([MessageId(-1, 1, 0, -1, topic=TOPIC + "-partition-1")])


def test_table_mapping() -> None:
    view = View()
    for number, key in enumerate("abc"):
        view._table.apply(message(number, b"x", partition_key=key))
    seen = []
    for key in view:
        seen.append(key)
        view._table.values.pop("c", None)
        view._table.values[key + key] = "y"
    assert seen == ["a", "b", "c"] and len(view) == 5 and view["aa"] == "y" and "c" not in view
    assert view == view.snapshot() and set(view.keys()) == set(view) and "y" in view.values()
    assert view.get("none") is None and view.get("none", 1) == 1
    assert view.get(b"a") == view["a"]
    for key in (5, None, ["a"]):
        with pytest.raises(TypeError, match="must be a str"):
            view.get(key)  # type: ignore[call-overload]


def _set_status(value: Any) -> None:
    value.status = "changed"


def _set_key(value: Any) -> None:
    value["status"] = "changed"


def _set_ledger(value: Any) -> None:
    value.ledgerId = 5


PAIR = KeyValueSchema(StringSchema(), JsonSchema(Order), KeyValueEncodingType.INLINE)

# Schema, a value, and what changes it.
CHANGED: dict[str, tuple[Schema[Any], Any, Callable[[Any], None]]] = {
    "record-json": (JsonSchema(Order), Order(status="new", tags=["a"]), _set_status),
    "record-avro": (AvroSchema(Order), Order(status="new", tags=["a"]), lambda value: value.tags.append("b")),
    "dataclass-json": (JsonSchema(OrderData), OrderData("new", ["a"]), _set_status),
    "dataclass-avro": (AvroSchema(OrderData), OrderData("new", ["a"]), lambda value: value.tags.append("b")),
    "pydantic-json": (JsonSchema(OrderModel), OrderModel(status="new", tags=["a"]), _set_status),
    "dict-json": (JsonSchema(None, DEFINITION), {"status": "new", "tags": ["a"]}, _set_key),
    "dict-avro": (AvroSchema(None, DEFINITION), {"status": "new", "tags": ["a"]}, _set_key),
    "protobuf": (
        ProtobufSchema(pb.MessageIdData),
        pb.MessageIdData(ledgerId=1, entryId=2),
        lambda value: value.Clear(),
    ),
    "key-value": (PAIR, KeyValue("k", Order(status="new", tags=["a"])), lambda pair: _set_status(pair.value)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_table_changed_value_is_callers_own(name: str) -> None:
    schema, value, change = CHANGED[name]
    view, heard = View(), list[Any]()

    def hear(_key: str, given: Any) -> None:
        heard.append(copy.deepcopy(given))
        change(given)

    view.listen(hear)
    view.listen(hear)
    view._table.apply(message(0, schema.encode(value), schema, partition_key="k"))
    view.for_each(hear)
    view.for_each_and_listen(hear)
    for read in (
        lambda: view["k"],
        lambda: view.get("k"),
        lambda: view.snapshot()["k"],
        lambda: dict(view.items())["k"],
        lambda: next(iter(view.values())),
    ):
        given = read()
        assert given == value
        change(given)
        assert given != value
    assert heard == [value] * 4 and view == {"k": value} and value in view.values()


def test_table_separated_key_value_is_callers_own() -> None:
    schema = KeyValueSchema(JsonSchema(Order), JsonSchema(Order), KeyValueEncodingType.SEPARATED)
    value = KeyValue(Order(status="key", tags=[]), Order(status="new", tags=[]))
    key, data = schema.encode_separated(value)
    assert key is not None and data is not None
    view = View()
    view._table.apply(message(0, data, schema, partition_key=key.decode()))
    for _ in range(2):
        (given,) = view.values()
        assert given == value
        _set_status(given.key)
        _set_status(given.value)


def test_table_value_without_entry() -> None:
    view, applied = View(), message(0, b"new", Tagged(), partition_key="k")
    view._table.apply(applied)
    # The entry may be a large batch, of which one message is in the table.
    applied.entry.body = b""
    assert view["k"] == OrderData("new", []) and view["k"] is not view["k"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param(BytesSchema(), b"body" * 100, id="bytes"),
        pytest.param(StringSchema(), "text" * 100, id="text"),
        pytest.param(Int64Schema(), 1 << 40, id="int"),
        pytest.param(DoubleSchema(), 1.5, id="float"),
        pytest.param(BooleanSchema(), True, id="bool"),
        pytest.param(InstantSchema(), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), id="datetime"),
        pytest.param(LocalDateSchema(), datetime.date(2026, 1, 2), id="date"),
        pytest.param(LocalTimeSchema(), datetime.time(3, 4), id="time"),
    ],
)
def test_table_immutable_value_is_shared(schema: Schema[Any], value: Any) -> None:
    view = View()
    view._table.apply(message(0, schema.encode(value), schema, partition_key="k"))
    assert view["k"] == value and view["k"] is view.get("k") is view.snapshot()["k"]
