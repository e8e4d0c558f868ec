"""Find objects of the runtime and of the package sync by their contents. Their types are known
even if only variables, closures or objects of unknown type refer to them.

- A channel contains the address of the type of its elements. Only channels whose elements have
  pointers, and channels for which a goroutine waits, are looked for.
- The objects of a sync.Pool for each processor are found through the list of all pools.
- The root of a sync.Map has no parent, and refers to entries, or to nodes whose parent is the root.

Sources: Go 1.18 to 1.27, src/runtime/chan.go (hchan, makechan), runtime2.go (g.waiting, sudog;
since 1.26, sudog.c is a pointer that may be 0, and its address), src/sync/pool.go (Pool, poolLocal,
allPools, oldPools); since 1.24, src/internal/sync/hashtriemap.go (indirect, entry)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Optional

from findleaks.allocators.base import size_at
from findleaks.allocators.bulk import read_records, read_words
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.go.code_references import variables_of_function
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.moduledata import Program, list_types
from findleaks.runtimes.go.span_table import ObjectSpans
from findleaks.runtimes.go.stack_roots import StackRoots
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.runtimes.go.types import CHAN
from findleaks.target.interruptible import interruptible

_MOST_SLOTS = 1 << 20  # maximum number of objects of one size that are examined
_MOST_POOLS = 1 << 16
_MOST_ROOTS = 1 << 14  # maximum number of possible roots of sync.Map whose children are read
_LOOK = 1 << 8  # objects between two checks for Ctrl-C
_MOST_CHANNELS = 1 << 10  # maximum number of channels in a select that are read
_MAX_BUFFER = 1 << 40  # maximum number of elements of a channel
_ANY = "[interface {},interface {}]"  # type arguments of the types of a sync.Map
_ROOT, _ENTRY = f"sync.indirect{_ANY}", f"sync.entry{_ANY}"


class ShapeReader:
    """Finds objects by their contents. `blocks`: the objects of the heap, which are in `spans`.
    `stacks`: the functions of the program, and the addresses of all g structures."""

    def __init__(
        self,
        memory: Memory,
        engine: Engine,
        program: Program,
        names: TypeNames,
        blocks: Blocks,
        spans: ObjectSpans,
        stacks: StackRoots,
    ) -> None:
        self._memory, self._engine, self._program, self._names = memory, engine, program, names
        self._types, self._blocks = program.types, blocks
        self._spans, self._stacks = spans, stacks

    def read(self) -> Iterator[tuple[int, int]]:
        """Yield the address and the type value of each object that is recognised."""
        yield from self._channels()
        yield from self._roots()
        yield from self._pools()

    def _places(self, size: int) -> array[int]:
        """Return the addresses of the slots of the size class for objects of this size."""
        _, slots = self._spans.with_pointers(size)
        return array("Q", islice(chain.from_iterable(slots), _MOST_SLOTS))

    def _columns(self, places: array[int], words: int) -> list[Sequence[int]]:
        """Return the first words of these objects: a column for each word."""
        content = self._memory.arch.words(read_records(self._memory.target, self._engine, places, 8 * words)[0])
        return [content[at::words] for at in range(words)]

    def _channels(self) -> Iterator[tuple[int, int]]:
        structure = self._types.find("runtime.hchan")
        one = self._types.at(structure) if structure is not None else None
        offset = self._types.offset(one.address, "elemtype") if one is not None else None
        if one is None or offset is None or offset % 8 or not 32 <= offset < one.size:
            return
        awaited = array("Q", sorted({channel for _, channel in self.waits}))
        for places in (self._places(one.size), awaited):
            yield from self._check_channels(places, self._columns(places, offset // 8 + 1))

    def _check_channels(self, places: Sequence[int], columns: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Yield the address and the type value of each of these objects that is a channel.
        `columns`: their first words; the last one is the address of the type of the elements."""
        sections = self._types.sections
        low, high = min(one.start for one in sections), max(one.end for one in sections)
        possible = (word for word in set(columns[-1]) if low <= word < high)
        kinds = {word: elem.size for word in possible if (elem := self._types.at(word)) is not None}
        values = self._channel_values() if kinds else {}
        for place, used, room, buffer, size, elem in zip(places, *columns[:4], columns[-1]):
            # The upper half of the size's word says whether the channel is closed.
            if elem not in values or size >> 32 > 1 or size & 0xFFFF != kinds[elem]:
                continue
            if used <= room < _MAX_BUFFER and (buffer if room else buffer == place + 16):
                yield place, values[elem]

    @cached_property
    def waits(self) -> list[tuple[int, int]]:
        """The addresses of the record (sudog) and of the channel, for each channel for which a
        goroutine waits."""
        return list(self._list_waits())

    def _list_waits(self) -> Iterator[tuple[int, int]]:
        g, record = self._types.find("runtime.g"), self._types.find("runtime.sudog")
        if g is None or record is None:
            return
        first, channel, following = (
            self._types.offset(g, "waiting"),
            self._types.offset(record, "c"),
            self._types.offset(record, "waitlink"),
        )
        if first is None or channel is None or following is None:
            return
        found = self._words_at([address + first for address in self._stacks.structures])
        for _ in range(_MOST_CHANNELS):
            records = [one for one in found if one]
            if not records:
                return
            pointers, others = (self._words_at([one + channel + at for one in records]) for at in (0, 8))
            indices = self._blocks.find_all(pointers)[0]
            channels = (other if index == NO_BLOCK else one for one, other, index in zip(pointers, others, indices))
            yield from zip(records, channels)
            found = self._words_at([one + following for one in records])

    def _words_at(self, addresses: Sequence[int]) -> Sequence[int]:
        """Return the words at these addresses; 0 for those that are unreadable."""
        return read_words(self._memory.target, self._engine, addresses)

    def _channel_values(self) -> dict[int, int]:
        """Return the type values of channels, by the address of the type of their elements."""
        found: dict[int, int] = {}
        for one in list_types(self._memory, self._program, CHAN):
            if one.name.startswith("chan ") or one.elem not in found:
                found[one.elem] = self._names.channel_value(one)
        return found

    def _pools(self) -> Iterator[tuple[int, int]]:
        """Yield the objects of each sync.Pool for the processors. All pools are in two slices to
        which the code of sync.poolCleanup refers."""
        structure = self._types.find("sync.poolLocal")
        if structure is None:
            return
        value = self._names.value(structure, is_array=True)
        variables = (one for table in self._stacks.tables for one in variables_of_function(self._memory.target, table, "sync.poolCleanup"))
        for variable in dict.fromkeys(variables):
            place, count, room = self._memory.words(variable, 3) or (0, 0, 0)
            pools = self._memory.words(place, count) if place and 0 < count <= room <= _MOST_POOLS else None
            for pool in interruptible(self._memory.target, pools or (), _LOOK):
                local, length, victim, victims = self._memory.words(pool, 4) or (0, 0, 0, 0)
                yield from ((array, value) for array, used in ((local, length), (victim, victims)) if array and used)

    def _roots(self) -> Iterator[tuple[int, int]]:
        structure, entry = self._types.find(_ROOT), self._types.find(_ENTRY)
        parent, children = (self._types.offset(structure, name) if structure is not None else None for name in ("parent", "children"))
        whole, leaf = (self._types.at(one) if one is not None else None for one in (structure, entry))
        if whole is None or leaf is None or parent is None or children is None or parent % 8:
            return
        value = self._names.value(whole.address)
        places = self._places(whole.size)
        columns = self._columns(places, parent // 8 + 1)
        possible = (place for place, first, above in zip(places, columns[0], columns[-1]) if not above and not first & 0xFF)
        for place in interruptible(self._memory.target, islice(possible, _MOST_ROOTS), _LOOK):
            words = self._memory.words(place + children, (whole.size - children) // 8)
            below = [word for word in words or () if word]
            if value != NONE and below and all(self._is_child(word, place, parent, leaf.size) for word in below):
                yield place, value

    def _is_child(self, address: int, above: int, parent: int, least: int) -> bool:
        """Whether the block at `address` is an entry, or a child of the node at `above`. `parent`:
        the offset of the word that refers to the parent. `least`: bytes of an entry."""
        tag, size = self._tag(address), size_at(self._blocks, address)
        return size >= least and (tag == 1 or (tag == 0 and self._memory.word(address + parent) == above))

    def _tag(self, address: int) -> Optional[int]:
        return next(iter(self._memory.read(address, 1)), None)
