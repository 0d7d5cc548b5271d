"""Common base of the configurations, and checks of single options.

Rule: the checks raise `InvalidConfiguration`, and name the option.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Self

from pulsar_native._type_names import origin, type_name
from pulsar_native.crypto import KeyReader, is_key_text
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName

# Largest values of the C types that the official client has its options in: more is refused there, and by the protocol.
MAX_I32 = 2**31 - 1
MAX_U32 = 2**32 - 1
MAX_I64 = 2**63 - 1
MAX_U64 = 2**64 - 1


_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Config:
    """Common behaviour of the frozen configurations: strict construction from a mapping, and changed copies."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Return the configuration made from option names and values.

        :param options: values by option name. Raises `InvalidConfiguration` for an unknown name, with the most
            similar known one, for a missing option, and for a value out of range.
        """
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        known = [f.name for f in fields]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
                raise InvalidConfiguration(f"{cls.__name__} has no option {name!r}{hint}")
        required = (f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING)
        missing = [repr(name) for name in required if name not in options]
        if missing:
            raise InvalidConfiguration(f"{cls.__name__} needs {' and '.join(missing)}")
        return cls(**options)

    def _check_options(self, checks: Mapping[str, Callable[[str, Any], None]]) -> list[str]:
        """Check each option that is not at its default by itself, and return the names of these.

        Defaults are valid, and most options have them: checking only the others takes a tenth of the time.

        :param checks: checks by option name; those of options that are one of some choices are known.
        """
        kind: Any = type(self)
        choices = _choices(kind)
        changed = self._changed_options()
        for name in changed:
            value = getattr(self, name)
            if name in choices:
                _check_choice(name, value, choices[name])
            check = checks.get(name)
            if check is not None:
                check(name, value)
        return changed

    def _changed_options(self) -> list[str]:
        """Return the names of the options that are not at their defaults; those without a default are among them."""
        kind: Any = type(self)
        defaults = _defaults(kind)
        return [
            name
            for name, value in vars(self).items()
            if value is not (usual := defaults[name]) and (type(value) is not type(usual) or value != usual)
        ]

    def _has_defaults_but(self, **others: Any) -> bool:
        """Return True if the options have these values, and the ones not named here their defaults."""
        kind: Any = type(self)
        mine, usual = vars(self), {**_defaults(kind), **others}
        # 1 equals True, and 10.0 equals 10: neither is the default of the other's type.
        return list(map(type, mine.values())) == list(map(type, usual.values())) and mine == usual

    @classmethod
    def _of_valid(cls, **options: Any) -> Self:
        """Return the configuration of these options, which are known to be valid, with the defaults of the others."""
        kind: Any = cls
        made = object.__new__(cls)
        vars(made).update(_defaults(kind))
        vars(made).update(options)
        return made

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some options changed; raises `InvalidConfiguration` as the constructor does."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


@functools.cache
def _defaults(kind: type) -> dict[str, Any]:
    """Return the default of each option, `dataclasses.MISSING` for one that is required."""
    return {
        f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        for f in dataclasses.fields(kind)
    }


@functools.cache
def _choices(kind: type) -> dict[str, type]:
    """Return the type of each option that is True or False, or a member of an enumeration."""
    return {f.name: type(f.default) for f in dataclasses.fields(kind) if isinstance(f.default, bool | Enum)}


def _check_choice(name: str, value: Any, kind: type) -> None:
    if isinstance(value, kind):
        return
    if not issubclass(kind, Enum):
        raise InvalidConfiguration(f"{name} must be True or False, not {value!r}")
    known = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
    raise InvalidConfiguration(f"{name} must be one of {known}, not {value!r}{origin(type(value))}")


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidConfiguration(message)


def check_number(name: str, value: Any, minimum: float, maximum: float = float("inf")) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidConfiguration(f"{name} must be a number, not {type(value).__name__}")
    if not minimum <= value <= maximum:
        upper = f" and at most {maximum}" if maximum != float("inf") else ""
        raise InvalidConfiguration(f"{name} must be at least {minimum}{upper}, not {value}")


def check_integer(name: str, value: Any, minimum: float, maximum: float = float("inf")) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidConfiguration(f"{name} must be an int, not {type(value).__name__}")
    check_number(name, value, minimum, maximum)


def check_encodable(name: str, text: str) -> None:
    """Raise for text that cannot be sent: UTF-8 has no lone surrogates, such as `os.fsdecode` makes of other bytes."""
    # Without the text, which may be a user name.
    require(_SURROGATE.search(text) is None, f"{name} must not hold a lone surrogate: UTF-8 has none")


def check_paths(config: Config, *names: str) -> None:
    """Raise unless these options are None or a str; a blank str becomes None, as in the official client."""
    for name in names:
        value = getattr(config, name)
        require(value is None or isinstance(value, str), f"{name} must be None or a str, not {type(value).__name__}")
        if value is not None and not value.strip():
            object.__setattr__(config, name, None)


def check_pem_paths(config: Config, *names: str) -> None:
    """Check the paths of PEM files as `check_paths` does; a path is shown in texts, so that it must not be the file."""
    check_paths(config, *names)
    for name in names:
        require(not is_key_text(getattr(config, name) or ""), f"{name} must be a path, not the content of a file")


def check_texts(config: Config, *names: str) -> None:
    """Check these options as `check_paths` does, and that they can be sent."""
    check_paths(config, *names)
    for name in names:
        value = getattr(config, name)
        if value is not None:
            check_encodable(name, value)


def check_strings(name: str, value: Mapping[str, str] | None) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise InvalidConfiguration(f"{name} must be a mapping of str to str")
    for pair in value.items():
        check_encodable(name, "".join(pair))


def check_topic(name: object, otherwise: str) -> None:
    if isinstance(name, str) and not name.strip():
        raise InvalidTopicName(otherwise)
    if not isinstance(name, str):
        raise InvalidConfiguration(f"{otherwise} (a str, not {type(name).__name__})")


def is_coroutine_function(function: object) -> bool:
    """Return True for a coroutine function, and an object whose call is one."""
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def check_no_coroutine(name: str, function: object) -> None:
    """Raise for a coroutine function: it would be called and never awaited."""
    is_plain = not is_coroutine_function(function)
    require(is_plain, f"{name} must be a plain function, not a coroutine function: it is not awaited")


def check_function(name: str, function: object) -> None:
    """Raise for what cannot be called, and for a coroutine function."""
    require(callable(function), f"{name} must be a function, not {type_name(function)}")
    check_no_coroutine(name, function)


def check_key_reader(name: str, value: object) -> None:
    require(
        value is None or isinstance(value, KeyReader),
        f"{name} must have the methods get_public_key and get_private_key; {type_name(value)} has not",
    )
    if value is not None:
        for method in ("get_public_key", "get_private_key"):
            check_no_coroutine(f"{name}.{method}", getattr(value, method))
