"""Describe the words of a block or variable: what each word contains or points to."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Optional

from findleaks.allocators.names import read_name
from findleaks.audit.address_info import AddressDescription, Describer
from findleaks.audit.block_contents import describe_contents
from findleaks.audit.managed_graph import describe_fields
from findleaks.audit.member_names import name_members
from findleaks.block_types.text import quote
from findleaks.errors import UnreadableMemory
from findleaks.formatting import number, shorten
from findleaks.results.addresses import Word
from findleaks.session import Session

WORDS = 16  # words that are described unless the user asks for more
MOST = 1 << 14  # maximum number of words of one block that are described
# Fewest characters of text that ends with a NUL byte, and of text that does not
_LEAST_TEXT, _LEAST_OPEN = 4, 8
_SMALL = 1 << 24  # smaller numbers are written in decimal
_FRACTION = 20  # A number that may be a double must end in this many zero bits
_SPACES = b"\t\n\r"
_REPEATED = 3  # fewest equal numbers that are joined into one row


def describe_words(session: Session, describer: Describer, answer: AddressDescription, most: int = WORDS) -> Optional[list[Word]]:
    """Describe the words of the block or variable that contains an address; None for other memory.

    `most`: maximum number of words (0: all, up to MOST). If the block has more, the words around
    the address are described. Adjacent words of zeros or of text form one row."""
    fields = (
        describe_fields(answer.object, min(most or MOST, MOST), partial(_name_block, session, describer))
        if answer.object is not None
        else None
    )
    if fields is not None:
        return fields
    extent = _extent(session, answer)
    if extent is None:
        return None
    start, size = extent
    size_of_word = session.target.arch.word
    whole, limit = size // size_of_word, min(most or MOST, MOST)
    first = max(0, min((answer.address - start) // size_of_word - limit // 2, whole - limit))
    try:
        data = session.target.read(start + first * size_of_word, min(whole - first, limit) * size_of_word)
    except UnreadableMemory:
        return []
    names = name_members(session, answer, start)
    return list(_Rows(session, describer, start, first * size_of_word, data, names).rows())


def _name_block(session: Session, describer: Describer, address: int) -> str:
    index = session.directory.blocks.find(address)
    return describer.block(index).phrase() if index >= 0 else ""


def _extent(session: Session, answer: AddressDescription) -> Optional[tuple[int, int]]:
    """Return the start of the block or variable that contains the address, and its size in
    bytes."""
    if answer.extent is not None:
        return answer.extent
    region = answer.region
    if answer.sort != "module" or region is None or not region.writable or region.executable:
        return None
    symbol = session.target.symbolize(answer.address)
    if symbol is None or not symbol.size or not symbol.address <= answer.address < symbol.address + symbol.size:
        return None
    return symbol.address, min(symbol.size, region.end - symbol.address)


class _Rows:
    """Builds the rows for `data`, which begins `offset` bytes after `start`."""

    def __init__(self, session: Session, describer: Describer, start: int, offset: int, data: bytes, names: Callable[[int], str]) -> None:
        self._session, self._describer = session, describer
        self._start, self._offset, self._data, self._names = start, offset, data, names
        self._arch = session.target.arch
        self._words = self._arch.unpack(data)

    def rows(self) -> Iterator[Word]:
        at = 0
        while at < len(self._words):
            count, row = self._row(at)
            yield row
            at += count

    def _row(self, at: int) -> tuple[int, Word]:
        """Return the number of words that the row at word `at` covers, and the row."""
        word, value = self._arch.word, self._words[at]
        offset = self._offset + at * word
        field = self._names(offset)
        if not value:
            count = self._count_equal(at)
            return count, Word(offset, count * word, 0, field or None, "zeros" if count > 1 else "number", None)
        phrase = self._pointer(value)
        if phrase:
            return 1, Word(offset, word, value, field or None, "pointer", phrase)
        text, length = self._text(at)
        if text:
            count = -(-length // word)
            return count, Word(offset, count * word, None, field or None, "text", text)
        count = self._count_equal(at)
        count = count if count >= _REPEATED else 1
        return count, Word(offset, count * word, value, field or None, "number", self._number(value) or None)

    def _count_equal(self, at: int) -> int:
        """Return how many words from `at` on are equal. Counting stops at the next word that has a
        name."""
        end = at + 1
        while end < len(self._words) and self._words[end] == self._words[at] and not self._names(self._offset + end * self._arch.word):
            end += 1
        return end - at

    def _pointer(self, value: int) -> str:
        """Describe the memory at an address; "" if nothing is mapped there."""
        value &= self._session.target.arch.mask
        region = self._describer.region(value)
        if value < self._arch.page or region is None:
            return ""
        answer = self._describer.answer(value)
        if answer.object is not None:
            start = answer.object.object.address
            place = f"{number(value - start)} bytes into " if value > start else ""
            return f"{place}{'itself' if start == self._start else answer.object.phrase()}"
        block = answer.block
        if block is not None:
            into = value - block.address
            place = f"{number(into)} bytes into " if into else ""
            phrase = "itself" if block.address == self._start else block.phrase()
            known = block.type or block.hint or block.address == self._start or block.state != "in-use"
            contents = "" if known else describe_contents(self._session, block.address, block.size)
            return f"{place}{phrase}{', ' if contents else ''}{contents}"
        name = self._session.types.name(value) if answer.sort == "module" else ""
        if name and not name.startswith(("function ", "code in ", "table ")):
            return f"vtable of {name}"
        if answer.sort == "module" and not region.writable and not region.executable:
            text = read_name(self._session.types.memory, value)
            if len(text) >= _LEAST_TEXT:
                return f"{quote(text)} ({shorten(region.name.rsplit('/', 1)[-1])})"
        return answer.phrase

    def _text(self, at: int) -> tuple[str, int]:
        """Return the text that begins at word `at`, quoted, and its length with the NUL byte."""
        data = self._data[at * self._arch.word :]
        body, end, _ = data.partition(b"\0")
        shown = body[: next((i for i, c in enumerate(body) if (c < 0x20 and c not in _SPACES) or c == 0x7F), len(body))]
        try:
            text = shown.decode("utf-8")
        except UnicodeDecodeError as error:
            shown = shown[: error.start]
            text = shown.decode("utf-8")
        ended = len(shown) == len(body) and bool(end)
        if len(text) < (_LEAST_TEXT if ended else _LEAST_OPEN):
            return "", 0
        return quote(text), len(shown) + ended

    def _number(self, value: int) -> str:
        """Return a number in words; "" if only its hexadecimal form is meaningful."""
        bits = 8 * self._arch.word
        if value < _SMALL:
            return number(value)
        if value >= 1 << bits - 1 and (1 << bits) - value < _SMALL:
            return number(value - (1 << bits))
        if bits != 64:
            return ""
        halves = [half - (half >> 31 << 32) for half in self._session.types.memory.halves(value)]
        if all(abs(half) < _SMALL for half in halves):
            return f"32-bit numbers {number(halves[0])}, {number(halves[1])}"
        double = struct.unpack("d", struct.pack("Q", value))[0]
        if value & (1 << _FRACTION) - 1 == 0 and 1e-6 < abs(double) < 1e12:
            return f"{double:g} (double)"
        return ""
