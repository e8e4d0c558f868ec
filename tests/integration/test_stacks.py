"""Stacks of real programs, compared with stacks that the program or GDB prints. The stacks of Node pass through code made at run time."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import building
import pytest
import real
from debuggers import run_cli
from idle import wait_until_idle

import cores

START = ["start", "start_thread", "clone3"]
EXPECTED = {
    3: ["hold", "beta", "alpha", *START],
    2: ["hold", "gamma_", "alpha", *START],
    101: ["hold", *["down"] * 101, *START],
    "handler": ["faulty", *START],
    "made": ["hold", "", "by_frame_pointer", *START],
}


program = building.fixture("stacks.c", "-O2", "-pthread")


def run_json(*words: str) -> dict[str, Any]:
    done = run_cli("stacks", "--json", *words, check=True)
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def print_stacks(*words: str) -> list[str]:
    return run_cli("stacks", *words, check=True).stdout.splitlines()


def functions(stack: dict[str, Any]) -> list[str]:
    return [frame["function"] or "" for frame in stack["frames"]]


def check(found: dict[str, Any]) -> None:
    """Check that every stack that the program made exists and is complete."""
    stacks = {stack["count"]: functions(stack) for stack in found["stacks"] if stack["count"] > 1}
    assert stacks[3][-6:] == EXPECTED[3]
    assert stacks[2][-6:] == EXPECTED[2]
    single = [functions(stack) for stack in found["stacks"] if stack["count"] == 1]
    assert any(names[-105:] == EXPECTED[101] for names in single)
    handled = next(names for names in single if "handler" in names)
    assert handled[handled.index("handler") - 1] == "hold"
    assert handled[-4:] == EXPECTED["handler"]
    assert any(names[-6:] == EXPECTED["made"] for names in single)
    assert any(names[-3:] == ["__libc_start_call_main", "__libc_start_main", "_start"] and "main" in names for names in single)
    assert all(stack["complete"] for stack in found["stacks"])
    assert found["threads"] == sum(stack["count"] for stack in found["stacks"]) == 9


@pytest.mark.platform("x86-64", "whole stacks")
def test_live_and_in_cores(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program)], tmp_path) as running:
        found = run_json("--pid", str(running.pid))
        check(found)
        assert {name for stack in found["stacks"] for name in stack["names"]} == {"stacks"}
        check(run_json(str(running.gcore())))
        core = running.kernel_core()
    check(run_json(str(core)))
    assert [stack["count"] for stack in run_json("-c", "alpha", str(core))["stacks"]] == [3, 2]
    assert [stack["count"] for stack in run_json("-c", "alpha", "--not-under", "beta", str(core))["stacks"]] == [2]
    assert [stack["count"] for stack in run_json("--module", "stacks", "-c", "down", str(core))["stacks"]] == [1]
    lines = print_stacks("-c", "alpha", "--limit", "1", "--frames", "1", str(core))
    assert lines[0] == "5 of 9 threads, in 2 of 6 stacks"
    assert lines[-1] == "  … 1 more stack (--limit 0)"
    assert sum("threads: " in line for line in lines) == 1
    assert print_stacks(str(core))[0] == "9 threads in 6 stacks"
    recursion = [
        line.split()[0].partition("+")[0] for line in print_stacks("-c", "down", str(core)) if "down+" in line or "more times" in line
    ]
    assert recursion == ["down", "down", "…"]
    assert "    … and 99 more times" in print_stacks("-c", "down", str(core))
    assert print_stacks("-c", "nowhere", str(core)) == ["0 of 9 threads, in 0 of 6 stacks"]
    folded = run_cli("stacks", "--folded", str(core), check=True)
    assert any(re.fullmatch(r"clone3;start_thread;start;alpha;beta;hold(;\S+)* 3", line) for line in folded.stdout.splitlines())


def test_a_call_to_nowhere(program: Path, tmp_path: Path) -> None:
    """The program counter is 0. The return address is on top of the stack."""
    process = subprocess.Popen([str(program), "crash"], cwd=tmp_path, stdout=subprocess.PIPE, preexec_fn=cores._allow_cores)
    process.communicate(timeout=180)
    (core,) = tmp_path.glob("core*")
    found = run_json("-c", "main", str(core))
    (stack,) = found["stacks"]
    assert stack["frames"][0]["address"] == "0x0"
    assert functions(stack)[-4:] == ["main", "__libc_start_call_main", "__libc_start_main", "_start"]


CREATE = """
#include <pthread.h>
static void *run(void *argument) { return argument; }
__attribute__((noinline)) static int create(pthread_t *thread) { return pthread_create(thread, 0, run, 0) + 1; }
int main(void) { pthread_t thread; return create(&thread); }
"""


def test_a_thread_that_creates_another(tmp_path: Path) -> None:
    """At the system call of clone3 and clone there is no call frame information. The caller's address is on top of the stack."""
    (tmp_path / "create.c").write_text(CREATE)
    subprocess.run(["gcc", "-O1", "-pthread", "-o", "create", "create.c"], cwd=tmp_path, check=True)
    core = str(tmp_path / "core.create")
    stops = ["set disable-randomization on", "catch syscall clone3 clone", "run", f"generate-core-file {core}", "kill"]
    command = ["gdb", "-batch", "-nx", *(word for one in stops for word in ("-ex", one)), str(tmp_path / "create")]
    subprocess.run(command, capture_output=True, check=True)
    (stack,) = run_json(core)["stacks"]
    names = functions(stack)
    assert names[0] in ("clone3", "__clone3", "clone", "__clone"), names
    assert names[-5:] == ["create", "main", "__libc_start_call_main", "__libc_start_main", "_start"], names
    assert stack["complete"]


