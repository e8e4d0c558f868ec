"""Files that are not cores, or are unreadable, truncated or damaged: one line reports this, and all readable data are used."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import elfcore
import pytest
from elfcore import Load, Task
from handmade import HEAP, LIBRARY, STACK, built_library, check_line, core_with, image_of, open_bytes, page, refusal, usual

from findleaks.errors import FindleaksError, TargetError, UnreadableMemory
from findleaks.target.core import CoreTarget, open_core


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_library(tmp_path_factory.mktemp("root"))


def test_files_that_are_no_core_give_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(TargetError, match="no such file"):
        open_core(str(path))
    with pytest.raises(TargetError, match="directory"):
        open_core(str(tmp_path))
    with pytest.raises(TargetError, match="not a valid file name"):
        open_core("a\0b")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TargetError, match="not a regular file"):
        open_core(str(tmp_path / "fifo"))
    assert "empty" in refusal(path, b"")
    assert "not an ELF file" in refusal(path, b"hello, world\n" * 10)
    assert "lz4" in refusal(path, b"\x04\x22\x4d\x18" + bytes(100))
    assert "cut off" in refusal(path, b"\x7fELF\2\1\1" + bytes(20))
    assert "not an ELF file" in refusal(path, b"\x7fELF\2\1\1")
    assert "expected a core file, got a program" in refusal(path, elfcore.core([Load(HEAP, 4096, page(b"h"))], kind=2))
    assert "LoongArch" in refusal(path, elfcore.core([Load(HEAP, 4096, page(b"h"))], machine=258))
    known = "only x86-64, AArch64, i386, ARM, RISC-V, PowerPC64 and s390x are supported"
    assert known in refusal(path, elfcore.core([Load(HEAP, 4096, page(b"h"))], machine=258))
    assert "the core has no memory" in refusal(path, elfcore.core([], [Task(1)]))
    assert "without any memory" in refusal(path, usual()[:4096])
    assert "truncated: only 70 B are left, without any memory" in refusal(path, usual()[:70])


def test_a_core_of_x32_is_refused(tmp_path: Path) -> None:
    """x86-64 with words of 4 bytes: the core is accepted neither as x86-64 nor as i386. Few systems run such programs,
    so this core is made from a program's file."""
    words = ["gcc", "-mx32", "-nostdlib", "-static", "-o", str(tmp_path / "x32"), "-x", "c", "-"]
    subprocess.run(words, input=b"void _start(void) { for (;;); }", check=True)
    image = bytearray((tmp_path / "x32").read_bytes())
    image[16:18] = (4).to_bytes(2, "little")  # e_type: ET_CORE
    said = refusal(tmp_path / "core", bytes(image))
    assert "of x86-64 (32-bit); only x86-64, AArch64, i386, ARM, RISC-V, PowerPC64 and s390x are supported" in said


def test_missing_permission_is_reported(tmp_path: Path) -> None:
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
def test_truncation_gives_one_line_or_partial_results(tmp_path: Path, notes_last: bool) -> None:
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


def test_missing_stacks_of_a_truncated_core_are_counted(tmp_path: Path) -> None:
    data = usual()
    core = open_bytes(tmp_path / "core.cut", data[: len(data) - 4096])
    assert core.warnings[0] == (
        "core.cut: truncated: 12 KiB of 16 KiB are left; 2 of 2 thread stacks are missing. "
        "Blocks reported as leaked may be referenced from the missing part."
    )
    assert core.unread == [(STACK, STACK + 0x1000)]


def test_a_core_a_few_bytes_short_is_reported_in_bytes(tmp_path: Path) -> None:
    data = usual()
    core = open_bytes(tmp_path / "core.cut", data[:-3])
    assert f"truncated: {len(data) - 3:,} of {len(data):,} bytes are left" in core.warnings[0]


def exercise(core: CoreTarget) -> None:
    """Call every method of a target."""
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


def test_flipped_bytes_give_one_line_or_a_target(tmp_path: Path, library: Path) -> None:
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
        start = time.process_time()
        try:
            core = open_core(str(path))
            survived += 1
            exercise(core)
            core.close()
        except FindleaksError as error:
            check_line(error)
        assert time.process_time() - start < 5
    assert survived > 300
