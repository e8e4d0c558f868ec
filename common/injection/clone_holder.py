"""Hold the clone of a process: a program started by held_clone.py.

usage: clone_holder.py FOLDER PID DESCRIPTOR
       clone_holder.py FOLDER PID LOCAL reap

FOLDER contains the package's bootstrap.py. DESCRIPTOR refers to memory for pages copied during the
stop. Standard output receives pickled (word, value) pairs, each preceded by its size in 8 bytes:
("taken", Taken), then, after standard input has ended, ("ended", seconds). Each of these may be
replaced by ("failed", message) or ("refused", message). The second form reaps a clone whose holder
was killed.

It is a separate program so that the process never depends on findleaks while one of its threads
has changed registers: if findleaks is killed, stopped or interrupted, this program finishes the
work. It runs in its own session, and receives no signal from the terminal."""

import os
import select
import signal
import sys

# Seconds between two polls of threads that were in uninterruptible sleep during the stop
_EVERY = 0.002
_SOON = 0.05  # seconds between two polls of the clone


def main(folder: str, pid: int, descriptor: int, reaping: bool) -> None:
    """Clone the process, hold the clone until standard input ends, and end the clone."""
    import pickle
    import runpy

    runpy.run_path(os.path.join(folder, "bootstrap.py"))["install"]()
    from findleaks.errors import FindleaksError
    from findleaks.injection.clonable import Refused
    from findleaks.injection.cloning import Cloning, reap

    def report(word: str, value: object) -> None:
        pair = pickle.dumps((word, value), pickle.HIGHEST_PROTOCOL)
        data = memoryview(len(pair).to_bytes(8, "little") + pair)
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:  # findleaks has ended
            pass

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    cloning = Cloning(pid, descriptor, lambda: bool(select.select([0], [], [], 0)[0]))
    try:
        if reaping:
            report("ended", reap(pid, descriptor))
            return
        try:
            report("taken", cloning.take())
            while not select.select([0], [], [], _EVERY if cloning.watch() else _SOON)[0]:
                pass
        finally:
            seconds = cloning.end()
        report("ended", seconds)
    except Refused as error:
        report("refused", str(error))
    except FindleaksError as error:
        report("failed", str(error))
    except Exception as error:
        report("failed", f"pid {pid}: cannot be cloned: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["reap"])
