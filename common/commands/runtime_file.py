"""Write the file of `runtime -o`: the Java heap as a heap dump, V8's heap as a heap snapshot, or a
profile."""

from __future__ import annotations

import os
from collections.abc import Sequence

from findleaks.errors import FindleaksError
from findleaks.formatting import printable
from findleaks.report.files import replacing
from findleaks.results.written import WrittenFile
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.heap_dump import DumpableRuntime
from findleaks.session import Session

_HEAPS = {"hprof": "the Java heap", "heapsnapshot": "V8's heap"}


def write_heap_dump(session: Session, runtimes: Sequence[Runtime], file: str, form: str) -> WrittenFile:
    """Write the objects of the first runtime whose heap dumps have this format. Raises
    FindleaksError if there is none, or if the file cannot be written."""
    heap = _HEAPS[form]

    def report(part: float) -> None:
        session.report_progress(f"writing {os.path.basename(file)}", part)

    with replacing(file) as part, open(part, "wb") as out:
        dumpable = [one for one in runtimes if isinstance(one, DumpableRuntime) and one.dump_format == form]
        for one in dumpable:
            notes = one.write_heap_dump(out, report)
            if notes is not None:
                out.flush()
                return WrittenFile(file, os.path.getsize(part), form, notes)
        if dumpable:
            reason = "it is ZGC's, or its objects cannot be read" if form == "hprof" else "its objects cannot be read"
            raise FindleaksError(f"{printable(file)}: {heap} cannot be written: {reason}")
        names = ", ".join(one.name for one in runtimes) or "no managed runtime"
        what = "no Java heap" if form == "hprof" else "no heap of V8"
        raise FindleaksError(f"{printable(file)}: there is {what} to write; found: {names}")


def write_runtime_profile(session: Session, runtimes: Sequence[Runtime], by: str, file: str, form: str) -> WrittenFile:
    """Write the objects of runtimes as a profile. `by`: see `runtime_profile`. Raises UsageError if
    no sites were recorded, and FindleaksError if there is no runtime, or if the file cannot be
    written."""
    from findleaks.commands.export import of_target, write_profile
    from findleaks.commands.runtime_profile import runtime_profile

    if not runtimes:
        raise FindleaksError(f"{printable(file)}: there are no objects to write: no managed runtime was found")
    return write_profile(session, of_target(runtime_profile(session, runtimes, by), session.target), file, form)
