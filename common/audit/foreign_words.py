"""Find words that were written by native code other than the managed runtime's.

A managed runtime reserves, maps and unmaps memory all the time. It stores addresses of this memory
in its data, in its blocks, on stacks, and in its heap. Such words do not show that memory is
missing from a core. Words that other code wrote show it: words in the data of other modules (a JNI
library, an addon of Node, the C part of a Go program), and in blocks that only this data
retains."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from functools import cached_property

from findleaks.allocators.bulk import find_pointers
from findleaks.engine.dominators import Dominators, node_root
from findleaks.engine.terms import NO_BLOCK
from findleaks.session import Session
from findleaks.target.base import Module, Range
from findleaks.target.ranges import intersection, merge_ranges, region_at, subtract

_C_LIBRARY = ("libc.", "libc-", "ld-", "ld.", "libpthread")
"""Prefixes of the names of modules that may store addresses of unmapped memory. For example, glibc
stores a hint where to map the next arena."""
_MOST_DATA = 64 << 20  # bytes of modules' data that are searched for references to blocks
_MOST_NAMED = 20_000  # words of data shared with a runtime whose variables are looked up
_PATHS = 16  # blocks whose path is computed; each takes 20 ms in a JVM
_OTHER, _FOREIGN = 0, 1  # numbers of the two roots


def in_c_library(module: Module) -> bool:
    """Whether a module is libc, ld.so or libpthread."""
    return os.path.basename(module.path).startswith(_C_LIBRARY)


class ForeignWords:
    """Decides which words were written by code other than the runtimes'. All results are computed
    when they are needed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, bool] = {}  # the result of _is_retained, by index of the block

    def has(self, address: int) -> bool:
        """Whether code other than the runtimes' wrote the word at this address."""
        index = self._session.directory.blocks.find(address)
        if index < 0:
            return self._is_in_data(address)
        if index not in self._known:
            self._known[index] = self._is_retained(index)
        return self._known[index]

    @cached_property
    def _modules(self) -> list[Module]:
        """Modules other than those of runtimes and of the C library.
        All libraries in the folders of a JVM belong to the JVM."""
        runtimes = self._session.runtimes
        names = {runtime.where for runtime in runtimes if not runtime.shares_module}
        modules = self._session.target.modules()
        own = [module.path for module in modules if os.path.basename(module.path) in names]
        folders = {os.path.dirname(os.path.dirname(path)) for path in own if os.path.basename(path).startswith("libjvm")}
        return [one for one in modules if not in_c_library(one) and one.path not in own and not _is_below(one.path, folders)]

    def _is_in_data(self, address: int) -> bool:
        module = region_at(self._modules, address)
        if module is None:
            return False
        shared = [runtime for runtime in self._session.runtimes if runtime.shares_module and runtime.where == os.path.basename(module.path)]
        found = self._session.target.symbolize(address) if shared else None
        name = found.name if found is not None else ""
        return not shared or (bool(name) and not any(runtime.is_own_name(name) for runtime in shared))

    def _is_retained(self, index: int) -> bool:
        """Whether only foreign data retains a block.

        The dominator tree needs another scan of all roots. To avoid this scan, the paths to the
        first few blocks are computed: if a path begins elsewhere, foreign data alone does not
        retain the block."""
        if not self._referred:
            return False
        if len(self._known) < _PATHS:
            path = self._session.path(index)
            if not path or path[0] not in self._referred:
                return False
        node = self._tree.idom(index)
        while node is not None and node >= 0:
            node = self._tree.idom(node)
        return node is not None and node_root(node) == _FOREIGN

    @cached_property
    def _data(self) -> list[Range]:
        """Root memory of foreign modules.
        If a module also contains a runtime, only some words of its data are included: those that
        point into heaps, and are in variables that do not belong to the runtime."""
        names = {runtime.where for runtime in self._session.runtimes}
        shared = [one for one in self._modules if os.path.basename(one.path) in names]
        own = self._root_memory(one for one in self._modules if one not in shared)
        return merge_ranges([*own, *self._find_shared(self._root_memory(shared))])

    def _find_shared(self, ranges: list[Range]) -> Iterator[Range]:
        """Yield the words in these ranges that point into heaps and belong to a variable that is
        not the runtime's."""
        session, left = self._session, _MOST_NAMED
        low, high = self._bounds
        for piece in session.pieces(ranges, "looking for missing memory") if low < high else ():
            for address in find_pointers(session.engine, piece, low, high)[0][:left]:
                if self._is_in_data(address):
                    yield Range(address, address + session.target.arch.word)
                left -= 1

    @cached_property
    def _bounds(self) -> Range:
        """The range from the lowest to the highest address of all heaps."""
        heaps = self._session.heap_ranges()
        return Range(min((one.start for one in heaps), default=0), max((one.end for one in heaps), default=0))

    @cached_property
    def memory(self) -> list[Range]:
        """Return the memory that may contain such words: data of modules, and heaps if such data
        refers to blocks."""
        return merge_ranges([*self._root_memory(self._modules), *(self._session.heap_ranges() if self._referred else ())])

    def _root_memory(self, modules: Iterable[Module]) -> list[Range]:
        """Return the root memory of these modules."""
        return intersection(merge_ranges(Range(one.start, one.end) for one in modules), self._session.roots)

    @cached_property
    def _referred(self) -> frozenset[int]:
        """Indices of the blocks that foreign data refers to."""
        return frozenset(self._blocks())

    def _blocks(self) -> Iterator[int]:
        session, left = self._session, _MOST_DATA
        low, high = self._bounds
        for piece in session.pieces(self._data, "looking for missing memory"):
            left -= len(piece.data)
            if left < 0 or low >= high:
                return
            values = array("Q", find_pointers(session.engine, piece, low, high)[1])
            yield from (index for index in session.directory.blocks.find_all(values)[0] if index != NO_BLOCK)

    @cached_property
    def _tree(self) -> Dominators:
        """The dominator tree with two roots: foreign data, and all other roots."""
        session = self._session
        bounds, numbers = array("Q", [0]), array("I", [_OTHER])
        for start, end in self._data:
            bounds.extend((start, end))
            numbers.extend((_FOREIGN, _OTHER))
        tree = session.graph().dominators(2, bounds, numbers)
        # A block that only a managed heap refers to is rare, and such a heap may be large, so heaps
        # are not scanned.
        managed = [piece for runtime in session.runtimes for part in runtime.parts() if not part.inside for piece in part.ranges]
        for piece in session.pieces(subtract(session.roots, managed), "looking for missing memory"):
            tree.scan_roots(piece)
        tree.root_words(session.register_words(), _OTHER)
        return session.compute(tree, "looking for missing memory")


def _is_below(path: str, folders: set[str]) -> bool:
    return any(folder not in ("", "/") and path.startswith(f"{folder}/") for folder in folders)
