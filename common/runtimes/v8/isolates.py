"""Find V8's isolates and their blocks of handles."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from findleaks.errors import UnreadableMemory
from findleaks.libc.thread_specific import KEYS, KEYS_OF_BLOCK, place_of_key
from findleaks.runtimes.v8.layout import Layout
from findleaks.target.base import Target, Thread
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import dataclass, field

MAX_BLOCKS = 1 << 24  # maximum number of an isolate's blocks: 128 GiB of handles


@dataclass
class Isolate:
    """An isolate and its handles.

    `blocks` are the addresses of its blocks of handles in the order they were filled, `handles` is
    the number of handles. `problem` describes damage to the blocks, "" if there is none;
    `blocks` ends before the damaged block."""

    address: int
    threads: list[Thread]
    level: int
    next: int
    limit: int
    blocks: Sequence[int] = ()
    handles: int = 0
    problem: str = ""
    values: array[int] = field(default_factory=lambda: array("Q"), repr=False)


def isolates(target: Target, layout: Layout) -> list[Isolate]:
    """Return every isolate that is a thread's current one, by address. Raises Interrupted."""
    found: dict[int, Isolate] = {}
    try:
        key = key_of(target, layout)
    except UnreadableMemory:
        return []
    for thread in target.threads():
        address = current(target.word, target.arch.mask, layout, thread.thread_pointer, key)
        if address and address not in found:
            found[address] = _read(target, layout, address)
        if address:
            found[address].threads.append(thread)
    return [found[address] for address in sorted(found)]


def key_of(target: Target, layout: Layout) -> int:
    """Return the key of isolates in thread-specific data, 0 if there is none. May raise
    UnreadableMemory."""
    return int.from_bytes(target.read(layout.key, 4), target.arch.byteorder) if layout.key else 0


def current(word: Callable[[int], int], mask: int, layout: Layout, thread_pointer: int, key: int) -> int:
    """Return the isolate that the thread with this thread pointer is in, or 0.

    `word` returns the word at an address, or raises UnreadableMemory. `key` is the value at the
    layout's `key`. An implementer always points back to its isolate; other data is rejected."""
    if not thread_pointer or key >= KEYS_OF_BLOCK * KEYS_OF_BLOCK:
        return 0
    try:
        if layout.tls or key < KEYS_OF_BLOCK:
            place = thread_pointer + (layout.tls or place_of_key(key))
        else:
            block = word((thread_pointer + KEYS + 16 * KEYS_OF_BLOCK + 8 * (key // KEYS_OF_BLOCK)) & mask)
            place = block + 16 * (key % KEYS_OF_BLOCK) + 8
        isolate = word(place & mask)
        implementer = word((isolate + layout.implementer) & mask) if isolate else 0
        return isolate if implementer and word(implementer) == isolate else 0
    except UnreadableMemory:
        return 0


def _read(target: Target, layout: Layout, address: int) -> Isolate:
    made = Isolate(address, [], 0, 0, 0)
    made.problem = _read_handles(target, layout, made)
    made.handles = len(made.values)
    return made


def _read_handles(target: Target, layout: Layout, made: Isolate) -> str:
    """Read the isolate's own fields and its blocks; return what is wrong with these, or ""."""
    order, address = target.arch.byteorder, made.address
    try:
        made.next, made.limit = target.word(address + layout.next), target.word(address + layout.limit)
        made.level = int.from_bytes(target.read(address + layout.level, 4), order)
        implementer = target.word(address + layout.implementer)
        count = int.from_bytes(target.read(implementer + layout.count, layout.count_size), order)
        vector = target.word(implementer + layout.blocks)
    except UnreadableMemory as error:
        return f"isolate {address:#x} cannot be read whole: {error}"
    if count > MAX_BLOCKS:
        return f"isolate {address:#x} is corrupt: it counts {count:,} blocks of handles"
    try:
        blocks = target.arch.unpack(target.read(vector, 8 * count)) if count else ()
    except UnreadableMemory:
        return f"isolate {address:#x}: the list of its {count:,} blocks of handles at {vector:#x} cannot be read"
    size, why = 8 * layout.handles, ""
    seen: set[int] = set()
    for number, block in enumerate(interruptible(target, blocks, 1024)):
        last = number == count - 1
        used = made.next - block if last else size
        if block in seen or block % 8 or used % 8 or not 0 <= used <= size:
            why = "is in the list twice" if block in seen else "does not contain the next handle" if last else "is misaligned"
        else:
            try:
                made.values.frombytes(target.read(block, used))
            except UnreadableMemory:
                why = "cannot be read"
        if why:
            made.blocks = blocks[:number]
            return f"isolate {address:#x}: block {number + 1} of {count:,}, {block:#x}, {why}: only handles before it are counted"
        seen.add(block)
    made.blocks = blocks
    return ""
