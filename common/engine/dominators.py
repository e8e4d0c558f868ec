"""Who holds what: the dominator tree over the graph of blocks.

A block *retains* what would become unreachable if it alone went: the blocks it dominates, itself included. Roots have numbers that the
caller gives, 0 … n - 1 (a global variable, a stack frame, a thread's TLS, a mapping, the registers), and retain what is reached through
them only. What several roots reach, and no root alone retains, is *shared*.

Roots may stand in priorities: what an earlier priority reaches is its own, and references to it from the roots of later priorities, or from what only
these reach, do not count. So a stack's copy of a pointer does not take from the variable what that holds. What several roots of a priority
reach is shared.

Start and interior references count alike. The tree is that of semidominators (L. Georgiadis, "Linear-Time Algorithms for Dominators and
Related Problems", 2005: semi-NCA), over the edges that the graph has; the heap is not scanned again.

A *node* is a number: a block's index (0 and above), SHARED, or a root's `root_node`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional, Protocol

from findleaks.engine.terms import Totals
from findleaks.target.base import Piece

SHARED = -1
"""The node above all roots, in place of a holder: no single root or block holds it."""

NO_ROOT = 0xFFFFFFFF
"""In place of a root's number: these words belong to no root, and what they refer to is not held by them."""


IGNORED = 0xFFFFFFFE
"""In place of a root that a block stands for: none, and what is in the block does not count."""


def root_node(root: int) -> int:
    """The node of this root (or field)."""
    return -2 - root


def node_root(node: int) -> int:
    """The number of the root (or field) that this node is; -1 for a block and for SHARED."""
    return -2 - node if node <= -2 else -1


class Child(NamedTuple):
    """A block (its index) that a node holds directly, and what it retains, itself included."""

    block: int
    blocks: int
    bytes: int


class Spread(NamedTuple):
    """The children of a node that have the same usable size: how many, and what they retain together; `example` is the lowest."""

    size: int
    children: int
    blocks: int
    bytes: int
    example: int


class Chain(NamedTuple):
    """A list, from the block asked for to `end`, both counted in `length`; their usable sizes lie in least … most. `bytes` are the sizes of
    these blocks alone. `more`: it was cut at the limit; ask again from `end`, which counts twice then."""

    length: int
    least: int
    most: int
    bytes: int
    end: int
    more: bool


