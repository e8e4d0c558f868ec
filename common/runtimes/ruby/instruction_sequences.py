"""Read compiled Ruby methods and blocks (struct rb_iseq): label, path, and the line of an
instruction.

Sources: vm_core.h (struct rb_iseq_struct, rb_iseq_constant_body, rb_iseq_location_struct,
iseq_insn_info) and iseq.c (struct succ_index_table, iseq_insn_info_entry) of 2.7.4, 3.1.2, 3.3.8;
vm_backtrace.c (calculate_iseq_label) of 3.4.1.
The location {path, base label, label, …} follows members whose size depends on the version. It is
recognised by its three objects."""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.tables import elements
from findleaks.runtimes.ruby.values import Values
from findleaks.value_classes import NamedTuple

LONGEST_PATH = 1 << 12  # bytes
_BODY = 16  # offset in a struct rb_iseq
_BODY_WORDS = 48  # words of the body in which the location is searched
_MOST_ENTRIES = 1 << 16
_LINES_BYTES = 32  # size of a struct iseq_insn_info
# The next members of the body: local_table, catch_table, parent_iseq, local_iseq. The body begins
# with the type of the sequence.
_PARENT, _IS_BLOCK = 16, 2
_MOST_PARENTS = 64
_EVALUATED = "<compiled>"
# The index of a table of lines: the first positions, each of which has a number; how many of these
# numbers a word contains; the positions of a block, and of a word in a block.
_IMMEDIATE, _GROUP, _GROUP_BITS = 54, 9, 7
_BLOCK, _SMALL, _BLOCK_WORDS, _RANK_BITS = 512, 64, 10, 9


class Instructions(NamedTuple):
    """The instructions of a method or a block: `words` words at `code`. `lines` is the address of
    the table of lines, `entries` its length (0: unknown), `ranks` the address of its index."""

    label: str
    path: str
    code: int
    words: int
    lines: int
    entries: int
    ranks: int


class LineTable(NamedTuple):
    """The lines of the instructions of a sequence. `entries`: entries of `size` bytes. Each entry
    begins with a line number. `ranks`: an index that maps positions to entries; see _rank."""

    words: int
    size: int
    entries: bytes
    ranks: bytes

    def line(self, at: int) -> int:
        """Return the line of the instruction before this position; 0 if unknown."""
        if not 0 <= at <= self.words:
            return 0
        entry = self._rank(max(at - 1, 0)) - 1 if len(self.entries) > self.size else 0
        found = self.entries[self.size * entry : self.size * entry + 4] if entry >= 0 else b""
        return int.from_bytes(found, "little") if len(found) == 4 else 0

    def _rank(self, position: int) -> int:
        """Return how many entries begin at or before a position, from a succinct index.

        The index has 7 bits for each of the first 54 positions; each word contains 9 of these
        numbers. The following positions are in blocks of 512. A block begins with the number of
        entries before it. Next are 9 bits for each of its 64-bit words except the first: the number
        of entries in the words before. Last are these 64-bit words, with one bit for each
        position."""
        if position < _IMMEDIATE:
            group, number = divmod(position, _GROUP)
            return self._word(group) >> (_GROUP_BITS * number) & ((1 << _GROUP_BITS) - 1)
        block, bit = divmod(position - _IMMEDIATE, _BLOCK)
        first = _IMMEDIATE // _GROUP + _BLOCK_WORDS * block
        small, bit = divmod(bit, _SMALL)
        before = self._word(first + 1) >> (_RANK_BITS * (small - 1)) & ((1 << _RANK_BITS) - 1) if small else 0
        here = bin(self._word(first + 2 + small) & ((2 << bit) - 1)).count("1")
        return (self._word(first) & 0xFFFFFFFF) + before + here

    def _word(self, number: int) -> int:
        return int.from_bytes(self.ranks[8 * number : 8 * number + 8], "little")


def lines_after(version: tuple[int, int]) -> int:
    """Return the distance in bytes from the location to the table of lines."""
    return 56 if version < (3, 2) else 48


def entry_bytes(version: tuple[int, int]) -> int:
    """Return the size of an entry of the table of lines."""
    return 8 if version < (3, 0) else 12


