"""Find the places in functions of Go that lock or unlock a sync.Mutex or sync.RWMutex. Only machine
code of x86-64 is read.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import RAX, RDX, RIP, RSP
from findleaks.runtimes.go.deferred_closures import is_deferred, list_slots
from findleaks.runtimes.go.path_ends import FATAL
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

_ENDS = ("ret", "ud2", "int3")
DEFERRED = "runtime.deferreturn"
"""Runs the deferred calls of its caller."""
NAMES = ("sync.", "internal/sync.")
"""Beginnings of names of functions that lock."""
# Offsets of the methods of sync.Locker in an itab
_LOCK_SLOT, UNLOCK_SLOT = 0x18, 0x20
DEFERRED_CALLS, OTHER_CLOSURE = -1, -2
"""Values instead of a slot: a call of runtime.deferreturn, and a call of a closure that is not
deferred."""
_CALL = re.compile(rb"[\xe8\xe9](?=(.{4}))", re.DOTALL)
_MOST_CODE = 1 << 16  # bytes of a function
_WORD, _MOST_JUMPS = 8, 1 << 10
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

    def is_unlocked_by(self, other: LockSite) -> bool:
        """Whether another place of the function refers to its lock in the same way. Without an
        address and an offset, it may refer to any lock, such as in a closure. The offset of a Mutex
        is known where it is locked."""
        if not self.may_be(other):
            return False
        is_known = bool(other.address or other.offset)
        return not is_known or (self.address == other.address and (self.offset == other.offset or self.is_shared))


class LockPlace(NamedTuple):
    """Where a lock is. `variable`: its address if it is a variable, 0 if it is in an object of the
    heap. `distances`: its distances from the starts of the object, and of the structures and arrays
    in it, that contain the lock; None if they are not known. See LockSite for the others."""

    variable: int
    distances: Optional[tuple[int, ...]]
    is_shared: bool
    is_read: bool

    def may_be_of(self, site: LockSite) -> bool:
        """Whether a place in a function may unlock the lock. An offset of 0 may be unknown."""
        if self.is_shared != site.is_shared or self.is_read != site.is_read:
            return False
        if site.address:
            return site.address == self.variable
        return self.distances is None or not site.offset or site.offset in self.distances


class LockFunction(NamedTuple):
    """`locks`, `unlocks`: the places that lock or unlock, with calls of functions and of deferred
    closures that unlock what their caller has locked. `next`: by address of an instruction, the
    addresses of those that may run after it. `slots`: indirect calls, by offset in the itab, such
    as those of sync.Locker; 0 for closures; and see DEFERRED_CALLS. `calls`: by address of a direct
    call, the function. `closures`: by function of a closure that is made here, whether it is only
    deferred."""

    entry: int
    locks: Sequence[LockSite]
    unlocks: Sequence[LockSite]
    next: Mapping[int, Sequence[int]]
    slots: Mapping[int, Sequence[int]]
    calls: Mapping[int, int]
    closures: Mapping[int, bool]

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

    def holds(self, site: LockSite, call: int) -> bool:
        """Whether the function holds at `call` what it locks at `site`, if no function that it has
        called has unlocked it; see HeldLocks.list_held."""
        if site.pc == call or not self.reaches([site.pc], call):
            return False
        if self.reaches([self.entry, *(one.pc for one in self.unlocks)], call, [site.pc]):
            return False
        same, after = [one.pc for one in self.locks if one.may_be(site)], self.next.get(call, ())
        return any(self.reaches(after, one.pc, same) for one in self.unlocks if one.may_be(site))

    def list_foreign(self) -> list[LockSite]:
        """Return the places that may unlock what the function has not locked itself."""
        own = ((one, [each.pc for each in self.locks if each.is_unlocked_by(one)]) for one in self.unlocks)
        return [one for one, locks in own if self.reaches([self.entry], one.pc, locks)]

    def list_between(self, start: int, call: int, avoided: Collection[int] = ()) -> set[int]:
        """Return the instructions that may have been executed between `start` and `call`, since the
        last time that one of those `avoided` was executed."""
        before = dict[int, list[int]]()
        for one, following in self.next.items():
            for other in following:
                before.setdefault(other, []).append(one)
        return _follow(self.next, self.next.get(start, ()), avoided) & _follow(before, before.get(call, ()), avoided)

    def releases_locker(self, call: int) -> bool:
        """Whether the function may have called Unlock of a sync.Locker before `call`, and calls
        Lock there or later, as Wait of a condition variable does."""
        unlocks, locks = (self.slots.get(one, ()) for one in (UNLOCK_SLOT, _LOCK_SLOT))
        return any(self.reaches([one], call) for one in unlocks) and any(self.reaches([call], one) for one in locks)


def _follow(following: Mapping[int, Sequence[int]], starts: Iterable[int], avoided: Collection[int]) -> set[int]:
    seen, waiting = set[int](), list(starts)
    while waiting:
        one = waiting.pop()
        if one not in seen and one not in avoided:
            seen.add(one)
            waiting += following.get(one, ())
    return seen


class LockSites:
    """Reads the places in functions that lock or unlock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[int, bool], Optional[LockFunction]] = {}

    def read(self, table: FunctionTable, entry: int, with_callees: bool = True) -> Optional[LockFunction]:
        """Read a function. Return None if its code cannot be read. `with_callees`: whether the
        functions that it calls are read, too."""
        key = entry, with_callees
        if key not in self._known:
            start, end = table.extent(entry)
            pieces = list(self._target.pieces(start, end)) if end - start <= _MOST_CODE else []
            if self._target.arch.name != X86_64.name or sum(len(one.data) for one in pieces) < end - start:
                self._known[key] = None
            else:
                self._known[key] = self._disassemble(table, start, end, with_callees)
        return self._known[key]

    def has_locks(self, table: FunctionTable, entry: int) -> bool:
        """Whether a function calls one that locks or unlocks. Bytes that only look like a call
        count, too."""
        return any(_has_lock(table, bytes(piece.data), piece.address) for piece in self._target.pieces(*table.extent(entry)))

    def _disassemble(self, table: FunctionTable, start: int, end: int, with_callees: bool) -> Optional[LockFunction]:
        try:
            code = list(instructions_at(self._target, start, end - start))
        except CapstoneMissing:
            return None
        following, slots, calls = dict[int, Sequence[int]](), dict[int, list[int]](), dict[int, int]()
        locks, unlocks, deferred = list[LockSite](), list[LockSite](), list[LockSite]()
        closures, own_function = dict[int, bool](), table.find(start)
        stack_slots = list_slots(Memory(self._target), table, own_function) if own_function is not None else ()
        for at, one in enumerate(code):
            following[one.address] = [] if one.name in _ENDS or _never_returns(table, one) else [one.end]
            if one.name.startswith("j"):
                targets = [one.target] if one.target is not None else self._read_jumps(code, at, start, end)
                if not targets:
                    return None
                following[one.address] = targets if one.name == "jmp" else [one.end, *targets]
            is_call = one.name == "call" or (one.name == "jmp" and one.target is not None and not start <= one.target < end)
            if one.name == "lea" and one.base == RIP:
                closure = self.closure_at(table, one.displacement or 0)
                function = table.find(closure)
                if function is not None and function.entry == closure:
                    closures[closure] = closures.get(closure, True) and is_deferred(code, at, function.name, table, stack_slots)
                    deferred += self._list_unlocks(table, one.address, closure) if with_callees else ()
            elif is_call and (one.target is None or _name_called(table, one) == DEFERRED):
                slots.setdefault(_find_slot(code, at) if one.target is None else DEFERRED_CALLS, []).append(one.address)
            elif is_call:
                found = _read_call(table, code, at)
                if found is not None:
                    (unlocks if found[1].endswith("nlock") else locks).append(found[0])
                    continue
                calls[one.address] = one.target or 0
                if with_callees:
                    unlocks += self._list_unlocks(table, one.address, one.target or 0)
        own = (*slots.get(0, ()), *slots.get(DEFERRED_CALLS, ()))
        unlocks += [one._replace(pc=pc) for one in deferred for pc in own]
        return LockFunction(start, locks, unlocks, following, slots, calls, closures)

    def _read_jumps(self, code: Sequence[Instruction], at: int, start: int, end: int) -> list[int]:
        """Return the addresses in the table of a switch: lea base, table; jmp [base + index * 8].
        The table ends before the first word that is not in the function, at the latest."""
        jump = code[at]
        base = next((one for one in code[max(at - _NEAR, 0) : at][::-1] if one.destination == jump.base), None)
        if base is None or base.name != "lea" or base.base != RIP or jump.scale != _WORD or jump.displacement:
            return []
        words = Memory(self._target).words(base.displacement or 0, _MOST_JUMPS) or ()
        return list(takewhile(lambda one: start <= one < end, words))

    def closure_at(self, table: FunctionTable, address: int) -> int:
        """Return the function whose address an instruction loads: `address` itself, or the one of a
        closure without variables."""
        text = table.module.text
        if text.start <= address < text.end:
            return address
        is_constant = table.module.rodata <= address
        return (Memory(self._target).word(address) or 0) if is_constant and address % 8 == 0 else 0

    def _list_unlocks(self, table: FunctionTable, pc: int, called: int) -> Iterator[LockSite]:
        """Yield a place at `pc` for each place in the function `called` that unlocks what the
        function has not locked itself."""
        function = table.find(called)
        if function is None or function.entry != called or function.name.startswith(("runtime.", *NAMES)):
            return
        known = self.read(table, called, False) if self.has_locks(table, called) else None
        for one in known.list_foreign() if known is not None else ():
            yield one._replace(pc=pc)


