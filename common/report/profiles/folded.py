"""Render Brendan Gregg's folded stacks: frame names, outermost first, separated by semicolons; a
space; a number.
flamegraph.pl, inferno, speedscope and others read this format. The number is the value of the
profile's main measure. If two snapshots are compared, there are two numbers, as difffolded.pl
prints them and `flamegraph.pl` draws them."""

from __future__ import annotations

from findleaks.report.profile import Profile


def render(profile: Profile) -> bytes:
    """Render one line per stack, the largest first."""
    at = profile.main
    sums: dict[str, tuple[int, int]] = {}
    for sample in profile.samples:
        line = ";".join(frame.name.replace(";", ":") for frame in sample.stack)
        before, after = sums.get(line, (0, 0))
        sums[line] = before + (sample.before[at] if profile.compared else 0), after + sample.values[at]
    ordered = sorted(sums.items(), key=lambda item: (-max(item[1]), item[0]))
    both = profile.compared
    lines = (f"{line} {before} {after}\n" if both else f"{line} {after}\n" for line, (before, after) in ordered if before or after)
    return "".join(lines).encode("utf-8", "replace")
