"""Report large shares of memory that are not blocks: stacks, shared memory, files, managed heaps.

Private memory is compared with private memory only, because other processes may use the shared
memory and files, too."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.audit.accounting import Accounting, Share
from findleaks.audit.findings.significance import LEAST, PART, is_large
from findleaks.audit.unread_memory import SHARED
from findleaks.formatting import counted, number, shortened, size, some
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.directory import find_frames
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import GARBAGE_OBJECTS
from findleaks.session import Session
from findleaks.target.base import Region
from findleaks.target.modules import DELETED
from findleaks.unwind.stacks import NamedFrame, group_threads
from findleaks.value_classes import NamedTuple

_MANY = 32  # fewest mappings of one kind or file, or threads, that a finding mentions
_KINDS = {"/memfd:": "memfd mapping", "/SYSV": "System V segment", "/dev/shm/": "POSIX shared memory mapping"}
METASPACE = "metaspace"  # name of the part of a JVM's memory that contains class metadata
DEFINE_CLASS = "JVM_DefineClassWithSource"  # the function of libjvm that defines a class
# This text precedes the type in the names of counters of class loaders
_OF_TYPE = "class loaders of type "
_MANY_OF_TYPE = 100  # class loaders of one type; so many are reported even with few bytes
_REFLECTION = ("jdk.internal.", "sun.reflect.")  # packages of the JVM's own class loaders
_MANAGED_LIBRARIES = ("java.", "javax.", "jdk.", "sun.")  # packages of Java's own library
_OTHER = "anonymous shared mapping"


def find_thread_stacks(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if stacks of running threads are at least a tenth of the private memory."""
    share = accounting.share(ShareSort.STACKS)
    if share is None or share.count < 2 or not is_large(share.bytes, private_bytes(accounting)):
        return
    percent = 100 * share.bytes // max(private_bytes(accounting), 1)
    if accounting.known:
        title = f"{number(share.count)} threads run: their stacks take {size(share.bytes)}, {percent} % of the private memory."
    elif share.count >= _MANY:
        title = f"{number(share.count)} threads run: {size(share.bytes)} are mapped for their stacks, of which most may be untouched."
    else:
        return
    most = next(iter(group_threads(session.target, readers=find_frames(session.target))), None)
    frame = _own_frame(most.frames) if most is not None else None
    place = shortened(frame.short_name(), 200) if frame is not None else ""
    several = most is not None and len(most.threads) > 1 and place
    cause = f"{number(len(most.threads))} of them have the same stack, in {place}." if most is not None and several else ""
    facts: dict[str, object] = {
        "threads": share.count,
        "same_stack": len(most.threads) if most is not None else None,
        "place": place or None,
    }
    yield Finding("thread-stacks", share.bytes, title, cause, (), ("stacks",), facts, _resident(share, accounting))


def _own_frame(frames: Sequence[NamedFrame]) -> Optional[NamedFrame]:
    """Return the innermost frame of the program: of a managed function, if there is one."""
    from findleaks.audit.crash import own_frame  # in few processes stacks take much memory

    managed = [one for one in frames if one.kind]
    return next((one for one in managed if not one.function.startswith(_MANAGED_LIBRARIES)), None) or next(iter(managed), own_frame(frames))


