"""Compress with zstd: by Python 3.14, python-zstandard, or the zstd program."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
from typing import Any

from findleaks.errors import TargetError
from findleaks.target.core_writer.output import Packer

_LEVEL = 3


def packer(fd: int) -> Packer:
    """Open a stream that is compressed into the file.
    Raises TargetError if nothing on this machine can compress."""
    made = _module()
    if made is not None:
        return _ByModule(fd, *made)
    program = shutil.which("zstd")
    if program is None:
        raise TargetError(
            "the core cannot be compressed: zstd is not installed; install the zstd program (apt install zstd) or Python's zstandard module"
        )
    return _ByProgram(fd, program)


def check() -> None:
    """Check that a core can be compressed on this machine.
    Raises TargetError."""
    if _module() is None and shutil.which("zstd") is None:
        packer(-1)


def _module() -> Any:
    """Return the compressor of a Python module and its exception class; None if there is none."""
    try:
        from compression import zstd  # Python 3.14

        return zstd.ZstdCompressor(level=_LEVEL), zstd.ZstdError
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj(), zstandard.ZstdError


class _ByModule:
    def __init__(self, fd: int, made: Any, error: type[Exception]) -> None:
        self._file = io.FileIO(fd, "wb", closefd=False)
        self._made, self._error = made, error

    def write(self, data: memoryview) -> None:
        try:
            self._out(self._made.compress(data))
        except self._error as error:
            raise TargetError(f"the core cannot be compressed: {error}") from None

    def finish(self) -> None:
        self._out(self._made.flush())

    def _out(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) or 0 :]

    def close(self) -> None:
        pass


class _ByProgram:
    """Runs the zstd program, with the file as its standard output."""

    def __init__(self, fd: int, program: str) -> None:
        pipe, environment = subprocess.PIPE, {**os.environ, "LC_ALL": "C"}
        # In its own process group: Ctrl-C ends findleaks only, which then ends the program.
        self._child = subprocess.Popen(
            [program, f"-{_LEVEL}", "-qc"], stdin=pipe, stdout=fd, stderr=pipe, env=environment, start_new_session=True
        )

    def write(self, data: memoryview) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(data)
        except BrokenPipeError:
            self._fail()

    def finish(self) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.close()
        except BrokenPipeError:
            self._fail()
        if self._child.wait():
            self._fail()

    def _fail(self) -> None:
        assert self._child.stderr is not None
        said = self._child.stderr.read(4096).decode("utf-8", "replace").split("\n")[0].strip()
        raise TargetError(f"the core cannot be compressed: {said or 'zstd ended early'}")

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        for stream in (self._child.stdin, self._child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._child.wait()
