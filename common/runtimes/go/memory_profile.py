"""Read Go's memory profile: the stacks that allocated sampled objects. Every program that refers to
runtime.MemProfile has it, such as those that import net/http/pprof.

The profile is a list of buckets. A bucket has the size of its objects, a stack, a hash of both, and
counts. It is recognised by its hash, so no symbols are needed. Each sampled object that is not
freed has a special record with the address of its bucket.

Sources: Go 1.18 to 1.27, src/runtime/mprof.go (bucket, memRecord, stkbucket, mbuckets), malloc.go
(profilealloc), mcache.go (allocmcache), src/runtime/pprof/protomem.go (scaleHeapSample,
writeHeapProto)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import Site
from findleaks.runtimes.go.code_references import variables_of_function
from findleaks.runtimes.go.pclntab import FunctionTable, Place
from findleaks.target.base import Range
from findleaks.target.ranges import range_at
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

_MEMORY = 1  # memProfile
_HEAD, _CYCLES = 6, 4  # words of a bucket before its stack; cycles of a memRecord
# Words of a memRecordCycle. Since 1.27 it has no bytes, because all objects of a bucket have one
# size.
_CYCLE_WITH_BYTES, _CYCLE = 4, 2
_MAX_STACK = 1024
_MAX_BUCKETS = 1 << 20
_WORD = (1 << 64) - 1
_DEFAULT_RATE = 512 << 10  # bytes from one sample to the next
_MAX_RATE = 1 << 40
_SAMPLERS = ("runtime.allocmcache", "runtime.profilealloc")  # both read runtime.MemProfileRate
_RUNTIME = ("runtime.", "internal/runtime/")
_END = "runtime.goexit"


class Bucket(NamedTuple):
    """Sampled allocations of one size and stack. `stack`: return addresses, innermost first.
    `allocated`: all allocations since the start, of which `freed` are known to be freed."""

    size: int
    stack: Sequence[int]
    allocated: Totals
    freed: Totals


class MemoryProfile:
    """The buckets by address, and `rate`, the mean number of bytes from one sample to the next."""

    def __init__(self, buckets: dict[int, Bucket], rate: int, tables: Sequence[FunctionTable], file: str) -> None:
        self.buckets, self.rate, self._tables, self._file = buckets, rate, tables, file

    def sites(self, samples: Optional[Iterable[int]]) -> list[Site]:
        """Return the sites that have objects in use or allocated any, most bytes in use first. All
        figures are estimates. `samples`: the address of the bucket of each live sampled object;
        None: unknown. Then the counts of the profile are used, which are those of the last
        collection."""
        live = None if samples is None else Counter(samples)
        made: dict[tuple[NamedFrame, ...], list[Totals]] = {}
        for address, one in self.buckets.items():
            used = one.allocated.minus(one.freed)
            if live is not None:
                used = Totals(live[address], live[address] * one.size)
            pair = self._scale(used), self._scale(one.allocated)
            sums = made.setdefault(self._frames(one.stack), [Totals(0, 0), Totals(0, 0)])
            sums[:] = (Totals.sum_of(both) for both in zip(sums, pair))
        found = [
            Site([_line(frame) for frame in frames], used.blocks, used.bytes, frames, allocated, self.rate)
            for frames, (used, allocated) in made.items()
        ]
        return sorted(found, key=lambda site: (-site.bytes, -(site.allocated or Totals(0, 0)).bytes, site.frames))

    def _scale(self, sampled: Totals) -> Totals:
        """Return the estimate for all objects, as pprof computes it."""
        if sampled.blocks <= 0 or sampled.bytes <= 0:
            return Totals(0, 0)
        if self.rate <= 1:
            return sampled
        factor = 1 / (1 - math.exp(-sampled.bytes / sampled.blocks / self.rate))
        return Totals(int(sampled.blocks * factor), int(sampled.bytes * factor))

    def _frames(self, stack: Sequence[int]) -> tuple[NamedFrame, ...]:
        """Return the functions of a stack, innermost first. Functions of the runtime at its
        innermost end are left out."""
        found: list[NamedFrame] = []
        before: tuple[Place, ...] = ()
        for pc in stack:
            table = next((one for one in self._tables if one.module.text.start <= pc - 1 < one.module.text.end), None)
            places = table.places(pc - 1) if table is not None else ()
            function = table.find(pc - 1) if table is not None else None
            if function is None or function.name == _END:
                continue
            # Since 1.21, an inlined call has its own address in the stack. It was named with the
            # previous address.
            if places != before[1:]:
                offset = pc - function.entry
                found += [NamedFrame(pc, one.function, offset, self._file, one.file, one.line, one.inlined) for one in places]
            before = places
        first = next((at for at, frame in enumerate(found) if not frame.function.startswith(_RUNTIME)), 0)
        return tuple(found[first:])


def _line(frame: NamedFrame) -> str:
    return f"{frame.function} at {frame.file}:{frame.line}" if frame.line else frame.function


def read_memory_profile(
    memory: Memory, variables: Sequence[Range], persistent: Sequence[Range], tables: Sequence[FunctionTable], file: str
) -> Optional[MemoryProfile]:
    """Return the profile; None if the program has none. `persistent`: memory that the runtime never
    frees, sorted. `variables`: Go's variables."""
    cycle = _CYCLE_WITH_BYTES if all(one.module.has_links for one in tables) else _CYCLE
    best: dict[int, Bucket] = {}
    for word in _words_into(memory, variables, persistent):
        if word not in best:
            found = _read_list(memory, word, persistent, cycle)
            best = found if len(found) > len(best) else best
    rate = _read_rate(memory, tables) if best else 0
    # If nothing reads the profile, the linker turns it off. It has a few allocations of the start.
    return MemoryProfile(best, rate, tables, file) if rate else None


