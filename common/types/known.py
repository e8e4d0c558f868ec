"""The types that were found for blocks: names, how each is known, and what is at each offset."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Optional

from findleaks.debuginfo.type_table import FieldKind, Kind, TypeTable
from findleaks.engine.type_spread import DISPUTED, INFERRED, LAYOUT_MASK, LEVEL_MASK, LEVEL_SHIFT, NO_ORIGIN, ROOT, Level
from findleaks.types.embedding import STRUCTURES
from findleaks.types.layouts import Spec
from findleaks.types.roots import TypedRoot
from findleaks.value_classes import NamedTuple

DEEPEST = 32  # Nested members that are followed.
MOST_STEPS = 64  # Claims that are followed back to the variable that they come from.


class BlockType(NamedTuple):
    """The type of a block. `is_sure`: it follows from typed memory without doubt. `witnesses`: for
    a fingerprint, the number of blocks it was learned from."""

    name: str
    level: Level
    is_sure: bool
    witnesses: int = 0


class TypedPlace(NamedTuple):
    """What is at an offset of a typed block: an expression such as ".link.next" or "[3].name", the
    type there, and the bytes into it."""

    path: str
    type: int
    rest: int


class KnownTypes:
    """The types of a process's blocks, by index."""

    def __init__(
        self,
        table: TypeTable,
        specs: Sequence[Spec],
        claims: array[int],
        origins: array[int],
        roots: Sequence[TypedRoot],
        witnesses: dict[int, int],
    ) -> None:
        self.table, self._specs, self.claims, self.origins = table, specs, claims, origins
        self._roots, self._witnesses = roots, witnesses
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
        claim = self.claims[index]
        return None if not claim or claim & DISPUTED else self._specs[claim & LAYOUT_MASK]

    def name(self, index: int, size: int) -> str:
        """Return the type of a block of `size` bytes, as debuggers parse it: "struct line[12]"; ""
        if it is not known."""
        claim = self.claims[index]
        return "" if not claim or claim & DISPUTED else self.layout_name(claim & LAYOUT_MASK, size)

    def layout_name(self, layout: int, size: int) -> str:
        """Return the name of a layout for a block of `size` bytes."""
        spec = self._specs[layout]
        if layout not in self._names:
            self._names[layout] = self.table.expression(self.table.bare(spec.type))
        own = self.size_of(spec.type)
        return f"{self._names[layout]}[{size // own}]" if spec.many and own else self._names[layout]

    def of(self, index: int, size: int) -> Optional[BlockType]:
        """Return the type of a block of `size` bytes, and how it is known."""
        claim = self.claims[index]
        if not claim or claim & DISPUTED:
            return None
        layout, level = claim & LAYOUT_MASK, Level(claim >> LEVEL_SHIFT & LEVEL_MASK)
        return BlockType(self.layout_name(layout, size), level, not claim & INFERRED, self._witnesses.get(layout, 0))

    def origin(self, index: int) -> tuple[Optional[int], str]:
        """Return the block and the variable that the type of a block was derived from: one of them,
        or neither."""
        origin = self.origins[index]
        if origin == NO_ORIGIN:
            return None, ""
        if origin >= ROOT:
            return None, self._roots[origin - ROOT].name
        return origin, ""

    def size_of(self, number: int) -> int:
        """Return the bytes of a type; 0 if unknown."""
        bare = self.table.bare(number)
        return self.table.sizes[bare] or (self.table.word if self.table.kinds[bare] == Kind.POINTER else 0)

    def place(self, index: int, offset: int) -> Optional[TypedPlace]:
        """Return what is at an offset of a block; None if its type is not known, or too small."""
        spec = self.spec(index)
        if spec is None:
            return None
        own, path = self.size_of(spec.type), ""
        if spec.many and own:
            path, offset = f"[{offset // own}]", offset % own
        return self.place_in(spec.type, offset, path)

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
            path += f".{one.name}" if one.name else ""
            number, offset = one.type, offset - one.offset
        return TypedPlace(path, table.bare(number), offset)

    def _at(self, number: int, offset: int) -> int:
        return self.place_in(number, offset).type if self.table.kinds[self.table.bare(number)] != Kind.UNION else number
