"""Make the decisions of the engine (TypeSpread.add_decision): which of several types a block has,
according to its content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.debuginfo.type_table import Kind
from findleaks.engine.type_spread import DECISION, EXCLUDING, NO_FEATURE, NO_PART, Level, TypeSpread
from findleaks.target.base import Range
from findleaks.types.content import Content
from findleaks.types.embedding import STRUCTURES
from findleaks.types.layouts import Layouts, Reference, Sort
from findleaks.types.rules import Rules
from findleaks.types.specs import Candidate, Spec


class Decisions:
    """Makes decisions. Equal decisions share one number."""

    def __init__(self, spread: TypeSpread, layouts: Layouts, rules: Rules, content: Content) -> None:
        self._spread, self._layouts, self._rules, self._content = spread, layouts, rules, content
        self._embedding = layouts.embedding
        self._known: dict[tuple[object, ...], int] = {}

    def decide(
        self,
        arrays: Sequence[Candidate],
        others: Sequence[Candidate],
        feature: int = NO_FEATURE,
        claims: Optional[dict[int, int]] = None,
        part: Range = NO_PART,
    ) -> int:
        """Return the answer to a rule that stands for a decision. `arrays`: types whose claims are
        certain. `claims`: the claims by the values of the feature. `part`: see `common_part`."""
        keys = claims or {}
        possible = [one._replace(level=Level.BASE) for one in arrays if others and self._has_void_pointers(one.spec)]
        options = [word for one in (*arrays, *possible) for word in self._certain_option(one)]
        options += [word for one in others for word in self._content.option(one)]
        key = (tuple(options), feature, tuple(sorted(keys.items())), part)
        if key not in self._known:
            values = sorted(keys)
            self._known[key] = self._spread.add_decision(options, feature, values, [keys[value] for value in values], part)
        return DECISION | self._known[key]

    def common_part(self, of: Reference, offset: int, size: int, options: Sequence[Candidate]) -> Range:
        """Return the offsets of the value that pointers with this reference refer to, if blocks of
        `size` bytes have this value whichever of the types they have: the base struct of several
        derived ones, or the link of a list. Return NO_PART otherwise.

        The size of the block must be possible for each of the types. In a block that is larger, a
        stale pointer may refer to other data."""
        if of.sort != Sort.POINTER or of.counted or of.used:
            return NO_PART
        pointee, table = of.pointees[0], self._layouts.table
        is_struct = table.kinds[pointee] == Kind.STRUCT and table.size_of(pointee) > 0
        if not is_struct or not all(self._has_part(one.spec, pointee, offset, size) for one in options):
            return NO_PART
        return Range(offset, offset + table.size_of(pointee))

    def _has_part(self, spec: Spec, pointee: int, offset: int, size: int) -> bool:
        """Whether a block of `size` bytes may have a content, and the content has a value of a type
        at an offset."""
        is_whole = self._rules.sizes.least_request(size) <= self._layouts.size_of(spec) <= size
        is_possible = not spec.many and not spec.parts and (is_whole or self._rules.may_extend_to(spec.type, size))
        return is_possible and self._embedding.has(spec.type, offset, pointee)

    def _certain_option(self, one: Candidate) -> Sequence[int]:
        """Return the options for TypeSpread.add_decision that are an array, or a type whose rivals
        the content has to contradict."""
        numbers = map(self._layouts.number, one.rivals)
        return [word for number in numbers for word in (self._rules.claim(one), number, EXCLUDING)] or self._array_option(one)

    def _array_option(self, one: Candidate) -> tuple[int, int, int]:
        """Return an option for TypeSpread.add_decision that is an array. An array of pointers needs
        any pointer, other arrays need a pointer in an element after the first. An inferred array
        needs several void pointers in these elements."""
        table, bare = self._layouts.table, self._layouts.table.bare(one.spec.type)
        is_pointer = table.first_field[bare] == table.first_field[bare + 1]
        single = self._layouts.number(one.spec._replace(many=False)) if one.spec.many and not is_pointer else 0
        return self._rules.claim(one), single, table.sizes[bare]

    def _has_void_pointers(self, spec: Spec) -> bool:
        """Whether `spec` is an array of structs with members of type void *."""
        layouts, is_struct = self._layouts, self._layouts.table.kinds[self._layouts.table.bare(spec.type)] in STRUCTURES
        references = layouts.references_of(*layouts.shape(spec))
        return spec.many and is_struct and any(one.sort == Sort.ANY for _, one in references)
