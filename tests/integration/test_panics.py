"""`verdict` and `triage` print the final message of Rust, Go and Python as the runtime printed it, also for stripped programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import mallocs_python
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli
from go_programs import STRIPPED, VERSIONS, build, main_frame
from kernel_cores import run_until_crash
from variants import mark_matrix_except


def crash(core: Path) -> dict[str, Any]:
    """Return the first finding of `verdict`."""
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["finding"] == "crash", found
    return dict(found)


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the programs `plain` and `stripped`."""
    folder, rustc = tmp_path_factory.mktemp("panics"), shutil.which("rustc")
    assert rustc is not None, "rustc comes with cargo: apt-get install cargo"
    source = str(truth.PROGRAMS / "panics.rs")
    subprocess.run([rustc, "--edition=2021", "-O", "-Cpanic=abort", source, "-o", folder / "plain"], check=True)
    subprocess.run(["strip", "-o", folder / "stripped", folder / "plain"], check=True)
    subprocess.run([rustc, "--edition=2021", "-O", source, "-o", folder / "unwinding"], check=True)
    return folder


def printed_by_rust(text: str) -> list[tuple[str, str]]:
    """Return the place and message of each panic in Rust's output."""
    return re.findall(r"panicked at ([^\n]*):\n([^\n]*)", text)


@pytest.mark.parametrize("word", ["index", "expect", "format", "static", "unwrap", "long"])
def test_rust_panics(word: str, rust: Path, tmp_path: Path) -> None:
    for name in ("plain", "stripped"):
        core, printed = run_until_crash(["env", "RUST_BACKTRACE=0", str(rust / name), word], tmp_path / name)
        ((place, message),) = printed_by_rust(printed)
        found = crash(core)
        assert found["evidence"]["panic"] == {"message": message.strip() if word != "long" else message, "place": place, "earlier": []}
        assert f"after a panic at {place}: {message[:100]}" in found["text"]
        assert (found["evidence"]["function"] or "").startswith("panics::parse") == (name == "plain")


def test_rust_without_memory(rust: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash(["env", "RUST_BACKTRACE=0", str(rust / "plain"), "memory"], tmp_path)
    assert re.match(r"memory allocation of \d+ bytes failed", printed)
    assert re.search(r"ended with SIGABRT in panics::\w+ \(plain\): memory allocation failed\.", crash(core)["text"])


def test_rust_panics_twice(rust: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash(["env", "RUST_BACKTRACE=0", str(rust / "unwinding"), "drop"], tmp_path)
    panics = printed_by_rust(printed)
    assert [message for _, message in panics][:2] == ["the first of two", "the second of two"]
    # Unwinding has removed the frames of all panics except the last one, which aborted.
    found = crash(core)
    assert found["evidence"]["panic"]["earlier"][:1] == ["the first of two"]
    assert {**found["evidence"]["panic"], "earlier": []} == {**dict(zip(("place", "message"), panics[-1])), "earlier": []}


def test_rust_panics_in_a_function_that_cannot_unwind(rust: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash(["env", "RUST_BACKTRACE=0", str(rust / "unwinding"), "callback"], tmp_path)
    assert len(printed_by_rust(printed)) == 2
    found = crash(core)
    assert found["evidence"]["panic"]["earlier"] == ["the callback got 8 bytes"]
    assert found["cause"] == 'It occurred while the stack was unwound after the panic "the callback got 8 bytes".'


@pytest.mark.parametrize("name", ["stripped", pytest.param("plain", marks=pytest.mark.matrix)])
def test_rust_recursion(name: str, rust: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(rust / name), "deep"], tmp_path)
    assert "stack overflow" in printed
    found = crash(core)
    assert "the stack overflowed." in found["text"]
    which = "panics::recurse" if name == "plain" else r"The function at stripped\+0x[0-9a-f]+"
    assert re.match(rf"{which} is on the stack \d+ times or more\.", found["cause"]), found["cause"]


def test_a_fault_in_a_library_of_rust_is_its_callers(rust: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(rust / "plain"), "show"], tmp_path)
    found = crash(core)
    assert found["evidence"]["address"] == "0x10"
    assert found["evidence"]["function"] == "panics::show"


def test_rust_front_ends_and_triage(rust: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(rust / "plain"), "format"], tmp_path)
    found = crash(core)
    program = str(rust / "plain")
    for other in (gdb(["leaks verdict --json"], program, str(core)), lldb(["leaks verdict --json"], program, "-c", str(core))):
        assert json.loads(objects(other)[0])["findings"][0] == found
    row = json.loads(run_cli("triage", "--json", str(core)).stdout.splitlines()[0])
    assert "no route to host 6" in row["findings"][0]["title"]
    assert row["frame"].startswith("panics::parse")


