"""Live objects refuse to be pickled, with advice, and show no secret."""

from __future__ import annotations

import copy
import pickle

import pytest

import pulsar_native
import pulsar_native.asyncio
from pulsar_native._not_picklable import NotPicklable


class Thing(NotPicklable):
    """A live object."""


class Named(NotPicklable):
    """A live object with a text of its own."""

    def _described(self) -> str:
        return "of t"


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_live_object_refuses_copies(attempt: object) -> None:
    with pytest.raises(TypeError, match=r"A live Thing cannot be pickled.*\(client\.config, a ClientConfig\)"):
        attempt(Thing())  # type: ignore[operator]


def test_live_object_inside_another_refuses_too() -> None:
    with pytest.raises(TypeError, match="live Named"):
        pickle.dumps({"a": [Named()]})


def test_live_object_shows_what_it_is() -> None:
    thing = Thing()
    assert repr(thing) == f"<Thing at {id(thing):#x}>" and repr(Named()) == "<Named of t>"


@pytest.mark.parametrize("kind", [pulsar_native.Client, pulsar_native.asyncio.Client])
def test_clients_of_both_apis_hide_credentials(kind: type) -> None:
    made = kind("pulsar://127.0.0.1:1", authentication=pulsar_native.AuthenticationToken("topsecret"))
    assert "topsecret" not in repr(made)
    with pytest.raises(TypeError, match="A live Client cannot be pickled") as caught:
        pickle.dumps(made)
    assert "topsecret" not in str(caught.value)
