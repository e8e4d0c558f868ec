"""Typed memory outside of blocks: variables, thread-local variables, and locals of frames."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.debuginfo.type_table import TypeTable
from findleaks.value_classes import NamedTuple


class TypedRoot(NamedTuple):
    """Typed memory outside of blocks. `name`: the variable."""

    address: int
    size: int
    type: int
    name: str


def variables(table: TypeTable) -> Iterator[TypedRoot]:
    """Yield the global and static variables. Addresses are those of the process."""
    for one in table.variables():
        size = table.sizes[table.bare(one.type)] or table.word
        yield TypedRoot(one.address, size, one.type, one.name)
