"""Write Python's objects as lines of JSON, one object a line, in the order of addresses.

A reference leads from an object to another one, directly or through memory that belongs to the
object and contains no other object: the items of a list, the table of a dictionary, a structure of
an extension. This memory is the object's native memory. Objects in the interpreter's own data
(None, small integers, static types) are in no block, so there are neither lines for these nor
references to them. docs/cpython.md describes the keys."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import Kind
from findleaks.runtimes.cpython.engine import NO_OBJECT, ObjectTally
from findleaks.runtimes.cpython.member_lines import UNUSED, MemberLines
from findleaks.runtimes.heap_dump import BlockReferences
from findleaks.runtimes.object_references import COLUMNS, ObjectBlocks, find_references
from findleaks.target.base import Piece

_STEP = 1 << 13  # objects that are written at once
_KINDS = {int(kind): kind.name.lower() for kind in Kind}
_WORD = (1 << 32) - 1  # bits of a key that have the number of a word
_LEAKED = (Kind.DEFINITE, Kind.INDIRECT)


class ObjectLines:
    """Writes the objects of one interpreter. `pieces` returns the memory of all heaps, ascending.
    `names` has the name of each type. `chains` has the block of each object whose storage is a list
    of linked blocks, and the addresses of these blocks."""

    def __init__(
        self,
        engine: Engine,
        blocks: Blocks,
        tally: ObjectTally,
        names: Sequence[str],
        members: MemberLines,
        references: BlockReferences,
        pieces: Callable[[], Iterable[Piece]],
        chains: Iterable[tuple[int, Sequence[int]]],
    ) -> None:
        self._engine, self._blocks, self._tally, self._members = engine, blocks, tally, members
        self._objects = ObjectBlocks(tally.found, tally.offsets, tally.shift)
        self._references, self._pieces = references, pieces
        self._starts = [offset - tally.shift for offset in tally.offsets]
        self._heads = [f'","type":{json.dumps(name)},"module":{json.dumps(_module(name))},"size":' for name in names]
        self._addresses, self._sizes, _ = blocks.columns()
        self._taken = bytearray(len(blocks))
        # By block: the block of the object to whose storage the block surely belongs, or NO_ROOT.
        self._storage = array("I", [NO_ROOT]) * len(blocks)
        self._reserve_chains(chains)
        self._keys, self._targets = array("Q"), array("I")  # references of blocks without an object
        self._referrers = array("I", bytes(4 * len(blocks)))
        self.written = 0
        """Number of objects that were written."""

    def write(self, out: BinaryIO, report: Callable[[float], None]) -> None:
        """Write all objects. Raises OSError if `out` cannot be written."""
        self._read_storage()
        total = len(self._blocks) or 1
        keys, targets, offsets = array("Q"), array("Q"), array("Q")
        first = 0
        for piece in self._pieces():
            found = find_references(self._engine, self._references.graph, piece, self._objects, True)
            keys += found[0::COLUMNS]
            targets += found[1::COLUMNS]
            offsets += found[2::COLUMNS]
            last = self._end_of_whole_blocks(piece)
            self._write_range(out, first, last, (keys, targets, offsets))
            done = bisect_left(keys, last << 32)
            del keys[:done], targets[:done], offsets[:done]
            first = max(first, last)
            report(first / total)
        self._write_range(out, first, len(self._blocks), (keys, targets, offsets))

    def _end_of_whole_blocks(self, piece: Piece) -> int:
        """Return the index of the first block that is not completely before the end of a piece."""
        end = piece.address + len(piece.data)
        last = self._blocks.at_or_after(end)
        reaches = last > 0 and self._addresses[last - 1] + self._sizes[last - 1] > end
        return last - reaches

    def _read_storage(self) -> None:
        """Read the references of blocks without an object, count those to each object, and find the
        blocks that are surely the storage of an object."""
        for piece in self._pieces():
            for with_object in (False, True):
                found = find_references(self._engine, self._references.graph, piece, self._objects, with_object)
                if not with_object:
                    self._keys += found[0::COLUMNS]
                    self._targets += array("I", found[1::COLUMNS])
                else:
                    self._reserve_storage(found[0::COLUMNS], found[1::COLUMNS])
                for index, count in zip(*self._engine.sum_by_value(found[1::COLUMNS], array("Q"))):
                    self._referrers[index] += count

    def _reserve_chains(self, chains: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Set the owner of each block of a list. A stray word that looks like an address in the
        block does not change this."""
        for index, addresses in chains:
            for address in addresses:
                block = self._blocks.find(address)
                if block >= 0 and self._tally.found[block] == NO_OBJECT:
                    self._storage[block] = index

    def _reserve_storage(self, keys: array[int], targets: array[int]) -> None:
        """Set the owner of each block to which a word for storage refers. If several objects have
        such words, the block belongs to the first of these objects."""
        found, storage = self._tally.found, self._storage
        for key, target in zip(keys, targets):
            if found[target] == NO_OBJECT and storage[target] == NO_ROOT:
                index = key >> 32
                if self._members.is_storage(found[index], index, key & _WORD):
                    storage[target] = index

    def _write_range(self, out: BinaryIO, first: int, last: int, edges: tuple[array[int], array[int], array[int]]) -> None:
        for start in range(first, last, _STEP):
            end = min(start + _STEP, last)
            low, high = bisect_left(edges[0], start << 32), bisect_left(edges[0], end << 32)
            lines = self._lines(start, end, *(column[low:high].tolist() for column in edges))
            self.written += len(lines)
            out.write("".join(lines).encode())

    def _lines(self, first: int, last: int, keys: list[int], targets: list[int], offsets: list[int]) -> list[str]:
        """Return the lines of the objects in a range of blocks. The columns have the references of
        these objects."""
        found, addresses, sizes, starts, view = self._tally.found, self._addresses, self._sizes, self._starts, self._references
        kinds, roots, referrers = view.graph.kinds(), view.roots, self._referrers
        lines, at, count = [], 0, len(keys)
        for index in range(first, last):
            number = found[index]
            if number == NO_OBJECT:
                continue
            names, parts, native = self._members.of_object(number, index), [], 0
            limit = (index + 1) << 32
            while at < count and keys[at] < limit:
                word, target = keys[at] & _WORD, targets[at]
                other = found[target]
                if other != NO_OBJECT:
                    name = names.get(word)
                    if name is None:
                        name = self._members.name(number, index, word)
                    if name is not UNUSED:
                        parts.append(f'{{"to":"{addresses[target] + starts[other]:#x}"{name}}}')
                else:
                    native += self._follow(index, number, word, target, offsets[at], parts)
                at += 1
            named = f',"roots":{json.dumps(roots[index])}' if index in roots else ""
            lines.append(
                f'{{"address":"{addresses[index] + starts[number]:#x}{self._heads[number]}{sizes[index]},"native":{native},'
                f'"retained":{view.retained[index]},"kind":"{_KINDS[kinds[index]]}","referrers":{referrers[index]},'
                f'"references":[{",".join(parts)}]{named}}}\n'
            )
        return lines

    def _follow(self, index: int, number: int, word: int, target: int, offset: int, parts: list[str]) -> int:
        """Add the references of the memory of an object that begins with block `target`. Returns
        the bytes of this memory. Each block is followed only once, which limits the time. Storage
        of other objects is left out, because stale words may refer to it."""
        is_storage = self._members.is_storage(number, index, word)
        waiting, total = [target] if is_storage is not False else [], 0
        while waiting:
            one = waiting.pop()
            owner = self._storage[one]
            if self._taken[one] or owner not in (NO_ROOT, index) or not (is_storage or owner == index or self._is_owned(one)):
                continue
            self._taken[one] = 1
            total += self._sizes[one]
            low = bisect_left(self._keys, one << 32)
            high = bisect_left(self._keys, (one + 1) << 32, low)
            keys, targets = self._keys[low:high], self._targets[low:high]
            is_first = one == target or self._members.is_chain(number)
            names = self._members.names_in(number, index, word, one, offset, keys) if is_first else None
            for at, other in enumerate(targets):
                name, kind = names[at] if names is not None else "", self._tally.found[other]
                if name is UNUSED:
                    continue
                if kind != NO_OBJECT:
                    parts.append(f'{{"to":"{self._addresses[other] + self._starts[kind]:#x}"{name}}}')
                else:
                    waiting.append(other)
            is_storage = None
        return total

    def _is_owned(self, block: int) -> bool:
        """Whether a block without an object belongs to objects: nothing else reaches it."""
        return self._references.owners[block] != NO_ROOT or self._references.graph.kind(block) in _LEAKED


def _module(name: str) -> str:
    return name.rpartition(".")[0] or "builtins"
