"""Other GDBs and LLDBs, from LLDB 14 and GDB 10 to the newest: cores that they write, and findleaks loaded into them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import building
import debuggers_matrix
import doors
import pytest
import truth
from debuggers import findleaks, objects
from debuggers_matrix import GDBS, SUITES, Debugger
from stopwatch import Stopwatch

from cores import Running
from findleaks.catalogue import CATALOGUE
from findleaks.lldb.completion import completes_words

pytestmark = pytest.mark.matrix
COMMANDS = list(CATALOGUE)


@dataclass(frozen=True)
class Pictures:
    """One process: what it printed of its blocks, and its cores by writer ("" is the kernel)."""

    records: list[truth.Record]
    live: str
    cores: Mapping[str, Path]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    folder = tmp_path_factory.mktemp("pictures")
    program = building.compile_program(folder, "truth.c", "-std=gnu11", "-g", "-O1", "-pthread")
    with Running([str(program), "9", "10", "1", "h"], folder / "run") as run:
        live = findleaks("find", "--json", "--pid", str(run.pid))
        cores = {name: debuggers_matrix.get(name).gcore(run.pid, folder / f"core.{name}") for name in GDBS}
        cores[""] = run.kernel_core()
        return Pictures(truth.parse(run.output), live, cores)


@pytest.mark.parametrize("maker", ["", *GDBS])
def test_cores_of_one_process(pictures: Pictures, maker: str) -> None:
    """All cores of one process give the same result as the process, and it agrees with the program. A core lacks the kernel's
    pointers, and has other memory that is not searched for disguised pointers. gcore does not record which pages are resident."""
    core = pictures.cores[maker]
    results = [json.loads(text) for text in (findleaks("find", "--json", str(core)), pictures.live)]
    for result in results:
        del result["kernel"], result["next"], result["unread"], result["heuristics"]["disguised"]["left_out"]
    assert results[0] == results[1]
    blocks, warnings = truth.ask(str(core))
    verdict = truth.compare(pictures.records, blocks)
    assert verdict.perfect, str(verdict)
    assert warnings == []
    assert truth.compare_leaders(pictures.records, core)[:5] == []


def test_newer_gdbs_make_sparse_cores(pictures: Pictures) -> None:
    """The cores of the previous test are sparse: they lack most of the heaps' reserved memory."""
    taken = {name: path.stat().st_blocks * 512 for name, path in pictures.cores.items()}
    sizes = {name: path.stat().st_size for name, path in pictures.cores.items()}
    assert taken["gdb-13"] >= sizes["gdb-13"]  # all reserved memory is written
    assert taken["gdb-16"] < sizes["gdb-16"] / 2
    assert taken["gdb-18"] < taken["gdb-13"] / 2


@pytest.fixture(scope="module", params=SUITES)
def debugger(request: pytest.FixtureRequest) -> Debugger:
    return debuggers_matrix.get(request.param)


program = building.by(doors.build)


running = building.running("50")


