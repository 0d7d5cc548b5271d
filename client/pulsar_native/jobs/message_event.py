"""Description of a message as an event for another program: nothing, its ids and metadata, or also its value.

Pure; no I/O. Rules: an event consists of JSON values that every encoder takes: no integer beyond 64 bits, no NUL and
no surrogate without its pair, no deep nesting. Its size is limited, and what was left out is said.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.batch import metadata_of
from pulsar_native.jobs.json_values import encodable, storable

if TYPE_CHECKING:
    from pulsar_native import Message

PAYLOADS = ("none", "ids", "value")
DEFAULT_LIMIT_BYTES = 16 * 1024


def event_of(
    message: Message, payload: str, decoded: tuple[Any, str] | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> dict[str, Any] | None:
    """Return the event of a message, None for the payload `none`.

    :param payload: `none`, `ids` (message id, topic, key, properties, times, producer, sequence id), or `value`, the
        same with `value` and its `encoding` (json, text, base64 or null).
    :param decoded: value and encoding, as `codecs.decode` returns them; for the payload `value`.
    :param limit_bytes: limit of the event's size as JSON. A value beyond it is left out: `encoding` is then `omitted`
        and `value_bytes` the size of the message's payload. Properties beyond it become their number,
        `properties_omitted`, and a key beyond it `key_omitted`.
    """
    if payload == "none":
        return None
    event: dict[str, Any] = encodable(metadata_of(message))
    if decoded is not None and payload == "value":
        whole = event | storable({"value": decoded[0], "encoding": decoded[1]})
        if _size(whole) <= limit_bytes:
            return whole
        event |= {"value": None, "encoding": "omitted", "value_bytes": len(message)}
    if _size(event) > limit_bytes:
        event |= {"properties": {}, "properties_omitted": len(event["properties"])}
    if _size(event) > limit_bytes:
        event |= {"key": None, "key_omitted": True}
        event.pop("ordering_key", None)
    return event


def _size(event: object) -> int:
    return len(json.dumps(event, separators=(",", ":")))
