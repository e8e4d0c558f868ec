"""Find the places in functions of Go that lock or unlock a sync.Mutex or sync.RWMutex, and which
locks a function holds at a pc. Only machine code of x86-64 is read.

The compiler inlines Mutex.Lock, Mutex.Unlock, RWMutex.RLock and RWMutex.RUnlock: the function has
the atomic instruction itself (lock cmpxchg, lock xadd), and after it the call of a function for the
case that the lock is not free, such as lockSlow. Other methods are called, with the address of the
lock in rax. An instruction before it often computes the address (lea); without one, the lock is the
first field of an object.

Source: Go 1.18 to 1.27, src/sync/mutex.go and rwmutex.go, src/internal/sync/mutex.go (since 1.24).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import RAX, RIP
from findleaks.runtimes.go.pclntab import FunctionTable
from findleaks.target.arch import X86_64
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

READERS = 16
"""Offset of readerCount in a sync.RWMutex: the number of readers, less MOST_READERS if a writer has
the lock or waits for it (rwmutexMaxReaders)."""

MOST_READERS = 1 << 30

_METHOD = re.compile(r"(?:internal/)?sync\.\(\*(RW)?Mutex\)\.(R?Lock|R?Unlock)$")
_SLOW = {
    "sync.(*Mutex).lockSlow": ("cmpxchg", "", "Lock"),
    "internal/sync.(*Mutex).lockSlow": ("cmpxchg", "", "Lock"),
    "sync.(*Mutex).unlockSlow": ("xadd", "", "Unlock"),
    "internal/sync.(*Mutex).unlockSlow": ("xadd", "", "Unlock"),
    "sync.runtime_SemacquireMutex": ("xadd", "RW", "RLock"),  # up to 1.20
    "sync.runtime_SemacquireRWMutexR": ("xadd", "RW", "RLock"),
    "sync.(*RWMutex).rUnlockSlow": ("xadd", "RW", "RUnlock"),
}
"""Functions that inlined methods call: the atomic instruction before the call, and the method."""

_FATAL = re.compile(r"runtime\.(?:gopanic|goPanic\w+|panic\w*|throw|fatal|fatalthrow)$")
"""Functions that never return."""

_ENDS = ("ret", "ud2", "int3")
_CALL = re.compile(rb"\xe8(?=(.{4}))", re.DOTALL)
_MOST_CODE = 1 << 16  # bytes of a function
_NEAR = 16  # instructions among which related ones are looked for


class LockSite(NamedTuple):
    """A place that locks. `line`, `pc`: of the instruction. `address`: of the lock, if it is a
    variable, or 0; else `offset` is its distance from the object to which the function refers.
    `is_shared`: whether it is an RWMutex. `is_read`: whether other readers may have it, too."""

    line: int
    pc: int
    address: int
    offset: int
    is_shared: bool
    is_read: bool


class _Function(NamedTuple):
    """`locks`: the places that lock. `unlocks`: the addresses of instructions that unlock. `next`:
    by address of an instruction, the addresses of those that may run after it."""

    locks: Sequence[LockSite]
    unlocks: Sequence[int]
    next: Mapping[int, Sequence[int]]

    def reaches(self, starts: Iterable[int], goal: int, avoided: int) -> bool:
        """Whether a path leads from one of the instructions to `goal` without `avoided`."""
        seen, waiting = {avoided}, list(starts)
        while waiting:
            one = waiting.pop()
            if one == goal:
                return True
            if one not in seen:
                seen.add(one)
                waiting += self.next.get(one, ())
        return False


_NOTHING = _Function((), (), {})


class LockSites:
    """Reads the places in functions that lock or unlock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[int, _Function] = {}

    def list_held(self, table: FunctionTable, pc: int, is_waiting: bool) -> list[LockSite]:
        """Return the places that lock what a function surely holds at `pc`: each path to `pc` leads
        through the place, and no path from an unlock leads to `pc` without it. Some locks that are
        held may be missing. `pc`: an address in a call. `is_waiting`: whether the function waits
        for a lock there; this lock is not held."""
        function = table.find(pc)
        if function is None or self._target.arch.name != X86_64.name:
            return []
        known = self._known.get(function.entry)
        if known is None:
            known = self._known[function.entry] = self._read(table, pc)
        call = max((one for one in known.next if one <= pc), default=0)
        line = _line(table, pc) if is_waiting else 0
        return [
            one
            for one in known.locks
            if one.line != line and not known.reaches([function.entry, *known.unlocks], call, one.pc) and one.pc != call
        ]

    def _read(self, table: FunctionTable, pc: int) -> _Function:
        start, end = table.extent(pc)
        pieces = list(self._target.pieces(start, end)) if end - start <= _MOST_CODE else []
        if not any(_has_lock(table, bytes(piece.data), piece.address) for piece in pieces):
            return _NOTHING
        try:
            code = list(instructions_at(self._target, start, end - start))
        except CapstoneMissing:
            return _NOTHING
        following = dict[int, Sequence[int]]()
        for one in code:
            following[one.address] = [] if one.name in _ENDS or _never_returns(table, one) else [one.end]
            if one.name.startswith("j"):
                if one.target is None:  # a table of addresses
                    return _NOTHING
                following[one.address] = [one.target] if one.name == "jmp" else [one.end, one.target]
        locks, unlocks = list[LockSite](), list[int]()
        for at, one in enumerate(code):
            if one.name == "call" and one.target is not None:
                found = _read_call(table, code, at)
                if found is not None and found[1].endswith("nlock"):
                    unlocks.append(found[0].pc)
                elif found is not None:
                    locks.append(found[0])
        return _Function(locks, unlocks, following)


