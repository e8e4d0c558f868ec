"""Hash tables: std::unordered_map and set, and chained tables of C programs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.audit.containers import LEAST, Container
from findleaks.audit.containers.lists import WORDS
from findleaks.audit.containers.reader import SLICE, Buckets, Place, Reader

LONG = 16  # most nodes of a chain followed to find its link

ENTWINED = 2
"""If more than one node in this many is on two chains, they are no chains; fewer may be damage, or
a chain of stale nodes that joins another."""

SAMPLE = 64  # buckets examined to find the offset of a chain's link


def standard(reader: Reader, address: int) -> Optional[Container]:
    """std::unordered_map, set, multimap or multiset with its head at `address`.

    libstdc++ (GCC 12 bits/hashtable.h, _Hashtable): {buckets, bucket count, first node, element
    count, largest load (float) …}, then the single bucket. libc++ (LLVM 16 __hash_table): {buckets,
    bucket count, first node, size, largest load}. In both, all nodes are one list linked by their
    first words, and the first node's bucket holds the address of the pointer to it."""
    size = reader.size
    words = reader.words(address, 5)
    if words is None:
        return None
    buckets, count, first, recorded, load = words
    before = address + 2 * size
    if not 0 < count <= 1 << 40 or not first or reader.place(first) is None:
        return None
    # A float from 1/32 to 512: other values are not used.
    if not 0x3D000000 <= reader.arch.leading(load, 4) <= 0x44000000:
        return None
    table = reader.place(buckets)
    own = buckets == address + 6 * size  # libstdc++'s single bucket
    if not own and (table is None or table.offset or count * size > table.size):
        return None
    if not _contains_word(reader, buckets, count, before):
        return None
    nodes, problem = reader.follow(first, 0, reader.most + 1)
    if not problem and recorded != len(nodes):
        problem = f"it says that it has {recorded:,} elements, but {len(nodes):,} are in it"
    end = address + (7 if _is_gnu(reader, address) else 5) * size
    tables = () if own or table is None else (buckets,)
    return Container("std::unordered_map or set", address, end, len(nodes), recorded=recorded, nodes=nodes, tables=tables, problem=problem)


def single(reader: Reader, address: int) -> Optional[Container]:
    """libstdc++'s table with its bucket inside; `address` is of its pointer to the first node."""
    size = reader.size
    return standard(reader, address - 2 * size) if reader.word(address - 2 * size) == address + 4 * size else None


def _is_gnu(reader: Reader, address: int) -> bool:
    """libstdc++'s policy has, after the load, the size at which it grows: near the bucket count."""
    words = reader.words(address, 6)
    return words is not None and words[1] // 2 <= words[5] <= 1024 * words[1] + 16


def _contains_word(reader: Reader, start: int, count: int, value: int) -> bool:
    size = reader.size
    for piece in reader.target.pieces(start, start + count * size):
        reader.progress()
        if reader.engine.search(piece, value, value + 1):
            return True
    return False


def buckets_in(reader: Reader, start: int, end: int) -> Buckets:
    """Buckets of an array, kept: if it is no hash table, it may be an array of other pointers."""
    kept = reader.last_buckets
    if kept is not None and (kept.start, kept.end) == (start, end):
        return kept
    heads: array[int] = array("Q")
    mixed = False
    for piece in reader.target.pieces(start, end):
        reader.progress()
        places, values = find_pointers(reader.engine, piece, reader.low, reader.high)
        heads.extend(values)
        empty = len(reader.engine.search(piece, 0, 1))
        mixed = mixed or empty + len(places) < len(piece.data) // reader.size
    sample = [] if mixed else [reader.place(value) for value in _spread(heads)]
    reader.last_buckets = Buckets(start, end, heads, sample, mixed or None in sample)
    return reader.last_buckets


