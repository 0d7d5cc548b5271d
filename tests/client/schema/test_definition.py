"""Module `schema.definition`: everything of the official module, the same objects as in the package."""

from __future__ import annotations

import inspect

from pulsar.schema import definition as official

from pulsar_native import schema
from pulsar_native.schema import definition

# Functions that are public by their name only.
_HELPERS = {"is_unicode"}


def test_definition_has_the_official_names() -> None:
    theirs = {name for name, each in vars(official).items() if inspect.getmodule(each) is official and name[0] != "_"}
    assert theirs - _HELPERS == set(definition.__all__)
    for name in definition.__all__:
        # A record of one path must be a record of the other one.
        assert getattr(definition, name) is getattr(schema, name, getattr(definition, name))


def test_definition_writes_the_official_text() -> None:
    def text(module: object) -> object:
        class Row(module.Record):  # type: ignore[name-defined,misc]
            n = module.Integer(required=True)  # type: ignore[attr-defined]
            texts = module.Map(module.Array(module.String()))  # type: ignore[attr-defined]

        return Row.schema()

    assert text(definition) == text(official)
