"""The dominator tree in the C kernel
(common/kernel/{dominators,tree_reduction,semidominators,preorder_layout,dominator_queries}.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_void_p
from typing import TYPE_CHECKING, Optional

from findleaks.engine.dominators import SHARED, Chain, Child, Spread, check_bounds, check_containers, check_merged, node_root, root_node
from findleaks.engine.kernel.fields import KernelFields
from findleaks.engine.kernel.library import Handle, Kernel
from findleaks.engine.kernel.memory import CArray, c_array, c_piece, kernel_array, zeros
from findleaks.engine.terms import Totals
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.engine.kernel.graph import KernelGraph

_ROOT_NODE, _SHARED_NODE, _NO_PLACE = 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF  # dominators.h


class KernelDominators:
    """See dominators.Dominators. 24 bytes a block that is reached."""

    def __init__(
        self,
        library: Kernel,
        graph: KernelGraph,
        handle: Handle,
        roots: int,
        bounds: Sequence[int] = (),
        owners: Sequence[int] = (),
        lost: bool = False,
        priorities: Sequence[int] = (),
    ) -> None:
        check_bounds(roots, bounds, owners, priorities)
        self.roots = roots
        self._library, self._graph, self._graph_handle = library, graph, handle
        self._bounds = c_array(array("Q", bounds)), c_array(array("I", owners)), len(bounds)
        self._lost = lost
        self._begun = self._done = False
        self._kept: dict[str, tuple[CArray, ...]] = {}  # what the kernel goes on reading
        made = library.fl_dominators_new(handle, roots, lost, c_array(array("I", priorities)), len(priorities))
        self._handle = Handle(made, library.fl_dominators_free, "for the dominators")
        empty = memoryview(b"").cast("I")
        self._nodes = self._idoms = self._counts = self._bytes = self._numbers = self._roots_at = empty

    def scan_roots(self, piece: Piece) -> None:
        """See dominators.Dominators."""
        self._before()
        self._library.fl_dominators_scan(self._handle, c_piece(piece), *self._bounds)

    def root_words(self, words: Sequence[int], root: int) -> None:
        """See dominators.Dominators."""
        self._before()
        values = array("Q", words)
        self._library.fl_dominators_words(self._handle, c_array(values), len(values), self._root(root))

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        """See dominators.Dominators."""
        self._before()
        self._root(root)
        count = len(self._graph.blocks)
        for index in blocks:
            if not 0 <= index < count:
                raise IndexError(f"no block {index}")
        packed = array("I", blocks)
        self._library.fl_dominators_refer(self._handle, root, c_array(packed), len(packed))

    def refer_lost(self, definite: int, possible: int) -> None:
        """See dominators.Dominators."""
        self._before()
        self._root(definite)
        self._root(possible)
        if not self._lost:
            raise RuntimeError("dominators of what is lost only")
        self._library.fl_dominators_lost(self._handle, definite, possible)

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        """See dominators.Dominators."""
        self._before()
        sound = self._library.fl_labels_below
        check_containers(
            containers,
            owners,
            self.roots,
            len(self._graph.blocks),
            lambda: bool(sound(c_array(containers), len(containers), len(owners))),
        )
        nodes = array("I", [node if node >= 0 else _ROOT_NODE | node_root(node) for node in owners])
        kept = self._kept["containers"] = c_array(containers), c_array(nodes)
        self._library.fl_dominators_set_owners(self._handle, *kept)

    def merge_into_roots(self, roots: array[int]) -> None:
        """See dominators.Dominators."""
        self._before()
        check_merged(roots, self.roots, len(self._graph.blocks))
        kept = self._kept["merged"] = (c_array(roots),)
        self._library.fl_dominators_merge(self._handle, *kept)

    def compute(self, budget: int) -> bool:
        """See dominators.Dominators."""
        self._begun = True
        if not self._done and not self._library.fl_dominators_compute(self._handle, max(1, budget)):
            self._read()
            self._done = True
        return self._done

    def progress(self) -> float:
        """See dominators.Dominators."""
        return 1.0 if self._done else min(0.999, self._library.fl_dominators_progress(self._handle) / 1000)

    def total(self) -> Totals:
        """See dominators.Dominators."""
        self._after()
        return Totals(self._counts[0] - 1 - self.roots, self._bytes[0])

    def shared(self) -> Totals:
        """See dominators.Dominators."""
        return self.retained(SHARED)

    def by_root(self) -> list[Totals]:
        """See dominators.Dominators."""
        self._after()
        return [Totals(self._counts[place] - 1, self._bytes[place]) for place in self._roots_at]

    def retained(self, node: int) -> Totals:
        """See dominators.Dominators."""
        place = self.place(node)
        if place is None:
            return Totals(0, 0)
        if node == SHARED:
            roots = self.by_root()
            blocks, size = self.total()
            return Totals(blocks - sum(r.blocks for r in roots), size - sum(r.bytes for r in roots))
        return Totals(self._counts[place] - (node < 0), self._bytes[place])

    def idom(self, index: int) -> Optional[int]:
        """See dominators.Dominators."""
        place = self.place(self._index(index))
        if place is None:
            return None
        node = self._nodes[self._idoms[place]]
        return node if node < _ROOT_NODE else SHARED if node == _SHARED_NODE else root_node(node - _ROOT_NODE)

    def children(self, node: int, limit: int) -> list[Child]:
        """See dominators.Dominators."""
        place = self.place(node)
        if place is None or limit <= 0:
            return []
        found = self._library.words(self._library.fl_dominators_children, self._handle, place, limit)
        children = [Child(self._nodes[at], self._counts[at], self._bytes[at]) for at in found]
        return sorted(children, key=lambda child: (-child.bytes, child.block))

    def spread(self, node: int, limit: int) -> list[Spread]:
        """See dominators.Dominators."""
        found = self._spread(node, False)
        return sorted((Spread(*item) for item in found), key=lambda spread: (-spread.bytes, spread.size))[: max(0, limit)]

    def sizes(self, node: int, limit: int) -> list[tuple[int, int]]:
        """See dominators.Dominators."""
        found = self._spread(node, True)
        return sorted(((item[0], item[1]) for item in found), key=lambda item: (-item[0] * item[1], item[0]))[: max(0, limit)]

    def members(self, node: int, first: int, limit: int) -> array[int]:
        """See dominators.Dominators."""
        place, first, limit = self.place(node), max(0, first), max(0, limit)
        if place is None:
            return array("I")
        end = place + self._counts[place]
        if node != SHARED:
            at = place + (node < 0) + first
            return array("I", self._nodes[at : min(end, at + limit)])
        found = array("I")
        at = place + 1
        while at < end and len(found) < limit:
            behind = at + self._counts[at]
            if self._nodes[at] < _ROOT_NODE:
                found += array("I", self._nodes[at + first : min(behind, at + first + limit - len(found))])
                first = max(0, first - (behind - at))
            at = behind
        return found

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        """See dominators.Dominators."""
        place, found = self.place(self._index(index)), zeros("Q", 6)
        if place is None:
            size = self._graph.blocks.size(index)
            return Chain(1, size, size, size, index, False)
        self._library.fl_dominators_chain(self._handle, place, equal, min(max(limit, 1), 1 << 30), c_array(found))
        length, least, most, total, end, more = found
        return Chain(length, least, most, total, self._nodes[end], bool(more))

    def within(self, node: int, fields: int) -> KernelFields:
        """See dominators.Dominators."""
        if node == SHARED:
            raise ValueError("only a block or a root has fields")
        return KernelFields(self._library, self._handle, self._graph.blocks, self, node, fields)

    def blocks_at(self, first: int, end: int) -> array[int]:
        """See fields.Tree."""
        return array("I", self._nodes[first:end])

    def count_at(self, place: int) -> int:
        """See fields.Tree."""
        return self._counts[place]

    def _read(self) -> None:
        """Have the arrays at hand."""
        arrays, count = (c_void_p * 6)(), c_uint32()
        self._library.fl_dominators_arrays(self._handle, arrays, byref(count))
        self._nodes, self._idoms, self._counts = (kernel_array(arrays[at], count.value, 4) for at in range(3))
        self._bytes, self._numbers = kernel_array(arrays[3], count.value, 8), kernel_array(arrays[4], len(self._graph.blocks), 4)
        self._roots_at = kernel_array(arrays[5], self.roots, 4)

    def _spread(self, node: int, everything: bool) -> Sequence[Sequence[int]]:
        """Size, how many, what they retain, lowest: of a node's children, or of all that it
        retains."""
        place = self.place(node)
        return [] if place is None else self._library.rows(5, self._library.fl_dominators_spread, self._handle, place, everything)

    def place(self, node: int) -> Optional[int]:
        """See fields.Tree."""
        self._after()
        if node == SHARED:
            return 0
        if node < 0:
            return self._roots_at[self._root(node_root(node))]
        place = self._numbers[self._index(node)]
        return place if place < _NO_PLACE else None

    def _index(self, index: int) -> int:
        if not 0 <= index < len(self._graph.blocks):
            raise IndexError(f"no block {index}")
        return index

    def _root(self, root: int) -> int:
        if not 0 <= root < self.roots:
            raise IndexError(f"no root {root}")
        return root

    def _before(self) -> None:
        if self._begun:
            raise RuntimeError("roots come before computing")

    def _after(self) -> None:
        if not self._done:
            raise RuntimeError("compute first")
