"""Find fake stacks. A fake stack is a mapping with the variables of functions that would otherwise
be on the thread's stack.

They detect uses of a variable after its function returned (detect_stack_use_after_return; clang's
default since 15). No code reads a frame that has returned, so only frames in use are roots.

Source: asan/asan_fake_stack.h of LLVM 12 to 19 (FakeStack). A fake stack has three parts: a page
with the positions of eleven size classes and the logarithm of their bytes; a byte for each frame,
which is 1 while the frame is in use; and the frames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range
from findleaks.target.ranges import nonzero_pieces

PAGE = 4096
SIZES = 11  # classes of frames, of 2^6 to 2^16 bytes
LEAST_FRAME = 6  # base-2 logarithm
SMALLEST, LARGEST = 16, 24
"""Base-2 logarithms of the smallest and largest class in bytes (kMinStackSizeLog,
kMaxStackSizeLog)."""
BITS = 8 * SIZES  # offset of the logarithm, which needs_gc_ follows

_UNUSED = re.compile(rb"\0+")


def dead_frames(memory: Memory, engine: Engine, ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield the parts of fake stacks that belong to no frame in use. `ranges` is the anonymous
    memory that is searched. Raises Interrupted."""
    for start, end in ranges:
        reached = start
        for piece in nonzero_pieces(memory.target, start, end):
            if memory.target.is_interrupted():
                raise Interrupted
            for address in engine.search(piece, SMALLEST, LARGEST + 1):
                base = address - BITS
                if base % PAGE == 0 and base >= reached:
                    parts = _find_unused(memory, base, end)
                    yield from parts
                    reached = max(reached, parts[-1].end if parts else base)


def _find_unused(memory: Memory, base: int, end: int) -> Sequence[Range]:
    """Return the unused parts of the fake stack at `base`; [] if no fake stack is there."""
    words = memory.words(base, SIZES + 2)
    if words is None or words[-1] & 0xFF > 1:
        return []
    bits = words[SIZES]
    flags = base + PAGE
    frames = flags + (1 << bits + 1 - LEAST_FRAME)
    if frames + (SIZES << bits) > end:
        return []
    data = memory.read(flags, frames - flags)
    if not data or data.strip(b"\0\1"):
        return []
    found = [Range(base, frames)]
    for number in range(SIZES):
        size = LEAST_FRAME + number
        start, count = frames + (number << bits), 1 << bits - size
        first = _first_flag(bits, number)
        for match in _UNUSED.finditer(data, first, first + count):
            found.append(Range(start + (match.start() - first << size), start + (match.end() - first << size)))
    return found


def _first_flag(bits: int, number: int) -> int:
    """Return the offset of a class's flags. Half of all flags belong to the first class, a quarter
    to the second …"""
    return (1 << bits + 1 - LEAST_FRAME) - (1 << bits + 1 - LEAST_FRAME - number)
