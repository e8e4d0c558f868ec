"""Origins of fields: the block or variable that they belong to, and its debug information."""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.reader import Place
from findleaks.debuginfo.members import Type
from findleaks.formatting import printable


class Origin(NamedTuple):
    """What fields belong to."""

    name: str
    start: int  # address; 0: its parts lie apart
    type: Optional[Type]  # None without debug information

    def place(self, offset: int) -> tuple[str, Optional[Type]]:
        """ "Profiler.names" or "Profiler+0x30", and the type of what is there."""
        if self.type is None:
            return f"{self.name}+{offset:#x}", None
        each = self.type.size if self.type.is_structure else 0
        path, below = self.type.at(offset % each if each else offset)
        many = f"[{offset // each}]" if each and offset >= each else ""
        whole = not path and offset == 0 and not self.type.is_structure
        return (f"{self.name}{many}{printable(path)}" if path or whole else f"{self.name}+{offset:#x}"), below


def agreed(found: Container, type_: Optional[Type], place: Optional[Place]) -> Optional[Container]:
    """A container recognised by its structure, corrected by the type of its head. None if that is a
    pointer to a single structure, which only looks like an array or table. `place`: what the head's
    first word points to.

    "std::map or set" becomes std::map where debug information says so. Three pointers in a
    program's own structure are no std::vector, though used as one."""
    if type_ is None:
        return found
    kind = type_.name.split("<")[0]
    if kind.endswith(("map", "set")) and found.what.endswith(" or set"):
        found.what = f"std::{kind}"
    pointee = type_.pointee()
    if pointee is None:
        return found
    if found.what.startswith("std::vector"):
        found.what = found.what[len("std::") :]
    whole = found.what in ("array of pointers", "hash table") and place is not None and place.start in found.tables
    single = pointee.is_structure and place is not None and type_.size < pointee.size <= place.size < 2 * pointee.size
    return None if whole and single else found
