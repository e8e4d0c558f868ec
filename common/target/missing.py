"""Memory that a process had and its core lacks.

What certainly was there is `unread`. Of other ranges the core does not show whether they ever held
data (`Uncertain`); only references to them do.

Sources: Linux 6.12 fs/coredump.c (vma_dump_size, dump_user_range); GDB 13 to 16
gdb/linux-tdep.c (linux_find_memory_regions_full, dump_mapping_p) and gdb/gcore.c:

- Of what coredump_filter leaves out, of mappings with MADV_DONTDUMP, and of private anonymous
  memory that was never written to, the kernel writes a segment without bytes.
- GDB writes no segment for the first two. A mapped file without a segment is still in NT_FILE; of
  other memory there is no trace. GDB leaves out private mappings of files that were not written to,
  which can hold no pointer, and shared ones; NT_FILE does not say which is which."""

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
"""Folders of installed files, which programs map to read them: locales, fonts, class archives."""
_READ_ONLY = (".so", ".jar", ".mo", ".pyc", ".ttf", ".otf", ".pak", ".jsa")
"""Ends of the names of files that programs map to read them."""

_LOWEST = {4: 1 << 30, 8: 64 << 30}
"""By the bytes of a word: addresses below are likelier numbers, or two numbers in one word."""
_WIDE = 64 << 30  # bytes from which a gap separates the heap of brk, or the program, from mappings
_NEAR = 1 << 30  # bytes of a wide gap, its last, in which memory may be missing

Lacking = Callable[[int, int], Iterator[Range]]
"""Gives the parts of [start, end) that cannot be read."""


class Uncertain(NamedTuple):
    """A range that may have held data that the core lacks; `what` describes it in a sentence."""

    start: int
    end: int
    what: str


UNWRITTEN = "never written to, or excluded from dumps (MADV_DONTDUMP)"
PROTECTED = "which the process cannot write to: without data, or excluded from dumps (MADV_DONTDUMP)"
UNDUMPED = "without access (PROT_NONE), which the minidump does not have"
READ_ONLY = "read-only, which the minidump does not have"
SHARED = "shared memory that the process could only read"
UNNAMED = "in no segment: excluded from dumps (MADV_DONTDUMP), which gcore leaves out, or unmapped since"


def where(ranges: Iterable[tuple[int, int]]) -> str:
    """ "0x7fae7254b000-0x7fae7255b000 and 2 more" """
    return formatting.some([f"{start:#x}-{end:#x}" for start, end in ranges], 2)


def missing_loads(
    loads: Iterable[Load],
    name: Callable[[int], str],
    is_module: Callable[[int], bool],
    lacking: Lacking,
    anonymous: bool,
) -> Iterator[tuple[Range, str]]:
    """What is missing of writable segments, with the name of a file that is missing as a whole.
    `name` is of the file mapped at an address, or "".

    Not private memory (anonymous, or a module's data) without a byte, if the core has such memory
    at all (`anonymous`): that is uncertain."""
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
    """A line on the files among what is missing, if there are any."""
    files: dict[str, int] = {}
    for (start, end), name in found:
        if name:
            files[name] = files.get(name, 0) + end - start
    amount, names = formatting.size(sum(files.values())), formatting.some(list(files), 8)
    return [f"{amount} of writable files are not in the core ({names}): pointers in them are not seen."] if files else []


def missing_files(files: Sequence[Mapping], loads: Sequence[Load], modules: Sequence[Module]) -> Iterator[tuple[Range, str]]:
    """The parts of mapped files that no segment has and that the process may have written to, with
    their names. Left out are the files of modules, and others that look installed."""
    starts = [load.start for load in loads]
    ours = {module.path for module in modules}
    folders = {os.path.dirname(path) for path in ours if ".so" in os.path.basename(path)}
    for file in files:
        if file.path in ours or _is_installed(file.path, folders):
            continue
        for gap in gaps(file.start, file.end, loads, starts):
            yield gap, file.path


def _is_installed(path: str, folders: set[str]) -> bool:
    """Whether this looks like a file that is read only: by its place, its name, or because a
    library lies beside it (a JVM's `modules`)."""
    if is_shared_memory(path):
        return False
    return path.startswith(_INSTALLED) or path.endswith(_READ_ONLY) or ".so." in path or os.path.dirname(path) in folders


def uncertain_loads(loads: Iterable[Load], name: Callable[[int], str], lacking: Lacking) -> Iterator[Uncertain]:
    """Segments without bytes of private memory, or of shared memory that cannot be written to.
    `name` and `lacking`: see missing_loads."""
    for load in loads:
        named = name(load.start)
        if load.filesz or load.flags & elf.PF_X or (named and (load.flags & elf.PF_W or not is_shared_memory(named))):
            continue
        what = SHARED if named else UNWRITTEN if load.flags & elf.PF_W else PROTECTED
        for start, end in lacking(load.start, load.end):
            yield Uncertain(start, end, what)


def uncertain_gaps(regions: Sequence[Region], program: Range, word: int) -> Iterator[Uncertain]:
    """Addresses without a region in a core by GDB, where mmap may have put one: between mappings,
    and below the lowest of those that it made. `program` is where the program itself lies, with
    the heap of brk above it; `word` the bytes of a word. mmap goes down from below the stack, so
    that no memory is missing between the topmost mapping, as a rule ld.so, and the stack."""
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
    """The warning of a core that is cut off: `there` of the `wanted` bytes are left. `stacks`: for
    each thread, whether its stack is there."""
    lacking = f"; {stacks.count(False)} of {len(stacks)} thread stacks are missing" if not all(stacks) else ""
    near = formatting.size(there) == formatting.size(wanted)  # a few bytes short
    held = f"{there:,} of {wanted:,} bytes" if near else f"{formatting.size(there)} of {formatting.size(wanted)}"
    return f"truncated: {held} are there{lacking}. What is found lost may be referred to from the missing part."
