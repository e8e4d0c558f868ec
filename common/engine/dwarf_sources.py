"""Reads types from debug information (DWARF 2 to 5): what is passed to an engine, and what it
returns.

Pass sources by ascending keys; read each to its end; look up origins before its data are released;
merge at the end. The C engine (common/native/dwarf_types.c) and the Python engine
(reference/dwarf_types.py) return equal columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from findleaks.target.elf import Buffer

SECTIONS = ("info", "abbreviations", "strings", "line_strings", "string_offsets", "addresses", "ranges", "range_lists", "other_strings")
"""Sections of a source, in the order of its fields."""

NO_KEY = (1 << 64) - 2  # in place of a key: there is no such section
VOID_KEY = (1 << 64) - 1
OLD_TYPES, SPLIT = 1, 2  # bits of `flags`: .debug_types of DWARF 4; units of .dwo files

COLUMNS = "BBBIQIQIBIQIIQIBIIQQIIQIIQQIQQI"
"""Type codes of the columns that an engine returns, in the order of debuginfo/type_table.py."""


TYPE_COLUMNS = 19  # columns of types, their fields and their parts


class Source(NamedTuple):
    """A section of units, and what their entries refer to."""

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
    """Key of the first byte of `info`: all sections that are read form one sequence of bytes."""
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
        """Read this source from now on."""

    def read(self, limit: int) -> int:
        """Read about `limit` bytes; return the offset in the source, or -1 at its end."""

    def find_origins(self, limit: int) -> bool:
        """Do `limit` look-ups in the sources read so far. Return False when all are done: their
        data are not used any more."""

    def add_table(self, columns: Sequence[array[int]], key: int) -> None:
        """Add the types of a merged table, of which `columns` are the first TYPE_COLUMNS: type
        number n gets the key `key` + n. So the tables of several modules are merged."""

    def merge(self) -> float:
        """Do a part of merging; return how much is done. 1.0: the columns are ready."""

    def columns(self) -> list[array[int]]:
        """Return the columns of merged types."""

    @property
    def incomplete(self) -> bool:
        """Whether damaged data, or a limit, ended reading early."""
