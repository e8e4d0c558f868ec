"""A debugger's disassembly of x86-64 code, read back into the instructions that decode.py makes of the bytes.

The flavor is AT&T's, as GDB (libopcodes) and LLDB (LLVM) print it: they differ in suffixes (`mov`, `movq`), in the sign and the base of
numbers, in prefixes that stand alone, and in what they add behind an operand (`<function+4>`, `# 0x601040`), which is not looked at.
An opcode that one mnemonic has several of is the one that says the same: of two registers that which goes into `rm`. What the
mnemonics that nobody asks for are is left open (OTHER); their operands in memory are there all the same. Text that is not understood
ends the listing, as an unknown instruction does.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, appendix A; GNU as, "AT&T Syntax versus Intel Syntax".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.runtimes.v8.decode import CALL, JUMP, JUMP_SHORT, OTHER, RIP, Instruction
from findleaks.target.base import Disassembled

_PREFIXES = re.compile(r"(?:(?:lock|repn?[ez]?|bnd|notrack|xacquire|xrelease|data16|addr32|[cdefgs]s|rex[.\w]*|\{\w+\})(?:\s+|$))*")
_NAME = re.compile(r"([a-z]\w*)(?:,p[nt])?(?:\s+|$)")
_NUMBER = r"-?(?:0x[0-9a-f]+|[0-9][0-9a-f]*h|\d+)"
_IMMEDIATE = re.compile(rf"\$({_NUMBER})")
_REGISTER = re.compile(r"%(\w+|st\(\d\))")
_MEMORY = re.compile(rf"(?=.)(?:%([cdefgs]s):)?({_NUMBER})?(?:\((?:%(\w+))?(?:,%(\w+)(?:,[1248])?)?\))?")
_COMMA = re.compile(r",\s*(?![^()]*\))")
_MASK = re.compile(r"\{[^}]*\}")
_STRINGS = re.compile(r"(?:movs|stos|lods|cmps|scas|ins|outs)[bwlq]?")
"""Instructions whose operands are implied, though they are printed."""

_SIZES = {"b": 1, "w": 2, "l": 4, "q": 8}
_BY_NUMBER = ("a", "c", "d", "b", "sp", "bp", "si", "di", *map(str, range(8, 16)))


def _registers() -> Iterator[tuple[str, tuple[int, int]]]:
    for number, name in enumerate(_BY_NUMBER):
        if number >= 8:
            names = [f"r{name}b", f"r{name}w", f"r{name}d", f"r{name}"]
        elif number >= 4:
            names = [f"{name}l", name, f"e{name}", f"r{name}"]
        else:
            names = [f"{name}l", f"{name}x", f"e{name}x", f"r{name}x"]
            yield f"{name}h", (number, 1)
        yield from ((one, (number, size)) for one, size in zip(names, (1, 2, 4, 8)))


_REGISTERS = dict(_registers())
"""Name -> number, and size in bytes."""

_SPELLINGS = "o|no|b c nae|ae nb nc|e z|ne nz|be na|a nbe|s|ns|p pe|np po|l nge|ge nl|le ng|g nle"
_CONDITIONS = {name: number for number, names in enumerate(_SPELLINGS.split("|")) for name in names.split()}
_GROUP = {name: number for number, name in enumerate(("add", "or", "adc", "sbb", "and", "sub", "xor", "cmp"))}
_SHIFTS = {name: number for number, name in enumerate(("rol", "ror", "rcl", "rcr", "shl", "shr", "sal", "sar"))}
_ALONE = {
    **{"not": (0xF7, 2), "neg": (0xF7, 3), "mul": (0xF7, 4), "imul": (0xF7, 5), "div": (0xF7, 6), "idiv": (0xF7, 7)},
    **{"inc": (0xFF, 0), "dec": (0xFF, 1), **{name: (0xD1, number) for name, number in _SHIFTS.items()}},
}
"""Of one operand: the opcode, and the digit that extends it."""
_NARROW = ("push", "pop", "call", "jmp", "ret")
"""Of 64 bits without saying so."""
_EXTENDING = {"movzb": 0x0FB6, "movzw": 0x0FB7, "movsb": 0x0FBE, "movsw": 0x0FBF, "movsl": 0x63}
"""By the size of what is extended; that of the register follows."""
_NAMES = frozenset((*_GROUP, *_SHIFTS, *_ALONE, *_NARROW, "mov", "movabs", "lea", "test", "xchg", "xadd"))


class _Operand(NamedTuple):
    """`value` is of an immediate; `register` of a register, -1 where it is none of the general ones; else it stands in memory."""

    value: Optional[int] = None
    register: Optional[int] = None
    size: int = 0
    base: int = -1
    scaled: int = -1
    displacement: int = 0
    fs: bool = False

    @property
    def number(self) -> int:
        """Of the register, -1 where it is none."""
        return -1 if self.register is None else self.register

    @property
    def in_memory(self) -> bool:
        return self.value is None and self.register is None


class _What(NamedTuple):
    """What does not stand in memory."""

    opcode: int
    reg: int = -1
    rm: int = -1
    immediate: Optional[int] = None


def instructions(listing: Iterable[Disassembled]) -> Iterator[Instruction]:
    """The instructions of these lines, up to the first that is not understood."""
    start, before = -1, ""
    for line in listing:
        start = line.address if start < 0 else start
        text = before + line.text.partition("<")[0].partition("#")[0].strip()
        prefixes = _PREFIXES.match(text)
        if prefixes is not None and text and prefixes.end() == len(text):  # LLDB has a lock for an instruction of its own
            before = text + " "
            continue
        made = _one(start, line.address + line.length - start, text, prefixes.end() if prefixes is not None else 0)
        if made is None:
            return
        yield made
        start, before = -1, ""


def _one(address: int, length: int, text: str, at: int) -> Optional[Instruction]:
    """An instruction, whose name stands behind the prefixes."""
    named = _NAME.match(text, at)
    if named is None:
        return None
    name, prefixes, rest = named[1], text[:at].split(), text[named.end() :]
    locked = "lock" in prefixes
    suffix = name[-1] if name not in _NAMES and name[-1] in _SIZES and name[:-1] in _NAMES else ""
    root = name.removesuffix(suffix)
    jump = _branch(root, length - len(prefixes))
    if jump is not None and not rest.startswith("*"):
        target = _number(rest)
        return Instruction(address, length, jump, target=target) if target is not None else None
    if _STRINGS.fullmatch(name):
        return Instruction(address, length, OTHER)
    operands = []
    for word in _COMMA.split(rest.removeprefix("*")) if rest else ():
        operand = _operand(_MASK.sub("", word).strip())
        if operand is None:
            return None
        operands.append(operand)
    plain = all(one.register != -1 for one in operands)
    size = max((one.size for one in operands), default=0)
    wide = root not in _NARROW and (size == 8 or (suffix == "q" and plain))
    what = _what(root, operands, size or _SIZES.get(suffix, 8)) if plain else None
    what = what or _What(OTHER, operands[-1].number if operands else -1)
    memory = next((one for one in operands if one.in_memory), None)
    if memory is None:
        return Instruction(address, length, what.opcode, what.reg, what.rm, immediate=what.immediate, wide=wide, locked=locked)
    where = memory.displacement + (address + length if memory.base == RIP else 0)
    place = (memory.base, memory.scaled, where)
    return Instruction(address, length, what.opcode, what.reg, -1, *place, what.immediate, wide, memory.fs, locked=locked)


def _branch(name: str, length: int) -> Optional[int]:
    """The opcode of a direct call or jump."""
    short = length == 2
    if name.startswith("j") and name[1:] in _CONDITIONS:
        return (0x70 if short else 0x0F80) + _CONDITIONS[name[1:]]
    return {"call": CALL, "jmp": JUMP_SHORT if short else JUMP, "jrcxz": 0xE3, "loop": 0xE2, "loope": 0xE1, "loopne": 0xE0}.get(name)


def _number(text: str) -> Optional[int]:
    """0x10, 16 or 10h."""
    if re.fullmatch(_NUMBER, text.strip()) is None:
        return None
    return int(text.strip().removesuffix("h"), 16) if "x" in text or "h" in text else int(text)


def _operand(text: str) -> Optional[_Operand]:
    """None where it is not understood."""
    immediate, register, memory = _IMMEDIATE.fullmatch(text), _REGISTER.fullmatch(text), _MEMORY.fullmatch(text)
    if immediate is not None:
        return _Operand(value=_number(immediate[1]))
    if register is not None:
        number, size = _REGISTERS.get(register[1], (-1, 0))
        return _Operand(register=number, size=size)
    if memory is None:
        return None
    segment, displacement, base, scaled = memory.groups()
    numbers = _place(base), _place(scaled)
    if None in numbers:
        return None
    value = _signed(_number(displacement or "0") or 0, 8)
    return _Operand(base=numbers[0] or 0, scaled=numbers[1] or 0, displacement=value, fs=segment == "fs")


def _place(name: Optional[str]) -> Optional[int]:
    """The number of a register that an address is made of; None where it is no general one."""
    if name in (None, "riz", "eiz"):
        return -1
    return RIP if name in ("rip", "eip") else _REGISTERS.get(name or "", (None, 0))[0]


def _signed(value: int, size: int) -> int:
    """Of so many bytes; GDB prints what is negative without its sign."""
    return value - (1 << 8 * size) if value >> (8 * size - 1) == 1 else value


def _what(root: str, operands: Sequence[_Operand], size: int) -> Optional[_What]:
    """None where it is none of those that are asked for. `size` is the operands', in bytes."""
    byte = size == 1
    first, last = (operands[0], operands[-1]) if operands else (_Operand(), _Operand())
    value = _signed(first.value, size) if first.value is not None else None
    short = value is not None and -0x80 <= value < 0x80
    if root in ("ret", "endbr64"):
        return _What(0xC3 if root == "ret" else 0x0F1E)
    if len(operands) == 1:
        return _of_one(root, byte, first, value)
    if len(operands) == 3:
        return _What(0x6B if short else 0x69, last.number, operands[1].number, value) if root == "imul" and value is not None else None
    if len(operands) != 2:
        return None
    if root in _GROUP:
        number = _GROUP[root]
        return _of_two(0x80 if byte else 0x83 if short else 0x81, 8 * number, number, operands, byte, value)
    if root == "test":
        return _of_two(0xF6 if byte else 0xF7, 0x84, 0, operands[::-1] if first.in_memory else operands, byte, value)
    if root == "movabs" or (root == "mov" and value is not None and last.register is not None and 1 < size < 8):
        return _What(0xB8, -1, last.number, first.value & (1 << 64) - 1) if first.value is not None else None
    if root == "mov":
        return _of_two(0xC6 if byte else 0xC7, 0x88, 0, operands, byte, value)
    if root in ("xchg", "xadd"):
        one, two = (last, first) if first.in_memory else (first, last)
        return _What((0x87 if root == "xchg" else 0x0FC1) - byte, one.number, two.number)
    if root in _SHIFTS:
        opcode = 0xD3 if value is None else 0xD1 if value == 1 else 0xC1
        return _What(opcode - byte, _SHIFTS[root], last.number, value if opcode == 0xC1 else None)
    loading = 0x8D if root == "lea" else 0x0FAF if root == "imul" else _EXTENDING.get(root[:-1]) or _moving(root)
    return _What(loading, last.number, first.number) if loading is not None else None


