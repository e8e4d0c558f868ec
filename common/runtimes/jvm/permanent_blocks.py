"""Find blocks to whose start nothing refers, although the JVM uses them: those of threads and of
their events, those of padded arrays, such as the Parallel collector's task queues, those with
handles (oop_storages.py), and those with the entries of the table of interned strings of JDK 8. A
block has up to 512 of these entries, which refer to one another.

The elements of a padded array begin at cache lines, and so does the first one, which may be behind
the start of the array's block. Only the address of the first element is stored. The JVM never frees
these arrays. With Native Memory Tracking (NMT), a header of NMT precedes an array. Other blocks to
which a variable of libjvm refers may look like padded arrays. They are live, too.

Source: OpenJDK 8 to 25, src/hotspot/share/memory/padded.hpp and padded.inline.hpp (PaddedArray,
Padded2DArray and PaddedPrimitiveArray: create_unfreeable)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.interned_strings import list_string_words
from findleaks.runtimes.jvm.native_roots import list_data_ranges
from findleaks.runtimes.jvm.oop_storages import list_storage_blocks
from findleaks.runtimes.jvm.tables import NMT_HEADERS, Tables
from findleaks.runtimes.jvm.threads import list_event_blocks, list_thread_blocks
from findleaks.target.base import Module
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_to_most, nonzero_pieces

_LINES = (64, 128)  # bytes to which arrays are aligned, by processor and version


def list_permanent_blocks(tables: Tables, engine: Engine, directory: Directory, libjvm: Module) -> list[int]:
    """Return the starts of the blocks of threads and of their events, of padded arrays, of handles,
    and of interned strings. Raises Interrupted."""
    blocks = directory.blocks
    strings = {*blocks.find_all(tables.once(list_string_words, engine))[0]} - {NO_BLOCK}
    starts = blocks.columns_of(array("I", sorted(strings))).address
    handles = list_storage_blocks(tables, engine, blocks)
    words = _list_variable_words(tables, engine, directory, libjvm)
    threads = [*list_thread_blocks(tables, blocks), *list_event_blocks(tables, blocks, words)]
    return [*threads, *_list_padded_arrays(blocks, words), *handles, *starts]


def _list_variable_words(tables: Tables, engine: Engine, directory: Directory, libjvm: Module) -> list[int]:
    """Return the addresses of cache lines in blocks to which variables of libjvm refer."""
    target, searched, found = tables.target, merge_to_most(directory.ranges(), MOST_RANGES), set[int]()
    for start, end in interruptible(target, list_data_ranges(target, libjvm)):
        for piece in nonzero_pieces(target, start, end):
            found.update(address for address in find_pointers_into(engine, piece, searched)[1] if address % _LINES[0] == 0)
    return sorted(found)


def _list_padded_arrays(blocks: Blocks, words: Iterable[int]) -> Iterator[int]:
    """Yield the starts of the blocks of padded arrays to which these words refer."""
    for address in words:
        found = blocks.lookup(address)
        if found is not None and found[1] != address and _is_first_line(found[1], address):
            yield found[1]


def _is_first_line(block: int, address: int) -> bool:
    """Return whether the array in a block begins at an address."""
    return any(-(-(block + header) // line) * line == address for header in NMT_HEADERS for line in _LINES)
