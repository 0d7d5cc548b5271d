"""Client of one task try: opened when needed, dropped at once after a kill, a time-out or a failure.

Invariants: a kill is never lost. Before `open` it makes `open` raise, afterwards `killed` is True until the block ends;
after it a kill means nothing. The end of the block waits for the broker only without an exception: Airflow's execution
time-out is an exception inside `execute`, and every second in `finally` delays it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from airflow.sdk.exceptions import AirflowException

if TYPE_CHECKING:
    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native import Client


class TaskKilled(AirflowException):
    """Raised when a task continues after Airflow has killed it."""


class TaskClient:
    """Client of a task try; a context manager around the whole of `execute`.

    `kill` may be called from any thread and from a signal handler, and does not wait; the rest belongs to the task's
    thread. One object serves all calls of `execute` of its operator.
    """

    def __init__(self) -> None:
        self._client: Client | None = None
        self._killed = self._ended = False

    @property
    def killed(self) -> bool:
        """True if the task was killed: nothing may be sent, received or acknowledged."""
        return self._killed

    def check(self, action: str) -> None:
        """Raise `TaskKilled`, with the name of the action, if the task was killed."""
        if self._killed:
            raise TaskKilled(f"{action}: the task was killed")

    def open(self, hook: PulsarHook, action: str) -> Client:
        """Return the client of the hook's connection; raises `TaskKilled` if the task was killed before.

        Blocks while Airflow returns the connection.
        """
        self.check(action)
        client = hook.get_client()
        self._client = client
        # A kill between the check and the line above has found no client to drop.
        if self._killed:
            _drop(client)
        self.check(action)
        return client

    def kill(self) -> None:
        """Drop the connections, so that the broker redelivers unacknowledged messages; does not wait."""
        if self._ended:
            # Airflow kills a task after its time-out, too, when the block has ended: the next try is another one.
            return
        self._killed = True
        client = self._client
        if client is not None:
            threading.Thread(target=_drop, args=(client,), name="pulsar-on-kill", daemon=True).start()

    def __enter__(self) -> Self:
        self._ended = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        # A kill from here on is ignored; one before is read in the next line.
        self._ended = True
        killed, self._killed = self._killed, False
        if client is None:
            return
        if killed or error is not None:
            _drop(client)
            return
        from pulsar_native.exceptions import AlreadyClosed

        with suppress(AlreadyClosed):
            client.close()


def _drop(client: Client) -> None:
    from pulsar_native.exceptions import AlreadyClosed

    with suppress(AlreadyClosed):
        client.shutdown()
