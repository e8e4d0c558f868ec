"""The dominator tree of the blocks: what each block and root retains.

A block *retains* what would become unreachable without it: the blocks it dominates, itself
included. The caller numbers the roots 0 … n - 1 (a global variable, a stack frame, a thread's TLS,
a mapping, the registers). A root retains what is reachable only through it. Memory is *shared* if
several roots reach it and no single root retains it.

Roots may have priorities. Memory that roots of an earlier priority reach belongs to them: edges to
it from later roots, or from blocks that only later roots reach, are ignored. So a pointer on a
stack takes nothing away from a variable. Sharing is within one priority.

Start and interior references have the same effect. The algorithm is semi-NCA (L. Georgiadis,
"Linear-Time Algorithms for Dominators and Related Problems", 2005). It uses the edges of the graph,
so memory is not scanned again.

A *node* is a number: a block's index (0 and above), SHARED, or a root's `root_node`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import gt
from typing import Optional, Protocol

from findleaks.engine.terms import Totals
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

SHARED = -1  # the node above all roots: idom of nodes that no single root or block dominates
SHARED_NAME = "retained by several roots"
NO_ROOT = 0xFFFFFFFF  # stands for a root's number: no root


STEM_EDGES = 8  # see Dominators.expect_leaf_trees


IGNORED = 0xFFFFFFFE  # stands for a root's number: the block's references are ignored


def root_node(root: int) -> int:
    return -2 - root


def node_root(node: int) -> int:
    """Return the number of this root or field; -1 for a block and for SHARED."""
    return -2 - node if node <= -2 else -1


class Child(NamedTuple):
    """A child (block index), and the number of blocks and bytes that it retains, itself
    included."""

    block: int
    blocks: int
    bytes: int


class Spread(NamedTuple):
    """Children of the same usable size: their number, and the blocks and bytes that they retain.
    `example` is the child with the lowest address."""

    size: int
    children: int
    blocks: int
    bytes: int
    example: int


class Chain(NamedTuple):
    """A linked list of `length` blocks, both ends included, with usable sizes from `least` to
    `most`.

    `bytes` is the sum of the sizes. If `more` is set, the list was cut at the limit. To continue,
    follow the chain from `end`, which is then counted twice."""

    length: int
    least: int
    most: int
    bytes: int
    end: int
    more: bool


SET = 4  # most roots in a set of RootSets


class RootSet(NamedTuple):
    """Some roots, in ascending order. `bytes`: the memory that is retained by blocks which exactly
    these roots reach."""

    roots: tuple[int, ...]
    bytes: int


class RootSets(Protocol):
    """The roots that reach the memory that SHARED retains; see `Dominators.root_sets`."""

    def compute(self, budget: int) -> bool:
        """Visit about `budget` blocks and references. Return True when complete."""
        ...

    def sets(self) -> list[RootSet]:
        """Return the sets of at most SET roots: most bytes first, then by roots."""
        ...


class Dominators(Protocol):
    """A dominator tree. `Graph.dominators` creates it, or `within`, which uses fields as roots.

    Order of calls: set_owners; scan_roots, root_words, refer, refer_lost, merge_into_roots in any
    order; compute until it is done; queries.

    Raises RuntimeError if the order of calls is wrong, IndexError for a block, root or node that
    does not exist, and ValueError for unordered bounds."""

    roots: int

    def scan_roots(self, piece: Piece) -> None:
        """Record the references in this root memory. The `bounds` passed to `Graph.dominators`
        determine the root of each word."""
        ...

    def root_words(self, words: Sequence[int], root: int) -> None:
        """Record the references from a root to blocks. `words` are values of registers, or words
        that the caller read."""
        ...

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        """Record references from a root to blocks (indices). Blocks that are not in use, or that
        are outside the tree of `within`, are ignored."""
        ...

    def refer_lost(self, definite: int, possible: int) -> None:
        """Set the roots of a `lost` tree.

        Root `definite` refers to every DEFINITE block. Root `possible` (may be the same) refers to
        POSSIBLE blocks that reachable blocks or root memory refer to. Their children are then the
        leak heads, and the blocks that several leak heads reach (INDIRECT or POSSIBLE). Blocks that
        both roots reach are shared."""
        ...

    def merge_into_roots(self, roots: array[int]) -> None:
        """Merge blocks into roots.

        `roots` ("I") has for each block NO_ROOT, the root that gets its references, or IGNORED.
        Merged blocks are not nodes. Not allowed in a tree made by `within`. ValueError for an array
        of another length, or a root that does not exist."""
        ...

    def expect_leaf_trees(self) -> None:
        """Prepare for many blocks in leaf trees. Managed heaps have such trees: strings with their
        characters, boxed numbers. Time and memory then depend on the number of the other blocks.
        Not allowed in a tree made by `within`.

        Exactly one reference leads to each block of a leaf tree; it comes from a block. The block
        at the top of the tree refers to no block, or only to blocks that refer to no block. To such
        a block, several references may lead if the top has at most STEM_EDGES references. Blocks
        that refer to no block are joint leaves if several references lead to them, all of which
        come from blocks: shared strings, for example.

        `members` returns the joint leaves among the children of a node after the other children,
        by address, and leaf trees after these."""
        ...

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        """Set the owners of containers (maps, lists); call first.

        `containers` ("I") has for each block the number of the container whose node it is, or
        NO_ROOT. `owners` has for each container the node (block or root) that owns it. Edges into a
        container's nodes are ignored unless they come from its owner or from its nodes. So stale
        pointers from elsewhere do not make the nodes shared.

        Not allowed in a tree made by `within`, which follows the whole tree. ValueError for an
        array of another length, a container without an owner, or an owner that does not exist."""
        ...

    def compute(self, budget: int) -> bool:
        """Visit about `budget` blocks (2^20: 50 ms in the C engine). Return True when complete."""
        ...

    def progress(self) -> float:
        """Return the progress, from 0 to 1."""
        ...

    def total(self) -> Totals:
        """Return all blocks that the roots reach."""
        ...

    def sum_shared(self) -> Totals:
        """Return the blocks that no single root retains: those that SHARED retains, without the
        roots."""
        ...

    def by_root(self) -> list[Totals]:
        """Return the blocks and bytes that each root retains, by root number. The sum of these and
        `sum_shared` is `total`."""
        ...

    def sum_retained(self, node: int) -> Totals:
        """Return the blocks and bytes that a node retains. A block includes itself. (0, 0) if no
        root reaches the node. For SHARED, return the result of `sum_shared`."""
        ...

    def by_label(self, labels: array[int], rows: array[int]) -> list[Totals]:
        """Return for each row the memory that the blocks of the row retain, these blocks included.

        `labels` has the label of each block ("H" or "I"), and `rows` the row of each label ("I").
        Blocks whose label has no row are ignored. If a block of a row is retained by another block
        of the row, the memory that it retains is counted only once. Memory that several blocks of a
        row share, and that none of them retains alone, is not counted.

        Raises ValueError if the tree was made by `within`, or if `labels` does not have one element
        for each block."""
        ...

    def idom(self, index: int) -> Optional[int]:
        """Return the immediate dominator: a block, a root or SHARED; None if no root reaches the
        block."""
        ...

    def children(self, node: int, limit: int) -> list[Child]:
        """Return at most `limit` blocks whose immediate dominator is `node`: most retained bytes
        first, then by address."""
        ...

    def spread(self, node: int, limit: int) -> list[Spread]:
        """Return at most `limit` groups of children by usable size: most retained bytes first, then
        by size.

        A std::map's nodes, or those of a doubly linked list with a tail pointer, are all children
        of the container's owner."""
        ...

    def sizes(self, node: int, limit: int) -> list[tuple[int, int]]:
        """Return at most `limit` pairs (usable size, number) of all retained blocks: most bytes
        first, then by size."""
        ...

    def members(self, node: int, first: int, limit: int) -> array[int]:
        """Return the indices ("I") of at most `limit` blocks that `node` retains, from position
        `first` on.

        They are in preorder, children in the order of the words that refer to them. If `node` is a
        block, its index is at position 0. See also `expect_leaf_trees`."""
        ...

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        """Follow a linked list from this block, one child at a time, up to `limit` blocks. A chain
        of length 1 is not a list.

        If `equal` is set, the next block is the only child of the same usable size. If several
        children have this size, it is the one that retains most, if that is at least 9/10 of what
        the block retains. If `equal` is not set, it is the child of any size that retains most,
        under the same condition. This is for lists of mixed sizes; they end some nodes early. Of
        children that retain equally much, the lowest is next."""
        ...

    def root_sets(self, first: int, end: int, roots: array[int], blocks: array[int]) -> RootSets:
        """Find the sets of roots that reach the blocks that SHARED retains. Only the roots first …
        end - 1 are in these sets. They must have the same priority. Later roots have no effect, and
        blocks that earlier roots reach are in no set.

        `roots` and `blocks` ("I") are the references from roots to blocks. A complete tree no
        longer knows which of several roots refer to a block. References to other blocks have no
        effect. Time is proportional to the number of blocks and references. Not allowed in a tree
        made by `within`."""
        ...

    def within(self, node: int, fields: int) -> Dominators:
        """Return the tree of the blocks that a block or root retains, without the node itself.

        The roots of the new tree are fields 0 … fields - 1, into which the caller groups the words
        of the node. Pass the targets of the fields with `refer` or `root_words`, then call
        `compute`. This visits the retained blocks at most twice, and is much faster than a new
        tree. SHARED means that several fields share a block. Blocks that are reachable only through
        words of no field count as not reached. ValueError if `node` is SHARED or a field."""
        ...


