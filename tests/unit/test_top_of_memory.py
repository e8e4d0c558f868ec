"""Cores with memory, and addresses in registers, at the very end of the address space, where the sum of an address and
a size does not fit in 64 bits."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import elfcore
import pytest
from elfcore import Load, Task
from handmade import HEAP, open_bytes, page
from variants import mark_matrix_except

from findleaks import cli
from findleaks.target import elf

ROOT = Path(__file__).resolve().parents[2]
TOP = 1 << 64
COMMANDS = ("find", "verdict", "roots", "map", "verify", "blocks", "caches", "stacks", "runtime", "scopes")
ASKED = [hex(at) for at in (TOP - 1, TOP - 8, TOP - 0x1000, TOP - 0x1008, TOP - 0x2000)]


def move_segment(core: bytes) -> bytes:
    """Return a core whose last segment of one page is at the end of the address space, has twice the size, and is writable."""
    data = bytearray(core)
    head = elf.header(data)
    last = head.phnum - 1
    segment = elf.segments(data, head)[last]
    assert (segment.type, segment.memsz) == (elf.PT_LOAD, 0x1000)
    at = head.phoff + last * head.phentsize
    words = struct.pack("<1024Q", *(TOP - 0x2000 + 8 * number for number in range(1024)))
    fields = (elf.PT_LOAD, elf.PF_R | elf.PF_W, len(data), TOP - 0x2000, 0, 0x2000, 0x2000, 0x1000)
    struct.pack_into("<IIQQQQQQ", data, at, *fields)
    return bytes(data) + words


def run(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[int, str, str]:
    status = cli.main(words)
    out, err = capsys.readouterr()
    assert "mistake" not in err, f"{words}: {err}"
    return status, out, err


@pytest.mark.parametrize("pure", mark_matrix_except(["", "1"], ""))
def test_every_command_on_a_core_that_reaches_the_end(
    tmp_path: Path, pure: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINDLEAKS_PURE", pure)
    whole = gzip.decompress((ROOT / "cores/sample.core.gz").read_bytes())
    same, path = tmp_path / "same", tmp_path / "core"
    same.write_bytes(whole)
    path.write_bytes(move_segment(whole))
    answers = [json.loads(run(capsys, ["find", "--json", str(core)])[1]) for core in (same, path)]
    assert answers[0]["totals"] == answers[1]["totals"]
    for command in COMMANDS:
        status, out, _ = run(capsys, [command, "--json", str(path)])
        assert (status, bool(out)) in ((0, True), (1, True), (2, True), (2, False))
    for command in ("whatis", "refs", "path"):
        for address in ASKED:
            run(capsys, [command, "--json", address, str(path)])


@pytest.mark.parametrize("pure", ["", "1"])
def test_every_command_on_registers_and_files_at_the_end(
    tmp_path: Path, pure: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINDLEAKS_PURE", pure)
    registers = [TOP - 1, TOP - 8, TOP - 0x1000, TOP - 0x1008, TOP - 0x2000]
    tasks = [Task(100 + n, {"rsp": at, "rip": at, "rbp": at, "fs_base": at}) for n, at in enumerate(registers)]
    loads = [
        Load(HEAP, 0x2000, page(b"h") * 2),
        Load((1 << 63) - 0x1000, 0x2000, page(b"z") * 2),
        Load(TOP - 0x3000, 0x2801, page(b"\xff") * 2 + bytes(0x801)),
        Load(TOP - 0x801, 0x801, b"q" * 0x801),
    ]
    mapped = [(TOP - 0x3000, TOP - 1, 0, "/lib/libc.so.6"), (TOP - 0x800, TOP - 1, TOP - 0x1000, "/lib/libx.so")]
    vector = {3: TOP - 0x40, 9: TOP - 1, 25: TOP - 1, 31: TOP - 3, 33: TOP - 0x1000}
    path = tmp_path / "core"
    path.write_bytes(elfcore.core(loads, tasks, mapped=mapped, vector=vector))
    for command in COMMANDS:
        run(capsys, [command, "--json", str(path)])
    for command in ("whatis", "refs", "path"):
        for address in ASKED:
            run(capsys, [command, "--json", address, str(path)])


def test_the_last_page_is_left_out(tmp_path: Path) -> None:
    loads = [Load(HEAP, 0x1000, page(b"h")), Load(TOP - 0x3000, 0x3000, page(b"a") + page(b"b") + page(b"c")), Load(TOP - 0x800, 0x800)]
    core = open_bytes(tmp_path / "core", elfcore.core(loads, [Task(100)], mapped=[(TOP - 0x3000, TOP - 1, 0, "/x")]))
    assert [(r.start, r.end) for r in core.regions()] == [(HEAP, HEAP + 0x1000), (TOP - 0x3000, TOP - 0x1000)]
    assert core.read(TOP - 0x3000, 0x2000) == page(b"a") + page(b"b")
    assert [len(piece.data) for piece in core.pieces(HEAP + 0x1000, TOP)] == [0x2000]
    assert not core.truncated
    assert core.warnings[0] == "core: ignored memory at the end of the address space, which no process can use"