@pytest.fixture(scope="module")
def gcore(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return debuggers_matrix.get("gdb-16").gcore(running.pid, tmp_path_factory.mktemp("gcore") / "core")


@dataclass(frozen=True)
class Asked:
    """A core of tests/programs/doors.c, the addresses of its blocks, and the results of the command line."""

    path: Path
    at: doors.Placed
    reported: list[str]


@pytest.fixture(scope="module", params=["kernel", "gdb-13", "gdb-18"])
def core(request: pytest.FixtureRequest, program: Path, running: Running, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("cores")
    if request.param == "kernel":
        with Running([str(program), "50"], folder) as run:
            path, at = run.kernel_core(), doors.parse_blocks(run.output)
    else:
        path, at = debuggers_matrix.get(request.param).gcore(running.pid, folder / "core"), doors.parse_blocks(running.output)
    return Asked(path, at, doors.on_core(at, path, "--exe", str(program)))


def no_traceback(output: str) -> str:
    assert "Traceback" not in output
    assert "Python Exception" not in output
    assert "internal error" not in output
    return output


def test_front_ends_on_cores(debugger: Debugger, program: Path, core: Asked) -> None:
    doors.check_truth(core.reported, core.at)
    output = no_traceback(debugger.run(doors.inside(core.at), exe=str(program), core=str(core.path)))
    assert objects(output) == core.reported


def test_cores_without_their_program_given(debugger: Debugger, core: Asked) -> None:
    assert objects(debugger.run(doors.inside(core.at), core=str(core.path))) == doors.on_core(core.at, core.path)


def test_front_ends_on_a_process(debugger: Debugger, running: Running) -> None:
    at, pid = doors.parse_blocks(running.output), running.pid
    reported = [line for words in doors.questions(at) for line in objects(findleaks(*words, "--pid", str(pid)))]
    doors.check_truth(reported, at)
    assert objects(no_traceback(debugger.run(doors.inside(at), pid=pid))) == reported
    assert "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text().splitlines()


def test_text(debugger: Debugger, program: Path, running: Running) -> None:
    """The debugger also prints the same text as the command line."""
    output = no_traceback(debugger.run(["leaks find", "findleaks"], pid=running.pid))
    reported = findleaks("find", "--pid", str(running.pid)).splitlines()
    summary = next(line for line in reported if "leaked: " in line)
    assert output.splitlines().count(summary) == 2
    # Non-ASCII characters are printed, or replaced if the debugger's character set does not have them.
    assert len(re.findall("[→>] 2 more", output)) == 2


def test_help(debugger: Debugger) -> None:
    asked = ["help leaks", "help findleaks"]
    for word in COMMANDS:
        asked += [f"help leaks {word}", f"leaks {word} --help", f"findleaks {word} -h"]
    output = no_traceback(debugger.run(asked))
    for word in COMMANDS:
        typed = "findleaks" if CATALOGUE[word].only_in_shell else "leaks"
        assert len(re.findall(rf"(?m)^  {typed} {word} ", output)) >= 2, f"{word}: an example in its help, and in --help"
        assert len(re.findall(rf"(?m)^  findleaks {word} ", output)) >= 1
    assert output.count("\n  --json ") >= 2 * len(COMMANDS)


def test_completion(debugger: Debugger) -> None:
    assert complete(debugger, "leaks fi") == {"find"}
    assert complete(debugger, "leaks ") == set(COMMANDS)
    if debugger.is_gdb or completes_words(f"lldb version {debugger.version.rpartition(':')[2]}"):
        assert {word.lstrip("-") for word in complete(debugger, "leaks find --ki")} == {"kind"}
        assert complete(debugger, "leaks find --by ") == {"type", "size", "kind", "site"}


def complete(debugger: Debugger, text: str) -> set[str]:
    """Return the completions of the last word of the text."""
    if debugger.is_gdb:
        return {line.split()[-1] for line in no_traceback(debugger.run([f"complete {text}"])).splitlines()}
    code = (
        "import lldb; found = lldb.SBStringList(); "
        f"lldb.debugger.GetCommandInterpreter().HandleCompletion({text!r}, {len(text)}, 0, -1, found); "
        "print('found', [found.GetStringAtIndex(i).strip() for i in range(1, found.GetSize())] or found.GetStringAtIndex(0).strip())"
    )
    output = no_traceback(debugger.run([f"script {code}"]))
    line = next(line for line in output.splitlines() if line.startswith("found "))
    return set(re.findall(r"\w+", line.removeprefix("found ")))


def test_expressions(debugger: Debugger, program: Path, running: Running, gcore: Path) -> None:
    places = ["$sp", "&g_list", "g_list", "g_pair", "g_array", "main", "g_list->text", "*g_list", "(char*)g_list+8"]
    output = debugger.run([f"leaks whatis --json {place}" for place in places], exe=str(program), core=str(gcore))
    lines = objects(no_traceback(output))
    assert len(lines) == len(places), output
    found = {place: json.loads(line)["answers"][0] for place, line in zip(places, lines)}
    first = doors.parse_blocks(running.output)["first"]
    assert found["g_list"]["address"] == found["*g_list"]["address"] == first
    assert found["g_list->text"]["address"] == found["(char*)g_list+8"]["address"] == hex(int(first, 16) + 8)
    assert {found[name]["symbol"] for name in ("&g_list", "g_pair", "g_array", "main")} == {"g_list", "g_pair", "g_array", "main"}
    assert found["$sp"]["is"] == "stack"


def test_errors_are_one_line(debugger: Debugger, program: Path, gcore: Path) -> None:
    mark = "echo ---\\n" if debugger.is_gdb else "script print('---')"
    words = ["nosuch", "g_list->nosuch", "(", "1.5", "$nosuch", "malloc(8)", "--nosuch", ""]
    asked = [mark, *(command for word in words for command in (f"leaks whatis {word}", mark))]
    output = no_traceback(debugger.run(asked, exe=str(program), core=str(gcore)))
    parts = re.split(r"(?m)^---$", output)[1:-1]
    for word, part in zip(words, parts):
        lines = [line for line in part.strip().splitlines() if not line.startswith("(lldb) ")]
        assert len(lines) == 1, (word, part)
        assert re.match(r"(error: )?leaks( whatis)?: ", lines[0]), lines
    assert len(parts) == len(words)


def test_changes_are_read(debugger: Debugger, program: Path, tmp_path: Path) -> None:
    """findleaks sees memory and registers that the user writes between two commands."""
    gdb = ["set var g_list = 0", "thread 2", "set var $rbx = 0"]
    lldb = ["expression g_list = (struct node *)0", "thread select 2", "register write rbx 0"]
    memory, *registers = gdb if debugger.is_gdb else lldb
    with Running([str(program)], tmp_path) as run:
        output = no_traceback(debugger.run(["leaks find", memory, "leaks find", *registers, "leaks find"], pid=run.pid))
    lost = [lost for _, lost in doors.counts(output)]
    assert [n - lost[0] for n in lost] == [0, 10, 11], output


@pytest.mark.alone
def test_ctrl_c_ends_a_command(debugger: Debugger, program: Path, tmp_path: Path) -> None:
    with Running([str(program), "1000000"], tmp_path) as run, debugger.terminal(pid=run.pid, FINDLEAKS_PURE="1") as terminal:
        start = len(terminal.text)
        terminal.press("leaks find\n")
        time.sleep(1)
        pressed = Stopwatch(terminal.pid)
        terminal.press("\x03")
        # LLDB before 17 drops the output of an interrupted command, and prints its own message.
        no_traceback(terminal.until(r"leaks: interrupted\r\n|\.\.\. Interrupted\.\r\n", start))
        assert pressed.seconds() < 0.5
        assert "leaked: " in terminal.run("leaks find --limit 1", "leaked: ")  # and the next command works
