"""Find the types behind Rust's trait objects (`Box<dyn Shape>`). Such a pointer has two words: the
address of the value, and the address of the vtable of its type. The debug information has a
variable for each vtable, which the compiler names "<Circle as Shape>::{vtable}"."""

from __future__ import annotations

from findleaks.debuginfo.type_table import TypeTable

TRAIT_OBJECT = ("dyn ", "(dyn ")
"""The possible beginnings of the name of the pointee. The name is in parentheses if there are
further bounds, as in `Box<dyn Future + Send>`."""
_VTABLE, _AS = "::{vtable}", " as "


def find_vtables(table: TypeTable) -> dict[int, int]:
    """Return the type of the value for each address of a vtable."""
    found: dict[int, int] = {}
    for one in table.variables():
        if one.name.startswith("<") and one.name.endswith(_VTABLE):
            known = table.find(_implementor(one.name))
            if len(known) == 1:
                found[one.address] = known[0]
    return found


def _implementor(name: str) -> str:
    """Return the type that implements the trait: "a::B<C>" for "<a::B<C> as D>::{vtable}"."""
    depth = 0
    for at, character in enumerate(name):
        depth += (character in "<([") - (character in ">)]")
        if depth == 1 and name.startswith(_AS, at):
            return name[1:at]
    return ""
