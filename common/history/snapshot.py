"""A snapshot: one moment of one process, with the figures that the commands gave of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from findleaks.history.figures import Figure
from findleaks.history.sample import Sample


@dataclass(frozen=True)
class Clock:
    """When a snapshot was taken. `time`: seconds since 1970, None if unknown. `uptime`: seconds
    since the machine's start, which no one can set back, and `boot` the id of that start
    (/proc/sys/kernel/random/boot_id); None and "" if unknown, as of cores that others wrote."""

    time: Optional[float] = None
    uptime: Optional[float] = None
    boot: str = ""


@dataclass(frozen=True)
class Identity:
    """Which process it was. `program`: base name of the executable; `build_id`: "" if unknown;
    `pid`: None if unknown; `started`: its start in clock ticks since the machine's (proc(5), stat,
    field 22), and `image`: a digest of where the kernel put program, stack and random bytes
    (audit/residency.py), "" if unknown, with which two snapshots of one pid are known to be of one
    process."""

    program: str = ""
    build_id: str = ""
    pid: Optional[int] = None
    started: Optional[int] = None
    allocators: tuple[str, ...] = ()
    image: str = ""


@dataclass(frozen=True)
class Snapshot:
    """`name`: the file it was read from, or the name that was given to it. `answers`: the commands'
    JSON by word, where they were kept. `sample`: blocks in use; None where they were not kept."""

    name: str
    clock: Clock
    identity: Identity
    figures: Sequence[Figure]
    answers: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    sample: Optional[Sample] = None

    def total(self) -> Figure:
        """Its resident bytes; its mapped bytes where residency is unknown."""
        return next((one for one in self.figures if one.section == "total"), Figure("total", "mapped", None, 0))


def seconds(snapshots: Sequence[Snapshot]) -> Optional[list[float]]:
    """The time of each in seconds, of one clock: the machine's uptime where all are of one start of
    it, else the time of day. None where one's time is unknown."""
    clocks = [one.clock for one in snapshots]
    uptimes = [clock.uptime for clock in clocks if clock.uptime is not None]
    if len(uptimes) == len(clocks) and len({clock.boot for clock in clocks}) == 1:
        return uptimes
    times = [clock.time for clock in clocks if clock.time is not None]
    return times if len(times) == len(clocks) else None


def several_processes(snapshots: Sequence[Snapshot]) -> str:
    """Why snapshots are surely not of one process, as a phrase; "" if they may be. One pid is given
    to several processes in the course of time, which differ in start time or in the image that the
    kernel places at random for each exec."""
    identities = [one.identity for one in snapshots]
    pids = list(dict.fromkeys(one.pid for one in identities if one.pid is not None))
    if len(pids) > 1:
        more = f" and {len(pids) - 4} more" if len(pids) > 4 else ""
        return ", ".join(f"pid {pid}" for pid in pids[:4]) + more
    started = {one.started for one in identities if one.started is not None}
    if len(started) > 1:
        return f"the number {identities[0].pid} was given to another one in between"
    if len({one.image for one in identities if one.image}) > 1:
        return f"pid {identities[0].pid} was given to another one, or runs another program since"
    return ""


def differences(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """Why snapshots cannot be compared in every respect, a line each."""
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
        yield "the machine was restarted in between, or there are several machines: times are those of clocks that may have been set"
    times = seconds(snapshots)
    if times is not None and any(after < before for before, after in zip(times, times[1:])):
        yield "the snapshots are not in the order of their times"
    units = {one.total().name for one in snapshots}
    if len(units) > 1:
        yield "of some snapshots it is not known which pages were resident: their totals are mapped bytes"
