"""The interface of both engines: the C engine (`native/`) and the Python engine (`reference/`).
Their results are identical, bit by bit. `load.load()` chooses one.

A *block index* numbers all blocks of all states from 0, by ascending address. Only aligned words
count as references. A *start* reference equals a block's address; an *interior* reference is in
[address + 1, address + size). References of a block to itself are ignored. Callers pass pieces by
ascending address."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Protocol

from findleaks.engine.sampling import NO_SAMPLE, Sample
from findleaks.engine.terms import Exclusion, Group, Heuristic, Kind, KindFigures, Lists, Size, State, Totals
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

if TYPE_CHECKING:
    from findleaks.engine.columns import BlockColumns, Numbers
    from findleaks.engine.disguises import Disguises, Form
    from findleaks.engine.dominators import Dominators
    from findleaks.engine.dwarf_sources import TypeReader
    from findleaks.engine.interiors import Interiors
    from findleaks.engine.links import LinkWalk
    from findleaks.engine.pages import PageLists, PageRead
    from findleaks.engine.pointer_runs import Bounds, PointerRuns
    from findleaks.engine.records import Records, Shape
    from findleaks.engine.rows import RowRules, Rows
    from findleaks.engine.trees import TreeLayout, TreeWalk
    from findleaks.engine.type_spread import TypeSpread


class Blocks(Protocol):
    """A directory of blocks. Append blocks by ascending address, call `seal`, then look up. It
    takes about 7 bytes a block in the C engine."""

    def append(self, starts: Sequence[int], sizes: Sequence[int], states: Sequence[int]) -> None:
        """Append all of these blocks, or none. Raises ValueError unless their addresses ascend and
        are above those of all previous blocks."""

    def append_runs(self, runs: array[int], bits: bytes = b"") -> None:
        """Append runs of equal blocks (array "Q", `RUN` words each), all or none. ValueError if
        they do not ascend as in `append`, or if a bit is beyond `bits`. A call takes microseconds
        and a block nanoseconds, so pass many runs at once."""

    def append_blocks(self, other: Blocks, first: int, last: int) -> None:
        """Append the blocks [first, last) of another sealed directory with their states. ValueError
        as in `append`. Both directories must belong to the same engine."""

    def append_nested(self, other: Blocks, first: int, last: int, slabs: array[int], runs: array[int]) -> array[int]:
        """Append the blocks [first, last) of another sealed directory. Replace each block in use
        that contains slabs by the blocks of these slabs. The part of such a block before its first
        slab becomes METADATA. `slabs` has the start and end of each slab. `runs` has the blocks of
        the slabs, in the format of `append_runs`; all blocks of a run have the same state. Both
        ascend. Return the numbers ("Q") of slabs that are left out because no single block in use
        contains them. Raises ValueError in the same cases as `append` and `append_runs`, and if a
        run is in no slab."""

    def seal(self) -> None:
        """End appending and allow look-ups. Raises RuntimeError for look-ups before this call, and
        for appending after it."""

    def __len__(self) -> int: ...

    def find(self, address: int) -> int:
        """Return the index of the block that contains `address`, or -1."""

    def lookup(self, address: int) -> Optional[tuple[int, int, int, int]]:
        """Return index, address, size and state of the block that contains `address`, or None."""

    def find_all(self, addresses: Sequence[int]) -> tuple[array[int], array[int]]:
        """Return the block's index ("I") and size ("Q") for each address; 0xFFFFFFFF and 0 for an
        address outside all blocks."""

    def pointer_runs(self, bounds: Bounds) -> PointerRuns:
        """Return a search for arrays of pointers."""

    def claim(self, labels: array[int], indices: array[int], label: int) -> bool:
        """Set labels[index] to `label` for all `indices` (both "I"). Return False, and change
        nothing, if a label is already set (not 0xFFFFFFFF) or an index does not exist."""

    def at_or_after(self, address: int) -> int:
        """Return the index of the first block whose address is >= `address`; the number of blocks
        if there is no such block."""

    def address(self, index: int) -> int: ...

    def size(self, index: int) -> int: ...

    def state(self, index: int) -> State: ...

    def columns(self, first: int = 0, last: Optional[int] = None) -> BlockColumns:
        """Return address, size and state of the blocks with indices [first, last). Without `last`,
        all blocks from `first` on. Takes about 10 ns and 17 bytes a block."""

    def indices_with(self, states: int, marks: bytearray, wanted: int) -> array[int]:
        """Return the indices ("I") of blocks whose state has its bit set in `states` and whose mark
        m has bit m set in `wanted`. `marks` has one byte for each block, the mark, which is below
        32."""

    def columns_of(self, indices: array[int]) -> BlockColumns:
        """Return address, size and state of the blocks with these indices ("I"), in this order;
        zeros for an index without a block. Takes about 10 ns a block if the indices ascend."""

    def set_state(self, addresses: Iterable[int], state: State) -> list[int]:
        """Set the state of blocks at these addresses. Return addresses at which none starts."""

    def resize(self, index: int, size: int) -> None:
        """Change the block's usable size. ValueError if it would extend into the next block."""

    def totals(self, state: State, start: int = 0, end: Optional[int] = None) -> Totals:
        """Return the number and the usable bytes of the blocks in this state that start in [start,
        end)."""

    def totals_in(self, ranges: array[int]) -> list[Totals]:
        """Return the totals, by State, of the blocks that start in these disjoint ranges."""

    def by_size(self, ranges: Optional[array[int]] = None) -> list[Size]:
        """Count the blocks that start in one of these disjoint ranges (starts and ends, "Q"), or
        all blocks, by size and state. The result ascends by both. Pass many ranges in one call."""

    def of_sizes(self, least: int, greatest: int, most: int) -> array[int]:
        """Return the indices ("Q", ascending) of the first `most` blocks in use of `least` to
        `greatest` bytes. Takes 1 ns a block."""

    def sample(self, most: int, first: int = 0, last: Optional[int] = None, before: Sample = NO_SAMPLE) -> Sample:
        """Return a sample of the blocks in use with indices [first, last), combined with `before`,
        a sample of lower blocks. It contains all blocks of its level and above. Its level is the
        lowest, not below the level of `before`, at which there are at most `most` rows. Rows
        ascend. See sampling.py."""

    def bytes_in(self, ranges: array[int]) -> list[int]:
        """Return the number of block bytes in these disjoint ranges (starts and ends), by State."""

    def by_page(self, ranges: array[int], page: int, lists: PageLists) -> PageRead:
        """Return state and residency (see pages.py) of the pages of these disjoint ranges (starts
        and ends, "Q"). A page that several ranges overlap counts in each. Padding up to the
        next granule (headers) counts with the block before it. Pass about 256 MiB in one call."""

    def free_runs(self, where: Range, least: int) -> array[int]:
        """Return (start, end) pairs of ranges that contain no usable bytes of blocks in use, cached
        blocks or metadata. A range is returned if it has at least `least` bytes, or if it touches
        an end of `where`, because it may continue beyond."""

    def page_words(self, piece: Piece, types: Sequence[Range], where: Range, page: int, found: array[int], weights: array[int]) -> None:
        """Find the most frequent type on each page of `where`. Call this for each piece, ascending;
        each call updates `found` and `weights` ("Q", initially zeros). If the blocks that make up
        most of a page's bytes in use have the same first word, and the word is in `types` (sorted,
        disjoint), `found` gets this word for the page; otherwise 0."""

    def gaps(self, start: int, end: int, least: int) -> list[Range]:
        """Return the gaps of at least `least` bytes in [start, end) without blocks, ascending."""


