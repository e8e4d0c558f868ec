"""Distinguish disguised pointers from numbers that equal a disguised pointer by chance.

A 32-bit distance may also be a size, a counter or an id. A large heap contains numbers that,
decoded in some form, are addresses in leaked blocks. Example: the hashes of strings in the heap of
V8, if the program is loaded at low addresses. The addresses that such numbers give are spread
evenly over the blocks. Pointers give one address in each block, mostly its start."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from math import comb, log
from operator import or_

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.disguises import ANY_OFFSET, Disguise, Form
from findleaks.engine.terms import NO_BLOCK
from findleaks.value_classes import NamedTuple

SHARE = 0.9  # the share of the leaked blocks of one size that must have a pointer of a form
# If there are this many blocks of one size, a smaller share is enough: the others are leaked.
MANY, MANY_SHARE = 256, 0.25
PART = 16  # bytes: malloc aligns blocks to this number, so stale pointers refer to multiples of it
# the largest expected number of groups in a process that are reported although all numbers in it
# refer to blocks by chance
EXPECTED = 0.001
LEAST_RELATIVE = 4  # minimum number of relative pointers that are reported
REPORTED = 0.1  # least share of the blocks of one size whose pointers are reported
PAGE = 4096
# least number of small numbers that are pointers on a page, or at an offset in blocks of one size
COMPANY = 8
# If a group has numbers that are not pointers, they refer to all offsets in blocks. The pointers of
# the group must be this many times as many as the numbers for any other offset.
CONTRAST = 4
CONTROLS = 8  # number of other offsets that are compared
_FIELD = (1 << 28) - 1  # mask of the size of a block, and of an offset in it


class Shown(NamedTuple):
    """A form of pointers, with the leaked blocks of one size (0: of all sizes) that have such
    pointers."""

    size: int
    blocks: int  # leaked blocks of this size
    form: int
    offsets: tuple[int, ...]
    heads: int  # number of these blocks that have a pointer in this form
    live: int  # number of these blocks to which live memory has a pointer in this form
    precise: bool
    elsewhere: int  # number of other addresses in these blocks to which words in this form refer
    mixed: bool = False  # see in_contrast
    others: tuple[int, ...] = ()  # offsets to which most of the other numbers refer

    def is_nearly_all(self, least: int) -> bool:
        """Whether nearly all of the blocks, and at least `least`, have a pointer in this form."""
        return self.heads >= max(SHARE * self.blocks, least)

    def in_contrast(self, offsets: dict[int, int]) -> Shown:
        """Return this result with `others`, if many blocks have such pointers. The result is
        precise if its offset is much more frequent than any other: numbers that are not pointers
        refer to all offsets equally often. `offsets`: how many numbers refer to each offset."""
        if not self.is_large_part:
            return self
        others = sorted((one for one in offsets if one not in self.offsets), key=lambda one: (-offsets[one], one))[:CONTROLS]
        stands_out = offsets[self.offsets[0]] >= CONTRAST * max(map(offsets.__getitem__, others), default=0)
        return self._replace(precise=self.precise or stands_out, mixed=True, others=tuple(others))

    def is_weak(self, form: Form, tried: int) -> bool:
        """Whether the pointers from live memory are too few to be reported: they do not matter, or
        numbers may refer to these blocks by chance. `tried`: see _may_be_chance."""
        # A size or a counter often equals the distance from a block.
        least = LEAST_RELATIVE if form.kind == Disguise.RELATIVE else 1
        if self.live < max(least, REPORTED * self.blocks):
            return True
        return _may_be_chance(self.live, self.elsewhere, self.offsets, self.size, tried)

    @property
    def is_large_part(self) -> bool:
        """Whether so many of the blocks have a pointer that it is not a coincidence, although
        others have none."""
        return self.size > 0 and self.heads >= max(MANY_SHARE * self.blocks, MANY)


class NumberGroups:
    """References by disguised pointers, in the form of Disguises.references, in groups: numbers on
    the same page, or at the same offset in blocks of one size."""

    def __init__(self, engine: Engine, blocks: Blocks, words: array[int]) -> None:
        self._engine = engine
        self.places, self.edges = words[0::3], words[1::3]
        self.forms = array("Q", (word >> 16 for word in words[2::3]))
        self.offsets = array("Q", (word & ANY_OFFSET for word in words[2::3]))
        # There may be millions of words, so their groups are numbers in arrays instead of tuples.
        sources = blocks.columns_of(array("I", (edge >> 32 for edge in self.edges)))
        offsets = (place - start for place, start in zip(self.places, sources.address))
        self.pages = array("Q", (form << 56 | place // PAGE for form, place in zip(self.forms, self.places)))
        self.fields = array(
            "Q", (form << 56 | (size & _FIELD) << 28 | at & _FIELD for form, size, at in zip(self.forms, sources.size, offsets))
        )
        # Small blocks have the same fields; in root memory and in large blocks, pages are compared.
        small = (edge >> 32 != NO_BLOCK and size < PAGE for edge, size in zip(self.edges, sources.size))
        self.regions = array("Q", (1 << 63 | field if is_small else page for is_small, field, page in zip(small, self.fields, self.pages)))

    def in_company(self, counted: Sequence[int]) -> bytearray:
        """Return, for each reference, whether COMPANY references of its page or of its field have a
        true value in `counted`."""
        kept = bytearray(len(self.places))
        for groups in (self.pages, self.fields):
            counts = self._counts(groups, counted)
            company = {group for group, count in counts.items() if count >= COMPANY}
            kept = bytearray(map(or_, kept, map(company.__contains__, groups)))
        return kept

    def in_contrast(self, accepted: Mapping[int, int], typical: Sequence[int]) -> bytearray:
        """Return, for each reference, whether nearly all references of its region refer to the
        accepted offset. `accepted`: by form. `typical`: not 0 if the target has a size that
        pointers of this form refer to."""
        offsets = self.offsets
        wanted = bytearray(accepted.get(form, -1) == offset for form, offset in zip(self.forms, offsets))
        most: Counter[int] = Counter()
        for offset in sorted(set(compress(offsets, (not one for one in wanted)))):
            others = bytearray(one == offset and not is_wanted for one, is_wanted in zip(offsets, wanted))
            for group, count in self._counts(self.regions, others).items():
                most[group] = max(most[group], count)
        counts = self._counts(self.regions, wanted)
        pointers = {group for group, count in counts.items() if count >= COMPANY and count >= CONTRAST * most[group]}
        # A lone pointer, such as the pointer to the first node of a list, counts only if no number
        # in its region refers to another offset.
        alone = {group for group in counts if not most[group]}
        return bytearray(
            is_wanted and (group in pointers or (is_typical and group in alone))
            for is_wanted, is_typical, group in zip(wanted, typical, self.regions)
        )

    def _counts(self, groups: array[int], counted: Sequence[int]) -> dict[int, int]:
        return dict(zip(*self._engine.sum_by_value(array("Q", compress(groups, counted)), array("Q"))))


def select(words: array[int], kept: bytearray) -> array[int]:
    """Return the references, three words each, that have a true value in `kept`."""
    if all(kept):
        return words
    result = array("Q", bytes(3 * 8 * sum(map(bool, kept))))
    for at in range(3):
        result[at::3] = array("Q", compress(words[at::3], kept))
    return result


def are_shifted(addresses: Sequence[int]) -> bool:
    """Whether nearly all of these addresses, below 4 GiB, are multiples of 256. Such addresses are
    probably numbers that were read from one byte too early.

    Example: V8 stores the integer 0x123456 as 0x0012345600000000. The eight bytes from the fourth
    one on are 0x12345600. If blocks are 128 bytes apart, counters refer to one offset in every
    second block."""
    return sum(not address % 256 for address in addresses) >= SHARE * len(addresses)


def is_varied(places: Sequence[int], targets: Sequence[int]) -> bool:
    """Whether the distances from these places to the addresses of `targets` are those of pointers.

    Sizes or counters may happen to refer to starts of blocks. Example: the number 112 in many
    adjacent blocks of 112 bytes. Two tests: the distances are not a series, and the distance of
    the place before seldom refers to one of the targets."""
    distances = [target - place for place, target in zip(places, targets)]
    if _is_series(distances):
        return False
    starts = frozenset(targets)
    return 2 * sum(place + before in starts for place, before in zip(places[1:], distances)) < len(distances)


def _is_series(values: Sequence[int]) -> bool:
    """Whether most of the differences between successive numbers are equal."""
    steps = Counter(second - first for first, second in zip(values, values[1:]))
    return not steps or 2 * max(steps.values()) > len(values)


def _may_be_chance(pointers: int, others: int, offsets: Collection[int], size: int, tried: int) -> bool:
    """Whether words may refer to these offsets in blocks of one size by chance. `pointers`: number
    of these blocks to which a word of one form refers. `others`: number of addresses at other
    offsets in blocks of this size to which words of this form refer. `tried`: number of groups
    (form and size of blocks) that are compared.

    The Chernoff bound limits the probability that so many of the words refer to the same few parts
    of the blocks. Example: two words refer to the starts of blocks of 120 bytes (8 parts). The
    probability is 1/64, so one such pair is expected among 64 groups."""
    parts = max(-(-size // PART), 1)
    chosen = {offset // PART for offset in offsets}
    share, words = len(chosen) / parts, pointers + others
    if not pointers or share >= 1 or pointers <= share * words:
        return True
    ways = 1 if chosen == {0} else comb(parts, len(chosen))
    evidence = pointers * log(pointers / words / share)
    if others:
        evidence += others * log(others / words / (1 - share))
    return evidence < log(tried * ways / EXPECTED)
