"""Cores of programs, written by the kernel and by GDB, give the results that the program prints and that the live process gives."""

from __future__ import annotations

import io
import random
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from agree import SOURCE, check_agree, check_truth, content, parse_addresses
from elftools.elf.elffile import ELFFile
from hostile import lines_run

from cores import Running
from findleaks.errors import TargetError, UnreadableMemory
from findleaks.target.copied import attach
from findleaks.target.core import open_core

THREADS = 4


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-g", "-pthread", "-o", folder / "program", folder / "program.c"], check=True)
    return folder / "program"


@pytest.fixture(scope="module")
def pictures(program: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, int]]]:
    """Return GDB's core and the kernel's core of the same process."""
    with Running([str(program), str(THREADS)], tmp_path_factory.mktemp("run")) as run:
        at = parse_addresses(run.output)
        return {"gcore": (run.gcore(), at), "kernel": (run.kernel_core(), at)}


def test_cores_show_what_the_program_did(pictures: dict[str, tuple[Path, dict[str, int]]]) -> None:
    for path, at in pictures.values():
        with open_core(str(path)) as core:
            assert (core.warnings, core.unread, core.truncated) == ([], [], False)
            assert core.description.endswith(f"(pid {core.pid}), {THREADS + 1} threads")
            check_truth(core, at, THREADS)


def test_kernel_core_gcore_and_live_process_agree(program: Path, tmp_path: Path) -> None:
    with Running([str(program), str(THREADS)], tmp_path) as run:
        at = parse_addresses(run.output)
        with open_core(str(run.gcore())) as core:
            with attach(run.pid) as live:
                check_truth(live, at, THREADS)
                check_agree(core, live)
            with open_core(str(run.kernel_core())) as other:
                # The signal that ends the program uses only the main thread's stack below the stack pointer, so the results are the same.
                check_agree(core, other)


def test_missing_memory(pictures: dict[str, tuple[Path, dict[str, int]]], program: Path, tmp_path: Path) -> None:
    path, at = pictures["gcore"]
    with open_core(str(path)) as core:
        assert content(core, at["untouched"], at["untouched"] + 4096) == bytes(4096)
        with pytest.raises(UnreadableMemory):
            core.read(0x1000, 8)
    # This needs a separate process, because gcore reads the untouched page, which makes the page resident.
    with Running([str(program), "1"], tmp_path) as run:
        at = parse_addresses(run.output)
        path = run.kernel_core()
    with open_core(str(path)) as core:
        for name in ("untouched", "reserved"):
            with pytest.raises(UnreadableMemory):
                core.read(at[name], 8)
        assert not any(start <= at["untouched"] < end for start, end in core.unread)


def check_line(error: TargetError) -> None:
    assert "\n" not in str(error)


def raw(desc: object) -> bytes:
    """Return the bytes of a note. Older releases of pyelftools return text."""
    return desc.encode("latin-1") if isinstance(desc, str) else bytes(desc)  # type: ignore[call-overload]


def test_segments_notes_and_files_agree_with_pyelftools(pictures: dict[str, tuple[Path, dict[str, int]]]) -> None:
    for path, _ in pictures.values():
        with path.open("rb") as file, open_core(str(path)) as core:
            theirs = ELFFile(file)
            loads = [s for s in theirs.iter_segments() if s["p_type"] == "PT_LOAD"]
            starts = {r.start for r in core.regions()}
            assert {s["p_vaddr"] for s in loads} <= starts
            for s in loads[::3]:
                if s["p_filesz"]:
                    assert core.read(s["p_vaddr"], min(s["p_filesz"], 4096)) == s.data()[:4096]
            notes = [n for s in theirs.iter_segments() if s["p_type"] == "PT_NOTE" for n in s.iter_notes()]
            tids = {int.from_bytes(raw(n["n_desc"])[32:36], "little") for n in notes if n["n_type"] == "NT_PRSTATUS"}
            assert tids == {t.tid for t in core.threads()}
            (files,) = [n["n_desc"] for n in notes if n["n_type"] == "NT_FILE"]
            for entry, name in zip(files["Elf_Nt_File_Entry"], files["filename"]):
                region = next(r for r in core.regions() if r.start == entry["vm_start"])
                assert region.name == name.decode()
                assert region.file_offset == entry["page_offset"] * files["page_size"]


