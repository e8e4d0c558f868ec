"""Find the arenas of a Perl interpreter by their structure.

Sources: sv.h (struct sv, svtype), sv_inline.h, sv.c (sv_add_arena, Perl_more_bodies, struct
arena_set), intrpvar.h (struct interpreter), perl.h of Perl 5.36 to 5.40.

In a build with threads, such as Debian's, the variables of an interpreter are members of a struct
in a block of malloc, and PL_curinterp refers to the struct. In a build without threads, each of
them is a variable of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.thread_values import read_thread_values
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

HEAD = 24  # bytes of a value: address of its body, reference count, flags, and a union
FREE = 0xFF  # SVTYPEMASK, the type of a free value
LAST_TYPE = 16  # SVt_PVOBJ of 5.38; SVt_PVIO in 5.36 is 15
INTEGER, NUMBER, STRING, INVERSION_LIST, STRING_INTEGER, STRING_NUMBER, MAGIC = range(1, 8)
REGEXP, GLOB, LVALUE, ARRAY, HASH, CODE, FORMAT, IO, OBJECT = range(8, 17)
"""Values of svtype."""
ENTRIES, NAMED_HASHES = 0, 1
"""HE_ARENA_ROOT_IX and HVAUX_ARENA_ROOT_IX: arenas of these types have entries of hashes, and the
bodies of hashes that have a name or an iterator."""
PLAIN = {STRING: 16, INVERSION_LIST: 40, STRING_INTEGER: 24, STRING_NUMBER: 32}
"""Types whose bodies have no pointers, with the size of a body. A value of such a type refers to
the address 16 bytes before the body."""

SIZES = {
    **{ENTRIES: 24, NAMED_HASHES: 88, MAGIC: 48, REGEXP: 192, GLOB: 48, LVALUE: 80},
    **{ARRAY: 40, HASH: 32, CODE: 104, FORMAT: 104, IO: 136, OBJECT: 40},
}
"""Bytes of a body in 64-bit programs, by type of the arena."""

STRUCT_WORDS = 512  # words of struct interpreter that are read; it has 471 in 5.36
_ROOT = range(8, 96)  # words of struct interpreter where sv_arenaroot may be
_SLOTS = range(16, 1 << 16)  # values in an arena, with its header; Perl uses 170
_SET = range(8, 1 << 12)  # entries of an arena_set; Perl uses 169
_FAKE = 0x01000000  # SVf_FAKE: Perl does not free the arena
MOST_ARENAS = 1 << 24
MOST_SETS = 1 << 18
LARGEST = 1 << 20  # bytes of an arena of bodies; Perl uses 4,080
MOST_REFERENCES = 1 << 31


class ValueArena(NamedTuple):
    """An arena of values. The first of its `slots` is the arena's header."""

    start: int
    slots: int


class BodyArena(NamedTuple):
    """An arena of bodies of one type."""

    start: int
    size: int
    type: int


class Interpreter(NamedTuple):
    """The arenas of an interpreter, ascending.

    `address` is the address of sv_arenaroot. `struct` is the address of the struct interpreter, 0
    in a build without threads. `sets` are the blocks that list the arenas of bodies. `roots` is the
    address of body_roots, the array of lists of free bodies, 0 if it was not found. `problems` are
    addresses where lists are damaged, with a description."""

    address: int
    struct: int
    values: Sequence[ValueArena]
    bodies: Sequence[BodyArena]
    sets: Sequence[int]
    roots: int
    problems: Sequence[tuple[int, str]]


def find_interpreter(target: Target, image: Image) -> Optional[Interpreter]:
    """Return the interpreter whose variables are in a file, or in a struct that the file's
    variables refer to. None if there is none."""
    search = _Search(Memory(target))
    symbol = target.symbol("PL_curinterp", image.name)
    place = search.in_struct(search.memory.word(symbol.address) or 0) if symbol is not None else None
    place = place or next(search.places(file_variables(target, image)), None)
    if place is None:
        return None
    address, struct = place
    members = [(struct, search.memory.words(struct, STRUCT_WORDS) or ())]
    return search.interpreter(address, struct, members if struct else list(file_variables(target, image)))


def find_interpreters_of_threads(target: Target, known: Interpreter) -> list[Interpreter]:
    """Return the interpreters of other threads (ithreads). `known`: the main interpreter, which has
    a struct. Each thread has the address of its struct in a thread-specific value."""
    search, found = _Search(Memory(target)), dict[int, Interpreter]()
    for value in sorted(read_thread_values(target) - {known.struct}) if len(target.threads()) > 1 else ():
        place = search.in_struct(value) if value % 16 == 0 else None
        if place is not None and place[0] != known.address:
            found[value] = search.interpreter(*place, [(value, search.memory.words(value, STRUCT_WORDS) or ())])
    return list(found.values())


def file_variables(target: Target, image: Image) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield (address, words) for the parts of a file's variables."""
    return ((piece.address, target.arch.words(piece.data)) for piece in image.pieces(target))


