"""The engine that calls the C library (common/native), on little-endian 64-bit hosts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint64
from typing import TYPE_CHECKING

from findleaks.engine import shared
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.graph import NativeGraph
from findleaks.engine.native.library import CLibrary
from findleaks.engine.native.memory import CPieces, c_array, c_piece, c_pieces, zeros
from findleaks.engine.terms import Heuristic, Lists
from findleaks.target.arch import X86_64, Arch

if TYPE_CHECKING:
    from findleaks.engine.contract import Blocks
    from findleaks.engine.native.dwarf_types import NativeTypeReader
    from findleaks.engine.native.links import NativeLinkWalk
    from findleaks.engine.native.records import NativeRecords
    from findleaks.engine.native.trees import NativeTreeWalk
    from findleaks.engine.native.type_spread import NativeTypeSpread
    from findleaks.engine.records import Shape
    from findleaks.engine.trees import TreeLayout
    from findleaks.target.base import Piece, Range

# Modules that few processes need are imported where they are used: each module slows every start.


class NativeEngine:
    """See contract.Engine."""

    name = "native"

    def __init__(self, library: CLibrary, arch: Arch = X86_64, threads: int = 1) -> None:
        """Create an engine. `library` is the C library of the engine for `arch`; `threads` is the
        number of threads that calls may use. The results do not depend on the number of threads."""
        self.library, self.arch, self.threads = library, arch, threads
        self._pieces: tuple[Piece, ...] = ()  # the last argument of follow()
        self._passed: CPieces = c_pieces(())

    def blocks(self, arch: Arch, granule: int, heap_bytes: int = 0) -> NativeBlocks:
        return NativeBlocks(self.library, arch, granule, self.threads, heap_bytes)

    def graph(
        self, blocks: Blocks, heuristics: Heuristic = Heuristic.NONE, vtables: Sequence[Range] = (), types: Sequence[int] = ()
    ) -> NativeGraph:
        if not isinstance(blocks, NativeBlocks):
            raise TypeError("blocks of another engine")
        return NativeGraph(self.library, blocks, heuristics, vtables, types)

    def type_spread(self, blocks: Blocks) -> NativeTypeSpread:
        from findleaks.engine.native.type_spread import NativeTypeSpread

        if not isinstance(blocks, NativeBlocks):
            raise TypeError("blocks of another engine")
        return NativeTypeSpread(blocks)

    def follow(self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int) -> tuple[array[int], str]:
        at, words = c_uint64(head), CWords()
        code = self.library.fl_follow(*self.pass_pieces(pieces), byref(at), next_offset, mangled, max(0, limit), byref(words))
        nodes = self.library.take(words)
        return nodes, shared.list_problem(code, at.value, len(nodes))

    def follow_all(self, pieces: Sequence[Piece], heads: Sequence[int], next_offset: int, limit: int, within: Sequence[int] = ()) -> Lists:
        starts, ends, nodes, problems = array("Q", heads), zeros("Q", len(heads)), CWords(), CWords()
        bounds = array("Q", within)
        if within and len(bounds) != 2 * len(starts):
            raise ValueError(f"{len(bounds)} bounds for {len(starts)} lists")
        lists = (c_array(starts), len(starts), next_offset, max(0, limit), c_array(bounds) if within else None)
        self.library.fl_follow_all(*self.pass_pieces(pieces), *lists, byref(nodes), c_array(ends), byref(problems))
        found, bad = self.library.take(nodes), self.library.take(problems)
        wrong = []
        for number, why, node in zip(bad[::3], bad[1::3], bad[2::3]):
            count = ends[number] - (ends[number - 1] if number else 0)
            wrong.append((number, shared.list_problem(why, node, count)))
        return Lists(found, ends, wrong)

    def walk_tree(self, pieces: Sequence[Piece], root: int, header: int, layout: TreeLayout, most: int) -> NativeTreeWalk:
        from findleaks.engine.native.trees import NativeTreeWalk

        return NativeTreeWalk(self.library, self.pass_pieces(pieces), root, header, layout, most)

    def walk_links(
        self, pieces: Sequence[Piece], heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0, tags: int = 0
    ) -> NativeLinkWalk:
        from findleaks.engine.native.links import NativeLinkWalk

        return NativeLinkWalk(self.library, self.pass_pieces(pieces), heads, offsets, most, deepest, tags)

    def gather(self, pieces: Sequence[Piece], addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        wanted, records = array("Q", addresses), bytearray(len(addresses) * size)
        if not records:
            return records, []
        arguments = (*self.pass_pieces(pieces), c_array(wanted), len(wanted), size, c_array(records))
        return records, self.library.words(self.library.fl_gather, *arguments).tolist()

    def pass_pieces(self, pieces: Sequence[Piece]) -> CPieces:
        """Return `pieces` for C. A tuple is converted once if consecutive calls pass it."""
        if not isinstance(pieces, tuple) or pieces is not self._pieces:
            self._passed = c_pieces(pieces)
            self._pieces = pieces if isinstance(pieces, tuple) else ()
        return self._passed

    def self_pointers(self, piece: Piece, distance: int, before: int = 0) -> array[int]:
        return self.library.words(self.library.fl_self_pointers, c_piece(piece), distance, before)

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        low, high = max(low, 0), min(high, 1 << 64)
        if low >= high:
            return array("Q")
        return self.library.words(self.library.fl_search, c_piece(piece), low, high - 1 - low)

    def sum_by_value(self, values: array[int], weights: array[int]) -> tuple[array[int], array[int]]:
        if weights and len(weights) != len(values):
            raise ValueError(f"{len(weights)} weights for {len(values)} values")
        empty = bytes(8 * len(values))
        found, sums, spare = array("Q", values), array("Q", weights or empty), array("Q", empty)
        spare_sums = array("Q", empty if weights else b"")
        number = self.library.fl_sum_by_value(c_array(found), c_array(sums), len(found), not weights, c_array(spare), c_array(spare_sums))
        return found[:number], sums[:number]

    def common_bytes(self, left: array[int], right: array[int]) -> int:
        return int(self.library.fl_common(c_array(left), len(left) // 2, c_array(right), len(right) // 2))

    def records(self, shapes: Mapping[int, Shape], tag_mask: int) -> NativeRecords:
        from findleaks.engine.native.records import NativeRecords

        return NativeRecords(self.library, shapes, tag_mask)

    def type_reader(self) -> NativeTypeReader:
        from findleaks.engine.native.dwarf_types import NativeTypeReader

        return NativeTypeReader(self.library)

    def search_any(self, piece: Piece, values: Sequence[int]) -> array[int]:
        wanted = array("Q", sorted(set(values)))
        return self.library.words(self.library.fl_search_any, c_piece(piece), c_array(wanted), len(wanted))
