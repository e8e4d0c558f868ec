"""The chunks of talloc, as a runtime whose types are the names of the chunks.

Each chunk is a block of malloc. It has a header (struct talloc_chunk), and then the memory of the
program. Chunks refer to each other by the addresses of headers. Programs refer to the memory after
a header."""

from __future__ import annotations

import re
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.runtimes.base import NO_OBJECT, Exclusions, ObjectTypes, Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.pool_tree import PoolNode, Words, add_up, find_large_pool, sort_by_parent
from findleaks.runtimes.talloc.layout import FORM, FREED_MAGIC, HEADER, MAJOR, NEXT, REFERENCE_NAME, RELATIVE_WORDS, Chunk
from findleaks.runtimes.talloc.unused import exclude_words, list_bookkeeping_words
from findleaks.target.base import Module, Target

MOST_STEPS = 1 << 26  # maximum number of chunks that are visited in all lists
MOST_INSIDE = 1 << 14  # chunks of a pool that was freed that are examined
WORDS = Words("talloc-context", "talloc context", "chunks", "talloc's chunks")
FLAGS, FREED, POOL, IN_POOL = 15, 1, 4, 8
POOL_HEADER = 32  # bytes of a block before the chunk of a pool
SLACK = 40  # bytes by which a new block may exceed the requested size
LARGE, PAGES = 1 << 17, 1 << 14  # least bytes of a large block, and by how many it may exceed it
STRING, REFERENCE, OTHER = "string", "reference", "(other names)"
TRACKER = "null_context"  # name of the chunk that lists all chunks without a parent
INSIDE = -1  # instead of the index of a block: a chunk inside a pool
UNNAMED = "UNNAMED"  # printed by talloc_report for a chunk without a name
POOL_OF = "pool of"  # a pool without a name has the name of its first chunk
FREED_POOL = "pool freed at"
MOST_NAMES, LONGEST = 1 << 16, 64
MANY_ALIKE = 64  # fewest names that differ only in numbers and become one name
_NUMBER = re.compile(r"[0-9]+")
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)*)$")


