"""Which variable of a module, or key of a dictionary, a word in a dictionary's table is.

Source: Include/internal/pycore_dict.h (struct _dictkeysobject, PyDictKeyEntry, PyDictUnicodeEntry, DK_ENTRIES) and Objects/dictobject.c
(new_keys_object, USABLE_FRACTION) of CPython 3.11 to 3.14. A table has a head, indices of one to eight bytes, and entries in the order
in which they were put in: key and value, or hash, key and value where not all keys are strings. Before 3.11 it had another head.
"""

from __future__ import annotations

from findleaks.allocators.memory import Memory
from findleaks.errors import UnreadableMemory
from findleaks.runtimes.cpython.types import Types

GENERAL, UNICODE = 0, 1
"""Kinds of tables: any keys, strings only."""

FIRST = 8
"""Entries in which a module's `__name__` is looked for. It is the first one that a module has."""


def variable(memory: Memory, known: Types, start: int, size: int, address: int) -> str:
    """What the word at `address` is to the table in the block at `start`: "Python variable: shop.orders.cache" where the dictionary is a
    module's, 'value of "name" in a Python dict', or "" for a block that is no table, and for words that are no values."""
    word = memory.size
    head = 3 * word + 8
    if size < head + 2 * word or address % word:
        return ""
    try:
        data = memory.target.read(start, head)
    except UnreadableMemory:
        return ""
    log_slots, log_indices, kind = data[word : word + 3]
    wide = (log_slots >= 8) + (log_slots >= 16) + (log_slots >= 32)
    if not 3 <= log_slots <= 48 or log_indices != log_slots + wide or kind not in (GENERAL, UNICODE):
        return ""
    usable, entries = memory.arch.unpack(data[word + 8 :])
    stride = 2 * word if kind == UNICODE else 3 * word
    first = start + head + (1 << log_indices)
    if usable + entries > (2 << log_slots) // 3 or first + entries * stride > start + size:
        return ""
    entry, rest = divmod(address - first, stride)
    if not 0 <= entry < entries or rest != stride - word:
        return ""
    key = known.text(memory.word(address - word) or 0)
    if not key:
        return ""
    for at in range(first + stride, first + min(entries, FIRST) * stride + 1, stride):
        pair = memory.words(at - 2 * word, 2)
        if pair is not None and known.text(pair[0], 8) == "__name__":
            module = known.text(pair[1])
            return f"Python variable: {module}.{key}" if module else ""
    return f'value of "{key}" in a Python dict'
