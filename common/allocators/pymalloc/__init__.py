"""CPython's small-object allocator ("pymalloc"), read without symbols.

pymalloc serves requests of up to 512 bytes from arenas. It gets arenas from mmap, or from malloc if
the program requested this (PyObject_SetArenaAllocator). Larger requests go to the process's malloc.
layout.py has the sources and layouts.

A free-threaded interpreter (3.13t and later) has a copy of mimalloc instead. PYTHONMALLOC=malloc
also disables pymalloc. With PYTHONMALLOC=debug, the program's part of a block begins after two
words, the size and a canary."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Allocator
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.pymalloc.types import FREE_THREADED, READY, TYPE_SUBCLASS, Interpreter, is_ready
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import nonzero_pieces

# bytes of a file's initialised data that are searched for PyType_Type; CPython has 1 or 2 MB
LOOK = 32 << 20

STATIC_TYPES = 40  # the least number of types in an interpreter's data (3.9 has 180)


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the allocators of all interpreters, including those of sub-interpreters (3.12 and
    later). See base.Finder."""
    found: list[Allocator] = []
    for image, metatype, shift in interpreters(target, engine):
        if shift:
            continue
        from findleaks.allocators.pymalloc import locate
        from findleaks.allocators.pymalloc.instance import Pymalloc

        for number, state in enumerate(locate.states(target, engine, image)):
            found.append(Pymalloc(target, engine, image, state, metatype, taken, number))
    return found


def interpreters(target: Target, engine: Engine) -> Iterator[Interpreter]:
    """Yield the interpreters, one for each file whose data has one."""
    files = {region.start for region in target.regions() if region.writable and region.name.startswith("/")}
    for image in find_images(target):
        initialised = [Range(start, min(end, start + LOOK)) for start, end in image.data if start in files]
        found = _type_of_types(target, engine, initialised)
        if found is not None:
            yield Interpreter(image, *found)


def _type_of_types(target: Target, engine: Engine, initialised: Sequence[Range]) -> Optional[tuple[int, int]]:
    """Return the address of PyType_Type in this file's data, and the number of bytes before an
    object's reference count (Interpreter.shift). None if the data has no interpreter.

    PyType_Type is its own type, so its second word after the shift contains its own address. Many
    other objects in the data also have it as their type. `initialised` are the parts of the data
    that come from the file."""
    for start, end in initialised:
        for piece in nonzero_pieces(target, start, end):
            for metatype, shift in _own_types(target, engine, piece):
                named = (len(engine.search(one, metatype, metatype + 1)) for part in initialised for one in nonzero_pieces(target, *part))
                if sum(named) >= STATIC_TYPES:
                    return metatype, shift
    return None


def _own_types(target: Target, engine: Engine, piece: Piece) -> list[tuple[int, int]]:
    """Return (address, shift) of objects that may be their own type: a word contains the address of
    the word before it, or (FREE_THREADED) of the third word before it."""
    word, memory = target.arch.word, Memory(target)
    within: array[int] = engine.search(piece, piece.address, piece.address + len(piece.data))
    data, _ = engine.gather((piece,), within, word)
    native = (word, sys.byteorder) == (8, target.arch.byteorder)
    values: Sequence[int] = memoryview(data).cast("Q") if native else target.arch.unpack(bytes(data))
    found = [(value, address - value - word) for address, value in zip(within, values) if address - value in (word, word + FREE_THREADED)]
    return [one for one in found if not one[1] or (word == 8 and is_ready(memory, sum(one), READY | TYPE_SUBCLASS))]
