"""The computations of `track` without a process: samples and their weights, thinning, hooks, records matched with a heap."""

from __future__ import annotations

import ctypes
import math
import random
import struct
import threading

import pytest
import schemas
from stubs import address, map_together

from findleaks.arg_types import SizeRange
from findleaks.disasm.x86 import instructions
from findleaks.injection.stub.relocate import plan
from findleaks.injection.stub.table import ENABLED, EXACT, OWN, SERVED, pack
from findleaks.tracking.generated import track as trackcode
from findleaks.tracking.hooks import FUNCTIONS, MAPPING_FUNCTIONS, Hook, TrackingCode
from findleaks.tracking.record_table import (
    DRAW_UNIT,
    DRAWS,
    FREED,
    LIVE,
    MEAN,
    RECORD,
    REPLACED,
    TAKEN,
    UNSEEN,
    Record,
    RecordTable,
    Sampling,
    build_draws,
    read_table,
)
from findleaks.tracking.sites import _Wanted
from findleaks.tracking.thinning import FREE_RECORDS, RECORDS_A_SECOND, Thinning

RETURNS_R9 = bytes.fromhex("4c89c8 9090 c3")  # mov rax, r9; nop; nop; ret
"""An allocator's function: it returns what is in a register that the stubs preserve."""
CALL = bytes.fromhex("4889f8 4989f1 4889d7 4889ce ffe0")  # mov rax, rdi; mov r9, rsi; mov rdi, rdx; mov rsi, rcx; jmp rax
"""f(stub, result, first, second)"""


class Machine:
    """The stubs in the test process, in front of functions that return the values that the test sets."""

    kinds = ("first", "second", "product", "moving", "freeing")

    def __init__(self, sampling: Sampling, capacity: int = 1 << 12) -> None:
        self.sampling = sampling
        layout = RecordTable(0, nodes=1 << 10, rules=1 << 10, threads=1 << 6, records=capacity)
        self.functions, self.memory, self._caller, self.table = map_together(4096, 1 << 16, 4096, layout.size)
        self.at = {kind: address(self.functions) + 64 * number for number, kind in enumerate(self.kinds)}
        for kind, where in self.at.items():
            low = where - address(self.functions)
            self.functions[low : low + len(RETURNS_R9)] = RETURNS_R9
            assert kind in FUNCTIONS
        hooks = [(Hook(where, kind, kind, "here"), plan(kind, where, where + 6, RETURNS_R9)) for kind, where in self.at.items()]
        code = TrackingCode(hooks)
        self.layout = RecordTable(address(self.table), nodes=1 << 10, rules=1 << 10, threads=1 << 6, records=capacity)
        base = address(self.memory)
        text = code.at(base, self.layout.address)
        self.memory[: len(text)] = text
        settings = self.layout.recording(sampling, base)
        self.table[: len(settings)] = settings
        self.table[self.layout.draws_at : self.layout.draws_at + 4 * DRAWS] = build_draws()
        self.table[ENABLED] = 1
        # No rule is known, and no server answers: stacks end at the function.
        self.table[SERVED] = 0
        self.stubs = {kind: base + code.entry(number) for number, kind in enumerate(self.kinds)}
        self._caller[: len(CALL)] = CALL
        self._run = ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_uint64] * 4)(address(self._caller))

    def call(self, kind: str, result: int, first: int = 0, second: int = 0) -> int:
        return int(self._run(self.stubs[kind], result, first, second))

    def records(self) -> list[Record]:
        taken = min(int.from_bytes(self.table[TAKEN : TAKEN + 8], "little"), self.layout.records)
        return list(read_table(self.table[self.layout.records_at : self.layout.records_at + RECORD.size * taken]))


