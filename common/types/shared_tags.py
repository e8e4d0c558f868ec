"""Share what is known about the tags of objects, such as the kind in the first word of an object.

Pointers of many members may refer to the objects of one base struct, and each member is judged
alone (judging.py). If the pointers of one member show which type belongs to which value of a tag in
the object, this is also true for the pointers of other members, which may be few."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.engine.type_spread import LAYOUT_MASK, NO_FEATURE, Feature
from findleaks.types.layouts import Layouts
from findleaks.types.references import Reference
from findleaks.types.rules import Rules
from findleaks.types.specs import Candidate, Spec

_IN_TARGET = (Feature.TARGET_BYTES, Feature.TARGET_BYTE, Feature.TARGET_WORD)

_Key = tuple[tuple[int, ...], int, int]
"""The pointees of a reference, the offset in the block, and the size of the block."""


class SharedTags:
    """The tags that separate types, by the type that pointers declare."""

    def __init__(self, layouts: Layouts, rules: Rules) -> None:
        self._layouts, self._rules = layouts, rules
        self._known: dict[_Key, tuple[int, dict[int, Spec]]] = {}
        self._refuted: set[_Key] = set()

    def add(self, of: Reference, offset: int, size: int, feature: int, claims: dict[int, int]) -> None:
        """Add the claims that belong to the values of a feature. Features outside of the object,
        and claims that are contradicted by those of other members, are not shared."""
        key = of.pointees, offset, size
        specs = {value: self._layouts.specs[claim & LAYOUT_MASK] for value, claim in claims.items() if claim & LAYOUT_MASK}
        if feature == NO_FEATURE or feature >> 8 not in _IN_TARGET or not specs or key in self._refuted:
            return
        other, known = self._known.get(key, (feature, {}))
        if other != feature:
            return
        if any(known.get(value, spec) != spec for value, spec in specs.items()):
            self._refuted.add(key)
            del self._known[key]
        else:
            self._known[key] = feature, {**known, **specs}

    def find(self, of: Reference, offset: int, size: int, candidates: Sequence[Candidate]) -> tuple[int, dict[int, int]]:
        """Return the feature that separates the candidates, and the claims that belong to its
        values; NO_FEATURE and {} if none is known."""
        feature, known = self._known.get((of.pointees, offset, size), (NO_FEATURE, {}))
        by_spec = {one.spec: one for one in candidates}
        claims = {value: self._rules.claim(by_spec[spec]) for value, spec in known.items() if spec in by_spec}
        return (feature, claims) if claims else (NO_FEATURE, {})
