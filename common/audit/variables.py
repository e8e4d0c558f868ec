"""The global variables that point to blocks: by symbol, or by their place in the file where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.allocators.bulk import pointing
from findleaks.audit.containers.reader import Reader
from findleaks.audit.containers.recognise import found_in
from findleaks.report.text import printable
from findleaks.session import Session
from findleaks.target.base import Module, Range
from findleaks.target.ranges import inside, merged

RUN = 16
"""Words side by side that point to blocks, of which as many are one array rather than as many variables."""

MOST_UNNAMED = 10_000
"""Variables without a name of one file that are told apart; the others are one root together."""


class Variable(NamedTuple):
    name: str
    where: str
    ranges: list[Range]


def variables(session: Session, reader: Reader) -> Iterator[Variable]:
    """Every variable of a loaded file that points to a block, and the rest of those files' writable data as one root each."""
    roots = session.roots
    heaps = merged(session.heap_ranges())
    if not heaps:
        return
    for module in session.target.modules():
        data = [Range(max(r.start, module.start), min(r.end, module.end)) for r in roots if r.start < module.end and r.end > module.start]
        if data:
            yield from _of_module(session, reader, module, data, heaps)


def _of_module(session: Session, reader: Reader, module: Module, data: Sequence[Range], heaps: Sequence[Range]) -> Iterator[Variable]:
    name = printable(module.path.rsplit("/", 1)[-1]) or "module"
    where = f"{name}, data"
    unnamed: dict[int, int] = {}
    covered = 0  # by the last variable
    run = 0
    for piece in session.pieces(data, "naming roots"):
        addresses, values = pointing(session.engine, piece, heaps[0].start, heaps[-1].end)
        for count, (address, value) in enumerate(zip(addresses, values)):
            if count % 4096 == 4095:
                session.tell("naming roots", 0.0)
            if address < covered or inside(heaps, value) is None:
                continue
            run = run + 1 if address - reader.size in unnamed else 0
            symbol = session.target.symbolize(address) if run < RUN or run % 1024 == 0 else None  # an array without a name goes on
            if symbol is None or not symbol.address <= address < symbol.address + max(symbol.size, reader.size):
                unnamed[address] = value
                continue
            start, covered = max(symbol.address, covered), symbol.address + max(symbol.size, reader.size)
            yield Variable(printable(symbol.name), where, [Range(start, covered)])
    yield from _unnamed(reader, module, where, unnamed)


def _unnamed(reader: Reader, module: Module, where: str, pointers: dict[int, int]) -> Iterator[Variable]:
    """Variables of a file without symbols: containers, arrays, and single words."""
    runs = _runs(list(pointers), reader.size)
    spans = [run for run in runs if run.end - run.start > reader.size]
    lone = {run.start: pointers[run.start] for run in runs if run.end - run.start == reader.size}
    heads = dict(list(lone.items())[:MOST_UNNAMED])
    spans += [span for container in found_in(reader, heads) for span in container.spans]
    taken = merged(spans)
    spans += [Range(address, address + reader.size) for address in lone if inside(taken, address) is None]
    starts: set[int] = set()
    rest: list[Range] = []
    reached = 0
    for start, end in sorted(spans):
        start = max(start, reached)
        if start >= end:
            continue
        reached = end
        if len(starts) >= MOST_UNNAMED:
            rest.append(Range(start, end))
            continue
        starts.add(start)
        yield Variable(f"{where.rpartition(',')[0]}, data+{start - module.bias:#x}", "", [Range(start, end)])
    if rest:
        yield Variable("unnamed variables", where, rest)


def _runs(addresses: Sequence[int], word: int) -> list[Range]:
    """Ascending addresses of words as ranges: RUN or more side by side are one, others stand alone."""
    first = 0
    found: list[Range] = []
    for at in range(1, len(addresses) + 1):
        if at < len(addresses) and addresses[at] == addresses[at - 1] + word:
            continue
        if at - first >= RUN:
            found.append(Range(addresses[first], addresses[at - 1] + word))
        else:
            found += [Range(address, address + word) for address in addresses[first:at]]
        first = at
    return found
