"""Find the buffers of Ruby's IO objects. A buffer contains text, and words of a former block. These
words are not references.

Sources: include/ruby/io.h (struct rb_io_buffer_t, rb_io_t) of 2.7.4, 3.1.2, 3.3.8 and 3.4.1. A
struct rb_io_buffer_t is {pointer, int offset, int length, int capacity}. It is packed, so its size
is 20 bytes. It is recognised if the pointer refers to a block whose size is the capacity, or little
more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks

FILE = 16  # offset in a T_FILE of the pointer to its rb_io_t
_LARGEST = 256  # first bytes of a rb_io_t that are searched for buffers
_BUFFER, _STEP = 20, 4  # size and alignment of a struct rb_io_buffer_t
_MOST_UNUSED = 64  # maximum number of unused bytes after a buffer; malloc rounds sizes up


def find_io_buffers(memory: Memory, blocks: Blocks, files: Iterable[int]) -> Iterator[int]:
    """Yield the address of each buffer of IO objects. `files`: the addresses of T_FILE slots."""
    for slot in files:
        found = blocks.lookup(memory.word(slot + FILE) or 0)
        data = memory.read(found[1], min(found[2], _LARGEST)) if found is not None else b""
        for at in range(0, len(data) - _BUFFER + 1, _STEP):
            start, offset, length, capacity = _read_buffer(memory, data[at : at + _BUFFER])
            block = blocks.lookup(start) if capacity and offset + length <= capacity else None
            if block is not None and block[1] == start and capacity <= block[2] <= capacity + _MOST_UNUSED:
                yield start


def _read_buffer(memory: Memory, data: bytes) -> tuple[int, ...]:
    order = memory.arch.byteorder
    return tuple(int.from_bytes(data[first:end], order) for first, end in ((0, 8), (8, 12), (12, 16), (16, 20)))
