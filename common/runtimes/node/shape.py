"""Derive the layout of V8's spaces from v8::Isolate::GetHeapSpaceStatistics.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/api/api.cc (Isolate::GetHeapSpaceStatistics),
src/heap/spaces.h, src/heap/heap-allocator.cc, src/heap/main-allocator.h. That function loads the
space's name from a table and the space from an array in the heap, both by number. It calls virtual
functions of the space for the bytes committed and used. A space's second word is the heap; its
number is in one of the next words.

Since V8 12 the function first frees the unused rest of the linear allocation areas, so the rest
does not count as used. HeapAllocator::FreeLinearAllocationAreas passes each MainAllocator in turn,
and each of these points to {start, top, limit}."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import NONE, Instruction, is_call_or_jump
from findleaks.disasm.registers import RAX, RDI, RIP
from findleaks.errors import UnreadableMemory
from findleaks.runtimes.node.symbols import SPACES
from findleaks.runtimes.v8.layout import code_of
from findleaks.target.base import Target

VALID = "_ZN2v88internal4Heap22IsValidAllocationSpaceENS0_15AllocationSpaceE"
NAMES = (
    "_ZN2v88internal9BaseSpace12GetSpaceNameENS0_15AllocationSpaceE",
    "_ZN2v88internal4Heap12GetSpaceNameENS0_15AllocationSpaceE",
)
SIZE = "_ZNK2v88internal5Space13SizeOfObjectsEv"
FREE = "_ZN2v88internal4Heap35FreeMainThreadLinearAllocationAreasEv"
FREE_ALL = "_ZN2v88internal13HeapAllocator25FreeLinearAllocationAreasEv"
FREE_ONE = "_ZN2v88internal13MainAllocator24FreeLinearAllocationAreaEv"

COMMITTED, USED = 8, 16  # offsets of these in the statistics
# Registers of a call's result: on x86-64; on AArch64 that of the first argument.
RESULTS = (RAX, RDI)
NEAR = 4096
MOST = 64  # maximum number of spaces; V8 13 has 13
LONGEST_NAME = 40
FEW_BYTES = 12  # of code that returns a constant
# Words of a space that may contain the heap's address, and its number.
HOLDER_WORDS, SPACE_WORDS = 12, 14


class Shape(NamedTuple):
    """Offsets of V8's spaces.

    `heap` and `array` are offsets in the isolate. A space has the heap's address at `holder` and
    its number (4 bytes) at `identity`. `committed`, `used`: offsets in a space's vtable of the
    functions that return the committed and the used bytes. `size`: the same for the bytes used of
    the read-only space (0: unknown). `names` are indexed by number.

    `areas` locates the linear allocation areas, whose unused rest does not count as used. It has
    the offsets of the HeapAllocator in the heap, of its MainAllocators, and, in each of these, of
    the pointer to {start, top, limit}. `areas` is None if V8
    counts the rests as used."""

    heap: int
    array: int
    holder: int
    identity: int
    committed: int
    used: int
    size: int
    names: Sequence[str]
    areas: Optional[tuple[int, Sequence[int], int]]

    @property
    def has_pairs(self) -> bool:
        """Whether the linear allocation area of a space is {top, limit}, as up to V8 8.4. In later
        versions, the heap's address follows the vtable's."""
        return self.holder > 8

    def name(self, number: int) -> str:
        """Return a space's name in V8, or its number."""
        return self.names[number] or f"space {number}"


def derive(target: Target, heap: int, isolates: Sequence[int]) -> Optional[Shape]:
    """Return the layout; None if V8's functions are not as expected, or no isolate has such an
    array. `heap` is its offset in an isolate."""
    code = code_of(target, (SPACES,))
    slots = _slots(code)
    limits = (one.immediate for one in code_of(target, (VALID,)) if one.name == "cmp" and one.displacement is None)
    count = next((limit + 1 for limit in limits if limit is not None), 0)
    if COMMITTED not in slots or USED not in slots or not 0 < count <= MOST:
        return None
    table, array = _tables([*code, *code_of(target, NAMES)])
    for offset in (array, heap + array) if array is not None else ():
        for isolate in isolates:
            identity = _identity(Memory(target), isolate + heap, isolate + offset, count)
            if identity is not None:
                names = [_name(target, table + 8 * number) if table else _returned_name(target, number) for number in range(count)]
                return Shape(heap, offset, *identity, slots[COMMITTED], slots[USED], _size(target), names, _areas(target, code))
    return None


