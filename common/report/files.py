"""Writes the files that commands take by `-o`."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator

from findleaks.errors import FindleaksError


def write_file(path: str, data: bytes) -> None:
    """Write a file as `replacing` does."""
    with replacing(path) as part, open(part, "wb") as out:
        out.write(data)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """The path of an empty file that takes the place of `path` when the block ends, so that no
    reader finds a part of it: it is under another name in the same folder, and renamed. A symbolic
    link stays one; what is no regular file (/dev/stdout) gets the content instead. FindleaksError
    where this fails; what was there before is then unchanged."""
    try:
        if os.path.exists(path):
            with open(os.open(path, os.O_WRONLY), "wb") as old:  # raises if it is write-protected
                if not stat.S_ISREG(os.fstat(old.fileno()).st_mode):
                    with tempfile.TemporaryDirectory(prefix="findleaks-") as folder:
                        part = os.path.join(folder, "part")
                        yield _created(part)
                        with open(part, "rb") as made:
                            shutil.copyfileobj(made, old)
                    return
        with _renamed(os.path.realpath(path)) as part:
            yield part
    except OSError as error:
        raise FindleaksError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def require_writable(path: str) -> None:
    """FindleaksError where it is clear beforehand that the file cannot be written."""
    folder = os.path.dirname(os.path.realpath(path))
    wrong = ""
    if os.path.isdir(path):
        wrong = "is a directory"
    elif not os.path.isdir(folder):
        wrong = "no such file or directory"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        wrong = "permission denied"
    if wrong:
        raise FindleaksError(f"{path}: cannot be written: {wrong}")


@contextlib.contextmanager
def _renamed(path: str) -> Iterator[str]:
    part = os.path.join(os.path.dirname(path), f".findleaks-{secrets.token_hex(8)}.part")
    try:
        yield _created(part)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(part, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _created(path: str) -> str:
    with open(path, "xb"):
        return path
