"""Determine whether the content of a block is of the type that a pointer refers to."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.debuginfo.type_table import FieldKind, Kind
from findleaks.engine.type_spread import Flag, Role
from findleaks.types.embedding import Embedding, is_structure
from findleaks.types.layouts import Layouts
from findleaks.types.references import Reference, Sort
from findleaks.types.specs import Spec


def is_inside(of: Reference, offset: int) -> bool:
    """Whether the buffer of a vector is a part of a block, such as the memory that a small vector
    has for its first elements. Then the block is not an array of elements."""
    return offset > 0 and of.counted and of.is_certain and not of.used & Flag.TABLE


class Agreement:
    """Compares pointers with the contents of the blocks that they refer to."""

    def __init__(self, embedding: Embedding, layouts: Layouts) -> None:
        self._table, self._embedding, self._layouts = embedding.table, embedding, layouts

    def agrees(self, reference: int, offset: int, layout: int) -> int:
        """Return whether blocks with this layout have what the pointer refers to: 0 no, 1 possibly,
        2 yes."""
        of, spec = self._layouts.references[reference], self._layouts.specs[layout]
        if any(self._embedding.has(number, at, pointee) for number, at in self._places(spec, offset) for pointee in of.pointees):
            return 2
        if self._may_be_head(of, spec, offset) or is_inside(of, offset) or (offset and self._is_storage_at(of, spec, offset)):
            return 1
        # The members of a type that is only declared are unknown.
        is_any = of.sort in (Sort.ANY, Sort.DATA, Sort.TRAIT_OBJECT, Sort.ERASED) or not self._table.size_of(spec.type)
        if of.sort == Sort.POINTER and not of.counted and self._table.kinds[of.pointees[0]] == Kind.POINTER:
            return int(is_any or not self._is_number_at(spec, offset))
        return int(is_any or (of.sort == Sort.POINTER and not is_structure(self._table, of.pointees[0])))

    def _is_number_at(self, spec: Spec, offset: int) -> bool:
        """Whether a content certainly has a number at an offset."""
        found = [
            leaf.role
            for part in self._layouts.shape(spec)
            if part.start <= offset and (not part.number or offset < part.start + part.number * part.stride)
            for leaf in part.leaves
            if leaf.offset == (offset - part.start) % part.stride
        ]
        return bool(found) and all(role == Role.PLAIN for role in found)

    def _is_storage_at(self, of: Reference, spec: Spec, offset: int) -> bool:
        """Whether a content has an array of bytes at an offset, in which a program may store other
        objects. Also true at the end of the content, if the pointer may be the end of a vector."""
        is_end = of.counted and not spec.many and not spec.parts and offset == self._layouts.size_of(spec)
        return is_end or any(self._embedding.has_bytes(number, at) for number, at in self._places(spec, offset))

    def _places(self, spec: Spec, offset: int) -> Sequence[tuple[int, int]]:
        """Return the types of which a content has values at an offset, with the offset in the
        value."""
        if spec.parts:
            return [(part.type, inside) for part in spec.parts if (inside := part.inside(offset)) >= 0]
        own = self._layouts.size_of(spec)
        return [(spec.type, offset % own if spec.many and own else offset)]

    def _may_be_head(self, of: Reference, spec: Spec, offset: int) -> bool:
        """Whether a block with this content may have the head of a list or tree at an offset, if
        the pointer refers to nodes of a standard container. The head is an object of the
        nodes' base class."""
        bases = [one.type for one in self._table.fields_of(of.node) if one.kind == FieldKind.BASE and not one.offset] if of.node else ()
        return any(self._embedding.has(number, at, base) for number, at in self._places(spec, offset) for base in bases)
