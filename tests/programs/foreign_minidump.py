"""Inside an emulated machine: runs a program until it prints "ready"; then LLDB writes minidumps, and the kernel a core.

full.dmp, stack.dmp and process.core are written to the working folder; then the program's output is printed.
usage: foreign_minidump.py PROGRAM ARGUMENTS
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

KINDS = ("full", "stack")


def main() -> None:
    program = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
    assert program.stdout is not None
    said = b""
    while not said.endswith(b"ready\n"):
        got = os.read(program.stdout.fileno(), 1 << 16)
        if not got:
            sys.exit("the program ended")
        said += got
    for kind in KINDS:
        command = ["lldb-19", "-b", "-p", str(program.pid)]
        command += ["-o", f"process save-core --style {kind} --plugin-name=minidump /tmp/{kind}.dmp", "-o", "detach"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not os.path.exists(f"/tmp/{kind}.dmp"):
            sys.exit(done.stdout)
        shutil.move(f"/tmp/{kind}.dmp", ".")
    program.send_signal(signal.SIGABRT)
    program.wait()
    shutil.move("/tmp/core", "process.core")
    sys.stdout.buffer.write(said)
    sys.stdout.flush()
    signal.pause()


main()
