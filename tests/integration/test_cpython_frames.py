"""findleaks lists the Python functions that the language's own traceback lists, at random stops of a busy program."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from pathlib import Path

import debuggers
import frame_stops
import greenlets
import mallocs_python
import pytest
import truth
from kernel_cores import run_until_crash
from other_pythons import PYTHONS
from variants import mark_matrix_except

import cores
import findleaks
from findleaks.answers.stacks import group_stacks
from findleaks.runtimes.cpython.frame_reader import find_frame_reader
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.managed_frames import DEEPEST, NativeStack

HANDLER_CRASHES = ("3.11", "3.12")  # see frame_stops.HandlerCrashed
Crash = tuple[Path, Path, frame_stops.Printed]
"""A core of a fault, one of the signal that `faulthandler` raised again, and the frames that it printed."""

LONG = [pytest.param(version, 200, marks=pytest.mark.matrix) for version in PYTHONS]


@pytest.mark.parametrize(("version", "stops"), [("3.11", 4), *LONG])
def test_frames_are_those_of_faulthandler(version: str, stops: int, tmp_path: Path) -> None:
    compared = 0
    for _ in range(5 if version in HANDLER_CRASHES else 1):
        with suppress(frame_stops.HandlerCrashed), frame_stops.busy_python(PYTHONS[version](), tmp_path) as program:
            while compared < stops:
                time.sleep(0.01)
                program.stop()
                found = program.stacks()
                tid = sorted(found)[compared % 2]
                printed, whole = frame_stops.resume_python(program, tid)
                read = frame_stops.as_faulthandler(found[tid])
                assert (read if whole else read[: len(printed)]) == printed, found[tid]
                frame_stops.check_python_order(found[tid])
                compared += 1
    assert compared == stops


@pytest.mark.matrix
def test_frames_in_greenlets(tmp_path: Path) -> None:
    """findleaks lists the frames of the current greenlet, and does not attribute them to interpreter frames of other greenlets."""
    modules, _ = greenlets.get_environment("3.9")
    with frame_stops.busy_python(PYTHONS["3.9"](), tmp_path, "python_greenlets.py", modules) as program:
        for number in range(60):
            time.sleep(0.01)
            program.stop()
            found = program.stacks()
            tid = sorted(found)[number % 2]
            printed, whole = frame_stops.resume_python(program, tid)
            read = frame_stops.as_faulthandler(found[tid])
            assert (read if whole else read[: len(printed)]) == printed, found[tid]
            frame_stops.check_python_order(found[tid], in_greenlet=True)


@pytest.mark.parametrize("version", mark_matrix_except([one for one in PYTHONS if one not in ("3.9", "3.10", "3.13t")], "3.14"))
def test_functions_that_are_not_listed(version: str, tmp_path: Path) -> None:
    """If a thread executes more functions than findleaks lists, the listed ones precede the native function that executes them."""
    python = PYTHONS[version]()
    with (
        cores.Running(python.command(str(truth.PROGRAMS / "python_deep_calls.py")), tmp_path, python.environment()) as one,
        findleaks.attach(one.pid) as process,
    ):
        answer = group_stacks(process._session, lines=False)
    (stack,) = answer.result.stacks
    names = [frame.function for frame in stack.frames]
    outer = max(at for at, frame in enumerate(stack.frames) if frame.kind) + 1
    assert [*dict.fromkeys(frame.function for frame in stack.frames if frame.kind)] == ["callback", "recurse"]
    assert DEEPEST - 9 < names.count("recurse") <= DEEPEST
    # The program of 3.14 has no symbol for the function that executes Python functions.
    assert names[outer] in (frame_stops.EVALUATOR, None) and "PyEval_EvalCode" in names[outer:]
    assert any(f"more than {DEEPEST:,}" in one for one in answer.warnings)


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory) -> Crash:
    """A core of a program that crashed in a function of C, and the traceback that it prints in another run."""
    python = mallocs_python.get("3.11")
    environment = [f"{name}={value}" for name, value in python.environment().items()]
    program, folder = str(truth.PROGRAMS / "python_crash.py"), tmp_path_factory.mktemp("crash")
    core, _ = run_until_crash(["env", *environment, *python.command(program)], folder / "core")
    raised, printed = run_until_crash(["env", *environment, *python.command("-X", "faulthandler", program)], folder / "printed")
    return core, raised, frame_stops.python_frames(printed.partition("Current thread")[2].partition("\n\n")[0])


def test_crash_names_the_python_function(crash: Crash) -> None:
    core, _, printed = crash
    found = json.loads(debuggers.run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["finding"] == "crash"
    assert f", called by Python function string_at at ctypes/__init__.py:{printed[0][1]}: it accessed address 0x10" in found["text"]
    assert found["evidence"]["managed_frame"]["function"] == "string_at"


def test_crash_with_faulthandler(crash: Crash) -> None:
    """faulthandler raises the signal again, so the kernel does not record the address of the fault."""
    _, raised, printed = crash
    found = json.loads(debuggers.run_cli("verdict", "--json", str(raised)).stdout)["findings"][0]
    assert found["finding"] == "crash"
    assert found["text"].endswith(f" (python3.11), called by Python function string_at at ctypes/__init__.py:{printed[0][1]}.")
    assert found["evidence"]["address"] is None


def test_threads_in_different_functions(crash: Crash) -> None:
    core, _, printed = crash
    stacks = json.loads(debuggers.run_cli("stacks", "--json", str(core)).stdout)["stacks"]
    (own,) = (stack["frames"] for stack in stacks if any(one["function"] == "Reader.read_header" for one in stack["frames"]))
    frames = [one for one in own if one.get("kind") == "Python"]
    assert [(one["file"], one["line"], one["function"].rsplit(".", 1)[-1]) for one in frames] == printed
    assert {(one["address"], one["offset"], one["module"]) for one in frames} == {(None, None, None)}
    text = debuggers.findleaks("stacks", str(core))
    assert re.search(rf"Reader\.read_header at programs/python_crash\.py:{printed[1][1]}  \[Python\]\n", text)
    waiting = debuggers.run_cli("stacks", "-c", "waits_for_work", "--json", str(core), check=True)
    # The two processes may have stopped at different instructions.
    assert sum(stack["count"] for stack in json.loads(waiting.stdout)["stacks"]) == 3


@pytest.mark.matrix
def test_debuggers_read_the_same_frames(crash: Crash) -> None:
    core, _, _ = crash
    python = mallocs_python.get("3.11")
    found = json.loads(debuggers.run_cli("stacks", "--no-lines", "--json", str(core)).stdout)["stacks"]
    linker = python.command()[0]
    for shown in (
        debuggers.gdb(["leaks stacks --no-lines --json"], linker, str(core)),
        debuggers.lldb(["leaks stacks --no-lines --json"], linker, "-c", str(core)),
    ):
        (other,) = debuggers.objects(shown)
        kinds = [[(one["function"], one["line"]) for one in stack["frames"] if one.get("kind")] for stack in json.loads(other)["stacks"]]
        assert kinds == [[(one["function"], one["line"]) for one in stack["frames"] if one.get("kind")] for stack in found]


def test_damaged_frames(crash: Crash) -> None:
    """findleaks reads the frames of a damaged core without an error. Each name is the name of a function or file of the program."""
    with findleaks.open(crash[0]) as process:
        target = process._session.target
        reader = find_frame_reader(target)
        assert reader is not None
        stacks = [NativeStack(thread, Unwinder(target).trace(thread), []) for thread in target.threads()]
        sound = [one for stack in stacks for part in reader.segments(stack) for one in part.frames]
        # Damage may exchange the pointers of a code object to its name, its qualified name and its file.
        texts = {text for one in sound for text in (one.function, one.function.rpartition(".")[2], one.file)}
        assert len({one.function for one in sound}) > 5
        warned = 0
        for seed in range(60):
            reader = find_frame_reader(target)
            assert reader is not None
            reader._memory = reader._code._memory = frame_stops.DamagedMemory(reader._memory, seed)
            frames = [one for stack in stacks for part in reader.segments(stack) for one in part.frames]
            assert len(frames) <= len(stacks) * DEEPEST * 2
            assert {one.function for one in frames} <= {*texts, ""}
            warned += bool(reader.warnings)
        assert warned > 10
