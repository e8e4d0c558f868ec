"""Find objects that follow a typed value in its own block, if the value refers to them:

    struct table *table = malloc(sizeof *table + count * sizeof(struct entry));
    table->entries = (struct entry *)(table + 1);

The blocks then have the layout of a value with further parts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.debuginfo.type_table import Flag, Kind
from findleaks.engine.type_spread import Pointers, Role, TypeSpread
from findleaks.types.content import Content
from findleaks.types.embedding import STRUCTURES
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.types.packing import Packing
from findleaks.types.references import Sort
from findleaks.types.rules import MOST_CANDIDATES, Rules
from findleaks.types.sampling import sample_blocks
from findleaks.types.specs import Packed, Spec
from findleaks.value_classes import NamedTuple

PROBED = 32  # Blocks of each layout in which pointers to tails are looked for.
MOST_BLOCKS = 1 << 17  # Maximum number of blocks whose pointers are read.
# Maximum number of combinations of a layout, a size and offsets, the most frequent first.
MOST_GROUPS = 256
# Minimum fraction of the blocks that an object must fit if no other type is possible. It need not
# fit all blocks, because its pointers may refer to parts of blocks that are not known yet.
LEAST_SINGLE = 0.5
MOST_TAILS = 8  # Maximum number of objects in a block after its typed value.
# A search reads the claims of all blocks. In a heap of at most SMALL blocks, it is repeated after
# any new claim; in a larger heap, after one new claim for each PART blocks above SMALL.
SMALL = 1 << 20
PART = 64
LEAST_OPEN = 0.9  # Least part of the blocks that must refer to a place after their type.


class _Member(NamedTuple):
    """A pointer of a value: its offset, and the types that it may refer to."""

    offset: int
    pointees: tuple[int, ...]


_Offsets = tuple[tuple[int, tuple[int, ...]], ...]
"""The tails of a block: offsets, and the types that may be there."""
_Group = tuple[int, int, _Offsets]
"""Layout and size of blocks, and their tails."""


class Tails:
    """Finds objects that follow the typed values of blocks."""

    def __init__(self, spread: TypeSpread, heap: HeapView, layouts: Layouts, content: Content, rules: Rules, packing: Packing) -> None:
        self._spread, self._heap, self._layouts = spread, heap, layouts
        self._content, self._rules, self._packing = content, rules, packing
        self._members: dict[int, Sequence[_Member]] = {}  # By layout.
        self._refused: set[_Group] = set()
        self._examined: set[tuple[int, int, int, int]] = set()  # Type, reference, offset, size.
        self._claimed = 0  # Claims that were made before the last search.

    def find_open(self, pending: Iterable[Pointers]) -> set[int]:
        """Return the types after which other objects follow in the same block. `pending`: deferred
        pointers. Nearly all blocks that these pointers refer to must contain a pointer to a place
        after the type in the same block."""
        found = set()
        for one in pending:
            for number in self._openable(one):
                key = number, one.reference, one.offset, one.size
                blocks = () if key in self._examined else {block for block in one.untyped[2::3] if not self._heap.claims[block]}
                if not blocks:
                    continue
                self._examined.add(key)
                sample, offsets = sample_blocks(sorted(blocks)), self._outward(number)
                if offsets and sum(self._refers_behind(block, number, offsets) for block in sample) >= LEAST_OPEN * len(sample):
                    found.add(number)
        return found

    def _openable(self, found: Pointers) -> Sequence[int]:
        """Return the types after which other objects may follow in the blocks that these pointers
        refer to. Return () if a type that the pointers may refer to fits the size of the blocks."""
        of, table, rules = self._layouts.references[found.reference], self._layouts.table, self._rules
        if of.sort != Sort.POINTER or of.counted or of.used or table.kinds[of.pointees[0]] not in STRUCTURES:
            return ()
        whole = self._layouts.embedding.places(of.pointees[0]).get(found.offset, ())
        least = max(rules.sizes.least(found.size), 1)
        if any(least <= table.sizes[number] <= found.size for number in whole):
            return ()
        small = [one for one in whole if table.sizes[one] < least and not table.flags[one] & Flag.POLYMORPHIC]
        return [one for one in small if not rules.is_open(one)][:MOST_CANDIDATES]

    def _outward(self, number: int) -> Sequence[int]:
        """Return the offsets of the pointers in a type. Pointers of lists and trees are left out,
        because they may refer to other elements of an array."""
        leaves = [leaf for one in self._layouts.shape(Spec(number)) if not one.start and one.number == 1 for leaf in one.leaves]
        is_link = [leaf.role == Role.REFERENCE and bool(self._layouts.references[leaf.reference].owner) for leaf in leaves]
        return [leaf.offset for leaf, link in zip(leaves, is_link) if leaf.role in (Role.REFERENCE, Role.DATA) and not link]

    def _refers_behind(self, index: int, number: int, offsets: Sequence[int]) -> bool:
        """Whether one of the pointers at these offsets refers to a place after the type in the
        same block."""
        own, size = self._layouts.table.size_of(number), self._heap.blocks.size(index)
        return any(own <= at < size for at in self._inside(self._heap.blocks.address(index), own, offsets))

    def _inside(self, start: int, own: int, offsets: Sequence[int]) -> Sequence[int]:
        """Return the words at these offsets of the block at `start`, minus `start`. `own`: the
        bytes of the block that are read."""
        data, word, order = self._heap.bytes(start, own), self._layouts.table.word, self._heap.arch.byteorder
        return [int.from_bytes(data[offset : offset + word], order) - start for offset in offsets]

    def find(self) -> Iterator[tuple[array[int], int]]:
        """Yield blocks ("I"), and the number of their new layout. Yield nothing if
        there are too few new claims since the last search."""
        if (self._spread.claimed - self._claimed) * PART <= max(len(self._heap.blocks) - SMALL, 0):
            return
        self._claimed = self._spread.claimed
        probed: dict[int, array[int]] = {}
        for index in self._spread.sample(PROBED):
            probed.setdefault(self._heap.layout(index), array("I")).append(index)
        groups: dict[_Group, array[int]] = {}
        left = MOST_BLOCKS
        for layout in sorted(layout for layout, blocks in probed.items() if any(self._read(layout, blocks))):
            blocks = self._spread.with_layout(layout, left)
            left -= len(blocks)
            for index, size, tails in self._read(layout, blocks):
                groups.setdefault((layout, size, tails), array("I")).append(index)
        largest = sorted((key for key in groups if key not in self._refused), key=lambda key: (-len(groups[key]), key))
        for key in largest[:MOST_GROUPS]:
            spec = self._extend(self._layouts.specs[key[0]], key[1], key[2], sample_blocks(groups[key]))
            if spec is not None:
                yield groups[key], self._layouts.number(spec)
            else:
                self._refused.add(key)

    def _read(self, layout: int, blocks: array[int]) -> Iterator[tuple[int, int, _Offsets]]:
        """Yield the index, the size and the tails of those of these blocks ("I", of one layout)
        that have tails: the offsets after the type to which a block has pointers, ascending, and
        the types that may be there."""
        members = self._members.get(layout)
        if members is None:
            members = self._members[layout] = self._find_members(self._layouts.specs[layout])
        if not members:
            return
        own, word = self._layouts.size_of(self._layouts.specs[layout]), self._layouts.table.word
        offsets, columns = [one.offset for one in members], self._heap.blocks.columns_of(blocks)
        for index, start, size in zip(blocks, columns.address, columns.size):
            found: dict[int, tuple[int, ...]] = {}
            for at, one in zip(self._inside(start, own, offsets) if own < size else (), members):
                if own <= at < size and at % word == 0:
                    found.setdefault(at, one.pointees)
            if found:
                yield index, size, tuple(sorted(found.items())[:MOST_TAILS])

    def _find_members(self, spec: Spec) -> Sequence[_Member]:
        """Return the pointers in those parts of a layout that are not arrays."""
        layouts, table = self._layouts, self._layouts.table
        if spec.many or layouts.flexible(spec.type) is not None:
            return ()
        found = []
        for one in layouts.shape(spec):
            for leaf in one.leaves if one.number == 1 else ():
                pointees = layouts.references[leaf.reference].pointees if leaf.role == Role.REFERENCE else ()
                known = [number for number in pointees if table.kinds[number] in (*STRUCTURES, Kind.POINTER) and table.size_of(number)]
                if known:
                    found.append(_Member(one.start + leaf.offset, tuple(known)))
        return found

    def _extend(self, spec: Spec, size: int, tails: _Offsets, blocks: Sequence[int]) -> Optional[Spec]:
        """Return `spec` with parts for the tails of these blocks; None if no part is added."""
        parts = list(spec.parts or (Packed(0, spec.type, 1, self._layouts.size_of(spec)),))
        ends = [*(offset for offset, _ in tails[1:]), size]
        for (offset, pointees), end in zip(tails, ends):
            possible = [self._packing.find_part(one, offset, end, blocks) for one in pointees]
            found = [part for part in possible if part is not None and part.end <= end]
            if not found and len(pointees) == 1:
                found = self._find_single(pointees[0], offset, end, blocks)
            parts += found if len(found) == 1 else ()
        return Spec(spec.type, False, spec.node, tuple(parts)) if len(parts) > max(len(spec.parts), 1) else None

    def _find_single(self, pointee: int, offset: int, end: int, blocks: Sequence[int]) -> list[Packed]:
        """Return the object of the only type that is possible at an offset; [] if it fits too few
        of the blocks."""
        part = Packed(offset, pointee, 1, self._layouts.table.size_of(pointee))
        fits = self._content.count_fits([Spec(pointee, parts=(part,))], blocks)[0] if part.end <= end else 0
        return [part] if fits >= max(LEAST_SINGLE * len(blocks), 1) else []
