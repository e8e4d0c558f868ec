"""Trees of memory pools (memory contexts of PostgreSQL, pools of APR and nginx), and the finding of
`verdict` about the pool that has the most memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.formatting import format_amount, number, size, some
from findleaks.runtimes.finding import Finding
from findleaks.value_classes import NamedTuple, dataclass, field

HELD = 2 << 20  # least bytes of a pool and the pools below it for a finding
PART = 0.5  # the least fraction of the bytes of all pools that these must have
CHIEF = 0.7  # the finding names a child instead if it has this fraction of the pool's bytes
SHOWN = 4  # names that the finding lists
NEAREST = 16  # most names of a path


@dataclass
class PoolNode:
    """A pool. `bytes` is the memory of the pool itself.

    `below` is the number of pools below it. `bytes_below` is the bytes of these and of the pool
    itself."""

    address: int
    name: str
    parent: Optional[PoolNode]
    bytes: int
    children: list[PoolNode] = field(default_factory=list)
    below: int = 0
    bytes_below: int = 0

    @property
    def path(self) -> list[str]:
        """The names of the pools above it, the outermost first, and its own name; at most the
        NEAREST."""
        found, above = [self.name], self.parent
        while above is not None and len(found) < NEAREST:
            found.append(above.name)
            above = above.parent
        return [*(["…"] if above is not None else []), *filter(None, found[::-1])]


class Words(NamedTuple):
    """Words of a finding: its kind, "memory context", "contexts", "PostgreSQL's memory
    contexts"."""

    kind: str
    pool: str
    pools: str
    all: str


def sort_by_parent(top: PoolNode, pools: Iterable[PoolNode]) -> list[PoolNode]:
    """Return `top` and the pools below it, each after its parent. Pools in cycles are left out."""
    below: dict[int, list[PoolNode]] = {}
    for one in pools:
        below.setdefault(id(one.parent), []).append(one)
    found = [top]
    for one in found:
        found += below.get(id(one), ())
    return found


def add_up(pools: Sequence[PoolNode]) -> None:
    """Compute `children`, `below` and `bytes_below`. Each pool follows its parent."""
    for one in pools:
        if one.parent is not None:
            one.parent.children.append(one)
    for one in reversed(pools):
        one.bytes_below += one.bytes
        if one.parent is not None:
            one.parent.below += one.below + 1
            one.parent.bytes_below += one.bytes_below


def find_large_pool(top: PoolNode, words: Words, remedies: Iterable[str] = ()) -> list[Finding]:
    """Return one finding if a pool and the pools below it have much memory; see
    `find_large_node`."""
    one = find_large_node(top)
    return [describe_large_pool(one, top, words, remedies)] if one is not None else []


def find_large_node(top: PoolNode) -> Optional[PoolNode]:
    """Return the innermost pool that has, together with the pools below it, at least HELD bytes and
    most of the memory; None if there is none. If this pool is in a chain of pools with the same
    name, each of which is the parent of the next, return the outermost pool of the chain. `top` is
    the outermost pool, or a parent with the name "" of several outermost pools."""
    one, least = top, max(HELD, PART * top.bytes_below)
    while True:
        largest = max(one.children, key=lambda child: child.bytes_below, default=None)
        if largest is None or largest.bytes_below < max(least, 0 if one is top else CHIEF * one.bytes_below):
            break
        one = largest
    # A pool of such a chain has less memory than the pools below it. PostgreSQL has such a chain
    # for nested savepoints.
    while one.parent is not None and one.parent.name == one.name and one.bytes < PART * one.bytes_below:
        one = one.parent
    if not one.name or one.bytes_below < HELD:
        return None
    return one


def find_alike_pools(top: PoolNode, words: Words, remedies: Iterable[str] = (), of_blocks: bool = False) -> list[Finding]:
    """Return one finding if several outermost pools with the same name have, together with the
    pools below them, at least HELD bytes and most of the memory. `top`: their parent, without a
    name."""
    named: dict[str, list[PoolNode]] = {}
    for one in top.children:
        named.setdefault(one.name, []).append(one)
    name, alike = max(named.items(), key=lambda row: sum(one.bytes_below for one in row[1]), default=("", []))
    total = sum(one.bytes_below for one in alike)
    if len(alike) < 2 or total < max(HELD, PART * top.bytes_below):
        return []
    largest = max(alike, key=lambda one: one.bytes_below)
    noun, part = words.pool.rpartition(" ")[2], 100 * total // top.bytes_below
    title = f"In use: {number(len(alike))} {words.pool}s {name}, which are below no other {noun}, have {size(total)}, {part} %"
    cause = f"The largest, at {largest.address:#x}, has {size(largest.bytes_below)}."
    facts = {noun: [name], words.pools: len(alike) + sum(one.below for one in alike), "address": f"{largest.address:#x}"}
    return [Finding(words.kind, total, f"{title} of {words.all}.", cause, tuple(remedies), ("runtime",), facts, of_blocks=of_blocks)]


def describe_large_pool(
    one: PoolNode, top: PoolNode, words: Words, remedies: Iterable[str] = (), of_blocks: bool = True, resident: Optional[int] = None
) -> Finding:
    """Return a finding about a pool and the pools below it. `top`: see `find_large_node`.
    `resident`: resident bytes of these pools; None if unknown."""
    part, noun = 100 * one.bytes_below // max(top.bytes_below, 1), words.pool.rpartition(" ")[2]
    title = f"In use, not leaked: the {words.pool} {' > '.join(one.path)}"
    title += f" and {number(one.below)} {words.pools if one.below > 1 else noun} below it have" if one.below else " has"
    title += f" {format_amount(one.bytes_below, resident)}, {part} % of {words.all}."
    sums: dict[str, tuple[int, int]] = {one.name: (1, one.bytes)}
    for child in _below(one):
        count, total = sums.get(child.name, (0, 0))
        sums[child.name] = (count + 1, total + child.bytes)
    rows = sorted(sums.items(), key=lambda row: (-row[1][1], row[0]))
    cause = f"By name: {some([f'{number(count)} of {name} ({size(total)})' for name, (count, total) in rows], SHOWN)}."
    facts = {noun: one.path, words.pools: one.below + 1, "address": f"{one.address:#x}"}
    return Finding(words.kind, one.bytes_below, title, cause, tuple(remedies), ("runtime",), dict(facts), resident, of_blocks)


def _below(one: PoolNode) -> Iterator[PoolNode]:
    todo = list(one.children)
    while todo:
        child = todo.pop()
        yield child
        todo += child.children
