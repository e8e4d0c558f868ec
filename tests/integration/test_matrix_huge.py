"""Large targets: thousands of threads, tens of thousands of mappings, a sparse core of one terabyte, and a core larger than findleaks'
memory limit.

Results are compared with what the program prints. Costs are measured in CPU time, because other work may run at the same time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import building
import pytest
from debuggers import environment

import cores

pytestmark = [pytest.mark.matrix, pytest.mark.slow]

LINEAR = 4.8
"""Maximum factor of the cost if the target is four times as large."""
# The kinds in `blocks` for a word of the program; for all other words, the kind is reachable. A program can compute the address of a part.
KINDS = {"lost": ("definite",), "part": ("reachable", "possible")}


class Answer(NamedTuple):
    output: str
    cpu: float  # seconds
    kib: int  # maximum of resident memory, including pages of the core file


def ask(*words: str, data: int = resource.RLIM_INFINITY) -> Answer:
    """Run findleaks with these arguments. `data` limits its private writable memory, in bytes."""

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))

    child = subprocess.Popen(
        [sys.executable, "-m", "findleaks", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        preexec_fn=set_limit if data >= 0 else None,
    )
    assert child.stdout is not None
    output = child.stdout.read().decode()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, output
    return Answer(output, used.ru_utime + used.ru_stime, used.ru_maxrss)


def build(name: str, folder: Path) -> Path:
    return building.compile_program(folder, f"{name}.c", "-std=gnu11", "-g", "-O1", "-Wl,-z,now", "-pthread")


def core_of(program: Path, folder: Path, *words: str) -> tuple[Path, dict[int, str]]:
    """Return the kernel's core, and what the program printed for each block."""
    with cores.Running([str(program), *words], folder) as running:
        said = {int(address, 16): word for word, address in (line.split() for line in running.output.splitlines() if " " in line)}
        return running.kernel_core(), said


def check(core: Path, said: dict[int, str]) -> None:
    listed = (json.loads(line) for line in ask("blocks", "--json", str(core)).output.splitlines() if line.startswith("{"))
    kinds: dict[int, Any] = {int(block["address"], 16): block.get("kind") for block in listed if "address" in block}
    found = {hex(address): (word, kinds.get(address)) for address, word in said.items()}
    wrong = {address: one for address, one in found.items() if one[1] not in KINDS.get(one[0], ("reachable",))}
    assert said
    assert not wrong, (len(wrong), list(wrong.items())[:8])


def check_linear(few: Path, many: Path, *commands: str) -> None:
    """Check that CPU time minus start-up time grows linearly."""
    empty = ask("--version").cpu
    for command in commands:
        small, large = (ask(*command.split(), str(core)).cpu - empty for core in (few, many))
        assert large <= LINEAR * small, (command, small, large)


def test_ten_thousand_threads(tmp_path: Path) -> None:
    program = build("many_threads", tmp_path)
    few, _ = core_of(program, tmp_path / "few", "2500")
    many, said = core_of(program, tmp_path / "many", "10000")
    check(many, said)
    check_linear(few, many, "find", "stacks", "verdict", "map --json")
    stacks = json.loads(ask("stacks", "--json", str(many)).output)["stacks"]
    assert sorted(stack["count"] for stack in stacks) == [1, 2500, 2500, 5000]
    assert ask("find", str(many)).kib < 500 << 10
    some = next(address for address, word in said.items() if word == "register")
    assert "reachable 200-byte block" in ask("whatis", hex(some), str(many)).output


def test_a_hundred_thousand_mappings(tmp_path: Path) -> None:
    """The number of mappings is a little less than vm.max_map_count (65,530 by default), and at most 100,000."""
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    count = min(100_000, most - 1000) // 8 * 8
    program = build("many_mappings", tmp_path)
    few, _ = core_of(program, tmp_path / "few", str(count // 4))
    many, said = core_of(program, tmp_path / "many", str(count))
    check(many, said)
    check_linear(few, many, "find", "verdict", "map --json")


def test_a_terabyte_of_holes(tmp_path: Path) -> None:
    core, said = core_of(build("sparse", tmp_path), tmp_path / "run", str(256 << 30))
    file = core.stat()
    assert file.st_size > 256 << 30
    assert file.st_blocks * 512 < 64 << 20
    check(core, said)
    for command in ("find", "verdict", "map --json"):
        with open(core, "rb") as cached:
            os.posix_fadvise(cached.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        answer = ask(*command.split(), str(core))
        assert answer.cpu < 10
        assert answer.kib < 200 << 10  # holes were not read ahead


def test_a_core_larger_than_memory(tmp_path: Path) -> None:
    """findleaks reads a core of 1 GB with 300 MB of private memory: the file is mapped, or copied in pieces."""
    core, said = core_of(build("many_blocks", tmp_path), tmp_path / "run", "250000")
    assert core.stat().st_size > 1_000_000_000
    found = json.loads(ask("find", "--json", str(core), data=300 << 20).output)
    lost = sum(found["totals"][kind]["blocks"] for kind in ("definite", "indirect"))
    assert lost == 25_000
    assert said == {}
