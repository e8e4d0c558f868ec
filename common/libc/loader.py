"""Find the memory of ld.so, its blocks to which only interior pointers refer, and unused words of
these blocks.

glibc 2.35 and later keep a table of loaded files for stack unwinders. After the first `dlopen`, the
segments of the table are in blocks, aligned to cache lines (elf/dl-find_object.c, struct
dlfo_mappings_segment: previous, to_free, size, allocated, entries). Only `to_free` in the segment
itself points to the start of the block. Without this rule, every program that loads plugins would
have a "possible" leak of some 2 KiB.

A segment has entries for more than 60 files (start and end of the file's memory, link map, table
of frames), and the first `size` entries are in use. The block is not cleared, so the other entries
contain words of earlier blocks. The same applies to the blocks of strings of a struct link_map,
such as the file's name (link.h: l_addr, l_name, l_ld, l_next, l_prev)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces, region_at
from findleaks.target.words import word_at, words_at

_LINE = 128  # the longest cache line in bytes; segments are aligned to a cache line
# Maximum number of bytes of ld.so's data that are searched. ld.so has 10 KiB of data, but the
# headers of a core may be wrong.
_MOST = 1 << 20
_SIZE, _ALLOCATED, _ENTRIES = 2, 3, 4  # numbers of the words of a segment
_MOST_ENTRIES = 1 << 16
MAX_MODULES = 1 << 16
_LINK_MAPS = range(1 << 9, 1 << 12)  # possible sizes in bytes of a block with a struct link_map
_MOST_TEXT = 1 << 12  # bytes of a string, PATH_MAX

_LINKERS = ("ld-linux", "ld-2.", "ld64.", "ld.so")


def linker_ranges(target: Target) -> list[Range]:
    """Return the addresses from start to end of ld.so."""
    return [Range(one.start, one.end) for one in target.modules() if one.path.rsplit("/", 1)[-1].startswith(_LINKERS)]


def table_blocks(target: Target) -> list[int]:
    """Return the addresses of the blocks that contain segments of the table."""
    return [start for _, start in _iterate_segments(target)]


def iterate_link_maps(target: Target) -> Iterator[int]:
    """Yield the addresses of struct link_map of the loaded files: r_debug.r_map, then l_next."""
    debug = target.symbol("_r_debug", "ld")
    if debug is None:
        return
    word = target.arch.word
    seen: set[int] = set()
    try:
        address = target.word(debug.address + word)
        while address and address not in seen and len(seen) < MAX_MODULES:
            seen.add(address)
            yield address
            address = target.word(address + 3 * word)
    except UnreadableMemory:
        return


def find_unused_words(target: Target, blocks: Blocks) -> Iterator[Range]:
    """Yield the unused parts of the blocks of the table, and of strings of the loaded files. Raises
    Interrupted."""
    word = target.arch.word
    length = (4 if word == 8 else 5) * word  # of an entry: i386 and ARM have one more word
    for segment, start in _iterate_segments(target):
        block, words = blocks.lookup(start), words_at(target, segment, _ENTRIES * word)
        if block is None or block[1] != start or len(words) < _ENTRIES or not words[_SIZE] <= words[_ALLOCATED] <= _MOST_ENTRIES:
            continue
        first, end = segment + _ENTRIES * word, start + block[2]
        if first + words[_ALLOCATED] * length <= end:
            yield Range(start, segment)
            yield Range(first + words[_SIZE] * length, end)
    for address in iterate_link_maps(target):
        if target.is_interrupted():
            raise Interrupted
        yield from _find_text_ends(target, blocks, address)


def _find_text_ends(target: Target, blocks: Blocks, link_map: int) -> Iterator[Range]:
    """Yield the words after the end of each string to which a struct link_map refers."""
    word = target.arch.word
    own = blocks.lookup(link_map)
    if own is None or own[1] != link_map or own[2] not in _LINK_MAPS:
        return
    for address in set(words_at(target, link_map, own[2])):
        block = blocks.lookup(address) if address else None
        if block is not None and block[1] == address and block[3] == State.IN_USE:
            data = b"".join(bytes(piece.data) for piece in target.pieces(address, address + min(block[2], _MOST_TEXT)))
            text, zero, _ = data.partition(b"\0")
            if zero and _is_file_name(text) and region_at(target.regions(), target.arch.unpack(data[:word])[0]) is None:
                yield Range(address + len(text) + word & -word, address + block[2])


def _is_file_name(text: bytes) -> bool:
    """Whether the start of a block is the name or the folder of a file, and not a structure that
    begins with a small number or with a pointer whose bytes are characters."""
    return len(text) > 2 and text.isascii() and text.decode().isprintable() and (b"/" in text or b".so" in text)


def _iterate_segments(target: Target) -> Iterator[tuple[int, int]]:
    """Yield the address of each segment, and that of its block."""
    word = target.arch.word
    regions = target.regions()
    low, high = (regions[0].start, regions[-1].end) if regions else (0, 0)
    starts = [region.start for region in regions]
    for inside in linker_ranges(target):
        left = _MOST
        for number in range(bisect_left(starts, inside.start), len(regions)):
            region = regions[number]
            if region.start >= inside.end:
                break
            if region.executable or not region.readable:
                continue
            end = min(region.end, inside.end, region.start + left)
            left -= max(end - region.start, 0)
            for piece in nonzero_pieces(target, region.start, end):
                if piece.address % word == 0:
                    words = [one for one in target.arch.unpack(bytes(piece.data)) if low <= one < high and not one % (8 * word)]
                    yield from ((one, start) for one in words if (start := _start(target, one)))


def _start(target: Target, segment: int) -> int:
    """Return the word `to_free` of a possible segment, or 0. It must be aligned like a block of
    malloc, and at most a cache line below the segment."""
    word = target.arch.word
    start = word_at(target, segment + word)
    return start if 0 <= segment - start < _LINE and start % (2 * word) == 0 else 0
