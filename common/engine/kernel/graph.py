"""The pointer graph in the C kernel
(common/kernel/{scan,mark,classify,groups,heuristics,interiors}.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_uint32, c_uint64

from findleaks.engine import shared
from findleaks.engine.kernel.blocks import KernelBlocks
from findleaks.engine.kernel.dominators import KernelDominators
from findleaks.engine.kernel.interiors import KernelInteriors
from findleaks.engine.kernel.library import DISORDER, NONE, CGroup, CRange, check
from findleaks.engine.kernel.memory import c_array, c_piece
from findleaks.engine.kernel.rows import KernelRows
from findleaks.engine.rows import RowRules
from findleaks.engine.terms import Group, Heuristic, Kind, Totals
from findleaks.target.base import Piece, Range


class KernelGraph:
    """See contract.Graph. Some 3 bytes a block and 4 a reference, beside what `blocks` takes."""

    def __init__(
        self, library: ctypes.CDLL, blocks: KernelBlocks, heuristics: Heuristic, vtables: Sequence[Range], types: Sequence[int] = ()
    ) -> None:
        blocks.seal()
        self.blocks = blocks
        self._library = library
        self._handle = 0
        self._kinds = bytearray(len(blocks) or 1)
        self._held = c_array(self._kinds)  # neither moves nor goes while the kernel uses it
        self._marking = self._marked = self._classified = False
        self._handle = library.fl_graph_new(blocks.handle, self._held)
        if not self._handle:
            raise MemoryError("not enough memory for the heap's graph")
        if heuristics & Heuristic.AUTO:
            library.fl_graph_note(self._handle)
        heuristics &= ~Heuristic.AUTO
        if heuristics:
            ranges = _ranges(vtables)
            check(library.fl_graph_heuristics(self._handle, int(heuristics), ranges, len(ranges)), "blocks")
            packed = array("Q", types)
            check(library.fl_graph_objects(self._handle, c_array(packed), len(packed)), "blocks")

    def __del__(self) -> None:
        if self._handle:
            self._library.fl_graph_free(self._handle)

    def exclude_links(self, links: bytearray) -> None:
        """See contract.Graph."""
        self._before_marking()
        if len(links) != len(self.blocks):
            raise ValueError(f"{len(links)} bytes, {len(self.blocks)} blocks")
        self._links = c_array(links or bytearray(1))
        self._library.fl_graph_leave_out(self._handle, self._links)

    def scan_blocks(self, piece: Piece) -> None:
        """See contract.Graph; ValueError when a piece begins below the end of the one before."""
        self._before_marking()
        if check(self._library.fl_scan_blocks(self._handle, c_piece(piece)), "references") == DISORDER:
            raise ValueError(f"piece {piece.address:#x} lies below what was scanned before")

    def scan_roots(self, piece: Piece) -> None:
        """See contract.Graph."""
        self._before_marking()
        check(self._library.fl_scan_roots(self._handle, c_piece(piece)), "references")

    def root_words(self, words: Sequence[int]) -> None:
        """See contract.Graph."""
        self._before_marking()
        packed = array("Q", words)
        check(self._library.fl_root_words(self._handle, c_array(packed), len(packed)), "references")

    def settle(self) -> None:
        """See contract.Graph."""
        if not self._marking:
            self._marking = True
            check(self._library.fl_mark(self._handle, 0), "blocks")

    def mark(self, budget: int) -> bool:
        """See contract.Graph."""
        self._marking = True
        if not self._marked:
            self._marked = check(self._library.fl_mark(self._handle, max(1, budget)), "blocks") == 0
        return self._marked

    def interiors(self) -> KernelInteriors:
        """See contract.Graph."""
        if not self._marked or self._classified:
            raise RuntimeError("between marking and classifying")
        return KernelInteriors(self._library, self, self._handle)

    def classify(self, budget: int) -> bool:
        """See contract.Graph."""
        if not self._marked:
            raise RuntimeError("mark first")
        if not self._classified:
            self._classified = check(self._library.fl_classify(self._handle, max(1, budget)), "blocks") == 0
        return self._classified

    def kind(self, index: int) -> Kind:
        return Kind(self._kinds[self._index(index)])

    def kinds(self) -> memoryview:
        """See contract.Graph."""
        return memoryview(self._kinds).toreadonly()[: len(self.blocks)]

    def rows(self, rules: RowRules) -> KernelRows:
        """See contract.Graph."""
        return KernelRows(self._library, self._handle, self.blocks.handle, rules)

    def totals(self, kind: Kind) -> Totals:
        """Blocks in use of this kind; UNKNOWN before they are classified."""
        count, size = c_uint64(), c_uint64()
        self._library.fl_kind_totals(self._handle, int(kind), byref(count), byref(size))
        return Totals(count.value, size.value)

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        """See contract.Graph; the pieces ascend, and a block whose first word is in none counts as
        of no type."""
        self._after_classifying()
        ranges = _ranges(types)
        handle = self._library.fl_groups_new(self._handle, ranges, len(ranges))
        if not handle:
            raise MemoryError("not enough memory to group blocks")
        try:
            for piece in pieces if len(ranges) else ():
                if check(self._library.fl_groups_feed(handle, c_piece(piece)), "groups") == DISORDER:
                    raise ValueError(f"piece {piece.address:#x} lies below the one before it")
            count = c_uint64()
            found = self._library.fl_groups_finish(handle, byref(count))
            if count.value == NONE:
                raise MemoryError("not enough memory to group blocks")
            return shared.ordered(_group(item) for item in (CGroup * count.value).from_address(found or 0)) if count.value else []
        finally:
            self._library.fl_groups_free(handle)

    def leader(self, index: int) -> int:
        """See contract.Graph."""
        self._after_classifying()
        found = self._library.fl_leader(self._handle, self._index(index))
        return -1 if found == NONE else int(found)

    def cycle(self, index: int) -> int:
        """See contract.Graph."""
        self._after_classifying()
        return int(self._library.fl_cycle(self._handle, self._index(index)))

    def indirect_totals(self, index: int) -> Totals:
        """See contract.Graph."""
        self._after_classifying()
        count, size = c_uint32(), c_uint64()
        self._library.fl_hanging(self._handle, self._index(index), byref(count), byref(size))
        return Totals(count.value, size.value)

    def referrers(self, index: int) -> list[int]:
        """See contract.Graph."""
        self._after_scanning()
        return self._listed(self._library.fl_referrers, index)

    def references(self, index: int) -> list[tuple[int, bool]]:
        """See contract.Graph; a block referred to twice is listed twice."""
        self._after_scanning()
        return [(edge >> 1, bool(edge & 1)) for edge in self._listed(self._library.fl_references, index)]

    def path(self, index: int) -> list[int]:
        """See contract.Graph; breadth first from the lowest rooted block, references in the order
        of their words."""
        self._after_scanning()
        length = c_uint32()
        chain = self._library.fl_path(self._handle, self._index(index), byref(length))
        if not chain:
            raise MemoryError("not enough memory to search a path")
        indices = list((c_uint32 * length.value).from_address(chain))
        self._library.fl_free(chain)
        return indices[::-1]

    def is_rooted(self, index: int) -> bool:
        """See contract.Graph."""
        return bool(self._library.fl_rooted(self._handle, self._index(index)))

    def dominators(
        self, roots: int, bounds: Sequence[int] = (), owners: Sequence[int] = (), lost: bool = False, priorities: Sequence[int] = ()
    ) -> KernelDominators:
        """See contract.Graph."""
        if not (self._classified if lost else self._marking):
            raise RuntimeError("classify first" if lost else "settle first")
        return KernelDominators(self._library, self, self._handle, roots, bounds, owners, lost, priorities)

    def _listed(self, function: Callable[..., int], index: int) -> list[int]:
        """The items that a function writes, called again with more capacity if it reports more."""
        capacity = 64
        while True:
            found = (c_uint32 * capacity)()
            number = function(self._handle, self._index(index), found, capacity)
            if number <= capacity:
                return list(found[:number])
            capacity = number

    def _index(self, index: int) -> int:
        if not 0 <= index < len(self.blocks):
            raise IndexError(f"no block {index}")
        return index

    def _before_marking(self) -> None:
        if self._marking:
            raise RuntimeError("scan before marking")

    def _after_scanning(self) -> None:
        if not self._marking:
            raise RuntimeError("mark first")

    def _after_classifying(self) -> None:
        if not self._classified:
            raise RuntimeError("classify first")


def _ranges(ranges: Iterable[Range]) -> ctypes.Array[CRange]:
    sorted_ = shared.merged(ranges)
    return (CRange * len(sorted_))(*(CRange(r.start, r.end) for r in sorted_))


def _group(item: CGroup) -> Group:
    return Group(
        kind=Kind(item.kind),
        type_word=item.type_word,
        size=item.size,
        cycle=item.cycle,
        blocks=item.blocks,
        bytes=item.bytes,
        indirect_blocks=item.indirect_blocks,
        indirect_bytes=item.indirect_bytes,
        least_indirect=item.least,
        most_indirect=item.most,
        examples=tuple(item.examples[: min(3, item.blocks)]),
    )
