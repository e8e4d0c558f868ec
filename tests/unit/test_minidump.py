"""Handmade minidumps: what is read from each stream, what is refused, and how damage is handled."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Union

import minidumps
import pytest
from handmade import LIBRARY, built_library, image_of
from hostile import lines_run
from minidumps import Dump, Task, TaskOfArm64
from variants import mark_matrix_except

from findleaks.errors import TargetError
from findleaks.target import elf
from findleaks.target.base import Range, Target
from findleaks.target.core import open_core

CORES = Path(__file__).parents[2] / "cores"
STACK, HEAP = 0x7FFC_0000_0000, 0x5600_0000_0000
MAPS = """\
560000000000-560000004000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000002000 ---p 00000000 00:00 0
7f0000002000-7f0000008000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00002000 rw-p 00000000 00:00 0                          [stack]
"""


def make_dump(maps: str = MAPS, memory: Callable[[Dump, list[tuple[int, bytes]]], None] = Dump.memory) -> Dump:
    """Return a minidump of two threads of a process with 16 KiB of heap. It has all memory except the unused parts of stacks."""
    dump = Dump()
    dump.system()
    dump.threads([Task(20, {"rsp": STACK + 0x1000, "rip": 0x1234}), Task(21, {"rsp": 0x7F00_0000_4000}, teb=0x7F00_0000_5000)])
    memory(dump, [(STACK + 0xF80, b"s" * 0x1080), (0x7F00_0000_3F80, b"t" * 0x4080), (HEAP, b"h" * 0x4000)])
    dump.stream(minidumps.STATUS, b"Name:\tserver\nTgid:\t20\n")
    dump.stream(minidumps.COMMAND_LINE, b"/usr/bin/server\0--port\0")
    if maps:
        dump.stream(minidumps.MAPS, maps.encode())
    return dump


def open_dump(folder: Path, dump: Union[Dump, bytes]) -> Target:
    path = folder / "a.dmp"
    path.write_bytes(dump if isinstance(dump, bytes) else dump.bytes())
    return open_core(str(path))


def read_refusal(folder: Path, dump: Union[Dump, bytes]) -> str:
    with pytest.raises(TargetError) as error:
        open_dump(folder, dump)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("memory", [Dump.memory, Dump.memory64])
def test_memory_and_mappings(tmp_path: Path, memory: Callable[[Dump, list[tuple[int, bytes]]], None]) -> None:
    target = open_dump(tmp_path, make_dump(memory=memory))
    assert [(r.start, r.end, r.readable, r.writable, r.name) for r in target.regions()] == [
        (HEAP, HEAP + 0x4000, True, True, "[heap]"),
        (0x7F00_0000_0000, 0x7F00_0000_2000, False, False, ""),
        (0x7F00_0000_2000, 0x7F00_0000_8000, True, True, ""),
        (STACK, STACK + 0x2000, True, True, "[stack]"),
    ]
    assert target.read(HEAP + 8, 8) == b"hhhhhhhh"
    assert target.word(STACK + 0xF80) == int.from_bytes(b"ssssssss", "little")
    assert [(piece.address, len(piece.data)) for piece in target.pieces(STACK, STACK + 0x2000)] == [(STACK + 0xF80, 0x1080)]
    assert (target.pid, target.called, target.exe_path, target.lacks, target.unread) == (20, "server", "server", "", [])
    assert target.description == "minidump of server (pid 20), 2 threads"
    assert target.taken_at == 1_700_000_000
    assert not target.truncated


def test_stacks_without_a_guard(tmp_path: Path) -> None:
    """Without a guard page, memory below the stack pointer is missing memory, not unused stack."""
    target = open_dump(tmp_path, make_dump(MAPS.replace("---p", "r--p")))
    assert target.unread == [Range(0x7F00_0000_2000, 0x7F00_0000_3F80)]
    where = "0x7f0000002000-0x7f0000003f80"
    assert f"7.9 KiB of writable memory is not in the minidump ({where}): pointers in it are not seen." in target.warnings


def test_registers(tmp_path: Path) -> None:
    dump = Dump()
    dump.system()
    words = [100 + word for word in range(32)]
    dump.threads(
        [
            Task(7, {"rsp": 0x1000, "rip": 0x2000, "rbx": 3, "r15": 4}, words),
            Task(8, {"rsp": 0x1100, "r8": 5}, flags=minidumps.LLDB, bases=(0x9000, 0x9100)),
            Task(9, {"rsp": 0x1200}, words, flags=0x10000F, teb=0x9200),
            Task(10, {"rsp": 0x1300, "rbx": 6}, words, flags=0x100001),
            Task(11, {"rsp": 0x1400}, flags=0x400003),  # ARM64
        ],
        padded=True,
    )
    dump.memory([(HEAP, bytes(64))])
    threads = open_dump(tmp_path, dump).threads()
    assert [thread.tid for thread in threads] == [7, 8, 9, 10, 11]
    assert (threads[0].sp, threads[0].pc, threads[0].registers["rbx"], threads[0].registers["r15"]) == (0x1000, 0x2000, 3, 4)
    assert [threads[0].words[at] for at, name in enumerate(threads[0].names) if name == "xmm15"] == [130, 131]
    assert threads[0].registers["eflags"] == 0x246
    assert threads[1].thread_pointer == threads[1].registers["fs_base"] == 0x9000
    assert not any(name.startswith("xmm") for name in threads[1].names)
    assert threads[2].thread_pointer == 0x9200
    assert 0x9200 in threads[2].words
    assert set(threads[3].registers) == {"cs", "ss", "eflags", "rsp", "rip"}
    assert threads[4].registers == {}


def test_registers_of_arm64(tmp_path: Path) -> None:
    """Both forms of contexts, for either number of the processor; contexts with only some of the registers; a context that is cut off."""
    dump = Dump()
    dump.system(12)
    words, values = (
        [100 + word for word in range(64)],
        {"x0": 1, "x28": 2, "x29": 3, "x30": 4, "sp": 0x1000, "pc": 0x2000, "pstate": 0x8000},
    )
    flags = [minidumps.ARM64, minidumps.ARM64_OLD, 0x400001, 0x400002, 0x80000002, minidumps.ARM64, 0x100007]
    dump.threads([TaskOfArm64(7 + number, values, words, one) for number, one in enumerate(flags)])
    at = dump.streams[-1][2]
    struct.pack_into("<I", dump.data, at + 4 + 48 * 5 + 40, 200)  # size of the context in bytes
    dump.memory([(HEAP, bytes(64))])
    target = open_dump(tmp_path, dump)
    threads = target.threads()
    for thread in threads[:2]:
        assert {name: thread.registers[name] for name in values} == values
        assert (thread.sp, thread.pc, len(thread.registers)) == (0x1000, 0x2000, 34)
        assert [word for word, name in zip(thread.words, thread.names) if name.startswith("v")] == words
        assert [word for word, name in zip(thread.words, thread.names) if name == "v31"] == words[-2:]
    assert set(threads[2].registers) == {"x29", "x30", "sp", "pc", "pstate"}
    assert set(threads[3].registers) == {f"x{number}" for number in range(29)}
    assert (len(threads[4].registers), "v0" in threads[4].names) == (34, False)
    assert threads[5].registers == threads[6].registers == {}
    assert target.arch.name == "AArch64"
    assert target.unknown_registers == "the vector registers"


@pytest.mark.parametrize(("number", "code", "crashed"), [(11, 1, 21), (11, 0, 0), (6, -6, 21), (6, 0, 0), (19, 0, 0)])
def test_exception(tmp_path: Path, number: int, code: int, crashed: int) -> None:
    """The registers of the thread are those at the time of the fault. The later ones are those of the code that wrote the dump."""
    dump = make_dump()
    dump.exception(Task(21, {"rsp": 0x7F00_0000_4100, "rip": 0x77}), number, code)
    dump.exception(Task(20, {"rsp": 0x66}), 11, 1)  # LLDB writes one exception for each thread: the first one counts
    target = open_dump(tmp_path, dump)
    assert target.crashed == crashed
    assert [(thread.sp, thread.pc) for thread in target.threads()] == [(STACK + 0x1000, 0x1234), (0x7F00_0000_4100, 0x77)]
    assert target.threads()[1].thread_pointer == 0x7F00_0000_5000


def test_names_times_and_auxiliary_vector(tmp_path: Path) -> None:
    dump = make_dump()
    dump.stream(minidumps.NAMES, struct.pack("<IIQIQ", 2, 20, dump.text("main"), 21, dump.text("wörker")))
    dump.stream(minidumps.STAT, b"20 (a) b) S " + b" ".join(b"%d" % number for number in range(1, 50)))
    dump.stream(minidumps.AUXV, struct.pack("<6Q", 6, 4096, 9, 0x1234, 0, 0))
    dump.stream(minidumps.MISC, struct.pack("<3I", 24, 1, 21).ljust(24, b"\0"))
    target = open_dump(tmp_path, dump)
    assert target.thread_names() == {20: "main", 21: "wörker"}
    assert target.start_time == 19
    assert target.auxv == {6: 4096, 9: 0x1234}
    assert target.pid == 21
    assert [thread.tid for thread in target.threads()] == [21, 20]


def test_mappings_of_the_dumps_own_list(tmp_path: Path) -> None:
    dump = make_dump("")
    beyond = (5, (1 << 64) - 1, 4)
    dump.info([(HEAP, 0x4000, 4), (0x7F00_0000_0000, 0x1000, 1), (LIBRARY, 0x1000, 0x20), (LIBRARY, 0x3000, 4), (STACK, 0x2000, 4), beyond])
    target = open_dump(tmp_path, dump)
    assert [(r.start, r.size, r.readable, r.writable, r.executable) for r in target.regions()] == [
        (HEAP, 0x4000, True, True, False),
        (LIBRARY, 0x1000, False, False, False),
        (STACK, 0x2000, True, True, False),
    ]


def test_without_a_list_of_mappings_existing_memory_counts(tmp_path: Path) -> None:
    target = open_dump(tmp_path, make_dump(""))
    assert [(r.start, r.end, r.writable) for r in target.regions()] == [
        (HEAP, HEAP + 0x4000, True),
        (0x7F00_0000_3F80, 0x7F00_0000_8000, True),
        (STACK + 0xF80, STACK + 0x2000, True),
    ]
    assert target.lacks == ""


@pytest.mark.parametrize("maps", [MAPS, ""])
@pytest.mark.parametrize(("heap", "held"), [(0, "no other writable memory"), (0x1000, "4.0 KiB of 16 KiB of the other writable memory")])
def test_missing_streams(tmp_path: Path, maps: str, heap: int, held: str) -> None:
    dump = Dump()
    dump.system()
    dump.threads([Task(20, {"rsp": STACK + 0x1000})])
    dump.memory([(STACK + 0x1000, b"s" * 0x1000), (HEAP + 8, b"h" * 24), *([(HEAP + 0x1000, bytes(heap))] if heap else [])])
    if maps:
        dump.stream(minidumps.MAPS, maps.encode())
    target = open_dump(tmp_path, dump)
    if maps:
        held = held.replace("4.0 KiB of 16 KiB", "4.0 KiB of 40 KiB") if heap else "24 B of 40 KiB of the other writable memory"
        assert f"a.dmp: the minidump has the threads' stacks and {held}: only `whatis` and `stacks`" in target.lacks
    else:
        assert bool(target.lacks) is not bool(heap)
    assert "gcore" in target.lacks or not target.lacks
    assert "\n" not in target.lacks


def test_threads_that_share_a_context_are_left_out(tmp_path: Path) -> None:
    """Two thousand threads with one context would need more memory than the file has. The first thread is read."""
    dump = make_dump()
    context = Task(20, {"rsp": STACK}).context()
    at = dump.put(context)
    rows = b"".join(struct.pack("<4I2Q4I", number, 0, 0, 0, 0, 0, 0, 0, len(context), at) for number in range(2000))
    dump.streams = [row for row in dump.streams if row[0] != minidumps.THREADS]
    dump.stream(minidumps.THREADS, struct.pack("<I", 2000) + rows)
    data = dump.bytes()
    assert len(open_dump(tmp_path, data).threads()) == len(data) // len(context)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_library(tmp_path_factory.mktemp("root"))


def with_library(library: Path, path: str, build_id: str, maps: bool = True) -> Dump:
    """Return a minidump without the first page of the library, as Breakpad and Crashpad write it."""
    dump = make_dump(maps="")
    lines = [f"{one.start:x}-{one.start + one.size:x} {one.mode}p 0 00:00 0 {path}" for one in image_of(library)]
    if maps:
        dump.stream(minidumps.MAPS, (MAPS.splitlines()[0] + "\n" + "\n".join(lines) + "\n").encode())
    dump.modules([(LIBRARY, 0x100, path, b"LEpB" + bytes.fromhex(build_id)), (LIBRARY + 0x100_0000, 0x1000, "linux-gate.so", b"")])
    return dump


@pytest.mark.parametrize("maps", [True, False])
def test_a_module_is_read_from_its_file_if_the_build_id_matches(tmp_path: Path, library: Path, maps: bool) -> None:
    data = library.read_bytes()
    build_id = elf.build_id_of_file(data)
    target = open_dump(tmp_path, with_library(library, str(library), build_id, maps))
    (module,) = (module for module in target.modules() if module.path == str(library))
    assert (module.start, module.bias, module.build_id) == (LIBRARY, LIBRARY, build_id)
    function = target.symbol("shared_function")
    assert function is not None
    at = function.address - LIBRARY
    (code,) = (s for s in elf.segments(data, elf.header(data)) if s.type == elf.PT_LOAD and s.flags & elf.PF_X)
    assert target.read(function.address, 4) == data[at - code.vaddr + code.offset :][:4]
    assert [warning for warning in target.warnings if "of writable memory is not in the minidump" not in warning] == []
    writable = next(s for s in elf.segments(data, elf.header(data)) if s.type == elf.PT_LOAD and s.flags & elf.PF_W)
    # Data from the file are not the data of the process
    assert not list(target.pieces(LIBRARY + writable.vaddr, LIBRARY + writable.vaddr + 8))


@pytest.mark.parametrize("build_id", ["11" * 20, ""])
def test_another_file_is_not_used(tmp_path: Path, library: Path, build_id: str) -> None:
    target = open_dump(tmp_path, with_library(library, str(library), build_id))
    assert target.symbol("shared_function") is None
    with pytest.raises(TargetError):
        target.read(LIBRARY + 0x1000, 4)
    reason = "is not the minidump's (11111111…); not used" if build_id else "without a build-id in the minidump to compare"
    assert [reason in warning for warning in target.warnings].count(True) == 1


def test_only_regular_files_are_opened(tmp_path: Path, library: Path) -> None:
    os.mkfifo(tmp_path / "libx.so")
    target = open_dump(tmp_path, with_library(library, str(tmp_path / "libx.so"), "11" * 20))
    assert any("libx.so: not on this machine" in warning for warning in target.warnings)
    assert target.symbol("shared_function") is None


def test_files_that_are_no_linux_minidump_are_refused(tmp_path: Path) -> None:
    cases = [(9, 2, "of Windows"), (9, 0x8101, "of macOS"), (9, 77, "system 0x4d"), (5, 0x8201, "of ARM;"), (0x8001, 0x8201, "of SPARC")]
    for machine, platform, what in cases:
        dump = Dump()
        dump.system(machine, platform)
        assert what in read_refusal(tmp_path, dump)
    assert "system information of the minidump is missing" in read_refusal(tmp_path, with_system(b"x"))
    assert "version 0x1" in read_refusal(tmp_path, make_dump().bytes().replace(b"\x93\xa7", b"\1\0", 1))
    for size in (4, 20, 31):
        assert "truncated" in read_refusal(tmp_path, make_dump().bytes()[:size])
    assert "directory of the minidump is missing" in read_refusal(tmp_path, make_dump().bytes()[:40])
    assert "directory of the minidump is missing" in read_refusal(tmp_path, b"MDMP\x93\xa7\0\0" + b"\xff" * 24)


def with_system(data: bytes) -> Dump:
    dump = Dump()
    dump.stream(minidumps.SYSTEM, data)
    return dump


def read_everything(path: Path) -> None:
    """Read everything that a target offers. TargetError is the only permitted exception for damage."""
    try:
        target = open_core(str(path))
    except TargetError:
        return
    for thread in target.threads():
        assert thread.tid >= 0
    for region in target.regions():
        assert region.start < region.end
        for piece in target.pieces(region.start, min(region.end, region.start + 0x10_0000)):
            assert len(piece.data)
    target.symbolize(0x7F00_0000_0010)
    assert "\n" not in "".join([*target.warnings, target.lacks, target.description])


def damage_dump(data: bytes, value: bytes) -> Iterator[bytes]:
    """Yield damaged dumps. For each number of four bytes in the tables, `value` replaces it in one dump, and another dump ends there."""
    first = min(at for _, _, at in struct.iter_unpack("<3I", data[32 : 32 + 12 * struct.unpack_from("<I", data, 8)[0]]))
    heads = [*range(4, 32 + 12 * struct.unpack_from("<I", data, 8)[0], 4)]
    for at in [*heads, *range(first - first % 4, len(data) - 4, 4)]:
        yield data[:at] + value + data[at + 4 :]
        yield data[:at]


@pytest.mark.parametrize("value", mark_matrix_except({"ones": b"\xff" * 4, "sign": b"\0\0\0\x80", "zero": bytes(4)}, "ones"))
def test_any_number_may_be_wrong(tmp_path: Path, library: Path, value: bytes) -> None:
    dump = Dump()
    dump.system()
    dump.modules([(LIBRARY, 0x100, str(library), b"LEpB" + bytes.fromhex(elf.build_id_of_file(library.read_bytes())))])
    dump.threads([Task(20, {"rsp": STACK + 0x1000})])
    dump.exception(Task(20, {"rsp": STACK}), 11, 1)
    dump.info([(HEAP, 0x1000, 4)])
    dump.memory([(STACK + 0xF80, b"s" * 0x80)])
    dump.memory64([(HEAP, b"h" * 0x40)])
    dump.stream(minidumps.NAMES, struct.pack("<IIQ", 1, 20, dump.text("main")))
    path, tried = tmp_path / "a.dmp", 0
    for data in damage_dump(dump.bytes(), value):
        path.write_bytes(data)
        read_everything(path)
        tried += 1
    assert tried > 1000


def test_a_claimed_count_costs_nothing(tmp_path: Path) -> None:
    """Counts of memory ranges, threads, modules, mappings, names and streams. Many ranges with the same bytes need no more memory."""
    data = make_dump().bytes()
    path = tmp_path / "a.dmp"
    path.write_bytes(data)
    plain = lines_run(partial(read_everything, path))
    streams = struct.unpack_from("<I", data, 8)[0]
    for kind, _, at in struct.iter_unpack("<3I", data[32 : 32 + 12 * streams]):
        if kind < 0x10000:
            path.write_bytes(data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :])
            assert lines_run(partial(read_everything, path), 3 * plain + 3000) < 2 * plain + 2000
    many = make_dump(maps="")
    at = many.put(b"m" * 0x1000)
    rows = b"".join(struct.pack("<Q2I", HEAP + number * 0x1000, 0x1000, at) for number in range(2000))
    many.streams = [row for row in many.streams if row[0] != minidumps.MEMORY]
    many.stream(minidumps.MEMORY, struct.pack("<I", 2000) + rows)
    target = open_dump(tmp_path, many)
    assert sum(len(piece.data) for region in target.regions() for piece in target.pieces(region.start, region.end)) == 0x1000


def test_packed_and_truncated_dumps(tmp_path: Path) -> None:
    packed = (CORES / "doors_stacks.dmp.gz").read_bytes()
    data = gzip.decompress(packed)
    whole, cut = open_dump(tmp_path, packed), open_dump(tmp_path, gzip.compress(data[:-100]))
    assert len(whole.threads()) == len(cut.threads()) == 2
    assert "a.dmp: truncated: the system information of the minidump is missing" in read_refusal(tmp_path, data[: len(data) // 2])
    assert not whole.truncated
    assert cut.truncated
    assert any("truncated" in warning for warning in cut.warnings)
