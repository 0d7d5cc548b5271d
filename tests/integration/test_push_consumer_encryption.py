"""Push consumers of encrypted topics on a real broker: keys, failure actions, positions, encrypted copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import (
    ConsumeFromWhere,
    ConsumerCryptoFailureAction,
    CryptoKeyReader,
    MessageId,
    MessageModel,
)
from support.brokers import NewTopic
from support.key_files import key_pair
from support.push_consumers import IN_ORDER, LATER, SUCCESS, SUSPEND, Recorder, Started, backlog, messages_of

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

FAIL, DISCARD, CONSUME = ConsumerCryptoFailureAction
GROUP = "sealed"
ALL = [b"0 plain", b"1 sealed", b"2 plain"]
PLAIN = [b"0 plain", b"2 plain"]
both_models = pytest.mark.parametrize("model", list(MessageModel), ids=lambda model: model.value)
both_orders = pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> CryptoKeyReader:
    """Give a reader of a key pair."""
    return CryptoKeyReader(*key_pair(tmp_path_factory.mktemp("keys")))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Give the options of all push consumers of a test: one member, whose positions are written in short intervals."""
    return {"consumer_group": GROUP, "offset_store_folder": str(tmp_path), "persist_consumer_offset_interval": 100}


def sealed(keys: CryptoKeyReader) -> dict[str, Any]:
    """Return the options of a producer that encrypts."""
    return {"encryption_key": "ours", "crypto_key_reader": keys}


def publish(client: Any, name: str, keys: CryptoKeyReader, contents: list[bytes] = ALL, **message: Any) -> None:
    """Publish one entry for each content, encrypted where the content says so."""
    open_one = client.create_producer(name, batching_enabled=False)
    sealing = client.create_producer(name, batching_enabled=False, **sealed(keys))
    for content in contents:
        (sealing if b"sealed" in content else open_one).send(content, **message)
    open_one.close()
    sealing.close()


