"""Find memory that a process had and its core lacks.

Memory that certainly existed is `unread`. For other ranges (`Uncertain`) the core does not show
whether they ever held data. Only references to them are a sign of that.

Sources: Linux 6.12 fs/coredump.c (vma_dump_size, dump_user_range); GDB 13 to 16 gdb/linux-tdep.c
(linux_find_memory_regions_full, dump_mapping_p) and gdb/gcore.c:

- The kernel writes a segment without bytes for memory that coredump_filter excludes, for mappings
  with MADV_DONTDUMP, and for private anonymous memory that was never written to.
- GDB writes no segment for the first two. A mapped file without a segment is still in NT_FILE;
  other memory leaves no trace. GDB omits unmodified private mappings of files, which cannot contain
  pointers, and also shared mappings; NT_FILE does not distinguish them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from findleaks import formatting
from findleaks.target import elf
from findleaks.target.base import Module, Range, Region, is_shared_memory
from findleaks.target.layout import STACK, Load
from findleaks.target.notes import Mapping
from findleaks.target.ranges import gaps
from findleaks.value_classes import NamedTuple

_INSTALLED = ("/usr/", "/lib", "/opt/", "/etc/", "/nix/store/", "/gnu/store/", "/snap/", "/app/", "/var/cache/")
"""Folders of installed files that programs map to read them: locales, fonts, class archives."""
_READ_ONLY = (".so", ".jar", ".mo", ".pyc", ".ttf", ".otf", ".pak", ".jsa")
"""Suffixes of the names of files that programs map to read them."""

_LOWEST = {4: 1 << 30, 8: 64 << 30}
"""By the bytes of a word: a value below this is more likely a number, or two numbers in one word,
than an address."""
_WIDE = 64 << 30  # bytes: only a larger gap separates the brk heap or the program from mappings
_NEAR = 1 << 30  # bytes at the end of a wide gap in which memory may be missing

Lacking = Callable[[int, int], Iterator[Range]]
"""Yields the parts of [start, end) that cannot be read."""


class Uncertain(NamedTuple):
    """A range that may have held data which the core lacks; `what` describes it in messages."""

    start: int
    end: int
    what: str


UNWRITTEN = "never written to, or excluded from dumps (MADV_DONTDUMP)"
PROTECTED = "which the process cannot write to: without data, or excluded from dumps (MADV_DONTDUMP)"
UNDUMPED = "without access (PROT_NONE), which the minidump does not have"
READ_ONLY = "read-only, which the minidump does not have"
SHARED = "shared memory that the process could only read"
UNNAMED = "in no segment: excluded from dumps (MADV_DONTDUMP), which gcore leaves out, or unmapped since"


def format_ranges(ranges: Iterable[tuple[int, int]]) -> str:
    """Format ranges: "0x7fae7254b000-0x7fae7255b000 and 2 more"."""
    return formatting.some([f"{start:#x}-{end:#x}" for start, end in ranges], 2)


def missing_loads(
    loads: Iterable[Load],
    name: Callable[[int], str],
    is_module: Callable[[int], bool],
    lacking: Lacking,
    anonymous: bool,
) -> Iterator[tuple[Range, str]]:
    """Yield the missing parts of writable segments, each with the name of the file if the whole
    file is missing, otherwise "". `name` returns the name of the file mapped at an address, or "".

    Excludes segments of private memory (anonymous, or data of a module) that have no byte in the
    core, if the core has anonymous memory at all (`anonymous`). Such segments are uncertain."""
    reached = 0
    for load in loads:
        if not load.flags & elf.PF_W:
            continue
        named = name(load.start)
        private = not named or is_module(load.start)
        start, reached = max(load.start + load.there, reached), max(load.end, reached)
        if start < load.end and (load.filesz or not private or not anonymous):
            yield from ((gap, "" if load.filesz else named) for gap in lacking(start, load.end))


def file_warning(found: Iterable[tuple[Range, str]]) -> list[str]:
    """Format a warning line about the files among the missing parts; [] if there are no files."""
    files: dict[str, int] = {}
    for (start, end), name in found:
        if name:
            files[name] = files.get(name, 0) + end - start
    amount, names = formatting.size(sum(files.values())), formatting.some(list(files), 8)
    return [f"{amount} of writable files are not in the core ({names}): pointers in them are not seen."] if files else []


def missing_files(files: Sequence[Mapping], loads: Sequence[Load], modules: Sequence[Module]) -> Iterator[tuple[Range, str]]:
    """Yield the parts of mapped files that have no segment and that the process may have written
    to, with the file names. Excludes the files of modules, and files that look installed."""
    starts = [load.start for load in loads]
    ours = {module.path for module in modules}
    folders = {os.path.dirname(path) for path in ours if ".so" in os.path.basename(path)}
    for file in files:
        if file.path in ours or _is_installed(file.path, folders):
            continue
        for gap in gaps(file.start, file.end, loads, starts):
            yield gap, file.path


def _is_installed(path: str, folders: set[str]) -> bool:
    """Return whether a file looks as if processes only read it. This is judged by its folder, its
    name, or a library in the same folder (as for a JVM's `modules`)."""
    if is_shared_memory(path):
        return False
    return path.startswith(_INSTALLED) or path.endswith(_READ_ONLY) or ".so." in path or os.path.dirname(path) in folders


def uncertain_loads(loads: Iterable[Load], name: Callable[[int], str], lacking: Lacking) -> Iterator[Uncertain]:
    """Yield private segments of which the core has no bytes, and shared segments without write
    permission.
    For `name` and `lacking`, see missing_loads."""
    for load in loads:
        named = name(load.start)
        if load.filesz or load.flags & elf.PF_X or (named and (load.flags & elf.PF_W or not is_shared_memory(named))):
            continue
        what = SHARED if named else UNWRITTEN if load.flags & elf.PF_W else PROTECTED
        for start, end in lacking(load.start, load.end):
            yield Uncertain(start, end, what)


def uncertain_gaps(regions: Sequence[Region], program: Range, word: int) -> Iterator[Uncertain]:
    """Yield the addresses at which a core by GDB has no region, but mmap may have placed one:
    between mappings, and below the lowest mapping.
    `program` is the range of the program itself, with the brk heap above it; `word` is the number
    of bytes of a word. mmap allocates downward from below the stack. Therefore no memory is missing
    between the topmost mapping, usually ld.so, and the stack."""
    stack = next((region.start for region in regions if region.name == STACK), regions[-1].start if regions else 0)
    mapped = [region for region in regions if region.end <= stack]
    for after, region in zip(mapped[::-1], mapped[-2::-1]):
        start = max(region.end, _LOWEST[word])
        wide = after.start - start > _WIDE
        start = max(start, after.start - _NEAR) if wide else start
        if start < after.start and not program.start < region.end <= program.end:
            yield Uncertain(start, after.start, UNNAMED)
        if wide:
            return


def truncation_warning(there: int, wanted: int, stacks: Sequence[bool]) -> str:
    """Format the warning about a core that is cut off: `there` of its `wanted` bytes are left.
    `stacks` has a bool for each thread: whether its stack is in the core."""
    lacking = f"; {stacks.count(False)} of {len(stacks)} thread stacks are missing" if not all(stacks) else ""
    near = formatting.size(there) == formatting.size(wanted)  # only a few bytes are missing
    held = f"{there:,} of {wanted:,} bytes" if near else f"{formatting.size(there)} of {formatting.size(wanted)}"
    return f"truncated: {held} are left{lacking}. Blocks reported as leaked may be referenced from the missing part."
