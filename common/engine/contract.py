"""The contract of the two engines: the C kernel (`kernel/`) and its pure-Python twin (`python/`).

Both give the same answers to the last bit; `load.load()` picks the kernel where its library can be
loaded.

A *block index* numbers all blocks of all states in ascending address order, from 0. Only aligned
words count as references. A *start* reference equals a block's address; an *interior* one lies in
[address + 1, address + size). A block's references to itself are ignored."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Protocol

from findleaks.engine.links import LinkWalk
from findleaks.engine.terms import Group, Heuristic, Kind, Lists, Size, State, Totals
from findleaks.engine.trees import TreeLayout, TreeWalk
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

if TYPE_CHECKING:
    from findleaks.engine.dominators import Dominators
    from findleaks.engine.interiors import Interiors
    from findleaks.engine.pages import PageLists, PageRead
    from findleaks.engine.pointer_runs import Bounds, PointerRuns
    from findleaks.engine.records import Records, Shape
    from findleaks.engine.rows import RowRules, Rows


class Blocks(Protocol):
    """Block directory: append in ascending order, `seal`, then look up. About 7 bytes a block in
    the kernel."""

    def append(self, starts: Sequence[int], sizes: Sequence[int], states: Sequence[int]) -> None:
        """Append blocks, ascending and above all appended before; ValueError otherwise."""
        ...

    def append_runs(self, runs: array[int], bits: bytes = b"") -> None:
        """Append runs of equal blocks, `RUN` words each (array "Q"), ascending as in `append`: all
        or none. ValueError otherwise, or where a bit lies beyond `bits`. Pass many runs at once: a
        call costs microseconds, a block nanoseconds."""
        ...

    def append_blocks(self, other: Blocks, first: int, last: int) -> None:
        """Append the blocks of indices [first, last) of another sealed directory of the same
        engine, with their states; ValueError as `append`."""
        ...

    def seal(self) -> None:
        """End appending and allow look-ups (RuntimeError before; appending raises RuntimeError
        after)."""
        ...

    def __len__(self) -> int: ...

    def find(self, address: int) -> int:
        """Index of the block that contains `address`, or -1."""
        ...

    def lookup(self, address: int) -> Optional[tuple[int, int, int, int]]:
        """Index, address, size and state of the block that contains `address`, or None."""
        ...

    def find_all(self, addresses: Sequence[int]) -> tuple[array[int], array[int]]:
        """For each address: the index ("I") of the block that contains it, or 0xFFFFFFFF, and that
        block's size ("Q"), or 0."""
        ...

    def pointer_runs(self, bounds: Bounds) -> PointerRuns:
        """A search for arrays of pointers."""
        ...

    def claim(self, labels: array[int], indices: array[int], label: int) -> bool:
        """Set labels[index] to `label` for all `indices` (both "I") and return True; False, and no
        change, if a block has a label already (not 0xFFFFFFFF) or an index does not exist."""
        ...

    def at_or_after(self, address: int) -> int:
        """Index of the first block whose address is >= `address`; len() if none."""
        ...

    def address(self, index: int) -> int: ...

    def size(self, index: int) -> int: ...

    def state(self, index: int) -> State: ...

    def set_state(self, addresses: Iterable[int], state: State) -> list[int]:
        """Mark the blocks that start at these addresses; returns the addresses at which no block
        starts."""
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

    def bytes_in(self, ranges: array[int]) -> list[int]:
        """Bytes of blocks in these disjoint ranges (start and end of each, "Q"), by State: a block
        counts with its bytes inside."""
        ...

    def by_page(self, where: Range, page: int, lists: PageLists) -> PageRead:
        """State and residency of the pages of `where`, from the one that contains its start: see
        engine/pages.py. Padding of at most a granule (headers) counts with the block before it.
        About 10 ns a block: ask for 256 MiB at a time."""
        ...

    def free_runs(self, where: Range, least: int) -> array[int]:
        """Pairs (start, end) of ranges without blocks in use, cached or metadata: at least `least`
        bytes, or at an end of `where`, where they may continue. Blocks count with their usable
        sizes."""
        ...

    def page_words(self, piece: Piece, types: Sequence[Range], where: Range, page: int, found: array[int], weights: array[int]) -> None:
        """For each page of `where`: the first word of the blocks in use with more than half of its
        bytes in use, if it lies in `types` (sorted, disjoint), else 0. `found` and `weights` ("Q",
        initially zeros) are updated with each piece, ascending."""
        ...

    def gaps(self, start: int, end: int, least: int) -> list[Range]:
        """The gaps of at least `least` bytes in [start, end) that no block covers, ascending."""
        ...


