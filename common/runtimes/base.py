"""The interface of a runtime reader.

To add a runtime, add a file or folder with a finder, and list it in the directory.

A runtime has its own heap, whose objects refer to native blocks, and counters of its memory.
Readers call nothing in the target: they use exported symbols, the code of exported functions, and
invariants. For an unknown version, `problems` states what could not be read; the rest is
reported."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

from findleaks.allocators.base import Problem
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import Exclusion, Heuristic, Totals
from findleaks.target.base import Piece, Range, Target, Thread

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.allocators.sites import Recording
    from findleaks.results import verdict
    from findleaks.runtimes.managed_frame import Frame
    from findleaks.unwind.stacks import NamedFrame

NO_OBJECT = NO_ROOT  # value in ObjectTypes.types: no object


class Count(NamedTuple):
    """A counter of the runtime, with the runtime's name for it. `unit` is "bytes", or "" for a
    plain number."""

    value: int
    unit: str = ""


class Part(NamedTuple):
    """Memory that the runtime owns: code, metadata, its heap.

    - `name` is used in a sentence ("code cache").
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
    """The live objects of one type and their bytes in the managed heap. `own` has counts that only
    this runtime reports."""

    name: str
    objects: int
    bytes: int
    own: Mapping[str, int] = {}


class Holders(NamedTuple):
    """Live objects that may refer to native memory.

    Columns, ascending by address: start of an object, number of bytes from there that may contain
    references to native memory, number of its type in `names`. Objects that certainly refer to no
    native block may be omitted. Free slots may be included with the type engine.dominators.NO_ROOT:
    words in them are not references.

    Objects of the first `owning` types free what they refer to, so they own it. References to it
    from elsewhere, such as stale ones, are ignored. `owned` lists blocks, by index, that objects of
    a type own in addition to those that their words refer to. `pages` are parts of allocators'
    blocks that contain many objects each, and no native memory.

    If each object is an allocator's block, the columns are empty, and `blocks` has the type number
    of each block's object, or NO_ROOT, or IGNORED for an object without pointers. Such blocks are
    not native memory themselves."""

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

    `ranks` has a number (at least 1) for each type; a cycle is named after its object of the
    highest rank. `runtime` is the runtime's name, `phrase` names an object in a sentence ("Python
    object")."""

    types: array[int]  # "I", by block
    names: Sequence[str]
    ranks: array[int]  # "I"
    runtime: str
    phrase: str


class MiscountedType(NamedTuple):
    """Leaked objects of one type.

    `objects` is the number of objects that count more references than exist, `excess` the sum of
    these differences, `uncollected` the number of objects that the collector has not freed yet."""

    name: str
    objects: int
    excess: int
    uncollected: int


class ReferenceCounts(NamedTuple):
    """Reference counts of leaked objects, compared with the existing references."""

    verdicts: bytearray  # by block: the CountVerdict of its leak head
    # "I", by block: number of references that its object counts but that do not exist
    excess: array[int]
    totals: Sequence[Totals]  # by CountVerdict, of all leaked blocks
    types: Sequence[MiscountedType]  # those with the most miscounted objects first


class Objects(NamedTuple):
    """Live objects of a runtime's own heap, as nodes that refer to one another.

    Columns, ascending by address: start of an object, bytes of its slot, bytes in use (the rest
    contains remains of former objects), and bytes that are searched for references to other objects
    (0 for an object whose memory may contain addresses of objects that it does not keep alive).

    `buffers` has start and size in turn, ascending and disjoint, of memory outside the slots that
    belongs to objects (elements of arrays, tables) and refers to objects. `ranges` is memory that
    contains only objects, sorted and disjoint; `pages` is the part of it in allocators' blocks."""

    addresses: array[int]  # "Q"
    sizes: array[int]  # "I"
    used: array[int]  # "I"
    followed: array[int]  # "I"
    buffers: array[int]  # "Q"
    ranges: Sequence[Range]
    pages: Sequence[Range] = ()


class Variable(NamedTuple):
    """A variable of the managed language ("shop.orders.cache").

    `address` is the address of the reference, `value` that of the object. `table` is the block with
    the object's storage (such as a dictionary's), or 0. `what` is the type of the object, "" if
    unknown. `length` is the length of a collection, in `unit`s ("elements")."""

    name: str
    address: int
    value: int
    table: int = 0
    what: str = ""
    length: Optional[int] = None
    unit: str = ""


class UserThread(NamedTuple):
    """A thread that the runtime schedules itself, such as a goroutine.

    `number` is the runtime's, `state` and `reason` ("" if unknown) are the runtime's words.
    [`sp`, stack.end) is live. `waiting`: nanoseconds, None if unknown. `creator`: where it was
    created. `thread`: the kernel's number of the thread that runs it, 0 if none does."""

    number: int
    state: str
    reason: str
    sp: int
    pc: int
    stack: Range
    frames: Sequence[NamedFrame]  # innermost first
    creator: Optional[NamedFrame] = None
    waiting: Optional[int] = None
    thread: int = 0
    is_internal: bool = False  # of the runtime itself


class Site(NamedTuple):
    """An allocation site, as recorded by the runtime (tracemalloc, NMT). Frames are innermost
    first, "file:line" or a function."""

    frames: Sequence[str]
    blocks: int
    bytes: int


