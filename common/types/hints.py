"""Apply the user's hints: "at this address is a struct client"."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.debuginfo.type_expressions import NamedType, TypeNames, closest
from findleaks.engine.terms import State
from findleaks.engine.type_spread import DISPUTED, Level, Role, WordClass
from findleaks.errors import UsageError
from findleaks.types.references import Sort
from findleaks.types.specs import Spec
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.types.heap import Place
    from findleaks.types.hint_files import HintFile
    from findleaks.types.spread import Spreading

MOST_HINTS = 10_000
"""Maximum number of addresses with a type in one command."""
WIDEST = 1 << 30
"""Maximum number of bytes of typed memory outside of blocks."""
EXAMINED = 64
"""Words of a block that are compared with the type of its hint."""
_NUMBERS = (WordClass.SMALL, WordClass.NUMBER, WordClass.TEXT)


class AddressHint(NamedTuple):
    """The type at an address, in the user's words."""

    address: int
    type: str

    def __str__(self) -> str:
        return f"--type {self.address:#x}={self.type}"


class UserHints(NamedTuple):
    """All hints of a command: addresses with types, and a hint file."""

    addresses: tuple[AddressHint, ...] = ()
    file: Optional[HintFile] = None


class Hints:
    """The hints of one search for types."""

    def __init__(self, search: Spreading, hints: Sequence[AddressHint]) -> None:
        if len(hints) > MOST_HINTS:
            raise UsageError(f"at most {MOST_HINTS:,} hints are possible, got {len(hints):,}")
        self._search, self._hints = search, hints
        self._names = TypeNames(search.table)
        self._claimed: dict[int, tuple[Spec, AddressHint]] = {}  # By index of the block.

    def apply(self) -> None:
        """Claim the blocks, and add other memory as typed. Call this before types spread. Raises
        UsageError for the first hint that is impossible."""
        for hint in self._hints:
            try:
                self._apply(hint)
            except UsageError as error:
                raise UsageError(f"{hint}: {error}") from None

    def _apply(self, hint: AddressHint) -> None:
        found = self._names.find(hint.type)
        address = self._skip_header(hint.address)
        blocks = self._search.heap.blocks.lookup(address)
        place = self._search.heap.place(address)
        if blocks is not None and place is None:
            raise UsageError(f"the block at {blocks[1]:#x} is not in use ({State(blocks[3]).name.lower()})")
        if place is None or place.offset:
            self._add_memory(hint, found, place)
            return
        one = self._choose(found, place.size, f"the block at {place.start:#x}")
        spec = Spec(one.type, one.is_array)
        before = self._claimed.get(place.block)
        if before is not None and before[0] != spec:
            raise UsageError(f"another hint gives the type {before[1].type}; remove one of the two")
        self._claimed[place.block] = spec, hint
        self._search.spread.seed(place.block, self._search.layouts.number(spec), Level.HINT, False)

    def _skip_header(self, address: int) -> int:
        """Return the start of the typed part of a block if `address` is the start of the header
        before it."""
        blocks, headers = self._search.heap.blocks, self._search.heap.headers
        index = blocks.at_or_after(address) if headers else len(headers)
        is_start = index < len(headers) and headers[index] and blocks.address(index) == address + headers[index]
        return address + headers[index] if is_start else address

    def _add_memory(self, hint: AddressHint, found: Sequence[NamedType], place: Optional[Place]) -> None:
        """Add memory that is not a block, or a part of one."""
        table, heap = self._search.table, self._search.heap
        if any(one.is_array and not one.elements for one in found):
            raise UsageError(f"write the number of elements, as in {hint.type.rpartition('[')[0]}[8]: only a block has a size")
        least = min(table.size_of(one.type) * max(one.elements, 1) for one in found)
        if place is not None:
            one = self._choose(found, place.size - place.offset, f"the block at {place.start:#x}, from +{place.offset} on,")
        else:
            data = heap.bytes(hint.address, min(least, WIDEST))
            if len(data) < least:
                raise UsageError(
                    "the memory at this address is smaller than the type" if data else "findleaks analyses no memory at this address"
                )
            one = self._choose(found, least, "the memory at this address")
        layouts = self._search.layouts
        layout = layouts.number(Spec(one.type, one.is_array))
        self._search.add_memory(hint.address, table.size_of(one.type) * max(one.elements, 1), layout)

    def _choose(self, found: Sequence[NamedType], size: int, what: str) -> NamedType:
        """Return the type that fits into `size` bytes."""
        table = self._search.table
        one = closest(found, table, size)
        if one is not None:
            return one
        sizes = sorted({table.size_of(each.type) * max(each.elements, 1) for each in found})
        if sizes[0] > size:
            raise UsageError(f"the type has {sizes[0]:,} bytes, {what} has {size:,}")
        raise UsageError(
            f"files define types of this name with {' and '.join(f'{each:,}' for each in sizes)} bytes, and all fit; use another name"
        )

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each hint that other types, or the block's content, contradict. Call
        this after types have been propagated."""
        search = self._search
        for index, (spec, hint) in self._claimed.items():
            if search.heap.claims[index] & DISPUTED:
                yield f"{hint} was not used: the block is referenced as another type"
                continue
            offset = self._wrong_word(index, spec)
            if offset is not None:
                yield f"{hint} may be wrong: the type has a pointer at +{offset}, and the block a number"

    def _wrong_word(self, index: int, spec: Spec) -> Optional[int]:
        """Return the offset of the first pointer of a type that is a number in the block."""
        layouts, word = self._search.layouts, self._search.table.word
        _, (_, *classes) = self._search.spread.group_by_classes(array("I", [index]), EXAMINED)
        for part in layouts.shape(spec):
            for leaf in part.leaves:
                at = (part.start + leaf.offset) // word
                is_pointer = leaf.role == Role.REFERENCE and layouts.references[leaf.reference].sort == Sort.POINTER
                if is_pointer and at < EXAMINED and classes[at] in _NUMBERS:
                    return part.start + leaf.offset
        return None
