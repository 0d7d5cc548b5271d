"""Result of a publication: counts, message ids and failures.

Rules: ids are kept per entry, not per message, so that millions fit. Receipts arrive in the client's thread while the
job's thread reads, hence one lock.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.failures import is_permanent_result

if TYPE_CHECKING:
    from pulsar_native import MessageId, Result

# Number of single ids in a manifest; further ones are counted.
_SHOWN = 1000
_FEW = 20
_REASONS = {
    "MessageTooBig": "it is larger than the broker takes: make it smaller, or raise the broker's maxMessageSize",
    "AlreadyClosed": "the producer was closed before it was sent",
    "Timeout": "the broker did not confirm it",
}


@dataclass
class _PartitionResult:
    """Messages stored in one partition. `entries` holds [ledger, entry, first index, last index]."""

    stored: int = 0
    duplicates: int = 0
    first: str | None = None
    last: str | None = None
    newest: int = -1
    entries: list[list[int]] = field(default_factory=list)


class PublishResult:
    """Receipts of numbered messages (0, 1, …) sent to `partitions` partitions; thread-safe."""

    def __init__(self, partitions: int) -> None:
        self._count = max(1, partitions)
        self._lock = threading.Lock()
        self._partitions: dict[int, _PartitionResult] = {}
        self._failed: dict[int, str] = {}
        self._is_final = False
        self._unkeyed = True
        self._settled = threading.Event()
        self._expected: int | None = None
        self.refused = 0
        self.accepted = 0
        self.resolved = 0
        self.stored = 0
        self.duplicates = 0
        self.sent_bytes = 0

    # ---- recording -------------------------------------------------------------------------------------------------

    def accept(self, number: int, size: int, *, keyed: bool) -> None:
        """Record a message queued for sending, unless its failure was recorded before."""
        with self._lock:
            if number in self._failed:
                self.resolved -= 1
                return
        self.accepted += 1
        self.sent_bytes += size
        if keyed:
            self._unkeyed = False

    def refuse(self, number: int, reason: str) -> None:
        """Record a message that could not be queued."""
        self.refused += 1
        with self._lock:
            self._failed[number] = reason

    def receipt(self, number: int, result: Result, message_id: MessageId | None) -> None:
        """Record the receipt or error of a message: the broker's in the client's thread, or a local error."""
        with self._lock:
            self.resolved += 1
            if result.name == "Ok" and message_id is not None:
                self._keep(number, message_id)
            else:
                self._failed[number] = f"{result.name}: {_REASONS.get(result.name, 'it was not sent, or not stored')}"
                self._is_final = self._is_final or is_permanent_result(result)
            if self.resolved == self._expected:
                self._settled.set()

    def _keep(self, number: int, message_id: MessageId) -> None:
        part = self._partitions.setdefault(message_id.partition(), _PartitionResult())
        if message_id.entry_id() < 0:
            # The broker's receipt for a sequence id that it has already stored.
            part.duplicates += 1
            self.duplicates += 1
            return
        self.stored += 1
        part.stored += 1
        part.newest = max(part.newest, number)
        part.last = str(message_id)
        part.first = part.first or part.last
        here = [message_id.ledger_id(), message_id.entry_id()]
        index = message_id.batch_index()
        if part.entries and part.entries[-1][:2] == here:
            part.entries[-1][3] = index
        else:
            part.entries.append([*here, index, index])

    def wait(self, seconds: float) -> bool:
        """Wait until every queued message has a receipt or error, or the time is over; return True if all have."""
        with self._lock:
            self._expected = self.accepted
            if self.resolved == self._expected:
                return True
            self._settled.clear()
        return self._settled.wait(seconds)

    # ---- reading ---------------------------------------------------------------------------------------------------

    @property
    def failed(self) -> int:
        """Number of messages without a receipt so far."""
        return len(self._failed)

    @property
    def is_final(self) -> bool:
        """True if a message failed that fails in every try."""
        return self.refused > 0 or self._is_final

    def first_error(self) -> str | None:
        """Return number and error of the first failed message."""
        with self._lock:
            if not self._failed:
                return None
            number = min(self._failed)
            return f"message {number}: {self._failed[number]}"

    def is_repeatable(self) -> bool:
        """Return True if a retry with the same sequence ids stores the missing messages.

        The broker drops ids up to the highest one stored in a partition: a failed message before a stored, or possibly
        stored, one of its partition would be dropped too.
        """
        with self._lock:
            if not self._failed:
                return True
            if self.resolved < self.accepted:
                return False
            first: dict[int, int] = {}
            for number in self._failed:
                place = number % self._count if self._unkeyed else 0
                first[place] = min(number, first.get(place, number))
            newest: dict[int, int] = {}
            for index, part in self._partitions.items():
                place = max(0, index) if self._unkeyed else 0
                newest[place] = max(part.newest, newest.get(place, -1))
            return all(newest.get(place, -1) < number for place, number in first.items())

    def manifest(self) -> dict[str, Any]:
        """Return counts and ids as JSON values; ids are "ledger:entry:partition:batch_index"."""
        with self._lock:
            partitions = {
                str(index): {
                    "count": part.stored + part.duplicates,
                    "stored": part.stored,
                    "first": part.first,
                    "last": part.last,
                }
                for index, part in sorted(self._partitions.items())
            }
            return {
                "count": self.stored + self.duplicates,
                "stored": self.stored,
                "duplicates": self.duplicates,
                "partitions": partitions,
                "bytes": self.sent_bytes,
            }

    def stored_ids(self) -> list[str]:
        """Return the ids of stored messages, batches as one ("7:12:0:0..99"); at most 1,000, then their number."""
        with self._lock:
            count = sum(len(part.entries) for part in self._partitions.values())
            found = self._ids(_SHOWN)
        return found if count <= _SHOWN else [*found, f"and {count - _SHOWN} more entries"]

    def first_ids(self) -> list[str]:
        """Return the ids of the first entries, in the form of `stored_ids`."""
        with self._lock:
            return self._ids(_FEW)

    def _ids(self, limit: int) -> list[str]:
        entries = ((index, entry) for index, part in sorted(self._partitions.items()) for entry in part.entries)
        return [
            f"{ledger}:{entry}:{index}:{first}" + (f"..{last}" if last > first else "")
            for index, (ledger, entry, first, last) in itertools.islice(entries, limit)
        ]
