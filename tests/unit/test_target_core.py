"""Cores made by hand: what every part of one means, and what happens when a part is wrong."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import struct
import subprocess
import time
from pathlib import Path

import elfcore
import pytest
from elfcore import Load, Task

from findleaks.errors import FindleaksError, TargetError, UnreadableMemory
from findleaks.target.core import CoreTarget, open_core

HEAP, STACK, LIBRARY = 0x5555_0000_0000, 0x7FFC_0000_0000, 0x7F00_0000_0000
NT_PRFPREG, NT_X86_XSTATE = 2, 0x202


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def page(byte: bytes) -> bytes:
    return byte * 4096


def usual(**options: object) -> bytes:
    """A heap, a stack, a reserve without access, two threads."""
    loads = [
        Load(HEAP, 0x2000, page(b"h") + page(b"H")),
        Load(HEAP + 0x2000, 0x10_0000, b"", "---"),
        Load(STACK, 0x1000, page(b"s")),
    ]
    tasks = [
        Task(101, {"rsp": STACK + 0x100, "rip": 0x1234, "fs_base": HEAP + 8, "rbx": 0xB0B}, [(b"CORE", NT_PRFPREG, words(0xF1, 0xF2))]),
        Task(100, {"rsp": STACK + 0x800, "rax": 0xA0A}, [(b"LINUX", NT_X86_XSTATE, words(0xF3) + b"\1\2\3")]),
    ]
    return elfcore.core(loads, tasks, **options)  # type: ignore[arg-type]


def opened(path: Path, data: bytes, **options: str) -> CoreTarget:
    path.write_bytes(data)
    return open_core(str(path), **options)


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("notes_last", [False, True])
def test_a_usual_core(tmp_path: Path, unaligned: bool, notes_last: bool) -> None:
    core = opened(tmp_path / "core", usual(unaligned=unaligned, notes_last=notes_last, vector={25: STACK + 0x10}))
    assert core.description == "core of prog (pid 100), 2 threads"
    assert (core.pid, core.live, core.truncated, core.warnings, core.unread) == (100, False, False, [], [])
    assert [(r.start, r.end, r.readable, r.writable, r.name) for r in core.regions()] == [
        (HEAP, HEAP + 0x2000, True, True, ""),
        (HEAP + 0x2000, HEAP + 0x10_2000, False, False, ""),
        (STACK, STACK + 0x1000, True, True, "[stack]"),
    ]
    assert core.read(HEAP + 0xFFF, 2) == b"hH"
    assert core.word(STACK) == int.from_bytes(b"s" * 8, "little")
    assert sum(len(p.data) for p in core.pieces(0, 1 << 64)) == 0x3000
    with pytest.raises(UnreadableMemory):
        core.read(HEAP + 0x2000, 1)
    core.close()
    with pytest.raises(UnreadableMemory):
        core.read(HEAP, 1)


def test_threads_come_main_first_with_all_their_words(tmp_path: Path) -> None:
    main, other = opened(tmp_path / "core", usual()).threads()
    assert (main.tid, other.tid) == (100, 101)
    assert (other.sp, other.pc, other.thread_pointer) == (STACK + 0x100, 0x1234, HEAP + 8)
    assert other.registers["rbx"] == 0xB0B
    assert {0xB0B, 0xF1, 0xF2} <= set(other.words)
    assert {0xA0A, 0xF3} <= set(main.words)
    assert not {0xF1, 0xF3} & (set(main.words) ^ {0xF3})


@pytest.mark.parametrize("size", [4096, 1])
def test_mapped_files_name_regions_in_bytes_whatever_the_page_size(tmp_path: Path, size: int) -> None:
    """NT_FILE's offsets are in pages of 4096 in the kernel's cores, in bytes in GDB's. A segment that spans a file and what lies
    behind it is split; a mapped file without a segment becomes a region that is not writable."""
    mapped = [(HEAP, HEAP + 0x1000, 0x3000, "/data/file"), (LIBRARY, LIBRARY + 0x1000, 0x5000, "/no/such/file")]
    core = opened(tmp_path / "core", usual(mapped=mapped, page=size))
    named = {r.start: r for r in core.regions()}
    assert (named[HEAP].end, named[HEAP].name, named[HEAP].file_offset) == (HEAP + 0x1000, "/data/file", 0x3000)
    assert (named[HEAP + 0x1000].name, named[HEAP + 0x1000].file_offset) == ("", 0)
    assert (named[LIBRARY].name, named[LIBRARY].writable, named[LIBRARY].file_offset) == ("/no/such/file", False, 0x5000)
    assert [r.start for r in core.regions()] == sorted(named)


def test_writable_memory_that_was_left_out(tmp_path: Path) -> None:
    """Anonymous memory without a byte was never touched. A file's is elsewhere, and pointers in it cannot be seen."""
    loads = [
        Load(HEAP, 0x1000, page(b"h")),
        Load(HEAP + 0x10000, 0x1000),
        Load(HEAP + 0x20000, 0x2000),
        Load(HEAP + 0x30000, 0x2000, page(b"x")),
    ]
    mapped = [(HEAP + 0x20000, HEAP + 0x22000, 0, "/dev/shm/ring")]
    core = opened(tmp_path / "core", elfcore.core(loads, [Task(100, {"rsp": HEAP})], mapped=mapped))
    assert core.unread == [(HEAP + 0x20000, HEAP + 0x22000), (HEAP + 0x31000, HEAP + 0x32000)]
    assert core.warnings == ["8.0 KiB of writable files are not in the core (/dev/shm/ring): pointers in them are not seen."]