def _words_into(memory: Memory, variables: Sequence[Range], persistent: Sequence[Range]) -> Iterator[int]:
    for start, end in variables:
        for piece in memory.target.pieces(start, end):
            for word in memory.arch.words(piece.data):
                if word and word % 8 == 0 and range_at(persistent, word) is not None:
                    yield word


def _read_list(memory: Memory, address: int, persistent: Sequence[Range], cycle: int) -> dict[int, Bucket]:
    """Return the buckets of the list that begins at an address. The list ends at a damaged one.
    `cycle`: words of a memRecordCycle."""
    found: dict[int, Bucket] = {}
    while address and address not in found and len(found) < _MAX_BUCKETS:
        if range_at(persistent, address) is None and found:
            break  # a large bucket may be outside, but the first one is not
        words = memory.words(address, _HEAD)
        if words is None or words[2] != _MEMORY or not 0 < words[5] <= _MAX_STACK:
            break
        rest = memory.words(address + 8 * _HEAD, words[5] + cycle * _CYCLES)
        if rest is None or words[3] != _hash(rest[: words[5]], words[4]):
            break
        allocated, freed, *sizes = (sum(rest[words[5] + at :: cycle]) & _WORD for at in range(cycle))
        bytes_of = sizes or [allocated * words[4], freed * words[4]]
        found[address] = Bucket(words[4], tuple(rest[: words[5]]), Totals(allocated, bytes_of[0]), Totals(freed, bytes_of[1]))
        address = words[1]
    return found


def _hash(stack: Iterable[int], size: int) -> int:
    value = 0
    for pc in (*stack, size):
        value = value + pc & _WORD
        value = value + (value << 10) & _WORD
        value ^= value >> 6
    value = value + (value << 3) & _WORD
    return value ^ value >> 11


def _read_rate(memory: Memory, tables: Sequence[FunctionTable]) -> int:
    """Return runtime.MemProfileRate: the variable to which two functions refer. 0: off."""
    for table in tables:
        first, second = (variables_of_function(memory.target, table, name) for name in _SAMPLERS)
        for address in first:
            rate = memory.word(address) if address in second else None
            if rate is not None and rate < _MAX_RATE:
                return rate
    return _DEFAULT_RATE