def _read_call(table: FunctionTable, code: Sequence[Instruction], at: int) -> Optional[tuple[LockSite, str]]:
    """Return the place that locks or unlocks, and the method; None if a call does neither."""
    name = _name_called(table, code[at])
    method, slow, operand, place = _METHOD.match(name), _SLOW.get(name), (RAX, 0), at
    if slow is not None:
        near = range(at - 1, max(at - _NEAR, 0) - 1, -1)
        place = next((one for one in near if code[one].name == slow[0] and code[one].locked), -1)
        if place < 0:
            return None
        operand = (code[place].base, code[place].displacement or 0)
    if slow is None and method is None:
        return None
    shared, what = (slow[1], slow[2]) if slow is not None else (method[1] or "", method[2]) if method is not None else ("", "")
    address, offset = _find_lock(code, place, *operand)
    back = READERS if slow is not None and shared else 0
    pc, line = code[place].address, _line(table, code[at].address)
    return LockSite(line, pc, address - back if address else 0, offset - back, bool(shared), what == "RLock"), what


def _find_lock(code: Sequence[Instruction], at: int, register: int, offset: int) -> tuple[int, int]:
    """Return the address of a variable, or 0 and the distance from an object, for the memory at
    `register` + `offset` before an instruction."""
    if register == RIP:
        return offset, 0
    for one in code[max(at - _NEAR, 0) : at][::-1]:
        if one.name == "call":
            break
        if one.destination == register and one.name == "lea" and one.scaled == NONE:
            more = one.displacement or 0
            return (more + offset, 0) if one.base == RIP else (0, more + offset)
        if one.destination == register and one.name != "cmp" and one.name != "test":
            break
    return 0, offset


def _name_called(table: FunctionTable, one: Instruction) -> str:
    function = table.find(one.target) if one.name == "call" and one.target is not None else None
    return function.name if function is not None and function.entry == one.target else ""


def _never_returns(table: FunctionTable, one: Instruction) -> bool:
    return _FATAL.match(_name_called(table, one)) is not None


def _has_lock(table: FunctionTable, code: bytes, start: int) -> bool:
    """Whether code calls a function that locks. Bytes that only look like a call count, too."""
    for match in _CALL.finditer(code):
        entry = start + match.start() + 5 + struct.unpack("<i", match[1])[0]
        function = table.find(entry)
        if function is not None and function.entry == entry and (function.name in _SLOW or _METHOD.match(function.name)):
            return True
    return False


def _line(table: FunctionTable, pc: int) -> int:
    """Return the line of the function at `pc`, not that of inlined functions; 0 if unknown."""
    places = table.places(pc)
    return places[-1].line if places else 0
