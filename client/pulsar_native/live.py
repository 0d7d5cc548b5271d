"""What every live object refuses: to be pickled."""

from __future__ import annotations

from typing import NoReturn


class Live:
    """A client, producer, consumer or reader of either face: it holds connections and stays in its process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A live {type(self).__name__} cannot be pickled: it holds connections. Send its description instead "
            "(client.config, a ClientConfig) and create the client where it is used"
        )
