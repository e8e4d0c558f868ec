"""Waits beside a debugger, and puts a process right should the debugger be killed: a program of its own, started by guard.py.

usage: watchdog.py PID DESCRIPTOR FOLDER, the descriptor of /proc/PID/mem, the folder of the package's bootstrap.py ("" for none).
On standard input: "ADDRESS NOW OLD" a line each, in hexadecimal, then "." Where "q" follows all is well; where the pipe just ends the
debugger is dead: every address that holds NOW gets OLD back, at once, and with a folder, what a stub left is taken out besides.
"""

import os
import sys
import time

PATIENCE = 5.0
"""Seconds that the kernel is given to let the process go."""


def main(pid: int, memory: int, folder: str) -> None:
    """Wait, and act if need be."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    pokes, well = [], False
    for line in sys.stdin:
        words = line.split()
        well = well or words == ["q"]
        if len(words) == 3:
            pokes.append((int(words[0], 16), bytes.fromhex(words[1]), bytes.fromhex(words[2])))
    if well:
        return
    for address, now, old in pokes:
        try:
            if os.pread(memory, len(now), address) == now:
                os.pwrite(memory, old, address)
        except OSError:  # the process is gone, too
            pass
    if folder:
        limit = time.monotonic() + PATIENCE
        while held(pid) and time.monotonic() < limit:
            time.sleep(0.005)
        import runpy

        runpy.run_path(os.path.join(folder, "bootstrap.py"))["install"]()
        from findleaks.counting.stub_removal import clean

        clean(pid)


def held(pid: int) -> bool:
    """Whether somebody traces the process."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:  # its name may have \r
            return not any(line.split() == ["TracerPid:", "0"] for line in file)
    except OSError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
