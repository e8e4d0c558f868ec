"""Terms of the analysis: states and kinds of blocks, and records that engines take and return."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum, IntFlag

from findleaks.value_classes import NamedTuple


class State(IntEnum):
    """State of a block in its allocator. Only blocks IN_USE are scanned, classified and counted."""

    IN_USE = 0
    CACHED = 1  # in a thread cache
    FREE = 2
    # allocator metadata: glibc's tcache struct, fenceposts, an inner allocator's arena in a chunk
    METADATA = 3


class Kind(IntEnum):
    """memcheck's kinds. A block is UNKNOWN if it is not in use, or if missing memory could refer to
    it."""

    UNKNOWN = 0
    REACHABLE = 1
    POSSIBLE = 2
    DEFINITE = 3
    INDIRECT = 4


class Heuristic(IntFlag):
    """Interior pointers that count as start references.

    p is the pointer, b the block's start, sz its usable size, W the bytes of a word. Users choose
    from memcheck's four rules; allocators and runtimes select four more. AUTO: the rules that
    graph/conventions.py finds in use."""

    NONE = 0
    # p == b + 8 and *(u64*)b == sz - 8. Compared with the requested size if it is known; see docs.
    LENGTH64 = 1
    NEWARRAY = 2  # p == b + W, n = *(word*)b > 0 and (sz - W) % n == 0
    MULTIPLE_INHERITANCE = 4  # *p and *b both point into a range given as `vtables`
    STDSTRING = 8  # old copy-on-write std::string: {length, capacity, refcount} before p
    # Object {count, type} at b + k, k in 0, 16, 32, 48, with a type in `types`. p without its two
    # low bits is in b … b + k.
    OBJECTS = 16
    # CPython 3.11, 3.12: p, or p + 1, is b + n with n in 8, 16, 24, 32, and the byte at b + n - 1
    # is n.
    DICT_VALUES = 32
    # Free-threaded CPython: p == b + W, n = *(word*)b > 0, and n + 1 words fill most of the block.
    ITEMS = 128
    EVERY = 256  # every pointer into a block, as Go's collector does. No block is POSSIBLE.
    AUTO = 64  # interior references are recorded for `Graph.interiors`


class Totals(NamedTuple):
    blocks: int
    bytes: int

    @classmethod
    def sum_of(cls, parts: Iterable[Totals]) -> Totals:
        every = list(parts)
        return cls(sum(part.blocks for part in every), sum(part.bytes for part in every))

    def minus(self, part: Totals) -> Totals:
        return Totals(self.blocks - part.blocks, self.bytes - part.bytes)


class KindFigures(NamedTuple):
    """Figures of some blocks of one kind."""

    blocks: int
    bytes: int
    inside: int  # bytes inside given ranges


class Group(NamedTuple):
    """Leaked blocks with the same key.

    `type_word` is the first word of the blocks if it is in a range of `types`, otherwise 0. For
    leak heads (DEFINITE), `indirect_*` is the sum of the indirect blocks under them, and `cycle`
    the number of blocks in the cycle of the head (1: no cycle; 0: the numbers differ). `examples`
    are the lowest addresses, at most 3.

    The `type_word`, `size` and example of a cycle are those of the block that represents it (see
    Graph.represent_cycles). The `bytes` of a cycle are those of its leak head, so that the sums
    over all groups are the kinds' totals. `label` is the label of all blocks (see
    Graph.set_labels), or NO_LABEL. Only labelled blocks may differ in size: `size` is the smallest,
    `largest` the largest."""

    kind: Kind
    type_word: int
    size: int
    cycle: int
    blocks: int
    bytes: int
    indirect_blocks: int
    indirect_bytes: int
    least_indirect: int  # indirect blocks under the leak head that has the fewest of them
    most_indirect: int
    examples: tuple[int, ...]
    largest: int
    label: int
    mark: int = 0  # mark of blocks without label and type_word; see Graph.groups


class Size(NamedTuple):
    """Blocks of one usable size in one state."""

    size: int
    state: State
    blocks: int


RUN = 6
"""Words of a run of equal blocks (`Blocks.append_runs`): start, stride, size, count, bit, states.

`count` blocks of `size` usable bytes are at start, start + stride, … The i-th block has state
(states >> 8) & 255 if bit `bit` + i of the bitmap (bit b: bit b % 8 of byte b / 8) is set, else
states & 255. If both states are the same, `bit` is ignored."""


def run_states(clear: State, set_: State) -> int:
    """Return the sixth word of a run: the states of blocks whose bit is clear and set."""
    return int(clear) | int(set_) << 8


class Lists(NamedTuple):
    """Nodes of lists. List i is nodes[ends[i - 1]:ends[i]]; the first list begins at 0. `problems`
    has pairs (i, the reason why list i ended early)."""

    nodes: array[int]
    ends: array[int]
    problems: list[tuple[int, str]]


NO_BLOCK = 0xFFFFFFFF  # stands for a block's index, in `Blocks.find_all`
NO_LABEL, NO_NARROW_LABEL = 0xFFFFFFFF, 0xFFFF  # in `Graph.set_labels`, of 4 and of 2 bytes
MARK = 0xFFFFFF  # bits of a mark that `Graph.groups` compares
WEAK_MARK = 0xF000000  # if a mark has only the lowest of these bits, `type_word` is used instead


def mark_of(mark: int, type_word: int) -> int:
    """Return the part of a block's mark by which the block is grouped; 0 if it is grouped by its
    type_word."""
    return 0 if type_word and mark & WEAK_MARK == 1 << 24 else mark & MARK


LAST_WORD = 63
"""In masks of `Graph.exclude_words`, bit i is word i of a block; this last bit is all further
words."""
EVERY_WORD = (1 << 64) - 1
NO_HEADER = (1 << 64) - 1


class Exclusion(NamedTuple):
    """Words of a block that are not references.

    `words` is a mask of words that never are references. `links` is a mask of words that are not
    references if they refer to the `header` of another block: the offset in bytes at which a
    runtime chains its objects, or NO_HEADER. The two low bits of such a word may be flags. The
    masks repeat after `period` words; 0: the last bit stands for all further words."""

    words: int
    links: int = 0
    header: int = NO_HEADER
    period: int = 0

    def bit(self, word: int) -> int:
        """Return the bit of a mask for a word of a block."""
        return 1 << (word % self.period if self.period else min(word, LAST_WORD))
