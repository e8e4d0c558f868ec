"""The reason that `track` prints if it has no stacks."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from findleaks.arg_types import SizeRange
from findleaks.session import Session
from findleaks.target.control import Outcome
from findleaks.tracking.probe import LOOK_SECONDS, PROBE_RECORDS, Probe
from findleaks.tracking.record_table import FREED, Record, Sampling
from findleaks.tracking.tracker import Recording
from findleaks.tracking.unseen import find_reasons

WANTED, IN_TIME, ALL = SizeRange(64, 64), Outcome("time"), Sampling()


def _probe(stopped: float = 0.0, seconds: float | None = None) -> Probe:
    made = Probe(lambda: 0, None, lambda: "S")
    made.looks, made.stopped, made.seconds = 100, round(100 * stopped), seconds
    return made


def _allocator(name: str, where: str, in_use: int) -> Any:
    return SimpleNamespace(name=name, where=where, title=f"{name} 1", caches=lambda blocks: [SimpleNamespace(in_use=in_use)])


def _reasons(
    records: list[Record],
    allocators: list[Any],
    probe: Probe,
    sizes: SizeRange | None = WANTED,
    outcome: Outcome = IN_TIME,
    sampling: Sampling = ALL,
) -> list[str]:
    directory = SimpleNamespace(allocators=allocators, blocks=None)
    session = cast(Session, SimpleNamespace(directory=directory, target=SimpleNamespace(pid=7)))
    found = find_reasons(session, records, sizes, sampling, probe, Recording(3.0, outcome), {"libc.so.6"})
    texts = {one.what: one.text for one in found}
    assert len(texts) == len(found)
    return [f"{what}: {text}" for what, text in texts.items()]


GLIBC = _allocator("glibc", "libc.so.6", 10)


def test_an_idle_process() -> None:
    assert _reasons([], [GLIBC], _probe()) == ["idle: the process is idle: it allocated no block of any size by libc.so.6"]


def test_other_sizes() -> None:
    records = [Record(16 * n, 0, 24 if n % 3 else 40, 0, FREED) for n in range(1, 10)]
    assert _reasons(records, [GLIBC], _probe(seconds=0.5)) == [
        "other_sizes: in the first 0.5 s 9 blocks of other sizes were allocated: 6 of 24 B, 3 of 40 B"
    ]


def test_a_stopped_process() -> None:
    (only,) = _reasons([], [GLIBC], _probe(stopped=1.0))
    assert only.startswith("stopped: ") and "kill -CONT 7" in only
    assert _reasons([], [GLIBC], _probe(stopped=0.4))[1:] == ["stopped: it was stopped by a signal for 40 % of the time"]
    assert _reasons([], [GLIBC], _probe(), outcome=Outcome("stop", "it received SIGSTOP")) == [
        "stopped: the process was stopped after 3.0 s: it received SIGSTOP"
    ]


def test_pymalloc_is_named_for_sizes_that_it_serves() -> None:
    python = [GLIBC, _allocator("pymalloc", "python3.11", 5)]
    for sizes, named in ((SizeRange(64, 64), True), (SizeRange(513, 600), False), (None, True)):
        assert any(one.startswith("pymalloc: ") for one in _reasons([], python, _probe(), sizes)) == named


def test_an_allocator_without_stubs() -> None:
    found = _reasons([], [GLIBC, _allocator("mimalloc", "shop", 4), _allocator("jemalloc", "libidle.so", 0)], _probe())
    assert found == [  # it is unknown whether the process is idle
        "other_allocator: mimalloc 1 in shop has 4 blocks in use, and its functions were not reached: only what libc.so.6 allocates is seen"
    ]


def test_samples() -> None:
    assert any(one.startswith("sampled: ") for one in _reasons([], [GLIBC], _probe(), sampling=Sampling(mean=4096, by_bytes=True)))


def test_all_sizes_are_recorded_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)  # on a busy machine, one more poll would become due during the test
    taken, closed, states = [0], [], iter("SttTTTT")
    probe = Probe(lambda: taken[0], lambda: closed.append(True), lambda: next(states))
    probe()
    assert (closed, probe.seconds) == ([], None)
    taken[0] = PROBE_RECORDS
    for _ in range(7):
        probe._looked -= 2 * LOOK_SECONDS
        probe()
    assert closed == [True] and probe.seconds is not None
    assert (probe.looks, probe.stopped_part) == (5, 0.8)
    probe.end()
    probe._looked -= 2 * LOOK_SECONDS
    probe()
    assert probe.looks == 5
