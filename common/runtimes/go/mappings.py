"""Find mappings that a Go program made with syscall.Mmap and never unmapped.

The package registers each mapping in a map from the address of its last byte to its slice. So does
golang.org/x/sys/unix. A mapping is leaked if nothing else refers to it: no object of Go's heap, and
no block in use or variable of C code.

Source: Go 1.18 to 1.26, src/syscall/syscall_unix.go (mmapper.active)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine, Graph
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.errors import Interrupted
from findleaks.formatting import format_count, number, size, some
from findleaks.graph.roots import stack_region
from findleaks.libc.stacks import dead_stacks, thread_stacks
from findleaks.libc.thread_local import control_block, thread_local_blocks
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.go.heap import anonymous
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.object_graph import LIVE
from findleaks.target.arch import Words
from findleaks.target.base import Range, Target
from findleaks.target.ranges import intersection, merge_ranges, merge_to_most, nonzero_pieces, range_at, subtract

_LEAST = 1 << 20  # minimum bytes of all leaked mappings together in a finding
_LEAST_REGION = 64 << 10  # minimum bytes of a region that is searched for mappings
_MOST_WORDS = 1 << 20  # maximum number of references; if there are more, nothing is reported
_MOST_SIZES = 3  # maximum number of sizes that a sentence names


class _Word(NamedTuple):
    """A reference: its address (0 if it is in a root), and its value."""

    place: int
    value: int


class NativeMemory(NamedTuple):
    """Memory of C code, whose words may refer to mappings. `blocks`: the blocks of C's allocator;
    None if there is no allocator. Words in freed blocks do not count. `heaps`: the memory that
    contains the blocks."""

    ranges: Sequence[Range]
    blocks: Optional[Blocks]
    heaps: Sequence[Range]


def list_unknown_memory(target: Target, directory: Optional[Directory], own: Iterable[Range]) -> list[Range]:
    """Return anonymous memory that is not used by Go (`own`), by an allocator or as the stack of a
    thread."""
    regions = anonymous(target.regions())
    known = [*own, *(directory.ranges() if directory is not None else ()), *_list_stacks(target).values()]
    return subtract(merge_ranges(Range(region.start, region.end) for region in regions), known)


def list_native_memory(target: Target, directory: Optional[Directory], own: Iterable[Range]) -> NativeMemory:
    """Return memory in which C code may store pointers: all writable memory that is not used by Go
    (`own`). Stacks of threads begin at the stack pointer."""
    regions = [region for region in target.regions() if region.writable and region.readable]
    stacks = _list_stacks(target)
    used = ((stacks.get(thread.tid), thread.sp & -8) for thread in target.threads())
    dead = [Range(stack.start, sp) for stack, sp in used if stack is not None and stack.start < sp < stack.end]
    ranges = subtract(merge_ranges(Range(region.start, region.end) for region in regions), [*own, *dead])
    return NativeMemory(ranges, directory.blocks, directory.ranges()) if directory is not None else NativeMemory(ranges, None, ())


def exclude_stacks(target: Target, engine: Engine, native: NativeMemory) -> NativeMemory:
    """Return native memory without the stacks of threads, including threads that have ended. The
    scheduler of Go also runs on these stacks, and leaves pointers to goroutines and channels
    there. The thread-local variables of a thread, which may be in the memory of its stack, stay."""
    regions = target.regions()
    found = [*_list_stacks(target).values(), *dead_stacks(target, engine, regions)]
    found += [Range(region.start, region.end) for region in regions if region.name == "[stack]"]
    return native._replace(ranges=subtract(native.ranges, subtract(merge_ranges(found), list_thread_memory(target))))


def list_data(target: Target, native: NativeMemory) -> list[Range]:
    """Return the part of native memory that loaded files have for their variables."""
    return intersection(native.ranges, merge_ranges(Range(one.start, one.end) for one in target.modules()))


def list_thread_memory(target: Target) -> list[Range]:
    """Return the thread-local variables of all threads, and what C's library stores for them."""
    blocks = [control_block(target, thread.thread_pointer) for thread in target.threads() if thread.thread_pointer]
    return merge_ranges([*blocks, *(one.range for one in thread_local_blocks(target))])


def _list_stacks(target: Target) -> dict[int, Range]:
    """Return the stacks of threads by thread id. A thread that runs a goroutine uses the
    goroutine's stack, so its own stack is found by its thread pointer. A mapping may contain a
    stack and other memory, so mappings are used only for threads that C's library does not know."""
    regions, stacks = target.regions(), thread_stacks(target)
    others = ((thread.tid, stack_region(regions, thread.sp)) for thread in target.threads() if thread.tid not in stacks)
    return stacks | {tid: stack for tid, stack in others if stack is not None}


