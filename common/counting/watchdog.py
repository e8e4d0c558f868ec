"""Watchdog: a separate program, started by guard.py, that restores code if the debugger is killed.

usage: watchdog.py PID DESCRIPTOR FOLDER

DESCRIPTOR is one of /proc/PID/mem; FOLDER has the package's bootstrap.py ("" for none). Standard
input has lines of "ADDRESS NOW OLD", in hexadecimal. A line "q" says that there is nothing to do.
Where the pipe ends without it, the debugger is dead: OLD is written to each address that holds NOW.
With a FOLDER, stubs are then removed too.
"""

import os
import sys
import time

RELEASE_SECONDS = 5.0
"""Seconds to wait, at most, until the kernel has detached the dead debugger from the process."""


def main(pid: int, memory: int, folder: str) -> None:
    """Read standard input to its end, then restore the code unless dismissed."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    patches, dismissed = [], False
    for line in sys.stdin:
        words = line.split()
        dismissed = dismissed or words == ["q"]
        if len(words) == 3:
            patches.append((int(words[0], 16), bytes.fromhex(words[1]), bytes.fromhex(words[2])))
    if dismissed:
        return
    for address, now, old in patches:
        try:
            if os.pread(memory, len(now), address) == now:
                os.pwrite(memory, old, address)
        except OSError:  # the process has ended, too
            pass
    if folder:
        limit = time.monotonic() + RELEASE_SECONDS
        while held(pid) and time.monotonic() < limit:
            time.sleep(0.005)
        import runpy

        runpy.run_path(os.path.join(folder, "bootstrap.py"))["install"]()
        from findleaks.counting.stub_removal import clean

        clean(pid)


def held(pid: int) -> bool:
    """Whether the process is being traced."""
    try:
        # newline: the process's name may contain \r.
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
            return not any(line.split() == ["TracerPid:", "0"] for line in file)
    except OSError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
