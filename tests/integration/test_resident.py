"""How much of a mapping lay in memory: told by a live process and by the kernel's core, and by no copy of that core."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import cores
from findleaks.target.core import open_core
from findleaks.target.live import attach

PROGRAM = Path(__file__).resolve().parent.parent / "programs" / "resident.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("resident") / "resident"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-o", str(output), str(PROGRAM)], check=True)
    return output


def test_live_process_and_cores(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program)], tmp_path / "run") as running:
        address, expected = (int(word, 0) for word in running.output.split("\n")[0].split())
        end = address + (64 << 20)
        with attach(running.pid) as live:
            assert live.resident(address, end) == expected
            assert live.resident(address, address + 200 * 4096) == 0
            assert live.resident(address + 200 * 4096, address + 202 * 4096 + 7) == 4096 + 7
        core = running.kernel_core()
    with open_core(str(core)) as target:
        assert target.resident(address, end) == expected
        assert target.resident(address + 200 * 4096, address + 202 * 4096 + 7) == 4096 + 7
        assert target.resident(end, end) == 0
    whole = tmp_path / "whole"
    whole.write_bytes(core.read_bytes())
    with open_core(str(whole)) as target:
        assert target.resident(address, end) is None
    subprocess.run(["gzip", "-1", str(core)], check=True)
    with open_core(f"{core}.gz") as target:
        assert target.resident(address, end) is None