def test_build_ids_agree_with_readelf(pictures: dict[str, tuple[Path, dict[str, int]]]) -> None:
    for path, _ in pictures.values():
        with open_core(str(path)) as core:
            assert len(core.modules()) >= 3
            for module in core.modules():
                if module.path.startswith("/"):
                    printed = subprocess.run(["readelf", "-nW", module.path], capture_output=True, text=True, check=True).stdout
                    assert re.search(r"Build ID: (\w+)", printed).group(1) == module.build_id  # type: ignore[union-attr]


def test_the_stripped_program_can_be_named(program: Path, tmp_path: Path) -> None:
    """With --exe, symbols come from a file at another path. findleaks does not use a file that is not the program of the core."""
    hidden = tmp_path / "elsewhere" / "program"
    hidden.parent.mkdir()
    run_here = tmp_path / "program"
    run_here.write_bytes(program.read_bytes())
    run_here.chmod(0o755)
    with Running([str(run_here), "1"], tmp_path / "run") as run:
        made = run.gcore()
        at = parse_addresses(run.output)
    run_here.rename(hidden)
    with open_core(str(made)) as core:
        assert core.symbol("in_data") is None
        (warning,) = core.warnings
        assert warning == "program: not on this machine: read-only data and symbols are missing. Give --sysroot."
    with open_core(str(made), exe=str(hidden)) as core:
        assert core.warnings == []
        assert core.symbol("in_data").address == at["in_data"]  # type: ignore[union-attr]
    with open_core(str(made), exe="/bin/true") as core:
        assert "true on this machine (build-id " in core.warnings[0]
        assert core.symbol("in_data") is None


@pytest.mark.parametrize("flags", [["-static"], ["-static-pie"], ["-no-pie"], ["-s"]], ids=lambda flags: flags[0])
def test_other_kinds_of_programs(tmp_path: Path, flags: list[str]) -> None:
    """Programs without a dynamic linker, at a fixed address, or stripped: core and process give the same results."""
    (tmp_path / "program.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-pthread", *flags, "-o", tmp_path / "program", tmp_path / "program.c"], check=True)
    with Running([str(tmp_path / "program"), "2"], tmp_path / "run") as run:
        at = parse_addresses(run.output)
        with open_core(str(run.gcore())) as core, attach(run.pid) as live:
            check_agree(core, live)
            for target in (core, live):
                main = next(m for m in target.modules() if m.path.endswith("/program"))
                assert main.start <= at["constant"] < at["in_bss"] + (1 << 20) <= main.end
                assert (main.bias == 0) == (flags[0] in ("-static", "-no-pie"))
                assert target.read(at["constant"], 10) == b"a constant"
                found = target.symbol("in_data")
                if flags == ["-s"]:
                    assert found is None
                else:
                    assert found is not None
                    assert found.address == at["in_data"]
                assert [t.registers["r12"] & 0xFFFF00000000 for t in target.threads()[1:]] == [0x123400000000] * 2


def test_a_core_without_elf_headers(program: Path, tmp_path: Path) -> None:
    with Running([str(program), "1"], tmp_path) as run:
        at = parse_addresses(run.output)
        Path(f"/proc/{run.pid}/coredump_filter").write_text("0x23")
        path = run.kernel_core()
    with open_core(str(path)) as core:
        assert {Path(m.path).name for m in core.modules()} >= {"program", "libc.so.6"}
        assert all(not m.build_id for m in core.modules() if m.path.startswith("/"))
        assert len(core.warnings) == 1
        assert "without a build-id in the core" in core.warnings[0]
        assert core.word(at["in_data"]) == 0x11223344
        with pytest.raises(UnreadableMemory):
            core.read(at["constant"], 8)


