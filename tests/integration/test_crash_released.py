"""The finding about a crash in free() or realloc() names the pointer that was passed, and its origin, on x86-64 and on AArch64."""

from __future__ import annotations

import json
import re
from pathlib import Path

import building
import foreign
import foreign_truth
import pytest
import truth
import variants
from debuggers import gdb, lldb, objects, run_cli
from foreign import ARM64
from kernel_cores import run_until_crash

CAUSES = {
    "twice": r"^free\(\) was called with {pointer}: a free .* The block was already free\.",
    "interior": r"^free\(\) was called with {pointer}: 16 bytes into .* at {block} .* from (holder\.data|offset 8 of .* at {holder})",
    "static": r"^free\(\) was called with {pointer}: static_buffer.* No allocator returned this address\.",
    "local": r"^free\(\) was called with {pointer}: stack of thread 1 .* No allocator returned this address\.",
    "loop": r"^free\(\) was called with {pointer}: 16 bytes into .* at {block} ",
    "jumped": r"^free\(\) was called with {pointer}: 16 bytes into .* at {block} ",
    "loaded": r"^free\(\) was called with {pointer}: 16 bytes into .* at {block} .* from (holder\.data|offset 8 of .* at {holder})",
    "grown": r"^realloc\(\) was called with {pointer}: 16 bytes into .* at {block} .* from (holder\.data|offset 8 of .* at {holder})",
}
"""By argument of the program: a pattern of the cause. {NAME} is the value that the program printed."""
CLEARED = "cleared", "emptied"
"""Arguments of the program with which the memory from which the pointer was loaded is changed before the call."""

program = building.fixture("crash_released.c", "-O2", "-g", "-w")


def check(word: str, core: Path, printed: str, *options: str) -> None:
    found = json.loads(run_cli("verdict", "--json", *options, str(core)).stdout)["findings"][0]
    if word in CLEARED:
        assert found["evidence"]["signal"] == "SIGABRT" and not found["evidence"].get("released_pointer"), found["cause"]
        return
    values = dict(re.findall(r"(\w+)=(\S+)", printed))
    assert found["evidence"]["signal"] == "SIGABRT"
    assert re.search(CAUSES[word].format(**values), found["cause"] or ""), (word, found["text"], found["cause"])
    assert found["evidence"]["released_pointer"]["value"] == values["pointer"]


@pytest.mark.platform("x86-64", "pointers passed to free() in crashes")
@pytest.mark.parametrize("word", variants.mark_matrix_except([*CAUSES, *CLEARED], "twice", "interior", "jumped", "loaded", *CLEARED))
def test_pointers(word: str, program: Path, tmp_path: Path) -> None:
    check(word, *run_until_crash([str(program), word], tmp_path))


BUILDS = {
    "-O2": ("bookworm", ("-O2",)),
    "-O0": ("bookworm", ("-O0",)),
    "signed": ("bookworm", ("-O2", "-mbranch-protection=standard")),
    "glibc 2.43": ("sid", ("-O2",)),
}


@pytest.mark.platform("AArch64", "pointers passed to free() in crashes")
@pytest.mark.matrix
@pytest.mark.parametrize("build", BUILDS)
def test_pointers_on_aarch64(build: str, tmp_path: Path) -> None:
    """Unoptimized code computes the address of an array's element from a number of 32 bits, which is not followed."""
    suite, flags = BUILDS[build]
    built = foreign_truth.compile_for_glibc(
        ARM64, suite, truth.PROGRAMS / "crash_released.c", tmp_path / "crash_released", "-g", "-w", *flags
    )
    tree = foreign_truth.tree(ARM64, suite)
    # Without optimization, the pointer is also in a local variable.
    words = CAUSES.keys() - {"loop"} if "-O0" in flags else {*CAUSES, *CLEARED}
    made = foreign.pictures(ARM64, {word: foreign.Program(tree, ("./crash_released", word), (built,)) for word in sorted(words)})
    for word, one in made.items():
        check(word, one.core, (one.core.parent / "stderr").read_text(), "--exe", str(built), "--sysroot", str(tree))


def test_front_ends_agree(program: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(program), "interior"], tmp_path)
    body = json.loads(run_cli("verdict", "--json", str(core)).stdout)
    for other in (gdb(["leaks verdict --json"], str(program), str(core)), lldb(["leaks verdict --json"], str(program), "-c", str(core))):
        assert json.loads(objects(other)[0])["findings"][0]["cause"] == body["findings"][0]["cause"]
