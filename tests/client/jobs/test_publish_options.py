"""Single options of a publish job, alone and as the fields of its options."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_native.jobs.publish_options import CHECKED
from pulsar_native.jobs.publishing import PublishOptions

WRONG: dict[str, tuple[Any, str]] = {
    "schema": ("jsn", "schema='jsn' is not known; did you mean 'json'"),
    "compression": ("zst", "compression='zst' is not known; did you mean 'zstd'"),
    "batching_max_messages": (0, "batching_max_messages must be a number of at least 1, not 0"),
    "batching_max_bytes": (True, "batching_max_bytes must be a number of at least 1, not True"),
    "send_timeout_seconds": (-1, "send_timeout_seconds must be a number of at least 0.1, not -1"),
    "progress_seconds": (None, "progress_seconds must be a number of at least 0.1, not None"),
    "deduplicate": ("True", "deduplicate must be True, False or 'auto', not 'True'"),
    "create_subscription": (" ", "create_subscription must be a text that is not blank"),
    "retention_minutes": (0, "retention_minutes must be a whole number from 1, or -1 for no limit, not 0"),
    "retention_mb": (-2, "retention_mb must be a number of at least -1, not -2"),
}


def test_checked_knows_all_options_of_the_tests() -> None:
    assert set(WRONG) == set(CHECKED)


@pytest.mark.parametrize("name", WRONG)
def test_options_wrong_value_raises(name: str) -> None:
    given, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        PublishOptions(topic="t", **{name: given})


def test_options_choices_become_lower_case() -> None:
    found = PublishOptions(topic="t", schema="JSON", compression="LZ4", deduplicate="auto", retention_mb=-1)
    assert (found.schema, found.compression, found.deduplicate, found.retention_mb) == ("json", "lz4", "auto", -1)
