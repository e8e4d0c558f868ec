"""Group Ruby's traced allocations by source line, and add up their objects and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Optional

from findleaks.runtimes.allocation_site import Site
from findleaks.runtimes.ruby.traces import Trace
from findleaks.unwind.stacks import NamedFrame


def list_sites(traces: Mapping[int, Trace], slot_at: Callable[[int], Optional[tuple[int, int]]]) -> list[Site]:
    """Return the allocation sites of the traced objects, the site with the most bytes first.
    `slot_at` returns the start and the size of the slot at an address."""
    sums: dict[tuple[str, int, str], list[int]] = {}
    for address, one in traces.items():
        slot = slot_at(address)
        if slot is not None:
            total = sums.setdefault((one.file, one.line, one.method), [0, 0])
            total[0] += 1
            total[1] += slot[1]
    ranked = sorted(sums.items(), key=lambda each: (-each[1][1], each[0]))
    return [_site(*place, *total) for place, total in ranked]


def _site(file: str, line: int, method: str, objects: int, size: int) -> Site:
    call = NamedFrame(0, method, 0, "", file, line, kind="Ruby")
    return Site([f"{file}:{line}{f' {method}' if method else ''}"], objects, size, [call])
