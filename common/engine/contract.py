"""The contract between the analysis and its two engines: the C kernel (`kernel.py`) and its pure-Python twin (`pure.py`).

Both give the same answers to the last bit; `engine.load()` picks the kernel where its library can be loaded.
A *block index* counts all blocks of all states in ascending address order, from 0.
References count aligned words only. A *start* reference equals a block's address; an *interior* one lies strictly inside
[address + 1, address + size). A block's references to itself are ignored.
"""

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
    """The directory of blocks: append in ascending order, `seal`, then look up. About 7 bytes a block in the kernel."""

    def append(self, starts: Sequence[int], sizes: Sequence[int], states: Sequence[int]) -> None:
        """Blocks that some allocator enumerated itself, ascending and above all appended before; ValueError otherwise."""
        ...

    def append_runs(self, runs: array[int], bits: bytes = b"") -> None:
        """Slabs of equal blocks, `RUN` words each (array "Q"), ascending as in `append`; ValueError otherwise, and where a bit lies
        beyond `bits`: all or nothing. For any number of runs at once: one call costs microseconds, a block some nanoseconds."""
        ...

    def append_blocks(self, other: Blocks, first: int, last: int) -> None:
        """The blocks of indices [first, last) of another sealed directory of the same engine, with their states; ValueError as `append`."""
        ...

    def seal(self) -> None:
        """No more blocks: look-ups may begin (RuntimeError before; appending raises RuntimeError after)."""
        ...

    def __len__(self) -> int: ...

    def find(self, address: int) -> int:
        """Index of the block that holds `address`, or -1."""
        ...

    def lookup(self, address: int) -> Optional[tuple[int, int, int, int]]:
        """Index, address, size and state of the block that holds `address`, or None: what four calls would say."""
        ...

    def find_all(self, addresses: Sequence[int]) -> tuple[array[int], array[int]]:
        """For each address the index ("I") of the block that holds it, 0xFFFFFFFF where there is none, and that block's size ("Q"; 0)."""
        ...

    def pointer_runs(self, bounds: Bounds) -> PointerRuns:
        """A search for arrays of pointers."""
        ...

    def claim(self, labels: array[int], indices: array[int], label: int) -> bool:
        """Set labels[index] to `label` for all `indices` (both "I"), if all are 0xFFFFFFFF so far and every index is one; else for none."""
        ...

    def at_or_after(self, address: int) -> int:
        """Index of the first block whose address is >= `address`; len() if none."""
        ...

    def address(self, index: int) -> int: ...

    def size(self, index: int) -> int: ...

    def state(self, index: int) -> State: ...

    def set_state(self, addresses: Iterable[int], state: State) -> list[int]:
        """Mark the blocks that start at these addresses; returns the addresses at which no block starts."""
        ...

    def resize(self, index: int, size: int) -> None:
        """Give the block another usable size; ValueError where it would reach into the next block."""
        ...

    def totals(self, state: State, start: int = 0, end: Optional[int] = None) -> Totals:
        """Blocks and usable bytes in this state, among those that start in [start, end)."""
        ...

    def by_size(self, start: int = 0, end: Optional[int] = None) -> list[Size]:
        """The blocks that start in [start, end), counted by size and state; ascending by both."""
        ...

    def bytes_in(self, ranges: array[int]) -> list[int]:
        """Bytes of blocks that lie in these disjoint ranges (start and end of each, "Q"), by State: a block counts with what of it lies
        there."""
        ...

    def by_page(self, where: Range, page: int, lists: PageLists) -> PageRead:
        """The pages of [start, end), the first of them that which `start` is in. Padding no longer than a granule (headers) counts with
        the block before it. Some 10 ns a block: ask for 256 MiB at a time. See engine/pages.py."""
        ...

    def free_runs(self, where: Range, least: int) -> array[int]:
        """Pairs (start, end) of what lies in no block that is in use, cached or metadata: of at least `least` bytes, or at an end of
        `where`, where it may go on. Blocks count with their usable sizes."""
        ...

    def page_words(self, piece: Piece, types: Sequence[Range], where: Range, page: int, found: array[int], weights: array[int]) -> None:
        """For each page of `where` the first word of those blocks in use that take more than half of the bytes in use, if it lies in
        `types` (sorted, disjoint), else 0: `found` and `weights` ("Q", zeros at first) are added to with each piece, ascending."""
        ...

    def gaps(self, start: int, end: int, least: int) -> list[Range]:
        """The stretches of [start, end) of at least `least` bytes that no block reaches into, ascending."""
        ...


