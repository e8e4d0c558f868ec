"""Structures that programs refer to by interior pointers, in pure Python. Layouts and their sources
are in common/native/interior_{tables,chunks,stacks,counted,aligned,tagged,php}.c. Further
structures are in interior_nodes.py."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, permutations
from typing import TYPE_CHECKING, NamedTuple, Optional

from findleaks.engine.interior_structures import Structure
from findleaks.engine.reference import interior_nodes
from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.reference.interior_nodes import Candidate
from findleaks.engine.reference.pieces import Pieces
from findleaks.engine.terms import Kind
from findleaks.target.base import Range
from findleaks.target.ranges import range_at

if TYPE_CHECKING:
    from findleaks.engine.reference.interiors import Noted

GROUP_MOST, NEIGHBOURS, SLOT_ALIGN = 16, 3, 64
EMPTY, DELETED, SWISS_EMPTY, SWISS_DELETED, SENTINEL = 0xFF, 0x80, 0x80, 0xFE, 0xFF
LEAST_CHUNK, LOW_BITS = 64, 63
SHIFTS = range(3, 13)  # log2 of the alignments of chunks; 3 or 4 for max_align_t
MOST_COUNTED = 1 << 16
PAGE, HEADER_WORDS = 4096, 8
SEARCHED = 1024  # bytes of a block in which a link with a tag is looked for
LEAST_STACK, CONTROL_WORDS, AWAITER_WORDS = 1024, 64, 8
STEP = 4096  # control bytes read in one step
SLOT, UNUSED, PACKED_SLOTS, ELEMENT, PACKED_ELEMENT, SLOTS_AT_A_TIME = 4, 0xFFFFFFFF, 2, 32, 16, 256
ARGUMENT, MOST_ARGUMENTS, MOST_PADDING = 32, 1 << 12, 24
IS_OBJECT, TYPE_MASK, OBJECT_BYTES, HANDLERS, MOST_OFFSET = 8, 15, 40, 24, 4096

_BY_HEAD = (Structure.HASHBROWN, Structure.SWISS_TABLE, Structure.PHP_ARRAY, Structure.PHP_ARGUMENTS)
"""Structures that the memory around the pointer's target proves."""


class Recognised(NamedTuple):
    """The structure that a pointer refers to. For hash tables, also the number of entries and the
    capacity."""

    structure: Structure
    used: int = 0
    places: int = 0


