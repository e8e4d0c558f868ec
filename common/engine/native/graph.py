"""The reference graph in the C engine (scan.c, mark.c, classify.c, cycles.c, groups.c …)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from ctypes import byref, c_uint32, c_uint64
from typing import TYPE_CHECKING, Optional

from findleaks.engine import shared
from findleaks.engine.columns import Numbers
from findleaks.engine.native.blocks import STEPS, NativeBlocks
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.interiors import NativeInteriors
from findleaks.engine.native.library import DISORDER, NONE, CLibrary, Handle
from findleaks.engine.native.memory import c_array, c_buffer, c_numbers, c_piece, c_ranges, c_words
from findleaks.engine.terms import Exclusion, Group, Heuristic, Kind, KindFigures, Totals
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_ranges

if TYPE_CHECKING:
    from findleaks.engine.disguises import Form
    from findleaks.engine.native.disguises import NativeDisguises
    from findleaks.engine.native.dominators import NativeDominators
    from findleaks.engine.native.rows import NativeRows
    from findleaks.engine.rows import RowRules


class NativeGraph:
    """A reference graph; see contract.Graph. Takes about 3 bytes a block and 4 bytes a reference,
    in addition to the memory of `blocks`."""

    def __init__(
        self, library: CLibrary, blocks: NativeBlocks, heuristics: Heuristic, vtables: Sequence[Range], types: Sequence[int] = ()
    ) -> None:
        blocks.seal()
        self.blocks = blocks
        self._library = library
        self._kinds = bytearray(len(blocks) or 1)
        # Keeps the buffer at its address while the C engine uses it.
        self._held = c_array(self._kinds)
        self._marking = self._marked = self._classified = False
        self._totals: list[Totals] = []  # by kind, once classified
        self._label_count = 0
        made = library.fl_graph_new(blocks.handle, self._held)
        self._handle = Handle(made, library.fl_graph_free, "for the heap's graph")
        if heuristics & Heuristic.AUTO:
            library.fl_graph_note(self._handle)
        if heuristics & Heuristic.EVERY:
            library.fl_graph_count_interiors(self._handle)
        heuristics &= ~(Heuristic.AUTO | Heuristic.EVERY)
        if heuristics:
            words = array("Q", types)
            library.fl_graph_heuristics(self._handle, int(heuristics), *c_ranges(merge_ranges(vtables)), c_array(words), len(words))

    @property
    def handle(self) -> Handle:
        """The structure in the C library."""
        return self._handle

    def exclude_words(self, patterns: bytearray, exclusions: Sequence[Exclusion]) -> None:
        self._before_marking()
        checked = shared.checked_exclusions(patterns, exclusions, len(self.blocks))
        self._excluded = c_array(patterns or bytearray(1)), c_array(array("Q", (word for one in checked for word in one)))
        self._library.fl_graph_exclude_words(self._handle, *self._excluded)

    def set_labels(self, labels: array[int], ranks: array[int]) -> None:
        self._before_marking()
        shared.check_labels(len(labels), ranks, len(self.blocks))
        if not self._library.fl_labels_below(*c_numbers(labels), len(labels), len(ranks)):
            raise ValueError(f"a label is not below {len(ranks)}")
        self._label_count = len(ranks)
        self._labels = *c_numbers(labels or array("I", [0])), c_array(ranks or array("I", [0]))
        self._library.fl_graph_set_labels(self._handle, *self._labels)

    def scan_blocks(self, piece: Piece) -> None:
        self._before_marking()
        if self._library.fl_scan_blocks(self._handle, c_piece(piece)) == DISORDER:
            raise ValueError(f"piece {piece.address:#x} lies below the scanned memory")

    def scan_roots(self, piece: Piece) -> None:
        self._library.fl_scan_roots(self._handle, c_piece(piece))

    def root_words(self, words: Sequence[int]) -> None:
        self._library.fl_root_words(self._handle, *c_words(words, self.blocks.arch))

    def settle(self) -> None:
        if not self._marking:
            self._marking = True
            self._library.fl_mark_starts(self._handle, 0)

    def mark_starts(self, budget: int) -> bool:
        self._marking = True
        return not self._library.fl_mark_starts(self._handle, max(1, budget))

    def holds(self, words: Sequence[int]) -> bool:
        self._after_scanning()
        values = array("Q", words)
        return bool(self._library.fl_holds(self._handle, c_array(values), len(values)))

    def find_unreferenced(self, smallest: int, largest: int, most: int) -> list[int]:
        self._after_scanning()
        return self._library.words(self._library.fl_unreferenced, self._handle, smallest, largest, most).tolist()

    def mark(self, budget: int) -> bool:
        self._marking = True
        if not self._marked:
            self._marked = not self._library.fl_mark(self._handle, max(1, budget))
        return self._marked

    def interiors(self) -> NativeInteriors:
        if not self._marked or self._classified:
            raise RuntimeError("call this method after marking and before classifying")
        return NativeInteriors(self._library, self, self._handle)

    def classify(self, budget: int) -> bool:
        if not self._marked:
            raise RuntimeError("mark first")
        if not self._classified:
            self._classified = not self._library.fl_classify(self._handle, max(1, budget))
        return self._classified

    def kind(self, index: int) -> Kind:
        return Kind(self._kinds[self._index(index)])

    def kinds(self) -> memoryview:
        return memoryview(self._kinds).toreadonly()[: len(self.blocks)]

    def leak_head_sizes(self) -> array[int]:
        self._after_classifying()
        return self._library.words(self._library.fl_leak_head_sizes, self._handle)

    def disguises(self, ranges: Sequence[Range], forms: Sequence[Form], most: int) -> NativeDisguises:
        # Not needed if nothing is leaked.
        from findleaks.engine.native.disguises import NativeDisguises

        self._after_classifying()
        return NativeDisguises(self._library, self, self._handle, ranges, forms, most)

    def connect(self, references: array[int]) -> None:
        if not self._marked:
            raise RuntimeError("mark first")
        self._library.fl_graph_connect(self._handle, c_array(references), len(references))
        self._marked = self._classified = False
        self._totals = []

    def rows(self, rules: RowRules) -> NativeRows:
        from findleaks.engine.native.rows import NativeRows  # few commands need it

        return NativeRows(self._library, self._handle, self.blocks.handle, rules)

    def totals(self, kind: Kind) -> Totals:
        if not self._classified:
            return self._by_kind()[kind]
        self._totals = self._totals or self._by_kind()
        return self._totals[kind]

    def has_kind(self, kind: Kind, number: int) -> bool:
        return bool(self._library.fl_has_kind(self._handle, int(kind), number))

    def bytes_by_kind(self, ranges: array[int]) -> list[int]:
        sums = (c_uint64 * len(Kind))()
        self._library.fl_kind_bytes(self._handle, c_array(ranges), len(ranges) // 2, sums)
        return list(sums)

    def figures_by_kind(self, indices: array[int], ranges: array[int]) -> list[KindFigures]:
        found = (c_uint64 * (3 * len(Kind)))()
        self._library.fl_kind_figures(self._handle, c_array(indices), len(indices), c_array(ranges), len(ranges) // 2, found)
        return list(map(KindFigures, found[::3], found[1::3], found[2::3]))

    def sizes(self, kind: Kind) -> list[tuple[int, int]]:
        found = self._library.words(self._library.fl_kind_sizes, self._handle, int(kind))
        return sorted((key >> 2, blocks) for key, blocks in zip(found[::2], found[1::2]))

    def _by_kind(self) -> list[Totals]:
        found = (c_uint64 * (2 * len(Kind)))()
        self._library.fl_kind_totals(self._handle, found)
        return list(map(Totals, found[::2], found[1::2]))

    def label_totals(self, kinds: Iterable[Kind]) -> list[Totals]:
        self._after_classifying()
        found = (c_uint64 * (2 * self._label_count))()
        self._library.fl_label_totals(self._handle, sum(1 << kind for kind in set(kinds)), self._label_count, found)
        return list(map(Totals, found[::2], found[1::2]))

    def has_cycles(self) -> bool:
        self._after_classifying()
        return bool(self._library.fl_has_cycles(self._handle))

    def cycle_ranges(self) -> list[Range]:
        self._after_classifying()
        return [Range(*pair) for pair in self._library.rows(2, self._library.fl_cycle_ranges, self._handle, shared.CYCLE_GAP)]

    def represent_cycles(self, pieces: Iterable[Piece], types: Sequence[Range]) -> None:
        self._after_classifying()
        ranges = c_ranges(merge_ranges(types))
        for piece in pieces:
            self._library.fl_cycles_feed(self._handle, c_piece(piece), *ranges)
        self._library.fl_cycles_finish(self._handle)

    def representative(self, index: int) -> int:
        self._after_classifying()
        return int(self._library.fl_representative(self._handle, self._index(index)))

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range], marks: Optional[Numbers] = None) -> list[Group]:
        if marks is not None and len(marks) < len(self.blocks):
            raise ValueError(f"{len(marks)} marks, {len(self.blocks)} blocks")
        return self._read_groups(pieces, types, False, marks)

    def group_typed(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        return self._read_groups(pieces, types, True)

    def _read_groups(self, pieces: Iterable[Piece], types: Sequence[Range], typed: bool, marks: Optional[Numbers] = None) -> list[Group]:
        self._after_classifying()
        library = self._library
        ranges = c_ranges(merge_ranges(types))  # the C engine continues to read them, and the marks
        held = c_array(marks) if marks else None
        grouping = Handle(library.fl_groups_new(self._handle, *ranges, typed, held), library.fl_groups_free, "to group blocks")
        for piece in pieces if types else ():
            if library.fl_groups_feed(grouping, c_piece(piece)) == DISORDER:
                raise ValueError(f"piece {piece.address:#x} lies below the previous one")
        return shared.sort_groups(map(_group, library.rows(16, library.fl_groups_finish, grouping)))

    def leak_head(self, index: int) -> int:
        self._after_classifying()
        found = self._library.fl_leak_head(self._handle, self._index(index))
        return -1 if found == NONE else int(found)

    def leak_heads(self) -> memoryview:
        self._after_classifying()
        count = len(self.blocks)
        made = bytearray(4 * count)
        for low in range(0, count, STEPS):
            self._library.fl_leak_heads(self._handle, low, min(low + STEPS, count), c_buffer(made, "I", low))
        return memoryview(made).cast("I").toreadonly()

    def cycle(self, index: int) -> int:
        self._after_classifying()
        return int(self._library.fl_cycle(self._handle, self._index(index)))

    def indirect_totals(self, index: int) -> Totals:
        self._after_classifying()
        count, size = c_uint32(), c_uint64()
        self._library.fl_hanging(self._handle, self._index(index), byref(count), byref(size))
        return Totals(count.value, size.value)

    def heads(self) -> Optional[array[int]]:
        self._after_classifying()
        found = CWords()
        fewer = self._library.fl_heads(self._handle, byref(found))
        indices = self._library.take(found)
        return indices if fewer else None

    def referrers(self, index: int, limit: int = 0) -> list[int]:
        self._after_scanning()
        return self._library.words(self._library.fl_referrers, self._handle, self._index(index), limit).tolist()

    def references(self, index: int) -> list[tuple[int, bool]]:
        self._after_scanning()
        edges = self._library.words(self._library.fl_references, self._handle, self._index(index))
        return [(edge >> 1, bool(edge & 1)) for edge in edges]

    def leaked_references(self) -> array[int]:
        self._after_classifying()
        counts = array("I", bytes(4 * len(self.blocks)))
        self._library.fl_lost_references(self._handle, True, c_array(counts))
        return counts

    def path(self, index: int, starts: Sequence[int] = (), avoided: bytes = b"") -> list[int]:
        self._after_scanning()
        some, marks = array("I", map(self._index, starts)), bytearray(avoided)
        inputs = self._index(index), c_array(some), len(some), c_array(marks), len(marks)
        return self._library.words(self._library.fl_path, self._handle, *inputs).tolist()[::-1]

    def is_rooted(self, index: int) -> bool:
        return bool(self._library.fl_rooted(self._handle, self._index(index)))

    def dominators(
        self, roots: int, bounds: Sequence[int] = (), owners: Sequence[int] = (), lost: bool = False, priorities: Sequence[int] = ()
    ) -> NativeDominators:
        from findleaks.engine.native.dominators import NativeDominators  # few commands need it

        if not (self._classified if lost else self._marking):
            raise RuntimeError("classify first" if lost else "settle first")
        return NativeDominators(self._library, self, self._handle, roots, bounds, owners, lost, priorities)

    def _index(self, index: int) -> int:
        if not 0 <= index < len(self.blocks):
            raise IndexError(f"no block {index}")
        return index

    def _before_marking(self) -> None:
        if self._marking:
            raise RuntimeError("scan before marking")

    def _after_scanning(self) -> None:
        if not self._marking:
            raise RuntimeError("mark first")

    def _after_classifying(self) -> None:
        if not self._classified:
            raise RuntimeError("classify first")


def _group(row: Sequence[int]) -> Group:
    kind, type_word, size, cycle, blocks, total, indirect_blocks, indirect_bytes, least, most = row[:10]
    largest, label, mark = row[13:]
    examples = tuple(row[10 : 10 + min(3, blocks)])
    return Group(
        Kind(kind), type_word, size, cycle, blocks, total, indirect_blocks, indirect_bytes, least, most, examples, largest, label, mark
    )
