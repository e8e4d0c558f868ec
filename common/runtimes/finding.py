"""A problem that a runtime's reader, or an analysis of the whole process, found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.value_classes import dataclass, field

if TYPE_CHECKING:
    from findleaks.results import verdict

OF_MAPPINGS = ("go-mappings",)
"""Kinds of findings of runtimes about mappings outside their heaps."""


@dataclass(frozen=True)
class Finding:
    """A problem found in a process's memory.

    `kind` identifies it for programs. `bytes` is the size of the memory concerned, `resident` that
    of its resident part (None: unknown). `title` and `cause` ("" if unknown) are sentences,
    `remedies` are suggestions, `commands` are command lines that show more, `facts` are the numbers
    behind it. `of_blocks` is True if its memory consists of blocks of allocators. `members` are the
    indices of these blocks, if it is unknown to the reader whether they are reachable. `is_idle` is
    True if the memory may belong to something idle, such as connections of a server: such a finding
    is ranked by half of its memory. `lock` is the address of the lock for which, according to the
    finding, threads wait (0: none)."""

    kind: str
    bytes: int
    title: str
    cause: str = ""
    remedies: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)
    resident: Optional[int] = None
    of_blocks: bool = False
    members: Sequence[int] = ()
    is_idle: bool = False
    lock: int = 0

    @property
    def rank(self) -> int:
        """Bytes by which findings are sorted; see is_idle."""
        return self.weight // 2 if self.is_idle else self.weight

    @property
    def weight(self) -> int:
        """Bytes by which findings are compared: resident bytes, or all if these are unknown."""
        return self.bytes if self.resident is None else self.resident

    def result(self) -> verdict.Finding:
        """Return the finding as a result."""
        from findleaks.results import verdict  # only `verdict` needs it

        return verdict.Finding(
            self.kind, self.bytes, self.resident, self.title, self.cause or None, self.remedies, self.commands, self.facts
        )
