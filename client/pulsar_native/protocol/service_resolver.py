"""Service name resolver: the next host of a service URL to try, and cluster failover.

Hosts (as the Java client 4.x): the first one is random, the next ones follow in the order they are written. A host that
failed is skipped for the initial quarantine duration, doubled at each further failure up to the maximum; a success ends
it. When all hosts are in quarantine, all are tried in turn. A single host is never quarantined.

Failover: the cluster in use is probed; after the configured number of consecutive failures the client moves to the
first of the others, in their order, that answers. Away from the primary, the primary is probed too, and after the
configured number of consecutive successes it is used again. The caller probes: a check yields the number of a cluster
(0 = primary) and is sent whether it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class HostRotation(Generic[T]):
    """Hosts of one URL. `next` is not thread-safe, the other methods are; times are seconds of a monotonic clock."""

    def __init__(
        self,
        hosts: Sequence[T],
        random: Callable[[], float],
        *,
        quarantine_initial: float,
        quarantine_maximum: float,
    ) -> None:
        self._hosts = tuple(hosts)
        self._next = int(random() * len(self._hosts))
        self._initial = quarantine_initial
        self._maximum = max(quarantine_maximum, quarantine_initial)
        # Host -> end of its quarantine, and the quarantine's duration.
        self._bad: dict[T, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def next(self, now: float) -> T:
        """Return the host to try next."""
        for offset in range(len(self._hosts)):
            index = (self._next + offset) % len(self._hosts)
            if not self.is_quarantined(self._hosts[index], now):
                self._next = index + 1
                return self._hosts[index]
        host = self._hosts[self._next % len(self._hosts)]
        self._next = self._next % len(self._hosts) + 1
        return host

    def in_order(self, now: float) -> list[T]:
        """Return the hosts in the order they are written, those in quarantine behind the others."""
        return sorted(self._hosts, key=lambda host: self.is_quarantined(host, now))

    def is_quarantined(self, host: T, now: float) -> bool:
        """Return True if the host is in quarantine."""
        # Read once: another thread may end the quarantine meanwhile.
        bad = self._bad.get(host)
        return bad is not None and now < bad[0]

    def failed(self, host: T, now: float) -> None:
        """Record that the host could not be reached; failures during its quarantine do not lengthen it."""
        if host not in self._hosts or len(self._hosts) == 1 or self._initial <= 0 or self.is_quarantined(host, now):
            return
        before = self._bad.get(host)
        lasts = self._initial if before is None else min(before[1] * 2, self._maximum)
        self._bad[host] = (now + lasts, lasts)

    def succeeded(self, host: T) -> None:
        """Record that the host was reached."""
        self._bad.pop(host, None)


class FailoverCore:
    """Decision which of `clusters` one client uses. Not thread-safe."""

    def __init__(self, clusters: int, *, failover_threshold: int, switch_back_threshold: int) -> None:
        self.current = 0
        self._clusters = clusters
        self._failover_threshold = failover_threshold
        self._switch_back_threshold = switch_back_threshold
        self._failures = 0
        self._primary_successes = 0

    def check(self) -> Generator[int, bool, bool]:
        """Run one check as a generator; its return value is True if `current` has changed."""
        alive = yield self.current
        if not alive:
            self._failures += 1
            self._primary_successes = 0
            if self._failures < self._failover_threshold:
                return False
            for other in range(self._clusters):
                if other != self.current and (yield other):
                    return self._move(other)
            return False
        self._failures = 0
        if self.current == 0:
            return False
        self._primary_successes = self._primary_successes + 1 if (yield 0) else 0
        return self._primary_successes >= self._switch_back_threshold and self._move(0)

    def _move(self, cluster: int) -> bool:
        self.current = cluster
        self._failures = self._primary_successes = 0
        return True
