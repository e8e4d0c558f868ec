"""Owner of root memory: a variable, part of a stack, a mapping, a thread's registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Optional

from findleaks.engine.terms import Totals
from findleaks.target.base import Range


class Sort(IntEnum):
    """Sort of a root. Priorities begin at MANAGED, VARIABLE, MAPPING, STACK and REGISTERS (with the
    red zone below the stack pointer)."""

    MANAGED = 0  # a variable of a managed language, which is in a block
    VARIABLE = 1
    THREAD_LOCAL = 2
    LIBRARY = 3  # of libc and ld.so, with interior pointers to blocks: DTVs
    MAPPING = 4
    KERNEL = 5  # what the kernel keeps for the process: epoll data, timers, signal stacks
    STACK = 6
    REGISTERS = 7


WORDS = ("managed-variable", "variable", "thread-local", "library", "mapping", "kernel", "stack", "registers")

ThreadName = Callable[[int], str]  # tid -> "main thread" or "thread 2"


@dataclass
class Owner:
    """A root."""

    sort: Sort
    name: str  # "g_agent"
    where: str = ""  # "libagent.so, data", or ""
    thread: int = 0  # tid, 0 for none
    ranges: list[Range] = field(default_factory=list)  # its memory, ascending
    words: list[tuple[str, int]] = field(default_factory=list)  # values outside `ranges`: registers
    managed: bool = False  # part of a managed runtime's heap
    table: int = 0  # of a managed variable: a block that its value has for itself
    what: str = ""  # of a managed variable: the type of its value, "" if unknown
    length: Optional[int] = None  # of a collection, in `unit`s
    unit: str = ""
    apart: bool = False  # a managed variable whose value is no block
    # That it alone leads to, where they are no blocks.
    objects: Totals = field(default_factory=lambda: Totals(0, 0))

    @property
    def label(self) -> str:
        """ "g_agent (libagent.so, data)" """
        return f"{self.name} ({self.where})" if self.where else self.name

    @property
    def word(self) -> str:
        """Its name for a command line, unquoted; the address if a debugger would evaluate the name
        even in quotes, or it would be taken for an option; "" if it has neither."""
        if self.name and self.name[0] not in "$&*(-" and "`" not in self.name:
            return self.name
        if self.sort == Sort.MANAGED:
            return hex(self.words[0][1])
        return hex(self.ranges[0].start) if self.ranges else ""