class Contexts(Recorder):
    """A handler that notes which messages are still encrypted, too."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.still_encrypted: list[bool] = []

    def __call__(self, messages: list[Any], context: Any) -> Any:
        for message in messages:
            encryption = message.encryption_context()
            self.still_encrypted.append(encryption is not None and encryption.is_decryption_failed())
        return super().__call__(messages, context)


@pytest.mark.proves("C182")
@both_models
@both_orders
def test_encrypted_topic_read_with_key(
    client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats, keys: CryptoKeyReader,
    options: dict[str, Any], model: MessageModel, orderly: bool,
) -> None:  # fmt: skip
    name = topic()
    publish(client, name, keys)
    recorder = Recorder(IN_ORDER if orderly else SUCCESS)
    push_consumer = consume(
        client, name, recorder, message_model=model, orderly=orderly, crypto_key_reader=keys, **options
    )
    eventually(lambda: sorted(recorder.seen) == ALL)
    eventually(lambda: push_consumer.stats().unfinished == 0)
    assert push_consumer.stats().decryption_failed == 0
    if model is MessageModel.CLUSTERING:
        eventually(lambda: backlog(stats, name, GROUP) == 0)


@pytest.mark.proves("C182", "C215")
@both_models
@both_orders
def test_encrypted_entry_fail_comes_again(
    client: Any, topic: NewTopic, consume: Started, eventually: Eventually, keys: CryptoKeyReader,
    options: dict[str, Any], caplog: pytest.LogCaptureFixture, model: MessageModel, orderly: bool,
) -> None:  # fmt: skip
    name = topic()
    publish(client, name, keys)
    answer = IN_ORDER if orderly else SUCCESS
    recorder = Recorder(answer)
    first = consume(client, name, recorder, message_model=model, orderly=orderly, **options)
    # What is behind it is handled.
    eventually(lambda: sorted(recorder.seen) == PLAIN and first.stats().unfinished == 0)
    assert first.stats().decryption_failed == 1
    first.shutdown(1000)
    warned = [text for text in messages_of(caplog) if "the stored position stays before it" in text]
    assert len(warned) == (model is MessageModel.BROADCASTING)
    # A further start without the key changes nothing.
    consume(client, name, recorder, message_model=model, orderly=orderly, **options)
    eventually(lambda: len(recorder.seen) == (3 if model is MessageModel.BROADCASTING else 2))
    consume.close()
    again = Recorder(answer)
    second = consume(client, name, again, message_model=model, orderly=orderly, crypto_key_reader=keys, **options)
    # In broadcasting from the stored position on, in clustering what is unacknowledged.
    expected = ALL[1:] if model is MessageModel.BROADCASTING else ALL[1:2]
    eventually(lambda: sorted(again.seen) == expected and second.stats().unfinished == 0)
    second.shutdown(1000)
    # Decrypted, it is done, and the position goes on.
    publish(client, name, keys, [b"3 sealed"])
    third = Recorder(answer)
    consume(client, name, third, message_model=model, orderly=orderly, crypto_key_reader=keys, **options)
    eventually(lambda: third.seen == [b"3 sealed"])


@pytest.mark.proves("C195", "C215")
def test_encrypted_entry_before_start_no_effect(
    client: Any,
    topic: NewTopic,
    consume: Started,
    eventually: Eventually,
    keys: CryptoKeyReader,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = topic()
    publish(client, name, keys)
    more = {
        "message_model": MessageModel.BROADCASTING,
        "consume_from_where": ConsumeFromWhere.LAST_OFFSET,
        **options,
    }
    recorder = Recorder()
    first = consume(client, name, recorder, **more)
    publish(client, name, keys, [b"3 plain"])
    eventually(lambda: recorder.seen == [b"3 plain"])
    first.shutdown(1000)
    assert not [text for text in messages_of(caplog) if "the stored position stays" in text]
    publish(client, name, keys, [b"4 plain"])
    again = Recorder()
    consume(client, name, again, **more)
    eventually(lambda: again.seen == [b"4 plain"])


@pytest.mark.proves("C182", "C215")
@both_models
@both_orders
def test_encrypted_entry_discard_passed_over(
    client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats, keys: CryptoKeyReader,
    options: dict[str, Any], model: MessageModel, orderly: bool,
) -> None:  # fmt: skip
    name = topic()
    publish(client, name, keys)
    more = {"message_model": model, "orderly": orderly, **options}
    recorder = Recorder(IN_ORDER if orderly else SUCCESS)
    first = consume(client, name, recorder, crypto_failure_action=DISCARD, **more)
    eventually(lambda: sorted(recorder.seen) == PLAIN and first.stats().unfinished == 0)
    assert first.stats().decryption_failed == 1
    if model is MessageModel.CLUSTERING:
        eventually(lambda: backlog(stats, name, GROUP) == 0)
    first.shutdown(1000)
    publish(client, name, keys, [b"3 sealed"])
    again = Recorder(IN_ORDER if orderly else SUCCESS)
    consume(client, name, again, crypto_key_reader=keys, **more)
    eventually(lambda: again.seen == [b"3 sealed"])


@pytest.mark.proves("C182")
@both_models
@both_orders
def test_encrypted_entry_consume_handed_over(
    client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats, keys: CryptoKeyReader,
    options: dict[str, Any], model: MessageModel, orderly: bool,
) -> None:  # fmt: skip
    name = topic()
    # Of a whole batch the tags are unknown.
    producer = client.create_producer(name, **sealed(keys))
    producer.send(b"sealed", properties={"TAGS": "a"})
    publish(client, name, keys, PLAIN, properties={"TAGS": "a"})
    publish(client, name, keys, [b"5 plain"], properties={"TAGS": "b"})
    handler = Contexts(IN_ORDER if orderly else SUCCESS)
    push_consumer = consume(
        client, name, handler, expression="a", message_model=model, orderly=orderly, crypto_failure_action=CONSUME,
        **options,
    )  # fmt: skip
    eventually(lambda: len(handler.seen) == 3 and push_consumer.stats().unfinished == 0)
    assert sorted(handler.still_encrypted) == [False, False, True]
    assert b"sealed" not in handler.seen and set(PLAIN) < set(handler.seen)
    eventually(lambda: push_consumer.stats().filtered == 1)
    if model is MessageModel.CLUSTERING:
        eventually(lambda: backlog(stats, name, GROUP) == 0)


def encrypted_to(client: Any, name: str, keys: CryptoKeyReader) -> list[tuple[bytes, bool]]:
    """Return what is in a topic, and whether it is encrypted there."""
    reader = client.create_reader(name, MessageId.earliest, crypto_key_reader=keys)
    found = []
    while reader.has_message_available():
        message = reader.read_next(20_000)
        found.append((message.data(), message.encryption_context() is not None))
    reader.close()
    return found


@pytest.mark.proves("C182")
@pytest.mark.parametrize("encrypts", [True, False], ids=["encrypted", "plain"])
def test_copies_encrypted_by_producer_options(
    client: Any, topic: NewTopic, consume: Started, eventually: Eventually, keys: CryptoKeyReader,
    options: dict[str, Any], encrypts: bool,
) -> None:  # fmt: skip
    name = topic()
    publish(client, name, keys, [b"sealed"])
    recorder = Recorder(LATER)
    producer_options = sealed(keys) if encrypts else {}
    push_consumer = consume(
        client, name, recorder, crypto_key_reader=keys, max_reconsume_times=1, delay_levels_ms=[0],
        dead_letter_producer_options=producer_options, retry_letter_producer_options=producer_options, **options,
    )  # fmt: skip
    eventually(lambda: push_consumer.stats().dead_letters == 1)
    # The copy of the retry topic was decrypted, too.
    assert recorder.seen == [b"sealed"] * 2
    for ending in ("RETRY", "DLQ"):
        assert encrypted_to(client, f"{name}-{GROUP}-{ending}", keys) == [(b"sealed", encrypts)]


@pytest.mark.proves("C182")
def test_orderly_dead_letters_encrypted(
    client: Any, topic: NewTopic, consume: Started, eventually: Eventually, keys: CryptoKeyReader,
    options: dict[str, Any],
) -> None:  # fmt: skip
    name = topic()
    publish(client, name, keys, [b"sealed"])
    push_consumer = consume(
        client, name, Recorder(SUSPEND), orderly=True, crypto_key_reader=keys, max_reconsume_times=0,
        suspend_current_queue_time_millis=10, dead_letter_producer_options=sealed(keys), **options,
    )  # fmt: skip
    eventually(lambda: push_consumer.stats().dead_letters == 1)
    assert encrypted_to(client, f"{name}-{GROUP}-DLQ", keys) == [(b"sealed", True)]
