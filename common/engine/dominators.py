"""The dominator tree of the blocks: what each block and root retains.

A block *retains* what would become unreachable without it: the blocks it dominates, itself
included. The caller numbers the roots 0 … n - 1 (a global variable, a stack frame, a thread's TLS,
a mapping, the registers); a root retains what is reached through it alone. *Shared* is what several
roots reach, and none alone retains.

Roots may have priorities. What roots of an earlier priority reach is theirs: edges to it from later
roots, or from blocks that only these reach, are ignored, so that a pointer on a stack takes nothing
from a variable. Sharing is within one priority.

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

SHARED = -1  # the node above all roots: idom of what no single root or block dominates
NO_ROOT = 0xFFFFFFFF  # in place of a root's number


IGNORED = 0xFFFFFFFE  # in place of a root's number: the block's references are ignored


def root_node(root: int) -> int:
    return -2 - root


def node_root(node: int) -> int:
    """The number of this root or field; -1 for a block and for SHARED."""
    return -2 - node if node <= -2 else -1


class Child(NamedTuple):
    """A child (block index), and what it retains, itself included."""

    block: int
    blocks: int
    bytes: int


class Spread(NamedTuple):
    """Children of the same usable size: number, and what they retain; `example` is the lowest."""

    size: int
    children: int
    blocks: int
    bytes: int
    example: int


class Chain(NamedTuple):
    """A linked list of `length` blocks, both ends counted, with usable sizes least … most; `bytes`
    sums them. `more`: cut at the limit; continue from `end`, which then counts twice."""

    length: int
    least: int
    most: int
    bytes: int
    end: int
    more: bool


class Dominators(Protocol):
    """Order: set_owners; scan_roots, root_words, refer, refer_lost, merge_into_roots in any order;
    compute until done; queries. Made by `Graph.dominators`, or by `within`, with fields as roots.

    RuntimeError for another order, IndexError for a block, root or node that does not exist,
    ValueError for bounds out of order."""

    roots: int

    def scan_roots(self, piece: Piece) -> None:
        """Record this root memory's references; `bounds` of `Graph.dominators` give the roots."""
        ...

    def root_words(self, words: Sequence[int], root: int) -> None:
        """Record what these values refer to: registers, or words that the caller read."""
        ...

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        """Record references to blocks (indices), ignoring those not in use or outside `within`."""
        ...

    def refer_lost(self, definite: int, possible: int) -> None:
        """For `lost` trees: root `definite` refers to every DEFINITE block, root `possible` (may be
        the same) to POSSIBLE blocks that reachable blocks or root memory refer to. Their children
        are then the leaders, and blocks that several leaders reach (INDIRECT or POSSIBLE); what
        both roots reach is shared."""
        ...

    def merge_into_roots(self, roots: array[int]) -> None:
        """Merge blocks into roots: `roots` ("I") has for each block NO_ROOT, the root that gets its
        references, or IGNORED. Merged blocks are no nodes. Not after `within`; ValueError for an
        array of another length, or a root that does not exist."""
        ...

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        """Set the owners of containers (maps, lists): `containers` ("I") has for each block the
        number of the container whose node it is, or NO_ROOT; `owners` for each container the node
        (block or root) that owns it. Edges into its nodes from elsewhere than the owner and these
        nodes are ignored: stale pointers take nothing away. Call first. Not after `within`, which
        follows the whole tree; ValueError for an array of another length, a container without an
        owner, or an owner that does not exist."""
        ...

    def compute(self, budget: int) -> bool:
        """Visit about `budget` blocks (2^20: 50 ms in the C engine); True when complete."""
        ...

    def progress(self) -> float:
        """From 0 to 1."""
        ...

    def total(self) -> Totals:
        """All blocks that the roots reach."""
        ...

    def shared(self) -> Totals:
        """Blocks that no single root retains: what SHARED retains beside the roots."""
        ...

    def by_root(self) -> list[Totals]:
        """By number. These and `shared` sum to `total`."""
        ...

    def retained(self, node: int) -> Totals:
        """A block includes itself; (0, 0) if not reached; for SHARED as `shared`."""
        ...

    def idom(self, index: int) -> Optional[int]:
        """A block, a root or SHARED; None if no root reaches the block."""
        ...

    def children(self, node: int, limit: int) -> list[Child]:
        """Blocks with this idom, at most `limit`: most retained bytes first, then by address."""
        ...

    def spread(self, node: int, limit: int) -> list[Spread]:
        """The children by usable size: most retained bytes first, then by size; at most `limit`. A
        std::map's nodes, or those of a doubly linked list with a tail pointer, are all children of
        the container's owner."""
        ...

    def sizes(self, node: int, limit: int) -> list[tuple[int, int]]:
        """(usable size, number) of all retained, at most `limit`: most bytes first, then size."""
        ...

    def members(self, node: int, first: int, limit: int) -> array[int]:
        """Indices ("I") of blocks retained, at most `limit` from number `first` on: in preorder,
        children in the order of the words that led there. A block's own index is the first."""
        ...

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        """Follow a linked list from this block, one child at a time, up to `limit` blocks. A chain
        of length 1 is no list.

        `equal`: the next is the only child of the same usable size, or the heaviest of several if
        it retains 9/10 of what the block retains. Otherwise the heaviest child of any size, if it
        retains as much: for lists of mixed sizes, which then end some nodes early. Of equally heavy
        ones the lowest."""
        ...

    def within(self, node: int, fields: int) -> Dominators:
        """The tree below a block or root, of what it retains, without itself. Its roots are fields
        0 … fields - 1, into which the caller groups the node's words: give their targets with
        `refer` or `root_words`, then `compute`. That searches what the node retains at most twice:
        much cheaper than a new tree. SHARED means: by several fields. Blocks reached only through
        words left out count as not reached. ValueError for SHARED, and for a field."""
        ...


def check_bounds(roots: int, bounds: Sequence[int], owners: Sequence[int], priorities: Sequence[int] = ()) -> None:
    """ValueError unless each bound has an owner (a root or NO_ROOT) and none descends."""
    if roots < 0 or roots >= 1 << 30:
        raise ValueError(f"{roots} roots")
    if len(bounds) != len(owners):
        raise ValueError(f"{len(bounds)} bounds, {len(owners)} owners")
    if any(not (0 <= owner < roots or owner == NO_ROOT) for owner in set(owners)):
        raise ValueError(f"an owner is none of {roots} roots")
    if any(map(gt, bounds, bounds[1:])):
        raise ValueError("bounds descend")
    if any(low > high for low, high in zip((0, *priorities), (*priorities, roots))):
        raise ValueError("priorities descend")


def check_blocks(blocks: Iterable[int], count: int) -> None:
    """IndexError unless all are below `count`."""
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
    """ValueError unless `set_owners` can take these; `sound`: all containers have an owner."""
    if len(containers) != blocks or containers.itemsize != 4:
        raise ValueError(f"{len(containers)} numbers of {containers.itemsize} bytes, {blocks} blocks")
    if not sound():
        raise ValueError(f"a node of none of {len(owners)} containers")
    if any(node >= blocks or node == SHARED or node_root(node) >= roots for node in owners):
        raise ValueError("an owner that does not exist")
