"""Name words in a dictionary's table: the variable of a module, or the key.

Source: Include/internal/pycore_dict.h (struct _dictkeysobject, PyDictKeyEntry, PyDictUnicodeEntry,
DK_ENTRIES) and Objects/dictobject.c (new_keys_object, USABLE_FRACTION) of CPython 3.9 to 3.14. A
table has a head, indices of one to eight bytes, and entries in the order of insertion. An entry is
key and value; if not all keys are strings, it is hash, key and value. Before 3.11
(Objects/dict-common.h) the head contains the number of slots instead of its logarithm, and every
entry has a hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.errors import UnreadableMemory
from findleaks.runtimes.base import Variable
from findleaks.runtimes.cpython.types import Types

GENERAL, UNICODE, SPLIT = 0, 1, 2  # kinds of tables: any keys, strings only, keys without values

MOST = 1 << 16  # maximum number of variables listed of a module

OTHERS = ("__builtins__", "__spec__", "__loader__")  # in every module; not assigned by the program

FIRST = 8  # entries searched for a module's `__name__`, normally its first entry


class Table(NamedTuple):
    """A table: the address of its first entry, the bytes of an entry, and the number of entries.
    Key and value are at the end of an entry."""

    first: int
    stride: int
    entries: int


def table(memory: Memory, start: int, size: int, kinds: Sequence[int] = (GENERAL, UNICODE)) -> Optional[Table]:
    """Return the table at `start`, which is followed by `size` bytes of its block; None if there is
    no table of these kinds. Before 3.11 the kind is unknown."""
    word = memory.size
    head = 3 * word + 8
    if size < head + 2 * word:
        return None
    try:
        data = memory.target.read(start, head)
    except UnreadableMemory:
        return None
    log_slots, log_indices, kind = data[word : word + 3]
    wide = (log_slots >= 8) + (log_slots >= 16) + (log_slots >= 32)
    if not 3 <= log_slots <= 48 or log_indices != log_slots + wide or kind not in kinds:
        return _old_table(memory, start, size)
    usable, entries = memory.arch.unpack(data[word + 8 :])
    stride = 3 * word if kind == GENERAL else 2 * word
    first = start + head + (1 << log_indices)
    if usable + entries > (2 << log_slots) // 3 or first + entries * stride > start + size:
        return None
    return Table(first, stride, entries)


def _old_table(memory: Memory, start: int, size: int) -> Optional[Table]:
    """Return the table at `start`, in the layout of 3.9 and 3.10; None if there is none."""
    word = memory.size
    words = memory.words(start, 5)
    if words is None:
        return None
    _, slots, look_up, usable, entries = words
    if slots < 8 or slots & (slots - 1) or slots > 1 << 48 or usable + entries > 2 * slots // 3 or look_up < 4096:
        return None
    index = 1 if slots <= 0xFF else 2 if slots <= 0xFFFF else 4 if slots <= 0xFFFFFFFF else 8
    first = start + 5 * word + slots * index
    return Table(first, 3 * word, entries) if first + entries * 3 * word <= start + size else None


def variable(memory: Memory, known: Types, start: int, size: int, address: int) -> str:
    """Return a phrase about the word at `address` in the table in the block at `start`.

    It is "Python variable: shop.orders.cache" if the dictionary is a module's, else 'value of
    "name" in a Python dict'. Returns "" for a block that is not a table, and for words that are not
    values."""
    word = memory.size
    found = table(memory, start, size) if address % word == 0 else None
    if found is None:
        return ""
    entry, rest = divmod(address - found.first, found.stride)
    if not 0 <= entry < found.entries or rest != found.stride - word:
        return ""
    key = known.text(memory.word(address - word) or 0)
    if not key:
        return ""
    module = _module_of(memory, known, found)
    if module is not None:
        return f"Python variable: {module}.{key}" if module else ""
    return f'value of "{key}" in a Python dict'


def _module_of(memory: Memory, known: Types, found: Table) -> Optional[str]:
    """Return the name of the module whose dictionary has this table; "" if the name cannot be read;
    None if the dictionary is not a module's."""
    for _, key, value in items(memory, found, FIRST):
        if known.text(key, 8) == "__name__":
            return known.text(value)
    return None


def items(memory: Memory, found: Table, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield (address of the value, key, value) of a table's `most` first entries."""
    for end in range(found.first + found.stride, found.first + min(found.entries, most) * found.stride + 1, found.stride):
        pair = memory.words(end - 2 * memory.size, 2)
        if pair is not None:
            yield end - memory.size, pair[0], pair[1]


def of_module(memory: Memory, known: Types, module: int, size_at: Callable[[int], int]) -> Iterator[Variable]:
    """Yield the variables of the module object at this address.

    `size_at` returns the bytes of a block in use after an address. Source:
    Include/internal/pycore_moduleobject.h and Objects/moduleobject.c (md_dict is the first field),
    Include/cpython/dictobject.h (ma_keys after ma_used and ma_version_tag) of CPython 3.9 to
    3.14."""
    word = memory.size
    dictionary = memory.word(module + 2 * word)
    keys = memory.word(dictionary + known.shift + 4 * word) if dictionary else None
    found = table(memory, keys, size_at(keys)) if keys else None
    name = _module_of(memory, known, found) if found is not None else None
    if found is None or not name:
        return
    for at, key, value in items(memory, found, MOST):
        bound = known.text(key) if value and size_at(value) else ""
        if bound and bound not in OTHERS:
            yield Variable(f"{name}.{bound}", at, value)
