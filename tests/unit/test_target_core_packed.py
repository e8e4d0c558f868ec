"""Packed cores: complete, in several parts, truncated, damaged, and without space to unpack them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import re
import resource
import subprocess
import tracemalloc
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import elfcore
import pytest
from descriptors import open_descriptors
from elfcore import Load, Task
from handmade import HEAP, STACK, check_line, open_bytes, page, refusal, usual

from findleaks.errors import TargetError
from findleaks.target import gzip_members
from findleaks.target.compressed import unpack_core
from findleaks.target.core import open_core
from findleaks.target.files import DamagedFile, TrailingData
from findleaks.target.zstd import Frames


def pack_zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-q"], input=data, capture_output=True, check=True).stdout


PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": pack_zstd}


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_cores(tmp_path: Path, kind: str) -> None:
    data = usual()
    path = tmp_path / f"core.{kind}"
    core = open_bytes(path, PACKERS[kind](data))
    assert (core.warnings, core.truncated, core.path) == ([], False, str(path))
    assert core.read(HEAP, 0x2000) == page(b"h") + page(b"H")
    assert len(core.threads()) == 2
    two = open_bytes(path, PACKERS[kind](data[:5000]) + PACKERS[kind](data[5000:]))
    assert two.read(HEAP, 0x2000) == page(b"h") + page(b"H"), "the parts of a packed file are joined"


@pytest.mark.parametrize("kind", PACKERS)
def test_truncated_or_damaged_packed_cores(tmp_path: Path, kind: str) -> None:
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
        assert "the compressed file is cut off" in core.warnings[0]
        for piece in core.pieces(HEAP, HEAP + (1 << 20)):
            assert bytes(piece.data) == noise[piece.address - HEAP :][: len(piece.data)]
    assert refused >= 1
    assert kind == "bz2" or partial >= 1


@pytest.mark.parametrize("kind", PACKERS)
def test_data_before_damage_are_used(tmp_path: Path, kind: str) -> None:
    chance = random.Random(6)
    words = [chance.randbytes(16) for _ in range(3000)]
    memory = b"".join(chance.choices(words, k=(2 << 20) // 16))
    whole = elfcore.core([Load(HEAP, len(memory), memory), Load(STACK, 0x1000, page(b"s"))], [Task(100, {"rsp": STACK})])
    packed = bytearray(PACKERS[kind](whole))
    packed[len(packed) * 9 // 10] ^= 0x55
    core = open_bytes(tmp_path / f"core.{kind}", packed)
    assert core.truncated
    assert f"core.{kind}: the compressed file is damaged near byte " in core.warnings[0]
    assert f" of {len(packed):,} (" in core.warnings[0]
    same = 0
    for piece in core.pieces(HEAP, HEAP + len(memory)):
        at = piece.address - HEAP
        same += sum(bytes(piece.data[low : low + 64]) == memory[at + low : at + low + 64] for low in range(0, len(piece.data), 64)) * 64
    assert same > len(memory) * (0.65 if kind == "bz2" else 0.85)  # bzip2 unpacks 900,000 bytes at once


@pytest.mark.parametrize("kind", PACKERS)
def test_data_after_a_packed_core_are_ignored(tmp_path: Path, kind: str) -> None:
    core = open_bytes(tmp_path / f"core.{kind}", PACKERS[kind](usual()) + b"something else, and more of it" * 10)
    assert not core.truncated
    assert core.read(HEAP, 0x2000) == page(b"h") + page(b"H")
    assert all("the compressed core is followed by other data" in line for line in core.warnings)
    padded = open_bytes(tmp_path / f"core.{kind}", PACKERS[kind](usual()) + bytes(512))
    assert not padded.truncated


def pack_zeros(kind: str, size: int, start: bytes) -> bytes:
    """Return packed data: `start`, and a number of zeros after it. The ratio is at least a thousand to one."""
    if kind == "zst":
        return pack_zstd(start) + pack_zstd(bytes(size))
    if kind == "xz":
        return lzma.compress(start) + lzma.compress(bytes(size), preset=0)
    piece = PACKERS[kind](bytes(16 << 20))
    return PACKERS[kind](start) + piece * (size // (16 << 20))


@pytest.mark.parametrize("kind", PACKERS)
def test_high_compression_needs_little_memory_and_disk(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 << 20
    path = tmp_path / f"core.{kind}"
    path.write_bytes(pack_zeros(kind, size, b"\x7fELF"))
    assert path.stat().st_size < 1 << 20
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tracemalloc.start()
    try:
        fd, warning, in_part = unpack_core(os.open(path, os.O_RDONLY), path.name, path.read_bytes()[:8])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    try:
        assert (os.fstat(fd).st_size, warning, in_part) == (size + 4, "", False)
        assert os.fstat(fd).st_blocks * 512 < 1 << 20
        assert peak < 12 << 20, "8 MiB of these are the dictionary of xz"
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", PACKERS)
def test_files_that_are_no_core_are_not_unpacked(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"core.{kind}"
    path.write_bytes(PACKERS[kind](b"a tar file, say" * 100_000))
    reported: list[float] = []
    with pytest.raises(TargetError, match=f"^core.{kind}: expected a core file: the unpacked content is not an ELF file$"):
        unpack_core(os.open(path, os.O_RDONLY), path.name, path.read_bytes()[:8], reported.append)
    assert len(reported) == 2, "one step, with one read"


def test_zstd_program_is_used_if_python_has_no_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    packed = pack_zstd(usual())
    assert open_bytes(tmp_path / "core.zst", packed).read(HEAP, 1) == b"h"
    cut = open_bytes(tmp_path / "cut.zst", pack_zstd(usual() + random.Random(1).randbytes(1 << 20))[:-1000])
    assert cut.truncated
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "zstd program" in refusal(tmp_path / "core.zst", packed)


def test_unpacked_zeros_are_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(b"\x7fELF" + bytes(64 << 20) + b"end"))
    reported: list[float] = []
    fd, warning, in_part = unpack_core(os.open(path, os.O_RDONLY), "zeros.gz", path.read_bytes()[:8], reported.append)
    try:
        info = os.fstat(fd)
        assert (info.st_size, warning, in_part) == ((64 << 20) + 7, "", False)
        assert info.st_blocks * 512 < 1 << 20
        assert os.pread(fd, 3, (64 << 20) + 4) == b"end"
        assert len(reported) > 1000, "Ctrl-C is checked as often"
        assert reported == sorted(reported)
        assert 0 <= reported[0] < reported[-1] <= 1
    finally:
        os.close(fd)
    assert os.listdir(tmp_path) == ["zeros.gz"], "the unpacked file has no name"


def test_no_space_to_unpack_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "core.gz"
    path.write_bytes(gzip.compress(usual()))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TargetError, match=r"No space left on device.*TMPDIR"):
        open_core(str(path))


def test_no_folder_to_unpack_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a read-only file system."""

    def unusable(*_: object) -> list[str]:
        return [str(tmp_path / "none")]

    path = tmp_path / "core.gz"
    path.write_bytes(gzip.compress(usual()))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", unusable)
    with pytest.raises(TargetError, match="no directory to unpack it in; set TMPDIR"):
        open_core(str(path))


