"""Transaction coordinators of a fake broker: they begin, register and end as asked, or answer given errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Peer, frame

ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"
# Request, the answer's type, its field, and its message.
FORMS: dict[int, tuple[str, int, str, Any]] = {
    Kind.TC_CLIENT_CONNECT_REQUEST: (
        "tcClientConnectRequest",
        Kind.TC_CLIENT_CONNECT_RESPONSE,
        "tcClientConnectResponse",
        pb.CommandTcClientConnectResponse,
    ),
    Kind.NEW_TXN: ("newTxn", Kind.NEW_TXN_RESPONSE, "newTxnResponse", pb.CommandNewTxnResponse),
    Kind.ADD_PARTITION_TO_TXN: (
        "addPartitionToTxn",
        Kind.ADD_PARTITION_TO_TXN_RESPONSE,
        "addPartitionToTxnResponse",
        pb.CommandAddPartitionToTxnResponse,
    ),
    Kind.ADD_SUBSCRIPTION_TO_TXN: (
        "addSubscriptionToTxn",
        Kind.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        "addSubscriptionToTxnResponse",
        pb.CommandAddSubscriptionToTxnResponse,
    ),
    Kind.END_TXN: ("endTxn", Kind.END_TXN_RESPONSE, "endTxnResponse", pb.CommandEndTxnResponse),
}


class Coordinators:
    """The answers of a fake broker's coordinators; `errors` are given first, one an attempt."""

    def __init__(self, fake: FakeBroker, count: int = 1) -> None:
        self.errors: dict[int, list[int]] = {}
        self.begun = 0
        fake.partitions[ASSIGN] = count
        for kind in FORMS:
            fake.answers[kind] = self._answer

    def _answer(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked, kind, field, form = FORMS[command.type]
        request = getattr(command, asked)
        answer = form(request_id=request.request_id)
        errors = self.errors.get(command.type)
        if errors:
            answer.error, answer.message = errors.pop(0), "as the test wants it"
        elif command.type == Kind.NEW_TXN:
            answer.txnid_most_bits, answer.txnid_least_bits = request.tc_id, self.begun
            self.begun += 1
        return [frame(kind, **{field: answer})]
