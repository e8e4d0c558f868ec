"""Write the file of `runtime -o`: the Java heap as a heap dump, the heap of V8 or Go as a heap
snapshot, the objects of Python, Go or Ruby as lines of JSON, or a profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import BinaryIO, Optional

from findleaks.errors import FindleaksError
from findleaks.formatting import printable
from findleaks.report.files import replacing
from findleaks.results.written import WrittenFile
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.heap_dump import DumpableBlocks, DumpableGraph, DumpableHeap, DumpableRuntime
from findleaks.session import Session

_HEAPS = {
    "hprof": "the Java heap",
    "heapsnapshot": "the heap of V8 or Go",
    "ndjson": "the heap of Python or Go",
    "objspace": "Ruby's heap",
}
_MISSING = {
    "hprof": "no Java heap",
    "heapsnapshot": "no readable heap of V8 or Go",
    "ndjson": "no readable heap of Python or Go",
    "objspace": "no readable heap of Ruby",
}

_Write = Callable[[BinaryIO, Callable[[float], None]], Optional[list[str]]]
"""The signature of DumpableRuntime.write_heap_dump."""


def write_heap_dump(session: Session, runtimes: Sequence[Runtime], file: str, form: str) -> WrittenFile:
    """Write the objects of the first runtime whose heap dumps have this format. Raises
    FindleaksError if there is none, or if the file cannot be written."""

    def report(part: float) -> None:
        session.report_progress(f"writing {os.path.basename(file)}", part)

    with replacing(file) as part, open(part, "wb") as out:
        writers = _writers(session, runtimes, form)
        for write in writers:
            notes = write(out, report)
            if notes is not None:
                out.flush()
                return WrittenFile(file, os.path.getsize(part), form, notes)
        if writers:
            raise FindleaksError(f"{printable(file)}: {_HEAPS[form]} cannot be written: its objects cannot be read")
        names = ", ".join(one.name for one in runtimes) or "no managed runtime"
        raise FindleaksError(f"{printable(file)}: there is {_MISSING[form]} to write; found: {names}")


def _writers(session: Session, runtimes: Sequence[Runtime], form: str) -> Sequence[_Write]:
    if form == "objspace":
        from findleaks.audit.heap_retention import find_heap_references

        heaps = [(one, find_heap_references(session, one)) for one in runtimes if isinstance(one, DumpableHeap)]
        return [partial(one.write_object_lines, found) for one, found in heaps if found is not None]
    graphs = [one.object_graph() for one in runtimes if form != "hprof"]
    dumpable = [one for one in graphs if isinstance(one, DumpableGraph)]
    if form == "ndjson":
        from findleaks.audit.graph_dump import write_graph_lines
        from findleaks.audit.object_retention import find_block_references

        blocks = [(one, find_block_references(session, one)) for one in runtimes if isinstance(one, DumpableBlocks)]
        lines = [partial(one.write_object_lines, found) for one, found in blocks if found is not None]
        return [*lines, *(partial(write_graph_lines, one) for one in dumpable)]
    from findleaks.audit.graph_snapshot import write_graph_snapshot

    dumps = [one.write_heap_dump for one in runtimes if isinstance(one, DumpableRuntime) and one.dump_format == form]
    return [*dumps, *(partial(write_graph_snapshot, one) for one in dumpable)]


def write_runtime_profile(session: Session, runtimes: Sequence[Runtime], by: str, file: str, form: str) -> WrittenFile:
    """Write the objects of runtimes as a profile. `by`: see `runtime_profile`. Raises UsageError if
    no sites were recorded, and FindleaksError if there is no runtime, or if the file cannot be
    written."""
    from findleaks.commands.export import of_target, write_profile
    from findleaks.commands.runtime_profile import runtime_profile

    if not runtimes:
        raise FindleaksError(f"{printable(file)}: there are no objects to write: no managed runtime was found")
    return write_profile(session, of_target(runtime_profile(session, runtimes, by), session.target), file, form)
