"""Go on AArch64, in cores of an emulated machine (tests/support/foreign.py): the results agree with what the programs print."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import foreign
import foreign_truth
import pytest
from debuggers import findleaks
from foreign import ARM64
from foreign_runtimes import VARIABLES
from go_programs import STRIPPED, VERSIONS, build, main_frame
from go_truth import (
    COUNT,
    addresses,
    are_live,
    check_interrupted,
    check_objects,
    check_plugin,
    check_roots,
    compare,
    is_garbage,
    read_objects,
    sparse_map,
)

pytestmark = pytest.mark.matrix


def picture(program: Path, *words: str, files: tuple[Path, ...] = ()) -> foreign.Picture:
    tree = foreign_truth.tree(ARM64, "bookworm")
    command = (f"./{program.name}", *words)
    return foreign.picture(ARM64, foreign.Program(tree, command, (program, *files), {**VARIABLES, "GOTRACEBACK": "crash"}))


def is_typed(version: str) -> bool:
    """Return whether objects of this Go have headers (since 1.22)."""
    return not version or tuple(map(int, version.split(".")[:2])) >= (1, 22)


@pytest.mark.platform("AArch64", "Go")
@pytest.mark.parametrize("flags", [(STRIPPED,), (STRIPPED, "-buildmode=pie"), ()], ids=["stripped", "pie", "symbols"])
@pytest.mark.parametrize("version", ["", *VERSIONS])
def test_goroutines_counters_and_objects(version: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """The goroutines equal those that pprof lists, the counters equal those of runtime.MemStats, and the program prints the same numbers of
    objects."""
    program = build(tmp_path, version, *flags, machine="arm64")
    made = picture(program, str(COUNT), "goroutines")
    where = ("--exe", str(program), str(made.core))
    # Before the core is written, Go prints the stacks of all goroutines, and allocates memory to do it.
    compare(made.output, made.core.parent / "goroutines", *where, slack=1 << 20)
    sparse_map(*where)
    if is_typed(version):
        check_objects(addresses(made.output), *where)
    if is_typed(version) and flags:  # with symbols, variables have other names
        check_roots(addresses(made.output), *where)


@pytest.mark.platform("AArch64", "Go")
@pytest.mark.parametrize("version", ["", *VERSIONS])
def test_functions_that_were_interrupted(version: str, tmp_path: Path) -> None:
    program = build(tmp_path, version, STRIPPED, name="go_interrupted", machine="arm64")
    made = picture(program)
    check_interrupted((made.core.parent / "stderr").read_text(), version, "--exe", str(program), str(made.core))


@pytest.mark.platform("AArch64", "Go")
@pytest.mark.parametrize("version", ["", *VERSIONS])
def test_thread_with_functions_of_c_and_go(version: str, tmp_path: Path) -> None:
    """Go calls C, C calls Go, and this Go function calls C."""
    program = build(tmp_path, version, STRIPPED, name="go_callbacks", cgo=True, machine="arm64")
    made = picture(program)
    found = json.loads(findleaks("stacks", "--json", "--exe", str(program), "--sysroot", str(made.root), str(made.core)))["stacks"]
    stacks = [[frame["function"] or "" for frame in one["frames"]] for one in found]
    (names,) = (one for one in stacks if "main.enter" in one)
    own = [re.sub("_[0-9a-f]{12}_", "_", name) for name in names if name.startswith(("main.", "_cgoexp_", "pause"))]
    assert own == [
        "pause",
        "main._Cfunc_inner",
        "main.enter",
        "main.callback",
        "_cgoexp_callback",
        "main._Cfunc_outer",
        "main.main",
    ]
    assert names[-1] == "runtime.goexit"
    threads = [one for one in stacks if "start_thread" in one]
    assert threads and all("runtime.mstart" in one for one in threads)


@pytest.mark.platform("AArch64", "Go")
@pytest.mark.parametrize("version", ["", "1.21.13", "1.27.4"])
def test_plugins(version: str, tmp_path: Path) -> None:
    """A plugin has functions, types and variables of its own. Its file is found in the folder that --sysroot names."""
    plugin = build(tmp_path, version, "-buildmode=plugin", STRIPPED, name="go_plugin", cgo=True, machine="arm64")
    host = build(tmp_path, version, STRIPPED, name="go_plugin_host", cgo=True, machine="arm64")
    made = picture(host, f"./{plugin.name}", str(COUNT), "goroutines", files=(plugin,))
    folder = tmp_path / "root" / "programs" / "program"  # the folder in which the machine runs programs
    folder.mkdir(parents=True)
    shutil.copy(plugin, folder)
    where = ("--exe", str(host), "--sysroot", str(tmp_path / "root"), str(made.core))
    check_plugin(made.output, made.core.parent / "goroutines", *where)


@pytest.mark.platform("AArch64", "Go")
@pytest.mark.parametrize("kind", ["load", "open"])
def test_goroutines_that_wait_for_a_function(kind: str, tmp_path: Path) -> None:
    """On this machine, the holders of mutexes are unknown, but not the goroutine that executes the function of a sync.Once."""
    program = build(tmp_path, "", STRIPPED, name="go_once", machine="arm64")
    made = picture(program, kind, "20" if kind == "open" else "120")
    found = json.loads(findleaks("verdict", "--json", "--exe", str(program), str(made.core)))["findings"]
    (one,) = (one for one in found if one["finding"] == "goroutines")
    assert "sync.Once.Do" in one["text"] and " called Do of " in one["cause"]
    assert one["evidence"]["deadlocked"] == (20 if kind == "open" else 0)


@pytest.mark.platform("AArch64", "Go")
@pytest.mark.parametrize("version", ["", *VERSIONS])
def test_goroutines_that_are_blocked_for_good(version: str, tmp_path: Path) -> None:
    program = build(tmp_path, version, STRIPPED, name="go_blocked", machine="arm64")
    made = picture(program)
    found = json.loads(findleaks("verdict", "--json", "--exe", str(program), str(made.core)))["findings"]
    groups = [one["evidence"] for one in found if one["finding"] == "goroutines"]
    assert len(groups) == 3 and all(one["function"].startswith("main.never") and one["blocked_for_good"] >= 18 for one in groups)


@pytest.mark.platform("AArch64", "Go")
@pytest.mark.parametrize("version", ["", *VERSIONS])
def test_objects_that_only_stacks_refer_to(version: str, tmp_path: Path) -> None:
    """An object is garbage if the function whose frame refers to it does not use it again. On x86-64, test_go_stack_maps.py compares this
    with Go's collector."""
    program = build(tmp_path, version, STRIPPED, name="go_stack_maps", machine="arm64")
    made = picture(program, "20", "2000")
    objects = read_objects(made.output)
    live = are_live(objects, "--exe", str(program), str(made.core))
    assert len(objects) == 50 * 20 + 1
    assert {kind for address, (_, kind) in objects.items() if live[address] == is_garbage(kind)} == set()


@pytest.mark.platform("AArch64", "Go")
@pytest.mark.parametrize("word", ["text", "error", "index", "nil", "null", "deadlock", "unlock", "maps"])
def test_messages_of_panics_and_fatal_errors(word: str, tmp_path: Path) -> None:
    program = build(tmp_path, "", STRIPPED, name="panics", machine="arm64")
    made = picture(program, word)
    printed = (made.core.parent / "stderr").read_text()
    line = next(line for line in printed.splitlines() if line.startswith(("panic: ", "fatal error: ")))
    found = json.loads(findleaks("verdict", "--json", "--exe", str(program), str(made.core)))["findings"][0]
    assert (found["finding"], found["evidence"]["message"]) == ("crash", line.removesuffix(" [recovered]"))
    function, file, number = main_frame(printed)
    assert found["evidence"]["managed_frame"] == {"kind": "Go", "function": function, "file": file, "line": number}
