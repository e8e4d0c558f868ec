"""Damage a file. Each mutation is a list of edits that depends only on a seed. It can be undone, and reduced to some of its edits.

The most useful targets are the headers, the notes, and above all the words that findleaks itself reads one by one in a sound core: they
belong to allocators and runtimes (`Subject.focus`).
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from fuzz_files import PAGE, Subject

LOUD = "'\"><script>alert(1)</script>\x1b[31m\x07\u202e\r\n"
"""Text that no terminal and no page may show unchanged."""


class Edit(NamedTuple):
    """Bytes to write at an offset of the file. If `data` is None, the file is truncated at `at` instead."""

    at: int
    data: Optional[bytes]


class Mutation:
    """Chooses the edits of a file. The same seed always gives the same edits."""

    def __init__(self, core: Subject, seed: int, names: Sequence[str] = ()) -> None:
        """`names`: paths that replace file names in the core (of a FIFO, a device …)."""
        self.core, self.rng, self.names = core, random.Random(seed), names
        self.edits: list[Edit] = []
        fit = [name for name in KINDS if core.form not in KINDS[name].not_of]
        self.kinds = self.rng.choices(fit, [KINDS[name].often for name in fit], k=self.rng.choice((1, 1, 1, 2, 3)))
        for kind in self.kinds:
            KINDS[kind].damage(self)

    def put(self, at: int, data: bytes) -> None:
        self.edits.append(Edit(at, data))

    def place(self, everywhere: bool = False) -> int:
        """Return the offset of a random aligned word of the process's memory."""
        at, size, _ = self.rng.choice(self.core.data if everywhere else self.core.written)
        return at + self.rng.randrange(max(1, size // 8)) * 8

    def focused(self) -> int:
        """Return the offset of a word that findleaks reads as a single word."""
        if not self.core.focus:
            return self.place()
        return self.core.offset(self.rng.choice(self.core.focus)) or self.place()

    def address(self) -> int:
        """Return a random address of the process; it is often near a word that findleaks reads."""
        if self.core.focus and self.rng.random() < 0.6:
            return self.rng.choice(self.core.focus)
        if not self.core.parts:
            return self.rng.randrange(self.core.size)
        part = self.rng.choice(self.core.parts)
        return part.start + self.rng.randrange(part.end - part.start)

    def word(self, old: int) -> int:
        """Return a new value for a word: a wild, misaligned or circular pointer, or a boundary value."""
        pick = self.rng.randrange(12)
        if pick < 4:
            return self.address() & (-8 if pick < 3 else -1)
        if pick == 4:
            return old ^ (1 << self.rng.randrange(64))
        if pick == 5:
            return old + self.rng.choice((-4096, -64, -16, -8, -1, 1, 8, 16, 64, 4096)) & _MAX
        if pick == 6:
            return self.rng.choice(EDGES)
        if pick == 7:
            return 1 << self.rng.randrange(64)
        if pick == 8:
            return self.rng.randrange(1 << self.rng.choice((4, 8, 16, 24, 32)))
        if pick == 9:
            return old & 0xFFFFFFFF | self.rng.choice((0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)) << 32
        if pick == 10:
            return old >> 32 << 32 | self.rng.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
        return self.rng.getrandbits(64)

    def small(self) -> int:
        """Return a new value for a number of 32 bits: a count, an offset in the file, or a boundary value."""
        some = (self.rng.randrange(self.core.size), self.rng.randrange(1 << self.rng.choice((2, 4, 8, 16, 32))), self.word(1))
        return self.rng.choice(some) & 0xFFFFFFFF

    def change_word(self, at: int) -> None:
        (old,) = struct.unpack("<Q", self.core.read(at, 8).ljust(8, b"\0"))
        self.put(at, struct.pack("<Q", self.word(old)))


_MAX = (1 << 64) - 1
EDGES = (0, 1, 7, 8, 0xFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 47) - 8, 1 << 47, 1 << 48, 1 << 62, 1 << 63, _MAX - 7, _MAX)


def _focused_words(made: Mutation) -> None:
    for _ in range(made.rng.choice((1, 1, 2, 4, 16, 100))):
        made.change_word(made.focused())


def _neighbours(made: Mutation) -> None:
    """Change several adjacent words, such as the words of one structure."""
    at = made.focused() & -8
    for _ in range(made.rng.choice((2, 4, 8))):
        made.change_word(at + 8 * made.rng.randrange(-8, 8))


def _words(made: Mutation) -> None:
    for _ in range(made.rng.choice((1, 16, 256, 2000))):
        made.change_word(made.place())


def _shared_words(made: Mutation) -> None:
    """Replace a word by another word of the core: this causes cycles, and two owners of one object."""
    for _ in range(made.rng.choice((1, 4, 32))):
        made.put(made.focused(), made.core.read(made.focused(), 8))


def _bits(made: Mutation) -> None:
    for _ in range(made.rng.choice((1, 8, 64, 512))):
        at = made.place(made.rng.random() < 0.3) + made.rng.randrange(8)
        made.put(at, bytes([(made.core.read(at, 1) or b"\0")[0] ^ (1 << made.rng.randrange(8))]))


def _pages(made: Mutation) -> None:
    """Swap, copy, clear or fill pages."""
    for _ in range(made.rng.choice((1, 2, 8))):
        one, other = (made.focused() // PAGE * PAGE, made.place() // PAGE * PAGE)
        here, there = made.core.read(one, PAGE), made.core.read(other, PAGE)
        how = made.rng.randrange(4)
        made.put(one, (there, there, bytes(PAGE), made.rng.choice((b"\xff", b"\x01", b"A")) * PAGE)[how])
        if how == 0:
            made.put(other, here)


def _header(made: Mutation) -> None:
    """Change fields of the file's header."""
    fields = [(4, "B"), (5, "B"), (16, "H"), (18, "H"), (32, "Q"), (40, "Q"), (54, "H"), (56, "H"), (58, "H"), (60, "H"), (62, "H")]
    if made.core.form not in ("core", "program"):
        fields = [(at, form) for at in range(4, 100, 4) for form in "BHI"]
    at, form = made.rng.choice(fields)
    most = (1 << 8 * struct.calcsize(form)) - 1
    made.put(at, struct.pack("<" + form, made.rng.choice((0, 1, 2, 64, most, most - 1, made.word(1) & most))))


def _tables(made: Mutation) -> None:
    """Change fields of program headers and other tables; copy some rows over others."""
    core, rng = made.core, made.rng
    table = rng.choice(core.tables)
    for _ in range(rng.choice((1, 2, 10))):
        row = table.offset + table.size * rng.randrange(table.count)
        if table.size < 56:
            made.put(row + rng.randrange(table.size // 4) * 4, struct.pack("<I", made.small()))
        elif rng.random() < 0.2:
            made.put(row, core.read(table.offset + table.size * rng.randrange(table.count), table.size))
        elif rng.random() < 0.2:
            made.put(row, struct.pack("<II", rng.choice((0, 1, 2, 4, 6, 7, 0x6474E550)), rng.randrange(8)))
        else:
            made.change_word(row + 8 * rng.randrange(1, table.size // 8))


def _notes(made: Mutation) -> None:
    """Change the headers of notes, and words and bytes in their contents."""
    for _ in range(made.rng.choice((1, 2, 8))):
        if not made.core.notes:
            return
        offset, size = made.rng.choice(made.core.notes)
        heads = _note_headers(made.core.read(offset, size))
        if made.rng.random() < 0.5 and heads:
            at = offset + made.rng.choice(heads) + 4 * made.rng.randrange(3)
            made.put(at, struct.pack("<I", made.word(1) & 0xFFFFFFFF))
        elif heads:
            at = offset + made.rng.choice(heads) + 20 + 4 * made.rng.randrange(20)
            made.put(at, struct.pack("<Q", made.word(0)))


def _note_headers(data: bytes) -> list[int]:
    at, found = 0, []
    while at + 12 <= len(data):
        name, desc, _ = struct.unpack_from("<III", data, at)
        found.append(at)
        at += 12 + (name + 3 & -4) + (desc + 3 & -4)
    return found


def _strings(made: Mutation) -> None:
    """Replace texts by texts with control characters, or by names of files that must not be opened."""
    wanted = made.rng.choice((b"/lib/", b"/usr/", b"/root", b".so", b"/tmp/", b"example", b"worker", b"shop", b"main", b"lib"))
    loud = made.rng.choice([LOUD.encode(), b"\xff\xfe\x9b31m<img src=x onerror=alert(1)>", b"A" * 3000, *map(os.fsencode, made.names)])
    for _ in range(made.rng.choice((1, 8))):
        notes = made.rng.random() < 0.5 and made.core.notes
        start, size = made.rng.choice(made.core.notes) if notes else made.rng.choice(made.core.written)[:2]
        if made.core.form == "minidump" and made.rng.random() < 0.5:
            start, size, wanted, loud = 0, 1 << 20, _wide(wanted), _wide(loud)
        window = made.core.read(start, min(size, 1 << 20))
        found = window.find(wanted, made.rng.randrange(len(window) + 1))
        if found < 0:
            found = window.find(wanted)
        if found >= 0:
            end = window.find(b"\0", found)
            length = max(1, (end if end >= 0 else len(window)) - found)
            # The new path has the length of the old one ("/fifo////"); otherwise the following rows would move.
            data = loud[:length] if len(loud) >= length else loud + (b"/" if loud[:1] == b"/" else b"x") * (length - len(loud))
            made.put(start + found, data)


def _wide(text: bytes) -> bytes:
    return text.decode("latin-1").encode("utf-16-le")


def _truncated(made: Mutation) -> None:
    sizes = (
        0,
        1,
        63,
        64,
        made.core.tables[0].offset + 56 if made.core.tables else 512,
        made.core.size - 1,
        made.core.size // 2,
        made.rng.randrange(made.core.size + 1),
    )
    made.edits.append(Edit(made.rng.choice(sizes), None))


def _nothing(made: Mutation) -> None:
    """Fill whole ranges with zeros."""
    at, size, _ = made.rng.choice(made.core.written)
    low = made.rng.randrange(size)
    made.put(at + low, bytes(min(size - low, 1 << made.rng.randrange(6, 20))))


class Kind(NamedTuple):
    """A kind of damage, how often it is chosen, and the forms of files to which it is not applied."""

    often: int
    damage: Callable[[Mutation], None]
    not_of: Sequence[str] = ()


_OTHERS = ("program", "saved")
KINDS: Mapping[str, Kind] = {
    "focused words": Kind(10, _focused_words, _OTHERS),
    "neighbours": Kind(6, _neighbours, _OTHERS),
    "shared words": Kind(4, _shared_words, _OTHERS),
    "words": Kind(4, _words),
    "bits": Kind(3, _bits),
    "pages": Kind(3, _pages, _OTHERS),
    "header": Kind(1, _header),
    "tables": Kind(3, _tables, ("saved",)),
    "notes": Kind(3, _notes, ("minidump", "saved")),
    "strings": Kind(3, _strings),
    "truncated": Kind(1, _truncated),
    "nothing": Kind(2, _nothing),
}


def apply(path: Path, edits: Sequence[Edit]) -> Optional[list[Edit]]:
    """Change the file at `path`. Return the edits that undo the change, or None if the file was truncated and must be copied again."""
    undo: list[Edit] = []
    cut = [edit.at for edit in edits if edit.data is None]
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for at, data in edits:
            if data is not None and 0 <= at < size:
                undo.append(Edit(at, os.pread(file.fileno(), min(len(data), size - at), at)))
                os.pwrite(file.fileno(), data[: size - at], at)
        if cut:
            os.truncate(file.fileno(), min(cut))
    return None if cut else undo[::-1]
