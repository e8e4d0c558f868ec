"""The recognition of managed heaps that findleaks does not read, by files, symbols and the start of a region."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from findleaks.runtimes.unread_heaps import ANONYMOUS, IN_BLOCKS, owners


def target(*files: str, program: str = "", symbols: tuple[str, ...] = (), starts: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(
        exe_path=program or files[0],
        modules=lambda: [SimpleNamespace(path=file) for file in files],
        regions=lambda: [SimpleNamespace(start=start) for start in starts],
        symbol=lambda name, file: 0x1000 if name in symbols else None,
    )


@pytest.mark.parametrize(
    ("process", "owner"),
    [
        (target("/usr/lib/erlang/erts-13/bin/beam.smp"), "Erlang"),
        (target("/usr/bin/sbcl", "/usr/lib/sbcl/sbcl.core"), "SBCL"),
        (target("/opt/server", symbols=("gc_and_save",)), "SBCL"),
        (target("/usr/bin/racket"), "Racket"),
        (target("/opt/server", "/usr/lib/libdruntime-ldc-shared.so.100"), "D"),
        (target("/opt/server", symbols=("_d_run_main",)), "D"),
        (target("/opt/server", symbols=("hs_init_ghc",)), "Haskell"),
        (target("/opt/stripped", starts=(0x400000, 0x4200000000)), "Haskell"),
        (target("/usr/bin/guile", "/usr/lib/libgc.so.1"), "the Boehm collector"),
    ],
)
def test_heaps_in_mappings(process: Any, owner: str) -> None:
    assert owners(cast(Any, process), ANONYMOUS) == [owner]
    assert owners(cast(Any, process), IN_BLOCKS) == []


def test_the_program_r_owns_its_blocks() -> None:
    assert owners(cast(Any, target("/usr/lib/R/bin/exec/R", "/usr/lib/R/lib/libR.so")), IN_BLOCKS) == ["R"]


def test_a_program_that_embeds_r_has_other_blocks() -> None:
    process = target("/usr/bin/python3", "/usr/lib/R/lib/libR.so", "/opt/Rscripts.so")
    assert owners(cast(Any, process), IN_BLOCKS) == owners(cast(Any, process), ANONYMOUS) == []
