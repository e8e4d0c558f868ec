"""Read the objects in the store of a PHP process, with their blocks and classes.

Sources: Zend/zend_types.h (zend_object), zend_objects_API.c and .h (zend_object_properties_size),
zend.h (zend_class_entry, whose second member is the name) of PHP 8.1 to 8.4."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.allocators.zend.layout import PAGE, SIZES
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.php.engine import VALUE
from findleaks.runtimes.php.engine_globals import IS_OBJECT, TYPE_MASK, Store
from findleaks.runtimes.php.tables import read_string
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

FLAGS_AT = 28  # offset in a 64-bit zend_class_entry: ce_flags 4, default_properties_count 4
USE_GUARDS = 1 << 11 | 1 << 24 | 1 << 30  # ZEND_ACC_USE_GUARDS of different versions
OBJECT = 40  # bytes of a zend_object before its properties
# for each size of blocks below a page, the next smaller one
SMALLER = dict(zip(SIZES, (0, *SIZES)))


class Objects(NamedTuple):
    """Live objects, ascending by address.

    `addresses`, `blocks` and `numbers` are columns: the address of the zend_object, the index of
    its block, and the number of its class. `lengths` has the bytes from the zend_object to the end
    of its block. `classes` and `names` have the address and the name of each class, by number, and
    `before` the bytes of a block before the zend_object."""

    addresses: Sequence[int]
    blocks: array[int]  # "I"
    numbers: array[int]  # "I"
    lengths: array[int]  # "Q"
    classes: Sequence[int]
    names: Sequence[str]
    before: Sequence[int]


def class_name(memory: Memory, entry: int) -> str:
    """Return the name of the class whose zend_class_entry is at `entry`. In the
    name of an anonymous class, a NUL and the name of a file follow, which are omitted."""
    name = read_string(memory, memory.word(entry + memory.size) or 0)
    return name.split("\0")[0] if name else f"class at {entry:#x}"


def find_unused_ends(memory: Memory, objects: Objects) -> Iterator[tuple[int, int]]:
    """Yield (index of the block, bytes used) for each object whose properties end before its block,
    in 64-bit programs. PHP rounds the size of a block up, and does not clear the rest. An
    object is omitted if a smaller block would be enough, because other data may be in its block."""
    used = [OBJECT + properties_bytes(memory, entry) for entry in objects.classes]
    before = objects.before
    for index, number, length in zip(objects.blocks, objects.numbers, objects.lengths):
        size = before[number] + length
        smaller = SMALLER.get(size, max(SIZES[-1], size - PAGE))
        if used[number] < length and smaller < before[number] + used[number]:
            yield index, before[number] + used[number]


def properties_bytes(memory: Memory, entry: int) -> int:
    """Return the bytes of the properties of an object of a class. For a class with methods such
    as __get, PHP adds the size of one property."""
    flags, count = memory.members(entry + FLAGS_AT, "II") or (0, 0)
    return VALUE * (count + bool(flags & USE_GUARDS))


def read_objects(target: Target, engine: Engine, blocks: Blocks, store: Store) -> Objects:
    """Return the objects of a store. Entries that are free, or that refer to no object in a block
    in use, are omitted."""
    memory = Memory(target)
    entries = memory.words(store.table, store.top) or ()
    numbered = sorted((entry, number) for number, entry in enumerate(entries) if number and not entry & 1)
    wanted = array("Q", (entry for entry, _ in numbered))
    order, word = target.arch.word_format[0], target.arch.word_format[1]
    form = struct.Struct(f"{order}4xII4x{word}" if memory.size == 8 else f"{order}4xII{word}")
    records, missing = read_records(target, engine, wanted, form.size)
    indices, sizes = blocks.find_all(wanted)
    sound = _sound(numbered, form.iter_unpack(records), indices, missing, blocks)
    numbers: dict[int, int] = {}
    before: list[int] = []
    addresses, where, kinds, lengths = array("Q"), array("I"), array("I"), array("Q")
    for address, index, entry, place in sound:
        number = numbers.setdefault(entry, len(numbers))
        if number == len(before):
            before.append(address - blocks.address(index))
        if before[number] > sizes[place]:
            continue
        addresses.append(address)
        where.append(index)
        kinds.append(number)
        lengths.append(sizes[place] - before[number])
    return Objects(addresses, where, kinds, lengths, list(numbers), [class_name(memory, entry) for entry in numbers], before)


def _sound(
    numbered: Sequence[tuple[int, int]], records: Iterator[tuple[int, ...]], indices: Sequence[int], missing: set[int], blocks: Blocks
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (address, index of the block, class, place in `numbered`) of the entries that refer to
    objects."""
    for place, ((address, number), (kind, handle, entry), index) in enumerate(zip(numbered, records, indices)):
        sound = kind & TYPE_MASK == IS_OBJECT and handle == number and index != NO_BLOCK and place not in missing
        if sound and blocks.state(index) == State.IN_USE:
            yield address, index, entry, place
