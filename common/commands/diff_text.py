"""Text of `diff`: the largest growth, a table of what grew, and suggested commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.audit.mappings import describe_mapping_kind
from findleaks.audit.reference_evidence import explain_uncollected_garbage
from findleaks.commands import Invocation
from findleaks.commands.diff_descriptors import describe_descriptors, suggest_calls
from findleaks.commands.diff_survivors import clause
from findleaks.escaping import visible
from findleaks.formatting import format_count, hanging, number, size, table, with_article, wrap
from findleaks.history.figure_series import REST, Series
from findleaks.history.figures import ARROW, DESCRIPTORS, MAPPING, SEVERAL
from findleaks.history.growth import CLASS_METADATA, EXPLAINS, MIN_BYTES, MIN_PART, SMALL_GROUPS, Grown, Growth
from findleaks.history.snapshot import differences
from findleaks.history.trend import MIN_INTERVAL, Trend
from findleaks.quoting import shell_quoted
from findleaks.results.share_sort import ShareSort

ROWS, FINDINGS = 10, 3
WORTH = 0.05
"""A row gets a sentence if it has at least this fraction of the whole growth."""
_OBJECTS = 8  # types of objects that are named for each runtime
_TRENDS = {
    Trend.GROWING: "still growing at the end",
    Trend.PLATEAU: "growth that has ended (a plateau)",
    Trend.SAWTOOTH: "a saw-tooth, which returns to its floor",
    Trend.FALLING: "falling",
}
_SHARES: dict[str, str] = {
    ShareSort.IN_USE: "in use",
    ShareSort.CACHED: "free, in thread caches",
    ShareSort.KEPT: "free and not returned",
    ShareSort.METADATA: "metadata (headers, descriptors)",
    ShareSort.UNJOINED: "stacks of threads that ended and were never joined",
    ShareSort.CACHED_STACKS: "stacks of ended threads, cached for new ones",
    ShareSort.FILES: "files mapped",
    ShareSort.SHARED: "shared memory",
    ShareSort.KERNEL: "kernel mappings (vdso)",
    ShareSort.LEAKED_MAPPINGS: "leaked anonymous mappings",
    ShareSort.UNKNOWN: "unattributed",
}
"""Names of the shares, as in `verdict`."""
# Shares whose growth is explained by kinds of mappings
DEEP = 1 << 20
"""If stacks grow by this number of bytes for each new thread, at least one of them is deep."""
_OF_MAPPINGS = (ShareSort.FILES, ShareSort.SHARED, ShareSort.UNKNOWN)
FILES = ("share", "", "files")
"""The key of the share that contains the resident pages of files."""
_SHORT = {Trend.PLATEAU: "has ended", Trend.SAWTOOTH: "saw-tooth", Trend.FALLING: "falling"}


def text(growth: Growth, rows: Sequence[Grown], limit: int, width: int, invocation: Invocation, suggests: bool = True) -> Iterator[str]:
    """Yield all lines. `rows`: the rows from which the table is printed. `limit`: maximum number of
    rows (0: all). `suggests`: whether further commands can be suggested for a core or process."""
    yield from wrap(headline(growth), width)
    for line in differences(growth.snapshots):
        # The headline already contains the line about several processes.
        if not growth.several or growth.several not in line:
            yield from wrap(f"  {line}", width)
    # With --by, `rows` has the rows of one kind, and also those that changed little are listed.
    explaining = rows is growth.rows
    known = [row for row in rows if None not in (row.series.compared[0], row.series.compared[-1])]
    changed: list[Grown] = []
    rest: list[Grown] = []
    for row in known:
        differs = row.trend is not Trend.FLAT or (row.series.delta and not explaining)
        (changed if differs else rest).append(row)
    shown = changed[: limit or None]
    if not shown and not explaining:
        yield ""
        yield f"  {format_count(len(rest), 'row')}, none of which changed" if rest else "  there are no figures of this kind"
    if shown:
        yield ""
        if growth.several:
            head, rows_ = ("FIRST", "LAST", "DIFFERENCE", "WHAT"), (cells[:3] + cells[4:] for cells in map(_cells, shown))
            yield from table(head, rows_, range(3), width, 3)
        else:
            yield from table(("BEFORE", "AFTER", "GROWTH", "AN HOUR", "WHAT"), map(_cells, shown), range(4), width, 4)
    if len(changed) > len(shown):
        yield f"  … {number(len(changed) - len(shown))} more (--limit 0)"
    if changed:
        yield from _format_unchanged([row.series for row in rest if row.series.in_bytes])
    if explaining:
        yield from _findings(growth, width, invocation, suggests)
        yield from _objects(growth, width)


def headline(growth: Growth) -> str:
    """Return the first line: how much the process grew, and what grew most. If the snapshots are of
    several processes, the line states this, and names the largest difference."""
    identity, total = growth.snapshots[-1].identity, growth.total
    program = visible(identity.program) or "the program"
    build = f" (build-id {visible(identity.build_id[:8])}…)" if identity.build_id else ""
    over = f" in {duration(growth.times[-1] - growth.times[0])}" if growth.times and growth.times[-1] > growth.times[0] else ""
    grew = f"{program}{build}: {_format_signed(total.series, total.series.delta)} {total.series.key[2]}{over}"
    top = next(iter(_by_importance(growth)), None)
    if growth.several:
        differs = f"; what differs most: {_format_signed(top.series, top.series.delta)}, {label(top)}" if top is not None else ""
        total_ = f"{_format_signed(total.series, total.series.delta)} {total.series.key[2]}"
        return f"several processes of {program}{build}, not one ({growth.several}): {total_} from the first to the last{differs}"
    if top is None:
        return f"{grew}; {_nothing(growth)}"
    rate = f", {_rate(top)} an hour" if top.per_hour is not None else ""
    return f"{grew}; what grew most: {_format_signed(top.series, top.series.delta)}{rate}, {label(top)}" + (
        f"; {_TRENDS[top.trend]}" if top.trend in _TRENDS else ""
    )


def _by_importance(growth: Growth) -> list[Grown]:
    """Return the rows that grow, most growth first. Pages of files come last unless they are nearly
    all of the growth: reading a process in a debugger makes more of them resident, and the kernel
    drops them when memory is short."""
    rows = [row for row in growth.rows if grows(row)]  # those that have bytes come first
    few = EXPLAINS * growth.total.series.delta
    return sorted(rows, key=lambda row: row.series.key == FILES and row.series.delta < few)


def grows(row: Grown) -> bool:
    """Whether a row grew, and may continue to grow."""
    return row.series.delta > 0 and row.trend in (Trend.GROWING, Trend.TWO_POINTS)


def _nothing(growth: Growth) -> str:
    ended = [row for row in growth.rows if row.trend is Trend.PLATEAU]
    if ended:
        return f"nothing grows any more; grew at first: {_format_signed(ended[0].series, ended[0].series.delta)}, {label(ended[0])}"
    swings = [row for row in growth.rows if row.trend is Trend.SAWTOOTH]
    if swings:
        top = max(swings, key=lambda row: max(row.series.values) - min(row.series.values))
        between = f"between {_amount(top.series, min(top.series.values))} and {_amount(top.series, max(top.series.values))}"
        return f"nothing grows; largest saw-tooth: {between}, {label(top)}"
    # Leaks are named even if they are too small for a row: the growth may have just begun.
    least = f"{size(MIN_BYTES)} and {100 * MIN_PART:g} %"
    lost = sum(row.series.delta for row in growth.rows if row.series.key[0] == "lost" and row.series.known)
    if lost > 0:
        return f"nothing grows by more than {least}; leaked blocks: + {size(int(lost))}"
    return f"nothing grows by more than {least}" if growth.total.series.delta > 0 else "nothing grows"


def _cells(row: Grown) -> tuple[str, ...]:
    series = row.series
    before, after = (_amount(series, value) for value in (series.values[0], series.values[-1]))
    hour = _rate(row) if row.per_hour is not None and grows(row) else "–"
    ending = f" ({_SHORT[row.trend]})" if row.trend in _SHORT else ""
    return before, after, _format_signed(series, series.delta), hour, label(row) + ending


def _format_unchanged(rest: Sequence[Series]) -> Iterator[str]:
    if rest:
        first, last = (sum(one.values[at] for one in rest) for at in (0, -1))
        yield f"  everything else ({format_count(len(rest), 'row')}): {size(first)}, then {size(last)}"


def label(row: Grown) -> str:
    """Return the name of a row as the text shows it."""
    section, within, name = row.series.key
    if section == "lost":
        what = f"leaked: {name}" if name != SMALL_GROUPS else "leaked: groups, each of which changed little"
        note = f", e.g. {row.series.note}" if row.series.note else ""
        return f"{what}{note}, {_change(row.series, 'mappings' if name.startswith(MAPPING) else 'blocks')}"
    if section == "garbage":
        types = f": {_types(row.inside)}" if row.inside else ""
        return f"garbage that {name}'s collector has not freed, {_change(row.series, 'blocks')}{types}"
    if section == "garbage type":
        return f"garbage of {within}: {name}, {_change(row.series, 'objects')}"
    if section == "threads":
        return f"threads: {name}"
    if section == "heap root":
        return f"{within}'s heap: retained by {name}, {_change(row.series, 'objects')}"
    if section == "user threads":
        return f"stacks of {_change(row.series, row.series.note)}: {name}"
    if section in ("root", "field", "container", "handles", "native"):
        return _format_held(row)
    if section == "share":
        return _share(row)
    if section == DESCRIPTORS:
        return describe_descriptors(name)
    if section == "mapping":
        return _mappings(row.series)
    what = (f"{within}: " if within else "") + name
    changed = row.series.in_bytes and row.series.counts[0] != row.series.counts[-1]
    return what + (f", {_change(row.series, _NOUNS.get(section, ''))}" if changed else "")


_NOUNS = {
    "kind": "blocks",
    "type": "blocks",
    "cache": "blocks",
    "allocator": "blocks",
    "runtime type": "objects",
    "native": "blocks",
    "handles": "handles",
}


def _format_held(row: Grown) -> str:
    chain = (row.series, *(one for one in row.inside if one.key[0] != "objects"))
    parts = {one.key[0]: one for one in chain}
    root = row.series.key[1 if row.series.key[0] in ("field", "container") else 2]
    if handles := parts.get("handles"):
        return f"V8's handle-scope blocks ({handles.key[2]}), {_change(handles, 'handles')}"
    if native := parts.get("native"):
        objects = f"{_change(parts['runtime type'], 'objects')}, " if "runtime type" in parts else ""
        return f"native memory of {native.key[1]}'s {native.key[2]}, {objects}{_change(native, 'blocks')}"
    last = chain[-1]
    if last.key[0] == "root":
        blocks = f", {_change(last, 'blocks')}" if last.counts[-1] is not None else ""
        return f"retained by {root}{', the rest' if row.series.note == REST else ''}{blocks}"
    path = [] if last.key[2] == root else [last.key[2]]
    where = ARROW.join(path if root == SEVERAL else [root, *path])
    if last.key[0] == "field":
        return f"retained by {where}, {_change(last, 'blocks')}"
    what, unit = last.note.partition(", ")[0], last.note.rpartition(", ")[2]
    return f"retained by {where}: {what}, {_change(last, unit)}"


def _share(row: Grown) -> str:
    series, last = row.series, row.inside[-1] if row.inside else None
    owner, _, sort = series.key[2].rpartition(": ")
    if sort == "stacks":
        stack = f", {_change(last, 'of them')} in {last.key[2]}" if last is not None else ""
        return f"stacks of threads, {_change(series, 'threads')}{stack}"
    what = f"{owner}: {_SHARES.get(sort, sort)}" if owner and sort != "runtime" else owner or _SHARES.get(sort, sort)
    what += ", the rest" if series.note == REST else ""
    counts = f", {_change(series, series.note)}" if series.note not in ("", REST) and any(series.counts) else ""
    if last is None:
        return what + counts
    named = ", ".join(_mappings(one, series) for one in row.inside) if sort in _OF_MAPPINGS else _types(row.inside)
    return f"{what}{counts}: {named}"


def _mappings(series: Series, of: Optional[Series] = None) -> str:
    """Return "60 → 120 mappings of /memfd:frame", or "60 → 120 anonymous mappings of 2.0 MiB to 4.0
    MiB". If there is only one mapping and it has grown, return "a mapping of /memfd:frame that has
    grown to 8.0 MiB". `of`: the share with these mappings. If its number of mappings is unchanged,
    a single new anonymous mapping of a size is an old one that has grown."""
    name, is_single = describe_mapping_kind(series.key[2]), series.counts[-1] == 1
    is_anonymous = "anonymous mappings" in name
    if not is_anonymous:
        name = f"{'mapping' if is_single else 'mappings'} of {name}"
    elif is_single:
        name = name.replace("anonymous mappings", "anonymous mapping")
    is_old = is_anonymous and not series.counts[0] and of is not None and of.counts[0] == of.counts[-1]
    has_grown = is_old or (series.counts[0] == 1 and (series.values[-1] or 0) > (series.values[0] or 0))
    if is_single and has_grown:
        return f"{with_article(name.partition(' of ')[0] if is_anonymous else name)} that has grown to {size(series.values[-1])}"
    return f"{_change(series, '')} {name}"


def _types(types: Sequence[Series]) -> str:
    return ", ".join(f"{one.key[2]} {_change(one, '')}" for one in types)


def _change(series: Series, noun: str) -> str:
    first, last = series.counts[0], series.counts[-1]
    noun = f" {noun.removesuffix('s') if last == 1 else noun}" if noun else ""
    return f"{last or 0:,}{noun}" if first == last or first is None else f"{first:,} → {last or 0:,}{noun}"


def _objects(growth: Growth, width: int) -> Iterator[str]:
    """Yield a line about the types whose number of objects grew."""
    listed = list(growth.objects()) if any(grows(row) for row in growth.rows) else []
    if listed:
        yield ""
    for runtime, types in listed:
        more = f" and {len(types) - _OBJECTS} more (diff --by runtime)" if len(types) > _OBJECTS else ""
        yield from wrap(f"  Objects of {runtime} that grew most: {_types(types[:_OBJECTS])}{more}", width)


def _amount(series: Series, value: int) -> str:
    return size(value) if series.in_bytes else number(value)


def _format_signed(series: Series, value: float) -> str:
    return f"{'−' if value < 0 else '+'} {_amount(series, abs(int(value)))}"


def _rate(row: Grown) -> str:
    return _format_signed(row.series, row.per_hour.slope) if row.per_hour is not None else ""


def duration(span: float) -> str:
    """Return a time span as text: "2 h", "3.5 min", "12 s"."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if span >= 2 * length:
            return f"{span / length:.3g} {unit}"
    return f"{span:.3g} s"


