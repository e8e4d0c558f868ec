"""Two readings of one code held to each other: our decoder's of the bytes, and that of a disassembler's text. Runs in debuggers too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from findleaks.runtimes.v8 import decode, disassembly
from findleaks.runtimes.v8.decode import Instruction
from findleaks.target.base import Disassembled

ASKED = frozenset(
    (
        *(high | low for high in range(0, 0x40, 8) for low in range(4)),
        *(*range(0x50, 0x60), *range(0x70, 0x80), *range(0x0F40, 0x0F50), *range(0x0F80, 0x0F90)),
        *(0x63, 0x69, 0x6B, 0x80, 0x81, 0x83, 0x84, 0x85, 0x88, 0x89, 0x8A, 0x8B, 0x8D, 0xB8, 0xC1, 0xC3, 0xC6, 0xC7, 0xD1, 0xD3),
        *(0xE0, 0xE1, 0xE2, 0xE3, 0xE8, 0xE9, 0xEB, 0xF6, 0xF7, 0xFE, 0xFF, 0x0FAF, 0x0FB6, 0x0FB7, 0x0FBE, 0x0FBF, 0x0FC0, 0x0FC1, 0x0F1E),
    )
)
"""The opcodes of which all is compared; of the others what stands in memory."""

_TO_ACCUMULATOR = frozenset((0xA8, 0xA9, *range(0xB0, 0xB8), *(high | low for high in range(0, 0x40, 8) for low in (4, 5))))
"""Short forms that our decoder says nothing more of; no text tells them from the others."""


class Compared(NamedTuple):
    """Instructions, those of them of which all was compared, those that only the text was understood of, and what differs."""

    seen: int
    whole: int
    unknown: int
    differing: list[str]


def compared(code: bytes, lines: Iterable[Disassembled]) -> Compared:
    """Instruction by instruction; `code` begins where the first line stands."""
    listed = list(lines)
    start = listed[0].address if listed else 0
    seen = whole = unknown = 0
    differing: list[str] = []
    skipped = -1
    for line in listed:
        at = line.address if skipped < 0 else skipped
        text = next(disassembly.instructions([line] if skipped < 0 else [Disassembled(at, line.address - at, "lock"), line]), None)
        skipped = -1
        if text is None and line.text.strip() == "lock":  # LLDB has it for an instruction of its own
            skipped = line.address
            continue
        ours = next(decode.instructions(code[at - start : line.address + line.length - start], at), None)
        if ours is None:
            unknown += 1
        elif text is None or ours.opcode in _TO_ACCUMULATOR or re.search(r"%[abcd]h\b|movsxd", line.text):
            differing += [f"{line}: not understood"] if text is None else []
        else:
            one, two = _as_text(ours), _as_text(text)
            if not {one.opcode, two.opcode} & ASKED:
                one, two = _memory(one), _memory(two)
            else:
                whole += 1
            seen += 1
            differing += [f"{line}: {one} is not {two}"] if one != two else []
    return Compared(seen, whole, unknown, differing)


def _as_text(one: Instruction) -> Instruction:
    """As if it were of text, which does not tell all encodings apart."""
    if one.displacement is None and (one.opcode in (0x8A, 0x8B) or (one.opcode < 0x40 and one.opcode & 6 == 2)):
        return one._replace(opcode=one.opcode - 2, reg=one.rm, rm=one.reg)
    return one._replace(reg=-1, rm=-1, wide=False) if one.opcode == 0x0F1E else one


def _memory(one: Instruction) -> Instruction:
    return one._replace(opcode=0, reg=-1, rm=-1, immediate=None, wide=False)
