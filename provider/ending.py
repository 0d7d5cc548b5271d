"""How a task ends its client: by its own end, or by a kill from another thread, whichever comes first."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsar_native import Client


def end_client(client: Client, *, at_once: bool = False) -> None:
    """Close the client, or with `at_once` drop its connections; nothing when it is closed already."""
    from pulsar_native.exceptions import AlreadyClosed

    with suppress(AlreadyClosed):
        if at_once:
            client.shutdown()
        else:
            client.close()


def kill_client(client: Client | None) -> None:
    """Drop the connections from a thread of its own: a task's on_kill may wait for nothing."""
    if client is not None:
        threading.Thread(
            target=end_client, args=(client,), kwargs={"at_once": True}, name="pulsar-on-kill", daemon=True
        ).start()