UNDESCRIBED = """
#include <unistd.h>
asm(".globl stop\\nstop: push %rbp\\nmov %rsp, %rbp\\nlea after(%rip), %rax\\npush %rax\\nmov $34, %eax\\nsyscall\\nleave\\nret\\n"
    ".globl other\\nother: call stop\\nafter: ret");
void stop(void);
int main(void) { write(1, "ready\\n", 6); stop(); return 0; }
"""


def test_a_system_call_without_frame_information(tmp_path: Path) -> None:
    """At a system call, a return address on top of the stack may be stale. The frame pointer leads to the caller."""
    (tmp_path / "stop.c").write_text(UNDESCRIBED)
    subprocess.run(["gcc", "-O1", "-o", "stop", "stop.c"], cwd=tmp_path, check=True)
    with cores.Running([str(tmp_path / "stop")], tmp_path) as running:
        wait_until_idle(running.pid)
        (stack,) = run_json("--pid", str(running.pid))["stacks"]
    assert functions(stack)[:2] == ["stop", "main"]


def test_gdb_sees_the_same(program: Path, tmp_path: Path) -> None:
    """findleaks and GDB find the same return address in each frame, in an interpreter with threads. (libc's debug symbols, which would add
    inlined frames, are not used.)"""
    code = "import threading, time, sys\ndef f(n):\n f(n - 1) if n else time.sleep(600)\n"
    code += "[threading.Thread(target=f, args=(5,), daemon=True).start() for _ in range(3)]\nprint('ready', flush=True)\nf(20)"
    with cores.Running(["/usr/bin/python3", "-c", code], tmp_path) as running:
        wait_until_idle(running.pid)
        found = run_json("--pid", str(running.pid))
        command = ["gdb", "-batch", "-nx", "-iex", "set debug-file-directory /nonexistent", "-iex", "set auto-load no"]
        command += ["-p", str(running.pid), "-ex", "thread apply all bt"]
        reported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    theirs = {}
    for part in re.split(r"\nThread ", reported)[1:]:
        theirs[int(part.split("LWP ")[1].split(")")[0])] = [int(a, 16) for a in re.findall(r"^#\d+\s+0x([0-9a-f]+) in ", part, re.M)]
    assert len(theirs) == 4
    native = [([int(f["address"], 16) for f in stack["frames"] if not f.get("kind")], stack["threads"]) for stack in found["stacks"]]
    ours = {tid: addresses for addresses, threads in native for tid in threads}
    assert ours == theirs


def test_node_through_its_builtins(tmp_path: Path) -> None:
    """Other unwinders stop at the interpreter's trampoline; findleaks walks the stack up to _start. The interpreter's frames have the names
    of functions, although no thread executes generated code."""
    script = tmp_path / "deep.js"
    script.write_text("function g(n) { if (n) return g(n - 1); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 600000); }\n")
    script.write_text(script.read_text() + "require('fs').writeSync(1, 'ready\\n'); g(5);\n")
    with cores.Running([real.node20(), str(script)], tmp_path / "run") as running:
        wait_until_idle(running.pid)
        (stack,) = run_json("-c", "_start", "--pid", str(running.pid))["stacks"]
    names = functions(stack)
    assert stack["complete"]
    assert names[-1] == "_start"
    assert "node::Start(int, char**)" in names
    assert names.count("g") == 6
    assert "Builtins_InterpreterEntryTrampoline" not in names
