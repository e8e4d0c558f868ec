"""Find memory of values, objects and frames that a PHP program has released. Such memory still
contains addresses."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.php.engine import VALUE
from findleaks.runtimes.php.frames import FRAME, Frame, FrameReader
from findleaks.runtimes.php.internal import InternalObjects
from findleaks.runtimes.php.objects import OBJECT, Objects, properties_bytes
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible

MOST_WORDS = 1 << 17


class Released:
    """Memory that the program has released. `runs` are values of which some may be released (see
    engine.find_stale), and `unused` is released as a whole."""

    def __init__(self, memory: Memory, blocks: Blocks, objects: Objects, version: str) -> None:
        self.runs, self.unused = array("Q"), list[Range]()
        self._memory, self._blocks, self._objects = memory, blocks, objects
        self._version, self._reader = version, FrameReader(memory, version)
        self._has_many_words = False

    @property
    def is_full(self) -> bool:
        """Whether some frames, weak references or file names were not read."""
        return self._reader.left < 0 or self._has_many_words

    def add_objects(self) -> None:
        """Add the properties of objects."""
        counts = [properties_bytes(self._memory, entry) // VALUE for entry in self._objects.classes]
        append = self.runs.append
        for address, number, length in zip(self._objects.addresses, self._objects.numbers, self._objects.lengths):
            count = min(counts[number], (length - OBJECT) // VALUE)
            if count > 0:
                append(address + OBJECT)
                append(count)
                append(VALUE)

    def add_internal(self, internal: InternalObjects, tables: Iterable[int]) -> None:
        """Add the values of collections, weak references, names of files, and the frames of
        generators and fibers. `tables` are addresses of possible tables of the engine."""
        for one in interruptible(self._memory.target, internal.collections()):
            self.runs.extend((one.first, one.places, one.stride))
            size = self._blocks.size(self._blocks.find(one.storage))
            used = one.first + one.places * one.stride
            if used < one.storage + size:
                self.unused.append(Range(used, one.storage + size))
        for words in (internal.weak_words(tables), internal.file_names(), internal.unused_ends(self._version)):
            found = list(islice(words, MOST_WORDS + 1))
            self._has_many_words |= len(found) > MOST_WORDS
            self.unused += found[:MOST_WORDS]
        for frame, block in interruptible(self._memory.target, internal.frames()):
            self._add(self._reader.read(frame), block)
        for start, page, ends in internal.stacks():
            end = self.add_stack(start, [page])
            if end is not None:
                self.unused += (Range(end, page.end), *ends)

    def add_stack(self, start: int, pages: Sequence[Range]) -> Optional[int]:
        """Add the frames of a stack, from the innermost one outwards. Return the end of the
        innermost frame; None if it cannot be read."""
        end: Optional[int] = None
        for frame, page in interruptible(self._memory.target, self._reader.chain(start, pages)):
            end = end or frame.end
            self._add(frame, page)
        return end

    def _add(self, frame: Optional[Frame], limit: Range) -> None:
        """Add a frame, if all of it is within `limit`."""
        if frame is not None and frame.end <= limit.end:
            if frame.variables:
                self.runs.extend((frame.start + FRAME, frame.variables, VALUE))
            self.unused.extend(frame.unused)
