"""Render a heap map as one HTML page, from page.html, page.css and page.js. For each page of
memory, it contains one byte of state and fraction in use, one byte of size, and one byte of type,
compressed. If there are few blocks, it also contains every block."""

from __future__ import annotations

import base64
import html
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import NamedTuple

from findleaks.audit.pages import Area
from findleaks.engine.terms import State
from findleaks.escaping import visible
from findleaks.formatting import printable
from findleaks.report.heapmap.cells import FAINT_DARK, FAINT_LIGHT, LOOKS, Picture, format_sums
from findleaks.report.page import fill_template, script_json
from findleaks.session import Session
from findleaks.target.base import Range

# Maximum number of blocks that are listed; if there are more, only pages are described
MAX_BLOCKS = 60_000
MAX_SPARE = 4_000  # maximum number of free pieces that are named for each arena, largest first

_ENTRIES = 256
_EXACT = 128  # if there are too many sizes, this many of the most frequent ones stay exact
_STEP = 1 << 14


class Planes(NamedTuple):
    """Data for the page's script, in its order."""

    offsets: array[int]  # "I": offset of each block in its part / 4
    lengths: array[int]  # "I": size of each block
    states: bytearray  # one byte per page: state and share
    sizes: bytes  # one byte per page
    types: bytes  # one byte per page
    block_states: bytearray
    block_types: bytes

    def pack(self) -> bytes:
        for words in (self.offsets, self.lengths):
            if array("H", [1]).tobytes() != b"\1\0":
                words.byteswap()
        return zlib.compress(b"".join(bytes(plane) for plane in self), 9 if len(self.states) < 1 << 20 else 6)


def render_html(session: Session, picture: Picture) -> str:
    states, words = bytearray(), array("Q")
    sizes: array[int] = array("I")
    for area in picture.areas:
        states += bytes(state | share >> 3 << 3 for state, share in zip(area.states, area.shares))
        sizes += area.sizes
        words += _types_of(session, area)
    blocks, offsets, lengths, block_states, block_words = _blocks(session, picture.areas)
    session.report_progress("naming types", 0.0)
    names = _Names(session, words + block_words)
    session.report_progress("packing the picture", 0.0)
    table, about, numbered = _sizes(sizes)
    session.report_progress("packing the picture", 0.3)
    types, block_types = (names.pack_numbers(some) for some in (words, block_words))
    planes = Planes(offsets, lengths, states, numbered, types, block_states, block_types)
    session.report_progress("packing the picture", 0.5)
    meta = {
        "title": printable(f"Heap map: {picture.title}", 300),
        "summary": picture.headline,
        "page": picture.page,
        "pages": len(states),
        "blocks": len(offsets),
        "states": _states(picture),
        "faint": [FAINT_LIGHT, FAINT_DARK],
        "sizes": table,
        "about": about,
        "types": names.names,
        "areas": _areas(picture.areas, blocks, _spare(session, picture.areas)),
    }
    return _assemble_page(meta, base64.b64encode(planes.pack()).decode("ascii"))


def _assemble_page(meta: dict[str, object], data: str) -> str:
    made = {"TITLE": html.escape(visible(str(meta["title"]))), "META": script_json(meta), "DATA": data}
    return fill_template(os.path.dirname(os.path.abspath(__file__)), made)


def _states(picture: Picture) -> list[dict[str, object]]:
    """Return the states in the order of their numbers: name, meaning, colours, bytes, position in
    the legend."""
    looks = sorted(enumerate(LOOKS), key=lambda one: one[1].state)
    return [
        {"name": look.name, "meaning": look.meaning, "colours": [look.light, look.dark], "bytes": picture.bytes(look.state), "order": order}
        for order, look in looks
    ]


def _spare(session: Session, areas: Sequence[Area]) -> list[list[tuple[int, int, str]]]:
    """Return, for each area, the largest pieces of free memory that its allocator keeps, ascending
    by address. Each has the allocator's term ("top", "dirty")."""
    found: dict[tuple[int, str], list[tuple[int, int, str]]] = {(id(area.allocator), area.arena): [] for area in areas}
    for allocator in {id(area.allocator): area.allocator for area in areas}.values():
        for spare in allocator.spare(session.directory.blocks):
            # An arena without an area is not drawn.
            found.get((id(allocator), spare.arena), []).append((spare.start, spare.end, spare.sort))
    return [sorted(nsmallest(MAX_SPARE, listed, key=lambda one: one[0] - one[1])) for listed in found.values()]


def _areas(
    areas: Sequence[Area], blocks: Sequence[Sequence[tuple[int, int]]], spare: Sequence[list[tuple[int, int, str]]]
) -> list[dict[str, object]]:
    first = 0
    found: list[dict[str, object]] = []
    for area, listed, kept in zip(areas, blocks, spare):
        parts = [[part.start, part.end, first + part.first, part.pages, *where] for part, where in zip(area.parts, listed)]
        found.append(
            {"name": area.name, "sums": format_sums(area), "first": first, "count": len(area.states)} | {"parts": parts, "spare": kept}
        )
        first += len(area.states)
    return found