def iterate_native_words(
    memory: Memory, engine: Engine, native: NativeMemory, into: Sequence[Range], without: Iterable[Range] = ()
) -> Iterator[Words]:
    """Yield the words of native memory whose value is in one of the ranges `into`, in parts. Words
    in freed blocks and in the ranges `without` are left out. Raises Interrupted."""
    searched = merge_to_most(into, MOST_RANGES)
    for start, end in subtract(native.ranges, without):
        for piece in nonzero_pieces(memory.target, start, end):
            if memory.target.is_interrupted():
                raise Interrupted
            places, values = find_pointers_into(engine, piece, searched)
            if native.blocks is not None:
                found = native.blocks.find_all(places)[0]
                states = zip(found, native.blocks.columns_of(found).state)
                values = array("Q", compress(values, (index == NO_BLOCK or state == State.IN_USE for index, state in states)))
            yield values


def find_mappings(
    memory: Memory, objects: HeapObjects, engine: Engine, graph: Graph, regions: Sequence[Range], native: NativeMemory
) -> Iterator[Finding]:
    """Yield a finding if mappings are leaked. `regions`: memory of unknown use, which may contain
    mappings."""
    regions = [one for one in regions if one.end - one.start >= _LEAST_REGION]
    if sum(end - start for start, end in regions) < _LEAST:
        return
    words = list(islice(_references(objects, engine, graph, regions), _MOST_WORDS + 1))
    if len(words) > _MOST_WORDS:
        return
    leaked = _without_native_references(memory, engine, list(_iterate_leaked(memory, words, regions)), native)
    total = sum(end - start for start, end in leaked)
    if total < _LEAST:
        return
    sizes = Counter(end - start for start, end in leaked)
    mappings = format_count(len(leaked), "mapping")
    title = f"Probably leaked: {size(total)} in {mappings} of syscall.Mmap to which only the package's own map refers."
    counts = [f"{number(count)} of {size(one)}" for one, count in sorted(sizes.items(), reverse=True)]
    cause = f"The program did not unmap them, and no longer has a slice of them: {some(counts, _MOST_SIZES)}."
    facts: dict[str, object] = {"mappings": len(leaked), "examples": [hex(start) for start, _ in leaked[:_MOST_SIZES]]}
    present = [memory.target.resident(start, end) for start, end in leaked]
    resident = None if None in present else sum(one for one in present if one is not None)
    commands = (f"whatis {leaked[0].start:#x}", f"refs {leaked[0].start:#x}")
    remedies = ("call syscall.Munmap (or unix.Munmap) with the slice that Mmap returned",)
    yield Finding("go-mappings", total, title, cause, remedies, commands, facts, resident)


def _references(objects: HeapObjects, engine: Engine, graph: Graph, regions: Sequence[Range]) -> Iterator[_Word]:
    """Yield words of roots and of live objects that point into these regions."""
    for words in (*objects.root_words(), *objects.stacks.words(objects.stacks.threads())):
        yield from (_Word(0, word) for word in words if range_at(regions, word) is not None)
    searched = merge_to_most(regions, MOST_RANGES)
    for piece in objects.pointers.all_pieces():
        places, values = find_pointers_into(engine, piece, searched)
        for place, value, index in zip(places, values, objects.blocks.find_all(places)[0]):
            if index < len(objects.blocks) and graph.kind(index) in LIVE and range_at(regions, value) is not None:
                yield _Word(place, value)


def _iterate_leaked(memory: Memory, words: Sequence[_Word], regions: Sequence[Range]) -> Iterator[Range]:
    """Yield the mappings to which only two words refer: the key and the slice in the map."""
    values = array("Q", sorted(one.value for one in words))
    for start, end in _read_slices(memory, words, regions):
        inside = values[bisect_left(values, start) : bisect_left(values, end)]
        if list(inside) == [start, end - 1]:
            yield Range(start, end)


def _read_slices(memory: Memory, words: Iterable[_Word], regions: Sequence[Range]) -> list[Range]:
    """Return the memory of slices in the heap that may be mappings: each begins at a page, and its
    length is its capacity."""
    slices: dict[int, int] = {}
    for place, value in words:
        length, room = (memory.words(place + 8, 2) or (0, 0)) if place and value % memory.arch.page == 0 else (0, 0)
        if 0 < length == room and range_at(regions, value + length - 1) is not None:
            slices[value] = length
    return [Range(start, start + length) for start, length in sorted(slices.items())]


def list_mappings(memory: Memory, objects: HeapObjects, engine: Engine, graph: Graph, regions: Sequence[Range]) -> list[Range]:
    """Return the memory that slices of Go refer to, such as mappings of syscall.Mmap. `regions`:
    memory of unknown use. A mapping may contain the stack of a thread."""
    possible = merge_ranges([*regions, *_list_stacks(memory.target).values()])
    return merge_ranges(_read_slices(memory, islice(_references(objects, engine, graph, possible), _MOST_WORDS), possible))


def _without_native_references(memory: Memory, engine: Engine, leaked: Sequence[Range], native: NativeMemory) -> Sequence[Range]:
    """Return the mappings to which no word of native memory refers. Words in these mappings do not
    count. The result is () if too many words refer to mappings."""
    held, seen = set[Range](), 0
    for values in iterate_native_words(memory, engine, native, leaked, leaked) if leaked else ():
        seen += len(values)
        if seen > _MOST_WORDS:
            return ()
        held.update(filter(None, (range_at(leaked, value) for value in values)))
    return [one for one in leaked if one not in held]
