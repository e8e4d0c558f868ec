"""The interface for reading types from debug information (DWARF 2 to 5): what callers pass to an
engine, and what it returns.

Pass the sources in ascending order of keys. Read each source to its end, and look up the origins
before the data of a source are released. Merge at the end. The C engine
(common/native/dwarf_types.c) and the Python engine (reference/dwarf_types.py) return equal
columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from findleaks.target.elf import Buffer
from findleaks.value_classes import NamedTuple

SECTIONS = ("info", "abbreviations", "strings", "line_strings", "string_offsets", "addresses", "ranges", "range_lists", "other_strings")
"""Sections of a source, in the order of its fields."""

NO_KEY = (1 << 64) - 2  # stands for a key if there is no such section
VOID_KEY = (1 << 64) - 1
OLD_TYPES, SPLIT = 1, 2  # bits of `flags`: .debug_types of DWARF 4; units of .dwo files

COLUMNS = "BBBIQIQIBIQIIQIBIIQQIIQIIQQIQQI"
"""Type codes of the columns that an engine returns, in the order of debuginfo/type_table.py."""


TYPE_COLUMNS = 19  # columns of types, their fields and their parts


class Source(NamedTuple):
    """A section of units, and the sections that its entries refer to."""

    info: Buffer
    """.debug_info, or .debug_types."""
    abbreviations: Buffer = b""
    strings: Buffer = b""
    line_strings: Buffer = b""
    string_offsets: Buffer = b""
    addresses: Buffer = b""
    ranges: Buffer = b""
    range_lists: Buffer = b""
    other_strings: Buffer = b""
    """.debug_str of the supplementary file (dwz)."""
    key: int = 0
    """Key of the first byte of `info`. Keys number the bytes of all sections that are read, as one
    sequence."""
    references: int = 0
    """Key of the section that DW_FORM_ref_addr refers to."""
    others: int = NO_KEY
    """Key of .debug_info of the supplementary file."""
    address_base: int = 0
    """For split units: offset of the unit's part of .debug_addr."""
    ranges_base: int = 0
    """For split units of DWARF 4: offset of the unit's part of .debug_ranges."""
    low_pc: int = 0
    """For split units: base address of the unit."""
    flags: int = 0


class TypeReader(Protocol):
    """Reads the types of all sources of a file. Each call does a part of the work, so that the
    caller can poll for an interrupt: about 50 ms in the C engine."""

    def add(self, source: Source) -> None:
        """Add this source. The next calls of `read` read it."""

    def read(self, limit: int) -> int:
        """Read about `limit` bytes. Return the offset reached in the source, or -1 at its end."""

    def find_origins(self, limit: int) -> bool:
        """Do `limit` look-ups in the sources read so far. Return False when all are done. The data
        of these sources are not needed after that."""

    def add_table(self, columns: Sequence[array[int]], key: int, first: int, end: int) -> None:
        """Add the types [first, end) of a merged table, except void and unknown. Type number n gets
        the key `key` + n. `columns` are the first TYPE_COLUMNS columns of the table. This is how
        the tables of several modules are merged."""

    def merge(self) -> float:
        """Do a part of merging. Return the completed part; at 1.0, the columns are ready."""

    def columns(self) -> list[array[int]]:
        """Return the columns of merged types."""

    @property
    def incomplete(self) -> bool:
        """Whether damaged data or a limit ended reading early."""
