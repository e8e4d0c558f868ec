"""The interface of both engines: the C engine (`native/`) and the Python engine (`reference/`).
Their results are identical, bit by bit. `load.load()` chooses one.

A *block index* numbers all blocks of all states from 0, by ascending address. Only aligned words
count as references. A *start* reference equals a block's address; an *interior* reference is in
[address + 1, address + size). References of a block to itself are ignored. Pieces are passed by
ascending address."""

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
    """A directory of blocks: append blocks by ascending address, `seal` it, look up. About 7 bytes
    a block in the C engine."""

    def append(self, starts: Sequence[int], sizes: Sequence[int], states: Sequence[int]) -> None:
        """Append blocks, all or none. ValueError unless they ascend and are above all previous
        blocks."""

    def append_runs(self, runs: array[int], bits: bytes = b"") -> None:
        """Append runs of equal blocks (array "Q", `RUN` words each), ascending as in `append`: all
        or none. ValueError otherwise, or if a bit is beyond `bits`. A call costs microseconds, a
        block nanoseconds: pass many runs at once."""

    def append_blocks(self, other: Blocks, first: int, last: int) -> None:
        """Append the blocks [first, last) of another sealed directory with their states. ValueError
        as in `append`. Both directories must belong to the same engine."""

    def seal(self) -> None:
        """End appending and allow look-ups. Raises RuntimeError for look-ups before this call, and
        for appending after it."""

    def __len__(self) -> int: ...

    def find(self, address: int) -> int:
        """Return the index of the block that contains `address`, or -1."""

    def lookup(self, address: int) -> Optional[tuple[int, int, int, int]]:
        """Return index, address, size and state of the block that contains `address`, or None."""

    def find_all(self, addresses: Sequence[int]) -> tuple[array[int], array[int]]:
        """Return the block's index ("I") and size ("Q") for each address; 0xFFFFFFFF and 0 if there
        is no block."""

    def pointer_runs(self, bounds: Bounds) -> PointerRuns:
        """Return a search for arrays of pointers."""

    def claim(self, labels: array[int], indices: array[int], label: int) -> bool:
        """Set labels[index] to `label` for all `indices` (both "I"). Return False, and change
        nothing, if a label is already set (not 0xFFFFFFFF) or an index does not exist."""

    def at_or_after(self, address: int) -> int:
        """Return the index of the first block whose address is >= `address`; len() if none."""

    def address(self, index: int) -> int: ...

    def size(self, index: int) -> int: ...

    def state(self, index: int) -> State: ...

    def columns(self, first: int = 0, last: Optional[int] = None) -> BlockColumns:
        """Return address, size and state of the blocks with indices [first, last); without `last`,
        of all from `first` on. About 10 ns and 17 bytes a block."""

    def indices_with(self, states: int, marks: bytearray, wanted: int) -> array[int]:
        """Return indices ("I") of blocks in one of these states (a bit for each) whose mark is
        wanted. `marks` has a byte below 32 for each block; mark m is wanted if bit m of `wanted` is
        set."""

    def columns_of(self, indices: array[int]) -> BlockColumns:
        """Return address, size and state of the blocks with these indices ("I"), in this order;
        zeros for an index without a block. About 10 ns a block if the indices ascend."""

    def set_state(self, addresses: Iterable[int], state: State) -> list[int]:
        """Set the state of the blocks that start at these addresses; return the addresses where
        none starts."""

    def resize(self, index: int, size: int) -> None:
        """Change the block's usable size. ValueError if it would extend into the next block."""

    def totals(self, state: State, start: int = 0, end: Optional[int] = None) -> Totals:
        """Return blocks and usable bytes in this state, of the blocks that start in [start,
        end)."""

    def by_size(self, start: int = 0, end: Optional[int] = None) -> list[Size]:
        """Return the blocks that start in [start, end), counted by size and state; ascending by
        both."""

    def of_sizes(self, least: int, greatest: int, most: int) -> array[int]:
        """Return the first `most` indices ("Q", ascending) of blocks in use of `least` to
        `greatest` bytes. 1 ns a block."""

    def sample(self, most: int, first: int = 0, last: Optional[int] = None, before: Sample = NO_SAMPLE) -> Sample:
        """Return a sample of the blocks in use with indices [first, last), combined with `before`,
        a sample of lower blocks. The sample has all rows from a level on. It is the lowest level,
        not below that of `before`, at which there are at most `most` rows. Rows ascend. See
        sampling.py."""

    def bytes_in(self, ranges: array[int]) -> list[int]:
        """Return the bytes of blocks, by State, inside these disjoint ranges (starts and ends,
        "Q")."""

    def by_page(self, where: Range, page: int, lists: PageLists) -> PageRead:
        """Return state and residency (see pages.py) of the pages of `where`, from the one that
        contains its start. Padding up to a granule (headers) counts with the block before it. 10 ns
        a block: pass 256 MiB."""

    def free_runs(self, where: Range, least: int) -> array[int]:
        """Return (start, end) pairs of ranges without blocks in use, cached blocks or metadata
        (usable sizes). A range is returned if it has at least `least` bytes, or touches an end of
        `where`, beyond which it may continue."""

    def page_words(self, piece: Piece, types: Sequence[Range], where: Range, page: int, found: array[int], weights: array[int]) -> None:
        """Find the most frequent type on each page of `where`. `found` gets, for each page, the
        first word of the blocks that make up most of its bytes in use, if the word is in `types`
        (sorted, disjoint); else 0. Call for each piece, ascending: each call updates `found` and
        `weights` ("Q", initially zeros)."""

    def gaps(self, start: int, end: int, least: int) -> list[Range]:
        """Return the gaps of at least `least` bytes in [start, end) that no block covers,
        ascending."""


