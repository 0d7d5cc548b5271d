"""When to leave a cluster for another one, and when to come back.

Rules (client.md B.1, B.3): the cluster in use is probed; after so many failures in a row the client moves to the first
of the others, in their order, that answers. Away from the primary, the primary is probed too, and after so many
successes in a row it is used again. Probing is the caller's: a check yields the number of a cluster (0 = primary) and
is sent whether it answers.
"""

from __future__ import annotations

from collections.abc import Generator


class FailoverCore:
    """Decides for one client which of `clusters` is in use. Not thread-safe."""

    def __init__(self, clusters: int, *, failover_threshold: int, switch_back_threshold: int) -> None:
        self.current = 0
        self._clusters = clusters
        self._failover_threshold = failover_threshold
        self._switch_back_threshold = switch_back_threshold
        self._failures = 0
        self._primary_successes = 0

    def check(self) -> Generator[int, bool, bool]:
        """Go through one check; its value is whether `current` has changed."""
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
