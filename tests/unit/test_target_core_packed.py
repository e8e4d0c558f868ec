"""Packed cores: whole, in parts, cut, damaged, and without room to unpack them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import subprocess
from pathlib import Path

import elfcore
import pytest
from elfcore import Load, Task
from handmade import HEAP, STACK, check_line, opened, page, refusal, usual

from findleaks.errors import TargetError
from findleaks.target.core import open_core


def pack_zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-q"], input=data, capture_output=True, check=True).stdout


PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": pack_zstd}


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_cores(tmp_path: Path, kind: str) -> None:
    data = usual()
    path = tmp_path / f"core.{kind}"
    core = opened(path, PACKERS[kind](data))
    assert (core.warnings, core.truncated, core.path) == ([], False, str(path))
    assert core.read(HEAP, 0x2000) == page(b"h") + page(b"H")
    assert len(core.threads()) == 2
    two = opened(path, PACKERS[kind](data[:5000]) + PACKERS[kind](data[5000:]))
    assert two.read(HEAP, 0x2000) == page(b"h") + page(b"H"), "the streams of a file that was packed in parts are joined"


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_cores_that_are_cut_or_damaged(tmp_path: Path, kind: str) -> None:
    chance = random.Random(5)
    noise = chance.randbytes(1 << 20)
    whole = elfcore.core([Load(HEAP, 1 << 20, noise), Load(STACK, 0x1000, page(b"s"))], [Task(100, {"rsp": STACK})])
    packed = PACKERS[kind](whole)
    path = tmp_path / f"core.{kind}"
    refused = partial = 0
    for size in (3, 30, len(packed) // 2, len(packed) - 1):
        path.write_bytes(packed[:size])
        try:
            core = open_core(str(path))
        except TargetError as error:
            check_line(error)
            refused += 1
            continue
        partial += 1
        assert core.truncated
        assert "cut off or damaged" in core.warnings[0]
        for piece in core.pieces(HEAP, HEAP + (1 << 20)):
            assert bytes(piece.data) == noise[piece.address - HEAP :][: len(piece.data)]
    assert refused >= 1
    assert kind == "bz2" or partial >= 1
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0x55
    path.write_bytes(damaged)
    try:
        assert open_core(str(path)).warnings
    except TargetError as error:
        check_line(error)


def test_the_zstd_program_serves_where_python_has_no_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    packed = pack_zstd(usual())
    assert opened(tmp_path / "core.zst", packed).read(HEAP, 1) == b"h"
    cut = opened(tmp_path / "cut.zst", pack_zstd(usual() + random.Random(1).randbytes(1 << 20))[:-1000])
    assert cut.truncated
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "zstd program" in refusal(tmp_path / "core.zst", packed)


def test_unpacked_zeros_are_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from findleaks.target.compressed import unpacked

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(b"\x7fELF" + bytes(64 << 20) + b"end"))
    fd, cut = unpacked(os.open(path, os.O_RDONLY), "zeros.gz", path.read_bytes()[:8])
    try:
        info = os.fstat(fd)
        assert (info.st_size, cut) == ((64 << 20) + 7, "")
        assert info.st_blocks * 512 < 1 << 20
        assert os.pread(fd, 3, (64 << 20) + 4) == b"end"
    finally:
        os.close(fd)
    assert os.listdir(tmp_path) == ["zeros.gz"], "the unpacked file has no name"


def test_no_room_to_unpack_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "core.gz"
    path.write_bytes(gzip.compress(usual()))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TargetError, match=r"No space left on device.*TMPDIR"):
        open_core(str(path))