class Graph(Protocol):
    """Reference graph of the blocks in use.

    Order of calls: scan_blocks, scan_roots, mark, classify. If it is uncertain whether some words
    are roots: scan_blocks, scan_roots for the other roots, mark_starts; then scan_roots for the
    words that are roots, mark, classify."""

    def exclude_words(self, patterns: bytearray, exclusions: Sequence[Exclusion]) -> None:
        """Exclude words of blocks, which are not references. Call before scanning.
        exclusions[patterns[i]] gives the excluded words of block i; the first exclusion excludes
        none. ValueError unless there is a pattern for each block, and each pattern exists."""

    def set_labels(self, labels: array[int], ranks: array[int]) -> None:
        """Set the labels of blocks. Call before marking. `labels` has the number of each block's
        type in a managed runtime, or NO_LABEL. `ranks` has the rank of each number, at least 1
        (both "I"). The leak head of a cycle is its labelled block with the highest rank."""

    def scan_blocks(self, piece: Piece) -> None:
        """Record the references in this piece's blocks. Pieces ascend, and each byte is passed once
        (ValueError otherwise); a block may extend over several pieces."""

    def scan_roots(self, piece: Piece) -> None:
        """Record the references from root memory. After `mark_starts`, the next call of it or of
        `mark` follows these references too. After `mark`, only `path` and `is_rooted` use them."""

    def root_words(self, words: Sequence[int]) -> None:
        """Record the references from registers. See `scan_roots` for the order of calls."""

    def settle(self) -> None:
        """End scanning and allow queries of references and dominators. The first `mark` implies
        this."""

    def mark_starts(self, budget: int) -> bool:
        """Visit about `budget` blocks. Return True when all blocks are marked that are reachable
        through start references from the roots recorded so far."""

    def holds(self, words: Sequence[int]) -> bool:
        """Return whether `mark_starts` reached every block that one of these words refers to. If
        so, these words as roots would change no block's kind."""

    def unreferenced(self, smallest: int, largest: int, most: int) -> list[int]:
        """Return the indices of unreferenced blocks, ascending: blocks in use to which no root and
        no other block refers, not even to the interior. Their usable sizes are `smallest` to
        `largest`. Call after `mark_starts`. [] if more than `most` blocks of these sizes were not
        reached."""

    def mark(self, budget: int) -> bool:
        """Visit about `budget` blocks. Return True when all reachable and possible blocks are
        marked."""

    def interiors(self) -> Interiors:
        """Return the interior references, for graphs with Heuristic.AUTO. Call between marking and
        classifying."""

    def classify(self, budget: int) -> bool:
        """Classify the other blocks as definite or indirect, by strongly connected components.
        Return True when done. The leak head of a cycle is its labelled block of the highest rank;
        of several such blocks, or without labelled blocks, the block with the lowest address."""

    def leader_sizes(self) -> array[int]:
        """Return the usable size of every DEFINITE block ("Q"), in no order."""

    def disguises(self, ranges: Sequence[Range], forms: Sequence[Form], most: int) -> Disguises:
        """Return a search for disguised pointers to DEFINITE and INDIRECT blocks (disguises.py).
        All of these blocks are in `ranges` (sorted, disjoint, at most 8). Forms with more than
        `most` such words are dropped; with 0, none is recorded."""

    def connect(self, references: array[int]) -> None:
        """Add references to starts of blocks to a classified graph. `references` ("Q", by source)
        has source << 32 | target for each; source NO_BLOCK is a root. Then call mark and classify
        again; REACHABLE blocks stay reachable."""

    def kind(self, index: int) -> Kind: ...

    def kinds(self) -> memoryview:
        """Return the kind of every block, one byte each ('B'), by index."""

    def has_kind(self, kind: Kind, number: int) -> bool:
        """Return whether at least `number` blocks are of this kind; faster than `totals`."""

    def totals(self, kind: Kind) -> Totals: ...

    def sizes(self, kind: Kind) -> list[tuple[int, int]]:
        """Return (usable size, number) of the blocks in use of this kind, by size."""

    def bytes_by_kind(self, ranges: array[int], of: Optional[array[int]] = None) -> list[int]:
        """Return the bytes of blocks in use, by Kind, inside these disjoint, ascending ranges
        (starts and ends, "Q"). Counts all blocks, or those with the indices `of` ("I", in any
        order)."""

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range], marks: Optional[array[int]] = None) -> list[Group]:
        """Group DEFINITE blocks and heads of POSSIBLE ones by kind and label; most bytes (direct +
        indirect) first. Unlabelled blocks are grouped by kind, type_word (0 if it is in no piece),
        size, cycle, and whether other blocks are counted under them; blocks with a
        mark ("I", by index) by that instead of type_word: see terms.mark_of."""

    def has_cycles(self) -> bool:
        """Return whether an unlabelled DEFINITE block is the leak head of a cycle without labelled
        blocks."""

    def cycle_ranges(self) -> list[Range]:
        """Return the memory with the first words of the blocks of these cycles, sorted and
        disjoint."""

    def represent_cycles(self, pieces: Iterable[Piece], types: Sequence[Range]) -> None:
        """Choose the block that represents each of these cycles in `groups`, independently of the
        order of addresses. A block with a type_word is preferred to one without, then the largest,
        then the one with the lowest type_word, then the one with the lowest address. `pieces` is
        the memory of `cycle_ranges`. Kinds do not change."""

    def representative(self, index: int) -> int:
        """Return the block that represents the cycle whose leak head is this block; else the block
        itself."""

    def label_totals(self, kinds: Iterable[Kind]) -> list[Totals]:
        """Return the blocks in use of these kinds, by label."""

    def typed(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        """Return all blocks in use with a type_word, by kind, type_word and size; most bytes first.
        Cycles and indirect blocks are not counted: these fields are 1 and 0."""

    def leader(self, index: int) -> int:
        """Return an INDIRECT block's leak head, the lowest that reaches it; a DEFINITE block
        itself; else -1."""

    def leaders(self) -> memoryview:
        """Return `leader` of every block ("I", read-only), by index; NO_GROUP in place of -1."""

    def cycle(self, index: int) -> int:
        """Return the number of blocks in the cycle whose leak head is this block, itself included;
        1 if there is none."""

    def indirect_totals(self, index: int) -> Totals:
        """Return INDIRECT blocks and bytes under this leak head, or POSSIBLE ones under this head
        (see `heads`). Each is counted under exactly one."""

    def heads(self) -> Optional[array[int]]:
        """Return the indices of heads, ascending: POSSIBLE blocks whose interior is referenced by a
        root or by a reachable block. Each other POSSIBLE block is counted under the lowest head
        that reaches it. None if all are heads."""

    def referrers(self, index: int) -> list[int]:
        """Return the indices of the blocks in use that refer to this one, ascending, each once."""

    def references(self, index: int) -> list[tuple[int, bool]]:
        """Return (index, is_interior) of each reference to a block in use, in the order of the
        words."""

    def path(self, index: int) -> list[int]:
        """Return a shortest chain of block indices from a block that a root refers to; [] if no
        root reaches it. The search is breadth first, from the lowest rooted block, along references
        in the order of words."""

    def rows(self, rules: RowRules) -> Optional[Rows]:
        """Return blocks as rows of text, once classified (rows.py). None: the caller formats each
        row."""

    def is_rooted(self, index: int) -> bool:
        """Return whether root memory or a register refers to this block directly."""

    def dominators(
        self, roots: int, bounds: Sequence[int] = (), owners: Sequence[int] = (), lost: bool = False, priorities: Sequence[int] = ()
    ) -> Dominators:
        """Return the dominator tree below this many numbered roots (see dominators.py). Root words
        from bounds[i] up to the next bound belong to root owners[i] (NO_ROOT: to none). Bounds
        ascend; words below the first belong to none. `priorities` has the first root of each later
        priority, ascending. Call after `settle`. With `lost`, call after classifying: the tree then
        contains only POSSIBLE, DEFINITE and INDIRECT blocks."""


class Engine(Protocol):
    name: str  # "native" | "pure"
    arch: Arch
    threads: int  # number of threads that it uses

    def blocks(self, arch: Arch, granule: int, heap_bytes: int = 0) -> Blocks:
        """Return an empty directory of blocks. `granule` divides every block address: 16 on 64-bit
        glibc, 8 or 4 elsewhere. Space is reserved for the blocks of `heap_bytes` of heap (0: none
        is reserved)."""

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
        its nodes, and "" or why it ended early. `mangled`: by glibc's safe-linking, value ^
        (address of the word >> 12). The list ends early at a cycle, at an unreadable or misaligned
        node (aligned to words), which is named, or after `limit` nodes."""

    def follow_all(self, pieces: Sequence[Piece], heads: Sequence[int], next_offset: int, limit: int, within: Sequence[int] = ()) -> Lists:
        """Follow many unmangled lists of at most `limit` nodes each, as `follow` does; a head of 0
        is an empty list. `within` has two words for each list: start and end of the range that
        contains its nodes. Sound lists share no node, so the total number of nodes is limited to
        the number of words in the pieces."""

    def walk_tree(self, pieces: Sequence[Piece], root: int, header: int, layout: TreeLayout, most: int) -> TreeWalk:
        """Walk the search tree whose root has `header` as its parent; at most `most` nodes."""

    def walk_links(self, pieces: Sequence[Piece], heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0) -> LinkWalk:
        """Walk the links at `offsets` of nodes: at most `most` nodes and `deepest` levels (0: any
        number)."""

    def gather(self, pieces: Sequence[Piece], addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        """Return records of `size` bytes in turn, and the indices of the missing ones. A record
        that is not wholly in `pieces` is zeros; a record may extend over two pieces. With the array
        cast to "Q", a column is a slice with a stride."""

    def self_pointers(self, piece: Piece, distance: int) -> array[int]:
        """Return addresses a with *(a) == a == *(a + distance): struct pthread's header, list
        heads."""

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        """Return addresses of the aligned words in `piece` whose value is in [low, high),
        ascending."""

    def sum_by_value(self, values: array[int], weights: array[int]) -> tuple[array[int], array[int]]:
        """Return the distinct values, ascending, and the sum of weights of each (without weights,
        its count)."""

    def common_bytes(self, left: array[int], right: array[int]) -> int:
        """Return the bytes that two flat sorted arrays ("Q") of disjoint ranges have in common."""

    def records(self, shapes: Mapping[int, Shape], tag_mask: int) -> Records:
        """Return a sorter of a managed heap's records by key; tags are the bits `tag_mask` of their
        first words."""

    def type_reader(self) -> TypeReader:
        """Return a reader of types from debug information in the target's byte order."""

    def search_any(self, piece: Piece, values: Sequence[int]) -> array[int]:
        """Return addresses of the aligned words in `piece` whose value is one of `values`,
        ascending."""
