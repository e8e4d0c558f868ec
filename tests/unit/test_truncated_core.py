"""`verdict` and `find` begin with what a truncated core lacks."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pytest

from findleaks import cli

SAMPLE = Path(__file__).parents[2] / "cores/sample.core.gz"
PT_LOAD, PF_W = 1, 2


@pytest.fixture(scope="module")
def whole() -> bytes:
    return gzip.decompress(SAMPLE.read_bytes())


def measure_writable_memory(core: bytes, length: int) -> tuple[int, int]:
    """Return the bytes of writable memory that the first `length` bytes of a core lack, and the number of bytes in the whole core,
    according to the program headers (elf(5), Elf64_Phdr)."""
    (first,), (size, count) = struct.unpack_from("<Q", core, 32), struct.unpack_from("<2H", core, 54)
    lacking = total = 0
    for number in range(count):
        kind, flags, offset, _, _, in_file, in_memory, _ = struct.unpack_from("<2I6Q", core, first + number * size)
        if kind == PT_LOAD and flags & PF_W:
            total += in_memory
            lacking += in_memory - max(0, min(in_file, length - offset))
    return lacking, total


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    cli.main(list(words))
    return capsys.readouterr().out


@pytest.mark.parametrize("part", [0.2, 0.6])
def test_missing_memory_is_the_first_finding(part: float, whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = tmp_path / "cut.core"
    core.write_bytes(whole[: int(part * len(whole))])
    lacking, total = measure_writable_memory(whole, int(part * len(whole)))
    assert lacking > total / 10
    first = json.loads(run(capsys, "verdict", "--json", str(core)))["findings"][0]
    assert first["finding"] == "truncated-core"
    assert first["evidence"]["missing"] == pytest.approx(lacking, abs=4096)  # the file may contain only a part of the last page
    assert first["evidence"]["writable"] == total
    assert run(capsys, "verdict", str(core)).startswith("The core is cut off: it lacks ")
    assert json.loads(run(capsys, "find", "--json", str(core)))["notes"][0] == f"{first['text']} {first['cause']}"
    assert "The core is cut off: it lacks " in run(capsys, "find", str(core))


def test_a_few_missing_bytes_are_a_warning_only(whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = tmp_path / "cut.core"
    core.write_bytes(whole[:-4096])
    found = json.loads(run(capsys, "verdict", "--json", str(core)))
    assert all(finding["finding"] != "truncated-core" for finding in found["findings"])
    assert any("truncated" in warning for warning in found["warnings"])
