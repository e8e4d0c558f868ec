"""Native memory held by managed objects, for `verdict`: how much, by which types, and how much of
it was not reported to the runtime."""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.audit.managed import Held, Managed, managed
from findleaks.engine.terms import Totals
from findleaks.formatting import blocks, number, printable, size
from findleaks.session import Session


class Native(NamedTuple):
    """Native memory held by the objects of runtime `name`.

    `totals`: all of it; `types`: by type, the largest first. Of the types that can report what they
    hold, `reported` sums the bytes that they reported, and `unreported` what was missing from those
    that reported less than half. Both are None where no type is known to report.
    """

    name: str
    totals: Totals
    reported: Optional[int]
    unreported: Optional[int]
    types: list[Held]
    objects: int
    own: int  # bytes of the objects themselves

    @property
    def bytes(self) -> int:
        """Bytes of the objects and of the native memory that they hold."""
        return self.own + self.totals.bytes

    @property
    def top(self) -> Held:
        return self.types[0]

    def sentence(self) -> str:
        """ "986 MiB of native memory in 52,000 blocks are held by objects of Ruby's" """
        if self.own > self.totals.bytes:
            count = f"{number(self.objects)} object{'' if self.objects == 1 else 's'} of {self.name}'s"
            return f"{count} take {size(self.own)}, and native memory that they hold {size(self.totals.bytes)}"
        return f"{size(self.totals.bytes)} of native memory in {blocks(self.totals.blocks)} are held by objects of {self.name}'s"

    def cause(self) -> str:
        """The type that has most, and whether the runtime knows of it."""
        if self.own > self.totals.bytes:
            most = max(self.types, key=_weight)
            count = f"{number(most.type.objects)} object{'' if most.type.objects == 1 else 's'}"
            return f"the largest type is {printable(most.type.name)}: {count}, {size(_weight(most))} with what only these hold"
        top = self.top
        held = top.native.bytes if top.native is not None else 0
        count = f"{number(top.type.objects)} object{'' if top.type.objects == 1 else 's'}"
        words = f"{count} of {printable(top.type.name)} hold {size(held)}"
        if self.unreported:
            return f"{words}; {self.name} was not told of {size(self.unreported)} that objects hold: its collector sees no reason to run"
        return words

    def json(self) -> dict[str, object]:
        return {
            "runtime": self.name,
            "native_blocks": self.totals.blocks,
            "native_bytes": self.totals.bytes,
            "objects": self.objects,
            "object_bytes": self.own,
            "reported_bytes": self.reported,
            "unreported_bytes": self.unreported,
            "types": [
                {
                    "name": row.type.name,
                    "objects": row.type.objects,
                    "native_blocks": row.native.blocks,
                    "native_bytes": row.native.bytes,
                }
                for row in self.types[:3]
                if row.native is not None
            ],
        }


def _weight(row: Held) -> int:
    return row.type.bytes + (row.native.bytes if row.native is not None else 0)


def native(session: Session) -> list[Native]:
    """The native memory of each runtime whose objects are known."""
    return [made for made in map(_native_of, managed(session, session.runtimes)) if made is not None]


def _native_of(one: Managed) -> Optional[Native]:
    own = sum(row.type.bytes for row in one.types)
    if one.native is None or not one.native.bytes + own:
        return None
    types = sorted((row for row in one.types if row.native is not None), key=lambda row: -(row.native.bytes if row.native else 0))
    reporting = [(row, row.reported) for row in types if row.reported is not None]
    reported = sum(value for _, value in reporting) if reporting else None
    short = [row.native.bytes - value for row, value in reporting if row.native is not None and 2 * value < row.native.bytes]
    unreported = sum(short) if reporting else None
    objects = sum(row.type.objects for row in one.types)
    return Native(one.runtime.name, one.native, reported, unreported, types, objects, own)
