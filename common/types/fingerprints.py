"""Find the types of blocks that no typed pointer refers to, by their likeness to typed blocks of
the same process.

A word of a block has a class: zero, small number, number, text, code, other static memory, the
start of a block of some size, or the middle of a block. The fingerprint of a type counts, for each
word, how often its blocks have each class. A block is of the type for which its classes are most
likely, if every other type is much less likely, and if its pointers do not contradict the type."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import chain
from typing import Optional

from findleaks.debuginfo.type_table import Kind
from findleaks.engine.type_spread import MOST_OPTIONS, SMALL_NUMBER, Choosing, Level, Role, TypeSpread, WordClass
from findleaks.types.content import Content
from findleaks.types.discriminants import find_discriminants
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.types.references import Sort
from findleaks.types.rules import Rules
from findleaks.types.specs import Candidate, Spec

# Likelihoods are logarithms. A *witness* of a type is a block of this type that was learned.
WORDS = 24  # Words at the start of a block that are compared.
ROW = 1 + WORDS  # Numbers of a row of TypeSpread.group_by_classes.
WITNESSES = 256  # Maximum number of witnesses of a type.
LEAST_WITNESSES = 2  # Fewest witnesses of a type that blocks are compared with.
MARGIN = math.log(30)  # The second most likely type must be less likely by this factor.
MOST_UNSEEN = 1 / 3  # Less than this part of a block's words may have a sort that no witness has.
VALUES = 16  # If each value of a word has this number of witnesses, the word has no other values.
UNSEEN_ZERO = 0.1  # Weight of zero in a word that was another number in all witnesses.
LINK_ZERO = 0.1  # Least weight of zero in a link, because leaked nodes are often in no list.
ALIEN = math.log(1e-3)  # Least average likelihood of the words of a block.
SMOOTH = 0.02  # Count that is added, so that no likelihood is zero.
LEAST_REST = math.log(1e-2)  # Least likelihood of a word after the end of the type.
SAME_SIZE = 0.7  # Part of a pointer's likelihood that depends on the size of its target.

MOST_RANKED = 8  # Maximum number of types whose pointers are compared with a block's.
SORT = 15  # The bits of a class (WordClass) without the size, offset or address.

_NUMBERS = frozenset((WordClass.ZERO, WordClass.SMALL, WordClass.NUMBER))
_DATA = _NUMBERS | {WordClass.TEXT}
_PLAIN = frozenset((WordClass.SMALL, WordClass.NUMBER, WordClass.TEXT))
_CONSTANT = (WordClass.STATIC, WordClass.CODE)
_ADDRESSES = frozenset((WordClass.CODE, WordClass.BLOCK_START, WordClass.BLOCK_MIDDLE))


class _Model:
    """The fingerprint of one type: how often each word has each class."""

    def __init__(
        self, fold: Sequence[int], pointers: frozenset[int], links: frozenset[int], tags: frozenset[int], is_vague: bool, own: int
    ) -> None:
        """`fold` maps each word of a block to a word of the type, so that all elements of an array
        are counted together. `pointers` are the words that are pointers, or may be. `links` are
        the words that refer to other values of the type. `tags` are the words of the first element
        that are discriminants. Their values are zero or small.
        `is_vague`: whether the type says little about its words, as char *[] does. If so, each word
        of a block must have a sort that the same word of a witness has. `own`: the number of
        words of the type. Words after the type, up to the end of the block, contain stale words."""
        self.blocks, self._is_vague, self._own = 0, is_vague, own
        self.fold, self._pointers, self._links, self._tags = fold, pointers, links, tags
        self.classes: list[Counter[int]] = [Counter() for _ in range(WORDS)]
        self.sorts: list[Counter[int]] = [Counter() for _ in range(WORDS)]
        self._sizes: set[int] = set()
        self._parts: dict[tuple[int, int], float] = {}  # Results of `_part`, by word and class.

    def learn(self, size: int, classes: Sequence[int], count: int) -> None:
        """Add `count` blocks of `size` bytes with these classes."""
        self.blocks += count
        self._sizes.add(size)
        for at, one in zip(self.fold, classes):
            self.classes[at][one] += count
            self.sorts[at][one & SORT] += count
        self._parts.clear()

    def likelihood(self, size: int, classes: Sequence[int]) -> float:
        """Return the logarithm of the likelihood of a block of `size` bytes with these classes.
        Arrays of one type often have only a few different sizes. Therefore a block is less likely
        to be such an array if none of the witnesses has its size. The more witnesses there are, the
        lower is this likelihood."""
        parts, unseen = self._parts, 0
        total = 0.0 if size in self._sizes else -min(math.log(self.blocks + 1), MARGIN)
        if any(at < len(classes) and classes[at] > WordClass.SMALL for at in self._tags):
            return -math.inf
        for key in zip(self.fold, classes):
            part = parts.get(key)
            if part is None:
                part = parts[key] = self._part(*key)
            total += part
            is_end = not key[1] and key[0] in self._links
            unseen += key[0] < self._own and not is_end and not self.sorts[key[0]][key[1] & SORT]
        is_unlike = bool(unseen) if self._is_vague else self.blocks >= VALUES and unseen >= MOST_UNSEEN * len(classes)
        return -math.inf if is_unlike else total

    def _part(self, at: int, one: int) -> float:
        """Return the logarithm of the likelihood of a class for a word of the type."""
        sorts = self.sorts[at]
        part = float(sorts[one & SORT])
        if at >= self._own:
            return max(math.log((part + SMOOTH) / (sum(sorts.values()) + 1)), LEAST_REST)
        if not part and (at not in self._pointers if one & SORT in _ADDRESSES else one in _PLAIN and self._is_pointer(at)):
            return -math.inf
        if one & SORT in _CONSTANT and one not in self.classes[at] and len(self.classes[at]) * VALUES <= self.blocks:
            return -math.inf
        if not one and at in self._links:
            part = max(part, LINK_ZERO * self.blocks)
        elif one > SORT:
            part = (1 - SAME_SIZE) * part + SAME_SIZE * self.classes[at][one]
        elif one in _NUMBERS:
            likeness = 0.5 if part or one != WordClass.ZERO else UNSEEN_ZERO
            part = (1 - likeness) * part + likeness * sum(sorts[other] for other in _NUMBERS)
        return math.log((part + SMOOTH) / (sum(sorts.values()) + 1))

    def _is_pointer(self, at: int) -> bool:
        """Whether a word may be a pointer, and was a pointer or zero in all witnesses."""
        return at in self._pointers and not any(self.sorts[at][one] for one in _PLAIN)


class Fingerprints:
    """The fingerprints of the types in one process."""

    def __init__(self, spread: TypeSpread, heap: HeapView, layouts: Layouts, content: Content, rules: Rules) -> None:
        self._spread, self._heap, self._layouts, self._content, self._rules = spread, heap, layouts, content, rules
        self._models: dict[tuple[int, int], _Model] = {}  # By layout and size; size 0: of any size.
        self._by_size: dict[int, list[int]] = {}
        self._rivals: dict[tuple[int, int], Sequence[Candidate]] = {}  # By layout and size.

    def learn(self, typed: array[int]) -> None:
        """Learn from these typed blocks, except arrays of void pointers and buffers of characters,
        which may have anything; types that only the C library has; and types with less than half
        the size of the block."""
        rows = (
            (layout, count, size, classes)
            for size, classes, blocks in self._by_classes(typed)
            for layout, count in Counter(map(self._heap.layout, blocks)).items()
            if self._element(layout) != Kind.VOID
            and self._layouts.table.kinds[self._layouts.table.bare(self._layouts.specs[layout].type)] not in (Kind.BASE, Kind.ENUM)
            and self._rules.is_of_program(self._layouts.specs[layout].type)
            and not self._rules.has_rest(self._layouts.specs[layout], size)
        )
        self._rivals.clear()
        for layout, count, size, classes in rows:
            for of in (size, 0) if self._varies(layout) else (size,):
                if (layout, of) not in self._models:
                    self._models[layout, of] = _Model(
                        self._fold(layout, of),
                        self._pointers(layout),
                        self._links(layout),
                        self._tags(layout),
                        self._element(layout) in (Kind.BASE, Kind.POINTER),
                        self._own_words(layout),
                    )
                    self._by_size.setdefault(of, []).append(layout)
                self._models[layout, of].learn(size, classes, count)

    @property
    def layouts(self) -> set[int]:
        """The layouts that typed blocks have."""
        return {layout for layout, _ in self._models}

    def _varies(self, layout: int) -> bool:
        """Whether blocks with a layout have different sizes, because they are arrays or end with
        one."""
        spec = self._layouts.specs[layout]
        return not spec.parts and (spec.many or self._layouts.flexible(spec.type) is not None)

    def _element(self, layout: int) -> Optional[Kind]:
        """Return the kind of the types that pointers of an array refer to; None for other
        layouts."""
        table = self._layouts.table
        bare = table.bare(self._layouts.specs[layout].type)
        return Kind(table.kinds[table.bare(table.targets[bare])]) if table.kinds[bare] == Kind.POINTER else None

    def _pointers(self, layout: int) -> frozenset[int]:
        """Return the numbers of words that are pointers, in the first element of arrays."""
        parts = self._layouts.shape(self._layouts.specs[layout])
        word = self._layouts.table.word
        return frozenset((one.start + leaf.offset) // word for one in parts for leaf in one.leaves if leaf.role < Role.PLAIN)

    def _links(self, layout: int) -> frozenset[int]:
        """Return the numbers of words that refer to other values of the type, such as the links of
        a list. The elements of an array are seldom linked."""
        references, parts = self._layouts.references, self._layouts.shape(self._layouts.specs[layout])
        leaves = [(one.start + leaf.offset, leaf) for one in parts if one.number == 1 for leaf in one.leaves if leaf.role == Role.REFERENCE]
        found = [(offset, references[leaf.reference]) for offset, leaf in leaves]
        return frozenset(offset // self._layouts.table.word for offset, one in found if one.sort == Sort.POINTER and one.owner)

    def _tags(self, layout: int) -> frozenset[int]:
        """Return the numbers of words that are discriminants of Rust's enums. For arrays, these are
        words of the first element, because other elements of a vector may be unused."""
        table, spec = self._layouts.table, self._layouts.specs[layout]
        found = () if spec.parts else find_discriminants(table, spec.type, table.word, SMALL_NUMBER)
        return frozenset(at // table.word for at in found if at % table.word == 0)

    def _fold(self, layout: int, size: int) -> Sequence[int]:
        """Return, for each word of a block, the word of the type that it is compared with."""
        table, spec = self._layouts.table, self._layouts.specs[layout]
        word = table.word
        own = max((table.size_of(spec.type) or word) // word, 1)
        if size:
            return range(min(WORDS, max(size // word, 1)))
        if spec.many:
            return [at % own if own < WORDS else at for at in range(WORDS)]
        tail = self._layouts.flexible(spec.type)
        first, step = (tail[0] // word, max(table.sizes[tail[1]] // word, 1)) if tail is not None else (own, 1)
        return [at if at < first else min(first + (at - first) % step, WORDS - 1) for at in range(WORDS)]

    def _own_words(self, layout: int) -> int:
        """Return the number of words of a content if all its values have the same size, else WORDS.
        For a partly used array, these are the words of the elements in use. The other words of the
        block count, too: otherwise, an array with one element in use would be likelier than any
        type that describes more words."""
        spec, word = self._layouts.specs[layout], self._layouts.table.word
        is_open = self._varies(layout) or any(not part.number for part in spec.parts)
        return WORDS if is_open else -(-self._layouts.size_of(spec) // word)

    def find(self, untyped: array[int]) -> tuple[dict[int, array[int]], array[int]]:
        """Return the untyped blocks that resemble only one type, by the layout of this type, and
        all blocks that resemble any type."""
        ranked: dict[tuple[tuple[float, int], ...], list[int]] = {}
        for size, classes, blocks in self._by_classes(untyped):
            if not _DATA.issuperset(classes):
                rows = tuple(self._rank(size, classes)[:MOST_RANKED])
                if rows:
                    ranked.setdefault(rows, []).extend(blocks)
        found: dict[int, array[int]] = {}
        for rows, blocks in ranked.items():
            for layout, some in self._fitting(rows, blocks):
                found.setdefault(layout, array("I")).extend(some)
        return found, array("I", chain.from_iterable(ranked.values()))

    def _fitting(self, rows: Sequence[tuple[float, int]], blocks: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the most likely layouts with the blocks that fit them. `rows`: likelihood and
        layout, the same for all of the blocks, the likeliest first."""
        by_mask: dict[int, list[int]] = {}
        for index, mask in zip(blocks, self._content.fits([layout for _, layout in rows], blocks)):
            by_mask.setdefault(mask, []).append(index)
        for mask, some in by_mask.items():
            fitting = [row for at, row in enumerate(rows) if mask >> at & 1]
            likely = [layout for likelihood, layout in fitting if fitting[0][0] - likelihood < MARGIN]
            if len(likely) == 1:
                yield likely[0], self._without_rivals(likely[0], some)
            elif likely and self._begin_alike(likely):
                options = [Candidate(self._layouts.specs[layout], Level.FINGERPRINT) for layout in likely]
                for layout, chosen in self._content.group_by_choice(options, Choosing.BY_END, some).items():
                    yield layout, self._without_rivals(layout, chosen)

    def _without_rivals(self, layout: int, blocks: Sequence[int]) -> Sequence[int]:
        """Return the blocks that a type fits better than all types without witnesses, and better
        than arrays of its first member. All values of a type without witnesses may be leaked, so
        that its fingerprint is not known."""
        by_size: dict[int, list[int]] = {}
        for index, size in zip(blocks, self._heap.blocks.columns_of(array("I", blocks)).size):
            by_size.setdefault(size, []).append(index)
        chosen, found = Candidate(self._layouts.specs[layout], Level.LEARNED), []
        for size, some in by_size.items():
            rivals = self._find_rivals(layout, size)
            if not rivals:
                found += some
                continue
            best = self._content.choose([chosen, *rivals][:MOST_OPTIONS], Choosing.BY_CONTENT, some)
            found += [index for index, spec in zip(some, best) if spec == chosen.spec]
        return found

    def _find_rivals(self, layout: int, size: int) -> Sequence[Candidate]:
        """Return the types without witnesses, and the arrays, that may have the content of a type
        in blocks of `size` bytes."""
        if (layout, size) not in self._rivals:
            chosen, known = self._layouts.specs[layout], self.layouts
            unseen = [one for one in self._alternatives(size) if self._layouts.number(one.spec) not in known]
            found = [one for one in unseen if not self._is_part(one.spec, chosen)]
            self._rivals[layout, size] = [*found, *self._arrays_like(chosen, size, known)]
        return self._rivals[layout, size]

    @cached_property
    def _pointed(self) -> set[int]:
        """The types to which at least one pointer in the debug information refers. Of Rust's
        pointers, only Box counts, because each type with methods has a reference, `self`."""
        table = self._layouts.table
        pointers = (number for number in range(len(table)) if table.kinds[number] == Kind.POINTER)
        names, text = table.names, table.text
        return {table.bare(table.targets[number]) for number in pointers if not text(names[number]).startswith(("&", "*"))}

    def _alternatives(self, size: int) -> Sequence[Candidate]:
        """Return the types of Rules.of_size that some pointer refers to, except those of libraries
        of containers. A type without pointers to it is only a member or a local variable."""
        is_part = self._layouts.embedding.is_container_part
        return [one for one in self._rules.of_size(size) if one.spec.type in self._pointed and not is_part(one.spec.type)]

    def _arrays_like(self, chosen: Spec, size: int, known: AbstractSet[int]) -> Sequence[Candidate]:
        """Return the arrays that may have the content of a struct in blocks of `size` bytes: an
        array of two strings has the content of a struct with two strings. `known`: the layouts of
        typed blocks."""
        if chosen.many or chosen.parts:
            return ()
        specs, table = map(self._layouts.specs.__getitem__, known), self._layouts.table
        # An array of the same type would have only one element.
        is_single = self._layouts.size_of(chosen) * 2 > size
        arrays = [spec for spec in specs if spec.many and not spec.parts and table.kinds[table.bare(spec.type)] == Kind.STRUCT]
        return [
            Candidate(spec, Level.LEARNED)
            for spec in arrays
            if self._layouts.embedding.has(chosen.type, 0, table.bare(spec.type))
            and self._rules.is_array_of_size(spec, size)
            and not (is_single and table.bare(spec.type) == table.bare(chosen.type))
        ]

    def _is_part(self, one: Spec, chosen: Spec) -> bool:
        """Whether one of two types begins with the other one. False if `chosen` is an array and
        `one` has at least the size of two elements: a struct with two strings is not an array of
        strings."""
        has, bare = self._layouts.embedding.has, self._layouts.table.bare
        if chosen.many and 2 * self._layouts.size_of(chosen) <= self._layouts.size_of(one):
            return False
        return has(one.type, 0, bare(chosen.type)) or has(chosen.type, 0, bare(one.type))

    def _begin_alike(self, likely: Sequence[int]) -> bool:
        """Whether all of these types begin with the smallest of them."""
        layouts, specs = self._layouts, self._layouts.specs
        first = min((specs[layout] for layout in likely), key=layouts.size_of)
        bare = layouts.table.bare(first.type)
        return not first.many and all(layouts.embedding.has(specs[layout].type, 0, bare) for layout in likely)

    def _rank(self, size: int, classes: Sequence[int]) -> Sequence[tuple[float, int]]:
        """Return the types that a block with these classes may have: likelihood and layout, the
        likeliest first."""
        best: dict[int, tuple[float, int]] = {}
        for known in (size, 0):
            for layout in self._by_size.get(known, ()):
                model = self._models[layout, known]
                if model.blocks < LEAST_WITNESSES or not self._has_room(layout, size):
                    continue
                likely = model.likelihood(size, classes)
                if likely < ALIEN * len(classes):
                    continue
                best[layout] = max(best.get(layout, (likely, layout)), (likely, layout))
        return sorted(best.values(), key=lambda one: (-one[0], one[1]))

    def _has_room(self, layout: int, size: int) -> bool:
        """Whether a block of `size` bytes may have a layout. An array must fill the block, because
        for a smaller array the allocator would have returned a smaller block."""
        spec = self._layouts.specs[layout]
        if spec.many and not spec.parts:
            return self._rules.is_array_of_size(spec, size)
        return self._layouts.size_of(spec) <= size

    def _by_classes(self, blocks: array[int]) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
        """Yield groups of blocks: their size in bytes, the classes of their words up to the first
        missing word, and the indices of the blocks."""
        groups, rows = self._spread.group_by_classes(blocks, WORDS)
        members: list[list[int]] = [[] for _ in range(len(rows) // ROW)]
        for index, group in zip(blocks, groups):
            members[group].append(index)
        for at, some in enumerate(members):
            size, *classes = rows[ROW * at : ROW * (at + 1)]
            yield size, classes[: classes.index(WordClass.MISSING)] if WordClass.MISSING in classes else classes, some
