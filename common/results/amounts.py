"""Numbers of blocks and of bytes."""

from __future__ import annotations

from typing import Literal, Optional, Protocol

from findleaks.results.record import Record
from findleaks.value_classes import dataclass

Kind = Literal["reachable", "possible", "definite", "indirect"]
"""How a block in use is referenced, with memcheck's meanings."""

TypeSource = Literal["rtti", "runtime", "debug-info", "pattern", "inferred"]
"""How a type is known: by a vtable; by a managed runtime; by debug information and references from
typed memory; by its content; by likeness, or with doubt."""

State = Literal["in-use", "cached", "free", "metadata"]
"""The state of a block. cached: freed by the program, and in a thread cache."""


class Counted(Protocol):
    """An object with a number of blocks and of bytes."""

    @property
    def blocks(self) -> int: ...

    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True, eq=False, repr=False)
class Amount(Record):
    """A number of blocks and their usable bytes."""

    blocks: int
    """Number of blocks."""
    bytes: int
    """Usable bytes of these blocks."""

    @classmethod
    def of(cls, counted: Counted) -> Amount:
        """The figures of an object that has them."""
        return cls(counted.blocks, counted.bytes)

    @classmethod
    def known(cls, counted: Optional[Counted]) -> Optional[Amount]:
        """The same as `of`, but None if `counted` is None."""
        return None if counted is None else cls(counted.blocks, counted.bytes)
