"""Group leaks: one group for the same leak in many cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Optional

from findleaks.results.triage import LeakInCores
from findleaks.triage.identity import describe_signature, signature_of
from findleaks.triage.row import PARTIAL, LeakSum, Row
from findleaks.triage.same import same_leaks


@dataclass
class LeakGroup:
    """A leak, and the cores that have it.

    `blocks`, `bytes`: sums over all cores. `example`: the core in which the leak has the most
    bytes. `most`: these bytes. `first`, `last`: times of the first and the last core, None if
    unknown. `new`: whether the leak is missing from the baseline; None without a baseline.
    `signatures`: the leak's signatures in the single cores. `partial`: number of partial cores, in
    which missing memory may refer to the blocks."""

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
    signatures: set[str] = field(default_factory=set)
    partial: int = 0

    @property
    def doubtful(self) -> bool:
        """Whether all of the leak's cores are partial."""
        return self.partial == self.cores

    def add(self, row: Row, leak: LeakSum) -> None:
        """Add the leaks of one core. Called once for each core."""
        self.cores += 1
        self.partial += row.status == PARTIAL
        self.leaks += leak.leaks
        self.blocks += leak.blocks
        self.bytes += leak.bytes
        # The result must not depend on the order of the rows.
        if (-leak.bytes, row.core) < (-self.most, self.example):
            self.most, self.example, self.hint = leak.bytes, row.core, leak.hint
        if row.time is not None:
            self.first = row.time if self.first is None else min(self.first, row.time)
            self.last = row.time if self.last is None else max(self.last, row.time)
        if row.build_id:
            self.builds[row.build_id] = self.builds.get(row.build_id, 0) + 1

    def result(self) -> LeakInCores:
        """Return the group as a typed result."""
        return LeakInCores(
            self.signature,
            self.program or None,
            self.what,
            self.hint or None,
            self.cores,
            self.partial,
            self.leaks,
            self.blocks,
            self.bytes,
            self.first,
            self.last,
            builds=sorted(self.builds),
            new=self.new,
            example=self.example,
            signatures=sorted(self.signatures),
        )


class Grouped(NamedTuple):
    """All groups and rows. `groups`: those in the most cores first, then by bytes; doubtful groups
    last. `rows`: all rows, in which the leaks of a group have the signature of the group."""

    groups: list[LeakGroup]
    rows: list[Row]


def group_leaks(rows: Sequence[Row], before: Optional[Sequence[Row]] = None) -> Grouped:
    """Return the leaks of all rows as groups. `before`: rows of the baseline, if any."""
    every = [*rows, *(before or ())]
    by_program: dict[str, list[tuple[int, LeakSum]]] = {}
    for number, row in enumerate(every):
        for leak in row.signatures:
            by_program.setdefault(row.program, []).append((number, leak))
    groups: dict[str, LeakGroup] = {}
    names: dict[str, LeakGroup] = {}
    for program, leaks in by_program.items():
        for same in same_leaks(leaks):
            signature = signature_of(program, same.label, same.size, same.words)
            what = describe_signature(same.label, same.size, same.ring, same.words)
            group = groups.setdefault(signature, LeakGroup(signature, program, what, new=None if before is None else True))
            group.signatures.update(same.signatures)
            names.update(dict.fromkeys(same.signatures, group))
    for row in before or ():
        for leak in row.signatures:
            names[leak.signature].new = False
    made = [_name_leaks(row, names) for row in rows]
    for row in made:
        for leak in row.signatures:
            groups[leak.signature].add(row, leak)
    found = [group for group in groups.values() if group.cores]
    return Grouped(sorted(found, key=lambda group: (group.doubtful, -group.cores, -group.bytes, group.signature)), made)


def _name_leaks(row: Row, names: Mapping[str, LeakGroup]) -> Row:
    """Return the row, in which leaks of the same group are merged."""
    merged: dict[str, LeakSum] = {}
    for leak in row.signatures:
        group = names[leak.signature]
        leak = leak._replace(signature=group.signature, what=group.what)
        before = merged.get(group.signature)
        merged[group.signature] = leak if before is None else before.join(leak)
    return replace(row, signatures=tuple(sorted(merged.values(), key=lambda leak: (-leak.bytes, leak.signature))))
