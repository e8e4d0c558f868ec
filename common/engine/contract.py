"""What both engines do: the C engine (`native/`) and the Python engine (`reference/`), with the
same answers to the last bit. `load.load()` chooses one.

A *block index* numbers all blocks of all states from 0, by ascending address. Only aligned words
count as references. A *start* reference equals a block's address, an *interior* one lies in
[address + 1, address + size). A block's references to itself are ignored. Several pieces ascend."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Protocol

from findleaks.engine.sampling import NO_SAMPLE, Sample
from findleaks.engine.terms import Exclusion, Group, Heuristic, Kind, Lists, Size, State, Totals
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

if TYPE_CHECKING:
    from findleaks.engine.columns import BlockColumns
    from findleaks.engine.disguises import Disguises, Form
    from findleaks.engine.dominators import Dominators
    from findleaks.engine.interiors import Interiors
    from findleaks.engine.links import LinkWalk
    from findleaks.engine.pages import PageLists, PageRead
    from findleaks.engine.pointer_runs import Bounds, PointerRuns
    from findleaks.engine.records import Records, Shape
    from findleaks.engine.rows import RowRules, Rows
    from findleaks.engine.trees import TreeLayout, TreeWalk


class Blocks(Protocol):
    """Block directory: append ascending, `seal`, look up. About 7 bytes a block in the C engine."""

    def append(self, starts: Sequence[int], sizes: Sequence[int], states: Sequence[int]) -> None:
        """Append blocks, all or none; ValueError unless ascending, above those appended before."""
        ...

    def append_runs(self, runs: array[int], bits: bytes = b"") -> None:
        """Append runs of equal blocks (array "Q", `RUN` words each), ascending as in `append`: all
        or none. ValueError otherwise, or where a bit is beyond `bits`. A call costs microseconds, a
        block nanoseconds: pass many runs at once."""
        ...

    def append_blocks(self, other: Blocks, first: int, last: int) -> None:
        """Append another sealed directory's blocks [first, last) with their states; ValueError as
        `append`. Both must be of the same engine."""
        ...

    def seal(self) -> None:
        """End appending, allow look-ups: RuntimeError for look-ups before, for appending after."""
        ...

    def __len__(self) -> int: ...

    def find(self, address: int) -> int:
        """Index of the block that contains `address`, or -1."""
        ...

    def lookup(self, address: int) -> Optional[tuple[int, int, int, int]]:
        """Index, address, size and state of the block that contains `address`, or None."""
        ...

    def find_all(self, addresses: Sequence[int]) -> tuple[array[int], array[int]]:
        """Of each address: its block's index ("I") and size ("Q"), or 0xFFFFFFFF and 0."""
        ...

    def pointer_runs(self, bounds: Bounds) -> PointerRuns:
        """A search for arrays of pointers."""
        ...

    def claim(self, labels: array[int], indices: array[int], label: int) -> bool:
        """Set labels[index] to `label` for all `indices` (both "I"). False, and no change, if a
        label is set already (not 0xFFFFFFFF) or an index does not exist."""
        ...

    def at_or_after(self, address: int) -> int:
        """Index of the first block whose address is >= `address`; len() if none."""
        ...

    def address(self, index: int) -> int: ...

    def size(self, index: int) -> int: ...

    def state(self, index: int) -> State: ...

    def columns(self, first: int = 0, last: Optional[int] = None) -> BlockColumns:
        """Address, size and state of the blocks with indices [first, last); None: of all from
        `first`. About 10 ns a block, and 17 bytes."""
        ...

    def indices_with(self, states: int, marks: bytearray, wanted: int) -> array[int]:
        """Indices ("I") of blocks with one of these states (a bit for each) and a mark that has its
        bit in `wanted`. `marks` has a byte below 32 for each block."""
        ...

    def columns_of(self, indices: array[int]) -> BlockColumns:
        """The same of the blocks with these indices ("I"), in this order; zeros for an index
        without a block. About 10 ns a block if the indices ascend."""
        ...

    def set_state(self, addresses: Iterable[int], state: State) -> list[int]:
        """Mark the blocks that start at these addresses; the addresses where none starts."""
        ...

    def resize(self, index: int, size: int) -> None:
        """Change the block's usable size; ValueError where it would reach into the next block."""
        ...

    def totals(self, state: State, start: int = 0, end: Optional[int] = None) -> Totals:
        """Blocks and usable bytes in this state, among those that start in [start, end)."""
        ...

    def by_size(self, start: int = 0, end: Optional[int] = None) -> list[Size]:
        """The blocks that start in [start, end), counted by size and state; ascending by both."""
        ...

    def of_sizes(self, least: int, greatest: int, most: int) -> array[int]:
        """Indices of the blocks in use of `least` to `greatest` bytes, ascending, "Q"; the first
        `most` of them. 1 ns a block."""
        ...

    def sample(self, most: int, first: int = 0, last: Optional[int] = None, before: Sample = NO_SAMPLE) -> Sample:
        """A sample of the blocks in use of indices [first, last), and of those in `before`, a
        sample of blocks below: the rows that have the lowest level, not below that of `before`, at
        which there are at most `most`, ascending."""
        ...

    def bytes_in(self, ranges: array[int]) -> list[int]:
        """Bytes of blocks, by State, inside these disjoint ranges (starts and ends, "Q")."""
        ...

    def by_page(self, where: Range, page: int, lists: PageLists) -> PageRead:
        """State and residency (see pages.py) of the pages of `where`, from the one with its start.
        Padding up to a granule (headers) counts with the block before. 10 ns a block: pass 256
        MiB."""
        ...

    def free_runs(self, where: Range, least: int) -> array[int]:
        """(start, end) pairs of ranges without blocks in use, cached or metadata (usable sizes): of
        at least `least` bytes, or at an end of `where`, where they may continue."""
        ...

    def page_words(self, piece: Piece, types: Sequence[Range], where: Range, page: int, found: array[int], weights: array[int]) -> None:
        """Of each page of `where`: the first word of the blocks that make up most of its bytes in
        use, if it lies in `types` (sorted, disjoint), else 0. Each piece, ascending, updates
        `found` and `weights` ("Q", initially zeros)."""
        ...

    def gaps(self, start: int, end: int, least: int) -> list[Range]:
        """The gaps of at least `least` bytes in [start, end) that no block covers, ascending."""
        ...


