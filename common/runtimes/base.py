"""The interface of a runtime reader. To add a runtime, add a file or folder with a finder, and list
it in the directory.

A runtime has its own heap, whose objects hold native blocks, and counters of its memory. Nothing is
called in the target: exported symbols, the code of exported functions, and invariants show
everything. For an unknown version, `problems` states what could not be read; the rest is reported.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

from findleaks.allocators.base import Problem
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import Exclusion, Heuristic, Totals
from findleaks.target.base import Piece, Range, Target

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.allocators.sites import Recording
    from findleaks.results import verdict

NO_OBJECT = NO_ROOT  # value in ObjectTypes.types: no object


class Count(NamedTuple):
    """A counter of the runtime, with the runtime's name. `unit`: "bytes", or "" for a plain
    number."""

    value: int
    unit: str = ""


class Part(NamedTuple):
    """Memory that the runtime owns: code, metadata, its heap.
    || - `name` is used in a sentence ("code cache").
    - `used`: bytes of live objects in `ranges` (sorted, disjoint), None if unknown.
    - `inside`: the part is in blocks of an allocator, whose total includes it.
    - `parts`: known components, within these ranges.
    - `freed`: memory that the runtime freed, but did not return to the kernel."""

    name: str
    ranges: Sequence[Range]
    used: Optional[int]
    inside: bool = False
    detail: str = ""  # "134 pages of 16 KiB: 31,204 slots live, 22,566 free"
    parts: Sequence[Part] = ()
    freed: bool = False

    @property
    def bytes(self) -> int:
        """Size of its ranges, resident or not."""
        return sum(end - start for start, end in self.ranges)


class Type(NamedTuple):
    """The live objects of one type, their bytes in the managed heap, and counts that only this
    runtime has (`own`)."""

    name: str
    objects: int
    bytes: int
    own: Mapping[str, int] = {}


class Holders(NamedTuple):
    """Live objects that may refer to native memory.
    || Columns, ascending by address: start of an object, number of bytes from there that may
    contain references to native memory, number of its type in `names`. Objects that certainly refer
    to no native block may be omitted. Free slots may be included with the type
    engine.dominators.NO_ROOT: words in them are not references.
    || Objects of the first `owning` types free what they refer to, so they own it: references to it
    from elsewhere, such as stale ones, are ignored. `owned`: blocks, by index, that objects of a
    type own in addition to those that their words refer to. `pages`: parts of allocators' blocks
    that contain many objects each, and no native memory.
    || If each object is an allocator's block, the columns are empty, and `blocks` has the type
    number of each block's object, or NO_ROOT, or IGNORED for an object without pointers. Such
    blocks are not native memory themselves."""

    addresses: array[int]  # "Q"
    sizes: array[int]  # "I"
    types: array[int]  # "I"
    names: Sequence[str]
    blocks: array[int] = array("I")
    owning: int = 0
    pages: Sequence[Range] = ()
    owned: Sequence[tuple[int, Sequence[int]]] = ()  # type, blocks


class Exclusions(NamedTuple):
    """Words of blocks that are not references: see Graph.exclude_words."""

    patterns: bytearray  # by block
    exclusions: Sequence[Exclusion]  # by pattern, at most 255


class ObjectTypes(NamedTuple):
    """The type of the object in each allocator's block: its number in `names`, or NO_OBJECT.
    `ranks`, by type number (at least 1): a cycle is named after its object of the highest rank.
    `runtime`: its name; `phrase`: what an object is in a sentence ("Python object")."""

    types: array[int]  # "I", by block
    names: Sequence[str]
    ranks: array[int]  # "I"
    runtime: str
    phrase: str


class MiscountedType(NamedTuple):
    """Leaked objects of one type: how many count more references than exist, the sum of these
    excesses, and how many objects wait for the collector."""

    name: str
    objects: int
    excess: int
    uncollected: int


class ReferenceCounts(NamedTuple):
    """Reference counts of leaked objects, compared with the existing references."""

    verdicts: bytearray  # by block: the CountVerdict of its leak head
    # "I", by block: references that its object counts in excess of the existing ones
    excess: array[int]
    totals: Sequence[Totals]  # by CountVerdict, of all leaked blocks
    types: Sequence[MiscountedType]  # most objects with an excess first


class Objects(NamedTuple):
    """Live objects of a runtime's own heap, as nodes that refer to one another.
    || Columns, ascending by address: start of an object, bytes of its slot, bytes in use (the rest
    has remains of former objects), and bytes that are searched for references to other objects (0
    for an object whose memory may refer to more than it holds). `buffers`: start and size in turn,
    ascending and disjoint, of memory that objects have elsewhere (elements of arrays, tables) and
    that refers to objects. `ranges`: memory of objects only, sorted and disjoint; `pages`: the part
    of it in allocators' blocks."""

    addresses: array[int]  # "Q"
    sizes: array[int]  # "I"
    used: array[int]  # "I"
    followed: array[int]  # "I"
    buffers: array[int]  # "Q"
    ranges: Sequence[Range]
    pages: Sequence[Range] = ()


class Variable(NamedTuple):
    """A variable of the managed language ("shop.orders.cache"): the reference is at `address`, the
    object at `value`. `table`: the block with the object's storage (such as a dictionary's), or 0.
    `what`: type of the object, "" if unknown; `length`: of a collection, in `unit`s
    ("elements")."""

    name: str
    address: int
    value: int
    table: int = 0
    what: str = ""
    length: Optional[int] = None
    unit: str = ""


class Site(NamedTuple):
    """An allocation site, as recorded by the runtime (tracemalloc, NMT). Frames are innermost
    first, "file:line" or a function."""

    frames: Sequence[str]
    blocks: int
    bytes: int


