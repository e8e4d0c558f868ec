"""Find unused words in the blocks of generators, frames, sets and tuples. Unused words are not
references.

Since 3.13, an object is followed by the values of its attributes. When the object gets a dictionary
of its own, the words of the values are not cleared. The numbers of the values follow the values,
and are not initialized (Include/internal/pycore_dict.h, struct _dictvalues).

A generator contains a frame. The unused part of the frame's value stack contains earlier values;
after the generator has ended, all variables in the frame contain earlier values, too. Up to 3.10 a
frame is a separate object. Since 3.11 a frame object contains the frame of a function that has
ended. While the function runs, the frame is elsewhere, and its place in the frame object is not
written. The iterators of itertools.tee share buffers with room for 57 values, of which some are
written. A set contains a table of eight entries. When a larger table replaces this table, its words
are not cleared. A tuple has tp_basicsize + ob_size * tp_itemsize bytes. Its block may be larger,
because allocators round sizes up. The rest of the block then contains words of an earlier object.
An enum.IntEnum of 3.11, for example, has 56 bytes in a block of 64. The number of an int's digits
is the absolute value of ob_size; since 3.12 it is lv_tag >> 3.
A datetime without a time zone ends before the word for its time zone. Its allocator's block may
contain this word.
The result of os.stat and other structure sequences have more fields than items: ob_size is the
number of visible fields only (Objects/structseq.c).

Sources, CPython 3.9 to 3.14: Include/cpython/genobject.h (_PyGenObject_HEAD; 3.14:
Include/internal/pycore_interpframe_structs.h), Include/internal/pycore_frame.h (struct
_PyInterpreterFrame, frame states), up to 3.10 Include/cpython/frameobject.h (struct _frame),
Include/cpython/setobject.h or Include/setobject.h (PySetObject), Include/cpython/objimpl.h or
Include/internal/pycore_object.h (_PyObject_VAR_SIZE; ob_size follows the type),
Include/longintrepr.h or Include/cpython/longintrepr.h (struct _longobject),
Modules/itertoolsmodule.c (teedataobject: it, numread, running, nextlink and values follow the
type), Include/datetime.h (PyDateTime_DateTime: hashcode, hastzinfo, ten bytes of data, fold,
tzinfo).

This module states the contract of remains_native.py (common/native/cpython_remains.c) and
remains_reference.py."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple, Optional, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.loops import import_loops
from findleaks.engine.terms import EVERY_WORD
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.types import HAVE_GC, INLINE_VALUES, SUBCLASSES, TYPE_SUBCLASS, Types, release_of
from findleaks.runtimes.cpython.wanted_patterns import NOT_MADE, ROW, make_wanted
from findleaks.target.base import Piece, Range

BUFFER, FRAME_OBJECT, ATTRIBUTES, FRAME, SET, ITEMS = 4, 8, 16, 32, 64, 128
"""Bits of a type's kind. BUFFER: buffers of itertools.tee, and datetimes. FRAME_OBJECT: frames
since 3.11. ATTRIBUTES: since 3.13, objects that are followed by the values of their attributes.
FRAME: since 3.11, generators, coroutines and asynchronous generators; up to 3.10, frames. SET: set,
frozenset and their subtypes. ITEMS: tuples and their subtypes without hidden fields, types, and
subtypes of int and bytes with a dictionary. A free-threaded interpreter has no types with ITEMS,
because the patterns of its types already exclude the rest of a block."""

ENTRIES = 8  # number of the first word of the table in a set, from the count on
ENTRY_WORDS = 16  # words of that table

NUMBER, POINTER, FRAME_NUMBER, FRAME_POINTER = range(4)
"""How the end of the value stack is stored; see cpython_remains.c."""

_BUFFERS = ("itertools._tee_dataobject",)
_DATETIMES = ("datetime.datetime",)
_ZONE = 5  # word of a datetime with its time zone; hastzinfo is word 3
_VALUES = 5  # words of a buffer from its count of references to its first value

GENERATORS = ("generator", "coroutine", "async_generator")

_MOST_RANGES = 1 << 21  # maximum number of unused parts that are returned as ranges


class FrameLayout(NamedTuple):
    """Where the fields of an object's frame are, in words from the object's reference count; see
    cpython_remains.c. `begin`: the first word of the frame in a generator; 0 up to 3.10."""

    state: int
    top: int
    locals: int
    form: int
    begin: int = 0


NO_FRAMES = FrameLayout(0, 0, 0, NUMBER)
"""The layout if no type has the kind FRAME."""

_LAYOUTS = {
    "3.9": FrameLayout(14, 9, 8, FRAME_POINTER),
    "3.10": FrameLayout(0, 10, 8, FRAME_NUMBER),
    "3.11": FrameLayout(9, 18, 19, NUMBER, 10),
    "3.12": FrameLayout(8, 17, 18, NUMBER, 9),
    "3.13": FrameLayout(8, 17, 18, NUMBER, 9),
    "3.14": FrameLayout(8, 17, 19, POINTER, 9),
}


SIZES = 3
"""The numbers of a type in Layouts.sizes."""

_TAG_BITS = 3  # of lv_tag below the number of digits
_LARGEST = 1 << 16  # bytes of an object without its items, or of an item


class Layouts(NamedTuple):
    """`kinds`: the kind of each type, one byte per type. `frame`: the layout of frames, None if it
    is unknown. `sizes` ("I"): SIZES numbers for each type. For types with ITEMS, these are the
    bytes of a block before the first item, the bytes of an item, and the lowest bit of the number
    of items in its word; with BUFFER, the bytes before the first value, the bytes of a value, and
    the bytes of the number of values (1 or 4), which is in word 3 of the object; with ATTRIBUTES,
    the bytes before the values, and zeros; with FRAME_OBJECT, the bytes before the place for the
    frame, and zeros."""

    kinds: bytes
    frame: Optional[FrameLayout]
    sizes: array[int]


class Remains(NamedTuple):
    """The input of the loops. For `kinds` and `sizes` see Layouts. `grown` has for each type the
    number of the pattern of sets with a larger table, or 0.

    tails[ROW * p + n] is the number of the pattern that excludes the words of pattern p, and all
    words from n on. It is 0 if there are too many patterns; the unused parts are then ranges. The
    loops replace NOT_MADE by WANTED if an object needs the pattern."""

    kinds: bytes
    layout: FrameLayout
    sizes: array[int]
    grown: bytes
    tails: bytearray


def find_layouts(known: Types, version: str, word: int) -> Layouts:
    """Return the kinds of types, the sizes of their objects, and the layout of frames. `word` is
    the size of a word in bytes."""
    release = release_of(version)
    layout = _LAYOUTS.get(release) if word == 8 else None
    framed = () if layout is None else GENERATORS if layout.form in (NUMBER, POINTER) else ("frame",)
    kinds, sizes = bytearray(len(known)), array("I", [0] * (SIZES * len(known)))
    objects = ("frame",) if framed == GENERATORS else ()
    for names, kind in ((framed, FRAME), (objects, FRAME_OBJECT), (("set", "frozenset"), SET)):
        for number in known.list_derived(names):
            kinds[number] |= kind
    if not known.shift:
        frame_bytes = (layout.locals - layout.begin) * word if layout is not None else 0
        for number in known.list_derived(objects):
            place = known.offsets[number] + known.basic_size(number) - frame_bytes
            sizes[SIZES * number] = place if 0 < place < _LARGEST else 0
        for number in known.list_derived(_BUFFERS) if word == 8 else ():
            kinds[number] |= BUFFER
            sizes[SIZES * number : SIZES * (number + 1)] = array("I", [known.offsets[number] + _VALUES * word, word, 4])
        # A subtype of datetime has the word in each object.
        for number in known.list_derived(_DATETIMES) if word == 8 else ():
            if known.basic_size(number) == (_ZONE + 1) * word and not known.flags[number] & HAVE_GC:
                kinds[number] |= BUFFER
                sizes[SIZES * number : SIZES * (number + 1)] = array("I", [known.offsets[number] + _ZONE * word, word, 1])
        _add_items(known, kinds, sizes, release not in ("3.9", "3.10", "3.11"))
    return Layouts(bytes(kinds), layout, sizes)


def _add_items(known: Types, kinds: bytearray, sizes: array[int], has_tag: bool) -> None:
    """Add the types whose objects are followed by items, or by the values of their attributes.
    `has_tag`: whether the number of an int's digits is in lv_tag. Tuples of C code may have hidden
    fields after their items."""
    structures = {number for number in range(known.foreign) if known.flags[number] & SUBCLASSES["tuple"]}
    for number, flags in enumerate(known.flags):
        is_number, is_tuple = flags & SUBCLASSES["int"], flags & SUBCLASSES["tuple"]
        if is_tuple and not {number, *known.bases(number)}.isdisjoint(structures):
            continue
        # The collector has an int only if it has a dictionary.
        is_collected = flags & HAVE_GC and (is_number or flags & SUBCLASSES["bytes"])
        has_items = is_tuple or flags & TYPE_SUBCLASS or is_collected
        if has_items or flags & INLINE_VALUES:
            size, item = known.basic_size(number), known.item_size(number)
            if max(size, item) < _LARGEST and (has_items or not item):
                kinds[number] |= ITEMS if has_items else ATTRIBUTES
                lowest = _TAG_BITS if is_number and has_tag else 0
                sizes[SIZES * number : SIZES * (number + 1)] = array("I", [known.offsets[number] + size, item, lowest])


def object_remains(
    engine: Engine,
    blocks: Blocks,
    pieces: Iterable[Piece],
    tally: ObjectTally,
    layouts: Layouts,
    add: Callable[[int, int], int],
) -> list[Range]:
    """Set the tally's patterns of objects with unused words. Returns the unused parts of objects
    for which there is no pattern.

    `add` is called with the number of a pattern and a mask of words. It returns the number of a
    pattern that excludes the words of both; 0 if there are too many patterns."""
    if not any(layouts.kinds):
        return []
    grown = bytes(
        add(live, (1 << ENTRY_WORDS) - 1 << offset // engine.arch.word + ENTRIES) if kind & SET else 0
        for kind, live, offset in zip(layouts.kinds, tally.lives, tally.offsets)
    )
    tails = bytearray([NOT_MADE]) * (256 * ROW)
    remains = Remains(layouts.kinds, layouts.frame or NO_FRAMES, layouts.sizes, grown, tails)
    loops = cast(_Loops, import_loops(engine, "findleaks.runtimes.cpython", "remains"))
    found: list[Range] = []
    for piece in pieces:
        bounds = loops.object_remains(engine, blocks, piece, tally, remains)
        if make_wanted(tails, lambda pattern, first: add(pattern, EVERY_WORD & -(1 << first))):
            bounds = loops.object_remains(engine, blocks, piece, tally, remains)
        pairs = islice(zip(bounds[::2], bounds[1::2]), max(_MOST_RANGES - len(found), 0))
        found += (Range(*pair) for pair in pairs)
    return found


class _Loops(Protocol):
    """The interface of remains_native.py and of its reference, remains_reference.py."""

    def object_remains(self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally, remains: Remains) -> array[int]: ...
