"""Compute shapes of leaked blocks. A shape describes the content without addresses, so that it does
not depend on where the process was loaded and how its code was compiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.block_contents import WEAK_TYPES
from findleaks.audit.block_type import describe_block_type, find_object_type
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind, State
from findleaks.escaping import visible
from findleaks.formatting import number
from findleaks.session import Session
from findleaks.target.ranges import range_at, region_at

DECLARED = ("debug-info", "hint", "inferred")  # sources of types that debug information has
WORDS = 8  # number of words at the start of a block that are examined
TEXT = 64  # number of bytes at the start of a block that are examined for text
LONGEST = 4096  # number of bytes at the start of a block in which the end of its text is searched
REST = 40  # bytes after a text that may contain remains, because a block is larger than requested

ZERO, DATA, HELD, OWN, LOST = "0", ".", "held", "itself", "→ "
"""Classes of words. Further classes name a module, such as "libfoo data".

ZERO: zero. DATA: not a pointer, or a pointer that differs in each run. HELD: a pointer to a block
that is not leaked. OWN: a pointer to the block itself. LOST: a pointer to a leaked block, followed
by a description of that block."""
UNCLEAR = "?"  # the class of a word if several blocks do not agree on one
TEXT_LABEL, ZEROS_LABEL, ARRAY_LABEL = "text", "zeros", "array of "
# Maximum number of words before the elements of an array: its length, and a header of a library
HEADER = 2
ELEMENTS = 4  # a block that contains only pointers is an array if it has at least this many
# Fraction of an array's words that must be pointers to blocks; the others are beyond its end.
FILLED = 3 / 4
LONGEST_ARRAY = 512  # number of words of a block that are examined for an array

_ADDRESS = re.compile(r"\+0x[0-9a-f]+$")
_COUNT = re.compile(r"\[\d+\]$")
_CLONE = re.compile(r"\.(?:constprop|part|isra|cold|lto_priv|llvm)(?:\.\d+)*$|\s*\[clone [^\]]*\]")
_VERSION = re.compile(r"\.so(?:\.[\w.]+)?$|(?:-\d[\w.]*)\.so$")
_TOKEN = re.compile(rb"[^0-9A-Za-z\x00-\x1f\x7f-\xff]{0,2}([A-Za-z]{2,16})(?![A-Za-z])")


class Shape(NamedTuple):
    """The shape of a block.

    `label`: the type's name, "text", 'text "GET"', "array of text", "array of blocks", "zeros", or
    "". The label is escaped, because it is stored in files. `strong`: whether the type alone
    identifies the leak at any size; if so, there are no `words`. `words`: the classes of the first
    words. `ring`: whether the block is the head of a cycle."""

    label: str
    strong: bool
    ring: bool
    words: tuple[str, ...]


class _Text(NamedTuple):
    """A label ('text "GET"', "text" or "zeros"), and the offset in the block at which the text
    ends."""

    label: str
    end: int


class Shapes:
    """Computes the shapes of the blocks of one core."""

    def __init__(self, session: Session, graph: Graph) -> None:
        self._session, self._types, self._memory = session, session.types, Memory(session.target)
        self._target, self._graph, self._blocks = session.target, graph, session.directory.blocks
        self._tables = session.types.ranges()
        self._modules = sorted(session.target.modules(), key=lambda module: module.start)
        self._regions = session.target.regions()
        self._claimed = session.directory.list_claimed()

    def of(self, start: int, size: int, ring: bool, leads: bool) -> Shape:
        """Return the shape of the leaked block at `start`. `leads`: whether other leaked blocks are
        reachable only from this block."""
        managed = find_object_type(self._session, self._blocks.find(start))
        if managed is not None:
            return Shape(visible(managed), True, ring, ())
        declared = self._find_declared(start)
        if declared:
            return Shape(declared, True, ring, ())
        name = visible(stable_name(self._types.of_block(start, size)))
        if name and not name.startswith(WEAK_TYPES):
            return Shape(name, True, ring, ())
        text = self._text(start, size) if not name else None
        if text is not None and (not leads or text.end >= size - REST):
            return Shape(text.label, text.label != ZEROS_LABEL, False, ())
        values = self._memory.words(start, min(size // self._memory.size, LONGEST_ARRAY)) or ()
        elements = self._elements(values, start) if not name else ""
        if elements:
            return Shape(ARRAY_LABEL + elements, False, ring, ())
        return Shape(name, False, ring, tuple(self._class(value, start) for value in values[:WORDS]))

    def _find_declared(self, start: int) -> str:
        """Return the type that a block has according to debug information; "" if it has none."""
        found = describe_block_type(self._session, self._blocks.find(start))
        return stable_name(found.name) if found is not None and found.source in DECLARED else ""

    def _elements(self, values: Sequence[int], start: int) -> str:
        """Return what the pointers of an array refer to, "text" or "blocks"; "" if the block is not
        an array of pointers. Arrays have different lengths, so their single targets are not part of
        the shape."""
        if len(values) < ELEMENTS:
            return ""
        most = [self._class(value, start) for value in values[HEADER:-1]]
        found = [one for one in most if one == HELD or one.startswith(LOST)]
        if len(found) < max(ELEMENTS, FILLED * len(most)):
            return ""
        texts = sum(one == LOST + TEXT_LABEL for one in found)
        return TEXT_LABEL if 4 * texts >= len(found) else "blocks"

    def _text(self, start: int, size: int) -> Optional[_Text]:
        """Return the text with which a block begins, or _Text(ZEROS_LABEL, 0) if the bytes that are
        read are all zero; else None. The text may come after a word with its length: SQLite and
        counted strings have such a word."""
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
                return DATA  # the target has been freed; what remains of it differs in each run
            if self._graph.kind(index) in (Kind.DEFINITE, Kind.INDIRECT, Kind.POSSIBLE):
                return LOST + self._child(address, size)
            return HELD
        module = region_at(self._modules, value)
        if module is None or range_at(self._claimed, value):
            return DATA  # an arena in libc's data: malloc left this pointer in the block
        region = region_at(self._regions, value)
        part = "data" if region is None or region.writable else "code" if region.executable else "constants"
        return f"{library_name(module.path)} {part}"

    def _child(self, start: int, size: int) -> str:
        """Describe a leaked block that another leaked block refers to: its type, "text", or its
        size."""
        managed = find_object_type(self._session, self._blocks.find(start))
        if managed is not None:
            return visible(managed)
        declared = self._find_declared(start)
        if declared:
            return declared
        words = self._memory.words(start, 1) if size >= self._memory.size else None
        name = visible(stable_name(self._types.name(words[0]))) if words and range_at(self._tables, words[0]) else ""
        if name:
            return name
        text = self._text(start, size)
        return TEXT_LABEL if text is not None and text.label != ZEROS_LABEL else f"{number(size)} B"


def stable_name(name: str) -> str:
    """Return the name of a type without the parts that differ between builds: addresses, counts,
    and the suffixes of compilers' clones."""
    if not name:
        return ""
    name = _CLONE.sub("", _COUNT.sub("[]", _ADDRESS.sub("", name)))
    words = name.split(" ")
    return " ".join([*words[:-1], library_name(words[-1])]) if name.startswith(WEAK_TYPES) else name


def library_name(path: str) -> str:
    """Return the name of a library without its version: "libfoo" for /usr/lib/libfoo.so.1.2.3. For
    a program, return its name."""
    return _VERSION.sub("", path.removesuffix(" (deleted)").rsplit("/", 1)[-1]) or "module"
