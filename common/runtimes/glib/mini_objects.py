"""Objects of GStreamer that are not instances of GObject: buffers, caps, messages, events and
others.

Such an object begins with its GType, which is the address of a TypeNode of a boxed type. A GValue
can also begin with this address, so the function that frees the object is checked.

Source: gst/gstminiobject.h (struct _GstMiniObject) of GStreamer 1.22 and 1.26, 64-bit
targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from findleaks.allocators.gtypes import GTypeNames
from findleaks.allocators.images import find_modules
from findleaks.allocators.memory import Memory
from findleaks.allocators.type_nodes import BOXED, MOST_SUPERS, TypeNodes
from findleaks.target.base import Range
from findleaks.target.ranges import range_at

LIBRARY = "libgstreamer-1.0"  # beginning of the name of the file
COPY, DISPOSE, FREE = 24, 32, 40  # offsets of functions in a GstMiniObject
BYTES = 64  # of a GstMiniObject


def read_types(memory: Memory, types: TypeNodes, names: GTypeNames) -> Mapping[int, str]:
    """Return the names of boxed types, by the addresses of their TypeNodes; none if the process
    does not use GStreamer."""
    if not find_modules(memory.target, (LIBRARY,)):
        return {}
    found = {}
    for node in types.nodes:
        members = memory.members(node + types.layout.children, "IIP")
        last = types.layout.supers + 8 * (members[1] & MOST_SUPERS) if members is not None else 0
        if last > types.layout.supers and memory.word(node + last) == BOXED:
            found[node] = names.quark(memory.int32(node + types.layout.name) or 0)
    return {node: name for node, name in found.items() if name}


def is_mini_object(memory: Memory, code: Sequence[Range], place: int, size: int) -> bool:
    """Whether a block of `size` bytes at `place` has the functions of a GstMiniObject. `code`:
    executable memory, sorted and disjoint."""
    functions = memory.words(place + COPY, 3) if size >= BYTES else None
    return bool(functions and functions[2]) and all(not one or range_at(code, one) is not None for one in functions or ())
