"""Find memory in which a CPython interpreter keeps addresses of objects that it does not own.

- The heads of the collector's lists. Every tracked object is in one of these lists, so every object
  would be reachable through the heads.
- The unused part of each thread's stack of frames, which still contains variables of functions that
  have returned.
- The parser's arenas (parser_arenas.py).
- Blocks that code objects own up to 3.10: the frame for the next call (co_zombieframe), and a cache
  of global variables and of types (co_opcache).
- Freed objects and dictionaries' tables in free lists, with their former contents, and the unused
  entries of the arrays that are free lists (free_arrays.py).
- Caches of attributes, types and functions by version (version_caches.py).
- Buffers of files, and blocks with the names and docstrings of types: the part that is not in use
  contains words of earlier blocks.

Sources, CPython 3.9 to 3.14: Include/internal/pycore_gc.h (PyGC_Head: next, previous with flags in
its two low bits), Include/internal/pycore_pystate.h and pycore_runtime.h (the state of the main
interpreter is in the program's data since 3.11, before that in a block), Include/cpython/pystate.h
(_PyStackChunk: previous, size in bytes, top in words, data; PyThreadState begins with prev and
next, and has datastack_chunk, datastack_top, datastack_limit in turn), Objects/dictobject.c
(free_keys_object), Objects/tupleobject.c and frameobject.c (free lists, chained by the object's
word 3), Modules/_io/bufferedio.c (buffered: buffer, buffer_size).
Since 3.14 every free list is {first item, length}, chained by the items' first word
(Include/internal/pycore_freelist.h). In an object in use, this word is the reference count."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.errors import Interrupted
from findleaks.runtimes.cpython.engine import NO_OBJECT
from findleaks.runtimes.cpython.exit_callbacks import ExitCallbackReader, ExitCallbacks
from findleaks.runtimes.cpython.free_arrays import FreeArrays
from findleaks.runtimes.cpython.greenlets import iterate_suspended
from findleaks.runtimes.cpython.parser_arenas import find_arenas
from findleaks.runtimes.cpython.types import SUBCLASSES, Types
from findleaks.runtimes.cpython.variables import table
from findleaks.runtimes.cpython.version_caches import VersionCaches
from findleaks.target.arch import Words
from findleaks.target.base import Piece, Range, Target
from findleaks.target.elf import occurrences
from findleaks.target.ranges import nonzero_pieces

# Possible sizes in bytes of a block that is an interpreter's state.
STATE_SIZES = range(1 << 10, 1 << 20)
CHUNK_ALIGNMENT = 1 << 12  # alignment of a chunk of frames, which is mapped
LARGEST_CHUNK = 1 << 30
CHUNK_HEAD = 3  # words: previous, size, top
MOST_CHUNKS = 1 << 16  # of one thread
MOST_THREADS = 1 << 20
TEXT_SLACK = 32  # most bytes of the block of a C string after its characters
CHAIN = 3  # index of the word by which tuples and frames in a free list are chained
MOST_FREE = 1 << 12  # maximum length of a free list
STACK_CHUNKS = range(2048, 2048 + 64)  # usable bytes of _PyObjectStackChunk (pycore_object_stack.h)
# Offsets of these fields of a code object, in words from its reference count.
ZOMBIE_FRAME, OPCACHE = 16, 20
BUFFERED = "_io.BufferedReader", "_io.BufferedWriter", "_io.BufferedRandom"
MOST_BUFFERED = 64  # words of a file object that are read
BEFORE_TRIPLE = 1 << 10  # bytes of a thread state searched for its first word


class InterpreterMemory(NamedTuple):
    """Memory with addresses that are not references."""

    heads: Sequence[int]  # addresses of the heads of the collector's lists, two words each
    # Blocks of the first and last objects of these lists, and the offset of their link to the head.
    ends: Sequence[tuple[int, int]]
    unused: Sequence[Range]  # parts of threads' stacks of frames, and entries of free lists
    stale_tables: Sequence[int]  # blocks of tables in free lists, and of zombie frames
    # Blocks of objects in free lists, and their types' numbers.
    free_objects: Sequence[tuple[int, int]]
    chained: Sequence[tuple[int, int]]  # blocks in free lists of 3.14, and the offset of their link
    threads: Sequence[int]  # addresses of datastack_chunk in the states of threads
    greenlets: Sequence[int]  # addresses of the saved datastack_chunk of suspended greenlets
    exit_callbacks: Sequence[ExitCallbacks]  # unlike the other members, these are references


class _Words(NamedTuple):
    """The words of a state.

    `objects` has the indices of words that point into blocks with objects, and these blocks.
    `others` has the same for words that point into other blocks, in use or not."""

    piece: Piece
    words: Words
    objects: Sequence[tuple[int, int]]
    others: Sequence[tuple[int, int]]

    @property
    def address(self) -> int:
        """Address of the first word."""
        return self.piece.address


def read_interpreter_memory(
    target: Target, engine: Engine, image: Image, version: str, blocks: Blocks, known: Types, found: array[int]
) -> InterpreterMemory:
    """Find the memory described above. `found`: for each block, the type of its object or
    NO_OBJECT; see engine.ObjectTally."""
    reader = _Reader(target, engine, blocks, known, found)
    arrays = FreeArrays(version, target.arch.word, reader.free_tuple_items, reader.is_free)
    states = list(reader.states(image))
    heads = [at for state in states for at in reader.list_heads(state)]
    ends = [end for head in heads for end in reader.iterate_ends(head)]
    tops = [at for state in states for at in reader.chunk_words(state)]
    threads, greenlets = reader.all_threads(tops), list(reader.chunks_of_greenlets())
    unused = [part for at in (*threads, *greenlets) for part in reader.unused_frames(at)]
    unused += find_arenas(target, blocks)
    unused += [part for state in states for part in arrays.iterate_unused(state.address, state.words, [at for at, _ in state.others])]
    caches = VersionCaches(Memory(target), blocks, known, found, version)
    for state in states:
        caches.add(state.address, state.words, state.objects)
    unused += caches.iterate_borrowed()
    free = dict(one for state in states for one in reader.free_objects(state))
    stale = [index for state in states for index in reader.stale_tables(state)]
    stale += reader.blocks_of_code() if version.startswith(("3.9", "3.10")) and reader.word == 8 else ()
    stale += reader.file_buffers()
    stale += reader.texts_of_types()
    chained = dict(one for state in states for one in reader.iterate_chained(state))
    exits = ExitCallbackReader(Memory(target), blocks, known, found)
    callbacks = [one for state in states for one in exits.find((state.address + at * reader.word, index) for at, index in state.others)]
    return InterpreterMemory(heads, ends, unused, stale, list(free.items()), list(chained.items()), threads, greenlets, callbacks)


class _Reader:
    def __init__(self, target: Target, engine: Engine, blocks: Blocks, known: Types, found: array[int]) -> None:
        self._target, self._engine, self._blocks, self._known, self._found = target, engine, blocks, known, found
        self._memory = Memory(target)
        self.word = target.arch.word
        writable = [region for region in target.regions() if region.writable]
        self._mapped = (writable[0].start, writable[-1].end) if writable else (0, 0)
        # No block begins below the start of the first or ends above the end of the last.
        last = len(blocks) - 1
        self._low, self._high = (blocks.address(0), blocks.address(last) + blocks.size(last)) if len(blocks) else (0, 0)

    def states(self, image: Image) -> Iterator[_Words]:
        """Yield the program's data, and blocks that it refers to that may be interpreters'
        states."""
        blocks = self._blocks
        seen: set[int] = set()
        for start, end in image.data:
            for piece in nonzero_pieces(self._target, start, end):
                if self._target.is_interrupted():
                    raise Interrupted
                skipped = -piece.address % self.word
                state = self._state(Piece(piece.address + skipped, piece.data[skipped:]))
                yield state
                seen.update(index for _, index in state.others if blocks.size(index) in STATE_SIZES)
        for index in sorted(seen):
            if blocks.state(index) == State.IN_USE:
                read = self._memory.read(blocks.address(index), blocks.size(index))
                if read:
                    yield self._state(Piece(blocks.address(index), memoryview(read)))

    def _state(self, piece: Piece) -> _Words:
        """Return the words of aligned memory."""
        places, values = find_pointers(self._engine, piece, self._low, self._high)
        indices, _ = self._blocks.find_all(values)
        inside = [((at - piece.address) // self.word, index) for at, index in zip(places, indices) if index != NO_BLOCK]
        found = self._found
        objects = [one for one in inside if found[one[1]] != NO_OBJECT]
        words = self._target.arch.words(piece.data)
        return _Words(piece, words, objects, [one for one in inside if found[one[1]] == NO_OBJECT])

    def list_heads(self, state: _Words) -> Iterator[int]:
        """Yield addresses of heads: the next object refers back to the head, and the previous one
        forward to it."""
        inside = {at for at, _ in state.objects}.union(at for at, _ in state.others)
        for at, _ in state.objects:
            if at + 1 not in inside:
                continue
            address = state.address + at * self.word
            back = self._memory.word(state.words[at] + self.word)
            ahead = self._memory.word(state.words[at + 1] & -4)
            if back is not None and back & -4 == address and ahead is not None and ahead & -4 == address:
                yield address

    def iterate_ends(self, head: int) -> Iterator[tuple[int, int]]:
        """Yield the blocks of the first and last objects of the list with this head, and the
        offset of their link to the head."""
        for first, place in zip(self._memory.words(head, 2) or (), (self.word, 0)):
            block = self._blocks.lookup(first & -4)
            if block is not None:
                yield block[0], (first & -4) + place - block[1]

    def chunk_words(self, state: _Words) -> Iterator[int]:
        """Yield the addresses of the fields datastack_chunk in thread states."""
        words, size = state.words, self.word
        # Most words are not addresses, such as zeros. The engine omits them.
        for at, chunk in zip(*find_pointers(self._engine, state.piece, *self._mapped)):
            index = (at - state.address) // size
            if not chunk % CHUNK_ALIGNMENT and index + 3 <= len(words) and self._is_chunk(*words[index : index + 3]):
                yield at

    def _is_chunk(self, chunk: int, top: int, limit: int) -> bool:
        inside = chunk < top <= limit <= chunk + LARGEST_CHUNK
        return inside and self._memory.word(chunk + self.word) == limit - chunk

    def all_threads(self, tops: Sequence[int]) -> list[int]:
        """Return these addresses of the field datastack_chunk, and its addresses for the other
        threads in the same linked lists."""
        found = dict.fromkeys(tops)
        for first in tops:
            for start in range(first - BEFORE_TRIPLE & -self.word, first, self.word):
                queue = [start]
                while queue and len(found) < MOST_THREADS:
                    for other in self._memory.words(queue.pop(), 2) or ():
                        at = other + first - start
                        if at not in found and self._is_thread(other, at):
                            found[at] = None
                            queue.append(other)
        return list(found)

    def _is_thread(self, start: int, at: int) -> bool:
        """Return whether a block begins at `start` and is a thread state with datastack_chunk at
        `at`."""
        known = self._blocks.lookup(start) if start else None
        if known is None or known[1] != start or known[3] != State.IN_USE or self._found[known[0]] != NO_OBJECT:
            return False
        words = self._memory.words(at, 3)
        return words is not None and self._is_chunk(*words)

    def chunks_of_greenlets(self) -> Iterator[int]:
        """Yield the addresses of the saved fields datastack_chunk of suspended greenlets."""
        for one in iterate_suspended(self._memory, self._blocks, self._known, self._found):
            for at in range(len(one.words) - 2):
                if one.words[at] and not one.words[at] % CHUNK_ALIGNMENT and self._is_chunk(*one.words[at : at + 3]):
                    yield one.state + at * self.word

    def unused_frames(self, at: int) -> Iterator[Range]:
        """Yield the unused parts of the chunks of the thread with datastack_chunk at `at`."""
        words = self._memory.words(at, 3)
        if words is None:
            return
        chunk, top, limit = words
        for _ in range(MOST_CHUNKS):
            if top < limit:
                yield Range(top, limit)
            head = self._memory.words(chunk, CHUNK_HEAD)
            chunk = head[0] if head is not None else 0
            head = self._memory.words(chunk, CHUNK_HEAD) if chunk and not chunk % CHUNK_ALIGNMENT else None
            if head is None or not 0 < head[1] <= LARGEST_CHUNK or head[2] * self.word > head[1]:
                return
            top, limit = chunk + (CHUNK_HEAD + head[2]) * self.word, chunk + head[1]

    def stale_tables(self, state: _Words) -> Iterator[int]:
        """Yield blocks of freed dictionaries' tables, whose keys nothing refers to."""
        blocks = self._blocks
        for at, index in state.others:
            value = state.words[at]
            if value == blocks.address(index) and self._memory.word(value) == 0 and blocks.state(index) == State.IN_USE:
                if table(self._memory, value, blocks.size(index)) is not None:
                    yield index

    def blocks_of_code(self) -> Iterator[int]:
        """Yield the blocks that code objects of CPython up to 3.10 own: the frame for the next
        call, if its reference count is 0, and the cache."""
        codes = {number for number in range(len(self._known)) if self._known.plain_name(number) == "code"}
        for index in [index for index, own in enumerate(self._found) if own in codes]:
            start = self._blocks.address(index) + self._known.offsets[self._found[index]]
            frame, cache = (self._memory.word(start + at * self.word) or 0 for at in (ZOMBIE_FRAME, OPCACHE))
            if frame and self._memory.word(frame) == 0:
                yield from self._plain_block(frame)
            yield from self._plain_block(cache)

    def texts_of_types(self) -> Iterator[int]:
        """Yield the blocks that contain the name or the docstring of a type, and nothing else."""
        blocks = self._blocks
        for address in self._known.texts:
            for index in self._plain_block(address):
                size = blocks.size(index)
                if blocks.address(index) == address and size - len(self._memory.c_string(address, size)) <= TEXT_SLACK:
                    yield index

    def file_buffers(self) -> Iterator[int]:
        """Yield the blocks of the buffers of files."""
        size, found = self._found.itemsize, self._found.tobytes()
        for number in self._known.list_derived(BUFFERED):
            for at in occurrences(found, number.to_bytes(size, sys.byteorder)):
                if at % size == 0:
                    yield from self._buffer_of(at // size)

    def _buffer_of(self, index: int) -> Iterator[int]:
        """Yield the block of the buffer of the file object in block `index`. One word of the file
        object is the address of the buffer, and another word is the buffer's size."""
        count = min(self._blocks.size(index) // self.word, MOST_BUFFERED)
        words = self._memory.words(self._blocks.address(index), count) or ()
        for value in words:
            for block in self._plain_block(value):
                size = self._blocks.size(block)
                if self._blocks.address(block) == value and any(0 <= size - length <= size // 4 for length in words):
                    yield block

    def _plain_block(self, address: int) -> Iterator[int]:
        """Yield the block that contains `address`, if it is in use and contains no object."""
        known = self._blocks.lookup(address) if address else None
        if known is not None and known[3] == State.IN_USE and self._found[known[0]] == NO_OBJECT:
            yield known[0]

    def free_objects(self, state: _Words) -> Iterator[tuple[int, int]]:
        """Yield blocks of objects in free lists, with their types. Their reference count is 0."""
        for at, _ in state.others:
            value = state.words[at]
            for _ in range(MOST_FREE):
                free = self._free_object(value)
                if free is None:
                    break
                yield free[:2]
                value = free[2][CHAIN]

    def _free_object(self, value: int) -> Optional[tuple[int, int, Sequence[int]]]:
        """Return the block, the type and the first words of the object without references at
        `value`; None for other memory."""
        known = self._blocks.lookup(value)
        shift = self._known.shift
        words = self._memory.words(value + shift, CHAIN + 1) if known is not None and known[3] == State.IN_USE else None
        number = self._known.number(words[1]) if words is not None and self._is_unused(value, words[0]) else -1
        if known is None or words is None or number < 0 or value + shift - known[1] != self._known.offsets[number]:
            return None
        return known[0], number, words

    def free_tuple_items(self, value: int) -> int:
        """Return the number of items of the freed tuple at `value`; -1 for other memory."""
        free = self._free_object(value)
        return free[2][2] if free is not None and self._known.flags[free[1]] & SUBCLASSES["tuple"] else -1

    def is_free(self, value: int, name: str) -> bool:
        """Return whether a freed object of the type `name` is at `value`. If `name` is "", return
        whether a dictionary's table is there."""
        if name:
            free = self._free_object(value)
            return free is not None and bool(self._known.flags[free[1]] & SUBCLASSES[name])
        known = self._blocks.lookup(value)
        return known is not None and known[3] == State.IN_USE and self._is_item(value, value - known[1], known[2])

    def _is_item(self, value: int, offset: int, size: int) -> bool:
        """Return whether `value` is the address of a dictionary's table, or of an empty chunk of a
        free-threaded collector's stacks of objects.

        `size`: the usable size of the block. `value` is `offset` bytes into the block."""
        if offset:
            return False
        if self._known.shift and size in STACK_CHUNKS and self._memory.word(value + self.word) == 0:
            return True
        return table(self._memory, value, size) is not None

    def _is_unused(self, address: int, count: int) -> bool:
        """Return whether the object at `address`, whose count or shared count is `count`, has no
        references."""
        if not self._known.shift:
            return count == 0
        # The word after ob_tid: the lower half has flags, the upper half is ob_ref_local.
        local = self._memory.word(address + self.word)
        return count >> 2 == 0 and local is not None and local >> 32 == 0

    def iterate_chained(self, state: _Words) -> Iterator[tuple[int, int]]:
        """Yield blocks in free lists of 3.14, each with the offset of the word that links it to the
        next."""
        for at, _ in state.others:
            length = state.words[at + 1] if at + 1 < len(state.words) else 0
            if 0 < length <= MOST_FREE:
                yield from self._free_list(state.words[at], length)

    def _free_list(self, value: int, length: int) -> list[tuple[int, int]]:
        """Return the items of the list that begins at `value`.

        Returns [] unless the list has this length, and all items are objects or all are tables of
        dictionaries. This check is needed because other memory that is in use is chained in the
        same way."""
        items: list[tuple[int, int]] = []
        kinds: set[bool] = set()
        for _ in range(length):
            known = self._blocks.lookup(value)
            shift, there = self._known.shift, known is not None and known[3] == State.IN_USE
            words = self._memory.words(value + shift, 2) if there else None
            following = self._memory.word(value) if there else None
            if known is None or words is None or following is None or self._found[known[0]] != NO_OBJECT:
                return []
            number, offset = self._known.number(words[1]), value - known[1]
            is_object = number >= 0 and offset + shift == self._known.offsets[number]
            if not is_object and not self._is_item(value, offset, known[2]):
                return []
            items.append((known[0], offset))
            kinds.add(is_object)
            value = following
        return items if not value and len(kinds) == 1 else []
