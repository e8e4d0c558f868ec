"""`verify` finds damage at the place where the program made it, and reports no damage in sound heaps."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import accuracy
import damage
import libcs
import pytest
import truth
from damage import FLAGS, ask, story
from debuggers import findleaks, gdb, lldb, objects, run_cli

import cores

GLIBC, ANY = truth.PROGRAMS / "corrupt_glibc.c", truth.PROGRAMS / "corrupt_any.c"
VICTIMS = ("used", "cached", "fast", "unsorted", "small", "large")

DAMAGE = {
    **{f"overrun {size} text {victim}": "text" for size in (1, 8, 40) for victim in VICTIMS},
    **{f"overrun {size} pointers {victim}": "pointer" for size in (8, 40) for victim in VICTIMS},
    "null": "zeros",
    "underrun 8 text": "text",
    "underrun 8 pointers": "pointer",
    "double": "link",
    "triangle": "link",
    "key": "zeros",
    **{f"uaf 16 text {victim}": "text" for victim in VICTIMS[1:]},
    **{f"uaf 16 pointers {victim}": "pointer" for victim in VICTIMS[1:]},
    **{f"uaf 200 text {victim}": "text" for victim in ("unsorted", "small", "large")},
    "top": "pattern",
    "mapped": "text",
}
"""By kind of damage: the text that findleaks must report as written. It may report the text of links that are not mangled."""

SOME = (
    *("overrun 1 text used", "overrun 8 pointers used", "overrun 40 text small", "overrun 8 text cached", "overrun 1 text large"),
    *("null", "underrun 8 text", "triangle", "key", "uaf 16 text cached", "uaf 16 pointers unsorted", "uaf 16 text fast", "top", "mapped"),
    "uaf 200 text small",
)

Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("corrupt")

    def compile_program(source: Path, libc: str = "") -> Path:
        output = folder / f"{source.stem}{libc}"
        if not output.exists():
            flags = (*accuracy.FLAGS, "-O1") if source == accuracy.SOURCE else FLAGS
            if libc:
                libcs.get(libc).compile(source, output, flags)
            else:
                subprocess.run(["gcc", *flags, "-o", str(output), str(source), "-pthread"], check=True)
        return output

    return compile_program


def check(program: Path, folder: Path, scenario: str, picture: str, thread: bool = False) -> None:
    """Run the program, which damages its heap, and check the output of `verify`."""
    words = [*scenario.split(), *(["-t"] if thread else [])]
    with cores.Running([str(program), *words], folder) as running:
        said = story(running.output)
        target = ["--pid", str(running.pid)] if picture == "live" else [str(running.kernel_core())]
        damage.check(said, scenario, DAMAGE[scenario], *target)


@pytest.mark.platform("x86-64", "heap damage, C++ types, headers")
@pytest.mark.parametrize("scenario", SOME)
def test_damage(build: Build, tmp_path: Path, scenario: str) -> None:
    check(build(GLIBC), tmp_path, scenario, "kernel" if SOME.index(scenario) % 2 else "live")


@pytest.mark.parametrize("scenario", ["overrun 8 text used", "uaf 16 pointers small"])
def test_damage_in_a_thread_arena(build: Build, tmp_path: Path, scenario: str) -> None:
    check(build(GLIBC), tmp_path, scenario, "kernel", thread=True)


@pytest.mark.matrix
@pytest.mark.parametrize("picture", ["kernel", "live"])
@pytest.mark.parametrize("scenario", DAMAGE)
@pytest.mark.parametrize("version", libcs.SUITES)
def test_every_damage_and_libc(build: Build, tmp_path: Path, version: str, scenario: str, picture: str) -> None:
    for thread in (False, *([True] if scenario not in ("top", "mapped") else [])):
        check(build(GLIBC, version), tmp_path / str(thread), scenario, picture, thread)


def check_sound(command: list[str], folder: Path, **environment: str) -> None:
    """Check that `verify` examined all of a healthy program's heap and found no damage."""
    with cores.Running(command, folder, {**os.environ, **environment}) as running:
        reported, status = ask("--pid", str(running.pid))
    assert (status, reported["sound"], reported["problems"]) == (0, True, []), reported["problems"][:3]
    for allocator in reported["allocators"]:
        assert allocator["sound"]
        assert allocator["checked"]["chunk headers"] > 0.9 * allocator["blocks"] > 0  # the other blocks are separate mappings
        assert allocator["checked"]["free-list links"] > 0


