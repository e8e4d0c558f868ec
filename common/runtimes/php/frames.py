"""Find stale words in frames of PHP functions.

A frame (zend_execute_data, 80 bytes) is followed by the variables of the function, and these by its
temporary values. Each of them has 16 bytes. A temporary value remains in memory after its use. PHP
lists the instructions between which a temporary value is alive (zend_live_range), because it must
free live values after an exception. A value that is used only by the next instruction is not in
this list.

Sources: Zend/zend_compile.h (zend_execute_data, zend_op_array, zend_op, zend_live_range) and
zend_execute.c (cleanup_live_vars) of PHP 8.1 to 8.4, 64-bit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.php.engine import VALUE
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

FRAME, INSTRUCTION, LIVE_RANGE = 80, 32, 12  # bytes
INTERNAL = 1  # type of a function that is written in C
HAS_SYMBOL_TABLE, HAS_NAMED_ARGUMENTS = 1 << 20, 1 << 27  # flags of a frame (ZEND_CALL_INFO)
LIVE_KIND = 7  # bits of `var` that are the kind of a live range
TEMPORARY = 2, 4  # types of an operand: IS_TMP_VAR, IS_VAR
MOST_READ = 1 << 20
MOST_VARIABLES, MOST_INSTRUCTIONS, MOST_LIVE_RANGES = 1 << 14, 1 << 20, 1 << 14


class Places(NamedTuple):
    """Offsets of members of a zend_op_array."""

    variables: int  # last_var
    temporaries: int  # T
    instructions: int  # opcodes
    live_ranges: int  # last_live_range; the address of the live ranges is stored 8 bytes after it


PLACES = {"8.1": Places(60, 64, 72, 120), "8.2": Places(76, 56, 88, 128), "8.3": Places(72, 64, 80, 120), "8.4": Places(92, 72, 104, 144)}


class Frame(NamedTuple):
    """A frame. `end` is the address after its values, `previous` is the address of the calling
    frame, `variables` is the number of variables, and `unused` are the words that are stale."""

    start: int
    end: int
    previous: int
    variables: int
    unused: list[Range]


class FrameReader:
    """Reads frames of a PHP of one version, such as "8.2.1". `left` is the number of frames, values
    and live ranges that may still be read; it is negative if some frames were not read."""

    def __init__(self, memory: Memory, version: str) -> None:
        self._memory, self.left = memory, MOST_READ
        self._places = PLACES.get(".".join(version.split(".")[:2])) if memory.size == 8 else None

    def chain(self, start: int, pages: Sequence[Range]) -> Iterator[tuple[Frame, Range]]:
        """Yield frames with their pages, from the innermost one outwards, as long as they are in
        one of `pages`. The chain of a damaged stack can be long; see `left`."""
        ordered = sorted(pages)
        starts = [page.start for page in ordered]
        while True:
            page = ordered[bisect_right(starts, start) - 1]
            frame = self.read(start) if page.start <= start < page.end else None
            if frame is None:
                return
            yield frame, page
            start = frame.previous

    def read(self, start: int) -> Optional[Frame]:
        """Return the frame at an address; None if there is none, or if the layout of this PHP
        version is unknown."""
        memory = self._memory
        words = memory.words(start, FRAME // 8) if start and start % 8 == 0 else None
        self.left -= 1
        if words is None or self._places is None or not words[3] or self.left < 0:
            return None
        flags, arguments = memory.halves(words[5])
        flagged = ((7, HAS_SYMBOL_TABLE), (9, HAS_NAMED_ARGUMENTS))
        unused = [Range(start + 8 * word, start + 8 * word + 8) for word, flag in flagged if not flags & flag]
        if (memory.word(words[3]) or 0) & 0xFF == INTERNAL:
            return Frame(start, start + FRAME + VALUE * min(arguments, MOST_VARIABLES), words[6], 0, unused)
        function = words[3]
        counts = [memory.int32(function + place) for place in self._places[:2]]
        code, first = words[0], memory.word(function + self._places.instructions)
        variables, temporaries = (count if count is not None else -1 for count in counts)
        if not (0 <= variables <= MOST_VARIABLES and 0 <= temporaries <= MOST_VARIABLES) or not first or not code:
            return None
        number, rest = divmod(code - first, INSTRUCTION)
        if rest or not 0 <= number < MOST_INSTRUCTIONS:
            return None
        values = start + FRAME + VALUE * variables
        self.left -= temporaries
        alive = self._alive(function, number, code)
        if alive is not None:
            for place in range(values, values + VALUE * temporaries, VALUE):
                if place - start in alive:
                    continue
                if unused[-1:] and unused[-1].end == place:
                    unused[-1] = Range(unused[-1].start, place + VALUE)
                else:
                    unused.append(Range(place, place + VALUE))
        extra = max(0, arguments - (memory.int32(function + 32) or 0))
        return Frame(start, values + VALUE * (temporaries + min(extra, MOST_VARIABLES)), words[6], variables, unused)

    def _alive(self, function: int, number: int, code: int) -> Optional[set[int]]:
        """Return the offsets of the temporary values that are alive while instruction `number`, at
        the address `code`, is executed; None if they are unknown. An instruction can have more
        operands in the next instruction, so operands of both count as alive."""
        memory, at = self._memory, function + (self._places or PLACES["8.1"]).live_ranges
        count, table = memory.int32(at), memory.word(at + 8)
        data = memory.read(code, 2 * INSTRUCTION)
        if not data or count is None or table is None or not 0 <= count <= MOST_LIVE_RANGES:
            return None
        alive = set()
        for start in (0, INSTRUCTION):
            for operand, kind in ((8, 29), (12, 30)):
                if data[start + kind] in TEMPORARY:
                    alive.add(int.from_bytes(data[start + operand : start + operand + 4], memory.arch.byteorder))
        self.left -= count
        listed = memory.members(table, "III" * count) if count else ()
        if listed is None:
            return None
        for var, first, last in zip(listed[::3], listed[1::3], listed[2::3]):
            if first <= number <= last:
                alive.add(var & ~LIVE_KIND)
        return alive
