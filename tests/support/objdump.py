"""Read x86-64 instructions with objdump, and compare the decoder with them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable

from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import GENERAL, RIP

NUMBERS = {name: number for number, name in enumerate((*GENERAL, "rip"))}
OPERAND = re.compile(r"(%fs:)?(-?0x[0-9a-f]+)?\((?:%(\w+))?(?:,%(\w+),\d)?\)")


def disassemble(path: str, *words: str) -> tuple[dict[int, tuple[bytes, str]], list[int]]:
    """Return bytes and text of the instructions by address, and the addresses at which functions begin. `words`: options of objdump that
    select a part."""
    command = ["objdump", "-d", "-w", *(words or ("-j", ".text")), path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
    found: dict[int, tuple[bytes, str]] = {}
    starts = []
    for line in done.stdout.splitlines():
        start = re.match(r"([0-9a-f]+) <", line)
        row = re.match(r"\s+([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*(.*)", line)
        if start:
            starts.append(int(start[1], 16))
        elif row:
            found[int(row[1], 16)] = bytes.fromhex(row[2]), row[3]
    return found, starts


def compare_decoder(ours: Iterable[Instruction], truth: dict[int, tuple[bytes, str]]) -> tuple[int, int, int]:
    """Compare the end of each instruction, the operand in memory, and the target of each jump. Return the number of instructions, operands
    and jumps that were compared."""
    seen = operands = jumps = 0
    for one in ours:
        real, text = truth[one.address]
        assert one.size == len(real), text
        seen += 1
        if one.target is not None:
            assert f" {one.target:x}" in text
            jumps += 1
        match = OPERAND.search(text)
        # Not compared: instructions without effect, string instructions (their operands are implicit), and 32-bit addresses.
        if match and not re.search(r"nop|%[de]s:|\(%e|\(%r\d+d", text):
            assert one.displacement is not None, text
            assert one.fs == bool(match[1])
            if one.base == RIP:
                assert f"# {one.displacement:x} " in text
            else:
                assert (one.displacement, one.base) == (int(match[2] or "0", 16), NUMBERS.get(match[3] or "", -1)), text
            assert one.scaled == NUMBERS.get(match[4] or "", -1), text
            operands += 1
    return seen, operands, jumps