@dataclass(frozen=True)
class Finding:
    """A problem found in a process's memory.

    `kind` identifies it for programs. `bytes` is the size of the memory concerned, `resident` that
    of its resident part (None: unknown). `title` and `cause` ("" if unknown) are sentences,
    `remedies` are suggestions, `commands` are command lines that show more, `facts` are the numbers
    behind it."""

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
        """Bytes by which findings are ranked: resident bytes, or all bytes if these are unknown."""
        return self.bytes if self.resident is None else self.resident

    def result(self) -> verdict.Finding:
        """Return the finding as a result."""
        from findleaks.results import verdict  # only `verdict` needs it

        return verdict.Finding(
            self.kind, self.bytes, self.resident, self.title, self.cause or None, self.remedies, self.commands, self.facts
        )


class Runtime:
    """A runtime in a process; subclasses set the attributes and override what they can read.

    Methods may be called repeatedly and in any order. They raise only Interrupted; data that cannot
    be read become a line in `problems`."""

    name: str  # "Ruby"
    version: str  # "3.1.2", or "" if unknown
    where: str  # "libruby-3.1.so.3.1.2"
    problems: list[Problem]
    # Whether it has mappings to which no word in memory refers.
    maps_unreferenced_memory = False
    lists_objects = False  # whether `types` includes all objects of its heap
    shares_module = False  # whether the module `where` also has data of the program

    def counters(self) -> Mapping[str, Count]:
        """Return the runtime's own counters, in reading order."""
        return {}

    def parts(self) -> Sequence[Part]:
        """Return memory that the runtime owns, for `whatis`, `map`, `verdict`."""
        return []

    def findings(self) -> Sequence[Finding]:
        """Return problems of this runtime's own memory that are worth a finding of `verdict`."""
        return []

    def stack_memory(self) -> Sequence[Range]:
        """Return sorted, disjoint parts of the heap that mix stacks with other data (Go). Memory
        below a stack pointer is not necessarily dead there."""
        return []

    def note(self) -> str:
        """Return a sentence for `find`, `verdict` and `map` that says which of its memory was read,
        or ""."""
        return ""

    def reserved(self) -> Sequence[Range]:
        """Return addresses that are reserved for its heap but not mapped yet; see
        Allocator.reserved."""
        return []

    user_thread = ""
    """What the runtime calls a thread that it schedules itself ("goroutine"); "": it has none."""

    def user_threads(self) -> Sequence[UserThread]:
        """Return these threads. This needs no heap. 100,000 take less than 10 s."""
        return ()

    def types(self) -> Sequence[Type]:
        """Return live objects by type, in no order. Five million objects take less than 3 s."""
        return []

    def holders(self) -> Optional[Holders]:
        """Return objects that may refer to native blocks; None if unknown."""
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
        """Whether there may be `recordings`; determined without reading them."""
        return False

    def recordings(self) -> Sequence[Recording]:
        """Return recorded allocation stacks, with the block of each; see Allocator.recordings."""
        return ()

    def variables(self) -> Sequence[Variable]:
        """Return global variables whose values are objects in blocks in use; one variable per
        object."""
        return []

    def object_nodes(self) -> Optional[Objects]:
        """Return the objects of its heap, if they are not blocks and `variables` refer to them;
        else None. The result includes the objects to which variables refer."""
        return None

    def excluded_words(self) -> Optional[Exclusions]:
        """Return words in blocks that are not references in any graph; None unless its objects are
        blocks.

        These are links of lists of all objects, addresses kept for bookkeeping, and data that the
        runtime will not use again."""
        return None

    def words_for_ownership(self) -> Optional[Exclusions]:
        """Return `excluded_words` and further words that only a scan of all objects finds.

        Used to determine which root retains a block, not whether any root does."""
        return self.excluded_words()

    def bookkeeping(self) -> Sequence[Range]:
        """Return memory outside blocks that contains addresses of its objects only to find them, in
        any order.

        Examples: heads of lists of all objects, unused parts of its stacks. Words in it are not
        references in any graph."""
        return []

    def heuristics(self) -> tuple[Heuristic, Sequence[int]]:
        """Return interior-pointer rules for a runtime whose allocator does not know its objects;
        see Allocator.heuristics."""
        return Heuristic.NONE, ()

    def permanent_blocks(self) -> Sequence[int]:
        """Return starts of blocks that the runtime never frees: they are roots."""
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
        """Return whether a variable of the module `where` belongs to the runtime, or to its managed
        language."""
        return True

    def release_command(self, call: str) -> str:
        """Return a command or statement that makes this runtime call `call` ("malloc_trim(0)"),
        which returns an allocator's free memory to the kernel; "" if there is none."""
        return ""

    def name_object(self, index: int) -> str:
        """Return a phrase for the object in a block ("list of 20"); "" if its type says all."""
        return ""

    def name_member(self, address: int, holder: int = 0) -> str:
        """Return the name of the word of an object, of its storage or of a frame, or "". `holder`:
        an object that the word's block was reached from, if known.

        Names that the program's author knows begin with "." or "[", or contain a space: ".cache",
        "closure variable kept". Others are members of the runtime's structures ("ob_type")."""
        return ""

    def fatal_message(self, thread: Thread, frames: Sequence[tuple[int, str, str]]) -> str:
        """Return the text with which the runtime ended the process in this thread, or "".
        `frames`: stack pointer, function and module of each, innermost first."""
        return ""

    def frames(self) -> Sequence[Frame]:
        """Return frames that are not on the threads' stacks."""
        return ()

    def describe(self, address: int) -> str:
        """Return a phrase that describes the managed object at this address ("Ruby String, 12
        characters"), or ""."""
        return ""


class Finder(Protocol):
    """Finds a runtime in a target. It runs for every process: a miss must take less than 1 ms."""

    def __call__(self, target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]: ...
