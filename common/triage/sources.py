"""Find the cores that the user names for triage: files, directories of files, lists of names."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, Optional

from findleaks.errors import TargetError
from findleaks.triage.examine import Source

COREDUMPS = "/var/lib/systemd/coredump"
"""The directory in which systemd-coredump stores cores: coredump.conf(5), Storage=external."""
LONGEST_LIST = 1 << 30  # maximum number of bytes of a list of names

_SYSTEMD = re.compile(r"core\.(?P<comm>.+)\.(?P<uid>\d+)\.(?P<boot>[0-9a-f]{32})\.(?P<pid>\d+)\.(?P<time>\d{1,20})(?:\.(?:zst|xz|lz4))?")
"""core.COMM.UID.BOOT.PID.TIME: systemd 246 and later, src/coredump/coredump.c, make_filename. TIME
is in microseconds since 1970. In COMM, dots, slashes, spaces and characters that are not ASCII are
\\xNN."""
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


class Sources(NamedTuple):
    """The cores to read. `links`: number of symbolic links in directories, which are not
    followed."""

    cores: list[Source]
    links: int


def sources(words: Sequence[str], standard_input: Optional[BinaryIO] = None, left_out: Iterable[str] = ()) -> Sources:
    """Return the files that the words name, each once, in order.

    A word is a file, a directory (all files below it, ordered by name), "@LIST" (a file that
    contains names), or "-" (names on standard input). A list has one name per line, or a NUL byte
    after each name. `left_out`: files that are not cores. Raises TargetError if a directory or list
    cannot be read."""
    found: dict[str, Source] = {}
    links = 0
    others = {os.path.realpath(path) for path in left_out}
    for word in _iterate_names(words, standard_input):
        if os.path.isdir(word):
            paths, skipped = _below(word)
            links += skipped
            named = [path for path in paths if os.path.realpath(path) not in others]
        else:
            named = [word]
        for path in named:
            found.setdefault(os.path.realpath(path), source(path))
    return Sources(list(found.values()), links)


def source(path: str) -> Source:
    """Return the properties of a file that are known without reading it."""
    program, when = _by_systemd(os.path.basename(path))
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return Source(path, path, 0, 0, program, when)
    size = info.st_size if stat.S_ISREG(info.st_mode) else 0
    return Source(path, path, size, info.st_mtime_ns, program, when)


def _iterate_names(words: Sequence[str], standard_input: Optional[BinaryIO]) -> Iterator[str]:
    for word in words:
        if word == "-":
            yield from _iterate_lines(standard_input.read(LONGEST_LIST) if standard_input is not None else b"")
        elif word.startswith("@") and not os.path.exists(word):
            yield from _iterate_lines(_list(word[1:]))
        else:
            yield word


def _list(path: str) -> bytes:
    try:
        if not os.path.isfile(path) and os.path.exists(path):
            raise TargetError(f"{path}: the list is not a regular file; use `-` to read names from standard input")
        with open(path, "rb") as file:
            return file.read(LONGEST_LIST)
    except (OSError, ValueError) as error:
        raise TargetError(f"{path}: the list cannot be read: {getattr(error, 'strerror', None) or error}".lower()) from None


def _iterate_lines(data: bytes) -> Iterator[str]:
    between = b"\0" if b"\0" in data else b"\n"
    yield from (os.fsdecode(line.rstrip(b"\r") if between == b"\n" else line) for line in data.split(between) if line.strip())


def _below(folder: str) -> tuple[list[str], int]:
    """Return all files below a directory, by name, and the number of symbolic links. A subdirectory
    that cannot be read is returned as a file, so that it has a row."""
    found: list[str] = []
    links = 0

    def unreadable(error: OSError) -> None:
        if error.filename == folder:
            raise TargetError(f"{folder}: {(error.strerror or str(error)).lower()}")
        found.append(str(error.filename))

    for path, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()
        links += sum(os.path.islink(os.path.join(path, name)) for name in folders)
        for name in sorted(names):
            file = os.path.join(path, name)
            if os.path.islink(file):
                links += 1
            else:
                found.append(file)
    return found, links


def _by_systemd(name: str) -> tuple[str, Optional[float]]:
    """Return the program and the time in a file name that systemd created; "" and None for other
    names."""
    match = _SYSTEMD.fullmatch(name)
    if match is None:
        return "", None
    raw = _ESCAPE.sub(lambda byte: chr(int(byte[1], 16)), match["comm"])
    when = int(match["time"]) / 1e6
    return raw.encode("latin-1", "replace").decode("utf-8", "surrogateescape"), when if when < 1e11 else None
