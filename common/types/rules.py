"""Determine the possible types of a block from the type of a pointer to it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.debuginfo.type_table import VOID, Flag, Kind
from findleaks.engine.type_spread import (
    DECISION,
    DEFERRED,
    LENGTHS,
    LEVEL_SHIFT,
    NO_CLAIM,
    NOT_ARRAY,
    QUESTION,
    Feature,
    Level,
    Question,
    Role,
    TypeSpread,
)
from findleaks.engine.type_spread import Flag as ReferenceFlag
from findleaks.types.address_numbers import points_to_numbers
from findleaks.types.agreement import Agreement, is_inside
from findleaks.types.containing import ContainingTypes
from findleaks.types.embedding import STRUCTURES, Embedding
from findleaks.types.layouts import Layouts
from findleaks.types.list_links import ListLinks
from findleaks.types.references import Reference, Sort
from findleaks.types.sizes import SizeClasses
from findleaks.types.specs import Candidate, Packed, Spec
from findleaks.types.truncation import cut_struct

if TYPE_CHECKING:
    from findleaks.types.slots import Slots

MOST_CANDIDATES = 64  # Types that are compared with the content of blocks.
MOST_COUNTS = 256  # Numbers of elements that an array in a block of some size may have.
MOST_FIRST = 2  # Elements of an array of pointers that are compared with a pointer to it.
MOST_CHOICES = 16  # Types of which a block may be one, for a pointer to it to be possible.


class Rules:
    """Answers the questions of the engine."""

    def __init__(
        self, spread: TypeSpread, embedding: Embedding, layouts: Layouts, sizes: SizeClasses, modules: Sequence[int], usable: int
    ) -> None:
        """`modules`: a mask for each type, with a bit for each module that has the type. `usable`:
        the bits of the modules whose types are considered for blocks that no typed pointer refers
        to."""
        self._spread, self._table = spread, embedding.table
        self._embedding, self._layouts, self.sizes = embedding, layouts, sizes
        self._agreement = Agreement(embedding, layouts)
        self._containing = ContainingTypes(embedding, sizes, self.may_extend_to)
        self._list_links = ListLinks(embedding, layouts, sizes, self.may_extend_to)
        self._modules, self._usable = modules, usable
        self._known: dict[tuple[int, int, int], Sequence[Candidate]] = {}
        # Keys of _known, by pointees.
        self._keys: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
        self._open: set[int] = set()  # Types after which other objects follow in the same block.
        self._truncated: dict[int, int] = {}  # By pointee: the least size of its truncated values.
        self._proposed: set[tuple[int, int, int]] = set()  # Type, offset, and size of blocks.
        # By pointee: the questions for possible layouts that pointers to it have led to.
        self._possible: dict[int, dict[tuple[int, int, int], None]] = {}
        self.slots: Optional[Slots] = None
        """The hints of hint files."""
        self._hinted: set[tuple[int, int, int]] = set()

    def answers(self, questions: array[int]) -> array[int]:
        """Return the answers to the engine's questions."""
        made = array("I")
        for at in range(0, len(questions), QUESTION):
            first, offset, third = questions[at : at + QUESTION]
            sort, reference = Question(first >> 32), first & 0xFFFFFFFF
            made.append(self._answer(sort, reference, offset, third))
        return made

    def _answer(self, sort: Question, reference: int, offset: int, third: int) -> int:
        if sort == Question.RULE:
            return self._rule(reference, offset, third)
        if sort == Question.AGREES:
            return self._agreement.agrees(reference, offset, third)
        if sort == Question.UNREQUESTED:
            return self.sizes.most_unrequested(third)
        if sort == Question.RIVALS:
            rivals = [one.spec for one in self.of_size(third)]
            # Any block fits the layout of void.
            return self._add_choices(rivals if len(rivals) <= MOST_CANDIDATES else [Spec(VOID)])
        of, found = self._layouts.references[reference], self.candidates(reference, offset, third)
        if of.sort == Sort.POINTER:
            self._possible.setdefault(of.pointees[0], {})[sort << 32 | reference, offset, third] = None
            others = [*self._counted_arrays(of, offset, third), *self._possible_parts(of.pointees[0], offset, third)]
            found = [*found, *(Candidate(spec, Level.BASE) for spec in others)]
        if of.sort == Sort.POINTER and of.owner and not of.counted:
            # Links of lists and trees refer to nodes, and seldom to larger blocks that begin with
            # one. Otherwise, a block of zeros would be possible as an array of any type.
            found = [one for one in found if one.spec.parts or self._is_size_of(one.spec, third)]
        specs = [self._cut_unused(one.spec, of, offset) if of.counted else self._cut_end(one.spec, third) for one in found[:MOST_CHOICES]]
        if of.sort == Sort.POINTER and not of.counted and offset and self._table.kinds[of.pointees[0]] == Kind.POINTER:
            specs = [Spec(VOID)]  # Any struct may have such a pointer, as the link of a list.
        return self._add_choices(specs)

    def _add_choices(self, specs: Iterable[Spec]) -> int:
        numbers = [self._layouts.number(spec) for spec in specs]
        return self._spread.add_choices(numbers) if numbers else 0

    def _cut_unused(self, spec: Spec, of: Reference, offset: int) -> Spec:
        """Return the part of a container's buffer that certainly contains values. In a vector, this
        is the first element. In other containers, any element may be unused."""
        is_vector = bool(of.used & (LENGTHS | ReferenceFlag.END)) and not of.used & ReferenceFlag.RING
        return spec._replace(many=False) if is_vector and not offset else Spec(VOID)

    def _cut_end(self, spec: Spec, size: int) -> Spec:
        """Return the start of an array of pointers. The rest may not be in use, and have former
        content."""
        if not spec.many or spec.parts or self._table.kinds[spec.type] != Kind.POINTER:
            return spec
        word = self._table.word
        requested = -(-self.sizes.least_request(size) // word)
        return spec._replace(parts=(Packed(0, spec.type, max(min(requested, MOST_FIRST), 1), word),))

    def _rule(self, reference: int, offset: int, size: int) -> int:
        of = self._layouts.references[reference]
        if of.sort == Sort.TRAIT_OBJECT:
            return (self._trait_object(size, ()) if offset == 0 else 0) or NO_CLAIM
        if of.may_have_vtable and offset == 0:
            made = self._trait_object(size, self.candidates(reference, offset, size))
            if made:
                self._hinted.add((reference, offset, size))
                return made
        if of.sort != Sort.POINTER:
            hinted = self.slots.answer(of.owner, of.offset, size) if self.slots is not None and offset == 0 else None
            hinted = self._by_tag(of, offset, size) if hinted is None and of.cases else hinted
            if hinted is None:
                return NO_CLAIM if of.sort == Sort.DATA else DEFERRED
            self._hinted.add((reference, offset, size))
            return hinted
        if is_inside(of, offset):
            return NO_CLAIM
        found = self.candidates(reference, offset, size)
        if not found:
            return self._counted_array(of, offset, size, ()) or (DEFERRED if self.is_packable(of, offset) else NO_CLAIM)
        counted = self._counted_array(of, offset, size, found)
        if counted:
            return counted
        if len(found) == 1 and not found[0].spec.parts and (found[0].level != Level.ARRAY or of.is_certain):
            return self.claim(found[0])
        return DEFERRED

    def is_packable(self, of: Reference, offset: int) -> bool:
        """Whether pointers with this reference, to this offset of a block, may refer to a part of
        the block (packing.py)."""
        kind = self._table.kinds[of.pointees[0]] if of.sort == Sort.POINTER else Kind.VOID
        is_derived = offset == 0 and self._table.flags[of.pointees[0]] & Flag.POLYMORPHIC if of.pointees else False
        is_known = kind == Kind.POINTER or (kind in STRUCTURES and self._layouts.has_pointers(of.pointees[0]))
        return is_known and not of.counted and not of.used & ReferenceFlag.TABLE and not is_derived

    def _counted_array(self, of: Reference, offset: int, size: int, others: Sequence[Candidate]) -> int:
        """Return the rule for pointers behind the first word of blocks, if this word may be the
        number of the elements that follow; 0 if not. `new T[n]` stores n in this way if T has a
        destructor (Itanium C++ ABI, 2.7, Array Operator new Cookies). If blocks may have other
        types, these types must begin with a pointer."""
        arrays = self._counted_arrays(of, offset, size)
        if not arrays or not all(self._begins_with_pointer(one.spec) for one in others):
            return 0
        counts = self._counts(self._table.size_of(of.pointees[0]), offset, size)
        low = 0 if not self._layouts.big_endian else self._table.word - 4
        claims = [self.claim(Candidate(arrays[0], Level.ARRAY))] * len(counts)
        options = [word for one in others for word in (self.claim(one), NOT_ARRAY, self._layouts.size_of(one.spec))]
        return DECISION | self._spread.add_decision(options, Feature.TARGET_BYTES << 8 | low + 128, counts, claims)

    def _counted_arrays(self, of: Reference, offset: int, size: int) -> Sequence[Spec]:
        """Return the content of a block that begins with the number of its elements, if a pointer
        to `offset` in the block may refer to the first element; () if not."""
        table, pointee = self._table, of.pointees[0]
        own = table.size_of(pointee)
        if offset != table.word or table.kinds[pointee] not in STRUCTURES or not own or of.counted or of.used:
            return ()
        return [Spec(pointee, True, of.node, (Packed(offset, pointee, 0, own),))] if self._counts(own, offset, size) else ()

    def _counts(self, own: int, offset: int, size: int) -> Sequence[int]:
        """Return the possible numbers of elements of `own` bytes each that begin at an offset in a
        block of `size` bytes."""
        most = (size - offset) // own
        return range(max(-(-(self.sizes.least(size) - offset) // own), 1, most - MOST_COUNTS), most + 1)

    def _begins_with_pointer(self, spec: Spec) -> bool:
        first = self._layouts.shape(spec)[:1]
        return not spec.many and any(
            not one.start and any(not leaf.offset and leaf.role != Role.PLAIN for leaf in one.leaves) for one in first
        )

    def is_open(self, number: int) -> bool:
        """Whether blocks with a type may be larger than the type, because it ends with an array or
        other objects follow it (tails.py)."""
        return number in self._open or self._layouts.flexible(number) is not None

    def _may_repeat(self, pointee: int, size: int) -> bool:
        """Whether a block of `size` bytes may be an array of structs. Links of lists are seldom in
        arrays."""
        own = self._table.size_of(pointee)
        return 0 < own * 2 <= size and self.sizes.fits(size // own * own, size) and pointee not in self._layouts.pointees(pointee)

    def may_extend_to(self, number: int, size: int) -> bool:
        """Whether the allocator returns a block of `size` bytes for a smaller struct that ends with
        an array, for some number of elements."""
        tail = self._layouts.flexible(number)
        if tail is None or self._table.sizes[number] >= size or self._embedding.is_library(number):
            return False
        first, step = tail[0], self._table.sizes[tail[1]]
        return step > 0 and self.sizes.fits(first + (size - first) // step * step, size)

    def open(self, types: Iterable[int]) -> array[int]:
        """Record that other objects follow after values of these types in their blocks. Return the
        questions whose answers change."""
        self._open.update(types)
        self._known.clear()
        self._keys.clear()
        return array("Q", [word for asked in self._possible.values() for question in asked for word in question])

    def is_truncated(self, pointee: int) -> bool:
        """Whether the process has truncated values of a struct."""
        return pointee in self._truncated

    def add_truncated(self, pointee: int, least: int) -> array[int]:
        """Note that the process has truncated values of a struct, of `least` bytes or more. Return
        the questions whose answers change."""
        self._truncated[pointee] = least
        return self._list_changed(pointee)

    def propose(self, pointee: int, offset: int, size: int) -> array[int]:
        """Note that blocks of `size` bytes may have objects of a type at an offset. Return the
        questions whose answers change."""
        if (pointee, offset, size) in self._proposed:
            return array("Q")
        self._proposed.add((pointee, offset, size))
        return self._list_changed(pointee)

    def _possible_parts(self, pointee: int, offset: int, size: int) -> Sequence[Spec]:
        """Return the contents with a truncated or packed object at an offset."""
        if offset == 0 and pointee in self._truncated:
            return cut_struct(self._layouts, pointee, size)
        own = self._table.size_of(pointee)
        is_proposed = (pointee, offset, size) in self._proposed and own <= size - offset
        return [Spec(pointee, parts=(Packed(offset, pointee, 1, own),))] if is_proposed else ()

    def _list_changed(self, pointee: int) -> array[int]:
        for key in self._keys.pop((pointee,), ()):
            del self._known[key]
        return array("Q", [word for question in self._possible.get(pointee, ()) for word in question])

    def _by_tag(self, of: Reference, offset: int, size: int) -> Optional[int]:
        """Return the rule for pointers in an enum, whose discriminant decides on the type.

        The rule consists of the values of the discriminant with one type, which must be certain. If
        there are none, return None if the block has the size of a pointee, else NO_CLAIM: the word
        may be an old pointer of another variant, to memory that has been allocated again."""
        claims, is_fitting = dict[int, int](), False
        for value, number in sorted(of.cases):
            case = self._layouts.references[number]
            found = () if number < 0 or is_inside(case, offset) else self._of_pointee(case.pointees[0], case, offset, size)
            is_fitting = is_fitting or any(self._is_size_of(one.spec, size) for one in found)
            if len(found) == 1 and not found[0].spec.parts and found[0].level.is_certain:
                claims[value] = self.claim(found[0])
        if not claims:
            return None if is_fitting else NO_CLAIM
        other = claims.pop(-1, 0)  # The type if no variant has the value.
        none = dict.fromkeys(sorted(value for value, _ in of.cases if value >= 0), Level.LEARNED << LEVEL_SHIFT) if other else {}
        claims, options = {**none, **claims}, [other, NOT_ARRAY, 0] if other else []
        return DECISION | self._spread.add_decision(options, of.tag, list(claims), list(claims.values()))

    def _trait_object(self, size: int, others: Sequence[Candidate]) -> int:
        """Return the rule for pointers of trait objects, whose vtable decides on the type; 0 if no
        vtable belongs to a type of this size. `others`: the types that the block may have if the
        word after the pointer is not the address of a vtable."""
        claims = {
            address: self.claim(Candidate(Spec(number), Level.EXACT))
            for address, number in self._embedding.trait_vtables
            if self.sizes.fits(self._table.size_of(number), size)
        }
        feature = Feature.STATIC_WORD << 8 | self._table.word + 128
        options = [word for one in others[:MOST_CHOICES] for word in (self.claim(one), NOT_ARRAY, self._layouts.size_of(one.spec))]
        return DECISION | self._spread.add_decision(options, feature, list(claims), list(claims.values())) if claims else 0

    def is_hinted(self, reference: int, offset: int, size: int) -> bool:
        """Whether hint files answer a rule. Its pointers are not judged then."""
        return (reference, offset, size) in self._hinted

    def claim(self, one: Candidate) -> int:
        """Return a candidate as the engine's answer."""
        return self._layouts.number(one.spec) | one.level << LEVEL_SHIFT

    def candidates(self, reference: int, offset: int, size: int) -> Sequence[Candidate]:
        """Return the possible contents of blocks of `size` bytes that such pointers refer to, the
        most likely first."""
        key = reference, offset, size
        if key not in self._known:
            of = self._layouts.references[reference]
            self._keys.setdefault(of.pointees, []).append(key)
            if of.sort == Sort.POINTER:
                self._known[key] = self._of_pointee(of.pointees[0], of, offset, size)
            elif of.sort == Sort.CHOICE:
                # The size of a type that is only declared is unknown, so any block would fit.
                sized = filter(self._table.size_of, of.pointees)
                every = [one for pointee in sized for one in self._of_pointee(pointee, of, offset, size)]
                # A block may be the array of numbers that another member refers to.
                level = Level.LEARNED if points_to_numbers(self._table, of.owner, of.offset) else Level.UNION
                every = [Candidate(one.spec, max(one.level, level)) for one in every if not self.has_rest(one.spec, size)]
                known = {one.spec for one in every}
                others = self.of_size(size, of.owner) if of.may_be_any and offset == 0 else ()
                self._known[key] = [*every, *(one for one in others if one.spec not in known)]
            else:
                is_any = of.sort == Sort.ANY and offset == 0
                self._known[key] = self.of_size(size, of.owner) if is_any else ()
        return self._known[key]

    def of_size(self, size: int, owner: int = 0) -> Sequence[Candidate]:
        """Return all structs with pointers whose size results in a block of `size` bytes. Structs
        that only the C library has are left out. With `owner`, the structs must be of a module that
        has this type."""
        wanted = self._usable & (self._modules[owner] if owner else self._usable)
        found = [number for number in self._embedding.of_sizes(self.sizes.least(size), size) if self._modules[number] & wanted]
        return [Candidate(Spec(number), Level.LEARNED) for number in found if self._layouts.has_pointers(number)]

    def is_of_program(self, number: int) -> bool:
        """Whether a module other than the C library defines the type with this number."""
        return bool(self._modules[self._table.bare(number)] & self._usable)

    def _is_size_of(self, spec: Spec, size: int) -> bool:
        """Whether a block of `size` bytes has one value of a type, or one that ends with an
        array. The block may be larger than its size class."""
        is_whole = self.sizes.least_request(size) <= self._layouts.size_of(spec) <= size
        return not spec.many and (is_whole or self.is_open(spec.type))

    def has_rest(self, spec: Spec, size: int) -> bool:
        """Whether blocks of `size` bytes could contain a second value of a type, but no block is
        known that does."""
        return not spec.many and not spec.parts and not self.is_open(spec.type) and self._layouts.size_of(spec) * 2 <= size

    def is_array_of_size(self, spec: Spec, size: int) -> bool:
        """Whether the allocator returns a block of `size` bytes for an array of a type's values."""
        own = self._layouts.size_of(spec)
        return 0 < own <= size and self.sizes.fits(size // own * own, size)

    def without_pointers(self, size: int) -> Sequence[int]:
        """Return the structs without pointers whose size results in a block of `size` bytes, except
        those that only the C library has."""
        found = self._embedding.of_sizes(self.sizes.least(size), size)
        return [one for one in found if self._modules[one] & self._usable and not self._layouts.has_pointers(one)][:MOST_CANDIDATES]

    def _of_pointee(self, pointee: int, of: Reference, offset: int, size: int) -> Sequence[Candidate]:
        table = self._table
        kind, own = table.kinds[pointee], table.size_of(pointee)
        if of.used & ReferenceFlag.TABLE:
            return [Candidate(Spec(pointee, True), Level.ARRAY)] if offset and offset % own == 0 else ()
        # In a ring buffer, elements before the first one were removed, and have stale content.
        level = Level.BASE if of.used & ReferenceFlag.RING else Level.ARRAY
        if kind == Kind.POINTER:
            array_of = Spec(pointee, True, of.node)
            links = () if of.counted else self._list_links.find(pointee, offset, size)[:MOST_CANDIDATES]
            every = [Candidate(spec, Level.UNION) for spec in (*links, array_of)] if links else [Candidate(array_of, level)]
            return every if offset % table.word == 0 else ()
        if kind not in STRUCTURES:
            return ()
        if not own:
            return [Candidate(Spec(pointee), Level.BASE)] if offset == 0 else ()
        if of.counted:
            return [Candidate(Spec(pointee, own * 2 <= size, of.node), level)] if own <= size else ()
        around = self._containing.find(pointee, offset, size)
        fitting, whole = list(around.fitting), around.whole
        if offset == 0 and table.flags[pointee] & Flag.POLYMORPHIC:
            # Its vtable is not known: the block is of this class or of a derived one.
            return [Candidate(Spec(number), Level.BASE) for number in fitting[:MOST_CANDIDATES]]
        level = Level.EXACT if offset == 0 and fitting == [pointee] else Level.CONTAINER
        if not around.are_members:
            level = Level.BASE  # The types have only the same first members.
        if fitting and offset == 0 and pointee not in fitting and self._may_repeat(pointee, size):
            # An array of two strings has the content of a struct with two strings.
            others = [Candidate(Spec(number, False, of.node), Level.UNION) for number in fitting[:MOST_CANDIDATES]]
            return [*others, Candidate(Spec(pointee, True, of.node), Level.UNION)]
        if fitting:
            fitting += around.extending
        if len(fitting) > 1:
            level = Level.BASE
            if of.owner in fitting:
                fitting.remove(of.owner)
                fitting.insert(0, of.owner)
        found = [Candidate(Spec(number, False, of.node), level) for number in fitting[:MOST_CANDIDATES]]
        # The block may be larger than the size class of its type, so content has to decide.
        unsplit = [one for one in around.smaller if fitting or one != pointee]
        rivals = tuple(Spec(number, False, of.node) for number in unsplit[:MOST_CANDIDATES])
        found = [one._replace(rivals=rivals) if one.level.is_certain else one for one in found]
        found += [Candidate(spec, Level.BASE, is_rare=True) for spec in rivals]
        found = found if fitting else [*found, *self._larger(pointee, of, offset, size, whole)]
        cut = cut_struct(self._layouts, pointee, size) if offset == 0 and pointee in self._truncated else ()
        return [*found, *(Candidate(spec, Level.BASE) for spec in cut if spec.parts[0].size >= self._truncated[pointee])]

    def _larger(self, pointee: int, of: Reference, offset: int, size: int, whole: Sequence[int]) -> Sequence[Candidate]:
        """Return the possible contents of a block that is larger than any type: an array, a type
        with an array at its end, or a type followed by other data."""
        table, own = self._table, self._table.sizes[pointee]
        found = []
        if own * 2 <= size and offset % own == 0 and self.sizes.fits(size // own * own, size):
            found.append(Candidate(Spec(pointee, True, of.node), Level.ARRAY))
        tails = [number for number in whole if table.sizes[number] <= size and self.is_open(number)]
        if offset == 0 and pointee in tails:
            return [Candidate(Spec(pointee), Level.BASE if pointee in self._open else Level.EXACT)]
        found += [Candidate(Spec(number), Level.BASE) for number in tails[:MOST_CANDIDATES]]
        if offset == 0 and own < size:
            found.append(Candidate(Spec(pointee, False, of.node), Level.BASE))
        return found