class _Search:
    """Tests of structures in one target."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def places(self, variables: Iterable[tuple[int, Sequence[int]]]) -> Iterator[tuple[int, int]]:
        """Yield (address of sv_arenaroot, address of the struct interpreter) for each variable that
        refers to a struct interpreter or to an arena. The second address is 0 if there is no
        struct."""
        for base, values in variables:
            for number, value in enumerate(values):
                place = self.in_struct(value) if value and value % 8 == 0 else None
                if place is not None:
                    yield place
                elif value and self.is_arena(value):
                    yield base + 8 * number, 0

    def is_arena(self, start: int) -> bool:
        """Whether an arena of values is at an address: a header, and then values that are free or
        have a type and a reference count."""
        slots = self._slots(start)
        data = self.memory.read(start, slots * HEAD) if slots else b""
        if not data:
            return False
        halves = self.memory.arch.structure("II" * (slots * 3)).unpack(data)
        heads = list(zip(halves[8::6], halves[9::6]))
        return all(flags & FREE == FREE or (flags & FREE <= LAST_TYPE and 0 < count < MOST_REFERENCES) for count, flags in heads)

    def _slots(self, start: int) -> int:
        """Return the number of slots in the header of an arena of values; 0 if it is not a
        header."""
        header = self.memory.members(start, "PII") if start % 8 == 0 else None
        sound = header is not None and header[0] % 8 == 0 and header[1] in _SLOTS and header[2] in (0, _FAKE)
        return header[1] if header is not None and sound else 0

    def in_struct(self, address: int) -> Optional[tuple[int, int]]:
        """Return (address of sv_arenaroot, address of the struct) if a struct interpreter is at an
        address; otherwise None. sv_arenaroot follows sv_count and sv_root in it."""
        words = self.memory.words(address, _ROOT.stop) or ()
        for number in _ROOT if words else ():
            count, free, root = words[number - 2 : number + 1]
            if 0 < count < HEAD * MOST_ARENAS and free % 8 == 0 and root and root != free and self.is_arena(root):
                return address + 8 * number, address
        return None

    def interpreter(self, address: int, struct: int, words: Sequence[tuple[int, Sequence[int]]]) -> Interpreter:
        """Read the lists of arenas. `words` are the variables of the interpreter, as (address,
        words) for each part."""
        problems: list[tuple[int, str]] = []
        values = self._value_arenas(self.memory.word(address) or 0, problems)
        head = next((value for _, some in words for value in some if value and value % 8 == 0 and self._set_at(value)), 0)
        sets, bodies = self._body_arenas(head, problems)
        roots = next(iter(_find_roots(words, bodies)), 0)
        return Interpreter(address, struct, values, bodies, sets, roots, problems)

    def _value_arenas(self, start: int, problems: list[tuple[int, str]]) -> list[ValueArena]:
        found: dict[int, int] = {}
        while start and start not in found and len(found) < MOST_ARENAS:
            slots = self._slots(start)
            if not slots:
                problems.append((start, f"Perl's list of arenas is damaged at {start:#x}: values in further arenas are unknown"))
                break
            found[start] = slots
            start = self.memory.word(start) or 0
        return [ValueArena(start, found[start]) for start in sorted(found)]

    def _set_at(self, address: int) -> Optional[tuple[int, Sequence[BodyArena]]]:
        """Return the address of the next arena_set, and the arenas in the arena_set at an address.
        None if there is no arena_set."""
        header = self.memory.members(address, "PII")
        if header is None or header[0] % 8 or header[1] not in _SET or not 0 < header[2] <= header[1]:
            return None
        words = self.memory.words(address + 16, 3 * header[2])
        if words is None:
            return None
        kinds = [self.memory.halves(word)[0] for word in words[2::3]]
        arenas = [BodyArena(*one) for one in zip(words[::3], words[1::3], kinds)]
        sound = all(one.start and one.start % 8 == 0 and 16 <= one.size <= LARGEST and one.type <= LAST_TYPE for one in arenas)
        return (header[0], arenas) if sound else None

    def _body_arenas(self, address: int, problems: list[tuple[int, str]]) -> tuple[list[int], list[BodyArena]]:
        sets: dict[int, None] = {}
        found: dict[int, BodyArena] = {}
        while address and address not in sets and len(sets) < MOST_SETS:
            read = self._set_at(address)
            if read is None:
                problems.append((address, f"Perl's list of arenas of bodies is damaged at {address:#x}: further ones are unknown"))
                break
            sets[address] = None
            address = read[0]
            found.update((one.start, one) for one in read[1])
        return list(sets), [found[start] for start in sorted(found)]


def _find_roots(words: Sequence[tuple[int, Sequence[int]]], bodies: Sequence[BodyArena]) -> Iterator[int]:
    """Yield the addresses at which body_roots may be. Element n of body_roots is 0, or an address
    in an arena of type n."""
    pages: dict[int, list[BodyArena]] = {}
    for one in bodies:
        for page in range(one.start >> 12, (one.start + one.size >> 12) + 1):
            pages.setdefault(page, []).append(one)

    def type_of(value: int) -> int:
        return next((one.type for one in pages.get(value >> 12, ()) if one.start <= value < one.start + one.size), -1)

    for base, values in words:
        types = [type_of(value) if value else -2 for value in values]
        for number in range(len(values) - IO):
            some = types[number : number + IO + 1]
            if all(kind == -2 or kind == wanted for wanted, kind in enumerate(some)) and sum(kind >= 0 for kind in some) > 2:
                yield base + 8 * number
