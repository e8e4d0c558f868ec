"""Type descriptors of Go 1.27: they follow one another, and no table has their addresses."""

from __future__ import annotations

import struct

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.descriptor_sizes import descriptor_size
from findleaks.runtimes.go.types import ARRAY, CHAN, FUNC, HEADER, INTERFACE, MAP, POINTER, SLICE, STRUCT, Type

AT = 0x500000
PLAIN = 2  # the kind of an int
_UNCOMMON = 1


@pytest.mark.parametrize(
    ("kind", "after", "size"),
    [
        (PLAIN, b"", 48),
        (ARRAY, b"", 72),
        (CHAN, b"", 64),
        (POINTER, b"", 56),
        (SLICE, b"", 56),
        (MAP, b"", 136),
        (FUNC, struct.pack("<HH", 3, 0x8002), 56 + 5 * 8),  # variadic
        (INTERFACE, struct.pack("<3Q", 0, 0, 4), 80 + 4 * 8),
        (STRUCT, struct.pack("<3Q", 0, 0, 7), 80 + 7 * 24),
    ],
)
def test_sizes(kind: int, after: bytes, size: int) -> None:
    """In a type with methods, 16 bytes follow the fixed fields. At the end of the descriptor, each method has 16 bytes."""
    fixed = {FUNC: 56, INTERFACE: 80, STRUCT: 80}.get(kind, size)
    one = Type(AT, "name", kind, 8, 0, 0, False)
    for methods, further in ((None, 0), (0, 16), (5, 16 + 5 * 16)):
        data = bytearray(1024)
        data[HEADER : HEADER + len(after)] = after
        if methods is not None:
            data[20] = _UNCOMMON
            struct.pack_into("<IH", data, fixed, 0, methods)
        assert descriptor_size(Memory(FakeTarget({AT: bytes(data)})), one) == size + further
