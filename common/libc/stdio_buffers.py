"""Find the buffers of glibc's open files (FILE).

stdio does not initialize a buffer. So a buffer that malloc has returned contains words of earlier
blocks, and its other bytes are text or data of a file. None of these words are references. This
includes the last word of the buffer's block: a block of 4,096 bytes has 4,104 in glibc.

Source: glibc 2.36 libio/genops.c (_IO_list_all, the list of all files), and
libio/bits/types/struct_FILE.h (_flags with its magic, 12 pointers from _IO_read_ptr to _markers,
_chain, _fileno; 2.17 to 2.41 have the same), libio/libio.h (_IO_USER_BUF)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.engine.contract import Blocks
from findleaks.target.base import Range, Target
from findleaks.target.words import word_at, words_at
from findleaks.value_classes import NamedTuple

MAGIC, MAGIC_MASK = 0xFBAD0000, 0xFFFF0000  # of _flags
USER = 1  # flag: the buffer belongs to the program (setvbuf), and may be part of a structure
CHAIN, FILENO = 13, 14  # offsets of _chain and _fileno, in words
WRITTEN = 4  # offset of _IO_write_base in words; _IO_write_ptr follows
BUFFER, BUFFER_END = 7, 8  # offsets of _IO_buf_base and _IO_buf_end, in words
MOST_FILES = 1 << 16
MOST_BYTES = 1 << 24  # of one buffer
LONGEST = 160  # maximum number of bytes of a text that are returned
_PARTS = bytes(range(0x80, 0xC0))  # bytes inside a character of UTF-8
MOSTLY = 0.9  # data is text if at least this fraction of its characters is printable


class UnwrittenText(NamedTuple):
    """Text in the buffer of a file that was not written to it. `size`: in bytes. `end`: the last
    part of the text, not escaped. Bytes that are not UTF-8 are decoded by "surrogateescape"."""

    descriptor: int
    size: int
    end: str


def find_buffers(target: Target, blocks: Blocks) -> Iterator[Range]:
    """Yield the buffers of files that have a descriptor, with the rest of their blocks. Damaged
    files are left out, and so are streams without a descriptor: the buffer of open_memstream
    belongs to the program."""
    arch = target.arch
    for words in _list_files(target):
        start, end = words[BUFFER], words[BUFFER_END]
        found = blocks.lookup(start) if not arch.leading(words[0], 4) & USER else None
        yield Range(start, max(end, start + found[2]) if found is not None and found[1] == start else end)


def find_unwritten_text(target: Target) -> Iterator[UnwrittenText]:
    """Yield the text that the program printed and that was not written yet. Binary data and white
    space are left out, and so is text whose end is not in memory."""
    for words in _list_files(target):
        base, place = words[WRITTEN], words[WRITTEN + 1]
        start = max(base, place - LONGEST)
        data = b"".join(bytes(one.data) for one in target.pieces(start, place)) if start < place else b""
        is_complete = len(data) == place - start
        text = (data if start == base else data.lstrip(_PARTS)).decode("utf-8", "surrogateescape")
        if is_complete and text.strip() and sum(one.isprintable() or one.isspace() for one in text) >= MOSTLY * len(text):
            yield UnwrittenText(target.arch.leading(words[FILENO], 4), place - base, text)


def _list_files(target: Target) -> Iterator[Sequence[int]]:
    """Yield the first words of each file that has a descriptor and a sound buffer."""
    arch = target.arch
    first = target.symbol("_IO_list_all", "libc")
    at = word_at(target, first.address) if first is not None else 0
    seen: set[int] = set()
    while at and at not in seen and len(seen) < MOST_FILES:
        seen.add(at)
        words = words_at(target, at, (FILENO + 1) * arch.word)
        if len(words) <= FILENO or arch.leading(words[0], 4) & MAGIC_MASK != MAGIC:
            return
        start, end = words[BUFFER], words[BUFFER_END]
        is_valid = 0 < end - start <= MOST_BYTES and all(start <= word <= end for word in words[1:BUFFER])
        if is_valid and arch.leading(words[FILENO], 4) < 1 << 31:
            yield words
        at = words[CHAIN]
