"""Finds unused words in generators, frames and sets; they are not references.

A generator contains a frame. The part of the frame's value stack that is not in use, and all
variables once the generator has ended, still contain earlier values. Up to 3.10 a frame is an
object of its own. A set contains a table of eight entries, which keeps its contents when a larger
table replaces it.

Sources, CPython 3.9 to 3.14: Include/cpython/genobject.h (_PyGenObject_HEAD; 3.14:
Include/internal/pycore_interpframe_structs.h), Include/internal/pycore_frame.h (struct
_PyInterpreterFrame, frame states), up to 3.10 Include/cpython/frameobject.h (struct _frame),
Include/cpython/setobject.h or Include/setobject.h (PySetObject).

The contract of remains_native.py (common/native/cpython_remains.c) and remains_reference.py."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple, Optional, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import EVERY_WORD, LAST_WORD
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.types import Types
from findleaks.target.base import Piece, Range

FRAME, SET = 32, 64
"""Bits of a type's kind. FRAME: generators, coroutines and asynchronous generators, or up to 3.10
frames. SET: set, frozenset and their subtypes."""

ENTRIES = 8  # number of the first word of the table in a set, from the count on
ENTRY_WORDS = 16  # words of that table

NUMBER, POINTER, FRAME_NUMBER, FRAME_POINTER = range(4)
"""How the end of the value stack is stored; see cpython_remains.c."""

GENERATORS = ("generator", "coroutine", "async_generator")


class FrameLayout(NamedTuple):
    """Where objects have their frame, in words from the count; see cpython_remains.c."""

    state: int
    top: int
    locals: int
    form: int


NO_FRAMES = FrameLayout(0, 0, 0, NUMBER)
"""Only if no type has the kind FRAME."""

_LAYOUTS = {
    "3.9": FrameLayout(0, 9, 8, FRAME_POINTER),
    "3.10": FrameLayout(0, 10, 8, FRAME_NUMBER),
    "3.11": FrameLayout(9, 18, 19, NUMBER),
    "3.12": FrameLayout(8, 17, 18, NUMBER),
    "3.13": FrameLayout(8, 17, 18, NUMBER),
    "3.14": FrameLayout(8, 17, 19, POINTER),
}


Known = tuple[bytes, Optional[FrameLayout]]
"""Result of `find_layout`."""


class Remains(NamedTuple):
    """Input of the loops. `kinds` has a byte for each type; `grown` the pattern of sets with a
    larger table; tails[n] the pattern that excludes the words from n on; 0: there is none."""

    kinds: bytes
    layout: FrameLayout
    tails: bytes
    grown: bytes


def find_layout(known: Types, version: str, word: int) -> Known:
    """Return the kind of each type, and the layout of frames, None if unknown."""
    release = ".".join(version.split(" ")[0].split(".")[:2])
    layout = _LAYOUTS.get(release) if word == 8 else None
    framed = () if layout is None else GENERATORS if layout.form in (NUMBER, POINTER) else ("frame",)
    kinds = bytearray(len(known))
    for names, kind in ((framed, FRAME), (("set", "frozenset"), SET)):
        for number in known.derived(names):
            kinds[number] |= kind
    return bytes(kinds), layout


def object_remains(
    engine: Engine,
    blocks: Blocks,
    pieces: Iterable[Piece],
    tally: ObjectTally,
    known: Known,
    add: Callable[[int, int], int],
) -> list[Range]:
    """Set the tally's patterns of objects with unused words; return the unused parts of long
    frames.

    `known` is the result of `find_layout`. `add` returns the number of the pattern with the words
    of another pattern and of a mask; 0 if there are too many."""
    kinds, layout = known
    framed = [number for number, kind in enumerate(kinds) if kind & FRAME]
    if not any(kinds):
        return []
    # All generators have the same pattern; a type with another one is left out.
    plain = tally.lives[framed[0]] if framed else 0
    kinds = bytes(kind & ~FRAME if kind & FRAME and tally.lives[number] != plain else kind for number, kind in enumerate(kinds))
    word, layout = engine.arch.word, layout or NO_FRAMES
    least = tally.offsets[framed[0]] // word + layout.locals if framed else LAST_WORD
    tails = bytes(add(plain, EVERY_WORD & -(1 << first)) if first >= least else 0 for first in range(LAST_WORD))
    grown = bytes(
        add(tally.lives[number], (1 << ENTRY_WORDS) - 1 << offset // word + ENTRIES) if kinds[number] & SET else 0
        for number, offset in enumerate(tally.offsets)
    )
    remains = Remains(kinds, layout, tails, grown)
    name = "remains_native" if engine.name == "native" else "remains_reference"
    loops = cast(_Loops, import_module(f"findleaks.runtimes.cpython.{name}"))
    found: list[Range] = []
    for piece in pieces:
        bounds = loops.object_remains(engine, blocks, piece, tally, remains)
        found += (Range(*pair) for pair in zip(bounds[::2], bounds[1::2]))
    return found


class _Loops(Protocol):
    """The interface of remains_native.py and of its reference, remains_reference.py."""

    def object_remains(self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally, remains: Remains) -> array[int]: ...