def test_blocks_are_recorded_and_freed() -> None:
    machine = Machine(Sampling(16, 64))
    assert machine.call("first", 0x1000, 16) == 0x1000
    assert machine.call("first", 0x2000, 65) == 0x2000  # too large
    assert machine.call("second", 0x3000, 32, 64) == 0x3000
    assert machine.call("product", 0x4000, 4, 8) == 0x4000
    assert machine.call("first", 0, 40) == 0  # malloc fails
    machine.call("freeing", 0, 0x3000)
    machine.call("freeing", 0, 0x2000)
    machine.call("freeing", 0, 0)
    assert [(one.address, one.size, one.state) for one in machine.records()] == [
        (0x1000, 16, LIVE),
        (0x3000, 64, FREED),
        (0x4000, 32, LIVE),
    ]


def test_moved_blocks() -> None:
    machine = Machine(Sampling(16, 64))
    machine.call("first", 0x1000, 16)
    assert machine.call("moving", 0x2000, 0x1000, 32) == 0x2000
    assert machine.call("moving", 0, 0x2000, 48) == 0  # realloc fails: the block does not change
    assert machine.call("moving", 0x3000, 0x2000, 1000) == 0x3000  # the new size is not recorded
    assert machine.call("moving", 0x4000, 0x3000, 20) == 0x4000  # the new size is recorded
    assert machine.call("moving", 0x4000, 0x4000, 24) == 0x4000  # the block is not moved
    assert machine.call("moving", 0, 0x4000, 0) == 0  # the block is freed
    states = [(one.address, one.size, one.state) for one in machine.records()]
    assert states == [
        (0x1000, 16, FREED),
        (0x2000, 32, REPLACED),  # replaced by the next block, as it was not moved
        (0x2000, 32, FREED),
        (0x4000, 20, FREED),
        (0x4000, 24, FREED),
    ]


def test_an_address_that_was_freed_unseen() -> None:
    machine = Machine(Sampling())
    for _ in range(3):
        machine.call("first", 0x1000, 40)
    assert [one.state for one in machine.records()] == [UNSEEN, UNSEEN, LIVE]
    machine.call("freeing", 0, 0x1000)
    assert [one.state for one in machine.records()] == [UNSEEN, UNSEEN, FREED]


def test_a_full_table() -> None:
    machine = Machine(Sampling(), capacity=64)
    for number in range(100):
        assert machine.call("first", 0x1000 + 16 * number, 16) == 0x1000 + 16 * number
    assert len(machine.records()) == 64
    assert int.from_bytes(machine.table[TAKEN : TAKEN + 8], "little") == 100
    for number in range(100):
        machine.call("freeing", 0, 0x1000 + 16 * number)
    assert {one.state for one in machine.records()} == {FREED}


@pytest.mark.parametrize(("mean", "by_bytes"), [(8, False), (4096, True)])
def test_samples_are_without_bias(mean: int, by_bytes: bool) -> None:
    """The sum of the weights in a sample is within five standard deviations of the allocated amount."""
    machine = Machine(Sampling(mean=mean, by_bytes=by_bytes), capacity=1 << 16)
    sizes = random.Random(1).choices([8, 24, 48, 200, 1000, 5000], k=60_000)
    for number, size in enumerate(sizes):
        machine.call("first", 0x100000 + 16 * number, size)
    sampled = machine.records()
    assert 1000 < len(sampled) < 40_000
    for size in set(sizes):
        weights = [machine.sampling.weight(one) for one in sampled if one.size == size]
        true = sizes.count(size)
        spread = math.sqrt(sum(weight * (weight - 1) for weight in weights) or 1)
        assert abs(sum(weights) - true) < 5 * spread + 0.01 * true, size


def test_threads_at_once() -> None:
    machine = Machine(Sampling(), capacity=1 << 14)

    def work(number: int) -> None:
        for turn in range(2000):
            block = 0x1000000 * (number + 1) + 16 * turn
            machine.call("first", block, 40)
            if turn % 2:
                machine.call("freeing", 0, block)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = machine.records()
    assert len({one.address for one in found}) == len(found) == 8000
    assert all(one.state == (FREED if one.address >> 4 & 1 else LIVE) for one in found)


