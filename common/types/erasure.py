"""Find the types of values in type-erased wrappers: std::function, std::move_only_function, and
std::any. Such a wrapper has a word for the address of the value, and a pointer to a *manager*, the
function that copies and deletes the value. The manager's class, or the argument of the manager's
template, names the type of the value.

Sources: libstdc++ 12, bits/std_function.h (_Function_base, _Base_manager::_M_manager), std/any
(_Manager_external::_S_manage), bits/mofunc_impl.h and bits/move_only_function.h (_Mofunc_base);
libc++ 19, any (__any_imp::_LargeHandler::__handle). libc++'s std::function has a polymorphic object
instead, whose vtable names the type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.debuginfo.type_table import UNKNOWN, FieldKind, PartKind, TypeTable
from findleaks.value_classes import NamedTuple

_WRAPPERS = {
    "std::_Function_base": ("_M_functor", "_M_manager"),
    "std::any": ("_M_storage", "_M_manager"),
    "std::_Mofunc_base": ("_M_storage", "_M_manage"),
    "std::__1::any": ("__s_", "__h_"),
}
"""By the name of a wrapper: its members for the value and for the manager."""
_HEAP = ("std::any::_Manager_external<", "std::__1::__any_imp::_LargeHandler<")
"""The classes of managers of values in blocks. Other managers of std::any have a value in the
wrapper itself."""
_FUNCTION = ("std::_Function_handler<", "std::_Function_base::_Base_manager<")
_MOVE_ONLY = "std::_Mofunc_base"
_LOCAL = 16  # Most bytes of a value that std::function may store in itself.
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


def find_value_type(table: TypeTable, types: Sequence[int]) -> int:
    """Return the type of the values that a manager has in blocks of their own; UNKNOWN if it has
    them in the wrapper, or if this is not certain. `types`: the manager's class, and the
    argument of the manager's template, if it has one."""
    if not types:
        return UNKNOWN
    name = table.text(table.names[types[0]])
    if name == _MOVE_ONLY and len(types) > 1:
        return types[1] if table.size_of(types[1]) > _LOCAL_MOVE_ONLY else UNKNOWN
    arguments = [part.type for part in table.parts_of(types[0]) if part.kind == PartKind.TYPE_ARGUMENT]
    if name.startswith(_HEAP):
        return arguments[0] if arguments else UNKNOWN
    if name.startswith(_FUNCTION) and arguments:
        return arguments[-1] if table.size_of(arguments[-1]) > _LOCAL else UNKNOWN
    return UNKNOWN
