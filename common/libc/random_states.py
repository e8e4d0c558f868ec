"""Memory in which glibc keeps the states of its random number generators. Cores do not contain it.

Since 2.41 getrandom(3) draws from a generator in the vDSO, on Linux 6.11 and newer. Its states are
in mappings with MADV_DONTDUMP and MADV_WIPEONFORK, and contain no pointers. Without this module,
these mappings would be reported as missing memory in the cores of nearly all such processes.

Source: glibc 2.41 sysdeps/unix/sysv/linux/getrandom.c (grnd_alloc: {states, len, total, cap}:
`states` is a mapped array of `cap` pointers, of which `total` were allocated and the first `len`
are unused; vgetrandom_get_state_alloc fills whole pages with states, none across two pages)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Module, Range, Target
from findleaks.target.ranges import merge_ranges, nonzero_pieces

_C_LIBRARY = ("libc.", "libc-")
_MOST_DATA = 1 << 20  # bytes of a module's data that are searched
_MOST_STATES = 1 << 16
_LEAST_STATE = 64  # fewest bytes of a state; states are aligned to this


def random_states(target: Target) -> list[Range]:
    """Return the pages that contain states of random number generators, sorted and disjoint."""
    modules = target.modules()
    libraries = [one for one in modules if os.path.basename(one.path).startswith(_C_LIBRARY)]
    return merge_ranges(page for module in libraries or modules[:1] for page in _of_module(target, module))


def _of_module(target: Target, module: Module) -> Iterator[Range]:
    """Yield the states that a variable in the data of this module refers to. See the module
    docstring for the source."""
    word, page = target.arch.word, target.arch.page
    left = _MOST_DATA
    for region in target.regions():
        if region.start >= module.end or region.end <= module.start or not region.writable:
            continue
        for piece in nonzero_pieces(target, region.start, min(region.end, region.start + left)):
            words = target.arch.unpack(bytes(piece.data[: len(piece.data) // word * word]))
            for at in range(len(words) - 3):
                table, unused, total, capacity = words[at : at + 4]
                if table and not table % page and unused <= total <= capacity <= _MOST_STATES and total and not capacity * word % page:
                    yield from _pages(target, table, unused, total)
        left -= region.end - region.start
        if left <= 0:
            return


def _pages(target: Target, table: int, unused: int, total: int) -> Iterator[Range]:
    """Yield the pages of the states that an array refers to. Yield none unless these pages are
    filled with states."""
    page = target.arch.page
    try:
        values = target.arch.unpack(target.read(table, total * target.arch.word))
    except UnreadableMemory:
        return
    # Ended threads returned their states in any order, so the unused entries may have duplicates.
    states = sorted(set(values))
    size = min((after - before for before, after in zip(states, states[1:])), default=0)
    if len(set(values[:unused])) < unused or not _LEAST_STATE <= size <= page or total % (page // size):
        return
    if not any(value % page % size for value in states):
        yield from (Range(value // page * page, value // page * page + page) for value in states)
