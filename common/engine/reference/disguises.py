"""The search for disguised pointers, in pure Python."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from findleaks.engine.disguises import ANY_OFFSET, BEYOND, NARROW, REACH, SMALL, STRIP, Disguise, Form, Keys
from findleaks.engine.reference.excluded_words import ExcludedWords
from findleaks.engine.reference.lost import Lost
from findleaks.engine.terms import NO_BLOCK, Kind, State
from findleaks.target.base import Piece, Range

LOST = (Kind.DEFINITE, Kind.INDIRECT)
_TEXT = frozenset(range(0x20, 0x7F))
_SIX_BYTES = (1 << 48) - 1
_ANY_BYTE = (Disguise.UNALIGNED, Disguise.SIX_BYTES)
"""Forms that may begin at any address, not only at multiples of the word size."""


class Found(NamedTuple):
    """A disguised pointer. The order of the fields is the sort order."""

    form: int
    target: int
    offset: int
    place: int
    source: int
    like_tagged: bool  # a number that may also be the lower half of a tagged pointer


class PureDisguises:
    """See disguises.Disguises."""

    def __init__(
        self, excluded: ExcludedWords, kinds: bytearray, lost: Lost, ranges: Sequence[Range], forms: Sequence[Form], most: int
    ) -> None:
        blocks = excluded.blocks
        self._blocks, self._kinds, self._lost, self._forms, self._most = blocks, kinds, lost, forms, most
        self._excluded = excluded
        self._word, self._order = blocks.arch.word, blocks.arch.byteorder
        self._segments = list(self._made_segments(ranges))
        highest = self._segments[-1].end - 1 if self._segments else 0
        bits = next((bits for bits in (47, 48) if not highest >> bits), 64) if self._word == 8 else 32
        self._mask = (1 << bits) - 1
        self._counts: Counter[int] = Counter()
        self._tries: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in forms]
        self._found: list[Found] = []

    def _made_segments(self, ranges: Sequence[Range]) -> Iterator[Range]:
        blocks = self._blocks
        lost = [index for index, kind in enumerate(self._kinds) if kind in LOST]
        starts = [blocks.starts[index] for index in lost]
        for start, end in ranges:
            first, last = bisect_left(starts, start), bisect_left(starts, end)
            if first < last:
                yield Range(starts[first], starts[last - 1] + blocks.sizes[lost[last - 1]] + 1)

    def scan(self, piece: Piece, step: int, roots: bool) -> None:
        skip = -piece.address % 8
        data = bytes(piece.data[skip:])
        base, count = piece.address + skip, -(-len(data) // STRIP)
        if not self._segments:
            return
        self._piece, self._base = data, base
        if step == 1:
            self._look(data.ljust(count * STRIP + BEYOND, b"\0"), base, roots)
            return
        for group in range(-(-count // step)):
            at = (group * step + ((group * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 33) % step) * STRIP
            if at < len(data):
                self._look(data[at : at + STRIP + BEYOND].ljust(STRIP + BEYOND, b"\0"), base + at, roots)

    def _look(self, data: bytes, address: int, roots: bool) -> None:
        """Search every word that begins in `data`, except in its last BEYOND bytes."""
        if data.count(0) == len(data):
            return  # saves minutes if a core has a GiB of zeros
        word = self._word
        for first in range(word):
            words = self._nonzero(data, first, word)
            for number, form in enumerate(self._forms):
                if form.kind in NARROW or (first and form.kind not in _ANY_BYTE) or (not first and form.kind == Disguise.UNALIGNED):
                    continue
                skipped, width = (2 if self._order == "big" else 0, 6) if form.kind == Disguise.SIX_BYTES else (0, word)
                for at, value in self._candidates(form, words, first, address):
                    self._examine(data, address, at + skipped, width, number, value, roots)
        numbers = self._nonzero(data, 0, 4)
        for number, form in enumerate(self._forms):
            if form.kind in NARROW:
                for at, value in self._candidates(form, numbers, 0, address):
                    if form.kind == Disguise.RELATIVE_32:
                        if not self._in_segments(int.from_bytes(data[at & -8 : (at & -8) + 8], self._order)):
                            self._examine(data, address, at, 4, number, value, roots)
                        continue
                    whole = self._whole_word(data, at)
                    like_tagged = whole & self._mask == value
                    if form.kind == Disguise.HALVES:
                        plain = whole == value and at % 8 == (0 if self._order == "little" else 4)
                        if not plain and self._has_upper_half(address + at, value >> 32):
                            self._examine(data, address, at, 4, number, value, roots)
                        continue
                    # A plain pointer is not a disguise. A word that looks like a tagged pointer
                    # counts neither for nor against a form, because in a table, the next number may
                    # look like a tag.
                    if whole != value and self._most if like_tagged else not self._is_half_of_pointer(at, whole):
                        self._examine(data, address, at, 4, number, value, roots, like_tagged)

    def _nonzero(self, data: bytes, first: int, width: int) -> list[tuple[int, int]]:
        """Return offset and value of each nonzero word, from the offset `first` on."""
        length = len(data) - BEYOND
        words = array("Q" if width == 8 else "I", data[first : first + length])
        if self._order != sys.byteorder:
            words.byteswap()
        return [(at, value) for at, value in zip(range(first, first + length, width), words) if value]

    def _candidates(self, form: Form, words: list[tuple[int, int]], first: int = 0, address: int = 0) -> Iterator[tuple[int, int]]:
        """Decode words in this form. If the result is an address in a segment, yield the offset of
        the word and this address. `first`: the distance of the words from a multiple of the word
        size. `address`: the address of offset 0."""
        mask, shift, base = self._mask, form.shift, form.base
        for start, end in self._segments:
            if form.kind == Disguise.TAGGED:
                yield from ((at, word & mask) for at, word in words if self._word == 8 and word > mask and start <= word & mask < end)
            elif form.kind == Disguise.UNALIGNED:
                yield from ((at, word) for at, word in words if start <= word < end)
            elif form.kind == Disguise.SIX_BYTES:
                some = ((at, word & _SIX_BYTES) for at, word in words if self._word == 8 and (first or word > mask))
                yield from ((at, value) for at, value in some if value >> 32 and start <= value < end)
            elif form.kind == Disguise.BYTE_SWAPPED:
                swapped = ((at, int.from_bytes(word.to_bytes(8, "little"), "big")) for at, word in words if self._word == 8)
                yield from ((at, value) for at, value in swapped if value >> 32 and start <= value < end)
            elif form.kind == Disguise.MANGLED:
                plain = ((at, ((word >> shift | word << 64 - shift) ^ base) & (1 << 64) - 1) for at, word in words if self._word == 8)
                yield from ((at, value) for at, value in plain if start <= value < end)
            elif form.kind == Disguise.RELATIVE:
                sums = ((at, (address + at + word) & (1 << 64) - 1) for at, word in words if self._word == 8 and word % 8 == 0)
                yield from ((at, value) for at, value in sums if start <= value < end)
            elif form.kind == Disguise.RELATIVE_32:
                near = ((at, (address + at + (word ^ 1 << 31) - (1 << 31)) & (1 << 64) - 1) for at, word in words if word % 4 == 0)
                yield from ((at, value) for at, value in near if start <= value < end)
            elif form.kind == Disguise.SAFE_LINKED:
                linked = ((at, word ^ (address + at) >> 12) for at, word in words if self._word == 8 and not self._in_segments(word))
                yield from ((at, value) for at, value in linked if start <= value < end)
            elif form.kind == Disguise.SHIFTED_LEFT:
                low, beyond = start << shift, end << shift
                yield from ((at, word >> shift) for at, word in words if low <= word < beyond)
            else:
                low, beyond = -(-(start - base) >> shift), -(-(end - base) >> shift)
                yield from ((at, base + (word << shift)) for at, word in words if low <= word < beyond)

    def _in_segments(self, value: int) -> bool:
        return any(start <= value < end for start, end in self._segments)

    def _whole_word(self, data: bytes, at: int) -> int:
        """Return the 8 bytes whose lower half is the number at `at`."""
        first = at if self._order == "little" else at - 4
        return int.from_bytes(data[first : first + 8], self._order) if at // STRIP == first // STRIP else 0

    def _is_half_of_pointer(self, at: int, whole: int) -> bool:
        """Whether the number at `at` is the lower half of an address in a block. If a heap begins
        at a multiple of 4 GiB, such halves may look like compressed pointers to other blocks."""
        return at % 8 == (0 if self._order == "little" else 4) and bool(whole >> 32) and self._blocks.find(whole) >= 0

    def _has_upper_half(self, place: int, upper: int) -> bool:
        """Whether `upper`, the upper half of an address, is near the lower half at `place`. The
        other half of the same word does not count, nor does the upper half of a plain pointer."""
        beside = 4 if self._order == "little" else -4
        for at in range(place - REACH, place + REACH + 1, 4):
            if at in (place, place + beside) or self._number_at(at) != upper:
                continue
            in_word = (at % 8 == 0) == (self._order == "big")
            if not in_word or self._number_at(at - beside) < SMALL:
                return True
        return False

    def _number_at(self, address: int) -> int:
        """Return the 32-bit number at this address; 0 if it is outside the piece."""
        at = address - self._base
        return int.from_bytes(self._piece[at : at + 4], self._order) if 0 <= at <= len(self._piece) - 4 else 0

    def _examine(
        self, data: bytes, address: int, at: int, width: int, number: int, value: int, roots: bool, like_tagged: bool = False
    ) -> None:
        """Record the `width` bytes at `at` as a pointer to `value` if that is in a leaked block.
        `like_tagged`: see Found."""
        blocks = self._blocks
        target = blocks.find(value)
        if target < 0:
            return
        if not self._most:
            if blocks.starts[target] <= address + at < blocks.starts[target] + blocks.sizes[target]:
                return
            # An address counts only once, because small numbers such as sizes, and the upper halves
            # of plain pointers, occur often. The C engine has one bit for each hash, so that
            # addresses with equal hashes count as one.
            slot = (value * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 48
            self._tries[number][0].add(slot)
            if value - blocks.starts[target] < self._word and blocks.states[target] == State.IN_USE:
                self._tries[number][1].add(slot)
            return
        if self._kinds[target] not in LOST or (width == 8 and _TEXT.issuperset(data[at : at + 8])):
            return
        source, place = NO_BLOCK, address + at
        if not roots:
            source = blocks.find(place)
            if source in (-1, target) or blocks.states[source] != State.IN_USE:
                return
            # When malloc of glibc takes a block from the thread cache, the cache's link remains in
            # the first word of the block: a stale word.
            linked = self._forms[number].kind == Disguise.SAFE_LINKED
            if linked and place == blocks.starts[source] and blocks.sizes[source] == blocks.sizes[target]:
                return
            if place + width > blocks.starts[source] + blocks.sizes[source] or self._has_excluded(source, place, width):
                return
        offset = value - blocks.starts[target]
        if self._forms[number].kind == Disguise.TAGGED:
            offset &= -self._word
        self._counts[number] += 1
        if self._counts[number] <= self._most:
            self._found.append(Found(number, target, min(offset, ANY_OFFSET), place, source, like_tagged))

    def _has_excluded(self, source: int, place: int, width: int) -> bool:
        """Return whether one of these bytes is in a word that is excluded from the references."""
        first, of = place - self._blocks.starts[source], self._excluded.of(source)
        return any((of.words | of.links) & of.bit(at // self._word) for at in (first, first + width - 1))

    def tries(self) -> list[tuple[int, int]]:
        return [(len(tries), len(starts)) for tries, starts in self._tries]

    def keys(self, sizes: Sequence[int]) -> Keys:
        numbers = {size: number for number, size in enumerate(sizes)}
        keys = Keys(array("Q"), array("Q"), array("Q"))
        before: tuple[int, int, int] = (-1, -1, -1)
        seen: set[tuple[int, int]] = set()
        seen_live: set[tuple[int, int]] = set()
        for one in sorted(self._found):
            head = self._lost.leak_head(one.target)
            if head != one.target and self._lost.cycle(head) == 1:
                head = -1
            number = numbers.get(self._blocks.sizes[one.target if head < 0 else head])
            if one.like_tagged or self._counts[one.form] > self._most or number is None:
                continue
            key = one.form << 48 | number << 16 | one.offset
            if before != (one.form, one.target, one.offset):
                keys.hits.append(key)
            before = (one.form, one.target, one.offset)
            if head < 0:
                continue
            if (one.form, head) not in seen:
                keys.heads.append(key)
                seen.add((one.form, head))
            live = one.source == NO_BLOCK or self._kinds[one.source] not in LOST
            if live and (one.form, head) not in seen_live:
                keys.live.append(key)
                seen_live.add((one.form, head))
        return keys

    def references(self, accepted: Sequence[tuple[int, int]]) -> array[int]:
        wanted = frozenset(accepted)
        chosen = [one for one in self._found if (one.form, one.offset) in wanted and not self._is_accepted_as_tagged(one, wanted)]
        chosen.sort(key=lambda one: (one.source, one.place, one.form))
        return array("Q", [word for one in chosen for word in (one.place, one.source << 32 | one.target, one.form << 16 | one.offset)])

    def _is_accepted_as_tagged(self, one: Found, wanted: frozenset[tuple[int, int]]) -> bool:
        return one.like_tagged and any(
            (number, one.offset & -self._word) in wanted for number, form in enumerate(self._forms) if form.kind == Disguise.TAGGED
        )


def connect(edges_of: Callable[[int], array[int]], counts: array[int], references: array[int]) -> tuple[array[int], list[int]]:
    """Add the edges of `references` to all edges; see Graph.connect.

    Returns all edges in the order of their sources, with the added ones last in each source, and
    the targets of references from roots. Updates `counts`, the number of each block's edges."""
    added: dict[int, list[int]] = {}
    for reference in references:
        added.setdefault(reference >> 32, []).append(reference & NO_BLOCK)
    edges: array[int] = array("I")
    for source in range(len(counts)):
        edges.extend(edges_of(source))
        edges.extend(target << 1 for target in added.get(source, ()))
        counts[source] += len(added.get(source, ()))
    return edges, added.get(NO_BLOCK, [])
