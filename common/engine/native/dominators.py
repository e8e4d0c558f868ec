"""The dominator tree in the C engine: dominators.c and the files named in dominators.h."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import c_void_p
from functools import cached_property
from typing import TYPE_CHECKING, Optional

from findleaks.engine.dominators import SHARED, Chain, RootSet, RootSets, check_blocks, check_bounds, check_references, sort_sets
from findleaks.engine.native.fields import NativeFields
from findleaks.engine.native.library import CLibrary, Handle
from findleaks.engine.native.memory import CArray, c_array, c_numbers, c_piece, c_words, native_array, zeros
from findleaks.engine.retained import NO_PLACE, Rows, WholeTree, by_size, node_number
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.engine.native.graph import NativeGraph


class NativeDominators(WholeTree):
    """A tree of all blocks; see dominators.Dominators.

    Takes 16 bytes for each reached block; 5 to 12 bytes if leaf trees are expected. Takes 20 bytes
    if the sum of the sizes needs more than 4 bytes even when divided by the largest power of two
    that divides each size. Takes 4 more after the first query for an immediate dominator."""

    def __init__(
        self,
        library: CLibrary,
        graph: NativeGraph,
        handle: Handle,
        roots: int,
        bounds: Sequence[int] = (),
        owners: Sequence[int] = (),
        lost: bool = False,
        priorities: Sequence[int] = (),
    ) -> None:
        check_bounds(roots, bounds, owners, priorities)
        super().__init__(roots, graph.blocks, lost)
        self._library, self._graph = library, graph
        self._bounds = c_array(array("Q", bounds)), c_array(array("I", owners)), len(bounds)
        self._kept: dict[str, tuple[CArray, ...]] = {}  # arrays that the C engine continues to read
        made = library.fl_dominators_new(handle, roots, lost, c_array(array("I", priorities)), len(priorities))
        self._handle = Handle(made, library.fl_dominators_free, "for the dominators")

    def scan_roots(self, piece: Piece) -> None:
        self._before()
        self._library.fl_dominators_scan(self._handle, c_piece(piece), *self._bounds)

    def root_words(self, words: Sequence[int], root: int) -> None:
        super().root_words(words, root)
        self._library.fl_dominators_words(self._handle, *c_words(words, self._graph.blocks.arch), root)

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        super().refer(root, blocks)
        indices = array("I", blocks)
        self._library.fl_dominators_refer(self._handle, root, c_array(indices), len(indices))

    def refer_lost(self, definite: int, possible: int) -> None:
        super().refer_lost(definite, possible)
        self._library.fl_dominators_lost(self._handle, definite, possible)

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        super().set_owners(containers, owners)
        kept = self._kept["containers"] = c_array(containers), c_array(array("I", map(node_number, owners)))
        self._library.fl_dominators_set_owners(self._handle, *kept)

    def merge_into_roots(self, roots: array[int]) -> None:
        super().merge_into_roots(roots)
        kept = self._kept["merged"] = (c_array(roots),)
        self._library.fl_dominators_merge(self._handle, *kept)

    def expect_leaf_trees(self) -> None:
        super().expect_leaf_trees()
        self._library.fl_dominators_expect_leaf_trees(self._handle)

    def compute(self, budget: int) -> bool:
        self._begun = True
        if not self._done and not self._library.fl_dominators_compute(self._handle, max(1, budget)):
            self._read()
            self._done = True
        return self._done

    def progress(self) -> float:
        return 1.0 if self._done else min(0.999, self._library.fl_dominators_progress(self._handle) / 1000)

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        place, found = self.block_place(index), zeros("Q", 6)
        if place is None:
            size = self._graph.blocks.size(index)
            return Chain(1, size, size, size, index, False)
        self._library.fl_dominators_chain(self._handle, place, equal, min(max(limit, 1), 1 << 30), c_array(found))
        length, least, most, total, end, more = found
        return Chain(length, least, most, total, self._nodes[end], bool(more))

    def within(self, node: int, fields: int) -> NativeFields:
        if node == SHARED:
            raise ValueError("only a block or a root has fields")
        return NativeFields(self._library, self._handle, self._graph.blocks, self, node, fields)

    def root_sets(self, first: int, end: int, roots: array[int], blocks: array[int]) -> RootSets:
        check_references(roots, blocks, self.roots, len(self._graph.blocks))
        self._after()
        return NativeRootSets(self._library, self, self._handle, (first, end), roots, blocks)

    def _read(self) -> None:
        arrays, count = (c_void_p * 3)(), zeros("I", 1)
        self._library.fl_dominators_arrays(self._handle, arrays, c_array(count))
        counts = *count, len(self._graph.blocks), self.roots
        self._nodes, self._roots_at = (native_array(arrays[at], counts[at], 4) for at in (0, 2))
        self._numbers = native_array(arrays[1], counts[1], 4) if arrays[1] else ()

    def block_place(self, index: int) -> Optional[int]:
        self._after()
        if self._numbers:
            return super().block_place(index)
        check_blocks((index,), len(self._graph.blocks))
        place = self._library.fl_dominators_place(self._handle, index)
        return place if place < NO_PLACE else None

    @cached_property
    def _idoms(self) -> memoryview:
        """For each place, the place of the immediate dominator: 4 bytes for each block."""
        found = (c_void_p * 1)()
        self._library.fl_dominators_idoms(self._handle, found)
        return native_array(found[0], len(self._nodes), 4)

    def count_at(self, place: int) -> int:
        return int(self._library.fl_dominators_count(self._handle, place))

    def bytes_at(self, place: int) -> int:
        return int(self._library.fl_dominators_bytes(self._handle, place))

    def parent_at(self, place: int) -> int:
        return int(self._idoms[place])

    def _children(self, place: int, limit: int) -> Sequence[int]:
        return self._library.words(self._library.fl_dominators_children, self._handle, place, limit)

    def _spread(self, place: int, everything: bool) -> Rows:
        if everything:
            return by_size(self._library.words(self._library.fl_dominators_sizes, self._handle, place))
        return self._library.rows(5, self._library.fl_dominators_spread, self._handle, place)

    def _by_label(self, labels: array[int], rows: array[int], count: int) -> Sequence[int]:
        ends, totals = zeros("I", count), zeros("Q", 2 * count)
        self._library.fl_dominators_by_label(self._handle, *c_numbers(labels), c_array(rows), len(rows), c_array(ends), c_array(totals))
        return totals

    def _labels_below(self, labels: array[int], most: int) -> bool:
        return bool(self._library.fl_labels_below(*c_numbers(labels), len(labels), most))


class NativeRootSets:
    """See dominators.RootSets; common/native/shared_roots.c."""

    def __init__(
        self, library: CLibrary, tree: NativeDominators, handle: Handle, eligible: tuple[int, int], roots: array[int], blocks: array[int]
    ) -> None:
        self._library, self._tree = library, tree  # this also keeps the tree's graph
        self._references = c_array(roots), c_array(blocks)  # the C engine continues to read them
        made = library.fl_shared_roots_new(handle, *eligible, *self._references, len(blocks))
        self._handle = Handle(made, library.fl_shared_roots_free, "for the roots of shared memory")

    def compute(self, budget: int) -> bool:
        return not self._library.fl_shared_roots_compute(self._handle, max(1, budget))

    def sets(self) -> list[RootSet]:
        rows = self._library.rows(6, self._library.fl_shared_roots_sets, self._handle)
        return sort_sets(RootSet(tuple(row[2 : 2 + row[1]]), row[0]) for row in rows)
