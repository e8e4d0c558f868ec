"""Find memory that is missing from the target, and decide whether it makes leaks doubtful.

For some ranges, a core does not show whether they contained data (`Target.uncertain`). Memory that
the process never wrote to looks like memory that was excluded from the dump. Healthy processes have
such unwritten memory, and stale pointers to memory that was unmapped. Therefore a range counts as
missing only if a block is leaked, and if live words show that the range was in use:

- For a range that was mapped, any word that refers to it.
- For a range that may be unmapped, a word that is a multiple of the page size, like a result of
  mmap; or words that refer to MANY places in it, all multiples of a word's size. Fewer words are
  probably stale: a Python process has six such words that refer to one gap.

A runtime with a heap of its own (JVM, Go, Node) reserves, maps and unmaps memory all the time. In
such a process, only words that other code wrote count (foreign_words.py). In a process with any
runtime, this also applies to memory that the process cannot write to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from findleaks.engine.shared import LARGEST_GRANULE
from findleaks.engine.terms import Kind, State
from findleaks.formatting import number, size
from findleaks.graph.roots import register_words
from findleaks.libc.random_states import random_states
from findleaks.libc.stacks import thread_stacks
from findleaks.target.base import Range
from findleaks.target.layout import STACK
from findleaks.target.missing import PROTECTED, READ_ONLY, UNDUMPED, UNNAMED, UNWRITTEN, Uncertain, format_ranges
from findleaks.target.ranges import intersection, merge_ranges, range_at, region_at, subtract
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.audit.foreign_words import ForeignWords
    from findleaks.session import Session

MANY = 16  # unmapped memory counts as missing if words refer to this many places in it
SMALL = 1 << 24  # if the lower half of a word is below this number, the word is not an address
_MOST_WORDS = 1 << 14  # words that are examined for one range at most
_MOST_RANGES = 16  # ranges of a kind whose words are examined; the smallest come first
# Words in blocks are examined for UNNAMED ranges only if the heaps have at most this many bytes
_MOST_HEAP = 256 << 20
_LARGEST_GUARD = 32 << 10  # bytes of the largest guard; a page if pages are larger
_TEXT = re.compile(rb"\0[ -~]{7}")  # a word of 4 bytes in which a text begins, and the next word
_ROUND = 1 << 20  # if a 32-bit word is a multiple of this number, it is probably not an address


class MissingRange(NamedTuple):
    """An uncertain range that live words refer to."""

    start: int
    end: int
    what: str
    words: int  # number of words that refer to the range, at most _MOST_WORDS

    def sentence(self) -> str:
        """Return the warning, with its consequence."""
        amount = f"{size(self.end - self.start)} of memory" if self.what != UNNAMED else "memory"
        words = "1 word refers" if self.words == 1 else f"{number(self.words)} words refer"
        file = "minidump" if self.what in (UNDUMPED, READ_ONLY) else "core"
        return f"{amount} is not in the {file} ({format_ranges([self[:2]])}: {self.what}), but {words} to it: pointers in it are not seen"


def find_missing_memory(session: Session) -> Sequence[MissingRange]:
    """Return the uncertain ranges that count as missing, ascending.
    The result is empty if no block is leaked. It is also empty if the command has not marked blocks
    yet, because marking takes time."""
    if not session.target.uncertain or "graph" not in session.uses.names or not session.graph().totals(Kind.DEFINITE).blocks:
        return ()
    return session.once("missing memory", lambda: sorted(_find_missing(session)))


def _find_missing(session: Session) -> Iterator[MissingRange]:
    left = sorted(_plausible(session))
    for unnamed in (False, True):
        asked = [one for one in left if (one.what == UNNAMED) == unnamed]
        heaps = session.heap_ranges()
        if unnamed and sum(end - start for start, end in heaps) > _MOST_HEAP:
            heaps = []
        parts = [heaps, subtract(session.root_memory, heaps)]
        if _has_own_heap(session):
            parts = [intersection(part, _foreign_words(session).memory) for part in parts]
        found = _select_referred(session, asked, parts)
        for one in sorted(found, key=lambda one: one.end - one.start)[:_MOST_RANGES]:
            values = _values(session, one, found[one])
            # An unmapped gap may be large. Only its pages from the first to the last that words
            # refer to count.
            if values and one.what == UNNAMED:
                page = session.target.arch.page
                one = Uncertain(min(values) // page * page, max(values) // page * page + page, UNNAMED)
            if values:
                yield MissingRange(*one, len(values))


def _plausible(session: Session) -> Iterator[Uncertain]:
    """Yield the uncertain ranges that may contain pointers.
    These are left out: reservations of allocators and runtimes, guards, other parts of modules, and
    states of random number generators."""
    target = session.target
    known = [part for one in session.reserved for part in one.ranges]
    known += [piece for runtime in session.runtimes for part in runtime.parts() for piece in part.ranges]
    known += [*session.directory.list_claimed(), *thread_stacks(target).values(), *(Range(m.start, m.end) for m in target.modules())]
    known += random_states(target)
    holes = merge_ranges(known)
    protected = [one for one in target.uncertain if one.what == PROTECTED]
    for what in dict.fromkeys(one.what for one in target.uncertain):
        asked = [one for one in target.uncertain if one.what == what]
        if what in (PROTECTED, UNDUMPED, READ_ONLY):
            asked = [one for one in asked if not _is_guard(session, one)]
        elif what == UNWRITTEN:
            asked = [one for one in asked if not _is_reserved(one, protected)]
        yield from (Uncertain(*part, what) for part in subtract([Range(one.start, one.end) for one in asked], holes))


def _is_guard(session: Session, protected: Uncertain) -> bool:
    """Whether the range is as small as a guard and lies directly below private memory with data,
    such as a stack."""
    if protected.end - protected.start > max(_LARGEST_GUARD, session.target.arch.page):
        return False
    region = region_at(session.target.regions(), protected.end)
    own = region is not None and region.writable and region.private and not region.is_shared_memory
    return own and any(True for _ in session.target.pieces(protected.end, protected.end + 1))


def _is_reserved(unwritten: Uncertain, protected: Sequence[Uncertain]) -> bool:
    """Whether the range is the accessible beginning of a larger reservation. The inaccessible rest
    of a reservation is too large to be a guard.
    `protected`: the inaccessible ranges, ascending."""
    above, below = region_at(protected, unwritten.end), region_at(protected, unwritten.start - 1)
    least = max(_LARGEST_GUARD, unwritten.end - unwritten.start)
    return above is not None and below is None and above.end - above.start > least


def _select_referred(session: Session, ranges: Sequence[Uncertain], parts: Sequence[Sequence[Range]]) -> dict[Uncertain, list[Range]]:
    """Return the ranges to which a register or a word in `parts` refers: a dict from each range to
    the parts that refer to it. `parts` is usually only root memory, because a search of the heaps
    takes more time.

    The ranges are passed to the engine as blocks, because the engine then needs only one pass over
    memory for any number of ranges."""
    if not ranges:
        return {}
    page = session.target.arch.page
    whole: list[Uncertain] = []
    for one in ranges:  # Ranges in a damaged file may overlap, or may not consist of whole pages.
        if not (one.start | one.end) % page and (not whole or one.start >= whole[-1].end):
            whole.append(one)
    blocks = session.engine.blocks(session.target.arch, min(page, LARGEST_GRANULE))
    blocks.append([one.start for one in whole], [one.end - one.start for one in whole], [State.IN_USE] * len(whole))
    blocks.seal()
    registers = _register_words(session, [Range(one.start, one.end) for one in whole])
    graphs = []
    for part in parts:
        graph = session.engine.graph(blocks)
        for piece in session.pieces(part, "looking for missing memory"):
            graph.scan_roots(piece)
        graph.root_words(registers)
        graph.settle()
        graphs.append(graph)
    found = {}
    for index, one in enumerate(whole):
        referring = [part for part, graph in zip(parts, graphs) if graph.is_rooted(index)]
        if referring:
            found[one] = merge_ranges(chain.from_iterable(referring))
    return found


def _register_words(session: Session, ranges: Sequence[Range]) -> list[int]:
    """Return those of `Session.register_words` that are in these sorted, disjoint ranges. The code
    of the threads shows which registers are live. Reading it takes 40 ms, so it is read only if
    any word, live or dead, is in these ranges."""

    def select(words: Iterable[int]) -> list[int]:
        return [word for word in words if range_at(ranges, word) is not None]

    every = chain(register_words(session.target, None, session.library_words), (word for word, _ in session.kernel_references))
    return select(session.register_words()) if select(every) else []


def _values(session: Session, one: Uncertain, searched: Sequence[Range]) -> list[int]:
    """Return the live words that refer to a range; [] if they do not show that the range is
    missing."""
    # Words refer to missing memory in few processes, so this is imported here.
    from findleaks.audit.references import is_live

    runtimes = session.runtimes
    if _has_own_heap(session) or (runtimes and one.what not in (UNNAMED, UNWRITTEN)):
        foreign = _foreign_words(session)
        words = _address_like_words(session, one, searched)
        return _judge_values(session, one, [value for address, value in words if foreign.has(address) and is_live(session, address, value)])
    # A runtime leaves stale words in frames and blocks.
    stale = _stale_memory(session) if one.what == UNNAMED and any(runtime.parts() for runtime in runtimes) else []
    is_plausible = _address_test(session, one)
    values = [value for value in _register_words(session, [Range(one.start, one.end)]) if not stale and is_plausible(value)]
    for address, value in _address_like_words(session, one, searched):
        if is_live(session, address, value) and range_at(stale, address) is None:
            # The C library stores addresses of the brk heap and of reservations even if they
            # contain no data.
            if one.what not in (UNNAMED, UNWRITTEN, PROTECTED) or not _in_c_library(session, address):
                values.append(value)
    return _judge_values(session, one, values)


def _has_own_heap(session: Session) -> bool:
    """Whether a runtime has a heap that belongs to no allocator."""
    return any(not part.inside for runtime in session.runtimes for part in runtime.parts())


def _foreign_words(session: Session) -> ForeignWords:
    from findleaks.audit.foreign_words import ForeignWords

    return session.once(ForeignWords, lambda: ForeignWords(session))


def _address_test(session: Session, one: Uncertain) -> Callable[[int], bool]:
    """Return a function that tests whether a value may be an address in the range."""
    arch = session.target.arch
    # A pointer to the end of the heap below the gap (the break), or to the end of the memory that
    # is reserved for this heap, does not refer to the gap. glibc stores the end of the reserved
    # memory in a variable (aligned_heap_area, malloc/arena.c).
    reserved = (part for below in session.reserved for part in below.ranges)
    end_of_heap = one.start if any(heap.end == one.start for heap in chain(session.heap_ranges(), reserved)) else -1

    def is_plausible(value: int) -> bool:
        if value == end_of_heap:
            return False
        # A word below 2^32 is probably a number. This matters because V8 reserves 512 MiB near a
        # program that is not PIE.
        if arch.word == 8 and not value >> 32 and (value % arch.page or not value % _ROUND):
            return False
        return one.what != UNNAMED or not (value % arch.word or _is_small_number(value))

    return is_plausible


def _judge_values(session: Session, one: Uncertain, values: list[int]) -> list[int]:
    """Return the plausible values that refer to a range; [] if there are too few of them to show
    that an unmapped gap is missing."""
    if one.what != UNNAMED:
        return values
    arch = session.target.arch
    pages = [value for value in values if not value % arch.page]
    # Any number may be a 32-bit address. Therefore only multiples of the page size count, and of
    # these, round numbers do not.
    if arch.word == 4:
        return [value for value in pages if value % _ROUND]
    return values if pages or len(set(values)) >= MANY else []


def _is_small_number(value: int) -> bool:
    """Whether the lower half of a word is a small number.
    A program may write 32 bits over the lower half of a stale pointer. For example, {u16 2, u16 7}
    leaves 0x7fb500070002."""
    return value >> 32 != 0 and value & 0xFFFFFFFF < SMALL


def _address_like_words(session: Session, one: Uncertain, searched: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Yield (address, value) of the words that may refer to a range, out of the first _MOST_WORDS
    whose value is in the range."""
    is_plausible = _address_test(session, one)
    return (found for found in islice(_words_into(session, one, searched), _MOST_WORDS) if is_plausible(found[1]))


def _words_into(session: Session, one: Uncertain, searched: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Yield (address, value) of the words that refer to a range, dead ones included.

    On 32-bit machines, letters look like addresses. If a text such as PYTHONPATH begins in the
    second byte of a word, the word is even a multiple of the page size, 0x54595000."""
    order, word = session.target.arch.byteorder, session.target.arch.word
    for piece in session.pieces(searched, "looking for missing memory", dead=True):
        for address in session.engine.search(piece, one.start, one.end):
            at = address - piece.address
            if word != 4 or not _TEXT.match(piece.data, at):
                yield address, int.from_bytes(piece.data[at : at + word], order)


def _stale_memory(session: Session) -> list[Range]:
    """Return the memory in which a runtime leaves stale words: stacks and heaps."""
    main = (Range(region.start, region.end) for region in session.target.regions() if region.name == STACK)
    return merge_ranges([*thread_stacks(session.target).values(), *main, *session.heap_ranges()])


def _in_c_library(session: Session, address: int) -> bool:
    from findleaks.audit.foreign_words import in_c_library

    module = region_at(session.target.modules(), address)
    return module is not None and in_c_library(module)
