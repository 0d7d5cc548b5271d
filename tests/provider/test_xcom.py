"""Values of messages on their way through Airflow's own serialization."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.serde import deserialize, serialize

from airflow_provider_pulsar.xcom import xcom_value

RESERVED: dict[str, dict[str, Any]] = {
    "class": {"__classname__": "os.system", "__version__": 1, "__data__": {}},
    "schema": {"__id__": 5},
    "old": {"__var": 1795894435.0, "__type": "datetime"},
    "old_dict": {"__var": {"a": 1}, "__type": "dict", "other": True},
}
PLAIN = {"__version__": 1, "__data__": 2, "__type": "x", "a": [None, True, 1.5, "text", {"__var": 3}]}


@pytest.mark.parametrize("kind", RESERVED)
def test_xcom_value_reserved_keys_become_text(kind: str) -> None:
    reserved = RESERVED[kind]
    text = json.dumps(reserved)
    value = {"value": reserved, "list": [1, [reserved], (1, reserved)], "properties": {"a": reserved}, "plain": PLAIN}
    found = xcom_value(value)
    assert found == {"value": text, "list": [1, [text], (1, text)], "properties": {"a": text}, "plain": PLAIN}
    # What a task returns is what the next one pulls.
    assert deserialize(serialize(found)) == found == xcom_value(found)
    assert json.loads(found["value"]) == reserved