def findings(growth: Growth) -> list[Grown]:
    """Return the rows that get a sentence."""
    grown = sum(row.series.delta for row in growth.rows if grows(row) and row.series.in_bytes)
    rows = _by_importance(growth)
    top = [row for row in rows if row.series.delta >= WORTH * grown and not row.series.key[2].endswith(": metadata")]
    return [*[row for row in top if row.series.in_bytes][:FINDINGS], *[row for row in rows if row.series.key[0] == DESCRIPTORS][:1]]


def _findings(growth: Growth, width: int, invocation: Invocation, suggests: bool) -> Iterator[str]:
    for at, row in enumerate(findings(growth), 1):
        yield ""
        stayed = clause(growth.survival, (row.series, *row.inside))
        yield from hanging(f"  {at}. ", " ".join(filter(None, (sentence(row, bool(growth.several)), stayed))), width)
        if suggests and (words := _suggestions(row, invocation)):
            yield from ("   " + line for line in invocation.next(*words))


def sentence(row: Grown, several: bool = False) -> str:
    """Return a sentence that explains the growth of a row. If the snapshots are of `several`
    processes, it names what the last process has more of."""
    section, _, name = row.series.key
    if several:
        more = "The last process has more"
        kind = {"lost": "More is leaked in the last process", "share": more, "garbage": more, DESCRIPTORS: more}.get(
            section, "More is retained in the last process"
        )
        return f"{kind}: {_format_signed(row.series, row.series.delta)}, {label(row)}{_with_objects(row)}."
    rate = f", {_rate(row)} an hour" if row.per_hour is not None else ""
    error = ""
    if row.trend is Trend.GROWING and row.per_hour is not None:
        low, high = (_format_signed(row.series, value) for value in (row.per_hour.low, row.per_hour.high))
        # With fewer points, the slopes do not give a 95 % interval.
        error = f" (Theil–Sen; {'95 %: ' if len(row.series.values) >= MIN_INTERVAL else ''}{low} to {high})"
    if section == "lost":
        kind = "Leaked, and growing: nothing refers to it"
    elif section == "garbage":
        kind = f"Garbage, not leaked, and growing ({explain_uncollected_garbage(False if row.series.note == 'disabled' else None)})"
    elif section == DESCRIPTORS:
        kind = "More descriptors are open"
    elif section == "share":
        kinds: dict[str, str] = {
            ShareSort.KEPT: "Not a leak: the allocator keeps free memory",
            ShareSort.CACHED: "Not a leak: the allocator keeps free blocks in thread caches",
            ShareSort.METADATA: "Allocator metadata grows",
            ShareSort.RUNTIME: "A managed heap grows",
            ShareSort.SHARED: "More shared memory is mapped",
            ShareSort.UNKNOWN: "More memory is mapped outside of all allocators",
            ShareSort.UNJOINED: "More stacks: threads end and are never joined",
            ShareSort.LEAKED_MAPPINGS: "Leaked, and growing: no word refers to these mappings",
        }
        kind = kinds.get(name.rpartition(": ")[2], "Growth outside of all allocators")
        if section == "share" and name.endswith(f" {CLASS_METADATA}: {ShareSort.RUNTIME}"):
            kind = "Class metadata grows: classes are loaded and their class loaders are not garbage"
        if name == "stacks":
            kind = "More stacks: threads are started and do not end"
            if row.series.delta >= DEEP * max((row.series.counts[-1] or 0) - (row.series.counts[0] or 0), 1):
                kind = "Deeper stacks: calls are nested deeper, or functions have large local variables"
        elif name == "files":
            kind = "More pages of files are in memory (the kernel drops those that were not written to when memory is short)"
    else:
        kind = "In use, and growing"
    note = " Each of them takes kernel memory, which no other row contains." if section == DESCRIPTORS else ""
    return f"{kind}{rate}{error}: {label(row)}{_with_objects(row)}.{note}"


