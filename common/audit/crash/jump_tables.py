"""Find the destinations of a jump through a table, as compilers translate a switch (x86-64).

A table contains either addresses (8 bytes), or distances from its own start (4 bytes, signed):

    cmp $8, %edi                     cmp $8, %edi
    ja  default                      ja  default
    jmp *table(,%rdi,8)              lea table(%rip), %rdx
                                     movslq (%rdx,%rdi,4), %rax
                                     add %rdx, %rax
                                     jmp *%rax

The comparison shows the length of the table. If the compiler left it out, for example because the
index is a byte, a word after the start of the table counts as an entry if its destination is in the
function. A word that is wrongly counted as an entry causes no wrong result, only less certain code
(straight_code.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import RIP
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple

_NEAR = 14  # instructions before the jump that are searched for its operands and the comparison
_LONGEST = 1024  # entries of a table
_ENDS = ("jmp", "ret", "ud2", "hlt")
_COPIES = ("mov", "movzx", "movsxd", "movsx", "lea")


class _Table(NamedTuple):
    """A table at one of the addresses `bases`. `first`: the number of the first instruction
    that computes the destination. `selector`: the register that contains the index."""

    bases: set[int]
    width: int
    first: int
    selector: int


def find_destinations(target: Target, code: Sequence[Instruction], at: int, function: Range) -> Optional[set[int]]:
    """Return the possible destinations of the indirect jump `code[at]`; None if they are
    unknown. `code`: the instructions of the part of the function that contains the jump."""
    table = _find_table(code, at)
    if table is None:
        return None
    length = _find_length(code, table)
    places = {one.address for one in code}
    found: set[int] = set()
    for base in table.bases:
        entries = list(_read_entries(target, base, table.width, length or _LONGEST))
        if not entries or entries[0] not in places:
            if entries and _is_code(target, entries[0]):
                return None  # the first case may be in another part of the function
            continue  # not the start of a table
        if len(entries) < length:
            return None
        found.update(entries if length else [one for one in entries if function.start <= one < function.end])
    return found or None


def _find_table(code: Sequence[Instruction], at: int) -> Optional[_Table]:
    jump = code[at]
    if jump.displacement is not None:
        return _absolute(code, at, jump)
    if jump.source < 0:
        return None
    last = _find_write(code, at, jump.source)
    if last is None:
        return None
    one = code[last]
    if one.name == "mov" and one.scaled != NONE and one.wide:
        return _absolute(code, last, one)
    if one.name != "add" or one.source < 0 or not one.wide:
        return None
    # Either register may contain the start of the table.
    for base, distance in ((one.source, one.destination), (one.destination, one.source)):
        load = _find_load(code, last, distance)
        bases = _find_bases(code, last, base) if load is not None else None
        if load is not None and bases:
            return _Table(bases, 4, load, _index_of(code, load))
    return None


def _absolute(code: Sequence[Instruction], at: int, one: Instruction) -> Optional[_Table]:
    """Return the table of addresses from which an instruction loads."""
    if one.scaled == NONE or one.scale != 8 or one.displacement is None or one.fs:
        return None
    bases = {0} if one.base == NONE else _find_bases(code, at, one.base)
    return _Table({base + one.displacement for base in bases}, 8, at, one.scaled) if bases else None


def _before(code: Sequence[Instruction], at: int) -> Iterator[int]:
    """Yield the numbers of the instructions that precede `at` without a jump or call between them,
    the last one first."""
    for index in range(at - 1, max(at - 1 - _NEAR, -1), -1):
        if code[index].name in _ENDS or code[index].name == "call":
            return
        yield index


def _find_write(code: Sequence[Instruction], at: int, register: int) -> Optional[int]:
    return next((index for index in _before(code, at) if code[index].destination == register and code[index].name != "cmp"), None)


def _find_load(code: Sequence[Instruction], at: int, register: int) -> Optional[int]:
    """Return the number of the instruction that loads the distance in `register`: movslq, or mov
    and cdqe."""
    load = _find_write(code, at, register)
    is_load = load is not None and code[load].name in ("mov", "movsxd") and code[load].displacement is not None
    return load if is_load else None


def _index_of(code: Sequence[Instruction], load: int) -> int:
    """Return the register that contains the index with which an instruction loads a distance.
    Unoptimized code multiplies it first: lea 0(,%rax,4), %rdx."""
    one = code[load]
    if one.scaled != NONE and one.scale == 4:
        return one.scaled
    for register in (one.base, one.scaled):
        last = _find_write(code, load, register) if register >= 0 else None
        if last is not None and code[last].name == "lea" and code[last].scale == 4 and code[last].scaled != NONE:
            return code[last].scaled
    return NONE


def _find_bases(code: Sequence[Instruction], at: int, register: int) -> set[int]:
    """Return the possible starts of the table whose start is in a register.

    If the register was not set directly before, these are all addresses to which the function sets
    it. If the function also copies values to it, or restores it from the stack, these are all
    addresses to which the function sets any register."""
    last = _find_write(code, at, register)
    if last is not None:
        return {code[last].displacement or 0} if _is_address(code[last]) else set()
    is_copied = any(one.name == "mov" and one.destination == register and one.immediate is None for one in code)
    return {one.displacement or 0 for one in code if _is_address(one) and (is_copied or one.destination == register)}


def _is_address(one: Instruction) -> bool:
    return one.name == "lea" and one.base == RIP


def _find_length(code: Sequence[Instruction], table: _Table) -> int:
    """Return the number of entries, which the comparison of the index with a constant shows; 0 if
    there is none."""
    if table.selector == NONE:
        return 0
    same: set[object] = {table.selector}
    for index in _before(code, table.first):
        one = code[index]
        if one.name in ("ja", "jbe") and index and code[index - 1].name == "cmp":
            limit = code[index - 1]
            is_index = (limit.destination in same) if limit.displacement is None else _operand(limit) in same
            if one.name == "ja" and is_index and limit.immediate is not None and 0 <= limit.immediate < _LONGEST:
                return limit.immediate + 1
            return 0
        if one.destination in same:
            if one.name not in _COPIES or (one.name == "lea" and (one.scaled != NONE or one.displacement)):
                return 0
            same.discard(one.destination)  # the register had another value before
            same.add(one.source if one.displacement is None else _operand(one))
    return 0


def _operand(one: Instruction) -> tuple[int, int, int, Optional[int]]:
    return one.base, one.scaled, one.scale, one.displacement


def _is_code(target: Target, address: int) -> bool:
    region = region_at(target.regions(), address)
    return region is not None and region.executable


def _read_entries(target: Target, base: int, width: int, count: int) -> Iterator[int]:
    """Yield the destinations in a table. Yield none if the program can change it: its current
    words need not be those that the jump used."""
    region = region_at(target.regions(), base)
    if region is None or region.writable:
        return
    size = min(count * width, region.end - base)
    try:
        data = target.read(base, size - size % width)
    except UnreadableMemory:
        return
    for at in range(0, len(data), width):
        entry = int.from_bytes(data[at : at + width], "little", signed=width == 4)
        yield entry if width == 8 else base + entry
