"""Thread caches and transfer caches: their addresses, threads, and heads of their lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc.layout import CACHE, CACHE_LINKS, CACHE_SIZE, LIST, LIST_SIZE, MOVES, SLOTS
from findleaks.allocators.tcmalloc.locate import Place
from findleaks.allocators.tcmallocs.caches import MAX_CACHES, FreeList, ThreadHeap, linked_caches, thread_lists
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range
from findleaks.target.ranges import nonzero_pieces, range_at, subtract

TLS_BELOW, TLS_ABOVE = 16 << 10, 4 << 10
"""Bytes around a thread pointer that are searched for the pointer to the thread's cache: static TLS
below, and the value of a pthread key above."""


def is_cache(memory: Memory, sizes: Sequence[int], address: int) -> bool:
    """Return whether a ThreadCache is at `address`, that is, whether its lists have the sizes of
    their classes (FreeList::Init)."""
    numbers = (1, 2, len(sizes) - 1, *range(3, len(sizes) - 1))
    return address % WORD == 0 and all(memory.int32(address + number * LIST + LIST_SIZE) == sizes[number] for number in numbers)


def find(memory: Memory, engine: Engine, place: Place, heaps: Sequence[Range], problems: list[Problem]) -> tuple[list[ThreadHeap], str]:
    """Find the caches on the list ThreadCache::thread_heaps_, and the caches that threads point to.

    Also return the releases in which caches have their links at the offset that was found. `heaps`
    is the memory of spans."""
    chain: list[int] = []
    release = problem = ""
    for head in _candidates(memory, engine, place, heaps):
        for offset, candidate in CACHE_LINKS:
            found, why = _chain(memory, place.sizes, head, offset)
            if len(found) > len(chain):
                chain, release, problem = found, candidate, why
    if problem:
        problems.append(Problem(chain[-1], f"after {len(chain)} thread caches {problem}: blocks in the others may count as in use"))
    known = dict.fromkeys(chain)
    owners = _owners(memory, engine, place, chain, heaps)
    known.update(dict.fromkeys(owners))
    if not known:
        problems.append(Problem(place.central, "no thread cache was found: freed blocks in them count as in use"))
    return [_read(memory, place, address, owners.get(address, 0), problems) for address in known], release


def _candidates(memory: Memory, engine: Engine, place: Place, heaps: Sequence[Range]) -> list[int]:
    """Return the addresses in the image's data that look like a ThreadCache."""
    found: dict[int, None] = {}
    for start, end in subtract(place.image.data, place.variables()):
        for piece in nonzero_pieces(memory.target, start, end):
            _, values = find_pointers(engine, piece, 1 << 16, memory.target.arch.top)
            # A program may have a million pointers here.
            for number, value in enumerate(dict.fromkeys(values)):
                if number % 4096 == 0 and memory.target.is_interrupted():
                    raise Interrupted
                if value not in found and not range_at(heaps, value) and memory.int32(value + LIST + LIST_SIZE) == place.sizes[1]:
                    if is_cache(memory, place.sizes, value):
                        found[value] = None
    return list(found)


def _chain(memory: Memory, sizes: Sequence[int], head: int, links: int) -> tuple[list[int], str]:
    """Return the caches from `head` up to where links disagree, and "" or the reason why they end
    early. [] if `head` is not the head of a list."""
    chain, following = linked_caches(memory, head, links, partial(is_cache, memory, sizes))
    if following and len(chain) == 1:
        return [], ""
    if following is None:
        return chain, f"the next one after {chain[-1]:#x} cannot be read"
    if following and len(chain) == MAX_CACHES:
        return chain, "the list of them does not end"
    return chain, f"the next one in the list, {following:#x}, is not a thread cache or does not link back" if following else ""


def _owners(memory: Memory, engine: Engine, place: Place, chain: Sequence[int], heaps: Sequence[Range]) -> dict[int, int]:
    """Return {address: tid} of the thread caches that words near a thread pointer point to.

    The variable has the same distance from the thread pointer in all threads. Other memory near it,
    such as the stack below, may have stale pointers to caches of other threads. Therefore the
    distance that most threads have in common is tried first."""
    known = set(chain)
    named: list[tuple[int, int, int]] = []  # distance from the thread pointer, cache, thread
    low, high = (min(chain) - NEAR, max(chain) + NEAR) if chain else (1 << 16, memory.target.arch.top)
    seen: set[int] = set()
    for thread in memory.target.threads():
        pointer = thread.thread_pointer
        if not pointer or pointer in seen:
            continue
        seen.add(pointer)
        for piece in memory.target.pieces(max(pointer - TLS_BELOW, WORD) & -WORD, pointer + TLS_ABOVE):
            for address, value in zip(*find_pointers(engine, piece, low, high)):
                if value in known or (not range_at(heaps, value) and is_cache(memory, place.sizes, value)):
                    known.add(value)
                    named.append((address - pointer, value, thread.tid))
    threads = Counter(distance for distance, _, _ in named)
    found = {cache: 0 for _, cache, _ in named}
    served: set[int] = set()
    for _, cache, tid in sorted(named, key=lambda one: -threads[one[0]]):
        if not found[cache] and tid not in served:
            found[cache] = tid
            served.add(tid)
    return found


NEAR = 64 << 20  # distance in bytes from the listed caches within which unlisted ones are expected


def _read(memory: Memory, place: Place, address: int, tid: int, problems: list[Problem]) -> ThreadHeap:
    """Read the thread cache at `address`."""
    heap = ThreadHeap(address, tid)
    words = memory.words(address, CACHE // WORD)
    if words is None:
        problems.append(Problem(address, f"thread cache at {address:#x} cannot be read: blocks in it count as in use"))
        return heap
    heap.size = words[CACHE_SIZE // WORD] & 0xFFFFFFFF
    heap.lists = thread_lists(words, place.sizes, LIST // WORD, address)
    return heap


def transfers(memory: Memory, place: Place, problems: list[Problem]) -> Iterator[FreeList]:
    """Yield the chains in the transfer caches (central_freelist.h, tc_slots_). Each chain has as
    many blocks as tcmalloc moves at a time."""
    layout = place.layout
    for number in range(1, len(place.sizes)) if layout.slots else ():
        central = place.of_class(number)
        used = memory.int32(central + layout.used_slots)
        moved = memory.int32(place.table + MOVES + 4 * number)
        if used is None or moved is None or used > layout.slots:
            what = f"the transfer cache of size {place.sizes[number]} counts {used} chains, more than its slots"
            problems.append(Problem(central + layout.used_slots, what))
            used = min(used or 0, layout.slots)
        for slot in range(used):
            at = central + SLOTS + 2 * WORD * slot
            yield FreeList(number, memory.word(at) or 0, moved or 0, slot, at)
