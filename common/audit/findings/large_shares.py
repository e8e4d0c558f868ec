"""Report large shares of memory that are not blocks: shared memory, files, managed heaps.

Class metadata and managed heaps are compared with the private memory only, because other processes
may use the shared memory and files, too."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Optional

from findleaks.audit.accounting import Accounting, Share
from findleaks.audit.diagnostics import is_trusted
from findleaks.audit.findings.forgotten_files import Forgotten, count_forgotten, select_of_folder
from findleaks.audit.findings.significance import LEAST, PART, is_large
from findleaks.audit.unread_memory import is_shared
from findleaks.formatting import format_count, number, shorten, size, some
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import GARBAGE_OBJECTS
from findleaks.runtimes.memory_part import Explanation
from findleaks.runtimes.retained_findings import find_path_remedies
from findleaks.session import Session
from findleaks.target.base import Range, Region
from findleaks.target.modules import DELETED
from findleaks.target.ranges import merge_ranges
from findleaks.value_classes import NamedTuple

_NAMED = 3  # maximum number of names of shared memory in a finding
_MANY = 32  # minimum number of mappings in a finding
_KINDS = {
    "/memfd:": "memfd mapping",
    "/SYSV": "System V segment",
    "/dev/shm/": "POSIX shared memory mapping",
    "anon_inode:[io_uring]": "mapping of io_uring",
    "/[aio]": "mapping of aio",
    "anon_inode:": "kernel mapping",
    "socket:": "mapping of a socket",
}
# Names of memory that the process shares with the kernel
_OF_KERNEL = ("anon_inode:", "socket:", "/[aio]")
METASPACE = "metaspace"  # name of the part of a JVM's memory that contains class metadata
DEFINE_CLASS = "JVM_DefineClassWithSource"  # the function of libjvm that defines a class
# This text precedes the type in the names of counters of class loaders
_OF_TYPE = "class loaders of type "
_MANY_OF_TYPE = 100  # fewest class loaders of one type that are reported despite few bytes
_MANY_ALIKE = 1000  # fewest classes whose names differ only in numbers; see _MANY_OF_TYPE
_REFLECTION = ("jdk.internal.", "sun.reflect.")  # packages of the JVM's own class loaders
_OTHER = "anonymous shared mapping"


def find_shared_memory(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if many mappings of shared memory are at least a tenth of all memory."""
    share = accounting.share(ShareSort.SHARED)
    # A few mappings are usually a buffer of fixed size, as in PostgreSQL; the table of shares names
    # it.
    if share is None or share.count < _MANY or not is_large(share.bytes, accounting.total):
        return
    regions = [one for one in session.target.regions() if is_shared(one)]
    names = [region.name for region in regions]
    kinds = Counter(map(classify_shared_memory, names))
    title = f"{size(share.bytes)} are shared memory: {some([_count_mappings(count, kind) for kind, count in kinds.most_common()], 3)}."
    named = [f"{shorten(part.name.removesuffix(DELETED), 60)} ({size(part.bytes)})" for part in share.parts if part.name]
    cause = f"The largest: {', '.join(named[:_NAMED])}." if named else ""
    if not all(name.startswith(_OF_KERNEL) for name in names):
        cause = f"{cause} Other processes may use it, too.".strip()
    forgotten = count_forgotten(session, regions)
    facts: dict[str, object] = {"mappings": share.count, "kinds": dict(kinds), "unreferenced": None}
    commands = [f"whatis {share.parts[0].address:#x}"]
    if forgotten is not None:
        facts.update(forgotten.facts)
    if forgotten is not None and forgotten.is_most(len(regions)):
        cause = f"{_describe_forgotten(session, forgotten)} {cause}".strip()
        function = "shmat" if kinds.most_common(1)[0][0] == _KINDS["/SYSV"] else "mmap"
        commands = [*_suggest_about(session, forgotten, function), *commands]
    yield Finding("shared-memory", share.bytes, title, cause, (), tuple(commands), facts, _resident(share, accounting))


