"""Reading the variables of GSlice and the magazines of threads takes little time, even if their memory is damaged."""

from __future__ import annotations

import struct

import fake

from findleaks.allocators.gslice import find
from findleaks.allocators.gslice.slabs import MOST_PLACES, Place, find_magazines
from findleaks.allocators.memory import Memory
from findleaks.engine import load
from findleaks.target.arch import X86_64
from findleaks.target.base import Module

DATA, HEAP, STACK = 0x7F0000100000, 0x7F0000200000, 0x7FFF00000000
RECORD = 160  # more bytes than GSlice's variables
CLASSES = 31  # chunk sizes, for slabs of at most 4096 bytes


def variables(slabs: int) -> bytes:
    """The variables of a GSlice whose array of rings of slabs is at `slabs`; see slabs.py."""
    head = struct.pack("<2Q3I4xQI4xQ", 128, 4096, 0, 0, 0, 15_000, 0, 496)
    return (head + bytes(8) + struct.pack("<2QI4x2I", HEAP, HEAP, 0, 0, 0) + bytes(8) + struct.pack("<QI", slabs, 0)).ljust(RECORD, b"\0")


def glib(data: bytes, threads: int = 1) -> fake.FakeTarget:
    return fake.FakeTarget(
        {DATA: data, HEAP: bytes(0x8000), STACK: bytes(0x1000)},
        names={DATA: "/usr/lib/libglib-2.0.so.0.7400.6"},
        threads=[fake.thread(1 + number, STACK, thread_pointer=STACK + 0x200) for number in range(threads)],
        modules=[Module("/usr/lib/libglib-2.0.so.0.7400.6", DATA, DATA, DATA + len(data))],
        arch=X86_64,
    )


def test_many_places() -> None:
    """Memory that looks like GSlice's variables is read at most MOST_PLACES times, because each time all slabs are walked."""
    engine = load.load(X86_64)
    assert len(find(glib(variables(HEAP + 0x1000)), engine, ())) == 1
    assert len(find(glib(variables(HEAP + 0x1000) * 1000), engine, ())) == MOST_PLACES


def test_threads_with_the_same_memory() -> None:
    """An array of magazines is read once, however many threads have its address."""
    target = glib(variables(HEAP + 0x1000), threads=1000)
    own = HEAP + 0x4000
    target.write(STACK + 0x200, struct.pack("<4Q", own, own, 0, own))
    target.write(own, struct.pack("<3Q", own + 16, own + 16 * (1 + CLASSES), HEAP + 0x10))
    place = Place(DATA, RECORD, 4096, CLASSES, HEAP, HEAP, HEAP + 0x1000)
    assert find_magazines(target, Memory(target), place) == ([HEAP + 0x10], [own])
