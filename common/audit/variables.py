"""Find global variables that point to blocks. Variables without a symbol are named by their place
in the file."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Optional

from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.containers.recognise import find_containers
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.audit.pointer_words import read_memory_words
from findleaks.session import Session
from findleaks.target.base import Module, Range, Symbol
from findleaks.target.ranges import merge_ranges, range_at

# If at least this many adjacent words point to blocks, they form one array, not several variables
RUN = 16

EDGE, SAMPLE = 16, 64
"""EDGE: words at each end of an unnamed array that may be other variables. SAMPLE: words in between
that are examined."""

NEAR = 64  # more zero bytes than this end an unnamed array, because another variable may follow
# Unnamed variables of a file that are separate roots; further ones form one root
MAX_UNNAMED = 10_000


def find_variables(session: Session, reader: ContainerReader) -> Iterator[Owner]:
    """Yield variables that point to blocks. If a file has more than MAX_UNNAMED unnamed variables,
    the others form one root."""
    roots = session.roots
    heaps = session.heap_ranges()
    if not heaps:
        return
    for module in session.target.modules():
        data = [Range(max(r.start, module.start), min(r.end, module.end)) for r in roots if r.start < module.end and r.end > module.start]
        if data:
            yield from _find_in_module(session, reader, module, data, heaps)


def _find_in_module(
    session: Session, reader: ContainerReader, module: Module, data: Sequence[Range], heaps: Sequence[Range]
) -> Iterator[Owner]:
    name = module.path.rsplit("/", 1)[-1] or "module"
    where = f"{name}, data"
    unnamed: dict[int, int] = {}
    arrays: list[Range] = []
    run = 0
    found = read_memory_words(session, reader, data, "naming roots", NEAR)
    addresses, values = found.addresses, found.values
    starts = [one.start for one in found.runs]
    covered = at = looked = 0  # covered: the end of the last variable
    while at < len(addresses):
        address, value = addresses[at], values[at]
        looked += 1
        if looked % 4096 == 0:
            session.report_progress("naming roots", at / len(addresses))
        if range_at(heaps, value) is None:
            at += 1
            continue
        run = run + 1 if address - reader.size in unnamed else 0
        # In a long unnamed array, only some of the words are looked up.
        symbol = _symbol(session, reader, address) if run < RUN or run % 1024 == 0 else None
        if symbol is not None:
            start, covered = max(symbol.address, covered), symbol.address + max(symbol.size, reader.size)
            yield Owner(OwnerSort.VARIABLE, symbol.name, where, ranges=[Range(start, covered)])
            at = bisect_left(addresses, covered, at + 1)
            continue
        around = bisect_right(starts, address) - 1
        if around >= 0 and address < found.runs[around].end:
            last = _unnamed_until(session, reader, addresses, at, found.runs[around].end)
            low, high = _trim_array(reader, values, at, last)
            arrays.append(Range(addresses[low], addresses[high - 1] + reader.size))
            unnamed.update(
                (addresses[n], values[n]) for n in (*range(at, low), *range(high, last)) if range_at(heaps, values[n]) is not None
            )
            at = last
            continue
        unnamed[address] = value
        at += 1
    yield from _find_unnamed(reader, module, where, unnamed, arrays)


def _symbol(session: Session, reader: ContainerReader, address: int) -> Optional[Symbol]:
    """Return the named variable that contains the word at this address."""
    symbol = session.target.symbolize(address)
    return symbol if symbol is not None and symbol.address <= address < symbol.address + max(symbol.size, reader.size) else None


def _unnamed_until(session: Session, reader: ContainerReader, addresses: Sequence[int], first: int, end: int) -> int:
    """Return the index of the word at which an unnamed array ends: at `end`, or at the first word
    that belongs to a named variable."""
    last = bisect_left(addresses, end, first)
    for at in range(first + 1, last):
        if (at - first < RUN or (at - first) % 1024 == 0) and _symbol(session, reader, addresses[at]) is not None:
            return at
    return last


def _trim_array(reader: ContainerReader, values: array[int], first: int, last: int) -> tuple[int, int]:
    """Return the bounds of an array, without words at its ends that are other variables.
    Such words point to blocks that are larger than all blocks of a sample."""
    step = max((last - first) // SAMPLE, 1)
    _, sizes = reader.blocks.find_all(values[min(first + EDGE, last - 1) : max(last - EDGE, first + 1) : step])
    _, before = reader.blocks.find_all(values[first : first + EDGE])
    _, behind = reader.blocks.find_all(values[max(last - EDGE, first) : last])
    most = max(sizes, default=0) or max(*before, *behind)
    low = max((first + n + 1 for n, size in enumerate(before) if size > most), default=first)
    high = min((last - len(behind) + n for n, size in enumerate(behind) if size > most), default=last)
    return (low, high) if low < high else (first, last)


def _find_unnamed(
    reader: ContainerReader, module: Module, where: str, pointers: dict[int, int], arrays: Sequence[Range]
) -> Iterator[Owner]:
    """Yield the unnamed variables of a file: containers, arrays, and single words."""
    runs = _runs(list(pointers), reader.size)
    spans = [*arrays, *(run for run in runs if run.end - run.start > reader.size)]
    lone = {run.start: pointers[run.start] for run in runs if run.end - run.start == reader.size}
    heads = dict(list(lone.items())[:MAX_UNNAMED])
    spans += [span for container in find_containers(reader, heads) for span in container.spans]
    taken = merge_ranges(spans)
    spans += [Range(address, address + reader.size) for address in lone if range_at(taken, address) is None]
    starts: set[int] = set()
    rest: list[Range] = []
    reached = 0
    for start, end in sorted(spans):
        start = max(start, reached)
        if start >= end:
            continue
        reached = end
        if len(starts) >= MAX_UNNAMED:
            rest.append(Range(start, end))
            continue
        starts.add(start)
        yield Owner(OwnerSort.VARIABLE, f"{where.rpartition(',')[0]}, data+{start - module.bias:#x}", ranges=[Range(start, end)])
    if rest:
        yield Owner(OwnerSort.VARIABLE, "unnamed variables", where, ranges=rest)


def _runs(addresses: Sequence[int], word: int) -> list[Range]:
    """Return ranges for ascending addresses of words: one range for RUN or more adjacent words, and
    one range for each other word."""
    found: list[Range] = []
    for _, numbered in groupby(enumerate(addresses), lambda item: item[1] - item[0] * word):
        run = [address for _, address in numbered]
        if len(run) >= RUN:
            found.append(Range(run[0], run[-1] + word))
        else:
            found += [Range(address, address + word) for address in run]
    return found
