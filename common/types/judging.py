"""Judge pointers whose own types do not determine the types of the blocks that they refer to: void
pointers, members of unions, pointers to arrays, and pointers to a type that several types begin
with.

The pointers of one member are judged together, by a sample. If only one type fits all of the
blocks, the blocks have this type. If several types fit, Judge looks for a feature of the pointers
that separates the types (engine/type_spread.py, Feature), such as a tag near the pointer. The
engine applies the result to all pointers of the rule."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.debuginfo.type_table import Kind
from findleaks.engine.type_spread import (
    DECISION,
    EXCLUDING,
    LAYOUT_MASK,
    LEVEL_SHIFT,
    MOST_OPTIONS,
    NO_CLAIM,
    NO_FEATURE,
    NO_VALUE,
    Choosing,
    Feature,
    Level,
    Pointers,
    TypeSpread,
)
from findleaks.types.content import MOST_COMPARED, Content
from findleaks.types.embedding import STRUCTURES
from findleaks.types.erasure import Managed
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.types.partly_used import PartlyUsed
from findleaks.types.references import Reference, Sort
from findleaks.types.rules import Rules
from findleaks.types.sampling import Rows, group_by_block, sample_blocks
from findleaks.types.shared_tags import SharedTags
from findleaks.types.specs import Candidate, Spec
from findleaks.value_classes import NamedTuple

# The candidates are the types that blocks may have. A block *votes* for the type that fits it best.
LEAST_PART = 0.04  # A candidate must fit more than this part of the sample.
PURE = 0.97  # Least part of the votes, or of the blocks, that must agree.
LEAST_NONE = 8  # If this number of blocks fits no candidate, the rule makes no claim.
FEW = 16  # Fewer blocks may be only the start of a list, the rest of which has other types.
MOST_KEPT = 16  # If there are more candidates, those that fit hardly any block are dropped.
MOST_ADDED = 4  # Maximum number of types of typed blocks that become candidates, too.
MOST_READ = 256  # Bytes of a block that are read in Python.
NEAREST = 3  # Words before and after a pointer that may refer to the class of its owner.
LEAST_ALIKE = 3  # Fewest blocks with one value of a feature that get a type by elimination.

_TAGS = (Feature.TARGET_BYTES, Feature.TARGET_BYTE, Feature.FOUR_BYTES, Feature.ONE_BYTE)
_NO_TYPE = Level.LEARNED << LEVEL_SHIFT


class _Case(NamedTuple):
    """The pointers of one rule, and the types that the blocks may have."""

    found: Pointers
    key: tuple[int, int, int]
    arrays: Sequence[Candidate]
    """Arrays whose claims would be certain."""
    every: Sequence[Candidate]
    fitting: Sequence[Candidate]  # Those of `every` that fit more than a few blocks of the sample.
    candidates: Sequence[Candidate]
    """The candidates that are considered, with those of earlier decisions."""
    has_earlier: bool
    """Whether only an earlier decision had some of these candidates."""
    sample: Sequence[int]
    fits: dict[Candidate, int]
    """How many blocks of the sample fit each of `every`. Earlier candidates may be missing."""
    untyped: Rows
    typed_rows: Rows
    typed: dict[int, Spec]
    """The types of the typed blocks."""


class Judge:
    """Decides on deferred pointers."""

    def __init__(self, spread: TypeSpread, heap: HeapView, layouts: Layouts, rules: Rules, content: Content) -> None:
        self._spread, self._heap, self._layouts, self._rules, self._content = spread, heap, layouts, rules, content
        self.partly_used = PartlyUsed(spread, layouts, rules, content)
        self._shared_tags = SharedTags(layouts, rules)
        self._decisions: dict[tuple[object, ...], int] = {}
        # The candidates of the earlier decision on pointers with this reference, offset and size.
        # Each later decision considers them again, because memory that was not visited yet may
        # also have pointers to blocks of these types.
        self._earlier: dict[tuple[int, int, int], Sequence[Candidate]] = {}
        # The feature and the claims of each decision in which some values have no type. They are
        # kept for later decisions, which may see only blocks of such values.
        self._separated: dict[tuple[int, int, int], tuple[int, dict[int, int]]] = {}
        self.allows_rest = False
        """Whether a type may be followed by other data that is larger than the type."""
        self.find_managed: Callable[[int], Managed] = lambda address: Managed()
        """Returns the types that the manager of a type-erased wrapper names for the wrapper's
        value. The argument is the address of the manager."""

    def judge(self, found: Pointers, certain: bool) -> Optional[int]:
        """Return the answer to a rule by its deferred pointers; None if it is not known. With
        `certain`, the answer allows only arrays, whose claims are certain."""
        if self._rules.is_hinted(found.reference, found.offset, found.size):
            return None
        of = self._layouts.references[found.reference]
        if of.sort == Sort.ERASED:
            return self._by_manager(of.tag, found)
        candidates = self._rules.candidates(found.reference, found.offset, found.size)
        if not candidates:
            return None
        arrays = [one for one in candidates if one.level.is_certain]
        untyped = {block: row for block, row in group_by_block(found.untyped).items() if not self._heap.claims[block]}
        if certain or not untyped:
            return self._decide(arrays, ()) if certain and arrays and untyped else None
        case = self._examine(found, candidates, arrays, untyped)
        if not case.fitting:
            return NO_CLAIM if len(untyped) >= LEAST_NONE and case.key not in self._earlier else None
        if not self.allows_rest and all(self._has_rest(one, found) for one in case.fitting):
            return None
        votes = self._votes(case.candidates, case.sample)
        answer = self._decide_for_one(case, votes)
        return self._decide_for_several(case, votes) if answer is None else answer

    def _examine(self, found: Pointers, candidates: Sequence[Candidate], arrays: Sequence[Candidate], untyped: Rows) -> _Case:
        """Compare the candidates with a sample of the untyped blocks, and drop those that fit
        hardly any."""
        key, typed_rows = (found.reference, found.offset, found.size), group_by_block(found.typed)
        typed = {block: self._layouts.specs[layout] for block in typed_rows if (layout := self._heap.layout(block))}
        candidates = [one._replace(level=Level.BASE, rivals=()) if one.rivals else one for one in candidates]
        candidates = self.partly_used.replace(candidates, found)
        every = self._usual_arrays(arrays, typed) or self._with_typed(candidates, Counter(typed.values()), found)
        sample = sample_blocks(list(untyped))
        fits = dict(zip(every, self._content.count_fits([one.spec for one in every], sample)))
        fitting = [one for one in every if fits[one] > LEAST_PART * len(sample)]
        is_pointer = self._layouts.references[found.reference].sort == Sort.POINTER
        is_open = is_pointer and (len(sample) < FEW or len(every) <= MOST_KEPT)
        most = MOST_OPTIONS - 2 * len(arrays)
        kept = (every if is_open else fitting)[:most]
        specs = {one.spec for one in kept}
        earlier = [one for one in self._earlier.get(key, ()) if one.spec not in specs]
        kept = [*kept, *earlier][:most]
        return _Case(found, key, arrays, every, fitting, kept, bool(earlier), sample, fits, untyped, typed_rows, typed)

    def _decide_for_one(self, case: _Case, votes: dict[int, Spec]) -> Optional[int]:
        """Return the answer if nearly all blocks fit one type, and either no other type or the
        pointers belong to one class. Return None otherwise. `votes`: the votes of the sample."""
        of, total, known = self._layouts.references[case.found.reference], len(case.sample), {**votes, **case.typed}
        winner = _winner(Counter(known.values()))
        best = next((one for one in case.candidates if one.spec == winner), None)
        if best is None or case.arrays or case.fits.get(best, 0) < PURE * total:
            return None
        is_void, left = best.level == Level.LEARNED and of.sort == Sort.ANY, [block for block in case.sample if block not in votes]
        is_alone = not case.has_earlier and (not votes or (is_void and len(known) >= FEW))
        if is_alone and self._fits_alone(best, case.candidates, left, total, case.found.size):
            # Later pointers may refer to other types: all arrays of void pointers share one rule,
            # and the values of several tables may be behind one member.
            if not (is_void and of.owner):
                return self.decide([best])
            self._earlier[case.key] = [best]
            return self.decide([best._replace(level=Level.UNION)])
        # The other blocks fit several types, but their pointers may belong to the same class.
        same = self._find_common_word(case.untyped) if is_void and len(votes) >= max(FEW, total // 2) else None
        return None if same is None else self._decide((), case.candidates, same[0], {same[1]: self._rules.claim(best)})

    def _decide_for_several(self, case: _Case, votes: dict[int, Spec]) -> int:
        """Return the answer for blocks of several types. If a feature of the pointers separates the
        types, the answer depends on it. `votes`: the votes of the sample."""
        self._earlier[case.key] = candidates = case.candidates
        typed, rows = case.typed, {**case.typed_rows, **case.untyped}
        clear = self._votes([one._replace(level=Level.LEARNED) for one in candidates], case.sample)
        left = [block for block in case.sample if block not in votes]
        # Blocks that fit no candidate are text or buffers.
        unfit = dict.fromkeys(self._content.find_unfit([one.spec for one in candidates], left))
        vague = self._find_vague(candidates, [block for block in left if block not in unfit])
        if vague:
            single = {block for block in votes if block not in typed and self._count_words(block) <= 1}
            votes, clear = ({block: spec for block, spec in some.items() if block not in single} for some in (votes, clear))
        of, place = self._layouts.references[case.found.reference], (case.found.offset, case.found.size)
        earlier_feature, earlier_claims = self._separated.get(case.key) or self._shared_tags.find(of, *place, candidates)
        # Some votes are only for the smallest of several types that fit. So try the others first.
        feature, claims = self._separate(rows, {**unfit, **clear, **typed, **vague}, candidates, case.every, earlier_feature)
        if not claims and not earlier_claims:
            feature, claims = self._separate(rows, {**unfit, **votes, **typed, **vague}, candidates, case.every, earlier_feature)
        if not claims or feature == earlier_feature:
            # Perhaps only pointers to blocks that several types fit are left.
            feature, claims = earlier_feature, {**earlier_claims, **claims}
        if _NO_TYPE in claims.values():
            self._separated[case.key] = feature, claims
        self._shared_tags.add(of, *place, feature, claims)
        return self._decide(case.arrays, candidates, feature, claims)

    def _find_common_word(self, rows: Rows) -> Optional[tuple[int, int]]:
        """Return the feature and the value of a word that refers to static memory, such as a table
        of functions, and is the same near all pointers. Return None if there is none."""
        packed, word = array("Q", [part for block in sample_blocks(list(rows)) for part in rows[block]]), self._layouts.table.word
        for distance in range(-NEAREST, NEAREST + 1):
            feature = Feature.STATIC_WORD << 8 | distance * word + 128
            values = set(self._spread.feature(feature, packed)) if distance else {NO_VALUE}
            if len(values) == 1 and NO_VALUE not in values:
                return feature, values.pop()
        return None

    def _find_vague(self, candidates: Sequence[Candidate], blocks: Sequence[int]) -> dict[int, Spec]:
        """Return the blocks that fit only an array of void pointers. Such a type fits nearly all
        blocks, so it is never the best type. If there are such blocks, then a block with one
        pointer may also be an array of void pointers."""
        arrays = [one for one in candidates if self._is_void_array(one.spec)]
        if len(arrays) != 1 or not blocks:
            return {}
        alone = self._content.find_unfit([one.spec for one in candidates if one not in arrays], blocks)
        chosen = self._content.choose(arrays, Choosing.BY_CONTENT, alone)
        return {block: spec for block, spec in zip(alone, chosen) if spec is not None}

    def _is_void_array(self, spec: Spec) -> bool:
        table = self._layouts.table
        bare = table.bare(spec.type)
        return spec.many and not spec.parts and table.kinds[bare] == Kind.POINTER and table.kinds[table.pointee(bare)] == Kind.VOID

    def _count_words(self, block: int) -> int:
        """Return how many words of a block are not zero."""
        size, word = self._heap.blocks.size(block), self._heap.arch.word
        data = self._heap.bytes(self._heap.blocks.address(block), min(size, MOST_READ))
        return sum(any(data[at : at + word]) for at in range(0, len(data), word))

    def _by_manager(self, feature: int, found: Pointers) -> Optional[int]:
        """Return the answer for the values of type-erased wrappers: the manager names the type.
        Linkers may merge equal functions, so the content must not contradict this type."""
        claims: dict[int, int] = {}
        for address in set(self._spread.feature(feature, array("Q", found.untyped))) - {NO_VALUE}:
            managed, table = self.find_managed(address), self._layouts.table
            if not found.offset and self._rules.sizes.fits(table.size_of(managed.value), found.size):
                claims[address] = self._rules.claim(Candidate(Spec(managed.value), Level.EXACT))
            elif table.kinds[managed.pointer] == Kind.POINTER:
                reference = self._layouts.refer(Reference(Sort.POINTER, (table.pointee(managed.pointer),)))
                options = self._rules.candidates(reference, found.offset, found.size)
                if len(options) == 1 and options[0].level in (Level.EXACT, Level.CONTAINER):
                    claims[address] = self._rules.claim(options[0])
        return self._decide((), (), feature, claims) if claims else None

    def _has_rest(self, one: Candidate, found: Pointers) -> bool:
        """Whether blocks with a type could contain another value of it, but are not arrays."""
        return one.level == Level.BASE and self._rules.has_rest(one.spec, found.size)

    def _with_typed(self, candidates: Sequence[Candidate], typed: Counter[Spec], found: Pointers) -> Sequence[Candidate]:
        """Add the most frequent types of the typed blocks that pointers of the rule refer to. A
        union declares all of its types: only stale words in it refer to blocks of other types."""
        of, known = self._layouts.references[found.reference], {one.spec for one in candidates}
        if of.sort == Sort.CHOICE and not of.may_be_any:
            return candidates
        level = Level.LEARNED if of.sort == Sort.ANY else Level.BASE
        more = [Candidate(spec, level) for spec, _ in typed.most_common(MOST_ADDED)]
        return [*candidates, *(one for one in more if one.spec not in known)]

    def _usual_arrays(self, arrays: Sequence[Candidate], typed: dict[int, Spec]) -> Sequence[Candidate]:
        """Return the array that nearly all typed blocks of a rule are; () if there is none.
        Blocks with a pointer only in their first element are then arrays, too, such as hash tables
        with one entry. `typed`: the types of the blocks."""
        usual = _winner(Counter(typed.values())) if arrays and len(typed) >= FEW else None
        return [one._replace(level=Level.BASE) for one in arrays if one.spec == usual and one.spec.many]

    def _fits_alone(self, one: Candidate, candidates: Sequence[Candidate], left: Sequence[int], total: int, size: int) -> bool:
        """Whether nearly all of the blocks without a vote fit no other candidate. Behind a void
        pointer, blocks of numbers also fit types without pointers."""
        others = [other.spec for other in candidates if other.spec != one.spec]
        others += [Spec(number) for number in self._rules.without_pointers(size)] if one.level == Level.LEARNED else []
        return not left or max(self._content.count_fits(others, left), default=0) <= (1 - PURE) * total

    def _votes(self, candidates: Sequence[Candidate], sample: Sequence[int]) -> dict[int, Spec]:
        """Return the votes of the blocks. Blocks without a best type do not vote."""
        chosen = self._content.choose(candidates, Choosing.BY_CONTENT, sample)
        return {block: spec for block, spec in zip(sample, chosen) if spec is not None}

    def _separate(
        self, rows: Rows, known: dict[int, Optional[Spec]], candidates: Sequence[Candidate], every: Sequence[Candidate], earlier: int
    ) -> tuple[int, dict[int, int]]:
        """Return the feature that separates the types of blocks, and the claims by its values.
        `known`: the types of blocks; None for blocks that fit none of the candidates. `every`: all
        candidates, also those that few blocks fit. `earlier`: the feature that separated the types
        of other blocks. It is preferred, because another one may separate few blocks by chance."""
        voted = sample_blocks([block for block in rows if block in known])
        specs = list(dict.fromkeys(known[block] for block in voted))
        if len(specs) < 2:
            return NO_FEATURE, {}
        by_spec = {one.spec: one for one in candidates}
        packed = array("Q", [word for block in voted for word in rows[block]])
        labels = [specs.index(known[block]) for block in voted]
        groups = self._group(earlier, packed, labels)
        if sum(max(votes.values()) for votes in groups.values()) >= PURE * len(labels):
            feature = earlier
        else:
            feature = self._spread.separate(packed, array("I", labels))
            groups = self._group(feature, packed, labels)
        if feature == NO_FEATURE:
            return NO_FEATURE, {}
        tops = {value: _winner(Counter({specs[label]: count for label, count in votes.items()})) for value, votes in groups.items()}
        claims = {value: self._rules.claim(by_spec[top]) for value, top in tops.items() if top in by_spec}
        if not claims:
            return NO_FEATURE, {}
        is_tag = feature >> 8 in _TAGS and len(claims) == len(set(claims.values()))
        left = self._fits_of_values(feature, {block: row for block, row in rows.items() if block not in known}, every)
        self._withdraw(claims, left, every)
        if is_tag or feature >> 8 in (Feature.STATIC_WORD, Feature.TARGET_WORD):
            self._eliminate(claims, left, every)
        # A value whose blocks fit none of the types, such as buffers, has no type.
        unfit = specs.index(None) if None in specs else -1
        none = {value: _NO_TYPE for value, top in tops.items() if top is None and groups[value][unfit] >= LEAST_ALIKE}
        return feature, {**none, **claims}

    def _group(self, feature: int, rows: array[int], labels: Sequence[int]) -> dict[int, Counter[int]]:
        """Count the labels of pointers by the value of a feature; {} without a feature."""
        groups: dict[int, Counter[int]] = {}
        for value, label in zip(self._spread.feature(feature, rows), labels) if feature != NO_FEATURE else ():
            groups.setdefault(value, Counter())[label] += 1
        return groups

    def _fits_of_values(self, feature: int, rows: Rows, candidates: Sequence[Candidate]) -> dict[int, list[int]]:
        """Return, for each value of a feature, which candidates the untyped blocks fit: a mask for
        each block. Return {} if there are too many candidates."""
        if len(candidates) > MOST_COMPARED:
            return {}
        blocks = sample_blocks([block for block in rows if not self._heap.claims[block]])
        numbers = [self._layouts.number(one.spec) for one in candidates]
        values = self._spread.feature(feature, array("Q", [word for block in blocks for word in rows[block]]))
        groups: dict[int, list[int]] = {}
        for value, mask in zip(values, self._content.fits(numbers, blocks)):
            groups.setdefault(value, []).append(mask)
        return {value: masks for value, masks in groups.items() if value != NO_VALUE and len(masks) >= LEAST_ALIKE}

    def _withdraw(self, claims: dict[int, int], left: dict[int, list[int]], candidates: Sequence[Candidate]) -> None:
        """Remove the claims of a value if some of its untyped blocks fit another member of the
        union. Perhaps none of that member's blocks has a vote, because all of them also fit a
        second type. `left`: the result of _fits_of_values."""
        owned = {claim & LAYOUT_MASK for claim in claims.values()}
        for at, one in enumerate(candidates):
            if one.level == Level.UNION and self._layouts.number(one.spec) not in owned:
                fitting = {value: sum(mask >> at & 1 for mask in masks) for value, masks in left.items() if value in claims}
                for value in [value for value, count in fitting.items() if count > (1 - PURE) * len(left[value])]:
                    del claims[value]

    def _eliminate(self, claims: dict[int, int], left: dict[int, list[int]], candidates: Sequence[Candidate]) -> None:
        """Add the claims of values whose blocks have no vote, because several types fit them. A
        word that refers to static memory, such as the pointer to an object's class, is the same in
        all objects of a type. So a type that belongs to another value is excluded. The same is true
        of numbers if each of the types known so far has only one. `left`: see _withdraw."""
        numbers = [self._layouts.number(one.spec) for one in candidates]
        owned = {claim & LAYOUT_MASK for claim in claims.values()}
        values = [value for value in left if value not in claims]
        while values:
            for value in values:
                fitting = [at for at, number in enumerate(numbers) if number not in owned and all(mask >> at & 1 for mask in left[value])]
                if len(fitting) == 1:
                    claims[value] = self._rules.claim(candidates[fitting[0]])
                    owned.add(numbers[fitting[0]])
                    values.remove(value)
                    break
            else:
                return

    def find_typeless(self, found: Pointers) -> set[int]:
        """Return the blocks that have none of the types of a rule, because of the value of the
        feature that separates these types."""
        feature, claims = self._separated.get((found.reference, found.offset, found.size), (NO_FEATURE, {}))
        if _NO_TYPE not in claims.values():
            return set()
        values = self._spread.feature(feature, array("Q", found.untyped))
        return {block for block, value in zip(found.untyped[2::3], values) if claims.get(value) == _NO_TYPE}

    def decide(self, options: Sequence[Candidate], found: Optional[Pointers] = None) -> int:
        """Return the answer to a rule for which the content of each block selects one of these
        types. The content may also select an array that pointers of the rule `found` declare."""
        candidates = self._rules.candidates(found.reference, found.offset, found.size) if found is not None else ()
        return self._decide([one for one in candidates if one.level.is_certain and one.spec.many], options)

    def _decide(
        self, arrays: Sequence[Candidate], others: Sequence[Candidate], feature: int = NO_FEATURE, claims: Optional[dict[int, int]] = None
    ) -> int:
        """Return the answer that stands for a decision. Equal decisions share one number. `claims`:
        the claims by the values of the feature."""
        keys = claims or {}
        possible = [one._replace(level=Level.BASE) for one in arrays if others and self._has_void_pointers(one.spec)]
        options = [word for one in (*arrays, *possible) for word in self._certain_option(one)]
        options += [word for one in others for word in self._content.option(one)]
        key = (tuple(options), feature, tuple(sorted(keys.items())))
        if key not in self._decisions:
            values = sorted(keys)
            self._decisions[key] = self._spread.add_decision(options, feature, values, [keys[value] for value in values])
        return DECISION | self._decisions[key]

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


def _winner(votes: Counter[Optional[Spec]]) -> Optional[Spec]:
    """Return the spec that nearly all votes are for."""
    total = sum(votes.values())
    for spec, count in votes.most_common(1):
        return spec if count >= PURE * total else None
    return None
