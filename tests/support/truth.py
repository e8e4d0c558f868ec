"""Compare findleaks' result for every block with the list that the program itself printed (tests/programs/truth.c)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import commandline
import debuggers

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
LOST = ("definite", "indirect")
_HELD = {("definite", "possible"), ("indirect", "possible"), *((kind, "reachable") for kind in (*LOST, "possible"))}
"""How an additional word in root memory changes a block: (its true state, the kind that findleaks reports)."""


@dataclass(frozen=True)
class Record:
    """A block as its program knows it. `leader`: the leak head from which an indirectly lost block is reachable; its own address for a
    definitely lost block; otherwise 0. `alignment`: the argument of memalign; 0: none."""

    address: int
    usable: int
    requested: int
    state: str
    kind: str
    leader: int
    category: str
    alignment: int

    @property
    def end(self) -> int:
        return self.address + self.usable

    def __str__(self) -> str:
        return f"{self.category} {self.address:#x} ({self.usable} bytes, {self.state}, {self.kind})"


@dataclass
class Verdict:
    """`false`: blocks that are reported as lost and are not; `missed`: lost blocks that are not reported; `wrong`: another kind, state or
    size. All are sentences.

    `held`: for each missed or wrong block that something seems to hold, its sentence by address.
    """

    compared: int = 0
    false: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    held: list[tuple[Record, str]] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.compared} blocks compared: {len(self.false)} false, {len(self.missed)} missed, {len(self.wrong)} wrong"]
        for name, sentences in (("false", self.false), ("missed", self.missed), ("wrong", self.wrong)):
            parts += [f"  {name}: {sentence}" for sentence in sentences[:12]]
        return "\n".join(parts)

    @property
    def perfect(self) -> bool:
        return bool(self.compared) and not (self.false or self.missed or self.wrong)

    def without(self, excused: Collection[int]) -> Verdict:
        """Return the verdict without the sentences about the held blocks at these addresses."""
        dropped = {sentence for record, sentence in self.held if record.address in excused}
        missed, wrong = ([one for one in sentences if one not in dropped] for sentences in (self.missed, self.wrong))
        return Verdict(self.compared, self.false, missed, wrong, [one for one in self.held if one[1] not in dropped])


def parse(output: str) -> list[Record]:
    """Parse the program's list. Raises ValueError if the list contradicts itself."""
    records = []
    for line in output.splitlines():
        if line == "ready":
            break
        address, usable, requested, state, kind, leader, category, alignment = line.split()
        start, size, wanted, hangs_from, aligned = (int(word, 16) for word in (address, usable, requested, leader, alignment))
        records.append(Record(start, size, wanted, state, kind, hangs_from, category, aligned))
    used = sorted((r for r in records if r.state == "in-use"), key=lambda r: r.address)
    for before, after in zip(used, used[1:]):
        if before.end > after.address:
            raise ValueError(f"the program's list overlaps itself: {before} and {after}")
    starts = {r.address: r for r in used}
    sorters = [r for r in used if r.category == "sorter"]
    records = [r for r in records if r.state == "in-use" or not _reused(r, sorters)]
    for record in records:
        if record.state != "in-use" and record.address in starts:
            raise ValueError(f"the program's list has {record} in use, too: {starts[record.address]}")
        if record.kind == "indirect" and starts[record.leader].kind != "definite":
            raise ValueError(f"the leader of {record} is {starts[record.leader]}")
    return records


def _reused(freed: Record, sorters: Sequence[Record]) -> bool:
    """Return whether a freed block may be in use again: after it was merged with free neighbours, a later request may have got it."""
    return any(r.address <= freed.address < r.end for r in sorters)


def ask(*target: str, environment: Optional[Mapping[str, str]] = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Run `findleaks blocks --json` on a core, or on "--pid", PID. Return the blocks, and the warnings."""
    words = ["blocks", "--json", "--state", "all", *target]
    done = commandline.run(words, debuggers.environment(**(environment or {})))
    if done.returncode:
        raise RuntimeError(f"findleaks {' '.join(words)} ended with {done.returncode}: {done.stderr}{done.stdout[-2000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    blocks = [line for line in lines if "address" in line]
    warnings = [warning for line in lines for warning in line.get("warnings", ())]
    return blocks, warnings


def compare(records: Sequence[Record], blocks: Iterable[Mapping[str, Any]]) -> Verdict:
    """Compare block by block. Blocks that the program does not list are libc's own (a thread's DTV, a block of pthread keys): none of them
    may be lost."""
    verdict = Verdict()
    found = {int(block["address"], 16): block for block in blocks}
    known = set()
    for record in records:
        verdict.compared += 1
        known.add(record.address)
        block = found.get(record.address)
        if record.state == "in-use":
            _compare_used(record, block, verdict)
        else:
            _compare_freed(record, block, verdict)
    for address, block in found.items():
        if address not in known and block["state"] == "in-use":
            verdict.compared += 1
            if block["kind"] != "reachable":
                verdict.false.append(
                    f"{block['kind']} {address:#x} ({block['size']} bytes, {block.get('arena')}) is none of the program's blocks"
                )
    return verdict


def _compare_used(record: Record, block: Optional[Mapping[str, Any]], verdict: Verdict) -> None:
    if block is None or block["state"] != "in-use":
        (verdict.missed if record.kind in LOST else verdict.wrong).append(f"{record} is {block['state'] if block else 'no block'}")
        return
    if block["kind"] != record.kind:
        sentence = f"{record} is called {block['kind']}"
        if (record.kind, block["kind"]) in _HELD:
            verdict.held.append((record, sentence))
        if record.kind in LOST and block["kind"] not in LOST:
            verdict.missed.append(sentence)
        elif record.kind not in LOST and block["kind"] in LOST:
            verdict.false.append(sentence)
        else:
            verdict.wrong.append(sentence)
    if block["size"] != record.usable:
        verdict.wrong.append(f"{record} is given {block['size']} bytes")


def _compare_freed(record: Record, block: Optional[Mapping[str, Any]], verdict: Verdict) -> None:
    """Compare a freed block. It may have been merged into another free block; a cached block is unchanged. State "freed": the program
    cannot tell which of the two it is."""
    if block is not None and block["state"] == "in-use":
        verdict.false.append(f"{record} is called in use, {block['kind']}")
    elif record.state == "cached" and (block is None or block["state"] != "cached"):
        verdict.wrong.append(f"{record} is called {block['state'] if block else 'no block'}")
    elif block is not None and record.state != "freed" and block["state"] != record.state:
        verdict.wrong.append(f"{record} is called {block['state']}")


def compare_leaders(records: Sequence[Record], core: Path) -> list[str]:
    """Compare with the graph which blocks are reachable from which leak head. Return a sentence for each wrong head."""
    from findleaks.session import Session
    from findleaks.target.core import open_core

    session = Session(open_core(str(core)))
    try:
        graph, blocks = session.graph(), session.directory.blocks
        sentences = []
        hanging: Counter[int] = Counter()
        for record in (r for r in records if r.kind in LOST):
            leader = graph.leak_head(blocks.find(record.address))
            address = blocks.address(leader) if leader >= 0 else 0
            hanging[record.leader] += record.kind == "indirect"
            if address != record.leader:
                sentences.append(f"{record} is reachable from {address:#x}, not {record.leader:#x}")
        for address, count in hanging.items():
            reported = graph.indirect_totals(blocks.find(address)).blocks
            if reported != count:
                sentences.append(f"{reported} blocks are reachable from {address:#x}, not {count}")
        return sentences
    finally:
        session.close()
