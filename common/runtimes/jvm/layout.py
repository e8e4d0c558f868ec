"""Read how the JVM lays out objects: headers, references, and alignment.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share: oops/oop.hpp, oops/arrayOop.hpp,
oops/compressedKlass.hpp (compressedOops.hpp in 17), oops/markWord.hpp.
A class word is the address of a Klass, or a number from which this address is computed. With
compact headers (25), this number is in the upper bits of the first word."""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.runtimes.jvm.engine import HeaderLayout
from findleaks.runtimes.jvm.reference_format import read_compression
from findleaks.runtimes.jvm.references import References
from findleaks.runtimes.jvm.tables import Tables

_ALIGNMENTS = (8, 16, 32, 64, 128, 256)

_CLASS_WORDS = (
    ("CompressedKlassPointers", "_base", "_shift"),
    *((kind, "_narrow_klass._base", "_narrow_klass._shift") for kind in ("CompressedKlassPointers", "Universe")),
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
    klass = read_compression(tables, _CLASS_WORDS) if narrow or compact else (0, 0)
    return ObjectLayout(header, references, *klass) if klass is not None else None
