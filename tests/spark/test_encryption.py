"""End-to-end encryption: keys by reference in reads, streams, loads and writes, and what a missing key does."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pulsar_native import Client, ConsumerCryptoFailureAction, CryptoError, CryptoKeyReader, MessageId
from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar import load
from pyspark_pulsar.encryption import READ_ACTION, READ_KEYS, WRITE_ACTION, WRITE_KEYS, WRITE_NAMES, KeyRefs
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.request import LoadRequest
from pyspark_pulsar.write_options import WriteOptions
from support.brokers import Broker, NewTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

Read = Callable[..., "DataFrame"]
MINIMUM = {"service.url": "pulsar://h:1", "topic": "t"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the key pairs orders and audit: NAME.pub and NAME.key."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("orders", "audit"):
        key = rsa.generate_private_key(65537, 2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (folder / f"{name}.key").write_bytes(private)
        (folder / f"{name}.pub").write_bytes(public)
    return folder


@pytest.fixture
def write(spark: SparkSession, broker: Broker, keys: Path) -> Callable[..., None]:
    """Give what writes texts to a topic, encrypted for both keys unless other options are given."""
    both = {
        WRITE_NAMES: "orders, audit",
        WRITE_KEYS: json.dumps({n: f"file:{keys}/{n}.pub" for n in ("orders", "audit")}),
    }

    def save(topic: str, *texts: str, options: dict[str, str] | None = None) -> None:
        frame = spark.createDataFrame([(text,) for text in texts], "value STRING").coalesce(1)
        given = {"service.url": broker.service_url, "topic": topic, **(both if options is None else options)}
        frame.write.format("pulsar").options(**given).mode("append").save()

    return save


def stored(client: Client, topic: str, count: int) -> list[bytes]:
    """Return what the broker stores: of encrypted batches their bytes."""
    action = ConsumerCryptoFailureAction.CONSUME
    reader = client.create_reader(topic, MessageId.earliest, crypto_failure_action=action)
    return [reader.read_next(10_000).data() for _ in range(count)]


def values(frame: DataFrame) -> list[str]:
    """Return the values of a frame, sorted."""
    return sorted(bytes(row["value"]).decode() for row in frame.select("value").collect())


@pytest.mark.proves("S16")
@pytest.mark.parametrize(
    "guarantee", [{}, {"deliveryGuarantee": "deduplicated"}, {"deliveryGuarantee": "transactional"}], ids=str
)
def test_encrypted_write_is_read_with_either_key(
    read: Read, write: Any, client: Client, topic: NewTopic, keys: Path, guarantee: dict[str, str],
    deduplicating: str,
) -> None:  # fmt: skip
    name = topic(namespace=deduplicating)
    public = {n: f"file:{keys}/{n}.pub" for n in ("orders", "audit")}
    options = {WRITE_NAMES: "orders,audit", WRITE_KEYS: json.dumps(public), **guarantee}
    write(name, "plain-1", "plain-2", "plain-3", options=options)
    assert all(b"plain" not in payload for payload in stored(client, name, 1))
    one = read(name, **{READ_KEYS: f"file:{keys}/orders.key"})
    assert values(one) == ["plain-1", "plain-2", "plain-3"]
    other = read(name, startingTime="1000", **{READ_KEYS: json.dumps({"audit": f"file:{keys}/audit.key"})})
    assert values(other) == ["plain-1", "plain-2", "plain-3"]


@pytest.mark.proves("S16")
def test_encrypted_read_without_key_names_the_option(
    read: Read, write: Any, topic: NewTopic, keys: Path, publish: Any
) -> None:
    name = topic()
    publish(name, ["open-1"])
    write(name, "plain-1")
    publish(name, ["open-2"])
    with pytest.raises(
        Exception, match=rf"Messages of .*{name}.* are encrypted: give the private key in option {READ_KEYS}"
    ):
        read(name).collect()
    other = {READ_KEYS: json.dumps({"other": f"file:{keys}/orders.key"})}
    with pytest.raises(Exception, match="the private key is not among those in option"):
        read(name, **other).collect()
    # Found at planning, before any task.
    with pytest.raises(Exception, match=rf"{READ_KEYS}: The key file:/no/such\.key cannot be read: No such file"):
        read(name, **{READ_KEYS: "file:/no/such.key"}).collect()
    for action in ({READ_ACTION: "DISCARD"}, {READ_ACTION: "discard", **other}):
        assert values(read(name, **action)) == ["open-1", "open-2"]


@pytest.mark.proves("S16")
def test_encrypted_last_entry_is_discarded_at_the_end(read: Read, write: Any, topic: NewTopic) -> None:
    name = topic()
    write(name, "plain-1")
    assert values(read(name, pollTimeoutMs="5000", **{READ_ACTION: "DISCARD"})) == []


@pytest.mark.proves("S16")
@pytest.mark.needs_spark("4.2")
def test_encrypted_stream_and_load_read_the_key(
    spark: SparkSession, broker: Broker, write: Any, topic: NewTopic, keys: Path, tmp_path: Path
) -> None:
    name = topic()
    write(name, "plain-1", "plain-2", "plain-3")
    source = {"service.url": broker.service_url, "topic": name}
    frame = (
        spark.readStream.format("pulsar")
        .options(**source, **{READ_KEYS: f"file:{keys}/orders.key"})
        .options(startingOffsets="earliest", maxMessagesPerTrigger="2")
        .load()
    )
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
    writer.trigger(availableNow=True).start(f"{tmp_path}/rows").awaitTermination()
    assert values(spark.read.parquet(f"{tmp_path}/rows")) == ["plain-1", "plain-2", "plain-3"]
    spark.sparkContext._conf.set("spark.orders.key.secret", (keys / "audit.key").read_text())
    request = {
        "source": {**source, READ_KEYS: json.dumps({"audit": "conf:spark.orders.key.secret"})},
        "output": {"path": f"file://{tmp_path}/load"},
        "interval": "all",
    }
    assert load.Load(spark, LoadRequest.parse(json.dumps(request)), time.monotonic()).run().rows == 3
    assert "PRIVATE KEY" not in (tmp_path / ".load.manifest.json").read_text()


@pytest.mark.proves("S16")
def test_write_without_public_key_sends_nothing(
    read: Read, write: Any, client: Client, topic: NewTopic, keys: Path
) -> None:
    name = topic()
    client.create_producer(name).close()
    for place, message in (
        ("file:/no/such.pub", rf"{WRITE_KEYS}: The key file:/no/such\.pub cannot be read"),
        (json.dumps({"audit": f"file:{keys}/audit.pub"}), f"{WRITE_KEYS} names no public key 'orders'; it has audit"),
    ):
        with pytest.raises(Exception, match=message):
            write(name, "plain-1", options={WRITE_NAMES: "orders", WRITE_KEYS: place})
    assert read(name).count() == 0
    lax = {WRITE_NAMES: "orders", WRITE_KEYS: "file:/no/such.pub", WRITE_ACTION: "SEND"}
    write(name, "plain-1", options=lax)
    assert values(read(name)) == ["plain-1"]


# ---- options ---------------------------------------------------------------------------------------------------------


def test_key_references_pickle_and_read(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_KEY", (keys / "orders.key").read_text())
    refs = KeyRefs.parse("o", '{"a": "env:ORDERS_KEY", "b": "file:/no/such"}')
    refs = pickle.loads(pickle.dumps(refs))
    assert refs.get_private_key("a", {}).key.startswith(b"-----BEGIN PRIVATE KEY-----")
    with pytest.raises(CryptoError, match="o: The key file:/no/such cannot be read"):
        refs.check()
    with pytest.raises(CryptoError, match="o names no private key 'c'; it has a, b"):
        refs.get_private_key("c", {})
    assert KeyRefs.parse("o", "env:ORDERS_KEY").get_public_key("any", {}).key
    assert "PRIVATE KEY-" not in repr(refs)


@pytest.mark.parametrize("text", ["-----BEGIN PRIVATE KEY-----s3cret", '{"a": "s3cret"}', '{"a": 1}', "{s3cret", "{}"])
def test_literal_key_raises_without_it(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=READ_KEYS) as refused:
        ReadOptions.parse({**MINIMUM, READ_KEYS: text})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({READ_ACTION: "CONSUME"}, "CONSUME has no rows"),
        ({READ_ACTION: "SKIP"}, "must be FAIL or DISCARD"),
    ],
)
def test_read_crypto_option_wrong_raises(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        ReadOptions.parse({**MINIMUM, **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({WRITE_NAMES: "a"}, "together"),
        ({WRITE_KEYS: "env:A"}, "together"),
        ({WRITE_ACTION: "SEND"}, "is for encrypted writes"),
        ({WRITE_NAMES: "a,,b", WRITE_KEYS: "env:A"}, "none of them empty"),
        ({WRITE_NAMES: "a", WRITE_KEYS: "env:A", WRITE_ACTION: "DISCARD"}, "one of fail, send"),
        ({WRITE_NAMES: "a", WRITE_KEYS: "the key"}, f"{WRITE_KEYS} must be env:VARIABLE"),
    ],
)
def test_write_crypto_option_wrong_raises(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        WriteOptions.parse({**MINIMUM, **given}, streaming=False)


def test_read_with_key_of_client_is_the_same(keys: Path) -> None:
    reader = CryptoKeyReader(str(keys / "orders.pub"), str(keys / "orders.key"))
    refs = KeyRefs.parse("o", f"file:{keys}/orders.key")
    ours = refs.get_private_key("orders", {}).key
    assert ours.strip() == reader.get_private_key("orders", {}).key.strip()
