"""The file to which a core is written: it is either complete, or does not exist."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from descriptors import open_descriptors

from findleaks.errors import TargetError
from findleaks.target.core_writer import check, zstd
from findleaks.target.core_writer.output import Packed, Sparse, check_space, part_file


def nothing() -> None:
    pass


def test_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / ("core" * 60)  # a long name
    path.write_text("from before")
    with part_file(str(path), nothing) as fd:
        output = Sparse(fd, nothing)
        output.put(3 << 20, memoryview(b"end"))
        output.end(4 << 20)
        assert path.read_text() == "from before"
        (part,) = set(os.listdir(tmp_path)) - {path.name}
        assert part.startswith(".core")
        assert part.endswith(".part")
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_bytes() == bytes(3 << 20) + b"end" + bytes((1 << 20) - 3)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TargetError("the process has ended"), ValueError()])
def test_nothing_is_left_after_an_error(tmp_path: Path, error: BaseException) -> None:
    before = open_descriptors()

    def fail() -> None:
        with part_file(str(tmp_path / "core"), nothing) as fd:
            os.write(fd, b"half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert os.listdir(tmp_path) == []
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "the core does not fit: no space left on device; the partial file was removed"),
        (errno.EDQUOT, "the core does not fit: disk quota exceeded; the partial file was removed"),
        (errno.EFBIG, "the core exceeds the largest file size (ulimit -f, or the file system's limit); the partial file was removed"),
        (errno.EIO, "cannot be written: input/output error"),
    ],
)
def test_write_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(TargetError) as caught, part_file(str(tmp_path / "core"), nothing) as fd:
        Sparse(fd, nothing).put(0, memoryview(b"x"))
    assert str(caught.value) == f"{tmp_path}/core: {said}"
    assert os.listdir(tmp_path) == []


def test_invalid_output_paths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path, "expected a file, got a directory; name a file in it"),
        (tmp_path / "pipe", "not a regular file, so a core cannot replace it; name another file"),
        (Path("/dev/null"), "not a regular file, so a core cannot replace it; name another file"),
        (tmp_path / "none" / "core", f"no such directory: {tmp_path}/none"),
        (tmp_path / ("x" * 300), "cannot be written: file name too long"),
        (Path("a\0b"), "cannot be written: "),
    ):
        with pytest.raises(TargetError) as caught:
            check(str(path))
        assert said in str(caught.value)
    with pytest.raises(TargetError, match="the core needs"):
        check_space(str(tmp_path / "core"), 1 << 60)
    check(str(tmp_path / "core"), compress=True)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "core").symlink_to("kept")
    with part_file(str(tmp_path / "core"), nothing) as fd:
        os.write(fd, b"core")
    assert (tmp_path / "kept").read_text() == "kept"
    assert (tmp_path / "core").read_text() == "core"
    assert not (tmp_path / "core").is_symlink()


def test_skipped_parts_are_packed_as_zeros() -> None:
    class Kept:
        data = b""
        finished = False

        def write(self, data: memoryview) -> None:
            self.data += bytes(data)

        def finish(self) -> None:
            self.finished = True

        def close(self) -> None:
            pass

    kept = Kept()
    output = Packed(kept, nothing)
    output.put(0, memoryview(b"head"))
    output.put(10, memoryview(bytes([7]) * (3 << 20)))
    output.put(5 << 20, memoryview(b"tail"))
    output.end((5 << 20) + 10)
    wanted = bytearray((5 << 20) + 10)
    wanted[:4], wanted[10 : 10 + (3 << 20)], wanted[5 << 20 : (5 << 20) + 4] = b"head", bytes([7]) * (3 << 20), b"tail"
    assert kept.data == wanted
    assert kept.finished


def test_packed_by_the_module_of_newer_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `compression.zstd` of Python 3.14 is preferred. The test makes a module of this name from python-zstandard."""
    zstandard = pytest.importorskip("zstandard")
    made = ModuleType("compression.zstd")
    made.ZstdCompressor = lambda level: zstandard.ZstdCompressor(level=level).compressobj()  # type: ignore[attr-defined]
    made.ZstdError = zstandard.ZstdError  # type: ignore[attr-defined]
    package = ModuleType("compression")
    package.zstd = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "compression", package)
    monkeypatch.setitem(sys.modules, "compression.zstd", made)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "packed"
    with open(path, "wb") as file:
        packer = zstd.packer(file.fileno())
        packer.write(memoryview(b"core" * 100_000))
        packer.finish()
        packer.close()
    with open(path, "rb") as packed:
        assert zstandard.ZstdDecompressor().stream_reader(packed).read() == b"core" * 100_000


def test_after_ctrl_c_another_process_frees_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that closes a removed file last waits for the file system. This must not be the process in which the
    user pressed Ctrl-C."""
    holders: list[list[str]] = []
    close = os.close

    def close_and_record(fd: int) -> None:
        if (file := read_link("self", fd)).endswith(".part (deleted)"):
            holders.append([pid for pid in list_children() if read_link(pid, 1) == file])
        close(fd)

    monkeypatch.setattr(os, "close", close_and_record)
    with contextlib.suppress(KeyboardInterrupt), part_file(str(tmp_path / "core"), lambda: None) as fd:
        os.write(fd, b"half")
        raise KeyboardInterrupt
    ((holder,),) = holders
    assert list(tmp_path.iterdir()) == []
    assert os.waitpid(int(holder), 0) == (int(holder), 0x100)  # it ended by itself, as there was nothing to read


def read_link(pid: str, fd: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


def list_children() -> list[str]:
    """Return the child processes of this process. Threads of earlier tests may end during the loop."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += (task / "children").read_text().split()
    return found
