"""`map` on cores with random damage: it ends quickly, with a result or one line, and draws the readable memory."""

from __future__ import annotations

import argparse
import gzip
import random
from pathlib import Path

import pytest
from variants import mark_matrix_except

from findleaks.commands import Invocation
from findleaks.commands.map import map as command
from findleaks.errors import FindleaksError
from findleaks.session import Session
from findleaks.target.core import open_core

SAMPLE = Path(__file__).resolve().parents[2] / "cores" / "sample.core.gz"


@pytest.mark.parametrize("seed", mark_matrix_except(range(24), *range(0, 24, 3)))
def test_damaged_core(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    core = bytearray(gzip.decompress(SAMPLE.read_bytes()))
    for _ in range((1, 20, 500, 5000)[seed % 4]):
        at = rng.randrange(4096 * 8, len(core) - 8) & ~7 if rng.random() < 0.9 else rng.randrange(512) * 8
        core[at : at + 8] = rng.choice((rng.getrandbits(64), rng.getrandbits(12) * 16 + 1, 0, (1 << 64) - 1)).to_bytes(8, "little")
    if seed % 5 == 4:
        del core[rng.randrange(len(core)) :]
    (tmp_path / "core").write_bytes(core)
    words = argparse.Namespace(output="", format=None, allocator=None, limit=8, residency="", save_residency="", json=True)
    try:
        with open_core(str(tmp_path / "core")) as target:
            session = Session(target)
            for name in ("", "map.html", "map.svg"):
                words.output = str(tmp_path / name) if name else ""
                result = command.run(session, words)
                (body,) = result.json()
                assert list(result.text(80, Invocation()))
                heaps = body["heaps"]
                assert isinstance(heaps, list)
                for heap in heaps:
                    assert sum(heap["states"].values()) == heap["mapped"]
                    assert sum(run["in_use"] for run in heap["pages"]) == heap["in_use"]
    except FindleaksError as error:
        assert "\n" not in str(error)
