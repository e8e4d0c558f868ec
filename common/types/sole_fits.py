"""Find the types of leaked blocks that resemble no typed block: of all types in the debug
information that could be in a block, exactly one fits its content.

A block is compared with the structs of its size, with structs that end with an array, and with
arrays of structs. The type must explain several pointers, and a word that is not a pointer.
Otherwise, the block may also be something that the debug information does not have, such as an
array of pointers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property

from findleaks.debuginfo.type_table import Kind
from findleaks.engine.type_spread import Role
from findleaks.types.content import MOST_COMPARED, Content
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.types.references import Sort
from findleaks.types.rules import Rules
from findleaks.types.specs import Spec

MOST_TYPES = 512  # Blocks are not compared if more types could be in them.
MOST_STRUCTS = 1 << 16  # Blocks are not compared if the debug information has more named structs.
MOST_BLOCKS = 1 << 13  # Maximum number of blocks of one size that are compared.
# Fewest pointers that the type must explain. Pointers to typed blocks, and to variables of the
# declared type, count twice.
LEAST_EVIDENCE = 3


class SoleFits:
    """Compares untyped blocks with all types of the debug information."""

    def __init__(self, heap: HeapView, layouts: Layouts, content: Content, rules: Rules) -> None:
        self._heap, self._layouts, self._content, self._rules = heap, layouts, content, rules

    def find(self, blocks: array[int]) -> Iterator[tuple[int, array[int]]]:
        """Yield a layout and those of the untyped blocks ("I") that only this layout fits."""
        if len(self._named) > MOST_STRUCTS:
            return
        sizes = self._heap.blocks.columns_of(blocks).size
        whole = {size: [one.spec for one in self._rules.of_size(size)] for size in sorted(set(sizes))}
        by_size: dict[int, list[int]] = {size: [] for size, specs in whole.items() if specs}
        for index, size in zip(blocks, sizes):
            if size in by_size:
                by_size[size].append(index)
        for size, some in by_size.items():
            every = [one for one in (*whole[size], *self._rivals(size)) if not self._is_vague(one)]
            if len(every) <= MOST_TYPES:
                found: dict[int, array[int]] = {}
                for index, spec in self._only(every, some[:MOST_BLOCKS]):
                    if spec in whole[size] and self._is_evident(index, spec):
                        found.setdefault(self._layouts.number(spec), array("I")).append(index)
                yield from sorted(found.items())

    def _rivals(self, size: int) -> Sequence[Spec]:
        """Return the contents of a block of `size` bytes other than a single struct of this size:
        structs that end with an array, and arrays of structs. The list ends after MOST_TYPES."""
        flexible, by_size = self._structs
        found = [Spec(one) for one in flexible if self._rules.may_extend_to(one, size)]
        for own, numbers in by_size.items():
            if len(found) > MOST_TYPES:
                break
            if own * 2 <= size and self._rules.sizes.fits(size // own * own, size):
                found += [Spec(one, True) for one in numbers]
        return found

    def _is_vague(self, spec: Spec) -> bool:
        """Whether a type of the standard library has no word that certainly is a pointer to a known
        type, as std::variant and std::exception_ptr have none. Such a type fits nearly every block,
        so it does not exclude the types of the program."""
        if not self._layouts.embedding.is_library(spec.type):
            return False
        leaves = [leaf for part in self._layouts.shape(spec) for leaf in part.leaves]
        references = [self._layouts.references[leaf.reference].sort for leaf in leaves if leaf.role == Role.REFERENCE]
        return Sort.POINTER not in references and all(leaf.role != Role.DATA for leaf in leaves)

    def _is_variable(self, address: int, reference: int) -> bool:
        """Whether a variable of the type that a pointer declares begins at an address, for example
        the table of functions of a kind of objects."""
        table, declared = self._layouts.table, self._layouts.references[reference]
        found = table.variable_at(address)
        return (
            found is not None and declared.sort == Sort.POINTER and found.address == address and table.bare(found.type) in declared.pointees
        )

    @cached_property
    def _structs(self) -> tuple[Sequence[int], dict[int, list[int]]]:
        """The program's structs with pointers: those that end with an array, and all structs by
        size."""
        layouts, sizes = self._layouts, self._layouts.table.sizes
        found = [one for one in self._named if self._rules.is_of_program(one) and layouts.has_pointers(one)]
        by_size: dict[int, list[int]] = {}
        for one in found:
            by_size.setdefault(sizes[one], []).append(one)
        return [one for one in found if layouts.flexible(one) is not None], by_size

    @cached_property
    def _named(self) -> Sequence[int]:
        table = self._layouts.table
        return [one for one, kind in enumerate(table.kinds) if kind == Kind.STRUCT and table.sizes[one] and table.names[one]]

    def _only(self, specs: Sequence[Spec], blocks: Sequence[int]) -> Iterator[tuple[int, Spec]]:
        """Yield the blocks that exactly one of these `specs` fits, with this spec."""
        fitting: dict[int, list[Spec]] = {index: [] for index in blocks}
        for first in range(0, len(specs), MOST_COMPARED):
            some = specs[first : first + MOST_COMPARED]
            left = [index for index, known in fitting.items() if len(known) < 2]
            for index, mask in zip(left, self._content.fits([self._layouts.number(one) for one in some], left)):
                fitting[index] += [one for at, one in enumerate(some) if mask >> at & 1]
        return ((index, known[0]) for index, known in fitting.items() if len(known) == 1)

    def _is_evident(self, index: int, spec: Spec) -> bool:
        """Whether enough words of a block are evidence for a struct that fits the block."""
        heap, start = self._heap, self._heap.blocks.address(index)
        pointers, others = 0, 0
        for leaf in (leaf for part in self._layouts.shape(spec) if part.number == 1 for leaf in part.leaves):
            value = heap.word(start + leaf.offset)
            if not value:
                continue
            place = heap.place(value) if leaf.role in (Role.REFERENCE, Role.DATA) else None
            if place is None:
                others += leaf.role in (Role.PLAIN, Role.CODE)
                pointers += 2 if leaf.role == Role.REFERENCE and self._is_variable(value, leaf.reference) else 0
            elif leaf.role == Role.DATA:
                pointers += 1
            elif place.block != index and self._layouts.references[leaf.reference].sort == Sort.POINTER:
                pointers += 2 if heap.layout(place.block) else 1
        return pointers >= LEAST_EVIDENCE and others > 0
