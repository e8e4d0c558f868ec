"""The finding about a crash names the origin of the pointer that a loop, a call or an index used, on x86-64 and on AArch64."""

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
from debuggers import run_cli
from foreign import ARM64
from kernel_cores import run_until_crash

program = building.fixture("crash_pointers.c", "-O2", "-g", "-fcf-protection=none")

# By argument of the program: a pattern of the cause. {client} and {numbers} are the addresses that the program prints.
CAUSES = {
    "member": r"was loaded from client\.name, at offset 8 of a reachable .*block, struct client at {client}\.$",
    "list": r'(loaded from|only one word has this value:) client\.next, at offset 16 of .* at {client}\. .* the text "GET /ind"\.$',
    "called": r"^The null pointer.* was loaded from client\.close, at offset 24 of a reachable .*block, struct client at {client}\.$",
    "table": r"^The null pointer.* was loaded from table\[5\] \(crash_pointers, data\)\.$",
    "result": r"^The null pointer, in \w+, is the result of find_client(\.\w+)*\(\)\.$",
    "variable": r"^The null pointer, in \w+, is the result of getenv\(\)\.$",
    "index": r"^The index, in \w+, is 50,000,002\. .*The array is a reachable 408-byte block.* at {numbers}; .* bytes past its end\.$",
    "negative": r"^The index, in \w+, is -2,000,000,002\. .*The array is a reachable 408-byte block.* at {numbers}; .* before its start\.$",
    "passed": r"^The null pointer.* was loaded from client\.name, at offset 8 of a reachable .*block, struct client at {client}\.$",
    # findleaks does not say that the block was used after it was freed.
    "consumed": r"(loaded from|only one word has this value:) .*offset 16 of a cached \d+-byte block at {client}\.$",
    # glibc wrote the same word into two blocks. A register still points to the one that was not used.
    "linked": r"glibc writes into blocks when they are freed: 2 free blocks contain it\. Probable cause: .* after it was freed\.$",
    "failed": "^(?!.*only one word)",
    "sized": "^(?!.*only one word)",
    "trap": r"^Compilers generate trap instructions for ",
}


def check(word: str, core: Path, printed: str, *options: str) -> None:
    found = json.loads(run_cli("verdict", "--json", *options, str(core)).stdout)["findings"][0]
    values = dict(re.findall(r"(\w+)=(\S+)", printed))
    assert re.search(CAUSES[word].format(**values), found["cause"] or ""), (word, found["text"], found["cause"])


@pytest.mark.platform("x86-64", "origins of pointers in crashes")
@pytest.mark.parametrize("word", variants.mark_matrix_except(list(CAUSES), "member", "list", "consumed", "linked", "failed", "sized"))
def test_pointers(word: str, program: Path, tmp_path: Path) -> None:
    check(word, *run_until_crash([str(program), word], tmp_path))


@pytest.mark.platform("AArch64", "origins of pointers in crashes")
@pytest.mark.matrix
@pytest.mark.parametrize("flags", [("-O2",), ("-O2", "-mbranch-protection=standard")], ids=["plain", "signed"])
def test_pointers_of_aarch64(flags: tuple[str, ...], tmp_path: Path) -> None:
    built = foreign_truth.compile_for_glibc(
        ARM64, "bookworm", truth.PROGRAMS / "crash_pointers.c", tmp_path / "crash_pointers", "-g", *flags
    )
    tree = foreign_truth.tree(ARM64, "bookworm")
    made = foreign.pictures(ARM64, {word: foreign.Program(tree, ("./crash_pointers", word), (built,)) for word in CAUSES})
    for word, one in made.items():
        check(word, one.core, (one.core.parent / "stderr").read_text(), "--exe", str(built), "--sysroot", str(tree))
