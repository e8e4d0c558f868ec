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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
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
DEFERRED = "runtime.deferreturn"
"""Runs the deferred calls of its caller."""
NAMES = ("sync.", "internal/sync.")
"""Beginnings of names of functions that lock."""
# Offsets of the methods of sync.Locker in an itab
_LOCK_SLOT, _UNLOCK_SLOT = 0x18, 0x20
_CALL = re.compile(rb"\xe8(?=(.{4}))", re.DOTALL)
_MOST_CODE = 1 << 16  # bytes of a function
_NEAR = 16  # instructions among which related ones are looked for


class LockSite(NamedTuple):
    """A place that locks. `line`, `pc`: those of the instruction. `address`: the address of the
    lock if the lock is a variable, otherwise 0; `offset` is then the distance of the lock from the
    object to which the function refers. `is_shared`: whether it is an RWMutex. `is_read`: whether
    other readers may have it, too. For a place that unlocks, these describe the lock that it
    unlocks."""

    line: int
    pc: int
    address: int
    offset: int
    is_shared: bool
    is_read: bool

    def may_be(self, other: LockSite) -> bool:
        """Whether another place may lock or unlock the same lock. An offset of 0 may be unknown,
        and a pointer may refer to a variable."""
        if self.is_shared != other.is_shared or self.is_read != other.is_read:
            return False
        if self.address and other.address:
            return self.address == other.address
        return bool(self.address or other.address) or self.offset == other.offset or not (self.offset and other.offset)


class _Function(NamedTuple):
    """`locks`, `unlocks`: the places that lock or unlock, with calls of functions and of deferred
    closures that unlock what their caller has locked. `next`: by address of an instruction, the
    addresses of those that may run after it. `slots`: indirect calls, by offset in the itab, such
    as those of sync.Locker; 0 for closures."""

    locks: Sequence[LockSite]
    unlocks: Sequence[LockSite]
    next: Mapping[int, Sequence[int]]
    slots: Mapping[int, Sequence[int]]

    def reaches(self, starts: Iterable[int], goal: int, avoided: Iterable[int] = ()) -> bool:
        """Whether a path leads from one of the instructions to `goal` without those `avoided`."""
        seen, waiting = set(avoided), list(starts)
        while waiting:
            one = waiting.pop()
            if one == goal:
                return True
            if one not in seen:
                seen.add(one)
                waiting += self.next.get(one, ())
        return False

    def find_call(self, pc: int) -> int:
        """Return the address of the instruction that contains `pc`; 0 if there is none."""
        return max((one for one in self.next if one <= pc), default=0)

    def holds(self, entry: int, site: LockSite, call: int) -> bool:
        """Whether the function surely holds at `call` what it locks at `site`; see list_held."""
        if site.pc == call or not self.reaches([site.pc], call):
            return False
        if self.reaches([entry, *(one.pc for one in self.unlocks)], call, [site.pc]):
            return False
        same, after = [one.pc for one in self.locks if one.may_be(site)], self.next.get(call, ())
        return any(self.reaches(after, one.pc, same) for one in self.unlocks if one.may_be(site))

    def find_released(self, entry: int, call: int) -> list[LockSite]:
        """Return the places before `call` that unlock what the function has not locked itself."""
        return [
            one
            for one in self.unlocks
            if self.reaches([one.pc], call) and self.reaches([entry], one.pc, [each.pc for each in self.locks if each.may_be(one)])
        ]

    def releases_locker(self, call: int) -> bool:
        """Whether the function may have called Unlock of a sync.Locker before `call`, and calls
        Lock there or later, as Wait of a condition variable does."""
        unlocks, locks = (self.slots.get(one, ()) for one in (_UNLOCK_SLOT, _LOCK_SLOT))
        return any(self.reaches([one], call) for one in unlocks) and any(self.reaches([call], one) for one in locks)


_NOTHING = _Function((), (), {}, {})


