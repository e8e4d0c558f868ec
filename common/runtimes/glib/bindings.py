"""Find the GBindings of g_object_bind_property, and the objects that they connect.

No object refers to a GBinding: it holds a reference to itself until g_binding_unbind, or until its
source or its target is finalized. Each of the two objects then calls a function of the binding
(g_object_weak_ref).

Source: gobject/gbinding.c (struct _GBinding, BindingContext) of GLib 2.50 to 2.84, 64-bit targets.
From 2.68 on, the first member after the GObject is the address of a BindingContext, which has three
GWeakRefs: to the binding, the source and the target. Before, the members are the addresses of the
source and the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.runtimes.dependent import Dependent
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

NAME = "GBinding"
_CONTEXT = 24  # offset of the first member after the GObject
_LOCK = 1  # bit of a GWeakRef
_PHRASE = "binding of a property"


class Binding(NamedTuple):
    """A binding as a dependent of its target, or of its source if the target is unknown. If both
    are unknown, the binding counts as in use. `weak`: words of the binding that refer to its
    objects, and that are not references."""

    dependent: Dependent
    weak: Sequence[Range]


def find_bindings(memory: Memory, bindings: Iterable[int], is_instance: Callable[[int], bool]) -> Iterator[Binding]:
    """Yield each GBinding that connects two objects (`bindings`: the addresses of all)."""
    for address in bindings:
        place, lock = address + _CONTEXT, 0
        words = memory.words(place, 2) or (0, 0)
        context = memory.words(words[0], 3) if words[0] else None
        if context is not None and context[0] & ~_LOCK == address:
            place, words, lock = words[0] + 8, context[1:], _LOCK
        objects = [(place + 8 * number, word & ~lock) for number, word in enumerate(words)]
        if not any(word for _, word in objects):
            continue  # the binding was removed, and no longer holds a reference to itself
        known = [(place, word) for place, word in objects if word and word != address and is_instance(word)]
        owner = known[-1][1] if known else 0
        yield Binding(Dependent(owner, address, _PHRASE), [Range(place, place + 8) for place, _ in known])
