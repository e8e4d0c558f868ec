"""Find thread pointers in memory, if neither the debugger (LLDB before 17, old stubs) nor the core
(32-bit ARM kernels write no note of it) reports them.

On x86 a thread pointer is the address of glibc's tcbhead_t (sysdeps/x86_64/nptl/tls.h and
sysdeps/i386/nptl/tls.h, 2.31 to 2.43), whose first word (tcb) and third word (self) point to
itself; the second is the DTV. struct pthread (nptl/descr.h) begins there, and contains the kernel's
thread id as an int. It lies at the upper end of a thread's stack. ld.so puts the struct pthread of
the main thread into a small separate mapping; a static program puts it at the beginning of its
heap.

On architectures with thread-local variables above the thread pointer, struct pthread is below it,
and no word points to itself. On these architectures the thread id is found first: in struct
pthread, it follows the links of a ring of threads. Then the thread pointer is found by its DTV,
because its distance from the thread id is the same in every thread."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Region, Target, Thread
from findleaks.target.elf import occurrences
from findleaks.target.ranges import nonzero_pieces, region_at
from findleaks.target.words import word_at

_MOST_OF_STACK = 16 << 20  # most bytes searched in the used part of one stack
_MOST_OF_STACKS = 256 << 20  # most bytes searched in all stacks
_MOST_OF_REGION = 1 << 20  # most bytes searched in one region
_MOST = 64 << 20  # most bytes searched in all regions
_MOST_SEARCHED = 1 << 30  # most bytes searched in all regions, summed over threads
_MOST_VOTERS = 256  # most threads whose distances are compared
_MOST_PLACES = 1 << 12  # most occurrences of a number that are tried in one piece of memory
_TID_WITHIN = 0x400  # maximum distance in bytes from the thread pointer to the thread id


def add_thread_pointers(target: Target, threads: Sequence[Thread]) -> list[Thread]:
    """Return the threads. If a thread has no thread pointer, the thread pointer that is found in
    memory is set, and added to the thread's words."""
    if target.arch.variables_above:
        found = _below_variables(target, [thread for thread in threads if not thread.thread_pointer])
        return [thread if thread.thread_pointer else _with_pointer(target, thread, found.get(thread.tid, 0)) for thread in threads]
    found = {thread.tid: thread.thread_pointer for thread in threads if thread.thread_pointer}
    if len(found) == len(threads):
        return list(threads)
    taken = set(found.values())
    for thread, start, end in _used_stacks(target, [thread for thread in threads if thread.tid not in found]):
        own = next(_blocks_between(target, start, end), 0)
        if own and own not in taken:
            found[thread.tid] = own
            taken.add(own)
    missing = {thread.tid for thread in threads} - set(found)
    if missing:
        others = []
        for candidate in _blocks_anywhere(target):
            if candidate not in taken:
                others.append(candidate)
                tids = _ints_of_block(target, candidate) & missing
                if len(tids) == 1:
                    tid = tids.pop()
                    found[tid] = candidate
                    missing.discard(tid)
            if not missing:
                break
        # In another pid namespace the ids differ. If only one block and one thread are left, they
        # belong together.
        if len(missing) == len(others) == 1:
            found[missing.pop()] = others[0]
    return [thread if thread.thread_pointer else _with_pointer(target, thread, found.get(thread.tid, 0)) for thread in threads]


def _with_pointer(target: Target, thread: Thread, pointer: int) -> Thread:
    if not pointer:
        return thread
    name = target.arch.thread_pointer
    registers = {**thread.registers, name: pointer} if name else thread.registers
    return thread._replace(registers=registers, thread_pointer=pointer, words=(*thread.words, pointer))


def _used_stacks(target: Target, threads: Iterable[Thread]) -> Iterator[tuple[Thread, int, int]]:
    """Yield the stack of each thread, from its stack pointer upward, up to a maximum total size."""
    regions, left = target.regions(), _MOST_OF_STACKS
    for thread in threads:
        region = region_at(regions, thread.sp)
        if region is not None and region.writable:
            size = min(region.end - thread.sp, _MOST_OF_STACK, left)
            left -= size
            yield thread, thread.sp, thread.sp + size


def _anonymous(target: Target) -> list[Region]:
    """Return regions of anonymous memory, small ones first."""
    regions = [region for region in target.regions() if region.writable and not region.name.startswith("/")]
    return sorted(regions, key=lambda region: (region.end - region.start, region.start))


def _blocks_anywhere(target: Target) -> Iterator[int]:
    """Yield thread control blocks in anonymous memory."""
    left = _MOST
    for region in _anonymous(target):
        size = min(region.end - region.start, _MOST_OF_REGION, left)
        yield from _blocks_between(target, region.start, region.start + size)
        left -= size
        if left <= 0:
            return


