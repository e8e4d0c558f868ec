"""Build profiles from results: leaked blocks, all blocks, retained trees, growth. A profile is a
list of stacks with values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from findleaks.audit.block_batches import Batch, BlockNames
from findleaks.audit.leak_groups import Leak
from findleaks.audit.retained_rows import RetainedNode
from findleaks.engine.terms import Totals
from findleaks.formatting import number, printable
from findleaks.report.profile import BYTES, COUNT, Frame, Measure, Profile, Sample, frame_name
from findleaks.session import Session
from findleaks.unwind.stacks import NamedFrame, without_parameters

NO_TYPE = "no type"
"""The name of the step for blocks whose type is unknown."""
HANGING = "indirect"
"""The name of the step for blocks that are reachable only from the leaked blocks of a group."""


def blocks_measures(word: str = "") -> tuple[Measure, Measure]:
    """Return the measures blocks and bytes. `word`: a word before these, such as "leaked"."""
    what, before = (f"{word.capitalize()} ", f"{word}_") if word else ("", "")
    return Measure(f"{before}blocks", COUNT, f"{what}blocks".capitalize()), Measure(f"{before}bytes", BYTES, f"{what}bytes".capitalize())


def call_frame(frame: NamedFrame) -> Frame:
    """Return a function, without its parameters, as a frame. Code without a symbol is named by its
    module and offset."""
    name = without_parameters(frame.function) if frame.function else frame.label()
    return Frame(frame_name(name), frame.address, printable(frame.module), printable(frame.file), frame.line, frame.inlined)


def of_stacks(title: str, what: str, stacks: Iterable[tuple[Sequence[NamedFrame], int]]) -> Profile:
    """Return a profile of stacks with one number each. The frames of a stack are innermost first.
    `what`: what is counted, such as "threads"."""
    known: dict[NamedFrame, Frame] = {}
    samples = []
    for frames, count in stacks:
        stack = tuple(known.get(one) or known.setdefault(one, call_frame(one)) for one in reversed(frames))
        samples.append(Sample(stack, (count,)))
    return Profile(title, (Measure(what, COUNT, what.capitalize()),), samples)


def of_leaks(session: Session, leaks: Sequence[Leak]) -> Profile:
    """Return a profile of leaked blocks by kind, allocator, type and size. Indirect blocks form a
    step below the size."""
    samples = []
    for leak in leaks:
        steps = [leak.kind.name.lower(), _allocators(session, leak), leak.type or NO_TYPE, _size(leak)]
        stack = tuple(Frame(frame_name(step)) for step in steps)
        samples.append(Sample(stack, (leak.blocks, leak.bytes)))
        if leak.indirect_blocks:
            samples.append(Sample((*stack, Frame(HANGING)), (leak.indirect_blocks, leak.indirect_bytes)))
    return Profile(f"Leaked blocks: {session.target.description}", blocks_measures("lost"), samples)


def _allocators(session: Session, leak: Leak) -> str:
    """Return the name of a group's allocator. If its examples belong to several allocators, return
    all of their names."""
    owners = (session.directory.owner(address) for address in leak.examples)
    names = dict.fromkeys(owned.allocator.title for owned in owners if owned is not None)
    return " and ".join(names) or "unknown allocator"


def _size(leak: Leak) -> str:
    size = f"{number(leak.smallest)} B" if leak.smallest == leak.largest else f"{number(leak.smallest)}–{number(leak.largest)} B"
    cycle = f", cycle of {leak.cycle}" if leak.cycle > 1 else ""
    return f"{size}{cycle}" + (f", e.g. {leak.hint}" if leak.hint else "")


def of_blocks(session: Session, batches: Iterable[Batch], names: Mapping[int, BlockNames]) -> Profile:
    """Return a profile of blocks by kind or state, allocator, type and size. `batches`: the blocks
    in columns."""
    counts: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        counts.update(zip(batch.names, batch.sizes))
    blocks: Counter[tuple[str, str, str, int]] = Counter()
    for (number_of_names, size), count in counts.items():
        name = names[number_of_names]
        blocks[name.kind or name.state, name.allocator or "unknown allocator", name.type or NO_TYPE, size] += count
    samples = [
        Sample((*map(Frame, map(frame_name, steps)), Frame(f"{number(size)} B")), (count, count * size))
        for (*steps, size), count in blocks.items()
    ]
    return Profile(f"Blocks: {session.target.description}", blocks_measures(), samples)


def of_retained(title: str, rows: Sequence[RetainedNode], rest: Totals) -> Profile:
    """Return a profile of retained trees. The steps are a root, its fields, and the blocks that the
    fields refer to. The value of a step does not include the rows below it. `rest`: the memory that
    is in no row."""
    samples = list(_list_retained(rows))
    if rest.blocks:
        samples.append(Sample((Frame("others"),), (rest.blocks, rest.bytes)))
    return Profile(title, blocks_measures("retained"), samples)


def _list_retained(rows: Sequence[RetainedNode]) -> Iterator[Sample]:
    waiting: list[tuple[tuple[Frame, ...], RetainedNode]] = [((), row) for row in reversed(rows)]
    while waiting:
        above, row = waiting.pop()
        stack = (*above, Frame(frame_name(row.name)))
        parts = [child.totals for child in row.fields]
        for name, totals in ((f"{number(row.left)} more fields", row.more), ("retained by several fields", row.shared)):
            own = _least(totals, _rest(row.totals, parts))
            if own.blocks:
                parts.append(own)
                yield Sample((*stack, Frame(name)), (own.blocks, own.bytes))
        rest = _rest(row.totals, parts)
        if rest.blocks or rest.bytes:
            yield Sample((*stack, Frame(frame_name(row.what))) if row.what else stack, (rest.blocks, rest.bytes))
        waiting += [(stack, child) for child in reversed(row.fields)]


def _rest(whole: Totals, parts: Iterable[Totals]) -> Totals:
    listed = Totals.sum_of(parts)
    return Totals(max(whole.blocks - listed.blocks, 0), max(whole.bytes - listed.bytes, 0))


def _least(one: Totals, other: Totals) -> Totals:
    return Totals(min(one.blocks, other.blocks), min(one.bytes, other.bytes))
