"""Find native memory whose words keep no object alive: the collector's own structures, and tables
of weak references.

- The object space lists all pages, and all objects that have an object ID or finalizers.
- The VM refers to the table of frozen strings, which contains each of these strings.
- The list of a class's subclasses has entries of the form {class, next entry, …}.
- The table of traced allocations (traces.py) contains each traced object.

Sources: gc.c (struct rb_objspace), vm_core.h (rb_vm_t.frozen_strings, fstring_table), internal.h
(RSTRING_FSTR), class.c (struct rb_subclass_entry) of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.ruby.census import MASK, T_CLASS, T_ICLASS, T_MODULE, T_STRING
from findleaks.runtimes.ruby.tables import st_span

IN_TABLE = 1 << 29  # flag of a String that is in the table of frozen strings (FL_USER17)
SAMPLED = 8  # keys of a table that are examined
LARGEST_VM = 1 << 16  # bytes of a rb_vm_t that are searched
MOST_STRINGS = 1 << 26  # entries of a table of frozen strings
EXTENSION = 40  # words of a class, or of its extension, that are searched
SUPER = 16  # offset of a class's superclass
MOST_ENTRIES = 1 << 20  # entries of lists of subclasses that are followed
_CLASSES = (T_CLASS, T_MODULE, T_ICLASS)


def find_frozen_strings(memory: Memory, vm: int, size: int) -> Iterator[int]:
    """Find the tables of frozen strings to which the rb_vm_t at `vm` refers, and yield the address
    of the entries of each table. `size`: the size of the rb_vm_t in bytes."""
    for table in memory.words(vm, min(size, LARGEST_VM) // 8) or ():
        span = st_span(memory, table, MOST_STRINGS)
        if span is not None and _has_frozen_keys(memory, span.start, min(span.number, SAMPLED)):
            yield span.start


def _has_frozen_keys(memory: Memory, start: int, number: int) -> bool:
    """Return whether each of these entries has a frozen string as its key, and the same string as
    its value."""
    words = memory.words(start, 3 * number) or ()
    flags = [memory.word(key) or 0 for key, value in zip(words[1::3], words[2::3]) if key % 8 == 0 and key == value]
    return len(flags) == number and all(one & MASK == T_STRING and one & IN_TABLE for one in flags)


def find_subclass_entries(memory: Memory, blocks: Blocks, classes: Iterable[int], extension: int) -> Iterator[int]:
    """Yield the addresses of the entries in the lists of subclasses of these classes and modules.

    The lists begin in the extension of a class. `extension`: the offset in a class of the pointer
    to its extension. -1: the extension is in the class's slot, and each entry also refers to the
    previous entry."""
    seen: set[int] = set()
    for klass in classes:
        base = klass if extension < 0 else memory.word(klass + extension)
        found = blocks.lookup(base) if base and extension >= 0 else None
        words = EXTENSION if found is None else min(found[2] // 8, EXTENSION)
        for entry in (memory.words(base, words) or ()) if base else ():
            while entry not in seen and len(seen) < MOST_ENTRIES and blocks.find(entry) >= 0:
                pair = memory.words(entry, 2)
                if pair is None or not _is_entry(memory, klass, pair[0]) or (extension < 0 and not _is_linked(memory, entry)):
                    break
                seen.add(entry)
                yield entry
                entry = pair[1]


def _is_entry(memory: Memory, klass: int, other: int) -> bool:
    """Return whether an entry for the class `other` belongs to a list of `klass`, or is the entry
    for `klass` itself."""
    words = memory.words(other, SUPER // 8 + 1) if other and other % 8 == 0 else None
    if words is None or words[0] & MASK not in _CLASSES:
        return False
    return other == klass or words[SUPER // 8] == klass or (words[0] & MASK == T_ICLASS and words[1] == klass)


def _is_linked(memory: Memory, entry: int) -> bool:
    """Return whether the previous entry refers to this entry. Without this check, an array of class
    variables whose values are classes would look like an entry."""
    previous = memory.word(entry + 16)
    return bool(previous) and memory.word((previous or 0) + 8) == entry
