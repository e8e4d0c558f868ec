"""Thread stacks of glibc, live and cached, from struct pthread (nptl/descr.h), found by structure.

The bounds of a stack are two adjacent words in struct pthread, `stackblock` and `stackblock_size`.
The thread pointer is the address of struct pthread in TLS variant II (x86-64, i386, s390x). In
variant I (AArch64) struct pthread ends at the thread pointer, so offsets are negative. Regions are
never used as bounds, because since Linux 6.13 and glibc 2.42 guard pages no longer split a mapping,
and adjacent stacks are one region.

glibc keeps the stacks of ended threads for reuse, in a ring (nptl/allocatestack.c, `stack_cache`;
`_dl_stack_cache` in ld.so's _rtld_global since 2.34). The head of the ring is near the heads of
live threads' rings (`stack_used`, `stack_user`). Every struct pthread is in one of these rings by
its `list`, the two words before `tid`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Optional, TypeVar

from findleaks.engine.contract import Engine
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Region, Target, Thread
from findleaks.target.ranges import merge_ranges, nonzero_pieces, range_at, region_at
from findleaks.target.words import word_at, words_at
from findleaks.value_classes import NamedTuple

# more bytes than struct pthread has up to stackblock_size: 1696 in 2.31-2.43 on x86-64
PTHREAD_BYTES = 2560
NO_OFFSET = -PTHREAD_BYTES - 1  # no possible offset in struct pthread
# possible sizes of musl's struct pthread in variant I: 200 in 1.2.3 on AArch64
MUSL_BYTES = range(128, 512)

MIN_STACK = 4096
MAX_STACK = 1 << 36  # larger ranges are not stacks, but may be words of Go.
# The largest distance in bytes between the heads of the rings. It is 16 to 48, but 16,608 in 2.31,
# where `stack_cache` is in libpthread's .data and `__stack_user`, the main thread's ring, in its
# .bss.
HEADS_WINDOW = 1 << 15

RING_LIMIT = 1 << 20  # the largest number of nodes of all rings

# Maximum number of threads examined to find an offset in struct pthread, which is the same for all
MAX_VOTERS = 256

# Maximum number of heads of rings near which further heads are searched for. Usually there are two
# heads; a core that lacks some struct pthreads may seem to have more.
MAX_HEADS = 64

# Bits of `cancelhandling` in struct pthread (nptl/descr.h, EXITING_BITMASK, TERMINATED_BITMASK). An
# ended thread has the first. A joined or detached one has both (nptl/nptl_free_tcb.c).
EXITING, TERMINATED = 0x10, 0x20


def thread_stacks(target: Target) -> dict[int, Range]:
    """Return {tid: [stackblock, stackblock + size)}, guard included, of the live threads that glibc
    created and whose struct pthread is readable. The main thread is not included, because the
    kernel creates its stack."""
    threads = [thread for thread in target.threads() if thread.thread_pointer]
    found = _stacks_at(target, [thread.thread_pointer for thread in threads], _live_offset(target, threads))
    return {thread.tid: stack for thread, stack in zip(threads, found) if stack is not None}


def dead_stacks(target: Target, engine: Engine, regions: Sequence[Region]) -> list[Range]:
    """Return the sorted stacks of ended threads that glibc keeps for reuse. They contain no live
    data.

    They are taken from the ring of cached stacks. If its head is not found, they are taken from
    headers of struct pthread in `regions` that do not belong to a live thread."""
    threads = [thread for thread in target.threads() if thread.thread_pointer]
    live = {thread.thread_pointer for thread in threads}
    if not live:
        return []
    cached = _rings(target, threads).cached
    if cached is None:
        # In Go programs without C code, thread pointers do not refer to a struct pthread.
        cached = list(_descriptors(target, engine, regions)) if any(word_at(target, tcb) in (tcb, 0) for tcb in live) else []
    ended = [tcb for tcb in cached if tcb not in live]
    offset = _live_offset(target, threads)
    if offset == NO_OFFSET:
        offset = _offset(_candidates(target, tcb) for tcb in _pick_sample(ended))
    stacks = set()
    for tcb, stack in zip(ended, _stacks_at(target, ended, offset)):
        if stack is not None:
            # musl keeps only the stacks of unjoined threads. The thread's return value is above, in
            # struct pthread.
            stacks.add(Range(stack.start, musl_pthread(target, tcb)) if is_musl(target, tcb) else stack)
    # If a thread runs on a stack, the stack is live even if another thread pointer is recorded for
    # the thread: some cores have a wrong one.
    running = sorted({*live, *(thread.sp for thread in target.threads())})
    return sorted(stack for stack in stacks if bisect_left(running, stack.start) == bisect_left(running, stack.end))


def ended_thread_pointers(target: Target) -> list[int]:
    """Return struct pthread of each ended thread that was not joined or whose stack is cached.
    glibc keeps the DTV of such a thread, and only struct pthread refers to it."""
    threads = [thread for thread in target.threads() if thread.thread_pointer]
    used, cached = _rings(target, threads)
    return sorted({*used, *(cached or ())} - {thread.thread_pointer for thread in threads})


class Ended(NamedTuple):
    """An ended thread. `routine` is the address of its start function, and `result` the address of
    the word with its return value; each is 0 if it is unknown."""

    stack: Range
    routine: int
    result: int = 0


def unjoined_threads(target: Target, engine: Engine, regions: Sequence[Region]) -> list[Ended]:
    """Return the threads that ended and were neither joined nor detached, by stack. Only
    pthread_join releases their stacks.

    `regions` may contain stacks. In struct pthread, `cancelhandling` follows `tid` after
    robust_prev (64-bit only), the three words of robust_head, cleanup and cleanup_jmp_buf.
    start_routine is between `cancelhandling` and stackblock. The return value and two 32-bit
    numbers directly precede start_routine (nptl/descr.h, 2.31 to 2.43)."""
    threads = [thread for thread in target.threads() if thread.thread_pointer]
    if any(is_musl(target, thread.thread_pointer) for thread in threads[:1]):
        return [Ended(stack, 0) for stack in dead_stacks(target, engine, regions)]
    offset = _list_offset(target, threads)
    if offset == NO_OFFSET:
        return []
    word = target.arch.word
    tid = offset + 2 * word
    handling = tid + 8 + (6 * word if word == 8 else 5 * word)
    chosen = [
        tcb
        for tcb in ended_thread_pointers(target)
        if _read_u32(target, tcb + tid) == 0 and _read_u32(target, tcb + handling) & (EXITING | TERMINATED) == EXITING
    ]
    bounds = _live_offset(target, threads)
    if bounds == NO_OFFSET:
        bounds = _offset(_candidates(target, tcb) for tcb in _pick_sample(chosen))
    start, routines = _routines(target, chosen, handling + word, bounds)
    found = zip(chosen, _stacks_at(target, chosen, bounds))
    stacks = {stack: tcb for tcb, stack in found if stack is not None}
    return [Ended(stack, routines.get(tcb, 0), tcb + start - 8 - word if start else 0) for stack, tcb in sorted(stacks.items())]


def _routines(target: Target, descriptors: Sequence[int], start: int, end: int) -> tuple[int, dict[int, int]]:
    """Return the offset of start_routine in struct pthread (0: not found), and start_routine of
    each thread. start_routine is the word in [start, end) that is an address in code in most of
    the descriptors."""
    code = [Range(region.start, region.end) for region in target.regions() if region.executable]
    read = {tcb: words_at(target, tcb + start, max(end - start, 0)) for tcb in descriptors}
    votes: Counter[int] = Counter()
    for words in read.values():
        for index in range(len(words)):
            votes[index] += range_at(code, words[index]) is not None
    best = max(votes, key=lambda index: (votes[index], -index), default=-1)
    found = {tcb: words[best] for tcb, words in read.items() if 0 <= best < len(words) and range_at(code, words[best])}
    return start + best * target.arch.word if found else 0, found


def _read_u32(target: Target, address: int) -> int:
    """Read the 32-bit number at `address`, or return -1."""
    try:
        return int.from_bytes(target.read(address, 4), target.arch.byteorder)
    except UnreadableMemory:
        return -1


def _pthread_words(target: Target, tcb: int) -> tuple[int, tuple[int, ...]]:
    """Return (offset of the first word, words) of struct pthread. In variant I its start is
    unknown, and may be the start of a mapping. Then the readable bytes right below the thread
    pointer are returned."""
    if _variant_two(target, tcb):
        return 0, words_at(target, tcb, PTHREAD_BYTES)  # fewer if it is at the end of its mapping
    data, end = b"", tcb
    for piece in target.pieces(max(tcb - PTHREAD_BYTES, 0), tcb):
        data = data + bytes(piece.data) if piece.address == end else bytes(piece.data)
        end = piece.address + len(piece.data)
    words = target.arch.unpack(data[len(data) % target.arch.word :] if end == tcb else b"")
    return -len(words) * target.arch.word, words


def _candidates(target: Target, tcb: int) -> dict[int, Range]:
    """Return {offset: range} of the pairs of words in struct pthread that may be stackblock and its
    size."""
    first, words = _pthread_words(target, tcb)
    return {
        index * target.arch.word + first: Range(start, start + size)
        for index, (start, size) in enumerate(zip(words, words[1:]))
        if start <= tcb and _may_be_stack(target, tcb, start, size)
    }


def _may_be_stack(target: Target, tcb: int, start: int, size: int) -> bool:
    """Whether this range may be the stack of the thread with the thread pointer `tcb`."""
    aligned = not (start | size) % target.arch.word
    return aligned and MIN_STACK <= size <= MAX_STACK and 0 < start <= tcb < start + size <= target.arch.mask


def _stacks_at(target: Target, descriptors: Sequence[int], offset: int) -> Iterator[Optional[Range]]:
    """Yield the stack at `offset` of each descriptor, without reading its other words."""
    word = target.arch.word
    for tcb in descriptors:
        stack = None
        if 0 <= offset < PTHREAD_BYTES if _variant_two(target, tcb) else -PTHREAD_BYTES <= offset < 0 and tcb > PTHREAD_BYTES:
            start, size = word_at(target, tcb + offset), word_at(target, tcb + offset + word)
            if _may_be_stack(target, tcb, start, size):
                stack = Range(start, start + size)
        yield stack


_T = TypeVar("_T")


def _pick_sample(items: Sequence[_T]) -> Sequence[_T]:
    """Return all items, or MAX_VOTERS of them at equal distances."""
    return items[:: -(-len(items) // MAX_VOTERS) or 1]


def _variant_two(target: Target, tcb: int) -> bool:
    """Whether struct pthread begins at the thread pointer: tcbhead_t.tcb is its own address."""
    return word_at(target, tcb) == tcb


def _offset(found: Iterable[dict[int, Range]]) -> int:
    """Return the offset with the most votes, or NO_OFFSET. Each descriptor votes for its
    candidates; page-aligned bounds count double."""
    votes: Counter[int] = Counter()
    for candidates in found:
        for offset, (start, end) in candidates.items():
            votes[offset] += 1 if (start | end) % MIN_STACK else 2
    return max(votes, key=lambda offset: (votes[offset], -offset)) if votes else NO_OFFSET


def _live_offset(target: Target, threads: Sequence[Thread]) -> int:
    """Return the offset on which most of these threads agree, or NO_OFFSET.

    A stack is plausible if the thread runs on it and no whole module lies in it, or if its bounds
    are page-aligned and no module overlaps it. The struct pthread of the main thread does not
    contain its stack. In a static program, or with words of 32 bits, two other numbers in it may
    look like the bounds of a stack."""
    modules = target.modules()
    starts = [module.start for module in modules]

    def plausible(thread: Thread, stack: Range) -> bool:
        below = bisect_left(starts, stack.end)
        odd = (stack.start | stack.end) % MIN_STACK
        if odd and region_at(target.regions(), stack.end - 1) is None:
            return False  # struct pthread and the data above it end with the stack
        if stack.start <= thread.sp < stack.end:
            whole = bisect_left(starts, stack.start)
            return whole == below or modules[whole].end > stack.end
        return not odd and not (below and modules[below - 1].end > stack.start)

    return _offset(
        {offset: stack for offset, stack in _candidates(target, thread.thread_pointer).items() if plausible(thread, stack)}
        for thread in _pick_sample(threads)
    )


def dtv_words(target: Target, thread_pointer: int) -> list[int]:
    """Return the address of the block with a thread's DTV, in a list; [] if it is unknown.

    The only reference to the DTV is in the thread control block, and points to the second entry
    (elf/dl-tls.c, allocate_dtv). This is an interior pointer, so memcheck reports every DTV as
    "possibly lost"."""
    if is_musl(target, thread_pointer):
        return []  # musl's thread control block has the start of the DTV
    dtv = word_at(target, thread_pointer + target.arch.dtv_offset)
    return [(dtv - 2 * target.arch.word) & target.arch.mask] if dtv else []


def is_musl(target: Target, tcb: int) -> bool:
    """Whether a thread pointer belongs to a thread of musl."""
    return musl_pthread(target, tcb) > 0


def musl_pthread(target: Target, tcb: int) -> int:
    """Return the address of a thread's struct pthread if it is musl's
    (src/internal/pthread_impl.h), or 0.

    The structure begins with its own address. Words 2 and 3 point to its neighbours in the ring of
    threads (a single thread is its own neighbour). In glibc, word 3 is a small number. In variant
    II, word 1 is the DTV. In variant I, the structure ends at the thread pointer, with the DTV."""
    word = target.arch.word
    if word_at(target, tcb) == tcb:
        return tcb if _on_ring(target, tcb, 2 * word) else 0
    for size in range(MUSL_BYTES.start, MUSL_BYTES.stop, word):
        if tcb > size and word_at(target, tcb - size) == tcb - size and _on_ring(target, tcb - size, word):
            return tcb - size
    return 0


def _on_ring(target: Target, pthread: int, before: int) -> bool:
    """Whether the next struct pthread of musl's ring points back. `before` is the offset of
    `prev`."""
    after = word_at(target, pthread + before + target.arch.word)
    return after > 0 and word_at(target, after) == after and word_at(target, after + before) == pthread


def _descriptor_check(target: Target, threads: Sequence[Thread]) -> Callable[[int], bool]:
    """Return a function that checks whether a thread pointer belongs to a struct pthread.

    In variant II, `tcb` and `self` of tcbhead_t (words 0 and 2) both point to it. In variant I it
    lies in the stack that it describes, or belongs to a live thread."""
    if any(_variant_two(target, thread.thread_pointer) for thread in _pick_sample(threads)):
        return lambda tcb: tcb > 0 and word_at(target, tcb) == tcb == word_at(target, tcb + 2 * target.arch.word)
    live, offset = {thread.thread_pointer for thread in threads}, _live_offset(target, threads)

    def check(tcb: int) -> bool:
        if tcb in live or offset != NO_OFFSET:
            return tcb in live or next(_stacks_at(target, [tcb], offset)) is not None
        return tcb > 0 and not all((start | end) % MIN_STACK for start, end in _candidates(target, tcb).values())

    return check


def _list_offset(target: Target, threads: Sequence[Thread]) -> int:
    """Return the offset of `list` in struct pthread, or NO_OFFSET. Its neighbours point back, and
    the tid follows."""
    word = target.arch.word
    for thread in _pick_sample(threads):
        tcb = thread.thread_pointer
        first, words = _pthread_words(target, tcb)
        for index in range(len(words) - 2):
            tid = target.arch.leading(words[index + 2], 4)
            node = tcb + first + index * word
            if tid == thread.tid and _is_linked(target, node, words[index], words[index + 1]):
                return node - tcb
    return NO_OFFSET


def _is_linked(target: Target, node: int, after: int, before: int) -> bool:
    """Whether the neighbours of a list node point back to it."""
    return after > 0 and before > 0 and word_at(target, after + target.arch.word) == node == word_at(target, before)


def _ring(target: Target, first: int, seen: set[int]) -> Iterator[int]:
    """Yield `first` and the following nodes of its ring, up to a node that is unreadable or in
    `seen`. Each yielded node is added to `seen`, so that it is visited only once, even if a damaged
    ring continues in another ring."""
    node = first
    while node not in seen and len(seen) < RING_LIMIT:
        seen.add(node)
        yield node
        try:
            node = target.word(node)
        except UnreadableMemory:
            return


class _Rings(NamedTuple):
    """Addresses of struct pthread in rings. `cached` is None if its ring is not found."""

    used: list[int]  # live threads, and ended ones that were not joined
    cached: Optional[list[int]]


def _rings(target: Target, threads: Sequence[Thread]) -> _Rings:
    offset = _list_offset(target, threads)
    if offset == NO_OFFSET:
        return _Rings([], None)
    word = target.arch.word
    is_descriptor = _descriptor_check(target, threads)
    heads, seen = set[int](), set[int]()
    used: list[int] = []
    for thread in threads:
        for node in _ring(target, thread.thread_pointer + offset, seen):
            if is_descriptor(node - offset):
                used.append(node - offset)
            else:
                heads.add(node)
    if not heads:
        return _Rings(used, None)
    cached: list[int] = []
    regions = target.regions()
    low, high = (regions[0].start, regions[-1].end) if regions else (0, target.arch.mask)
    for start, end in _windows(sorted(_in_modules(target, heads) or heads)[:MAX_HEADS], word):
        for address, words in _read_aligned(target, start, end):
            for index, (after, before) in enumerate(zip(words, words[1:])):
                head = address + index * word
                # This comes before other reads, since most words are not pointers.
                if not (low <= after < high and low <= before < high) or after % word:
                    continue
                if head not in heads and head not in seen and is_descriptor(after - offset):
                    if _is_linked(target, head, after, before):
                        seen.add(head)
                        cached += [node - offset for node in _ring(target, after, seen)]
    return _Rings(used, cached)


def _in_modules(target: Target, addresses: Iterable[int]) -> set[int]:
    """Return the addresses in a module, where real heads are: libpthread, libc, ld.so or a static
    program."""
    modules = target.modules()
    starts = [module.start for module in modules]
    found = set()
    for address in addresses:
        index = bisect_right(starts, address) - 1
        if index >= 0 and address < modules[index].end:
            found.add(address)
    return found


def _windows(heads: Iterable[int], word: int) -> list[Range]:
    """Return the ranges that may contain further heads: around each known head. The whole range
    between the first and the last head is not used: if a core lacks a struct pthread, any address
    may be taken for a head."""
    return merge_ranges(Range(max(head - HEADS_WINDOW, 0) & -word, head + HEADS_WINDOW) for head in heads)


def _read_aligned(target: Target, start: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (address, words) for the readable memory of [start, end)."""
    for piece in nonzero_pieces(target, start, end):
        skip = -piece.address % target.arch.word
        yield piece.address + skip, target.arch.unpack(bytes(piece.data[skip:]))


def _descriptors(target: Target, engine: Engine, regions: Sequence[Region]) -> Iterator[int]:
    """Yield the addresses of struct pthread headers in the anonymous memory of `regions`."""
    for region in regions:
        if region.writable and not region.name.startswith(("/", "[heap", "[stack")):
            for piece in nonzero_pieces(target, region.start, region.end):
                yield from engine.self_pointers(piece, 2 * target.arch.word)
