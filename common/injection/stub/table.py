"""Layout of the memory in which the stub of `count --inject` counts: settings, counts, tables.

The first two pages are private to the process: settings and switches. The following part is shared
with findleaks: counters, requests of threads that need a rule, and two hash tables (offsets as in
stub.S):

- rules: key, value. A value says how to get from a code address (a return address) to its caller
- nodes: key, parent, calls, broken. The nodes form a tree of stacks, which starts at the counted
  function: `parent` is the node of the callee, `calls` counts complete stacks, and `broken` counts
  stacks that could not be followed further

The rest is private again:

- threads: a hash table of thread pointer, depth. The depth is the number of scopes that the thread
  has opened and not closed yet
- counts: for each node, the `calls` and `broken` that this process counted. The counters in the
  shared part are raised to these numbers.

In forked children, the kernel zeroes the page of switches and these private tables. Therefore
children count nothing, and do not change what the parent counted. This is needed because a signal
handler may fork while its thread is in the stub.

Keys and parents are compared in full, so stacks are never confused, whatever their hashes are. If
there is no free entry within PROBES entries, a call is counted without its stack."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Optional, Union

EXACT, STACK, ISOLATE, VALUE, NUMBERED = 1 << 63, 1 << 62, 1 << 61, 1 << 60, 1 << 59
# Mask of the address in a key. The higher bits determine what the address is:
# - none: a return address
# - EXACT: the instruction that a thread is at
# - STACK: the page number of a stack
# - ISOLATE: a V8 isolate
# - STACK and ISOLATE: the number of an area of 256 KiB. The value is a bitmap of the readable pages
#   in this area (readable_pages.py).
# - VALUE: a word of an interpreter's frame. Two such keys follow the key of the frame: the
#   bytecode's address, and the function.
# - VALUE and NUMBERED: a frame of an interpreter's chain. The bits from NUMBER_AT up to NUMBERED
#   are the number of the frame's function, and the lower bits are the position of the instruction.
#   In a request, the key is a hash of the data that identify the function.
ADDRESS = ISOLATE - 1
# Position of the function's number in a key; the number that all unknown functions have
NUMBER_AT, UNKNOWN_FUNCTION = 32, (1 << 27) - 1
UNPAIRED = VALUE | NUMBERED  # a frame of the chain and a native frame do not belong together

SWITCHES, SHARED = 0x1000, 0x2000  # offsets of the page of switches, and of the shared part
# Offsets of two switches: whether calls are counted; whether a server answers requests
ENABLED, SERVED = 0x1000, 0x1008
EVENTS, FULL, UNSURE, ORPHANED, MANY, DAMAGED = 0x2000, 0x2008, 0x2010, 0x2018, 0x2020, 0x2028
STATES, SLOTS, REQUESTS = 0x2100, 0x3000, 16
STATE_STEP, SLOT_STEP = 64, 0x400
ASKED, ANSWERED = 2, 3
ANSWERS, PAIRS = 32, 64  # offsets in a request's slot: number of pairs; pairs (at most MOST)
CHAIN_SETTINGS = 0x100  # offset of the settings for the chain of an interpreter's frames
MOST = 56
PROBES = 64
DEEPEST = 4096  # maximum number of nodes of a stack, as in stub.S
MAX_FRAMES = 1 << 22  # maximum number of frames that are listed, in all stacks together
GOLDEN = 0x9E3779B97F4A7C15
# Time-stamp ticks for which a thread waits for an answer: about ten seconds. A server that shares
# its processor with many programs may need several seconds.
PATIENCE = 3 * 10**10

# Kinds of rules, in this order: there is no caller; the frame begins at an offset from the stack
# pointer; at an offset from the frame pointer; where the word at such an offset points; code that
# maintains the chain of frame pointers; the kernel's frame around a signal handler; findleaks' own
# code, by the frame pointer; the caller is on another stack; an interpreter's frame, whose words
# for the bytecode's address and the function are recorded.
LAST, BY_SP, BY_FP, THROUGH_FP, CHAIN, SIGNAL, OWN, SWITCH, INTERPRETED = range(9)
# Offsets in an interpreter's frame from the frame pointer, as in stack_walk.S: the function, and
# the stack pointer of the caller.
FUNCTION, SENDER = -24, -8
# Rules of code that executes JavaScript functions have this added to their offset; see js_frame of
# stack_walk.S.
GENERATED = -(1 << 31)
EXECUTES = 0x80  # added to the kind of a rule for code that may execute an interpreter's functions
_M64 = (1 << 64) - 1


class Scoped(NamedTuple):
    """How the stub decides whether a call is outside a scope. `how` 0: it always is. 1: the word at
    `origin` from the thread pointer points to an isolate, whose level (at offset `level`) is at
    most `baseline`. 2: the thread's depth is 0. 3: the word at `origin` from the thread pointer is
    0."""

    how: int = 0
    origin: int = 0
    level: int = 0
    baseline: int = 0


class Node(NamedTuple):
    """An entry of the table of nodes."""

    key: int
    parent: int
    calls: int
    broken: int


class Request(NamedTuple):
    """A request: a thread waits for the rule of `key`, at position `place` of its stack, with these
    pointers."""

    key: int
    sp: int
    fp: int
    place: int


def whole_pages(size: int) -> int:
    """Round up to whole pages."""
    return size + 4095 & -4096


@dataclass(frozen=True)
class CountTable:
    """Layout of the table at `address`, with these numbers of entries, which are powers of 2."""

    address: int
    nodes: int = 1 << 16
    rules: int = 1 << 15
    threads: int = 1 << 12

    @property
    def rules_at(self) -> int:
        return SLOTS + REQUESTS * SLOT_STEP

    @property
    def nodes_at(self) -> int:
        return self.rules_at + 16 * self.rules

    @property
    def shared_end(self) -> int:
        """Offset of the end of the shared part, rounded up to whole pages."""
        return whole_pages(self.nodes_at + 32 * self.nodes)

    @property
    def threads_at(self) -> int:
        return self.shared_end

    @property
    def counts_at(self) -> int:
        return self.threads_at + 16 * self.threads

    @property
    def size(self) -> int:
        """Bytes of the table, rounded up to whole pages."""
        return whole_pages(self.counts_at + 16 * self.nodes)

    def settings(self, scoped: Scoped, limit: int = 0, patience: int = PATIENCE, chain: Sequence[int] = ()) -> bytes:
        """Return the bytes of the settings and switches: counting is disabled, and a server is
        expected. `chain`: see `private_pages`."""
        base = self.address
        words = [0, limit or 1 << 62, patience, GOLDEN]
        words += [base + self.rules_at, self.rules - 1, base + self.nodes_at, self.nodes - 1, base + self.threads_at, self.threads - 1]
        words += [scoped.how, scoped.origin & _M64, scoped.level, scoped.baseline, base + self.counts_at]
        return private_pages(words, (), chain)

    def seeds(self, pairs: Iterable[tuple[int, int]]) -> dict[int, bytes]:
        """Return {address: entry}: each rule at the address where the stub looks for it. Rules for
        which there is no space are left out."""
        made: dict[int, tuple[int, int]] = {}
        for key, value in pairs:
            at = place(key, self.rules)
            for _ in range(PROBES):
                if made.setdefault(at, (key, value))[0] == key:
                    break
                at = at + 1 & self.rules - 1
        return {self.address + self.rules_at + 16 * at: struct.pack("<2Q", *pair) for at, pair in made.items()}

    def read(self, data: bytes) -> dict[int, Node]:
        """Decode nodes by address, from the bytes at `nodes_at`. An entry without a key is free."""
        first = self.address + self.nodes_at
        rows = struct.iter_unpack("<4Q", data[: 32 * self.nodes])
        return {first + 32 * number: Node(*row) for number, row in enumerate(rows) if row[0]}


def private_pages(settings: Sequence[int], switches: Sequence[int], chain: Sequence[int] = ()) -> bytes:
    """Return the bytes of the settings page and the switches page: disabled, with a server, not a
    forked child, and with these `switches`. `chain`: see ManagedFrames.chain_settings."""
    words = struct.pack(f"<{len(settings)}Q", *settings).ljust(CHAIN_SETTINGS, b"\0")
    words = (words + struct.pack(f"<{len(chain)}Q", *chain)).ljust(SWITCHES, b"\0")
    return words + struct.pack(f"<{3 + len(switches)}Q", 0, 1, 1, *switches)


def place(key: int, entries: int) -> int:
    """Return the index at which the search for a key begins, in the tables of rules and of
    threads."""
    return (key * GOLDEN & _M64) >> 40 & entries - 1


def pack(kind: int, offset: int = 0, how: int = 0, pointer: int = 0) -> int:
    """Encode a rule. `offset`: the offset of the caller's frame. `how`: where the frame pointer was
    saved; 0: it was not saved, 1: at `pointer` from the caller's frame, 2: at `pointer` from the
    frame pointer."""
    return int.from_bytes(struct.pack("<BBhi", kind, how, pointer, offset), "little")


def store_value(shared: Union[mmap.mmap, memoryview], entries: int, key: int, value: int) -> None:
    """Change the value of a key in the table of rules. Does nothing if the key is not in the table.
    `shared`: the shared part of the table, with `entries` rules."""
    first, at = SLOTS + REQUESTS * SLOT_STEP - SHARED, place(key, entries)
    for _ in range(PROBES):
        if struct.unpack_from("<Q", shared, first + 16 * at)[0] == key:
            struct.pack_into("<Q", shared, first + 16 * at + 8, value)
            return
        at = at + 1 & entries - 1


class Rule(NamedTuple):
    """A decoded rule. `pack` describes the fields. `executes`: whether EXECUTES is set."""

    kind: int
    how: int
    pointer: int
    offset: int
    executes: bool


@lru_cache(1 << 12)
def unpack(value: int) -> Rule:
    """Decode a rule."""
    kind, how, pointer, offset = struct.unpack("<BBhi", value.to_bytes(8, "little"))
    return Rule(kind & ~EXECUTES, how, pointer, offset, bool(kind & EXECUTES))


def answer(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Encode an answer as the bytes of a request's slot, from ANSWERS on."""
    made = list(pairs)[:MOST]
    return struct.pack("<Q24x", len(made)) + b"".join(struct.pack("<2Q", *pair) for pair in made)


def paths(nodes: dict[int, Node], frames_left: int = MAX_FRAMES) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Yield each node with a count, highest first, and the keys of its stack's frames, innermost
    first. The keys are () if the chain of parents does not end at a root (overwritten bytes), or
    after `frames_left` frames in total."""
    for node in sorted(nodes.values(), key=lambda node: -node.calls - node.broken):
        if not node.calls and not node.broken:
            continue
        keys = [node.key]
        above: Optional[Node] = node
        while above is not None and above.parent and len(keys) <= min(DEEPEST, frames_left):
            above = nodes.get(above.parent)
            if above is not None:
                keys.append(above.key)
        whole = above is not None and not above.parent
        frames_left -= len(keys)
        yield node, tuple(reversed(keys)) if whole and frames_left >= 0 else ()