def check_bounds(roots: int, bounds: Sequence[int], owners: Sequence[int], priorities: Sequence[int] = ()) -> None:
    """Raise ValueError unless each bound has an owner (a root or NO_ROOT) and bounds ascend."""
    if roots < 0 or roots >= 1 << 30:
        raise ValueError(f"{roots} roots")
    if len(bounds) != len(owners):
        raise ValueError(f"{len(bounds)} bounds, {len(owners)} owners")
    if any(not (0 <= owner < roots or owner == NO_ROOT) for owner in set(owners)):
        raise ValueError(f"an owner is not one of {roots} roots")
    if any(map(gt, bounds, bounds[1:])):
        raise ValueError("bounds descend")
    if any(low > high for low, high in zip((0, *priorities), (*priorities, roots))):
        raise ValueError("priorities descend")


def check_blocks(blocks: Iterable[int], count: int) -> None:
    """Raise IndexError unless all are below `count`."""
    for index in blocks:
        if not 0 <= index < count:
            raise IndexError(f"no block {index}")


def check_merged(merged: array[int], roots: int, blocks: int) -> None:
    """Raise ValueError unless there is a root, or NO_ROOT, for each block."""
    if len(merged) != blocks or merged.itemsize != 4:
        raise ValueError(f"{len(merged)} numbers of {merged.itemsize} bytes, {blocks} blocks")
    if any(root >= roots for root in set(merged) - {NO_ROOT, IGNORED}):
        raise ValueError(f"a block is merged into a root that is not one of {roots} roots")


