"""A signal's handler forks at each instruction of the stubs of `track`: the child, which shares the records, changes nothing."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from building import compiled

from findleaks.injection.stub.relocate import plan
from findleaks.injection.stub.table import ENABLED, SERVED, SHARED
from findleaks.tracking.generated import track as trackcode
from findleaks.tracking.hooks import Hook, TrackingCode
from findleaks.tracking.record_table import FILTERS, FREED, LIVE, RECORD, REPLACED, TAKEN, RecordTable, Sampling, read_table

RETURNS_R9 = bytes.fromhex("4c89c8 9090 c3")  # mov rax, r9; nop; nop; ret
BASE = 0x2_0000_0000
KINDS = ("first", "moving", "freeing")
CLAIMS = 0x1100  # as in stack_walk.S


def test_a_fork_at_each_instruction(tmp_path: Path) -> None:
    """No event is lost, counted twice, or undone, whether the child or the parent comes first."""
    hooks = [
        (Hook(BASE + 64 * at, kind, kind, "here"), plan(kind, BASE + 64 * at, BASE + 64 * at + 6, RETURNS_R9))
        for at, kind in enumerate(KINDS)
    ]
    code = TrackingCode(hooks)
    size = 4096 + (code.size + 4095 & -4096)
    layout = RecordTable(BASE + size, nodes=1 << 8, rules=1 << 8, threads=1 << 6, records=1 << 16)
    switches = bytearray(layout.recording(Sampling(), BASE + 4096).ljust(SHARED, b"\0"))
    switches[ENABLED], switches[SERVED] = 1, 0  # nobody answers: stacks end at the function
    functions = b"".join(RETURNS_R9.ljust(64, b"\xcc") for _ in KINDS)
    image, table = tmp_path / "image", tmp_path / "table"
    image.write_bytes((functions.ljust(4096, b"\0") + code.at(BASE + 4096, layout.address)).ljust(size, b"\0") + switches)
    table.write_bytes(bytes(layout.shared_end - SHARED))
    program = compiled(tmp_path, "forked_steps.c", "-O2", "-mno-red-zone")
    numbers = [BASE, size, layout.shared_end, layout.size, layout.filter_at, FILTERS, CLAIMS]
    numbers += [BASE + 4096, BASE + 4096 + trackcode.RECORD]
    numbers += [BASE + 4096 + code.entry(at) for at in range(len(KINDS))]
    done = subprocess.run([program, image, table, *map(hex, numbers)], capture_output=True, text=True, check=True)
    rounds, *sums, claims = map(int, done.stdout.split())

    data = table.read_bytes()
    taken = int.from_bytes(data[TAKEN - SHARED : TAKEN - SHARED + 8], "little")
    records = list(read_table(data[layout.records_at - SHARED :][: RECORD.size * taken]))
    made = {record.address // 256 for record in records}
    assert len(made) == rounds > 600
    expected: Counter[tuple[int, int]] = Counter()
    for state, size in ((REPLACED, 40), (FREED, 40), (FREED, 56)):
        expected[state, size] = len(made)
    expected[FREED, 24] = sum(number % 2 for number in made)
    expected[LIVE, 24] = len(made) - expected[FREED, 24]
    assert Counter((record.state, record.size) for record in records) == expected
    assert sums == 2 * [expected[LIVE, 24]], "filters count the live blocks"
    assert claims == 0, "requests that no thread can use any more"
