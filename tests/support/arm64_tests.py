"""`make test-arm64`: run some of the tests on AArch64, inside an emulated Debian. TESTS names them; arguments of pytest select other tests:
`python tests/support/arm64_tests.py tests/unit/test_graph.py -k wild`.

The machine is that of foreign.py, with Debian's GDB, LLDB, gcc and Python, and the packages that the tests import. findleaks is copied
there as a checkout. The libraries of its C engine are built here, as a wheel for AArch64.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from importlib.metadata import requires
from pathlib import Path

import debian
import foreign
import layouts
from foreign import ARM64, Machine, Program
from tree import files as tree_files

from findleaks.engine.native.sources import options

ROOT = Path(__file__).resolve().parents[2]
INSIDE = ROOT / "tests/programs/foreign_tests.py"
FLAGS = Path("common/native/flags")
KERNELS = "findleaks/engine/native"
SUITE = "bookworm"
PATIENCE = 6 * 3600
"""Seconds for the whole run of the machine."""
PYTHON = "3.11"
PACKAGES = (
    *("bash", "coreutils", "grep", "mount", "procps", "sed", "xz-utils", "zstd", "git", "make"),
    *("python3", "python3-pip", "python3-venv", "gdb", "gdbserver", "lldb-19", "python3-lldb-19"),
    *("gcc", "g++", "libc6-dev", "libc6-dbg", "libc-dev-bin", "linux-libc-dev", "libcrypt-dev", "libgcc-12-dev", "libstdc++-12-dev"),
    *("libjemalloc2", "libtcmalloc-minimal4", "libmimalloc2.0", "musl", "musl-dev"),
)
"""Packages that debian.py leaves out as dependencies (_IDLE) must be named here."""
IMPORTED = ("capstone", "hypothesis", "jsonschema", "pillow", "protobuf", "pyelftools", "pytest", "pytest-xdist")
THERE = (
    *("--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp"),
    *(f"--platform=manylinux{form}_aarch64" for form in ("2014", "_2_17", "_2_28", "_2_34")),
)
"""Arguments of pip: packages for the emulated machine."""
VARIABLES = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8", "DEBUGINFOD_URLS": ""}

TESTS = (
    *("tests/unit/test_graph.py", "tests/unit/test_graph_chunks.py", "tests/unit/test_graph_links.py", "tests/unit/test_glibc.py"),
    *(f"tests/integration/test_accuracy.py::{test}" for test in ("test_five_threads", "test_static_programs")),
    *(f"tests/integration/test_doors_agree.py::test_{test}" for test in ("core_of_the_kernel", "core_of_gcore", "live_process")),
    *(f"tests/integration/test_count.py::test_{test}" for test in ("every_call_by_its_stack", "outside_a_scope_of_ones_own")),
    "tests/integration/refused_inside.py",
    "--deselect=tests/unit/test_graph.py::test_both_engines_agree_on_larger_heaps_cut_anywhere",  # takes two minutes in the emulator
)
"""Comparison of the C engine with the Python engine; each block of the truth program; the same answer in GDB, in LLDB and on the command
line; `count`."""


@functools.cache
def tree() -> Path:
    """Unpack Debian with compilers and debuggers. The packages that the tests import are where its Python and its debuggers find them."""
    root = foreign.tree(ARM64, SUITE, PACKAGES, "workshop", dependencies=True)
    wanted = sorted(
        one.split(";")[0].strip() for one in requires("findleaks") or () if re.split(r"\W", one.replace("-", "_"))[0] in _names()
    )
    stamp, there = "\n".join(wanted), root.parent / "imported"
    with debian.hold_lock(root.parent):
        if not there.exists() or there.read_text() != stamp:
            target = root / f"usr/local/lib/python{PYTHON}/dist-packages"
            command = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", f"--target={target}", *THERE]
            subprocess.run([*command, *wanted], check=True)
            there.write_text(stamp)
    return root


def _names() -> set[str]:
    return {name.replace("-", "_") for name in IMPORTED}


def wheel(machine: Machine, folder: Path) -> Path:
    """Build a wheel of findleaks for the emulated machine from the current checkout, which is copied to folder/source."""
    platform = f"linux-{machine.triplet.split('-')[0]}"
    compiler = {"CC": machine.compiler, "LDSHARED": f"{machine.compiler} -shared", "_PYTHON_HOST_PLATFORM": platform}
    compiler["SOURCE_DATE_EPOCH"] = "315532800"  # the time of the files in the archive: the same sources make the same wheel
    source = layouts.checkout(folder / "source", whole=True)
    shutil.copy(ROOT / FLAGS, source / FLAGS)  # with optimization, unlike the flags in the copy
    return layouts.build(source, folder / "dist", **compiler)


def capstone(folder: Path) -> Path:
    """Return capstone's wheel for the emulated machine, of the release that findleaks requires."""
    (wanted,) = (one.split(";")[0].strip() for one in requires("findleaks") or () if one.startswith("capstone"))
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"--dest={folder}", *THERE, wanted], check=True)
    (found,) = folder.glob("capstone-*.whl")
    return found


def checkout(machine: Machine, folder: Path) -> Path:
    """Pack the checkout with the emulated machine's C engine libraries, which come from the wheel."""
    archive, built = folder / "findleaks.tar", wheel(machine, folder)
    with zipfile.ZipFile(built) as packed:
        kernels = [Path(packed.extract(f"{KERNELS}/{name}", folder)) for name in options()]
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in tree_files(ROOT):
            tar.add(ROOT / name, name, filter=without_times)
        for kernel in kernels:
            kernel.chmod(0o755)
            tar.add(kernel, f"{KERNELS.replace('findleaks', 'common', 1)}/{kernel.name}", filter=without_times)
        tar.add(built, f"dist/{built.name}", filter=without_times)
    return archive


def without_times(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
    return info


def main(words: Sequence[str]) -> int:
    """Run these tests (arguments of pytest), or TESTS, in the emulated machine. Show the output as it is printed; return the exit
    status."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=debian.cache() / ARM64.name) as folder:
        archive = checkout(ARM64, Path(folder))
        program = Program(tree(), ("/usr/bin/python3", f"./{INSIDE.name}", *(words or TESTS)), (archive, INSIDE), VARIABLES)
        print(f"the machine's tree and the checkout: {time.monotonic() - began:.0f} s", flush=True)
        shown = Path(folder) / "work" / "tests" / "stdout"
        done = threading.Event()
        watcher = threading.Thread(target=_show, args=(shown, done))
        watcher.start()
        try:
            foreign.run(ARM64, program.tree, {"tests": program}, Path(folder), PATIENCE)
        finally:
            done.set()
            watcher.join()
        status = re.search(r"^status (\d+)\nready\n\Z", shown.read_text(), re.M)
    print(f"{time.monotonic() - began:.0f} s")
    return int(status[1]) if status else 1


def _show(path: Path, done: threading.Event) -> None:
    """Print text as it is appended to a file, until `done` is set."""
    at, last = 0, False
    while not last:
        last = done.wait(1)
        if path.exists():
            with path.open(errors="replace") as file:
                file.seek(at)
                sys.stdout.write(file.read())
                at = file.tell()
            sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    sys.exit(main(sys.argv[1:]))