@pytest.mark.parametrize("limit", ["free", "file"])
def test_core_is_used_as_far_as_space_permits(tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the free space is left free. If the system refuses to write, the message is the same."""
    noise = random.Random(3).randbytes(1 << 20)
    whole = elfcore.core([Load(HEAP, 1 << 20, noise), Load(STACK, 0x1000, page(b"s"))], [Task(100, {"rsp": STACK})])
    path = tmp_path / "core.gz"
    path.write_bytes(gzip.compress(whole))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == "free":
        monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=128, f_frsize=4096))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (450 << 10, before[1]))
    try:
        core = open_core(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert core.truncated
    why = {"free": "a tenth of the 512 KiB of free space is reserved", "file": "File too large"}[limit]
    most = {"free": 460, "file": 450}[limit]
    end = f" KiB of the core were unpacked in {tmp_path}, then disk space ran out ({why}); the rest is missing. "
    warned = re.fullmatch(
        re.escape("core.gz: ") + r"(\d+)" + re.escape(end + "Set TMPDIR to a directory on a larger disk."), core.warnings[0]
    )
    assert warned is not None, core.warnings[0]
    there = int(warned[1])
    assert most - 64 <= there <= most, "a step is at most 64 KiB"
    size = (there << 10) - 8192
    assert core.read(HEAP, size) == noise[:size]
    assert os.listdir(tmp_path) == ["core.gz"]


def test_unpacking_can_be_interrupted(tmp_path: Path) -> None:
    class Interruption(Exception):
        pass

    def stop(part: float) -> None:
        if part > 0.5:
            raise Interruption

    before = open_descriptors()
    for kind, pack in PACKERS.items():
        path = tmp_path / f"core.{kind}"
        path.write_bytes(pack(b"\x7fELF" + random.Random(2).randbytes(1 << 20)))
        with pytest.raises(Interruption):
            unpack_core(os.open(path, os.O_RDONLY), path.name, path.read_bytes()[:8], stop)
    assert open_descriptors() <= before


def test_frames_of_zstd_of_every_kind(tmp_path: Path) -> None:
    """Raw, run-length and compressed blocks; frames with and without checksum and size, skippable frames, and empty frames."""
    import zstandard

    chance = random.Random(9)
    pieces = [chance.randbytes(300_000), b"a" * 1_000_000, b"", b"word " * 100_000, chance.randbytes(1), bytes(200_000)]
    packed, whole = b"", b""
    for number, piece in enumerate(pieces * 3):
        maker = zstandard.ZstdCompressor(level=(1, 3, 19)[number % 3], write_checksum=number % 2 == 0, write_content_size=number % 4 < 2)
        packed += maker.compress(piece) + b"\x53\x2a\x4d\x18" + (200_000).to_bytes(4, "little") + bytes(200_000)
        whole += piece
    path = tmp_path / "frames.zst"
    path.write_bytes(packed)
    with path.open("rb", buffering=0) as file:
        frames, read = Frames(file, zstandard), b""
        for data in iter(lambda: frames.read1(1 << 16), b""):
            assert len(data) <= 1 << 17
            read += data
    assert read == whole
    for size in chance.sample(range(1, len(packed)), 60):
        path.write_bytes(packed[:size])
        with path.open("rb", buffering=0) as file, pytest.raises((EOFError, DamagedFile, TrailingData)):
            b"".join(iter(partial(Frames(file, zstandard).read1, 1 << 16), b""))


@pytest.mark.parametrize("step", [1, 2, 7, gzip_members._INPUT])
def test_members_of_gzip_files_are_read_as_python_reads_them(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers, zeros between members and checksums may begin at any offset of a read."""
    monkeypatch.setattr(gzip_members, "_INPUT", step)
    chance = random.Random(step)
    for _ in range(60):
        parts = [chance.randbytes(chance.randrange(40)) * chance.randrange(9) for _ in range(chance.randrange(1, 4))]
        packed = b"".join(gzip.compress(part) + bytes(chance.randrange(3)) for part in parts)
        members, cut = (
            gzip_members.Members(io.BytesIO(data))  # type: ignore[arg-type]
            for data in (packed, packed.rstrip(b"\0")[:-1])
        )
        assert b"".join(iter(partial(members.read1, 16), b"")) == b"".join(parts) == gzip.decompress(packed)
        with pytest.raises(EOFError):
            b"".join(iter(partial(cut.read1, 16), b""))


@pytest.mark.parametrize("empty", [gzip.compress(b""), bz2.compress(b""), b"\x50\x2a\x4d\x18\0\0\0\0"], ids=["gzip", "bzip2", "zstd"])
def test_data_that_unpack_to_nothing_can_be_interrupted(tmp_path: Path, empty: bytes) -> None:
    calls = []

    def stop(part: float) -> None:
        calls.append(part)
        if len(calls) == 6:
            raise KeyboardInterrupt

    (tmp_path / "core").write_bytes(empty * 100_000)
    with pytest.raises(KeyboardInterrupt):
        unpack_core(os.open(tmp_path / "core", os.O_RDONLY), "core", empty[:8], stop)
    assert calls == sorted(calls) and calls[-1] < 1
