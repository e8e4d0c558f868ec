"""Backing stores of ArrayBuffers, and the bytes that malloc added to them, in a handmade heap."""

from __future__ import annotations

import struct
from array import array
from types import SimpleNamespace
from typing import Any, cast

from fake import FakeTarget

from findleaks.engine.reference.engine import PureEngine
from findleaks.runtimes.node.objects import STORE, objects
from findleaks.target.base import Range, Symbol

HEAP, DATA, CODE, TABLE = 0x5500_0000_0000, 0x6600_0000_0000, 0x4000_0000, 0x4100_0000
NAME = "_ZTVSt19_Sp_counted_deleterIPN2v812BackingStoreESt14default_deleteIS1_ESaIvELN9__gnu_cxx12_Lock_policyE2EE"
SIZE, USABLE = 0x1000, 72


class Image:
    """A heap of blocks: for each store, its control block, the store, and the memory of the store."""

    def __init__(self) -> None:
        self.heap, self.at = bytearray(SIZE), HEAP
        self.starts, self.sizes = array("Q"), array("Q")

    def block(self, size: int, *words: int) -> int:
        address, self.at = self.at, self.at + size + 8
        self.starts.append(address)
        self.sizes.append(size)
        struct.pack_into(f"<{len(words)}Q", self.heap, address - HEAP, *words)
        return address

    def store(self, length: int, usable: int, *unused: int, allocator: int = DATA, largest: int = 0) -> int:
        """Return the address of the store's memory. Its last words are stale. `unused`: words after the one of the allocator, or of the
        function that frees the memory."""
        memory = self.block(usable, *[HEAP] * (usable // 8))
        store = self.block(USABLE, memory, length, largest or length, largest or length, 7, allocator, *unused)
        self.block(40, TABLE + 16, 1 << 32 | 1, store, store)
        return memory

    def objects(self) -> Any:
        memory = {HEAP: bytes(self.heap), DATA: bytes(64), CODE: bytes(64), TABLE: bytes(64)}
        target = FakeTarget(memory, permissions={CODE: "r-x"}, symbols=[Symbol(NAME, TABLE, 64)])
        engine = PureEngine(target.arch)
        blocks = engine.blocks(target.arch, 8)
        blocks.append(self.starts, self.sizes, bytes(len(self.starts)))
        blocks.seal()
        return objects(target, engine, cast(Any, SimpleNamespace(blocks=blocks, heaps=[Range(HEAP, HEAP + SIZE)])))


def test_words_after_the_length_are_no_references() -> None:
    image = Image()
    short, odd = image.store(128, 136), image.store(12, 24)
    image.store(24, 24)  # fills its memory
    image.store(20, 24)  # ends inside the last word
    image.store(16, 40, allocator=CODE + 16)  # memory of an embedder, with a function that frees it: not V8's memory
    image.store(40, 40, CODE + 16, CODE + 16)  # words that the store does not use may have the address of a function
    image.store(16, 40, largest=40)  # the store may grow
    found = image.objects()
    assert found.unused == [Range(short + 128, short + 136), Range(odd + 16, odd + 24)]
    assert (found.counts[STORE], found.stored[STORE], len(found.memory)) == (7, 128 + 12 + 24 + 20 + 16 + 40 + 16, 6)


def test_any_word_of_a_store_may_be_wrong() -> None:
    image = Image()
    image.store(1 << 63, 136)
    image.store(16, 40, largest=1 << 64 - 1)
    image.block(40, TABLE + 16, 1, 0, 0)  # the control block refers to no store
    image.block(40, TABLE + 16, 1, image.block(USABLE, 0, 16, 16, 16), 0)  # the store refers to no memory
    image.block(40, TABLE + 16, 1, image.block(USABLE, HEAP + SIZE, 16, 16, 16), 0)
    assert image.objects().unused == []
