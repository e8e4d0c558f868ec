"""Find the bases of compressed pointers, and the keys of mangled ones, which a program chooses
itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from findleaks.engine.contract import Engine
from findleaks.engine.disguises import Disguise, Form
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import range_at

COMPRESSIONS = (0, 1, 2, 3, 4)
BASES = 6  # number of addresses that are tried as the base of 32-bit numbers
PAGE = 4096
FROM_VARIABLES = 24  # number of pointers in root memory that are examined as bases
BATCH = 60  # forms that are examined at once; the C engine examines at most 64 (MOST_FORMS)
SAMPLE = 96 << 10  # bytes of memory in which they are examined
# the least number of different addresses of starts of blocks to which a form must refer there
STARTS = 24
FEW = 2  # maximum number of forms with a base from a variable
KEYS = 48  # number of random words in root memory that are examined as keys
MOST_WORDS = 1 << 16  # large words in root memory among which random ones are looked for
KEY_SAMPLE = 4 << 20  # bytes of memory in which they are examined
# A random key refers to the starts of blocks by chance only rarely; see graph/disguises.py.
KEY_STARTS = 8
ROTATIONS = (0, 17)  # bits; glibc rotates by 17
_KEY_BITS = range(14, 51)  # numbers of set bits that nearly all random words of 64 bits have
_TEXT = frozenset(range(0x20, 0x7F))


def page_bases(starts: Sequence[int], pointers: Iterable[int]) -> list[int]:
    """Return addresses that may be the base of 32-bit numbers: multiples of 4 GiB, the starts of
    heaps, and pages to which a pointer in root memory points, because a program keeps its base in
    such a variable."""
    found = dict.fromkeys([*(start >> 32 << 32 for start in starts), *(start & -PAGE for start in starts)])
    for value in pointers:
        if len(found) >= BASES:
            break
        if value % PAGE == 0:
            found[value] = None
    return list(found)[:BASES]


def root_words(engine: Engine, pieces: Iterable[Piece], low: int, high: int) -> Iterator[int]:
    """Yield the words in root memory from `low` on, below `high`; a limited number for each
    piece."""
    word, order = engine.arch.word, engine.arch.byteorder
    for piece in pieces:
        for address in engine.search(piece, low, high)[:PAGE]:
            yield int.from_bytes(piece.data[address - piece.address :][:word], order)


def base_forms(pointers: Iterable[int], heaps: Sequence[Range], known: Sequence[int]) -> list[Form]:
    """Return the forms with a base that is the value of a pointer in root memory to a heap. The
    lowest ones are the best, because distances are not negative. `known`: bases that are tried in
    any case."""
    in_heaps = {value for value in pointers if value % 8 == 0 and range_at(heaps, value) is not None}
    values = sorted(in_heaps.difference(known))[:FROM_VARIABLES]
    return [Form(Disguise.COMPRESSED, value, shift) for value in values for shift in COMPRESSIONS]


def find_key_forms(
    engine: Engine,
    pieces: Iterable[Piece],
    known: Sequence[Form],
    leaks: int,
    total: int,
    tries: Callable[[Sequence[Form], int], list[tuple[int, int]]],
) -> list[Form]:
    """Return the forms of pointers that the program combines with a key in a variable: a word in
    root memory that looks random, and is not an address. `known`: forms with keys that are tried
    in any case. For the other arguments, see examine_forms."""
    if leaks < KEY_STARTS * _step(total, KEY_SAMPLE):
        return []
    found = dict.fromkeys(form.base for form in known)
    most = len(found) + KEYS
    for value in islice(root_words(engine, pieces, 1 << 48, 0xFFFF << 48), MOST_WORDS):
        if len(found) >= most:
            break
        if _is_random(value):
            found[value] = None
    keys = list(found)[most - KEYS :]
    forms = [Form(Disguise.MANGLED, value, shift) for value in keys for shift in ROTATIONS]
    return examine_forms(forms, leaks, total, tries, KEY_SAMPLE, KEY_STARTS)


def _is_random(value: int) -> bool:
    """Whether a word may be a key. Text, tables of small numbers, floating-point numbers with few
    digits, and pointers with tags in their upper 16 bits are not keys."""
    data = value.to_bytes(8, "little")
    # A program at low addresses, below 4 GiB, may have tagged pointers. If one of them is taken for
    # a key, it turns others into addresses of blocks that nothing refers to.
    is_low = not value >> 32 & 0x7FFF
    return not is_low and bin(value).count("1") in _KEY_BITS and len(set(data)) >= 6 and not _TEXT.issuperset(data)


def _step(total: int, sample: int) -> int:
    """Return the step of a search in which one strip in `step` is a sample of this size."""
    return max(-(-total // sample), 1)


def examine_forms(
    forms: Sequence[Form],
    leaks: int,
    total: int,
    tries: Callable[[Sequence[Form], int], list[tuple[int, int]]],
    sample: int = SAMPLE,
    least: int = STARTS,
) -> list[Form]:
    """Return the best of these forms: those whose words, in a sample of memory, refer to the starts
    of many different blocks, and more often than elsewhere. `leaks`: number of leaked blocks.
    `total`: bytes of the memory. `tries` searches one strip in a number of strips for these forms;
    for the result, see Disguises.tries. If the sample would contain too few pointers, the result is
    empty. `sample`: bytes of the sample. `least`: the least number of blocks."""
    step = _step(total, sample)
    if leaks < least * step:
        return []
    good: list[tuple[int, Form]] = []
    for first in range(0, len(forms), BATCH):
        batch = forms[first : first + BATCH]
        found = zip(tries(batch, step), batch)
        good += [(starts, form) for (tried, starts), form in found if starts >= least and 2 * starts >= tried]
    return [form for _, form in sorted(good, key=lambda one: -one[0])[:FEW]]