def test_truncated_at_1_50_and_99_percent(pictures: dict[str, tuple[Path, dict[str, int]]], tmp_path: Path) -> None:
    for kind, (path, at) in pictures.items():
        whole = path.read_bytes()
        for percent in (1, 50, 99):
            cut = tmp_path / f"{kind}.{percent}"
            cut.write_bytes(whole[: len(whole) * percent // 100])
            try:
                core = open_core(str(cut))
            except TargetError as error:
                check_line(error)
                assert percent == 1, error
                continue
            with core:
                assert core.truncated
                assert core.unread
                assert core.warnings[0].startswith(f"{cut.name}: truncated: ")
                assert core.modules()
                assert sum(len(p.data) for p in core.pieces(0, 1 << 64)) > 0
                if kind == "kernel":
                    assert len(core.threads()) == THREADS + 1
                    assert core.word(at["in_data"]) == 0x11223344
            cut.unlink()


def test_packed_with_zstd_and_gzip(pictures: dict[str, tuple[Path, dict[str, int]]], tmp_path: Path) -> None:
    path, at = pictures.get("kernel", pictures["gcore"])
    for tool, suffix in (("zstd", "zst"), ("gzip", "gz")):
        packed = tmp_path / f"core.{suffix}"
        with packed.open("wb") as out:
            subprocess.run([tool, "-1", "-c", path], stdout=out, stderr=subprocess.DEVNULL, check=True)
        with open_core(str(packed)) as core:
            assert core.warnings == []
            check_truth(core, at, THREADS)


def test_opening_and_lookups_run_few_lines(pictures: dict[str, tuple[Path, dict[str, int]]]) -> None:
    """Count executed lines of Python, because times depend on the load of the machine. test_start.py counts imported modules."""
    path, at = pictures["gcore"]
    opened = []
    assert lines_run(lambda: opened.append(open_core(str(path)))) < 60_000
    with opened[0] as core:
        assert lines_run(lambda: [core.word(at["big"] + 8 * i) for i in range(10_000)]) < 6 * 10_000
        libc = next(m for m in core.modules() if "libc.so" in m.path)
        assert core.symbolize(libc.start + 0x28000) is not None  # reads the symbols
        found = []
        assert lines_run(lambda: found.extend(core.symbolize(libc.start + 0x28000 + 64 * i) for i in range(10_000))) < 100 * 10_000
        assert sum(symbol is not None for symbol in found) > 5_000


def look_around(path: Path, addresses: Iterable[int]) -> None:
    with open_core(str(path)) as core:
        for thread in core.threads():
            core.symbolize(thread.pc)
        core.symbol("malloc")
        for address in addresses:
            with suppress(UnreadableMemory):
                core.word(address)


def test_flipped_bytes_of_a_real_core(pictures: dict[str, tuple[Path, dict[str, int]]], tmp_path: Path) -> None:
    """Flip bytes in the headers and notes of a core. findleaks prints one line or opens the core, in limited time."""
    path, at = pictures.get("kernel", pictures["gcore"])
    with path.open("rb") as file:
        theirs = ELFFile(io.BytesIO(file.read()))
    spans = [(0, theirs.header["e_phoff"] + theirs.header["e_phnum"] * 56)]
    spans += [(s["p_offset"], s["p_filesz"]) for s in theirs.iter_segments() if s["p_type"] == "PT_NOTE"]
    chance = random.Random(7)
    copy = tmp_path / "core"
    subprocess.run(["cp", "--sparse=always", path, copy], check=True)
    opened = 0
    with copy.open("r+b", buffering=0) as file:
        for _ in range(150):
            undo = []
            for _ in range(chance.choice((1, 2, 5))):
                low, size = chance.choice(spans)
                where = low + chance.randrange(size)
                file.seek(where)
                undo.append((where, file.read(1)))
                file.seek(where)
                file.write(bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))]))
            try:
                lines_run(partial(look_around, copy, at.values()), 1_000_000)
                opened += 1
            except TargetError as error:
                check_line(error)
            for where, byte in reversed(undo):
                file.seek(where)
                file.write(byte)
    assert opened > 75
