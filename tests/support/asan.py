"""Build and run programs under AddressSanitizer, and read what they print about their blocks (tests/programs/asan_sites.c)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import debian
import truth

LLVM = "/usr/lib/llvm-19/lib/clang/19/lib/linux"
BUILDS = {
    "gcc": ("gcc",),
    "gcc-static": ("gcc", "-static-libasan"),
    "clang": ("clang-19",),
    "clang-shared": ("clang-19", "-shared-libasan", f"-Wl,-rpath,{LLVM}"),
}
"""By default, GCC links its runtime dynamically, and clang statically. -static-libasan and -shared-libasan select the other way."""
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address")
STACKS = ("-O1", "-fno-builtin", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")
"""The runtime follows frame pointers: these options let it see all callers."""


def build(name: str, source: str, output: Path, *flags: str) -> Path:
    words = [*BUILDS[name], *FLAGS, *flags, "-o", str(output), str(truth.PROGRAMS / source), "-pthread"]
    subprocess.run(words, check=True)
    return output


def build_plain(source: str, output: Path) -> Path:
    """Compile without a runtime, for programs with a preloaded one."""
    words = ["gcc", "-std=gnu11", "-g", *STACKS, "-o", str(output), str(truth.PROGRAMS / source), "-pthread"]
    subprocess.run(words, check=True)
    return output


RELEASES = {
    "gcc-10": ("bullseye", "libasan6"),
    "gcc-11": ("bookworm", "libasan6"),
    "gcc-14": ("trixie", "libasan8"),
    "gcc-16": ("sid", "libasan8"),
    "llvm-14": ("bookworm", "libclang-rt-14-dev"),
    "llvm-16": ("bookworm", "libclang-rt-16-dev"),
    "llvm-18": ("trixie", "libclang-rt-18-dev"),
}
"""The Debian suites and packages of other releases' runtimes. sid moves on."""
OLDER = ("gcc-10",)


def library(release: str) -> Path:
    """Return the path of a release's runtime library. Raises debian.PackagesMissing."""
    suite, package = RELEASES[release]
    folder = debian.cache() / "asan" / release
    debian.unpack_packages(suite, (package,), folder, {})
    return next(path for name in ("libasan.so.?", "libclang_rt.asan-x86_64.so") for path in sorted(folder.glob(f"root/**/{name}")))


def environment(**options: str) -> dict[str, str]:
    """Return an environment in which crashes dump core and LeakSanitizer does not run at the end. `options`: further options of the
    runtime."""
    chosen = {"disable_coredump": "0", "handle_abort": "0", "detect_leaks": "1", "symbolize": "0", **options}
    return {**os.environ, "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in chosen.items()), "LSAN_OPTIONS": "report_objects=1"}


class Block(NamedTuple):
    """A block as the runtime describes it. Stacks are return addresses, innermost first; () if it has none."""

    address: int
    size: int
    state: str  # used, lost, freed
    function: str
    allocated: tuple[int, ...]
    freed: tuple[int, ...]


def blocks(output: str, call: int = 1) -> list[Block]:
    """Parse the blocks that the program printed. For a call, the runtime reports the address of the call's last byte; on AArch64, the
    address of the call, which has 4 bytes (GetPreviousInstructionPc)."""
    found = []
    for line in output.splitlines():
        if line.startswith("block "):
            _, address, size, state, function, *stacks = line.split()
            allocated, freed = (tuple(int(frame, 16) + call for frame in text.split(",")) if text != "-" else () for text in stacks)
            found.append(Block(int(address, 16), int(size, 16), state, function, allocated, freed))
    return found


class Leak(NamedTuple):
    """Lost blocks with the same stack, as LeakSanitizer reports them."""

    kind: str  # Direct, Indirect
    bytes: int
    blocks: int
    frames: tuple[int, ...]  # return addresses
    addresses: frozenset[int]


def leaks(report: str, call: int = 1) -> list[Leak]:
    """Parse LeakSanitizer's report."""
    found = []
    for part in re.split(r"\n(?=Direct leak|Indirect leak)", report)[1:]:
        head = re.match(r"(\w+) leak of (\d+) byte\(s\) in (\d+) object", part)
        assert head is not None, part
        frames = tuple(int(frame, 16) + call for frame in re.findall(r"^ +#\d+ 0x([0-9a-f]+)", part, re.M))
        addresses = frozenset(int(address, 16) for address in re.findall(r"^0x([0-9a-f]+) \(", part, re.M))
        found.append(Leak(head[1], int(head[2]), int(head[3]), frames, addresses))
    return found
