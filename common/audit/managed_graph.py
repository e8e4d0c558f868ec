"""Find objects in the heaps of runtimes whose object graph findleaks follows (Go, the JVM): which
object is at an address, and what its fields contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.formatting import number, shorten
from findleaks.results import addresses
from findleaks.runtimes.object_graph import ManagedObject, ObjectField, ObjectGraph
from findleaks.session import Session
from findleaks.value_classes import dataclass

_ADDRESS = 8  # bytes of a Java long, which may contain an address


@dataclass(frozen=True)
class FoundObject:
    """An object, and the graph that contains it. `runtime`: the runtime's name."""

    graph: ObjectGraph
    runtime: str
    object: ManagedObject

    def phrase(self) -> str:
        """Return "live 224-byte Go object, main.Session"."""
        state = {True: "live ", False: "garbage ", None: ""}[self.object.is_live]
        noun = self.graph.noun_of(self.object.block)
        return f"{state}{number(self.object.size)}-byte {noun}, {shorten(self.object.type, 200)}"

    def phrase_at(self, address: int) -> str:
        """Return ".Next, 208 bytes into a live 224-byte Go object, main.Session at 0xc000012000"
        for an address inside the object."""
        offset = address - self.object.address
        member = self.member_at(address) if offset > 0 else ""
        into = f"{member}, " if member else ""
        into += f"{number(offset)} byte{'' if offset == 1 else 's'} into a " if offset > 0 else ""
        into = "header of a " if offset < 0 else into
        return f"{into}{self.phrase()} at {self.object.address:#x}"

    def member_at(self, address: int) -> str:
        """Return the name of the field at an address inside the object; "" if it is unknown."""
        offset = address - self.object.address
        return shorten(self.graph.name_member(self.object.block, offset), 80) if offset >= 0 else ""

    def result(self) -> addresses.ManagedObject:
        """Return the object as a typed result."""
        one = self.object
        return addresses.ManagedObject(one.address, one.size, one.type, self.runtime, one.is_live)


def find_object(session: Session, address: int) -> Optional[FoundObject]:
    """Return the object that contains an address; None if there is none, or if its runtime has no
    graph of objects."""
    for runtime in session.runtimes:
        graph = runtime.object_graph(address)
        found = graph.find(address) if graph is not None else None
        if graph is not None and found is not None:
            return FoundObject(graph, runtime.name, found)
    return None


def describe_fields(found: FoundObject, most: int, name_block: Callable[[int], str]) -> Optional[list[addresses.Word]]:
    """Describe the fields of an object, at most `most` (0: all). Returns None if the words of the
    object are to be described instead. `name_block` is called with an address, and describes the
    block of native memory that contains it, or returns ""."""
    fields = found.graph.fields_of(found.object.block, most)
    return None if fields is None else [_describe_field(found, one, name_block) for one in fields]


def _describe_field(found: FoundObject, one: ObjectField, name_block: Callable[[int], str]) -> addresses.Word:
    name = one.name or None
    if one.is_reference and one.value:
        return addresses.Word(one.offset, one.size, one.value, name, "pointer", _describe_target(found, one))
    native = name_block(one.value) if one.size == _ADDRESS and not one.is_reference else ""
    if native:
        return addresses.Word(one.offset, one.size, one.value, name, "pointer", native)
    text = "null" if one.is_reference else one.text
    return addresses.Word(one.offset, one.size, one.value, name, "number", text or None)


def _describe_target(found: FoundObject, one: ObjectField) -> str:
    target = found.graph.find(one.value)
    if target is None:
        return "no object"
    text = "itself" if target.block == found.object.block else FoundObject(found.graph, found.runtime, target).phrase()
    return f"{text} {one.text}" if one.text else text
