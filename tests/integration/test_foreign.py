"""Cores of other machines, read on this machine. Debian's kernels wrote them under qemu (tests/support/foreign.py).

findleaks reports the state that the truth program expects for every block, with each malloc. Each front end gives the same result.
findleaks does not use the host's libc in place of the libc of the core.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import foreign
import foreign_truth
import pytest
import truth
from accuracy import FLAGS, SOURCE
from debuggers import GDB_LOADER, PATIENCE, environment, findleaks, lldb, objects, run_cli
from foreign import ARM64, ARM64_16K, ARM64_64K, ARM64_MTE, Machine
from foreign_runtimes import functions
from mallocs_mimalloc import settle
from variants import mark_matrix_except

PAGES = {"ppc64el": 1 << 16, "arm64-64k": 1 << 16}
"""Bytes of a page, by the name of the core; 4096 for all other cores."""
NO_FILES = re.compile(r"truth, libc\.so\.6, ld[\w-]*\.so\.\d: not on this machine: .*")


@pytest.fixture(scope="module", params=mark_matrix_except(foreign_truth.KEPT.keys(), "arm64", "i386", "s390x"))
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[truth.Record]]:
    """Return a core of cores/, and the output of its program."""
    core, said = foreign_truth.unpack_kept_core(request.param, tmp_path_factory.mktemp(request.param))
    return core, truth.parse(said)


def check_warnings(warnings: list[str]) -> None:
    assert len(warnings) == 1
    assert NO_FILES.fullmatch(warnings[0]), warnings


@pytest.mark.platform("AArch64, i386, ARM, RISC-V, PowerPC64, s390x", "cores, on the command line")
@pytest.mark.platform("i386", "glibc", of="2.36")
@pytest.mark.platform("ARM", "glibc", of="2.36")
@pytest.mark.platform("RISC-V", "glibc", of="2.43")
@pytest.mark.platform("PowerPC64", "glibc", of="2.36")
@pytest.mark.platform("s390x", "glibc", of="2.36")
def test_state_of_each_block(kept: tuple[Path, list[truth.Record]]) -> None:
    core, records = kept
    blocks, warnings = truth.ask(str(core))
    verdict = truth.compare(records, blocks)
    assert verdict.perfect, str(verdict)
    assert verdict.compared > 4000
    assert truth.compare_leaders(records, core)[:5] == []
    check_warnings(warnings)


def test_info_about_addresses(kept: tuple[Path, list[truth.Record]]) -> None:
    """`whatis` describes the address of a block, the object that holds it, and its heap."""
    core, records = kept
    verified = json.loads(run_cli("verify", "--json", str(core), check=True).stdout)
    assert verified["sound"] is True
    used = {"blocks": 0, "bytes": 0}
    for total in json.loads(run_cli("caches", "--json", str(core), check=True).stdout)["totals"]:
        used["bytes"] += total["in_use"]
    listed = [record for record in records if record.state == "in-use"]
    assert used["bytes"] >= sum(record.usable for record in listed)
    held = next(record for record in listed if record.category == "global")
    by_register = next(record for record in listed if record.category == "register")
    # The block belongs to a created thread, whose arena is above the program break.
    in_tls = max((record for record in listed if record.category == "tls"), key=lambda record: record.address)
    answers = json.loads(
        run_cli("whatis", "--json", *(hex(one.address) for one in (held, by_register, in_tls)), str(core), check=True).stdout
    )
    assert [one["block"]["kind"] for one in answers["answers"]] == ["reachable"] * 3
    assert json.loads(run_cli("path", "--json", hex(held.address), str(core), check=True).stdout)["path"][0]["from"].startswith("truth+0x")
    assert "thread-local" in run_cli("path", hex(in_tls.address), str(core), check=True).stdout
    pictured = json.loads(run_cli("map", "--json", str(core), check=True).stdout)
    assert pictured["page"] == PAGES.get(core.stem, 4096)
    assert pictured["totals"]["in_use"] >= used["bytes"]
    roots = json.loads(run_cli("roots", "--json", "--limit", "0", str(core), check=True).stdout)
    assert roots["total"]["blocks"] > 900


@pytest.mark.platform("AArch64", "cores, in GDB", "cores, in LLDB")
@pytest.mark.platform("i386", "cores, in GDB", "cores, in LLDB")
@pytest.mark.platform("ARM", "cores, in GDB", "cores, in LLDB")
@pytest.mark.platform("RISC-V", "cores, in GDB")
@pytest.mark.platform("PowerPC64", "cores, in GDB", "cores, in LLDB")
@pytest.mark.platform("s390x", "cores, in GDB", "cores, in LLDB")
def test_front_ends_agree(kept: tuple[Path, list[truth.Record]]) -> None:
    core, records = kept
    some = [hex(one.address) for one in records if one.category in ("register", "stack", "tls", "chain", "cycle", "mmapped")][:24]
    questions = [
        ["find"],
        ["blocks"],
        ["caches"],
        ["whatis", *some],
        ["refs", some[0]],
        ["path", some[1]],
        ["roots"],
        ["verify"],
        ["map"],
        ["stacks"],
    ]
    expected = [line for words in questions for line in objects(findleaks(words[0], "--json", *words[1:], str(core)))]
    typed = [" ".join(["leaks", words[0], "--json", *words[1:]]) for words in questions]
    assert len(expected) > 4000
    in_gdb = ["gdb-multiarch", "-nx", "-batch", "-ex", f"source {GDB_LOADER}", "-ex", f"core-file {core}"]
    for command in typed:
        in_gdb += ["-ex", command]
    done = subprocess.run(in_gdb, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    assert without_files(objects(done.stdout)) == without_files(expected)
    in_lldb = lldb(typed, "-c", str(core))
    if core.name == "riscv64.core":
        assert "Don't know how to parse core file" in in_lldb  # LLDB 20 reads them
    else:
        assert without_files(objects(in_lldb)) == without_files(expected)


def without_files(lines: list[str]) -> list[str]:
    """Return the lines. Omit lines about missing files, because each front end gives its own advice about missing files."""
    return [re.sub(r'"warnings": \[("[^"]*not on this machine[^"]*"(, )?)', '"warnings": [', line) for line in lines]


def test_files_of_the_host_are_not_used(kept: tuple[Path, list[truth.Record]], tmp_path: Path) -> None:
    """A libc at the same path with another build-id or for another machine is not used."""
    core, _ = kept
    expected = run_cli("blocks", "--json", str(core), check=True).stdout.splitlines()[:-1]
    for place in (f"{folder}/{machine.triplet}/libc.so.6" for folder in ("lib", "usr/lib") for machine in foreign.MACHINES):
        (tmp_path / place).parent.mkdir(parents=True)
        shutil.copy("/lib/x86_64-linux-gnu/libc.so.6", tmp_path / place)
    answered = run_cli("blocks", "--json", "--sysroot", str(tmp_path), str(core), check=True).stdout.splitlines()
    assert answered[:-1] == expected
    (warning, *_) = json.loads(answered[-1])["warnings"]
    assert "is not the core's" in warning, warning


CODE = {
    "plain": (ARM64, ()),
    "signed": (ARM64, ("-mbranch-protection=standard",)),
    "signed leaves": (ARM64, ("-fomit-frame-pointer", "-mbranch-protection=pac-ret+leaf")),
    "signed, pages of 64 KiB": (ARM64_64K, ("-mbranch-protection=standard",)),
}


@pytest.mark.platform("AArch64", "whole stacks", "signed return addresses")
@pytest.mark.matrix
@pytest.mark.parametrize(("machine", "flags"), CODE.values(), ids=CODE)
def test_stacks(machine: Machine, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Complete stacks through signed return addresses, a signal frame, code made at run time, and a call to an unmapped address."""
    built = foreign_truth.compile_for_glibc(ARM64, "bookworm", truth.PROGRAMS / "stacks.c", tmp_path / "stacks", "-O2", *flags)
    tree = foreign_truth.tree(ARM64, "bookworm")
    programs = {words: foreign.Program(tree, ("./stacks", *words.split()), (built,)) for words in ("", "crash")}
    made = foreign.pictures(machine, {words or "waits": one for words, one in programs.items()})
    files = ("--exe", str(built), "--sysroot", str(tree))
    found = json.loads(run_cli("stacks", "--json", *files, str(made["waits"].core), check=True).stdout)
    assert all(stack["complete"] for stack in found["stacks"])
    begun = ["start", "start_thread", "thread_start"]
    stacks = {stack["count"]: functions(stack) for stack in found["stacks"] if stack["count"] > 1}
    assert stacks == {3: ["pause", "hold", "beta", "alpha", *begun], 2: ["pause", "hold", "gamma_", "alpha", *begun]}
    single = [functions(stack) for stack in found["stacks"] if stack["count"] == 1]
    assert ["pause", "hold", *["down"] * 101, *begun] in single
    assert ["pause", "hold", "", "by_frame_pointer", *begun] in single
    handled = next(names for names in single if "handler" in names)
    assert handled[:3] == ["pause", "hold", "handler"]
    assert handled[-5:] == ["raise", "faulty", *begun]
    assert any(names[-4:] == ["main", "__libc_start_call_main", "__libc_start_main", "_start"] for names in single)
    (stack,) = json.loads(run_cli("stacks", "--json", "-c", "main", *files, str(made["crash"].core), check=True).stdout)["stacks"]
    assert stack["frames"][0]["address"] == "0x0"
    assert functions(stack)[1:] == ["main", "__libc_start_call_main", "__libc_start_main", "_start"]


