"""Find the types of blocks whose allocation stacks were recorded.

The blocks of one stack usually have one type. If no block of a stack has a type, the innermost
function that returns a pointer to a struct of the block's size usually constructs this struct:

    struct job *new_job(void) { return calloc(1, sizeof(struct job)); }

Both are only evidence, so these types are inferred, and the content of each block must fit. If the
constructor allocates in several places, one of the block's pointers must fit, too. Otherwise the
buffer of a struct could get the type of the struct."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import Optional

from findleaks.allocators.sites import Sites
from findleaks.debuginfo.program_types import ProgramTypes
from findleaks.debuginfo.type_index import TypeIndex
from findleaks.engine.contract import Blocks
from findleaks.engine.type_spread import Choosing, Level
from findleaks.target.base import Target
from findleaks.types.content import Content
from findleaks.types.embedding import STRUCTURES
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.types.references import Reference, Sort
from findleaks.types.rules import Rules
from findleaks.types.specs import Candidate, Spec
from findleaks.unwind.frames import Unwinder
from findleaks.value_classes import NamedTuple

DEEPEST = 16  # Innermost frames in which a constructor is looked for.


class Constructor(NamedTuple):
    """A function of the program: its first address, and the bare type to which its result points;
    UNKNOWN for other results."""

    start: int
    type: int


def find_constructors(target: Target, index: TypeIndex, program: ProgramTypes) -> Callable[[int], Optional[Constructor]]:
    """Return a function that returns the function with a return address; None if it has no debug
    information."""
    unwinder, table = Unwinder(target), program.table

    def find(address: int) -> Optional[Constructor]:
        module = unwinder.module(address - 1)
        own = index.of(module) if module is not None and module.start in program.numbers else None
        function = own.function_at(address - 1 - module.bias) if own is not None and module is not None else None
        if function is None or module is None:
            return None
        return Constructor(function.start + module.bias, table.pointee(program.numbers[module.start][function.returns]))

    return find


class RecordedTypes:
    """Compares untyped blocks with the types that their allocation stacks suggest."""

    def __init__(
        self,
        sites: Sites,
        find_constructor: Callable[[int], Optional[Constructor]],
        blocks: Blocks,
        heap: HeapView,
        layouts: Layouts,
        content: Content,
        rules: Rules,
    ) -> None:
        """`blocks`: the allocator's blocks; those of `heap` may begin after a header."""
        self._sites, self._blocks = sites, blocks
        self._heap, self._layouts, self._content, self._rules = heap, layouts, content, rules
        self._constructor = cache(find_constructor)

    @cached_property
    def _calls(self) -> Counter[int]:
        """The number of different calls of each function, by its start, on the way to
        allocations."""
        every = {address for one in self._sites for address in one.site.frames[:DEEPEST] if isinstance(address, int)}
        return Counter(one.start for one in map(self._constructor, every) if one is not None)

    def find(self, typed: array[int], untyped: array[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield a layout and those of the untyped blocks ("I") that have this type. `typed`: a
        sample of the typed blocks."""
        witnesses: dict[int, Counter[int]] = {}
        for site, blocks in self._by_site(typed).items():
            witnesses[site] = Counter(map(self._heap.layout, blocks))
        for site, blocks in sorted(self._by_site(untyped).items()):
            seen = witnesses.get(site)
            if seen is None:
                yield from self._find_constructed(site, blocks)
            elif len(seen) == 1:
                layout = next(iter(seen))
                some = [index for index in blocks if self._has_size(self._layouts.specs[layout], self._heap.blocks.size(index))]
                yield layout, [index for index, mask in zip(some, self._content.fits([layout], some)) if mask]

    def _by_site(self, blocks: array[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for index, start in zip(blocks, self._blocks.columns_of(blocks).address):
            site = self._sites.of(start)
            if site:
                found.setdefault(site, []).append(index)
        return found

    def _has_size(self, spec: Spec, size: int) -> bool:
        return self._rules.is_array_of_size(spec, size) if spec.many and not spec.parts else True

    def _find_constructed(self, site: int, blocks: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the blocks of a site without typed blocks that fit the type of their
        constructor."""
        by_size: dict[int, list[int]] = {}
        for index in blocks:
            by_size.setdefault(self._heap.blocks.size(index), []).append(index)
        for size, some in by_size.items():
            found = self.constructed_type(site, size)
            if found is not None:
                spec, level = found
                best = self._content.choose([Candidate(spec, level)], Choosing.BY_CONTENT, some)
                yield self._layouts.number(spec), [index for index, one in zip(some, best) if one is not None]

    def constructed_type(self, site: int, size: int) -> Optional[tuple[Spec, Level]]:
        """Return the only type that blocks of `size` bytes of a site may have because a function of
        its stack returns a pointer to it; None if there is none. The level is SHAPE if the function
        allocates nothing else; otherwise LEARNED, so that one of the pointers must fit."""
        for address in self._sites[site].site.frames[:DEEPEST]:
            one = self._constructor(address) if isinstance(address, int) else None
            if one is None or self._layouts.table.kinds[one.type] not in STRUCTURES:
                continue
            reference = self._layouts.refer(Reference(Sort.POINTER, (one.type,)))
            found = self._rules.candidates(reference, 0, size)
            if len(found) == 1 and found[0].level == Level.EXACT:
                return found[0].spec, Level.SHAPE if self._calls[one.start] == 1 else Level.LEARNED
        return None
