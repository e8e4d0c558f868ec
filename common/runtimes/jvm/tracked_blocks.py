"""Read NMT's headers of blocks, which exist if NMT records details. Before each malloc block of the
JVM, a header has the position of the block's entry in the table of sites.

Sources: src/hotspot/share/services/mallocTracker.hpp of OpenJDK 17 (nmt/mallocHeader.hpp from 22
on), 64-bit: the size, then until 18 {kind 8 bits, position in the bucket 16, bucket 40}; since 19
{position 16, bucket 16, kind 8, unused 8, a mark 16}."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.sites import Recording, Site, make_recording, poll_items
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.sampling import COLUMNS
from findleaks.engine.terms import Totals
from findleaks.errors import Interrupted
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.tracking import HEADER, MAX_KINDS, Entry, buckets

LIVE = 0xE99E  # the mark of a header in use (_header_canary_life_mark)
STEP = 1 << 16  # headers read between two checks for Ctrl-C


class _Place(NamedTuple):
    """The place of an entry, by its bucket and its position in the bucket, and the kind of the
    block."""

    bucket: int
    position: int
    kind: int


def _decode_packed_place(word: int) -> Optional[_Place]:
    """Decode the second word of a header of JDK 17 and 18."""
    return _Place(word >> 24, word >> 8 & 0xFFFF, word & 0xFF)


def _decode_place(word: int) -> Optional[_Place]:
    """Decode the second word of a header of JDK 19 and later."""
    return _Place(word >> 16 & 0xFFFF, word & 0xFFFF, word >> 32 & 0xFF) if word >> 48 == LIVE else None


_FORMS: Sequence[Callable[[int], Optional[_Place]]] = (_decode_place, _decode_packed_place)


def read_recording(tables: Tables, engine: Engine, blocks: Blocks) -> Optional[Recording]:
    """Return the allocation stacks of the blocks that have a header of NMT; None if there is no
    such block. Raises Interrupted."""
    if tables.memory.size != 8 or tables.target.arch.byteorder != "little":
        return None
    table = buckets(tables)
    numbers: dict[tuple[int, ...], int] = {}
    counts: list[list[int]] = []
    site_of = [[_number(entry, numbers, counts) for entry in bucket] for bucket in table]
    headers = _headers(tables, engine, blocks)
    found = max((list(_list_identified(poll_items(headers, tables.target), form, site_of)) for form in _FORMS), key=len)
    if not found:
        return None
    sites = [Site(frames, Totals(*live)) for frames, live in zip(numbers, counts)]
    return make_recording(tables.target, "the JVM's NMT", sites, found, warnings=_missing(sites, found))


def _number(entry: Entry, numbers: dict[tuple[int, ...], int], counts: list[list[int]]) -> int:
    """Return the number of the stack of an entry. A stack has an entry for each kind of memory."""
    number = numbers.setdefault(entry.frames, len(numbers))
    if number == len(counts):
        counts.append([0, 0])
    counts[number][0] += entry.blocks
    counts[number][1] += entry.bytes
    return number


class _Header(NamedTuple):
    block: int
    word: int


def _headers(tables: Tables, engine: Engine, blocks: Blocks) -> list[_Header]:
    """Return the blocks in use that begin with a plausible size: the number of bytes after the
    header, apart from malloc's rounding."""
    _, rows = blocks.sample(len(blocks) + 1)
    addresses, sizes = rows[::COLUMNS], rows[1::COLUMNS]
    found = []
    for first in range(0, len(addresses), STEP):
        if tables.target.is_interrupted():
            raise Interrupted
        some = addresses[first : first + STEP]
        data, _ = read_records(tables.target, engine, some, HEADER)
        words = memoryview(data).cast("Q")
        for address, size, wanted, second in zip(some, sizes[first : first + STEP], words[::2].tolist(), words[1::2].tolist()):
            if wanted + HEADER <= size <= wanted + wanted // 4 + 64:
                found.append(_Header(address, second))
    return found


def _list_identified(
    headers: Iterable[_Header], form: Callable[[int], Optional[_Place]], site_of: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int, float]]:
    """Return the blocks whose headers have this format and identify an entry."""
    for block, word in headers:
        place = form(word)
        if place is not None and place.kind < MAX_KINDS and place.bucket < len(site_of) and place.position < len(site_of[place.bucket]):
            yield block, site_of[place.bucket][place.position], 1.0


def _missing(sites: Sequence[Site], found: Sequence[tuple[int, int, float]]) -> list[str]:
    """Report whether NMT counts more blocks than were found."""
    seen = Counter(site for _, site, _ in found)
    count = sum(max(site.live.blocks - seen[number], 0) for number, site in enumerate(sites))
    return [f"the JVM's NMT counts {count:,} blocks in use more than were found"] if count else []
