"""ELF images of ARM in memory, with an index of unwinding tables."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Union

BIAS = 0x10000
INDEX, TABLE, SIZE = 0x1000, 0x1800, 0x2000
PT_ARM_EXIDX = 0x70000001


def relative(to: int, place: int) -> int:
    """Return the word at the address `place` that refers to the address `to` (prel31)."""
    return to - place & 0x7FFFFFFF


def image(entries: Sequence[tuple[int, Union[int, bytes]]], code: bytes = b"", code_at: int = 0x200) -> bytes:
    """Build an image with functions at these addresses. The value is the second word of the function's index entry, or the words of the
    table that the entry refers to."""
    header = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 3, 40, 1, 0, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    header += struct.pack("<IIIIIIII", PT_ARM_EXIDX, INDEX, INDEX, INDEX, 8 * len(entries), 8 * len(entries), 4, 4)
    made, table = bytearray(header.ljust(SIZE, b"\0")), TABLE
    made[code_at : code_at + len(code)] = code
    for number, (function, word) in enumerate(entries):
        place = INDEX + 8 * number
        if isinstance(word, bytes):
            made[table : table + len(word)] = word
            word, table = relative(table, place + 4), table + len(word)
        made[place : place + 8] = struct.pack("<II", relative(function, place), word)
    return bytes(made)


CODE = struct.pack(
    "<28H",
    *(0x47E0, 0xF04F, 0x0701, 0xDF00, 0xBF00),  # 0x200, a thread's start: blx ip; mov r7, #1; svc #0
    *(0xB510, 0xB082, 0xF000, 0xF803, 0xB002, 0xBD10, 0xBF00),  # 0x20a: push {r4, lr}; sub sp, #8; bl 0x218; add sp, #8; pop {r4, pc}
    *(0xB580, 0x2778, 0xDF00, 0xBD80),  # 0x218: push {r7, lr}; movs r7, #120; svc #0; pop {r7, pc}
    *(0x2000, 0xB580, 0xB0A4, 0xF7FF, 0xFFF7, 0xE7FE),  # 0x220: movs r0, #0; push {r7, lr}; sub sp, #144; bl 0x218; b .
    *(0xF7FF, 0xFFF8, 0xBD10),  # 0x22c: bl 0x220; pop {r4, pc}
    *(0x4770, 0xBF00, 0xBF00),  # 0x232: bx lr
)
"""Thumb's, at 0x200."""
TABLES = (struct.pack("<3I", 0x81020008, 0xA8B0B0B0, 0xB0B0B0B0),)
"""A table of unwinding instructions with two words more."""