class Graph(Protocol):
    """Reference graph of the blocks in use.

    Order of calls: scan_blocks, scan_roots, mark, classify. If it is uncertain whether some words
    are roots, call scan_blocks, scan_roots for the certain roots, and mark_starts. Then call
    scan_roots for the uncertain words that turned out to be roots, mark, and classify."""

    def exclude_words(self, patterns: bytearray, exclusions: Sequence[Exclusion]) -> None:
        """Exclude words of blocks that are not references. Call before scanning.
        exclusions[patterns[i]] gives the excluded words of block i. The first exclusion excludes no
        words. ValueError unless there is a pattern for each block, and each pattern has an
        exclusion."""

    def set_labels(self, labels: array[int], ranks: array[int]) -> None:
        """Set the labels of blocks. Call before marking. `labels` has the number of each block's
        type in a managed runtime ("I": or NO_LABEL; "H": or NO_NARROW_LABEL). `ranks` ("I") has the
        rank, at least 1, of each type number. The leak head of a cycle is its labelled block with
        the highest rank."""

    def scan_blocks(self, piece: Piece) -> None:
        """Record the references in this piece's blocks. Pieces ascend, and each byte is passed once
        (ValueError otherwise); a block may extend over several pieces."""

    def scan_roots(self, piece: Piece) -> None:
        """Record the references from root memory. If it is called after `mark_starts`, the next
        call of `mark_starts` or `mark` follows these references too. If it is called after `mark`,
        only `path` and `is_rooted` use them."""

    def root_words(self, words: Sequence[int]) -> None:
        """Record the references from registers. See `scan_roots` for the order of calls."""

    def settle(self) -> None:
        """End scanning and allow queries of references and dominators. The first `mark` implies
        this."""

    def mark_starts(self, budget: int) -> bool:
        """Follow about `budget` references, and return whether the marking is complete. This marks
        all blocks that are reachable through start references from the roots recorded so far."""

    def holds(self, words: Sequence[int]) -> bool:
        """Return whether `mark_starts` reached every block that one of these words refers to. If
        so, these words would not change the kind of any block if they were roots."""

    def find_unreferenced(self, smallest: int, largest: int, most: int) -> list[int]:
        """Return the indices of unreferenced blocks, ascending. An unreferenced block is in use,
        and no root and no other block refers to any part of it. Only blocks with usable sizes from
        `smallest` to `largest` are returned. Call after `mark_starts`. Returns [] if `mark_starts`
        did not reach more than `most` blocks of these sizes."""

    def mark(self, budget: int) -> bool:
        """Follow about `budget` references. Return True when all REACHABLE and POSSIBLE blocks are
        marked."""

    def interiors(self) -> Interiors:
        """Return the interior references, for graphs with Heuristic.AUTO. Call between marking and
        classifying."""

    def classify(self, budget: int) -> bool:
        """Classify the other blocks as DEFINITE or INDIRECT, by strongly connected components.
        Return True when done. The leak head of a cycle is its labelled block with the highest rank.
        If several labelled blocks have this rank, or none is labelled, it is the one with the
        lowest address."""

    def leak_head_sizes(self) -> array[int]:
        """Return the usable size of every DEFINITE block ("Q"), in no order."""

    def disguises(self, ranges: Sequence[Range], forms: Sequence[Form], most: int) -> Disguises:
        """Return a search for disguised pointers to DEFINITE and INDIRECT blocks (disguises.py).
        `ranges` contain all of these blocks (sorted, disjoint, at most 8). A form in which more
        than `most` words decode to such a block is dropped. If `most` is 0, the words are only
        counted, and no form is dropped."""

    def connect(self, references: array[int]) -> None:
        """Add references to starts of blocks to a graph that is marked, and possibly classified.
        `references` ("Q", by source) has source << 32 | target for each reference. The source
        NO_BLOCK is a root. Then call mark and classify again. REACHABLE blocks stay reachable, and
        accepted interior references stay start references."""

    def kind(self, index: int) -> Kind: ...

    def kinds(self) -> memoryview:
        """Return the kind of every block, one byte each ('B'), by index."""

    def has_kind(self, kind: Kind, number: int) -> bool:
        """Return whether at least `number` blocks are of this kind. This is faster than
        `totals`."""

    def totals(self, kind: Kind) -> Totals: ...

    def sizes(self, kind: Kind) -> list[tuple[int, int]]:
        """Return (usable size, number) of the blocks in use of this kind, ascending by size."""

    def bytes_by_kind(self, ranges: array[int]) -> list[int]:
        """Return the number of bytes of blocks in use inside these disjoint, ascending ranges
        (starts and ends, "Q"), by Kind."""

    def figures_by_kind(self, indices: array[int], ranges: array[int]) -> list[KindFigures]:
        """Return figures, by Kind, of the blocks in use that have these indices ("I", in any order,
        without duplicates). `ranges`: as for `bytes_by_kind`."""

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range], marks: Optional[Numbers] = None) -> list[Group]:
        """Group DEFINITE blocks and the heads of POSSIBLE blocks by kind and label, most bytes
        (direct + indirect) first. Blocks without a label are grouped by kind, type_word (0 if it is
        in no piece), size, cycle, and whether other blocks are counted under them. If such a block
        has a mark ("I", by index), the mark replaces its type_word; see terms.mark_of."""

    def has_cycles(self) -> bool:
        """Return whether a DEFINITE block without a label is the leak head of a cycle that has no
        labelled blocks."""

    def cycle_ranges(self) -> list[Range]:
        """Return the memory that contains the first words of the blocks in the cycles of
        `has_cycles`, as sorted, disjoint ranges."""

    def represent_cycles(self, pieces: Iterable[Piece], types: Sequence[Range]) -> None:
        """Choose the block that represents each cycle of `has_cycles` in `groups`, independently of
        the order of addresses. A block with a type_word is preferred to one without, then the
        largest, then the one with the lowest type_word, then the one with the lowest address.
        `pieces` is the memory of `cycle_ranges`. Kinds do not change."""

    def representative(self, index: int) -> int:
        """Return the block that represents the cycle whose leak head is this block. For other
        blocks, return the block itself."""

    def label_totals(self, kinds: Iterable[Kind]) -> list[Totals]:
        """Return the number and bytes of the blocks in use of these kinds, by label."""

    def group_typed(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        """Group all blocks in use that have a type_word by kind, type_word and size, most bytes
        first. Cycles and indirect blocks are not counted: these fields are 1 and 0."""

    def leak_head(self, index: int) -> int:
        """Return the leak head of a block. For an INDIRECT block it is the lowest leak head that
        reaches it, and for a DEFINITE block the block itself. -1 for other blocks."""

    def leak_heads(self) -> memoryview:
        """Return `leak_head` of every block ("I", read-only), by index; NO_GROUP in place of -1."""

    def cycle(self, index: int) -> int:
        """Return the number of blocks in the cycle whose leak head is this block, itself included;
        1 if it is not the head of a cycle."""

    def indirect_totals(self, index: int) -> Totals:
        """Return the number and bytes of the INDIRECT blocks under this leak head, or of the
        POSSIBLE blocks under this head (see `heads`). Each block is counted under exactly one
        head."""

    def heads(self) -> Optional[array[int]]:
        """Return the indices of heads, ascending: POSSIBLE blocks whose interior is referenced by a
        root or by a reachable block. Every other POSSIBLE block is counted under the lowest head
        that reaches it. None if all POSSIBLE blocks are heads."""

    def referrers(self, index: int, limit: int = 0) -> list[int]:
        """Return the indices of the blocks in use that refer to this block, ascending, without
        repetition. At most `limit` are returned (0: all)."""

    def references(self, index: int) -> list[tuple[int, bool]]:
        """Return (index, is_interior) of each reference to a block in use, in the order of the
        words."""

    def leaked_references(self) -> array[int]:
        """Return an array ("I") with one number for each block. For a leaked block it is the number
        of words of other leaked blocks that refer to any part of it; otherwise 0. Call after
        `classify`."""

    def path(self, index: int, starts: Sequence[int] = (), avoided: bytes = b"") -> list[int]:
        """Return the shortest chain of block indices from a block in `starts` (ascending; if empty,
        all blocks that a root refers to) up to this block, or []. Interior references are followed
        only if no other chain exists: stale words may point into a large block. The search is
        breadth first, from the blocks of `starts`, and follows references in the order of words.
        `avoided` has a byte for each label of `set_labels`: a block whose label's byte is not zero
        can only be the end of the path."""

    def rows(self, rules: RowRules) -> Optional[Rows]:
        """Return a formatter of blocks as rows of text (rows.py), once the graph is classified. If
        the result is None, the caller formats each row."""

    def is_rooted(self, index: int) -> bool:
        """Return whether root memory or a register refers to this block directly."""

    def dominators(
        self, roots: int, bounds: Sequence[int] = (), owners: Sequence[int] = (), lost: bool = False, priorities: Sequence[int] = ()
    ) -> Dominators:
        """Return the dominator tree below `roots` numbered roots (see dominators.py). Root words
        from bounds[i] up to the next bound belong to root owners[i], or to no root if that is
        NO_ROOT. Bounds ascend; words below the first bound belong to no root. `priorities` has the
        first root of each later priority, ascending. Call after `settle`. With `lost`, call after
        classifying: the tree then contains only POSSIBLE, DEFINITE and INDIRECT blocks."""


class Engine(Protocol):
    name: str  # "native" | "pure"
    arch: Arch
    threads: int  # number of threads that the engine uses

    def blocks(self, arch: Arch, granule: int, heap_bytes: int = 0) -> Blocks:
        """Return an empty directory of blocks. All block addresses are multiples of `granule`: 16
        on 64-bit glibc, 8 or 4 elsewhere. The engine reserves space for the blocks of `heap_bytes`
        of heap."""

    def graph(
        self, blocks: Blocks, heuristics: Heuristic = Heuristic.NONE, vtables: Sequence[Range] = (), types: Sequence[int] = ()
    ) -> Graph:
        """Return a graph of these blocks, which must belong to this engine. For `vtables` and
        `types` see Heuristic."""

    def type_spread(self, blocks: Blocks) -> TypeSpread:
        """Return a search for the types of these sealed blocks, which must belong to this
        engine."""

    def follow(self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int) -> tuple[array[int], str]:
        """Follow a singly linked list, whose next pointer is the word at node + next_offset. Return
        its nodes, and "" or the reason why it ended early. `mangled` means that the next pointers
        use glibc's safe-linking: value ^ (address of the word >> 12). The list ends early at a
        cycle, at a node that is unreadable or not aligned to words (the reason names the node), or
        after `limit` nodes."""

    def follow_all(self, pieces: Sequence[Piece], heads: Sequence[int], next_offset: int, limit: int, within: Sequence[int] = ()) -> Lists:
        """Follow many unmangled lists of at most `limit` nodes each, as `follow` does. A head of 0
        is an empty list. `within` has two words for each list: start and end of the range that
        contains its nodes. Intact lists share no nodes, so the total number of nodes is limited to
        the number of words in the pieces."""

    def walk_tree(self, pieces: Sequence[Piece], root: int, header: int, layout: TreeLayout, most: int) -> TreeWalk:
        """Walk the search tree whose root has `header` as parent; visit at most `most` nodes."""

    def walk_links(
        self, pieces: Sequence[Piece], heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0, tags: int = 0
    ) -> LinkWalk:
        """Walk from the heads along the links at `offsets` of the nodes, without the bits `tags` of
        the links. Visit at most `most` nodes and `deepest` levels (0: no limit)."""

    def gather(self, pieces: Sequence[Piece], addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        """Read the records of `size` bytes at these addresses. Return the records one after
        another, and the indices of the missing ones. A record that is not completely in `pieces` is
        all zeros. A record may extend over two pieces. If the result is cast to "Q", a column is a
        slice with a stride."""

    def self_pointers(self, piece: Piece, distance: int, before: int = 0) -> array[int]:
        """Return the addresses a with *(a) == a - before == *(a + distance). For example, struct
        pthread and the heads of empty lists contain such words."""

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        """Return addresses of the aligned words in `piece` whose value is in [low, high),
        ascending."""

    def sum_by_value(self, values: array[int], weights: array[int]) -> tuple[array[int], array[int]]:
        """Return the distinct values, ascending, and the sum of the weights of each value. If there
        are no weights, return the count of each value instead."""

    def common_bytes(self, left: array[int], right: array[int]) -> int:
        """Return the number of bytes that are in both of two flat sorted arrays ("Q") of disjoint
        ranges."""

    def records(self, shapes: Mapping[int, Shape], tag_mask: int) -> Records:
        """Return a sorter of a managed heap's records by key. The tag of a record is the bits
        `tag_mask` of its first word."""

    def type_reader(self) -> TypeReader:
        """Return a reader of types from debug information in the target's byte order."""

    def search_any(self, piece: Piece, values: Sequence[int]) -> array[int]:
        """Return addresses of the aligned words in `piece` whose value is one of `values`,
        ascending."""
