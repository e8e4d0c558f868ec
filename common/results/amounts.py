"""Numbers of blocks and of bytes."""

from __future__ import annotations

from typing import Literal, Optional, Protocol

from findleaks.results.record import Record
from findleaks.value_classes import dataclass

Kind = Literal["reachable", "possible", "definite", "indirect"]
"""How a block in use is referenced: the kinds of memcheck."""

TypeSource = Literal["rtti", "runtime", "debug-info", "pattern", "inferred", "hint"]
"""How a type is known. rtti: from a vtable. runtime: from a managed runtime. debug-info: from debug
information and references in memory whose type is known. pattern: from the content of the block.
inferred: from similar blocks, or uncertain. hint: from the user, or from a hint file."""

State = Literal["in-use", "cached", "free", "metadata"]
"""The state of a block. cached: freed by the program, and kept in a thread cache."""


class Counted(Protocol):
    """Any object that has a number of blocks and a number of bytes."""

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
        """Return the numbers of `counted` as an Amount."""
        return cls(counted.blocks, counted.bytes)

    @classmethod
    def of_known(cls, counted: Optional[Counted]) -> Optional[Amount]:
        """Return the same as `of`; None if `counted` is None."""
        return None if counted is None else cls(counted.blocks, counted.bytes)