def _types_of(session: Session, area: Area) -> array[int]:
    """Return, for each page, the first word of the blocks that occupy more than half of its bytes
    in use, if that word identifies a type; else 0."""
    ranges = session.types.ranges()
    blocks, found = session.directory.blocks, array("Q", bytes(8 * len(area.states)))
    for part in area.parts if ranges else ():
        words, weights = array("Q", bytes(8 * part.pages)), array("Q", bytes(8 * part.pages))
        where = Range(part.start, part.end)
        for piece in session.pieces([where], "reading types"):
            blocks.page_words(piece, ranges, where, area.page, words, weights)
        found[part.first : part.first + part.pages] = words
    return found


class _Names:
    """Numbers of types. 0 means no type, and the last number means all other types."""

    def __init__(self, session: Session, words: array[int]) -> None:
        self._numbers: dict[int, int] = {0: 0}
        self.names = [""]
        known: dict[str, int] = {"": 0}
        for word, _ in Counter(words).most_common():
            name = session.types.name(word) if word else ""
            if name not in known:
                known[name] = min(len(self.names), _ENTRIES - 1)
                if len(self.names) < _ENTRIES:
                    self.names.append(name if len(self.names) < _ENTRIES - 1 else "other types")
            self._numbers[word] = known[name]

    def pack_numbers(self, words: array[int]) -> bytes:
        """Return the type numbers of words that were passed to the constructor."""
        return bytes(map(self._numbers.__getitem__, words))


def _sizes(sizes: array[int]) -> tuple[list[int], list[bool], bytes]:
    """Return a table of sizes, whether each size is rounded, and for each page its index in the
    table (0: no blocks)."""
    frequent = [value for value, _ in Counter(sizes).most_common() if value]
    exact = len(frequent) if len(frequent) < _ENTRIES else _EXACT
    table = [0, *sorted(frequent[:exact])]
    numbers = {value: number for number, value in enumerate(table)}
    rounded: dict[int, int] = {}
    for value in frequent[exact:]:
        # Round to quarters of powers of two: at most 120 values
        shift = max(value.bit_length() - 3, 0)
        numbers[value] = rounded.setdefault(value >> shift << shift, len(table) + len(rounded))
    about = [False] * len(table) + [True] * len(rounded)
    return [*table, *rounded], about, bytes(numbers[value] for value in sizes)


def _blocks(session: Session, areas: Sequence[Area]) -> tuple[list[list[tuple[int, int]]], array[int], array[int], bytearray, array[int]]:
    """Return, for each part, its blocks as a range of all listed blocks (first, count). Also return
    for each block the offset in its part / 4, its size, its state, and its first word if it is in
    use."""
    blocks = session.directory.blocks
    spans = [[(blocks.at_or_after(part.start), blocks.at_or_after(part.end)) for part in area.parts] for area in areas]
    offsets, lengths = array("I"), array("I")
    states, words = bytearray(), array("Q")
    if sum(high - low for part in spans for low, high in part) > MAX_BLOCKS:
        return [[(0, 0)] * len(area.parts) for area in areas], offsets, lengths, states, words
    found = []
    for area, indices in zip(areas, spans):
        found.append(listed := list[tuple[int, int]]())
        for part, (low, high) in zip(area.parts, indices):
            first = len(offsets)
            if part.end - part.start >= 1 << 34:
                high = low
            for index in range(low, high):
                if index % _STEP == 0:
                    session.report_progress("listing blocks", 0.0)
                address = blocks.address(index)
                offsets.append((address - part.start) // 4)
                lengths.append(min(blocks.size(index), 0xFFFFFFFF))
                states.append(blocks.state(index))
            words.extend(_first_words(session, part.start, part.end, offsets[first:], states[first:]))
            listed.append((first, len(offsets) - first))
    return found, offsets, lengths, states, words


def _first_words(session: Session, start: int, end: int, offsets: array[int], states: bytearray) -> Iterator[int]:
    """Yield the first word of each block; 0 if the block is not in use or cannot be read."""
    word = session.target.arch.word
    starts = [start + 4 * offset for offset in offsets]
    at = 0
    for piece in session.pieces([Range(start, end)], "reading types") if starts else ():
        limit = piece.address + len(piece.data) - word
        while at < len(starts) and starts[at] <= limit:
            low = starts[at] - piece.address
            read = low >= 0 and states[at] == State.IN_USE
            yield int.from_bytes(piece.data[low : low + word], session.target.arch.byteorder) if read else 0
            at += 1
    yield from bytes(len(starts) - at)
