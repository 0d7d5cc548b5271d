"""Records with every kind of field, made from our fields and from the official client's, and values for them.

For the tests of the client's schemas only: it needs hypothesis and the official client.
"""

from __future__ import annotations

from typing import Any

import pulsar.schema as official
from hypothesis import strategies as st

import pulsar_native.schema as ours
from support.record_twins import Color, Fruit, Leaf, Many, Rec, Twins

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "Null": st.none(),
    "Boolean": st.booleans(),
    "Integer": st.integers(-(2**31), 2**31 - 1),
    "Long": st.integers(-(2**63), 2**63 - 1),
    "Float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "Double": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**50), 2**50),
    "Bytes": TEXT.map(str.encode),
    "String": TEXT,
}
POINT = Rec("Point", (("x", Leaf("Integer")), ("color", Leaf("CustomEnum", {}, Color))))
EVERY = Rec(
    "Every",
    (
        *((name.lower(), Leaf(name)) for name in LEAVES),
        ("color", Leaf("CustomEnum", {}, Color)),
        ("fruit", Leaf("CustomEnum", {}, Fruit)),
        ("seven", Leaf("Integer", {"default": 7})),
        ("point", POINT),
        ("texts", Many("Array", Leaf("String"))),
        ("points", Many("Array", POINT)),
        ("grid", Many("Array", Many("Array", Leaf("Double")))),
        ("by_name", Many("Map", POINT)),
        ("counts", Many("Map", Leaf("Long"))),
    ),
)
POINTS = st.fixed_dictionaries(
    {}, optional={"x": LEAVES["Integer"] | st.none(), "color": st.sampled_from([*Color, None])}
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        **{name.lower(): strategy | st.none() for name, strategy in LEAVES.items()},
        "color": st.sampled_from([*Color, None]),
        "fruit": st.sampled_from([*Fruit, None]),
        "seven": LEAVES["Integer"] | st.none(),
        "point": POINTS | st.none(),
        "texts": st.lists(TEXT, max_size=3) | st.none(),
        "points": st.lists(POINTS, max_size=3) | st.none(),
        "grid": st.lists(st.lists(LEAVES["Double"], max_size=3), max_size=3) | st.none(),
        "by_name": st.dictionaries(TEXT, POINTS, max_size=3) | st.none(),
        "counts": st.dictionaries(TEXT, LEAVES["Long"], max_size=3) | st.none(),
    },
)
MINE, THEIRS = Twins(ours), Twins(official)

DEFINITION: dict[str, object] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"]},
        {"name": "distance", "type": "double", "default": 1.5},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
    ],
}
