"""Run the program that knows the truth about its blocks (tests/programs/truth.c), take a picture of it, compare block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import truth

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
    registers: bool = False,
    **environment: str,
) -> None:
    """Run, take the picture, compare block by block (and on a core what hangs from what).

    With `registers` threads handle freed blocks and then sleep: an address may by chance stay in a vector register of theirs,
    and its block is rightly called reachable. Another two runs may show all the same.

    The heap of a static program that is not position-independent begins anywhere below 4 GiB, where a constant of libc's (the bits of
    cpuid, say) may by chance be an address inside a block, which then is rightly called possible. If a single block is, another run
    has its heap elsewhere.
    """
    verdict = _compare(program, folder / "1", threads, picture, options, scale, environment, settle)
    if program.name.endswith("-static") and len(verdict.missed) == 1 and verdict.missed[0].endswith("is called possible"):
        verdict = _compare(program, folder / "2", threads, picture, options, scale, environment, settle)
    for run in ("2", "3") if registers else ():
        if verdict.missed and all(missed.startswith("dead-stack") for missed in verdict.missed):
            verdict = _compare(program, folder / run, threads, picture, options, scale, environment, settle)
    assert verdict.perfect, str(verdict)


def _compare(
    program: Path,
    folder: Path,
    threads: int,
    picture: str,
    options: str,
    scale: int,
    environment: dict[str, str],
    settle: Optional[Settle] = None,
) -> truth.Verdict:
    command = [str(program), str(threads), str(threads + scale), str(scale), options]
    with cores.Running(command, folder, {**os.environ, **environment}) as running:
        records = truth.parse(running.output)
        core = None if picture == "live" else running.kernel_core() if picture == "kernel" else running.gcore()
        blocks, warnings = truth.ask(*(["--pid", str(running.pid)] if core is None else [str(core)]))
    if settle is not None:
        records = list(settle(records, blocks))
    verdict = truth.compare(records, blocks)
    # Its own mappings are the only thing about which findleaks may have doubts.
    assert [warning for warning in warnings if "belongs to no known allocator" not in warning] == []
    if core is not None:
        if verdict.perfect:
            assert truth.compare_leaders(records, core)[:5] == []
        core.unlink()
    return verdict
