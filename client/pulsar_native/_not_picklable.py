"""What clients, producers, consumers and readers of both APIs share: they can be told apart, and not be pickled."""

from __future__ import annotations

from typing import NoReturn


class NotPicklable:
    """A client, producer, consumer or reader of either API: it holds connections and stays in its process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A live {type(self).__name__} cannot be pickled: it holds connections. Send its description instead "
            "(client.config, a ClientConfig) and create the client where it is used"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._described()}>"

    def _described(self) -> str:
        """Return what tells this object from others of its kind; never a secret."""
        return f"at {id(self):#x}"
