"""Text of `diff`: what grew most, a table of what grew, and the next commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from findleaks.commands import Invocation
from findleaks.commands.diff_survivors import clause
from findleaks.escaping import visible
from findleaks.formatting import counted, number, size, table, wrapped
from findleaks.history.growth import SMALL_GROUPS, Grown, Growth, Series
from findleaks.history.snapshot import differences
from findleaks.history.trend import Trend
from findleaks.quoting import shell_quoted

ROWS, FINDINGS = 10, 3
WORTH = 0.05
"""Part of all that grew from which on a row gets a sentence of its own."""
_TRENDS = {
    Trend.GROWING: "still growing at the end",
    Trend.PLATEAU: "growth that has ended (a plateau)",
    Trend.SAWTOOTH: "a saw-tooth, which comes back to its floor",
    Trend.FALLING: "falling",
}
_SHORT = {Trend.PLATEAU: "has ended", Trend.SAWTOOTH: "saw-tooth", Trend.FALLING: "falling"}


def text(growth: Growth, rows: Sequence[Grown], limit: int, width: int, invocation: Invocation, suggests: bool) -> Iterator[str]:
    """All lines. `rows` are those to list, `limit` how many of them, 0: all. `suggests`: whether
    there is a core or process for further commands."""
    yield from wrapped(headline(growth), width)
    for line in differences(growth.snapshots):
        yield from wrapped(f"  {line}", width)
    changed = [row for row in rows if row.trend is not Trend.FLAT]
    shown = changed[: limit or None]
    if shown:
        yield ""
        yield from table(("BEFORE", "AFTER", "GROWTH", "AN HOUR", "WHAT"), map(_cells, shown), range(4), width, 4)
    if len(changed) > len(shown):
        yield f"  … {number(len(changed) - len(shown))} more (--limit 0)"
    yield from _unchanged(rows, len(changed))
    yield from _findings(growth, width, invocation, suggests)


def headline(growth: Growth) -> str:
    """The first line: how much the process grew, and what grew most."""
    identity, total = growth.snapshots[-1].identity, growth.total
    program = visible(identity.program) or "the program"
    build = f" (build-id {visible(identity.build_id[:8])}…)" if identity.build_id else ""
    over = f" in {duration(growth.times[-1] - growth.times[0])}" if growth.times and growth.times[-1] > growth.times[0] else ""
    grew = f"{program}{build}: {_signed(total.series, total.series.delta)} {total.series.key[2]}{over}"
    top = next((row for row in growth.rows if grows(row)), None)
    if top is None:
        return f"{grew}; {_nothing(growth)}"
    rate = f", {_rate(top)} an hour" if top.per_hour is not None else ""
    return f"{grew}; most of it: {_signed(top.series, top.series.delta)}{rate}, {label(top)}" + (
        f"; {_TRENDS[top.trend]}" if top.trend in _TRENDS else ""
    )


def grows(row: Grown) -> bool:
    """Whether a row grew, and may go on to."""
    return row.series.delta > 0 and row.trend in (Trend.GROWING, Trend.TWO_POINTS)


def _nothing(growth: Growth) -> str:
    ended = [row for row in growth.rows if row.trend is Trend.PLATEAU]
    if ended:
        return f"nothing grows any more; what grew at first: {_signed(ended[0].series, ended[0].series.delta)}, {label(ended[0])}"
    return "nothing grows"


def _cells(row: Grown) -> tuple[str, ...]:
    series, values = row.series, row.series.values
    hour = _rate(row) if row.per_hour is not None and grows(row) else "–"
    ending = f" ({_SHORT[row.trend]})" if row.trend in _SHORT else ""
    return (_amount(series, values[0]), _amount(series, values[-1]), _signed(series, series.delta), hour, label(row) + ending)


def _unchanged(rows: Sequence[Grown], changed: int) -> Iterator[str]:
    rest = [row.series for row in rows if row.trend is Trend.FLAT and row.series.in_bytes]
    if rest and changed:
        first, last = (sum(one.values[at] for one in rest) for at in (0, -1))
        yield f"  everything else ({counted(len(rest), 'row')}): {size(first)}, then {size(last)}"


def label(row: Grown) -> str:
    """What a row is of, for a reader."""
    section, within, name = row.series.key
    last = row.inside[-1] if row.inside else None
    if section == "lost":
        what = f"lost for sure: {name}" if name != SMALL_GROUPS else "lost for sure: groups that each changed little"
        note = f", e.g. {row.series.note}" if row.series.note else ""
        return f"{what}{note}, {_change(row.series, 'blocks')}"
    if section == "threads":
        return f"threads: {name}"
    if section in ("field", "container"):
        return _held(within, row.series, row.series)
    if section == "root":
        return _held(name, row.series, last)
    if section == "share":
        what = f"{name.replace(': kept', ': free but kept').replace(': runtime', '')}"
        if last is None:
            return what + (f", {_change(row.series, '')}" if row.series.counts[0] != row.series.counts[-1] else "")
        if last.key[0] == "threads":
            return f"{what}, {_change(last, 'threads')} in {last.key[2]}"
        return f"{what}: {last.key[2]}, {_change(last, 'objects')}"
    what = (f"{within}: " if within else "") + name
    changed = row.series.in_bytes and row.series.counts[0] != row.series.counts[-1]
    return what + (f", {_change(row.series, _NOUNS.get(section, ''))}" if changed else "")


_NOUNS = {
    "mapping": "mappings",
    "kind": "blocks",
    "type": "blocks",
    "cache": "blocks",
    "allocator": "blocks",
    "runtime type": "objects",
    "native": "blocks",
    "handles": "handles",
}


def _held(name: str, root: Series, part: Series | None) -> str:
    """What the root `name` holds, or what `part` of it does."""
    if part is None or part.key[0] == "field":
        path = f" → {part.key[2]}" if part is not None else ""
        return f"held by {name}{path}, {_change(part or root, 'blocks')}"
    if part.key[0] == "handles":
        return f"V8's handle scopes ({part.key[2]}), {_change(part, 'handles')}; held by {name}"
    if part.key[0] == "native":
        return f"native memory of {part.key[1]}'s {part.key[2]}, {_change(part, 'blocks')}; held by {name}"
    what, _, unit = part.note.rpartition(", ")
    path = f" → {part.key[2]}" if part.key[2] != name else ""
    return f"held by {name}{path}{what and ': '}{what}, {_change(part, unit)}"


def _change(series: Series, noun: str) -> str:
    first, last = series.counts[0], series.counts[-1]
    noun = f" {noun}" if noun else ""
    return f"{last or 0:,}{noun}" if first == last or first is None else f"{first:,} → {last or 0:,}{noun}"


def _amount(series: Series, value: int) -> str:
    return size(value) if series.in_bytes else number(value)


def _signed(series: Series, value: float) -> str:
    return f"{'−' if value < 0 else '+'} {_amount(series, abs(int(value)))}"


def _rate(row: Grown) -> str:
    return _signed(row.series, row.per_hour.slope) if row.per_hour is not None else ""


def duration(span: float) -> str:
    """ "2 h", "3.5 min", "12 s"."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if span >= 2 * length:
            return f"{span / length:.3g} {unit}"
    return f"{span:.3g} s"