def _with_objects(row: Grown) -> str:
    """Return a clause about the memory that a variable retains, if part of it is objects in a
    managed heap."""
    for one in row.inside:
        if one.key[0] == "objects":
            within = one.values[-1]
            return (
                f", now with {size(row.series.values[-1] - within)} of native memory, and {size(within)} of {one.key[1]}'s heap in "
                f"{_change(one, 'objects')}"
            )
    return ""


def _suggestions(row: Grown, invocation: Invocation) -> tuple[str, ...]:
    section, _, name = row.series.key
    if section == DESCRIPTORS:  # calls are counted in running processes only
        return suggest_calls(name) if not invocation.target or invocation.target.startswith("--pid ") else ()
    return tuple(filter(None, (suggestion(row),)))


def suggestion(row: Grown) -> str:
    """Return the command that shows more about a row; "" if there is none."""
    section, within, name = row.series.key
    last = row.inside[-1].key[0] if row.inside else section
    if section == "lost":
        exact = re.match(r"(?:.* \()?(\d+) B", name)
        return f"blocks --kind leaked --size {exact[1]} --limit 5" if exact else "find --kind definite"
    if section == "garbage":
        return "find --kind definite"
    if last == "handles":
        return "scopes"
    if last in ("native", "runtime type", "counter"):
        return "runtime"
    if section == "user threads" or (section == "heap root" and name.startswith("goroutines")):
        return "stacks"
    if section == "heap root":
        return "roots" if name == SEVERAL else f"roots {shell_quoted(_pattern(name))}"
    if SEVERAL in (name, within):
        return "roots --depth 4"
    if section == "root":
        return f"roots {shell_quoted(_pattern(name))} --depth 4"
    if section == "field":
        return f"roots {shell_quoted(_pattern(within))} --depth 4"
    if name == "stacks":
        return "stacks"
    return "verdict" if not name.endswith("kept") else "map"


def _pattern(name: str) -> str:
    """Return the name as a pattern for `roots`. Addresses become wildcards, because they differ
    between processes. The dollar sign of a Ruby variable becomes a wildcard, because debuggers
    would evaluate it."""
    return re.sub(r"^\$", "?", name.replace("…", "*"))
