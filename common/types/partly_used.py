"""Describe arrays whose last elements have never been in use. These elements have the former
content of the memory, so that the array as a whole fits no type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.debuginfo.type_table import Kind
from findleaks.engine.type_spread import Choosing, Level, Pointers, TypeSpread
from findleaks.types.content import Content
from findleaks.types.layouts import Layouts
from findleaks.types.references import Sort
from findleaks.types.rules import Rules
from findleaks.types.sampling import sample_blocks
from findleaks.types.specs import Candidate, Packed, Spec

MOST_USED = 16  # Maximum number of elements in use that are examined.
LEAST_ARRAYS = 3  # Fewest arrays of a type after which other blocks may be partly used arrays.


class PartlyUsed:
    """Adds partly used arrays to the possible contents of blocks."""

    def __init__(self, spread: TypeSpread, layouts: Layouts, rules: Rules, content: Content) -> None:
        self._spread, self._layouts, self._rules, self._content = spread, layouts, rules, content
        self._arrays: set[int] = set()  # The types of which the process has arrays.

    def replace(self, candidates: Sequence[Candidate], found: Pointers) -> Sequence[Candidate]:
        """Add partly used arrays to the candidates of a rule. They replace a single value that is
        followed by other data, if the process has arrays of the type."""
        of = self._layouts.references[found.reference]
        if of.sort != Sort.POINTER or found.offset or of.counted or any(one.level == Level.UNION for one in candidates):
            return candidates
        result: list[Candidate] = []
        for one in candidates:
            spec = one.spec._replace(many=True, parts=())
            is_array = one.spec.many and not one.spec.parts
            if spec.type != of.pointees[0] or not (is_array or self._is_single(one.spec, found.size)) or not self._has_arrays(spec, found):
                result.append(one)
            else:
                result += [*([one._replace(level=Level.BASE)] if is_array else []), *self._prefixes(spec, found.size)]
        return list(dict.fromkeys(result))

    def _is_single(self, spec: Spec, size: int) -> bool:
        """Whether blocks of `size` bytes have room for more values than a content has, and may be
        arrays. It has one value, or several values at the start of the block."""
        own, parts = self._layouts.table.size_of(spec.type), spec.parts
        is_first = len(parts) == 1 and (parts[0].offset, parts[0].size) == (0, own) and 0 < parts[0].number * own < size
        is_array = self._rules.is_array_of_size(Spec(spec.type, True), size)
        return is_array and (is_first or (not parts and self._rules.has_rest(spec, size)))

    def _has_arrays(self, spec: Spec, found: Pointers) -> bool:
        """Whether the process has several arrays of a type. Pointers are nearly always elements of
        arrays. Otherwise, several blocks of the rule `found` must have a second element with a
        pointer, or be known to be arrays."""
        if self._layouts.table.kinds[spec.type] == Kind.POINTER:
            return True
        if spec.type not in self._arrays:
            options = [one._replace(level=Level.LEARNED) for one in self._prefixes(spec, found.size)][:2]
            blocks = sample_blocks(sorted(set(found.untyped[2::3])))
            longer = self._content.choose(options, Choosing.BY_CONTENT, blocks).count(options[-1].spec) if len(options) > 1 else 0
            if longer < LEAST_ARRAYS and len(self._spread.with_layout(self._layouts.number(spec), LEAST_ARRAYS)) < LEAST_ARRAYS:
                return False
            self._arrays.add(spec.type)
        return True

    def _prefixes(self, spec: Spec, size: int) -> Iterator[Candidate]:
        """Yield the arrays of which only the first elements are in use."""
        own = self._layouts.size_of(spec)
        for number in range(1, min(size // own - 1, MOST_USED) + 1 if own else 0):
            yield Candidate(spec._replace(parts=(Packed(0, spec.type, number, own),)), Level.BASE, is_rare=True)
