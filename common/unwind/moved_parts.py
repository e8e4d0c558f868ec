"""Find the function of a part that the compiler moved elsewhere, such as rarely executed code.

GCC writes the call frame information of such a part directly after that of the function, so that
the entries are neighbours in .eh_frame. The table that is sorted by address does not show this."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range
from findleaks.unwind.cfi import FrameTable, Malformed
from findleaks.unwind.headerless import HeaderlessTable

_MOST = 1 << 21  # entries of a module that are searched; the largest programs have about 1,000,000


def find_previous_extent(table: FrameTable, pc: int) -> Optional[Range]:
    """Return the range of the entry that precedes the entry for `pc` in .eh_frame; None if it is
    unknown."""
    try:
        own = table._entry(pc) if table.count else 0
        before = max((entry for entry in _list_entries(table) if entry < own), default=0) if own and table.count <= _MOST else 0
        return table._describe(before).code if before else None
    except (UnreadableMemory, Malformed):
        return None


def _list_entries(table: FrameTable) -> Sequence[int]:
    """Return the addresses of all entries of a module. Raises UnreadableMemory."""
    if isinstance(table, HeaderlessTable):
        return table._entries
    order = "<" if table.target.arch.byteorder == "little" else ">"
    words = struct.unpack(f"{order}{2 * table.count}i", table.target.read(table._table, 8 * table.count))
    return [table._header + word for word in words[1::2]]
