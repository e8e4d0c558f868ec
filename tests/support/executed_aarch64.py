"""Execute single instructions of a program's libraries twice, with different contents in the registers that, according to findleaks, the
instruction does not read. Both results must be the same. Registers that, according to findleaks, it does not change must keep their
values."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from elftools.elf.elffile import ELFFile
from poison_aarch64 import Stopped, Stub

from findleaks.disasm.aarch64_effects import AARCH64
from findleaks.disasm.capstone_loader import require_capstone
from findleaks.disasm.machine import Effect

_EXAMPLES = 2  # tested instructions with the same mnemonic and the same kinds of operands
_CORE = 31 * 8
_ROOM = 2048  # bytes around the address that memory operands point to


class Checked(NamedTuple):
    """The number of executed instructions, and of instructions that caused a fault; the errors as sentences; the mnemonics."""

    executed: int
    faults: int
    wrong: list[str]
    names: set[str]


def instructions(library: Path) -> Iterator[Any]:
    """Return capstone's instructions of a library, at the addresses in the file."""
    capstone: Any = require_capstone()
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    decoder.detail = decoder.skipdata = True
    with library.open("rb") as file:
        text = ELFFile(file).get_section_by_name(".text")
        code, start = text.data(), text["sh_addr"]
    return (insn for insn in decoder.disasm(code, start) if insn.id)


def examples(library: Path, kinds: Counter[Any]) -> Iterator[Any]:
    """Yield a few instructions of each kind; `kinds` counts them."""
    for insn in instructions(library):
        first = [(insn.reg_name(one.reg) or "?")[0] if one.type == 1 else "" for one in insn.operands]
        kind = insn.insn_name(), tuple((one.type, one.vector_index >= 0) for one in insn.operands), tuple(first), insn.writeback
        kinds[kind] += 1
        if kinds[kind] <= _EXAMPLES:
            yield insn


def check_instructions(program: Stopped, libraries: dict[Path, int], seed: int) -> Checked:
    """Execute instructions of all libraries. `libraries`: the load bias of each."""
    chance, kinds, made = random.Random(seed), Counter[Any](), Checked(0, 0, [], set())
    stub = program.stub
    sp = stub.registers()[31] - 4 * _ROOM & -1024
    for library, bias in libraries.items():
        for insn in examples(library, kinds):
            one = AARCH64.effect(insn)
            if one.flow == "next":
                made = _check(made, stub, insn, one, bias, sp, chance)
    return made


def _check(made: Checked, stub: Stub, insn: Any, one: Effect, bias: int, sp: int, chance: random.Random) -> Checked:
    through = {insn.reg_name(one.mem.base): sp for one in insn.operands if one.type == 3}
    through |= {insn.reg_name(one.mem.index): 64 for one in insn.operands if one.type == 3 and one.mem.index}
    pointers = {AARCH64.mask_of(_whole(name or "")): value for name, value in through.items()}
    general = [pointers.get(1 << number, chance.getrandbits(63)) for number in range(31)]
    operands = [_whole(insn.reg_name(operand.reg) or "") for operand in insn.operands if operand.type == 1]
    vectors = {int(name[1:]): chance.getrandbits(128) for name in operands if name[:1] == "v"}
    memory = bytes(chance.getrandbits(8) for _ in range(2 * _ROOM))
    first = _execute(stub, insn.address + bias, sp, general, vectors, memory)
    unread = ~one.reads
    others = [chance.getrandbits(63) if unread >> number & 1 else value for number, value in enumerate(general)]
    other_vectors = {number: chance.getrandbits(128) if unread >> (32 + number) & 1 else value for number, value in vectors.items()}
    second = _execute(stub, insn.address + bias, sp, others, other_vectors, memory)
    if first is None or second is None:
        return made._replace(faults=made.faults + 1)
    wrong = [f"memory or flags of {insn}"] if (first[0], first[3]) != (second[0], second[3]) else []
    for number in range(31):
        if (one.kills >> number & 1 or not unread >> number & 1) and first[1][number] != second[1][number]:
            wrong.append(f"x{number} depends in {insn}")
        if not (one.kills | one.changed) >> number & 1 and first[1][number] != general[number]:
            wrong.append(f"x{number} changes in {insn}")
    for number in vectors:
        bit = 1 << 32 + number
        if (one.kills & bit or one.reads & bit) and first[2][number] != second[2][number]:
            wrong.append(f"v{number} depends in {insn}")
    return made._replace(executed=made.executed + 1, wrong=[*made.wrong, *wrong], names=made.names | {insn.insn_name()})


def _whole(name: str) -> str:
    """Return findleaks' name of a register."""
    name = {"fp": "x29", "lr": "x30"}.get(name, name)
    if name[:1] == "w" and name[1:].isdigit():
        return f"x{name[1:]}"
    return f"v{name[1:]}" if name[:1] in tuple("bhsdq") and name[1:].isdigit() else name


def _execute(stub: Stub, pc: int, sp: int, general: list[int], vectors: dict[int, int], memory: bytes) -> Any:
    """Execute the instruction. Return (flags, general registers, vector registers, memory); None after a fault."""
    for at in range(0, len(memory), 1024):
        assert stub.ask(f"M{sp - _ROOM + at:x},400:{memory[at : at + 1024].hex()}") == "OK"
    words = b"".join(value.to_bytes(8, "little") for value in (*general, sp, pc))
    assert stub.ask(f"G{words.hex()}{0:08x}") == "OK"
    for number, value in vectors.items():
        stub.set(34 + number, value.to_bytes(16, "little"))
    if not stub.ask("s").startswith("T05"):
        return None
    data = bytes.fromhex(stub.ask("g"))
    after = [int.from_bytes(data[at : at + 8], "little") for at in range(0, _CORE, 8)]
    wide = {number: stub.vector(number) for number in vectors}
    return data[_CORE:268], after, wide, stub.read(sp - _ROOM, 2 * _ROOM)
