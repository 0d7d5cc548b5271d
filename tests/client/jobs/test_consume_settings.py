"""Settings of a consume job: single options as its fields, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_native.jobs.consume_options import CHECKED
from pulsar_native.jobs.consume_settings import ConsumeSettings
from pulsar_native.jobs.part_files import PartLimits

CHOICES = {
    "subscription_type": ("Key_Shared", "key_shred", "key_shared"),
    "initial_position": ("Latest", "latst", "latest"),
    "decode": ("JSON", "jsn", "json"),
    "format": ("Parquet", "parqet", "parquet"),
    "if_exists": ("Overwrite", "overwite", "overwrite"),
    "on_error": ("Skip", "skp", "skip"),
}
NUMBERS: dict[str, tuple[Any, str]] = {
    "idle_seconds": (0, "must be a number of at least 0.1, not 0"),
    "concurrency": ("2", "must be a number of at least 1, not '2'"),
    "max_errors": (-1, "must be a number of at least 0, not -1"),
    "progress_seconds": (float("nan"), "must be a number of at least 0.1, not nan"),
}


def test_checked_knows_all_options_of_the_tests() -> None:
    assert {*CHOICES, *NUMBERS} == set(CHECKED)


@pytest.mark.parametrize("name", CHOICES)
def test_settings_choice_becomes_lower_case(name: str) -> None:
    given, _, found = CHOICES[name]
    assert getattr(ConsumeSettings(["t"], "s", {}, **{name: given}), name) == found


@pytest.mark.parametrize("name", CHOICES)
def test_settings_misspelt_choice_raises(name: str) -> None:
    _, given, meant = CHOICES[name]
    with pytest.raises(ValueError, match=f"{name}='{given}' is not known; did you mean '{meant}'"):
        ConsumeSettings(["t"], "s", {}, **{name: given})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NUMBERS)
def test_settings_wrong_number_raises(name: str) -> None:
    given, text = NUMBERS[name]
    with pytest.raises(ValueError, match=f"{name} {text}"):
        ConsumeSettings(["t"], "s", {}, **{name: given})


@pytest.mark.parametrize(
    ("parts", "name"),
    [(PartLimits(0, None), "max_messages_per_file"), (PartLimits(None, -5), "max_bytes_per_file")],
    ids=["messages", "bytes"],
)
def test_settings_wrong_limit_of_files_raises(parts: PartLimits, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
        ConsumeSettings(["t"], "s", {}, parts=parts)
