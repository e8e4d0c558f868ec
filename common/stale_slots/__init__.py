"""Stale slots: words in the storage of a container beyond its length. They contain removed
elements, and are not references.

A container does not clear the words of an element that it removes. These words refer to the same
blocks as the element did until the slot is used again, and would hide leaks of these blocks. A
container is read only if everything that its structure implies has been checked. An uncertain slot
counts as a reference; otherwise a block in use might be reported as leaked.

`find_stale_slots` takes little time in a process without such containers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from findleaks.engine.contract import Blocks, Engine
from findleaks.stale_slots import deques, rust_btrees, rust_channels, sequences, vectors
from findleaks.stale_slots.declared_types import DeclaredTypes
from findleaks.stale_slots.heap_memory import HeapMemory, HeapPointers, SequenceStorage
from findleaks.stale_slots.languages import RustFiles, find_languages
from findleaks.stale_slots.near_blocks import NearBlocks
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, nonzero_pieces

if TYPE_CHECKING:
    from findleaks.debuginfo.members import Type

# Maximum number of bytes of one range of root memory that are searched for heads of containers.
MAX_RANGE = 1 << 22
MAX_BYTES = 1 << 25  # maximum number of bytes of all such ranges
MAX_POINTERS = 100_000  # maximum number of pointers in these ranges that are examined
MAX_ASKED = 2_000  # maximum number of words whose types are looked up, at about 0.2 ms each
MAX_SEQUENCES = 10_000  # maximum number of vectors and deques that are checked


def find_stale_slots(
    target: Target,
    engine: Engine,
    blocks: Blocks,
    roots: Sequence[Range],
    heaps: Sequence[Range],
    poll: Callable[[], None],
    managed: Sequence[Range] = (),
) -> list[Range]:
    """Return the stale slots, sorted and disjoint.

    Channels are searched for everywhere, but heads of vectors, deques and Rust's BTreeMaps only in
    `roots` (root memory) and in blocks near it. `heaps`: ranges that contain blocks. `poll` raises
    Interrupted if the user asked to stop. `managed`: see HeapMemory. Debug information is read only
    if words look like a vector with stale slots."""
    if not len(blocks):
        return []
    memory = HeapMemory(target, engine, blocks, poll, heaps, managed)
    found = [*rust_channels.find_stale_messages(memory), *_HeadSearch(memory, roots, heaps).run()]
    size = memory.size
    return merge_ranges(Range(start + -start % size, end) for start, end in found)


class _HeadSearch:
    """Searches root memory and blocks near it for heads of containers."""

    def __init__(self, memory: HeapMemory, roots: Sequence[Range], heaps: Sequence[Range]) -> None:
        self._memory, self._roots, self._heaps = memory, roots, heaps
        self._near = NearBlocks(memory)
        self._pointers = sequences.SeenPointers()
        self._types = DeclaredTypes(memory, self._near.referrers)
        self._rust_files = RustFiles(memory.target)
        self._rust_types = DeclaredTypes(memory, self._near.referrers, self._rust_files.contain)
        self._languages = find_languages(memory.target)
        self._questions = 0
        self._left_out = False  # whether part of the memory was not searched

    def run(self) -> Iterator[Range]:
        """Yield the stale slots, as ranges of bytes."""
        certain: list[SequenceStorage] = []
        others: list[SequenceStorage] = []
        double: list[SequenceStorage] = []
        cpp, rust = self._languages
        for words, in_block in self._words():
            if rust or not in_block:
                yield from rust_btrees.find_stale_entries(self._memory, words)
            pointers = len(words.addresses)  # most blocks have only one or two
            if (cpp or not in_block) and pointers >= vectors.POINTERS:
                (others if in_block else certain).extend(vectors.find_vectors(self._memory, words, partial(self._ask, self._types)))
            if cpp and pointers >= deques.POINTERS:
                double += deques.find_deques(self._memory, words)
            if rust and not in_block:
                yield from self._rust_buffers(words)
            if rust:
                others += self._rust_vectors(words, in_block)
            if len(others) + len(double) > MAX_SEQUENCES:
                self._left_out = True
                break
        yield from self._iterate_unused(certain, others, double)

    def _rust_buffers(self, words: HeapPointers) -> Iterator[Range]:
        from findleaks.stale_slots import rust_stdio  # few programs contain code of Rust

        return rust_stdio.find_buffers(self._memory, self._rust_files.select_words(words))

    def _rust_vectors(self, words: HeapPointers, in_block: bool) -> Iterator[SequenceStorage]:
        """Return Rust's vectors among these words. Words of unknown type are omitted first, because
        a managed heap has many words that look like a vector."""
        from findleaks.stale_slots import rust_vectors  # few programs have Rust's vectors

        block = self._memory.block_at(words.piece.address) if in_block else None
        if block is not None and not self._rust_types.knows_block(*block):
            return iter(())
        if not in_block:
            words = self._rust_files.select_words(words)
        return rust_vectors.find_vectors(self._memory, words, partial(self._ask, self._rust_types))

    def _ask(self, types: DeclaredTypes, address: int) -> Iterable[tuple[int, Type]]:
        """Return the result of DeclaredTypes.around, or () after MAX_ASKED calls."""
        self._questions += 1
        return types.around(address) if self._questions <= MAX_ASKED else ()

    def _words(self) -> Iterator[tuple[HeapPointers, bool]]:
        """Yield words of root memory and of blocks near it, and whether they are in a block."""
        walks = any(self._languages)
        for words in self._root_words():
            if walks:
                self._pointers.add(words)
                self._near.add([words])
            yield words, False
        for words in self._near.visit() if walks else ():
            self._pointers.add(words)
            yield words, True

    def _iterate_unused(
        self, certain: list[SequenceStorage], others: list[SequenceStorage], double: list[SequenceStorage]
    ) -> Iterator[Range]:
        """Yield the unused parts of vectors in variables (`certain`), of other vectors (`others`),
        and of deques (`double`). Other vectors and deques must have no other user."""
        memory = self._memory
        others, double = (_select_with_pointers(memory, others), _select_with_pointers(memory, double))
        everywhere = [*self._heaps, *self._roots]
        if others:
            self._pointers.add_variables(memory, everywhere, [one.head for one in others])
            alone = [one for one in others if not sequences.has_other_user(self._pointers, self._near.referrers, one)]
            others = [] if self._left_out else alone
        others = sequences.select_single_owners(memory, self._heaps, everywhere, [*others, *double])
        for found in (*certain, *others):
            if not sequences.is_busy(memory, found):
                yield from found.unused

    def _root_words(self) -> Iterator[HeapPointers]:
        """Yield the words of root memory that may point to containers' blocks, one piece at a
        time."""
        memory = self._memory
        left, pointers = MAX_BYTES, MAX_POINTERS
        for start, end in self._roots:
            for piece in nonzero_pieces(memory.target, start, min(end, start + MAX_RANGE, start + left)):
                memory.poll()
                left -= len(piece.data)
                words = memory.find_pointers(piece)
                pointers -= len(words.addresses)
                if pointers < 0:
                    self._left_out = True
                    return
                yield words


def _select_with_pointers(memory: HeapMemory, found: Sequence[SequenceStorage]) -> list[SequenceStorage]:
    """Return the sequences whose unused parts contain words that may be pointers to blocks."""
    return [one for one in found if any(map(memory.has_pointers, one.unused))]