def _find_slot(code: Sequence[Instruction], at: int) -> int:
    """Return the offset from which an indirect call loads the address of the function: 0 for a
    closure, or if it is unknown; OTHER_CLOSURE for a closure that the function has not deferred:
    only words of the stack refer to deferred ones."""
    one = code[at]
    before = _find_last(code, at, one.source) if one.displacement is None else one
    # If the function made the closure itself, it may load the address from its own frame.
    slot = before.displacement or 0 if before is not None and before.displacement is not None and before.base != RSP else 0
    closure = _find_last(code, at, RDX)
    is_other = closure is not None and closure.loads and closure.base not in (RSP, NONE)
    return OTHER_CLOSURE if not slot and before is not None and before.base == RDX and is_other else slot


def _find_last(code: Sequence[Instruction], at: int, register: int) -> Optional[Instruction]:
    """Return the instruction before `at` that has changed a register last, if no other code leads
    to `at`; None if it is unknown. Moves between registers are followed."""
    for one in code[max(at - _NEAR, 0) : at][::-1]:
        if one.destination == register and one.name == "mov" and one.displacement is None and one.source >= 0:
            register = one.source
        elif one.destination == register:
            return one
        if one.name == "call" or one.name.startswith("j"):
            return None
    return None


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
    where = _find_lock(code, place, *operand)
    if where is None:
        return None
    address, offset = where
    back = READERS if slow is not None and shared else 0
    pc, line = code[place].address, find_line(table, code[at].address)
    return LockSite(line, pc, address - back if address else 0, offset - back, bool(shared), what.startswith("R")), what


