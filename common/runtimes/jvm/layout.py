"""Read how the JVM lays out objects: headers, references, and alignment.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share: oops/oop.hpp, oops/arrayOop.hpp,
oops/compressedKlass.hpp (compressedOops.hpp in 17), oops/markWord.hpp.
A class word is the address of a Klass, or a number from which this address is computed. With
compact headers (25), this number is in the upper bits of the first word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.runtimes.jvm.engine import HeaderLayout
from findleaks.runtimes.jvm.references import References
from findleaks.runtimes.jvm.relocation import read_colors
from findleaks.runtimes.jvm.tables import Tables

_MOST_SHIFT = 16
_ALIGNMENTS = (8, 16, 32, 64, 128, 256)

_CLASS_WORDS = (
    ("CompressedKlassPointers", "_base", "_shift"),
    *((kind, "_narrow_klass._base", "_narrow_klass._shift") for kind in ("CompressedKlassPointers", "Universe")),
)
_NARROW_OOPS = (
    ("CompressedOops", "_base", "_shift"),
    *((kind, "_narrow_oop._base", "_narrow_oop._shift") for kind in ("CompressedOops", "Universe")),
)


class ObjectLayout(NamedTuple):
    """The layout of objects. A class word refers to the Klass at the address `klass_base` +
    (word << `klass_shift`)."""

    header: HeaderLayout
    references: References
    klass_base: int
    klass_shift: int

    def klass(self, word: int) -> int:
        """Return the address of the Klass to which a class word refers."""
        return self.klass_base + (word << self.klass_shift)


def read_alignment(tables: Tables) -> int:
    """Return the alignment of objects in bytes."""
    value = tables.option("ObjectAlignmentInBytes")
    return value if value in _ALIGNMENTS else _ALIGNMENTS[0]


def read_layout(tables: Tables) -> Optional[ObjectLayout]:
    """Return the layout of objects; None if it cannot be read, and for 32-bit JVMs."""
    references = tables.references
    if references is None:
        return None
    alignment = read_alignment(tables)
    # A version without the option has no other class words than compressed ones.
    narrow = tables.is_set("UseCompressedClassPointers") is not False
    compact = tables.is_set("UseCompactObjectHeaders") is True
    shift = tables.constants.get("markWord::klass_shift", 0) if compact else 0
    if compact and not 0 < shift < 64:
        return None
    if compact:
        header = HeaderLayout(0, 8, shift, 8, alignment)
    else:
        header = HeaderLayout(8, 4 if narrow else 8, 0, 12 if narrow else 16, alignment)
    klass = _compression(tables, _CLASS_WORDS) if narrow or compact else (0, 0)
    return ObjectLayout(header, references, *klass) if klass is not None else None


def read_references(tables: Tables) -> Optional[References]:
    """Return the format of references; None if it cannot be read, and for 32-bit JVMs."""
    compressed = tables.is_set("UseCompressedOops")
    if tables.memory.size != 8 or compressed is None:
        return None
    colored = read_colors(tables)
    if colored is not None:
        colors, base = colored
        moved = tables.relocation
        return References(8, base, 0, colors._replace(young=moved.young, old=moved.old) if moved is not None else colors)
    oops = _compression(tables, _NARROW_OOPS) if compressed else (0, 0)
    return References(4 if compressed else 8, *oops) if oops is not None else None


def _compression(tables: Tables, names: Sequence[tuple[str, str, str]]) -> Optional[tuple[int, int]]:
    """Return base and shift of compressed addresses. The names of the fields differ by version."""
    for kind, base, shift in names:
        values = tables.word(kind, base), tables.int32(kind, shift)
        if values[0] is not None and values[1] is not None and values[1] <= _MOST_SHIFT:
            return values[0], values[1]
    return None