class Graph(Protocol):
    """Reference graph of the blocks in use. Order: scan_blocks over ascending pieces, scan_roots,
    mark, classify."""

    def exclude_links(self, links: bytearray) -> None:
        """Call before scanning. Of a block with n > 0 in `links`, the two words before offset n are
        no references (terms.NO_POINTERS: none of its words is)."""
        ...

    def scan_blocks(self, piece: Piece) -> None:
        """Record the references from in-use blocks' words in `piece`. Pieces come in ascending
        order, each byte once; a block may span pieces."""
        ...

    def scan_roots(self, piece: Piece) -> None:
        """Record the references from root memory."""
        ...

    def root_words(self, words: Sequence[int]) -> None:
        """Record the references from registers."""
        ...

    def settle(self) -> None:
        """End scanning: from now on references and dominators can be queried. The first `mark` does
        it, too."""
        ...

    def mark(self, budget: int) -> bool:
        """Visit about `budget` blocks; True when all reachable and possible blocks are marked."""
        ...

    def interiors(self) -> Interiors:
        """Interior references of a graph made with Heuristic.AUTO; between marking and
        classifying."""
        ...

    def classify(self, budget: int) -> bool:
        """Classify the other blocks as definite or indirect (strongly connected components; one
        leader a cycle, the lowest address); True when done."""
        ...

    def kind(self, index: int) -> Kind: ...

    def kinds(self) -> memoryview:
        """Kind of every block, one byte each ('B'), by index."""
        ...

    def totals(self, kind: Kind) -> Totals: ...

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        """POSSIBLE and DEFINITE blocks grouped by kind, type_word, size, cycle, and whether
        indirect blocks are counted under them; most bytes (direct + indirect) first."""
        ...

    def leader(self, index: int) -> int:
        """The leader that an INDIRECT block is counted under (the lowest-addressed that reaches
        it); itself if DEFINITE; else -1."""
        ...

    def cycle(self, index: int) -> int:
        """Blocks in the cycle that this block leads, itself included; 1 if it leads none."""
        ...

    def indirect_totals(self, index: int) -> Totals:
        """INDIRECT blocks and bytes counted under this leader: each indirect block is counted under
        exactly one leader."""
        ...

    def referrers(self, index: int) -> list[int]:
        """Indices of the in-use blocks that refer to this one, ascending, each once."""
        ...

    def references(self, index: int) -> list[tuple[int, bool]]:
        """(index, interior?) of the in-use blocks this one refers to, in the order of its words."""
        ...

    def path(self, index: int) -> list[int]:
        """A shortest chain of block indices, from one that a root refers to, to `index`; [] if no
        root reaches it."""
        ...

    def rows(self, rules: RowRules) -> Optional[Rows]:
        """Blocks as rows of text, once classified (see engine/rows.py); None from the twin, whose
        caller formats each row."""
        ...

    def is_rooted(self, index: int) -> bool:
        """True when root memory or a register refers to this block directly."""
        ...

    def dominators(
        self, roots: int, bounds: Sequence[int] = (), owners: Sequence[int] = (), lost: bool = False, priorities: Sequence[int] = ()
    ) -> Dominators:
        """The dominator tree below this many numbered roots (see engine/dominators.py). Root words
        from bounds[i] up to the next bound belong to root owners[i] (NO_ROOT: to none); bounds
        ascend, words below the first belong to none. Call after `settle`; with `lost`, after
        classifying: the tree then has POSSIBLE, DEFINITE and INDIRECT blocks only. `priorities` are
        the first roots of each later priority, ascending."""
        ...


class Engine(Protocol):
    name: str  # "kernel" | "pure"
    arch: Arch

    def blocks(self, arch: Arch, granule: int) -> Blocks:
        """`granule`: every block address is a multiple of it (16 on 64-bit glibc, 8 or 4
        elsewhere)."""
        ...

    def graph(
        self, blocks: Blocks, heuristics: Heuristic = Heuristic.NONE, vtables: Sequence[Range] = (), types: Sequence[int] = ()
    ) -> Graph:
        """`vtables` and `types`: see Heuristic."""
        ...

    def follow(self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int) -> tuple[array[int], str]:
        """Nodes of a singly linked list (the word at node + next_offset is the next; `mangled`:
        glibc's safe-linking, value ^ (its own address >> 12)), and "" or why it ended early: a
        cycle, an unreadable or misaligned node (named), more than `limit`."""
        ...

    def follow_all(self, pieces: Sequence[Piece], heads: Sequence[int], next_offset: int, limit: int, within: Sequence[int] = ()) -> Lists:
        """`follow` for many unmangled lists, each of at most `limit` nodes (heads of 0 are empty
        lists). `within`, if given, has two words a list: start and end of the range in which its
        nodes must be."""
        ...

    def walk_tree(self, pieces: Sequence[Piece], root: int, header: int, layout: TreeLayout, most: int) -> TreeWalk:
        """A walk over the search tree whose root is at `root` and has `header` for its parent; at
        most `most` nodes. `pieces` ascend."""
        ...

    def walk_links(self, pieces: Sequence[Piece], heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0) -> LinkWalk:
        """A walk along the links at `offsets` of nodes, from `heads` on; at most `most` nodes, on
        `deepest` levels (0: any number)."""
        ...

    def gather(self, pieces: Sequence[Piece], addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        """Records of `size` bytes at these addresses, one after another, and the numbers of those
        not wholly in pieces (zeros). A record may continue in the next piece. Cast to "Q", a column
        of a structure is a slice with a stride. `pieces` ascend."""
        ...

    def self_pointers(self, piece: Piece, distance: int) -> array[int]:
        """Addresses a of aligned words in `piece` with *(a) == a and *(a + distance) == a (struct
        pthread's header, list heads)."""
        ...

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        """Addresses of the aligned words in `piece` whose value lies in [low, high), ascending."""
        ...

    def sum_by_value(self, values: array[int], weights: array[int]) -> tuple[array[int], array[int]]:
        """The distinct values, ascending, and the sum of each one's weights; without weights, how
        often each occurs."""
        ...

    def common_bytes(self, left: array[int], right: array[int]) -> int:
        """Bytes that two flat sorted arrays ("Q") of disjoint ranges have in common."""
        ...

    def records(self, shapes: Mapping[int, Shape], tag_mask: int) -> Records:
        """A sorter of a managed heap's records, whose tags are the bits `tag_mask` of their first
        words. See engine/records.py."""
        ...

    def search_any(self, piece: Piece, values: Sequence[int]) -> array[int]:
        """Addresses of the aligned words in `piece` whose value is one of `values`, ascending."""
        ...
