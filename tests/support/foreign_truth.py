"""The truth program (tests/programs/truth.c) on other machines: built for each libc and malloc, and run by foreign.py.

Run as a program, this file makes the cores in cores/, with the program's list of its blocks.
"""

from __future__ import annotations

import functools
import lzma
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import debian
import evidence
import foreign
import truth
from accuracy import FLAGS, SOURCE, Settle, own_files
from foreign import ANYWHERE, ARM64, Machine, Picture, Program

CORES = Path(__file__).resolve().parents[2] / "cores"
LIBCS = {"2.31": "bullseye", "2.36": "bookworm", "2.41": "trixie", "2.43": "sid"}
"""glibc by Debian suite."""
KEPT = {**{machine.name: machine for machine in foreign.MACHINES}, "arm64-64k": foreign.ARM64_64K}
"""The machines of the cores in cores/, by their file names."""
OLDEST = {machine: "sid" if machine is foreign.RISCV64 else "bookworm" for machine in KEPT.values()}
"""The Debian suite for a machine's cores, if one is enough."""
PACKAGES = ("libc6", "libc6-dev", "linux-libc-dev", "libgcc-s1", "libstdc++6", "libjemalloc2", "libjemalloc-dev", "musl", "musl-dev")
OF_THEIR_TIME = {
    "bullseye": ("libgcc-10-dev", "libtcmalloc-minimal4"),
    "bookworm": ("libgcc-12-dev", "libc6-dbg", "libtcmalloc-minimal4", "libmimalloc2.0"),
    "trixie": ("libgcc-14-dev", "libtcmalloc-minimal4t64", "libmimalloc3"),
    "sid": ("libgcc-14-dev", "libtcmalloc-minimal4t64", "libmimalloc3", "libatomic1"),
}
"""Parts of libgcc that static programs, programs for musl, and mallocs need."""


LLD = ("-fuse-ld=lld", "-B/usr/lib/llvm-19/bin")
LINKER = {foreign.RISCV64: LLD}
"""GNU ld of bookworm cannot link objects of sid's libraries."""


@functools.cache
def tree(machine: Machine, suite: str) -> Path:
    return foreign.tree(machine, suite, (*PACKAGES, *OF_THEIR_TIME[suite]))


def compile_for_glibc(machine: Machine, suite: str, source: Path, output: Path, *flags: str) -> Path:
    """Compile a program for glibc of that suite. An existing program is used again: the same command makes the same bytes."""
    root, triplet = tree(machine, suite), machine.triplet
    folders = [root / "usr/lib" / triplet, root / "lib" / triplet]
    command = [machine.compiler, f"--sysroot={root}", *ANYWHERE, *flags, "-o", str(output), str(source), "-pthread", "-ldl"]
    command += [f"-B{folder}" for folder in folders] + [f"-L{folder}" for folder in folders]
    if any(flag.startswith("-static") for flag in flags):
        command += LINKER.get(machine, ())
        command += [f"-L{folder}" for folder in root.glob(f"usr/lib/gcc/{machine.compiles_for or triplet}/*")]
    subprocess.run(command, check=True)
    return output


def compiled_for_musl(machine: Machine, suite: str, source: Path, output: Path, static: bool, *flags: str) -> Path:
    """Compile a program for musl of that suite."""
    root = tree(machine, suite)
    triplet = machine.triplet.replace("-gnu", "-musl")
    libraries = root / "usr/lib" / triplet
    (gcc,) = root.glob(f"usr/lib/gcc/{machine.compiles_for or machine.triplet}/*")
    command = [machine.compiler, *ANYWHERE, *FLAGS, "-nostdinc", "-nostdlib", "-isystem", str(root / "usr/include" / triplet)]
    command += ["-isystem", str(gcc / "include"), *(("-O2", "-static", "-no-pie", "-fno-pie") if static else ("-O1", "-fPIE", "-pie"))]
    command += LINKER.get(machine, ())
    # libgcc's atomic operations ask glibc for the processor's features.
    command += [
        *(("-mno-outline-atomics",) if machine.name == "arm64" else ()),
        *flags,
        "-o",
        str(output),
        str(libraries / ("crt1.o" if static else "Scrt1.o")),
        str(libraries / "crti.o"),
        str(source),
    ]
    if static:
        command += [f"-L{libraries}", f"-L{gcc}", "-Wl,--start-group", "-lc", "-lgcc", "-lgcc_eh", "-Wl,--end-group"]
    else:
        name = "armhf" if machine.name == "armhf" else machine.triplet.split("-")[0]
        linker = f"/lib/ld-musl-{name}.so.1"
        command += [f"-Wl,--dynamic-linker={linker}", f"-L{root / 'lib' / triplet}", f"-L{libraries}", f"-L{gcc}", "-l:libc.so", "-lgcc"]
    subprocess.run([*command, str(libraries / "crtn.o")], check=True)
    return output


def program(machine: Machine, suite: str, built: Path, threads: int, options: str = "", scale: int = 1, **environment: str) -> Program:
    """Return the truth program with this number of threads."""
    command = (f"./{built.name}", str(threads), str(threads + scale), str(scale), *([options] if options else ()))
    return Program(tree(machine, suite), command, (built,), environment)


def check_all(programs: Mapping[str, foreign.Program], settle: Optional[Settle] = None, machine: Machine = ARM64) -> None:
    """Check that findleaks reports the right kind and state for every block of every program."""
    sentences = []
    for name, made in foreign.pictures(machine, programs).items():
        records = truth.parse(made.output)
        blocks, warnings = truth.ask(str(made.core))
        if settle is not None:
            records = list(settle(records, blocks))
        verdict = truth.compare(records, blocks)
        if verdict.held:
            file = next(file for file in programs[name].files if file.name.startswith("truth") or file.name.startswith("musl"))
            verdict = evidence.explain(verdict, records, blocks, made.core, own_files(file))
        doubts = [one for one in warnings if "not on this machine" not in one and "is unattributed" not in one]
        if not verdict.perfect or doubts:
            sentences.append(f"{name}: {verdict}, {doubts}")
    assert not sentences, "\n".join(sentences)


def unpack_kept_core(name: str, folder: Path) -> tuple[Path, str]:
    """Unpack one of the cores in cores/ into a folder; return it with the program's output."""
    core = folder / f"{name}.core"
    core.write_bytes(lzma.decompress((CORES / f"{name}.core.xz").read_bytes()))
    return core, lzma.decompress((CORES / f"{name}.truth.xz").read_bytes()).decode()


def keep(name: str, made: Picture) -> None:
    """Store a program's core and output in cores/."""
    for kind, data in (("core", made.core.read_bytes()), ("truth", made.output.encode())):
        (CORES / f"{name}.{kind}.xz").write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def main(names: Sequence[str]) -> None:
    """Make the cores of cores/ that are named, or all of them."""
    for name, machine in KEPT.items():
        if not names or name in names:
            suite, folder = OLDEST[machine], debian.cache() / machine.name
            built = compile_for_glibc(machine, suite, SOURCE, folder / "truth", *FLAGS, "-O1", "-s")
            keep(name, foreign.picture(machine, program(machine, suite, built, 5)))


if __name__ == "__main__":
    main(sys.argv[1:])
