"""Find the origin of fields: the block or variable that the fields belong to, and its type from
debug information."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.reader import BlockPlace
from findleaks.audit.fields import Field
from findleaks.audit.owner import Owner
from findleaks.audit.typed_places import bare_name, name_place
from findleaks.debuginfo.members import Type
from findleaks.formatting import join_words
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class Part(NamedTuple):
    """Memory of one of several variables that fields belong to."""

    memory: Range
    origin: Origin
    is_one_field: bool  # whether only one field is in this memory


class Origin(NamedTuple):
    """The block or variable that fields belong to."""

    name: str
    start: int  # address; 0 if the fields are in several ranges
    type: Optional[Type]  # None without debug information
    holder: int = 0  # the managed object from which the block was reached; 0: unknown
    # Returns the member at an offset: ".link.next"; "" if unknown.
    member: Optional[Callable[[int], str]] = None
    parts: Sequence[Part] = ()  # if the fields belong to several variables: their memory

    def of_field(self, spans: Sequence[Range]) -> tuple[Origin, bool]:
        """Return the variable to which a field with these words belongs, and whether it is the only
        field of this variable. If this is the origin of a single variable or block, return it.
        The ends of a list may be in several variables, which are then named together."""
        found = [one for one in self.parts if any(one.memory.start < end and start < one.memory.end for start, end in spans)]
        if len(found) > 1:
            return Origin(join_words(list(dict.fromkeys(one.origin.name for one in found))), found[0].memory.start, None), True
        return (found[0].origin, found[0].is_one_field) if found else (self, False)

    def place(self, offset: int) -> tuple[str, Optional[Type]]:
        """Return the name of the place at this offset ("Profiler.names" or "Profiler+0x30"), and
        its type."""
        known = self.member(offset) if self.member is not None else ""
        if known or self.type is None:
            below = self.type.at(offset)[1] if self.type is not None and offset < self.type.size else None
            return (name_place(self.name, known) if known else name_offset(self.name, offset)), below
        each = self.type.size if self.type.is_structure else 0
        path, below = self.type.at(offset % each if each else offset)
        many = f"[{offset // each}]" if each and offset >= each else ""
        whole = not path and offset == 0 and not self.type.is_structure
        return (f"{bare_name(self.name)}{many}{path}" if path or whole else name_offset(self.name, offset)), below


def name_offset(name: str, offset: int) -> str:
    """Return the name of a place without a member: "Profiler+0x30", or "block of 80 B, offset
    0x30"."""
    return f"{name}, offset {offset:#x}" if " of " in name else f"{name}+{offset:#x}"


def find_origin_of_root(session: Session, owner: Owner, fields: Sequence[Field]) -> Origin:
    """Return a root as the origin of its fields. If it stands for several variables, each field
    belongs to one of them."""
    if not owner.members:
        return _origin_of_variable(session, owner, owner.ranges[0].start if len(owner.ranges) == 1 else 0)
    parts = []
    for member in owner.members:
        for memory in member.ranges:
            inside = sum(memory.start <= one.spans[0].start < memory.end for one in fields if one.spans)
            parts.append(Part(memory, _origin_of_variable(session, member, memory.start), inside == 1))
    return Origin("", 0, None, parts=parts)


def _origin_of_variable(session: Session, owner: Owner, start: int) -> Origin:
    return Origin(owner.name, start, session.members.variable(start) if start and owner.is_variable else None)


NEXT = re.compile(r"next|link|chain|hh|succ|sibling|fwd|forward|nxt", re.IGNORECASE)
"""Names of members that link the nodes of a hash table's chain."""
# A block may exceed an array of structures by this many bytes, or by an eighth of its size
PADDING = 24


def check_declared_type(found: Container, type_: Optional[Type], place: Optional[BlockPlace]) -> Optional[Container]:
    """Compare a container that was recognised by structure with the type of its head.
    Returns the container, corrected; None if the type contradicts it. `place`: the place that the
    first word of the head points to.

    For example, "std::map or set" becomes std::map if debug information says so. Three pointers in
    a program's own structure are not a std::vector, although they look like one. A pointer to
    structures does not refer to an array of pointers or a hash table, although each structure may
    begin with a pointer."""
    if type_ is None:
        return found
    kind = type_.name.split("<")[0]
    if kind.endswith(("map", "set")) and found.what.endswith(" or set"):
        found.what = f"std::{kind}"
    pointee = type_.pointee()
    if pointee is None:
        return _counted_elements(found, type_) if kind == "vector" and found.bytes else found
    if found.what.startswith("std::vector"):
        found.what = found.what[len("std::") :]
    if found.what not in ("array of pointers", "hash table"):
        return found
    if place is not None and place.start in found.tables and pointee.is_structure and pointee.size > type_.size:
        return _array_of(found, pointee, place) if pointee.size <= place.size else found
    node = pointee.pointee() if found.tables else pointee
    if found.what == "hash table" and node is not None and node.is_structure and not _is_link(node, found.link):
        found.what, found.unit, found.length = "array of pointers", "pointers", found.heads
        del found.nodes[:]
    return found


def _counted_elements(found: Container, vector: Type) -> Container:
    """Return a std::vector. If its elements are structures, the length is their number instead of
    their bytes."""
    element = vector.element()
    if found.unit != "vectors" and element is not None and element.is_structure and element.size and found.bytes % element.size == 0:
        name = "std::string" if element.name.startswith("basic_string<char,") else element.name
        found.what, found.unit = f"std::vector of {name}", "elements"
        found.length = found.bytes // element.size
    return found


def _array_of(found: Container, element: Type, place: BlockPlace) -> Optional[Container]:
    """Return an array of structures that fills its block. Returns None if the block can contain
    only one structure, or if its size is not a multiple of the structure's size."""
    count, rest = divmod(place.size, element.size)
    if count < 2 or rest > max(PADDING, place.size // 8) or not element.name:
        return None
    return Container(f"array of {element.name}", found.start, found.end, count, "elements", tables=found.tables)


def _is_link(node: Type, offset: int) -> bool:
    """Whether the member at `offset` may be the link of a chain, judged by its name. A member
    without a name may be one."""
    path, below = node.at(offset)
    name = path.rsplit(".", 1)[-1]
    return not name or below is None or NEXT.search(name) is not None
