"""The pure-Python engine: the same results as the C engine, without a library and on all
architectures."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from findleaks.engine import shared
from findleaks.engine.contract import Blocks
from findleaks.engine.records import Shape
from findleaks.engine.reference import pages
from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.reference.graph import PureGraph
from findleaks.engine.reference.links import PureLinkWalk
from findleaks.engine.reference.records import PureRecords
from findleaks.engine.reference.trees import PureTreeWalk, reading
from findleaks.engine.reference.type_spread import PureTypeSpread
from findleaks.engine.reference.words import words_of
from findleaks.engine.terms import Heuristic, Lists
from findleaks.engine.trees import TreeLayout
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

if TYPE_CHECKING:
    from findleaks.engine.reference.dwarf_types import PureTypeReader


class PureEngine:
    """See contract.Engine."""

    name = "pure"
    threads = 1

    def __init__(self, arch: Arch) -> None:
        self.arch = arch

    def blocks(self, arch: Arch, granule: int, heap_bytes: int = 0) -> PureBlocks:
        return PureBlocks(arch, granule)

    def graph(
        self, blocks: Blocks, heuristics: Heuristic = Heuristic.NONE, vtables: Sequence[Range] = (), types: Sequence[int] = ()
    ) -> PureGraph:
        if not isinstance(blocks, PureBlocks):
            raise TypeError("blocks of another engine")
        return PureGraph(blocks, heuristics, vtables, types)

    def type_spread(self, blocks: Blocks) -> PureTypeSpread:
        if not isinstance(blocks, PureBlocks):
            raise TypeError("blocks of another engine")
        return PureTypeSpread(blocks)

    def follow(self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int) -> tuple[array[int], str]:
        return self._follow(pieces, head, next_offset, mangled, limit, 0, self.arch.mask)

    def _follow(
        self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int, low: int, high: int
    ) -> tuple[array[int], str]:
        word, mask = self.arch.word, self.arch.mask
        little = self.arch.byteorder == "little"
        starts = [piece.address for piece in pieces]
        nodes: array[int] = array("Q")
        seen = set()
        node, code = head, shared.END
        while node:
            place = (node + next_offset) & mask
            at = bisect_right(starts, place) - 1
            offset = place - starts[at] if at >= 0 else 0
            if node in seen:
                code = shared.CYCLE
            elif node % word:
                code = shared.MISALIGNED
            elif at < 0 or offset + word > len(pieces[at].data):
                code = shared.UNREADABLE
            elif len(nodes) >= limit:
                code = shared.TOO_LONG
            elif not low <= node < high:
                code = shared.LEAVES
            if code:
                break
            seen.add(node)
            nodes.append(node)
            node = int.from_bytes(pieces[at].data[offset : offset + word], "little" if little else "big")
            if mangled:
                node ^= place >> 12
        return nodes, shared.list_problem(code, node, len(nodes))

    def follow_all(self, pieces: Sequence[Piece], heads: Sequence[int], next_offset: int, limit: int, within: Sequence[int] = ()) -> Lists:
        if within and len(within) != 2 * len(heads):
            raise ValueError(f"{len(within)} bounds for {len(heads)} lists")
        nodes: array[int] = array("Q")
        ends: array[int] = array("Q")
        problems = []
        most = sum(len(piece.data) // self.arch.word for piece in pieces)
        for number, head in enumerate(heads):
            low, high = within[2 * number : 2 * number + 2] if within else (0, self.arch.mask)
            found, problem = self._follow(pieces, head, next_offset, False, min(limit, most - len(nodes)), low, high)
            nodes += found
            ends.append(len(nodes))
            if problem:
                problems.append((number, problem))
        return Lists(nodes, ends, problems)

    def walk_tree(self, pieces: Sequence[Piece], root: int, header: int, layout: TreeLayout, most: int) -> PureTreeWalk:
        return PureTreeWalk(reading(pieces, self.arch), root, header, layout, most, self.arch)

    def walk_links(
        self, pieces: Sequence[Piece], heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0, tags: int = 0
    ) -> PureLinkWalk:
        return PureLinkWalk(reading(pieces, self.arch), heads, offsets, most, deepest, self.arch.mask, tags)

    def gather(self, pieces: Sequence[Piece], addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        starts = [piece.address for piece in pieces]
        records, missing = bytearray(len(addresses) * size), []
        for number, address in enumerate(addresses):
            at = bisect_right(starts, address) - 1
            found = b""
            while 0 <= at < len(pieces) and len(found) < size:
                offset = address + len(found) - starts[at]
                if not 0 <= offset < len(pieces[at].data):
                    break
                found += pieces[at].data[offset : offset + size - len(found)]
                at += 1
            if len(found) < size:
                missing.append(number)
            else:
                records[number * size : (number + 1) * size] = found
        return records, missing

    def self_pointers(self, piece: Piece, distance: int, before: int = 0) -> array[int]:
        word = self.arch.word
        base, words = words_of(piece, self.arch)
        steps, odd = divmod(distance, word)
        found: array[int] = array("Q")
        if odd:
            return found
        expected = base - before
        for at, value in enumerate(words):
            if value == expected and 0 <= at + steps < len(words) and words[at + steps] == value:
                found.append(value + before)
            expected += word
        return found

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        word = self.arch.word
        base, words = words_of(piece, self.arch)
        return array("Q", [base + at * word for at, value in enumerate(words) if low <= value < high])

    def sum_by_value(self, values: array[int], weights: array[int]) -> tuple[array[int], array[int]]:
        if weights and len(weights) != len(values):
            raise ValueError(f"{len(weights)} weights for {len(values)} values")
        sums: dict[int, int] = Counter(values) if not weights else {}
        for value, weight in zip(values, weights):
            sums[value] = sums.get(value, 0) + weight
        found = array("Q", sorted(sums))
        return found, array("Q", [sums[value] & (1 << 64) - 1 for value in found])

    def common_bytes(self, left: array[int], right: array[int]) -> int:
        return pages.common_bytes(left, right)

    def records(self, shapes: Mapping[int, Shape], tag_mask: int) -> PureRecords:
        return PureRecords(self.arch, shapes, tag_mask)

    def type_reader(self) -> PureTypeReader:
        from findleaks.engine.reference.dwarf_types import PureTypeReader

        return PureTypeReader(self.arch)

    def search_any(self, piece: Piece, values: Sequence[int]) -> array[int]:
        word = self.arch.word
        base, words = words_of(piece, self.arch)
        wanted = frozenset(values)
        return array("Q", [base + at * word for at, value in enumerate(words) if value in wanted])
