"""JSON objects from untrusted or secret text.

Rules: imports nothing of the client; never raises, for json's errors hold the whole text.
"""

from __future__ import annotations

import json


def parse_json_object(text: str | bytes) -> dict[str, object] | None:
    """Return the JSON object in the text, or None when it is something else. Never raises."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