class LockSites:
    """Reads the places in functions that lock or unlock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[int, bool, bool], Optional[_Function]] = {}
        self._held: dict[tuple[int, bool], Sequence[LockSite]] = {}
        self._released: dict[int, Optional[Sequence[LockSite]]] = {}

    def list_held(self, table: FunctionTable, pc: int, is_locking: bool) -> Sequence[LockSite]:
        """Return the places at which a function has taken the locks that it holds at `pc`: each
        path to `pc` leads through the place, no path from an unlock leads to `pc` without it, and a
        path leads from `pc` to an unlock. A lock is left out if this is not certain. `pc`: an
        address in a call.
        `is_locking`: whether the function locks there; this lock is not held."""
        key = pc, is_locking
        if key not in self._held:
            self._held[key] = self._list_held(table, pc, is_locking)
        return self._held[key]

    def _list_held(self, table: FunctionTable, pc: int, is_locking: bool) -> Sequence[LockSite]:
        function = table.find(pc)
        known = self._read(table, function.entry, True, False) if function is not None else None
        if function is None or known is None or not known.locks:
            return ()
        places = table.places(pc)
        is_locking = is_locking or any(one.function.startswith(NAMES) for one in places[:1])
        call, line = known.find_call(pc), _line(table, pc) if is_locking else 0
        return [one for one in known.locks if one.line != line and known.holds(function.entry, one, call)]

    def list_released(self, table: FunctionTable, pc: int) -> Optional[Sequence[LockSite]]:
        """Return the places in a function that may have unlocked, before `pc`, what a caller of the
        function has locked; None if any lock may have been unlocked."""
        if pc not in self._released:
            function = table.find(pc)
            known = self._read(table, function.entry, True, True) if function is not None else None
            call = known.find_call(pc) if known is not None else 0
            is_known = function is not None and known is not None and not known.releases_locker(call)
            self._released[pc] = (
                known.find_released(function.entry, call) if is_known and known is not None and function is not None else None
            )
        return self._released[pc]

    def _read(self, table: FunctionTable, entry: int, with_callees: bool, always: bool) -> Optional[_Function]:
        """Read a function. Return None if its code cannot be read. `with_callees`: whether the
        functions that it calls are read, too. If not `always`, return nothing for functions that
        do not lock themselves."""
        key = entry, with_callees, always
        if key not in self._known:
            start, end = table.extent(entry)
            pieces = list(self._target.pieces(start, end)) if end - start <= _MOST_CODE else []
            if self._target.arch.name != X86_64.name or sum(len(one.data) for one in pieces) < end - start:
                self._known[key] = None
            elif always or any(_has_lock(table, bytes(piece.data), piece.address) for piece in pieces):
                self._known[key] = self._disassemble(table, start, end, with_callees)
            else:
                self._known[key] = _NOTHING
        return self._known[key]

    def _disassemble(self, table: FunctionTable, start: int, end: int, with_callees: bool) -> Optional[_Function]:
        try:
            code = list(instructions_at(self._target, start, end - start))
        except CapstoneMissing:
            return None
        following, slots = dict[int, Sequence[int]](), dict[int, list[int]]()
        locks, unlocks, deferred = list[LockSite](), list[LockSite](), list[LockSite]()
        for at, one in enumerate(code):
            following[one.address] = [] if one.name in _ENDS or _never_returns(table, one) else [one.end]
            if one.name.startswith("j"):
                if one.target is None:  # a table of addresses
                    return None
                following[one.address] = [one.target] if one.name == "jmp" else [one.end, one.target]
            if one.name == "lea" and one.base == RIP and with_callees:
                deferred += self._list_unlocks(table, one.address, self._closure_at(table, one.displacement or 0))
            elif one.name == "call" and (one.target is None or _name_called(table, one) == DEFERRED):
                slots.setdefault(_find_slot(code, at) if one.target is None else 0, []).append(one.address)
            elif one.name == "call":
                found = _read_call(table, code, at)
                if found is not None:
                    (unlocks if found[1].endswith("nlock") else locks).append(found[0])
                elif with_callees:
                    unlocks += self._list_unlocks(table, one.address, one.target or 0)
        unlocks += [one._replace(pc=pc) for one in deferred for pc in slots.get(0, ())]
        return _Function(locks, unlocks, following, slots)

    def _closure_at(self, table: FunctionTable, address: int) -> int:
        """Return the function whose address an instruction loads: `address` itself, or the one of a
        closure without variables."""
        text = table.module.text
        return address if text.start <= address < text.end else Memory(self._target).word(address) or 0

    def _list_unlocks(self, table: FunctionTable, pc: int, called: int) -> Iterator[LockSite]:
        """Yield a place at `pc` for each place in the function `called` that unlocks what the
        function has not locked itself."""
        function = table.find(called)
        if function is None or function.entry != called or function.name.startswith(("runtime.", *NAMES)):
            return
        known = self._read(table, called, False, False)
        for one in known.unlocks if known is not None else ():
            if known is not None and known.reaches([called], one.pc, [each.pc for each in known.locks if each.may_be(one)]):
                yield one._replace(pc=pc)


def _find_slot(code: Sequence[Instruction], at: int) -> int:
    """Return the offset from which an indirect call loads the address of the function: 0 for a
    closure, or if it is unknown."""
    one = code[at]
    if one.displacement is not None:
        return one.displacement
    before = next((each for each in code[max(at - _NEAR, 0) : at][::-1] if each.destination == one.source), None)
    return before.displacement or 0 if before is not None and before.loads else 0


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
    return LockSite(line, pc, address - back if address else 0, offset - back, bool(shared), what.startswith("R")), what


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
