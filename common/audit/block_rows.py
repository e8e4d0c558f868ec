"""Select the blocks that pass filters, and return their indices, their JSON, or their columns.

The engine formats blocks in batches. Blocks that it cannot format are described one by one. If the
engine has no formatter for the filters, all blocks are described one by one."""

from __future__ import annotations

import mmap
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from typing import TypeVar

from findleaks.arg_types import SizeRange, check_choice
from findleaks.audit.address_info import STATES, BlockInfo, Describer
from findleaks.audit.block_batches import Batch, BatchCollector, BlockNames, NameTable, known_words
from findleaks.audit.block_type import TypeOfBlock, find_block_type, label_names, mark_texts
from findleaks.block_types.text import character_table, text_hints
from findleaks.engine.rows import NO_ARRAY, NO_TEXT, UNWANTED, RowBatch, RowColumns, RowRules, Rows, unpack_names
from findleaks.engine.terms import Kind, State, Totals
from findleaks.errors import Interrupted, UnreadableMemory, UsageError
from findleaks.escaping import json_line
from findleaks.session import Session
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_ranges, range_at
from findleaks.wildcards import matches

CHUNK = 4096  # blocks that are described between two checks for Ctrl-C
# Bytes of heap that are copied at a time, if the target's memory is not mapped.
WINDOW = 64 << 20
MANY_ODD = 500  # after so many rows that the engine could not format, it gets `character_table`
NO_LIMIT = 1 << 62  # more than any number of rows
ANY_SIZE = (1 << 64) - 1  # largest address or size
TYPE_WORDS = 5  # words at the start of a block that may identify its type

Part = TypeVar("Part", RowBatch, RowColumns)


@dataclass(frozen=True)
class BlockFilters:
    """Conditions that a block must meet. None or "" accepts every block."""

    kinds: set[int] | None  # for blocks in use only
    states: set[State]
    sizes: SizeRange | None  # lowest and highest usable size
    type: str | None  # a pattern with wildcards
    allocator: str | None
    site: int = 0  # number of the allocation stack; 0: any

    @property
    def any_state(self) -> bool:
        return self.kinds is not None or len(self.states) == len(State)

    @property
    def passes_all(self) -> bool:
        """Whether every block passes."""
        return self.kinds is None and self.any_state and not (self.sizes or self.type or self.allocator or self.site)

    @property
    def by_bytes(self) -> bool:
        """Whether a block's state and kind alone decide whether the block passes."""
        return not (self.none or self.sizes or self.type or self.allocator or self.site)

    @property
    def state_bits(self) -> int:
        """Bit N is set if a block with State N may pass."""
        return sum(1 << state for state in (State if self.any_state else self.states))

    @property
    def kind_bits(self) -> int:
        """Bit N is set if a block with Kind N may pass."""
        return sum(1 << kind for kind in (self.kinds if self.kinds is not None else Kind))

    @property
    def none(self) -> bool:
        """Whether no block can pass: the filters name kinds, but exclude blocks in use."""
        return self.kinds is not None and State.IN_USE not in self.states


KINDS: dict[str, set[int]] = {**{kind.name.lower(): {kind} for kind in Kind if kind}, "leaked": {Kind.DEFINITE, Kind.INDIRECT}}
"""Maps the words of --kind to kinds."""


def parse_kinds(words: str | None) -> set[int] | None:
    """Return the kinds named by comma-separated `words`; None if `words` is None. "lost" means
    "leaked". Raises UsageError for an unknown word."""
    named = ["leaked" if word == "lost" else word for word in words.split(",")] if words is not None else []
    return None if words is None else set[int]().union(*(KINDS[check_choice(word, KINDS, "kind")] for word in named))


def parse_states(word: str) -> set[State]:
    """Return the set of the state that the word names; every state for "all"."""
    return {state for state, name in STATES.items() if word in (name, "all")}


def check_allocator_name(session: Session, name: str | None) -> str | None:
    """Return `name` unchanged. Raises UsageError if the process has no allocator of that name."""
    directory = session.directory
    mappings = [directory.mappings] if directory.mappings.ranges else []
    found = sorted({allocator.name for allocator in [*directory.allocators, *mappings]})
    if name is not None and name not in found:
        raise UsageError(f"no allocator {name!r} in this process; found: {', '.join(found) or 'none'}")
    return name


