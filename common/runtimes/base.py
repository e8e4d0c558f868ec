"""The interface of a runtime reader. To add a runtime, add a file or folder with a finder, and list
it in FINDERS of directory.py.

A runtime has its own heap, whose objects refer to native blocks, and counters of its memory.
Readers call nothing in the target: they use exported symbols, the code of exported functions, and
invariants. For an unknown version, `problems` states what could not be read."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Protocol

from findleaks.allocators.base import Problem
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import Exclusion, Heuristic
from findleaks.runtimes.allocation_site import Site as Site
from findleaks.runtimes.count_verdict import MiscountedType as MiscountedType
from findleaks.runtimes.count_verdict import ReferenceCounts as ReferenceCounts
from findleaks.runtimes.dependent import Dependent as Dependent
from findleaks.runtimes.memory_part import Part as Part
from findleaks.runtimes.user_thread import UserThread as UserThread
from findleaks.runtimes.variable import Variable as Variable
from findleaks.target.base import Piece, Range, Target, Thread
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.allocators.sites import Recording
    from findleaks.runtimes.attached_blocks import AttachedBlocks
    from findleaks.runtimes.finding import Finding
    from findleaks.runtimes.managed_frame import Frame
    from findleaks.runtimes.object_graph import ObjectGraph, ObjectRoot
    from findleaks.unwind.code_tables import CodeTable
    from findleaks.unwind.stacks import NamedFrame

NO_OBJECT = NO_ROOT  # value in ObjectTypes.types: no object


class FatalPlace(NamedTuple):
    """Where a process ended. `frame`: the innermost managed function that belongs to the program,
    None if unknown. `value_type`: type of the value that was thrown and that no handler caught, if
    the message does not contain it; "" otherwise."""

    frame: Optional[NamedFrame] = None
    value_type: str = ""


class Count(NamedTuple):
    """A counter of the runtime. `unit` is "bytes", or "" for a plain number."""

    value: int
    unit: str = ""


class Type(NamedTuple):
    """The live objects of one type. `own` has counts that only this runtime reports."""

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
    a type own in addition to those that their words refer to. `data` lists more such blocks, which
    contain data of the program: their words are not references. In `blocks`, these are IGNORED.
    `pages` are parts of allocators' blocks that contain many objects each, and no native memory.

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
    data: Sequence[tuple[int, array[int]]] = ()  # type, blocks ("I")
    garbage: int = 0  # types from this number on stand for garbage; 0: no type does
    freed: int = 0  # the first type of garbage whose native memory a collection frees; 0: none
    owning_garbage: int = 0  # the first of these types that own memory, like the first `owning`


class Exclusions(NamedTuple):
    """Words of blocks that are not references: see Graph.exclude_words."""

    patterns: bytearray  # by block
    exclusions: Sequence[Exclusion]  # by pattern, at most 255


class ObjectTypes(NamedTuple):
    """The type of the object in each allocator's block: its number in `names`, or NO_OBJECT.

    `ranks` has a number (at least 1) for each type; a cycle is named after its object of the
    highest rank. `runtime` is the runtime's name, `phrase` that of an object ("Python object").
    `parts` are the types of blocks that belong to an object of another type, such as the entries of
    a hash. `are_trees`: parents and children refer to each other. Such cycles are trees, which no
    code needs to break."""

    types: array[int]  # "I", by block
    names: Sequence[str]
    ranks: array[int]  # "I"
    runtime: str
    phrase: str
    are_native: bool = False  # whether the objects are structures of native code
    parts: Sequence[int] = ()
    are_trees: bool = False


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


class Runtime:
    """A runtime in a process; subclasses set the attributes and override what they can read.

    Methods may be called repeatedly and in any order, and raise only Interrupted. `problems`: what
    cannot be read."""

    name: str  # "Ruby"
    version: str  # "3.1.2", or "" if unknown
    module = ""  # "ruby": the module that has found it, see directory.find
    where: str  # "libruby-3.1.so.3.1.2"
    problems: list[Problem]
    maps_unreferenced_memory = False  # whether it has mappings to which no word in memory refers
    counts_garbage = False  # whether `types` counts objects that the collector has not freed yet
    lists_objects = False  # whether `types` includes all objects of its heap
    is_pools = False  # whether its memory consists of pools that are freed as a whole
    objects_are_native = False  # whether its objects are structures of native code, in its blocks
    names_roots = False  # whether `object_graph` has groups of roots
    reports_objects = False  # whether `findings` reports these objects, however many they are
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
        """Return a sentence for `find`, `verdict` and `map` about the memory of the runtime that
        was or was not read, or ""."""
        return ""

    def list_reserved(self) -> Sequence[Range]:
        """Return addresses reserved for its heap but not mapped yet. See also Allocator."""
        return []

    user_thread = ""  # its word for a thread that it schedules itself ("goroutine"); "": none

    def user_threads(self) -> Sequence[UserThread]:
        """Return the threads that the runtime schedules itself. This does not read the heap, and
        takes less than 10 s for 100,000 threads."""
        return ()

    def stack_roots(self) -> Mapping[str, Sequence[Range]]:
        """Return the parts in use of stacks in its heap, by the name of the group of roots to which
        they belong."""
        return {}

    def code_table(self) -> Optional[CodeTable]:
        """Return a description of the machine code that has no call frame information, or None."""
        return None

    def types(self) -> Sequence[Type]:
        """Return live objects by type, in no order. Five million objects take less than 3 s."""
        return []

    def types_note(self) -> str:
        """Return a note for the user about a limitation of the figures of `types`, or ""."""
        return ""

    def reference_chain(self, type_name: str) -> str:
        """Return types and fields on a path from a root to `native_example` ("A.x → B"), or ""."""
        return ""

    def attached_blocks(self) -> Optional[AttachedBlocks]:
        """Return the blocks that native code attached to live objects; None if unknown."""
        return None

    def native_example(self, type_name: str) -> Optional[int]:
        """Return the address of a live object of this type that retains native memory, or None."""
        graph = self.object_graph()
        return graph.example(type_name) if graph is not None else None

    def allocation_sources(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return native libraries that the program loaded, without the runtime's and the system's,
        and the runtime's functions that allocate what no collector frees; () if unknown."""
        return (), ()

    def allocating_calls(self, is_text: bool, type_name: str = "", has_parts: bool = False) -> Sequence[str]:
        """Return the places at which the program may have allocated blocks that no collector frees:
        "C.CString in main.query (main.go:57)"; () if unknown. `is_text`: whether they have text.
        `type_name`: their type in C or C++, or "". `has_parts`: whether they refer to other such
        blocks."""
        return ()

    def native_classes(self, native: str, about: str, size: int, is_alike: bool = False) -> Sequence[tuple[str, int, int]]:
        """Return the program's classes whose objects own native memory until close() is called, the
        numbers of their live objects, and how many of these own a block of `size` bytes. To choose
        classes: `native` is the type of a block, `about` has names of libraries and types.
        `is_alike`: return only classes of a package in `about` with a name like `native`."""
        return ()

    def remedies(self, type_name: str) -> Sequence[str]:
        """Return what frees native memory of objects of a type; () if unknown."""
        return ()

    def holders(self) -> Optional[Holders]:
        """Return objects that may refer to native blocks; None if unknown."""
        return None

    def reported_bytes(self, name: str) -> Optional[int]:
        """Return native bytes that objects of a type reported to the collector; None if unknown."""
        return None

    def dead(self) -> Sequence[Range]:
        """Return sorted, disjoint parts of the heap whose words are not references (free slots)."""
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
        """Return global variables that refer to objects in blocks in use; one for each object."""
        return []

    def containers(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Yield the block of an object, by index, and the addresses of blocks that only this object
        refers to, such as the parts of a queue. References to these from elsewhere are stale."""
        return ()

    def callbacks(self) -> Sequence[Variable]:
        """Return lists of callbacks (`address`: 0), and variables that refer to tables of callbacks
        (`what`: the place of the table). They get the memory that no other variable reaches."""
        return []

    def object_graph(self, address: Optional[int] = None) -> Optional[ObjectGraph]:
        """Return the graph of the objects in the runtime's heap; None if it has none, or if
        `address` is not in this heap."""
        return None

    def named_roots(self) -> Sequence[ObjectRoot]:
        """Return roots that have a name in the program's source, such as static variables, and what
        each retains, the largest first."""
        return ()

    def object_nodes(self) -> Optional[Objects]:
        """Return objects of the heap that are not blocks, and those of `variables`, or None."""
        return None

    def excluded_words(self) -> Optional[Exclusions]:
        """Return words in blocks that are not references in any graph: links of lists of all
        objects, addresses kept for bookkeeping, data that the runtime will not use again. None
        unless its objects are blocks."""
        return None

    def words_for_ownership(self) -> Optional[Exclusions]:
        """Return `excluded_words` and further words that only a scan of all objects finds. Used to
        determine which root retains a block, not whether any root does."""
        return self.excluded_words()

    def pooled_memory(self) -> Sequence[tuple[int, Range]]:
        """Return the blocks in which a pool places several objects: the index of each, and the part
        of its memory that is in use."""
        return ()

    def bookkeeping(self) -> Sequence[Range]:
        """Return unsorted ranges, also in blocks, whose words are not references in any graph.

        Examples: heads of lists of all objects, unused parts of its stacks, weak references."""
        return []

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return pairs (usable size, offset): pointers to the offset of a block of this size count
        as pointers to its start, because an object begins there."""
        return ()

    def heuristics(self) -> tuple[Heuristic, Sequence[int]]:
        """Return rules for interior pointers that the allocator lacks; see Allocator.heuristics."""
        return Heuristic.NONE, ()

    def permanent_blocks(self) -> Sequence[int]:
        """Return the starts of blocks that the runtime never frees. They are roots."""
        return ()

    def dependents(self) -> Sequence[Dependent]:
        """Return blocks that other blocks keep in use without a reference to them."""
        return ()

    def temporary_blocks(self) -> array[int]:
        """Return the indices ("I", ascending) of blocks that the runtime itself uses for a short
        time, such as memory of its compilers. They explain no growth."""
        return array("I")

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the types of its objects, if each is an allocator's block; else None."""
        return None

    @property
    def automatic_collection(self) -> Optional[bool]:
        """Whether its garbage collector runs automatically; None if unknown."""
        return None

    def reference_counts(self, graph: Graph, pieces: Iterable[Piece]) -> Optional[ReferenceCounts]:
        """Compare the reference counts of leaked objects with the existing references. `graph` is
        classified, `pieces` is the memory of all blocks. None if objects have no counts."""
        return None

    collect_calls = "", ""  # calls that free garbage, and that enable the collector
    cycle_remedy = ""  # a clause: what to do about cycles, if nothing collects them; "": not needed
    garbage_remedy = ""  # a clause: how to free native memory of garbage, if no collection frees it
    garbage_cause = ""  # a clause: why garbage with native memory was not collected
    report_call = ""  # function by which native code reports bytes to the collector; "": none

    def frees_garbage(self, type_name: str) -> bool:
        """Return whether a collection also frees the native memory of garbage of a type."""
        return not self.garbage_remedy

    def is_own_name(self, symbol: str) -> bool:
        """Return whether a variable of the module `where` belongs to the runtime, or to its managed
        language."""
        return True

    def release_command(self, call: str) -> str:
        """Return a statement that makes this runtime call `call` ("malloc_trim(0)"); "": none."""
        return ""

    def name_object(self, index: int) -> str:
        """Return a phrase for the object in a block ("list of 20"); "" if its type is enough."""
        return ""

    def name_member(self, address: int, holder: int = 0) -> str:
        """Return the name of the word of an object, of its storage or of a frame, or "". `holder`:
        an object through which the word's block was reached, if known.

        Names that the program's author knows begin with "." or "[", or contain a space: ".cache",
        "closure variable kept". Others are members of the runtime's structures ("ob_type")."""
        return ""

    def fatal_message(self, thread: Thread, frames: Sequence[tuple[int, str, str]]) -> str:
        """Return the text with which the runtime ended the process in this thread, or "".
        `frames`: stack pointer, function and module of each, innermost first."""
        return ""

    def fatal_place(self, thread: Thread, message: str) -> FatalPlace:
        """Return where the process ended in this thread. `message`: that of `fatal_message`."""
        return FatalPlace()

    def frames(self) -> Sequence[Frame]:
        """Return frames that are not on the threads' stacks."""
        return ()

    def describe(self, address: int) -> str:
        """Return a phrase for the managed object at an address ("Ruby String, 12 bytes"), or ""."""
        return ""


class Finder(Protocol):
    """Finds a runtime. It runs for every process, so a miss must take less than 1 ms."""

    def __call__(self, target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]: ...
