"""The dominator tree of the blocks: what each block and root retains.

A block *retains* the blocks that would become unreachable without it: those it dominates, itself
included. The caller numbers the roots 0 … n - 1 (a global variable, a stack frame, a thread's TLS,
a mapping, the registers); a root retains what is reached through it alone. What several roots
reach, and no root alone retains, is *shared*.

Roots may have priorities. What roots of an earlier priority reach is theirs: edges to it from roots
of later priorities, or from blocks that only these reach, are ignored. So a pointer on a stack does
not take from a variable what the variable retains. What several roots of one priority reach is
shared.

Start and interior references count alike. The algorithm is semi-NCA (L. Georgiadis, "Linear-Time
Algorithms for Dominators and Related Problems", 2005) over the graph's edges; the heap is not
scanned again.

A *node* is a number: a block's index (0 and above), SHARED, or a root's `root_node`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Optional, Protocol

from findleaks.engine.terms import Totals
from findleaks.target.base import Piece

SHARED = -1
"""The node above all roots: the idom of what no single root or block dominates."""

NO_ROOT = 0xFFFFFFFF
"""In place of a root's number: none."""


IGNORED = 0xFFFFFFFE
"""In place of a root's number, for a block whose references are ignored."""


def root_node(root: int) -> int:
    """The node of this root (or field)."""
    return -2 - root


def node_root(node: int) -> int:
    """The number of the root (or field) that this node is; -1 for a block and for SHARED."""
    return -2 - node if node <= -2 else -1


class Child(NamedTuple):
    """A block (its index) whose idom is the node asked about, and what it retains, itself
    included."""

    block: int
    blocks: int
    bytes: int


class Spread(NamedTuple):
    """The children of a node that have the same usable size: their number, and what they retain
    together; `example` is the lowest."""

    size: int
    children: int
    blocks: int
    bytes: int
    example: int


class Chain(NamedTuple):
    """A linked list, from the block asked about to `end`, both counted in `length`; usable sizes
    are in least … most. `bytes`: the sizes of these blocks alone. `more`: cut at the limit; ask
    again from `end`, which then counts twice."""

    length: int
    least: int
    most: int
    bytes: int
    end: int
    more: bool


