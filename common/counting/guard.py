"""A guardian for a process whose code is changed: should the debugger be killed (SIGKILL), another program puts the process right.

That works for all but a thread that stands at a breakpoint at that very moment: the kernel delivers its SIGTRAP before anybody can do
anything.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

BREAKPOINT = {"x86-64": b"\xcc"}
"""What debuggers write over an instruction (int3), by architecture; where writing it back is one store that no thread sees half done."""
STARTS = 3.0
"""Seconds a guardian is given to start. Without one counting goes on."""

Poke = tuple[int, bytes, bytes]
"""address, what stands there while the debugger lives, what is to stand there afterwards"""


class Guard:
    """A guardian at work, if there can be one. `dismiss` it when all is restored."""

    def __init__(self, pid: int, memory: int, pokes: Sequence[Poke], clean: bool = False) -> None:
        """`memory` is a descriptor of /proc/PID/mem for writing; `clean`: take out a stub, too."""
        self.process: Optional[subprocess.Popen[str]] = None
        python = _python()
        if python is None:
            return
        here = Path(__file__).resolve().parent
        words = [python, "-I", str(here / "watchdog.py"), str(pid), str(memory), str(here.parent) if clean else ""]
        try:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[memory],
                start_new_session=True,
                text=True,
            )
            assert self.process.stdin is not None and self.process.stdout is not None
            for address, now, old in pokes:
                self.process.stdin.write(f"{address:x} {now.hex()} {old.hex()}\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], STARTS)[0]:
                self.dismiss()
        except OSError:
            self.dismiss()

    def dismiss(self) -> None:
        """There is nothing to watch any more."""
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write("q\n")
            process.stdin.close()
        except OSError:
            pass
        process.stdout.close()
        process.wait()

    def leave(self) -> None:
        """Something was not restored: let the guardian do it, as if the debugger were dead."""
        process, self.process = self.process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()


def _python() -> Optional[str]:
    """A Python to run it; inside a debugger sys.executable may name the debugger."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (os.path.join(sys.base_prefix, "bin", name), shutil.which(name), shutil.which("python3")):
        if path and os.access(path, os.X_OK):
            return path
    return None
