"""The interface of a runtime reader. To add a runtime, add a file or folder with a finder, and list
it in the directory.

A runtime has its own heap, whose objects hold native blocks, and counters of its memory. Nothing is
called in the target: exported symbols, the code of exported functions, and invariants show
everything. For an unknown version `problems` says what could not be read; the rest is offered."""

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

NO_OBJECT = NO_ROOT  # in ObjectTypes.types


class Count(NamedTuple):
    """One of the runtime's counters, by its own name. `unit`: "bytes", or "" for a plain number."""

    value: int
    unit: str = ""


class Part(NamedTuple):
    """Memory that the runtime owns: code, metadata, its heap.

    `used`: bytes of live objects in `ranges` (sorted, disjoint), None if unknown. `name` is used in
    a sentence ("code cache"). `inside`: the part is in an allocator's blocks, whose total includes
    it. `parts`: known components, within these ranges. `freed`: memory that the runtime has freed
    and not given back to the kernel."""

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
    """The live objects of one type, their bytes in the managed heap itself, and counts that only
    this runtime has (`own`)."""

    name: str
    objects: int
    bytes: int
    own: Mapping[str, int] = {}


class Holders(NamedTuple):
    """Live objects that may refer to native memory.

    Columns, ascending by address: where an object begins, how many bytes from there may contain
    references to native memory, the number of its type in `names`. Objects that surely refer to no
    native block may be left out. Free slots may be included with the type
    engine.dominators.NO_ROOT: what they still contain refers to nothing.

    Objects of the first `owning` types free what they refer to, so they own it: references to it
    from elsewhere, such as stale ones, are ignored. `owned`: blocks, by index, that objects of a
    type own beside what their words refer to. `pages`: parts of allocators' blocks with many
    objects each, and no native memory.

    If each object is an allocator's block, the columns are empty, and `blocks` has for every block
    the number of its object's type, or NO_ROOT, or IGNORED for an object without pointers. Such
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
    """Words of blocks that are no references: see Graph.exclude_words."""

    patterns: bytearray  # by block
    exclusions: Sequence[Exclusion]  # by pattern, at most 255


class ObjectTypes(NamedTuple):
    """The type of the object in each allocator's block: its number in `names`, or NO_OBJECT.
    `ranks`, by type number: of a cycle's objects, the one of the highest rank names the cycle; at
    least 1. `runtime`: its name; `phrase`: what an object is in a sentence ("Python object")."""

    types: array[int]  # "I", by block
    names: Sequence[str]
    ranks: array[int]  # "I"
    runtime: str
    phrase: str


class MiscountedType(NamedTuple):
    """Leaked objects of one type: how many count more references than exist, how many more these
    count in all, and how many wait for the collector."""

    name: str
    objects: int
    excess: int
    uncollected: int


class ReferenceCounts(NamedTuple):
    """Reference counts of leaked objects, beside the references that exist."""

    verdicts: bytearray  # by block: the CountVerdict of its leak head
    excess: array[int]  # "I", by block: references that its object counts beyond those that exist
    totals: Sequence[Totals]  # by CountVerdict, of all leaked blocks
    types: Sequence[MiscountedType]  # most objects with an excess first


class Objects(NamedTuple):
    """Live objects of a runtime's own heap, as nodes that refer to one another.

    Columns, ascending by address: where an object begins, the bytes of its place, how many of them
    are in use (beyond are remains of former objects), and in how many references to other objects
    are looked for: none of an object whose memory is not known to refer only to what it holds.
    `buffers`: start and size in turn, ascending and disjoint, of what objects have elsewhere
    (elements of arrays, tables), and that refers to objects. `ranges`: memory of objects only,
    sorted and disjoint; `pages`: those of it that are in allocators' blocks."""

    addresses: array[int]  # "Q"
    sizes: array[int]  # "I"
    used: array[int]  # "I"
    followed: array[int]  # "I"
    buffers: array[int]  # "Q"
    ranges: Sequence[Range]
    pages: Sequence[Range] = ()


class Variable(NamedTuple):
    """A variable of the managed language ("shop.orders.cache"): the reference is at `address`, the
    object at `value`. `table`: the block with the object's own storage (a dictionary's), or 0.
    `what`: the object's type, "" if unknown; `length`: of a collection, in `unit`s ("elements")."""

    name: str
    address: int
    value: int
    table: int = 0
    what: str = ""
    length: Optional[int] = None
    unit: str = ""


class Site(NamedTuple):
    """An allocation site, as the runtime records it (tracemalloc, NMT). Frames are innermost first,
    "file:line" or a function."""

    frames: Sequence[str]
    blocks: int
    bytes: int


@dataclass(frozen=True)
class Finding:
    """A problem found in a process's memory. `kind` identifies it for programs; `bytes` is the
    memory concerned, `resident` how much of it is resident (None: not known). `title` is a
    sentence, `cause` another or "", `remedies` what to try, `commands` commands that show more
    (their words), `facts` the numbers behind it."""

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
        """What ranks it: resident bytes; all bytes where these are not known."""
        return self.bytes if self.resident is None else self.resident

    def result(self) -> verdict.Finding:
        """The finding as a result."""
        from findleaks.results import verdict  # only `verdict` needs it

        return verdict.Finding(
            self.kind, self.bytes, self.resident, self.title, self.cause or None, self.remedies, self.commands, self.facts
        )


