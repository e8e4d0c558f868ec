"""Run the truth program (tests/programs/truth.c), which prints the true state of its blocks, and compare findleaks' result block by
block."""

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
"""Corrects the program's list of blocks where an allocator's metadata cannot tell the difference, given the blocks that findleaks found."""


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
    """Run the program, take its core or examine it live, and compare block by block. On a core, also compare which blocks are reachable
    from which leak head."""
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
    # Only the program's own mappings may make the result uncertain.
    assert [warning for warning in warnings if "is unattributed" not in warning] == []
    if core is not None:
        if as_compared.perfect:
            assert truth.compare_leaders(records, core)[:5] == []
        core.unlink()


def own_files(program: Path) -> tuple[str, ...]:
    """Return the names of the files that contain the program's own data. A program at fixed addresses is below 4 GiB, where numbers in
    libc's data (flags, sizes, the bits of cpuid) may look like addresses of blocks. If libc is linked statically, these numbers are in the
    program's own file."""
    with program.open("rb") as file:
        head = ELFFile(file)
        return () if head["e_type"] == "ET_EXEC" else (program.name,)
