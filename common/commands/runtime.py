"""The `runtime` command: lists the objects of managed runtimes (Ruby, CPython, V8, JVM, Go), the
native memory that they retain, and the part of it that the runtime knows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from findleaks.answers.runtimes import describe_runtimes
from findleaks.audit.managed import RuntimeHoldings, TypeHoldings
from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit, in_text
from findleaks.commands.result import Plain
from findleaks.formatting import counted, number, printable, size, table, wrapped
from findleaks.runtimes.base import Count, Part, Site
from findleaks.runtimes.directory import known
from findleaks.session import Session

NONE = "–"  # A cell without a value.
ROWS = 20  # Most types and sites printed as text without --limit.
GARBAGE = "garbage_bytes"  # Key of a type's own counts: objects that are not collected yet.
PARTS = 20  # At least this many parts are printed below a part, even with a smaller --limit.


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=known(), help="only this runtime")
    parser.add_argument(
        "--no-native", action="store_true", help="do not search for leaked objects and for native memory of objects: faster"
    )
    parser.add_argument("--by", choices=("type", "package"), default="type", help="sum objects by type, or by the package of their type")
    add_limit(parser, "types and sites", ROWS)


@command(arguments=_arguments)
def runtime(session: Session, args: argparse.Namespace) -> Plain:
    """Show for each managed runtime its own counters, its own memory (V8's heap by isolate and
    space), its live objects by type, and the native blocks that only objects of this type retain.
    REPORTED is the native memory that the objects reported to the runtime: memory that a runtime
    does not know of does not trigger a collection. Native memory that objects of several types
    share is not attributed to a type; --by package counts the types of a package as one. Allocation
    sites are listed if the runtime records them (tracemalloc, NMT). LEAKED is the number of objects
    that no root reaches, if each object is an allocator's block (CPython)."""
    answer = describe_runtimes(session, args.only, not args.no_native, args.by == "package", args.limit)
    found, sites = answer.holdings, answer.sites
    text = partial(_text, found, sites, in_text(args.limit, ROWS))
    problems = [problem.what for one in found for problem in one.runtime.problems]
    return Plain(session, "runtime", answer.result, text, 0 if found else 2, further=problems)


def _text(
    found: Sequence[RuntimeHoldings], sites: Sequence[Sequence[Site]], limit: int, width: int, invocation: Invocation
) -> Iterator[str]:
    if not found:
        yield f"no managed runtime found; supported are: {', '.join(known())}"
        return
    for at, (one, its) in enumerate(zip(found, sites)):
        if at:
            yield ""
        yield from _page(one, its, limit, width)
    yield from invocation.next(width, "roots", "verdict")


def _page(one: RuntimeHoldings, sites: Sequence[Site], limit: int, width: int) -> Iterator[str]:
    runtime = one.runtime
    headline = f"{runtime.name} {runtime.version}".strip() + (f" in {printable(runtime.where)}" if runtime.where else "")
    held = f", which retain {size(one.native.bytes)} of native memory" if one.native is not None else ""
    live = f": {counted(one.objects, 'live object')} of {size(one.object_bytes)}{held}" if one.types else ""
    yield from wrapped(f"{headline}{live}", width)
    parts = runtime.parts()
    if parts:
        yield ""
        yield from table(("BYTES", "USED", "MEMORY", ""), list(_rows(parts, limit and max(limit, PARTS))), (0, 1), width, cut=3)
    if one.types:
        yield ""
        yield from _types(one, limit, width)
    if sites:
        yield ""
        shown = sites[: limit or None]
        asked = [(number(site.blocks), size(site.bytes), printable(" < ".join(site.frames))) for site in shown]
        yield from table(("BLOCKS", "BYTES", "ALLOCATED AT"), asked, (0, 1), width, cut=2)
        yield from _more(len(sites), limit, "site")
    counters = runtime.counters()
    if counters:
        yield ""
        yield from table(("VALUE", "COUNTER"), [(_value(count), name) for name, count in counters.items()], (0,), width, cut=1)


def _rows(parts: Sequence[Part], limit: int, indent: str = "") -> Iterator[tuple[str, str, str, str]]:
    """A row for each part, followed by its own non-empty parts, at most `limit` (0: all)."""
    for part in parts:
        yield size(part.bytes), size(part.used) if part.used is not None else NONE, f"{indent}{part.name}", part.detail
        inner = [one for one in part.parts if one.ranges]
        yield from _rows(inner[: limit or None], limit, indent + "  ")
        if limit and len(inner) > limit:
            yield "", "", f"{indent}  … {number(len(inner) - limit)} more (--limit 0)", ""


def _types(one: RuntimeHoldings, limit: int, width: int) -> Iterator[str]:
    shown = one.types[: limit or None]
    head = ["OBJECTS", "BYTES"]
    if one.native is not None:
        head += ["NATIVE", "BLOCKS"]
    if any(row.reported is not None for row in shown):
        head.append("REPORTED")
    leaked = any(row.leaked is not None and row.leaked.blocks for row in one.types)
    garbage = any(row.type.own.get(GARBAGE) for row in one.types)
    rows = [
        [*_row(row)[: len(head)], *([_leaked(row)] if leaked else []), *([_garbage(row)] if garbage else []), printable(row.type.name)]
        for row in shown
    ]
    head += ["LEAKED"] if leaked else []
    head += ["GARBAGE"] if garbage else []
    yield from table([*head, "TYPE"], rows, range(len(head)), width, cut=len(head))
    yield from _more(len(one.types), limit, "type")


def _row(row: TypeHoldings) -> list[str]:
    native = [size(row.native.bytes) if row.native.bytes else NONE, number(row.native.blocks)] if row.native is not None else []
    return [number(row.type.objects), size(row.type.bytes), *native, size(row.reported) if row.reported is not None else NONE]


def _leaked(row: TypeHoldings) -> str:
    return number(row.leaked.blocks) if row.leaked is not None and row.leaked.blocks else NONE


def _garbage(row: TypeHoldings) -> str:
    return size(row.type.own[GARBAGE]) if row.type.own.get(GARBAGE) else NONE


def _more(count: int, limit: int, what: str) -> Iterator[str]:
    if limit and count > limit:
        yield f"  … {counted(count - limit, f'more {what}')} (--limit 0)"


def _value(count: Count) -> str:
    return size(count.value) if count.unit == "bytes" else number(count.value)
