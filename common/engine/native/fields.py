"""What an owner retains, by field, in the C engine (common/native/fields.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_void_p

from findleaks.engine.fields import FieldsTree
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.library import CLibrary, Handle
from findleaks.engine.native.memory import c_array, native_array
from findleaks.engine.retained import Rows, WholeTree, by_size


class NativeFields(FieldsTree):
    """A tree with fields as roots; see dominators.Dominators. Takes 4 bytes for each child that a
    field reaches (about 12 after `compute`), and 4 bytes of address space for each block."""

    def __init__(self, library: CLibrary, handle: Handle, blocks: NativeBlocks, tree: WholeTree, node: int, fields: int) -> None:
        super().__init__(tree, blocks, node, fields)
        self._library = library
        made = library.fl_fields_new(handle, self._first, self._span, fields)
        self._handle = Handle(made, library.fl_fields_free, "for the fields of an owner")

    def root_words(self, words: Sequence[int], root: int) -> None:
        super().root_words(words, root)
        values = array("Q", words)
        self._library.fl_fields_words(self._handle, root, c_array(values), len(values))

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        super().refer(root, blocks)
        indices = array("I", blocks)
        self._library.fl_fields_refer(self._handle, root, c_array(indices), len(indices))

    def compute(self, budget: int) -> bool:
        self._begun = True
        if not self._done and not self._library.fl_fields_compute(self._handle, max(1, budget)):
            arrays, count = (c_void_p * 6)(), c_uint32()
            self._library.fl_fields_arrays(self._handle, arrays, byref(count))
            self._labels, self._starts = native_array(arrays[0], self._span, 4), native_array(arrays[1], self.roots + 3, 4)
            self._heads, self._ends, self._all = (native_array(arrays[at], count.value, 4) for at in (2, 3, 4))
            self._sums = native_array(arrays[5], 2 * self.roots + 2, 8)
            self._done = True
        return self._done

    def progress(self) -> float:
        return 1.0 if self._done else min(0.99, self._library.fl_fields_done(self._handle) / (self._span + 1))

    def _children(self, field: int, limit: int) -> Sequence[int]:
        return self._library.words(self._library.fl_fields_children, self._handle, field, limit)

    def _spread(self, field: int, everything: bool) -> Rows:
        if everything:
            return by_size(self._library.words(self._library.fl_fields_sizes, self._handle, field))
        return self._library.rows(5, self._library.fl_fields_spread, self._handle, field)