class Graph(Protocol):
    """Reference graph of the blocks in use. Order: scan_blocks, scan_roots, mark, classify. Where
    words may or may not be roots: scan_blocks, the other roots, mark_starts; the words that turn
    out to be roots, mark, classify."""

    def exclude_words(self, patterns: bytearray, exclusions: Sequence[Exclusion]) -> None:
        """Before scanning. Words of block i are no references as exclusions[patterns[i]] says; the
        first excludes none. ValueError unless there is a pattern a block, and each exists."""
        ...

    def set_labels(self, labels: array[int], ranks: array[int]) -> None:
        """Before marking. Number of each block's type in a managed runtime, or NO_LABEL, and the
        rank of each number, at least 1 (both "I"): a cycle's leader is its labelled block of the
        highest rank."""
        ...

    def scan_blocks(self, piece: Piece) -> None:
        """Record the references in this piece's blocks. Pieces ascend, each byte comes once
        (ValueError otherwise); a block may span several."""
        ...

    def scan_roots(self, piece: Piece) -> None:
        """Record the references from root memory. After `mark_starts`, the next call of it or of
        `mark` follows them too; after `mark`, only `path` and `is_rooted` heed them."""
        ...

    def root_words(self, words: Sequence[int]) -> None:
        """Record the references from registers; when, see `scan_roots`."""
        ...

    def settle(self) -> None:
        """End scanning: allow queries of references and dominators. The first `mark` implies it."""
        ...

    def mark_starts(self, budget: int) -> bool:
        """Visit about `budget` blocks; True when those are marked that start references reach from
        the roots recorded so far."""
        ...

    def holds(self, words: Sequence[int]) -> bool:
        """Whether `mark_starts` reached every block that one of these words refers to: as roots,
        they would change no block's kind."""
        ...

    def unreferenced(self, smallest: int, largest: int, most: int) -> list[int]:
        """After `mark_starts`: the blocks in use of usable sizes from `smallest` to `largest` to
        which no other block and no root refers in any way, ascending. [] where more than `most`
        blocks of these sizes were not reached."""
        ...

    def mark(self, budget: int) -> bool:
        """Visit about `budget` blocks; True when all reachable and possible blocks are marked."""
        ...

    def interiors(self) -> Interiors:
        """For graphs made with Heuristic.AUTO; between marking and classifying."""
        ...

    def classify(self, budget: int) -> bool:
        """Classify the other blocks as definite or indirect by strongly connected components; a
        cycle's leader is its labelled block of the highest rank, if any; of several, or else of all
        its blocks, the lowest. True when done."""
        ...

    def leader_sizes(self) -> array[int]:
        """Usable size of every DEFINITE block ("Q"), in no order."""
        ...

    def disguises(self, ranges: Sequence[Range], forms: Sequence[Form], most: int) -> Disguises:
        """A search for disguised pointers to DEFINITE and INDIRECT blocks (disguises.py), all of
        which are in `ranges` (sorted, disjoint, at most 8). Forms with more than `most` such words
        are dropped; 0: none is recorded."""
        ...

    def connect(self, references: array[int]) -> None:
        """Add references to starts of blocks to a classified graph: source << 32 | target each
        ("Q", by source), NO_BLOCK as source for those from roots. Mark and classify again then:
        REACHABLE blocks stay so."""
        ...

    def kind(self, index: int) -> Kind: ...

    def kinds(self) -> memoryview:
        """Kind of every block, one byte each ('B'), by index."""
        ...

    def has_kind(self, kind: Kind, number: int) -> bool:
        """Whether at least so many blocks are of this kind: quicker to see than `totals`."""
        ...

    def totals(self, kind: Kind) -> Totals: ...

    def sizes(self, kind: Kind) -> list[tuple[int, int]]:
        """(usable size, number) of the blocks in use of this kind, by size."""
        ...

    def bytes_by_kind(self, ranges: array[int], of: Optional[array[int]] = None) -> list[int]:
        """Bytes of blocks in use, by Kind, inside these disjoint, ascending ranges (starts and
        ends, "Q"): of all blocks, or of those with the indices `of` ("I", in any order)."""
        ...

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        """DEFINITE blocks and heads of POSSIBLE ones by kind and label; unlabelled ones by kind,
        type_word (0 if it is in no piece), size, cycle, and whether others are counted under them;
        most bytes (direct + indirect) first."""
        ...

    def has_cycles(self) -> bool:
        """Whether DEFINITE blocks without a label lead cycles without labelled blocks."""
        ...

    def cycle_ranges(self) -> list[Range]:
        """Memory with the first words of the blocks of these cycles: sorted, disjoint."""
        ...

    def represent_cycles(self, pieces: Iterable[Piece], types: Sequence[Range]) -> None:
        """Choose the block that represents each of these cycles in `groups`, whatever the order of
        addresses: one with a type_word before one without, then the largest, then the one of the
        lowest type_word, then the lowest. `pieces` of `cycle_ranges`. Kinds do not change."""
        ...

    def representative(self, index: int) -> int:
        """The block that represents the cycle that this block leads; else the block itself."""
        ...

    def label_totals(self, kinds: Iterable[Kind]) -> list[Totals]:
        """By label, the blocks in use of these kinds."""
        ...

    def typed(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        """All blocks in use with a type_word, by kind, type_word and size; most bytes first. Cycles
        and indirect blocks are not counted: 1 and 0."""
        ...

    def leader(self, index: int) -> int:
        """An INDIRECT block's leader, the lowest that reaches it; a DEFINITE block; else -1."""
        ...

    def leaders(self) -> memoryview:
        """`leader` of every block ("I", read-only), by index; NO_GROUP in place of -1."""
        ...

    def cycle(self, index: int) -> int:
        """Blocks in the cycle that this block leads, itself included; 1 if it leads none."""
        ...

    def indirect_totals(self, index: int) -> Totals:
        """INDIRECT blocks and bytes under this leader, POSSIBLE ones under this head (see `heads`);
        each is counted under exactly one."""
        ...

    def heads(self) -> Optional[array[int]]:
        """Indices, ascending, of the POSSIBLE blocks whose inside a root or a reachable block
        refers to. The others are counted under the lowest head that reaches them. None: all are
        heads."""
        ...

    def referrers(self, index: int) -> list[int]:
        """Indices of the in-use blocks that refer to this one, ascending, each once."""
        ...

    def references(self, index: int) -> list[tuple[int, bool]]:
        """(index, interior?) of each reference to an in-use block, in the order of the words."""
        ...

    def path(self, index: int) -> list[int]:
        """A shortest chain of block indices from one a root refers to, [] if none reaches it:
        breadth first from the lowest rooted block, references in the order of words."""
        ...

    def rows(self, rules: RowRules) -> Optional[Rows]:
        """Blocks as rows of text, once classified (rows.py); None: the caller formats each row."""
        ...

    def is_rooted(self, index: int) -> bool:
        """True when root memory or a register refers to this block directly."""
        ...

    def dominators(
        self, roots: int, bounds: Sequence[int] = (), owners: Sequence[int] = (), lost: bool = False, priorities: Sequence[int] = ()
    ) -> Dominators:
        """The dominator tree below this many numbered roots (see dominators.py). Root words from
        bounds[i] up to the next bound belong to root owners[i] (NO_ROOT: to none); bounds ascend,
        words below the first belong to none. Call after `settle`; with `lost`, after classifying:
        only POSSIBLE, DEFINITE and INDIRECT blocks are in the tree then. `priorities`: first roots
        of each later priority, ascending."""
        ...


class Engine(Protocol):
    name: str  # "native" | "pure"
    arch: Arch
    threads: int  # that it runs on

    def blocks(self, arch: Arch, granule: int, heap_bytes: int = 0) -> Blocks:
        """`granule` divides every block address: 16 on 64-bit glibc, 8 or 4 elsewhere. Space is
        reserved for the blocks of `heap_bytes` of heap (0: as they come)."""
        ...

    def graph(
        self, blocks: Blocks, heuristics: Heuristic = Heuristic.NONE, vtables: Sequence[Range] = (), types: Sequence[int] = ()
    ) -> Graph:
        """`blocks` must be this engine's; `vtables` and `types`: see Heuristic."""
        ...

    def follow(self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int) -> tuple[array[int], str]:
        """Nodes of a singly linked list, whose next is the word at node + next_offset (`mangled`:
        by glibc's safe-linking, value ^ (its own address >> 12)); "" or why it ended early: a
        cycle, an unreadable or misaligned node (named; by the word size), more than `limit`."""
        ...

    def follow_all(self, pieces: Sequence[Piece], heads: Sequence[int], next_offset: int, limit: int, within: Sequence[int] = ()) -> Lists:
        """`follow` for many unmangled lists of at most `limit` nodes each; a head of 0 is an empty
        list. `within`: two words a list, start and end of the range its nodes must lie in. Sound
        lists share no node; all together get no more than there are words in the pieces."""
        ...

    def walk_tree(self, pieces: Sequence[Piece], root: int, header: int, layout: TreeLayout, most: int) -> TreeWalk:
        """Walk the search tree whose root has `header` for its parent; at most `most` nodes."""
        ...

    def walk_links(self, pieces: Sequence[Piece], heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0) -> LinkWalk:
        """Walk the links at `offsets` of nodes; at most `most` nodes, `deepest` levels (0: any)."""
        ...

    def gather(self, pieces: Sequence[Piece], addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        """Records of `size` bytes in turn, zeros for those not wholly in `pieces` (one may span
        two), and the numbers of these. Cast to "Q", a column is a slice with a stride."""
        ...

    def self_pointers(self, piece: Piece, distance: int) -> array[int]:
        """Addresses a with *(a) == a == *(a + distance): struct pthread's header, list heads."""
        ...

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        """Addresses of the aligned words in `piece` whose value lies in [low, high), ascending."""
        ...

    def sum_by_value(self, values: array[int], weights: array[int]) -> tuple[array[int], array[int]]:
        """The distinct values, ascending, and each one's sum of weights (none: its count)."""
        ...

    def common_bytes(self, left: array[int], right: array[int]) -> int:
        """Bytes that two flat sorted arrays ("Q") of disjoint ranges have in common."""
        ...

    def records(self, shapes: Mapping[int, Shape], tag_mask: int) -> Records:
        """Sorts a managed heap's records by key; tags: bits `tag_mask` of their first words."""
        ...

    def search_any(self, piece: Piece, values: Sequence[int]) -> array[int]:
        """Addresses of the aligned words in `piece` whose value is one of `values`, ascending."""
        ...
