"""Blocks that survive from snapshot to snapshot: exact numbers if all blocks are known, otherwise estimates whose
intervals contain the true number."""

from __future__ import annotations

import random
import sqlite3
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from findleaks.answers.growth import survivors_result
from findleaks.engine.sampling import MAX_LEVEL, level_of, thin_out
from findleaks.errors import TargetError
from findleaks.history.sample import MOST, BlockSample, in_memory
from findleaks.history.snapshot import Clock, Identity, Snapshot
from findleaks.history.store import load, save
from findleaks.history.survivors import Estimate, Survival, survival

Blocks = dict[int, int]
PROCESS = Identity("program", "ab", 7, 1000, ("glibc 2.36",), "image")


def sample(blocks: Blocks, most: int = MOST) -> BlockSample:
    rows = array("Q", [word for start, size in blocks.items() for word in (start, size, level_of(start, size))])
    return in_memory(*thin_out(rows, 0, most))


def make_samples(heaps: list[Blocks], most: int = MOST) -> list[Snapshot]:
    return [Snapshot(str(at), Clock(at), PROCESS, [], sample=sample(one, most)) for at, one in enumerate(heaps)]


def compare(heaps: list[Blocks], most: int = MOST) -> Survival:
    found = survival(make_samples(heaps, most))
    assert isinstance(found, Survival), found
    return found


def compute_truth(heaps: list[Blocks]) -> dict[str, Counter[int]]:
    """Return for each size, computed from all snapshots: the blocks of the first snapshot, the blocks allocated later,
    and the survivors of both."""
    counts: dict[str, Counter[int]] = {what: Counter() for what in ("first", "first stayed", "since", "since stayed", "newest")}
    for at, now in enumerate(heaps):
        before, later = heaps[at - 1] if at else {}, heaps[at + 1 :]
        for address, size in now.items():
            if before.get(address) == size:
                continue
            name = "first" if not at else "since" if later else "newest"
            counts[name][size] += 1
            if later and all(one.get(address) == size for one in later):
                counts[f"{name} stayed"][size] += 1
    return counts


def make_heaps(seed: int, blocks: int, count: int) -> list[Blocks]:
    """Return the blocks of a heap at several times. For some sizes, all blocks survive; for others, some or none. Addresses are reused."""
    rng = random.Random(seed)
    stays = {24: 1.0, 72: 0.97, 200: 0.5, 312: 0.0, 4096: 0.9, 70_000: 0.8}
    places = iter(range(0x7F0000000000 + rng.getrandbits(30) * 16, 1 << 62, 1 << 18))
    made: list[Blocks] = [{}]
    for at in range(count):
        now = {address: size for address, size in made[-1].items() if rng.random() < stays[size]}
        free = [address for address in made[-1] if address not in now]
        for number in range(blocks if not at else blocks // 4):
            size = rng.choice((24, 24, 72, 72, 72, 200, 312)) if number % 200 else rng.choice((4096, 70_000))
            now[free.pop() if free and rng.random() < 0.3 else next(places)] = size
        made.append(now)
    return made[1:]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_exact(count: int) -> None:
    history = make_heaps(count, 800, count)
    found, known = compare(history), compute_truth(history)
    assert found.level == 0
    for one in [*found.sizes, found.total]:
        sizes = [one.size] if one.size is not None else list(known["first"] | known["since"] | known["newest"])
        cohorts = [("first", one.first), *([("since", one.since)] if one.since else [])]
        assert (one.since is None) == (count == 2)
        for name, cohort in cohorts:
            for amount, word in ((cohort.made, name), (cohort.stayed, f"{name} stayed")):
                number, held = sum(known[word][size] for size in sizes), sum(known[word][size] * size for size in sizes)
                assert amount == (Estimate(number, number, number), Estimate(held, held, held))
        assert one.newest.blocks.value == sum(known["newest"][size] for size in sizes)
    assert {one.size for one in found.sizes} == set(known["first"] | known["since"] | known["newest"])


def test_estimates_hold_the_truth() -> None:
    """12 heaps of 2,000 blocks, in samples of at most 256: the 95 % intervals contain the true number in nearly 95 of
    100 cases, and are not wide."""
    held, asked = 0, 0
    for seed in range(12):
        history = make_heaps(seed, 2000, 3)
        found, known = compare(history, 256), compute_truth(history)
        assert found.level >= 3
        for one in [*found.sizes, found.total]:
            sizes = [one.size] if one.size is not None else list(known["first"] | known["since"])
            assert one.since is not None
            for name, cohort in (("first", one.first), ("since", one.since)):
                for amount, word in ((cohort.made, name), (cohort.stayed, f"{name} stayed")):
                    number, bytes_ = sum(known[word][size] for size in sizes), sum(known[word][size] * size for size in sizes)
                    asked += 2
                    held += amount.blocks.low - 0.5 <= number <= amount.blocks.high + 0.5
                    held += amount.bytes.low - 0.5 <= bytes_ <= amount.bytes.high + 0.5
                whole = sum(known[name][size] for size in sizes)
                if cohort.part is not None and whole:
                    asked += 1
                    held += (
                        cohort.part.low - 1e-9 <= sum(known[f"{name} stayed"][size] for size in sizes) / whole <= cohort.part.high + 1e-9
                    )
        total = found.total.first.made.blocks
        assert total.high - total.low < 0.5 * total.value
    assert asked > 300
    assert 0.93 <= held / asked < 0.995


def test_samples_of_different_levels() -> None:
    """A small heap and a large one are compared at the level of the large one. No block counts as freed by mistake."""
    small = {0x1000 + 32 * at: 24 for at in range(3000)}
    large = {**small, **{0x7F0000000000 + 32 * at: 24 for at in range(20_000)}}
    found = compare([small, large, large], 1000)
    assert found.level >= 5
    assert found.total.since is not None
    assert (found.total.first.part, found.total.since.part) == (
        Estimate(1, found.total.first.part.low if found.total.first.part else 0, 1),
        Estimate(1, found.total.since.part.low if found.total.since.part else 0, 1),
    )


def test_many_snapshots_are_compared_by_smaller_samples() -> None:
    one = {0x1000 + 32 * at: 24 for at in range(10_000)}
    found = survival(make_samples([one] * 30), most=10_000)
    assert isinstance(found, Survival)
    assert found.level == 5
    assert found.total.first.part is not None
    assert (found.total.first.part.value, found.total.first.stayed.blocks.low < 10_000 < found.total.first.stayed.blocks.high) == (
        1.0,
        True,
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pid": 8}, "several processes: pid 7, 8"),
        ({"pid": None}, "one of the samples does not record its process"),
        ({"started": 1001}, "pid 7 was reused"),
        ({"image": "other", "started": None}, "has run another program since"),
        ({"image": "", "started": None}, "not known whether"),
        ({"allocators": ("musl",)}, "the samples have different allocators"),
        ({"started": None}, None),
        ({"image": ""}, None),
    ],
)
def test_other_processes(change: dict[str, object], why: Optional[str]) -> None:
    first, last = make_samples([{0x1000: 24}, {0x1000: 24}])
    found = survival([first, replace(last, identity=replace(PROCESS, **change))])  # type: ignore[arg-type]
    if why is None:
        assert isinstance(found, Survival)
        return
    assert isinstance(found, str)
    assert why in found
    assert survivors_result(found, None) == (None, found)


