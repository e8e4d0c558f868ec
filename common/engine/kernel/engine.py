"""The engine over the C kernel (../kernel/*.c), for little-endian 64-bit targets on such hosts."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint64

from findleaks.engine import shared
from findleaks.engine.chunks import SoundChunks
from findleaks.engine.contract import Blocks
from findleaks.engine.kernel import slabs as kernel_slabs
from findleaks.engine.kernel import slots as kernel_slots
from findleaks.engine.kernel.blocks import KernelBlocks
from findleaks.engine.kernel.graph import KernelGraph
from findleaks.engine.kernel.library import CRange, CWords, check, taken
from findleaks.engine.kernel.links import KernelLinkWalk
from findleaks.engine.kernel.memory import Pieces, memory, passed, passed_all
from findleaks.engine.kernel.trees import KernelTreeWalk
from findleaks.engine.objects import ObjectTally
from findleaks.engine.records import KernelRecords, Shape
from findleaks.engine.slabs import BufferRead, SlabRead
from findleaks.engine.slots import SlotGroups, SlotRead, TagWalk
from findleaks.engine.terms import Heuristic, Lists
from findleaks.engine.trees import TreeLayout
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range


class KernelEngine:
    """See contract.Engine."""

    name = "kernel"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._pieces: tuple[Piece, ...] = ()  # passed to follow() last
        self._passed: Pieces = passed_all(())

    def blocks(self, arch: Arch, granule: int) -> KernelBlocks:
        """See contract.Engine."""
        return KernelBlocks(self._library, arch, granule)

    def graph(
        self, blocks: Blocks, heuristics: Heuristic = Heuristic.NONE, vtables: Sequence[Range] = (), types: Sequence[int] = ()
    ) -> KernelGraph:
        """See contract.Engine; `blocks` must be this engine's."""
        if not isinstance(blocks, KernelBlocks):
            raise TypeError("blocks of another engine")
        return KernelGraph(self._library, blocks, heuristics, vtables, types)

    def follow(self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int) -> tuple[array[int], str]:
        """See contract.Engine; `pieces` ascend (pass the same tuple again for many lists: it is converted once). A node is misaligned
        when its address is no multiple of the word size."""
        at, words = c_uint64(head), CWords()
        arguments = (byref(at), next_offset, mangled, max(0, limit), byref(words))
        code = self._library.fl_follow(*self._pass(pieces), *arguments)
        nodes = taken(self._library, words)
        return nodes, shared.list_problem(check(code, "nodes"), at.value, len(nodes))

    def follow_all(self, pieces: Sequence[Piece], heads: Sequence[int], next_offset: int, limit: int, within: Sequence[int] = ()) -> Lists:
        """See contract.Engine; `pieces` as in `follow`."""
        starts, ends, nodes, problems = array("Q", heads), array("Q", bytes(8 * len(heads))), CWords(), CWords()
        bounds = array("Q", within)
        if within and len(bounds) != 2 * len(starts):
            raise ValueError(f"{len(bounds)} bounds for {len(starts)} lists")
        code = self._library.fl_follow_all(
            *self._pass(pieces),
            memory(starts),
            len(starts),
            next_offset,
            max(0, limit),
            memory(bounds) if within else None,
            byref(nodes),
            memory(ends),
            byref(problems),
        )
        found, bad = taken(self._library, nodes), taken(self._library, problems)
        check(code, "nodes")
        wrong = []
        for number, why, node in zip(bad[::3], bad[1::3], bad[2::3]):
            count = ends[number] - (ends[number - 1] if number else 0)
            wrong.append((number, shared.list_problem(why, node, count)))
        return Lists(found, ends, wrong)

    def sound_chunks(self, piece: Piece, chunk: int, stop: int, normal: int, previous: int) -> SoundChunks:
        """See contract.Engine."""
        at, before, count, words = c_uint64(chunk), c_uint64(previous), c_uint64(), CWords()
        code = self._library.fl_sound_chunks(passed(piece), byref(at), stop, normal, byref(before), byref(count), byref(words))
        free = taken(self._library, words)
        check(code, "chunks")
        return SoundChunks(at.value, before.value, count.value, free)

    def walk_tree(self, pieces: Sequence[Piece], root: int, header: int, layout: TreeLayout, most: int) -> KernelTreeWalk:
        """See contract.Engine; `pieces` as in `follow`."""
        return KernelTreeWalk(self._library, self._pass(pieces), root, header, layout, most)

    def walk_links(
        self, pieces: Sequence[Piece], heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0
    ) -> KernelLinkWalk:
        """See contract.Engine; `pieces` as in `follow`."""
        return KernelLinkWalk(self._library, self._pass(pieces), heads, offsets, most, deepest)

    def gather(self, pieces: Sequence[Piece], addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        """See contract.Engine; `pieces` as in `follow`."""
        wanted, records, missing = array("Q", addresses), bytearray(len(addresses) * size), CWords()
        if not records:
            return records, []
        arguments = (memory(wanted), len(wanted), size, memory(records), byref(missing))
        code = self._library.fl_gather(*self._pass(pieces), *arguments)
        absent = taken(self._library, missing)
        check(code, "records")
        return records, absent.tolist()

    def _pass(self, pieces: Sequence[Piece]) -> Pieces:
        """`pieces` as the kernel takes them: a tuple's are kept for the next call."""
        if not isinstance(pieces, tuple) or pieces is not self._pieces:
            self._passed = passed_all(pieces)
            self._pieces = pieces if isinstance(pieces, tuple) else ()
        return self._passed

    def self_pointers(self, piece: Piece, distance: int) -> array[int]:
        """See contract.Engine; `distance` may be negative."""
        words = CWords()
        code = self._library.fl_self_pointers(passed(piece), distance, byref(words))
        found = taken(self._library, words)
        check(code, "words")
        return found

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        """See contract.Engine."""
        low, high = max(low, 0), min(high, 1 << 64)
        if low >= high:
            return array("Q")
        words = CWords()
        code = self._library.fl_search(passed(piece), low, high - 1 - low, byref(words))
        found = taken(self._library, words)
        check(code, "words")
        return found

    def tally(self, values: array[int], weights: array[int]) -> tuple[array[int], array[int]]:
        """See contract.Engine."""
        if weights and len(weights) != len(values):
            raise ValueError(f"{len(weights)} weights for {len(values)} values")
        empty = bytes(8 * len(values))
        found, sums, room = array("Q", values), array("Q", weights or empty), array("Q", empty)
        more = array("Q", empty if weights else b"")
        number = self._library.fl_tally(memory(found), memory(sums), len(found), not weights, memory(room), memory(more))
        return found[:number], sums[:number]

    def common(self, left: array[int], right: array[int]) -> int:
        """See contract.Engine."""
        return int(self._library.fl_common(memory(left), len(left) // 2, memory(right), len(right) // 2))

    def count_objects(self, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
        """See contract.Engine; `blocks` must be this engine's."""
        if not isinstance(blocks, KernelBlocks) or len(tally.found) != len(blocks):
            raise TypeError("blocks of another engine, or a tally of others")
        cut = CWords()
        types = (memory(tally.types), tally.offsets, tally.marks, tally.leaves, len(tally.types))
        program = CRange(tally.low, tally.high)
        outputs = (memory(tally.found), memory(tally.stands), memory(tally.sums), byref(cut))
        code = self._library.fl_objects(blocks.handle, passed(piece), *types, program, *outputs)
        found = taken(self._library, cut)
        check(code, "objects")
        return found

    def records(self, shapes: Mapping[int, Shape], tag_mask: int) -> KernelRecords:
        """See contract.Engine."""
        return KernelRecords(self._library, shapes, tag_mask)

    def search_any(self, piece: Piece, values: Sequence[int]) -> array[int]:
        """See contract.Engine."""
        wanted, words = array("Q", sorted(set(values))), CWords()
        code = self._library.fl_search_any(passed(piece), memory(wanted), len(wanted), byref(words))
        found = taken(self._library, words)
        check(code, "words")
        return found

    def read_groups(self, pieces: Sequence[Piece], areas: Sequence[int], classes: Sequence[int], regions: Sequence[Range]) -> SlotGroups:
        """See contract.Engine; `pieces` as in `follow`."""
        return kernel_slots.read_groups(self._library, self._pass(pieces), areas, classes, regions)

    def read_slots(self, pieces: Sequence[Piece], groups: SlotGroups, first: int, last: int, room: int) -> SlotRead:
        """See contract.Engine; `pieces` as in `follow`."""
        return kernel_slots.read_slots(self._library, self._pass(pieces), groups, first, last, room)

    def walk_tags(self, piece: Piece, chunk: int, before: int, limit: int, room: int) -> TagWalk:
        """See contract.Engine."""
        return kernel_slots.walk_tags(self._library, piece, chunk, before, limit, room)

    def read_slabs(self, pieces: Sequence[Piece], caches: array[int], regions: Sequence[Range]) -> SlabRead:
        """See contract.Engine; `pieces` as in `follow`."""
        return kernel_slabs.read_slabs(self._library, self._pass(pieces), caches, regions)

    def mark_cached(self, slabs: SlabRead, cache: int, buffers: Sequence[int]) -> list[tuple[int, int]]:
        """See contract.Engine."""
        return kernel_slabs.mark_cached(self._library, slabs, cache, buffers)

    def read_buffers(self, blocks: Blocks, pieces: Sequence[Piece], slabs: SlabRead, first: int, last: int, enough: int) -> BufferRead:
        """See contract.Engine; `pieces` as in `follow`, and `blocks` must be this engine's."""
        if not isinstance(blocks, KernelBlocks):
            raise TypeError("blocks of another engine")
        return kernel_slabs.read_buffers(self._library, blocks.open_handle(), self._pass(pieces), slabs, first, last, enough)
