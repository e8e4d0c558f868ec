"""Find truncated structs, and blocks with several objects.

A program may allocate only the first members of a struct, or put several objects into one block: a
page and its descriptor, or arrays of two types. Typed pointers then refer to blocks that are too
small for their type, or to places at which no type of this size has a member.

One such pointer may be stale. Therefore many blocks of a size must have the same type at the same
offset, and the words there must be what this type has. Blocks of pools are left out, because they
have objects at many offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.debuginfo.type_table import Kind
from findleaks.engine.type_spread import Choosing, Level, Pointers, Role
from findleaks.types.content import Content
from findleaks.types.embedding import STRUCTURES
from findleaks.types.heap import HeapView
from findleaks.types.judging import PURE, Judge
from findleaks.types.layouts import Layouts
from findleaks.types.references import Sort
from findleaks.types.rules import Rules
from findleaks.types.sampling import SAMPLE, sample_blocks
from findleaks.types.specs import Candidate, Packed, Spec
from findleaks.types.truncation import cut_struct
from findleaks.value_classes import NamedTuple

LEAST_WITNESSES = 16  # Fewest blocks of a size with a type at an offset.
LEAST_EVIDENCE = 0.9  # Part of these blocks that must have an address where the type has a pointer.
LEAST_SHARE = 0.03  # Part of the blocks that must have a size, for values to be truncated to it.
MOST_REFUSED = 4  # Types that are examined of those that blocks contradict.
MOST_RULES = 1024  # Rules that are examined at a time, those with the most pointers first.
DEEPEST = 2  # Levels of pointers through which truncated structs are found.
MOST_ARRAYS = 64  # Maximum number of arrays of pointers that are examined for one member.
MOST_ELEMENTS = 1 << 14  # Maximum number of elements of these arrays, in total.
LEAST_ALIKE = 0.5  # Part of these elements that must refer to one offset, in blocks of one size.
MOST_PARTS = 8  # Maximum number of offsets with objects in blocks of one size.


class _Place(NamedTuple):
    """A place in blocks of one size that pointers to one type refer to. `blocks` is a sample of the
    blocks without a type."""

    found: Pointers
    pointee: int
    blocks: Sequence[int]


class Packing:
    """Judges deferred pointers to parts of blocks."""

    def __init__(self, heap: HeapView, layouts: Layouts, rules: Rules, content: Content, judge: Judge) -> None:
        self._heap, self._layouts, self._rules, self._content, self._judge = heap, layouts, rules, content, judge

    def find_truncated(self, pending: Iterable[Pointers]) -> dict[int, int]:
        """Return the structs of which many blocks of one size contain only the first members, with
        the minimum number of bytes that these blocks contain."""
        found: dict[int, int] = {}
        for pointee, blocks in self._small_targets(_most_used(pending)):
            least = self._measure_truncated(pointee, sample_blocks(sorted(blocks))) if pointee not in found else 0
            if least:
                found[pointee] = least
        return found

    def _small_targets(self, pending: Sequence[Pointers]) -> Iterator[tuple[int, set[int]]]:
        """Yield structs with blocks that typed pointers to these structs refer to, although the
        blocks are too small or contradict the struct. Each item has the blocks of one member."""
        for found in pending:
            of = self._layouts.references[found.reference]
            is_small = found.offset == 0 and self._rules.is_packable(of, 0) and self._layouts.table.size_of(of.pointees[0]) > found.size
            candidates = self._rules.candidates(found.reference, found.offset, found.size)[:MOST_REFUSED]
            blocks = self._find_untyped(found) if is_small or candidates else set()
            if is_small:
                yield of.pointees[0], blocks
            for one in candidates:
                yield from self._wrong_targets(one.spec, blocks, DEEPEST)

    def _wrong_targets(self, spec: Spec, blocks: Iterable[int], depth: int) -> Iterator[tuple[int, set[int]]]:
        """Yield why `blocks` contradict a type: the pointees of its members, and the blocks that
        these members refer to, which are not of this type. `depth`: levels of pointers that are
        followed."""
        layouts, heap = self._layouts, self._heap
        sample = sample_blocks(sorted(blocks))
        if spec.many or spec.parts or len(sample) < LEAST_WITNESSES or layouts.table.kinds[layouts.table.bare(spec.type)] != Kind.STRUCT:
            return
        whole = Packed(0, spec.type, 1, layouts.size_of(spec))
        leaves = [leaf for leaf in layouts.shape(Spec(spec.type, parts=(whole,)))[0].leaves if leaf.role == Role.REFERENCE]
        leaves = [leaf for leaf in leaves if self._rules.is_packable(layouts.references[leaf.reference], 0)]
        columns = [Spec(spec.type, parts=(whole._replace(words=(leaf.offset,)),)) for leaf in leaves]
        for leaf, fits in zip(leaves, self._content.count_fits(columns, sample)):
            if fits >= PURE * len(sample):
                continue
            words = [heap.word(heap.blocks.address(block) + leaf.offset) for block in sample]
            places = [heap.place(word) for word in words if word]
            some = {place.block for place in places if place is not None and not place.offset and not heap.claims[place.block]}
            pointee = layouts.references[leaf.reference].pointees[0]
            yield pointee, some
            if depth:
                yield from self._wrong_targets(Spec(pointee), some, depth - 1)

    def _measure_truncated(self, pointee: int, blocks: Sequence[int]) -> int:
        """Return the least size of the truncated structs with which blocks begin. Return 0 if the
        blocks begin with whole structs, or if too many of them begin with neither."""
        if len(blocks) < LEAST_WITNESSES or self._rules.is_truncated(pointee) or self._layouts.table.kinds[pointee] not in STRUCTURES:
            return 0
        sizes, own = Counter[int](), self._layouts.table.size_of(pointee)
        by_size: dict[int, list[int]] = {}
        for block in blocks:
            by_size.setdefault(self._heap.blocks.size(block), []).append(block)
        large = [block for size, some in by_size.items() if size >= own for block in some]
        if self._content.count_fits([Spec(pointee)], large)[0] > (1 - PURE) * len(blocks):
            return 0
        for size, some in by_size.items():
            options = [Candidate(spec, Level.LEARNED) for spec in cut_struct(self._layouts, pointee, size)]
            chosen = [self._content.choose([one], Choosing.BY_CONTENT, some) for one in options]
            longest = [next((spec for spec in specs if spec is not None), None) for specs in zip(*chosen)]
            sizes.update(spec.parts[0].size for spec in longest if spec is not None)
        is_truncated = sum(sizes.values()) >= LEAST_EVIDENCE * len(blocks)
        return min((size for size, count in sizes.items() if count >= LEAST_SHARE * len(blocks)), default=0) if is_truncated else 0

    def _find_untyped(self, found: Pointers) -> set[int]:
        claims = self._heap.claims
        return {block for block in found.untyped[2::3] if not claims[block]}

    def find_parts(self, pending: Iterable[Pointers]) -> dict[tuple[int, int, int], int]:
        """Return the answers to the rules of pointers to parts of blocks, by reference, offset and
        size."""
        by_size: dict[int, list[_Place]] = {}
        used = _most_used(pending)
        answers = dict(self._find_arrays(used))
        for one in self._places(used):
            if one.found.offset or self._layouts.table.size_of(one.pointee) <= one.found.size:
                by_size.setdefault(one.found.size, []).append(one)
        by_size = {size: some for size, some in by_size.items() if len({one.found.offset for one in some}) <= MOST_PARTS}
        for one in (one for some in by_size.values() for one in some):
            self._content.answer_again(self._rules.propose(one.pointee, one.found.offset, one.found.size))
        for size, places in by_size.items():
            specs = self._arrange(places, size)
            for one in places:
                fitting = [spec for spec in specs if _has(spec, one) and self._has_evidence(spec, one.blocks)]
                fitting = fitting or list(self._find_initialised(one))
                if fitting:
                    options = self._judge.partly_used.replace([Candidate(spec, Level.BASE) for spec in fitting], one.found)
                    answers[one.found.reference, one.found.offset, size] = self._judge.decide(options, one.found)
        return answers

    def _find_arrays(self, pending: Sequence[Pointers]) -> Iterator[tuple[tuple[int, int, int], int]]:
        """Yield answers for pointers to arrays of pointers, by reference, offset and size. The
        elements of these arrays refer to objects inside blocks. No type describes these blocks, and
        no other pointers refer to many of the objects."""
        table = self._layouts.table
        for found in pending:
            of = self._layouts.references[found.reference]
            is_array = of.sort == Sort.POINTER and not found.offset and table.kinds[of.pointees[0]] == Kind.POINTER
            pointee = table.bare(table.targets[of.pointees[0]]) if is_array else 0
            blocks = self._find_untyped(found) if is_array and table.kinds[pointee] in STRUCTURES else set()
            if blocks and len(blocks) <= MOST_ARRAYS and self._refer_to_parts(blocks, pointee):
                claim = self._rules.claim(Candidate(Spec(of.pointees[0], True, of.node), Level.BASE))
                yield (found.reference, found.offset, found.size), claim

    def _refer_to_parts(self, arrays: Iterable[int], pointee: int) -> bool:
        """Whether all words of `arrays` are null or addresses in blocks, and many of these blocks
        have a value of type `pointee` at the same offset."""
        heap, word = self._heap, self._heap.arch.word
        starts = [(heap.blocks.address(block), heap.blocks.size(block)) for block in arrays]
        if sum(size for _, size in starts) > MOST_ELEMENTS * word:
            return False
        words = [heap.word(at) for start, size in starts for at in range(start, start + size - word + 1, word)]
        places = [heap.place(value) for value in words if value]
        by_offset: dict[tuple[int, int], set[int]] = {}
        for place in places:
            if place is None:
                return False
            by_offset.setdefault((place.offset, place.size), set()).add(place.block)
        (offset, size), blocks = max(by_offset.items(), key=lambda one: len(one[1]), default=((0, 0), set()))
        blocks = {block for block in blocks if not heap.claims[block]}
        if not offset or len(blocks) < max(LEAST_WITNESSES, LEAST_ALIKE * len(places)):
            return False
        self._content.answer_again(self._rules.propose(pointee, offset, size))
        return self.find_part(pointee, offset, size, sample_blocks(sorted(blocks))) is not None

    def _places(self, pending: Iterable[Pointers]) -> Iterable[_Place]:
        for found in pending:
            of = self._layouts.references[found.reference]
            if of.sort != Sort.POINTER or not self._rules.is_packable(of, found.offset):
                continue
            if any(one.spec.type != of.pointees[0] for one in self._rules.candidates(found.reference, found.offset, found.size)):
                continue  # Larger types contain the pointee: Judge decides between them.
            if found.offset and self._is_link(of.pointees[0]):
                continue
            blocks = self._find_linked(found, of.pointees[0], self._find_untyped(found))
            if len(blocks) >= LEAST_WITNESSES:
                yield _Place(found, of.pointees[0], sample_blocks(sorted(blocks)))

    def _is_link(self, pointee: int) -> bool:
        """Whether `pointee` is the type of the links of a list, such as `struct item *`, and items
        have a member such as `struct item **previous`. This member refers to a link in the
        preceding item, and not to an array of pointers."""
        layouts, table = self._layouts, self._layouts.table
        item = table.bare(table.targets[pointee]) if table.kinds[pointee] == Kind.POINTER else 0
        references = layouts.references_of(*layouts.shape(Spec(item))) if item else ()
        return any(one.pointees == (pointee,) for _, one in references)

    def _find_linked(self, found: Pointers, pointee: int, blocks: set[int]) -> set[int]:
        """Return `blocks`, and the untyped blocks that are linked from the objects in them: an
        object of the same type refers to the same offset of a block of the same size. This is
        needed for lists of which typed pointers refer only to the first object."""
        heap, layouts = self._heap, self._layouts
        shape = layouts.shape(Spec(pointee)) if len(blocks) < LEAST_WITNESSES else ()
        links = [offset for offset, one in layouts.references_of(*shape[:1]) if one.pointees == (pointee,)]
        work, every = sorted(blocks), set(blocks)
        while work and links and len(every) < SAMPLE:
            start = heap.blocks.address(work.pop()) + found.offset
            for value in filter(None, (heap.word(start + offset) for offset in links)):
                place = heap.place(value)
                is_same = place is not None and (place.offset, place.size) == (found.offset, found.size)
                if place is not None and is_same and place.block not in every and not heap.claims[place.block]:
                    every.add(place.block)
                    work.append(place.block)
        return every

    def _arrange(self, places: Sequence[_Place], size: int) -> Sequence[Spec]:
        """Return the contents that blocks of `size` bytes may have, if typed pointers refer to
        these places in them: all objects, or those at one place. Pointers to several types may
        refer to one offset, for example if the first of two arrays is empty; only one of these
        types may fit the words there."""
        every: list[Packed] = []
        alone: list[Packed] = []
        offsets = sorted({one.found.offset for one in places})
        for offset, end in zip(offsets, [*offsets[1:], size]):
            found = {self.find_part(one.pointee, offset, end, one.blocks) for one in places if one.found.offset == offset} - {None}
            part = found.pop() if len(found) == 1 else None
            if part is not None:
                alone.append(part)
                every += [part] if part.end <= end else []
        specs = [Spec(every[0].type, parts=tuple(every))] if len(every) > 1 else []
        return specs + [_of_part(part, size) for part in alone]

    def find_part(self, pointee: int, offset: int, end: int, blocks: Sequence[int]) -> Optional[Packed]:
        """Return a part with objects of the type `pointee`. The part is at `offset` in these blocks
        of one size, and ends at `end` or before. Return None if nothing shows that the blocks have
        such objects."""
        own = self._layouts.table.size_of(pointee)
        if not own or own > self._heap.blocks.size(blocks[0]) - offset:
            return None
        part = self._find_longest(Packed(offset, pointee, max((end - offset) // own, 1), own), blocks)
        rest = part._replace(offset=part.offset + own, number=part.number - 1)
        if rest.number and self._has_evidence(Spec(rest.type, parts=(rest,)), blocks):
            return part
        part = part._replace(number=1)
        return part if self._has_evidence(Spec(part.type, parts=(part,)), blocks) else None

    def _find_longest(self, part: Packed, blocks: Sequence[int]) -> Packed:
        """Return a part with as many of its elements as nearly all blocks have. The memory after
        them may be reserved for more."""
        least, most = 1, part.number
        while least < most:
            middle = (least + most + 1) // 2
            spec = Spec(part.type, parts=(part._replace(number=middle),))
            is_fitting = self._content.count_fits([spec], blocks)[0] >= PURE * len(blocks)
            least, most = (middle, most) if is_fitting else (least, middle - 1)
        return part._replace(number=least)

    def _find_initialised(self, one: _Place) -> Sequence[Spec]:
        """Return the array that blocks are, if some words of its elements have no value yet. Each
        block must have several pointers to typed blocks in the other words."""
        table, size = self._layouts.table, one.found.size
        own = table.size_of(one.pointee)
        if one.found.offset or not own or own * 2 > size or table.kinds[one.pointee] not in STRUCTURES:
            return ()
        part = Packed(0, one.pointee, 0, own)
        offsets = sorted({leaf.offset for shape in self._layouts.shape(Spec(one.pointee)) for leaf in shape.leaves if not shape.start})
        columns = [Spec(one.pointee, True, parts=(part._replace(words=(offset,)),)) for offset in offsets]
        fits = self._content.count_fits(columns, one.blocks)
        words = tuple(offset for offset, count in zip(offsets, fits) if count >= PURE * len(one.blocks))
        spec = Spec(one.pointee, True, parts=(part._replace(words=words),))
        return [spec] if words and self._has_evidence(spec, one.blocks, Choosing.BY_SHAPE) else ()

    def _has_evidence(self, spec: Spec, blocks: Sequence[int], how: Choosing = Choosing.BY_CONTENT) -> bool:
        """Whether nearly all blocks fit a content, and have an address where it has a pointer."""
        if self._content.count_fits([spec], blocks)[0] < PURE * len(blocks):
            return False
        chosen = self._content.choose([Candidate(spec, Level.LEARNED)], how, blocks)
        return sum(one is not None for one in chosen) >= LEAST_EVIDENCE * len(blocks)


def _most_used(pending: Iterable[Pointers]) -> Sequence[Pointers]:
    """Return the rules with the most pointers to untyped blocks."""
    return sorted(pending, key=lambda found: -found.total)[:MOST_RULES]


def _of_part(part: Packed, size: int) -> Spec:
    """Return the content of blocks of `size` bytes with one part. It is an array if the objects
    extend to the end of the block."""
    is_array = part.number > 1 and part.end + part.size > size
    return Spec(part.type, is_array, parts=(part._replace(number=0) if is_array else part,))


def _has(spec: Spec, one: _Place) -> bool:
    """Whether a content has the type that pointers refer to, at the place that they refer to."""
    return any(part.type == one.pointee and part.inside(one.found.offset) == 0 for part in spec.parts)