def test_a_core_without_anonymous_memory_says_so(tmp_path: Path) -> None:
    core = opened(tmp_path / "core", elfcore.core([Load(HEAP, 0x1000), Load(LIBRARY, 0x1000, page(b"r"), "r--")], [Task(100)]))
    assert core.unread == [(HEAP, HEAP + 0x1000)]
    assert any("coredump_filter" in warning for warning in core.warnings)


def test_no_notes(tmp_path: Path) -> None:
    core = opened(tmp_path / "core", elfcore.core([Load(HEAP, 0x1000, page(b"h"))]))
    assert core.threads() == []
    assert core.read(HEAP, 1) == b"h"
    assert any("registers and stacks are unknown" in warning for warning in core.warnings)


def test_70033_segments_open_in_well_under_a_second(tmp_path: Path) -> None:
    loads = [Load(HEAP + i * 0x3000, 0x1000, page(b"d") if i % 1000 == 0 else b"") for i in range(70_033)]
    (tmp_path / "core").write_bytes(elfcore.core(loads, [Task(100, {"rsp": HEAP})]))
    start = time.process_time()
    core = open_core(str(tmp_path / "core"))
    spent = time.process_time() - start
    assert len(core.regions()) == 70_033
    assert core.read(HEAP + 70_000 * 0x3000, 4096) == page(b"d")
    assert spent < 1.0


def test_modules_without_a_list_of_files_are_found_by_their_headers(tmp_path: Path) -> None:
    """As in a core cut before GDB's notes: the segments that start with an ELF header are modules, named by DT_SONAME."""
    source = tmp_path / "l.c"
    source.write_text("int shared_data = 7; int shared_function(void) { return shared_data; }")
    library = tmp_path / "libx.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id,-soname,libx.so.1", "-o", library, source], check=True)
    core = opened(tmp_path / "core", elfcore.core(image_of(library), [Task(100, {"rsp": LIBRARY})]))
    (module,) = core.modules()
    assert (module.path, module.bias, module.start) == ("libx.so.1", LIBRARY, LIBRARY)
    printed = subprocess.run(["readelf", "-nW", library], capture_output=True, text=True, check=True).stdout
    assert module.build_id in printed
    assert len(module.build_id) == 40
    found = core.symbol("shared_data")
    assert found is not None
    assert core.read(found.address, 4) == b"\7\0\0\0"
    function = core.symbolize(core.symbol("shared_function").address + 1)  # type: ignore[union-attr]
    assert function is not None
    assert function.name == "shared_function"


def image_of(library: Path, only_first_page: bool = False) -> list[Load]:
    """The PT_LOADs of a library as they stand in memory at LIBRARY."""
    from findleaks.target import elf

    data = library.read_bytes()
    loads = []
    for s in elf.segments(data, elf.header(data)):
        if s.type != elf.PT_LOAD:
            continue
        low, high = s.vaddr // 4096 * 4096, -(-(s.vaddr + s.memsz) // 4096) * 4096
        offset = s.offset - (s.vaddr - low)
        dumped = data[offset : s.offset + s.filesz].ljust(high - low, b"\0")
        if only_first_page and not s.flags & elf.PF_W:
            dumped = dumped[:4096] if offset == 0 else b""
        mode = "r" + ("w" if s.flags & elf.PF_W else "-") + ("x" if s.flags & elf.PF_X else "-")
        loads.append(Load(LIBRARY + low, high - low, dumped, mode))
    return loads


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    (folder / "l.c").write_text('const char text[] = "constant in the file"; int shared_function(void) { return 1; }')
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id", "-o", folder / "libx.so", folder / "l.c"], check=True)
    return folder / "libx.so"


