"""Mappings grouped by name, for comparing two moments as with pmap: files by path, others by
size."""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.audit.residency import read_residency
from findleaks.formatting import size
from findleaks.session import Session
from findleaks.target.base import Region

_KERNELS = ("[vdso", "[vvar", "[vsyscall")


class NamedMappings(NamedTuple):
    """Mappings with one name. Sizes are in bytes; `resident` is None if residency is unknown."""

    name: str
    regions: int
    mapped: int
    resident: Optional[int]


def list_mappings(session: Session) -> list[NamedMappings]:
    """Return the mappings of a process, by name, the largest first."""
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


def name_mapping_kind(region: Region) -> str:
    """Return a path or a label; for anonymous memory, its permissions and the next power of two of
    its size.
    Growth by many mappings of one size then shows as one row."""
    if region.name:
        return region.name
    allowed = "".join(
        letter if given else "-" for letter, given in (("r", region.readable), ("w", region.writable), ("x", region.executable))
    )
    return f"anonymous {allowed}, up to {size(1 << max(region.size - 1, 1).bit_length())} each"