def findings(growth: Growth) -> list[Grown]:
    """The rows that are worth a sentence."""
    grown = sum(row.series.delta for row in growth.rows if grows(row) and row.series.in_bytes)
    top = [row for row in growth.rows if grows(row) and row.series.delta >= WORTH * grown and not row.series.key[2].endswith(": metadata")]
    return top[:FINDINGS]


def _findings(growth: Growth, width: int, invocation: Invocation, suggests: bool) -> Iterator[str]:
    for at, row in enumerate(findings(growth), 1):
        yield ""
        stayed = clause(growth.survival, (row.series, *row.inside))
        yield from wrapped(f"  {at}. {sentence(row)}" + (f" {stayed}" if stayed else ""), width)
        if suggests and (words := suggestion(row)):
            yield from ("   " + line for line in invocation.next(width - 3, words))


def sentence(row: Grown) -> str:
    """What a row that grew means."""
    section, _, name = row.series.key
    rate = f", {_rate(row)} an hour" if row.per_hour is not None else ""
    error = ""
    if row.trend is Trend.GROWING and row.per_hour is not None:
        low, high = (_signed(row.series, value) for value in (row.per_hour.low, row.per_hour.high))
        error = f" (Theil–Sen; 95 %: {low} to {high})"
    if section == "lost":
        kind = "Lost, and growing: nothing refers to it"
    elif section == "share":
        kind = {
            "kept": "No leak: the allocator keeps free memory",
            "cached": "No leak: the allocator keeps free blocks in its caches",
            "metadata": "The allocator's own data",
            "runtime": "A runtime's own heap grows",
        }.get(name.rpartition(": ")[2], "It grows outside of all allocators")
        if name == "stacks":
            kind = "More stacks: threads are started and do not end"
        elif name == "files":
            kind = "More of mapped files is in memory"
    else:
        kind = "Held, and growing"
    return f"{kind}{rate}{error}: {label(row)}."


def suggestion(row: Grown) -> str:
    """Words of the command that says more about a row; "" for none."""
    section, _, name = row.series.key
    last = row.inside[-1].key[0] if row.inside else ""
    if section == "lost":
        exact = re.match(r"(?:.* \()?(\d+) B", name)
        return f"blocks --kind lost --size {exact[1]} --limit 5" if exact else "find --kind definite"
    if last == "handles":
        return "scopes"
    if last == "native" or last == "runtime type":
        return "runtime"
    if section == "root":
        return f"roots {shell_quoted(_pattern(name))} --depth 4"
    if name == "stacks":
        return "stacks"
    return "verdict" if not name.endswith("kept") else "map"


def _pattern(name: str) -> str:
    """The name as `roots` takes it: addresses, which differ each time, by a wildcard."""
    return name.replace("…", "*")
