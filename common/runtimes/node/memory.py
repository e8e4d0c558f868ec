"""Divide V8's memory into parts: its heap by isolate and space, the read-only space, the code
range."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Optional

from findleaks.formatting import format_count
from findleaks.runtimes.base import Part
from findleaks.runtimes.node.spaces import Space, Spaces
from findleaks.runtimes.v8.isolates import Isolate
from findleaks.target.base import Range, Target
from findleaks.target.ranges import subtract


def parts(target: Target, isolates: Sequence[Isolate], chunks: Sequence[Range], spaces: Optional[Spaces]) -> Sequence[Part]:
    """Return the parts. `chunks` are all chunks of these isolates; `spaces` is None if unknown."""
    made: list[Part] = []
    if chunks:
        inner = _inner(isolates, spaces) if spaces is not None else []
        used = _sum(part.used for part in inner[: len(isolates)]) if inner else None
        made.append(Part("V8's heap", chunks, used, False, format_count(len(chunks), "chunk"), inner))
    for space in spaces.spaces if spaces is not None else ():
        if not space.isolate and space.chunks:
            pages = format_count(len(space.chunks), "page")
            made.append(Part(f"V8's {space.name}", space.chunks, space.used, False, f"{pages}, of all isolates"))
    rest = _code(target, chunks)
    return [*made, Part("V8's code range", rest, None, False, "outside its chunks")] if rest else made


def _inner(isolates: Sequence[Isolate], spaces: Spaces) -> list[Part]:
    """Return the isolates, largest first, each with its spaces in V8's order; then the chunks
    without a space."""
    made = [_isolate(isolate, [space for space in spaces.spaces if space.isolate == isolate.address]) for isolate in isolates]
    made.sort(key=lambda part: -part.bytes)
    if spaces.freed:
        made.append(Part("freed, not unmapped", spaces.freed, None, False, format_count(len(spaces.freed), "chunk"), (), True))
    if spaces.wild:
        made.append(Part("of unknown space", spaces.wild, None, False, format_count(len(spaces.wild), "chunk")))
    return made


def _isolate(isolate: Isolate, spaces: Sequence[Space]) -> Part:
    inner = [Part(space.name, space.chunks, space.used, False, format_count(len(space.chunks), "chunk")) for space in spaces]
    chunks = sorted(chunk for space in spaces for chunk in space.chunks)
    threads = f"thread {', '.join(str(thread.tid) for thread in isolate.threads)}"
    return Part(f"isolate {isolate.address:#x}", chunks, _sum(space.used for space in spaces), False, threads, inner)


def _code(target: Target, chunks: Sequence[Range]) -> list[Range]:
    """Return the parts of the mappings for code that no chunk covers."""
    starts = [chunk.start for chunk in chunks]
    code = [
        Range(region.start, region.end)
        for region in target.regions()
        if region.executable and region.writable and not region.name and bisect_left(starts, region.start) < bisect_left(starts, region.end)
    ]
    return subtract(code, chunks)


def _sum(numbers: Iterable[Optional[int]]) -> Optional[int]:
    """Return the sum, or None if a number is unknown."""
    values = list(numbers)
    return None if None in values else sum(value for value in values if value is not None)
