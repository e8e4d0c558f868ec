"""The `runtime` command: list the objects of managed runtimes (Ruby, CPython, V8, JVM, Go), the
native memory that these objects retain, and the part of this memory that was reported to the
runtime."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from findleaks.answers.runtimes import FoundRuntimes, describe_runtimes
from findleaks.audit.managed import RuntimeHoldings, TypeHoldings
from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit, in_text
from findleaks.commands.output import STACKS, add_output, output_format
from findleaks.commands.result import Plain
from findleaks.errors import UsageError
from findleaks.formatting import format_count, number, printable, size, table, wrap
from findleaks.results.runtimes import Runtime as RuntimeResult
from findleaks.runtimes.base import Count, Part, Runtime, Site
from findleaks.runtimes.directory import list_known
from findleaks.runtimes.garbage import GARBAGE_BYTES
from findleaks.runtimes.v8.array_bytes import ARRAY_BYTES
from findleaks.session import Session

DUMPS = ("hprof", "heapsnapshot", "ndjson", "objspace")  # Formats of heap dumps.
NONE = "–"  # The text of a cell without a value.
ROWS = 20  # Maximum number of types and sites printed as text without --limit.
PARTS = 20  # At least this many rows are printed below a part, even with a smaller --limit.


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=list_known(), metavar="RUNTIME", help=f"only {', '.join(list_known())}")
    parser.add_argument(
        "--no-native", action="store_true", help="do not search for leaked objects and for native memory of objects: faster"
    )
    what = "sum objects by type, by the package of their type, or by the stack that allocated them, if stacks were recorded"
    parser.add_argument("--by", choices=("type", "package", "site"), default="type", help=what)
    add_limit(parser, "types and sites", ROWS)
    add_output(parser, "a heap dump of Java, V8, Go, Python or Ruby, or all objects by root and type, or by stack,", (*DUMPS, *STACKS))


@command(arguments=_arguments)
def runtime(session: Session, args: argparse.Namespace) -> Plain:
    """Show for each managed runtime its own counters, its own memory (V8's heap by isolate and
    space), its live objects by type, and the native blocks that only objects of this type retain.

    RETAINED (CPython, Go, the JVM, Ruby, V8) is memory in the managed heap: each object of a type,
    and the objects that would become garbage without it. For CPython and Ruby it includes native
    memory. REPORTED is the native memory that the objects reported to the runtime: other memory
    does not trigger a collection. LEAKED is the number of objects that no root reaches, if each
    object is an allocator's block (CPython).

    Native memory that objects of several types share is not attributed to a type; --by package
    counts the types of a package as one. Allocation sites are listed if the runtime records them
    (tracemalloc, NMT, Go's memory profile, Ruby's traces); --by site lists only these.

    `-o FILE.hprof` writes the Java heap as a heap dump, which Eclipse MAT and VisualVM open; `-o
    FILE.heapsnapshot` writes the heap of V8 or Go as a heap snapshot, which Chrome DevTools opens;
    `-o FILE.ndjson` writes the objects of Python or Go, one a line, with their references; `-o
    FILE.json` writes Ruby's objects in the format of ObjectSpace.dump_all, which heapy and sheap
    read. `-o FILE.pb.gz` writes the objects by root (Go) and type for `go tool pprof`; with --by
    site, by the stack that allocated them."""
    form = output_format(args, (*DUMPS, *STACKS))
    answer = describe_runtimes(session, args.only, not args.no_native, args.by == "package", args.limit)
    found = answer.holdings
    if args.by == "site" and found and not any(answer.sites):
        from findleaks.commands.runtime_profile import NO_SITES

        raise UsageError(NO_SITES)
    text = partial(_text, answer, in_text(args.limit, ROWS), args.by == "site")
    problems = [problem.what for one in found for problem in one.runtime.problems]
    result = Plain(session, "runtime", answer.result, text, 0 if found else 2, further=problems)
    if form:
        # Few calls have the option, so this is imported here.
        from findleaks.commands.runtime_file import write_heap_dump, write_runtime_profile

        runtimes = [one.runtime for one in found]
        if form in DUMPS:
            result.written = write_heap_dump(session, runtimes, args.output, form)
        else:
            result.written = write_runtime_profile(session, runtimes, args.by, args.output, form)
    return result


def _text(found: FoundRuntimes, limit: int, only_sites: bool, width: int, invocation: Invocation) -> Iterator[str]:
    if not found.holdings:
        yield f"no managed runtime found; supported are: {', '.join(list_known())}"
        return
    for at, (one, its, result) in enumerate(zip(found.holdings, found.sites, found.result.runtimes)):
        if at:
            yield ""
        yield from _sites(one.runtime, its, limit, width) if only_sites else _page(one, its, result, limit, width)
    for deadlock in found.result.deadlocks:
        yield ""
        yield from wrap(f"deadlock: {deadlock.text}", width)
    yield from invocation.next("roots", "verdict")


def _page(one: RuntimeHoldings, sites: Sequence[Site], result: RuntimeResult, limit: int, width: int) -> Iterator[str]:
    runtime = one.runtime
    headline = f"{runtime.name} {runtime.version}".strip() + (f" in {printable(runtime.where)}" if runtime.where else "")
    garbage = one.garbage_native
    held = f", which retain {size(one.native.bytes - garbage)} of native memory" if one.native is not None else ""
    held += f"; garbage retains {size(garbage)}" if garbage else ""
    what = "object" if runtime.counts_garbage else "live object"
    live = f": {format_count(one.objects, what)} of {size(one.object_bytes)}{held}" if one.types else ""
    yield from wrap(f"{headline}{live}", width)
    if result.note:
        yield from wrap(f"  {result.note}", width)
    parts = runtime.parts()
    if parts:
        yield ""
        yield from table(("BYTES", "USED", "MEMORY", ""), list(_rows(parts, limit and max(limit, PARTS))), (0, 1), width, cut=3)
    if one.types:
        yield ""
        yield from _types(one, limit, width)
    if result.retainers:
        yield ""
        rows = [
            (size(each.retained_bytes), number(each.retained_objects), hex(each.address), f"{each.root}: {each.path}")
            for each in result.retainers
        ]
        yield from table(("RETAINED", "OBJECTS", "OBJECT", "PATH FROM ITS ROOT"), rows, (0, 1), width, cut=3)
    if sites:
        yield ""
        yield from _sites(runtime, sites, limit, width)
    counters = runtime.counters()
    if counters:
        yield ""
        yield from table(("VALUE", "COUNTER"), [(_value(count), name) for name, count in counters.items()], (0,), width, cut=1)


def _sites(runtime: Runtime, sites: Sequence[Site], limit: int, width: int) -> Iterator[str]:
    shown, rate = sites[: limit or None], max((site.rate for site in sites), default=0)
    about = "≈ " if rate > 1 else ""
    asked = [(f"{about}{number(site.blocks)}", f"{about}{size(site.bytes)}", printable(" < ".join(site.frames))) for site in shown]
    yield from table(("BLOCKS", "BYTES", "ALLOCATED AT"), asked, (0, 1), width, cut=2)
    yield from _more(len(sites), limit, "site")
    if about:
        yield f"  {runtime.name} takes one sample every {size(rate)} on average; figures with ≈ are estimates"


def _rows(parts: Sequence[Part], limit: int, indent: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each part, followed by the rows of its own parts that are not empty. At most
    `limit` of its own parts are included (0: all)."""
    for part in parts:
        yield size(part.bytes), size(part.used) if part.used is not None else NONE, f"{indent}{part.name}", part.detail
        inner = [one for one in part.parts if one.ranges]
        yield from _rows(inner[: limit or None], limit, indent + "  ")
        if limit and len(inner) > limit:
            yield "", "", f"{indent}  … {number(len(inner) - limit)} more (--limit 0)", ""


