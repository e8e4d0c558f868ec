"""The `map` command: draw each heap page by page. Pages are in use, cached, free and not returned,
or returned."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial

from findleaks.answers.heap_map import FoundHeaps, map_heaps
from findleaks.answers.warnings import warnings_of
from findleaks.arg_types import parse_count
from findleaks.audit.diagnostics import list_reader_notes
from findleaks.audit.residency import save_residency
from findleaks.commands import Invocation, command
from findleaks.commands.options import add_allocator, add_residency
from findleaks.commands.output import add_output, output_format
from findleaks.commands.result import Plain
from findleaks.engine.pages import PageState
from findleaks.errors import UsageError
from findleaks.formatting import number, printable, size, wrap
from findleaks.quoting import shell_quoted
from findleaks.report.files import write_file
from findleaks.report.heapmap.cells import Picture
from findleaks.results.heap_map import SavedFile, SavedResidency
from findleaks.results.written import WrittenFile
from findleaks.session import Session

DRAWN = 8  # Maximum number of heaps drawn as text without --limit.
FORMATS = ("map", "svg", "png")  # Formats of files.


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser, "the map of all heaps", FORMATS)
    add_allocator(parser)
    parser.add_argument("--limit", type=parse_count, default=DRAWN, help=f"heaps to draw, largest first ({DRAWN}; 0: all); files have all")
    add_residency(parser)
    parser.add_argument("--save-residency", metavar="FILE", default="", help="only save which pages are resident; run this before gcore")


@command(arguments=_arguments)
def map(session: Session, args: argparse.Namespace) -> Plain:  # noqa: A001
    """Draw every heap page by page: in use, in thread caches, free and not returned, or returned to
    the kernel. `-o FILE.html` writes one page that works without a network. In this page you can
    zoom, select pages by state, size and type of their blocks, and read what is at the mouse
    pointer.

    findleaks knows which pages are resident for a live process, and for a core that the kernel
    wrote to a file (returned pages are holes in it). Cores of gcore lack this information. Save it
    before gcore with `findleaks map --save-residency core.PID.residency --pid PID`. findleaks then
    finds the file beside the core, or --residency names it. findleaks does not guess residency from
    the content of pages."""
    if args.save_residency:
        if args.output or args.residency:
            raise UsageError("--save-residency only saves the residency: omit the other options, and draw the core later")
        return _save(session, args.save_residency)
    form = output_format(args, FORMATS)
    found = map_heaps(session, args.residency, args.allocator)
    picture = Picture(found.map.title, found.map.areas, found.map.residency, found.map.page)
    written = _write(session, picture, args.output, form) if form else None
    warnings = [*found.warnings, *warnings_of(session)]
    # Called only for JSON, because it lists every run of pages.
    result = Plain(session, "map", found.result, partial(_text, found, picture, args), 0 if picture.areas else 2, warnings)
    result.written = written
    return result


def _save(session: Session, file: str) -> Plain:
    saved = save_residency(session, file)
    rss = f"{size(saved.resident.total if saved.rss is None else saved.rss)} resident"
    body = SavedResidency(SavedFile(saved.source, saved.rss, file))

    def text(width: int, invocation: Invocation) -> Iterator[str]:
        pid = session.target.pid
        yield f"{rss}: saved to {printable(file)} ({size(os.path.getsize(file))})"
        first, core = (f"gcore {pid}", f"core.{pid}") if session.target.live else ("copy or pack the core", "CORE")
        yield from wrap(f"  next: {first}, then: {invocation.prog} map --residency {shell_quoted(file)} {core}", width)

    return Plain(session, "map", body, text)


def _write(session: Session, picture: Picture, file: str, form: str) -> WrittenFile:
    """Write the picture to `file` in the format `form`."""
    from findleaks.report.heapmap.html import render_html
    from findleaks.report.heapmap.png import render_png
    from findleaks.report.heapmap.svg import render_svg

    session.report_progress("drawing", 0.0)
    if form == "png":
        data = render_png(picture)
    else:
        page = render_html(session, picture) if form == "map" else render_svg(picture)
        data = page.encode("utf-8", "replace")
    write_file(file, data)
    return WrittenFile(file, len(data), form)


def _text(found: FoundHeaps, picture: Picture, args: argparse.Namespace, width: int, invocation: Invocation) -> Iterator[str]:
    from findleaks.report.heapmap.terminal import Style, render_lines

    if not picture.areas:
        yield "no heap of a known allocator"
        yield from _runtime_lines(found, width)
        return
    if args.output:
        yield from wrap(f"{number(len(picture.areas))} heaps, {size(picture.mapped)}", width)
        return
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    colour = bool(getattr(sys.stdout, "isatty", lambda: False)()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    yield from render_lines(picture, width, Style(colour, not encoding.startswith("utf")), args.limit)
    yield ""
    if args.allocator is None:
        yield from _runtime_lines(found, width)
    for one in found.session.directory.allocators:
        returned = found.trims.get(id(one))
        if returned:
            yield f"  {one.rename_settings(one.release_call)} would return {size(returned)} to the kernel ({one.title})"
    if not picture.residency and any(area.bytes(PageState.FREE) for area in picture.areas):
        yield from wrap(
            "  This core does not show which free pages were returned to the kernel. Next time, save this before gcore writes a core: "
            "findleaks map --save-residency core.PID.residency --pid PID",
            width,
        )
    yield from invocation.next("map -o map.html", "caches --by-arena --sort waste", "verdict")


def _runtime_lines(found: FoundHeaps, width: int) -> Iterator[str]:
    for one in found.list_managed():
        held = f", {size(one.resident)} of it resident" if one.resident is not None else ""
        yield from wrap(f"  {one.name}: {size(one.part.bytes)}{held}", width)
    for note in list_reader_notes(found.session):
        yield from wrap(f"  {note}", width)
