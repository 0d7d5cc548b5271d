"""Mix-in of the live objects of both APIs: a repr, and a refusal of pickling."""

from __future__ import annotations

from typing import NoReturn


class NotPicklable:
    """Client, producer, consumer or reader of either API: it holds connections and belongs to its process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A live {type(self).__name__} cannot be pickled: it holds connections. Send its description instead "
            "(client.config, a ClientConfig) and create the client where it is used"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._described()}>"

    def _described(self) -> str:
        """Return the text that identifies this object in its repr; never a secret."""
        return f"at {id(self):#x}"