class Talloc(Runtime):
    """talloc in a process. See base.Runtime. `module` is libtalloc."""

    name = "talloc"
    objects_are_native = True

    def __init__(self, target: Target, engine: Engine, directory: Directory, module: Module) -> None:
        self.problems: list[Problem] = []
        self.where = module.path.rsplit("/", 1)[-1]
        version = _VERSION.search(self.where)
        self.version = version[1] if version is not None else ""
        self._target, self._engine, self._directory, self._module = target, engine, directory, module
        self._memory = Memory(target)
        self._texts: dict[int, str] = {}

    @cached_property
    def chunks(self) -> Sequence[Chunk]:
        """The chunks and pools that are blocks of malloc, by index of the block. Chunks inside a
        pool are not listed.

        The flags of every chunk contain the same number. It is found as the most frequent number of
        the chunks that fill their block. Other chunks do not fill it, because talloc_realloc leaves
        a chunk in its block if a smaller block would save less than 1 KiB."""
        found = [*self._chunks_at(0), *self._chunks_at(POOL_HEADER)]
        numbers = Counter(flags & ~FLAGS for flags, is_full, chunk in found if is_full and not chunk.is_freed)
        magic = next((number for number, _ in numbers.most_common(4) if self._is_magic(number)), None)
        return sorted(chunk for flags, _, chunk in found if flags & ~FLAGS == magic or chunk.is_freed)

    def _chunks_at(self, offset: int) -> Iterator[tuple[int, bool, Chunk]]:
        """Yield (flags, whether it fills the block, chunk) for each block that can have a chunk at
        this offset."""
        blocks = self._directory.blocks
        columns = blocks.columns()
        least = offset + HEADER
        rows = zip(range(len(blocks)), columns.address, columns.size, columns.state)
        wanted = [(index, start, size) for index, start, size, state in rows if state == State.IN_USE and size >= least]
        form = struct.Struct(self._target.arch.word_format[0] + FORM)
        records, missing = read_records(self._target, self._engine, array("Q", (start + offset for _, start, _ in wanted)), form.size)
        for place, ((index, start, usable), record) in enumerate(zip(wanted, form.iter_unpack(records))):
            flags, following, child, references, name, size = record
            space = usable - least
            if place not in missing and size <= space and _is_chunk(flags, name, bool(offset)):
                is_full = bool(offset) or space - size < (SLACK if size < LARGE else PAGES)
                is_freed = bool(flags & FREED)
                if is_freed:
                    following = child = references = 0
                    if not self._has_chunks(start, usable):
                        continue
                yield flags, is_full, Chunk(index, start + offset, name, size, following, child, references, is_freed)

    def _has_chunks(self, pool: int, size: int) -> bool:
        """Whether a chunk in use is in the freed pool in the block at `pool`, which has `size`
        bytes. Without such a chunk, talloc freed the block, too. The program then uses it for other
        data, and has not overwritten the header."""
        end, count = self._memory.members(pool, "PI") or (0, 0)
        return pool + POOL_HEADER + HEADER < end <= pool + size and 0 < count <= size // HEADER

    def _is_magic(self, number: int) -> bool:
        """Whether the library's data contains this number."""
        return self._is_in_data(number.to_bytes(4, self._target.arch.byteorder))

    @cached_property
    def _library_data(self) -> Sequence[bytes]:
        images = (image for image in find_images(self._target) if image.module == self._module)
        return [bytes(piece.data) for image in images for piece in image.pieces(self._target)]

    def _is_in_data(self, data: bytes) -> bool:
        return any(data in piece for piece in self._library_data)

    def _label(self, chunk: Chunk) -> str:
        """Return a chunk's name. The name of a string is the string itself."""
        if chunk.name == chunk.address + HEADER:
            return STRING
        if chunk.name == REFERENCE_NAME:
            return REFERENCE
        if chunk.name not in self._texts:
            is_full = len(self._texts) >= MOST_NAMES
            text = OTHER if is_full else self._memory.c_string(chunk.name, LONGEST).decode("utf-8", "replace")
            self._texts[chunk.name] = text or UNNAMED
        text = self._texts[chunk.name]
        if chunk.is_freed:
            return f"{FREED_POOL} {text}"
        return self._pool_label(chunk) if text == UNNAMED and chunk.block != INSIDE else text

    def _pool_label(self, chunk: Chunk) -> str:
        """Return the label of a chunk without a name. A pool is labelled after its first chunk."""
        blocks = self._directory.blocks
        if blocks.address(chunk.block) == chunk.address or blocks.find(chunk.address) != chunk.block:
            return UNNAMED
        data = self._memory.read(chunk.address + HEADER, struct.calcsize(FORM))
        flags, _, _, _, name, size = struct.unpack(self._target.arch.word_format[0] + FORM, data) if data else (FREED, 0, 0, 0, 0, 0)
        inside = flags & (FREED | IN_POOL) == IN_POOL and name and 2 * HEADER + size <= blocks.size(chunk.block)
        # A pool inside a pool is not examined further.
        return f"{POOL_OF} {self._label(Chunk(INSIDE, chunk.address + HEADER, name, size, 0, 0, 0))}" if inside else UNNAMED

    @cached_property
    def _labels(self) -> Sequence[str]:
        """The name of each chunk. Names that differ only in numbers are merged if there are
        many."""
        labels = [self._label(chunk) for chunk in self.chunks]
        names = dict.fromkeys(labels)
        forms = {name: _NUMBER.sub("#", name) for name in names} if len(names) >= MANY_ALIKE else {}
        alike = Counter(forms.values())
        return [forms[label] if forms and alike[forms[label]] >= MANY_ALIKE else label for label in labels]

    def _first_inside(self, pool: Chunk) -> int:
        """Return the address of the first chunk in use inside a pool that was freed; 0 if there is
        none."""
        form = struct.Struct(self._target.arch.word_format[0] + FORM)
        at = pool.address + HEADER
        end = self._directory.blocks.address(pool.block) + self._directory.blocks.size(pool.block)
        for _ in range(MOST_INSIDE):
            data = self._memory.read(at, form.size) if at + HEADER <= end else b""
            flags, *_, size = form.unpack(data) if data else (0, 0)
            if not flags & FREED:
                return at if flags & IN_POOL else 0
            at += -(-(HEADER + size) // 16) * 16
        return 0

    def types(self) -> Sequence[Type]:
        """Return the chunks by name."""
        sums: dict[str, list[int]] = {}
        for chunk, label in zip(self.chunks, self._labels):
            its = sums.setdefault(label, [0, 0, 0])
            for at, value in enumerate((1, self._directory.blocks.size(chunk.block), chunk.size)):
                its[at] += value
        return [Type(label, count, size, {"requested": asked}) for label, (count, size, asked) in sums.items()]

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {label: number for number, label in enumerate(dict.fromkeys(self._labels))}

    def findings(self) -> Sequence[Finding]:
        """Return one finding if a chunk and the chunks below it have much memory."""
        top, nodes, blocks = PoolNode(0, "", None, 0), dict[int, PoolNode](), self._directory.blocks
        for chunk, label in zip(self.chunks, self._labels):
            nodes[chunk.address] = PoolNode(blocks.address(chunk.block), label, top, blocks.size(chunk.block))
        for below, parent in self._parents.items():
            if below in nodes:
                nodes[below].parent = nodes[parent]
        for chunk in self.chunks:
            keeper = self._parents.get(self._first_inside(chunk)) if chunk.is_freed else None
            if keeper is not None:
                nodes[chunk.address].parent = nodes[keeper]
        order = sort_by_parent(top, nodes.values())
        add_up(order)
        return find_large_pool(top, WORDS)

    @cached_property
    def _by_address(self) -> Mapping[int, Chunk]:
        return {chunk.address: chunk for chunk in self.chunks}

    @cached_property
    def _parents(self) -> Mapping[int, int]:
        """The parent of each chunk that is below another one, as addresses of headers."""
        found = dict[int, int]()
        for chunk in self.chunks:
            below = chunk.child
            while below and below not in found and len(found) < MOST_STEPS:
                found[below] = chunk.address
                known = self._by_address.get(below)
                below = known.next if known is not None else self._memory.word(below + NEXT) or 0
        return found

    def excluded_words(self) -> Optional[Exclusions]:
        """Return stale words behind the requested bytes, words that list chunks for talloc itself,
        and the addresses of other chunks in pools that were freed."""
        tracker = next(
            (chunk.address for chunk, label in zip(self.chunks, self._labels) if label == TRACKER and self._is_tracker(chunk)), 0
        )
        has_lists = tracker or any(chunk.references for chunk in self.chunks)
        lists = list_bookkeeping_words(self._memory, self._by_address, self._parents, tracker) if has_lists else ()
        stale = ((chunk, RELATIVE_WORDS) for chunk in self.chunks if chunk.is_freed)
        return exclude_words(self._directory.blocks, self.chunks, chain(lists, stale))

    def _is_tracker(self, chunk: Chunk) -> bool:
        """Whether a variable of libtalloc refers to a chunk, and the chunk has no parent."""
        return chunk.address not in self._parents and self._is_in_data((chunk.address + HEADER).to_bytes(8, self._target.arch.byteorder))

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return the offset of the memory of the program in a chunk, for all sizes of chunks."""
        blocks = self._directory.blocks
        return sorted({(blocks.size(one.block), one.address + HEADER - blocks.address(one.block)) for one in self.chunks})

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the name of the chunk in each block. A chunk and its children refer to each other.
        A leaked tree is named after a chunk whose name is mostly that of chunks without a parent;
        if there is none, after one whose name some of these have; else after one that is not a
        string."""
        types = array("I", [NO_OBJECT]) * len(self._directory.blocks)
        for chunk, label in zip(self.chunks, self._labels):
            types[chunk.block] = self._numbers[label]
        below = Counter(label for chunk, label in zip(self.chunks, self._labels) if chunk.address in self._parents)
        every = Counter(self._labels)
        tops = ((below[label] < every[label]) + (2 * below[label] < every[label]) for label in self._numbers)
        ranks = array("I", (1 if label == STRING else 2 + top for label, top in zip(self._numbers, tops)))
        return ObjectTypes(types, list(self._numbers), ranks, self.name, "talloc chunk", True, are_trees=True)


def _is_chunk(flags: int, name: int, in_pool: bool) -> bool:
    """Whether a header with these members can belong to a chunk in use, or to a pool that was freed
    and has chunks in use. A pool often has no name."""
    if in_pool and flags & (FREED | POOL) == FREED | POOL:
        version = (flags & ~FLAGS) - FREED_MAGIC
        return name != 0 and version & 0xFF == 0 and MAJOR <= version < MAJOR + (1 << 24)
    return not flags & FREED and flags & ~0xFF != 0 and bool(flags & POOL) == in_pool and (in_pool or name != 0)
