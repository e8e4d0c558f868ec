"""Find the functions whose code refers to a variable. They name the variables of a stripped
program: "variable at 0x58b840 (used in main.fill)".

x86-64: an instruction contains the distance from its end to the variable. The byte before the
distance (ModRM) has mod 0 and r/m 5. Up to four bytes of a constant may follow the distance.

AArch64: adrp computes the page of the variable, and the next instruction adds the rest: add, a load
or a store. If the variable is near, the linker writes adr instead of adrp, and nop.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, section 2.2.1.6
(RIP-relative addressing); Arm Architecture Reference Manual for A-profile (DDI 0487), C4.1 (ADR,
ADRP, add immediate, load and store with an unsigned offset); Go 1.18 to 1.26,
src/cmd/link/internal/arm64/asm.go (R_ADDRARM64, R_ARM64_PCREL_LDST*: both instructions are
adjacent)."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Optional

from findleaks.errors import Interrupted
from findleaks.runtimes.go.moduledata import ModuleData
from findleaks.runtimes.go.packages import is_library
from findleaks.runtimes.go.pclntab import FunctionTable
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Range, Target
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.ranges import merge_ranges, range_at
from findleaks.value_classes import NamedTuple

_RELATIVE_HEAD = rb"[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]"
_LEA = rb"(?<=\x8d)"
_Into = tuple[int, int, bool]  # the lowest and the highest address, and whether code is there
_RELATIVE = re.compile(_RELATIVE_HEAD + rb"(?=(.{4}))", re.DOTALL)
_CALL = re.compile(rb"\xe8(?=(.{4}))", re.DOTALL)
_CALL_OR_JUMP = re.compile(rb"[\xe8\xe9](?=(.{4}))", re.DOTALL)
_BL = 0x94000000
_ADR, _ADRP = 0x10000000, 0x90000000  # of bits 31 and 28 to 24
_SHIFTED = 1 << 22  # of add: the constant is shifted by 12 bits
# Of a load or store: it is of a vector register, which has 16 bytes if the size is 0.
_VECTOR, _WIDE = 1 << 26, 1 << 23
_MAX_CODE = 1 << 28
_SLICE = 1 << 20  # bytes of code that are searched between two checks for Ctrl-C
_OVERLAP = 8  # bytes of code that are searched twice: more than an operand and the opcode before it
_MOST_PLACES = 64  # references to one variable that are looked up
_MOST_NAMES = 2


def find_users(target: Target, tables: Sequence[FunctionTable], addresses: Collection[int]) -> dict[int, list[str]]:
    """Return, by address of a variable, the functions whose code refers to it: at most two, the
    most frequent first, initialisers last. Functions of the package runtime are left out if others
    refer to it."""
    wanted = frozenset(addresses)
    found: dict[int, list[str]] = {}
    for table in tables if wanted else ():
        places: dict[int, list[int]] = {}
        for address, place in find_references(target, table.module, wanted):
            places.setdefault(address, []).append(place)
        for address, several in places.items():
            found.setdefault(address, []).extend(_name_functions(table, several[:_MOST_PLACES]))
    return {address: _rank(names) for address, names in found.items()}


def variables_of_function(target: Target, table: FunctionTable, name: str) -> list[int]:
    """Return the aligned words of variables to which the code of a function refers, in the order of
    the references; [] if there is no such function, or if the machine is not in OPERANDS."""
    operands = OPERANDS.get(target.arch.name)
    code = table.code_of(name) if operands is not None else None
    module, found = table.module, list[int]()
    if operands is None or code is None or code.end - code.start > _SLICE:
        return found
    places = merge_ranges((module.noptrdata, module.data, module.bss, module.noptrbss))
    for piece in target.pieces(*code):
        for _, address in operands.find(bytes(piece.data), piece.address):
            words = (address + more for more in operands.constants)
            found += [word for word in words if word % 8 == 0 and range_at(places, word) is not None]
    return found


def can_search(target: Target, module: ModuleData) -> bool:
    """Whether the whole code of a module is readable, and not too large for the searches here."""
    size = module.text.end - module.text.start
    return size <= _MAX_CODE and sum(len(one.data) for one in target.pieces(*module.text)) == size


def find_references(target: Target, module: ModuleData, wanted: frozenset[int]) -> list[tuple[int, int]]:
    """Return pairs of a variable's address and the address of an instruction's byte that refers to
    it. Raises Interrupted."""
    found: list[tuple[int, int]] = []
    operands = OPERANDS.get(target.arch.name)
    if operands is None:
        return found
    # Functions and variables are apart, and few operands lead to the memory between them.
    parts = [[one for one in wanted if (one < module.text.end) is is_code] for is_code in (True, False)]
    limits = [(min(part) - max(operands.constants), max(part), part is parts[0]) for part in parts if part]
    for start, code in _iterate_code(target, module.text):
        for low, high, is_code in limits:
            for place, address in operands.find(code, start, (low, high, is_code)):
                if low <= address <= high:
                    found += [(address + more, place) for more in operands.constants if address + more in wanted]
    return list(dict.fromkeys(found))


def find_calls(target: Target, module: ModuleData, wanted: Collection[int], with_jumps: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the address of each call instruction that calls one of the addresses `wanted`, and this
    address. `with_jumps`: also each jump, such as that of a method that only calls another. Raises
    Interrupted."""
    calls = (_JUMPS if with_jumps else _CALLS).get(target.arch.name)
    if calls is None:
        return
    last = -1
    for start, code in _iterate_code(target, module.text):
        for place, address in calls(code, start):
            if place > last and address in wanted:
                yield place, address
                last = place


