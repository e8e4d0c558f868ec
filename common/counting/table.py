"""The memory that the stub of `count --inject` counts in: what stands where, as outside writes it beforehand, and as it reads it.

A page of settings, which is the process's own, so that children that it forks find it empty. Behind it, shared with outside: counters,
the requests of threads that need a rule, and three hash tables (offsets as in stub.S):

    rules    key, value                     how to get from a place (a return address) to its caller
    nodes    key, parent, calls, broken     a tree of stacks: `parent` is the address of the node of the frame nearer; `calls` had
                                            the stack that ends here, `broken` one that could not be followed farther
    threads  thread pointer, depth          of scopes that are counted as they are opened and closed

Keys and parents are compared whole, so that two stacks are never taken for one, whatever their hashes are. Where a table has no room
within PROBES places, the call is counted as one of no known stack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Optional

EXACT, STACK, ISOLATE = 1 << 63, 1 << 62, 1 << 61
ADDRESS = ISOLATE - 1
"""What of a key is the address."""

ENABLED = 0
SHARED = 0x1000
"""Where what is shared begins."""
EVENTS, FULL, UNSURE, ORPHANED = 0x1000, 0x1008, 0x1010, 0x1018
STATES, SLOTS, REQUESTS = 0x1100, 0x2000, 16
STATE_STEP, SLOT_STEP = 64, 0x400
ASKED, ANSWERED = 2, 3
ANSWERS, PAIRS = 32, 64
"""Of a request: where the number of pairs stands, and the pairs (MOST at most)."""
MOST = 56
PROBES = 64
DEEPEST = 4096
"""Frames of a stack, as in stub.S."""
ROOM = 1 << 22
"""Frames of all stacks together that are put in words."""
GOLDEN = 0x9E3779B97F4A7C15
PATIENCE = 6 * 10**9
"""Ticks of the processor that a thread waits for an answer, once: about two seconds."""

LAST, BY_SP, BY_FP, THROUGH_FP, CHAIN, SIGNAL = range(6)
"""Kinds of rules: there is no caller; its frame begins at an offset from the stack pointer, from the frame pointer, where the word at such
an offset says; code that keeps the chain of frame pointers; the kernel's frame around a signal handler."""
_M64 = (1 << 64) - 1


class Scoped(NamedTuple):
    """How the stub tells whether a call is outside a scope. `how`: 0 all are; 1 the level at `level` of the isolate that the word at
    `origin` from the thread pointer points to is at most `baseline`; 2 the thread's own depth is 0; 3 the word at `origin`
    from the thread pointer is 0."""

    how: int = 0
    origin: int = 0
    level: int = 0
    baseline: int = 0


class Node(NamedTuple):
    key: int
    parent: int
    calls: int
    broken: int


class Request(NamedTuple):
    """What a thread that waits asks: the rule of `key`, as it is at `place` with these pointers."""

    key: int
    sp: int
    fp: int
    place: int


@dataclass(frozen=True)
class Layout:
    """The table at `address`; the numbers of entries are powers of 2."""

    address: int
    nodes: int = 1 << 16
    rules: int = 1 << 15
    threads: int = 1 << 12

    @property
    def rules_at(self) -> int:
        return SLOTS + REQUESTS * SLOT_STEP

    @property
    def threads_at(self) -> int:
        return self.rules_at + 16 * self.rules

    @property
    def nodes_at(self) -> int:
        return self.threads_at + 16 * self.threads

    @property
    def size(self) -> int:
        """Bytes, of whole pages."""
        return self.nodes_at + 32 * self.nodes + 4095 & -4096

    def settings(self, scoped: Scoped, limit: int = 0, patience: int = PATIENCE) -> bytes:
        """The first bytes, of a table that is not enabled yet."""
        base = self.address
        words = [0, limit or 1 << 62, patience, GOLDEN]
        words += [base + self.rules_at, self.rules - 1, base + self.nodes_at, self.nodes - 1, base + self.threads_at, self.threads - 1]
        words += [scoped.how, scoped.origin & _M64, scoped.level, scoped.baseline]
        return struct.pack(f"<{len(words)}Q", *words)

    def seeds(self, pairs: Iterable[tuple[int, int]]) -> dict[int, bytes]:
        """Rules as the stub looks for them: address -> the entry's bytes. Those without room are left out."""
        made: dict[int, tuple[int, int]] = {}
        for key, value in pairs:
            at = place(key, self.rules)
            for _ in range(PROBES):
                if made.setdefault(at, (key, value))[0] == key:
                    break
                at = at + 1 & self.rules - 1
        return {self.address + self.rules_at + 16 * at: struct.pack("<2Q", *pair) for at, pair in made.items()}

    def read(self, data: bytes) -> dict[int, Node]:
        """The nodes by address, of the bytes from `nodes_at` on. A node without a key is none."""
        first = self.address + self.nodes_at
        rows = struct.iter_unpack("<4Q", data[: 32 * self.nodes])
        return {first + 32 * number: Node(*row) for number, row in enumerate(rows) if row[0]}


def place(key: int, entries: int) -> int:
    """Where the search for a key begins in the rules and the threads."""
    return (key * GOLDEN & _M64) >> 40 & entries - 1


def pack(kind: int, offset: int = 0, how: int = 0, pointer: int = 0) -> int:
    """A rule's value. `offset`: of the caller's part of the stack; `how` and `pointer`: where the frame pointer was saved: 0 it was not,
    1 at that offset from the caller's part of the stack, 2 from the frame pointer."""
    return int.from_bytes(struct.pack("<BBhi", kind, how, pointer, offset), "little")


def answer(pairs: Iterable[tuple[int, int]]) -> bytes:
    """What to write to a request's slot, from ANSWERS on."""
    made = list(pairs)[:MOST]
    return struct.pack("<Q24x", len(made)) + b"".join(struct.pack("<2Q", *pair) for pair in made)


def paths(nodes: dict[int, Node], room: int = ROOM) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Each node that counts something, with the keys of its frames, innermost first; those that count most first. () where it leads
    nowhere, as its bytes may have been overwritten, and for all that have together more than `room` frames."""
    for node in sorted(nodes.values(), key=lambda node: -node.calls - node.broken):
        if not node.calls and not node.broken:
            continue
        keys = [node.key]
        above: Optional[Node] = node
        while above is not None and above.parent and len(keys) <= min(DEEPEST, room):
            above = nodes.get(above.parent)
            if above is not None:
                keys.append(above.key)
        whole = above is not None and not above.parent
        room -= len(keys)
        yield node, tuple(reversed(keys)) if whole and room >= 0 else ()
