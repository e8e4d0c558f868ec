"""Write the files of the option `-o`."""

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
    """Write a file in the way of `replacing`."""
    with replacing(path) as part, open(part, "wb") as out:
        out.write(data)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield the path of a temporary file that replaces `path` when the block ends.
    Readers never see a partial file: it has another name in the same folder until it is renamed. A
    symbolic link stays a link; a file that is not regular (/dev/stdout) receives the content
    instead.
    Raises FindleaksError on failure; the previous file is then unchanged."""
    try:
        if os.path.exists(path):
            with open(os.open(path, os.O_WRONLY), "wb") as old:  # raises if it is write-protected
                if not stat.S_ISREG(os.fstat(old.fileno()).st_mode):
                    with tempfile.TemporaryDirectory(prefix="findleaks-") as folder:
                        part = os.path.join(folder, "part")
                        yield _create_temporary(part)
                        with open(part, "rb") as made:
                            shutil.copyfileobj(made, old)
                    return
        with _rename_at_end(os.path.realpath(path)) as part:
            yield part
    except OSError as error:
        raise FindleaksError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def require_writable(path: str) -> None:
    """Check, where possible, that the file can be written, before any work is done.
    Raises FindleaksError if it cannot."""
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
def _rename_at_end(path: str) -> Iterator[str]:
    part = os.path.join(os.path.dirname(path), f".findleaks-{secrets.token_hex(8)}.part")
    try:
        yield _create_temporary(part)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(part, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _create_temporary(path: str) -> str:
    with open(path, "xb"):
        return path
