"""`verdict` names the array outside of which a thread accessed memory, and the memory that ends there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import building
import pytest
import variants
from debuggers import run_cli
from kernel_cores import run_until_crash

arrays = building.fixture("crash_arrays.cpp", "-O2", "-g", "-w")
stripped = building.fixture("crash_arrays.cpp", "-O2", "-s", "-w", name="stripped")

# By argument of the program: the end of the cause, as a pattern. {NAME} is a value that the program prints.
CAUSES = {
    "index": r"The array is a reachable 408-byte block.* at {numbers}; the address is 399,999,592 bytes past its end\.",
    "negative": r"The array is a reachable 408-byte block.* at {numbers}; the address is 400,000,000 bytes before its start\.",
    "subtracted": r"The array is a reachable 408-byte block.* at {numbers}; the address is 1,073,741,424 bytes before its start\.",
    "objects": r"The array is 8 bytes into a \w+ 408-byte block, Shape\[10\].* at 0x\w+; the address is 1,599,999,624 bytes past its end\.",
    "variable": r"The array is table \(crash_arrays, data\)\.",
    "vector": r"The array is a reachable 280-byte block, Order\[7\] at {orders}; the address is [\d,]+ bytes past its end\.",
    "local": r"The array is at 0x\w+ \(stack of thread 1 \(tid \d+\), .*\)\.",
    "invalid": r"The array is a reachable 408-byte block.* at {numbers}\.",
    "guard": r"(The address is directly past the end of|The array is) the mapping of 64 KiB at {area}(; the address is directly past.*)?\.",
    "on": r"The address is directly past the end of the mapping of 64 KiB at {area}\.",
    "heap": r"The memory directly before it is glibc, top of main\. Probable cause: a loop ran past the end of a block, .* to the end .*\.",
    # The block had its own mapping, which free() removed. The memory before it has nothing to do with it.
    "unmapped": r"The pointer.*, was loaded from kept \(crash_arrays, data\)\.",
    "signal": r"The stack is in an anonymous mapping {area}-0x\w+ rw-, for example an alternate signal stack\. recurse is on the stack .*",
}


def check(program: Path, word: str, folder: Path, pattern: str) -> None:
    core, printed = run_until_crash([str(program), word], folder)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    values = dict(re.findall(r"(\w+)=(\S+)", printed))
    expected = re.sub(r"\{(\w+)\}", lambda match: re.escape(values[match[1]]) if match[1] in values else match[0], pattern)
    assert re.search(f"(^|\\. ){expected}$", found["cause"]), found["cause"]
    nearby = found["evidence"]["nearby_memory"]
    assert (nearby is None) == (word in ("unmapped", "signal") or not found["cause"])


@pytest.mark.parametrize("word", variants.mark_matrix_except(list(CAUSES), "subtracted", "objects", "vector", "heap", "unmapped", "signal"))
def test_an_access_outside_of_an_array(word: str, arrays: Path, tmp_path: Path) -> None:
    check(arrays, word, tmp_path, CAUSES[word])


@pytest.mark.parametrize("word", variants.mark_matrix_except(("index", "vector", "variable"), "index"))
def test_an_access_outside_of_an_array_of_a_stripped_program(word: str, stripped: Path, tmp_path: Path) -> None:
    texts = {"variable": r"The array is \S+, data\.", "vector": r"The array is a reachable 280-byte block.* at {orders}; the address .*"}
    check(stripped, word, tmp_path, texts.get(word, CAUSES[word]))


@pytest.mark.parametrize(
    "word", variants.mark_matrix_except(("removed", "protected", "readonly", "member", "compared", "distance"), "member", "compared")
)
def test_memory_that_is_not_the_cause(word: str, arrays: Path, tmp_path: Path) -> None:
    """The memory before the address, or the address in one of two registers, has nothing to do with the crash."""
    core, printed = run_until_crash([str(arrays), word], tmp_path)
    evidence = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]["evidence"]
    area = re.findall(r"area=(\S+)", printed)[0]
    nearby = evidence["nearby_memory"]
    # memcmp() read up to the end of this mapping. Which register it increments depends on the processor.
    assert nearby is None or (word in ("compared", "distance") and (nearby["relation"], nearby["start"]) == ("before", area)), nearby
    assert word != "distance" or evidence["fault"] is None