def _describe_forgotten(session: Session, forgotten: Forgotten) -> str:
    """Return sentences about mappings to which no word of live memory refers."""
    memory = "live memory" if is_trusted(session) else "the live memory that was read"
    unreferenced, leaked = forgotten
    sentences = (
        [f"No word in {memory} refers to {number(unreferenced)} of these mappings: they were probably not unmapped."]
        if unreferenced
        else []
    )
    if leaked:
        sentences.append(f"Only leaked blocks refer to {number(leaked)} of these mappings: find how these blocks leak.")
    return " ".join(sentences)


def _suggest_about(session: Session, forgotten: Forgotten, function: str) -> list[str]:
    """Return commands that show how mappings without a reference are lost. `function`: the function
    that maps them."""
    calls = [f"count {function}"] if session.target.live else []
    return ["find", *calls] if forgotten.leaked > forgotten.unreferenced else calls


def classify_shared_memory(name: str) -> str:
    """Return the kind of a mapping of shared memory, in the singular. `name`: that of the
    mapping."""
    return next((kind for start, kind in _KINDS.items() if name.startswith(start)), _OTHER)


def _count_mappings(count: int, kind: str) -> str:
    noun, of, rest = kind.partition(" of ")
    return f"{format_count(count, noun)}{of}{rest}"


class DataFile(NamedTuple):
    """A mapped file, not the program or a library. `bytes`: the resident bytes of its mappings."""

    name: str  # path
    bytes: int
    regions: Sequence[Region]

    @property
    def private_writable(self) -> int:
        """The number of private, writable mappings. Pages that were written to are copies."""
        return sum(region.writable and region.private for region in self.regions)


def find_largest_data_file(session: Session, accounting: Accounting) -> Optional[DataFile]:
    """Return the data file that takes the most memory; None if no file takes a large part."""
    file = next(_list_data_files(session, accounting), None)
    return file if file is not None and is_large(file.bytes, accounting.total) else None


