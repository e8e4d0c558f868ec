"""Group mappings by name, to compare two samples as with pmap. Files are named by path, other
mappings by size."""

from __future__ import annotations

import re
from typing import Optional

from findleaks.audit.residency import read_residency
from findleaks.formatting import UNITS, replace_numbers, size
from findleaks.session import Session
from findleaks.target.base import MEMFD, Region
from findleaks.target.modules import DELETED
from findleaks.value_classes import NamedTuple

_KERNELS = ("[vdso", "[vvar", "[vsyscall")
_NUMBERED = ("/dev/shm/", "/run/shm/", MEMFD)
_KIND = re.compile(r"anonymous (shared )?(huge pages )?([r-][w-][x-]), up to ([0-9.]+) (\w+) each")
_ACCESS = {"rw-": "", "r--": " (read-only)", "---": " (inaccessible)", "r-x": " (executable)", "rwx": " (writable and executable)"}
_PAGE = 4096


class NamedMappings(NamedTuple):
    """The mappings with one name. Sizes are in bytes; `resident` is None if residency is
    unknown."""

    name: str
    regions: int
    mapped: int
    resident: Optional[int]


def list_mappings(session: Session) -> list[NamedMappings]:
    """Return the mappings of a process, grouped by name, the largest first."""
    pages = read_residency(session)
    found: dict[str, list[int]] = {}
    for region in session.target.regions():
        if region.name.startswith(_KERNELS):
            continue
        row = found.setdefault(name_mapping_kind(region), [0, 0, 0])
        row[0] += 1
        row[1] += region.size
        row[2] += pages.resident.bytes(region.start, region.end) if pages else 0
    rows = [NamedMappings(name, count, mapped, held if pages else None) for name, (count, mapped, held) in found.items()]
    return sorted(rows, key=lambda row: (-(row.mapped if row.resident is None else row.resident), row.name))


def name_shared_memory(region: Region) -> str:
    """Return the name of shared memory. Numbers in it are replaced by "#", because programs number
    the segments that they create: "/dev/shm/cache-#"."""
    name = region.name.removesuffix(DELETED)
    return replace_numbers(name) if name.startswith(_NUMBERED) else name or "anonymous shared memory"


def name_mapping_kind(region: Region) -> str:
    """Return a path or a label. For anonymous memory, return its permissions and its size, rounded
    up to a power of two.
    If many mappings of one size are added, they appear as the growth of one row."""
    if region.name and not region.has_huge_pages:
        return region.name
    allowed = "".join(
        letter if given else "-" for letter, given in (("r", region.readable), ("w", region.writable), ("x", region.executable))
    )
    huge = f"{'' if region.private else 'shared '}huge pages " if region.has_huge_pages else ""
    return f"anonymous {huge}{allowed}, up to {size(1 << max(region.size - 1, 1).bit_length())} each"


def describe_mapping_kind(name: str) -> str:
    """Return the name of a kind of mappings as text. `name`: the result of name_mapping_kind. For
    "anonymous rw-, up to 4.0 MiB each" this is "anonymous mappings of 2.0 MiB to 4.0 MiB"."""
    found = _KIND.fullmatch(name)
    if found is None:
        return name
    shared, huge, allowed, number, unit = found.groups()
    largest = int(float(number) * 1024 ** (("B", *UNITS).index(unit)))
    sizes = size(largest) if largest <= _PAGE else f"{size(largest // 2)} to {size(largest)}"
    pages = " of huge pages" if huge else ""
    return f"{shared or ''}anonymous mappings{pages} of {sizes}{_ACCESS.get(allowed, f' ({allowed})')}"
