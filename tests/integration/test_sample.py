"""findleaks reports for the sample core what its program printed (see cores/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from debuggers import run_cli

CORES = Path(__file__).parents[2] / "cores"


def parse_output() -> set[tuple[str, int, int, int, int]]:
    """Return (kind, blocks, bytes, indirect blocks, indirect bytes) of each line that the program printed."""
    lines = [line.split() for line in (CORES / "README.md").read_text().splitlines()]
    return {(w[0], int(w[1]), int(w[2]), int(w[3]), int(w[4])) for w in lines if w and w[0] in ("definite", "possible") and len(w) > 5}


def test_the_sample_core() -> None:
    assert (CORES / "sample.core.gz").stat().st_size < 1_000_000
    done = run_cli("find", "--json", str(CORES / "sample.core.gz"), check=True)
    found = json.loads(done.stdout)
    groups = {(g["kind"], g["blocks"], g["bytes"], g["indirect_blocks"], g["indirect_bytes"]) for g in found["groups"]}
    assert len(parse_output()) == 5
    assert groups == parse_output()
    assert {g["type"] for g in found["groups"] if g["type"]} == {"shop::Order", "std::make_shared<shop::Part>", "shop::Item[5]"}
    assert found["trusted"] is True


@pytest.mark.parametrize("percent", range(5, 100, 10))
def test_a_truncated_sample_is_never_taken_for_another_libc(tmp_path: Path, percent: int) -> None:
    """Without main_arena, free blocks of its fastbins count as in use."""
    whole = gzip.decompress((CORES / "sample.core.gz").read_bytes())
    cut = tmp_path / "cut"
    cut.write_bytes(whole[: len(whole) * percent // 100])
    done = run_cli("find", "--json", str(cut))
    if done.stdout:
        found = json.loads(done.stdout)
        assert found["trusted"] is False
        lost = any("main_arena is in the missing part of the core" in warning for warning in found["warnings"])
        assert all(a["name"] == "glibc" and 1823 <= a["blocks"] <= 1823 + 16 * lost for a in found["allocators"])
        assert done.returncode == (0 if found["allocators"] else 2)
    else:
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("words", [["find", "--by", "site"], ["caches", "--sites"]], ids=" ".join)
def test_json_has_the_hints_of_the_text(words: list[str]) -> None:
    """No allocation stacks were recorded: both outputs explain how to record them."""
    core = str(CORES / "sample.core.gz")
    found = json.loads(run_cli(*words, "--json", core, check=True).stdout)
    text = " ".join(run_cli(*words, core, check=True).stdout.split())
    assert found["recorders"] == []
    assert len(found["recording_hints"]) == 1
    assert f"to record them: {found['recording_hints'][0]} " in text