def find_shared_memory(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if many mappings of shared memory are at least a tenth of all memory."""
    share = accounting.share(ShareSort.SHARED)
    # A few mappings are usually a buffer of fixed size, as in PostgreSQL; the table of shares names
    # it.
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


class DataFile(NamedTuple):
    """A file that is mapped and not loaded as code. `bytes`: the resident bytes of its mappings."""

    name: str  # path
    bytes: int
    regions: Sequence[Region]

    @property
    def private_writable(self) -> int:
        """Number of the mappings whose pages the process has copied if it wrote to them."""
        return sum(region.writable and region.private for region in self.regions)


def find_largest_data_file(session: Session, accounting: Accounting) -> Optional[DataFile]:
    """Return the data file that takes most memory, if it is a large part of all memory."""
    share = accounting.share(ShareSort.FILES)
    modules = {os.path.basename(module.path.removesuffix(DELETED)) for module in session.target.modules()}
    part = next((part for part in share.parts if part.name not in modules), None) if share is not None else None
    if part is None or not is_large(part.bytes, accounting.total):
        return None
    regions = [r for r in session.target.regions() if os.path.basename(r.name.removesuffix(DELETED)) == part.name]
    return DataFile(regions[0].name, part.bytes, regions) if regions else None


def find_mapped_files(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if many mappings of one data file are at least a tenth of all memory."""
    file = find_largest_data_file(session, accounting)
    if file is None or len(file.regions) < _MANY:
        return
    name = shortened(file.name.removesuffix(DELETED), 200)
    title = f"{size(file.bytes)} are {counted(len(file.regions), 'mapping')} of the file {name}."
    if file.private_writable:
        cause = (
            f"{number(file.private_writable)} are private and writable: pages that were written to are copies, which only this process has."
        )
    else:
        cause = "These pages are in the kernel's page cache, which can drop them."
    facts: dict[str, object] = {"file": name, "mappings": len(file.regions), "private_writable": file.private_writable}
    commands = (*(["count mmap"] if session.target.live else []), f"whatis {file.regions[0].start:#x}")
    yield Finding("mapped-file", file.bytes, title, cause, (), commands, facts, file.bytes if accounting.known else None)


def find_class_metadata(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if class metadata of a JVM is at least a tenth of the private memory, and
    either has at least LEAST bytes or belongs to many class loaders of one type."""
    for runtime in session.runtimes:
        share = next((one for one in accounting.shares if one.of == f"{runtime.name} {METASPACE}"), None)
        if share is None or share.bytes < PART * private_bytes(accounting):
            continue
        counters = runtime.counters()
        loaders, classes = (counters[name].value if name in counters else None for name in ("class loaders", "classes"))
        percent = 100 * share.bytes // max(private_bytes(accounting), 1)
        title = f"Class metadata of {runtime.name} takes {size(share.bytes)}, {percent} % of the private memory"
        title += f": {number(classes)} classes of {counted(loaders, 'class loader')}." if loaders and classes is not None else "."
        cause = "A class is unloaded only when its class loader is garbage." if loaders and loaders >= _MANY else ""
        by_type = {name.partition(_OF_TYPE)[2]: count.value for name, count in counters.items() if _OF_TYPE in name}
        if share.bytes < LEAST and not _are_many(by_type):
            continue
        if by_type:
            named = [f"{number(count)} are {shortened(name)}{_garbage(runtime, name)}" for name, count in by_type.items()]
            cause = f"Of the class loaders, {some(named, 3)}. {cause}".strip()
        facts: dict[str, object] = {"runtime": runtime.name, "class_loaders": loaders, "classes": classes, "loaders_by_type": by_type}
        example = _live_loader(runtime, by_type)
        if example is not None:
            cause += f" One of them is reached by {shortened(example.path, 400)}."
        paths = [f"path {example.address:#x}"] if example is not None else []
        commands = ("runtime", *paths, *([f"count {DEFINE_CLASS}"] if session.target.live else []))
        yield Finding("class-metadata", share.bytes, title, cause, (), commands, facts, _resident(share, accounting))


def _are_many(by_type: Mapping[str, int]) -> bool:
    """Return whether many class loaders have the same type. Class loaders that the JVM creates for
    reflection do not count."""
    return any(count >= _MANY_OF_TYPE and not name.startswith(_REFLECTION) for name, count in by_type.items())


class _Loader(NamedTuple):
    """A live class loader, and the path to it as types and fields."""

    address: int
    path: str


def _live_loader(runtime: Runtime, by_type: Mapping[str, int]) -> Optional[_Loader]:
    """Return a live class loader of the type that has the most class loaders; None if there is
    none."""
    graph = runtime.object_graph() if by_type else None
    address = graph.example(next(iter(by_type))) if graph is not None else None
    found = graph.find(address) if graph is not None and address is not None else None
    return _Loader(found.address, graph.describe_path(found.block)) if graph is not None and found is not None else None


def _garbage(runtime: Runtime, name: str) -> str:
    """Return " (3 of them garbage)" if some objects of this type are garbage, else ""."""
    own = next((one.own for one in runtime.types() if one.name == name), {})
    count = own.get(GARBAGE_OBJECTS)
    return f" ({number(count)} of them garbage)" if count else ""


def find_unlisted_heaps(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield a finding for each runtime whose memory is at least a tenth of the private memory and
    whose objects findleaks does not list."""
    for runtime in session.runtimes:
        parts = [share for share in accounting.shares if share.sort == ShareSort.RUNTIME and share.of.startswith(f"{runtime.name} ")]
        # Large class metadata has a separate finding.
        parts = [share for share in parts if not (share.of.endswith(METASPACE) and is_large(share.bytes, private_bytes(accounting)))]
        total = sum(share.bytes for share in parts)
        if runtime.lists_objects or not is_large(total, private_bytes(accounting)):
            continue
        named = [f"{share.of.removeprefix(runtime.name).strip()} {size(share.bytes)}" for share in parts[:3] if share.bytes]
        percent = 100 * total // max(private_bytes(accounting), 1)
        title = f"{runtime.name} has {size(total)}, {percent} % of the private memory: {', '.join(named)}."
        cause = "findleaks does not list the objects in it, so that a leak of such objects is not visible here."
        facts: dict[str, object] = {"runtime": runtime.name, "parts": {share.of: share.bytes for share in parts}}
        yield Finding("unlisted-heap", total, title, cause, (), ("runtime",), facts, total if accounting.known else None)


def private_bytes(accounting: Accounting) -> int:
    """Return the bytes of all shares except shared memory and files."""
    return sum(share.bytes for share in accounting.shares if share.sort not in (ShareSort.SHARED, ShareSort.FILES))


def _resident(share: Share, accounting: Accounting) -> Optional[int]:
    return share.bytes if accounting.known else None