def _types(one: RuntimeHoldings, limit: int, width: int) -> Iterator[str]:
    shown = one.types[: limit or None]
    head = ["OBJECTS", "BYTES"]
    retained = any(row.retained is not None for row in one.types)
    if retained:
        head.append("RETAINED")
    if one.native is not None:
        head += ["NATIVE", "BLOCKS"]
    if any(row.reported is not None for row in shown):
        head.append("REPORTED")
    leaked = any(row.leaked is not None and row.leaked.blocks for row in one.types)
    garbage = any(row.type.own.get(GARBAGE_BYTES) for row in one.types)
    arrays = any(row.type.own.get(ARRAY_BYTES) for row in one.types)
    own = [(GARBAGE_BYTES, garbage), (ARRAY_BYTES, arrays)]
    further: list[Callable[[TypeHoldings], str]] = [
        *([_format_leaked] if leaked else []),
        *(partial(_own, key) for key, is_shown in own if is_shown),
    ]
    rows = [[*_row(row, retained)[: len(head)], *(cell(row) for cell in further), printable(row.type.name)] for row in shown]
    head += [name for name, is_shown in (("LEAKED", leaked), ("GARBAGE", garbage), ("ARRAYS", arrays)) if is_shown]
    yield from table([*head, "TYPE"], rows, range(len(head)), width, cut=len(head))
    yield from _more(len(one.types), limit, "type")


def _row(row: TypeHoldings, retained: bool) -> list[str]:
    held = [size(row.retained) if row.retained is not None else NONE] if retained else []
    native = [size(row.native.bytes) if row.native.bytes else NONE, number(row.native.blocks)] if row.native is not None else []
    return [number(row.type.objects), size(row.type.bytes), *held, *native, size(row.reported) if row.reported is not None else NONE]


def _format_leaked(row: TypeHoldings) -> str:
    return number(row.leaked.blocks) if row.leaked is not None and row.leaked.blocks else NONE


def _own(key: str, row: TypeHoldings) -> str:
    return size(row.type.own[key]) if row.type.own.get(key) else NONE


def _more(count: int, limit: int, what: str) -> Iterator[str]:
    if limit and count > limit:
        yield f"  … {format_count(count - limit, f'more {what}')} (--limit 0)"


def _value(count: Count) -> str:
    return size(count.value) if count.unit == "bytes" else number(count.value)
