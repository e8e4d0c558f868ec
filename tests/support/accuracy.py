"""Run the program that knows the truth about its blocks (tests/programs/truth.c), take a picture of it, compare block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import evidence
import truth
from elftools.elf.elffile import ELFFile

import cores

SOURCE = truth.PROGRAMS / "truth.c"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g")


Settle = Callable[[Sequence[truth.Record], Sequence[Mapping[str, Any]]], Sequence[truth.Record]]
"""Makes the program's list fit what an allocator's metadata can tell at all, given the blocks that were found."""


def check(
    program: Path,
    folder: Path,
    threads: int,
    picture: str,
    options: str = "",
    scale: int = 1,
    settle: Optional[Settle] = None,
    **environment: str,
) -> None:
    """Run, take the picture, compare block by block (and on a core what hangs from what)."""
    command = [str(program), str(threads), str(threads + scale), str(scale), options]
    with cores.Running(command, folder, {**os.environ, **environment}) as running:
        records = truth.parse(running.output)
        core = None if picture == "live" else running.kernel_core() if picture == "kernel" else running.gcore()
        blocks, warnings = truth.ask(*(["--pid", str(running.pid)] if core is None else [str(core)]))
        if settle is not None:
            records = list(settle(records, blocks))
        verdict = truth.compare(records, blocks)
        as_compared = verdict
        if verdict.held:
            verdict = evidence.explain(verdict, records, blocks, core or running.kernel_core(), own_files(program))
    assert verdict.perfect, str(verdict)
    # Its own mappings are the only thing about which findleaks may have doubts.
    assert [warning for warning in warnings if "is unattributed" not in warning] == []
    if core is not None:
        if as_compared.perfect:
            assert truth.compare_leaders(records, core)[:5] == []
        core.unlink()


def own_files(program: Path) -> tuple[str, ...]:
    """The files whose data the program itself writes. One at fixed addresses lies below 4 GiB, where numbers of libc's (flags, sizes,
    the bits of cpuid) may be addresses of blocks; where libc is linked in, they are in the program's own file."""
    with program.open("rb") as file:
        head = ELFFile(file)
        return () if head["e_type"] == "ET_EXEC" else (program.name,)
