"""Handmade cores: the meaning of every part of a core."""

from __future__ import annotations

from pathlib import Path

import elfcore
import pytest
from elfcore import Load, Task
from handmade import HEAP, LIBRARY, STACK, open_bytes, page, usual
from hostile import lines_run

from findleaks.errors import UnreadableMemory
from findleaks.target.core import CoreTarget, open_core
from findleaks.target.notes import program_name


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("notes_last", [False, True])
def test_a_usual_core(tmp_path: Path, unaligned: bool, notes_last: bool) -> None:
    core = open_bytes(tmp_path / "core", usual(unaligned=unaligned, notes_last=notes_last, vector={25: STACK + 0x10}))
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
    main, other = open_bytes(tmp_path / "core", usual()).threads()
    assert (main.tid, other.tid) == (100, 101)
    assert (other.sp, other.pc, other.thread_pointer) == (STACK + 0x100, 0x1234, HEAP + 8)
    assert other.registers["rbx"] == 0xB0B
    assert {0xB0B, 0xF1, 0xF2} <= set(other.words)
    assert {0xA0A, 0xF3} <= set(main.words)
    assert not {0xF1, 0xF3} & (set(main.words) ^ {0xF3})


@pytest.mark.parametrize("size", [4096, 1])
def test_mapped_files_name_regions_in_bytes_whatever_the_page_size(tmp_path: Path, size: int) -> None:
    """The offsets in NT_FILE are pages of 4096 bytes in cores by Linux, and bytes in cores by GDB. A segment that
    contains a file and the memory after it is split. A mapped file without a segment becomes a read-only region."""
    mapped = [(HEAP, HEAP + 0x1000, 0x3000, "/data/file"), (LIBRARY, LIBRARY + 0x1000, 0x5000, "/no/such/file")]
    core = open_bytes(tmp_path / "core", usual(mapped=mapped, page=size))
    named = {r.start: r for r in core.regions()}
    assert (named[HEAP].end, named[HEAP].name, named[HEAP].file_offset) == (HEAP + 0x1000, "/data/file", 0x3000)
    assert (named[HEAP + 0x1000].name, named[HEAP + 0x1000].file_offset) == ("", 0)
    assert (named[LIBRARY].name, named[LIBRARY].writable, named[LIBRARY].file_offset) == ("/no/such/file", False, 0x5000)
    assert [r.start for r in core.regions()] == sorted(named)


def test_writable_memory_that_was_left_out(tmp_path: Path) -> None:
    """Anonymous memory without bytes in the core was never touched. The contents of a file are elsewhere, and pointers
    in them are unknown."""
    loads = [
        Load(HEAP, 0x1000, page(b"h")),
        Load(HEAP + 0x10000, 0x1000),
        Load(HEAP + 0x20000, 0x2000),
        Load(HEAP + 0x30000, 0x2000, page(b"x")),
    ]
    mapped = [(HEAP + 0x20000, HEAP + 0x22000, 0, "/dev/shm/ring")]
    core = open_bytes(tmp_path / "core", elfcore.core(loads, [Task(100, {"rsp": HEAP})], mapped=mapped))
    assert core.unread == [(HEAP + 0x20000, HEAP + 0x22000), (HEAP + 0x31000, HEAP + 0x32000)]
    assert core.warnings == ["8.0 KiB of writable files are not in the core (/dev/shm/ring): pointers in them are not seen."]


def test_missing_anonymous_memory_is_reported(tmp_path: Path) -> None:
    core = open_bytes(tmp_path / "core", elfcore.core([Load(HEAP, 0x1000), Load(LIBRARY, 0x1000, page(b"r"), "r--")], [Task(100)]))
    assert core.unread == [(HEAP, HEAP + 0x1000)]
    assert any("coredump_filter" in warning for warning in core.warnings)


def test_no_notes(tmp_path: Path) -> None:
    core = open_bytes(tmp_path / "core", elfcore.core([Load(HEAP, 0x1000, page(b"h"))]))
    assert core.threads() == []
    assert core.read(HEAP, 1) == b"h"
    assert any("registers and stacks are unknown" in warning for warning in core.warnings)


def test_time_to_open_is_linear_in_segments(tmp_path: Path) -> None:
    """70,033 segments need about ten times as many lines of Python as 7,003. With a search through all segments for
    each, they would need a hundred times as many."""
    lines = []
    for count in (7_003, 70_033):
        loads = [Load(HEAP + i * 0x3000, 0x1000, page(b"d") if i % 1000 == 0 else b"") for i in range(count)]
        (tmp_path / "core").write_bytes(elfcore.core(loads, [Task(100, {"rsp": HEAP})]))
        cores: list[CoreTarget] = []
        lines.append(lines_run(lambda cores=cores: cores.append(open_core(str(tmp_path / "core")))))  # type: ignore[misc]
        assert len(cores[0].regions()) == count
        assert cores[0].read(HEAP + (count - 33) // 1000 * 1000 * 0x3000, 4096) == page(b"d")
    assert lines[1] < 15 * lines[0]


def test_name_of_the_program() -> None:
    """The name from /proc/PID/cmdline or from pr_psargs in a core is compared with the 15 characters that Linux keeps."""
    assert program_name("redis-server", "/usr/bin/redis-server 127.0.0.1:6379") == "redis-server"
    assert program_name("nginx", "nginx: worker process") == "nginx"
    assert program_name("a-very-long-nam", "/opt/a-very-long-name\0--now\0") == "a-very-long-name"
    assert program_name("bash", "-bash\0") == "bash"
    assert program_name("script", "python3\0/usr/local/bin/script\0") == ""  # comm is the name of the script, not of the program
    assert program_name("worker", "/usr/bin/shop") == ""  # renamed by prctl
    assert program_name("", "") == ""
