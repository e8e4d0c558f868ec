"""Write cores whose headers claim much more memory than the file has: a sound core with additional program headers, notes and holes.

They are sparse files, so that a terabyte takes a few pages on disk. Layouts as in elfcore.py.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from elfcore import PT_LOAD, PT_NOTE, Task, prstatus

_HEADER = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr: type, flags, offset, vaddr, paddr, filesz, memsz, align
PAGE = 4096
PROGRAMS = Path(__file__).parents[1] / "programs"


class Claim(NamedTuple):
    """A program header to add: [start, start + size) is mapped, and the file has `there` bytes of it at `offset`."""

    start: int
    size: int
    offset: int = 0
    there: int = 0
    flags: int = 6
    type: int = PT_LOAD


def hostile(
    path: Path, base: bytes, claims: Sequence[Claim] = (), *, notes: bytes = b"", hole: int = 0, data: Iterable[tuple[int, bytes]] = ()
) -> Path:
    """Write `base`, a 64-bit little-endian core, with more program headers and notes, and return `path`. A hole of `hole` bytes follows the
    bytes of `base`, at `tail(base)`; `data` has (offset in the hole, bytes) to write into the hole."""
    phoff, count = struct.unpack_from("<Q", base, 32)[0], struct.unpack_from("<H", base, 56)[0]
    assert count < 0xFFFF
    headers = bytearray(base[phoff : phoff + 56 * count])
    begin = tail(base)
    at = begin + -(-hole // PAGE) * PAGE
    with path.open("wb") as file:
        file.write(base)
        for where, content in data:
            file.seek(begin + where)
            file.write(content)
        file.seek(at)
        file.write(notes)
        if notes:
            headers += _HEADER.pack(PT_NOTE, 0, at, 0, 0, len(notes), 0, 4)
        for claim in claims:
            headers += _HEADER.pack(claim.type, claim.flags, claim.offset, claim.start, 0, claim.there, claim.size, PAGE)
        at = -(-file.tell() // PAGE) * PAGE
        count = len(headers) // 56
        section = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, count, 0, 0)
        file.seek(at)
        file.write(section + headers)
        file.seek(32)
        file.write(struct.pack("<QQ", at + len(section), at))  # e_phoff, e_shoff
        file.seek(54)
        file.write(struct.pack("<HHHHH", 56, min(count, 0xFFFF), 64, 1, 0))
    return path


def tail(base: bytes) -> int:
    """Return the offset at which `hostile` appends to these bytes."""
    return -(-len(base) // PAGE) * PAGE


def threads(count: int, first: int = 1 << 20, sp: int = 0, step: int = 0) -> bytes:
    """Return notes of `count` threads, with stack pointers that begin at `sp` and are `step` bytes apart."""
    return b"".join(prstatus(Task(first + number, {"rsp": sp + number * step})) for number in range(count))


class TooMuch(Exception):
    """A function executed more lines than a test allows."""


def lines_run(function: Callable[[], object], most: int = 1 << 62) -> int:
    """Return how many lines of Python `function` executes: a measure of work that does not depend on the machine's load. Raises TooMuch if
    there are more than `most`."""
    counter, before = _counter(), sys.gettrace()
    lines = ctypes.c_uint64.in_dll(counter, "lines")
    lines.value, ctypes.c_uint64.in_dll(counter, "most").value = 0, most
    ctypes.pythonapi.PyEval_SetTrace(counter.count, None)
    try:
        function()
    finally:
        ctypes.pythonapi.PyEval_SetTrace(None, None)
        sys.settrace(before)
    return lines.value


@functools.cache
def _counter() -> ctypes.CDLL:
    """Compile and load tests/programs/lines.c."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "lines.so"
        subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, PROGRAMS / "lines.c"], check=True)
        return ctypes.CDLL(str(library))
