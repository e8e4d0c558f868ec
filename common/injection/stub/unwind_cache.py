"""The unwind cache recognises a stack that was unwound before, by the words that the unwinder read.

These words are the return addresses, and saved frame pointers if a frame is found through one. On
an architecture with a link register, the innermost return address may be in this register.

Each stack is a path in a trie. A node states which word to read next, by its offset from the stack
pointer. The branches of a node are the values that were seen at this offset. If a stack matches a
path to its end, it is the stack of this path, because all words that unwinding would read were
compared. Frame pointers are stored relative to the stack pointer, so that threads share paths.
Stacks that a trie cannot describe (signal frames, DWARF expressions) have their top
FALLBACK_KEY_BYTES as key."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional, Union, cast

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Module, Region, Target, Thread
from findleaks.unwind.cfi import Row
from findleaks.unwind.frames import Frame, FrameRegisters, Trace, Unwinder

FALLBACK_KEY_BYTES = 512
# Bytes of a stack that are read at once: initially, and at most. Words beyond these are read one by
# one.
FIRST_READ_BYTES, MAX_READ_BYTES = 1 << 10, 1 << 16
MAX_STACKS = 1 << 16

Read = Callable[[int, int], bytes]


POINTER, LINK = "frame pointer", "link register"
Place = Union[int, str]
"""The position of a word: its offset from the stack pointer, or a register (POINTER or LINK)."""


class _TrieNode:
    """A node of the trie. The word at `offset` is read next. `relative`: whether its value is
    compared relative to the stack pointer."""

    __slots__ = ("branches", "offset", "relative")

    def __init__(self, offset: Place, relative: bool) -> None:
        self.offset, self.relative = offset, relative
        self.branches: dict[int, Union[_TrieNode, Trace]] = {}


Step = tuple[Place, bool, int]  # (offset, relative, value) of one word


class _CallerFound(NamedTuple):
    """How a frame's caller was found. `slot`: position of the return address (None: in the link
    register). `saved`: position of the saved frame pointer (None: not saved). `pointer`: the frame
    pointer, if it was needed. `outer`: whether the caller's frame pointer was also needed."""

    slot: Optional[int]
    saved: Optional[int]
    pointer: Optional[int]
    outer: bool = False