def mapped_as(library: Path, path: str) -> list[tuple[int, int, int, str]]:
    from findleaks.target import elf

    data = library.read_bytes()
    rows = []
    for s in elf.segments(data, elf.header(data)):
        if s.type == elf.PT_LOAD:
            low, end = s.vaddr // 4096 * 4096, -(-(s.vaddr + s.filesz) // 4096) * 4096
            rows.append((LIBRARY + low, LIBRARY + end, s.offset - (s.vaddr - low), path))
    return rows


def core_with(library: Path, path: str, only_first_page: bool = True) -> bytes:
    loads = [Load(HEAP, 0x1000, page(b"h")), *image_of(library, only_first_page)]
    return elfcore.core(loads, [Task(100, {"rsp": HEAP})], mapped=mapped_as(library, path))


def constant_of(core: CoreTarget) -> bool:
    """Whether the constant that stands in the file only can be read. (The symbol itself may come from the first page.)"""
    text = core.symbol("text", "lib")
    assert text is not None
    try:
        return core.read(text.address, 20) == b"constant in the file"
    except UnreadableMemory:
        return False


def test_bytes_the_core_lacks_come_from_the_file_with_the_same_build_id(tmp_path: Path, library: Path) -> None:
    core = opened(tmp_path / "core", core_with(library, str(library)))
    assert core.warnings == []
    assert constant_of(core)
    code = core.symbol("shared_function")
    assert code is not None
    assert core.symbolize(code.address + 2) is not None
    assert core.read(code.address, 4) == library.read_bytes()[code.address - LIBRARY :][:4]


def test_sysroot_and_deleted_files(tmp_path: Path, library: Path) -> None:
    lost = opened(tmp_path / "core", core_with(library, "/opt/x/libx.so (deleted)"))
    assert lost.warnings == ["libx.so (deleted): not on this machine: read-only data and symbols are missing. Give --sysroot."]
    assert not constant_of(lost)
    (tmp_path / "root/opt/x").mkdir(parents=True)
    (tmp_path / "root/opt/x/libx.so").write_bytes(library.read_bytes())
    assert constant_of(opened(tmp_path / "core", core_with(library, "/opt/x/libx.so (deleted)"), sysroot=str(tmp_path / "root")))
    flat = opened(tmp_path / "core", core_with(library, "/opt/x/libx.so"), sysroot=str(library.parent))
    assert constant_of(flat), "a folder with all the files side by side will do"


def test_a_module_whose_headers_are_not_in_the_core_is_listed_but_its_file_is_not_used(tmp_path: Path, library: Path) -> None:
    """As with coredump_filter 0x23: there is no build-id to compare the file with."""
    loads = [Load(HEAP, 0x1000, page(b"h")), *image_of(library, only_first_page=True)]
    loads[1] = Load(LIBRARY, loads[1].size, b"", loads[1].mode)
    data = elfcore.core(loads, [Task(100, {"rsp": HEAP})], mapped=mapped_as(library, str(library)))
    core = opened(tmp_path / "core", data)
    (module,) = core.modules()
    assert (module.path, module.start, module.build_id) == (str(library), LIBRARY, "")
    assert module.end == mapped_as(library, "")[-1][1]
    (warning,) = core.warnings
    assert warning.startswith("libx.so: without a build-id in the core to compare with this machine's file: ")
    assert core.symbol("text") is None
    with pytest.raises(UnreadableMemory):
        core.read(LIBRARY, 4)


def test_another_build_of_the_file_is_not_used(tmp_path: Path, library: Path) -> None:
    data = core_with(library, str(tmp_path / "libx.so"))
    (tmp_path / "l.c").write_text('const char text[] = "something else"; int shared_function(void) { return 2; }')
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id", "-o", tmp_path / "libx.so", tmp_path / "l.c"], check=True)
    core = opened(tmp_path / "core", data)
    (warning,) = core.warnings
    assert warning.startswith("libx.so on this machine (build-id ")
    assert f"is not the core's ({core.modules()[0].build_id[:8]}…): not used. Give --sysroot." in warning
    assert not constant_of(core)


