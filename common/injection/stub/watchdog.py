"""The watchdog: a program that guard.py starts, and that restores code if the debugger is killed.

usage: watchdog.py PID DESCRIPTOR FOLDER

DESCRIPTOR refers to /proc/PID/mem. FOLDER contains the package's bootstrap.py ("": none). Standard
input has lines "ADDRESS NOW OLD", in hexadecimal; "q" means that there is nothing to do. If the
pipe ends without "q", the debugger is dead. The watchdog then writes OLD wherever it finds NOW, and
continues the process if the debugger had stopped it. With a FOLDER, it also removes stubs."""

import os
import signal
import sys
import time

RELEASE_SECONDS = 5.0  # seconds for the kernel to detach the dead debugger from the process
PENDING_SECONDS = 0.2  # a pending SIGSTOP stops the process within this many seconds


def main(pid: int, memory: int, folder: str) -> None:
    """Read standard input to its end. Then restore the code, unless "q" was read."""
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
        except OSError:  # the process has also ended
            pass
    limit = time.monotonic() + RELEASE_SECONDS
    while is_traced(pid) and time.monotonic() < limit:
        time.sleep(0.005)
    wake(pid)
    if folder:
        import runpy

        runpy.run_path(os.path.join(folder, "bootstrap.py"))["install"]()
        from findleaks.injection.stub.stub_removal import clean

        clean(pid)


def is_traced(pid: int) -> bool:
    """Whether the process is being traced."""
    return field(pid, "TracerPid:") not in ("0", "")


def wake(pid: int) -> None:
    """Continue the process if it is stopped. A debugger that is killed while it sends a SIGSTOP
    leaves this signal pending."""
    limit = time.monotonic() + PENDING_SECONDS
    while time.monotonic() < limit and (state := field(pid, "State:")):
        if state == "T":
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:
                pass
            return
        time.sleep(0.005)


def field(pid: int, name: str) -> str:
    """Return the first word of a line in /proc/PID/status; "" if the process has ended."""
    try:
        # newline: the process's name may contain a carriage return
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
            return next((words[1] for words in map(str.split, file) if words[:1] == [name] and len(words) > 1), "")
    except OSError:
        return ""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