@dataclass(frozen=True)
class Finding:
    """A problem found in a process's memory. `kind` identifies it for programs; `bytes` is the
    memory concerned, `resident` its resident part (None: unknown). `title` and `cause` ("" if
    unknown) are sentences, `remedies` suggestions, `commands` the words of commands that show more,
    `facts` the numbers behind it."""

    kind: str
    bytes: int
    title: str
    cause: str = ""
    remedies: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)
    resident: Optional[int] = None

    @property
    def weight(self) -> int:
        """Bytes that rank the finding: resident bytes, or all bytes if these are unknown."""
        return self.bytes if self.resident is None else self.resident

    def result(self) -> verdict.Finding:
        """Return the finding as a result."""
        from findleaks.results import verdict  # only `verdict` needs it

        return verdict.Finding(
            self.kind, self.bytes, self.resident, self.title, self.cause or None, self.remedies, self.commands, self.facts
        )


class Runtime:
    """One runtime in a process; subclasses set the attributes and override what they can read.
    Methods may be called repeatedly, in any order, and raise only Interrupted: data that cannot be
    read become a line in `problems`."""

    name: str  # "Ruby"
    version: str  # "3.1.2", or "" if unknown
    where: str  # "libruby-3.1.so.3.1.2"
    problems: list[Problem]
    lists_objects = False  # whether `types` includes all objects of its heap
    shares_module = False  # whether the module `where` also has data of the program

    def counters(self) -> Mapping[str, Count]:
        """Return the runtime's own counters, in reading order."""
        return {}

    def parts(self) -> Sequence[Part]:
        """Return memory that the runtime owns, for `whatis`, `map`, `verdict`."""
        return []

    def stack_memory(self) -> Sequence[Range]:
        """Return sorted, disjoint parts of its heap that mix stacks with other data (Go): memory
        below a stack pointer is not necessarily dead there."""
        return []

    def note(self) -> str:
        """Return a sentence for `find`, `verdict` and `map` on which of its memory is known, or
        ""."""
        return ""

    def reserved(self) -> Sequence[Range]:
        """Return addresses that are reserved for its heap, but not opened; see
        Allocator.reserved."""
        return []

    def types(self) -> Sequence[Type]:
        """Return live objects by type, unordered. Five million objects take less than 3 s."""
        return []

    def holders(self) -> Optional[Holders]:
        """Return objects that may hold native blocks; None if unknown."""
        return None

    def reported_bytes(self, name: str) -> Optional[int]:
        """Return native bytes that this type's objects reported to the collector; None if
        unknown."""
        return None

    def dead(self) -> Sequence[Range]:
        """Return sorted, disjoint parts of its heap without live objects (free slots): words there
        are not references."""
        return []

    def sites(self) -> Sequence[Site]:
        """Return allocation sites, if the runtime records them; most bytes first."""
        return []

    @property
    def recorded(self) -> bool:
        """Whether there may be `recordings`; known without reading them."""
        return False

    def recordings(self) -> Sequence[Recording]:
        """Return recorded allocation stacks, with the block of each; see Allocator.recordings."""
        return ()

    def variables(self) -> Sequence[Variable]:
        """Return global variables whose values are objects in blocks in use; one variable per
        object."""
        return []

    def object_nodes(self) -> Optional[Objects]:
        """Return its objects, if they are not blocks and `variables` refer to them; else None.
        Includes objects to which a variable refers."""
        return None

    def excluded_words(self) -> Optional[Exclusions]:
        """Return words in blocks that are not references in any graph, if its objects are blocks:
        links of lists of all objects, addresses kept for bookkeeping, and data that it will not use
        again. None without such blocks."""
        return None

    def words_for_ownership(self) -> Optional[Exclusions]:
        """Return `excluded_words`, and further words that only a scan of all objects shows. Used
        when the question is which root retains a block, not whether any does."""
        return self.excluded_words()

    def bookkeeping(self) -> Sequence[Range]:
        """Return other memory with addresses of its objects that serves to find them: heads of
        lists of all objects, unused parts of its stacks. They are not references in any graph. In
        any order."""
        return []

    def heuristics(self) -> tuple[Heuristic, Sequence[int]]:
        """See Allocator.heuristics, for a runtime whose allocator does not know its objects."""
        return Heuristic.NONE, ()

    def permanent_blocks(self) -> Sequence[int]:
        """Return starts of blocks that it never frees, even if nothing refers to them: roots."""
        return ()

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the types of its objects, if each is an allocator's block; else None."""
        return None

    @property
    def automatic_collection(self) -> Optional[bool]:
        """Whether its garbage collector runs automatically; None if unknown."""
        return None

    def reference_counts(self, graph: Graph, pieces: Iterable[Piece]) -> Optional[ReferenceCounts]:
        """Compare the reference counts of leaked objects with the existing references. `graph` is
        classified, `pieces` is the memory of all blocks. None if the runtime does not count
        references."""
        return None

    report_call = ""  # function by which native code reports bytes to the collector; "": none

    def is_own_name(self, symbol: str) -> bool:
        """Whether a variable of the module `where` belongs to the runtime, or to its managed
        language."""
        return True

    def release_command(self, call: str) -> str:
        """Return a command or statement that makes this runtime call `call` ("malloc_trim(0)"),
        which returns an allocator's free memory; "" if there is none."""
        return ""

    def describe(self, address: int) -> str:
        """Return a phrase on the managed object at this address ("Ruby String, 12 characters"), or
        ""."""
        return ""


class Finder(Protocol):
    """Finds a runtime in a target. It runs for every process: a miss must take less than 1 ms."""

    def __call__(self, target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]: ...
