"""A signal's handler forks at each instruction of the stubs of `track` and `count --inject`. The child changes nothing that is shared."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from building import compile_program

from findleaks.counting.generated import stub as stubcode
from findleaks.injection.stub.relocate import plan
from findleaks.injection.stub.table import ENABLED, EVENTS, EXACT, SERVED, SHARED, CountTable, Scoped
from findleaks.tracking.generated import track as trackcode
from findleaks.tracking.hooks import Hook, TrackingCode
from findleaks.tracking.record_table import FILTERS, FREED, LIVE, RECORD, REPLACED, TAKEN, RecordTable, Sampling, read_table

RETURNS_R9 = bytes.fromhex("4c89c8 9090 c3")  # mov rax, r9; nop; nop; ret
RETURN = b"\xc3"
BASE, PAGE = 0x2_0000_0000, 4096
KINDS = ("first", "moving", "freeing")
CLAIMS = 0x1100  # as in stack_walk.S


class StepResult(NamedTuple):
    """The output of forked_steps.c, and the shared part of the table at the end."""

    rounds: int
    filters: tuple[int, int]
    claims: int
    shared: bytes

    def counter(self, at: int) -> int:
        return int.from_bytes(self.shared[at - SHARED : at - SHARED + 8], "little")


def step(folder: Path, code: bytes, layout: CountTable, settings: bytes, filters: tuple[int, int], numbers: Sequence[int]) -> StepResult:
    """Run forked_steps.c. `filters`: offset and number of entries. `numbers`: WALK to FORKING of its usage."""
    switches = bytearray(settings.ljust(SHARED, b"\0"))
    switches[ENABLED], switches[SERVED] = 1, 0  # no server answers, so stacks end at the function
    image, table = folder / "image", folder / "table"
    image.write_bytes(code + switches)
    table.write_bytes(bytes(layout.shared_end - SHARED))
    program = compile_program(folder, "forked_steps.c", "-O2", "-mno-red-zone")
    words = map(hex, [BASE, len(code), layout.shared_end, layout.size, *filters, CLAIMS, *numbers])
    done = subprocess.run([program, image, table, *words], capture_output=True, text=True, check=True)
    rounds, *sums, claims = map(int, done.stdout.split())
    return StepResult(rounds, (sums[0], sums[1]), claims, table.read_bytes())


def test_tracking(tmp_path: Path) -> None:
    """No event is lost, recorded twice, or undone, whether the child or the parent comes first."""
    hooks = []
    for at, kind in enumerate(KINDS):
        where = BASE + 64 * at
        hooks.append((Hook(where, kind, kind, "here"), plan(kind, where, where + 6, RETURNS_R9)))
    stubs = TrackingCode(hooks)
    size = PAGE + (stubs.size + PAGE - 1 & -PAGE)
    layout = RecordTable(BASE + size, nodes=1 << 8, rules=1 << 8, threads=1 << 6, records=1 << 16)
    functions = b"".join(RETURNS_R9.ljust(64, b"\xcc") for _ in KINDS).ljust(PAGE, b"\0")
    code = (functions + stubs.at(BASE + PAGE, layout.address)).ljust(size, b"\0")
    calls = [BASE + PAGE + at for at in (trackcode.BEGIN, trackcode.RECORD, *map(stubs.entry, range(len(KINDS))))]
    done = step(tmp_path, code, layout, layout.recording(Sampling(), BASE + PAGE), (layout.filter_at, FILTERS), [*calls, 4])

    records = list(read_table(done.shared[layout.records_at - SHARED :][: RECORD.size * done.counter(TAKEN)]))
    made = {record.address // 256 for record in records}
    assert len(made) == done.rounds > 600
    expected: Counter[tuple[int, int]] = Counter()
    for state, size in ((REPLACED, 40), (FREED, 40), (FREED, 56)):
        expected[state, size] = len(made)
    expected[FREED, 24] = sum(number % 2 for number in made)
    expected[LIVE, 24] = len(made) - expected[FREED, 24]
    assert Counter((record.state, record.size) for record in records) == expected
    assert done.filters == (expected[LIVE, 24], expected[LIVE, 24]), "filters must count the live blocks"
    assert done.claims == 0, "no thread can use these requests any more"


def test_counting(tmp_path: Path) -> None:
    """Each call of the parent is counted once, and no call of a child."""
    code = bytearray(stubcode.COUNT + RETURN).ljust(2 * PAGE, b"\0")
    layout = CountTable(BASE + len(code), nodes=1 << 8, rules=1 << 8, threads=1 << 6)
    distance = layout.address - BASE - stubcode.TABLE - 4
    code[stubcode.TABLE : stubcode.TABLE + 4] = distance.to_bytes(4, "little")
    code[stubcode.OPERAND : stubcode.OPERAND + 8] = (BASE | EXACT).to_bytes(8, "little")
    done = step(tmp_path, bytes(code), layout, layout.settings(Scoped()), (0, 0), [0, 0, BASE, BASE, BASE, 1])
    nodes = layout.read(done.shared[layout.nodes_at - SHARED :]).values()
    calls = 5 * done.rounds + done.rounds // 2
    assert calls > 1500
    assert (done.counter(EVENTS), sum(node.calls + node.broken for node in nodes)) == (calls, calls)
    assert done.claims == 0
