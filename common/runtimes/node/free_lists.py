"""Read V8's free lists: parts of pages that were swept and not allocated again.

Sources: V8 10.2 to 13.6 (Node 18 to 24), src/heap/free-list.h, src/objects/free-space.h. A page's
header points to an array of categories: {number, bytes available (both 4 bytes), first entry}, with
entries of this page only. An entry is a FreeSpace object {map, size, next}. Addresses are tagged;
the size is a small integer in the upper half of its word. A page is used only if each category's
bytes available equal the sum of its entries' sizes."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Engine
from findleaks.errors import UnreadableMemory
from findleaks.runtimes.node.heap import CHUNK
from findleaks.runtimes.node.spaces import NEW_SPACE, NODE, Placed, Spaces
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible

CATEGORIES, FEWEST = 24, 6  # upper and lower limit of the number of categories
SAMPLE = 32  # pages whose headers are compared to find the offset of the categories
ENTRY = struct.Struct("<3Q")
TAG = 1


def free(target: Target, engine: Engine, spaces: Spaces) -> list[Range]:
    """Return free memory except the entries' own words, in no order. Raises only Interrupted."""
    ordinary = (space for space in spaces.spaces if space.isolate and space.name != NEW_SPACE)
    pages = {placed.key: placed for space in ordinary for placed in space.placed if placed.chunk.end - placed.chunk.start == CHUNK}
    if target.arch.word != 8 or not pages:
        return []
    reader = _Reader(target, engine)
    keys = sorted(pages)
    offset = reader.offset(keys[:: max(1, len(keys) // SAMPLE)])
    if offset is None:
        return []
    found: list[Range] = []
    for key, categories in interruptible(target, reader.categories(keys, offset), 64):
        found += reader.entries(pages[key], categories)
    return found


class _Reader:
    def __init__(self, target: Target, engine: Engine) -> None:
        self.target, self.engine = target, engine
        self.map = 0  # the first word of every entry

    def _words(self, addresses: Sequence[int], count: int) -> dict[int, tuple[int, ...]]:
        """Return `count` words at each of these addresses that can be read."""
        places = sorted({address for address in addresses if address > CHUNK and address % 8 == 0})
        data, missing = read_records(self.target, self.engine, places, 8 * count)
        words = self.target.arch.unpack(bytes(data))
        return {place: words[count * at : count * (at + 1)] for at, place in enumerate(places) if at not in missing}

    def offset(self, keys: Sequence[int]) -> Optional[int]:
        """Return the header's offset of the pointer to the categories, valid for most of these
        pages; None if there is none."""
        votes: Counter[int] = Counter()
        for words in self._words(keys, NODE).values():
            arrays = self._words(words, FEWEST)
            heads = self._words([entry for array in arrays.values() for entry in array], 1)
            for at, word in enumerate(words):
                its = [heads.get(entry, (-1,))[0] & 0xFFFFFFFF for entry in arrays.get(word, ())]
                if its == list(range(FEWEST)):
                    votes[8 * at] += 1
        best = votes.most_common(1)
        return best[0][0] if best and 2 * best[0][1] > len(keys) else None

    def categories(self, keys: Sequence[int], offset: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield each page with (bytes available, first entry) of its non-empty categories."""
        pointers = self._words([key + offset for key in keys], 1)
        arrays = self._words([array for (array,) in pointers.values()], CATEGORIES)
        heads = self._words([entry for array in arrays.values() for entry in array], 2)
        for key in keys:
            (array,) = pointers.get(key + offset, (0,))
            found = []
            for number, entry in enumerate(arrays.get(array, ())):
                counts, first = heads.get(entry, (0, 0))
                if counts & 0xFFFFFFFF != number:
                    break
                if counts >> 32 and first:
                    found.append((counts >> 32, first))
            if found:
                yield key, found

    def entries(self, page: Placed, categories: Sequence[tuple[int, int]]) -> list[Range]:
        """Return the memory of these entries except their own words; [] if they are
        inconsistent."""
        start, end = page.chunk
        try:
            data = self.target.read(start, end - start)
        except UnreadableMemory:
            return []
        found: list[Range] = []
        for available, entry in categories:
            while entry:
                at = entry - TAG - start
                if not 0 < at <= CHUNK - ENTRY.size or at % 8:
                    return []
                mapped, size, following = ENTRY.unpack_from(data, at)
                self.map = self.map or mapped
                size >>= 32
                available -= size
                if mapped != self.map or size < ENTRY.size or size % 8 or at + size > CHUNK or available < 0:
                    return []
                found.append(Range(start + at + ENTRY.size, start + at + size))
                entry = following
            if available:
                return []
        found.sort()
        apart = all(one.end + ENTRY.size <= two.start for one, two in zip(found, found[1:]))
        return [part for part in found if part.start < part.end] if apart else []
