"""Find the variable whose elements are many classes, or many objects with singleton classes.

Ruby's classes refer to each other in many ways, so that memory which classes retain is attributed
to no variable. But if a program keeps thousands of them in one collection, the collection is the
cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from findleaks.allocators.memory import Memory
from findleaks.formatting import number
from findleaks.runtimes.base import Variable
from findleaks.runtimes.ruby.census import MASK, T_CLASS, T_MODULE
from findleaks.runtimes.ruby.remedies import CLASS, SINGLETON
from findleaks.runtimes.ruby.tables import Tables, elements
from findleaks.runtimes.ruby.values import Values
from findleaks.target.interruptible import interruptible

OF_CLASSES = (CLASS, SINGLETON)
"""Types for whose objects a variable is looked for."""
_LEAST = 1000  # elements that are classes, or have a singleton class
_SHARE = 0.25  # of the objects of the type
# Variables that are examined, the longest ones; elements of each that are examined, at equal
# distances; elements that are read of a variable.
_VARIABLES, _SAMPLE, _MOST = 64, 1 << 12, 1 << 22


def find_class_holder(memory: Memory, values: Values, variables: Iterable[Variable], type_name: str, objects: int) -> str:
    """Return "KEEP (Ruby variable): Array, 20,000 elements" for the variable that refers to most of
    the `objects` objects of a type; "" if no variable refers to many of them. Raises
    Interrupted."""
    best, most = "", max(_LEAST, int(_SHARE * objects)) - 1
    collections = [one for one in variables if (one.length or 0) > most and one.unit != "bytes"]
    collections.sort(key=lambda one: -(one.length or 0))
    for one in interruptible(memory.target, collections[:_VARIABLES]):
        found = read_elements(memory, values, one.value)
        step = 1 + len(found) // _SAMPLE
        count = step * sum(_has_class(memory, values, value, type_name) for value in found[::step])
        if count > most:
            best, most = f"{one.name} (Ruby variable): {one.what}, {number(one.length or 0)} {one.unit}", count
    return best


def read_elements(memory: Memory, values: Values, value: int) -> Sequence[int]:
    """Return the elements of an Array, or the keys, then the values, of a Hash."""
    found = elements(memory, value, values.long)
    if found is not None:
        return memory.words(found.start, min(found.length, _MOST)) or ()
    pairs = list(Tables(memory).pairs(value, values.long))
    return [*(pair.key for pair in pairs), *(pair.value for pair in pairs)]


def _has_class(memory: Memory, values: Values, value: int, type_name: str) -> bool:
    """Whether an element is a class, or, for singleton classes, an object that has one."""
    head: Sequence[int] = (memory.words(value, 2) or ()) if value and value % 8 == 0 else ()
    if not head:
        return False
    if head[0] & MASK in (T_CLASS, T_MODULE):
        return True
    flags = memory.word(head[1]) or 0 if type_name == SINGLETON and head[1] % 8 == 0 else 0
    return flags & MASK == T_CLASS and bool(flags & values.singleton)
