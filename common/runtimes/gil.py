"""Determine whether a thread holds CPython's global interpreter lock, from the current thread
state.

`PyThreadState_Get`, which every version exports, and `PyThreadState_GetUnchecked` load that state
(Python/pystate.c). Up to 3.11, it is one variable: the state of the thread that holds the lock. One
of the first words of the state is `thread_id`, the result of pthread_self()
(Include/cpython/pystate.h, struct _ts). From 3.12 on, the variable is thread-local, and is 0 while
the thread does not hold the lock. The operands in the code of these functions give the variable's
address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from findleaks.disasm.functions import instructions_at, resolve_stub
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import RAX, RDI, RIP
from findleaks.errors import UnreadableMemory
from findleaks.target.arch import Arch
from findleaks.target.base import Target

GETTERS = ("PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet", "PyThreadState_Get")

# Bytes of a thread state that include `thread_id`: its offset is 144 in 2.7, 152 in 3.6 and 3.11,
# 176 in 3.7 to 3.10.
STATE = 192

LONGEST = 64  # number of bytes read of a getter's code

# The dynamic thread vector: size of an entry, and offset of the block's address in it (glibc,
# sysdeps/generic/dl-dtv.h).
ENTRY, VALUE = 16, 0


@dataclass(frozen=True)
class Lock:
    """The location of the current thread state.

    The state is at `address`; or it is thread-local, at `offset` from the thread pointer or, with
    `module`, from the start of that module's block."""

    arch: Arch
    address: int = 0
    offset: int = 0
    module: int = 0

    def is_held_by(self, word: Callable[[int], int], thread_pointer: int) -> bool:
        """Return whether the thread with this thread pointer, which is pthread_self(), holds the
        lock. `word` returns the word at an address, or raises UnreadableMemory."""
        try:
            state = self.value(word, thread_pointer)
            if not self.address:
                return bool(state)
            step, mask = self.arch.word, self.arch.mask
            return bool(state) and any(word((state + at) & mask) == thread_pointer for at in range(0, STATE, step))
        except UnreadableMemory:
            return False

    def value(self, word: Callable[[int], int], thread_pointer: int) -> int:
        """Return the value of the variable in the thread with this thread pointer. May raise
        UnreadableMemory."""
        if self.address:
            return word(self.address)
        base, mask = thread_pointer, self.arch.mask
        if self.module:
            vector = word((thread_pointer + self.arch.dtv_offset) & mask)
            base = word((vector + ENTRY * self.module + VALUE) & mask)
            if base in (0, mask):  # not allocated yet for this thread
                return 0
        return word((base + self.offset) & mask)


def derive(target: Target) -> Optional[Lock]:
    """Return the lock of the target's CPython; None if there is none, or its code is not as
    expected. Raises CapstoneMissing."""
    for name in GETTERS:
        found = loaded_by(target, name)
        if found is not None:
            return found
    return None


def loaded_by(target: Target, name: str) -> Optional[Lock]:
    """Return the location of the variable that a function loads first; None if there is no such
    function, or its code is not as expected. Raises CapstoneMissing."""
    symbol = target.symbol(name)
    return _lock(target, symbol.address, min(symbol.size or LONGEST, LONGEST)) if symbol is not None else None


def _lock(target: Target, address: int, size: int) -> Optional[Lock]:
    register, variable, index = NONE, 0, 0
    code = iter(instructions_at(target, address, size))
    for one in code:
        offset = _offset(one)
        if offset is not None and one.fs and one.base == NONE:
            return Lock(target.arch, offset=offset)
        if offset is not None and one.base == RIP and not variable:
            register, variable = one.destination, offset
        elif offset is not None and one.base == register >= 0:
            return _through_slot(target, variable, offset, one.fs)
        elif one.name == "lea" and one.base == RIP and one.destination == RDI and one.displacement is not None:
            index = one.displacement
        elif one.name == "call" and one.target is not None and index:
            return _through_index(target, index, one.target, next(code, None))
        elif variable:
            break
    return Lock(target.arch, variable) if variable else None


def _offset(one: Instruction) -> Optional[int]:
    """Return the displacement of a load of a whole word without index register; None for another
    instruction."""
    return one.displacement if one.loads and one.wide and one.scaled < 0 else None


def _through_slot(target: Target, slot: int, offset: int, local: bool) -> Optional[Lock]:
    """Return the lock of a library, which finds the variable through a slot of the global offset
    table. The slot contains an address or, with `local`, an offset in thread-local storage."""
    mask = target.arch.mask
    try:
        value = (target.word(slot) + offset) & mask
    except UnreadableMemory:
        return None
    return Lock(target.arch, offset=value - mask - 1 if value > mask >> 1 else value) if local else Lock(target.arch, value)


def _through_index(target: Target, index: int, called: int, following: Optional[Instruction]) -> Optional[Lock]:
    """Return the lock whose `tls_index` {module number, offset in its block}, the argument of
    __tls_get_addr, is at `index`. The instruction after the call loads from the result."""
    getter = target.symbol("__tls_get_addr")
    more = _offset(following) if following is not None and following.base == RAX else None
    if more is None or getter is None or resolve_stub(target, called) != getter.address:
        return None
    try:
        module, offset = target.word(index), target.word(index + target.arch.word)
    except UnreadableMemory:
        return None
    return Lock(target.arch, offset=offset + more, module=module) if 0 < module < 1 << 16 else None
