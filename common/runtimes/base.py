"""What a managed runtime's reader offers; adding a runtime is adding one file (or folder) whose finder the directory lists.

A runtime has a heap of its own, whose objects hold native blocks, and counters of what it knows of them. Nothing is called in the
target: everything is found through exported symbols, the code of exported functions, and invariants. An unknown version says in
`problems` what could not be read, and offers the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

from findleaks.allocators.base import Problem
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory


class Count(NamedTuple):
    """One of the runtime's own counters, under the name by which it prints it itself. `unit` is "bytes", or "" for a plain number."""

    value: int
    unit: str = ""


class Part(NamedTuple):
    """Memory that is the runtime's own: `used` bytes of these ranges hold live objects (code, metadata); None where that is not known.

    `ranges` are sorted and disjoint. `name` is used in a sentence: "heap pages", "code cache". `inside` marks parts that are in an
    allocator's blocks: their bytes are in that allocator's share already. `parts` is what it is known to consist of: their
    ranges are among its own. `freed` marks parts that the runtime has freed and not given back to the kernel.
    """

    name: str
    ranges: Sequence[Range]
    used: Optional[int]
    inside: bool = False
    detail: str = ""  # "134 pages of 16 KiB: 31,204 slots live, 22,566 free"
    parts: Sequence[Part] = ()
    freed: bool = False

    @property
    def bytes(self) -> int:
        """Of its ranges, resident or not."""
        return sum(end - start for start, end in self.ranges)


class Type(NamedTuple):
    """The live objects of one type: how many, and the bytes they take in the managed heap itself; `own` are counts of the runtime's own."""

    name: str
    objects: int
    bytes: int
    own: Mapping[str, int] = {}


class Holders(NamedTuple):
    """Live objects, ascending by address: where each begins, the bytes from there that it may refer to native memory from, and the
    number of its type in `names`. Objects that surely refer to no native block may be left out. Free slots may stand among them, with
    graph.dominators.NO_ROOT for a type: what they still hold refers to nothing.

    Objects of the first `owning` types free themselves what they refer to, so that it is theirs: references to it from elsewhere, such as
    stale ones, take nothing from them.

    `owned` names blocks, by index, that objects of a type own beside what their words refer to.

    Where a block of an allocator's has many objects in it, `pages` are these parts of blocks: objects, and no native memory.

    Where each object is a block of an allocator's, `blocks` has for every block the number of the type of the object in it, or
    graph.dominators.NO_ROOT, or IGNORED for an object without pointers, and the columns are empty: such blocks are not native memory
    themselves."""

    addresses: array[int]  # "Q"
    sizes: array[int]  # "I"
    types: array[int]  # "I"
    names: Sequence[str]
    blocks: array[int] = array("I")
    owning: int = 0
    pages: Sequence[Range] = ()
    owned: Sequence[tuple[int, Sequence[int]]] = ()  # type, blocks


class Variable(NamedTuple):
    """A variable of the managed language that refers to an object: "shop.orders.cache", where the reference is, and its value;
    `table` is the block of memory that this object has for itself (a dictionary's table), or 0."""

    name: str
    address: int
    value: int
    table: int = 0


class Site(NamedTuple):
    """Memory by where it was asked for, as the runtime keeps it (tracemalloc, NMT): frames innermost first, "file:line" or a function."""

    frames: Sequence[str]
    blocks: int
    bytes: int


class ManagedHeap(NamedTuple):
    """By which files a process has a runtime whose heap is memory of no allocator: the start of their names, the runtime's name in a
    sentence, and the allocator that serves as its heap where that can be read (CPython's pymalloc)."""

    files: tuple[str, ...]
    owner: str
    allocator: str = ""


@dataclass(frozen=True)
class Finding:
    """Something wrong with a process's memory. `sort` is what it is, for programs; `bytes` what it is about, by which findings are ranked;
    `title` a sentence, `cause` another or "", `tries` what to try, `shows` the commands that show more (their words), `facts` the numbers
    behind it."""

    sort: str
    bytes: int
    title: str
    cause: str = ""
    tries: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)

    def json(self) -> dict[str, object]:
        return {
            "finding": self.sort,
            "bytes": self.bytes,
            "text": self.title,
            "cause": self.cause or None,
            "try": list(self.tries),
            "next": list(self.shows),
            "evidence": self.facts,
        }


class Runtime:
    """One runtime in a process. Subclasses set the attributes and override what they can say; every method may be called any number of
    times, in any order, and raises nothing but Interrupted: what cannot be read becomes a line in `problems`."""

    name: str  # "Ruby"
    version: str  # "3.1.2", or "" where it is not known
    where: str  # "libruby-3.1.so.3.1.2"
    problems: list[Problem]

    def counters(self) -> Mapping[str, Count]:
        """The runtime's own counters, in the order they are best read."""
        return {}

    def parts(self) -> Sequence[Part]:
        """Memory that is the runtime's own, for `whatis`, `map`, `verdict`."""
        return []

    def stack_memory(self) -> Sequence[Range]:
        """Memory of its heap in which stacks lie beside other things (Go's): what is below a stack pointer there need not be dead.
        Sorted and disjoint."""
        return []

    def note(self) -> str:
        """A sentence for `find`, `verdict` and `map` on what can be known of its memory and what cannot; "" where nothing need be said."""
        return ""

    def reserved(self) -> Sequence[Range]:
        """Addresses that it has reserved for its heap and not opened; see Allocator.reserved."""
        return []

    def types(self) -> Sequence[Type]:
        """Live objects by type, in no order. Five millions of them take less than 3 s."""
        return []

    def holders(self) -> Optional[Holders]:
        """What may hold native blocks; None where that cannot be known."""
        return None

    def reported_bytes(self, name: str) -> Optional[int]:
        """Of the native bytes that objects of this type hold, those they have reported to the runtime, so that its collector counts them;
        None where that is not known."""
        return None

    def dead(self) -> Sequence[Range]:
        """Parts of its heap that hold no live object (free slots): words there refer to nothing. Sorted and disjoint."""
        return []

    def sites(self) -> Sequence[Site]:
        """Memory by where it was asked for, where the runtime keeps that; most bytes first."""
        return []

    def variables(self) -> Sequence[Variable]:
        """Global variables of the managed language whose values are objects in blocks in use; of one object one variable."""
        return []

    def links(self) -> Optional[bytearray]:
        """Of objects that each are a block: by block, how far into it the two words end by which the runtime chains its objects, so that
        each seems to hold the next; 0 for none, engine.terms.NO_POINTERS for an object without pointers, where only what was there before
        may look like one. None where it has no such chains."""
        return None

    def describe(self, address: int) -> str:
        """A phrase on the managed object that holds this address ("Ruby String, 12 characters"), or ""."""
        return ""


class Finder(Protocol):
    """Finds a runtime in a target; [] if it is not there, in under a millisecond then: it runs in every process."""

    def __call__(self, target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]: ...


__all__ = [
    "Count",
    "Engine",
    "Finder",
    "Finding",
    "Holders",
    "Iterator",
    "ManagedHeap",
    "Part",
    "Problem",
    "Range",
    "Runtime",
    "Site",
    "Target",
    "Type",
    "Variable",
]
