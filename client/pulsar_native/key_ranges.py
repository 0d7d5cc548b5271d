"""Which keys a Key_Shared consumer gets, and which part of a topic a reader by key: ranges of the keys' hashes.

Rules (client.md F.6): the broker hashes a message's ordering key, else its key, by Murmur3 to 0..65535; both bounds of
a range belong to it. Ranges of one consumer may not overlap; those of several consumers the broker compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pulsar_native.enums import KeySharedMode
from pulsar_native.exceptions import InvalidConfiguration

MAX_HASH = 65_535

Range = tuple[int, int]
"""First and last hash, both included."""


@dataclass(frozen=True, kw_only=True)
class KeySharedPolicy:
    """How the keys are divided among the consumers of a Key_Shared subscription; the same for all of them.

    `AutoSplit`: the broker divides. `Sticky`: each consumer gets the keys whose hash lies in its `sticky_ranges`; where
    no consumer has a hash, its messages wait. `allow_out_of_order_delivery` lets messages of a key that are delivered
    again come after newer ones, so that a slow consumer does not hold up a new one.
    """

    key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit
    allow_out_of_order_delivery: bool = False
    sticky_ranges: Sequence[Range] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.key_shared_mode, KeySharedMode):
            raise InvalidConfiguration(
                f"key_shared_mode must be KeySharedMode.AutoSplit or KeySharedMode.Sticky, not {self.key_shared_mode!r}"
            )
        if not isinstance(self.allow_out_of_order_delivery, bool):
            raise InvalidConfiguration("allow_out_of_order_delivery must be True or False")
        if self.key_shared_mode is KeySharedMode.Sticky:
            ranges = checked_ranges("sticky_ranges", () if self.sticky_ranges is None else self.sticky_ranges)
            object.__setattr__(self, "sticky_ranges", ranges)
        elif self.sticky_ranges:
            raise InvalidConfiguration("sticky_ranges needs key_shared_mode=KeySharedMode.Sticky")


def checked_ranges(name: str, ranges: object) -> tuple[Range, ...]:
    """Return ranges as tuples; those that are none, lie outside 0..65535 or overlap are refused by name."""
    if isinstance(ranges, str | bytes) or not isinstance(ranges, Sequence) or not ranges:
        raise InvalidConfiguration(f"{name} must be a list of (first, last) hashes with at least one, not {ranges!r}")
    found = tuple(_checked(name, each) for each in ranges)
    ordered = sorted(found)
    for before, after in pairwise(ordered):
        if after[0] <= before[1]:
            raise InvalidConfiguration(f"{name} overlap: {before} and {after} (both bounds belong to a range)")
    return found


def _checked(name: str, each: object) -> Range:
    pair = tuple(each) if isinstance(each, list | tuple) else ()
    if len(pair) != 2 or any(isinstance(bound, bool) or not isinstance(bound, int) for bound in pair):
        raise InvalidConfiguration(f"{name} must hold pairs of int, (first, last), not {each!r}")
    first, last = pair
    if not 0 <= first <= last <= MAX_HASH:
        raise InvalidConfiguration(f"{name} must have 0 <= first <= last <= {MAX_HASH}, not {each!r}")
    return first, last
