"""Dead registers in AArch64 cores are not references. Blocks to which live registers refer are reachable."""

from __future__ import annotations

import json
import subprocess

import foreign
import foreign_truth
import pytest
import truth
from debuggers import GDB_LOADER, PATIENCE, environment, findleaks, lldb, objects, run_cli
from foreign import ARM64, Picture

pytestmark = pytest.mark.matrix

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-Wl,-z,now")
"""Symbols are bound at start. Otherwise ld.so would overwrite registers when a function is first called."""
BUILDS = {
    "plain": ("bookworm", ()),
    "optimized": ("trixie", ("-O2",)),
    "signed": ("bookworm", ("-O1", "-mbranch-protection=standard")),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Picture, list[str]]]:
    """Return by build the core with the program's output, and the options that name its files."""
    folder, programs = tmp_path_factory.mktemp("programs"), {}
    for name, (suite, flags) in BUILDS.items():
        built = foreign_truth.compile_for_glibc(ARM64, suite, truth.PROGRAMS / "leftovers_aarch64.c", folder / name, *FLAGS, *flags)
        programs[name] = foreign.Program(foreign_truth.tree(ARM64, suite), (f"./{name}",), (built,))
    found = foreign.pictures(ARM64, programs)
    return {name: (one, ["--exe", str(folder / name), "--sysroot", str(one.root)]) for name, one in found.items()}


def read_truth(picture: Picture) -> dict[int, str]:
    return {int(address, 16): word for word, address in (line.split() for line in picture.output.splitlines() if " " in line)}


@pytest.mark.platform("AArch64", "dead registers")
@pytest.mark.parametrize("build", BUILDS)
def test_dead_registers_are_no_references(made: dict[str, tuple[Picture, list[str]]], build: str) -> None:
    """Threads in pause(), in their own read() and futex(), and in a function that a signal interrupted."""
    picture, files = made[build]
    wanted = read_truth(picture)
    blocks, warnings = truth.ask(*files, str(picture.core))
    kinds = {int(block["address"], 16): block["kind"] for block in blocks if block["state"] == "in-use"}
    found = {address: {"reachable": "held", "definite": "lost"}.get(kinds[address], kinds[address]) for address in wanted}
    assert found == wanted, {hex(address): (word, found[address]) for address, word in wanted.items() if found[address] != word}
    assert list(wanted.values()).count("lost") == 39 + 15 + 6 + 8
    assert list(wanted.values()).count("held") == 4 * 4
    assert warnings == []


def test_refs_name_dead_registers(made: dict[str, tuple[Picture, list[str]]]) -> None:
    """`refs` names dead registers: those of a thread, and those that the kernel saved when a signal interrupted a function."""
    picture, files = made["plain"]
    lost = [hex(address) for address, word in read_truth(picture).items() if word == "lost"]

    def refs(address: str) -> dict:
        return json.loads(run_cli("refs", "--json", address, *files, str(picture.core), check=True).stdout)

    vector, saved = refs(lost[1]), refs(lost[39 + 15 + 6])
    assert vector["live"] == saved["live"] == 0
    assert {(one["register"], one["why"]) for one in vector["references"] if "register" in one} == {("v1", "not read again")}
    assert "dead register v1" in run_cli("refs", lost[1], *files, str(picture.core), check=True).stdout
    (why,) = {one["why"] for one in saved["references"] if "why" in one}
    assert why.startswith("x1 of thread 4 (tid ")
    assert why.endswith("), saved at a signal, not read again")


@pytest.mark.parametrize("front_end", ["gdb", "lldb"])
def test_debuggers_agree(made: dict[str, tuple[Picture, list[str]]], front_end: str) -> None:
    picture, files = made["plain"]
    some = [hex(address) for address in read_truth(picture)][::7]
    questions = [["blocks"], *(["refs", address] for address in some)]
    expected = [line for words in questions for line in objects(findleaks(words[0], "--json", *words[1:], *files, str(picture.core)))]
    typed = [" ".join(["leaks", words[0], "--json", *words[1:]]) for words in questions]
    if front_end == "gdb":
        command = ["gdb-multiarch", "-nx", "-batch", "-ex", f"source {GDB_LOADER}", "-ex", f"set sysroot {picture.root}"]
        command += ["-ex", f"file {files[1]}", "-ex", f"core-file {picture.core}"]
        for words in typed:
            command += ["-ex", words]
        answered = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment()).stdout
    else:
        answered = lldb(typed, "-O", f"platform select --sysroot {picture.root} remote-linux", files[1], "-c", str(picture.core))
    assert objects(answered) == expected
