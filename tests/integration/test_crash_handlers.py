"""The cause of a crash is reported if a handler sends the signal again, and if seccomp refuses a system call."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import building
import pytest
from debuggers import gdb, lldb, objects, run_cli
from kernel_cores import run_until_crash

_WORDS = ("-g", "-w", "-pthread", "-fcf-protection=none")
program = building.fixture("crash_handlers.c", "-O2", *_WORDS)
unoptimized = building.fixture("crash_handlers.c", "-O0", *_WORDS, name="unoptimized")

AGAIN = "sent the signal again."
ABORTED = "ended the process with abort()."
_NULL = r"loaded from (session\.next, at )?offset 8 of .* at {session}\."

# By argument of the program: the signal, the end of the text, and patterns of the cause
CAUSES = {
    "raise": ("SIGSEGV", "in read_next ({program}): it used a null pointer.", _NULL, AGAIN),
    "nodefer": ("SIGSEGV", "in read_next ({program}): it used a null pointer.", _NULL, AGAIN),
    "kill": ("SIGSEGV", "in read_next ({program}): it used a null pointer.", _NULL, AGAIN),
    "thread": ("SIGSEGV", "in read_next ({program}): it used a null pointer.", _NULL, AGAIN),
    "call": ("SIGSEGV", "in close_session ({program}): it called a null pointer.", r"offset 16 of .* at {session}\.", AGAIN),
    "division": ("SIGFPE", "in divide ({program}): it divided an integer by zero.", "loaded from divisor", AGAIN),
    "other": (
        "SIGFPE",
        "in divide ({program}): it divided an integer by zero.",
        "loaded from divisor",
        "The handler of SIGFPE sent SIGSEGV.",
    ),
    "trap": ("SIGILL", "in main ({program}): it reached a trap instruction (ud2).", "__builtin_trap", AGAIN),
    "deep": ("SIGSEGV", "just below its stack pointer: the stack overflowed.", "^recurse is on the stack", AGAIN),
    "sent": ("SIGSEGV", "it sent the signal to itself, as raise() does.", "", ""),
    "refused": ("SIGSYS", "it made system call {call} in getppid(), which a seccomp filter refused.", "", ""),
    "killed": ("SIGSYS", "it made system call {call} in getppid(), which a seccomp filter refused.", "", ""),
    "refused-handled": ("SIGSYS", "it made system call {call} in getppid(), which a seccomp filter refused.", "", ABORTED),
}
_SLOW = ("nodefer", "trap", "deep", "killed", "thread")  # the test of front ends uses "thread"


def check(program: Path, word: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    core, text = run_until_crash([str(program), word], folder)
    printed = {**dict(re.findall(r"(\w+)=(\S+)", text)), "program": program.name}
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    signal, end, cause, handler = CAUSES[word]
    assert found["finding"] == "crash" and found["evidence"]["signal"] == signal
    assert found["text"].endswith(end.format(**printed)), found["text"]
    assert re.search(re.sub(r"\{(\w+)\}", lambda match: printed[match[1]], cause), found["cause"] or ""), found["cause"]
    assert (found["cause"] or "").endswith(handler)
    assert found["evidence"]["handler_sent_again"] == (handler == AGAIN)
    return core, dict(found)


@pytest.mark.parametrize("word", [word for word in CAUSES if word not in _SLOW])
def test_causes(word: str, program: Path, tmp_path: Path) -> None:
    check(program, word, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("word", _SLOW)
def test_further_causes(word: str, program: Path, tmp_path: Path) -> None:
    check(program, word, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("word", CAUSES)
def test_causes_in_unoptimized_code(word: str, unoptimized: Path, tmp_path: Path) -> None:
    check(unoptimized, word, tmp_path)


_OWN = "The process did not crash: it sent SIGSEGV to itself, as kill() and raise() do."


@pytest.mark.parametrize(
    ("word", "note"),
    [
        ("sent-kill", _OWN),
        ("sent-lea", _OWN),
        ("file-size", "The kernel sent SIGXFSZ: a limit of the size of a file (RLIMIT_FSIZE) was exceeded"),
    ],
)
def test_a_signal_without_a_fault_is_no_crash(word: str, note: str, program: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(program), word], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)
    assert [one["finding"] for one in found["findings"]] == ["nothing-lost"]
    assert found["notes"][0].startswith(note)


def test_each_front_end(program: Path, tmp_path: Path) -> None:
    core, found = check(program, "thread", tmp_path)
    for other in (gdb(["leaks verdict --json"], str(program), str(core)), lldb(["leaks verdict --json"], str(program), "-c", str(core))):
        assert json.loads(objects(other)[0])["findings"][0] == found
