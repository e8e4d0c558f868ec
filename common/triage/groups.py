"""The same leak in many cores, as one group."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any, Optional

from findleaks.triage.row import LeakSum, Row


@dataclass
class LeakGroup:
    """A leak and the cores that have it. `blocks`, `bytes`: of all of them; `most`: of the core
    with most, which is `example`; `first`, `last`: times of cores, None if unknown; `new`: it is
    not in the baseline; None without one."""

    signature: str
    program: str
    what: str
    hint: str = ""
    cores: int = 0
    leaks: int = 0
    blocks: int = 0
    bytes: int = 0
    most: int = -1
    example: str = ""
    first: Optional[float] = None
    last: Optional[float] = None
    builds: dict[str, int] = field(default_factory=dict)
    new: Optional[bool] = None

    def add(self, row: Row, leak: LeakSum) -> None:
        self.cores += 1
        self.leaks += leak.leaks
        self.blocks += leak.blocks
        self.bytes += leak.bytes
        if (-leak.bytes, row.core) < (-self.most, self.example):  # whatever the order of the rows
            self.most, self.example, self.hint, self.what = leak.bytes, row.core, leak.hint, leak.what
        if row.time is not None:
            self.first = row.time if self.first is None else min(self.first, row.time)
            self.last = row.time if self.last is None else max(self.last, row.time)
        if row.build_id:
            self.builds[row.build_id] = self.builds.get(row.build_id, 0) + 1

    def json(self) -> dict[str, Any]:
        return {
            "signature": self.signature,
            "program": self.program or None,
            "what": self.what,
            "hint": self.hint or None,
            "cores": self.cores,
            "leaks": self.leaks,
            "blocks": self.blocks,
            "bytes": self.bytes,
            "first": self.first,
            "last": self.last,
            "builds": sorted(self.builds),
            "new": self.new,
            "example": self.example,
        }


def grouped(rows: Iterable[Row], known: Optional[Set[str]] = None) -> list[LeakGroup]:
    """Groups of all rows, those of most cores first, then of most bytes. `known`: signatures of the
    baseline, if there is one."""
    found: dict[str, LeakGroup] = {}
    for row in rows:
        for leak in row.signatures:
            group = found.get(leak.signature)
            if group is None:
                new = None if known is None else leak.signature not in known
                group = found[leak.signature] = LeakGroup(leak.signature, row.program, leak.what, new=new)
            group.add(row, leak)
    return sorted(found.values(), key=lambda group: (-group.cores, -group.bytes, group.signature))
