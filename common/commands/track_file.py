"""Write the file of `track -o`: the recorded stacks, and what became of their blocks."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.commands.export import of_target, write_profile
from findleaks.commands.profiles import blocks_measures, call_frame
from findleaks.commands.result import Plain
from findleaks.errors import FindleaksError
from findleaks.formatting import printable
from findleaks.report.profile import Frame, Measure, Profile, Sample
from findleaks.session import Session
from findleaks.tracking.sites import Tally, TrackedSite
from findleaks.unwind.stacks import NamedFrame

FATES = ("lost", "held", "freed", "allocated")
"""The measures of the profile: what became of the blocks. A measure is omitted if no block has
it."""


def write(session: Session, result: Plain, found: Sequence[TrackedSite], file: str, form: str, estimated: bool) -> None:
    """Write the file. If this fails, the reason is added to the result, because the recorded stacks
    must be printed anyway."""
    try:
        profile = of_tracked(f"Tracked blocks: {session.target.description}", found, estimated)
        result.written = write_profile(session, of_target(profile, session.target), file, form)
    except FindleaksError as error:
        result.status = 2
        result.warnings.append(printable(str(error), 600))


def of_tracked(title: str, found: Sequence[TrackedSite], estimated: bool) -> Profile:
    """Return a profile of blocks and bytes by call stack, with two measures for each of FATES."""
    fates = [fate for fate in FATES if any(_tally(site, fate).blocks for site in found)] or ["allocated"]
    measures: list[Measure] = []
    for fate in fates:
        measures += blocks_measures(fate)
    known: dict[NamedFrame, Frame] = {}
    samples = []
    for site in found:
        stack = tuple(known.get(one) or known.setdefault(one, call_frame(one)) for one in reversed(site.frames))
        tallies = [_tally(site, fate) for fate in fates]
        samples.append(Sample(stack, tuple(round(value) for tally in tallies for value in (tally.blocks, tally.bytes))))
    notes = ["estimates: not every block was recorded"] if estimated else []
    return Profile(title, measures, samples, notes=notes)


def _tally(site: TrackedSite, fate: str) -> Tally:
    found: Tally = getattr(site, fate)
    return found