def test_files_without_build_ids_are_compared_by_their_first_page(tmp_path: Path) -> None:
    """musl's dynamic linker has no build-id."""
    (tmp_path / "l.c").write_text('const char text[] = "constant in the file"; int shared_function(void) { return 1; }')
    made = tmp_path / "libm.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id=none", "-o", made, tmp_path / "l.c"], check=True)
    data = core_with(made, str(made))
    assert constant_of(opened(tmp_path / "core", data))
    changed = bytearray(made.read_bytes())
    changed[0x600] ^= 1
    made.write_bytes(changed)
    core = opened(tmp_path / "core", data)
    assert not constant_of(core)
    assert len(core.warnings) == 1


# -- bad input


def check_line(error: FindleaksError) -> None:
    assert "\n" not in str(error)


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(TargetError) as caught:
        open_core(str(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_each_file_that_is_no_core_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(TargetError, match="no such file"):
        open_core(str(path))
    with pytest.raises(TargetError, match="folder"):
        open_core(str(tmp_path))
    with pytest.raises(TargetError, match="no file name"):
        open_core("a\0b")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TargetError, match="not a regular file"):
        open_core(str(tmp_path / "fifo"))
    assert "empty" in refusal(path, b"")
    assert "not an ELF file" in refusal(path, b"hello, world\n" * 10)
    assert "minidump" in refusal(path, b"MDMP" + bytes(100))
    assert "lz4" in refusal(path, b"\x04\x22\x4d\x18" + bytes(100))
    assert "cut off" in refusal(path, b"\x7fELF\2\1\1" + bytes(20))
    assert "not an ELF file" in refusal(path, b"\x7fELF\2\1\1")
    assert "not a core file" in refusal(path, elfcore.core([Load(HEAP, 4096, page(b"h"))], kind=2))
    assert "AArch64" in refusal(path, elfcore.core([Load(HEAP, 4096, page(b"h"))], machine=183))
    assert "x86-64" in refusal(path, elfcore.core([Load(HEAP, 4096, page(b"h"))], machine=183))
    assert "no memory" in refusal(path, elfcore.core([], [Task(1)]))
    assert "no memory" in refusal(path, usual()[:4096])
    assert "no memory" in refusal(path, usual()[:70])


def test_permission_is_needed(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        path = tmp_path / "core"
        path.write_bytes(usual())
        path.chmod(0)
        tmp_path.chmod(0o755)
        program = f"from findleaks.target.core import open_core\nopen_core({str(path)!r})"
        result = subprocess.run(
            ["setpriv", "--reuid=65534", "--clear-groups", "cat", str(path)], capture_output=True, text=True, check=False
        )
        assert result.returncode != 0
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setuid(65534)
                exec(program)
            except TargetError as error:
                status = 0 if "permission denied" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    else:
        path = tmp_path / "core"
        path.write_bytes(usual())
        path.chmod(0)
        with pytest.raises(TargetError, match="permission denied"):
            open_core(str(path))


@pytest.mark.parametrize("notes_last", [False, True])
def test_truncated_anywhere_gives_a_line_or_partial_results(tmp_path: Path, notes_last: bool) -> None:
    data = usual(notes_last=notes_last)
    path = tmp_path / "core"
    partial = 0
    for size in [*range(1, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:size])
        try:
            core = open_core(str(path))
        except TargetError as error:
            check_line(error)
            continue
        partial += 1
        assert core.truncated
        assert "truncated" in core.warnings[0]
        for piece in core.pieces(0, 1 << 64):
            assert set(bytes(piece.data)) <= set(b"hHs")
        assert sum(len(p.data) for p in core.pieces(0, 1 << 64)) + sum(r.end - r.start for r in core.unread) == 0x3000
        core.close()
    assert partial > 50


def test_a_truncated_core_says_how_many_stacks_are_missing(tmp_path: Path) -> None:
    data = usual()
    core = opened(tmp_path / "core.cut", data[: len(data) - 4096])
    assert core.warnings[0] == (
        "core.cut: truncated: 12 KiB of 16 KiB are there; 2 of 2 thread stacks are missing. "
        "What is found lost may be referred to from the missing part."
    )
    assert core.unread == [(STACK, STACK + 0x1000)]


def exercise(core: CoreTarget) -> None:
    """Ask a target for everything."""
    for region in core.regions():
        assert region.start < region.end
    for low, high in zip(core.regions(), core.regions()[1:]):
        assert low.end <= high.start
    for piece in core.pieces(0, 1 << 64):
        assert len(piece.data)
    for thread in core.threads():
        core.symbolize(thread.pc)
    for module in core.modules():
        core.symbolize(module.start + 0x1000)
    core.symbol("malloc")
    for address in (0, HEAP, HEAP + 0x1FFC, STACK, (1 << 64) - 4, LIBRARY):
        try:
            core.word(address)
        except UnreadableMemory:
            pass


def test_flipped_bytes_give_a_line_or_a_target(tmp_path: Path, library: Path) -> None:
    original = core_with(library, str(library), only_first_page=False)
    front = len(original) - sum(len(load.data) for load in image_of(library)) - 4096
    chance = random.Random(20)
    path = tmp_path / "core"
    survived = 0
    for round_ in range(600):
        data = bytearray(original)
        span = front if round_ % 3 else len(data)
        for _ in range(chance.choice((1, 1, 2, 8))):
            data[chance.randrange(span)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        path.write_bytes(data)
        start = time.monotonic()
        try:
            core = open_core(str(path))
            survived += 1
            exercise(core)
            core.close()
        except FindleaksError as error:
            check_line(error)
        assert time.monotonic() - start < 5
    assert survived > 300


# -- packed cores


def pack_zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-q"], input=data, capture_output=True, check=True).stdout


PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": pack_zstd}


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_cores(tmp_path: Path, kind: str) -> None:
    data = usual()
    path = tmp_path / f"core.{kind}"
    core = opened(path, PACKERS[kind](data))
    assert (core.warnings, core.truncated, core.path) == ([], False, str(path))
    assert core.read(HEAP, 0x2000) == page(b"h") + page(b"H")
    assert len(core.threads()) == 2
    two = opened(path, PACKERS[kind](data[:5000]) + PACKERS[kind](data[5000:]))
    assert two.read(HEAP, 0x2000) == page(b"h") + page(b"H"), "the streams of a file that was packed in parts are joined"


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_cores_that_are_cut_or_damaged(tmp_path: Path, kind: str) -> None:
    chance = random.Random(5)
    noise = chance.randbytes(1 << 20)
    whole = elfcore.core([Load(HEAP, 1 << 20, noise), Load(STACK, 0x1000, page(b"s"))], [Task(100, {"rsp": STACK})])
    packed = PACKERS[kind](whole)
    path = tmp_path / f"core.{kind}"
    refused = partial = 0
    for size in (3, 30, len(packed) // 2, len(packed) - 1):
        path.write_bytes(packed[:size])
        try:
            core = open_core(str(path))
        except TargetError as error:
            check_line(error)
            refused += 1
            continue
        partial += 1
        assert core.truncated
        assert "cut off or damaged" in core.warnings[0]
        for piece in core.pieces(HEAP, HEAP + (1 << 20)):
            assert bytes(piece.data) == noise[piece.address - HEAP :][: len(piece.data)]
    assert refused >= 1
    assert kind == "bz2" or partial >= 1
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0x55
    path.write_bytes(damaged)
    try:
        assert open_core(str(path)).warnings
    except TargetError as error:
        check_line(error)


def test_the_zstd_program_serves_where_python_has_no_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    packed = pack_zstd(usual())
    assert opened(tmp_path / "core.zst", packed).read(HEAP, 1) == b"h"
    cut = opened(tmp_path / "cut.zst", pack_zstd(usual() + random.Random(1).randbytes(1 << 20))[:-1000])
    assert cut.truncated
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "zstd program" in refusal(tmp_path / "core.zst", packed)


def test_unpacked_zeros_are_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from findleaks.target.compressed import unpacked

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(b"\x7fELF" + bytes(64 << 20) + b"end"))
    fd, cut = unpacked(os.open(path, os.O_RDONLY), "zeros.gz", path.read_bytes()[:8])
    try:
        info = os.fstat(fd)
        assert (info.st_size, cut) == ((64 << 20) + 7, "")
        assert info.st_blocks * 512 < 1 << 20
        assert os.pread(fd, 3, (64 << 20) + 4) == b"end"
    finally:
        os.close(fd)
    assert os.listdir(tmp_path) == ["zeros.gz"], "the unpacked file has no name"


def test_no_room_to_unpack_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "core.gz"
    path.write_bytes(gzip.compress(usual()))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TargetError, match=r"No space left on device.*TMPDIR"):
        open_core(str(path))
