"""`verdict` and `triage` report how a process ended, including the messages of the program, glibc and libstdc++."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import building
import pytest
from debuggers import gdb, lldb, objects, run_cli
from kernel_cores import run_until_crash

program = building.fixture("crashes.cpp", "-std=c++17", "-O1", "-g", "-w", "-D_GLIBCXX_ASSERTIONS")


def crash(core: Path) -> dict[str, Any]:
    """Return the first finding of `verdict`."""
    done = run_cli("verdict", "--json", str(core))
    found = json.loads(done.stdout)["findings"][0]
    assert found["finding"] == "crash", found
    return dict(found)


@pytest.mark.parametrize("word", ["double", "overrun", "assert"])
def test_messages_of_glibc(word: str, program: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(program), word], tmp_path)
    found = crash(core)
    assert found["evidence"]["signal"] == "SIGABRT"
    assert found["evidence"]["message"] == printed.strip() != ""
    assert printed.strip().rstrip(".") in found["text"]
    assert found["evidence"]["function"].startswith("parse_header")


def test_assertions_of_libstdcxx(program: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(program), "index"], tmp_path)
    match = re.fullmatch(r"(.*:\d+): (.*): (Assertion '.*' failed)\.\n", printed)
    assert match is not None, printed
    found = crash(core)
    assert found["evidence"]["message"] == f"{match[1]}: {match[3]} in {match[2]}"
    assert found["evidence"]["function"].startswith("parse_header")


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("throw", "no route to host 17"),
        ("rethrown", "no route to host 23"),
        ("nested", "cannot read the table"),
        ("circle", "cannot read the table"),
        ("number", ""),
        ("string", "a plain text"),
        ("object", "an object of class string"),
    ],
)
def test_exceptions(word: str, what: str, program: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(program), word], tmp_path)
    match = re.search("throwing an instance of '(.*)'", printed)
    assert match is not None
    assert word in ("string", "object") or what in printed  # libstdc++ prints text only for a std::exception
    found = crash(core)
    assert found["evidence"]["exception"] == {"type": match[1], "what": what}
    inner = [{"type": "Refused", "what": "no route to host 17"}] if word == "nested" else []
    assert found["evidence"]["nested_exceptions"] == inner
    if inner:  # the program contains its own copy of std::throw_with_nested
        assert found["evidence"]["function"].startswith("parse_header")
        assert found["cause"] == "It contains Refused: no route to host 17."


unoptimized = building.fixture("crashes.cpp", "-std=c++17", "-O0", "-w", name="unoptimized")


@pytest.mark.parametrize("word", ["literal", "member", "array"])
def test_exceptions_whose_class_has_its_own_text(word: str, program: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(program), word], tmp_path)
    match = re.search(r"what\(\): +(.*)", printed)
    assert match is not None
    assert crash(core)["evidence"]["exception"] == {"type": word.title(), "what": match[1]}


@pytest.mark.parametrize("word", ["literal", "composed"])
def test_the_text_of_a_base_class_is_not_reported(word: str, unoptimized: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(unoptimized), word], tmp_path)
    assert "the text of the base" in printed or word == "literal"
    found = crash(core)["evidence"]["exception"]
    assert found == {"type": word.title(), "what": "a literal text" if word == "literal" else ""}


@pytest.mark.parametrize("word", ["virtual", "thread"])
def test_termination_without_an_exception(word: str, program: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(program), word], tmp_path)
    assert crash(core)["evidence"]["message"] == printed.splitlines()[0] != ""


PLACES = {
    "null": (r"it used a null pointer\.", 0),
    "call": (r"in parse_header \(crashes\): it called a null pointer\.", 0),
    "data": (r"in parse_header \(crashes\): it called address 0x[0-9a-f]+, which is not executable\.", None),
    "field": (r"address 0x18, an offset from a null pointer\.", 0x18),
    "wild": (r"address 0x123456789000, which is not mapped\.", 0x123456789000),
    "noncanonical": (r"it used 0x8123456789abcdef as a pointer, which is not a valid address\.", None),
    "readonly": (r"address 0x[0-9a-f]+, which is read-only\.", None),
    "deep": (r"address 0x[0-9a-f]+, just below its stack pointer: the stack overflowed\.", None),
}


@pytest.mark.parametrize("word", PLACES)
def test_faults(word: str, program: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(program), word], tmp_path)
    found, (text, address) = crash(core), PLACES[word]
    assert re.search(text, found["text"]), found
    assert found["evidence"]["signal"] == "SIGSEGV"
    assert found["evidence"]["function"].startswith("deeper" if word == "deep" else "parse_header")
    assert (found["evidence"]["address"] is None) == (word == "noncanonical")
    assert address is None or int(found["evidence"]["address"], 16) == address


def test_handler_that_aborts(program: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(program), "handled"], tmp_path)
    found = crash(core)
    assert re.search(r"SIGSEGV in parse_header .* address 0x30, an offset from a null pointer\.", found["text"]), found
    assert re.fullmatch(r"The null pointer.* kept\[60\] .* The handler of SIGSEGV ended the process with abort\(\)\.", found["cause"])
    assert (found["evidence"]["signal"], found["evidence"]["address"], found["evidence"]["handler_aborted"]) == ("SIGSEGV", "0x30", True)


def test_damage_is_explained(program: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(program), "overrun"], tmp_path / "overrun")
    found = crash(core)
    assert found["evidence"]["damaged_places"] == 1
    assert "was written past its end" in found["cause"]
    assert found["next"] == ["verify", "stacks"]
    core, printed = run_until_crash([str(program), "release"], tmp_path / "release")
    found = crash(core)
    assert found["cause"].endswith("Probable cause: a reference count in the block was decremented after the block was freed.")
    assert printed == "" and found["evidence"]["message"] is None


def test_no_thread_has_the_stack_of_another(program: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(program), "deep-thread"], tmp_path)
    text = " ".join(run_cli("verdict", str(core)).stdout.split())
    assert "ended with SIGSEGV in deeper (crashes): it accessed" in text and "just below its stack pointer: the stack overflowed." in text
    assert re.search(r"The stack of thread \d+ takes 8\.\d MiB, .* Of its innermost 4,096 frames, 4,09\d are frames of deeper\.", text), (
        text
    )
    assert "threads run" not in text


def test_a_deleted_object_is_named(program: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(program), "deleted"], tmp_path)
    found, session = crash(core), printed.split()[-1]
    assert found["evidence"]["freed_object"]["address"] == session
    assert f"used after it was freed. The address is 8 more than the first word of the free block of 72 B at {session}" in found["cause"]


def test_text_that_was_not_written(program: Path, tmp_path: Path) -> None:
    """stdout is a file, so stdio collects what the program prints to it. The program also printed to four other files."""
    with open(tmp_path / "output", "w") as output:
        core, _ = run_until_crash(["sh", "-c", f"exec {program} printed >> {output.name}"], tmp_path / "run")
    assert not (tmp_path / "output").read_text()
    notes = json.loads(run_cli("verdict", "--json", str(core)).stdout)["notes"]
    texts = [one for one in notes if "written" in one]
    assert texts[0] == 'The last 16 B that the process printed to stdout were not written: "reading table 7"', notes
    pattern = r'The last 24 B that the process printed to file descriptor \d+ were not written: "accepted the connection"'
    assert [bool(re.fullmatch(pattern, one)) for one in texts[1:]] == [True, True, False], notes
    assert texts[3] == "Text that the process printed to 2 other files was not written either"


ENDS = [("abort", "abort() and left no message in memory"), ("bare", "std::terminate(), which called abort()")]


@pytest.mark.parametrize(("word", "note"), ENDS)
def test_abort_alone_is_no_finding(word: str, note: str, program: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(program), word], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)
    assert [one["finding"] for one in found["findings"]] == ["nothing-lost"]
    assert found["notes"][0].endswith(f", which called {note}")


def test_stripped_and_in_each_front_end(program: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", str(stripped), str(program)], check=True)
    core, _ = run_until_crash([str(stripped), "throw"], tmp_path / "run")
    found = crash(core)
    assert found["evidence"]["exception"] == {"type": "Refused", "what": "no route to host 17"}
    assert found["evidence"]["module"] == "stripped"
    for other in (gdb(["leaks verdict --json"], str(stripped), str(core)), lldb(["leaks verdict --json"], str(stripped), "-c", str(core))):
        assert json.loads(objects(other)[0])["findings"][0] == found


def test_triage_puts_the_crash_first(program: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(program), "double"], tmp_path)
    row = json.loads(run_cli("triage", "--json", str(core)).stdout.splitlines()[0])
    assert row["findings"][0]["kind"] == "crash"
    assert printed.strip() in row["findings"][0]["title"]
