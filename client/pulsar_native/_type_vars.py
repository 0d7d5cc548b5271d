"""Type variables of the classes that are generic in the type of the values.

Without an argument, as in `def handle(message: Message)`, such a class is one of any values; a producer or consumer
that is created without a schema is one of bytes. Type checkers read the defaults (PEP 696); the `typing` module has
them from Python 3.13 on, and at run time they are not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    T_co = TypeVar("T_co", covariant=True, default=Any)
    T_contra = TypeVar("T_contra", contravariant=True, default=Any)
    S = TypeVar("S", default=bytes)
else:
    from typing import TypeVar

    # Values of the messages of a push consumer's topics.
    T = TypeVar("T")
    # Values received, by Message, Consumer, Reader and TableView.
    T_co = TypeVar("T_co", covariant=True)
    # Values sent, by Producer.
    T_contra = TypeVar("T_contra", contravariant=True)
    # Values of a schema given to a method.
    S = TypeVar("S")
