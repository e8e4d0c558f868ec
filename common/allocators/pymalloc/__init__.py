"""CPython's small-object allocator ("pymalloc"), read without symbols. Sources and layouts:
layout.py.

It serves requests of up to 512 bytes, from arenas that it gets from mmap, or from malloc if the
program asked for that (PyObject_SetArenaAllocator). Larger ones go to the process's malloc.

A free-threaded interpreter (3.13t and later) has a copy of mimalloc instead; PYTHONMALLOC=malloc
has no pymalloc either. With PYTHONMALLOC=debug the program's part of a block begins two words into
it, behind its size and a canary."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Allocator
from findleaks.allocators.images import images
from findleaks.allocators.memory import Memory
from findleaks.allocators.pymalloc.types import FREE_THREADED, READY, TYPE_SUBCLASS, Interpreter, is_ready
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import nonzero_pieces

LOOK = 32 << 20  # bytes of a file's initialised data searched for PyType_Type; it has 1 or 2 MB

STATIC_TYPES = 40  # types in an interpreter's data, at least (3.9 has 180)


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """See base.Finder: the allocators of all interpreters, also sub-interpreters' own (3.12+)."""
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
    """The files whose data has an interpreter."""
    files = {region.start for region in target.regions() if region.writable and region.name.startswith("/")}
    for image in images(target):
        initialised = [Range(start, min(end, start + LOOK)) for start, end in image.data if start in files]
        found = _type_of_types(target, engine, initialised)
        if found is not None:
            yield Interpreter(image, *found)


def _type_of_types(target: Target, engine: Engine, initialised: Sequence[Range]) -> Optional[tuple[int, int]]:
    """The address of PyType_Type in this file's data, and how objects begin (Interpreter.shift);
    None where the data has no interpreter.

    It is its own type: its second word behind the shift holds its address, and many other objects
    in the data name it as their type. `initialised`: the parts of the data that come from the
    file."""
    for start, end in initialised:
        for piece in nonzero_pieces(target, start, end):
            for metatype, shift in _own_types(target, engine, piece):
                named = (len(engine.search(one, metatype, metatype + 1)) for part in initialised for one in nonzero_pieces(target, *part))
                if sum(named) >= STATIC_TYPES:
                    return metatype, shift
    return None


def _own_types(target: Target, engine: Engine, piece: Piece) -> list[tuple[int, int]]:
    """Addresses of what may be a type of its own type, with how objects begin: values of words that
    hold the address of the word before, or (FREE_THREADED) of three words before."""
    word, memory = target.arch.word, Memory(target)
    within: array[int] = engine.search(piece, piece.address, piece.address + len(piece.data))
    data, _ = engine.gather((piece,), within, word)
    native = (word, sys.byteorder) == (8, target.arch.byteorder)
    values: Sequence[int] = memoryview(data).cast("Q") if native else target.arch.unpack(bytes(data))
    found = [(value, address - value - word) for address, value in zip(within, values) if address - value in (word, word + FREE_THREADED)]
    return [one for one in found if not one[1] or (word == 8 and is_ready(memory, sum(one), READY | TYPE_SUBCLASS))]
