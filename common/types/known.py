"""The result of the search for types: names of types, how they are known, and what is at an offset
of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.debuginfo.type_table import FieldKind, Kind, TypeTable
from findleaks.engine.columns import Numbers
from findleaks.engine.type_spread import INFERRED, LAYOUT_MASK, LEVEL_MASK, LEVEL_SHIFT, Level
from findleaks.types.embedding import STRUCTURES
from findleaks.types.pool_objects import ObjectTable, PoolObject
from findleaks.types.specs import Spec
from findleaks.value_classes import NamedTuple

DEEPEST = 32  # Nested members that are followed.


class BlockType(NamedTuple):
    """The type of a block. `is_sure`: whether it is certain from typed memory or from a hint.
    `is_hint`: whether the type is from a hint."""

    name: str
    is_sure: bool
    is_hint: bool


class TypedPlace(NamedTuple):
    """What is at an offset of a typed block: the member, as an expression such as ".link.next" or
    "[3].name", its type, and the distance in bytes from the start of the member."""

    path: str
    type: int
    rest: int

    @property
    def text(self) -> str:
        """The member and the distance from its start: ".link.next+4"."""
        return f"{self.path}+{self.rest}" if self.rest else self.path


class KnownTypes:
    """The types of a process's blocks, by index."""

    def __init__(
        self,
        table: TypeTable,
        specs: Sequence[Spec],
        claims: Numbers,
        headers: Sequence[int],
        modules: Sequence[int],
        usable: int,
        objects: Optional[ObjectTable] = None,
    ) -> None:
        """`headers`: the bytes before the typed part of each block; empty if there are none. For
        `modules` and `usable`, see Rules. `objects`: typed objects in pools."""
        self.objects = objects if objects is not None else ObjectTable()
        self._modules, self._usable = modules, usable
        self.table, self._specs, self.claims, self._headers = table, specs, claims, headers
        self._names: dict[int, str] = {}

    @property
    def layouts(self) -> int:
        """The number of layouts; those in use count from 1."""
        return len(self._specs)

    def is_array(self, layout: int) -> bool:
        """Whether the name of a layout depends on the size of its block."""
        return self._specs[layout].many

    def spec(self, index: int) -> Optional[Spec]:
        """Return the content of a block; None if it is not known."""
        layout = self.claims[index] & LAYOUT_MASK
        return self._specs[layout] if layout else None

    def is_of_program(self, number: int) -> bool:
        """Whether a module other than the C library has the type with this number."""
        return bool(self._modules[number] & self._usable)

    def header(self, index: int) -> int:
        """Return the bytes before the typed part of a block: the header that the program's own
        function for allocation put there (headers.py), and what is before the first part."""
        spec = self.spec(index)
        return (self._headers[index] if self._headers else 0) + (spec.start if spec is not None else 0)

    def layout_name(self, layout: int, size: int) -> str:
        """Return the name of a layout for a block of `size` bytes, as debuggers parse it: "struct
        line[12]"."""
        spec = self._specs[layout]
        if layout not in self._names:
            self._names[layout] = self.table.expression(self.table.bare(spec.type))
        own = self.size_of(spec.type)
        return f"{self._names[layout]}[{size // own}]" if spec.many and own and size // own != 1 else self._names[layout]

    def of(self, index: int, size: int) -> Optional[BlockType]:
        """Return the type of a block of `size` bytes, and how it is known."""
        claim = self.claims[index]
        layout = claim & LAYOUT_MASK
        if not layout:
            return None
        is_sure = not claim & INFERRED
        return BlockType(
            self.layout_name(layout, size - self.header(index)), is_sure, is_sure and claim >> LEVEL_SHIFT & LEVEL_MASK == Level.HINT
        )

    def size_of(self, number: int) -> int:
        """Return the bytes of a type; 0 if unknown."""
        return self.table.size_of(number)

    def count_links(self, index: int) -> int:
        """Return the number of members of a block's type that point to the same type: 1 in a node
        of a list, 2 in one of a tree or of a doubly linked list; 0 if the type is not known."""
        spec = self.spec(index)
        if spec is None or spec.many:
            return 0
        own = self.table.bare(spec.type)
        return sum(self.table.pointee(one.type) == own for one in self.table.fields_of(own))

    def place(self, index: int, offset: int) -> Optional[TypedPlace]:
        """Return what is at an offset of a block; None if its type is not known, or too small."""
        spec, offset = self.spec(index), offset - self.header(index)
        if spec is None or offset < 0:
            return None
        if spec.parts and not spec.many:
            return self._place_in_parts(spec, offset + spec.start)
        own, path = self.size_of(spec.type), ""
        if spec.many and own:
            path, offset = f"[{offset // own}]", offset % own
        return self.place_in(spec.type, offset, path)

    def place_in_object(self, one: PoolObject, address: int) -> TypedPlace:
        """Return the member at an address in an object of a pool."""
        own, offset = self.size_of(one.type), address - one.address
        return self.place_in(one.type, offset % own, f"[{offset // own}]") if one.many else self.place_in(one.type, offset)

    def object_name(self, one: PoolObject) -> str:
        """Return the name of the type of an object in a pool, such as "struct job[4]"."""
        name, own = self.table.expression(self.table.bare(one.type)), self.size_of(one.type)
        return f"{name}[{one.size // own}]" if one.many else name

    def _place_in_parts(self, spec: Spec, offset: int) -> Optional[TypedPlace]:
        """Return what is at an offset of a block with several parts. The expression of an object
        after the first one begins with its offset and type: "[+56 struct page].next"."""
        for part in spec.parts:
            inside = part.inside(offset)
            if inside >= 0:
                at = offset - inside - spec.start
                path = f"[+{at} {self.table.expression(self.table.bare(part.type))}]" if at else ""
                return self.place_in(part.type, inside, path)
        return None

    def place_in(self, number: int, offset: int, path: str = "") -> TypedPlace:
        """Return what is at an offset of a type. `path`: the expression up to it."""
        table = self.table
        for _ in range(DEEPEST):
            number = table.bare(number)
            if table.kinds[number] == Kind.ARRAY:
                element = table.bare(table.targets[number])
                own = self.size_of(element)
                if not own:
                    break
                path, offset, number = f"{path}[{offset // own}]", offset % own, element
                continue
            if table.kinds[number] not in STRUCTURES:
                break
            found = [one for one in table.fields_of(number) if one.kind <= FieldKind.BASE and one.offset <= offset]
            inside = [one for one in found if offset < one.offset + (self.size_of(one.type) or 1 << 40)]
            if not inside:
                break
            # Of the members of a union, the first one with a pointer there, else the first one.
            one = next((f for f in inside if table.kinds[self._at(f.type, offset - f.offset)] == Kind.POINTER), inside[0])
            path += f".{one.name}" if one.name and not (one.name.startswith("_") and self._is_library(number)) else ""
            number, offset = one.type, offset - one.offset
        return TypedPlace(path, table.bare(number), offset)

    def _is_library(self, number: int) -> bool:
        """Whether a class belongs to the C++ library. Members of such a class that begin with _ are
        not shown."""
        return self.table.text(self.table.names[number]).startswith(("std::", "__gnu_cxx::"))

    def _at(self, number: int, offset: int) -> int:
        return self.place_in(number, offset).type if self.table.kinds[self.table.bare(number)] != Kind.UNION else number
