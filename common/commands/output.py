"""-o FILE and --format: files that commands write beside their text. What makes them is imported
where they are asked for only."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

from findleaks.errors import UsageError
from findleaks.formatting import printable, size
from findleaks.value_classes import NamedTuple


class Format(NamedTuple):
    ends: tuple[str, ...]  # of file names, the usual one first
    what: str


FORMATS = {
    "page": Format((".html", ".htm"), "curves and tables, for a browser"),
    "flamegraph": Format((".html", ".htm"), "a flame graph, for a browser"),
    "folded": Format((".folded",), "folded stacks, for flamegraph.pl"),
    "pprof": Format((".pb.gz",), "for go tool pprof"),
    "speedscope": Format((".speedscope.json",), "for speedscope"),
    "heap": Format((".heap",), "a heap profile, for jeprof"),
    "csv": Format((".csv",), "a line a block"),
    "sqlite": Format((".sqlite", ".db"), "tables of blocks, for sqlite3"),
    "parquet": Format((".parquet",), "columns of blocks, for pandas, Polars and DuckDB"),
}
"""By the words of --format."""
STACKS = ("flamegraph", "folded", "pprof", "speedscope")
"""Formats of stacks of any kind; a heap profile has stacks of addresses only."""
BLOCKS = ("csv", "sqlite", "parquet")


class Written(NamedTuple):
    """A file that was written. `format`: one of FORMATS; `notes`: sentences on what it has."""

    file: str
    bytes: int
    format: str
    notes: Sequence[str] = ()

    def json(self) -> dict[str, object]:
        return {"file": self.file, "bytes": self.bytes, "format": self.format, "notes": list(self.notes)}

    def lines(self) -> Iterator[str]:
        yield f"  written to {printable(self.file)} ({size(self.bytes)}): {FORMATS[self.format].what}"
        yield from (f"  in it: {note}" for note in self.notes)


def add_output(parser: argparse.ArgumentParser, what: str, formats: Sequence[str]) -> None:
    """Add -o and --format. `what` the file has: "lost blocks"."""
    ends = ", ".join(_ends(formats))
    parser.add_argument("-o", "--output", metavar="FILE", default="", help=f"also write {what} to a file, by its name: {ends}")
    parser.add_argument("--format", choices=formats, help="the format of that file, whatever its name")


def output_format(args: argparse.Namespace, formats: Sequence[str]) -> str:
    """The format that the file is to have; "" without -o. Before anything is read: UsageError for a
    name that says none, FindleaksError where the file or the format cannot be written."""
    if not args.output:
        if args.format:
            raise UsageError("--format is that of a file: name one with -o FILE")
        return ""
    found: str = args.format or _by_name(args.output, formats)
    from findleaks.report.files import require_writable

    require_writable(args.output)
    if found == "pprof":
        from findleaks.report.profiles.protobuf_loader import require_protobuf

        require_protobuf()
    if found == "parquet":
        from findleaks.report.block_parquet import require_pyarrow

        require_pyarrow()
    return found


def _by_name(file: str, formats: Sequence[str]) -> str:
    base = os.path.basename(file).lower()
    for one in formats:
        if base.endswith(FORMATS[one].ends):
            return one
    *most, last = _ends(formats)
    raise UsageError(f"-o {printable(file)}: end its name in {', '.join(most)} or {last}, or add --format")


def _ends(formats: Sequence[str]) -> list[str]:
    """The usual end of the names of each; two may have the same."""
    return list(dict.fromkeys(FORMATS[one].ends[0] for one in formats))