MIMALLOC = {"bookworm": "libmimalloc.so.2", "trixie": "libmimalloc.so.3", "sid": "libmimalloc.so.3"}
"""By Debian suite. findleaks does not support the older version of bullseye."""
LINKS = {"dynamic": ("-O1",), "static": ("-O2", "-static"), "static-pie": ("-O1", "-static-pie")}


@pytest.mark.platform("AArch64", "glibc, static programs")
@pytest.mark.platform("AArch64", "glibc", of="2.31 to 2.43")
@pytest.mark.matrix
@pytest.mark.parametrize("suite", foreign_truth.LIBCS.values(), ids=foreign_truth.LIBCS)
def test_glibc_of_each_release(suite: str, tmp_path: Path) -> None:
    """Threads, ways to link, and heaps of other shapes, all in one emulated machine."""
    programs = {}
    for link, flags in LINKS.items():
        built = foreign_truth.compile_for_glibc(ARM64, suite, SOURCE, tmp_path / f"truth-{link}", *FLAGS, *flags)
        programs[f"{link}, 5 threads"] = foreign_truth.program(ARM64, suite, built, 5)
        if link == "dynamic":
            programs["33 threads"] = foreign_truth.program(ARM64, suite, built, 33)
            programs["1 thread"] = foreign_truth.program(ARM64, suite, built, 1)
            for option in "hbsdtf":
                programs[f"option {option}"] = foreign_truth.program(ARM64, suite, built, 3, option, 2)
    foreign_truth.check_all(programs)


