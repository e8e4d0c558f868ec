"""Find the pages of a process that a stub may read.

A stub follows pointers of an interpreter's frames, without system calls. In a damaged process, such
a pointer can refer to unmapped memory. Therefore the stub reads only pages that are marked as
readable in a rule. There is one rule for each 256 KiB of memory; its value is a bitmap of the 64
pages. Pages of data files are left out, because a read fails if the file has become shorter. Pages
of modules are marked: if the file of a module becomes shorter, the process crashes anyway.

A page that is unmapped stays marked until the next refresh of the rules. Until then, a stub that
reads this page crashes the process. This can happen only if a damaged frame refers to the page:
intact frames do not refer to unmapped memory. The following remedies are not used:

- The stub could make a system call that fails if a page is unmapped. rt_sigprocmask(2) takes
  140 ns for each page, and process_vm_readv(2) takes 1,200 ns, while all checks of a frame take
  30 ns. A seccomp filter may end the process because of such a call. After rt_sigprocmask, another
  thread can still unmap the page before the stub reads it.
- Stubs in front of munmap, mremap, mmap and mprotect could clear the marks. A thread could still
  unmap a page that another thread is about to read, unless munmap waits for all threads that read.
  A thread whose signal handler calls munmap during a walk would then wait for itself. Programs that
  make these system calls without libc, such as those of Go, are not covered."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice

from findleaks.injection.stub.table import ADDRESS, ISOLATE, STACK
from findleaks.target.base import Range, Region
from findleaks.target.maps import regions_of
from findleaks.target.ranges import merge_ranges

REFRESH_SECONDS = 0.25  # seconds between readings of the mappings
MOST_UNREADABLE = 64  # after this many requests for unreadable pages, stubs read no more frames
_PAGE, _AREA = 12, 18  # log2 of the bytes of a page, and of the area that a rule describes
_PAGES = 1 << _AREA - _PAGE
_MOST_SEEDED = 1 << 32  # bytes of a mapping; larger ones are mostly reserved addresses


def readable_key(address: int) -> int:
    """Return the key of the rule whose bitmap contains the page of an address."""
    return STACK | ISOLATE | address >> _AREA


def is_readable_key(key: int) -> bool:
    """Whether the value of a key is a bitmap of pages."""
    return key & (STACK | ISOLATE) == STACK | ISOLATE


def is_marked(bitmap: int, address: int) -> bool:
    """Whether the page of an address is marked in the bitmap of its area."""
    return bool(bitmap >> (address >> _PAGE) % _PAGES & 1)


class ReadablePages:
    """The readable pages of process `pid`, as bitmaps by key. `unreadable`: the number of requests
    for pages that are not readable."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/maps"
        self._given: dict[int, int] = {}
        self._maps = b""
        self._ranges: Sequence[Range] = ()
        self._starts: Sequence[int] = ()
        self.unreadable = 0

    def ask(self, key: int, address: int) -> int:
        """Return the bitmap of a key for a thread that has requested the page of `address`."""
        self._read()
        bitmap = self._given[key] = self._bitmap(key)
        self.unreadable += not is_marked(bitmap, address)
        return bitmap

    def seed(self, most: int) -> Mapping[int, int]:
        """Return at most `most` bitmaps with readable pages. The areas with the highest addresses
        come first, because most heaps of interpreters are mappings above the program."""
        self._read()
        small = (one for one in reversed(self._ranges) if one.end - one.start <= _MOST_SEEDED)
        areas = (area for one in small for area in reversed(range(one.start >> _AREA, (one.end - 1 >> _AREA) + 1)))
        keys = (readable_key(area << _AREA) for area in islice(areas, most))
        self._given.update((key, self._bitmap(key)) for key in keys)
        return self._given

    def refresh(self) -> Mapping[int, int]:
        """Read the mappings again. Return the bitmaps that `ask` or `seed` has returned and that
        have changed since."""
        if not self._given or not self._read():
            return {}
        changed = {key: bitmap for key in self._given if (bitmap := self._bitmap(key)) != self._given[key]}
        self._given.update(changed)
        return changed

    def _read(self) -> bool:
        """Read the mappings. Return whether they have changed."""
        try:
            with open(self._path, "rb") as file:
                maps = file.read()
        except OSError:  # the process has ended
            maps = b""
        if maps == self._maps:
            return False
        self._maps, self._ranges = maps, _readable(regions_of(maps))
        self._starts = [one.start for one in self._ranges]
        return True

    def _bitmap(self, key: int) -> int:
        start = (key & ADDRESS & ~STACK) << _AREA
        bitmap = 0
        for at in range(max(bisect_right(self._starts, start) - 1, 0), bisect_left(self._starts, start + (1 << _AREA))):
            first, last = (min(max(end - start, 0) >> _PAGE, _PAGES) for end in self._ranges[at])
            bitmap |= (1 << last) - (1 << first)
        return bitmap


def _readable(regions: Sequence[Region]) -> list[Range]:
    """Return the readable private memory. Shared mappings, mappings of devices and of the kernel
    ([vvar]), and mappings of files that are not modules are left out: a read of these can fail."""
    modules = {one.name for one in regions if one.executable}
    return merge_ranges(
        Range(one.start, one.end)
        for one in regions
        if one.readable
        and one.private
        and not one.name.startswith(("/dev/", "[v"))
        and (not one.name.startswith("/") or one.has_huge_pages or one.name in modules)
    )