def _moving(root: str) -> Optional[int]:
    """The opcode of a move under a condition; LLDB adds the size."""
    names = (root[4:], root[4:-1]) if root.startswith("cmov") else ()
    return next((0x0F40 + _CONDITIONS[name] for name in names if name in _CONDITIONS), None)


def _of_one(root: str, byte: bool, operand: _Operand, value: Optional[int]) -> Optional[_What]:
    if root in ("push", "pop") and operand.number >= 0:
        return _What((0x50 if root == "push" else 0x58) | operand.number & 7, rm=operand.number if root == "pop" else -1)
    if root in ("push", "pop") and value is None:
        return _What(0xFF, 6) if root == "push" else _What(0x8F, 0)
    if root in ("call", "jmp"):
        return _What(0xFF, 2 if root == "call" else 4, operand.number)
    if root in _ALONE:
        return _What(_ALONE[root][0] - byte, _ALONE[root][1], operand.number)
    return None


def _of_two(constant: int, opcode: int, digit: int, operands: Sequence[_Operand], byte: bool, value: Optional[int]) -> _What:
    """`constant` is the opcode with an immediate, `opcode` that which stores a byte; with bit 0 it stores more, with bit 1 it loads."""
    first, last = operands
    if value is not None:
        return _What(constant, digit, last.number, value)
    opcode |= not byte
    return _What(opcode | 2, last.number) if first.in_memory else _What(opcode, first.number, last.number)


__all__ = ["instructions"]
