"""Secret references: the location of a secret (an environment variable or a file), never the secret itself.

Rules: a reference is small, printable and picklable; the secret is read where and when it is used, every time, so that
a rotated file or variable applies without a restart; no error contains what was read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from pulsar_native.crypto import is_key_text
from pulsar_native.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration

_MAX_SECRET_BYTES = 1024 * 1024
_FORM = "write 'file:///absolute/path' or 'env:NAME'"


@dataclass(frozen=True, slots=True)
class SecretReference:
    """Location of a secret: `env:NAME` or `file:///path`. Immutable, picklable, thread-safe."""

    kind: str
    target: str

    @staticmethod
    def parse(text: str) -> SecretReference:
        """Return the parsed reference or raise `InvalidConfiguration`. Does no I/O."""
        if not isinstance(text, str):
            raise InvalidConfiguration(f"A reference to a secret must be a str, not {type(text).__name__}; {_FORM}")
        if is_reference(text):
            kind, _, rest = text.partition(":")
            target = rest if kind == "env" else _path_of(text)
            is_place = kind == "env" or target.startswith("/")
            if target and is_place and "\0" not in target and not is_key_text(target):
                return SecretReference(kind, target)
        # The text is not repeated: users put the secret itself here by mistake.
        raise InvalidConfiguration(f"This is not a reference to a secret; {_FORM}")

    def read(self) -> str:
        """Return the secret, without surrounding white space.

        Blocking for a file (one small read). Raises `ErrorGettingAuthenticationData` naming the reference when it is
        empty, larger than 1 MiB, or not UTF-8 text.
        """
        content = os.environ.get(self.target, "") if self.kind == "env" else self._read_file()
        content = content.strip()
        if not content:
            raise ErrorGettingAuthenticationData(f"The secret {self} is not there or empty")
        return content

    def _read_file(self) -> str:
        try:
            with open(self.target, "rb") as file:
                content = file.read(_MAX_SECRET_BYTES + 1)
        except OSError as error:
            raise ErrorGettingAuthenticationData(f"The secret {self} cannot be read: {error.strerror}") from error
        if len(content) > _MAX_SECRET_BYTES:
            raise ErrorGettingAuthenticationData(f"The secret {self} is larger than {_MAX_SECRET_BYTES} bytes")
        try:
            return content.decode()
        except UnicodeDecodeError:
            readable = False
        if not readable:  # raised here: a UnicodeDecodeError would carry the bytes as its context
            raise ErrorGettingAuthenticationData(f"The secret {self} is not UTF-8 text")
        return ""

    def __str__(self) -> str:
        return f"env:{self.target}" if self.kind == "env" else f"file://{quote(self.target)}"


def is_reference(text: str) -> bool:
    """Return True if the text is meant as a reference, well formed or not."""
    return text.startswith(("env:", "file:"))


def _path_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return unquote(parts.path) if parts.netloc in ("", "localhost") else ""
