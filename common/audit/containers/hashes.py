"""Hash tables: std::unordered_map and set, and chained tables of C programs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.audit.containers import LEAST, Container
from findleaks.audit.containers.lists import WORDS
from findleaks.audit.containers.reader import SLICE, BlockPlace, ContainerReader, PointerBuckets

LONG = 16  # nodes of a chain that are followed to find its link

ENTWINED = 2
"""If more than one node in ENTWINED is on two chains, the words are not the heads of chains.
If fewer are, the table may be damaged, or a chain of stale nodes may join another chain."""

SAMPLE = 64  # buckets examined to find the offset of the link in a node


def recognise_unordered_map(reader: ContainerReader, address: int) -> Optional[Container]:
    """Recognise a std::unordered_map, set, multimap or multiset with its head at `address`.

    libstdc++ (GCC 12 bits/hashtable.h, _Hashtable): {buckets, bucket count, first node, element
    count, largest load (float) …}, then the single bucket. libc++ (LLVM 16 __hash_table): {buckets,
    bucket count, first node, size, largest load}. In both, all nodes form one list, linked by their
    first words, and the first node's bucket contains the address of the pointer to it."""
    size = reader.size
    words = reader.words(address, 5)
    if words is None:
        return None
    buckets, count, first, recorded, load = words
    before = address + 2 * size
    if not 0 < count <= 1 << 40 or not first or reader.place(first) is None:
        return None
    # A float between 1/32 and 512: other loads are not used.
    if not 0x3D000000 <= reader.arch.leading(load, 4) <= 0x44000000:
        return None
    table = reader.place(buckets)
    own = buckets == address + 6 * size  # the single bucket of libstdc++
    if not own and (table is None or table.offset or count * size > table.size):
        return None
    if not _contains_word(reader, buckets, count, before):
        return None
    nodes, problem = reader.follow_list(first, 0, reader.most + 1)
    if not problem and recorded != len(nodes):
        problem = f"its header counts {recorded:,} elements, but {len(nodes):,} are linked"
    end = address + (7 if _is_gnu(reader, address) else 5) * size
    tables = () if own or table is None else (buckets,)
    return Container("std::unordered_map or set", address, end, len(nodes), recorded=recorded, nodes=nodes, tables=tables, problem=problem)


def recognise_single_bucket_map(reader: ContainerReader, address: int) -> Optional[Container]:
    """Recognise libstdc++'s hash table that has only the bucket inside its head.
    `address`: the address of its pointer to the first node."""
    size = reader.size
    return recognise_unordered_map(reader, address - 2 * size) if reader.word(address - 2 * size) == address + 4 * size else None


def _is_gnu(reader: ContainerReader, address: int) -> bool:
    """Whether the head is that of libstdc++. After the largest load, it stores the number of
    elements at which the table grows. This number must be plausible for the number of buckets."""
    words = reader.words(address, 6)
    return words is not None and words[1] // 2 <= words[5] <= 1024 * words[1] + 16


def _contains_word(reader: ContainerReader, start: int, count: int, value: int) -> bool:
    size = reader.size
    for piece in reader.target.pieces(start, start + count * size):
        reader.report_progress()
        if reader.engine.search(piece, value, value + 1):
            return True
    return False


def read_buckets(reader: ContainerReader, start: int, end: int) -> PointerBuckets:
    """Read the buckets in [start, end). The result is cached, because the caller next tries the
    same words as another array of pointers."""
    kept = reader.last_buckets
    if kept is not None and (kept.start, kept.end) == (start, end):
        return kept
    heads: array[int] = array("Q")
    mixed = False
    for piece in reader.target.pieces(start, end):
        reader.report_progress()
        places, values = find_pointers(reader.engine, piece, reader.low, reader.high)
        heads.extend(values)
        empty = len(reader.engine.search(piece, 0, 1))
        mixed = mixed or empty + len(places) < len(piece.data) // reader.size
    sample = [] if mixed else [reader.place(value) for value in _select_sample(heads)]
    reader.last_buckets = PointerBuckets(start, end, heads, sample, mixed or None in sample)
    return reader.last_buckets


