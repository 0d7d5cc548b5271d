"""SerDe classes of functions, compared with the official client's."""

from __future__ import annotations

import math
from typing import Any

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.functions import IdentitySerDe, PickleSerDe

_VALUES = st.one_of(st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary())


@given(_VALUES)
def test_identity_serialize_equals_the_official(value: Any) -> None:
    assert IdentitySerDe().serialize(value) == pulsar.IdentitySerDe().serialize(value)


@given(
    st.one_of(st.binary(max_size=12), _VALUES.map(lambda value: str(value).encode()), st.sampled_from([b"1_0", b"j"]))
)
def test_identity_deserialize_equals_the_official(data: bytes) -> None:
    ours, theirs = IdentitySerDe().deserialize(data), pulsar.IdentitySerDe().deserialize(data)
    assert type(ours) is type(theirs) and repr(ours) == repr(theirs)


@pytest.mark.parametrize(
    ("data", "value"), [(b"5", 5), (b"5.0", 5.0), (b"5j", 5j), (b"five", "five"), (b"", ""), (b"\xff", b"\xff")]
)
def test_identity_deserialize_first_kind_that_fits(data: bytes, value: Any) -> None:
    found = IdentitySerDe().deserialize(data)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("value", [None, [1], True, bytearray(b"x")])
def test_identity_serialize_other_types_raise(value: Any) -> None:
    with pytest.raises(TypeError, match=f"takes int, float, complex, str and bytes, not {type(value).__name__}"):
        IdentitySerDe().serialize(value)


@given(st.recursive(_VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))
def test_pickle_there_and_back(value: Any) -> None:
    data = PickleSerDe().serialize(value)
    found = PickleSerDe().deserialize(data)
    assert repr(found) == repr(value) and repr(pulsar.PickleSerDe().deserialize(data)) == repr(value)
    assert math.isnan(PickleSerDe().deserialize(PickleSerDe().serialize(math.nan)))
