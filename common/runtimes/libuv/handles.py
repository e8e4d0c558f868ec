"""Find the loops of libuv, and the handles and requests in blocks that refer to a loop.

Source: include/uv.h (uv_loop_t, UV_HANDLE_FIELDS, UV_REQ_FIELDS, uv_fs_t), include/uv/unix.h, and
src/uv-common.h (flags) of libuv 1.24 to 1.51, for 64-bit Unix programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Optional

from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.runtimes.stack_words import scan_stacks
from findleaks.target.base import Piece, Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple

HANDLES = {
    1: "uv_async_t",
    2: "uv_check_t",
    3: "uv_fs_event_t",
    4: "uv_fs_poll_t",
    6: "uv_idle_t",
    7: "uv_pipe_t",
    8: "uv_poll_t",
    9: "uv_prepare_t",
    10: "uv_process_t",
    12: "uv_tcp_t",
    13: "uv_timer_t",
    14: "uv_tty_t",
    15: "uv_udp_t",
    16: "uv_signal_t",
}
"""Types of handles by uv_handle_type."""
WITH_CALLBACK = {1, 2, 6, 8, 9, 13}  # types whose first member after the common ones is a callback
FS = "uv_fs_t"
REQUESTS = {6: (FS, 72), 7: ("uv_work_t", 64), 8: ("uv_getaddrinfo_t", 64), 9: ("uv_getnameinfo_t", 64)}
"""Names of requests by uv_req_type, and the offset of the address of the loop. Other requests do
not refer to the loop. The word after this address is a callback, which may be 0 in a uv_fs_t."""
LOOP, TYPE, CLOSE_CALLBACK, QUEUE, FLAGS, CALLBACK = 8, 16, 24, 32, 88, 96  # offsets in a handle
LINKS, TIMER_LINKS = ((32, 48), (80, 88)), ((32, 48), (80, 88), (104, 128))
"""Words of a handle that link it to others: handle_queue, next_closing; in a uv_timer_t, also
heap_node."""
TIMER = "uv_timer_t"
REQUEST_TYPE = 8  # offset in a request
LOOP_QUEUE = 16  # offset of the list of handles in a loop
CLOSING, CLOSED, ACTIVE, REFERENCED, INTERNAL = 1, 2, 4, 8, 16  # flags of a handle
LOOP_BYTES = 600, 1200  # least and most bytes of a block with a loop
MOST_LOOPS = 1 << 10
MOST_IMAGE = 4 << 20  # bytes of the data of a program or library that is searched for loops
MOST_FOUND = 1 << 22  # handles and requests
CHECKED = 1 << 10  # addresses between two checks for Ctrl-C


class Item(NamedTuple):
    """A handle, or a request, in the block with index `block`. `callback`: the address of the
    function that it calls, or 0. `flags`: of a handle; -1 for a request."""

    block: int
    address: int
    name: str
    callback: int
    flags: int


def list_links(one: Item) -> Sequence[tuple[int, int]]:
    """Return the offsets [start, end) of the words that link a handle to others."""
    return TIMER_LINKS if one.name == TIMER else LINKS


def find_loops(memory: Memory, blocks: Blocks) -> list[int]:
    """Return the addresses of the loops, ascending: those in the data of the program and of
    libraries, those on stacks, those that are blocks, and those to which a stack refers. The stack
    of a thread that runs a loop has its address."""
    found, referred = set[int](), set[int]()
    data = (
        span for image in find_images(memory.target) if sum(end - start for start, end in image.data) <= MOST_IMAGE for span in image.data
    )
    for at, words in chain.from_iterable(memory.scan(*span) for span in data):
        found.update(_iterate_loops(memory, at, words))
    for at, words in scan_stacks(memory):
        found.update(_iterate_loops(memory, at, words))
        referred.update(word for word in words if word and not word % 8)
    for address in chain(referred, map(blocks.address, blocks.of_sizes(*LOOP_BYTES, MOST_LOOPS))):
        if _is_loop(memory, address + LOOP_QUEUE, memory.word(address + LOOP_QUEUE) or 0):
            found.add(address)
    return sorted(found)


def _iterate_loops(memory: Memory, start: int, words: Sequence[int]) -> Iterator[int]:
    """Yield the addresses of the loops in these words, which are at `start`."""
    for at, word in zip(count(start, 8), words):
        if 0 < word - at < LOOP_BYTES[1] and _is_loop(memory, at, word):
            yield at - LOOP_QUEUE


def _is_loop(memory: Memory, queue: int, first: int) -> bool:
    """Whether the list of the handles of a loop is at `queue`, and its first element is at `first`:
    the elements refer to each other, and the handle around the element refers to the loop. The
    first handle is one in the loop, which uv_loop_init adds."""
    if first % 8 or not QUEUE <= first - queue < LOOP_BYTES[1] or memory.word(first + 8) != queue:
        return False
    return memory.word(first - QUEUE + LOOP) == queue - LOOP_QUEUE


def find_items(memory: Memory, engine: Engine, blocks: Blocks, heaps: Sequence[Range], loops: Sequence[int]) -> Iterator[Item]:
    """Yield the handles and requests in blocks in use. Raises Interrupted."""
    pieces = (piece for start, end in heaps for piece in memory.target.pieces(start, end))
    found = 0
    for piece in pieces if loops else ():
        for place in interruptible(memory.target, engine.search_any(piece, loops), CHECKED):
            item = _read_item(memory, blocks, piece, place)
            if item is not None and found < MOST_FOUND:
                found += 1
                yield item


def _read_item(memory: Memory, blocks: Blocks, piece: Piece, place: int) -> Optional[Item]:
    """Return the handle or request that has the address of a loop at `place`."""
    found = blocks.lookup(place)
    if found is None or found[3] != State.IN_USE:
        return None
    index, start, size, _ = found
    address = place - LOOP
    words = memory.words(address, CALLBACK // 8 + 1) if start <= address and address + CALLBACK <= start + size else None
    if words is not None:
        kind, flags = words[TYPE // 8] & 0xFFFFFFFF, words[FLAGS // 8] & 0xFFFFFFFF
        if flags & INTERNAL:
            return None  # a handle of the loop itself
        called = words[CALLBACK // 8] if kind in WITH_CALLBACK else 0
        if kind in HANDLES and (_is_linked(memory, address + QUEUE, words) or _is_closed(memory, words, flags)):
            return Item(index, address, HANDLES[kind], called, flags)
    for kind, (name, offset) in REQUESTS.items():
        address = place - offset
        if start <= address and memory.int32(address + REQUEST_TYPE) == kind and is_callback(memory, memory.word(place + 8), name == FS):
            return Item(index, address, name, 0, -1)
    return None


def _is_linked(memory: Memory, queue: int, words: Sequence[int]) -> bool:
    following, before = words[QUEUE // 8], words[QUEUE // 8 + 1]
    return bool(following and before) and memory.word(following + 8) == queue and memory.word(before) == queue


def _is_closed(memory: Memory, words: Sequence[int], flags: int) -> bool:
    """Whether a structure is a closed handle, and not one that is similar by chance: libuv has
    cleared the flags of active and of referenced handles, and one of the links still points to the
    loop's list or to a handle of the loop."""
    if flags & (CLOSING | CLOSED | ACTIVE | REFERENCED) != CLOSING | CLOSED or not is_callback(memory, words[CLOSE_CALLBACK // 8], True):
        return False
    loop, links = words[LOOP // 8], words[QUEUE // 8 : QUEUE // 8 + 2]
    return all(links) and any(one == loop + LOOP_QUEUE or memory.word(one - QUEUE + LOOP) == loop for one in links)


def is_callback(memory: Memory, word: Optional[int], may_be_null: bool = False) -> bool:
    """Whether a word is the address of code. `may_be_null`: whether it may be 0 instead."""
    if not word:
        return word == 0 and may_be_null
    region = region_at(memory.target.regions(), word)
    return region is not None and region.executable