class UnwindCache:
    """The stacks of a process. Call `reload(target)` after new mappings; complete stacks stay
    valid."""

    def __init__(self, target: Target, read: Read) -> None:
        self.hits = self.misses = 0
        self._read = read
        self._read_bytes = FIRST_READ_BYTES
        self._word = struct.Struct(target.arch.word_format).unpack_from
        self._tries: dict[int, Union[_TrieNode, Trace]] = {}
        self._by_top: dict[tuple[int, int, bytes], Trace] = {}
        arch = target.arch
        names = arch.dwarf_registers
        self._stack, self._pointer = names.index(arch.sp), names.index(arch.frame_pointer)
        self._link = names.index(arch.link_register) if arch.link_register else -1
        self.reload(target)

    def reload(self, target: Target) -> None:
        """Continue with the present mappings of the process."""
        self._fresh = Fresh(target, self._read)
        self.unwinder = Unwinder(self._fresh)
        # A return address may be signed. The signature does not depend on the stack's shape, and
        # differs between threads.
        self._code_mask = self.unwinder.code_mask if self._link >= 0 else self._fresh.arch.mask
        self._by_top.clear()

    def lookup_or_unwind(self, pc: int, sp: int, fp: int, link: int = 0) -> Trace:
        """Return the stack of a thread at `pc`. Frame addresses are those of the first thread with
        this stack. `link`: the link register, if the architecture has one."""
        data = self._read(sp, self._read_bytes)
        found = self._lookup(pc, sp, fp, link, data) or self._by_top.get((pc, link, data[:FALLBACK_KEY_BYTES]))
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        return self._unwind(pc, sp, fp, link, data)

    def _lookup(self, pc: int, sp: int, fp: int, link: int, data: bytes) -> Optional[Trace]:
        node = self._tries.get(pc)
        word, mask, code_mask, unpack = self._fresh.arch.word, self._fresh.arch.mask, self._code_mask, self._word
        last = len(data) - word
        while type(node) is _TrieNode:
            offset = node.offset
            if isinstance(offset, str):
                value = fp if offset == POINTER else link
            elif 0 <= offset <= last:
                (value,) = unpack(data, offset)
            else:
                one = self._read(sp + offset, word)
                if len(one) < word:
                    return None
                value = self._word(one)[0]
            node = node.branches.get((value - sp) & mask if node.relative else value & code_mask)
        return cast("Optional[Trace]", node)

    def _unwind(self, pc: int, sp: int, fp: int, link: int, data: bytes) -> Trace:
        arch = self._fresh.arch
        self._fresh.forget()
        kept: list[FrameRegisters] = []
        registers = {arch.pc: pc, arch.sp: sp, arch.frame_pointer: fp}
        if arch.link_register:
            registers[arch.link_register] = link
        found = self.unwinder.trace_with_registers(Thread(0, registers, sp, pc, 0), kept)
        steps = self._steps(found, kept, sp)
        if self.misses % MAX_STACKS == 0:
            self._tries.clear()
        if len(self._by_top) >= MAX_STACKS:
            self._by_top.clear()
        if steps is None or not self._add_path(pc, steps, found):
            self._by_top[pc, link, data[:FALLBACK_KEY_BYTES]] = found
        return found

    def _add_path(self, pc: int, steps: list[Step], found: Trace) -> bool:
        """Add a path. Returns False if it contradicts the trie, because JIT code may have
        changed."""
        path: list[Step] = steps
        if not path:
            self._tries[pc] = found
            return True
        node = self._tries.get(pc)
        if not isinstance(node, _TrieNode):
            node = self._tries[pc] = _TrieNode(path[0][0], path[0][1])
        for number, (offset, relative, value) in enumerate(path):
            if (node.offset, node.relative) != (offset, relative):
                return False
            if number == len(path) - 1:
                node.branches[value] = found
                break
            following = node.branches.get(value)
            if not isinstance(following, _TrieNode):
                following = node.branches[value] = _TrieNode(path[number + 1][0], path[number + 1][1])
            node = following
        reach = max((offset for offset, _, _ in path if isinstance(offset, int)), default=0) + self._fresh.arch.word
        self._read_bytes = max(self._read_bytes, min(MAX_READ_BYTES, reach))
        return True

    def _steps(self, found: Trace, kept: list[FrameRegisters], sp: int) -> Optional[list[Step]]:
        """Return the words that unwinding depends on, in order; None if a trie cannot describe
        them."""
        if found.end:
            return None
        mask = self._fresh.arch.mask
        steps: list[Step] = []
        # Position of this frame's pointer; None if it is in the register
        saved: Optional[int] = None
        for number, (frame, state) in enumerate(zip(found.frames, kept)):
            row = self.unwinder.row(frame.call)
            if row is not None and row.outermost:
                return steps
            if row is None:
                caller = self._without_row(found.frames, number, state)
            else:
                caller = self._by_row(row, state, number == 0)
            if caller is None:
                return None
            if caller.pointer is not None:
                steps.append((POINTER if saved is None else saved - sp, True, (caller.pointer - sp) & mask))
            saved = caller.saved if caller.saved is not None else saved
            try:
                if caller.slot is None:
                    steps.append((LINK, False, state.registers[self._link] & self._code_mask))
                else:
                    steps.append((caller.slot - sp, False, self._fresh.word(caller.slot) & self._code_mask))
                if caller.outer and saved is not None:
                    steps.append((saved - sp, True, (self._fresh.word(saved) - sp) & mask))
            except UnreadableMemory:
                return None
        return steps if steps and steps[-1][2] == 0 else None  # it ended with a return address of 0

    def _without_row(self, frames: Sequence[Frame], number: int, state: FrameRegisters) -> Optional[_CallerFound]:
        """Find the caller without call frame information: by the frame pointer, or, after a call to
        an address without code, by the word at the top of the stack. This does not work for signal
        frames."""
        if number == 0 and not self.unwinder.executable(frames[0].pc):
            return _CallerFound(state.registers[self._stack] if self._link < 0 else None, None, None)
        following = frames[number + 1] if number + 1 < len(frames) else None
        pointer = state.registers.get(self._pointer)
        if pointer is None or (following is not None and following.how == "cfi"):
            return None
        row = self.unwinder.row(following.call) if following is not None and self._link >= 0 else None
        by_stack = row is not None and row.register == self._stack
        return _CallerFound(pointer + self._fresh.arch.word, pointer, pointer, by_stack)

    def _by_row(self, row: Row, state: FrameRegisters, innermost: bool) -> Optional[_CallerFound]:
        """Find the caller with call frame information that needs only the stack pointer or the
        frame pointer."""
        if row.signal or row.expression or row.register not in (self._stack, self._pointer) or self._stack in row.rules:
            return None
        base = state.registers.get(row.register)
        rule, own = row.rules.get(row.return_register), row.rules.get(self._pointer)
        if base is None or (own is not None and own.how != "offset"):
            return None
        after = (base + row.offset) & self._fresh.arch.mask
        saved, pointer = after + own.value if own is not None else None, base if row.register == self._pointer else None
        if rule is None and innermost and row.return_register == self._link:
            return _CallerFound(None, saved, pointer)
        return _CallerFound(after + rule.value, saved, pointer) if rule is not None and rule.how == "offset" else None


class Fresh:
    """A target whose memory is read again after each `forget`. The mappings stay as they were when
    it was opened."""

    def __init__(self, target: Target, read: Read) -> None:
        self._target, self.arch = target, target.arch
        self._read = read
        self._pages: dict[int, bytes] = {}
        self._unpack = struct.Struct(self.arch.word_format).unpack_from

    def forget(self) -> None:
        self._pages.clear()

    def read(self, address: int, size: int) -> bytes:
        """Return exactly `size` bytes.
        Raises UnreadableMemory."""
        data = self._read(address, size)
        if len(data) < size:
            raise UnreadableMemory(address, size)
        return data

    def word(self, address: int) -> int:
        """Return the word at `address`.
        Raises UnreadableMemory."""
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