class Recogniser:
    """Identifies the structure that a pointer refers to."""

    def __init__(self, memory: Pieces, blocks: PureBlocks, code: Sequence[Range], credit: int, php: bool, links: bool) -> None:
        self._memory, self._blocks, self._code, self._credit = memory, blocks, code, credit
        self._php, self._links = php, links
        self._word = memory.arch.word
        self._counted_bytes: dict[int, Optional[tuple[int, int]]] = {}  # by mask

    def recognise(self, c: Candidate) -> Optional[Recognised]:
        if self._links:
            return Recognised(Structure.LINK) if interior_nodes.is_link(self._memory, self._blocks, c) else None
        found = self._chunk(c) or self._stack(c) or self._recognise_counted(c) or self._recognise_aligned(c) or self._recognise_tagged(c)
        if found:
            return found
        for is_structure, structure in ((interior_nodes.is_exception, Structure.EXCEPTION), (interior_nodes.is_string, Structure.STRING)):
            if is_structure(self._memory, c):
                return Recognised(structure)
        if self._php and self._is_php_object(c):
            return Recognised(Structure.PHP_OBJECT)
        if self._php:
            found = (self._php_array(c) if self._may_be_php_array(c) else None) or self._php_arguments(c)
        return found or (self._table(c) if self._may_be_table(c) else None)

    # -- tables

    def _may_be_table(self, c: Candidate) -> bool:
        first = self._memory.bytes(c.pointer, 4) if c.pointer % 4 == 0 and c.end - c.pointer >= 4 else None
        return first is not None and all(byte <= 0x80 or byte >= SWISS_DELETED for byte in first)

    def _table(self, c: Candidate) -> Optional[Recognised]:
        if not c.word or self._memory.word(c.word) is None:
            return None
        self._counted_bytes = {}
        around = [self._memory.word(c.word + at * self._word) for at in range(-NEIGHBOURS, NEIGHBOURS + 1)]
        for first in range(NEIGHBOURS + 1):
            others = [around[at] for at in range(first, first + NEIGHBOURS + 1) if at != NEIGHBOURS]
            words = [word for word in others if word is not None]
            for mask, growth, items in permutations(words) if len(words) == NEIGHBOURS else ():
                if self._is_hashbrown(c, mask, growth, items):
                    return Recognised(Structure.HASHBROWN, items, mask + 1)
        after = around[NEIGHBOURS + 1]
        return self._swiss(c, after) if after is not None else None

    def _is_hashbrown(self, c: Candidate, mask: int, growth: int, items: int) -> bool:
        capacity = mask if mask < 8 else (mask + 1) // 8 * 7
        left, offset = c.end - c.pointer, c.pointer - c.start
        if not mask or mask & (mask + 1) or growth + items > capacity or mask >= left or mask + 1 > offset:
            return False
        for width in (16, 8, 4):
            length = mask + 1 + width
            if length > left or offset % width or left - length > (c.end - c.start) // 2 or not self._repeats(c.pointer, mask + 1, width):
                continue
            if mask not in self._counted_bytes:  # once for all `width`s
                self._counted_bytes = {mask: self._count(c.pointer, mask + 1, capacity, EMPTY, DELETED)}
            counted = self._counted_bytes[mask]
            return counted is not None and counted[0] == items and growth + items + counted[1] == capacity
        return False

    def _repeats(self, pointer: int, buckets: int, width: int) -> bool:
        """Return whether the group after the control bytes repeats the first group."""
        first, last = self._memory.bytes(pointer, width), self._memory.bytes(pointer + max(buckets, width), min(buckets, width))
        if first is None or last is None:
            return False
        return first[:buckets] == last and first[buckets:] == bytes([EMPTY]) * (width - min(buckets, width))

    def _count(self, address: int, count: int, most: int, empty: int, deleted: int) -> Optional[tuple[int, int]]:
        """Return the numbers of full and deleted control bytes.

        None if a byte is not full, deleted or empty, if more than `most` are full or deleted, if
        bytes are missing, or if too many bytes were read in total."""
        full = gone = 0
        while count:
            part = bytes(self._memory.part(address, min(count, STEP)))
            if not part or self._credit < len(part):
                return None
            self._credit -= len(part)
            occupied = sum(byte < 0x80 for byte in part)
            removed, none = part.count(deleted), part.count(empty)
            full, gone = full + occupied, gone + removed
            if occupied + removed + none < len(part) or full + gone > most:
                return None
            address, count = address + len(part), count - len(part)
        return full, gone

    def _sentinel(self, c: Candidate, entries: int) -> int:
        capacity = 1
        while capacity < entries - c.pointer:
            behind = entries - c.pointer - capacity
            if behind <= GROUP_MOST + SLOT_ALIGN and self._memory.bytes(c.pointer + capacity, 1) == bytes([SENTINEL]):
                return capacity
            capacity = capacity * 2 + 1
        return 0

    def _swiss(self, c: Candidate, entries: int) -> Optional[Recognised]:
        if not self._word <= c.pointer - c.start <= 4 * self._word or not c.pointer < entries <= c.end:
            return None
        capacity, growth = self._sentinel(c, entries), self._memory.word(c.pointer - self._word)
        if not capacity or growth is None:
            return None
        growth &= self._memory.arch.mask >> 1
        most = 7 if capacity == 7 else capacity - capacity // 8
        for width in (16, 8):
            clones, end = min(width - 1, capacity), c.pointer + capacity + width
            if not 0 <= entries - end < SLOT_ALIGN:
                continue
            first = self._memory.bytes(c.pointer, clones)
            if first is None or first != self._memory.bytes(c.pointer + capacity + 1, clones):
                continue
            counted = self._count(c.pointer, capacity, most, SWISS_EMPTY, SWISS_DELETED) if growth <= most else None
            if counted is None:
                return None
            taken = sum(counted) + growth
            sound = taken == most or (capacity == 7 and taken == 6)
            return Recognised(Structure.SWISS_TABLE, counted[0], capacity) if sound else None
        return None

    # -- chunks

    def _chunk(self, c: Candidate) -> Optional[Recognised]:
        word, pointer = self._word, c.pointer
        if pointer % word or pointer - c.start < LEAST_CHUNK // 2:
            return None
        words: list[int] = []
        while len(words) < 4 and pointer + (len(words) + 1) * word <= c.end:
            value = self._memory.word(pointer + len(words) * word)
            if value is None:
                break
            words.append(value)
        if len(words) == 4 and interior_nodes.is_bump_chunk(self._memory, c):
            return Recognised(Structure.BUMP_CHUNK)
        words += [-1] * (4 - len(words))  # a value that no word has

        def ends(end: int) -> bool:
            return end <= c.end and end - c.start >= LEAST_CHUNK and (c.end - end) * 2 <= c.end - c.start

        def follows(value: int) -> bool:
            return value == 0 or (value % word == 0 and value != pointer and value > LEAST_CHUNK)

        first, second = pointer + 2 * word, pointer + 3 * word
        newer = (
            words[1] >= 0
            and ends(first)
            and words[0] & ~LOW_BITS == first - c.start
            and words[0] & LOW_BITS in SHIFTS
            and follows(words[1])
        )
        older = words[2] >= 0 and ends(second) and words[1] == second - c.start and follows(words[2])
        libcxx = words[3] > 0 and ends(pointer + 4 * word) and words[1] == c.start and c.start <= words[2] <= pointer and follows(words[0])
        libcxx = libcxx and not words[3] & (words[3] - 1) and words[3] <= 4096
        return Recognised(Structure.CHUNK_AT_END) if newer or older or libcxx else None

    # -- stacks and frames

    def _stack(self, c: Candidate) -> Optional[Recognised]:
        if not self._code or c.pointer % self._word:
            return None
        if self._is_stack(c):
            return Recognised(Structure.SAVED_CONTEXT)
        return Recognised(Structure.COROUTINE_FRAME) if self._is_frame(c) else None

    def _is_code(self, address: Optional[int]) -> bool:
        return bool(address) and range_at(self._code, address or 0) is not None

    def _is_context(self, c: Candidate, address: int) -> bool:
        arch = self._memory.arch
        if (arch.word, arch.byteorder) != (8, "little") or address % 8 or not c.start <= address <= c.end - 72:
            return False
        control, low, high = (self._memory.word(address + at) for at in (0, 56, 64))
        if control is None or low is None or high is None:
            return False
        floating = control & 0xFFFF1F80 == 0x1F80 and control >> 32 & 0xE03F == 0x3F
        return floating and (self._is_code(low) or self._is_code(high))

    def _is_stack(self, c: Candidate) -> bool:
        size = c.end - c.start
        if size < LEAST_STACK:
            return False
        if self._is_context(c, c.pointer):
            return True
        if c.pointer - c.start < size // 2:
            return False
        for address in range(c.pointer, c.pointer + CONTROL_WORDS * self._word, self._word):
            value = self._memory.word(address) if address + self._word <= c.end else None
            if value is None:
                return False
            if c.start < value < c.pointer and self._is_context(c, value):
                return True
        return False

    def _is_frame(self, c: Candidate) -> bool:
        word = self._word
        resume, destroy = self._memory.word(c.start), self._memory.word(c.start + word)
        if c.end - c.start < 4 * word or resume == destroy or not self._is_code(resume) or not self._is_code(destroy):
            return False
        last = min(c.end - word, c.pointer + (AWAITER_WORDS - 1) * word)
        return any(self._memory.word(address) == c.start for address in range(c.pointer, last + 1, word))

    # -- arrays of PHP

    def _number(self, address: int) -> Optional[int]:
        """Return the number in four bytes."""
        data = self._memory.bytes(address, SLOT)
        return int.from_bytes(data, self._memory.arch.byteorder) if data is not None else None

    def _may_be_php_array(self, c: Candidate) -> bool:
        offset = c.pointer - c.start
        slots = offset // SLOT
        if self._word != 8 or offset % 8 or slots & (slots - 1) or slots >= UNUSED + 1:
            return False
        least = 0 if slots == PACKED_SLOTS else slots
        first = (self._number(c.start), self._number(c.start + SLOT))
        return all(slot is not None and (slot == UNUSED or slot < least) for slot in first)

    def _php_array(self, c: Candidate) -> Optional[Recognised]:
        mask, used, count, places = (self._number(c.word + at) if c.word else None for at in (-4, 8, 12, 16))
        slots, left = (c.pointer - c.start) // SLOT, c.end - c.pointer
        packed = slots == PACKED_SLOTS
        if mask is None or used is None or count is None or not places or mask != -slots & UNUSED:
            return None
        if places & (places - 1) or not count <= used <= places or not (packed or slots in (places, 2 * places)):
            return None
        # The elements of packed arrays may also have 32 bytes. The allocator may round the size up
        # to as much as one and a half times.
        least, most = places * (PACKED_ELEMENT if packed else ELEMENT), places * ELEMENT
        if least > left or left - most > (c.end - c.start) // 2:
            return None
        return Recognised(Structure.PHP_ARRAY, count, places) if self._are_slots(c.start, slots, 0 if packed else used) else None

    def _are_slots(self, address: int, slots: int, used: int) -> bool:
        while slots:
            some = min(slots, SLOTS_AT_A_TIME)
            data = self._memory.bytes(address, some * SLOT) if self._credit >= some * SLOT else None
            if data is None:
                return False
            self._credit -= some * SLOT
            for at in range(0, some * SLOT, SLOT):
                slot = int.from_bytes(data[at : at + SLOT], self._memory.arch.byteorder)
                if slot != UNUSED and slot >= used:
                    return False
            address, slots = address + some * SLOT, slots - some
        return True

    def _php_arguments(self, c: Candidate) -> Optional[Recognised]:
        if self._word != 8 or c.pointer - c.start != ARGUMENT or not c.word:
            return None
        count, required, first = self._number(c.word - 8), self._number(c.word - 4), self._memory.word(c.start)
        if count is None or required is None or not required <= count <= MOST_ARGUMENTS:
            return None
        if first not in (0, required, self._memory.arch.mask):
            return None
        least = (count + 1) * ARGUMENT
        most = least + ARGUMENT + max(MOST_PADDING, least // 4)
        return Recognised(Structure.PHP_ARGUMENTS) if least <= c.end - c.start <= most else None

    def _is_php_object(self, c: Candidate) -> bool:
        offset = c.pointer - c.start
        if self._word != 8 or offset % 8 or offset > MOST_OFFSET or c.end - c.pointer < OBJECT_BYTES:
            return False
        count, type_, handlers = self._number(c.pointer), self._number(c.pointer + 4), self._memory.word(c.pointer + HANDLERS)
        if not count or count >> 31 or type_ is None or type_ & TYPE_MASK != IS_OBJECT or handlers is None:
            return False
        return self._number(handlers) == offset

    # -- values of Arc and Rc

    def _recognise_counted(self, c: Candidate) -> Optional[Recognised]:
        strong, weak = self._memory.word(c.start), self._memory.word(c.start + self._word)
        if c.pointer - c.start != 2 * self._word or not strong or not weak or max(strong, weak) > MOST_COUNTED:
            return None
        return Recognised(Structure.COUNTED_VALUE)

    # -- memory that the program aligned

    def _recognise_aligned(self, c: Candidate) -> Optional[Recognised]:
        most = HEADER_WORDS if c.pointer % PAGE == 0 else int(c.pointer % (2 * self._word) == 0)
        places = range(c.pointer - self._word, max(c.start, c.pointer - most * self._word) - 1, -self._word)
        return Recognised(Structure.ALIGNED) if any(self._memory.word(at) == c.start for at in places) else None

    # -- pointers with tags in the lowest bits

    def _recognise_tagged(self, c: Candidate) -> Optional[Recognised]:
        tag, first = c.pointer - c.start, self._memory.word(c.start)
        if self._word != 8 or tag >= self._word or tag % 4 == 0 or first is None or first >> 48:
            return None
        return Recognised(Structure.TAGGED_START) if c.source == c.end - c.start or self._has_link(c, tag) else None

    def _has_link(self, c: Candidate, tag: int) -> bool:
        """Return whether a block has a link with this tag to a block of the same size."""
        for at in range(c.start, min(c.end, c.start + SEARCHED) - self._word + 1, self._word):
            value = self._memory.word(at) or 0
            target = self._blocks.find(value) if value % self._word == tag else -1
            if target >= 0 and self._blocks.starts[target] + tag == value and self._blocks.sizes[target] == c.end - c.start:
                return True
        return False


class PureExamination:
    """See interior_structures.Examination."""

    def __init__(
        self, blocks: PureBlocks, kinds: bytearray, noted: Iterator[Noted], accept: Callable[[Noted], None], recogniser: Recogniser
    ) -> None:
        self._blocks, self._kinds, self._noted, self._accept, self._recogniser = blocks, kinds, noted, accept, recogniser
        self._found = array("Q")

    def step(self, budget: int) -> bool:
        some = list(islice(self._noted, budget))
        for noted in some:
            start = self._blocks.starts[noted.target]
            source = self._blocks.sizes[noted.source] if noted.source >= 0 else 0
            is_possible = noted.source >= 0 and self._kinds[noted.source] == Kind.POSSIBLE
            source_start = self._blocks.starts[noted.source] if is_possible else 0
            end = start + self._blocks.sizes[noted.target]
            candidate = Candidate(start, end, start + noted.offset, noted.address, source, source_start)
            found = self._recogniser.recognise(candidate)
            if found is not None:
                where = noted.address if found.structure in _BY_HEAD else 0
                self._found.extend((found.structure, noted.target, noted.offset, where, found.used, found.places))
                self._accept(noted)
        return len(some) < budget

    def list_accepted(self) -> array[int]:
        return self._found
