"""Find leaked mappings: private anonymous memory from mmap to which no live word refers.

A candidate (block_directory.py) is live if root memory or a register refers to it. It is also live
if a reachable block or a live candidate refers to it. The words of a live candidate are roots.
Which blocks are reachable depends on these roots, so candidates are first left out of the roots.
While blocks are marked, a candidate is added to the roots as soon as a marked block refers to it. A
block that only a leaked mapping refers to is therefore leaked, too, even if it refers to that
mapping.

The kernel merges neighbouring mappings, so one candidate may come from several calls of mmap.
merged_mappings.py divides it where the program's data shows how. Otherwise a reference to any part
of a candidate makes all of it live."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.mapped import LEAST, MANY, MUCH
from findleaks.allocators.memory import Memory
from findleaks.engine.terms import Kind, State
from findleaks.session.block_directory import Mapping
from findleaks.session.merged_mappings import divide_regions
from findleaks.session.reservations import find_parts
from findleaks.target.base import Module, Piece, Range, Region, is_shared_memory
from findleaks.target.ranges import cut_out, intersection, merge_ranges, merge_to_most, range_at, subtract
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.session import Session

SIGNAL_STACK = 256 << 10  # bytes; a larger mapping is not an alternate signal stack
DIVIDED = 16  # maximum number of candidates that are divided
CLUSTERS = 8  # ranges of addresses that are searched for references to candidates
# Words that are examined at most; if there are more, all candidates count as live
MOST_WORDS = 1 << 17
SHIFTS = (12, 14, 16, 20, 21, 22)  # log2 of the sizes of pages and chunks that allocators number
SAMPLE = 8  # mappings whose numbers are searched for
SEARCHED = 16 << 20  # bytes that are searched for these numbers
ROUNDS = 32  # how often marking continues with further mappings; after that, all count as live
PHASE = "looking for references to mappings"

_DEVICES = ("/dev/", "anon_inode:", "socket:")
_MEMORY = ("/dev/zero", "/dev/hugepages")


class LeakedMappings(NamedTuple):
    """The ranges of leaked mappings, ascending. `doubtful`: the leaked mappings that the kernel or
    a device may use although the process has no address of them. `has_own_graph`: whether the
    session's graph was computed for this search, so that it lacks these mappings as roots."""

    ranges: Sequence[Range] = ()
    doubtful: Sequence[Range] = ()
    has_own_graph: bool = False


class TooManyWords(Exception):
    """More than MOST_WORDS words may refer to candidates."""


def find_leaked_mappings(session: Session, found: Sequence[Mapping]) -> LeakedMappings:
    """Return the candidates that leaked. The session's directory must not contain mappings yet.

    The result is empty for a truncated core, and for a process with a managed heap that findleaks
    does not read object by object, because references in that heap may be compressed. The graph is
    computed if it is needed."""
    unknown = any(not one.lists_objects or one.maps_unreferenced_memory for one in session.runtimes)
    if session.target.truncated or unknown:
        return LeakedMappings()
    found, unsure, started = _divide(session, found)
    try:
        search = MappingSearch(session, found)
    except TooManyWords:
        return LeakedMappings()
    if not search.left:
        return LeakedMappings()
    session.graphs.mappings = search
    try:
        kinds = session.graphs.graph().kinds()

        def is_live(index: int) -> bool:
            return kinds[index] in (Kind.REACHABLE, Kind.POSSIBLE)

        search.admit(is_live)
    except TooManyWords:  # raised while blocks were marked
        return LeakedMappings(has_own_graph=True)
    leaked = [search.found[number] for number in sorted(search.left)]
    ranges = [Range(one.start, one.end) for one in leaked]
    if sum(end - start for start, end in ranges) < (LEAST if len(ranges) >= MANY else MUCH):
        return LeakedMappings(has_own_graph=True)
    parts = find_parts(session, search, is_live)
    doubtful = {*_select_doubtful(session, leaked, search, started), *parts, *(one for one in ranges if one in unsure)}
    return LeakedMappings(ranges, sorted(doubtful), has_own_graph=True)


def _divide(session: Session, found: Sequence[Mapping]) -> tuple[Sequence[Mapping], frozenset[Range], frozenset[Range]]:
    """Divide the largest candidates into the mappings that the program created. Return all
    candidates; the ranges whose limits are not certain; and the ranges to whose starts, not ends,
    words refer."""
    whole = {Range(one.start, one.end): one for one in found if one.end - one.start >= LEAST and not one.is_owned}
    regions = sorted(sorted(whole, key=lambda one: one.start - one.end)[:DIVIDED])
    divided = divide_regions(session, regions) if regions else {}
    unsure = frozenset(part for parts in divided.values() for part in parts.doubtful)
    started = frozenset(part for parts in divided.values() if parts.has_starts for part in parts.ranges)
    parted = [(whole[region], parts) for region, parts in divided.items()]
    parts = [Mapping(part.start if at else one.low, *part, one.is_part) for one, parts in parted for at, part in enumerate(parts.ranges)]
    rest = [one for one in found if Range(one.start, one.end) not in divided]
    return sorted([*rest, *parts]), unsure, started