class Dominators(Protocol):
    """Order: set_owners; scan_roots, root_words, refer, refer_lost and merge_into_roots in any
    order; compute until done; then queries.

    RuntimeError for another order; IndexError for a block, root or node that does not exist;
    ValueError for bounds out of order. Made by `Graph.dominators`, or by `within`, where the roots
    are fields."""

    roots: int
    """Number of roots."""

    def scan_roots(self, piece: Piece) -> None:
        """Record the references of the aligned words in `piece`. A word's root is the one whose
        bound is the last at or below its address."""
        ...

    def root_words(self, words: Sequence[int], root: int) -> None:
        """Record what these values refer to: registers, or words read by the caller."""
        ...

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        """Record that this root refers to these blocks (indices). Blocks not in use, or outside of
        what `within` is about, are ignored."""
        ...

    def refer_lost(self, definite: int, possible: int) -> None:
        """Root `definite` refers to every DEFINITE block, root `possible` to the POSSIBLE blocks
        that reachable blocks or root memory refer to; the two may be the same. The children of
        these roots then are the leaders with what each retains, and blocks that several leaders
        reach (INDIRECT or POSSIBLE); what both roots reach is shared. For `lost` trees only."""
        ...

    def merge_into_roots(self, roots: array[int]) -> None:
        """Merge blocks into roots: `roots` ("I") has for every block NO_ROOT, the root that gets
        its references, or IGNORED for a block whose references are ignored. Merged blocks are no
        nodes. Not for trees made by `within`; ValueError for an array of another length, or for a
        root that does not exist."""
        ...

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        """Set the owners of containers (maps, lists): `containers` ("I") has for every block the
        number of the container whose node it is, or NO_ROOT; `owners` has for each container the
        node that owns it, a block or a root. Edges into a container's nodes are ignored unless they
        come from its owner or another of its nodes, so a stale pointer elsewhere takes nothing
        away. Call first, and not for trees made by `within`, which follow their whole tree;
        ValueError for an array of another length, a container without an owner, or an owner that
        does not exist."""
        ...

    def compute(self, budget: int) -> bool:
        """Visit about `budget` blocks; True when the tree is complete. 2^20 take some 50 ms in the
        kernel."""
        ...

    def progress(self) -> float:
        """The part of the work that is done, 0 to 1."""
        ...

    def total(self) -> Totals:
        """All blocks that the roots reach."""
        ...

    def shared(self) -> Totals:
        """Blocks that no single root retains: what SHARED retains beside the roots."""
        ...

    def by_root(self) -> list[Totals]:
        """What each root retains, by number. These and `shared` sum to `total`."""
        ...

    def retained(self, node: int) -> Totals:
        """What this node retains: a block's include itself; (0, 0) for a block not reached; for
        SHARED as `shared`."""
        ...

    def idom(self, index: int) -> Optional[int]:
        """The immediate dominator of this block: a block, a root or SHARED; None if no root reaches
        it."""
        ...

    def children(self, node: int, limit: int) -> list[Child]:
        """The blocks whose idom is this node: those that retain most bytes first, equal ones by
        address; at most `limit`."""
        ...

    def spread(self, node: int, limit: int) -> list[Spread]:
        """The same children grouped by usable size: most retained bytes first, equal ones by size;
        at most `limit` sizes. The nodes of a std::map, or of a doubly linked list with a tail
        pointer, are all children of the container's owner."""
        ...

    def sizes(self, node: int, limit: int) -> list[tuple[int, int]]:
        """(usable size, number) of all blocks that this node retains: most bytes first, equal ones
        by size; at most `limit` sizes."""
        ...

    def members(self, node: int, first: int, limit: int) -> array[int]:
        """Indices ("I") of the blocks that this node retains, from number `first` on, at most
        `limit`: in preorder, a block before what it dominates, children in the order of the words
        that led there. A block's own index is the first."""
        ...

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        """Follow a linked list from this block, one child at a time, up to `limit` blocks.

        With `equal`, the next is the only child of the same usable size, or the heaviest of several
        if it retains at least nine tenths of what the block retains. Without `equal`, it is the
        heaviest child of any size if it retains as much: for lists of mixed sizes, which then end
        some nodes early. Of equally heavy ones the lowest. A chain of length 1 is no list."""
        ...

    def within(self, node: int, fields: int) -> Dominators:
        """The tree below one block or root: its words, grouped by the caller into fields 0 … fields
        - 1, are the roots; only blocks that the node retains count, without the node. Give the
        fields' targets with `refer` or `root_words`, then `compute`: this searches what the node
        retains, at most twice, and is much cheaper than a new tree. SHARED then means: by several
        fields. Blocks reached only through words left out count as not reached. ValueError for
        SHARED as the node, and for a field."""
        ...


def check_bounds(roots: int, bounds: Sequence[int], owners: Sequence[int], priorities: Sequence[int] = ()) -> None:
    """ValueError unless there is an owner for each bound, every one a root or NO_ROOT, and neither
    bounds nor priorities descend."""
    if roots < 0 or roots >= 1 << 30:
        raise ValueError(f"{roots} roots")
    if len(bounds) != len(owners):
        raise ValueError(f"{len(bounds)} bounds, {len(owners)} owners")
    if len(owners) and any(not (0 <= owner < roots or owner == NO_ROOT) for owner in owners):
        raise ValueError(f"an owner is none of {roots} roots")
    if any(low > high for low, high in zip(bounds, bounds[1:])):
        raise ValueError("bounds descend")
    if any(low > high for low, high in zip((0, *priorities), (*priorities, roots))):
        raise ValueError("priorities descend")


def check_blocks(blocks: Iterable[int], count: int) -> None:
    """IndexError unless these are indices of so many blocks."""
    for index in blocks:
        if not 0 <= index < count:
            raise IndexError(f"no block {index}")


def check_merged(merged: array[int], roots: int, blocks: int) -> None:
    """ValueError unless there is a root, or NO_ROOT, for each block."""
    if len(merged) != blocks or merged.itemsize != 4:
        raise ValueError(f"{len(merged)} numbers of {merged.itemsize} bytes, {blocks} blocks")
    if any(root >= roots for root in set(merged) - {NO_ROOT, IGNORED}):
        raise ValueError(f"a block is merged into none of {roots} roots")


def check_containers(containers: array[int], owners: Sequence[int], roots: int, blocks: int, sound: Callable[[], bool]) -> None:
    """ValueError unless `set_owners` can take these; `sound`: whether all containers have an
    owner."""
    if len(containers) != blocks or containers.itemsize != 4:
        raise ValueError(f"{len(containers)} numbers of {containers.itemsize} bytes, {blocks} blocks")
    if not sound():
        raise ValueError(f"a node of none of {len(owners)} containers")
    if any(node >= blocks or node == SHARED or node_root(node) >= roots for node in owners):
        raise ValueError("an owner that does not exist")
