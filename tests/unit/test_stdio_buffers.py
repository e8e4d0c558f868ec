"""Test which buffers of glibc's files are found, also in damaged lists of files."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import graphs
from fake import FakeTarget

from findleaks.engine.terms import State
from findleaks.libc.stdio_buffers import LONGEST, MAGIC, MOST_BYTES, USER, UnwrittenText, find_buffers, find_unwritten_text
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, Symbol

LIST, FILES, BUFFERS = 0x7F0000000000, 0x7F1000000000, 0x7F2000000000
SIZE, BYTES = 0x100, 1024  # distance of the files, size of a buffer


def file(number: int, chain: int = 0, magic: int = MAGIC, fileno: int = 3, **changed: int) -> bytes:
    """Return a FILE whose whole buffer is unused. `changed`: other values of pointers, by the name "at" and their offset in words."""
    start = BUFFERS + number * BYTES
    words = [magic | 0x2488, *[start] * 7, start + BYTES, 0, 0, 0, 0, chain, fileno & 0xFFFFFFFF]
    for name, value in changed.items():
        words[int(name[2:])] = value
    return struct.pack(f"<{len(words)}Q", *words).ljust(SIZE, b"\0")


def find_unused_buffers(
    *files: bytes, first: int = FILES, symbols: Sequence[str] = ("_IO_list_all",), blocks: Sequence[tuple[int, int]] = ()
) -> list[Range]:
    directory = graphs.native().blocks(X86_64, 8)
    directory.append([start for start, _ in blocks], [size for _, size in blocks], [State.IN_USE] * len(blocks))
    directory.seal()
    target = FakeTarget({LIST: struct.pack("<Q", first).ljust(64, b"\0"), FILES: b"".join(files)})
    target.symbol = lambda name, module="": Symbol(name, LIST, 8, "libc.so.6") if name in symbols else None
    return list(find_buffers(target, directory))


def buffer(number: int) -> Range:
    return Range(BUFFERS + number * BYTES, BUFFERS + (number + 1) * BYTES)


def test_each_file_of_the_list() -> None:
    assert find_unused_buffers(file(0, FILES + SIZE), file(1, FILES + 2 * SIZE, fileno=0), file(2)) == [buffer(0), buffer(1), buffer(2)]
    assert find_unused_buffers(file(0), symbols=()) == []
    assert find_unused_buffers(file(0), first=0) == []


def test_files_without_a_descriptor_or_a_buffer() -> None:
    assert find_unused_buffers(file(0, FILES + SIZE, fileno=-1), file(1)) == [buffer(1)]
    assert find_unused_buffers(file(0, FILES + SIZE, **{f"at{word}": 0 for word in range(1, 9)}), file(1)) == [buffer(1)]


def test_the_rest_of_a_block() -> None:
    """malloc rounds sizes up. The buffer of setvbuf may be the first member of a structure."""
    blocks = [(BUFFERS, BYTES + 8)]
    assert find_unused_buffers(file(0), blocks=blocks) == [Range(BUFFERS, BUFFERS + BYTES + 8)]
    assert find_unused_buffers(file(0, magic=MAGIC | USER), blocks=blocks) == [buffer(0)]
    assert find_unused_buffers(file(0), blocks=[(BUFFERS - 8, BYTES + 16)]) == [buffer(0)]


def test_damaged_files() -> None:
    assert find_unused_buffers(file(0, FILES + SIZE, at1=8), file(1)) == [buffer(1)], "a pointer outside of the buffer"
    assert find_unused_buffers(file(0, FILES + SIZE, at8=BUFFERS + MOST_BYTES + 1), file(1)) == [buffer(1)], "a large buffer"
    assert find_unused_buffers(file(0, FILES + SIZE), file(1, magic=0)) == [buffer(0)], "no file"
    assert find_unused_buffers(file(0, FILES + SIZE), file(1, FILES)) == [buffer(0), buffer(1)], "a cycle"
    assert find_unused_buffers(file(0, 8)) == [buffer(0)], "a chain that leads to unreadable memory"


def find_text(data: bytes, missing: int = 0) -> list[UnwrittenText]:
    """Return the unwritten text of a file whose buffer has this data, without its last `missing` bytes."""
    image = {
        LIST: struct.pack("<Q", FILES).ljust(64, b"\0"),
        FILES: file(0, at5=BUFFERS + len(data)),
        BUFFERS: data[: len(data) - missing],
    }
    target = FakeTarget(image)
    target.symbol = lambda name, module="": Symbol(name, LIST, 8, "libc.so.6")
    return list(find_unwritten_text(target))


def test_text_that_was_not_written() -> None:
    assert find_text(b"caf\xe9: 10 of 12 guests\n") == [(3, 22, "caf\udce9: 10 of 12 guests\n")]
    euros = "1234567890€" * 30
    (found,) = find_text(euros.encode())
    assert found[:2] == (3, len(euros.encode())) and euros.endswith(found[2]) and len(found[2].encode()) in range(LONGEST - 2, LONGEST + 1)


def test_bytes_that_are_not_text() -> None:
    assert find_text(bytes(range(256)) * 2) == []
    assert find_text(bytes(range(128, 256))) == [], "no UTF-8"
    assert find_text(b"\n \n") == [], "white space"
    assert find_text(b"") == []
    assert find_text(b"the end of the text is missing", 8) == []