class MappingSearch:
    """Finds references to candidates. `found`: all candidates. `left`: the numbers of the
    candidates that are not known to be live. `lowest`, `started` and `inside`: the numbers of the
    candidates to whose lowest address, to whose start, and to whose other addresses a word
    refers."""

    def __init__(self, session: Session, found: Sequence[Mapping]) -> None:
        """Search root memory, registers, and then blocks in use. Raises TooManyWords."""
        self._session, self.found = session, found
        self._lows = [one.low for one in found]
        self._clusters = merge_to_most([Range(one.low, one.end) for one in found], CLUSTERS)
        self._words, self._rounds = 0, 0
        self.lowest, self.started, self.inside = set[int](), set[int](), set[int]()
        self._kept: set[int] = set()  # See list_kept.
        self.left = {number for number, one in enumerate(found) if not one.is_owned}
        self._blocks: dict[int, set[int]] = {}
        self._memory = Memory(session.target)
        ends = {one.end for one in found}
        # Modules that begin at the end of a candidate, by this address
        self._bases = {module.start: module for module in session.target.modules() if module.start in ends}
        self._search_roots()
        if self.left:
            self._search_blocks()

    def held_back(self) -> list[Range]:
        """Return the memory of the candidates that are not known to be live, ascending."""
        return [Range(self.found[number].start, self.found[number].end) for number in sorted(self.left)]

    def admit(self, is_live: Callable[[int], bool]) -> list[Range]:
        """Return the memory of further live candidates, ascending: those that a live block or
        another live candidate refers to. `is_live`: whether the block with this index is live."""
        self._rounds += 1
        every = self._rounds > ROUNDS
        return self._make_live({number for number in self.left if every or self._has_live_block(number, is_live)})

    def list_kept(self, is_live: Callable[[int], bool]) -> set[int]:
        """Return the numbers of the candidates to which a variable, a live block or a live
        candidate refers. Words on stacks and in registers do not count: the code does not always
        show that such a word is stale."""
        return self._kept | {number for number in self._blocks if self._has_live_block(number, is_live)}

    def _has_live_block(self, number: int, is_live: Callable[[int], bool]) -> bool:
        return any(is_live(index) for index in self._blocks.get(number, ()))

    def is_at_end_of_next(self, number: int) -> bool:
        """Whether some words contain the end of a candidate that is also the start of the next one,
        and no other word refers to the next one. These words may refer to either candidate."""
        after = number + 1
        is_next = after < len(self.found) and self.found[after].low == self.found[number].end
        return is_next and after in self.lowest and after not in self.inside

    def _make_live(self, numbers: set[int]) -> list[Range]:
        """Remove these candidates from `left`, and also the candidates that they refer to. Returns
        their memory."""
        ranges: list[Range] = []
        while numbers := numbers & self.left:
            self.left -= numbers
            own = [Range(self.found[number].start, self.found[number].end) for number in sorted(numbers)]
            ranges += own
            numbers = {number for _, number in self._words_in(own)} if self.left else set()
            self._kept |= numbers
        return merge_ranges(ranges)

    def _search_roots(self) -> None:
        session = self._session
        unread = session.doubtful.all_dead or session.unread
        own = self.held_back()
        memory = subtract(session.root_memory, [*unread.ranges(), *own])
        threads = [word for thread in session.target.threads() for word in (thread.sp, thread.thread_pointer)]
        first = {number for number in map(self._find, threads) if number is not None}
        stacks = [session.stack_at(thread.sp) for thread in session.target.threads()]
        stack_memory = merge_ranges(stack for stack in stacks if stack is not None)
        for address, number in self._words_in(memory):
            first.add(number)
            if range_at(stack_memory, address) is None:
                self._kept.add(number)
        self._make_live(first)
        # Registers and words of frames are searched last, because it takes longer to find out which
        # are dead.
        if self.left:
            rest = intersection(session.roots, session.doubtful.all_dead.ranges()) if session.doubtful.all_dead is not None else []
            first = {number for number in map(self._find, session.register_words()) if number is not None}
            self._make_live(first | {number for _, number in self._words_in(rest)})

    def _search_blocks(self) -> None:
        session = self._session
        blocks = session.directory.blocks
        for address, number in self._words_in(session.heap_ranges()):
            index = blocks.find(address)
            if index >= 0 and blocks.state(index) == State.IN_USE:
                self._blocks.setdefault(number, set()).add(index)

    def _words_in(self, ranges: Sequence[Range]) -> Iterator[tuple[int, int]]:
        """Yield the address of each word that refers to a candidate, and the number of the
        candidate."""
        session = self._session
        for piece in session.pieces(ranges, PHASE):
            for part in cut_out(piece, session.stale_slots):
                for low, high in self._outside(part):
                    addresses, values = find_pointers(session.engine, part, low, high + 1)
                    self._words += len(addresses)
                    if self._words > MOST_WORDS:
                        raise TooManyWords
                    for address, value in zip(addresses, values):
                        if value in self._bases and self._is_in_link_map(address, self._bases[value]):
                            continue
                        number = self._find(value)
                        if number is not None:
                            yield address, number

    def _is_in_link_map(self, address: int, module: Module) -> bool:
        """Whether a word is the base of a module in a table of the dynamic linker, and therefore
        not the end of the candidate below the module. A word beside it is an address inside the
        module, such as l_ld, l_phdr or l_map_end (struct link_map in glibc's include/link.h)."""
        memory, size = self._memory, self._memory.size
        words = (memory.word(address + place * size) or 0 for place in (-1, 1, 2))
        return any(module.start < word <= module.end for word in words)

    def _outside(self, piece: Piece) -> Sequence[Range]:
        """Return the addresses of all candidates except the one that the piece is part of. A
        candidate may contain many pointers to itself."""
        at = bisect_right(self._lows, piece.address) - 1
        own = self.found[at] if at >= 0 else None
        if own is None or piece.address < own.start or piece.address + len(piece.data) > own.end:
            return self._clusters
        return subtract(self._clusters, [Range(own.start, own.end)])

    def _find(self, value: int) -> Optional[int]:
        """Return the number of the candidate that contains an address or ends at it."""
        number = bisect_right(self._lows, value) - 1
        if number < 0 or value > self.found[number].end:
            return None
        if value == self.found[number].start:
            self.started.add(number)
        (self.lowest if value == self._lows[number] else self.inside).add(number)
        return number