@pytest.mark.platform("AArch64", "musl's mallocng", of="1.2.2 to 1.2.6")
@pytest.mark.platform("AArch64", "jemalloc", of="5.2.1 to 5.3.1")
@pytest.mark.matrix
@pytest.mark.parametrize("suite", foreign_truth.LIBCS.values(), ids=foreign_truth.LIBCS)
def test_jemalloc_and_musl_of_each_release(suite: str, tmp_path: Path) -> None:
    built = foreign_truth.compile_for_glibc(ARM64, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    preloaded = {"LD_PRELOAD": "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"}
    linked, static = (foreign_truth.compiled_for_musl(ARM64, suite, SOURCE, tmp_path / f"musl-{way}", bool(way)) for way in range(2))
    foreign_truth.check_all(
        {
            "jemalloc, 5 threads": foreign_truth.program(ARM64, suite, built, 5, "a", **preloaded),
            "jemalloc, 33 threads": foreign_truth.program(ARM64, suite, built, 33, "a", **preloaded),
            "musl, 5 threads": foreign_truth.program(ARM64, suite, linked, 5, "a"),
            "musl, 33 threads": foreign_truth.program(ARM64, suite, linked, 33, "a"),
            "musl, static": foreign_truth.program(ARM64, suite, static, 5, "a"),
        }
    )


@pytest.mark.platform("AArch64", "gperftools' tcmalloc", of="2.8.1 to 2.18.1")
@pytest.mark.platform("AArch64", "mimalloc", of="2.0.9 to 3.6")
@pytest.mark.matrix
@pytest.mark.parametrize("suite", foreign_truth.LIBCS.values(), ids=foreign_truth.LIBCS)
def test_tcmalloc_and_mimalloc_of_each_release(suite: str, tmp_path: Path) -> None:
    built = foreign_truth.compile_for_glibc(ARM64, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    for library, settled in (("libtcmalloc_minimal.so.4", None), *([] if suite == "bullseye" else [(MIMALLOC[suite], settle)])):
        preloaded = {"LD_PRELOAD": f"/usr/lib/aarch64-linux-gnu/{library}"}
        threads = {f"{library}, {count} threads": foreign_truth.program(ARM64, suite, built, count, "a", **preloaded) for count in (5, 33)}
        foreign_truth.check_all(threads, settled)


PAGED = {"16 KiB": ARM64_16K, "64 KiB": ARM64_64K}
"""Machines by page size."""


@pytest.mark.platform("AArch64", "pages of 16 KiB", "pages of 64 KiB")
@pytest.mark.matrix
@pytest.mark.parametrize("size", PAGED)
def test_larger_pages(size: str, tmp_path: Path) -> None:
    built = foreign_truth.compile_for_glibc(ARM64, "bookworm", SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    static = foreign_truth.compile_for_glibc(ARM64, "bookworm", SOURCE, tmp_path / "truth-static", *FLAGS, *LINKS["static"])
    musl = foreign_truth.compiled_for_musl(ARM64, "bookworm", SOURCE, tmp_path / "musl", False)
    programs = {}
    for threads in (5, 33):
        for library in ("libjemalloc.so.2", "libtcmalloc_minimal.so.4"):
            preloaded = {"LD_PRELOAD": f"/usr/lib/aarch64-linux-gnu/{library}"}
            programs[f"{library}, {threads} threads"] = foreign_truth.program(ARM64, "bookworm", built, threads, "a", **preloaded)
        programs[f"musl, {threads} threads"] = foreign_truth.program(ARM64, "bookworm", musl, threads, "a")
        programs[f"glibc, {threads} threads"] = foreign_truth.program(ARM64, "bookworm", built, threads)
    programs["glibc, static"] = foreign_truth.program(ARM64, "bookworm", static, 5)
    for option in "hbstf":
        programs[f"glibc, option {option}"] = foreign_truth.program(ARM64, "bookworm", built, 3, option, 2)
    foreign_truth.check_all(programs, machine=PAGED[size])
    preloaded = {"LD_PRELOAD": f"/usr/lib/aarch64-linux-gnu/{MIMALLOC['bookworm']}"}
    threads = {f"mimalloc, {count} threads": foreign_truth.program(ARM64, "bookworm", built, count, "a", **preloaded) for count in (5, 33)}
    foreign_truth.check_all(threads, settle, PAGED[size])


@pytest.mark.platform("AArch64", "tags in pointers")
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("machine", "words", "tunables", "least"),
    [(ARM64, (), {}, 5), (ARM64_MTE, ("own",), {"GLIBC_TUNABLES": "glibc.mem.tagging=3"}, 5000)],
    ids=("of the program", "of malloc"),
)
def test_tags_of_pointers(machine: Machine, words: tuple[str, ...], tunables: dict[str, str], least: int, tmp_path: Path) -> None:
    """Pointers may have tags that the program sets (as in HWASan), or tags of glibc's malloc that the processor checks (MTE)."""
    built = foreign_truth.compile_for_glibc(ARM64, "bookworm", truth.PROGRAMS / "tagged.c", tmp_path / "tagged", *FLAGS, "-O1")
    program = foreign.Program(foreign_truth.tree(ARM64, "bookworm"), ("./tagged", *words), (built,), tunables)
    made = foreign.picture(machine, program)
    tags = {~int(line.split()[1], 16) >> 56 & 0xFF for line in made.output.splitlines()[:-1]}
    assert (len(tags) > 10) == bool(words)
    said = {~int(address, 16) & (1 << 56) - 1: kind for kind, address in (line.split() for line in made.output.splitlines()[:-1])}
    blocks, _ = truth.ask(str(made.core))
    assert {int(block["address"], 16): block["kind"] for block in blocks if int(block["address"], 16) in said} == said
    assert set(said.values()) == {"reachable", "possible", "definite", "indirect"}
    assert len(said) >= least
