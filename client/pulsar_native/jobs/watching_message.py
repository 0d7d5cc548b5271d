"""Wait for a message of a subscription that matches, and hand it over.

Rules: asyncio only; a thread reads key files, and does nothing else. The subscription is the one place that knows which
messages were handed over before: it is created if it does not exist, and stays. The message found is not acknowledged
here but by `acknowledge_found`, once its receiver has it; until then the broker delivers it again to whoever consumes
next. Messages that do not match are left unacknowledged, or acknowledged, by the condition's `unmatched`.
`initial_position` is that of a watcher's first look in a cluster: where the subscription is missing later, as in a
topic that was made again, it begins at the first message. A message that `private_keys` do not decrypt can match by key
and properties, which are in its metadata unless it is in a batch; one of which the payload is needed is left
unacknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pulsar_native.jobs import validation
from pulsar_native.jobs.busy import when_free
from pulsar_native.jobs.consume_options import (
    DECODERS,
    INITIAL_POSITIONS,
    SUBSCRIPTION_TYPES,
    consumer_type_of,
    initial_position_of,
)
from pulsar_native.jobs.failures import counted, explain
from pulsar_native.jobs.first_subscription import FirstSubscription
from pulsar_native.jobs.matching import MessageMatch
from pulsar_native.jobs.private_keys import checked_paths, readable_key_reader_of
from pulsar_native.jobs.watching import undecrypted

if TYPE_CHECKING:
    from pulsar_native import Client as SyncClient
    from pulsar_native import Consumer as SyncConsumer
    from pulsar_native import InitialPosition, Message
    from pulsar_native.asyncio import Client, Consumer
    from pulsar_native.crypto import KeyReader
    from pulsar_native.jobs.id_ranges import TopicRanges

UNMATCHED = ("keep", "acknowledge")
# Limit of the wait for the next message of a look.
_WAIT_MS = 500
# Messages checked before other tasks of the loop run, and acknowledged at once.
_STEP = 100
# Limit of the wait for a message that is to be acknowledged, and messages that the broker sends ahead.
_ARRIVAL_MS = 5_000
_QUEUE = 1_000
IDS = "ids"
"""The field of a result that `acknowledge_found` needs."""
CLUSTER = "cluster"
"""The field for the caller to keep the cluster of the client that found the message: its ids hold there only."""


@dataclass(frozen=True)
class MessageCondition:
    """Options of a wait for a message; `of` checks them. `match` is the description that `MessageMatch` takes.

    `private_keys` are the paths of the keys of encrypted messages by the keys' names.
    """

    topic: str
    subscription: str
    match: Mapping[str, Any] | None = None
    subscription_type: str = "exclusive"
    initial_position: str = "earliest"
    decode: str = "auto"
    unmatched: str = "keep"
    value_limit_bytes: int = 48 * 1024
    private_keys: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        topic: object,
        subscription: object,
        match: Mapping[str, Any] | None = None,
        subscription_type: object = "exclusive",
        initial_position: object = "earliest",
        decode: object = "auto",
        unmatched: object = "keep",
        value_limit_bytes: int = 48 * 1024,
        private_keys: Mapping[str, str] | None = None,
    ) -> MessageCondition:
        """Return the checked condition of rendered templates; raises ValueError naming the argument."""
        from pulsar_native.topic import TopicName

        MessageMatch(match)
        validation.number("value_limit_bytes", value_limit_bytes, 0)
        return MessageCondition(
            TopicName.parse(validation.text("topic", topic)).full,
            validation.text("subscription", subscription),
            match,
            validation.choice("subscription_type", subscription_type, SUBSCRIPTION_TYPES),
            validation.choice("initial_position", initial_position, INITIAL_POSITIONS),
            validation.choice("decode", decode, DECODERS),
            validation.choice("unmatched", unmatched, UNMATCHED),
            value_limit_bytes,
            checked_paths(private_keys),
        )

    def __str__(self) -> str:
        what = f" that matches {dict(self.match)}" if self.match else ""
        return f"a message{what} in {self.topic}, as {self.subscription!r}"


class MessageWatcher:
    """Repeated check of a subscription; the consumer stays open between checks of one client."""

    uses: Literal["client", "admin"] = "client"

    def __init__(self, wanted: MessageCondition) -> None:
        self.wanted = wanted
        self.seen = ""
        self.stage = "subscribe"
        self._match = MessageMatch(wanted.match)
        self._owner: Client | None = None
        self._consumer: Consumer[Any] | None = None
        self._key_reader: KeyReader | None = None
        self._subscription = FirstSubscription(wanted.initial_position)
        self._checked = 0
        # Encrypted messages of which the payload is needed: their number, and the id of the first one.
        self._unreadable, self._first_unreadable = 0, ""

    async def look(self, client: Client, /) -> dict[str, Any] | None:
        """Return the first message that matches as JSON, else None; raises the client's errors.

        Raises `CryptoError` for a key file that cannot be read, and if none matches, and there are messages that cannot
        be decrypted, of which the payload is needed to know.
        The result has the fields of a line of a consumed file, and `IDS` for `acknowledge_found`. A consumer that has
        lost its connection raises `NotConnected`: the caller is to look with another client next.
        """
        from pulsar_native.exceptions import CryptoError, NotConnected, Timeout

        self.stage = "subscribe"
        consumer = await self._opened(client)
        self.stage = "receive"
        unmatched: list[Message] = []
        try:
            while True:
                try:
                    message = await consumer.receive(_WAIT_MS)
                except Timeout:
                    if not consumer.is_connected():
                        # It tries again by itself, by the settings of its client, which may be wrong by now.
                        raise NotConnected(
                            "the consumer has lost its connection; the next look makes a new one"
                        ) from None
                    break
                self._checked += 1
                if (found := self._found(message)) is not None:
                    self.seen = f"{message.message_id()} matches, after {self._checked - 1:,} others"
                    return found
                if self._is_unreadable(message):
                    self._unreadable, self._first_unreadable = (
                        self._unreadable + 1,
                        self._first_unreadable or str(message.message_id()),
                    )
                else:
                    unmatched.append(message)
                if self._checked % _STEP == 0:
                    await self._leave(consumer, unmatched)
        finally:
            await self._leave(consumer, unmatched)
        self.seen = f"none of {self._checked:,} messages matches" if self._checked else "there is no message"
        if self._unreadable:
            raise CryptoError(
                f"{counted(self._unreadable)} cannot be checked, the first {self._first_unreadable}: encrypted, and "
                "what is to be matched is in the payload, as of a batch the keys and properties are, too. Give "
                "private_keys with the keys they were encrypted for, or publish without batching and match by key and "
                "properties alone"
            )
        return None

    def failed(self, error: BaseException) -> None:
        """Record a check that failed; the last result stays part of the text."""
        before = f" (before: {self._checked:,} messages, none matched)" if self._checked else ""
        self.seen = explain(error, action=f"looking at {self.wanted.topic}", stage=self.stage) + before

    async def _opened(self, client: Client) -> Consumer[Any]:
        if self._consumer is None or self._owner is not client:
            self._key_reader = await asyncio.to_thread(readable_key_reader_of, self.wanted.private_keys)
            self._consumer = await self._subscription.consumer(client, self._subscribe)
            self._owner, self._checked = client, 0
            self._unreadable, self._first_unreadable = 0, ""
        return self._consumer

    async def _subscribe(
        self, client: Client, initial_position: InitialPosition, *, start_paused: bool
    ) -> Consumer[Any]:
        from pulsar_native import ConsumerCryptoFailureAction
        from pulsar_native.jobs.codecs import WriterSchema

        return await client.subscribe(
            self.wanted.topic,
            self.wanted.subscription,
            consumer_type=consumer_type_of(self.wanted.subscription_type),
            initial_position=initial_position,
            start_paused=start_paused,
            schema=WriterSchema(),
            batch_index_ack_enabled=True,
            crypto_key_reader=self._key_reader,
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
        )

    async def _leave(self, consumer: Consumer[Any], unmatched: list[Message]) -> None:
        if unmatched and self.wanted.unmatched == "acknowledge":
            await consumer.acknowledge(list(unmatched))
        unmatched.clear()
        # Messages that are queued here never wait: without this the loop would not run others.
        await asyncio.sleep(0)

    def _found(self, message: Message) -> dict[str, Any] | None:
        from pulsar_native.jobs.batch import record_of
        from pulsar_native.jobs.id_ranges import IdRanges
        from pulsar_native.jobs.json_values import storable
        from pulsar_native.schema import InvalidRecord

        if self._is_unreadable(message) or not self._match.matches_metadata(message):
            return None
        try:
            _check_decrypted(message)
            record = record_of(message, self.wanted.decode)
        except (InvalidRecord, RecursionError) as error:
            # A message without a readable value can still match by key and properties, and is handed over as bytes.
            record = {**record_of(message, "bytes"), "error": str(error)}
        if self._match.needs_value and ("error" in record or not self._match.matches_value(_tested(message, record))):
            return None
        if len(message) > self.wanted.value_limit_bytes:
            record.update(value=None, encoding="left_out", value_bytes=len(message))
        ids = IdRanges()
        ids.add(message)
        return {**storable(record), IDS: ids.as_json()}

    def _is_unreadable(self, message: Message) -> bool:
        """Return True for an encrypted message of which the payload is needed to know whether it matches."""
        context = undecrypted(message)
        if context is None:
            return False
        # A batch is one message here, without the keys and properties of those in it.
        is_batch = context.batch_size() >= 0
        return is_batch or (self._match.needs_value and self._match.matches_metadata(message))


def _check_decrypted(message: Message) -> None:
    """Raise `InvalidRecord` for a message that is still encrypted: some decoders would take its bytes for a value."""
    from pulsar_native.schema import InvalidRecord

    context = undecrypted(message)
    if context is not None:
        keys = context.keys()
        names = ", ".join(each.key for each in keys)
        raise InvalidRecord(f"The message is encrypted, with the key {names}: give private_keys with this key")


def _tested(message: Message, record: Mapping[str, Any]) -> Any:
    """Return the value that a condition tests, for text that is not JSON the text."""
    from pulsar_native.jobs.matched_value import matched_value
    from pulsar_native.schema import InvalidRecord

    try:
        return matched_value(message, (record["value"], record["encoding"]))
    except (InvalidRecord, RecursionError):
        return record["value"]


def acknowledge_found(
    client: SyncClient,
    wanted: MessageCondition,
    found: Mapping[str, Any],
    before: Callable[[], None] | None = None,
) -> bool:
    """Acknowledge a message that was found, and return True; blocks for the broker's receipt.

    The consumer that found it must be closed, or is waited for up to 30 s; then `ConsumerBusy` is raised. `before` is
    called before the acknowledgement. With it, a message of an exclusive subscription that another consumer has
    acknowledged since is left to that one: False is returned, and `before` is not called. Without it the
    acknowledgement may be a repetition. A subscription that was deleted meanwhile is made again as a look makes it. The
    client must be of the cluster of the client that found the message. Raises `CryptoError` for a key file that cannot
    be read, and for a message of a batch that the keys decrypt no more.
    """
    from pulsar_native import ConsumerCryptoFailureAction
    from pulsar_native.jobs.batch import acknowledge

    # Elsewhere the message can be on its way to another consumer, and is not delivered here though nobody has it.
    is_checked = before is not None and wanted.subscription_type == "exclusive"
    # Without its key a batch is one message, whose id is not that of the message in it.
    keys = readable_key_reader_of(wanted.private_keys) if is_checked else None
    consumer = when_free(
        lambda: client.subscribe(
            str(found["topic"]),
            wanted.subscription,
            consumer_type=consumer_type_of(wanted.subscription_type),
            initial_position=initial_position_of(wanted.initial_position),
            receiver_queue_size=_QUEUE if is_checked else 0,
            batch_index_ack_enabled=True,
            ack_receipt_enabled=True,
            crypto_key_reader=keys,
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
        )
    )
    is_left = is_checked and not _arrives(consumer, found[IDS])
    if not is_left:
        if before is not None:
            before()
        acknowledge([consumer], [found[IDS]])
    consumer.close()
    return not is_left


def _arrives(consumer: SyncConsumer, ids: TopicRanges) -> bool:
    """Return True if the broker delivers the message of these ids; what precedes it is received, too.

    Raises `CryptoError` if its batch is delivered as one message, since the keys given do not decrypt it.
    """
    from pulsar_native.exceptions import CryptoError, Timeout
    from pulsar_native.jobs.id_ranges import IdRanges, ids_of

    _, sought = next(iter(ids_of(ids)))
    while True:
        try:
            message = consumer.receive(_ARRIVAL_MS)
        except Timeout:
            return False
        received = IdRanges()
        received.add(message)
        if received.as_json() == ids:
            return True
        at = message.message_id()
        is_same_entry = (at.ledger_id(), at.entry_id()) == (sought.ledger_id(), sought.entry_id())
        if is_same_entry and undecrypted(message) is not None:
            raise CryptoError(f"{sought} cannot be acknowledged: its batch is not decrypted with the private_keys here")
        if (at.ledger_id(), at.entry_id()) > (sought.ledger_id(), sought.entry_id()):
            return False
