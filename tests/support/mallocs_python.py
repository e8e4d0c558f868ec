"""Debian's CPython of several releases, unpacked outside the system, with the libc that they were built for."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import debian
import truth

from findleaks.allocators.pymalloc.instance import Pymalloc
from findleaks.engine.terms import State
from findleaks.session import Session

LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g")

CHURN = truth.PROGRAMS / "pymalloc_churn.py"

SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie", "3.14": "sid"}
"""The Debian suite of each CPython. The programs contain the interpreter, with link-time optimisation. sid changes: `get` then warns."""

SHARED = {"3.11": ("libpython3.11",), "3.13": ("libpython3.13",)}
"""Versions that are also installed as a library, for embedding."""

LIBRARY = {"3.9": ("libpython3.9-stdlib",), "3.14": ("libpython3.14-stdlib",)}
"""Packages with modules (json, ctypes) that the tests' programs import. The interpreter's own package does not contain these modules."""

PINNED: debian.Pins = {
    ("python3.9-minimal", "3.9.2-1"): "5d6003c5c20223a2547ac4976e09a9ec778dbe351507a6292bef3b60df5f4aa7",
    ("python3.11-minimal", "3.11.2-6+deb12u8"): "4aba533f7cc5e7b93b7ff24482840e96813f5bcde9cce028395b65a0d799ccee",
    ("libpython3.11", "3.11.2-6+deb12u8"): "63845d53d5f64d2362cfb6007ec175ad1c6044cebe60a1885eff76d2ce637c35",
    ("python3.13-minimal", "3.13.5-2+deb13u5"): "c1fda9e7b1bf15b2fa75a238d8a8710e142fe14c722fc650c5fc614f078c9073",
    ("libpython3.13", "3.13.5-2+deb13u5"): "aa4cdb7e15f5f445ab268160d428518a4daf2a086ee3e6ea30f6082785236dea",
    ("python3.14-minimal", "3.14.10-1"): "a23204aa66be03a9ad427367e75ee2142c60685c8c229bcde0bdde8b421cefb8",
}


@dataclass(frozen=True)
class Python:
    """An unpacked interpreter. `package` is its Debian version."""

    version: str
    package: str
    root: Path

    def command(self, *arguments: str) -> list[str]:
        """Return the command that starts the interpreter through its own dynamic linker: it may need a newer libc than the machine's, or an
        older one."""
        paths = ":".join(str(self.root / folder) for folder in LIBRARIES)
        linker = self.root / "lib64" / "ld-linux-x86-64.so.2"
        return [str(linker), "--library-path", paths, str(self.root / "usr" / "bin" / f"python{self.version}"), *arguments]

    def environment(self, *modules: Path, **more: str) -> dict[str, str]:
        """Return an environment in which this Python finds its standard library, and modules in these folders. PYTHONHASHSEED is kept."""
        left_out = ("PYTHON", "LD_")
        inherited = {name: value for name, value in os.environ.items() if name == "PYTHONHASHSEED" or not name.startswith(left_out)}
        paths = os.pathsep.join(str(folder) for folder in modules)
        return {**inherited, "PYTHONHOME": str(self.root / "usr"), "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **more}

    def library(self) -> Path:
        """Return libpython, for versions in SHARED."""
        return self.root / LIBRARIES[0] / f"libpython{self.version}.so.1.0"


@functools.cache
def get(version: str) -> Python:
    """The interpreter of a version in SUITES, downloaded and unpacked at the first use."""
    packages = [f"python{version}-minimal", *LIBRARY.get(version, ()), *SHARED.get(version, ())]
    folder = debian.cache() / "pythons" / version
    debs = debian.unpack_packages(SUITES[version], packages, folder, PINNED, dependencies=True)
    package = debian.version_of(packages[0], debs)
    if (packages[0], package) not in PINNED:
        warnings.warn(f"Debian {SUITES[version]} now has {packages[0]} {package}", stacklevel=2)
    return Python(version, package, folder / "root")


def extension(source: Path, folder: Path, flags: Sequence[str] = ()) -> Path:
    """Build a module of the stable ABI, which every version can import, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{source.stem}.abi3.so"
    subprocess.run(["gcc", *FLAGS, *flags, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


def parse_statistics(folder: Path) -> tuple[dict[int, tuple[int, int, int]], dict[str, int]]:
    """Return the output of sys._debugmallocstats(): pools, blocks in use and available blocks by class; and the totals."""
    text = (folder / "stderr").read_text()
    rows = re.findall(r"^ *(\d+) +\d+ +(\d+) +(\d+) +(\d+)$", text, re.M)
    totals = dict(re.findall(r"^# ([a-z ]+?) += +([\d,]+)$", text, re.M))
    arenas = re.search(r"^(\d+) arenas \* \d+ bytes/arena += +([\d,]+)$", text, re.M)
    pools = re.search(r"^(\d+) unused pools \* \d+ bytes += +([\d,]+)$", text, re.M)
    assert rows and arenas and pools, text
    totals |= {"bytes in arenas": arenas[2], "unused pools": pools[1], "bytes in unused pools": pools[2]}
    return {int(row[0]): (int(row[1]), int(row[2]), int(row[3])) for row in rows}, {k: int(v.replace(",", "")) for k, v in totals.items()}


def pymalloc_of(session: Session) -> Pymalloc:
    (found,) = (allocator for allocator in session.directory.allocators if isinstance(allocator, Pymalloc))
    return found


def compare_statistics(session: Session, folder: Path) -> None:
    """Check every row and every total against the numbers that the interpreter printed, and the sum of everything in its arenas."""
    allocator, blocks = pymalloc_of(session), session.directory.blocks
    rows, totals = parse_statistics(folder)
    caches = allocator.caches(blocks)
    assert {c.own["class"]: (c.own["num pools"], c.own["blocks in use"], c.own["avail blocks"]) for c in caches} == rows
    counted = allocator.read_counters()
    common = set(counted) & set(totals)
    assert len(common) == 12
    assert {name: counted[name] for name in common} == {name: totals[name] for name in common}
    spent = ("allocated blocks", "available blocks", "unused pools")
    lost = ("pool headers", "quantization", "arena alignment")
    assert counted["bytes in arenas"] == sum(counted[f"bytes in {n}"] for n in spent) + sum(counted[f"bytes lost to {n}"] for n in lost)
    parts = session.directory.of(allocator)
    for state, reported in ((State.IN_USE, sum(c.in_use for c in caches)), (State.FREE, sum(c.free for c in caches))):
        assert sum(blocks.totals(state, *part).blocks for part in parts) == reported
    assert sum(arena.in_use for arena in allocator.arenas(blocks)) == counted["bytes in allocated blocks"]
    assert sum(arena.mapped for arena in allocator.arenas(blocks)) == counted["bytes in arenas"]
    assert list(allocator.verify(blocks)) == []
    assert [problem for problem in session.directory.problems if "pymalloc" in problem.what] == []