def _select_sample(values: Sequence[int]) -> list[int]:
    """Return up to SAMPLE values, evenly spaced."""
    return list(values[:: max(len(values) // SAMPLE, 1)][:SAMPLE])


def recognise_chained_table(
    reader: ContainerReader, start: int, end: int, head: tuple[int, int], whole: bool = False
) -> Optional[Container]:
    """Recognise a chained hash table with buckets [start, end).
    A bucket is 0 or the address of the first node of a chain; no node is on two chains. `head`: the
    owner's words that form the head. `whole`: return None if any part is damaged."""
    found = read_buckets(reader, start, end)
    if len(found.heads) < LEAST or found.mixed:
        return None
    sample = _select_sample(found.heads)
    first = found.sample[0]
    if first is None or not all(value == sample[0] or reader.is_alike(first, place) for value, place in zip(sample, found.sample)):
        return None
    links = [link for link in _find_links(reader, first, sample) if not _is_entwined(reader, found.heads, sample, link)]
    # A node that is in several tables has several links. The links of the other tables lead to
    # other chains, which look like damage. So a table is damaged only if no link leads along intact
    # chains.
    nodes, link, problem = array("Q"), 0, ""
    for link in links:
        # Collect all nodes by level: the first node of each bucket, then the second, and so on.
        sound = reader.walk_links(found.heads, (link,), 2 * reader.most)
        if sound is not None:
            nodes = sound
            break
    else:
        if links and not whole:
            link = links[0]
            nodes, problem = _collect_damaged_chains(reader, found.heads, link)
    if len(nodes) <= len(found.heads):
        return None  # no chain has two nodes: it is an array of pointers
    tables = () if head == (start, end) else (start,)
    made = Container("hash table", head[0], head[1], len(nodes), nodes=nodes, tables=tables, problem=problem)
    made.heads, made.link = len(found.heads), link
    return made


def _find_links(reader: ContainerReader, first: BlockPlace, sample: Sequence[int]) -> list[int]:
    """Return the offsets in a node at which the pointer to the next node may be. For each node of
    the sample, the words at this offset must form a chain of similar nodes that has an end. The
    offset with the longest chains comes first."""
    # Example: nodes {key, next, value}. The word at offset 8 leads from each bucket along a whole
    # chain to 0; the words at 0 and 16 lead to no similar block.
    size = reader.size
    count = min((first.size - first.offset) // size, WORDS)
    lengths = {offset: _follow_length(reader, first, sample, offset) for offset in range(0, count * size, size)}
    return sorted((offset for offset in lengths if lengths[offset]), key=lambda offset: -lengths[offset])


def _follow_length(reader: ContainerReader, first: BlockPlace, sample: Sequence[int], offset: int) -> int:
    """Return the number of nodes in the chains of this link, at most LONG for each node of the
    sample. Returns 0 if a chain contains anything other than such nodes."""
    length = 0
    for node in sample:
        for _ in range(LONG):
            after = reader.word(node + offset)
            if not after:
                break
            if not reader.is_alike_or_same(first, reader.place(after)):
                return 0
            length += 1
            node = after
    return length


def _is_entwined(reader: ContainerReader, heads: array[int], sample: Sequence[int], link: int) -> bool:
    """Whether the link leads from more than a few of the sampled nodes to heads or nodes of other
    chains.
    If so, these blocks refer to one another, but do not form chains."""
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
    wrong = len(reader.select_nodes(heads, set(met))) + sum(met.values()) - len(met)
    return wrong * ENTWINED > sum(met.values())


def _collect_damaged_chains(reader: ContainerReader, heads: Sequence[int], link: int) -> tuple[array[int], str]:
    """Return all nodes of damaged chains, each once, and a description of the damage."""
    nodes, level, problem = array("Q"), array("Q", heads), ""
    while level and not problem:
        below: array[int] = array("Q")
        for first in range(0, len(level), SLICE):
            reader.report_progress()
            some = level[first : first + SLICE]
            (after,), missing = reader.columns(some, link, 1)
            if missing:
                problem = f"node {some[missing[0]]:#x} cannot be read"
                gone = set(missing)
                some = array("Q", [node for n, node in enumerate(some) if n not in gone])
            nodes.extend(some)
            below.extend(word for word in after if word)
        if len(nodes) + len(below) > 2 * reader.most:
            problem = f"a chain forms a cycle: more than {len(nodes):,} nodes"
            below = array("Q")
        level = below
    if len(set(nodes)) < len(nodes):
        nodes = array("Q", dict.fromkeys(nodes))
        problem = problem or "two chains share nodes"
    return nodes, problem
