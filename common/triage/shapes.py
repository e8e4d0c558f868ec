"""Shapes of lost blocks: what they hold, said without an address, so that it is the same wherever
the process was loaded and however its code was compiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.block_type import object_type
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind, State
from findleaks.formatting import number
from findleaks.session import Session
from findleaks.target.ranges import range_at, region_at

WORDS = 8  # of a block that are looked at
TEXT = 64  # bytes of a block that are looked at for text
LONGEST = 4096  # bytes of a block that are looked at for the end of its text
REST = 40  # bytes behind a text that may hold remains: what a block is larger than was asked for

ZERO, DATA, HELD, OWN, LOST = "0", ".", "held", "itself", "→ "
"""Classes of words, beside "libfoo data": zero; no pointer that says anything; pointers to a block
that is held; to the block itself; to a lost one, followed by what that is."""
UNCLEAR = "?"  # of several blocks: they do not agree on a class
TEXT_LABEL, ZEROS_LABEL, ARRAY_LABEL = "text", "zeros", "array of "
HEADER = 2  # words of an array before its elements, at most: its length, a library's header
ELEMENTS = 4  # pointers from which on a block of nothing else is an array
FILLED = 3 / 4  # share of an array's words that are pointers to blocks; others are behind its end
LONGEST_ARRAY = 512  # words of a block that are looked at for its being an array

_ADDRESS = re.compile(r"\+0x[0-9a-f]+$")
_COUNT = re.compile(r"\[\d+\]$")
_CLONE = re.compile(r"\.(?:constprop|part|isra|cold|lto_priv|llvm)(?:\.\d+)*$|\s*\[clone [^\]]*\]")
_VERSION = re.compile(r"\.so(?:\.[\w.]+)?$|(?:-\d[\w.]*)\.so$")
_TOKEN = re.compile(rb"[^0-9A-Za-z\x00-\x1f\x7f-\xff]{0,2}([A-Za-z]{2,16})(?![A-Za-z])")
_WEAK = ("code in ", "class ", "table ", "function ")
"""Beginnings of names that are none of a C++ class: other blocks may begin alike."""


class Shape(NamedTuple):
    """`label`: the type's name, "text", 'text "GET"', "array of text", "array of blocks", "zeros",
    or ""; `strong`: a type that says all there is to say, so that there are no `words`, and any
    size is the same leak; else their classes; `ring`: whether the block is a cycle's head."""

    label: str
    strong: bool
    ring: bool
    words: tuple[str, ...]


class _Text(NamedTuple):
    """'text "GET"', "text" or "zeros", and where the text ends in the block."""

    label: str
    end: int


class Shapes:
    """Shapes of the blocks of one core."""

    def __init__(self, session: Session, graph: Graph) -> None:
        self._session, self._types, self._memory = session, session.types, Memory(session.target)
        self._target, self._graph, self._blocks = session.target, graph, session.directory.blocks
        self._tables = session.types.ranges()
        self._modules = sorted(session.target.modules(), key=lambda module: module.start)
        self._regions = session.target.regions()
        self._claimed = session.directory.claimed()

    def of(self, start: int, size: int, ring: bool, leads: bool) -> Shape:
        """The shape of the lost block at `start`. `leads`: other lost blocks hang from it."""
        managed = object_type(self._session, self._blocks.find(start))
        if managed is not None:
            return Shape(managed, True, ring, ())
        name = stable_name(self._types.of_block(start, size))
        if name and not name.startswith(_WEAK):
            return Shape(name, True, ring, ())
        text = self._text(start, size) if not name else None
        if text is not None and (not leads or text.end >= size - REST):
            return Shape(text.label, text.label != ZEROS_LABEL, False, ())
        values = self._memory.words(start, min(size // self._memory.size, LONGEST_ARRAY)) or ()
        elements = self._elements(values, start) if not name else ""
        if elements:
            return Shape(ARRAY_LABEL + elements, False, ring, ())
        return Shape(name, False, ring, tuple(self._class(value, start) for value in values[:WORDS]))

    def _elements(self, values: Sequence[int], start: int) -> str:
        """What an array's pointers point to, "text" or "blocks"; "" if the block is no array of
        pointers. It is of any length, and so what it points to is no part of its shape."""
        if len(values) < ELEMENTS:
            return ""
        most = [self._class(value, start) for value in values[HEADER:-1]]
        found = [one for one in most if one == HELD or one.startswith(LOST)]
        if len(found) < max(ELEMENTS, FILLED * len(most)):
            return ""
        texts = sum(one == LOST + TEXT_LABEL for one in found)
        return TEXT_LABEL if 4 * texts >= len(found) else "blocks"

    def _text(self, start: int, size: int) -> Optional[_Text]:
        """The text that a block begins with, None if it begins with none; or its zeros. A length in
        a word before it (SQLite has one, counted strings do) is no part of it."""
        data = self._memory.read(start, min(size, LONGEST))
        if data and not data.strip(b"\0"):
            return _Text(ZEROS_LABEL, 0)
        word = self._memory.size
        length = int.from_bytes(data[:word], self._memory.arch.byteorder)
        before = word if max(size - word - REST, 1) <= length <= size - word else 0
        found = self._text_in(data[before:], size - before)
        return None if found is None else found._replace(end=before + found.end)

    def _text_in(self, data: bytes, size: int) -> Optional[_Text]:
        hint = self._types.hint(data[:TEXT])
        if not hint.startswith('"') or data[0] < 0x20:
            return None
        token = _TOKEN.match(data)
        label = f'{TEXT_LABEL} "{token[0].decode("ascii")}"' if token is not None else TEXT_LABEL
        end = data.find(b"\0")
        return _Text(label, size if end < 0 else end + 1)

    def _class(self, value: int, start: int) -> str:
        if not value:
            return ZERO
        found = self._blocks.lookup(value)
        if found is not None:
            index, address, size, state = found
            if address == start:
                return OWN
            if state != State.IN_USE:
                return DATA  # freed since: what is left of it differs from run to run
            if self._graph.kind(index) in (Kind.DEFINITE, Kind.INDIRECT, Kind.POSSIBLE):
                return LOST + self._child(address, size)
            return HELD
        module = region_at(self._modules, value)
        if module is None or range_at(self._claimed, value):
            return DATA  # an arena in libc's data: what malloc left in the block
        region = region_at(self._regions, value)
        part = "data" if region is None or region.writable else "code" if region.executable else "constants"
        return f"{library_name(module.path)} {part}"

    def _child(self, start: int, size: int) -> str:
        """What a lost block is that another points to: its type, "text", or its size."""
        managed = object_type(self._session, self._blocks.find(start))
        if managed is not None:
            return managed
        words = self._memory.words(start, 1) if size >= self._memory.size else None
        name = stable_name(self._types.name(words[0])) if words and range_at(self._tables, words[0]) else ""
        if name:
            return name
        text = self._text(start, size)
        return TEXT_LABEL if text is not None and text.label != ZEROS_LABEL else f"{number(size)} B"


def stable_name(name: str) -> str:
    """A type's name without what differs between builds: addresses, counts, compilers' clones."""
    if not name:
        return ""
    name = _CLONE.sub("", _COUNT.sub("[]", _ADDRESS.sub("", name)))
    words = name.split(" ")
    return " ".join([*words[:-1], library_name(words[-1])]) if name.startswith(_WEAK) else name


def library_name(path: str) -> str:
    """ "libfoo" of /usr/lib/libfoo.so.1.2.3; the program's own name."""
    return _VERSION.sub("", path.removesuffix(" (deleted)").rsplit("/", 1)[-1]) or "module"
