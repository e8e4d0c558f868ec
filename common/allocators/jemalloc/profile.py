"""Find the blocks of the heap profiler (prof:true): its hash tables, and the structures that these
refer to.

They are ordinary blocks. Much of their memory is never written, so that its old content would count
as references. With words of 4 bytes they are not read, and count as blocks in use. Sources:
prof_structs.h, prof_data.c (5.2: prof.c), ckh.h."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.allocators.images import Image
from findleaks.allocators.jemalloc.extents import Extents
from findleaks.allocators.jemalloc.layout import PROFILES, ProfileLayout
from findleaks.allocators.memory import Memory
from findleaks.allocators.search import find_words_between
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range

BUCKET = 64  # bytes: four cells of {key, data}
LARGEST = 26  # the base-2 logarithm of the largest number of buckets
MAX_COUNTS = 1 << 22  # the largest number of structures prof_tctx_t
TREE = 16  # the offset in prof_gctx_t of the root of its tree of prof_tctx_t


class Table(NamedTuple):
    """ckh_t: {prng_state, count, lg_minbuckets, lg_curbuckets, hash, keycomp, tab}, 48 bytes."""

    taken: int  # cells in use
    buckets: int  # base-2 logarithm of the number of buckets
    functions: tuple[int, int]
    cells: int


@dataclass
class ProfilerBlocks:
    """The blocks of the profiler. `counts` maps each prof_tctx_t to its words, `threads` has each
    prof_tdata_t, `contexts` maps each prof_gctx_t to the offset of its stack (bt), and `others` has
    the other blocks (cells, names).

    `row` is their layout, or None without a profiler."""

    row: Optional[ProfileLayout] = None
    counts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    threads: set[int] = field(default_factory=set)
    contexts: dict[int, int] = field(default_factory=dict)
    others: set[int] = field(default_factory=set)

    @property
    def blocks(self) -> set[int]:
        return {*self.counts, *self.threads, *self.contexts, *self.others}


def find_profiler(memory: Memory, engine: Engine, image: Image, extents: Extents, near: Sequence[Range]) -> ProfilerBlocks:
    """Find the blocks of a profiler that is on. `near` is memory that contains the threads'
    pointers to their prof_tdata_t."""
    found = ProfilerBlocks()
    if memory.size != 8:
        return found
    for table in _find_tables(memory, engine, image, extents):
        contexts = _read_contexts(memory, extents, table)
        if contexts is None:
            continue
        found.others.add(table.cells)
        found.contexts.update(contexts)
        row = _find_row(memory, table, contexts)
        if row is not None:
            found.row = row
            _add_counts(memory, extents, table, contexts, row, found)
            _add_threads(memory, extents, table, near, row, found)
    return found


def _is_block(extents: Extents, address: int) -> bool:
    """Whether a block in use may start at `address`."""
    i = extents.at(address) if address and address % 8 == 0 else -1
    return i >= 0 and not extents.state[i] and extents.good[i]


def _read_table(memory: Memory, address: int) -> Optional[Table]:
    """Read the table at `address`. None if its numbers are not plausible."""
    words = memory.words(address, 6)
    if words is None:
        return None
    _, count, logs, hash_, compare, cells = words
    least, buckets = memory.halves(logs)
    if not least <= buckets <= LARGEST or count > 4 << buckets or not cells or cells % BUCKET:
        return None
    return Table(count, buckets, (hash_, compare), cells)


def _find_tables(memory: Memory, engine: Engine, image: Image, extents: Extents) -> Iterator[Table]:
    """Yield candidates for bt2gctx in the image's data. The functions of the table must be in this
    image, and its cells in a block."""
    if not len(extents):
        return
    module = image.module
    for place, value in find_words_between(memory.target, engine, image.data, extents.start[0], extents.end(len(extents) - 1)):
        table = _read_table(memory, place - 40) if value % BUCKET == 0 else None
        if table is None or table.functions[0] == table.functions[1]:
            continue
        if all(module.start <= function < module.end for function in table.functions) and _is_block(extents, table.cells):
            yield table


def _read_cells(memory: Memory, table: Table) -> Iterator[tuple[int, int]]:
    """Yield (key, data) of the cells in use."""
    for at in range(table.cells, table.cells + (BUCKET << table.buckets), 4096):
        words = memory.words(at, min(4096, table.cells + (BUCKET << table.buckets) - at) // 8) or ()
        yield from ((key, data) for key, data in zip(words[0::2], words[1::2]) if key)


def _read_contexts(memory: Memory, extents: Extents, table: Table) -> Optional[dict[int, int]]:
    """Return {prof_gctx_t: offset of its stack}, or None if this is another table. In bt2gctx, each
    key is the stack (bt) inside its data, at the same offset in all data."""
    cells = list(_read_cells(memory, table))
    distances = {key - data for key, data in cells}
    if len(cells) != table.taken or len(distances) > 1 or any(not 0 < distance < 256 for distance in distances):
        return None
    return {data: key - data for key, data in cells if _is_block(extents, data)}


def _find_row(memory: Memory, table: Table, contexts: Iterable[int]) -> Optional[ProfileLayout]:
    """Return the layout with which most contexts have a prof_tctx_t, or None if none has one."""
    roots = [(context, memory.word(context + TREE)) for context in sorted(contexts)]
    best: tuple[int, Optional[ProfileLayout]] = (0, None)
    for row in PROFILES:
        fit = sum(_read_count(memory, row, table, context, root) is not None for context, root in roots if root)
        if fit > best[0]:
            best = fit, row
    return best[1]


def _add_counts(memory: Memory, extents: Extents, table: Table, contexts: Iterable[int], row: ProfileLayout, found: ProfilerBlocks) -> None:
    """Add the structures prof_tctx_t of each context. Such a structure counts the samples of one
    thread in this context."""
    left = [(context, memory.word(context + TREE) or 0) for context in contexts]
    while left and len(found.counts) < MAX_COUNTS:
        if memory.target.is_interrupted():
            raise Interrupted
        context, at = left.pop()
        words = _read_count(memory, row, table, context, at) if at and at not in found.counts and _is_block(extents, at) else None
        if words is not None:
            found.counts[at] = words
            found.threads.add(words[0])
            # A link's lowest bit is the node's colour (rb.h).
            left += [(context, words[row.link // 8]), (context, words[row.link // 8 + 1] & -2)]


def _add_threads(memory: Memory, extents: Extents, table: Table, near: Sequence[Range], row: ProfileLayout, found: ProfilerBlocks) -> None:
    """Add the threads, including those without counts, with their tables and names."""
    for start, end in near:
        for _, stored in memory.scan(start, end):
            for word in set(stored):
                if _is_block(extents, word) and memory.words(word + row.table + 24, 2) == table.functions:
                    found.threads.add(word)
    for thread in found.threads:
        inner = _read_table(memory, thread + row.table)
        if inner is not None and inner.functions == table.functions and _is_block(extents, inner.cells):
            found.others.add(inner.cells)
        name = memory.word(thread + row.name) if row.name else None
        if name and _is_block(extents, name):
            found.others.add(name)


def _read_count(memory: Memory, row: ProfileLayout, table: Table, context: int, at: int) -> Optional[tuple[int, ...]]:
    """Return the words of the prof_tctx_t at `at`. None unless its context is `context`, and it is
    in the table of its thread."""
    words = memory.words(at, row.link // 8 + 2) if at % 8 == 0 else None
    if words is None or words[row.context // 8] != context or memory.words(words[0] + row.table + 24, 2) != table.functions:
        return None
    return words
