"""Writes the files that commands take by `-o`."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat

from findleaks.errors import FindleaksError


def write_file(path: str, data: bytes) -> None:
    """Write a file so that no reader finds a part of it: under another name in the same folder, and
    renamed. A symbolic link stays one; what is no regular file (/dev/stdout) is written to as it
    is. FindleaksError where this fails; what was there before is then unchanged."""
    try:
        if os.path.exists(path):
            with open(os.open(path, os.O_WRONLY), "wb") as old:  # raises if it is write-protected
                if not stat.S_ISREG(os.fstat(old.fileno()).st_mode):
                    old.write(data)
                    return
        _replace(os.path.realpath(path), data)
    except OSError as error:
        raise FindleaksError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def _replace(path: str, data: bytes) -> None:
    part = os.path.join(os.path.dirname(path), f".findleaks-{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as out:
            out.write(data)
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(out.fileno(), stat.S_IMODE(os.stat(path).st_mode))
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
