"""Find the alternatives of std::optional and std::variant, and the member that indicates which of
them is valid.

Sources: libstdc++ 12, std/optional (_Optional_payload_base), std/variant (_Variant_storage,
_Variadic_union, _Uninitialized); libc++ 19, optional (__optional_destruct_base), variant (__base,
__union, __alt)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.debuginfo.type_table import VOID, Field, FieldKind, Kind, TypeTable
from findleaks.value_classes import NamedTuple

MOST_ALTERNATIVES = 64  # A variant with as many alternatives is read as a union.

_OPTIONALS = ("std::_Optional_payload_base<", "std::__1::__optional_destruct_base<")
_VARIANTS = ("std::__detail::__variant::_Variant_storage<", "std::__1::__variant_detail::__base<")
_STARTS = (*_OPTIONALS, *_VARIANTS)
_VALUES = ("_M_value", "__val_")  # The value of an optional, in a union.
_ENGAGED = ("_M_engaged", "__engaged_")  # 1 if an optional has a value.
_INDICES = ("_M_index", "__index", "__index_")  # The number of the alternative of a variant.
_FIRST, _REST = ("_M_first", "__head"), ("_M_rest", "__tail")  # Members of the union of a variant.
_STORED = "_M_storage"  # The value in such a member of libstdc++.


class Alternatives(NamedTuple):
    """The discriminant, and a field of kind VARIANT for each alternative. An optional has a second
    alternative of type void."""

    tag: Field
    members: Sequence[Field]


def find_alternatives(table: TypeTable, number: int, name: str) -> Optional[Alternatives]:
    """Return the alternatives of a base class of std::optional or std::variant; None for other
    types. `name` is the name of type `number`."""
    if not name.startswith(_STARTS):
        return None
    fields = [one for one in table.fields_of(number) if one.kind == FieldKind.MEMBER and not one.bits]
    is_optional = name.startswith(_OPTIONALS)
    tag = next((one for one in fields if one.name in (_ENGAGED if is_optional else _INDICES)), None)
    union = next((one for one in fields if one is not tag and not one.offset), None)
    if tag is None or union is None:
        return None
    inner = table.fields_of(table.bare(union.type))
    if is_optional:
        found = [one._replace(kind=FieldKind.VARIANT, value=1) for one in inner if one.name in _VALUES][:1]
        members = [one for value in found for one in (value, value._replace(type=VOID, value=0))]
    else:
        members = []
        while len(members) < MOST_ALTERNATIVES:
            first = next((one for one in inner if one.name in _FIRST), None)
            rest = next((one for one in inner if one.name in _REST), None)
            if first is None:
                break
            members.append(first._replace(kind=FieldKind.VARIANT, type=_type_of_value(table, first.type), value=len(members)))
            inner = table.fields_of(table.bare(rest.type)) if rest is not None else []
    is_whole = len(members) < MOST_ALTERNATIVES and all(not one.offset for one in members)
    return Alternatives(tag, members) if members and is_whole else None


def _type_of_value(table: TypeTable, number: int) -> int:
    """Return the type of the value in a member of a variant's union. In C++20, libstdc++ has the
    value in another union, beside an empty struct."""
    fields = table.fields_of(table.bare(number))
    inner = (table.bare(one.type) for one in fields if not one.offset and table.kinds[table.bare(one.type)] == Kind.UNION)
    values = (one.type for union in inner for one in table.fields_of(union) if one.name == _STORED and not one.offset)
    return next(values, number)
