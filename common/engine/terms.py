"""Terms of the analysis: states and kinds of blocks, and records that engines take and return."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum, IntFlag

from findleaks.value_classes import NamedTuple


class State(IntEnum):
    """How the allocator sees a block. Only IN_USE ones are scanned, classified and counted."""

    IN_USE = 0
    CACHED = 1  # in a thread cache
    FREE = 2
    # the allocator's own: glibc's tcache struct, fenceposts, an inner allocator's arena in a chunk
    METADATA = 3


class Kind(IntEnum):
    """memcheck's kinds. UNKNOWN: not in use, or memory that could refer to the block is missing."""

    UNKNOWN = 0
    REACHABLE = 1
    POSSIBLE = 2
    DEFINITE = 3
    INDIRECT = 4


class Heuristic(IntFlag):
    """Interior pointers p (block start b, usable size sz, word W) that count as start references:
    memcheck's four, which users choose, and three that allocators and runtimes ask for.
    AUTO: those that graph/conventions.py finds in use."""

    NONE = 0
    # p == b + 8 and *(u64*)b == sz - 8 … compared with the requested size where known; see docs
    LENGTH64 = 1
    NEWARRAY = 2  # p == b + W, n = *(word*)b > 0 and (sz - W) % n == 0
    MULTIPLE_INHERITANCE = 4  # *p and *b both point into a range given as `vtables`
    STDSTRING = 8  # old copy-on-write std::string: {length, capacity, refcount} before p
    # object {count, type} at b + k, k 0, 16, 32, 48; type in `types`; p less 2 low bits: b … b + k
    OBJECTS = 16
    # CPython 3.11, 3.12: p, or p + 1, is b + n, n in 8, 16, 24, 32, and the byte at b + n - 1 is n
    DICT_VALUES = 32
    # free-threaded CPython: p == b + W, n = *(word*)b > 0, n + 1 words are most of the block
    ITEMS = 128
    AUTO = 64  # interior references are recorded for `Graph.interiors`


class Totals(NamedTuple):
    blocks: int
    bytes: int

    @classmethod
    def sum_of(cls, parts: Iterable[Totals]) -> Totals:
        every = list(parts)
        return cls(sum(part.blocks for part in every), sum(part.bytes for part in every))


class Group(NamedTuple):
    """Lost blocks with the same key. `type_word`: the first word, if in a range of `types`, else 0.
    Of leaders (DEFINITE), `indirect_*` sum the indirect blocks under them; `cycle`: blocks in the
    leader's cycle (1: none; 0: they differ). `examples`: up to 3 lowest addresses.

    A cycle's `type_word`, `size` and example are those of the block that represents it (see
    Graph.represent_cycles); `bytes` are its leader's, so that the sums of all groups are the kinds'
    totals. `label`: of all blocks (see Graph.set_labels), or NO_LABEL; only of labelled blocks,
    `largest` may differ from `size`, the smallest."""

    kind: Kind
    type_word: int
    size: int
    cycle: int
    blocks: int
    bytes: int
    indirect_blocks: int
    indirect_bytes: int
    least_indirect: int  # indirect blocks of the leader with the fewest, the most
    most_indirect: int
    examples: tuple[int, ...]
    largest: int
    label: int


class Size(NamedTuple):
    """Blocks of one usable size in one state."""

    size: int
    state: State
    blocks: int


RUN = 6
"""Words of a run of equal blocks (`Blocks.append_runs`): start, stride, size, count, bit, states.

`count` blocks of `size` usable bytes at start, start + stride, …; the i-th has state (states >> 8)
& 255 if bit bit + i of the bitmap (bit b: bit b % 8 of byte b / 8) is set, else states & 255. If
they are the same, `bit` is ignored."""


def run_states(clear: State, set_: State) -> int:
    """The sixth word of a run."""
    return int(clear) | int(set_) << 8


class Lists(NamedTuple):
    """Nodes of list i: nodes[ends[i - 1]:ends[i]] (first: from 0); `problems`: (i, why it ends)."""

    nodes: array[int]
    ends: array[int]
    problems: list[tuple[int, str]]


NO_BLOCK = 0xFFFFFFFF  # in place of a block's index, in `Blocks.find_all`
NO_LABEL = 0xFFFFFFFF  # in `Graph.set_labels`

LAST_WORD = 63
"""In masks of `Graph.exclude_words`, bit i is word i of a block, this bit all further words."""
EVERY_WORD = (1 << 64) - 1
NO_HEADER = (1 << 64) - 1


class Exclusion(NamedTuple):
    """Words of a block that are no references. `words` is a mask of those that never are, `links`
    of those that are none if they refer to the `header` of another block: the offset, in bytes, at
    which a runtime chains it, or NO_HEADER."""

    words: int
    links: int = 0
    header: int = NO_HEADER
