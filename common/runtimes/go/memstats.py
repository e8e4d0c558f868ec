"""Read the counters of runtime.MemStats without symbols.

runtime.memstats.heapStats has three generations of counters, and the sums over them are the figures
of MemStats. The counters are recognised by their values: the bytes in use equal those of the spans
of objects, and the bytes of stacks and of the collector equal those of the other spans in use.

Sources: Go 1.18 to 1.26, src/runtime/mstats.go (heapStatsDelta, consistentHeapStats, mstats,
readmemstats_m) and mgcpacer.go (gcControllerState; piController in 1.18). heapStatsDelta has
inPtrScalarBits up to 1.24 or 1.25. mstats begins with heapStats since 1.19; in 1.18 they follow
5,960 bytes of other figures."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from itertools import count as count_from
from operator import add
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.base import Count
from findleaks.target.base import Range
from findleaks.target.encoded_numbers import decode_signed
from findleaks.value_classes import NamedTuple

PAGE = 8 << 10
_CLASSES = 68  # _NumSizeClasses
_GENERATIONS = 3
# Words of a heapStatsDelta before the counts of allocations: with and without inPtrScalarBits.
_BEFORE = (6, 5)
_COMMITTED, _RELEASED, _IN_HEAP, _STACKS = range(4)
_TINY, _LARGE, _LARGE_COUNT, _SMALL = 0, 1, 2, 3  # words after these
_TOLERANCE = 1 << 20  # bytes by which a running program's counters may differ from its spans
_LIMIT = 1 << 47
_MAX_DATA = 64 << 20  # bytes of variables that are searched
_YEARS = range(1_200_000_000 * 10**9, 4_000_000_000 * 10**9)  # plausible last_gc_unix
_NO_LIMIT = (1 << 63) - 1  # GOMEMLIMIT=off

# stacks_sys is _SYS_AT words after heapStats, followed by these (names of MemStats, but StacksSys
# is only the part of system threads); pause_ns and pause_end have 256 words each.
_SYS = ("StacksSys", "MSpanSys", "MCacheSys", "BuckHashSys", "GCSys", "OtherSys", "LastGC", "PauseTotalNs")
_SYS_AT, _PAUSES = 2, 512
# 1.18: bytes from the start of mstats to heapStats, and the words of the same figures.
_OLD_START = 5960
_OLD = {"StacksSys": 11, "MSpanSys": 13, "MCacheSys": 15, "BuckHashSys": 16, "GCSys": 19, "OtherSys": 20, "LastGC": 21, "PauseTotalNs": 22}
_OLD_COUNTS = 535
# 1.18: the constants of a piController (kp, ti, tt, min, max), and the words of gcController that
# precede them.
_CONTROLLER, _OLD_PERCENT = (0.9, 4.0, 1000.0, -1000.0, 1000.0), 5


class MemStats(NamedTuple):
    """The counters, by their names in runtime.MemStats.

    `percent` is GOGC (-1: off), `limit` is GOMEMLIMIT in bytes (0: off); None if unknown. Go 1.18
    has no GOMEMLIMIT."""

    counters: dict[str, Count]
    percent: Optional[int] = None
    limit: Optional[int] = None

    @property
    def has_limit(self) -> bool:
        """Whether this version of Go may have GOMEMLIMIT."""
        return self.percent is None or self.limit is not None

    def value(self, name: str) -> int:
        """Return a counter; 0 if it is unknown."""
        return self.counters[name].value if name in self.counters else 0


def mem_stats(memory: Memory, data: Sequence[Range], objects: int, manual: int, old: bool) -> Optional[MemStats]:
    """Return the counters in these variables; None if they are not found.

    `objects`, `manual`: bytes of the spans in use that contain objects, and of all other spans in
    use. `old`: whether the variables have the layout of Go 1.18."""
    best: Optional[tuple[bool, int, dict[str, Count]]] = None
    variables = list(_variables(memory, data))
    for start, words in variables:
        for before in _BEFORE:
            for at, off in _candidates(words, before, objects, manual):
                stride = _stride(before)
                sums = [_sum(words, at + i, stride) for i in range(stride)]
                # If two generations are zeros, the sums are the same one stride before.
                system = dict(_system(memory, start + 8 * at, before, sums, old))
                if best is None or (not system, off) < best[:2]:
                    best = not system, off, {**_heap(sums, before), **system}
    if best is None:
        return None
    return MemStats(best[2], _find_old_percent(variables)) if old else _pacer(variables, best[2])


def _stride(before: int) -> int:
    return before + _SMALL + _CLASSES + 2 + _CLASSES


def _sum(words: Sequence[int], at: int, stride: int) -> int:
    """Return the sum of a counter over all generations. `at` is its index in the first one."""
    return decode_signed(sum(words[at + stride * g] for g in range(_GENERATIONS)) & (1 << 64) - 1, 64)


def _variables(memory: Memory, data: Sequence[Range]) -> Iterator[tuple[int, array[int]]]:
    for start, end in data:
        words = array("Q")
        content = memory.read(start, min(end - start, _MAX_DATA)) if end > start else b""
        words.frombytes(content[: len(content) // 8 * 8])
        if sys.byteorder != memory.arch.byteorder:
            words.byteswap()
        yield start, words


def _candidates(words: Sequence[int], before: int, objects: int, manual: int) -> Iterator[tuple[int, int]]:
    """Yield the indices at which heapStats may begin, and the number of bytes by which the counters
    there differ."""
    stride, mask = _stride(before), (1 << 64) - 1
    low, high = max(objects - _TOLERANCE, 1), objects + _TOLERANCE
    count = max(len(words) - _GENERATIONS * stride, 0)
    first, second, third = (words[_IN_HEAP + stride * g : _IN_HEAP + stride * g + count] for g in range(_GENERATIONS))
    heaps = list(map(add, map(add, first, second), third))
    # Most variables are zero.
    for at, heap in zip(compress(count_from(0), heaps), map(mask.__and__, filter(None, heaps))):
        if not low <= heap <= high or heap % PAGE:
            continue
        off = abs(heap - objects)
        sums = [_sum(words, at + i, stride) for i in range(before)]
        rest = sum(sums[_STACKS:])
        sound = all(0 <= one < _LIMIT and one % 4096 == 0 for one in sums) and sums[_COMMITTED] >= heap + rest
        if sound and rest and abs(rest - manual) <= _TOLERANCE:
            yield at, off + abs(rest - manual)


def _heap(sums: Sequence[int], before: int) -> dict[str, Count]:
    """Return the figures of the heap; see readmemstats_m."""
    inside, released, stacks = sums[_IN_HEAP], sums[_RELEASED], sums[_STACKS]
    idle = sums[_COMMITTED] - inside - sum(sums[_STACKS:before]) + released
    made = sums[before:]
    frees = _SMALL + _CLASSES
    small, freed = made[_SMALL:frees], made[frees + 2 :]
    allocated, released_objects = sum(small) + made[_LARGE_COUNT], sum(freed) + made[frees + 1]
    return {
        "HeapSys": Count(inside + idle, "bytes"),
        "HeapInuse": Count(inside, "bytes"),
        "HeapIdle": Count(idle, "bytes"),
        "HeapReleased": Count(released, "bytes"),
        "StackInuse": Count(stacks, "bytes"),
        "Mallocs": Count(allocated + made[_TINY]),
        "Frees": Count(released_objects + made[_TINY]),
    }


def _system(memory: Memory, address: int, before: int, sums: Sequence[int], old: bool) -> Iterator[tuple[str, Count]]:
    """Yield the figures of memory outside the heap and of the collector."""
    if old:
        words = memory.words(address - _OLD_START, _OLD_COUNTS + 1)
        values = {name: words[at] for name, at in _OLD.items()} if words is not None else {}
    else:
        words = memory.words(address + 8 * _GENERATIONS * _stride(before) + 8 * _SYS_AT, len(_SYS) + _PAUSES + 1)
        values = dict(zip(_SYS, words)) if words is not None else {}
    if words is None or not _is_sound(values):
        return
    counts = words[-1]
    values["GCSys"] += sum(sums[_STACKS + 1 : before])
    for name, value in values.items():
        if name != "LastGC":
            yield name, Count(value, "bytes" if name.endswith("Sys") else "")
    yield "NumGC", Count(counts & 0xFFFFFFFF)
    yield "NumForcedGC", Count(counts >> 32)


def _is_sound(values: Mapping[str, int]) -> bool:
    """Whether these may be the system's figures: each must be an amount of memory, and the time of
    the last collection must be 0 or a date."""
    last, amounts = values.get("LastGC", 1), [value for name, value in values.items() if name.endswith("Sys")]
    if (last and last not in _YEARS) or any(value >= _LIMIT for value in amounts):
        return False
    return values.get("MSpanSys", 0) > 0 < values.get("MCacheSys", 0)


def _pacer(variables: Sequence[tuple[int, array[int]]], counters: dict[str, Count]) -> MemStats:
    """Add the figures of gcController: GOGC, GOMEMLIMIT and the goal of the next collection.

    gcController is recognised by three of its words that heapStats has, too. Before them,
    heapMinimum is 4 MiB times GOGC / 100."""
    inside, released = counters["HeapInuse"].value, counters["HeapReleased"].value
    wanted = (inside, released, counters["HeapIdle"].value - released)
    pattern = array("Q", (value & (1 << 64) - 1 for value in wanted)).tobytes()
    for _, words in variables:
        places = (match.start() for match in re.finditer(re.escape(pattern), words.tobytes()))
        for at in (place // 8 for place in places if place % 8 == 0 and place // 8 + 4 < len(words)):
            counters["TotalAlloc"] = Count(words[at + 3], "bytes")
            counters["HeapAlloc"] = Count(max(words[at + 3] - words[at + 4], 0), "bytes")
            found = [(words[start], words[start + 1]) for start in range(at - 10, max(at - 80, -1), -1) if _is_goal(words, start)]
            # Many words that are not GOGC look like GOGC=0. Therefore 0 is used only if no other
            # value is found.
            chosen = next((pair for pair in found if pair[0] & 0xFFFFFFFF), found[0] if found else None)
            if chosen is not None:
                return MemStats(counters, decode_signed(chosen[0] & 0xFFFFFFFF, 32), 0 if chosen[1] == _NO_LIMIT else chosen[1])
    return MemStats(counters)


def _is_goal(words: Sequence[int], at: int) -> bool:
    """Return whether the three words from index `at` look like GOGC, GOMEMLIMIT, heapMinimum."""
    return _is_percent(words[at], words[at + 2]) and 0 < words[at + 1] <= _NO_LIMIT


def _is_percent(word: int, minimum: int) -> bool:
    """Return whether a word may be GOGC, and another one heapMinimum. If GOGC is off, it is -1, and
    the multiplication wraps (setGCPercent)."""
    percent = decode_signed(word & 0xFFFFFFFF, 32)
    is_percent = percent == -1 or (word >> 32 == 0 and 0 <= percent < 1 << 20)
    return is_percent and minimum == ((4 << 20) * percent & (1 << 64) - 1) // 100


def _find_old_percent(variables: Sequence[tuple[int, array[int]]]) -> Optional[int]:
    """Return GOGC of Go 1.18; None if it is not found. gcController begins with GOGC and
    heapMinimum, and contains the constants of its consMarkController."""
    pattern = array("d", _CONTROLLER).tobytes()
    for _, words in variables:
        for match in re.finditer(re.escape(pattern), words.tobytes()):
            at = match.start() // 8 - _OLD_PERCENT
            if match.start() % 8 == 0 and at >= 0 and _is_percent(words[at], words[at + 1]):
                return decode_signed(words[at] & 0xFFFFFFFF, 32)
    return None
