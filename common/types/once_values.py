"""Find the values of Rust's variables that are initialised at their first use: OnceLock, LazyLock
and thread_local!. They store the value in a union, because it may be missing. In a variable, a
missing value is zero, or the address of the function that returns it. So a missing value in a
variable never refers to a block. In a block, the bytes of a missing value may be stale pointers."""

from __future__ import annotations

from typing import Optional

from findleaks.debuginfo.type_table import UNKNOWN, Kind, PartKind, TypeTable

# The member with the value, by the start of the type's name (Rust 1.70 to 1.91:
# library/std/src/sync/once_lock.rs, sync/lazy_lock.rs, sys/thread_local/native/lazy.rs).
_MEMBERS = {
    "std::sync::once_lock::OnceLock<": "value",
    "std::sync::poison::once_lock::OnceLock<": "value",
    "std::sync::lazy_lock::LazyLock<": "data",
    "std::sync::poison::lazy_lock::LazyLock<": "data",
    "std::sys::thread_local::native::lazy::Storage<": "value",
}
_TAKEN = ("std::sync::once_lock::OnceLock<", "std::sync::poison::once_lock::OnceLock<")
"""Of these types, those whose value can be taken out of a variable (OnceLock::take)."""


def find_once_state(table: TypeTable, number: int) -> Optional[tuple[int, int]]:
    """Return the offset and the size of the state of a variable whose value can be taken out. Then
    the state is that of the start of the program, and the bytes of the value are stale. None for
    other types."""
    bare = table.bare(number)
    if table.kinds[bare] != Kind.STRUCT or not table.text(table.names[bare]).startswith(_TAKEN):
        return None
    return next(((one.offset, table.size_of(one.type)) for one in table.fields_of(bare) if one.name == "once"), None)


def find_once_value(table: TypeTable, number: int) -> Optional[tuple[int, int]]:
    """Return the offset and the type of the value that a variable of a type contains; None for
    other types."""
    bare = table.bare(number)
    name = table.text(table.names[bare]) if table.kinds[bare] == Kind.STRUCT else ""
    member = next((member for start, member in _MEMBERS.items() if name.startswith(start)), None)
    value = table.part(bare, "T", PartKind.TYPE_ARGUMENT) if member is not None else UNKNOWN
    offset = next((one.offset for one in table.fields_of(bare) if one.name == member), -1) if value != UNKNOWN else -1
    return (offset, value) if offset >= 0 and offset + table.size_of(value) <= table.sizes[bare] else None
