"""Values of messages as Airflow can store them in XComs and in the events of triggers.

Airflow marks objects in what it stores by keys of its own. What a message holds is data: it may neither be refused
there, after its acknowledgement, nor become an object when it is read.
"""

from __future__ import annotations

import json
from typing import Any

# Airflow stores no mapping with one of them, and reads one with both of the others as an object.
_REFUSED = frozenset({"__classname__", "__id__"})
_OBJECT = frozenset({"__type", "__var"})


def xcom_value(value: Any) -> Any:
    """Return a JSON value as Airflow can store it: a dict with the keys of its own becomes its JSON text."""
    if isinstance(value, list):
        return [xcom_value(each) for each in value]
    if isinstance(value, tuple):
        # Also a named one, as Airflow does.
        return tuple(xcom_value(each) for each in value)
    if not isinstance(value, dict):
        return value
    if _REFUSED & value.keys() or value.keys() >= _OBJECT:
        return json.dumps(value)
    return {name: xcom_value(each) for name, each in value.items()}
