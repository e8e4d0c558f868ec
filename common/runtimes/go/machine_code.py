"""Translate machine code of Go functions to the few steps that code_types.py follows.

All other instructions become steps that forget what is known of the registers that they may change.
A register has the number of its place in Go's calling convention: 0 is the first argument and the
first result.

Sources: Go 1.18 to 1.27, src/cmd/compile/abi-internal.md (registers of arguments, of a closure's
context, and the stack pointer). Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 2. Arm Architecture Reference Manual for A-profile (DDI 0487), C4.1."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from typing import Optional

from findleaks.disasm.capstone_loader import require_capstone
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.encoded_numbers import decode_signed
from findleaks.value_classes import NamedTuple

CONSTANT, COPY, LOAD, STORE, FORGET, CALL, BRANCH, JUMP, END, UNKNOWN_JUMP, ADD = range(11)
"""Kinds of steps. FORGET: an instruction changes `register`, or all registers if it is NOWHERE.
BRANCH and JUMP continue at address `number`."""
NOWHERE, STACK, ABSOLUTE, NUMBER = -1, -2, -3, -4
"""No register, or in place of one: the stack pointer; no base, because `number` is an address; a
number in the instruction, such as zero."""


class Step(NamedTuple):
    """What an instruction does.

    - CONSTANT: `register` becomes `number`.
    - COPY: `register` becomes the value of `base`.
    - ADD: `register` becomes `base` + `number`.
    - LOAD: `register` becomes the word at `base` + `number`.
    - END: nothing follows; `number` is 1 if the function returns.
    - STORE: the word at `base` + `number` becomes the value of `register` (NUMBER: it becomes a
      number; NOWHERE: something unknown)."""

    address: int
    kind: int
    register: int = NOWHERE
    base: int = NOWHERE
    number: int = 0


class Convention(NamedTuple):
    """How Go calls functions on a machine. `context`: the register with the address of the closure.
    `barrier`: the register that the runtime's functions for write barriers change.
    `pushed`: bytes of the return address between a frame and the end of its caller's frame.
    `decode`: yields the steps of code, and takes the code and its address."""

    context: int
    barrier: int
    pushed: int
    decode: Callable[[bytes, int], Iterator[Step]]


_ORDER = ("rax", "rbx", "rcx", "rdi", "rsi", "r8", "r9", "r10", "r11", "rdx", "r12", "r13", "r14", "r15", "rbp")
_HALVES = {"eax": "rax", "ebx": "rbx", "ecx": "rcx", "edi": "rdi", "esi": "rsi", "edx": "rdx", "ebp": "rbp"}
_PLACES = {
    **{name: at for at, name in enumerate(_ORDER)},
    **{half: _ORDER.index(name) for half, name in _HALVES.items()},
    **{f"r{number}d": _ORDER.index(f"r{number}") for number in range(8, 16)},
    "rsp": STACK,
    "rip": ABSOLUTE,
}
_PARTS = {
    **{f"{letter}{half}": f"r{letter}x" for letter in "abcd" for half in "lhx"},
    **{f"{name}{end}": f"r{name}" for name in ("si", "di", "bp") for end in ("", "l")},
    **{f"r{number}{end}": f"r{number}" for number in range(8, 16) for end in "bw"},
}
_MEMORY = re.compile(r"(?:(qword|xmmword) ptr )?\[(\w+)(?: ([+-]) (0x[0-9a-f]+|\d+))?\]")
_ONE = re.compile(  # instructions that change at most their first operand
    r"(mov|lea|add|sub|and|or|xor|inc|dec|neg|not|sh[lr]|sa[lr]|ro[lr]|imul|cmov\w+|set\w+|test|cmp|nop|movzx|movsx|movsxd|movabs|"
    r"bt|bsf|bsr|popcnt|lzcnt|tzcnt|bswap|sbb|adc|prefetch\w*|v?p?u?comis[sd]|[a-z]*p[sd]|mov[a-z]{0,3}[0-9a-z]*|cvt\w+|p[a-z]+|pop)$"
)
# Instructions that change several registers
_SEVERAL = ("movsb", "movsw", "movsd", "movsq", "pcmpestri", "pcmpistri")
_ATOMIC = re.compile(r"lock (?:cmpxchg|xadd|add|sub|and|or|xor|inc|dec)$|xchg$")
_ZERO = "xmm15"  # Go's code never changes it
_PADDING = 16  # bytes between functions, at most
_CONDITIONAL = re.compile(r"j(?!mp)\w+$")


def _decode_x86(code: bytes, address: int) -> Iterator[Step]:
    capstone = require_capstone()
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    end = address
    for at, size, name, operands in decoder.disasm_lite(code, address):
        end = at + size
        step = _translate_x86(at, size, name, operands)
        yield step
        if step.kind == STORE and operands.startswith("xmmword"):
            yield step._replace(number=step.number + 8)
    if end < address + len(code):  # the padding after a function may be cut off
        yield Step(end, END if address + len(code) - end < _PADDING else UNKNOWN_JUMP)


def _translate_x86(at: int, size: int, name: str, operands: str) -> Step:
    if name in ("jmp", "call") or _CONDITIONAL.match(name):
        kind = CALL if name == "call" else JUMP if name == "jmp" else BRANCH
        if operands.startswith("0x"):
            return Step(at, kind, number=int(operands, 16))
        return Step(at, UNKNOWN_JUMP if kind == JUMP else CALL)
    if name in ("ret", "ud2", "int3"):
        return Step(at, END, number=int(name == "ret"))
    first, _, second = operands.partition(", ")
    memory = _MEMORY.match(second)
    if name in ("mov", "lea") and memory is not None and first in _PLACES and _PLACES.get(memory[2], NOWHERE) != NOWHERE:
        base, offset = _PLACES[memory[2]], _offset(memory)
        if base == ABSOLUTE:
            offset += at + size
        if name == "mov":
            return Step(at, LOAD, _PLACES[first], base, offset)
        if base == ABSOLUTE:
            return Step(at, CONSTANT, _PLACES[first], NOWHERE, offset)
        return Step(at, ADD, _PLACES[first], base, offset) if base >= 0 else Step(at, FORGET, _PLACES[first])
    memory = _MEMORY.match(first)
    if memory is not None and name.startswith("mov"):
        base = _PLACES.get(memory[2], NOWHERE)
        offset = _offset(memory) + (at + size if base == ABSOLUTE else 0)
        is_number = second == _ZERO or second[:1].isdigit()
        return Step(at, STORE, NUMBER if is_number else _PLACES.get(second, NOWHERE) if name == "mov" else NOWHERE, base, offset)
    if name in ("mov", "movabs") and first in _PLACES and _PLACES[first] >= 0:
        if second in _PLACES and second[0] == "r" and first[0] == "r" and not second.endswith("d"):
            return Step(at, COPY, _PLACES[first], _PLACES[second])
        if second[:1].isdigit():
            return Step(at, CONSTANT, _PLACES[first], NOWHERE, int(second, 0))
    if name == "xor" and first == second and first in _PLACES:
        return Step(at, CONSTANT, _PLACES[first])
    if "[" in first and _ATOMIC.match(name):  # at most one register changes
        changed = "rax" if name.endswith("cmpxchg") else second if name.endswith(("xadd", "xchg")) else ""
        register = _PLACES.get(_PARTS.get(changed, changed), NOWHERE)
        return Step(at, FORGET, register) if register >= 0 else Step(at, STORE)
    if not _ONE.match(name) or name in _SEVERAL or (name == "imul" and not second):
        return Step(at, FORGET)
    if name in ("cmp", "test", "nop", "bt"):
        return Step(at, STORE)  # a store that changes nothing
    register = _PLACES.get(_PARTS.get(first, first), NOWHERE)
    return Step(at, FORGET, register) if register >= 0 else Step(at, STORE)


def _offset(memory: re.Match[str]) -> int:
    number = int(memory[4] or "0", 0)
    return -number if memory[3] == "-" else number


_SP = 31  # also the number of the zero register
_VECTORS = {0x3D800000: 1, 0xAD000000: 2}  # str, stp of 16 bytes each: the number of registers
_ADRP = 0x90000000


def _decode_aarch64(code: bytes, address: int) -> Iterator[Step]:
    page: Optional[tuple[int, int]] = None  # what adrp has set just before this instruction
    for number, word in enumerate(array("I", code[: len(code) // 4 * 4])):
        at = address + 4 * number
        yield from _translate_aarch64(at, word, page)
        page = (word & 31, _find_page(at, word)) if word & 0x9F000000 == _ADRP else None


def _find_page(at: int, word: int) -> int:
    return (at & ~0xFFF) + (decode_signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) << 12)


def _translate_aarch64(at: int, word: int, page: Optional[tuple[int, int]]) -> Iterator[Step]:
    """Yield the steps of an instruction. `page`: the register that the instruction before has set
    with adrp, and its value."""
    to, base = word & 31, word >> 5 & 31
    flow = _branch_aarch64(at, word)
    if flow is not None:
        yield flow
    elif word & 0x9F000000 == 0x10000000:  # adr
        yield Step(at, CONSTANT, to, NOWHERE, at + decode_signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21))
    elif word & 0xFF800000 == 0x91000000 and to != _SP:  # add
        offset = word >> 10 & 0xFFF
        offset = offset << 12 if word & 1 << 22 else offset
        known = page is not None and page[0] == base
        if known and page is not None:
            yield Step(at, CONSTANT, to, NOWHERE, page[1] + offset)
        else:
            yield Step(at, FORGET, to) if base == _SP else Step(at, ADD, to, base, offset)
    elif word & 0xFFE0FFE0 == 0xAA0003E0:  # mov
        source = word >> 16 & 31
        yield Step(at, CONSTANT, to) if source == _SP else Step(at, COPY, to, source)
    elif word & 0xFF800000 == 0xD2800000:  # movz
        yield Step(at, CONSTANT, to, NOWHERE, (word >> 5 & 0xFFFF) << 16 * (word >> 21 & 3))
    elif word & 0xFF8003E0 == 0xB20003E0 and to != _SP:  # orr of the zero register and a number
        yield Step(at, CONSTANT, to, NOWHERE, _decode_bitmask(word))
    elif word & 0xFF800000 == 0xF9000000:  # ldr, str of 8 bytes
        yield _access_aarch64(at, word >> 22 & 1, to, base, (word >> 10 & 0xFFF) * 8, page)
    elif word & 0xFFA00C00 == 0xF8000000:  # ldur, stur
        yield _access_aarch64(at, word >> 22 & 1, to, base, decode_signed(word >> 12 & 0x1FF, 9), page)
    elif word & 0xFF800000 == 0xA9000000:  # stp, ldp
        offset = 8 * decode_signed(word >> 15 & 0x7F, 7)
        both = (0, to), (8, word >> 10 & 31)
        for more, register in both[::-1] if to == base else both:  # the base changes last
            yield _access_aarch64(at, word >> 22 & 1, register, base, offset + more, page)
    elif word & 0xFFC00000 in _VECTORS and base == _SP:
        count = _VECTORS[word & 0xFFC00000]
        offset = 16 * (word >> 10 & 0xFFF if count == 1 else decode_signed(word >> 15 & 0x7F, 7))
        yield from (Step(at, STORE, NOWHERE, STACK, offset + 8 * number) for number in range(2 * count))
    else:
        yield Step(at, STORE)  # so that a branch to this instruction finds a step
        yield from (Step(at, FORGET, register) for register in _list_changed(word) if register != _SP)


def _decode_bitmask(word: int) -> int:
    """Return the number in a logical instruction of 64 bits: copies of an element of 2 to 64 bits,
    which is a run of ones, rotated to the right. Since Go 1.27, sizes such as 24 have this
    form."""
    ones, rotation = word >> 10 & 63, word >> 16 & 63
    size = 1 << max(((word >> 16 & 64) | ~ones & 63).bit_length() - 1, 1)  # 1 is not valid
    ones, rotation = ones & size - 1, rotation & size - 1
    element = (1 << ones + 1) - 1
    element = (element >> rotation | element << size - rotation) & (1 << size) - 1
    return element * (((1 << 64) - 1) // ((1 << size) - 1))


def _list_changed(word: int) -> set[int]:
    """Return registers that an instruction may change."""
    if word & 0x3B000000 == 0x39000000:  # loads and stores with a constant offset
        return {word & 31} if word >> 22 & 3 and not word & 1 << 26 else set()
    if word & 0x1C000000 == 0x10000000 or word & 0x0E000000 == 0x0A000000:  # data processing
        return {word & 31}
    return {word & 31, word >> 5 & 31, word >> 10 & 31, word >> 16 & 31}


def _access_aarch64(at: int, loads: int, register: int, base: int, offset: int, page: Optional[tuple[int, int]]) -> Step:
    if loads and register == _SP:
        return Step(at, STORE)
    value = NUMBER if register == _SP else register
    if page is not None and page[0] == base:
        return Step(at, LOAD if loads else STORE, value, ABSOLUTE, page[1] + offset)
    return Step(at, LOAD if loads else STORE, value, STACK if base == _SP else base, offset)


def _branch_aarch64(at: int, word: int) -> Optional[Step]:
    if word & 0x7C000000 == 0x14000000:
        return Step(at, CALL if word >> 31 else JUMP, number=at + 4 * decode_signed(word & 0x3FFFFFF, 26))
    if word & 0xFF000010 == 0x54000000 or word & 0x7E000000 == 0x34000000:
        return Step(at, BRANCH, number=at + 4 * decode_signed(word >> 5 & 0x7FFFF, 19))
    if word & 0x7E000000 == 0x36000000:
        return Step(at, BRANCH, number=at + 4 * decode_signed(word >> 5 & 0x3FFF, 14))
    if word & 0xFE000000 == 0xD6000000:  # blr, br, ret
        kind = word >> 21 & 15
        return Step(at, CALL if kind == 1 else END if kind == 2 else UNKNOWN_JUMP, number=int(kind == 2))
    return Step(at, END) if word >> 16 == 0xD420 or not word else None


CONVENTIONS = {
    X86_64.name: Convention(_ORDER.index("rdx"), _ORDER.index("r11"), 8, _decode_x86),
    AARCH64.name: Convention(26, 25, 0, _decode_aarch64),
}
"""By architecture."""