def _spread(values: Sequence[int]) -> list[int]:
    """Up to SAMPLE values, evenly spaced."""
    return list(values[:: max(len(values) // SAMPLE, 1)][:SAMPLE])


def chained(reader: Reader, start: int, end: int, head: tuple[int, int], whole: bool = False) -> Optional[Container]:
    """A chained hash table with buckets [start, end), each 0 or the first node of a chain; no node
    is on two. `head`: the owner's words that are its head. `whole`: None if anything is damaged."""
    found = buckets_in(reader, start, end)
    if len(found.heads) < LEAST or found.mixed:
        return None
    sample = _spread(found.heads)
    first = found.sample[0]
    if first is None or not all(value == sample[0] or reader.alike(first, place) for value, place in zip(sample, found.sample)):
        return None
    link = _find_link(reader, first, sample)
    if link is None or _entwined(reader, found.heads, sample, link):
        return None
    # All nodes, each once, level by level: the first of each bucket, then the second, and so on.
    sound = reader.linked(found.heads, (link,), 2 * reader.most)
    nodes, problem = (sound, "") if sound is not None else _damaged_chains(reader, found.heads, link)
    if len(nodes) == len(found.heads) or (whole and problem):
        return None  # no chain has two nodes: an array of pointers
    tables = () if head == (start, end) else (start,)
    made = Container("hash table", head[0], head[1], len(nodes), nodes=nodes, tables=tables, problem=problem)
    made.heads, made.link = len(found.heads), link
    return made


def _find_link(reader: Reader, first: Place, sample: Sequence[int]) -> Optional[int]:
    """Offset in a node of its next link: the word that leads, from each of the sample, to nodes
    alike and to an end, and farther than any other."""
    size = reader.size
    count = min((first.size - first.offset) // size, WORDS)
    lengths = {offset: _followed_length(reader, first, sample, offset) for offset in range(0, count * size, size)}
    return max((offset for offset in lengths if lengths[offset]), key=lambda offset: lengths[offset], default=None)


def _followed_length(reader: Reader, first: Place, sample: Sequence[int], offset: int) -> int:
    """Nodes the link leads to, LONG at most from each of the sample; 0 if also anything else."""
    length = 0
    for node in sample:
        for _ in range(LONG):
            after = reader.word(node + offset)
            if not after:
                break
            if not reader.alike_or_same(first, reader.place(after)):
                return 0
            length += 1
            node = after
    return length


def _entwined(reader: Reader, heads: array[int], sample: Sequence[int], link: int) -> bool:
    """Whether the link leads from more than a few of the sample to heads or nodes of other chains:
    then these are blocks that refer to one another."""
    met: Counter[int] = Counter()
    for head in sample:
        node: Optional[int] = head
        chain: dict[int, None] = {}
        for _ in range(LONG):
            node = reader.word((node or 0) + link)
            if not node or node in chain:
                break
            chain[node] = None
        met.update(chain.keys())
    wrong = len(reader.among(heads, set(met))) + sum(met.values()) - len(met)
    return wrong * ENTWINED > sum(met.values())


def _damaged_chains(reader: Reader, heads: Sequence[int], link: int) -> tuple[array[int], str]:
    """All nodes of damaged chains, each once, and what is wrong."""
    nodes, level, problem = array("Q"), array("Q", heads), ""
    while level and not problem:
        below: array[int] = array("Q")
        for first in range(0, len(level), SLICE):
            reader.progress()
            some = level[first : first + SLICE]
            (after,), missing = reader.columns(some, link, 1)
            if missing:
                problem = f"node {some[missing[0]]:#x} cannot be read"
                gone = set(missing)
                some = array("Q", [node for n, node in enumerate(some) if n not in gone])
            nodes.extend(some)
            below.extend(word for word in after if word)
        if len(nodes) + len(below) > 2 * reader.most:
            problem = f"a chain runs into itself: more than {len(nodes):,} nodes"
            below = array("Q")
        level = below
    if len(set(nodes)) < len(nodes):
        nodes = array("Q", dict.fromkeys(nodes))
        problem = problem or "chains run into each other"
    return nodes, problem
