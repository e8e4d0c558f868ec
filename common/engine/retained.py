"""The parts of the dominator tree that both engines share: order of calls, and queries of a
complete tree."""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Sized
from typing import Optional, Union

from findleaks.engine.dominators import (
    SHARED,
    Chain,
    Child,
    Dominators,
    Spread,
    check_blocks,
    check_containers,
    check_merged,
    node_root,
    root_node,
)
from findleaks.engine.terms import Totals

ROOT_NODE, SHARED_NUMBER, NO_PLACE = 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF  # native/dominators.h

Numbers = Union[Sequence[int], memoryview]
Rows = Sequence[Sequence[int]]


def node_number(node: int) -> int:
    """Return a node's number as arrays have it: a block's index, ROOT_NODE | root, or
    SHARED_NUMBER."""
    return node if node >= 0 else (ROOT_NODE | node_root(node)) & SHARED_NUMBER


def _copy(nodes: Numbers) -> array[int]:
    """Return an array ("I") of these numbers."""
    if not isinstance(nodes, memoryview):
        return array("I", nodes)
    made = array("I")
    made.frombytes(nodes.cast("B"))  # array("I", nodes) would be made item by item
    return made


def spreads(rows: Rows, limit: int) -> list[Spread]:
    """Return the result of `Dominators.spread`. Each row has size, number of children, blocks,
    bytes, lowest child."""
    return sorted((Spread(*row) for row in rows), key=lambda spread: (-spread.bytes, spread.size))[: max(0, limit)]


def sizes_of(rows: Rows, limit: int) -> list[tuple[int, int]]:
    """Return the result of `Dominators.sizes`, from the same rows."""
    return sorted(((row[0], row[1]) for row in rows), key=lambda item: (-item[0] * item[1], item[0]))[: max(0, limit)]