def check_containers(containers: array[int], owners: Sequence[int], roots: int, blocks: int, sound: Callable[[], bool]) -> None:
    """Raise ValueError unless `set_owners` accepts these arguments. `sound` returns whether every
    container has an owner."""
    if len(containers) != blocks or containers.itemsize != 4:
        raise ValueError(f"{len(containers)} numbers of {containers.itemsize} bytes, {blocks} blocks")
    if not sound():
        raise ValueError(f"a node's container is not one of {len(owners)} containers")
    if any(node >= blocks or node == SHARED or node_root(node) >= roots for node in owners):
        raise ValueError("an owner does not exist")


def check_references(roots: array[int], blocks: array[int], most: int, count: int) -> None:
    """Raise ValueError unless `roots` and `blocks` are the arguments of `Dominators.root_sets`."""
    if len(roots) != len(blocks) or roots.itemsize != 4 or blocks.itemsize != 4:
        raise ValueError(f"{len(roots)} roots of {roots.itemsize} bytes, {len(blocks)} blocks of {blocks.itemsize} bytes")
    if max(roots, default=-1) >= most or max(blocks, default=-1) >= count:
        raise ValueError("a root or a block does not exist")


def sort_sets(sets: Iterable[RootSet]) -> list[RootSet]:
    """Return the sets in the order of `RootSets.sets`."""
    return sorted(sets, key=lambda one: (-one.bytes, one.roots))
