"""What each field of an owner retains. This is the part of `Dominators.within` that both engines
share.

Everything that a node retains is below its children in the dominator tree. An edge from outside
into a child's subtree leads to the child itself. So it is enough to determine which fields reach
each child."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence, Sized
from typing import Optional

from findleaks.engine.dominators import SHARED, Chain, Child, Dominators, RootSets, Spread, check_bounds, node_root, root_node
from findleaks.engine.retained import Numbers, RootedTree, Rows, WholeTree, sizes_of, spreads
from findleaks.engine.terms import Totals
from findleaks.target.base import Piece


class FieldsTree(RootedTree):
    """A tree with fields as roots; see dominators.Dominators. Engines extend `refer` and
    `root_words`, and add the missing methods."""

    root_term = "field"

    def __init__(self, tree: WholeTree, blocks: Sized, node: int, fields: int) -> None:
        check_bounds(fields, (), ())
        super().__init__(fields, blocks)
        place = tree.place(node)
        self._tree = tree
        self._first, self._span = (0, 0) if place is None else (place, tree.count_at(place))
        # Columns of the tree. labels: an element for each place below the owner: 0, or for a child,
        # 1 + the field that reaches it, or 1 + the number of fields if several fields reach it.
        # all: places of labelled children, ascending. heads: the same places, grouped by label.
        # ends: for each of `heads`, the sum of the blocks up to and including it, within its label.
        # starts: index of each label's first element in heads and ends. sums: blocks and bytes,
        # from label 1 on.
        self._labels: Numbers = ()
        self._all: Numbers = ()
        self._starts: Numbers = ()
        self._heads: Numbers = ()
        self._ends: Numbers = ()
        self._sums: Numbers = ()

    def scan_roots(self, piece: Piece) -> None:
        """Raise RuntimeError: fields are given by their targets."""
        raise RuntimeError("fields have no root memory")

    def refer_lost(self, definite: int, possible: int) -> None:
        """Raise RuntimeError: fields are given by their targets."""
        raise RuntimeError("only a tree of leaked blocks has leak heads")

    def merge_into_roots(self, roots: array[int]) -> None:
        """Raise ValueError: only a whole tree merges blocks."""
        raise ValueError("only a whole tree can merge blocks into roots")

    def expect_leaf_trees(self) -> None:
        """Raise ValueError: only a tree of all blocks can leave out leaf trees."""
        raise ValueError("only a whole tree can leave out leaf trees")

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        """Raise ValueError: only a whole tree has owners of containers."""
        raise ValueError("only a whole tree can have owners of containers")

    def by_label(self, labels: array[int], rows: array[int]) -> list[Totals]:
        """Raise ValueError: only a whole tree is summed by label."""
        raise ValueError("only a whole tree is summed by label")

    def root_sets(self, first: int, end: int, roots: array[int], blocks: array[int]) -> RootSets:
        """Raise ValueError: only a whole tree has such roots."""
        raise ValueError("only a whole tree has roots with references")

    def total(self) -> Totals:
        self._after()
        return Totals(sum(self._sums[0::2]), sum(self._sums[1::2]))

    def sum_shared(self) -> Totals:
        return self.sum_retained(SHARED)

    def by_root(self) -> list[Totals]:
        self._after()
        return [Totals(self._sums[2 * field], self._sums[2 * field + 1]) for field in range(self.roots)]

    def sum_retained(self, node: int) -> Totals:
        field = self._field(node)
        if field is None:
            return self._tree.sum_retained(node) if self._head(node) is not None else Totals(0, 0)
        return Totals(self._sums[2 * field], self._sums[2 * field + 1])

    def idom(self, index: int) -> Optional[int]:
        self._after()
        head = self._head(index)
        if head is None:
            return None
        if head != self._tree.place(index):
            return self._tree.idom(index)
        field = self._labels[head - self._first] - 1
        return SHARED if field == self.roots else root_node(field)

    def children(self, node: int, limit: int) -> list[Child]:
        field = self._field(node)
        if field is None:
            return self._tree.children(node, limit) if self._head(node) is not None else []
        tree, places = self._tree, self._children(field, max(0, limit))
        children = [Child(tree.blocks_at(place, place + 1)[0], tree.count_at(place), tree.bytes_at(place)) for place in places]
        return sorted(children, key=lambda child: (-child.bytes, child.block))

    def spread(self, node: int, limit: int) -> list[Spread]:
        field = self._field(node)
        if field is None:
            return self._tree.spread(node, limit) if self._head(node) is not None else []
        return spreads(self._spread(field, False), limit)

    def sizes(self, node: int, limit: int) -> list[tuple[int, int]]:
        field = self._field(node)
        if field is None:
            return self._tree.sizes(node, limit) if self._head(node) is not None else []
        return sizes_of(self._spread(field, True), limit)

    def members(self, node: int, first: int, limit: int) -> array[int]:
        field = self._field(node)
        if field is None:
            return self._tree.members(node, first, limit) if self._head(node) is not None else array("I")
        first, limit = max(0, first), max(0, limit)
        at, end = self._starts[field + 1], self._starts[field + 2]
        at = bisect_right(self._ends, first, at, end)
        found = array("I")
        while at < end and len(found) < limit:
            behind = self._ends[at]
            before = self._ends[at - 1] if at > self._starts[field + 1] else 0
            place = self._heads[at] + max(0, first - before)
            found += self._tree.blocks_at(place, min(self._heads[at] + behind - before, place + limit - len(found)))
            at += 1
        return found

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        """Follow a linked list; see dominators.Dominators. The chain has length 1 for a block that
        no field reaches."""
        self._after()
        if self._head(index) is None:
            return self._tree.chain(index, equal, 1)._replace(more=False)
        return self._tree.chain(index, equal, limit)

    def within(self, node: int, fields: int) -> Dominators:
        if node < 0:
            raise ValueError("only a block or a root has fields")
        return self._tree.within(node, fields)

    def _children(self, field: int, limit: int) -> Sequence[int]:
        """Return the places of the first `limit` children that only this field reaches, in any
        order. `field` is the number of a field, or the number of all fields for the children that
        several fields reach."""
        raise NotImplementedError

    def _spread(self, field: int, everything: bool) -> Rows:
        """Return the rows of WholeTree._spread for the memory that a field retains."""
        raise NotImplementedError

    def _field(self, node: int) -> Optional[int]:
        """Return the number of a field; `roots` for SHARED; None for a block."""
        self._after()
        return None if node >= 0 else self.roots if node == SHARED else self._root(node_root(node))

    def _head(self, index: int) -> Optional[int]:
        """Return the place of the child whose subtree contains this block; None if no field reaches
        it."""
        place = self._tree.place(index)
        if place is None or not self._first < place < self._first + self._span:
            return None
        at = bisect_right(self._all, place) - 1
        if at < 0:
            return None
        head = self._all[at]
        return head if place < head + self._tree.count_at(head) else None
