"""Read how the JVM writes references to objects: as addresses, compressed, or with ZGC's colors.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share/oops/compressedOops.hpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.runtimes.jvm.references import References
from findleaks.runtimes.jvm.relocation import Relocation, read_colors
from findleaks.runtimes.jvm.vm_structs import VMStructs

_MOST_SHIFT = 16
_NARROW_OOPS = (
    ("CompressedOops", "_base", "_shift"),
    *((kind, "_narrow_oop._base", "_narrow_oop._shift") for kind in ("CompressedOops", "Universe")),
)


def read_references(tables: VMStructs, moved: Optional[Relocation]) -> Optional[References]:
    """Return the format of references; None if it cannot be read, or if the JVM is a 32-bit JVM.
    `moved`: the objects that ZGC has moved."""
    compressed = tables.is_set("UseCompressedOops")
    if tables.memory.size != 8 or compressed is None:
        return None
    colored = read_colors(tables)
    if colored is not None:
        colors, base = colored
        return References(8, base, 0, colors._replace(young=moved.young, old=moved.old) if moved is not None else colors)
    oops = read_compression(tables, _NARROW_OOPS) if compressed else (0, 0)
    return References(4 if compressed else 8, *oops) if oops is not None else None


def read_compression(tables: VMStructs, names: Sequence[tuple[str, str, str]]) -> Optional[tuple[int, int]]:
    """Return base and shift of compressed addresses. The names of the fields differ by version."""
    for kind, base, shift in names:
        values = tables.word(kind, base), tables.int32(kind, shift)
        if values[0] is not None and values[1] is not None and values[1] <= _MOST_SHIFT:
            return values[0], values[1]
    return None