class Dominators(Protocol):
    """Order: scan_roots, root_words, refer, refer_lost and merge_into_roots in any order, compute until it is done, then ask.

    RuntimeError where that is not kept; IndexError for a block, root or node that does not exist; ValueError for bounds out of order.
    Made by `Graph.dominators`, or by `within`, where the roots are fields.
    """

    roots: int
    """How many there are."""

    def scan_roots(self, piece: Piece) -> None:
        """Record what the aligned words in `piece` refer to. A word's root is the one whose bound is the last at or below its address."""
        ...

    def root_words(self, words: Sequence[int], root: int) -> None:
        """Record what these values refer to: registers, or words read by the caller."""
        ...

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        """This root refers to these blocks, given by index. Those that are not in use, or outside what `within` is about, do not count."""
        ...

    def refer_lost(self, definite: int, possible: int) -> None:
        """Root `definite` refers to every DEFINITE block, and root `possible` to the POSSIBLE blocks that something reachable, or
        root memory, refers to. The two may be the same. Then the children of these roots are the leaders with what each retains, and blocks
        that several leaders reach (those are INDIRECT, or POSSIBLE); what both roots reach is shared. For `lost` dominators only."""
        ...

    def merge_into_roots(self, roots: array[int]) -> None:
        """Blocks are no nodes, but stand for roots: `roots` ("I") has for every block the root that it stands for, or NO_ROOT. What such
        a block refers to, that root refers to; one with IGNORED in place of a root stands for none, and refers to nothing.
        Not below `within`; ValueError for an array of another length, or of other roots."""
        ...

    def set_owners(self, parts: array[int], container_owners: Sequence[int]) -> None:
        """Blocks are parts of things that something keeps for itself (the nodes of a map): `parts` ("I") has for every block the number of
        the thing, or NO_ROOT, and `container_owners` the node of each thing's keeper, a block or a root. References to a part count only from its
        keeper and from other parts of the same thing: a stale pointer elsewhere takes nothing away. Before anything else, not below
        `within`, which goes by it too; ValueError for an array of another length, a thing without a keeper, a root that does not exist."""
        ...

    def compute(self, budget: int) -> bool:
        """Visit about `budget` blocks; True when all is known. 2^20 take some 50 ms in the kernel."""
        ...

    def progress(self) -> float:
        """How much of the work is done, 0 to 1."""
        ...

    def total(self) -> Totals:
        """All blocks that the roots reach."""
        ...

    def shared(self) -> Totals:
        """Blocks that no single root holds: what SHARED retains beside the roots."""
        ...

    def by_root(self) -> list[Totals]:
        """What each root retains, by number. These and `shared` sum to `total`."""
        ...

    def retained(self, node: int) -> Totals:
        """What goes when this node goes: a block's include itself; (0, 0) for a block not reached; for SHARED as `shared`."""
        ...

    def idom(self, index: int) -> Optional[int]:
        """The immediate dominator: the block, root, or SHARED, that holds this block; None if no root reaches it."""
        ...

    def children(self, node: int, limit: int) -> list[Child]:
        """The blocks whose holder is this node: those that retain most bytes first, equal ones by address; at most `limit`."""
        ...

    def spread(self, node: int, limit: int) -> list[Spread]:
        """The same children counted by their own size: most retained bytes first, equal ones by size; at most `limit` sizes. The nodes of
        a std::map or of a doubly linked list with a tail pointer all are children of whatever holds the container."""
        ...

    def sizes(self, node: int, limit: int) -> list[tuple[int, int]]:
        """(usable size, number) of all blocks that this node retains: most bytes first, equal ones by size; at most `limit` sizes."""
        ...

    def members(self, node: int, first: int, limit: int) -> array[int]:
        """Indices ("I") of the blocks that this node retains, from number `first` on, at most `limit`: a holder before what it holds,
        depth first, in the order of the words that led there. A block's own index is the first."""
        ...

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        """Follow a list from this block, one child at a time, up to `limit` blocks.

        The next is, with `equal`, the only child of the same usable size; or the heaviest of such where that retains at least nine
        tenths of the bytes that the block retains. Without `equal` it is the heaviest child of any size where that retains as much:
        for lists of mixed sizes, which then end some nodes early. Of equally heavy ones the lowest. A chain of length 1 is no list."""
        ...

    def within(self, node: int, fields: int) -> Dominators:
        """The same question below one block or root: its words, which the caller groups into fields numbered 0 … fields - 1, are the roots;
        only blocks that the node retains count, itself not. Give the fields' targets with `refer` or `root_words`, then `compute`: that
        looks through what the node retains, twice at most, and takes far less than a tree of its own. SHARED then means: by several fields.
        Blocks that only words left out lead to count as not reached. ValueError for SHARED as the node, and for a field."""
        ...


def check_bounds(roots: int, bounds: Sequence[int], owners: Sequence[int], priorities: Sequence[int] = ()) -> None:
    """ValueError unless there is an owner for each bound, every one a root or NO_ROOT, and neither bounds nor priorities descend."""
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


def check_merged(merged: array[int], roots: int, blocks: int) -> None:
    """ValueError unless there is a root, or NO_ROOT, for each block."""
    if len(merged) != blocks or merged.itemsize != 4:
        raise ValueError(f"{len(merged)} numbers of {merged.itemsize} bytes, {blocks} blocks")
    if any(root >= roots for root in set(merged) - {NO_ROOT, IGNORED}):
        raise ValueError(f"a block is merged into none of {roots} roots")


def check_containers(parts: array[int], container_owners: Sequence[int], roots: int, blocks: int, sound: Callable[[], bool]) -> None:
    """ValueError unless `keep` can take these; `sound` says whether all parts are of things that have a keeper."""
    if len(parts) != blocks or parts.itemsize != 4:
        raise ValueError(f"{len(parts)} parts of {parts.itemsize} bytes, {blocks} blocks")
    if not sound():
        raise ValueError(f"a part of none of {len(container_owners)} things")
    if any(node >= blocks or node == SHARED or node_root(node) >= roots for node in container_owners):
        raise ValueError("a keeper that does not exist")