def test_without_blocks() -> None:
    first, last = make_samples([{}, {}])
    assert survival([first, replace(last, sample=None)]) == "one of the snapshots has no sample of the blocks"
    assert compare([{}, {}]).total.first.part is None


def test_files(tmp_path: Path) -> None:
    """A file contains what was in memory: blocks at its level and above, also with addresses of 2^63 and above."""
    rng = random.Random(3)
    blocks = {rng.getrandbits(60) * 16: rng.choice((24, 100, 5000, 1 << 20)) for _ in range(20_000)}
    kept = sample(blocks)
    (one,) = make_samples([blocks])
    save(one, tmp_path / "one", "0")
    assert (tmp_path / "one").stat().st_size < 400_000
    back = load(str(tmp_path / "one")).sample
    assert back is not None
    assert (back.level, back.rows) == (kept.level, kept.rows)
    for level in (kept.level, kept.level + 3, MAX_LEVEL):
        assert back.blocks(level) == kept.blocks(level)
    assert any(address >= 1 << 63 for address, _ in back.blocks(kept.level))
    with sqlite3.connect(tmp_path / "one") as base:
        assert base.execute("SELECT count(*) FROM sample WHERE level >= (SELECT level FROM sampling)").fetchone() == (kept.rows,)


def test_damaged_files(tmp_path: Path) -> None:
    first, last = make_samples([{0x1000: 24}, {0x1000: 24}])
    save(first, tmp_path / "one", "0")
    for statement, eager in (
        ("UPDATE sampling SET level = 1000", True),
        ("UPDATE sampling SET rows = 1000000000", True),
        ("UPDATE sampling SET level = 0, rows = 1", False),
        ("UPDATE sample SET size = 'many'", False),
        ("UPDATE sample SET size = -1", False),
        ("DROP TABLE sample", True),
    ):
        with sqlite3.connect(tmp_path / "one") as base:
            base.execute(statement)
        if eager:
            with pytest.raises(TargetError, match="damaged"):
                load(str(tmp_path / "one"))
        elif "sampling" not in statement:
            found = survival([load(str(tmp_path / "one")), last])
            assert isinstance(found, str)
            assert "damaged" in found
    save(first, tmp_path / "two", "0")
    gone = load(str(tmp_path / "two"))
    (tmp_path / "two").unlink()
    assert isinstance(survival([gone, last]), str)
