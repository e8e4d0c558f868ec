"""Find integer members that may contain addresses, where a block may have an address or any other
number; and pointers that may refer to arrays of numbers."""

from __future__ import annotations

from findleaks.debuginfo.type_table import FieldKind, Kind, TypeTable

_NAMES = ("uintptr_t", "intptr_t")
_UNSIGNED = 7  # DW_ATE_unsigned


def may_be_address(table: TypeTable, number: int) -> bool:
    """Whether a type is `uintptr_t` or `intptr_t`, by any number of typedefs."""
    for _ in range(8):
        if table.kinds[number] not in (Kind.TYPEDEF, Kind.QUALIFIED):
            return False
        if table.kinds[number] == Kind.TYPEDEF and table.text(table.names[number]) in _NAMES:
            return True
        number = table.targets[number]
    return False


def find_parent_word(table: TypeTable, number: int) -> int:
    """Return the offset of the number in the node of a tree; -1 if a struct is no such node.

    A node with two or more pointers to nodes, one unsigned number of a word, and nothing else, may
    have the address of its parent in this number, with the color in the lowest bits (Linux,
    include/linux/rbtree_types.h, __rb_parent_color)."""
    rows = range(table.first_field[number], table.first_field[number + 1])
    links, found = 0, -1
    for row in rows:
        kind = table.bare(table.field_types[row])
        if table.field_kinds[row] != FieldKind.MEMBER or table.field_bits[row]:
            return -1
        if table.kinds[kind] == Kind.POINTER and table.bare(table.targets[kind]) == number:
            links += 1
        elif found < 0 and (table.kinds[kind], table.counts[kind], table.sizes[kind]) == (Kind.BASE, _UNSIGNED, table.word):
            found = table.field_offsets[row]
        else:
            return -1
    return found if links >= 2 else -1


def points_to_numbers(table: TypeTable, number: int, offset: int, depth: int = 8) -> bool:
    """Whether a type has, at this offset, a pointer to numbers of several bytes. In a union, one
    such member is sufficient."""
    number = table.bare(number)
    if table.kinds[number] == Kind.POINTER:
        pointee = table.pointee(number)
        return not offset and table.kinds[pointee] == Kind.BASE and table.sizes[pointee] > 1
    rows = range(table.first_field[number], table.first_field[number + 1]) if depth else ()
    inner = ((table.field_types[row], offset - table.field_offsets[row]) for row in rows if table.field_offsets[row] <= offset)
    return any(points_to_numbers(table, one, rest, depth - 1) for one, rest in inner if rest < table.size_of(one))
