"""Write the result of `track` as text, or as folded lines for flame graphs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Union

from findleaks.commands import Invocation
from findleaks.commands.limits import first, in_text
from findleaks.commands.stacks import line
from findleaks.formatting import format_count, hanging, number, printable, shorten, size, wrap
from findleaks.results.amounts import Amount
from findleaks.results.track import Tracked
from findleaks.tracking.merging import MergedStack, Variant
from findleaks.tracking.sites import Tally, TrackedSite, add_tallies
from findleaks.unwind.stacks import NamedFrame, without_parameters

STACKS = 10  # Maximum number of entries printed as text without --limit.
VARIANTS = 5  # Maximum number of variants of an entry that are printed.
FATES = ("lost", "held", "freed")
_WORDS = {
    "block": {"lost": "leaked", "held": "reachable", "freed": "freed"},
    "mapping": {"lost": "leaked", "held": "still mapped", "freed": "unmapped"},
}


def text(found: Sequence[MergedStack], body: Tracked, args: argparse.Namespace, width: int, invocation: Invocation) -> Iterator[str]:
    """Yield the entries, those with the most lost bytes first, then the summary."""
    about, noun = "≈ " if body.estimated and found else "", body.what.removesuffix("s")
    shown = first(found, in_text(args.limit, STACKS))
    for entry in shown:
        yield from _entry(entry, about, args.frames, width, noun)
        yield ""
    if len(shown) < len(found):
        yield f"  {format_count(sum(len(entry.sites) for entry in found[len(shown) :]), 'more stack')} (--limit 0)"
        yield ""
    if found:
        yield from _summary(found, body, about, width)
    else:
        yield from _nothing(body, args, width)
    yield f"  {format_count(body.recorded, noun)} recorded; {_afterwards(body, invocation)}."
    example = next((address for entry in found for address in entry.total.examples), None)
    if example is not None:
        yield from invocation.next(f"whatis {example:#x}", f"path {example:#x}")


def _summary(found: Sequence[MergedStack], body: Tracked, about: str, width: int) -> Iterator[str]:
    totals = body.totals
    noun = body.what.removesuffix("s")
    parts = ", ".join(f"{_amount(getattr(totals, name), about, noun)} {_word(name, noun)}" for name in FATES)
    stacks = format_count(sum(len(entry.sites) for entry in found), "stack")
    verb = "allocated" if noun == "block" else "mapped"
    yield from wrap(f"{_amount(totals.allocated, about, noun)} {verb} in {body.seconds:.1f} s by {stacks}: {parts}", width)
    if not totals.lost.blocks and not totals.held.blocks:
        yield f"  All of them were {_word('freed', noun)}."


def _nothing(body: Tracked, args: argparse.Namespace, width: int) -> Iterator[str]:
    of = f" of {args.size} bytes (requested or usable)" if args.size else ""
    what = "No block{} was allocated" if body.what == "blocks" else "No mapping{} was made"
    yield from wrap(f"{what.format(printable(of))} in {body.seconds:.1f} s.", width)
    for reason in body.reasons:
        yield from hanging("  - ", f"{reason.text}.", width)


def _afterwards(body: Tracked, invocation: Invocation) -> str:
    if not invocation.target:
        return "the process is stopped, as before"
    return f"{body.pid} is stopped, as before" if any(one.what == "stopped" for one in body.reasons) else f"{body.pid} keeps running"


def _entry(entry: MergedStack, about: str, most: int, width: int, noun: str) -> Iterator[str]:
    site = entry.total
    fates = ", ".join(_fates(site, about, noun))
    if len(entry.sites) > 1 and entry.key is not None:
        label = without_parameters(entry.key.function) or entry.key.label()
        fates = f"{printable(label, 200)}: {fates}, by {format_count(len(entry.sites), 'stack')}"
    yield f"  {fates}"
    for label, count in site.holders:
        yield f"    retained by {printable(label, width - 20)}: {format_count(count, 'recorded block')}"
    frames = first(entry.frames, most)
    yield from (f"      {line(frame, width - 6)}" for frame in frames)
    if len(frames) < len(entry.frames):
        yield f"      … {number(len(entry.frames) - len(frames))} more (--frames 0)"
    if site.end:
        yield f"      (incomplete: {site.end})"
    yield from _variants(entry.variants, about, width, noun)


def _variants(variants: Sequence[Variant], about: str, width: int, noun: str) -> Iterator[str]:
    for variant in variants[:VARIANTS]:
        labels = [printable(without_parameters(frame._replace(offset=0).label()), 100) for frame in variant.frames]
        callers = " ← ".join(labels) or "(the stack ends there)"
        stacks = f" ({format_count(variant.stacks, 'stack')})" if variant.stacks > 1 else ""
        head = f"      ← {', '.join(_fates(variant.total, about, noun))}: "
        yield head + shorten(callers, max(width - len(head) - len(stacks), 20)) + stacks
    rest = variants[VARIANTS:]
    if rest:
        total = TrackedSite()
        for variant in rest:
            add_tallies(total, variant.total)
        yield f"      ← {', '.join(_fates(total, about, noun))}: {format_count(len(rest), 'more variant')} (--json)"


def _fates(site: TrackedSite, about: str, noun: str) -> list[str]:
    return [f"{_amount(getattr(site, word), about, noun)} {_word(word, noun)}" for word in FATES if getattr(site, word).blocks]


def _word(fate: str, noun: str) -> str:
    """Return the word that says what became of blocks or mappings."""
    return _WORDS[noun][fate]


def _amount(tally: Union[Tally, Amount], about: str, noun: str) -> str:
    return f"{about}{format_count(round(tally.blocks), noun)} ({size(round(tally.bytes))})"


def fold_stacks(found: Sequence[TrackedSite], width: int, invocation: Invocation) -> Iterator[str]:
    """Yield folded stacks with the lost bytes. If none are lost, yield the held bytes."""
    for site in found:
        value = round(site.lost.bytes or site.held.bytes)
        if value:
            yield f"{';'.join(_name(frame) for frame in reversed(site.frames))} {value}"


def _name(frame: NamedFrame) -> str:
    name = without_parameters(frame.function) if frame.function else frame.module or hex(frame.address)
    return printable(name, 2000).replace(";", ",")
