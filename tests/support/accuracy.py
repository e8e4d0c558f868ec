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

    The heap of a program that is not position-independent begins anywhere below 4 GiB, where numbers (flags, sizes, the bits of cpuid) may
    by chance be addresses of blocks, or inside them, which then are rightly called reachable, or possible. With `registers` threads handle
    freed blocks and then sleep: an address may by chance stay in a vector register of theirs. Where a few blocks are held so, another two
    runs may show the same.
    """
    for run in ("1", "2", "3") if registers or _fixed(program) else ("1",):
        verdict = _compare(program, folder / run, threads, picture, options, scale, environment, settle)
        if not by_chance(verdict):
            break
    assert verdict.perfect, str(verdict)


MOST = 12
"""Blocks that chance may hold."""


def by_chance(verdict: truth.Verdict) -> bool:
    """Whether all that differs are a few blocks that something seems to hold."""
    differing = [*verdict.missed, *verdict.wrong]
    held = all(sentence.endswith(("is called possible", "is called reachable")) for sentence in differing)
    return held and not verdict.false and 0 < len(differing) <= MOST


def _fixed(program: Path) -> bool:
    """Whether it has addresses of its own: e_type is ET_EXEC."""
    with program.open("rb") as file:
        return int.from_bytes(file.read(18)[16:], "little") == 2


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
