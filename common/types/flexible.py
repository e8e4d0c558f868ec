"""Find the array at the end of a struct. Debug information lacks its number of elements."""

from __future__ import annotations

from typing import Optional

from findleaks.debuginfo.type_table import FieldKind, Kind, TypeTable


def find_tail(table: TypeTable, number: int) -> Optional[tuple[int, int]]:
    """Return offset and element type of the array at the end of a struct that may be longer than
    declared; None if there is none."""
    number = table.bare(number)
    if table.kinds[number] != Kind.STRUCT:
        return None
    rows = range(table.first_field[number], table.first_field[number + 1])
    last = max((row for row in rows if table.field_kinds[row] == FieldKind.MEMBER), key=lambda row: table.field_offsets[row], default=-1)
    if last < 0 or table.field_bits[last] or not table.field_offsets[last]:
        return None
    array = table.bare(table.field_types[last])
    if table.kinds[array] == Kind.ARRAY and table.counts[array] <= 1:
        return table.field_offsets[last], table.bare(table.targets[array])
    return None