@pytest.fixture(scope="module", params=mark_matrix_except(["", *VERSIONS], ""))
def go(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go")
    build(folder, request.param, name="panics").rename(folder / "plain")
    build(folder, request.param, STRIPPED, name="panics").rename(folder / "stripped")
    return folder


SOURCE = truth.PROGRAMS / "panics_native.go"


@pytest.mark.parametrize(
    "word",
    ["text", "error", "wrapped", "own", "bool", "index", "nil", "null", "number", "nothing", "late", "deadlock", "deep", "unlock", "maps"],
)
def test_go_panics(word: str, go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTRACEBACK", "crash")
    monkeypatch.setenv("GOMAXPROCS", "4")  # "maps" needs goroutines that run at the same time, also on a machine with one processor
    name = "stripped" if word not in ("text", "unlock") else "plain"
    core, printed = run_until_crash([str(go / name), word], tmp_path)
    line = [line for line in printed.splitlines() if line.startswith(("panic: ", "fatal error: "))][0 if word != "late" else -1]
    found = crash(core)
    message = found["evidence"]["message"]
    if word == "late" and line.startswith("panic: "):
        line = "fatal error: sync: unlock of unlocked mutex"  # newer versions print it in the line of the panic
    # For some values, Go prints their type, or that the value was recovered before.
    assert message is not None and re.sub(r"^panic: main\.\w+\(|\)$| \[recovered\]$", "", line) == message
    function, file, number = main_frame(printed)
    assert found["evidence"]["managed_frame"] == {"kind": "Go", "function": function, "file": file, "line": number}
    assert f" in Go function {function} at " in found["text"] and f"{Path(file).name}:{number}: {message}" in found["text"]
    assert found["evidence"]["value_type"] == ("*main.refused" if word == "own" else None)


def test_go_panics_with_a_value_that_has_no_text(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTRACEBACK", "crash")
    core, printed = run_until_crash([str(go / "stripped"), "struct"], tmp_path)
    match = re.search(r"^panic: (\(main\.plain\)) ", printed, re.MULTILINE)
    assert match is not None and crash(core)["evidence"]["message"] == f"panic: {match[1]}"


@pytest.mark.parametrize("word", ["null", "abort"])
def test_go_crashes_in_c(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTRACEBACK", "crash")
    program = build(tmp_path, "", STRIPPED, name="panics_native", cgo=True)
    core, _ = run_until_crash([str(program), word], tmp_path / "run")
    found, line = crash(core), next(number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if f"C.{word}_it(" in line)
    assert found["evidence"]["signal"] == ("SIGSEGV" if word == "null" else "SIGABRT")
    assert f"called by Go function main.work at {SOURCE.parent.name}/{SOURCE.name}:{line}" in found["text"]
    row = json.loads(run_cli("triage", "--json", str(core)).stdout.splitlines()[0])
    assert row["frame"] == "main.work"


@pytest.mark.parametrize("version", [pytest.param(v, marks=() if v == "3.11" else pytest.mark.matrix) for v in mallocs_python.SUITES])
@pytest.mark.parametrize("word", ["constant", "made", "gil"])
def test_python_fatal_errors(word: str, version: str, tmp_path: Path) -> None:
    python = mallocs_python.get(version)
    environment = [f"{name}={value}" for name, value in python.environment().items()]
    core, printed = run_until_crash(["env", *environment, *python.command(str(truth.PROGRAMS / "python_fatal.py"), word)], tmp_path)
    line = printed.splitlines()[0]
    assert line.startswith("Fatal Python error: ")
    findings = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"]
    messages = [one["evidence"]["message"] for one in findings if one["finding"] == "crash"]
    if version == "3.11":
        assert messages == [line]
    else:
        assert messages in ([line], [None], []), "the compiler may not store the text; a missing text is better than a wrong one"