class Graph(Protocol):
    """References among in-use blocks, and what they say. Order: scan_blocks over ascending pieces, scan_roots, mark, classify."""

    def exclude_links(self, links: bytearray) -> None:
        """Before scanning: of a block with n > 0 in `links`, the two words before offset n (terms.NO_POINTERS: all) are no references."""
        ...

    def scan_blocks(self, piece: Piece) -> None:
        """Record the references from in-use blocks' words in `piece`. Pieces come in ascending order, each byte once; a block may
        span pieces."""
        ...

    def scan_roots(self, piece: Piece) -> None:
        """Record the references from root memory."""
        ...

    def root_words(self, words: Sequence[int]) -> None:
        """Registers."""
        ...

    def settle(self) -> None:
        """All is scanned: from here on it can be asked who refers to what, and who holds what. The first `mark` does it, too."""
        ...

    def mark(self, budget: int) -> bool:
        """Visit about `budget` blocks; True when all that can be reached is marked reachable or possible."""
        ...

    def interiors(self) -> Interiors:
        """Of a graph made with Heuristic.AUTO, between marking and classifying."""
        ...

    def classify(self, budget: int) -> bool:
        """Tell definite from indirect among the rest (strongly connected components; one leader a cycle, the lowest address); True
        when done."""
        ...

    def kind(self, index: int) -> Kind: ...

    def kinds(self) -> memoryview:
        """Kind of every block, one byte each ('B'), by index."""
        ...

    def totals(self, kind: Kind) -> Totals: ...

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        """POSSIBLE and DEFINITE blocks grouped by (kind, type_word, size, cycle, whether blocks hang from them), most bytes
        (direct + indirect) first."""
        ...

    def leader(self, index: int) -> int:
        """The leader an INDIRECT block hangs from (the lowest-addressed that reaches it); itself if DEFINITE; else -1."""
        ...

    def cycle(self, index: int) -> int:
        """Blocks in the cycle that this block leads, itself included; 1 if it leads none."""
        ...

    def indirect_totals(self, index: int) -> Totals:
        """INDIRECT blocks and bytes counted under this leader: each indirect block is counted under exactly one leader."""
        ...

    def referrers(self, index: int) -> list[int]:
        """Indices of the in-use blocks that refer to this one, ascending, each once."""
        ...

    def references(self, index: int) -> list[tuple[int, bool]]:
        """(index, interior?) of the in-use blocks this one refers to, in the order of its words."""
        ...

    def path(self, index: int) -> list[int]:
        """A shortest chain of block indices, from one that a root refers to, to `index`; [] if no root reaches it."""
        ...

    def rows(self, rules: RowRules) -> Optional[Rows]:
        """Blocks as rows of text, once classified; None from the twin: its caller makes each. See engine/rows.py."""
        ...

    def is_rooted(self, index: int) -> bool:
        """True when root memory or a register refers to this block directly."""
        ...

    def dominators(
        self, roots: int, bounds: Sequence[int] = (), owners: Sequence[int] = (), lost: bool = False, priorities: Sequence[int] = ()
    ) -> Dominators:
        """Who holds what, for this many numbered roots. Root words from bounds[i] up to the next bound belong to root owners[i] (NO_ROOT:
        to none); bounds ascend, words below the first belong to none. Once settled; with `lost`, after classifying, and then of
        POSSIBLE, DEFINITE and INDIRECT blocks alone. `priorities` are the roots, ascending, at which later priorities begin. See
        engine/dominators.py."""
        ...


class Engine(Protocol):
    name: str  # "kernel" | "pure"
    arch: Arch

    def blocks(self, arch: Arch, granule: int) -> Blocks:
        """`granule`: every block address is a multiple of it (16 on 64-bit glibc, 8 or 4 elsewhere)."""
        ...

    def graph(
        self, blocks: Blocks, heuristics: Heuristic = Heuristic.NONE, vtables: Sequence[Range] = (), types: Sequence[int] = ()
    ) -> Graph:
        """`vtables` and `types`: see Heuristic."""
        ...

    def follow(self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int) -> tuple[array[int], str]:
        """Nodes of a singly linked list (address of node + next_offset holds the next; `mangled`: glibc's safe-linking, value ^ (its own
        address >> 12)), and "" or why it ended early: a cycle, an unreadable or misaligned node (named), more than `limit`."""
        ...

    def follow_all(self, pieces: Sequence[Piece], heads: Sequence[int], next_offset: int, limit: int, within: Sequence[int] = ()) -> Lists:
        """`follow` for many unmangled lists, each of at most `limit` nodes (heads of 0 are empty lists). For free lists of a slab each:
        `within`, if given, has two words a list, start and end of where its nodes must be."""
        ...

    def walk_tree(self, pieces: Sequence[Piece], root: int, header: int, layout: TreeLayout, most: int) -> TreeWalk:
        """A walk over the search tree whose root is at `root` and has `header` for its parent; at most `most` nodes. `pieces` ascend."""
        ...

    def walk_links(self, pieces: Sequence[Piece], heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0) -> LinkWalk:
        """A walk along the links at `offsets` of nodes, from `heads` on; at most `most` nodes, on `deepest` levels (0: any number)."""
        ...

    def gather(self, pieces: Sequence[Piece], addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        """Records of `size` bytes at these addresses, one behind the other, and the numbers of those of which a part lies in no piece
        (zeros stand for them); a record may go on from a piece to the next. Cast to "Q", a column of a structure is a slice with a
        stride. `pieces` ascend."""
        ...

    def self_pointers(self, piece: Piece, distance: int) -> array[int]:
        """Addresses a of aligned words in `piece` with *(a) == a and *(a + distance) == a (struct pthread's header, list heads)."""
        ...

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        """Addresses of the aligned words in `piece` whose value lies in [low, high), ascending."""
        ...

    def sum_by_value(self, values: array[int], weights: array[int]) -> tuple[array[int], array[int]]:
        """The different values, ascending, and the sum of each one's weights; without weights, how often it is there."""
        ...

    def common_bytes(self, left: array[int], right: array[int]) -> int:
        """Bytes that two flat sorted arrays ("Q") of disjoint ranges have in common."""
        ...

    def records(self, shapes: Mapping[int, Shape], tag_mask: int) -> Records:
        """For sorting the records of a managed heap, whose tags are their first words' bits `tag_mask`. See engine/records.py."""
        ...

    def search_any(self, piece: Piece, values: Sequence[int]) -> array[int]:
        """Addresses of the aligned words in `piece` whose value is one of `values`, ascending."""
        ...
