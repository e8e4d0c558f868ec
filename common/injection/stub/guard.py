"""Start and end the watchdog, which restores a process's code if the debugger is killed. It cannot
help a thread that is at a breakpoint at that moment, because the thread receives the SIGTRAP
first."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from findleaks.injection.interpreter import interpreter

# Seconds to wait for the watchdog; if it does not start, counting continues without it
START_SECONDS = 3.0
PatchedBytes = tuple[int, bytes, bytes]  # address, bytes while the debugger lives, bytes to restore


class Guard:
    """The watchdog of a process, if it could be started. Call `dismiss` after the code has been
    restored."""

    def __init__(self, pid: int, memory: int, pokes: Sequence[PatchedBytes], clean: bool = False) -> None:
        """`memory`: a descriptor of /proc/PID/mem for writing. `clean`: whether the watchdog also
        removes the stubs in the process."""
        self.process: Optional[subprocess.Popen[str]] = None
        python = interpreter()
        if python is None:
            return
        here = Path(__file__).resolve().parent
        words = [python, "-I", str(here / "watchdog.py"), str(pid), str(memory), str(here.parents[1]) if clean else ""]
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
            if not select.select([self.process.stdout], [], [], START_SECONDS)[0]:
                self.dismiss()
        except OSError:
            self.dismiss()

    def dismiss(self) -> None:
        """End the watchdog without restoring anything."""
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
        """Let the watchdog restore the code as if the debugger were dead, because findleaks could
        not restore it."""
        process, self.process = self.process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
