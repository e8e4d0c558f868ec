"""Render heap profiles as text, for `jeprof`, gperftools' `pprof` and `go tool pprof`.

The format is that of gperftools (2.10, src/heap-profile-table.cc, FillOrderedProfile): a line of
totals, a line with blocks and bytes for each stack, and the mappings as in /proc/PID/maps. With the
mappings, readers find the programs, which contain the names.

If the recorder samples, the figures are estimates, not samples. Therefore the header is not
heap_v2: readers would then scale the figures by the mean block size of a stack."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.errors import UsageError
from findleaks.escaping import visible
from findleaks.report.profile import BYTES, COUNT, Profile
from findleaks.target.base import Region


def require_heap_profile(profile: Profile) -> None:
    """Raise UsageError if the format cannot represent a profile."""
    units = [measure.unit for measure in profile.measures]
    if units[:2] != [COUNT, BYTES] or profile.compared:
        raise UsageError("a heap profile needs blocks and bytes of one snapshot; choose another format, such as FILE.pb.gz")
    if not any(frame.address for sample in profile.samples for frame in sample.stack):
        raise UsageError("a heap profile needs stacks of addresses, not names; choose another format, such as FILE.pb.gz")


def render(profile: Profile) -> bytes:
    """Render the first two measures, blocks and bytes, of the stacks that have addresses."""
    require_heap_profile(profile)
    sums: dict[tuple[int, ...], tuple[int, int]] = {}
    for sample in profile.samples:
        # Innermost frame first; inlined frames have the address of their caller.
        stack = tuple(frame.address for frame in reversed(sample.stack) if frame.address and not frame.inlined)
        if not stack:
            continue
        blocks, size = sums.get(stack, (0, 0))
        sums[stack] = blocks + sample.values[0], size + sample.values[1]
    return "".join(_lines(profile, sums)).encode()


def _lines(profile: Profile, sums: dict[tuple[int, ...], tuple[int, int]]) -> Iterator[str]:
    blocks, size = (sum(column) for column in zip((0, 0), *sums.values()))
    yield f"heap profile: {blocks:6}: {size:8} [{blocks:6}: {size:8}] @ heapprofile\n"
    for stack, (blocks, size) in sorted(sums.items(), key=lambda item: (-item[1][1], item[0])):
        addresses = " ".join(map(hex, stack))
        yield f"{blocks:6}: {size:8} [{blocks:6}: {size:8}] @ {addresses}\n"
    yield "\nMAPPED_LIBRARIES:\n"
    for region in profile.regions:
        yield _mapping(region)


def _mapping(region: Region) -> str:
    flags = f"{'r' if region.readable else '-'}{'w' if region.writable else '-'}{'x' if region.executable else '-'}"
    name = visible(region.name.replace("\n", "\\012"))  # the kernel writes line ends in this form
    flags += "p" if region.private else "s"
    return f"{region.start:x}-{region.end:x} {flags} {region.file_offset:08x} 00:00 0 {name}".rstrip() + "\n"
