"""The dominator tree of the blocks: what each block and root retains.

A block *retains* what would become unreachable without it: the blocks it dominates, itself
included. The caller numbers the roots 0 … n - 1 (a global variable, a stack frame, a thread's TLS,
a mapping, the registers). A root retains what is reachable only through it. Memory is *shared* if
several roots reach it and no single root retains it.

Roots may have priorities. Memory that roots of an earlier priority reach belongs to them: edges to
it from later roots, or from blocks that only later roots reach, are ignored. So a pointer on a
stack takes nothing away from a variable. Sharing is within one priority.

Start and interior references count alike. The algorithm is semi-NCA (L. Georgiadis, "Linear-Time
Algorithms for Dominators and Related Problems", 2005) over the graph's edges, without another scan.

A *node* is a number: a block's index (0 and above), SHARED, or a root's `root_node`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import gt
from typing import NamedTuple, Optional, Protocol

from findleaks.engine.terms import Totals
from findleaks.target.base import Piece

SHARED = -1  # the node above all roots: idom of nodes that no single root or block dominates
NO_ROOT = 0xFFFFFFFF  # in place of a root's number


IGNORED = 0xFFFFFFFE  # in place of a root's number: the block's references are ignored


def root_node(root: int) -> int:
    return -2 - root


def node_root(node: int) -> int:
    """Return the number of this root or field; -1 for a block and for SHARED."""
    return -2 - node if node <= -2 else -1


class Child(NamedTuple):
    """A child (block index), and the blocks and bytes that it retains, itself included."""

    block: int
    blocks: int
    bytes: int


class Spread(NamedTuple):
    """Children of the same usable size: their number, and what they retain. `example` is the
    lowest."""

    size: int
    children: int
    blocks: int
    bytes: int
    example: int


class Chain(NamedTuple):
    """A linked list of `length` blocks, both ends included, with usable sizes from `least` to
    `most`.

    `bytes` is the sum of the sizes. `more`: the list was cut at the limit. Continue from `end`,
    which then counts twice."""

    length: int
    least: int
    most: int
    bytes: int
    end: int
    more: bool


class Dominators(Protocol):
    """A dominator tree, made by `Graph.dominators`, or by `within` with fields as roots.

    Order of calls: set_owners; scan_roots, root_words, refer, refer_lost, merge_into_roots in any
    order; compute until done; queries.

    RuntimeError for another order, IndexError for a block, root or node that does not exist,
    ValueError for unordered bounds."""

    roots: int

    def scan_roots(self, piece: Piece) -> None:
        """Record the references of this root memory; `bounds` of `Graph.dominators` give the
        roots."""
        ...

    def root_words(self, words: Sequence[int], root: int) -> None:
        """Record the references of these values to blocks: registers, or words that the caller
        read."""
        ...

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        """Record references to blocks (indices). Ignores blocks that are not in use, or are outside
        `within`."""
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

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        """Set the owners of containers (maps, lists); call first.

        `containers` ("I") has for each block the number of the container whose node it is, or
        NO_ROOT. `owners` has for each container the node (block or root) that owns it. Edges into a
        container's nodes are ignored unless they come from its owner or from its nodes. So stale
        pointers take nothing away.

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

    def shared(self) -> Totals:
        """Return the blocks that no single root retains: those that SHARED retains, without the
        roots."""
        ...

    def by_root(self) -> list[Totals]:
        """Return what each root retains, by number. These and `shared` add up to `total`."""
        ...

    def retained(self, node: int) -> Totals:
        """Return what a node retains. A block includes itself; (0, 0) if not reached; SHARED as in
        `shared`."""
        ...

    def idom(self, index: int) -> Optional[int]:
        """Return the immediate dominator: a block, a root or SHARED; None if no root reaches the
        block."""
        ...

    def children(self, node: int, limit: int) -> list[Child]:
        """Return at most `limit` blocks with this idom: most retained bytes first, then by
        address."""
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
        """Return indices ("I") of retained blocks, at most `limit` from number `first` on.

        Order: preorder, children in the order of the words that refer to them. A block's own index
        is the first."""
        ...

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        """Follow a linked list from this block, one child at a time, up to `limit` blocks. A chain
        of length 1 is not a list.

        With `equal`, the next block is the only child of the same usable size, or the heaviest of
        several if it retains 9/10 of what the block retains. Otherwise it is the heaviest child of
        any size, if that retains as much. This is for lists of mixed sizes, which then end some
        nodes early. Of equally heavy children, the lowest is next."""
        ...

    def within(self, node: int, fields: int) -> Dominators:
        """Return the tree of what a block or root retains, without the node itself.

        Its roots are fields 0 … fields - 1, into which the caller groups the node's words. Give
        their targets with `refer` or `root_words`, then call `compute`. This searches what the node
        retains at most twice, and is much faster than a new tree. SHARED means: by several fields.
        Blocks that are reachable only through omitted words count as not reached. ValueError for
        SHARED, and for a field."""
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
    """Raise ValueError unless `set_owners` can take these. `sound`: returns whether all containers
    have an owner."""
    if len(containers) != blocks or containers.itemsize != 4:
        raise ValueError(f"{len(containers)} numbers of {containers.itemsize} bytes, {blocks} blocks")
    if not sound():
        raise ValueError(f"a node's container is not one of {len(owners)} containers")
    if any(node >= blocks or node == SHARED or node_root(node) >= roots for node in owners):
        raise ValueError("an owner does not exist")
