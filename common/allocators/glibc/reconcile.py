"""Compare the chunks that were walked with the bytes that each arena got from the system."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.arenas import GlibcArena, GlibcSpan
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, Totals
from findleaks.value_classes import dataclass

NONE = Totals(0, 0)
NO_TOTALS = [NONE] * len(State)
STATES = {"in_use": State.IN_USE, "cached": State.CACHED, "free": State.FREE}


@dataclass(eq=False, repr=False)
class ArenaBalance:
    """The bytes of one span, or the totals of one arena. `chunks`, `top`, `own` and `foreign` add
    up to `covered`, which must equal `system_mem`."""

    arena: GlibcArena
    chunks: int = 0  # bytes of the chunks walked, headers included
    top: int = 0
    own: int = 0  # heap_info, malloc_state, fenceposts and alignment
    foreign: int = 0  # bytes that belong to others, or that cannot be read because of corruption
    covered: int = 0
    heaps: int = 0
    in_use: Totals = NONE
    cached: Totals = NONE
    free: Totals = NONE

    @property
    def sum(self) -> int:
        return self.chunks + self.top + self.own + self.foreign

    @property
    def reconciled(self) -> bool:
        return self.covered == self.arena.system_mem == self.sum

    def add(self, part: ArenaBalance) -> None:
        """Add the numbers of one span."""
        for name in ("chunks", "top", "own", "foreign", "covered", "heaps"):
            setattr(self, name, getattr(self, name) + getattr(part, name))

    def count(self, heaps: Sequence[Sequence[Totals]]) -> None:
        """Set the totals of the blocks of an arena. For each heap of the arena, `heaps` has the
        totals of its blocks, by State."""
        for name, state in STATES.items():
            setattr(self, name, Totals.sum_of(totals[state] for totals in heaps))

    def json(self) -> dict[str, object]:
        """Return the arena's entry in the JSON. Pairs are {blocks, bytes}, sizes are bytes."""
        made: dict[str, object] = {"name": self.arena.name, "address": hex(self.arena.address), "heaps": self.heaps}
        for name in STATES:
            blocks, size = getattr(self, name)
            made[name] = {"blocks": blocks, "bytes": size}
        made.update(top=self.top, overhead=self.own, foreign=self.foreign, system=self.arena.system_mem)
        made.update(reconciled=self.reconciled, locked=self.arena.held)
        return made


def balance_span(blocks: Blocks, word: int, span: GlibcSpan) -> ArenaBalance:
    """Sum the bytes of a span before cached blocks are marked. A chunk in use has one word more
    than its block, and a free chunk two words.

    A pool whose blocks were marked earlier may have its metadata in a block of this span, such as
    the magazines of a thread (GSlice)."""
    used = Totals.sum_of(blocks.totals(state, span.start, span.end) for state in (State.IN_USE, State.METADATA))
    free = blocks.totals(State.FREE, span.start, span.end)
    arena = span.arena
    top = arena.top_size if span.start <= arena.top < span.end else 0
    own = sum(end - start for start, end in span.metadata if end > span.first) + span.first - span.start
    chunks = used.bytes + word * used.blocks + free.bytes + 2 * word * free.blocks
    foreign = sum(end - start for start, end in span.foreign)
    # The walk gave up, so top and the last fencepost are in the foreign part.
    if span.foreign and span.foreign[-1].end == span.end:
        start = span.foreign[-1].start
        foreign -= span.end - (span.start + span.system)
        top = 0 if arena.top >= start else top
        own -= sum(part.end - part.start for part in span.metadata if part.start >= start)
    return ArenaBalance(arena, chunks, top, own, foreign, span.system, 1)


def check_arenas(
    arenas: Sequence[GlibcArena], walked: Sequence[ArenaBalance], problems: list[Problem], wrong: Sequence[GlibcArena] = ()
) -> list[ArenaBalance]:
    """Return one balance for each arena. Add a problem for each arena whose bytes do not add up,
    except for arenas in `wrong`, in which damaged size words explain it."""
    sums = {arena.number: ArenaBalance(arena) for arena in arenas}
    for part in walked:
        sums[part.arena.number].add(part)
    for total in sums.values():
        arena = total.arena
        if not total.reconciled and (total.heaps or arena.system_mem) and not any(arena is one for one in wrong):
            missing = arena.system_mem - total.sum
            held = "; a thread in malloc was changing it" if arena.held else ""
            what = f"{arena.name} does not add up: {arena.system_mem:,} bytes from the system, "
            what += f"{abs(missing):,} {'unaccounted for' if missing >= 0 else 'too many'}{held}"
            problems.append(Problem(arena.address, what))
    return list(sums.values())
