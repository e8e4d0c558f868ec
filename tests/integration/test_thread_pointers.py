"""If a debugger does not report thread pointers, findleaks finds them in memory. They equal those that the kernel reports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import agree
import pytest

from cores import Running
from findleaks.target.live import LiveTarget
from findleaks.target.thread_pointers import add_thread_pointers


@pytest.mark.parametrize("link", ["-pie", "-static"])
@pytest.mark.parametrize("threads", [1, 30])
def test_found_in_memory(tmp_path: Path, link: str, threads: int) -> None:
    program = tmp_path / "program"
    subprocess.run(["gcc", link, "-g", "-O1", "-x", "c", "-", "-o", program, "-pthread"], input=agree.SOURCE, text=True, check=True)
    with Running([str(program), str(threads)], tmp_path / "run") as run, LiveTarget(run.pid, stopped=False) as target:
        reported = list(target.threads())
        assert len({thread.thread_pointer for thread in reported} - {0}) == threads + 1
        assert add_thread_pointers(target, reported) == reported
        unknown = [
            thread._replace(thread_pointer=0, registers={name: n for name, n in thread.registers.items() if name != "fs_base"})
            for thread in reported
        ]
        pointers = {thread.tid: thread.thread_pointer for thread in reported}
        found = add_thread_pointers(target, unknown)
        assert {thread.tid: thread.thread_pointer for thread in found} == pointers
        assert {thread.tid: thread.registers["fs_base"] for thread in found} == pointers
        assert all(thread.thread_pointer in thread.words for thread in found)
        # Seen from outside the process's pid namespace, the ids of threads differ from those in its memory.
        renumbered = [thread._replace(tid=thread.tid + 1_000_000_000) for thread in unknown]
        assert [thread.thread_pointer for thread in add_thread_pointers(target, renumbered)] == [
            thread.thread_pointer for thread in reported
        ]
