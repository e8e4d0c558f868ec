"""Findings about large shares that are no blocks: stacks, shared memory, files, managed heaps.

Private memory is judged apart from shared memory and files, which other processes may use too."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Optional

from findleaks.audit.accounting import Accounting, Share
from findleaks.audit.crash import own_frame
from findleaks.audit.findings.significance import is_large
from findleaks.audit.unread_memory import SHARED
from findleaks.formatting import counted, number, shortened, size, some
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.base import Finding
from findleaks.session import Session
from findleaks.target.modules import DELETED
from findleaks.unwind.stacks import group_threads

_MANY = 32  # mappings of one kind or file, or threads, that are worth a sentence
_KINDS = {"/memfd:": "memfd mapping", "/SYSV": "System V segment", "/dev/shm/": "POSIX shared memory mapping"}
METASPACE = "metaspace"  # name of a runtime's part with class metadata
DEFINE_CLASS = "JVM_DefineClassWithSource"  # the function of libjvm that defines a class
_OTHER = "anonymous shared mapping"


def find_thread_stacks(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding, if stacks of running threads have a tenth of the private memory."""
    share = accounting.share(ShareSort.STACKS)
    if share is None or share.count < 2 or not is_large(share.bytes, _private(accounting)):
        return
    percent = 100 * share.bytes // max(_private(accounting), 1)
    if accounting.known:
        title = f"{number(share.count)} threads run: their stacks take {size(share.bytes)}, {percent} % of the private memory."
    elif share.count >= _MANY:
        title = f"{number(share.count)} threads run: {size(share.bytes)} are mapped for their stacks, of which most may be untouched."
    else:
        return
    most = next(iter(group_threads(session.target)), None)
    frame = own_frame(most.frames) if most is not None else None
    place = shortened(frame.short_name(), 200) if frame is not None else ""
    cause = f"{number(len(most.threads))} of them have the same stack, in {place}." if most is not None and place else ""
    facts: dict[str, object] = {
        "threads": share.count,
        "same_stack": len(most.threads) if most is not None else None,
        "place": place or None,
    }
    yield Finding("thread-stacks", share.bytes, title, cause, (), ("stacks",), facts, _resident(share, accounting))


def find_shared_memory(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding, if many mappings of shared memory are a tenth of all memory."""
    share = accounting.share(ShareSort.SHARED)
    # A few mappings are a buffer of fixed size, as PostgreSQL has: the table of shares names it.
    if share is None or share.count < _MANY or not is_large(share.bytes, accounting.total):
        return
    names = [region.name for region in session.target.regions() if region.name.startswith(SHARED) or not (region.private or region.name)]
    kinds = Counter(next((kind for start, kind in _KINDS.items() if name.startswith(start)), _OTHER) for name in names)
    title = f"{size(share.bytes)} are shared memory: {some([counted(count, kind) for kind, count in kinds.most_common()], 3)}."
    named = [f"{shortened(part.name.removesuffix(DELETED), 60)} ({size(part.bytes)})" for part in share.parts if part.name]
    cause = f"The largest: {some(named, 3)}." if named else ""
    cause = f"{cause} Other processes may use it, too.".strip()
    facts: dict[str, object] = {"mappings": share.count, "kinds": dict(kinds)}
    commands = (f"whatis {share.parts[0].address:#x}",)
    yield Finding("shared-memory", share.bytes, title, cause, (), commands, facts, _resident(share, accounting))


def find_mapped_files(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding, if many mappings of one data file are a tenth of all memory."""
    share = accounting.share(ShareSort.FILES)
    modules = {os.path.basename(module.path.removesuffix(DELETED)) for module in session.target.modules()}
    part = next((part for part in share.parts if part.name not in modules), None) if share is not None else None
    if share is None or part is None or not is_large(part.bytes, accounting.total):
        return
    mappings = [r for r in session.target.regions() if os.path.basename(r.name.removesuffix(DELETED)) == part.name]
    if len(mappings) < _MANY:
        return
    name = shortened(mappings[0].name.removesuffix(DELETED), 200)
    private = sum(region.writable and region.private for region in mappings)
    title = f"{size(part.bytes)} are {counted(len(mappings), 'mapping')} of the file {name}."
    if private:
        cause = f"{number(private)} are private and writable: pages that were written to are copies, which only this process has."
    else:
        cause = "These pages are in the kernel's page cache, which can drop them."
    facts: dict[str, object] = {"file": name, "mappings": len(mappings), "private_writable": private}
    commands = (*(["count mmap"] if session.target.live else []), f"whatis {mappings[0].start:#x}")
    yield Finding("mapped-file", part.bytes, title, cause, (), commands, facts, part.bytes if accounting.known else None)


def find_class_metadata(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding, if class metadata of a JVM is a tenth of the private memory."""
    for runtime in session.runtimes:
        share = next((one for one in accounting.shares if one.of == f"{runtime.name} {METASPACE}"), None)
        if share is None or not is_large(share.bytes, _private(accounting)):
            continue
        counters = runtime.counters()
        loaders, classes = (counters[name].value if name in counters else None for name in ("class loaders", "classes"))
        percent = 100 * share.bytes // max(_private(accounting), 1)
        title = f"Class metadata of {runtime.name} takes {size(share.bytes)}, {percent} % of the private memory"
        title += f": {number(classes)} classes of {counted(loaders, 'class loader')}." if loaders and classes is not None else "."
        cause = "A class is unloaded only when its class loader is garbage." if loaders and loaders >= _MANY else ""
        facts: dict[str, object] = {"runtime": runtime.name, "class_loaders": loaders, "classes": classes}
        commands = ("runtime", *([f"count {DEFINE_CLASS}"] if session.target.live else []))
        yield Finding("class-metadata", share.bytes, title, cause, (), commands, facts, _resident(share, accounting))


def find_unlisted_heaps(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield a finding for each runtime whose memory is a tenth of the private memory, if findleaks
    does not list its objects."""
    for runtime in session.runtimes:
        parts = [share for share in accounting.shares if share.sort == ShareSort.RUNTIME and share.of.startswith(f"{runtime.name} ")]
        # Large class metadata has a finding of its own.
        parts = [share for share in parts if not (share.of.endswith(METASPACE) and is_large(share.bytes, _private(accounting)))]
        total = sum(share.bytes for share in parts)
        if runtime.lists_objects or not is_large(total, _private(accounting)):
            continue
        named = [f"{share.of.removeprefix(runtime.name).strip()} {size(share.bytes)}" for share in parts[:3] if share.bytes]
        percent = 100 * total // max(_private(accounting), 1)
        title = f"{runtime.name} has {size(total)}, {percent} % of the private memory: {', '.join(named)}."
        cause = "findleaks does not list the objects in it, so that a leak of such objects is not visible here."
        facts: dict[str, object] = {"runtime": runtime.name, "parts": {share.of: share.bytes for share in parts}}
        yield Finding("unlisted-heap", total, title, cause, (), ("runtime",), facts, total if accounting.known else None)


def _private(accounting: Accounting) -> int:
    """Return the bytes of all shares except shared memory and files."""
    return sum(share.bytes for share in accounting.shares if share.sort not in (ShareSort.SHARED, ShareSort.FILES))


def _resident(share: Share, accounting: Accounting) -> Optional[int]:
    return share.bytes if accounting.known else None