def _select_doubtful(session: Session, leaked: Sequence[Mapping], search: MappingSearch, started: Collection[Range]) -> list[Range]:
    """Return the ranges that may be in use without a reference in memory. Only the kernel or a
    device may have their addresses, or they may be alternate signal stacks: each thread can have
    one. `started`: ranges to whose starts the program refers."""
    if any(map(_is_device, session.target.regions())) or _are_numbered(session, leaked):
        return [Range(one.start, one.end) for one in leaked]
    sizes: dict[int, int] = {}
    for one in leaked:
        sizes[one.end - one.start] = sizes.get(one.end - one.start, 0) + 1
    threads = len(session.target.threads())
    numbers = {one: number for number, one in enumerate(search.found)}

    def may_be_in_use(one: Mapping, own: Range) -> bool:
        if one.end - one.start <= SIGNAL_STACK and sizes[one.end - one.start] <= threads:
            return True
        return own not in started and search.is_at_end_of_next(numbers[one])

    # A core does not show whether another process shares huge pages.
    regions = () if session.target.live else session.target.regions()
    huge = merge_ranges(Range(one.start, one.end) for one in regions if one.has_huge_pages)
    # The program may refer to parts of a reservation by numbers, and compute its address.
    return [
        own for one in leaked for own in (Range(one.start, one.end),) if one.is_part or range_at(huge, one.start) or may_be_in_use(one, own)
    ]


def _are_numbered(session: Session, leaked: Sequence[Mapping]) -> bool:
    """Whether the program may refer to its mappings by numbers, as allocators do: by an address
    that is shifted right, in a word of 32 or 64 bits.

    The lower 32 bits of such words are searched for. With large shifts, there are few different
    numbers, and a small number may occur by chance."""
    order, left = session.target.arch.byteorder, SEARCHED
    sample = leaked[:: max(len(leaked) // SAMPLE, 1)][:SAMPLE]
    wanted = {shift: {_low_half(one.start >> shift, order) for one in sample} for shift in SHIFTS}
    own = [Range(one.start, one.end) for one in leaked]
    every, found = set[int]().union(*wanted.values()), set[int]()
    for piece in session.pieces([*subtract(session.root_memory, own), *session.heap_ranges()], PHASE):
        data = bytes(piece.data[: min(left, len(piece.data)) & -8])
        found |= every.intersection(memoryview(data).cast("I"))
        left -= len(data)
        if left <= 0:
            break
    return any(2 * len(of & found) >= max(len(of), least) for of, least in ((wanted[shift], 2 if shift < 20 else 4) for shift in SHIFTS))


def _low_half(number: int, order: Literal["little", "big"]) -> int:
    """Return the lower 32 bits of a number, with the value that this machine gets when it reads the
    target's bytes."""
    return int.from_bytes((number & 0xFFFFFFFF).to_bytes(4, order), sys.byteorder)


def _is_device(region: Region) -> bool:
    """Whether a device, or an interface of the kernel such as io_uring, shares this memory. The
    device may also use other memory that the program registered."""
    return region.name.startswith(_DEVICES) and not (region.name.startswith(_MEMORY) or is_shared_memory(region.name))
