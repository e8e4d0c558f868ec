"""`map`: draws each heap page by page: in use, cached, free and not returned, returned."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Optional

from findleaks.arg_types import parse_count
from findleaks.audit.block_rows import check_allocator_name
from findleaks.audit.diagnostics import list_runtime_notes
from findleaks.audit.pages import Area, predict_released_bytes, read_areas
from findleaks.audit.residency import read_residency, save_residency
from findleaks.commands import Invocation, command
from findleaks.commands.result import Plain, fields, warnings_of
from findleaks.engine.pages import PageState
from findleaks.engine.terms import State
from findleaks.errors import UsageError
from findleaks.formatting import number, printable, size, wrapped
from findleaks.quoting import shell_quoted
from findleaks.report.files import write_file
from findleaks.report.heapmap.cells import LOOKS, Picture
from findleaks.runtimes.base import Part
from findleaks.session import Session
from findleaks.target.residency.presence import Presence

DRAWN = 8  # heaps drawn as text without --limit
FORMATS = (".html", ".svg", ".png")  # ends of the file names that --output accepts


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", default="", help="write a picture: FILE.html (to zoom and search), .svg or .png")
    parser.add_argument("--allocator", metavar="NAME", help="only this allocator: glibc, jemalloc, …")
    parser.add_argument("--limit", type=parse_count, default=DRAWN, help=f"heaps to draw, largest first ({DRAWN}; 0: all); files have all")
    parser.add_argument("--residency", metavar="FILE", default="", help="which pages were resident, as saved before a core was made")
    parser.add_argument("--save-residency", metavar="FILE", default="", help="only save which pages are resident, and do that before gcore")


@command(arguments=_arguments)
def map(session: Session, args: argparse.Namespace) -> Plain:  # noqa: A001
    """Draw every heap page by page: in use, in thread caches, free and not returned, or returned
    to the kernel. `-o FILE.html` writes one page that works without a network: zoom,
    search by state, size and type, and see what is under the pointer.

    Which pages are resident is known of a live process, and from the holes of a core that the
    kernel wrote to a file. gcore's cores have lost it: save it before, with `findleaks map
    --save-residency core.PID.residency --pid PID`, then run gcore; the file is found beside the
    core, or named with --residency. Nothing is guessed from what pages hold."""
    if args.save_residency:
        if args.output or args.residency:
            raise UsageError("--save-residency only saves: give it alone, and draw the core later")
        return _saved(session, args.save_residency)
    extension = os.path.splitext(args.output)[1].lower()
    if args.output and extension not in FORMATS:
        raise UsageError(f"-o {printable(args.output)}: end its name in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if extension == ".png":
        from findleaks.report.heapmap import png

        png.require_pillow()
    known = read_residency(session, args.residency)
    allocator = check_allocator_name(session, args.allocator)
    found = read_areas(session, known, lambda one: allocator is None or one.name == allocator)
    found.sort(key=lambda area: (-(area.resident or 0), -area.size, area.parts[0].start))
    picture = Picture(session.target.description, found, known, session.target.arch.page)
    trims = {id(one): predict_released_bytes(session, one, known) for one in session.directory.allocators if allocator in (None, one.name)}
    written = _write(session, picture, args.output, extension) if args.output else 0
    # Made only for JSON, as it lists every run of pages.
    body = partial(_body, session, picture, trims, args.output, written)
    warnings = [*known.warnings, *_residency_warnings(picture), *warnings_of(session)]
    return Plain(session, "map", body, partial(_text, session, picture, trims, args, written), 0 if found else 2, warnings)


def _saved(session: Session, file: str) -> Plain:
    saved = save_residency(session, file)
    rss = f"{size(saved.resident.total if saved.rss is None else saved.rss)} resident"
    body = {"residency": {"source": saved.source, "rss": saved.rss, "file": file}}

    def text(width: int, invocation: Invocation) -> Iterator[str]:
        pid = session.target.pid
        yield f"{rss}: saved to {printable(file)} ({size(os.path.getsize(file))})"
        first, core = (f"gcore {pid}", f"core.{pid}") if session.target.live else ("copy or pack the core", "CORE")
        yield from wrapped(f"  next: {first}, then: {invocation.prog} map --residency {shell_quoted(file)} {core}", width)

    return Plain(session, "map", body, text)


def _residency_warnings(picture: Picture) -> Iterator[str]:
    if picture.residency.unsure:
        total = sum(end - start for start, end in picture.residency.unsure)
        yield f"in mappings of {size(total)} the kernel's zero page counts as resident: kernels before 6.7 identify it only to root"


def _write(session: Session, picture: Picture, file: str, extension: str) -> int:
    """Write the picture to `file`; returns the bytes written."""
    from findleaks.report.heapmap.html import render_html
    from findleaks.report.heapmap.png import render_png
    from findleaks.report.heapmap.svg import render_svg

    session.report_progress("drawing", 0.0)
    if extension == ".png":
        data = render_png(picture)
    else:
        page = render_html(session, picture) if extension == ".html" else render_svg(picture)
        data = page.encode("utf-8", "replace")
    write_file(file, data)
    return len(data)


def _body(session: Session, picture: Picture, trims: dict[int, Optional[int]], file: str, written: int) -> dict[str, object]:
    instances = {id(one): number for number, one in enumerate(session.directory.allocators)}
    known = picture.residency
    body: dict[str, object] = {
        "page": picture.page,
        "residency": {"source": known.source, "rss": known.rss, "saved": known.saved or None},
        "totals": {**fields(picture, "mapped", "resident"), "in_use": picture.used, "pages": _by_state(picture.areas)},
        "trim": [
            {"allocator": one.name, "instance": instances[id(one)], "bytes": trims[id(one)]}
            for one in session.directory.allocators
            if trims.get(id(one)) is not None
        ],
        "heaps": [
            {
                "allocator": area.allocator.name,
                "instance": instances[id(area.allocator)],
                "version": area.allocator.version,
                "arena": area.arena or None,
                "mapped": area.size,
                **fields(area, "resident", "swapped"),
                **{state.name.lower(): area.held(state) for state in (State.IN_USE, State.CACHED, State.METADATA)},
                "states": _by_state([area]),
                "parts": [{"start": hex(part.start), "end": hex(part.end)} for part in area.parts],
                "pages": list(_runs(session, area)),
            }
            for area in picture.areas
        ],
        "managed": [
            {"name": name, "mapped": mapped, "resident": held, "ranges": [[hex(start), hex(end)] for start, end in part.ranges]}
            for name, mapped, held, part in _managed(session, known)
        ],
        "notes": list_runtime_notes(session),
    }
    if file:
        body["written"] = {"file": file, "bytes": written}
    return body


def _managed(session: Session, known: Presence) -> Iterator[tuple[str, int, Optional[int], Part]]:
    """Runtimes' memory outside heaps: name, bytes mapped, bytes resident (None: unknown), part."""
    for runtime in session.runtimes:
        for part in runtime.parts():
            if not part.inside:
                held = sum(known.resident.bytes(start, end) for start, end in part.ranges) if known else None
                yield f"{runtime.name} {part.name}", part.bytes, held, part


def _runtime_lines(session: Session, picture: Picture, width: int) -> Iterator[str]:
    for name, mapped, held, _ in _managed(session, picture.residency):
        yield from wrapped(f"  {name}: {size(mapped)}" + (f", {size(held)} of it resident" if held is not None else ""), width)
    for note in list_runtime_notes(session):
        yield from wrapped(f"  {note}", width)


def _runs(session: Session, area: Area) -> Iterator[dict[str, object]]:
    for at, run in enumerate(area.runs()):
        if at % _RUNS_PER_REPORT == 0:
            session.report_progress("listing pages", 0.0)
        yield {"address": hex(run.address), "pages": run.pages, "state": _KEYS[run.state], "in_use": run.used}


_RUNS_PER_REPORT = 1 << 15  # runs of pages listed between two progress reports
_KEYS = {look.state: look.key for look in LOOKS}


def _by_state(found: Sequence[Area]) -> dict[str, int]:
    return {look.key: sum(area.bytes(look.state) for area in found) for look in LOOKS}


def _text(
    session: Session,
    picture: Picture,
    trims: dict[int, Optional[int]],
    args: argparse.Namespace,
    written: int,
    width: int,
    invocation: Invocation,
) -> Iterator[str]:
    from findleaks.report.heapmap.terminal import Style, render_lines

    if not picture.areas:
        yield "no heap of a known allocator"
        yield from _runtime_lines(session, picture, width)
        return
    if written:
        yield f"{number(len(picture.areas))} heaps, {size(picture.mapped)}: drawn in {printable(args.output)} ({size(written)})"
        return
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    colour = bool(getattr(sys.stdout, "isatty", lambda: False)()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    yield from render_lines(picture, width, Style(colour, not encoding.startswith("utf")), args.limit)
    yield ""
    if args.allocator is None:
        yield from _runtime_lines(session, picture, width)
    for one in session.directory.allocators:
        bytes_ = trims.get(id(one))
        if bytes_:
            yield f"  {one.renamed(one.release_call)} would return {size(bytes_)} to the kernel ({one.title})"
    if not picture.residency and any(area.bytes(PageState.FREE) for area in picture.areas):
        yield from wrapped(
            "  Free pages may be kept or returned: this core does not say. Next time save that before gcore: "
            "findleaks map --save-residency core.PID.residency --pid PID",
            width,
        )
    yield from invocation.next(width, "map -o map.html", "caches --by-arena --sort waste", "verdict")
