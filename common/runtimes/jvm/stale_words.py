"""Find words in the JVM's own blocks that look like pointers to other blocks, but are not pointers.

- Words of free chunks, and of the unused parts of arenas.
- Words of arena chunks in use that point into a block. The compilers keep many structures in
  arenas, and do not write all their bytes. Half of a word often has stale contents, so the word
  looks like a pointer into a large block. The JVM refers to a block by its start, except to chunks
  of its arenas. Words that refer to the start of a block count, and so do words that refer to
  another chunk.
- Words with hash codes in tables (hash_tables.py) that point into a block.
- The last words of names (symbols.py): malloc's blocks are longer than the names.
- The variable `options` of the launcher (libjli). The launcher frees these options as soon as it
  has created the JVM, so the variable may refer to a later block at the same address.

With Native Memory Tracking (NMT), the JVM refers to a block by the address after NMT's header.

Source: OpenJDK 8 to 25, java.base/share/native/libjli/java.c (`options`, InitializeJVM)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into, read_scattered
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.arena_chunks import list_arena_chunks
from findleaks.runtimes.jvm.arenas import find_others, unused_parts
from findleaks.runtimes.jvm.chunk_pools import free_chunks
from findleaks.runtimes.jvm.hash_tables import HashTables
from findleaks.runtimes.jvm.native_roots import list_data_ranges
from findleaks.runtimes.jvm.symbols import list_stale_ends
from findleaks.runtimes.jvm.tables import NMT_HEADERS, Tables
from findleaks.target.base import Module, Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges, merge_to_most

_FEW = 64  # chunks between two checks for Ctrl-C
_LAUNCHER, _OPTIONS = "libjli.", "options"


def list_stale_words(tables: Tables, engine: Engine, directory: Directory, libjvm: Module) -> list[Range]:
    """Return the parts of memory whose words are not references to blocks, sorted and disjoint.
    Raises Interrupted."""
    data = list_data_ranges(tables.target, libjvm)
    found = [*unused_parts(tables, find_others(tables, engine, directory, data)), *free_chunks(tables, engine, data, directory)]
    found += _find_inner_words(tables, engine, directory)
    found += list_stale_ends(tables, engine, directory)
    found += _find_launcher_options(tables)
    places = HashTables(tables, engine, directory).list_hash_words(data)
    words = array("Q", bytes(read_scattered(tables.target, engine, places, tables.memory.size)[0])) if places else array("Q")
    found += _select(places, words, directory.blocks, tables.memory.size, array("I"))
    return merge_ranges(found)


def _find_launcher_options(tables: Tables) -> Iterator[Range]:
    """Yield the variable with the options of the launcher, unless it refers to an option: a
    JavaVMOption begins with the address of a text such as "-Xmx1g"."""
    symbol = tables.target.symbol(_OPTIONS, _LAUNCHER)
    options = tables.memory.word(symbol.address) if symbol is not None else None
    if symbol is not None and options and not tables.text(tables.memory.word(options) or 0).startswith("-"):
        yield Range(symbol.address, symbol.address + tables.memory.size)


def _find_inner_words(tables: Tables, engine: Engine, directory: Directory) -> Iterator[Range]:
    """Yield the words of arena chunks in use that point into a block other than a chunk."""
    blocks, searched = directory.blocks, merge_to_most(directory.ranges(), MOST_RANGES)
    chunks = list_arena_chunks(tables, engine, blocks)
    columns = blocks.columns_of(chunks)
    for start, size in interruptible(tables.target, zip(columns.address, columns.size), _FEW):
        for piece in tables.target.pieces(start, start + size):
            places, words = find_pointers_into(engine, piece, searched)
            yield from _select(places, words, blocks, tables.memory.size, chunks)


def _select(places: Sequence[int], words: Sequence[int], blocks: Blocks, word: int, chunks: Sequence[int]) -> Iterator[Range]:
    """Yield the words that point into a block, but not to its start, and not into one of `chunks`,
    the ascending indices of blocks."""
    indices = blocks.find_all(words)[0]
    for place, value, index, start in zip(places, words, indices, blocks.columns_of(indices).address):
        if index != NO_BLOCK and value - start not in NMT_HEADERS:
            at = bisect_left(chunks, index)
            if at == len(chunks) or chunks[at] != index:
                yield Range(place, place + word)
