"""Authentication parameters as one JSON object of strings, like the official clients' auth_params_string.

Rules: unknown names are errors that suggest the nearest valid one; no error contains a value or the text.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pulsar_native._http import parse_json_object
from pulsar_native.exceptions import InvalidConfiguration


def parse_parameters(text: str, names: Mapping[str, str], what: str) -> dict[str, str]:
    """Return the parameters of a JSON object, renamed by `names` (accepted spelling -> name here).

    Raises `InvalidConfiguration` for anything but an object of known names and str values. Does no I/O.
    """
    if not isinstance(text, str):
        raise InvalidConfiguration(f"The {what} must be a str of JSON, not {type(text).__name__}")
    given = parse_json_object(text)
    if given is None:
        raise InvalidConfiguration(f"The {what} is not a JSON object")
    found: dict[str, str] = {}
    for name, value in given.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(names))}"
            raise InvalidConfiguration(f"The {what} has an unknown parameter {name!r}; {hint}")
        if not isinstance(value, str):
            raise InvalidConfiguration(f"The parameter {name!r} in the {what} must be a str")
        found[names[name]] = value
    return found
