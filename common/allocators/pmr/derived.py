"""Find the virtual tables of classes that a program derives from a class of libstdc++.

Source: the Itanium C++ ABI. The type information of a class with one base class is {virtual table,
name, type information of the base}. A virtual table begins with 0, the address of the type
information, and the addresses of functions; objects begin with the address of the first of these.
"""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Target
from findleaks.target.ranges import nonzero_pieces, region_at

_NAME, _BASE = 8, 16  # offsets in type information
_LEVELS, _LONGEST = 4, 256  # levels of derived classes, and bytes of a name


def find_derived_tables(target: Target, engine: Engine, info: int) -> Iterator[int]:
    """Yield the addresses that objects of classes begin with that are derived from the class with
    the type information at `info`, each with one base class."""
    memory, known = Memory(target), {info}
    pieces = list(_read_constants(target))
    bases = [info]
    for _ in range(_LEVELS):
        places = [place - _BASE for piece in pieces for place in engine.search_any(piece, bases)]
        bases = sorted({place for place in places if place not in known and _is_class(memory, place)})
        if not bases:
            return
        known.update(bases)
        for piece in pieces:
            for place in engine.search_any(piece, bases):
                if memory.word(place - 8) == 0 and memory.word(place + 8):
                    yield place + 8


def _read_constants(target: Target) -> Iterator[Piece]:
    """Yield the memory of loaded files that is not code."""
    for region in target.regions():
        if region.readable and not region.executable and region_at(target.modules(), region.start) is not None:
            yield from nonzero_pieces(target, region.start, region.end)


def _is_class(memory: Memory, info: int) -> bool:
    """Whether type information may be at an address: its name is mangled."""
    name = memory.c_string(memory.word(info + _NAME) or 0, _LONGEST).lstrip(b"*")
    return name[:1].isdigit() or name[:1] in (b"N", b"S", b"Z")