def test_calls_that_are_not_recorded_take_few_instructions() -> None:
    """From the entry of a stub to the first instruction of the function: no call, nothing pushed, at most one write."""
    for kind in schemas.tool("assemble_stubs").STUBS:
        blob = getattr(trackcode, kind.upper())
        entered = list(instructions(blob[trackcode.ENTRY[kind] :], 0))
        assert {one.name for one in entered} <= {"mov", "imul", "shr", "shl", "and", "or", "add", "sub", "cmp", "ja", "jle", "jne"}
        assert entered[-1].end == len(blob) - trackcode.ENTRY[kind]
        assert len(entered) <= {"freeing": 5, "unmapping": 5, "product": 20, "moving": 23, "remapping": 23}.get(kind, 19), kind


def test_switched_off() -> None:
    machine = Machine(Sampling())
    machine.table[ENABLED] = 0
    assert machine.call("first", 0x1000, 40) == 0x1000
    machine.call("moving", 0x1000, 0x2000, 40)
    machine.call("freeing", 0, 0x1000)
    assert machine.records() == []


def test_draws_have_the_right_mean() -> None:
    values = struct.unpack(f"<{DRAWS}I", build_draws())
    assert abs(sum(values) / DRAWS / DRAW_UNIT - 1) < 1e-3
    assert values[0] == max(values)
    assert min(values) < 1


def test_weights() -> None:
    one = Record(0, 0, 1000, 0, LIVE)
    assert Sampling().weight(one) == 1
    by_bytes = Sampling(mean=512 << 10, by_bytes=True)
    assert by_bytes.weight(one._replace(mean=512 << 10)) == pytest.approx(524.788, rel=1e-3)
    assert by_bytes.weight(one._replace(mean=512 << 10, size=1 << 30)) == pytest.approx(1)
    assert Sampling(mean=4).weight(one._replace(mean=4)) == pytest.approx(1 / (1 - math.exp(-0.25)))


def test_thinning() -> None:
    made = Thinning(lambda: 0, 1 << 20, lambda mean: None, 0)
    assert made.mean(1, FREE_RECORDS - 1, 1e9, math.inf) == 1
    fast = made.mean(1, FREE_RECORDS, 2e6, 10.0)
    assert fast == math.ceil(2e6 / RECORDS_A_SECOND)
    assert made.mean(100, FREE_RECORDS, 10.0, 10.0) == 50  # it allocates less than before
    assert made.mean(1, FREE_RECORDS, 10.0, 10.0) == 1
    # The fewer entries of the table are free, the slower they are filled.
    assert made.mean(100, (1 << 20) - 600, RECORDS_A_SECOND, math.inf) == 10 * RECORDS_A_SECOND
    assert made.mean(100, 1 << 20, 1e9, math.inf) == 100


def test_rules_of_the_stubs_own_frames() -> None:
    code = TrackingCode([(Hook(0x1000, "malloc", "first", "libc.so.6"), plan("malloc", 0x1000, 0x1006, RETURNS_R9))])
    ((place, rule),) = code.rules(0x500000).items()
    assert place - 0x500000 == code.entry(0) - trackcode.ENTRY["first"] + trackcode.BACK["first"]
    assert rule == pack(OWN, 16, 1, -16)
    assert struct.unpack_from("<3Q", code.at(0x500000, 0x7000), code.entry(0) - trackcode.ENTRY["first"]) == (0x7000, 0x1000 | EXACT, 0)
    assert {*FUNCTIONS, *MAPPING_FUNCTIONS} == set(schemas.tool("assemble_stubs").STUBS)
    assert MEAN == 0x50


def test_wanted_sizes() -> None:
    """`find` prints usable sizes. A freed block is compared with a live block for which this size was requested."""
    wanted = _Wanted(SizeRange(24, 40), [(20, 24), (33, 40), (41, 56)])
    assert wanted(20, 24) and wanted(33, 56) and not wanted(41, 56)  # one of the two sizes is enough
    assert [wanted(size, None) for size in (20, 18, 33, 41, 50)] == [True, True, True, False, False]
    assert _Wanted(None, [])(1, None)