def _blocks_between(target: Target, start: int, end: int) -> Iterator[int]:
    word = target.arch.word
    for piece in nonzero_pieces(target, start & -word, end):
        first = piece.address + -piece.address % word
        for index, value in enumerate(target.arch.unpack(bytes(piece.data[first - piece.address :]))):
            if value == first + index * word and _is_block(target, value):
                yield value


def _is_block(target: Target, address: int) -> bool:
    """Return whether a word that points to itself is the first word of a thread control block."""
    word = target.arch.word
    try:
        dtv, own = target.word(address + word), target.word(address + 2 * word)
    except UnreadableMemory:
        return False
    return own == address and dtv not in (0, address) and dtv % word == 0


def _ints_of_block(target: Target, address: int) -> set[int]:
    """Return all ints of a thread control block and of the bytes after it, including the thread's
    id."""
    try:
        data = target.read(address, _TID_WITHIN)
    except UnreadableMemory:
        return set()
    order = "<" if target.arch.byteorder == "little" else ">"
    return set(struct.unpack(f"{order}{_TID_WITHIN // 4}I", data))


# -- thread-local variables above the thread pointer

_STRUCT = 4096  # most bytes between a thread's id and its thread pointer
_MODULES = 1 << 16  # most modules of a DTV
_NEAR = 1 << 20  # most bytes of variables above a thread pointer


def _below_variables(target: Target, threads: Sequence[Thread]) -> dict[int, int]:
    """Return thread pointers by thread id, if variables are above the thread pointer."""
    places: dict[int, int] = {}
    for thread, start, end in _used_stacks(target, threads):
        places.update(_ids(target, start, end, {thread.tid}))
    missing = {thread.tid for thread in threads} - set(places)
    left = _MOST_SEARCHED
    for region in _anonymous(target):
        size = min(region.end - region.start, _MOST_OF_REGION, left // max(1, len(missing)))
        left -= size * len(missing)
        if missing and size:
            places.update(_ids(target, region.start, region.start + size, missing))
            missing -= set(places)
    votes: Counter[int] = Counter()
    for place in list(places.values())[:_MOST_VOTERS]:
        votes.update({distance: _vector_at(target, place + distance) for distance in range(0, _STRUCT, target.arch.word)})
    # If several distances are equally likely, prefer an aligned thread pointer: other structures
    # below it also contain pointers.
    some, aligned = next(iter(places.values()), 0), 2 * target.arch.word
    best = max(votes, key=lambda distance: (votes[distance], (some + distance) % aligned == 0, -distance), default=0)
    return {tid: place + best for tid, place in places.items()} if votes[best] else {}


def _ids(target: Target, start: int, end: int, tids: set[int]) -> dict[int, int]:
    """Return the addresses of thread ids in struct pthread. They follow the links of glibc's ring
    of threads (nptl/descr.h, `list`), or musl's pointer to itself and its ring."""
    found: dict[int, int] = {}
    for piece in nonzero_pieces(target, start, end):
        data = bytes(piece.data)
        for tid in tids - set(found):
            wanted = struct.pack(target.arch.word_format[0] + "I", tid)
            for at in islice(occurrences(data, wanted), _MOST_PLACES if tid else 0):
                address = piece.address + at
                if address % 4 == 0 and (_ring_before(target, address) or _itself_before(target, address)):
                    found[tid] = address
                    break
    return found


def _ring_before(target: Target, address: int) -> bool:
    word = target.arch.word
    node = address - 2 * word
    after, before = word_at(target, node), word_at(target, node + word)
    return after > 0 and before > 0 and word_at(target, after + word) == node == word_at(target, before)


def _itself_before(target: Target, address: int) -> bool:
    word = target.arch.word
    for own in range((address & -word) - 3 * word, address - 8 * word, -word):
        after = word_at(target, own + 2 * word)
        if word_at(target, own) == own and after and word_at(target, after + word) == own:
            return True
    return False


def _vector_at(target: Target, pointer: int) -> int:
    """Score a candidate thread pointer by its DTV: one of the first modules must have its variables
    just above the thread pointer.
    Return 2 for glibc's DTV (number of entries, generation, then two words per module). Return 1
    for musl's DTV, whose address is in the word before the thread pointer (number of modules, then
    one word for each); this is weaker evidence. Return 0 if there is no DTV."""
    word = target.arch.word
    dtv = word_at(target, pointer + target.arch.dtv_offset)
    if dtv > 2 * word and 0 < word_at(target, dtv - 2 * word) < _MODULES and word_at(target, dtv) < _MODULES:
        if any(pointer <= word_at(target, dtv + 2 * word * number) < pointer + _NEAR for number in range(1, 9)):
            return 2
    dtv = word_at(target, pointer - word)
    if dtv % word or not 0 < word_at(target, dtv) < 64:
        return 0
    return int(any(pointer <= word_at(target, dtv + word * number) < pointer + _NEAR for number in range(1, 9)))
