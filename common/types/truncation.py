"""Truncated values of structs: a program may allocate only the first members of a struct."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.debuginfo.type_table import Kind
from findleaks.engine.type_spread import Role
from findleaks.types.layouts import Layouts
from findleaks.types.specs import Packed, Spec

MOST_CUTS = 8  # Sizes to which a type may be truncated.


def cut_struct(layouts: Layouts, pointee: int, size: int) -> Sequence[Spec]:
    """Return the contents of blocks that begin with a truncated value of a struct, the longest
    first. Values are cut before a pointer, or at the end of the block."""
    table = layouts.table
    least = min(size, table.size_of(pointee) - 1) // table.word * table.word
    shape = layouts.shape(Spec(pointee)) if table.kinds[pointee] == Kind.STRUCT else ()
    ends = {one.start + leaf.offset for one in shape for leaf in one.leaves if leaf.role == Role.REFERENCE}
    found = sorted({end for end in ends if 0 < end < least} | ({least} if least > 0 else set()), reverse=True)
    return [Spec(pointee, parts=(Packed(0, pointee, 1, end),)) for end in found[:MOST_CUTS]]
