"""Find the types of values in type-erased wrappers: std::function, std::move_only_function, and
std::any. Such a wrapper contains a small value or the address of a value, and a pointer to a
*manager*, the function that copies and deletes the value. The manager's class, or the manager's
template argument, names the type of the value.

Sources: libstdc++ 12, bits/std_function.h (_Function_base, _Base_manager::_M_manager), std/any
(_Manager_external::_S_manage), bits/mofunc_impl.h and bits/move_only_function.h (_Mofunc_base);
libc++ 19, any (__any_imp::_LargeHandler::__handle). libc++'s std::function has a polymorphic object
instead, whose vtable names the type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.debuginfo.type_table import UNKNOWN, FieldKind, Kind, PartKind, TypeTable
from findleaks.value_classes import NamedTuple

_WRAPPERS = {
    "std::_Function_base": ("_M_functor", "_M_manager"),
    "std::any": ("_M_storage", "_M_manager"),
    "std::_Mofunc_base": ("_M_storage", "_M_manage"),
    "std::__1::any": ("__s_", "__h_"),
}
"""For each wrapper, by name: the names of its members for the value and for the manager."""
_HEAP = ("std::any::_Manager_external<", "std::__1::__any_imp::_LargeHandler<")
"""The classes of std::any's managers for values that are in separate blocks."""
_ANY = (*_HEAP, "std::any::_Manager_internal<", "std::__1::__any_imp::_SmallHandler<")
"""These classes, and those of std::any's managers for values in the wrapper."""
_FUNCTION = ("std::_Function_handler<", "std::_Function_base::_Base_manager<")
_MOVE_ONLY = "std::_Mofunc_base"
_LOCAL = 16  # Maximum number of bytes of a value that std::function may store in itself.
_LOCAL_MOVE_ONLY = 24  # The same for std::move_only_function.


class Erased(NamedTuple):
    """The offsets of the value's storage and of the manager in a wrapper, and the bytes of the
    storage."""

    storage: int
    size: int
    manager: int


def find_erased(table: TypeTable, number: int, name: str) -> Optional[Erased]:
    """Return the layout of a type-erased wrapper; None for other types. `name` is the name of type
    `number`."""
    if name not in _WRAPPERS:
        return None
    members = {one.name: one for one in table.fields_of(number) if one.kind == FieldKind.MEMBER}
    storage, manager = (members.get(one) for one in _WRAPPERS[name])
    if storage is None or manager is None or not table.size_of(storage.type):
        return None
    return Erased(storage.offset, table.size_of(storage.type), manager.offset)


class Managed(NamedTuple):
    """The value of a wrapper. `value`: its type, if it is in a separate block. `pointer`: the type
    of the pointer with which it begins, if it is in the wrapper. Otherwise UNKNOWN."""

    value: int = UNKNOWN
    pointer: int = UNKNOWN


def find_managed(table: TypeTable, types: Sequence[int]) -> Managed:
    """Return the type of the values that a manager copies and deletes. `types`: the manager's
    class, and the manager's template argument, if it has one."""
    name = table.text(table.names[types[0]]) if types else ""
    arguments = [part.type for part in table.parts_of(types[0]) if part.kind == PartKind.TYPE_ARGUMENT] if types else []
    if name == _MOVE_ONLY:
        value, most = types[-1], _LOCAL_MOVE_ONLY
    elif name.startswith(_FUNCTION) and arguments:
        value, most = arguments[-1], _LOCAL
    elif name.startswith(_ANY) and arguments:
        value, most = arguments[0], 0 if name.startswith(_HEAP) else table.word
    else:
        return Managed()
    # Wrappers store only small values that can be copied as bytes or moved without exceptions.
    return Managed(pointer=_first_pointer(table, value)) if table.size_of(value) <= most else Managed(value)


def _first_pointer(table: TypeTable, number: int) -> int:
    """Return the type of the pointer with which values of a type begin; UNKNOWN if there is none,
    or if the type has fields other than pointers, numbers and enums. A field of a class type may
    have a destructor."""
    number = table.bare(number)
    if table.kinds[number] == Kind.POINTER:
        return number
    fields = table.fields_of(number) if table.kinds[number] == Kind.STRUCT else ()
    if any(table.kinds[table.bare(one.type)] not in (Kind.POINTER, Kind.BASE, Kind.ENUM) for one in fields):
        return UNKNOWN
    return next((table.bare(one.type) for one in fields if not one.offset and table.kinds[table.bare(one.type)] == Kind.POINTER), UNKNOWN)
