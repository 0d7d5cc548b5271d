"""Names of types in errors: an object of the official client is named as such, with the import that is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest

import pulsar_native
from pulsar_native._type_names import type_name
from pulsar_native._validation import checked_schema, id_of
from pulsar_native.config import ClientConfig, ConsumerConfig, ReaderConfig
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage
from pulsar_native.schema import AvroSchema
from pulsar_native.service_info import ServiceInfo

URL = "pulsar://localhost:1"


class Order(pulsar.schema.Record):  # type: ignore[misc]  # the official client has no types
    """A record class that was not migrated."""

    number = pulsar.schema.Integer()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("consumer_type", pulsar.ConsumerType.Shared),
        ("initial_position", pulsar.InitialPosition.Earliest),
        ("dead_letter_policy", pulsar.ConsumerDeadLetterPolicy(3)),
        ("batch_receive_policy", pulsar.ConsumerBatchReceivePolicy(1, 1, 1)),
        ("key_shared_policy", pulsar.ConsumerKeySharedPolicy()),
        ("crypto_key_reader", pulsar.CryptoKeyReader("public.pem", "private.pem")),
    ],
)
def test_consumer_option_of_official_client_is_named(option: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration, match=f"^{option} .*of the package pulsar-client: import it from pulsar_"):
        ConsumerConfig(subscription_name="s", **{option: value})


@pytest.mark.parametrize(
    "use",
    [
        lambda: checked_schema(pulsar.schema.StringSchema()),
        lambda: AvroSchema(Order),
        lambda: ClientConfig(service_url=URL, authentication=pulsar.AuthenticationToken("x")),
        lambda: ServiceInfo(URL, authentication=pulsar.AuthenticationToken("x")),
        lambda: pulsar_native.Client(URL, logger=pulsar.ConsoleLogger()),
        lambda: pulsar_native.ConsoleLogger(pulsar.LoggerLevel.Info),
        lambda: ReaderConfig(topic="t", start_message_id=pulsar.MessageId.earliest).consumer_config(),
        lambda: id_of(pulsar.MessageId.earliest),
    ],
    ids=["schema", "record", "authentication", "service-info", "logger", "log-level", "reader", "id"],
)
def test_object_of_official_client_is_named(use: Callable[[], Any]) -> None:
    with pytest.raises((InvalidConfiguration, InvalidMessage), match="of the package pulsar-client: import it from"):
        use()


def test_type_name_of_others_is_plain() -> None:
    assert (type_name(5), type_name(None), type_name(ServiceInfo(URL))) == ("int", "NoneType", "ServiceInfo")
    assert type_name(Order()) == (
        "Order (pulsar.schema.definition.Record of the package pulsar-client: import it from pulsar_native)"
    )
