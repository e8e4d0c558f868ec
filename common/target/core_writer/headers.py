"""Build the headers of a core: ELF header, program headers, and a section header that has the
number of program headers if it does not fit the ELF header.
Sources: System V gABI, chapters 4 and 5; Linux fs/binfmt_elf.c (elf_core_dump,
fill_extnum_info)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from findleaks.target import elf
from findleaks.target.arch import Arch
from findleaks.target.core_writer.contents import Segment

_HEADER, _SEGMENT, _SECTION = 64, 56, 64  # bytes of Elf64_Ehdr, Elf64_Phdr, Elf64_Shdr


class CoreFileLayout(NamedTuple):
    """Positions of all parts of a core file."""

    head: bytes  # beginning of the file: headers and notes
    offsets: Sequence[int]  # file offsets of the contents of the segments
    tail: bytes  # bytes after the contents
    size: int  # bytes of the file


def lay_out_core(arch: Arch, chosen: Sequence[Segment], notes: bytes) -> CoreFileLayout:
    """Lay out a core: the contents of each segment begin at a page boundary."""
    count = len(chosen) + 1
    many = count >= elf.PN_XNUM
    notes_at = _HEADER + _SEGMENT * count
    at = -(-(notes_at + len(notes)) // arch.page) * arch.page
    rows = [struct.pack("<2I6Q", elf.PT_NOTE, 0, notes_at, 0, 0, len(notes), 0, 4)]
    offsets = []
    for region, size, _ in chosen:
        flags = elf.PF_R * region.readable | elf.PF_W * region.writable | elf.PF_X * region.executable
        rows.append(struct.pack("<2I6Q", elf.PT_LOAD, flags, at, region.start, 0, size, region.size, arch.page))
        offsets.append(at)
        at += size
    tail = struct.pack("<2I4Q2I2Q", 0, 0, 0, 0, 0, 1, 0, count, 0, 0) if many else b""
    identity = b"\x7fELF\2\1\1" + bytes(9)
    fields = (elf.ET_CORE, arch.machine, 1, 0, _HEADER, at if many else 0, 0, _HEADER, _SEGMENT)
    counts = (elf.PN_XNUM if many else count, _SECTION if many else 0, 1 if many else 0, 0)
    head = identity + struct.pack("<2HI3QI6H", *fields, *counts)
    return CoreFileLayout(b"".join([head, *rows, notes]), offsets, tail, at + len(tail))
