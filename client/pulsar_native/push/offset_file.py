"""File format of a broadcasting push consumer's offsets: encoding to JSON text and decoding.

Rules: an offset is the last message done, as the bytes of its id (the protocol's MessageIdData, hex) beside a readable
text; `earliest` means that no message is done yet. Unknown fields are ignored, so that a newer version's file can be
read. Other content raises `ValueError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pulsar_native.exceptions import InvalidMessage
from pulsar_native.message_id import MessageId

_TABLE = "offsetTable"


def encode_offsets(offsets: Mapping[str, MessageId]) -> str:
    """Return the text for a mapping of partition names to message ids."""
    table = {name: {"id": place.serialize().hex(), "text": str(place)} for name, place in sorted(offsets.items())}
    return json.dumps({_TABLE: table}, indent=2) + "\n"


def decode_offsets(text: str) -> dict[str, MessageId]:
    """Return the mapping of a text; raises `ValueError` when the text is not such a file."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    table = content.get(_TABLE) if isinstance(content, dict) else None
    if not isinstance(table, dict):
        raise ValueError(f"there is no {_TABLE}")
    offsets = {}
    for name, entry in table.items():
        written = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(written, str):
            raise ValueError(f"{name} has no position")
        try:
            offsets[name] = MessageId.deserialize(bytes.fromhex(written), topic=name)
        except InvalidMessage as error:
            raise ValueError(f"{name}: {error}") from None
    return offsets
