"""Buffers of Rust's standard output and input.

Rust does not initialize them. A buffer contains words of earlier blocks at its address, and text.
None of these words are references.

Sources: std 1.95 library/std/src/io/stdio.rs (the statics STDOUT and INSTANCE of stdin),
io/buffered/linewriter.rs (LineWriter::new: 1,024 bytes), io/buffered/bufreader/buffer.rs,
sys/io/mod.rs (DEFAULT_BUF_SIZE: 8 KiB). STDOUT contains a Vec<u8>: {capacity, pointer, length}. The
other static contains a Buffer: {pointer, capacity, position, bytes filled, …}."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.stale_slots.heap_memory import HeapMemory, HeapPointers, wastes_little
from findleaks.target.base import Range

OUTPUT, INPUT = 1024, 8192  # bytes of the buffers
_ABOUT = 3  # words that are read from the pointer on


def find_buffers(memory: HeapMemory, words: HeapPointers) -> Iterator[Range]:
    """Yield the buffers to which these words of Rust's variables refer."""
    for address, value in zip(words.addresses, words.values):
        near = memory.words(address - memory.size, 1 + _ABOUT)
        if near is None or (near[0] != OUTPUT and near[2] != INPUT):
            continue
        (before, _, second, third), block = near, memory.block_at(value)
        if block is None:
            continue
        if before == OUTPUT and second <= OUTPUT and wastes_little(block.size, OUTPUT, memory.size):
            yield Range(value, value + OUTPUT)
        elif second == INPUT and third <= INPUT and wastes_little(block.size, INPUT, memory.size):
            filled = memory.word(address + _ABOUT * memory.size)
            if filled is not None and third <= filled <= INPUT:
                yield Range(value, value + INPUT)
