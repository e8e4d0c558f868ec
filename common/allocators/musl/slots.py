"""Read the blocks in mallocng's slots. This module selects the memory that the engine reads, and
reports problems.

Four bytes precede a slot's user memory: p[-4], which is 0 unless the offset has 32 bits; a byte
with index (5 bits) and reserve (3 bits); and two bytes with the offset from the group's storage, in
units. reserve is the number of bytes at the slot's end that were not requested. If it is 5, the
last four bytes of the slot have this number. A block may begin further inside its slot (cycled, or
aligned). Then the header at the slot's start has the distance."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl import engine as slots
from findleaks.allocators.musl.engine import HEADER, LONE, MOVED, TROUBLE, UNIT, SlotRead
from findleaks.allocators.musl.groups import Batch, Group, Groups, pieces
from findleaks.allocators.musl.layout import AREA, head_of
from findleaks.engine.contract import Blocks, Engine
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import merge_ranges

_MAX_REPORTED = 10_000  # problems of slots that are reported


class Slots:
    """Reads batches of groups."""

    def __init__(self, target: Target, engine: Engine, groups: Groups, problems: list[Problem]) -> None:
        self.memory = Memory(target)
        self.engine = engine
        self.groups = groups
        self.problems = problems
        self._reported: set[int] = set()

    def walk(self, batches: Sequence[Batch], blocks: Blocks) -> None:
        """Append the blocks of these batches. Call this once for each batch, because it counts the
        bytes in use."""
        for batch in batches:
            read, _ = self.read(batch)
            blocks.append(*read[:3])

    def read(self, batch: Batch, again: bool = False) -> tuple[SlotRead, tuple[Piece, ...]]:
        """Return the slots of a batch, and the memory that they were read from."""
        table = self.groups.table
        found = self._pieces(batch)
        table = table._replace(sums=table.sums[:]) if again else table
        read = slots.read_slots(self.engine, found, table, batch.first, batch.last, batch.slots)
        for code, index, number in zip(*(read.troubles[column::TROUBLE] for column in range(TROUBLE))):
            self._report(self._problem(code, self.groups.one(index), number))
        return read, found

    def _pieces(self, batch: Batch) -> tuple[Piece, ...]:
        """Return the memory of a batch. If its slots are large, return only both ends of each slot,
        and the places where a block may begin."""
        if not batch.lone:
            return pieces(self.memory, [Range(batch.start & -AREA, -(-batch.end // AREA) * AREA)])
        ranges = []
        for group in map(self.groups.one, range(batch.first, batch.last)):
            ranges.append(Range(group.mem, group.storage if group.stride > LONE else group.end))
            for number in range(group.count if group.stride > LONE else 0):
                at = group.slot(number)
                ranges += [Range(at - HEADER, at + UNIT), Range(at + group.stride - 2 * HEADER, at + group.stride)]
                head = head_of(self.memory.int32(at - HEADER) or 0, self.memory.arch.byteorder)
                if head >> 8 & 0xFF == MOVED:
                    # The header has only 16 bits of the offset, so the places at multiples of 1 MiB
                    # beyond it are read, too.
                    starts = range(at + (head >> 16) * UNIT, at + group.usable, UNIT << 16)
                    ranges += [Range(start - 2 * HEADER, start) for start in starts]
        return pieces(self.memory, merge_ranges(ranges))

    def _report(self, problem: Problem) -> None:
        """Add a problem, up to _MAX_REPORTED problems. If slots are read again, do not add it
        again."""
        if problem.address not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(problem.address)
            self.problems.append(problem)

    def _problem(self, code: int, group: Group, number: int) -> Problem:
        """Make the problem of a slot, or of the first word of its group."""
        start = group.slot(number)
        header = Range(start - HEADER, start)
        if code == slots.GROUP_HEADER:
            back = self.memory.word(group.mem) or 0
            what = f"the group at {group.mem:#x} has {back:#x} for its meta, not {group.meta:#x}: its header was overwritten"
            return Problem(group.mem, what)
        if code == slots.UNREADABLE:
            return Problem(start, f"the slot at {start:#x} cannot be read: its size is not known", False)
        if code == slots.OVERRUN:
            end = start + group.usable
            what = f"the block {start:#x} was overrun: the number at the end of its slot, which gives its size, is impossible"
            return Problem(start, f"{what}; free() of this block would crash", True, Range(end - HEADER, end))
        if code == slots.UNKNOWN_GROUP:
            return Problem(start, f"the slot at {start:#x} held a group that no meta describes")
        if code == slots.BETWEEN:
            what = f"the slot at {start:#x} is about to be allocated or freed: the process was stopped in malloc or free"
            return Problem(start, what, False)
        if code == slots.NOT_THERE:
            what = (
                f"the header of the block in the slot at {start:#x} was overwritten: the block begins elsewhere than the header indicates"
            )
        else:
            head = self.memory.int32(header.start) or 0
            what = f"the header of the block at {start:#x} was overwritten: it is {head:#010x}, which is not that of slot {number}"
        return Problem(header.start, f"{what}; free() of this block would crash", True, header)