class BlockRows:
    """The blocks of a session that pass the filters."""

    def __init__(self, session: Session, filters: BlockFilters) -> None:
        self.session = session
        self.filters = filters
        self.describer = Describer(session)
        self.graph = session.graph()
        self.names = NameTable(self._unpack)
        self._text_names: dict[int, tuple[str, ...]] = {}

    def indices(self) -> Iterator[int]:
        """Yield the indices of the matching blocks, ascending."""
        return chain.from_iterable(self.index_batches())

    def index_batches(self) -> Iterator[array[int]]:
        """Yield the indices of the matching blocks, ascending, in batches."""
        return (found for found, _ in self._select(self._rows(typed=bool(self.filters.type))))

    def totals(self) -> Totals:
        count = held = 0
        for found, size in self._select(self._rows(typed=bool(self.filters.type))):
            count, held = count + len(found), held + size
        return Totals(count, held)

    def largest_first(self, limit: int) -> array[int]:
        """Return the indices of the largest blocks; blocks of equal size by address. limit 0:
        all."""
        rows, size_of = self._rows(typed=bool(self.filters.type)), self.session.directory.blocks.size
        found = array("I")
        for some, _ in self._select(rows):
            found += some
        if rows is None:
            found = array("I", sorted(found, key=size_of, reverse=True))
        else:
            for step in rows.largest_first(found):
                self._check_interrupt()
                found = step
        return found[: limit or len(found)]

    def json(self, order: array[int] | None, limit: int) -> Iterator[str]:
        """Yield JSON, in strings of many lines: the blocks in `order`, or all by address. limit 0:
        all blocks."""
        rows = self._rows(typed=True)
        if rows is None:
            for count, index in enumerate(self._one_by_one() if order is None else order):
                if limit and count >= limit:
                    return
                yield self._line(index)
            return
        for made, alone in self._parts(rows, rows.format, order, limit):
            if made.text:
                yield self._with_sites(made.text)
            if alone is not None:
                yield self._line(alone)

    def batches(self, order: array[int] | None = None, limit: int = 0, hints: bool = True) -> Iterator[Batch]:
        """Yield columns of the first `limit` blocks (0: all) in this order; None: by address.
        `hints`: whether to include text hints."""
        gathered = BatchCollector()
        for _ in self._gather(gathered, order, limit, hints):
            yield from gathered.batches()
        yield from gathered.batches(last=True)

    def _gather(self, to: BatchCollector, order: array[int] | None, limit: int, hints: bool) -> Iterator[None]:
        """Add columns of the blocks to `to`. Yields after each part that was added."""
        rows = self._rows(typed=True)
        if rows is None:
            indices = islice(self._one_by_one() if order is None else order, limit or None)
            while found := list(islice(indices, CHUNK)):
                self._check_interrupt()
                self._describe(to, found)
                yield
            return
        for made, alone in self._parts(rows, rows.columns, order, limit):
            self._add(to, made, hints)
            if alone is not None:
                self._describe(to, [alone])
            yield

    def _parts(
        self, rows: Rows, make: Callable[[array[int] | None, int, int, int], Part], order: array[int] | None, limit: int
    ) -> Iterator[tuple[Part, int | None]]:
        """Yield what `make`, a method of `rows`, returns for successive parts of the blocks in
        `order`, or of all by address (limit 0: all). The second value is the index of the next
        block if the engine cannot format it, else None."""
        at, unformatted, left, end = 0, 0, limit or NO_LIMIT, self._end if order is None else len(order)
        memory = _MemoryWindows(self.session, rows, order is None)
        while at < end and left:
            self._check_interrupt()
            made, alone = make(order, at, end, left), None
            at, left = made.at, left - made.rows
            if made.rare:
                index = at if order is None else order[at]
                if not memory.move_to(index):
                    at, unformatted = at + 1, unformatted + 1
                    self._learn_types(rows, index)
                    if unformatted == MANY_ODD:
                        rows.rules.characters = character_table()
                    if order is not None or self._type_passes(index):
                        left, alone = left - 1, index
            yield made, alone

    def _add(self, to: BatchCollector, made: RowColumns, with_hints: bool) -> None:
        """Add columns from the engine, with text hints and sites."""
        hints: list[str] = []
        if with_hints and made.hints.tobytes().strip(b"\0"):
            hints = text_hints(made.hints, made.hint_ends, made.text, self.session.target.arch)
        sites = self.session.sites
        to.add(made[:4], hints, [sites.of(address) for address in made.addresses] if len(sites) else [])

    def _describe(self, to: BatchCollector, indices: Sequence[int]) -> None:
        """Add blocks that the engine cannot format."""
        blocks = [self.describer.block(index) for index in indices]
        names = [self.names.add(_names_of(block)) for block in blocks]
        columns = indices, [block.address for block in blocks], [block.size for block in blocks], names
        to.add(columns, [block.hint for block in blocks], [block.site for block in blocks])

    def _unpack(self, number: int) -> BlockNames:
        """Return the names behind a number in the engine's rows."""
        state, owner, type_number = unpack_names(number)
        kind = Kind(state) if state < len(Kind) else None
        words = (STATES[State.IN_USE], kind.name.lower()) if kind is not None else (STATES[State(state - 4)], "")
        return BlockNames(*words, *self._text_names[owner], *(("",) if type_number == NO_TEXT else self._text_names[type_number]))

    @property
    def _end(self) -> int:
        return 0 if self.filters.none else len(self.session.directory.blocks)

    def _select(self, rows: Rows | None) -> Iterator[tuple[array[int], int]]:
        """Yield batches of matching blocks: indices, ascending, and the sum of their sizes."""
        blocks = self.session.directory.blocks
        if rows is None:
            indices = self._one_by_one()
            while found := array("I", islice(indices, CHUNK)):
                yield found, sum(map(blocks.size, found))
            return
        at, end, memory = 0, self._end, _MemoryWindows(self.session, rows, True)
        while at < end:
            self._check_interrupt()
            found, size, at, rare = rows.select(at, end)
            yield found, size
            if rare and not memory.move_to(at):
                self._learn_types(rows, at)
                if self._type_passes(at):
                    yield array("I", [at]), blocks.size(at)
                at += 1

    def _with_sites(self, text: str) -> str:
        """Replace the sites in rows of JSON: the engine does not have them and writes null."""
        sites = self.session.sites
        if not len(sites):
            return text
        return _SITE.sub(lambda row: row[0][: -len("null")] + str(sites.of(int(row[1], 16)) or "null"), text)

    def _rows(self, typed: bool) -> Rows | None:
        """Return the engine's formatter for these filters; None if it cannot apply them."""
        if self.filters.site:
            return None
        filters, types = self.filters, self.session.types
        self.names.clear()
        low, high = filters.sizes or (0, ANY_SIZE)
        rules = RowRules(
            filters.state_bits, filters.kind_bits, (min(low, ANY_SIZE), min(high, ANY_SIZE)), types.ranges() if typed else [], typed
        )
        for kind in Kind:
            rules.texts.add(_json_fields(state=STATES[State.IN_USE], kind=kind.name.lower()))
        for state in list(State)[1:]:
            rules.texts.add(_json_fields(state=STATES[state], kind=None))

        @cache
        def owner(allocator: str, arena: str) -> int:
            number = rules.texts.add(_json_fields(allocator=allocator, arena=arena, site=None))
            self._text_names[number] = allocator, arena
            return number | (UNWANTED if filters.allocator and allocator != filters.allocator else 0)

        rules.no_owner = owner("", "")
        for owned in self.session.directory.heaps:
            rules.owners.append(Range(owned.start, owned.end))
            rules.owner_texts.append(owner(owned.allocator.name, owned.heap.arena))
        rules.mapped = merge_ranges(Range(region.start, region.end) for region in self.session.target.regions())
        rules.untyped = 0 if self._name_passes("") else UNWANTED
        has_strings = typed and types.may_have_strings  # This reads all modules.
        rules.string = self._type_text(rules, TypeOfBlock("std::string", "pattern", False)) if has_strings else NO_TEXT | rules.untyped
        if typed:
            names = label_names(self.session).values()
            rules.label_texts = array("I", (self._type_text(rules, TypeOfBlock(name, "runtime", True)) for name in names))
            rules.marks, rules.mark_texts = mark_texts(self.session, partial(self._type_text, rules))
        return self.graph.rows(rules)

    def _learn_types(self, rows: Rows, index: int) -> None:
        """Add the vtable pointers in the first words of a block, with their types, to the rules."""
        blocks, types, rules = self.session.directory.blocks, self.session.types, rows.rules
        start, size, word = blocks.address(index), blocks.size(index), self.session.target.arch.word
        if blocks.state(index) != State.IN_USE:
            return
        try:
            words = self.session.target.arch.unpack(self.session.target.read(start, min(size, TYPE_WORDS * word) // word * word))
        except UnreadableMemory:
            return
        for skip, one in enumerate(words[:3]):
            if range_at(rules.tables, one) and (not skip or 0 < words[skip - 1] <= size // word):
                found = TypeOfBlock.of_word(types.name(one), types.is_class(one))
                rules.learn(one, (self._type_text(rules, found) if found.name else NO_TEXT) | (0 if found.is_sure else NO_ARRAY))

    def _type_text(self, rules: RowRules, one: TypeOfBlock) -> int:
        number = rules.texts.add(_json_fields(type=one.name, hint=None, type_from=one.source, type_sure=one.is_sure) + "}\n")
        self._text_names[number] = one.name, *known_words(one.source, one.is_sure)
        return number | (0 if self._name_passes(one.name) else UNWANTED)

    def _one_by_one(self) -> Iterator[int]:
        """Yield the indices of blocks that pass every filter, tested block by block. Blocks are
        described only when they are printed."""
        blocks, filters = self.session.directory.blocks, self.filters
        if filters.none:
            return
        low, high = filters.sizes or (0, ANY_SIZE)
        for count, index in enumerate(self._of_site() if filters.site else _of_kinds(self.graph.kinds(), filters.kinds)):
            if count % CHUNK == 0:
                self._check_interrupt()
            if not low <= blocks.size(index) <= high:
                continue
            if not filters.any_state and blocks.state(index) not in filters.states:
                continue
            if filters.allocator and not self._is_owned(blocks.address(index)):
                continue
            if self._type_passes(index):
                yield index

    def _of_site(self) -> Iterator[int]:
        """Yield the indices of the site's blocks whose kind passes."""
        kinds, blocks = self.filters.kinds, self.session.directory.blocks
        for address in self.session.sites.blocks(self.filters.site):
            index = blocks.find(address)
            if index >= 0 and blocks.address(index) == address and (kinds is None or self.graph.kind(index) in kinds):
                yield index

    def _line(self, index: int) -> str:
        return json_line(self.describer.block(index).result().to_json()) + "\n"

    def _is_owned(self, address: int) -> bool:
        owned = self.session.directory.owner(address)
        return owned is not None and owned.allocator.name == self.filters.allocator

    def _type_passes(self, index: int) -> bool:
        return not self.filters.type or self._name_passes(find_block_type(self.session, index))

    def _name_passes(self, name: str) -> bool:
        return not self.filters.type or matches(self.filters.type, name)

    def _check_interrupt(self) -> None:
        if self.session.target.is_interrupted():
            raise Interrupted


_SITE = re.compile(r'"address": "(0x[0-9a-f]+)"[^\n]*?"site": null')  # matches a row of JSON


class _MemoryWindows:
    """Passes the memory of blocks to the engine.

    Mapped memory is passed as a whole. Other memory is copied in windows of WINDOW bytes, which
    move forward with ascending indices. No window is used if the blocks are in any other order."""

    def __init__(self, session: Session, rows: Rows, ascending: bool) -> None:
        self._session, self._rows = session, rows
        self._heaps = session.heap_ranges()
        self._start = self._end = 0
        self._ascending = ascending
        first = next(iter(self._pieces(0, ANY_SIZE)), None)
        self._whole = first is None or isinstance(first.data.obj, mmap.mmap)
        if self._whole:
            rows.use(list(self._pieces(0, ANY_SIZE)))

    def move_to(self, index: int) -> bool:
        """Load the window that starts at this block. Returns False if no window is loaded: all
        memory is mapped, the blocks are not in ascending order, or the current window contains the
        block."""
        start = self._session.directory.blocks.address(index)
        if self._whole or not self._ascending or self._start <= start <= self._end - CHUNK:
            return False
        self._start, self._end = start, start + WINDOW
        self._rows.use(list(self._pieces(self._start, self._end)))
        return True

    def _pieces(self, low: int, high: int) -> Iterator[Piece]:
        for start, end in self._heaps[max(bisect_right(self._heaps, (low, ANY_SIZE)) - 1, 0) :]:
            if start >= high:
                return
            yield from self._session.target.pieces(max(start, low), min(end, high))


def _names_of(block: BlockInfo) -> BlockNames:
    known = known_words(block.source, block.is_sure) if block.source is not None else ()
    return BlockNames(block.state, block.kind, block.allocator, block.arena, block.type, *known)


def _json_fields(**fields: str | bool | None) -> str:
    """Format JSON fields that are appended to a row."""
    return ", " + json_line(fields)[1:-1]


def _of_kinds(kinds: memoryview, wanted: set[int] | None) -> Iterable[int]:
    """Yield the indices of blocks of these kinds.
    `kinds` has one byte for each block, so a regular expression finds the wanted blocks. It skips
    the other blocks as fast as memory can be read."""
    if wanted is None:
        return range(len(kinds))
    pattern = re.compile(b"[" + b"".join(b"\\x%02x" % kind for kind in sorted(wanted)) + b"]")
    return (match.start() for match in pattern.finditer(kinds))
