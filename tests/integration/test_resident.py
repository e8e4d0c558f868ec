"""Resident memory of a mapping: known for a live process and for the kernel's core, but not for copies of this core that change its
holes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import building

import cores
from findleaks.target.copied import attach
from findleaks.target.core import open_core

program = building.fixture("resident.c")


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


def test_copies_with_other_holes(program: Path, tmp_path: Path) -> None:
    """These copies omit pages of zeros that were resident. Plain cp does the same to a file with holes. Resident pages are known for the
    kernel's file, whether a page of zeros is in its middle or at its end, and for a copy with the same holes."""
    with cores.Running([str(program)], tmp_path / "run") as running:
        address, expected = (int(word, 0) for word in running.output.split("\n")[0].split())
        core = running.kernel_core()
    end = address + (64 << 20)
    sparse = tmp_path / "sparse"
    subprocess.run(["cp", "--sparse=always", "--reflink=never", core, sparse], check=True)
    for path in (sparse, through_tar(core, tmp_path / "raw", "raw")):
        with open_core(str(path)) as target:
            assert target.resident(address, end) is None
            assert target.presence(lambda part: None) is None
    page = last_page(sparse)  # same holes as in the sparse copy, but one page of zeros in the middle is written
    with sparse.open("r+b") as file:
        at = next(at for at in range(page, 0, -4096) if is_hole(file.fileno(), at))
        file.seek(at)
        file.write(bytes(4096))
    for path in (core, sparse, through_tar(core, tmp_path / "seek", "seek")):
        with open_core(str(path)) as target:
            assert target.resident(address, end) == expected
            found = target.presence(lambda part: None)
            assert found is not None
            assert found.resident.bytes(address, end) == expected


def through_tar(path: Path, folder: Path, holes: str) -> Path:
    """Copy with tar: with the same holes ("seek"), or with holes for all zeros ("raw")."""
    folder.mkdir()
    pack = ["tar", "-C", path.parent, "--sparse", f"--hole-detection={holes}", "-cf", "-", path.name]
    packed = subprocess.run(pack, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-C", folder, "-xf", "-"], check=True, input=packed)
    return folder / path.name


def last_page(path: Path) -> int:
    return (path.stat().st_size - 1) // 4096 * 4096


def is_hole(fd: int, at: int) -> bool:
    return os.lseek(fd, at, os.SEEK_HOLE) == at
