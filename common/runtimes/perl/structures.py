"""Structures of Perl that are read one by one: names of packages and subs, and pads.

Sources: hv.h (struct hek, struct he, xpvhv_aux), cv.h, sv.h (_XPVCV_COMMON), gv.h, pad.h, op.h,
cop.h of Perl 5.36 to 5.40, 64-bit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.value_classes import NamedTuple

LONGEST = 1 << 10  # bytes of a name or a file name
MOST_KEYS = 1 << 20  # entries of a stash
MOST_BUCKETS = 1 << 20
MOST_LEVELS = 1 << 10  # pads of one sub, one for each level of recursion
MOST_LINES = 1 << 24
AUX = 32  # offset of struct xpvhv_aux in the body of a hash
CODE_BYTES = 104  # bytes of the body of a sub
XSUB, ANON, UNIQUE = 0x08, 0x80, 0x100  # CVf_ISXSUB, CVf_ANON, CVf_UNIQUE
_NAMED = 0x8000  # CVf_NAMED: the name is a HEK, not a glob
_LINE, _FILE = 36, 48  # offsets in struct cop; cop_file exists in builds with threads


class Sub(NamedTuple):
    """The members of a sub's body that are used (struct xpvcv)."""

    stash: int
    start: int
    root: int
    glob: int
    file: int
    padlist: int
    outside: int
    flags: int


def read_sub(words: Sequence[int], memory: Memory) -> Sub:
    """Return the members of a sub's body, given its 13 words."""
    return Sub(words[4], words[5], words[6], words[7], words[8], words[9], words[10], memory.halves(words[11])[1])


class Structures:
    """Reads structures in one target."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._places: dict[int, str] = {}

    def key(self, address: int) -> str:
        """Return the text of the HEK at an address, or ""."""
        header = self._memory.members(address, "II")
        if header is None or not 0 < header[1] <= LONGEST:
            return ""
        return self._memory.read(address + 8, header[1]).decode("utf-8", "replace")

    def package(self, stash: int) -> str:
        """Return the name of the package whose stash is at an address, or ""."""
        body = self._memory.word(stash) if stash else None
        words = self._memory.words(body + AUX, 4) if body else None
        if words is None:
            return ""
        # A count that is not 0 says that the first word refers to an array of names.
        several = self._memory.halves(words[3])[1]
        return self.key((self._memory.word(words[0]) or 0) if several and words[0] else words[0]) if words[0] else ""

    def sub_name(self, sub: Sub) -> str:
        """Return the name of a sub with its package ("Watcher::scan"), or ""."""
        if sub.flags & _NAMED:
            return f"{self.package(sub.stash)}::{self.key(sub.glob)}"
        return self.glob_name(sub.glob)

    def glob_name(self, glob: int) -> str:
        """Return the name of a glob with its package, or ""."""
        body = self._memory.word(glob) if glob else None
        words = self._memory.words(body + 32, 2) if body else None
        name = self.key(words[0]) if words is not None else ""
        return f"{self.package(words[1])}::{name}" if words is not None and name else ""

    def place(self, sub: Sub) -> str:
        """Return file and line of the first statement of a sub ("lib/Watcher.pm:17"), the file
        alone, or ""."""
        key = sub.start or sub.file  # Each closure has a copy of the file's name.
        known = self._places.get(key)
        if known is None:
            file = self._text(sub.file)
            line = self._line(sub, file)
            short = "/".join(file.split("/")[-2:])
            known = self._places[key] = f"{short}:{line}" if file and line else short
        return known

    def _text(self, address: int) -> str:
        return os.fsdecode(self._memory.c_string(address, LONGEST)) if address else ""

    def _line(self, sub: Sub, file: str) -> int:
        """Return the line in the first operation of a sub, which is a struct cop; 0 if it is none.
        In builds with threads it has the name of the file; in others, the stash precedes."""
        words = self._memory.words(sub.start, _FILE // 8 + 1) if sub.start else None
        if words is None or (words[5] != sub.stash and self._text(words[6]) != file):
            return 0
        line = self._memory.halves(words[_LINE // 8])[1]
        return line if line < MOST_LINES else 0

    def pads(self, padlist: int) -> Sequence[int]:
        """Return the values that are the pads of a sub, one for each level of recursion. Their
        names precede them in the list; see `pad_names`."""
        return [pad for pad in (self._memory.words(*self.table_of_pads(padlist)) or ())[1:] if pad]

    def table_of_pads(self, padlist: int) -> tuple[int, int]:
        """Return the address of a table of pads, and the number of its pointers."""
        header = self._memory.words(padlist, 2) if padlist else None
        return (header[1], header[0] + 1) if header is not None and 0 < header[0] <= MOST_LEVELS else (0, 0)

    def name_list(self, padlist: int) -> int:
        """Return the address of the names of a pad (struct padnamelist), which closures share."""
        table, _ = self.table_of_pads(padlist)
        return (self._memory.word(table) or 0) if table else 0

    def table_of_names(self, names: int) -> tuple[int, int]:
        """Return the address of a table of names of variables, and the number of its pointers."""
        listed = self._memory.words(names, 2) if names else None
        return (listed[1], listed[0] + 1) if listed is not None and 0 <= listed[0] < MOST_KEYS else (0, 0)

    def pad_names(self, padlist: int) -> Iterator[tuple[int, str, bool]]:
        """Yield the named variables of a pad: index, name with its sigil, and whether it is a
        variable of an outer sub."""
        for number, name in enumerate(self._memory.words(*self.table_of_names(self.name_list(padlist))) or ()):
            words = self._memory.words(name, 6) if name else None
            if words is not None and words[0] and not words[1]:  # a stash: `our` variables
                length, flags = words[5].to_bytes(8, self._memory.arch.byteorder)[:2]
                text = self._memory.read(words[0], length) if length else b""
                if len(text) > 1 and text[:1] in b"$@%":
                    yield number, text.decode("utf-8", "replace"), bool(flags & 1)

    def entries(self, body: int, buckets: int) -> Iterator[tuple[str, int, int]]:
        """Yield key, value, and the address of the reference to the value of each entry of a hash.
        `body` is its body, `buckets` the address of its buckets."""
        header = self._memory.words(body, 4)
        if header is None or not buckets or header[3] >= MOST_BUCKETS:
            return
        seen = 0
        for entry in self._memory.words(buckets, header[3] + 1) or ():
            while entry and seen < MOST_KEYS:
                seen += 1
                words = self._memory.words(entry, 3)
                if words is None:
                    break
                yield self.key(words[1]), words[2], entry + 16
                entry = words[0]
