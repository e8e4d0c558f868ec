"""Find out whether a function of Go only defers a closure. Only machine code of x86-64 is read.

Code that defers a closure either stores it in a slot of the frame, from which it loads it at the
end of the function (open-coded), or in a record that it gives to runtime.deferprocStack. The
funcdata of the function has the offsets of the slots.

Sources: Go 1.18 to 1.27, src/cmd/compile/internal/ssagen/ssa.go (emitOpenDeferInfo),
src/runtime/panic.go (runOpenDeferFrame, nextFrame), runtime2.go (_defer)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from findleaks.allocators.memory import Memory
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import RAX, RDX, RSP
from findleaks.runtimes.go.pclntab import Function, FunctionTable
from findleaks.target.encoded_numbers import uleb128

_NAME = re.compile(r"\.deferwrap\d+$|·dwrap·\d+$")
_OPEN_CODED = 4  # FUNCDATA_OpenCodedDeferInfo
_MOST_SLOTS, _MOST_BYTES = 8, 64
_WORD = 8
_REGISTERS, _CHECKS = re.compile(r"runtime\.deferprocStack$"), re.compile(r"runtime\.race(?:read|write)")
_CLOSURE = 24  # offset of _defer.fn
_NEAR = 16  # instructions among which related ones are looked for


def list_slots(memory: Memory, table: FunctionTable, function: Function) -> frozenset[int]:
    """Return the slots for deferred closures, as distances in bytes from the end of the frame's
    local variables (varp) downwards."""
    address = table.funcdata(function, _OPEN_CODED)
    data = (memory.read(address, _MOST_BYTES) or memory.read(address, _WORD)) if address else b""
    numbers, at = list[int](), 0
    try:
        while data and len(numbers) < 2 + _MOST_SLOTS:
            value, at = uleb128(data, at)
            numbers.append(value)
    except ValueError:  # the end of the data
        pass
    if len(numbers) < 2:
        return frozenset()
    # Up to 1.21: the number of slots and the offset of each. Since 1.22: the offset of the first
    # slot, which is a multiple of 8; the others follow it.
    if numbers[1] < _WORD:
        return frozenset(numbers[2 : 2 + numbers[1]])
    return frozenset(range(numbers[1], 0, -_WORD)[:_MOST_SLOTS]) if numbers[1] % _WORD == 0 else frozenset()


def is_deferred(code: Sequence[Instruction], at: int, name: str, table: FunctionTable, slots: Collection[int]) -> bool:
    """Whether the closure `name`, whose function the instruction `at` loads, is only called when
    the function ends. `slots`: see list_slots. Such a closure is on the stack, and only a slot or a
    record of a deferred call refers to it."""
    if _NAME.search(name):
        return True
    places, depth = _list_stores(code, at), table.depth(code[at].address)
    if len(places) != 1 or depth is None:
        return False
    (place,) = places
    # A closure without variables is a constant: the word refers to it. Otherwise the word has the
    # address of the closure on the stack.
    addresses = [number for number, one in enumerate(code) if _is_address(one, place) and not _is_argument(code, number, table, _CHECKS)]
    stores = [_list_stores(code, number) for number in addresses]
    if not all(stores):
        return False
    words = frozenset[int]().union(*stores) if addresses else places
    end = depth - _WORD  # the word before the return address is the frame pointer of the caller
    kept = frozenset(word for word in words if end - word in slots or _is_in_record(code, word, table))
    if not kept:
        return False
    # Without optimisation, a variable has the address, too. The variable must not be in a structure
    # whose address is used.
    for word in words - kept:
        known = {place, *(one - _CLOSURE for one in kept)}
        if any(one.name == "lea" and one.base == RSP and one.displacement not in known and (one.displacement or 0) <= word for one in code):
            return False
    loads = (number for number, one in enumerate(code) if one.loads and one.base == RSP and one.displacement in words)
    return all(_is_called(code, number) for number in loads)


def _is_in_record(code: Sequence[Instruction], word: int, table: FunctionTable) -> bool:
    """Whether a word is that of the closure in a record that is only used for a deferred call."""
    records = [number for number, one in enumerate(code) if _is_address(one, word - _CLOSURE)]
    return bool(records) and all(_is_argument(code, number, table, _REGISTERS) for number in records)


def _is_argument(code: Sequence[Instruction], at: int, table: FunctionTable, functions: re.Pattern[str]) -> bool:
    """Whether an address that an instruction loads is only the argument of one of the functions."""
    if code[at].destination != RAX:
        return False
    call = next((one for one in code[at + 1 : at + _NEAR] if one.name == "call" or one.destination == RAX or one.source == RAX), None)
    function = table.find(call.target) if call is not None and call.name == "call" and call.target is not None else None
    return function is not None and functions.match(function.name) is not None


def _is_address(one: Instruction, place: int) -> bool:
    return one.name == "lea" and one.base == RSP and one.displacement == place and one.scaled == NONE


def _list_stores(code: Sequence[Instruction], at: int) -> frozenset[int]:
    """Return the offsets from the stack pointer at which the result of an instruction is stored
    next; nothing if it is used in another way."""
    register, found = code[at].destination, set[int]()
    for one in code[at + 1 : at + _NEAR]:
        if one.stores and one.source == register and one.base == RSP and one.scaled == NONE:
            found.add(one.displacement or 0)
        elif one.name in ("call", "ret") or one.name.startswith("j") or one.destination == register:
            break
        elif register in (one.source, one.base, one.scaled):
            return frozenset()
    return frozenset(found)


def _is_called(code: Sequence[Instruction], at: int) -> bool:
    """Whether a loaded closure is called next: the register of the context has its address."""
    if code[at].destination != RDX:
        return False
    for one in code[at + 1 : at + _NEAR]:
        if one.name == "call":
            return one.target is None
        if one.name in ("ret",) or one.name.startswith("j") or one.destination == RDX or one.source == RDX:
            return False
    return False
