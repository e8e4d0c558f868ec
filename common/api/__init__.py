"""The Python API: `import findleaks`.

    with findleaks.open("app.core") as process:
        for group in process.leaks(by="type")[:5]:
            print(group.bytes, group.blocks, group.type)

The results are those of the commands: frozen dataclasses (`findleaks.results`) with `to_json()`."""

from __future__ import annotations

import importlib
import os
import sys
from argparse import ArgumentTypeError
from typing import Any, Union

from findleaks.answers.growth import compare_snapshots
from findleaks.api.block_list import Blocks
from findleaks.api.process import Process
from findleaks.api.snapshots import Snapshot, snapshot_of
from findleaks.audit.block_table import BlockTable
from findleaks.errors import TargetError, UsageError
from findleaks.history import store
from findleaks.results.growth import Growth
from findleaks.session import Session

__all__ = ["BlockTable", "Blocks", "Process", "Snapshot", "attach", "current", "diff", "load", "open"]


def open(path: Union[str, os.PathLike[str]], exe: str = "", sysroot: str = "") -> Process:  # noqa: A001
    """Open a core file or a minidump as a process. Files that are compressed with gzip, zstd, xz or
    bzip2 are decompressed.

    `exe`: the program that dumped the core, if the path recorded in the core is wrong. `sysroot`: a
    directory with the files of the core's machine. Raises TargetError if the file cannot be read or
    is not a core, or if `exe` or `sysroot` does not exist, and UsageError if `path` is empty."""
    from findleaks.target.core import open_core

    for what, given, is_right in (("exe", exe, os.path.isfile), ("sysroot", sysroot, os.path.isdir)):
        if given and not is_right(given):
            raise TargetError(f"{what} {given}: " + ("not usable" if os.path.exists(given) else "not found"))
    name = os.fspath(path)
    if not name:
        raise UsageError("the name of the core file is empty")
    return Process(Session(open_core(name, exe=exe, sysroot=sysroot)))


def attach(pid: Union[int, str], fork: bool = False) -> Process:
    """Return a copy of a live process. The process is stopped while it is copied, and then resumed.

    `pid`: the process id, or a name that only one process has. `fork`: make the process clone
    itself, and copy the clone, so that the process is stopped for a shorter time (x86-64). Raises
    TargetError if there is no such process, if it cannot be read, or if it cannot be cloned; the
    message names the missing permission or the reason."""
    from findleaks.target.copied import attach
    from findleaks.target.processes import find_process

    try:
        number = find_process(str(pid))
    except ArgumentTypeError as error:
        raise TargetError(str(error)) from None
    if fork:
        from findleaks.injection.forked import fork as fork_process

        return Process(Session(fork_process(number, lambda part: None)))
    return Process(Session(attach(number)))


def load(path: Union[str, os.PathLike[str]]) -> Snapshot:
    """Return a snapshot that `findleaks snapshot` or `Snapshot.save` wrote. Raises TargetError if
    the file cannot be read, or is not a snapshot."""
    name = os.fspath(path)
    try:
        if not store.is_snapshot(name):
            raise TargetError(f"{name}: not a snapshot; findleaks.open() reads cores")
    except OSError as error:
        raise TargetError(f"{name}: {(error.strerror or str(error)).lower()}") from None
    return Snapshot(store.load(name, answers=True))


def diff(old: Union[Snapshot, Process], new: Union[Snapshot, Process]) -> Growth:
    """Return what grew from `old` to `new`, which are snapshots or processes. `old` is the earlier
    one.

    The result has `leaked_bytes` (usable bytes), `leaked_blocks`, and `grown`, which lists the
    figures that explain the growth. Raises TargetError if a process is closed."""
    return compare_snapshots([snapshot_of(one.snapshot() if isinstance(one, Process) else one) for one in (old, new)])


def current(debugger: Any = None) -> Process:
    """Return the process or core that is selected in the debugger (GDB or LLDB) in which this
    Python code runs.

    `debugger`: LLDB's SBDebugger, if it is not `lldb.debugger`. A live process must be stopped.
    After the process has run, results of the returned object raise TargetError; call `current()`
    again. Raises TargetError if there is no debugger or no process."""
    for front in ("gdb", "lldb"):
        if front in sys.modules or (debugger is not None and front == "lldb"):
            opened = importlib.import_module(f"findleaks.{front}.current").open_current(debugger)
            return Process(*opened)
    raise TargetError("no debugger: findleaks.current() works in the Python of GDB and LLDB; use findleaks.open() or attach()")
