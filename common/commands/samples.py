"""Read the samples that `diff` compares on the command line: snapshots, cores, and directories that
contain them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from typing import Optional

from findleaks.answers.snapshots import take_snapshot
from findleaks.commands.snapshot import SUFFIX
from findleaks.errors import TargetError, UsageError
from findleaks.formatting import format_count, some
from findleaks.history.snapshot import Snapshot, seconds
from findleaks.history.store import is_snapshot, load
from findleaks.session import Session

_CORES = (b"\x7fELF", b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"\xfd7zXZ", b"BZh", b"\x04\x22\x4d\x18")
"""The first bytes of cores: ELF files, and compressed files (zstd, gzip, xz, bzip2, lz4)."""

Open = Callable[[str], Session]
"""A function that opens the core with this path."""
Progress = Callable[[str, float], None]
"""A function that is called before each file of a directory is read. Its arguments are the phase
and the fraction done. It may raise an exception."""


def _no_progress(phase: str, part: float) -> None:
    pass


def gather(
    words: Sequence[str],
    opened: Open,
    sections: Optional[Set[str]] = None,
    kept: Optional[Mapping[str, Snapshot]] = None,
    progress: Progress = _no_progress,
) -> tuple[list[Snapshot], list[str]]:
    """Return the snapshots that the words name, and warnings about files in directories that could
    not be read.

    Snapshots are in the order of the words; the snapshots of a directory are in the order of time.
    A word names a snapshot of `kept` (those of a debugger), a file, or a directory. From snapshot
    files, only figures of these `sections` are read. A snapshot has the name of its file without
    directories, unless two files have the same name. Raises TargetError if a word names nothing."""
    if "" in words:
        raise UsageError("the name of a sample is empty")
    found: list[tuple[str, Snapshot]] = []
    warnings: list[str] = []
    for word in words:
        if kept and word in kept:
            found.append((word, kept[word]))
        elif os.path.isdir(word):
            found += _folder(word, opened, sections, warnings, progress)
        else:
            found.append((word, _one(_snapshot_file(word), opened, sections)))
    paths: dict[str, set[str]] = {}
    for path, one in found:
        paths.setdefault(one.name, set()).add(path)
    return [one if len(paths[one.name]) == 1 else replace(one, name=path) for path, one in found], warnings


def _snapshot_file(word: str) -> str:
    """Return the path that a word names. If there is no file NAME, the path is NAME.snapshot,
    because `snapshot NAME` writes this file."""
    path = word + SUFFIX
    return path if not os.path.exists(word) and os.path.isfile(path) else word


def _one(path: str, opened: Open, sections: Optional[Set[str]]) -> Snapshot:
    try:
        if (os.path.isfile(path) or not os.path.exists(path)) and is_snapshot(path):
            return load(path, sections)
    except OSError as error:
        raise TargetError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    with closing(opened(path)) as session:
        return take_snapshot(session, os.path.basename(path), sections)


def _folder(folder: str, opened: Open, sections: Optional[Set[str]], warnings: list[str], progress: Progress) -> list[tuple[str, Snapshot]]:
    found, others, before = [], [], len(warnings)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise TargetError(f"{folder}: {(error.strerror or str(error)).lower()}") from None
    for number, name in enumerate(names):
        progress("reading the samples", number / len(names))
        path = os.path.join(folder, name)
        if name.startswith(".") or not os.path.isfile(path):
            continue
        try:
            if not (is_snapshot(path) or _may_be_core(path)):
                others.append(name)
                continue
            found.append((path, _one(path, opened, sections)))
        except (OSError, TargetError) as error:
            warnings.append(f"skipped: {error}")
    if others:
        warnings.append(f"{folder}: {format_count(len(others), 'file')} skipped, neither snapshots nor cores: {some(others)}")
    if not found:
        why = "".join(f"; {warning}" for warning in warnings[before:][:1])
        raise TargetError(f"{folder}: no snapshots and no cores in this directory{why}")
    times = seconds([one for _, one in found])
    return [found[at] for at in sorted(range(len(found)), key=times.__getitem__)] if times is not None else found


def _may_be_core(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(8).startswith(_CORES)
