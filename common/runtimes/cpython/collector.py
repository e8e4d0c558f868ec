"""Read the garbage collector's generations: counts, thresholds, statistics.

Source: Include/internal/pycore_gc.h (struct _gc_runtime_state) of CPython 3.9 to 3.14. The
structure has three generations, each with the head of a ring of objects, a threshold and a count.
Then follow: up to 3.13 a pointer to the first generation; a permanent generation, whose ring is
usually empty; and three sets of statistics. The structure is part of the interpreter's state, which
is in the file's data, or up to 3.10 in a block. `enabled` is the first of three 32-bit numbers
before the generations (with `debug` and padding between). In Debian's 3.13 the generations are four
bytes off their alignment, unlike all other fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Optional

from findleaks.allocators.directory import Directory
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range, Target
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.ranges import nonzero_pieces

GENERATIONS = 3
GENERATION = 3  # words: next, previous; threshold and count, 32 bits each

STATISTICS = ("collections", "collected", "uncollectable")
MAX_THRESHOLD = 1 << 30  # upper limit of a plausible threshold or count


COLLECTING = "collecting"
# Flag in the link back of an object, which is set while a collection counts references to the
# object.
IN_COLLECTION = 2


ENABLED = "automatic collection enabled"
BEFORE_GENERATIONS = 12  # bytes from `enabled` (gc.disable() clears it) to the first generation


def counters(target: Target, engine: Engine, image: Image, directory: Directory, heads: Iterable[int]) -> Mapping[str, int]:
    """Return counters named as in gc.get_count(), get_threshold() and get_stats(); {} if they are
    not found.

    COLLECTING is 1 during a collection, and ENABLED is 0 after gc.disable(). `heads`: addresses of
    heads of rings with objects. After gc.freeze(), the permanent generation's head is among
    them."""
    memory = Memory(target)
    for permanent in chain(_empty_rings(target, engine, image, directory), heads):
        first = _generations(memory, permanent)
        if first is not None:
            return _read(memory, first, permanent)
    return {}


def _empty_rings(target: Target, engine: Engine, image: Image, directory: Directory) -> Iterator[int]:
    """Yield addresses of two words that point to themselves: first those in the file's data, then
    those in the heaps of other allocators."""
    heaps = [Range(owned.start, owned.end) for owned in directory.heaps if owned.allocator.name != "pymalloc"]
    for start, end in [*image.data, *heaps]:
        for piece in nonzero_pieces(target, start, end):
            if target.is_interrupted():
                raise Interrupted
            yield from engine.self_pointers(piece, target.arch.word)


def _generations(memory: Memory, permanent: int) -> Optional[int]:
    """Return the address of the first generation if the permanent generation is at `permanent`;
    else None."""
    size = memory.size
    behind = permanent - GENERATIONS * GENERATION * size
    stored = memory.word(permanent - size)
    # 3.14 has no pointer to the first generation.
    pointed = stored if stored in (behind - size, behind - size - size // 2) else behind
    words = memory.words(pointed, GENERATIONS * GENERATION)
    if words is None:
        return None
    low, high = (0, 32) if memory.arch.byteorder == "little" else (32, 0)
    for number in range(GENERATIONS):
        at = pointed + number * GENERATION * size
        following, before, numbers = words[number * GENERATION : (number + 1) * GENERATION]
        threshold, count = (decode_signed(numbers >> shift & 0xFFFFFFFF, 32) for shift in (low, high))
        if not 0 <= threshold < MAX_THRESHOLD or abs(count) >= MAX_THRESHOLD:
            return None
        after = memory.word((following & -4) + size)
        ahead = memory.word(before & -4)
        if after is None or ahead is None or (after & -4 != at and not after & IN_COLLECTION) or ahead & -4 != at:
            return None
    filled = (words[number * GENERATION] & -4 != pointed + number * GENERATION * size for number in range(GENERATIONS))
    return pointed if any(filled) else None


def _read(memory: Memory, first: int, permanent: int) -> Mapping[str, int]:
    found: dict[str, int] = {}
    size = memory.size
    for number in range(GENERATIONS):
        place = first + (number * GENERATION + 2) * size
        for name, at in (("threshold", place), ("count", place + 4)):
            value = memory.int32(at)
            if value is not None:
                found[f"generation {number} {name}"] = decode_signed(value, 32)
    stored = memory.words(permanent + GENERATION * size, GENERATIONS * len(STATISTICS))
    for at, value in enumerate(stored or ()):
        number, which = divmod(at, len(STATISTICS))
        found[f"generation {number} {STATISTICS[which]}"] = value
    collecting = memory.int32(permanent + (GENERATION + GENERATIONS * len(STATISTICS)) * size)
    if collecting in (0, 1):
        found[COLLECTING] = collecting
    enabled = memory.int32(first - BEFORE_GENERATIONS)
    if enabled in (0, 1):
        found[ENABLED] = enabled
    return found
