"""Find the discriminants of Rust's enums in a type."""

from __future__ import annotations

from findleaks.debuginfo.type_table import FieldKind, Kind, TypeTable

MOST_STRUCTS = 256  # Maximum number of structs in a type that are searched.


def find_discriminants(table: TypeTable, number: int, size: int, limit: int) -> list[int]:
    """Return the offsets of discriminants of `size` bytes whose values are all below `limit`. Enums
    in variants of other enums are left out. A discriminant that shares its bytes with another
    value, as in Option<Box<T>>, is left out, because it also has other values."""
    found: list[int] = []
    left = [(number, 0)]
    for _ in range(MOST_STRUCTS):
        if not left:
            break
        inner, at = left.pop()
        bare = table.bare(inner)
        fields = table.fields_of(bare) if table.kinds[bare] == Kind.STRUCT else ()
        variants = [one for one in fields if one.kind >= FieldKind.VARIANT]
        if not variants:
            left += [(one.type, at + one.offset) for one in fields if one.kind == FieldKind.MEMBER and not one.bits]
        elif all(one.kind == FieldKind.VARIANT and one.value < limit for one in variants):
            found += [at + one.offset for one in fields if one.kind == FieldKind.DISCRIMINANT and table.size_of(one.type) == size]
    return found
