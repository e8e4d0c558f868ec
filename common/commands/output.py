"""The options -o FILE and --format, for files that commands write in addition to their text. The
modules that write the files are imported only when they are needed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

from findleaks.errors import UsageError
from findleaks.formatting import printable, size
from findleaks.results.written import WrittenFile
from findleaks.value_classes import NamedTuple


class Format(NamedTuple):
    ends: tuple[str, ...]  # suffixes of file names; the usual one is first
    what: str


FORMATS = {
    "map": Format((".html", ".htm"), "a map to zoom and search, for a browser"),
    "svg": Format((".svg",), "a picture of the heaps"),
    "png": Format((".png",), "a picture of the heaps"),
    "page": Format((".html", ".htm"), "curves and tables, for a browser"),
    "flamegraph": Format((".html", ".htm"), "a flame graph, for a browser"),
    "folded": Format((".folded",), "folded stacks, for flamegraph.pl"),
    "pprof": Format((".pb.gz",), "for go tool pprof"),
    "speedscope": Format((".speedscope.json",), "for speedscope"),
    "heap": Format((".heap",), "a heap profile, for jeprof"),
    "csv": Format((".csv",), "one line per block"),
    "sqlite": Format((".sqlite", ".db"), "tables of blocks, for sqlite3"),
    "database": Format((".sqlite", ".sqlite3", ".db"), "tables of cores and leaks, for sqlite3"),
    "table": Format((".parquet",), "one row per core, for pandas, Polars and DuckDB"),
    "fleet": Format((".html", ".htm"), "a table of cores and leaks, for a browser"),
    "hprof": Format((".hprof",), "a heap dump, for Eclipse MAT and VisualVM"),
    "heapsnapshot": Format((".heapsnapshot",), "a heap snapshot, for Chrome DevTools"),
    "objspace": Format((".json",), "one object per line, as ObjectSpace.dump_all writes, for heapy and sheap"),
    "ndjson": Format((".ndjson", ".jsonl"), "one object per line, for DuckDB, pandas and jq"),
    "parquet": Format((".parquet",), "columns of blocks, for pandas, Polars and DuckDB"),
}
"""Formats. The keys are the words of --format."""
STACKS = ("flamegraph", "folded", "pprof", "speedscope")
"""Formats that can represent any stacks. The heap profile can only represent stacks of
addresses."""
BLOCKS = ("csv", "sqlite", "parquet")


def file_lines(written: WrittenFile) -> Iterator[str]:
    """Yield sentences about a file that was written."""
    yield f"  written to {printable(written.file, 1000)} ({size(written.bytes)}): {FORMATS[written.format].what}"
    yield from (f"  content: {note}" for note in written.notes)


def add_output(parser: argparse.ArgumentParser, what: str, formats: Sequence[str]) -> None:
    """Add -o and --format. `what`: the content of the file, such as "leaked blocks"."""
    parser.add_argument("-o", "--output", metavar="FILE", default="", help=_help(what, formats))
    parser.add_argument("--format", choices=formats, help="the format of the file, for any file name")


def add_outputs(parser: argparse.ArgumentParser, what: str, formats: Sequence[str]) -> None:
    """Add -o, which the user may pass several times, once for each file."""
    words = f"{_help(what, formats)}; may be given again"
    parser.add_argument("-o", "--output", metavar="FILE", action="append", default=[], help=words)


def add_destination(parser: argparse.ArgumentParser, what: str, metavar: str) -> None:
    """Add -o for a command that writes files of only one format. `metavar`: whether the option
    names a file or a directory."""
    parser.add_argument("-o", "--output", metavar=metavar, default="", help=f"where to write {what}")


def _help(what: str, formats: Sequence[str]) -> str:
    return f"also write {what} to a file, by its name: {', '.join(_ends(formats))}"


def output_format(args: argparse.Namespace, formats: Sequence[str]) -> str:
    """Return the format of the file; "" without -o. Called before anything is read. Raises
    UsageError if the file name implies no format, and FindleaksError if the file or the format
    cannot be written."""
    if not args.output:
        if args.format:
            raise UsageError("--format needs a file: add -o FILE")
        return ""
    found: str = args.format or format_by_name(args.output, formats)
    from findleaks.report.files import require_writable

    require_writable(args.output)
    if found == "pprof":
        from findleaks.report.profiles.protobuf_loader import require_protobuf

        require_protobuf()
    if found == "png":
        from findleaks.report.heapmap.png import require_pillow

        require_pillow()
    if found == "parquet":
        from findleaks.report.block_parquet import require_pyarrow

        require_pyarrow()
    return found


def format_by_name(file: str, formats: Sequence[str], remedy: str = ", or add --format") -> str:
    """Return the format of a file, determined by its name. If the suffixes of several formats match
    the name, the longest suffix decides. Raise UsageError if none matches; its message ends in
    `remedy`."""
    base = os.path.basename(file).lower()
    ends = {end: one for one in reversed(formats) for end in FORMATS[one].ends if base.endswith(end)}
    if ends:
        return ends[max(ends, key=len)]
    *most, last = _ends(formats)
    raise UsageError(f"-o {printable(file)}: end its name in {', '.join(most)} or {last}{remedy}")


def _ends(formats: Sequence[str]) -> list[str]:
    """Return the usual suffix of each format. Two formats may have the same suffix."""
    return list(dict.fromkeys(FORMATS[one].ends[0] for one in formats))
