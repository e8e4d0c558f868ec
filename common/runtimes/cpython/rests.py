"""Excludes the words behind the end of tuples and code objects in their blocks.

An allocator rounds sizes up, and the rest of a block still has words of an earlier object. The size
of such an object is tp_basicsize + ob_size * tp_itemsize (Include/cpython/object.h, _PyObject_
VAR_SIZE of CPython 3.9 to 3.14); ob_size follows the type."""

from __future__ import annotations

from array import array

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Blocks, Engine
from findleaks.runtimes.cpython.borrowed import Borrowed
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.types import SUBCLASSES, Types
from findleaks.target.base import Target

SIZE = 2  # word of ob_size in an object


def exclude_rests(target: Target, engine: Engine, blocks: Blocks, tally: ObjectTally, known: Types, borrowed: Borrowed) -> None:
    """Set the tally's patterns of the blocks of these objects. Objects of free-threaded
    interpreters have the pattern already."""
    word = target.arch.word
    sizes = {
        number: (known.offsets[number] + known.basic_size(number), known.item_size(number))
        for number, flags in enumerate(known.flags)
        if not known.shift and (flags & SUBCLASSES["tuple"] or known.plain_name(number) == "code")
    }
    indices = [index for index, number in enumerate(tally.found) if number in sizes]
    numbers = [tally.found[index] for index in indices]
    places = array("Q", (blocks.address(index) + known.offsets[number] + SIZE * word for index, number in zip(indices, numbers)))
    data, missing = read_records(target, engine, places, word)
    for at, (index, number, count) in enumerate(zip(indices, numbers, target.arch.unpack(bytes(data)))):
        first, item = sizes[number]
        end = -(-(first + count * item) // word)
        if end * word < blocks.size(index) and at not in missing:
            tally.patterns[index] = borrowed.all_from(number, end)
