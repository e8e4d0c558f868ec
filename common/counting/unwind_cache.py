"""Unwinding the same stacks again and again, at the price of reading them.

What the unwinder does is determined by a few words only: the return addresses, and the saved frame pointers where a frame is found by
one. So each stack that was unwound once is kept as a path in a tree, whose nodes name the word to look at next, by its distance from the
stack pointer, and whose branches are the values it may have. A stack that goes a known path to its end is that very stack; no word less
is compared than the unwinder would look at. Frame pointers are kept relative to the stack pointer, so that threads share the tree.
Stacks with frames that the tree cannot describe (signal handlers, expressions) are kept by their top bytes instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional, Union, cast

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Module, Region, Target, Thread
from findleaks.unwind.cfi import Row
from findleaks.unwind.frames import DWARF_REGISTERS, FRAME_POINTERS, Frame, FrameRegisters, Trace, Unwinder

TOP = 512
"""Bytes of a stack that stand for all of it where the tree cannot describe it."""
FIRST, LONGEST = 1 << 10, 1 << 16
"""Bytes of a stack to read at once: at first, and at most. What lies beyond is read word by word."""
MOST = 1 << 16
"""Stacks to keep."""

Read = Callable[[int, int], bytes]


class _Node:
    """`offset` of the word to look at, from the stack pointer; None: the frame pointer itself. `relative`: its value counts from the
    stack pointer, too."""

    __slots__ = ("branches", "offset", "relative")

    def __init__(self, offset: Optional[int], relative: bool) -> None:
        self.offset, self.relative = offset, relative
        self.branches: dict[int, Union[_Node, Trace]] = {}


Step = tuple[Optional[int], bool, int]
"""offset, relative and value of one word."""


class _Way(NamedTuple):
    """How a frame's caller was found: where the return address is, where the frame pointer was saved (None: it was not), and the frame
    pointer itself where it was needed."""

    slot: int
    saved: Optional[int]
    pointer: Optional[int]


class Memo:
    """The stacks of one process. `target` may be replaced, when it maps other files, by `reopen`."""

    def __init__(self, target: Target, read: Read) -> None:
        self.hits = self.misses = 0
        self._read = read
        self._size = FIRST
        self._word = struct.Struct(target.arch.word_format).unpack_from
        self._trees: dict[int, Union[_Node, Trace]] = {}
        self._tops: dict[tuple[int, bytes], Trace] = {}
        names, arch = DWARF_REGISTERS.get(target.arch.name), target.arch
        self._stack, self._pointer = (names.index(arch.sp), names.index(FRAME_POINTERS[arch.name])) if names else (-1, -1)
        self.reopen(target)

    def reopen(self, target: Target) -> None:
        """Go on with the process as it is mapped now; what is known of stacks that ended well still holds."""
        self._fresh = Fresh(target, self._read)
        self.unwinder = Unwinder(self._fresh)
        self._tops.clear()

    def trace(self, pc: int, sp: int, fp: int) -> Trace:
        """The stack of a thread that stands there. Frames' `sp` are those of the first thread that had this stack."""
        data = self._read(sp, self._size)
        known = self._known(pc, sp, fp, data) or self._tops.get((pc, data[:TOP]))
        if known is not None:
            self.hits += 1
            return known
        self.misses += 1
        return self._unwound(pc, sp, fp, data)

    def _known(self, pc: int, sp: int, fp: int, data: bytes) -> Optional[Trace]:
        node = self._trees.get(pc)
        word, mask, unpack = self._fresh.arch.word, self._fresh.arch.mask, self._word
        last = len(data) - word
        while type(node) is _Node:
            offset = node.offset
            if offset is None:
                value = fp
            elif 0 <= offset <= last:
                (value,) = unpack(data, offset)
            else:
                one = self._read(sp + offset, word)
                if len(one) < word:
                    return None
                value = self._word(one)[0]
            node = node.branches.get((value - sp) & mask if node.relative else value)
        return cast("Optional[Trace]", node)

    def _unwound(self, pc: int, sp: int, fp: int, data: bytes) -> Trace:
        arch = self._fresh.arch
        names = DWARF_REGISTERS.get(arch.name)
        if names is None:
            return Trace((Frame(pc, pc, sp, "top"),), f"stacks of {arch.name} are not unwound")
        self._fresh.forget()
        kept: list[FrameRegisters] = []
        registers = {arch.pc: pc, arch.sp: sp, FRAME_POINTERS[arch.name]: fp}
        found = self.unwinder.trace_with_registers(Thread(0, registers, sp, pc, 0), kept)
        steps = self._steps(found, kept, sp)
        if self.misses % MOST == 0:
            self._trees.clear()
        if len(self._tops) >= MOST:
            self._tops.clear()
        if steps is None or not self._plant(pc, steps, found):
            self._tops[pc, data[:TOP]] = found
        return found

    def _plant(self, pc: int, steps: list[Step], found: Trace) -> bool:
        """Add a path; False where it disagrees with the tree, as code made at run time may have changed."""
        path: list[Step] = steps
        if not path:
            self._trees[pc] = found
            return True
        node = self._trees.get(pc)
        if not isinstance(node, _Node):
            node = self._trees[pc] = _Node(path[0][0], path[0][1])
        for number, (offset, relative, value) in enumerate(path):
            if (node.offset, node.relative) != (offset, relative):
                return False
            if number == len(path) - 1:
                node.branches[value] = found
                break
            following = node.branches.get(value)
            if not isinstance(following, _Node):
                following = node.branches[value] = _Node(path[number + 1][0], path[number + 1][1])
            node = following
        reach = max((offset for offset, _, _ in path if offset is not None), default=0) + 8
        self._size = max(self._size, min(LONGEST, reach))
        return True

    def _steps(self, found: Trace, kept: list[FrameRegisters], sp: int) -> Optional[list[Step]]:
        """The words that made the unwinder take this way, in its order; None where they are others than the tree knows."""
        if found.end:
            return None
        mask = self._fresh.arch.mask
        steps: list[Step] = []
        saved: Optional[int] = None  # where the frame pointer of this frame is saved; None: it is in the register still
        for number, (frame, state) in enumerate(zip(found.frames, kept)):
            row = self.unwinder.row(frame.call)
            if row is not None and row.outermost:
                return steps
            if row is None:
                way = self._without_row(frame, state, number == 0)
            else:
                way = self._by_row(row, state)
            if way is None:
                return None
            if way.pointer is not None:
                steps.append((None if saved is None else saved - sp, True, (way.pointer - sp) & mask))
            saved = way.saved if way.saved is not None else saved
            try:
                steps.append((way.slot - sp, False, self._fresh.word(way.slot)))
            except UnreadableMemory:
                return None
        return steps if steps and steps[-1][2] == 0 else None  # it ended with a return address of 0

    def _without_row(self, frame: Frame, state: FrameRegisters, innermost: bool) -> Optional[_Way]:
        """Code without call frame information: by the frame pointer, or a call to nowhere by the top of the stack."""
        if innermost and not self.unwinder.executable(frame.pc):
            return _Way(state.registers[self._stack], None, None)
        pointer = state.registers.get(self._pointer)
        return _Way(pointer + self._fresh.arch.word, pointer, pointer) if pointer is not None else None

    def _by_row(self, row: Row, state: FrameRegisters) -> Optional[_Way]:
        """By call frame information that finds the caller's frame from the stack pointer or the frame pointer, and nothing else."""
        if row.signal or row.expression or row.register not in (self._stack, self._pointer) or self._stack in row.rules:
            return None
        base = state.registers.get(row.register)
        rule, own = row.rules.get(row.return_register), row.rules.get(self._pointer)
        if base is None or rule is None or rule.how != "offset" or (own is not None and own.how != "offset"):
            return None
        after = (base + row.offset) & self._fresh.arch.mask
        return _Way(after + rule.value, after + own.value if own is not None else None, base if row.register == self._pointer else None)


class Fresh:
    """A target whose memory is read anew whenever `forget` was called; what is mapped is as it was when the target was opened."""

    def __init__(self, target: Target, read: Read) -> None:
        self._target, self.arch = target, target.arch
        self._read = read
        self._pages: dict[int, bytes] = {}
        self._unpack = struct.Struct(self.arch.word_format).unpack_from

    def forget(self) -> None:
        self._pages.clear()

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes, or UnreadableMemory."""
        data = self._read(address, size)
        if len(data) < size:
            raise UnreadableMemory(address, size)
        return data

    def word(self, address: int) -> int:
        """The word at `address`, or UnreadableMemory."""
        base = address & -self.arch.page
        page = self._pages.get(base)
        if page is None:
            page = self._pages[base] = self._read(base, self.arch.page)
        if address - base + self.arch.word > len(page):
            return int(self._unpack(self.read(address, self.arch.word))[0])
        return int(self._unpack(page, address - base)[0])

    def regions(self) -> Sequence[Region]:
        return self._target.regions()

    def modules(self) -> Sequence[Module]:
        return self._target.modules()
