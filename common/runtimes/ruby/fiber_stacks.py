"""Find the native stacks of fibers, and report fibers whose stacks take much memory.

When a fiber is first resumed, it takes a stack from a pool. It returns the stack when it ends. The
highest addresses of the stack contain the fiber's stack of Ruby values. The native frames begin
below, at `current`, and grow down.

Source: cont.c (struct fiber_pool_stack {base, current, size, available, pool, …}, which is near the
end of rb_fiber_t; fiber_pool_stack_alloca) of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.formatting import number, shorten, size
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.memory_part import Part
from findleaks.runtimes.ruby.value_stacks import ValueStack
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, region_at

NAME = "stacks of fibers"
_DATA = 32  # offset in a Fiber object of the pointer to its rb_fiber_t
_PAGE = 4096  # the alignment of stacks
_LARGEST_FIBER, _LARGEST_STACK = 2048, 1 << 30  # bytes
_MANY = 256  # least number of fibers that are reported
_LEAST = 8 << 20  # least bytes of their stacks that are reported
_TOUCHED = 2 * _PAGE  # bytes that are certainly used: the ends of the two stacks


def find_fiber_stacks(target: Target, memory: Memory, blocks: Blocks, fibers: Iterable[int]) -> list[Range]:
    """Return the native stacks of fibers, sorted. `fibers`: the addresses of Fiber objects."""
    regions = target.regions()
    found = set[Range]()
    for slot in fibers:
        block = blocks.lookup(memory.word(slot + _DATA) or 0)
        words = memory.words(block[1], min(block[2], _LARGEST_FIBER) // memory.size) if block is not None else None
        stack = next(_read_stacks(words), None) if words is not None else None
        region = region_at(regions, stack.start) if stack is not None else None
        if stack is not None and region is not None and stack.end <= region.end and region.writable and region.anonymous:
            found.add(stack)
    return sorted(found)


def _read_stacks(words: Sequence[int]) -> Iterator[Range]:
    """Yield each stack that the words of an rb_fiber_t describe. A fiber has at most one stack."""
    for at in range(len(words) - 4):
        base, current, length, available, pool = words[at : at + 5]
        is_stack = base and pool and not (base | length) % _PAGE and 0 < available <= length <= _LARGEST_STACK
        if is_stack and current == base + available:
            yield Range(base, base + length)


def build_part(stacks: Sequence[Range]) -> Optional[Part]:
    """Return the part of the runtime's memory that consists of these stacks; None if there are
    none."""
    detail = f"{number(len(stacks))} fibers"
    return Part(NAME, merge_ranges(stacks), None, False, detail) if stacks else None


def find_many_fibers(target: Target, stacks: Sequence[Range], values: Iterable[ValueStack]) -> Iterator[Finding]:
    """Yield a finding if the stacks of fibers take much memory. It names the function in which the
    most fibers are suspended. `values`: the value stacks of all threads and fibers."""
    resident = [target.resident(start, end) for start, end in stacks]
    known = None if None in resident else sum(one or 0 for one in resident)
    total = len(stacks) * _TOUCHED if known is None else known
    if len(stacks) < _MANY or (known is not None and total < _LEAST):
        return
    count = number(len(stacks))
    title = f"In use, not leaked: {count} fibers have not ended. Their stacks take {size(total)}."
    if known is None:
        mapped = size(sum(end - start for start, end in stacks))
        title = f"In use, not leaked: {count} fibers have not ended. {mapped} are mapped for their stacks, of which most may be untouched."
    places = _count_places(stacks, values)
    place, most = places.most_common(1)[0] if places else ("", 0)
    many = "All" if most == len(stacks) else f"{number(most)} of them"
    cause = f"{many} are suspended in {shorten(place, 200)}." if place else ""
    cause += f"{' ' if cause else ''}A fiber keeps its stack, and the objects of its local variables, until it ends or is collected."
    remedies = ("let each fiber end, or drop the references to the Fiber or Enumerator objects",)
    facts: dict[str, object] = {"fibers": len(stacks), "place": place or None, "fibers_in_place": most}
    yield Finding("fiber-stacks", total, title, cause, remedies, ("runtime --only ruby", "roots"), facts, known)


def _count_places(stacks: Sequence[Range], values: Iterable[ValueStack]) -> Counter[str]:
    """Return the number of fibers by function: a fiber counts for the innermost function that has a
    source line."""
    places = Counter[str]()
    for one in values:
        if region_at(stacks, one.start) is not None:
            frames = [frame for frame in one.frames if frame is not None and frame.file and frame.line]
            places[f"{frames[-1].function} ({frames[-1].file}:{frames[-1].line})" if frames else ""] += 1
    del places[""]
    return places
