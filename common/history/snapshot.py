"""A snapshot: the figures of the commands for one process at one time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from findleaks.history.figures import Figure
from findleaks.history.sample import BlockSample


@dataclass(frozen=True)
class Clock:
    """The time of a snapshot.

    `time`: seconds since 1970, None if unknown. `uptime`: seconds since the machine's start, which
    users cannot set back. `boot`: the id of the machine's start (/proc/sys/kernel/random/boot_id).
    If they are unknown, as for cores that other programs wrote, `uptime` is None and `boot` is
    ""."""

    time: Optional[float] = None
    uptime: Optional[float] = None
    boot: str = ""


@dataclass(frozen=True)
class Identity:
    """The identity of a process.

    `program`: base name of the executable. `build_id`: "" if unknown. `pid`: None if unknown.
    `started`: the start of the process, in clock ticks since the machine's start (proc(5), stat,
    field 22). `image`: a digest of the addresses at which the kernel placed the program, the stack
    and the random bytes (audit/residency.py); "" if unknown. Two snapshots with the same pid are of
    one process if `started` or `image` is the same."""

    program: str = ""
    build_id: str = ""
    pid: Optional[int] = None
    started: Optional[int] = None
    allocators: tuple[str, ...] = ()
    image: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The figures of a process at one time.

    `name`: the name of the file, or the name that was given to the snapshot. `answers`: the
    commands' JSON by name of the command, if it was stored. `sample`: blocks in use; None if they
    were not stored."""

    name: str
    clock: Clock
    identity: Identity
    figures: Sequence[Figure]
    answers: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    sample: Optional[BlockSample] = None

    def total(self) -> Figure:
        """Return the resident bytes; the mapped bytes if residency is unknown."""
        return next((one for one in self.figures if one.section == "total"), Figure("total", "mapped", None, 0))


def seconds(snapshots: Sequence[Snapshot]) -> Optional[list[float]]:
    """Return the times of the snapshots in seconds, all by the same clock. It is the machine's
    uptime if all snapshots are from one boot, else the time of day. Returns None if a time is
    unknown."""
    clocks = [one.clock for one in snapshots]
    uptimes = [clock.uptime for clock in clocks if clock.uptime is not None]
    if len(uptimes) == len(clocks) and len({clock.boot for clock in clocks}) == 1:
        return uptimes
    times = [clock.time for clock in clocks if clock.time is not None]
    return times if len(times) == len(clocks) else None


def several_processes(snapshots: Sequence[Snapshot]) -> str:
    """Return a phrase that explains why the snapshots are certainly not of one process; "" if they
    may be. The kernel reuses pids, so start times and images are compared, too. The image is random
    for each exec."""
    identities = [one.identity for one in snapshots]
    pids = list(dict.fromkeys(one.pid for one in identities if one.pid is not None))
    if len(pids) > 1:
        more = f" and {len(pids) - 4} more" if len(pids) > 4 else ""
        return ", ".join(f"pid {pid}" for pid in pids[:4]) + more
    started = {one.started for one in identities if one.started is not None}
    if len(started) > 1:
        return f"pid {identities[0].pid} was reused between the samples"
    if len({one.image for one in identities if one.image}) > 1:
        return f"pid {identities[0].pid} was reused, or has run another program since"
    return ""


def differences(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """Yield one line for each reason why the snapshots are not fully comparable."""
    identities = [one.identity for one in snapshots]
    for what, values in (
        ("the programs", [one.program for one in identities]),
        ("the builds", [one.build_id for one in identities]),
        ("the allocators", [", ".join(one.allocators) for one in identities]),
    ):
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1:
            yield f"{what} differ: " + "; ".join(value or "unknown" for value in distinct[:4])
            if what == "the programs":
                return
    several = several_processes(snapshots)
    if several.startswith("pid ") and len({one.pid for one in identities if one.pid is not None}) > 1:
        yield f"several processes of the program: {several}"
    elif several:
        yield f"not one process: {several}"
    if len({one.clock.boot for one in snapshots if one.clock.boot}) > 1:
        yield "the machine was restarted in between, or there are several machines: times are from clocks that may have been set"
    times = seconds(snapshots)
    if times is not None and any(after < before for before, after in zip(times, times[1:])):
        yield "the snapshots are not in the order of their times"
    units = {one.total().name for one in snapshots}
    if len(units) > 1:
        yield "the residency of pages is not known for some snapshots: their totals are mapped bytes"
