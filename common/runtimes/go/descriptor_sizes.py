"""Compute the size of Go's type descriptors. Since 1.27, the descriptors of unnamed types follow
one another in memory, and no table has their addresses.

Source: Go 1.27, src/internal/abi/type.go (Type.DescriptorSize, UncommonType, Method, Imethod,
StructField), map.go (MapType)."""

from __future__ import annotations

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.types import ARRAY, CHAN, FUNC, HEADER, INTERFACE, MAP, POINTER, SLICE, STRUCT, Type

_UNCOMMON = 1  # TFlagUncommon: an UncommonType follows
_FLAGS = 20  # offset of Type.TFlag
# Bytes after the common part of a descriptor.
_EXTRA = {ARRAY: 24, CHAN: 16, FUNC: 8, INTERFACE: 32, MAP: 88, POINTER: 8, SLICE: 8, STRUCT: 32}
_ITEMS = {INTERFACE: 8, STRUCT: 24}  # bytes of a method and of a field, which follow the descriptor
_COUNT = HEADER + 16  # offset of the number of methods and of fields
_UNCOMMON_SIZE, _METHOD = 16, 16
_METHODS = 4  # offset of UncommonType.Mcount
_MAX_ITEMS = 1 << 14


def descriptor_size(memory: Memory, one: Type) -> int:
    """Return the bytes from the descriptor of a type to the next one."""
    size = HEADER + _EXTRA.get(one.kind, 0)
    further = 0
    if one.kind == FUNC:
        inputs, outputs = (_half(memory, one.address + HEADER + at) for at in (0, 2))
        further = 8 * (inputs + (outputs & 0x7FFF))  # the upper bit: the last parameter is variadic
    elif one.kind in _ITEMS:
        further = _ITEMS[one.kind] * min(memory.word(one.address + _COUNT) or 0, _MAX_ITEMS)
    if any(flags & _UNCOMMON for flags in memory.read(one.address + _FLAGS, 1)):
        further += _UNCOMMON_SIZE + _METHOD * _half(memory, one.address + size + _METHODS)
    return size + further


def _half(memory: Memory, address: int) -> int:
    return int.from_bytes(memory.read(address, 2), memory.arch.byteorder)
