"""AArch64 with mallocs that Debian does not package, and with AddressSanitizer: findleaks reports the expected state of each block
(tests/support/foreign.py)."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import asan
import asan_checks
import foreign
import foreign_mallocs
import foreign_truth
import mallocs_google
import mallocs_musl
import pytest
import truth
from accuracy import FLAGS, SOURCE
from debuggers import run_cli
from foreign import ARM64, ARM64_64K, Machine

pytestmark = pytest.mark.matrix


@pytest.mark.platform("AArch64", "musl's oldmalloc")
@pytest.mark.parametrize("machine", [ARM64, ARM64_64K], ids=("4 KiB", "64 KiB"))
@pytest.mark.parametrize("version", mallocs_musl.SUITES)
def test_oldmalloc_of_each_release(machine: Machine, version: str, tmp_path: Path) -> None:
    library = foreign_mallocs.old_musl(ARM64, version) / "lib/libc.so"
    programs = {}
    for link in ("dynamic", "static"):
        built = foreign_mallocs.compiled_for_old_musl(ARM64, version, SOURCE, tmp_path / f"musl-{link}", link == "static")
        for threads, options in ((5, "a"), (33, "a"), (3, "ab")):
            made = foreign_truth.program(ARM64, "bookworm", built, threads, options)
            programs[f"{link} {threads} {options}"] = made if link == "static" else replace(made, files=(built, library))
    foreign_truth.check_all(programs, machine=machine)


@pytest.mark.platform("AArch64", "Google's tcmalloc")
def test_google_tcmalloc(tmp_path: Path) -> None:
    """With per-CPU caches, and with per-thread caches."""
    tree = foreign.tree(ARM64, "bookworm", ("libc6", "libgcc-s1"), "google")
    processors = tree / "sys/devices/system/cpu/possible"  # without this file, TCMalloc has no per-CPU caches
    processors.parent.mkdir(parents=True, exist_ok=True)
    processors.write_text("0-1\n")
    built = foreign_truth.compile_for_glibc(ARM64, "bookworm", SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    library = foreign_mallocs.google_library(ARM64, "8k", tmp_path)
    programs = {}
    for caches, tunables in (("cpus", {"GLIBC_TUNABLES": mallocs_google.PER_CPU}), ("threads", {})):
        for threads in (5, 33):
            made = foreign_truth.program(ARM64, "bookworm", built, threads, "a", LD_PRELOAD=f"./{library.name}", **tunables)
            programs[f"{caches} {threads}"] = replace(made, tree=tree, files=(built, library))
    foreign_truth.check_all(programs)
    for name, made in foreign.pictures(ARM64, programs).items():
        rows = json.loads(run_cli("caches", "--json", str(made.core), check=True).stdout)["caches"]
        assert any(row["own"].get("cpu") for row in rows) == name.startswith("cpus"), name


class Release(NamedTuple):
    """A runtime of AddressSanitizer: its Debian suite and package."""

    suite: str
    package: str


OLDER = {"gcc-12": Release("bookworm", "libasan8"), "llvm-14": Release(*asan.RELEASES["llvm-14"])}
NEWER = {name: Release(*asan.RELEASES[name]) for name in ("gcc-14", "gcc-16", "llvm-16", "llvm-18")}
CALL = 4
"""Bytes of a call instruction: return addresses are this much higher than the addresses that the runtime prints."""


def preload(release: str, built: Path, *words: str, **options: str) -> foreign.Program:
    """Return the command that runs an uninstrumented program with the runtime of this release."""
    suite, package = (OLDER | NEWER)[release]
    tree = foreign.tree(ARM64, suite, ("libc6", "libgcc-s1", "libstdc++6", package), f"asan-{release}")
    names = ("libasan.so.?", "libclang_rt.asan-aarch64.so")
    library = next(path for name in names for path in sorted(tree.glob(f"usr/lib/**/{name}")))
    chosen = {name: value for name, value in asan.environment(**options).items() if name in ("ASAN_OPTIONS", "LSAN_OPTIONS")}
    return foreign.Program(tree, (f"./{built.name}", *words), (built,), {"LD_PRELOAD": f"/{library.relative_to(tree)}", **chosen})


@pytest.mark.platform("AArch64", "AddressSanitizer")
@pytest.mark.parametrize("release", NEWER)
def test_address_sanitizer_of_each_release(release: str, tmp_path: Path) -> None:
    """findleaks reports every block and stack like the runtime, and the same lost blocks as LeakSanitizer. Then the truth program runs."""
    flags = ("-std=gnu11", "-g", *asan.STACKS)
    sites = foreign_truth.compile_for_glibc(ARM64, "bookworm", truth.PROGRAMS / "asan_sites.c", tmp_path / "asan_sites", *flags)
    built = foreign_truth.compile_for_glibc(ARM64, "bookworm", SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    program = preload(release, sites, "300")
    made = foreign.picture(ARM64, program)
    blocks = {block.address: block for block in asan.blocks(made.output, CALL)}
    leaks = asan.leaks((made.core.parent / "stderr").read_text(), CALL)
    words = ("--exe", str(sites), "--sysroot", str(program.tree), str(made.core))
    stopped = asan_checks.Stopped(words, blocks, leaks)
    asan_checks.every_block(stopped)
    asan_checks.every_stack(stopped)
    asan_checks.stacks_of_each_class(stopped)
    asan_checks.lost_as_leaksanitizer_says(stopped)
    threads = {f"{count} threads": preload(release, built, str(count), str(count + 1), "1", "a", detect_leaks="0") for count in (5, 33)}
    foreign_truth.check_all(threads)


@pytest.mark.parametrize("release", OLDER)
def test_older_address_sanitizers_are_named(release: str, tmp_path: Path) -> None:
    """Older releases, whose allocator for any address space has another layout, are refused by name."""
    flags = ("-std=gnu11", "-g", *asan.STACKS)
    sites = foreign_truth.compile_for_glibc(ARM64, "bookworm", truth.PROGRAMS / "asan_sites.c", tmp_path / "asan_sites", *flags)
    found = json.loads(run_cli("find", "--json", str(foreign.picture(ARM64, preload(release, sites, "300")).core)).stdout)
    assert any("has the allocator of LLVM 14, GCC 12 or older" in warning for warning in found["warnings"])
    assert found["trusted"] is False


def test_hwasan_is_named(tmp_path: Path) -> None:
    """findleaks does not see blocks of HWASan, so it names HWASan and reports no leaks."""
    suite, package = asan.RELEASES["llvm-18"]
    tree = foreign.tree(ARM64, suite, ("libc6", "libgcc-s1", "libstdc++6", package), "asan-llvm-18")
    (runtime,) = tree.glob("usr/lib/llvm-18/**/libclang_rt.hwasan-aarch64.a")
    compiler = [
        "clang-19",
        *foreign.ANYWHERE,
        f"--target={ARM64.triplet}",
        f"--sysroot={foreign_truth.tree(ARM64, 'bookworm')}",
        "-fsanitize=hwaddress",
    ]
    compiled = tmp_path / "tagged.o"
    subprocess.run([*compiler, "-std=gnu11", "-O1", "-c", "-o", str(compiled), str(truth.PROGRAMS / "tagged.c")], check=True)
    whole = ("-Wl,--whole-archive", str(runtime), "-Wl,--no-whole-archive", "-Wl,--export-dynamic", "-lm", "-lrt", "-lresolv")
    # GNU ld computes wrong addresses for tagged variables.
    built = foreign_truth.compile_for_glibc(ARM64, "bookworm", compiled, tmp_path / "tagged", *whole, *foreign_truth.LLD)
    options = {"HWASAN_OPTIONS": "disable_coredump=0:handle_abort=0"}
    made = foreign.picture(ARM64, foreign.Program(tree, ("./tagged", "own"), (built,), options))
    said = [~int(line.split()[1], 16) for line in made.output.splitlines()[:-1]]
    assert len({address >> 56 & 0xFF for address in said}) > 10
    found = json.loads(run_cli("find", "--json", str(made.core)).stdout)
    assert (found["trusted"], found["groups"]) == (False, [])
    assert any(re.match("HWAddressSanitizer in tagged has an allocator that is not read, ", warning) for warning in found["warnings"])