def find_mapped_files(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if many mappings of one data file take at least a tenth of all memory. The
    mappings of several files are added if objects of a managed runtime refer to them."""
    files = list(_list_data_files(session, accounting))
    if files and len(files[0].regions) >= _MANY and is_large(files[0].bytes, accounting.total):
        files = files[:1]
    elif files:
        files = _omit_files_of_runtimes(session, files)
    if not is_large(sum(file.bytes for file in files), accounting.total):
        return
    regions = sorted((region for file in files for region in file.regions), key=lambda one: one.start)
    if len(regions) < _MANY:
        return
    holders = _find_referrers(session, regions)
    if len(files) > 1 and holders is None:
        yield from _find_forgotten_files(session, accounting, files)
        return
    total, private = sum(file.bytes for file in files), sum(file.private_writable for file in files)
    name = shorten(files[0].name.removesuffix(DELETED), 200)
    what = f"the file {name}" if len(files) == 1 else f"{number(len(files))} files. The largest is {name}"
    title = f"{size(total)} are {format_count(len(regions), 'mapping')} of {what}."
    if private:
        cause = f"{number(private)} are private and writable: pages that were written to are copies, which only this process has."
    else:
        cause = "These pages are in the kernel's page cache, which can drop them."
    facts: dict[str, object] = {"file": name, "mappings": len(regions), "private_writable": private}
    commands = (*(["count mmap"] if session.target.live else []), f"whatis {files[0].regions[0].start:#x}")
    if holders is not None:
        cause += holders.cause
        facts["referrers"] = holders.facts
        commands = (*holders.commands, *commands)
    remedies = holders.remedies if holders is not None else ()
    yield Finding("mapped-file", total, title, cause, remedies, commands, facts, total if accounting.known else None)


def _find_forgotten_files(session: Session, accounting: Accounting, files: Sequence[DataFile]) -> Iterator[Finding]:
    """Yield one finding if many files of one folder are mapped, and no word refers to most of these
    mappings."""
    alike = select_of_folder(files, _MANY)
    total, regions = sum(file.bytes for file in alike), [region for file in alike for region in file.regions]
    forgotten = count_forgotten(session, regions) if is_large(total, accounting.total) else None
    if forgotten is None or not forgotten.is_most(len(regions)):
        return
    folder = shorten(os.path.dirname(alike[0].name), 200)
    title = f"{size(total)} are {format_count(len(regions), 'mapping')} of {format_count(len(alike), 'file')} in {folder}."
    cause = _describe_forgotten(session, forgotten)
    cause += f" The largest file is {shorten(os.path.basename(alike[0].name.removesuffix(DELETED)), 100)}."
    facts: dict[str, object] = {
        "file": shorten(alike[0].name.removesuffix(DELETED), 200),
        "files": len(alike),
        "mappings": len(regions),
        "private_writable": sum(file.private_writable for file in alike),
        **forgotten.facts,
    }
    commands = (*_suggest_about(session, forgotten, "mmap"), f"whatis {alike[0].regions[0].start:#x}")
    yield Finding("mapped-file", total, title, cause, (), commands, facts, total if accounting.known else None)


def _list_data_files(session: Session, accounting: Accounting) -> Iterator[DataFile]:
    """Yield the data files, the largest first."""
    modules = _modules_by_name(session)
    mappings: dict[str, list[Region]] = {}
    for region in session.target.regions():
        mappings.setdefault(_file_name(region.name), []).append(region)
    share = accounting.share(ShareSort.FILES)
    for part in share.parts if share is not None else ():
        if part.name not in modules and part.name in mappings:
            yield DataFile(mappings[part.name][0].name, part.bytes, mappings[part.name])


def _omit_files_of_runtimes(session: Session, files: Iterable[DataFile]) -> list[DataFile]:
    """Return the files without those of runtimes, for example the JVM's archive of class data.
    These are in the folder of a runtime's library, or in the folder above it. A runtime in the
    program itself has no such files."""
    libraries = _modules_by_name(session)
    paths = [libraries[runtime.where] for runtime in session.runtimes if runtime.where in libraries]
    folders = {os.path.dirname(path) for path in paths if path != session.target.exe_path}
    folders |= {os.path.dirname(folder) for folder in folders}
    return [file for file in files if os.path.dirname(file.name) not in folders]


def _modules_by_name(session: Session) -> dict[str, str]:
    """Return the path of each module by its file name."""
    return session.once(_modules_by_name, lambda: {_file_name(one.path): one.path for one in session.target.modules()})


def _file_name(path: str) -> str:
    return os.path.basename(path.removesuffix(DELETED))


class _MappingReferrers(NamedTuple):
    """The part of a finding that describes the managed objects that refer to mappings."""

    cause: str
    facts: dict[str, object]
    commands: tuple[str, ...]
    remedies: tuple[str, ...]


def _find_referrers(session: Session, mappings: Sequence[Region]) -> Optional[_MappingReferrers]:
    """Describe the managed objects of one type that refer to at least half of the bytes of the
    mappings. Return None if there is no such type: native code may have mapped the other files."""
    ranges = merge_ranges(Range(one.start, one.end) for one in mappings)
    least = sum(end - start for start, end in ranges) // 2
    for runtime in session.runtimes:
        graph = runtime.object_graph()
        found = next((one for one in graph.list_referrers(ranges) if one.bytes >= least), None) if graph is not None else None
        if graph is None or found is None:
            continue
        objects = found.objects or found.garbage
        refer = "refers" if objects == 1 else "refer"
        what = "object" if found.objects else "garbage object"
        cause = f" {format_count(objects, what)} of {shorten(found.type, 200)} {refer} to these mappings"
        cause += f", {number(found.garbage)} more are garbage." if found.objects and found.garbage else "."
        example = graph.find(found.example) if found.example else None
        path = graph.describe_path(example.block) if example is not None else ""
        if path:
            cause += f" One of them is reached by {shorten(path, 400)}."
        chain = graph.path(example.block) if example is not None else ()
        remedies = tuple(graph.mapping_remedies(found.type, chain, found.objects))
        commands = (f"path {found.example:#x}",) if path else ()
        facts: dict[str, object] = {"type": found.type, "objects": found.objects, "garbage_objects": found.garbage}
        return _MappingReferrers(cause, facts, commands, remedies)
    return None


def find_class_metadata(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if class metadata of a JVM is at least a tenth of the private memory, and
    either has at least LEAST bytes or belongs to many class loaders of one type. A twentieth
    suffices if many names of classes differ only in numbers, such as those of lambdas."""
    for runtime in session.runtimes:
        share = next((one for one in accounting.shares if one.of == f"{runtime.name} {METASPACE}"), None)
        if share is None or 2 * share.bytes < PART * private_bytes(accounting):
            continue
        counters = runtime.counters()
        loaders, classes = (counters[name].value if name in counters else None for name in ("class loaders", "classes"))
        percent = 100 * share.bytes // max(private_bytes(accounting), 1)
        title = f"Class metadata of {runtime.name} takes {size(share.bytes)}, {percent} % of the private memory"
        title += f": {number(classes)} classes of {format_count(loaders, 'class loader')}." if loaders and classes is not None else "."
        cause = "A class is unloaded only when its class loader is garbage." if loaders and loaders >= _MANY else ""
        by_type = {name.partition(_OF_TYPE)[2]: count.value for name, count in counters.items() if _OF_TYPE in name}
        explained = _explain(runtime, METASPACE)
        alike = explained.facts["classes"] if explained is not None else 0
        is_reported = share.bytes >= PART * private_bytes(accounting) and (share.bytes >= LEAST or _are_many(by_type))
        if not is_reported and not (isinstance(alike, int) and alike >= _MANY_ALIKE):
            continue
        if by_type:
            named = [f"{number(count)} are {shorten(name)}{_garbage(runtime, name)}" for name, count in by_type.items()]
            cause = f"Of the class loaders, {some(named, 3)}. {cause}".strip()
        facts: dict[str, object] = {"runtime": runtime.name, "class_loaders": loaders, "classes": classes, "loaders_by_type": by_type}
        if explained is not None:
            cause = f"{explained.sentence} {cause}".strip()
            facts["class_names"] = explained.facts
        example = _live_loader(runtime, by_type) or (_live_object(runtime, explained.example) if explained is not None else None)
        if example is not None:
            cause += f" One of them is reached by {shorten(example.path, 400)}."
        paths = [f"path {example.address:#x}"] if example is not None else []
        remedies = find_path_remedies(runtime, example.path) if example is not None else ()
        commands = ("runtime", *paths, *([f"count {DEFINE_CLASS}"] if session.target.live else []))
        yield Finding("class-metadata", share.bytes, title, cause, remedies, commands, facts, _resident(share, accounting))


def _are_many(by_type: Mapping[str, int]) -> bool:
    """Return whether many class loaders have the same type. Class loaders that the JVM creates for
    reflection do not count."""
    return any(count >= _MANY_OF_TYPE and not name.startswith(_REFLECTION) for name, count in by_type.items())


class _Example(NamedTuple):
    """A live object, and the path to it as types and fields."""

    address: int
    path: str


def _live_loader(runtime: Runtime, by_type: Mapping[str, int]) -> Optional[_Example]:
    """Return a live class loader of the type that has the most class loaders; None if there is
    none."""
    graph = runtime.object_graph() if by_type else None
    address = graph.example(next(iter(by_type))) if graph is not None else None
    return _live_object(runtime, address or 0)


def _live_object(runtime: Runtime, address: int) -> Optional[_Example]:
    """Return the live object at an address, and the path to it; None if there is none."""
    graph = runtime.object_graph() if address else None
    found = graph.find(address) if graph is not None else None
    return _Example(address, graph.describe_path(found.block)) if graph is not None and found is not None and found.is_live else None


def _explain(runtime: Runtime, name: str) -> Optional[Explanation]:
    """Return why the part of a runtime's memory with this name is large; None if it is unknown."""
    part = next((one for one in runtime.parts() if one.name == name), None)
    return part.explain() if part is not None and part.explain is not None else None


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
        cause = "findleaks does not list the objects in this memory, so a leak of such objects is not visible here."
        facts: dict[str, object] = {"runtime": runtime.name, "parts": {share.of: share.bytes for share in parts}}
        yield Finding("unlisted-heap", total, title, cause, (), ("runtime",), facts, total if accounting.known else None)


def private_bytes(accounting: Accounting) -> int:
    """Return the bytes of all shares except shared memory and files."""
    return sum(share.bytes for share in accounting.shares if share.sort not in (ShareSort.SHARED, ShareSort.FILES))


def _resident(share: Share, accounting: Accounting) -> Optional[int]:
    return share.bytes if accounting.known else None
