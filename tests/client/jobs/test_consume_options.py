"""Single options of a consume job, without its settings."""

from __future__ import annotations

import pytest

from pulsar_native.jobs.consume_options import checked


def test_checked_text_of_a_whole_number() -> None:
    assert (checked("max_bytes_per_file", "5"), checked("max_messages_per_file", None)) == (5, None)


@pytest.mark.parametrize("name", ["idle_seconds", "format"])
def test_checked_nothing_for_a_needed_option_raises(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        checked(name, None)