def _find_lock(code: Sequence[Instruction], at: int, register: int, offset: int) -> Optional[tuple[int, int]]:
    """Return the address of a variable, or 0 and the distance from an object, for the memory at
    `register` + `offset` before an instruction. Return None for memory in the frame of the
    function: other goroutines cannot refer to it."""
    if register == RIP:
        return offset, 0
    if register == RSP:
        return None
    for one in code[max(at - _NEAR, 0) : at][::-1]:
        if one.name == "call":
            break
        if one.destination == register and one.name == "lea" and one.scaled == NONE:
            more = one.displacement or 0
            if one.base == RSP:
                return None
            return (more + offset, 0) if one.base == RIP else (0, more + offset)
        if one.destination == register and one.name != "cmp" and one.name != "test":
            break
    return 0, offset


def _name_called(table: FunctionTable, one: Instruction) -> str:
    function = table.find(one.target) if one.name in ("call", "jmp") and one.target is not None else None
    return function.name if function is not None and function.entry == one.target else ""


def _never_returns(table: FunctionTable, one: Instruction) -> bool:
    return FATAL.match(_name_called(table, one)) is not None


def _has_lock(table: FunctionTable, code: bytes, start: int) -> bool:
    """Whether code calls a function that locks. Bytes that only look like a call count, too."""
    for match in _CALL.finditer(code):
        entry = start + match.start() + 5 + struct.unpack("<i", match[1])[0]
        function = table.find(entry)
        if function is not None and function.entry == entry and (function.name in _SLOW or _METHOD.match(function.name)):
            return True
    return False


def is_unlocking(name: str) -> bool:
    """Whether this is a function that unlocks a mutex."""
    slow, method = _SLOW.get(name), _METHOD.match(name)
    return (slow[2] if slow is not None else method[2] if method is not None else "").endswith("nlock")


def find_line(table: FunctionTable, pc: int) -> int:
    """Return the line of the function at `pc`, not that of inlined functions; 0 if unknown."""
    places = table.places(pc)
    return places[-1].line if places else 0
