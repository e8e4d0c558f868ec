"""Output of `track` as text, and as folded lines for flame graphs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from findleaks.commands import Invocation
from findleaks.commands.limits import first, in_text
from findleaks.commands.stacks import line
from findleaks.formatting import counted, number, printable, size
from findleaks.tracking.sites import Site, Tally
from findleaks.unwind.stacks import NamedFrame, without_parameters

STACKS = 10  # stacks printed as text without --limit


def text(found: Sequence[Site], body: Mapping[str, Any], args: argparse.Namespace, width: int, invocation: Invocation) -> Iterator[str]:
    """Stacks, the one that most is lost of first; then the summary."""
    about = "≈ " if body["estimated"] else ""
    shown = first(found, in_text(args.limit, STACKS))
    for site in shown:
        yield from _site(site, about, args.frames, width)
        yield ""
    if len(shown) < len(found):
        yield f"  {counted(len(found) - len(shown), 'more stack')} (--limit 0)"
        yield ""
    totals = {name: Tally(**tally) for name, tally in body["totals"].items()}
    parts = ", ".join(f"{_amount(totals[name], about)} {name}" for name in ("lost", "held", "freed"))
    yield f"{_amount(totals['allocated'], about)} allocated in {body['seconds']:.1f} s by {counted(len(found), 'stack')}: {parts}"
    runs = f"{body['pid']} runs on" if invocation.target else "the process is stopped, as before"
    yield f"  {counted(body['recorded'], 'block')} recorded; {runs}."
    example = next((address for site in found for address in site.examples), None)
    if example is not None:
        yield from invocation.next(width, f"whatis {example:#x}", f"path {example:#x}")


def _site(site: Site, about: str, most: int, width: int) -> Iterator[str]:
    fates = [(site.lost, "lost"), (site.held, "held"), (site.freed, "freed")]
    yield "  " + ", ".join(f"{_amount(tally, about)} {word}" for tally, word in fates if tally.blocks)
    for label, count in site.holders:
        yield f"    held by {printable(label, width - 16)}: {counted(count, 'recorded block')}"
    frames = first(site.frames, most)
    yield from (f"      {line(frame, width - 6)}" for frame in frames)
    if len(frames) < len(site.frames):
        yield f"      … {number(len(site.frames) - len(frames))} more (--frames 0)"
    if site.end:
        yield f"      (not whole: {site.end})"


def _amount(tally: Tally, about: str) -> str:
    return f"{about}{counted(round(tally.blocks), 'block')} ({size(round(tally.bytes))})"


def folded(found: Sequence[Site], width: int, invocation: Invocation) -> Iterator[str]:
    """Folded stacks, with the bytes that are lost, or, where none are, held."""
    for site in found:
        value = round(site.lost.bytes or site.held.bytes)
        if value:
            yield f"{';'.join(_name(frame) for frame in reversed(site.frames))} {value}"


def _name(frame: NamedFrame) -> str:
    name = without_parameters(frame.function) if frame.function else frame.module or hex(frame.address)
    return printable(name, 2000).replace(";", ",")
