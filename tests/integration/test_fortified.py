"""`verdict` names the function whose check of _FORTIFY_SOURCE failed, and describes faults of small pointers and large indices."""

from __future__ import annotations

import json
from pathlib import Path

import building
import pytest
from debuggers import run_cli
from kernel_cores import run_until_crash

program = building.fixture("fortified.c", "-O2", "-w", "-s", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fno-builtin-calloc")
without_plt = building.fixture("fortified.c", "-O2", "-w", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fno-plt", name="without_plt")


def check(program: Path, function: str, folder: Path) -> None:
    core, _ = run_until_crash([str(program), function], folder)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["evidence"]["message"] == "*** buffer overflow detected ***: terminated"
    assert found["evidence"]["fortified_function"] == function
    assert f"{function}() detected this: its buffer is too small." in found["cause"]


# glibc's __memcpy_chk and __memset_chk jump to __chk_fail, so they have no frame.
@pytest.mark.parametrize(
    "function", ["memcpy", "sprintf", pytest.param("memset", marks=pytest.mark.matrix), pytest.param("read", marks=pytest.mark.matrix)]
)
def test_the_function_that_checked(function: str, program: Path, tmp_path: Path) -> None:
    check(program, function, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("function", ["memcpy", "sprintf", "memset", "read"])
def test_calls_through_the_global_offset_table(function: str, without_plt: Path, tmp_path: Path) -> None:
    check(without_plt, function, tmp_path)


def test_memory_that_calloc_refused(without_plt: Path, tmp_path: Path) -> None:
    """`verdict` prints the public name of the function, not the name in glibc's source."""
    core, _ = run_until_crash([str(without_plt), "calloc"], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["text"].endswith("it accessed address 0x8, an offset from a null pointer.")
    assert found["cause"].endswith("is the result of calloc().")


@pytest.mark.parametrize(
    ("word", "end", "cause"),
    [
        ("small", "it accessed address 0x64, probably an offset from a null pointer.", ""),
        ("index", ", which is not mapped.", " is 26,843,545,600."),
    ],
)
def test_values_of_pointers_and_indices(word: str, end: str, cause: str, program: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(program), word], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["text"].endswith(end)
    assert cause in (found["cause"] or "")
