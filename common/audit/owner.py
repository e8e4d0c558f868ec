"""Owners of root memory: variables, parts of stacks, mappings, registers of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Optional

from findleaks.engine.terms import Totals
from findleaks.target.base import Range
from findleaks.value_classes import dataclass, field


class OwnerSort(IntEnum):
    """Sort of an owner. Lower numbers come first.

    A new priority begins at MANAGED, VARIABLE, MAPPING, RUNTIME, OWN_REFERENCE, CALLBACKS, TABLE,
    STACK and REGISTERS. REGISTERS includes the red zone below the stack pointer."""

    MANAGED = 0  # variables of a managed language, in a block
    VARIABLE = 1
    THREAD_LOCAL = 2
    LIBRARY = 3  # data of libc and ld.so that refers to blocks by interior pointers: DTVs
    MAPPING = 4
    KERNEL = 5  # pointers that the kernel stores for the process: epoll data, timers, signal stacks
    RUNTIME = 6  # variables and memory of a runtime, except its objects; see Part.has_objects
    OWN_REFERENCE = 7  # references from these objects to structures of the runtime
    CALLBACKS = 8  # functions that an object calls, with their data
    TABLE = 9  # table of all such functions
    STACK = 10
    REGISTERS = 11


WORDS = (
    *("managed-variable", "variable", "thread-local", "library", "mapping", "kernel", "variable", "mapping"),
    *("callbacks", "callbacks", "stack", "registers"),
)
"""The word for each sort; see Owner.sort_word."""

ThreadName = Callable[[int], str]  # tid -> "main thread" or "thread 2"


@dataclass
class Owner:
    """The owner of root memory."""

    sort: OwnerSort
    name: str  # "g_agent"
    where: str = ""  # where the owner is: "libagent.so, data"; "" if unknown
    thread: int = 0  # tid; 0 if it belongs to no thread
    ranges: list[Range] = field(default_factory=list)  # root memory of the owner, ascending
    # (name, value) of words that are not in `ranges`, such as registers.
    words: list[tuple[str, int]] = field(default_factory=list)
    managed: bool = False  # part of a managed runtime's heap
    table: int = 0  # for a managed variable: a block that only its value uses; 0 if there is none
    what: str = ""  # for a managed variable: the type of its value; "" if unknown
    # For a collection: the number of its elements, which are called `unit`s
    length: Optional[int] = None
    unit: str = ""
    is_expanded: bool = True  # whether `roots` lists the fields of this owner
    apart: bool = False  # whether this is a managed variable whose value is not a block
    # Objects that only this variable retains, for runtimes whose objects are not blocks.
    objects: Totals = field(default_factory=lambda: Totals(0, 0))
    # The variables for which this owner stands, because they retain much memory only together
    members: Sequence[Owner] = ()

    @property
    def label(self) -> str:
        """The name and the place: "g_agent (libagent.so, data)"."""
        return f"{self.name} ({self.where})" if self.where else self.name

    @property
    def has_symbol(self) -> bool:
        """Whether the name is that of a variable, and not the place of a variable in a file."""
        return not self.is_variable or bool(self.where)

    @property
    def is_variable(self) -> bool:
        """Whether this is a variable in the data of a module."""
        return self.sort == OwnerSort.VARIABLE or (self.sort == OwnerSort.RUNTIME and not self.managed)

    @property
    def sort_word(self) -> str:
        """The word for the sort in JSON output. For a root of a runtime, it is the word for the
        memory that contains the root."""
        if self.sort != OwnerSort.RUNTIME:
            return WORDS[self.sort]
        return "mapping" if self.managed else "thread-local" if self.thread else "variable"

    @property
    def retains(self) -> str:
        """The verb for memory that only this owner retains: "alone retains", or "together
        retain"."""
        return "together retain" if self.members else "alone retains"

    @property
    def is_managed_frame(self) -> bool:
        """Whether this is a frame of a managed language, stored outside the thread's stack."""
        return self.sort == OwnerSort.MAPPING and self.thread != 0

    @property
    def word(self) -> str:
        """The word that names the owner on a command line, not quoted.
        It is the owner's address if a debugger would evaluate the name even in quotes, or would
        take it for an option; "" if the owner has no usable name and no address."""
        if self.name and self.name[0] not in "$&*(-" and "`" not in self.name:
            return self.name
        if self.sort == OwnerSort.MANAGED:
            return hex(self.words[0][1])
        return hex(self.ranges[0].start) if self.ranges else ""
