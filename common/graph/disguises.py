"""Find disguised pointers, by which a program may refer to its blocks.

A scan for aligned words that equal addresses misses pointers with tags in their upper bits, in
packed structures, shifted, compressed to 32 bits, or in two halves. Blocks with only such pointers
look leaked. Before such blocks are reported, memory is searched for their addresses in each of
these forms. If nine in ten leaked blocks of one size, or a quarter of many, have a pointer in the
same form, the program uses that form.

Coincidences must not hide leaks. A random 64-bit word, decoded in a form, is the start of one of a
million blocks with a probability of 2^-27 or less. A random 32-bit number often is the start
of a block, but just as often an address inside a block. So a form is accepted only if nearly all of
its words point to one offset."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import or_
from typing import Protocol

from findleaks.engine.contract import Blocks, Engine, Graph
from findleaks.engine.disguises import ANY_OFFSET, MOST_SEGMENTS, NARROW, STRIP, UNTAGGED, Disguise, Disguises, Form, Keys
from findleaks.engine.terms import NO_BLOCK, Kind, Totals
from findleaks.graph.disguise_numbers import CONTRAST, MANY, SHARE, NumberGroups, Shown, are_shifted, is_varied, select
from findleaks.graph.disguise_parameters import BASES, COMPRESSIONS, base_forms, examine_forms, find_key_forms, page_bases, root_words
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_to_most
from findleaks.value_classes import NamedTuple

# the least number of leaked blocks of one size that must have a pointer of a form
LEAST = 8
# the same for forms in which a small number may be the address of a block by chance, as one counter
# in three is
LEAST_NUMBERS = 32
DISTANCES = (Disguise.RELATIVE, Disguise.RELATIVE_32)
NUMBERS = (Disguise.COMPRESSED, *DISTANCES)
# the share of a form's words into these blocks that must point to offsets that count
PRECISE = 0.75
OFFSETS = 4  # maximum number of offsets that are accepted: links inside blocks, tags of four bits
# At most one offset is accepted for each ROOM bytes of a block. If four were accepted in a small
# block, nearly all random addresses in the block would refer to one of these four.
ROOM = 64
# A tag of four bits moves a pointer to the start of a block to one of 16 offsets. In blocks of at
# least CELL bytes, random addresses rarely have one of these offsets.
TAG_CELL, CELL = 16, 64
WITH_LOW_TAGS = (Disguise.TAGGED, Disguise.SHIFTED_LEFT)
LOW_TAGS = 8  # 32-bit numbers must point below this offset: V8 sets their lowest bit
COMMON = 0.1  # minimum share of a form's words that point to an offset that is accepted
MOST_COMPARED = 4096  # blocks of one size whose addresses are examined
PER_BLOCK = 16  # words of a form for each leaked block; a form with more words is dropped
SPARE = 1 << 16
MOST_WORDS = 1 << 24

TRIAL = 256  # strips of memory in which forms are tried first
# the least number of words into blocks there; a form is dropped if half do not point to a start
TRIED = 64
LITTLE = 4 << 20  # bytes of memory that are searched at once
STEP = 64  # in more memory, one strip in 64 is searched first: 128 bytes of each 8 KiB
SAMPLE = 4 << 20  # the largest number of bytes of a sample
WHOLE = 64 << 20  # up to this number of bytes, all memory is searched for pointers to small groups
CLUSTERS = 3  # strips of a table of pointers that a sample must contain to be conclusive
EVIDENCE = 0.25  # share of the expected words in a sample that justifies a search of all memory

LEFT = (1, 2, 3, 4, 8, 12, 16)
RIGHT = (1, 2, 3, 4)
MOST_POINTERS = 1 << 16  # maximum number of pointers in roots that may be bases
NEAR = 1 << 32  # maximum distance in bytes of heaps whose addresses have nearly the same upper bits

NONE = Totals(0, 0)
PHASE = "searching for disguised pointers"


class Memory(Protocol):
    """The memory that is searched."""

    def heap_ranges(self) -> Sequence[Range]: ...

    def pieces(self, ranges: Sequence[Range], phase: str, dead: bool = False, whole: bool = False) -> Iterator[Piece]: ...


class DisguiseConvention(NamedTuple):
    """A form and an offset by which the program refers to `blocks` leaked blocks. Some of them may
    have other sizes than `sizes`."""

    form: Form
    offset: int
    sizes: tuple[int, ...]  # usable sizes that show the convention, most blocks first
    blocks: int
    bytes: int


class Partly(NamedTuple):
    """A form by which live memory refers to `blocks` of the `of` leaked blocks of `size`. These are
    too few blocks for a convention."""

    size: int
    form: Form
    blocks: int
    of: int


class Disguised(NamedTuple):
    """The result of the search. The accepted references are sorted by source and address. `places`
    has their addresses, `edges` source << 32 | target (see Graph.connect), and `numbers` the index
    of the convention of each."""

    conventions: Sequence[DisguiseConvention] = ()
    partly: Sequence[Partly] = ()
    held: Totals = NONE  # blocks that no longer count as leaked
    left_out: int = 0  # bytes of memory of which only a sample was searched, to save time
    places: array[int] = array("Q")
    edges: array[int] = array("Q")
    numbers: Sequence[int] = ()


NOT_DISGUISED = Disguised()


def search_disguises(
    graph: Graph, engine: Engine, blocks: Blocks, memory: Memory, roots: Sequence[Range], mangled: Sequence[Form] = ()
) -> tuple[Disguised, array[int]]:
    """Search for disguised pointers to the leaked blocks of a classified graph. Return the accepted
    ones (`held` is not set yet), and the references to add to the graph. `mangled`: the forms
    MANGLED with the keys of this process."""
    sizes, counts = engine.sum_by_value(graph.leak_head_sizes(), array("Q"))
    leaks = sum(counts)
    total = sum(end - start for start, end in [*roots, *memory.heap_ranges()])
    if not leaks or (total > WHOLE and leaks < LEAST):
        return NOT_DISGUISED, array("Q")
    search = _Search(graph, engine, blocks, memory, roots, sizes, counts)
    forms = search.promising(search.all_forms(mangled, total), -(-total // (TRIAL * STRIP)))
    if total > LITTLE:
        step = max(STEP, -(-total // SAMPLE))
        likely = sorted({one.form for one in search.find_shown(forms, step) if _is_likely(one, step)})
        if likely:
            forms = [forms[number] for number in likely]
        elif all(_is_conclusive(count, step) for count in (*counts, leaks) if count >= LEAST):
            return NOT_DISGUISED, array("Q")
        elif total > WHOLE:
            return Disguised(left_out=total), array("Q")
    return search.accept(forms, search.find_shown(forms, 1))


def _is_conclusive(count: int, step: int) -> bool:
    """Whether a sample of one strip in `step` would contain many of `count` pointers, even if the
    pointers are adjacent and have four bytes each."""
    return count * 4 >= CLUSTERS * STRIP * step


def _is_likely(one: Shown, step: int) -> bool:
    """Whether a sample shows enough pointers of a form for a search of all memory."""
    expected = SHARE * one.blocks / step
    return one.precise and one.heads >= 3 and one.heads >= EVIDENCE * expected


class _Search:
    """The search of one graph's memory."""

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        blocks: Blocks,
        memory: Memory,
        roots: Sequence[Range],
        sizes: array[int],
        counts: array[int],
    ) -> None:
        self._graph, self._engine, self._blocks, self._memory, self._roots = graph, engine, blocks, memory, roots
        self._sizes, self._counts = sizes, counts
        # The index of the size that most blocks have
        self._most_frequent = max(range(len(counts)), key=counts.__getitem__, default=0)
        self._ranges = merge_to_most(memory.heap_ranges(), MOST_SEGMENTS, NEAR)
        self._most = min(PER_BLOCK * sum(counts) + SPARE, MOST_WORDS)
        self._tried = 0  # groups (form and size of blocks) with words

    def all_forms(self, mangled: Sequence[Form], total: int) -> list[Form]:
        """Return all forms that a program may use. Inverted addresses (~p) are not among them,
        because programs use them for weak references, or to hide. `total`: bytes of memory."""
        if self._engine.arch.word == 4:
            return [Form(Disguise.UNALIGNED)]
        bounds = (address for start, end in self._ranges for address in (start, end - 1))
        segments = dict.fromkeys(address >> 32 << 32 for address in bounds if address >> 32)
        # If several forms explain the same words, only the first of them counts.
        return [
            Form(Disguise.TAGGED),
            Form(Disguise.UNALIGNED),
            *(Form(Disguise.SHIFTED_LEFT, shift=shift) for shift in reversed(LEFT)),
            *(Form(Disguise.SHIFTED_RIGHT, shift=shift) for shift in RIGHT),
            Form(Disguise.SIX_BYTES),
            Form(Disguise.BYTE_SWAPPED),
            *mangled,
            *find_key_forms(self._engine, self._memory.pieces(self._roots, PHASE), mangled, sum(self._counts), total, self._tries),
            Form(Disguise.SAFE_LINKED),
            *map(Form, DISTANCES),
            *(Form(Disguise.HALVES, base) for base in list(segments)[:BASES]),
            *self._list_compressed(total),
        ]

    def _list_compressed(self, total: int) -> list[Form]:
        starts = [start for start, _ in self._ranges]
        low, high = min(start >> 32 << 32 for start in starts), self._ranges[-1].end
        pointers = list(islice(root_words(self._engine, self._memory.pieces(self._roots, PHASE), low, high), MOST_POINTERS))
        bases = page_bases(starts, pointers)
        found = [Form(Disguise.COMPRESSED, base, shift) for base in bases for shift in COMPRESSIONS]
        if sum(self._counts) < MANY:
            return found
        return [*found, *examine_forms(base_forms(pointers, self._ranges, bases), sum(self._counts), total, self._tries)]

    def _tries(self, forms: Sequence[Form], step: int, with_roots: bool = True) -> list[tuple[int, int]]:
        """Search one strip in `step` of the heaps and, `with_roots`, of root memory; see
        Disguises.tries."""
        return self._search(forms, step, 0, with_roots).tries()

    def promising(self, forms: Sequence[Form], step: int) -> list[Form]:
        """Return the forms whose words point to the start of a block more often than into its
        middle. The words of other forms are mostly small numbers that happen to point into a heap;
        searching for these forms would take much time. One strip in `step` is searched."""
        return [form for form, (tries, starts) in zip(forms, self._tries(forms, step, False)) if tries < TRIED or 2 * starts >= tries]

    def find_shown(self, forms: Sequence[Form], step: int) -> list[Shown]:
        """Search one strip in `step` of the memory, and return the forms found."""
        self._found = self._search(forms, step, self._most)
        result = list(self._judge(forms, self._found.keys(self._sizes)))
        self._tried += sum(one.size > 0 for one in result)
        return result

    def _search(self, forms: Sequence[Form], step: int, most: int, with_roots: bool = True) -> Disguises:
        """Search one strip in `step`. `most`: words that are recorded; with 0, words are only
        counted."""
        found = self._graph.disguises(self._ranges, forms, most)
        for ranges, is_root in ((self._roots if with_roots else (), True), (self._memory.heap_ranges(), False)):
            for piece in self._memory.pieces(ranges, PHASE, whole=not is_root and (step > 1 or not most)):
                found.scan(piece, step, is_root)
        return found

    def _judge(self, forms: Sequence[Form], keys: Keys) -> Iterator[Shown]:
        """Yield one result for each group of words with the same form and block size."""
        hits, heads, live = (dict(zip(*self._engine.sum_by_value(one, array("Q")))) for one in keys)
        by_group: dict[tuple[int, int], dict[int, int]] = {}
        for key, count in hits.items():
            for size in (key >> 16 & 0xFFFFFFFF, -1):
                offsets = by_group.setdefault((key >> 48, size), {})
                offsets[key & ANY_OFFSET] = offsets.get(key & ANY_OFFSET, 0) + count
        for (number, size), offsets in sorted(by_group.items()):
            form, words = forms[number], sum(offsets.values())
            ranked = sorted((offset for offset in offsets if offset < ANY_OFFSET), key=lambda offset: (-offsets[offset], offset))
            narrow = form.kind in NARROW
            ranked = [one for one in ranked if one < LOW_TAGS] if narrow else ranked
            least, usual = self._sizes[max(size, 0)], self._sizes[size if size >= 0 else self._most_frequent]
            ranked = ranked[: 1 if narrow or form.kind in UNTAGGED else min(OFFSETS, max(1, usual // ROOM))]
            chosen = [one for one in ranked if offsets[one] >= COMMON * words]
            if len(chosen) < 2 and form.kind in WITH_LOW_TAGS and least >= CELL:
                tagged = sorted(one for one in offsets if one < TAG_CELL)
                if sum(offsets[one] for one in tagged) >= PRECISE * words:
                    chosen = tagged
            blocks = sum(self._counts) if size < 0 else self._counts[size]
            # If the starts of blocks are one number apart in this form, every small number points
            # to a start.
            apart = not narrow or least >= 2 << form.shift
            there = sum(offsets[one] for one in chosen)
            precise = there >= PRECISE * words and apart
            wanted = range(len(self._sizes)) if size < 0 else (size,)
            reached, reached_live = (
                sum(counts.get(number << 48 | which << 16 | offset, 0) for which in wanted for offset in chosen) for counts in (heads, live)
            )
            of_size = 0 if size < 0 else self._sizes[size]
            one = Shown(of_size, blocks, number, tuple(chosen), reached, reached_live, precise, words - there)
            if form.kind in NUMBERS and len(chosen) == 1 and least >= 2 * CONTRAST << form.shift:
                one = one.in_contrast(offsets)
            yield one

    def _is_varied(self, words: array[int], form: int, offset: int) -> bool:
        """Whether the distances of a form's relative pointers are not sizes or counters."""
        rows = [(words[at], words[at + 1]) for at in range(0, len(words), 3) if words[at + 2] >> 16 == form]
        return is_varied([place for place, _ in rows], [self._blocks.address(edge & NO_BLOCK) + offset for _, edge in rows])

    def _forms_in_live_memory(self, words: array[int]) -> set[int]:
        """Return the forms in which roots, or reachable or possible blocks, have references."""
        kinds, sources = self._graph.kinds(), (edge >> 32 for edge in words[1::3])
        return {word >> 16 for at, word in zip(sources, words[2::3]) if at == NO_BLOCK or kinds[at] in (Kind.REACHABLE, Kind.POSSIBLE)}

    def _without_small_numbers(self, shown: Sequence[Shown], forms: Sequence[Form]) -> Sequence[Shown]:
        """Return the results whose words are not small numbers. The memory is searched again for
        these forms, but only below 4 GiB, and few programs have such results."""
        if not shown or self._ranges[0].start >> 32:
            return shown
        numbers = {form: number for number, form in enumerate(dict.fromkeys(one.form for one in shown))}
        pairs = [(numbers[one.form], offset) for one in shown for offset in one.offsets]
        words = self._search([forms[form] for form in numbers], 1, self._most).references(list(dict.fromkeys(pairs)))
        return [
            one for one in shown if not any(self._are_small_numbers(words, numbers[one.form], offset, one.size) for offset in one.offsets)
        ]

    def _are_small_numbers(self, words: array[int], form: int, offset: int, size: int) -> bool:
        """Whether the words of a form that refer to blocks of one size are small numbers at other
        places in larger words."""
        if self._ranges[0].start >> 32:
            return False  # such numbers are below 4 GiB
        targets = [words[at + 1] & NO_BLOCK for at in range(0, len(words), 3) if words[at + 2] == form << 16 | offset]
        found = [self._blocks.address(target) + offset for target in targets if self._blocks.size(target) == size]
        if not found or max(found) >> 32 or not are_shifted(found):
            return False
        others = self._blocks.columns_of(array("I", self._blocks.of_sizes(size, size, MOST_COMPARED))).address
        return offset > 0 or not are_shifted(others)

    def _without_lone_numbers(self, pairs: Sequence[tuple[int, int]], forms: Sequence[Form], found: Sequence[Shown]) -> array[int]:
        """Return the references of the accepted pairs (form, offset), without small numbers that
        may refer to a block by chance.

        A size is typical of a form if nine in ten leaked blocks of this size, or a large part of
        many, have a pointer in this form. A number is kept in three cases:

        - Nine in ten blocks of the size of its target have a pointer, and there are LEAST of them.
        - COMPANY numbers that refer to blocks of typical sizes are on the same page, or at the same
          offset in blocks of one size.
        - If there are many numbers that are not pointers: see NumberGroups.in_contrast.

        Example: a process id of 4,512 in libc refers, as a compressed pointer, to a leaked block
        36,096 bytes after the base."""
        weak = {number for number, form in enumerate(forms) if form.kind in NUMBERS}
        if not any(form in weak for form, _ in pairs):
            return self._found.references(pairs)
        mixed = {one.form: one.offsets[0] for one in found if one.mixed and one.precise and (one.form, one.offsets[0]) in pairs}
        controls = [(one.form, offset) for one in found if one.mixed and one.form in mixed for offset in one.others]
        words = self._found.references(list(dict.fromkeys([*pairs, *controls])))
        typical = {(one.form, one.size): 1 for one in found if one.precise and one.is_large_part}
        typical.update({(one.form, one.size): one.blocks for one in found if one.precise and one.is_nearly_all(0)})
        groups = NumberGroups(self._engine, self._blocks, words)
        targets = self._blocks.columns_of(array("I", (edge & NO_BLOCK for edge in groups.edges)))
        of_size = array("Q", (typical.get(key, 0) for key in zip(groups.forms, targets.size)))
        kept = bytearray(number not in mixed and (number not in weak or blocks >= LEAST) for number, blocks in zip(groups.forms, of_size))
        if all(kept):
            return words
        if mixed:
            kept = bytearray(map(or_, kept, groups.in_contrast(mixed, of_size)))
        if not all(keep or form in mixed for keep, form in zip(kept, groups.forms)):
            company = groups.in_company(of_size)
            kept = bytearray(keep or (near and form not in mixed) for keep, near, form in zip(kept, company, groups.forms))
        return select(words, kept)

    def accept(self, forms: Sequence[Form], found: Sequence[Shown]) -> tuple[Disguised, array[int]]:
        """Return the conventions that the found forms show, and the references that are accepted by
        them."""
        # by size: the first of several forms that explain the same words
        best: dict[int, Shown] = {}
        for one in found:
            before = best.get(one.size)
            if one.precise and (before is None or _rank(one) > _rank(before)):
                best[one.size] = one
        shown = [one for one in best.values() if one.is_nearly_all(_least(forms[one.form])) or one.is_large_part]
        pairs = {(one.form, offset): None for one in shown for offset in one.offsets}
        others = [one for one in best.values() if not any((one.form, offset) in pairs for offset in one.offsets)]
        few = [one for one in others if one.size and forms[one.form].kind not in NARROW and not one.is_weak(forms[one.form], self._tried)]
        partly = [Partly(one.size, forms[one.form], one.live, one.blocks) for one in self._without_small_numbers(few, forms)]
        if not shown:
            return Disguised(partly=partly), array("Q")
        words = self._without_lone_numbers(list(pairs), forms, found)
        distances = {form for form, _ in pairs if forms[form].kind in DISTANCES}
        # If leaked blocks alone have such numbers, they may be sizes or types, and no block becomes
        # reachable. Example: each of many adjacent GValues has the number of its type, 64, in a
        # chunk of 32 bytes that alternates with its text's chunk.
        used = self._forms_in_live_memory(words) if distances else ()
        regular = {form for form, at in pairs if form in distances and (form not in used or not self._is_varied(words, form, at))}
        sized = [one for one in shown if one.size]
        small = {(one.form, one.size) for one in sized if any(self._are_small_numbers(words, one.form, at, one.size) for at in one.offsets)}
        regular.update(form for form, _ in small if all((one.form, one.size) in small for one in sized if one.form == form))
        if any(form not in regular for form, _ in small):
            shown = [one for one in shown if (one.form, one.size) not in small]
            of_blocks = self._blocks.columns_of(array("I", (edge & NO_BLOCK for edge in words[1::3]))).size
            words = select(words, bytearray((word >> 16, size) not in small for word, size in zip(words[2::3], of_blocks)))
        if regular:
            shown = [one for one in shown if one.form not in regular]
            pairs = {pair: None for pair in pairs if pair[0] not in regular}
            words = select(words, bytearray(word >> 16 not in regular for word in words[2::3]))
            if not shown:
                return Disguised(partly=partly), array("Q")
        places, edges, of_forms = words[0::3], words[1::3], words[2::3]
        ordered = sorted({form for form, _ in pairs})
        number = {form: at for at, form in enumerate(ordered)}
        conventions = []
        for form in ordered:
            members = sorted((one for one in shown if one.form == form), key=lambda one: (-one.heads, one.size))
            sizes = tuple(one.size for one in members if one.size)
            conventions.append(DisguiseConvention(forms[form], members[0].offsets[0], sizes, 0, 0))
        return Disguised(conventions, partly, NONE, 0, places, edges, [number[word >> 16] for word in of_forms]), edges


def lost_totals(graph: Graph) -> Totals:
    """Return the totals of DEFINITE and INDIRECT blocks together."""
    return Totals.sum_of(graph.totals(kind) for kind in (Kind.DEFINITE, Kind.INDIRECT))


def with_effect(found: Disguised, before: Totals, graph: Graph, blocks: Blocks) -> Disguised:
    """Return `found` with the effect of its conventions. `before` has the totals of leaked blocks
    without the conventions."""
    after = lost_totals(graph)
    kinds = graph.kinds()
    reached: list[set[int]] = [set() for _ in found.conventions]
    for edge, number in zip(found.edges, found.numbers):
        target = edge & NO_BLOCK
        if kinds[target] in (Kind.REACHABLE, Kind.POSSIBLE):
            reached[number].add(target)
    conventions = [
        one._replace(blocks=len(of), bytes=sum(blocks.size(index) for index in of)) for one, of in zip(found.conventions, reached)
    ]
    held = before.minus(after)
    left = frozenset(graph.leak_head_sizes())
    return found._replace(conventions=conventions, held=held, partly=[one for one in found.partly if one.size in left])


def _least(form: Form) -> int:
    """Return the minimum number of blocks with pointers in a form."""
    return LEAST_NUMBERS if form.kind in NUMBERS else LEAST


def _rank(one: Shown) -> tuple[int, int, int]:
    """Return the key by which forms of one size are compared."""
    return one.heads, -min(one.offsets, default=0), -one.form
