"""The nodes of GObject's type system, which contain the sizes of instances.

An instance begins with a pointer to its class, and the class with the address of its TypeNode.
Private data of an instance precedes it in the same block, so that pointers to the instance do not
refer to the start of the block.

Source: gobject/gtype.c of GLib 2.74 and 2.84 (struct _TypeNode, _InstanceData), 64-bit targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.images import find_images, find_modules
from findleaks.allocators.memory import Memory
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class NodeLayout(NamedTuple):
    """Offsets in a TypeNode, and the bit that marks types with instances.

    `children` is the offset of `n_children` (32 bits), bit fields (32 bits) and `children`.
    supers[0] is the type itself."""

    children: int
    data: int
    name: int
    supers: int
    instantiatable: int


LAYOUTS = (NodeLayout(16, 32, 40, 72, 1 << 18), NodeLayout(8, 24, 32, 64, 1 << 20))
"""The layouts of GLib 2.26 to 2.74, and of 2.84."""
MOST_SUPERS = 0xFF  # mask of `n_supers` in the bit fields
CLASS, SIZES = 56, 64  # offsets of `class` and of `instance_size` in InstanceData
FUNDAMENTAL = 255 << 2
"""The largest number of a fundamental type. Its GType is a number, such as 80 for GObject. For
other types it is the address of the TypeNode."""

INTERFACE, BOXED = 2 << 2, 18 << 2  # the GTypes of interfaces and of boxed types
WITHOUT_BITS = (INTERFACE, BOXED)  # fundamental types whose bits can be 0

LIBRARY = "libgobject-2.0"  # beginning of the name of the file
MOST_TYPES = 1 << 16
BUILDER_MAGIC, MAGIC_WORD = 3087242682, 16
"""Value and number of the word of a builder of g_variant_builder_new (struct heap_builder in
glib/gvariant.c) that stays when the builder has ended. The reference count follows."""
LEAST_FUNDAMENTAL = 4  # fewest fundamental types of a process that uses GObject; GLib has 22


class InstanceType(NamedTuple):
    """A type whose class exists. `size` and `private` are the bytes of an instance and of the
    private data before it. `fundamental`: the number of the type that it is derived from."""

    node: int
    class_address: int
    size: int
    private: int
    fundamental: int


class TypeNodes(NamedTuple):
    """The addresses of the TypeNodes of a process."""

    layout: NodeLayout
    nodes: Sequence[int]

    def read(self, memory: Memory) -> dict[int, InstanceType]:
        """Return the types that have instances, by the addresses of their classes."""
        found = (read_type(memory, self.layout, node) for node in self.nodes)
        return {one.class_address: one for one in found if one is not None}


def read_type(memory: Memory, layout: NodeLayout, node: int) -> Optional[InstanceType]:
    """Return the type of instances with this TypeNode; None if there is none, or if it has no class
    yet."""
    members = memory.members(node + layout.children, "IIP")
    data = memory.word(node + layout.data) if members is not None and members[1] & layout.instantiatable else None
    address = memory.word(data + CLASS) if data else None
    sizes = memory.members(data + SIZES, "HH") if address and data else None
    if not address or sizes is None or members is None or sizes[0] < 8:
        return None
    return InstanceType(node, address, sizes[0], sizes[1], memory.word(node + layout.supers + 8 * (members[1] & MOST_SUPERS)) or 0)


def find_types(memory: Memory) -> TypeNodes:
    """Find the types of a process. The writable memory of libgobject has an array of the
    fundamental types, by number."""
    best = TypeNodes(LAYOUTS[0], [])
    if memory.size != 8 or not find_modules(memory.target, (LIBRARY,)):
        return best
    for image in find_images(memory.target):
        if image.name.startswith(LIBRARY):
            for layout in LAYOUTS:
                nodes = _find_fundamental(memory, layout, image.data)
                best = TypeNodes(layout, nodes) if len(nodes) > max(len(best.nodes), LEAST_FUNDAMENTAL - 1) else best
    return best._replace(nodes=_with_descendants(memory, best.layout, best.nodes))


def _find_fundamental(memory: Memory, layout: NodeLayout, data: Sequence[Range]) -> list[int]:
    arrays: dict[int, list[int]] = {}
    for start, end in data:
        for address, words in memory.scan(start, end):
            for at, node in enumerate(words):
                number = memory.word(node + layout.supers) if node % 8 == 0 and node else None
                bits = memory.int32(node + layout.children + 4) if number and number <= FUNDAMENTAL and number % 4 == 0 else None
                if number and (bits or (bits == 0 and number in WITHOUT_BITS)):
                    arrays.setdefault(address + 8 * at - 2 * number, []).append(node)
    return max(arrays.values(), key=len, default=[])


def _with_descendants(memory: Memory, layout: NodeLayout, nodes: Sequence[int]) -> list[int]:
    """Return these types, and all types derived from them."""
    found, seen = list(nodes), set(nodes)
    for node in found:
        members = memory.members(node + layout.children, "IIP")
        if members is None or len(found) > MOST_TYPES:
            continue
        for child in memory.words(members[2], min(members[0], MOST_TYPES)) or () if members[0] else ():
            if child not in seen and child % 8 == 0 and memory.word(child + layout.supers) == child:
                seen.add(child)
                found.append(child)
    return found