@pytest.mark.parametrize("options", ["", "h", "b", "s"], ids=["plain", "further heaps", "break blocked", "foreign sbrk"])
def test_sound_heaps(build: Build, tmp_path: Path, options: str) -> None:
    check_sound([str(build(accuracy.SOURCE)), "9", "10", "1", options], tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("options", ["", "h", "b", "s", "d", "t", "f", "hs"])
@pytest.mark.parametrize(
    "tunables", ["", "tcache_count=0", "tcache_count=2:glibc.malloc.tcache_max=100", "mxfast=0", "perturb=165", "hugetlb=2"]
)
@pytest.mark.parametrize("version", libcs.SUITES)
def test_sound_heaps_of_every_libc(build: Build, tmp_path: Path, version: str, tunables: str, options: str) -> None:
    environment = {"GLIBC_TUNABLES": f"glibc.malloc.{tunables}"} if tunables else {}
    check_sound([str(build(accuracy.SOURCE, version)), "33", "34", "2", options], tmp_path, **environment)


@pytest.mark.parametrize("scenario", ["overrun 64 8 text", "header 64 8 pointers", "uaf 64 16 text", "double 64", "uaf 5000 16 pointers"])
def test_programs_for_any_malloc(build: Build, tmp_path: Path, scenario: str) -> None:
    """Run the programs for any malloc with glibc's malloc. The first problem is in the damaged block, or in the block after the freed
    block."""
    with cores.Running([str(build(ANY)), *scenario.split()], tmp_path) as running:
        said = story(running.output)
        reported, status = ask("--pid", str(running.pid))
    assert status == 1
    damage = [problem for problem in reported["problems"] if problem["corrupt"]]
    if scenario.startswith("double"):
        assert any("freed twice" in problem["what"] for problem in damage)
    else:
        assert said.damage <= int(damage[0]["damaged"]["address"], 16) < said.damage + 16


def test_other_commands_on_a_damaged_heap(build: Build, tmp_path: Path) -> None:
    """`find` continues with what it can read, and marks its result. `whatis` and `blocks` know the neighbouring blocks. `verdict`
    begins with the damage."""
    with cores.Running([str(build(GLIBC)), "overrun", "8", "text", "used"], tmp_path) as running:
        said = story(running.output)
        core = str(running.kernel_core())
    found = json.loads(objects(findleaks("find", "--json", core))[0])
    assert found["trusted"] is False
    assert any("corrupt" in warning and "count as roots" in warning for warning in found["warnings"])
    assert found["next"][0] == "verify"
    first = json.loads(objects(findleaks("verdict", "--json", core))[0])["findings"][0]
    assert (first["finding"], first["next"]) == ("damaged-heap", ["verify"])
    assert f"the block at {said.blocks['before']:#x} was written past its end" in first["text"]
    (answer,) = json.loads(objects(findleaks("whatis", "--json", hex(said.blocks["before"]), core))[0])["answers"]
    assert answer["block"]["state"] == "in-use" and answer["block"]["size"] == 40
    listed = [json.loads(line) for line in objects(findleaks("blocks", "--json", core))]
    behind = [block for block in listed if int(block.get("address", "0"), 16) > said.blocks["victim"]]
    assert len(behind) == 3, "the scan continues after the damage"


@pytest.mark.parametrize("thread", [False, True], ids=["main arena", "thread arena"])
def test_a_block_whose_bit_was_cleared_stays_in_use(build: Build, tmp_path: Path, thread: bool) -> None:
    """The terminating zero of a string is one byte too far, and clears the bit that says that its block is in use. `find` warns, and
    follows the references in the block."""
    with cores.Running([str(build(GLIBC)), "null", *(["-t"] if thread else [])], tmp_path) as running:
        said = story(running.output)
        core = str(running.kernel_core())
    found = json.loads(objects(findleaks("find", "--json", core))[0])
    assert found["trusted"] is False
    assert [warning for warning in found["warnings"] if hex(said.blocks["before"]) in warning and "in no free list" in warning]
    (answer,) = json.loads(objects(findleaks("whatis", "--json", hex(said.blocks["before"]), core))[0])["answers"]
    assert (answer["block"]["state"], answer["block"]["kind"], answer["block"]["size"]) == ("in-use", "reachable", 0xF8)


def test_front_ends_agree(build: Build, tmp_path: Path) -> None:
    program = build(GLIBC)
    with cores.Running([str(program), "uaf", "16", "text", "cached"], tmp_path) as running:
        core = str(running.kernel_core())
    reported = objects(run_cli("verify", "--json", core).stdout)
    assert len(reported) == 1 and json.loads(reported[0])["sound"] is False
    assert objects(gdb(["leaks verify --json"], str(program), core)) == reported
    assert objects(lldb(["leaks verify --json"], str(program), "-c", core)) == reported


def test_truncated_core_is_not_reported_as_sound(build: Build, tmp_path: Path) -> None:
    with cores.Running([str(build(GLIBC)), "none"], tmp_path) as running:
        core = running.kernel_core()
    cut = tmp_path / "cut"
    cut.write_bytes(core.read_bytes()[:-8192])
    reported, status = ask(str(cut))
    assert status == 2 and reported["complete"] is False
    assert not [problem for problem in reported["problems"] if problem["corrupt"]]
