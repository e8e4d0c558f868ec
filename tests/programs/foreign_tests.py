"""Runs tests of the checkout in findleaks.tar, inside an emulated machine. usage: foreign_tests.py PYTEST-ARGUMENTS"""

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

FOLDER = Path("/tmp/checkout")
PATTERN = Path("/proc/sys/kernel/core_pattern")

with tarfile.open("findleaks.tar") as archive:
    archive.extractall(FOLDER)
# Nothing is installed: a package of links, out of the checkout, with the machine's kernel.
package = Path("/tmp/package/findleaks")
package.mkdir(parents=True)
for part in [*(FOLDER / "common").iterdir(), FOLDER / "gdb", FOLDER / "lldb"]:
    (package / part.name).symlink_to(part)
os.makedirs("/dev/pts", exist_ok=True)
for what, where in (("devpts", "/dev/pts"), ("tmpfs", "/run")):
    subprocess.run(["mount", "-t", what, what, where], check=True)
dumped = PATTERN.read_text()
PATTERN.write_text("core")
environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONUNBUFFERED": "1"}
status = subprocess.run(
    [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=15", *sys.argv[1:]],
    cwd=FOLDER,
    env=environment,
    stderr=subprocess.STDOUT,
).returncode
PATTERN.write_text(dumped)
print(f"status {status}\nready", flush=True)
signal.pause()