def _iterate_code(target: Target, text: Range) -> Iterator[tuple[int, bytes]]:
    """Yield the addresses and the bytes of parts of the code. Each part begins with the last bytes
    of the part before it, so that no instruction is divided. Yields nothing if the code is too
    large. Raises Interrupted."""
    before, end = b"", text.start
    for piece in target.pieces(*text) if text.end - text.start <= _MAX_CODE else ():
        for first in range(0, len(piece.data), _SLICE):
            if target.is_interrupted():
                raise Interrupted
            start, code = piece.address + first, bytes(piece.data[first : first + _SLICE])
            before = before if start == end else b""
            yield start - len(before), before + code
            before, end = code[-_OVERLAP:], start + len(code)


def _calls_x86(code: bytes, start: int, pattern: re.Pattern[bytes] = _CALL) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(code):
        place = start + match.start()
        yield place, place + 5 + struct.unpack("<i", match[1])[0]


def _calls_aarch64(code: bytes, start: int) -> Iterator[tuple[int, int]]:
    for at, word in enumerate(array("I", code[: len(code) // 4 * 4])):
        if word & 0xFC000000 == _BL:
            yield start + 4 * at, start + 4 * at + 4 * decode_signed(word & 0x3FFFFFF, 26)


def _jumps_x86(code: bytes, start: int) -> Iterator[tuple[int, int]]:
    return _calls_x86(code, start, _CALL_OR_JUMP)


_JUMPS = {X86_64.name: _jumps_x86}
_CALLS = {X86_64.name: _calls_x86, AARCH64.name: _calls_aarch64}


def _operands_x86(code: bytes, start: int, into: Optional[_Into] = None) -> Iterator[tuple[int, int]]:
    pattern = _RELATIVE if into is None else _pattern_into(into[0] - start - len(code) - 5, into[1] - start, into[2])
    for match in pattern.finditer(code) if pattern is not None else ():
        place = start + match.start()
        yield place, place + 5 + struct.unpack("<i", match[1])[0]


def _pattern_into(low: int, high: int, is_code: bool) -> Optional[re.Pattern[bytes]]:
    """Return a pattern for operands whose distance may be in low..high, and for some others; None
    if no operand can be. It compares the two highest bytes of the distance, because nearly all
    bytes of code that look like an operand have others there. Only lea computes the address of
    code."""
    low, high = max(low, -1 << 31) >> 16, min(high, (1 << 31) - 1) >> 16
    if low > high:
        return None
    tops = range(low >> 8, (high >> 8) + 1)
    thirds = range(low & 0xFF, (high & 0xFF) + 1) if len(tops) == 1 else range(256)
    top, third = (b"[" + b"".join(b"\\x%02x" % (one & 0xFF) for one in each) + b"]" for each in (tops, thirds))
    return re.compile((_LEA if is_code else b"") + _RELATIVE_HEAD + b"(?=(.." + third + top + b"))", re.DOTALL)


def _operands_aarch64(code: bytes, start: int, into: Optional[_Into] = None) -> Iterator[tuple[int, int]]:
    words = array("I", code[: len(code) // 4 * 4])
    for at, (word, following) in enumerate(zip(words, words[1:])):
        kind = word & 0x9F000000
        if kind not in (_ADR, _ADRP):
            continue
        place = start + 4 * at
        distance = decode_signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
        if kind == _ADR:
            yield place, place + distance
        elif following >> 5 & 31 == word & 31:
            offset = _offset_aarch64(following)
            if offset is not None:
                yield place, (place & ~0xFFF) + (distance << 12) + offset


def _offset_aarch64(word: int) -> Optional[int]:
    """Return what an instruction adds to a register to compute an address; None if it is not an
    add, load or store."""
    constant = word >> 10 & 0xFFF
    if word & 0xFF800000 == 0x91000000:
        return constant << 12 if word & _SHIFTED else constant
    if word & 0x3B000000 != 0x39000000:
        return None
    size = word >> 30
    return constant << (4 if word & _VECTOR and word & _WIDE and not size else size)


class _Operands(NamedTuple):
    """How addresses are found to which code refers.

    `find`: yields pairs of the address of an instruction or its operand, and the address to which
    it leads; the second argument is the address of the code. The optional third argument is the
    lowest and the highest address of interest, and whether functions are there; others may be left
    out. `constants`: sizes of constants that may follow the operand, which have to be added."""

    find: Callable[..., Iterator[tuple[int, int]]]
    constants: Sequence[int]


OPERANDS = {X86_64.name: _Operands(_operands_x86, (0, 1, 4)), AARCH64.name: _Operands(_operands_aarch64, (0,))}
"""By architecture."""


def _name_functions(table: FunctionTable, places: Sequence[int]) -> list[str]:
    """Return the function at each of these places. If functions are inlined there, return the
    innermost one that is not in the standard library: main.load, not sync.(*Map).Store. Functions
    of the package runtime are returned, because they show that the runtime uses the variable."""
    found = (table.places(place) for place in places)
    return [next(filter(_is_own, names), names[-1]) for names in ([one.function for one in named] for named in found) if names]


def _is_own(name: str) -> bool:
    return name.startswith("runtime.") or not is_library(name)


def _rank(names: Sequence[str]) -> list[str]:
    own = [name for name in names if not name.startswith("runtime.")] or list(names)
    return sorted(dict.fromkeys(own), key=lambda name: (name.endswith(".init"), -own.count(name), name))[:_MOST_NAMES]