def by_size(pairs: Sequence[int]) -> Rows:
    """Return rows for `sizes_of`, from pairs of 4 * size and number (native/size_counts.h)."""
    return list(zip([four // 4 for four in pairs[::2]], pairs[1::2]))


class RootedTree:
    """A tree below numbered roots. Engines extend the methods that record references, which only
    check their arguments here."""

    root_term = "root"

    def __init__(self, roots: int, blocks: Sized) -> None:
        self.roots, self._blocks = roots, blocks
        self._begun = self._done = False

    def root_words(self, words: Sequence[int], root: int) -> None:
        self._before()
        self._root(root)

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        self._before()
        self._root(root)
        check_blocks(blocks, len(self._blocks))

    def _root(self, root: int) -> int:
        if not 0 <= root < self.roots:
            raise IndexError(f"no {self.root_term} {root}")
        return root

    def _before(self) -> None:
        if self._begun:
            raise RuntimeError("record roots before computing")

    def _after(self) -> None:
        if not self._done:
            raise RuntimeError("compute first")


class WholeTree(RootedTree):
    """A tree of all blocks; see dominators.Dominators. Places are in preorder: a node is followed
    immediately by the nodes that it retains. An engine fills the arrays when the tree is
    complete."""

    def __init__(self, roots: int, blocks: Sized, lost: bool) -> None:
        super().__init__(roots, blocks)
        self._lost = lost
        self._nodes: Numbers = ()  # the node at each place
        self._numbers: Numbers = ()  # places of blocks; NO_PLACE or more: not reached
        self._roots_at: Numbers = ()  # places of roots

    def refer_lost(self, definite: int, possible: int) -> None:
        self._before()
        self._root(definite)
        self._root(possible)
        if not self._lost:
            raise RuntimeError("only a tree of leaked blocks has leak heads")

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        self._before()
        check_containers(containers, owners, self.roots, len(self._blocks), lambda: self._labels_below(containers, len(owners)))

    def merge_into_roots(self, roots: array[int]) -> None:
        self._before()
        check_merged(roots, self.roots, len(self._blocks))

    def expect_leaf_trees(self) -> None:
        self._before()

    def total(self) -> Totals:
        self._after()
        return Totals(self.count_at(0) - 1 - self.roots, self.bytes_at(0))

    def sum_shared(self) -> Totals:
        return self.sum_retained(SHARED)

    def by_root(self) -> list[Totals]:
        self._after()
        return [Totals(self.count_at(place) - 1, self.bytes_at(place)) for place in self._roots_at]

    def sum_retained(self, node: int) -> Totals:
        place = self.place(node)
        if place is None:
            return Totals(0, 0)
        if node == SHARED:
            roots = self.by_root()
            blocks, size = self.total()
            return Totals(blocks - sum(r.blocks for r in roots), size - sum(r.bytes for r in roots))
        return Totals(self.count_at(place) - (node < 0), self.bytes_at(place))

    def by_label(self, labels: array[int], rows: array[int]) -> list[Totals]:
        self._after()
        if len(labels) != len(self._blocks) or labels.itemsize not in (2, 4) or rows.itemsize != 4:
            raise ValueError(f"{len(labels)} labels of {labels.itemsize} bytes, {len(self._blocks)} blocks")
        pairs = self._by_label(labels, rows, max(rows, default=-1) + 1)
        return list(map(Totals, pairs[::2], pairs[1::2]))

    def idom(self, index: int) -> Optional[int]:
        place = self.block_place(index)
        if place is None:
            return None
        node = self._nodes[self.parent_at(place)]
        return node if node < ROOT_NODE else SHARED if node == SHARED_NUMBER else root_node(node - ROOT_NODE)

    def children(self, node: int, limit: int) -> list[Child]:
        place = self.place(node)
        if place is None or limit <= 0:
            return []
        children = [Child(self._nodes[at], self.count_at(at), self.bytes_at(at)) for at in self._children(place, limit)]
        return sorted(children, key=lambda child: (-child.bytes, child.block))[:limit]

    def spread(self, node: int, limit: int) -> list[Spread]:
        place = self.place(node)
        return [] if place is None else spreads(self._spread(place, False), limit)

    def sizes(self, node: int, limit: int) -> list[tuple[int, int]]:
        place = self.place(node)
        return [] if place is None else sizes_of(self._spread(place, True), limit)

    def members(self, node: int, first: int, limit: int) -> array[int]:
        place, first, limit = self.place(node), max(0, first), max(0, limit)
        if place is None:
            return array("I")
        end = place + self.count_at(place)
        if node != SHARED:
            at = place + (node < 0) + first
            return _copy(self._nodes[at : min(end, at + limit)])
        found = array("I")
        at = place + 1
        while at < end and len(found) < limit:
            behind = at + self.count_at(at)
            if self._nodes[at] < ROOT_NODE:
                found += _copy(self._nodes[at + first : min(behind, at + first + limit - len(found))])
                first = max(0, first - (behind - at))
            at = behind
        return found

    def place(self, node: int) -> Optional[int]:
        """Return a node's place; None if no root reaches the node."""
        self._after()
        if node == SHARED:
            return 0
        return self._roots_at[self._root(node_root(node))] if node < 0 else self.block_place(node)

    def block_place(self, index: int) -> Optional[int]:
        self._after()
        check_blocks((index,), len(self._numbers))
        place = self._numbers[index]
        return place if place < NO_PLACE else None

    def blocks_at(self, first: int, end: int) -> array[int]:
        """Return indices ("I") of the blocks at places [first, end), which contain no roots."""
        return _copy(self._nodes[first:end])

    def count_at(self, place: int) -> int:
        """Return the number of places of the node at `place` and of what it retains."""
        raise NotImplementedError

    def bytes_at(self, place: int) -> int:
        """Return the bytes that the node at `place` retains."""
        raise NotImplementedError

    def parent_at(self, place: int) -> int:
        """Return the place of the immediate dominator of the node at `place`."""
        raise NotImplementedError

    def within(self, node: int, fields: int) -> Dominators:
        raise NotImplementedError

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        raise NotImplementedError

    def _by_label(self, labels: array[int], rows: array[int], count: int) -> Sequence[int]:
        """Return two numbers for each of `count` rows, blocks and bytes; see `by_label`."""
        raise NotImplementedError

    def _labels_below(self, labels: array[int], most: int) -> bool:
        """Return whether each label is less than `most`, or NO_ROOT."""
        raise NotImplementedError

    def _children(self, place: int, limit: int) -> Sequence[int]:
        """Return the places of the first `limit` children or more, in any order."""
        raise NotImplementedError

    def _spread(self, place: int, everything: bool) -> Rows:
        """Return the rows of `spreads` for the node's children. With `everything`, return rows for
        all blocks that the node retains, with at least the first two columns."""
        raise NotImplementedError