def _slots(code: Sequence[Instruction]) -> dict[int, int]:
    """Return, for words of the statistics, the vtable offset of the virtual function that computes
    the word."""
    found: dict[int, int] = {}
    called: Optional[int] = None
    for one in code:
        if one.name == "call" and one.base not in (NONE, RIP):
            called = one.displacement
        elif one.stores and one.source in RESULTS and one.displacement is not None and called is not None:
            found.setdefault(one.displacement, called)
            called = None
    return found


def _tables(code: Sequence[Instruction]) -> tuple[int, Optional[int]]:
    """Return the address of the table of names (0: not found), and the offset of the array of
    spaces."""
    named: dict[int, int] = {}
    table, array = 0, None
    for one in code:
        if one.name == "lea" and one.base == RIP and one.displacement is not None:
            named[one.destination] = one.displacement
        elif one.loads and one.wide and one.scaled >= 0 and one.displacement is not None:
            if one.base == NONE or (one.base in named and one.displacement < NEAR):
                table = table or one.displacement + named.get(one.base, 0)
            elif one.displacement > 0 and array is None:
                array = one.displacement
    return table, array


def _identity(memory: Memory, heap: int, array: int, count: int) -> Optional[tuple[int, int]]:
    """Return the offsets of the heap and of a space's number; None if this is not an array of this
    heap's spaces."""
    votes: Counter[tuple[int, int]] = Counter()
    for number, entry in enumerate(memory.words(array, count) or ()):
        words = memory.words(entry, SPACE_WORDS) if entry % 8 == 0 else None
        at = words.index(heap) if words is not None and heap in words[:HOLDER_WORDS] else 0
        if words is not None and at:
            halves = range(2 * at + 2, 2 * SPACE_WORDS)
            votes.update((8 * at, 4 * half) for half in halves if words[half // 2] >> 32 * (half % 2) & 0xFFFFFFFF == number)
    found = votes.most_common(1)
    return found[0][0] if found and found[0][1] >= 3 else None


def _name(target: Target, place: int) -> str:
    try:
        text = target.read(target.word(place), LONGEST_NAME).split(b"\0")[0].decode("ascii")
    except (UnreadableMemory, UnicodeDecodeError):
        return ""
    return text if text.isprintable() and 0 < len(text) < LONGEST_NAME else ""


def _returned_name(target: Target, number: int) -> str:
    """Return the name that V8 7.8 returns for a space. Its function jumps through a table to code
    that returns a constant."""
    jump = next((one for one in code_of(target, NAMES) if one.name == "jmp" and one.displacement is not None and one.scaled >= 0), None)
    if jump is None or jump.displacement is None:
        return ""
    place = Memory(target).word(jump.displacement + 8 * number)
    moves = (one.immediate for one in instructions_at(target, place, FEW_BYTES) if one.name == "mov") if place else iter(())
    address = next((immediate for immediate in moves if immediate is not None), 0)
    text = Memory(target).c_string(address, LONGEST_NAME).decode("ascii", "replace")
    return text if text.isprintable() and len(text) < LONGEST_NAME else ""


def _size(target: Target) -> int:
    """Return the vtable offset of Size, which Space::SizeOfObjects calls."""
    return next((one.displacement or 0 for one in code_of(target, (SIZE,)) if one.name == "jmp" and one.target is None), 0)


def _areas(target: Target, code: Sequence[Instruction]) -> Optional[tuple[int, Sequence[int], int]]:
    freed = target.symbol(FREE)
    if freed is None or all(one.target != freed.address for one in code):
        return None
    one_of, made = target.symbol(FREE_ONE), []
    loaded = 0
    for one in code_of(target, (FREE_ALL,)):
        if one.name == "lea" and one.base not in (RIP, NONE):
            loaded = one.displacement or 0
        elif is_call_or_jump(one) and one_of is not None and one.target == one_of.address and loaded:
            made.append(loaded)
    holder = next((one.displacement for one in code_of(target, (FREE,)) if one.loads), None)
    pointer = next((one.displacement for one in code_of(target, (FREE_ONE,)) if one.loads), None)
    return (holder, made, pointer) if holder and pointer else (0, (), 0)
