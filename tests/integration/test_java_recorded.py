"""Java frames of the calls that `count` counts and of the blocks that `track` records are those that the JVM lists for the same calls."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import counts
import java_frames
import jvms
import native_calls
import pytest
import tracking
import truth
from native_calls import Calls

ROUNDS, CALLS = 5, 7  # calls in one round, each through another stack
SIZES = "48-72"
QUICK = [(jvms.SYSTEM, "mixed", "track"), (jvms.SYSTEM, "interpreted", "breakpoints")]
EACH = [
    pytest.param(version, mode, way, marks=() if (version, mode, way) in QUICK else pytest.mark.matrix, id=f"{version}-{mode}-{way}")
    for version in java_frames.VERSIONS
    for mode in java_frames.MODES
    for way in native_calls.WAYS
]
Stacks = Counter[tuple[tuple[str, str, int], ...]]


@contextmanager
def calling(version: str, folder: Path, program: str, *words: str, options: tuple[str, ...] = ()) -> Iterator[Calls]:
    jvms.compile_java(truth.PROGRAMS / f"{program}.java", folder, "--release", "8")
    headers, library = jvms.jdk() / "include", folder / "calls.so"
    command = ["gcc", *jvms.FLAGS, "-I", headers, "-I", headers / "linux", "-o", library, truth.PROGRAMS / "java_native_calls.c"]
    subprocess.run([str(word) for word in command], check=True)
    calls = Calls(jvms.command(version, folder, program, str(library), *words, options=options), library)
    try:
        yield calls
    finally:
        calls.end()


def parse_stacks(text: str) -> Stacks:
    """Return the stacks that the program prints after a round, with the number of calls in all rounds."""
    found: Stacks = Counter()
    for part in text.split("calls ")[1:]:
        count, rest = part.split("\n", 1)
        (frames,) = java_frames.parse_printed(f"thread calls\n{rest}").values()
        found[tuple(frames)] += int(count)
    return found


def list_java_frames(stacks: Sequence[Mapping[str, Any]], amounts: Sequence[int]) -> Stacks:
    """Return the Java frames that called the function, without the native method."""
    found: Stacks = Counter()
    for stack, amount in zip(stacks, amounts):
        frames = [(one["function"], one.get("file") or "", one.get("line") or 0) for one in stack["frames"] if one.get("kind") == "Java"]
        if frames and frames[0][0] == "JavaNativeCalls.probe":
            assert stack["complete"], stack
            found[tuple(one for one in frames[1:] if not java_frames.is_hidden(one[0]))] += amount
    return found


LLDB = ("-o", "process handle SIGSEGV --stop false --notify false --pass true")
"""The JVM handles some SIGSEGV itself. The command line makes GDB pass them on; in LLDB, the user does."""


@pytest.mark.parametrize(("version", "mode", "way"), EACH)
def test_frames_of_recorded_calls(version: str, mode: str, way: str, tmp_path: Path) -> None:
    warm_up, *options = map(str, java_frames.MODES[mode])
    with calling(version, tmp_path, "JavaNativeCalls", warm_up, options=("-Xmx64m", *options)) as program:
        made = native_calls.record(program, way, ROUNDS, CALLS, SIZES, *LLDB)
    if way == "track":
        lost = [stack for stack in made.stacks if stack["lost"]["blocks"]]
        # Stale words on stacks may refer to some of the blocks.
        assert 4 * ROUNDS - 4 <= sum(stack["lost"]["blocks"] for stack in lost) <= 4 * ROUNDS
        assert any(frame["function"] == "JavaNativeCalls$Square.area" for stack in lost for frame in stack["frames"])
    found = list_java_frames(made.stacks, made.amounts)
    assert found == parse_stacks(made.printed)
    assert (len(found), found.total()) == (CALLS, ROUNDS * CALLS)


@pytest.mark.matrix
@pytest.mark.parametrize("version", java_frames.VERSIONS)
@pytest.mark.parametrize("options", [(), ("-Xint",), ("-XX:TieredStopAtLevel=1",)])
def test_classes_that_are_unloaded(version: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Code and methods are unloaded, and their addresses are used again. Each name is correct, or the name is missing and the reason is
    given. The blocks of each class have a different size."""
    limits = ("-Xmx64m", "-XX:MaxMetaspaceSize=40m", "-XX:ReservedCodeCacheSize=8m", *options)
    with calling(version, tmp_path, "JavaChangingClasses", "3000", options=limits) as program:
        working = subprocess.run(
            tracking.by_line(program.pid, "--size", "1000-1600", "--for", "8", "--json"), capture_output=True, text=True, check=True
        )
    (report,) = counts.parse_tables(working.stdout)
    named = 0
    for stack in report["stacks"]:
        found = {match[1] for one in stack["frames"] if (match := re.match(r"Work(\d+)\.", one["function"] or ""))}
        blocks, size = stack["allocated"]["blocks"], stack["allocated"]["bytes"]
        for number in found:
            # The number of blocks is a rounded estimate.
            assert len(found) == 1 and abs(size / (1000 + int(number)) - blocks) <= 1, stack
        named += bool(found)
        assert stack["complete"] != bool(stack.get("incomplete"))
        assert found or not stack["complete"] or all(one["function"] != "probed" for one in stack["frames"]), stack
    # If addresses are often reused, findleaks cannot tell whether a method of these classes is an earlier one.
    assert named or options or version != jvms.SYSTEM
    assert any(not stack["complete"] for stack in report["stacks"])