class Runtime:
    """One runtime in a process; subclasses set the attributes and override what they can read.
    Every method may be called any number of times, in any order, and raises only Interrupted: what
    cannot be read becomes a line in `problems`."""

    name: str  # "Ruby"
    version: str  # "3.1.2", or "" where it is not known
    where: str  # "libruby-3.1.so.3.1.2"
    problems: list[Problem]
    lists_objects = False  # whether `types` has all objects of its heap
    shares_module = False  # whether the program's own data is beside its own in the module `where`

    def counters(self) -> Mapping[str, Count]:
        """The runtime's own counters, in reading order."""
        return {}

    def parts(self) -> Sequence[Part]:
        """Memory that the runtime owns, for `whatis`, `map`, `verdict`."""
        return []

    def stack_memory(self) -> Sequence[Range]:
        """Sorted, disjoint parts of its heap with stacks beside other data (Go's): memory below a
        stack pointer need not be dead there."""
        return []

    def note(self) -> str:
        """A sentence for `find`, `verdict` and `map` on what is known of its memory and what is
        not, or ""."""
        return ""

    def reserved(self) -> Sequence[Range]:
        """Addresses reserved for its heap and not opened; see Allocator.reserved."""
        return []

    def types(self) -> Sequence[Type]:
        """Live objects by type, unordered. Five million objects take less than 3 s."""
        return []

    def holders(self) -> Optional[Holders]:
        """Objects that may hold native blocks; None if unknown."""
        return None

    def reported_bytes(self, name: str) -> Optional[int]:
        """Native bytes that this type's objects reported to the collector; None if unknown."""
        return None

    def dead(self) -> Sequence[Range]:
        """Sorted, disjoint parts of its heap without live objects (free slots): words there refer
        to nothing."""
        return []

    def sites(self) -> Sequence[Site]:
        """Allocation sites, where the runtime records them; most bytes first."""
        return []

    @property
    def recorded(self) -> bool:
        """Whether there may be `recordings`; known without reading them."""
        return False

    def recordings(self) -> Sequence[Recording]:
        """Allocation stacks that it recorded, with the block of each; see Allocator.recordings."""
        return ()

    def variables(self) -> Sequence[Variable]:
        """Global variables whose values are objects in blocks in use; one variable an object."""
        return []

    def object_nodes(self) -> Optional[Objects]:
        """Its objects, if they are no blocks and `variables` refer to them; else None. Objects to
        which a variable refers are among them."""
        return None

    def excluded_words(self) -> Optional[Exclusions]:
        """Words in blocks that are no references in any graph: a runtime whose objects are blocks
        chains them, keeps addresses of blocks to know of them, or leaves data in them that it will
        not use again. None without such blocks."""
        return None

    def words_for_ownership(self) -> Optional[Exclusions]:
        """`excluded_words`, and those that only an examination of all objects shows: asked for
        where it matters which root retains a block, not whether any does."""
        return self.excluded_words()

    def bookkeeping(self) -> Sequence[Range]:
        """Other memory in which it keeps addresses of its objects to find them, not to use them:
        heads of its lists of all objects, unused parts of its stacks. Not references in any
        graph; in any order."""
        return []

    def heuristics(self) -> tuple[Heuristic, Sequence[int]]:
        """See Allocator.heuristics, for a runtime whose allocator does not know of its objects."""
        return Heuristic.NONE, ()

    def permanent_blocks(self) -> Sequence[int]:
        """Starts of blocks that it will never free, though nothing may refer to them: roots."""
        return ()

    def object_types(self) -> Optional[ObjectTypes]:
        """The types of its objects, if each is an allocator's block; else None."""
        return None

    @property
    def automatic_collection(self) -> Optional[bool]:
        """Whether its collector of garbage runs by itself; None if unknown."""
        return None

    def reference_counts(self, graph: Graph, pieces: Iterable[Piece]) -> Optional[ReferenceCounts]:
        """Compare the reference counts of leaked objects with the references that exist. `graph` is
        classified, `pieces` the memory of all blocks. None if the runtime does not count."""
        return None

    report_call = ""  # by which native code reports bytes to its collector; "" if there is none

    def is_own_name(self, symbol: str) -> bool:
        """Whether a variable of the module `where` is its own, or of its managed language."""
        return True

    def release_command(self, call: str) -> str:
        """A command or statement by which users have this runtime make `call` ("malloc_trim(0)"),
        which returns an allocator's free memory; "" if there is none."""
        return ""

    def describe(self, address: int) -> str:
        """A phrase on the managed object at this address ("Ruby String, 12 characters"), or ""."""
        return ""


class Finder(Protocol):
    """Finds a runtime in a target. It runs for every process: a miss must take less than 1 ms."""

    def __call__(self, target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]: ...
