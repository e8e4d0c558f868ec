"""Compressed cores: unpacked into a file without a name, which goes away with the last that uses it."""

from __future__ import annotations

import bz2
import lzma
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Optional

from findleaks.errors import TargetError
from findleaks.report.text import size as human

_CHUNK = 1 << 20
_BLOCK = 1 << 16
_ZERO = bytes(_BLOCK)


def unpacked(fd: int, name: str, start: bytes) -> tuple[int, str]:
    """(descriptor of the unpacked core, "" or a warning that the compressed data end too early). Takes over `fd` and closes it.
    `start` are the file's first bytes. TargetError if it is in no known format, or nothing can be unpacked."""
    with os.fdopen(fd, "rb", buffering=0) as file:
        blocks = _blocks(file, start)
        if blocks is None and start[:4] == b"MDMP":
            raise TargetError(
                f"{name}: a minidump, which has the stacks but not the heap: make the core with gcore, or let the kernel do it"
            )
        if blocks is None and start[:4] == b"\x04\x22\x4d\x18":
            raise TargetError(f"{name}: packed with lz4: unpack it first (unlz4 {name})")
        if blocks is None:
            raise TargetError(f"{name}: not an ELF file, nor one packed with gzip, zstd, xz or bzip2: a core file is needed")
        out = _unnamed(name)
        try:
            cut = _write(blocks, out, name)
        except BaseException:
            os.close(out)
            raise
        return out, cut


def _unnamed(name: str) -> int:
    """A file without a name: in $TMPDIR, else in /var/tmp rather than /tmp, which is often in memory."""
    folders = [os.environ["TMPDIR"]] if os.environ.get("TMPDIR") else ["/var/tmp"]
    for folder in [*folders, tempfile.gettempdir()]:
        try:
            fd, path = tempfile.mkstemp(prefix="findleaks-", dir=folder)
        except OSError:
            continue
        os.unlink(path)
        return fd
    raise TargetError(f"{name}: no folder to unpack it in: set TMPDIR")


def _write(blocks: Iterator[bytes], out: int, name: str) -> str:
    """Write the blocks, leaving holes for zeros; returns "" or a warning."""
    at = 0
    cut = ""
    try:
        for data in blocks:
            for low in range(0, len(data), _BLOCK):
                part = data[low : low + _BLOCK]
                if part != _ZERO[: len(part)]:
                    view = memoryview(part)
                    done = 0
                    while done < len(view):
                        done += os.pwrite(out, view[done:], at + done)
                at += len(part)
    except (EOFError, zlib.error, lzma.LZMAError, ValueError, _Broken) as error:
        cut = f"{name}: the compressed file is cut off or damaged after {human(at)} of core ({error}): the rest is missing."
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise TargetError(
            f"{name}: cannot be unpacked ({error.strerror or error}) after {human(at)}: set TMPDIR to a folder with room"
        ) from None
    if not at:
        raise TargetError(cut or f"{name}: there is nothing in the compressed file")
    os.ftruncate(out, at)
    return cut


class _Broken(Exception):
    """Damaged compressed data, whatever the library calls it."""


def _blocks(file: Any, start: bytes) -> Optional[Iterator[bytes]]:
    if start[:3] == b"\x1f\x8b\x08":
        return _stream(file, lambda: zlib.decompressobj(zlib.MAX_WBITS | 16))
    if start[:6] == b"\xfd7zXZ\0":
        return _stream(file, lzma.LZMADecompressor)
    if start[:3] == b"BZh":
        return _stream(file, bz2.BZ2Decompressor)
    if start[:4] == b"\x28\xb5\x2f\xfd" or (start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F):
        return _zstd(file)
    return None


def _stream(file: Any, make: Callable[[], Any]) -> Iterator[bytes]:
    """Unpack the concatenated streams of a decompressor object that is for one stream."""
    machine = make()
    begun = False
    while True:
        data = file.read(_CHUNK)
        if not data:
            if begun:
                raise EOFError("the end is missing")
            return
        while data:
            begun = True
            try:
                block = machine.decompress(data)
            except OSError as error:  # bz2's way of saying that the data are bad
                raise _Broken(str(error)) from None
            if block:
                yield block
            data = b""
            if machine.eof:
                data = machine.unused_data.lstrip(b"\0")
                machine = make()
                begun = False


def _zstd(file: Any) -> Iterator[bytes]:
    try:
        from compression import zstd  # Python 3.14

        return _stream(file, zstd.ZstdDecompressor)
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        return _zstd_program(file)
    return _stream(file, lambda: _Zstandard(zstandard))


class _Zstandard:
    """python-zstandard's decompressor object with its own errors made ours."""

    def __init__(self, module: Any) -> None:
        self._error = module.ZstdError
        self._machine = module.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def decompress(self, data: bytes) -> bytes:
        try:
            return bytes(self._machine.decompress(data))
        except self._error as error:
            raise _Broken(str(error)) from None

    @property
    def eof(self) -> bool:
        return bool(self._machine.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._machine.unused_data)


def _zstd_program(file: Any) -> Iterator[bytes]:
    program = shutil.which("zstd")
    if program is None:
        raise TargetError(
            "a core packed with zstd needs the zstd program (apt install zstd) or Python's zstandard module; or unpack it first"
        )
    with subprocess.Popen(
        [program, "-dcq", "--long=31"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            while True:
                data = child.stdout.read(_CHUNK)
                if not data:
                    break
                yield data
            message = child.stderr.read(4096).decode("utf-8", "replace")
            if child.wait():
                raise _Broken(message.strip().splitlines()[-1] if message.strip() else f"zstd ended with status {child.returncode}")
        finally:
            if child.poll() is None:
                child.kill()