class SequenceReader:
    """Reads instruction sequences of one interpreter. `location`: the offset of the location in the
    body, 0 until it is known."""

    def __init__(self, memory: Memory, values: Values, version: tuple[int, int]) -> None:
        self._memory, self._values = memory, values
        self._lines, self._entry = lines_after(version), entry_bytes(version)
        self.location = 0
        self._known: dict[int, Optional[Instructions]] = {}
        self._tables: dict[Instructions, LineTable] = {}

    def read(self, address: int) -> Optional[Instructions]:
        """Return the instruction sequence at an address; None if there is none."""
        if address not in self._known:
            self._known[address] = self._read(address)
        return self._known[address]

    def _read(self, address: int) -> Optional[Instructions]:
        memory = self._memory
        body = memory.word(address + _BODY) if address % 8 == 0 else None
        head = memory.words(body, 2) if body else None
        at = self._find_location(body) if body and head is not None else 0
        if not at or not body or head is None:
            return None
        path, label = self._path(memory.word(body + at) or 0), self._label(address, body, at)
        lines = memory.words(body + at + self._lines, 4)
        if not path or not label or lines is None:
            return None
        entries, positions, sizes, index = lines
        count = memory.halves(sizes)[0]
        known = not positions and 0 < count < _MOST_ENTRIES
        return Instructions(label, path, head[1], memory.halves(head[0])[1], entries, count if known else 0, index)

    def _label(self, address: int, body: int, at: int) -> str:
        """Return the label of a sequence. Since Ruby 3.4, that of evaluated text, and those of the
        blocks in it, have the name _EVALUATED. Ruby prints the label of the method or block that
        evaluates the text instead (calculate_iseq_label)."""
        label = self._values.text(self._memory.word(body + at + 16) or 0, LONGEST_PATH) or ""
        if not label.endswith(_EVALUATED):
            return label
        parent = at + self._lines + _LINES_BYTES + _PARENT
        blocks, outer = 0, self._memory.word(body + parent + 8) or 0  # the sequence of the method
        for _ in range(_MOST_PARENTS):
            if not body or address == outer:
                break
            blocks += (self._memory.int32(body) or 0) == _IS_BLOCK
            address = self._memory.word(body + parent) or 0
            body = self._memory.word(address + _BODY) or 0 if address and address % 8 == 0 else 0
        method = self._values.text(self._memory.word(body + at + 16) or 0, LONGEST_PATH) if body and address == outer else ""
        levels = f"block ({blocks} levels) in " if blocks > 1 else "block in " if blocks else ""
        return f"{levels}{method}" if method else label

    def local_table(self, address: int) -> int:
        """Return the address of the IDs of the local variables of a sequence; 0 if unknown. In the
        body of the sequence, this address follows the description of the table of lines."""
        body = self._memory.word(address + _BODY) if address % 8 == 0 else None
        at = self._find_location(body) if body else 0
        return self._memory.word(body + at + self._lines + _LINES_BYTES) or 0 if body and at else 0

    def _find_location(self, body: int) -> int:
        """Return the offset of the location in the body of a sequence; 0 if not found."""
        if self.location:
            return self.location
        words = self._memory.words(body, _BODY_WORDS) or ()
        for at in range(2, len(words) - 2):
            if self._path(words[at]) and all(self._values.text(word) for word in words[at + 1 : at + 3]):
                self.location = 8 * at
                break
        return self.location

    def _path(self, value: int) -> str:
        """Return the path of a file. It is a String, or an Array of this path and the real path."""
        pair = elements(self._memory, value, self._values.long)
        if pair is not None and pair.length == 2:
            value = self._memory.word(pair.start) or 0
        return self._values.text(value, LONGEST_PATH) or ""

    def line(self, found: Instructions, pc: int) -> int:
        """Return the line of the instruction before `pc`; 0 if unknown. `pc` is the address of the
        next instruction."""
        at, rest = divmod(pc - found.code, 8)
        if found not in self._tables:
            self._tables[found] = self.table(found)
        return self._tables[found].line(at) if not rest else 0

    def table(self, found: Instructions) -> LineTable:
        """Read the lines of a sequence."""
        count = min(found.words, _MOST_ENTRIES)
        blocks = -(-(count - _IMMEDIATE) // _BLOCK) if count > _IMMEDIATE else 0
        groups = -(-min(count, _IMMEDIATE) // _GROUP)
        entries = self._memory.read(found.lines, self._entry * found.entries) if found.entries else b""
        ranks = self._memory.read(found.ranks, 8 * (groups + _BLOCK_WORDS * blocks)) if found.entries > 1 else b""
        return LineTable(found.words, self._entry, entries, ranks)
