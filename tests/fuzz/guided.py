"""Coverage-guided fuzzing of single readers with atheris (`pip install atheris`): inputs that reach new code are kept and changed further.

python tests/fuzz/guided.py READER [--runs N] [--seconds S]      READER: one of READERS below

If a reader raises an exception that it does not document, this is a failure. Its input is stored in build/fuzz/READER.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import lzma
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import atheris

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

with atheris.instrument_imports(include=["findleaks"]):
    import findleaks.audit.residency as residency
    import findleaks.debuginfo.dwarf as dwarf
    import findleaks.debuginfo.members as members
    import findleaks.history.store as store
    import findleaks.target.compressed as compressed
    import findleaks.target.snapshot_note as snapshot_note
    import findleaks.triage.store as triage_store
    from findleaks.audit import suppressions
    from findleaks.debuginfo.located import Located
    from findleaks.debuginfo.variables import Variables
    from findleaks.demangle import demangle, demangle_type
    from findleaks.errors import FindleaksError, UnreadableMemory
    from findleaks.target import elf
    from findleaks.target.arch import ARM
    from findleaks.target.base import Module
    from findleaks.target.core import open_core
    from findleaks.unwind.cfi import FrameTable, Malformed
    from findleaks.unwind.expression import evaluate
    from findleaks.unwind.frames import Unwinder

import arm_images  # noqa: E402
import elfcore  # noqa: E402
import fake  # noqa: E402
import minidumps  # noqa: E402
from elfcore import Load, Task  # noqa: E402

from findleaks.history.figures import Figure  # noqa: E402
from findleaks.history.snapshot import Clock, Identity, Snapshot  # noqa: E402
from findleaks.session import Session  # noqa: E402
from findleaks.target.base import Range  # noqa: E402
from findleaks.target.residency.presence import Presence  # noqa: E402
from findleaks.target.runs import Runs  # noqa: E402
from findleaks.triage.examine import Source  # noqa: E402
from findleaks.triage.row import OK, FindingLine, LeakSum, Row  # noqa: E402

BIAS = 0x40_0000
PROGRAM = """
template <class T> struct List { struct Node { Node *next; T value; } *first; long count; };
struct Point { int x, y; Point *next; unsigned flag : 3; union { char text[8]; double number; }; enum { ONE, TWO } kind; };
struct Named : Point { const char *const *names[3]; virtual int area() { return x; } };
List<Point> points; Named origin; static thread_local int mine;
int main(int count, char **) { try { if (count > 5) throw 1; mine = count; } catch (int) { return 1; } return origin.area(); }
"""


class Reader(NamedTuple):
    """`read` may only raise the exceptions `raises`; `seeds` are the initial inputs."""

    read: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    seeds: Callable[[Path], Sequence[bytes]]


def core(data: bytes) -> None:
    """Read a core's headers and notes."""
    with _file(data) as path, open_core(path) as target:
        for thread in target.threads():
            target.symbolize(thread.pc)
        for module in target.modules():
            target.symbolize(module.start + 0x1000)
            target.thread_locals(module)
        target.symbol("malloc")
        target.thread_names()
        target.presence(lambda part: None)
        sum(len(piece.data) for piece in target.pieces(0, 1 << 64))
        sum(target.resident(region.start, region.end) or 0 for region in target.regions())


def image(data: bytes) -> None:
    """Read an ELF file, and the same bytes as a loaded image."""
    head = elf.header(data)
    elf.build_id_of_file(data)
    elf.sections(data, head)
    elf.tables_of_file(data, head)
    loads = elf.segments(data, head)
    target = fake.FakeTarget({BIAS: data})
    elf.tables_of_image(target.read, head, loads, BIAS)
    elf.build_id(target.read, head, loads, BIAS)


def frames(data: bytes) -> None:
    """Read call frame information. The first bytes are the address to unwind."""
    target = fake.FakeTarget({BIAS: data[8:]} if len(data) > 8 else {})
    table = FrameTable(target, Module("/lib/x.so", BIAS, BIAS, BIAS + len(data)))
    for pc in struct.unpack_from("<4H", data.ljust(8, b"\0")):
        table.row(BIAS + pc)
        table.extent(BIAS + pc)


STACK = 0x80_0000


def arm_frames(data: bytes) -> None:
    """Read ARM's tables and code. The first bytes are the registers and the stack."""
    words = struct.unpack_from("<64I", data.ljust(256, b"\0"))
    registers = dict(zip(ARM.registers, words))
    target = fake.FakeTarget(
        {BIAS: data[256:] or b"\0", STACK: data[:256]},
        permissions={BIAS: "r-x"},
        modules=[Module("/lib/x.so", BIAS, BIAS, BIAS + max(len(data) - 256, 1))],
        threads=[fake.thread(1, STACK + (words[13] & 0xFC), registers, arch=ARM)],
        arch=ARM,
    )
    Unwinder(target).trace(target.threads()[0])


def expression(data: bytes) -> None:
    registers: dict[int, int] = dict(enumerate(data[:16]))
    evaluate(data[1:], 8, "little", registers.get, lambda address: address ^ 0x5A)


def debug(data: bytes) -> None:
    """Read debug information: variables and their members."""
    file = dwarf.open_dwarf(data)
    if file is None:
        return
    variables = Variables(file)
    for address in (0, 0x4000, 0x4040, 0x40A0, 0x4180):
        die = variables.at(address)
        type_ = members._read_declared_type(file, die)
        for offset in range(0, 64, 4):
            if type_ is not None:
                type_.at(offset)


def lines(data: bytes) -> None:
    """Read debug information: functions and lines. The first bytes are the address."""
    file = dwarf.open_dwarf(data[8:])
    if file is not None:
        located = Located(file)
        for pc in struct.unpack_from("<4H", data.ljust(8, b"\0")):
            located.at(pc)
            located.at(BIAS + pc)


def packed(data: bytes) -> None:
    fd = os.memfd_create("packed")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    unpacked, _, _ = compressed.unpack_core(fd, "core", data[:64])
    os.close(unpacked)


def snapshot(data: bytes) -> None:
    with _file(data) as path:
        store.load(path, answers=True)


def rows(data: bytes) -> None:
    with _file(data) as path:
        list(triage_store.rows(path))


def side_file(data: bytes) -> None:
    with _file(data) as path:
        residency.read_residency_file(path, Resident({BIAS: bytes(8192)}))


def names(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    demangle(text)
    demangle_type(text)


READERS: Mapping[str, Reader] = {
    "core": Reader(core, (FindleaksError,), lambda folder: [_core(), *_images(folder)[:1]]),
    "minidump": Reader(core, (FindleaksError,), lambda folder: [_minidump(whole) for whole in (False, True)]),
    "image": Reader(image, (FindleaksError,), lambda folder: _images(folder)),
    "frames": Reader(frames, (), lambda folder: [struct.pack("<4H", 0x1040, 0x1150, 0x1200, 0x1300) + one for one in _images(folder)]),
    "arm-frames": Reader(arm_frames, (), lambda folder: [_arm_image(thumb) for thumb in (True, False)]),
    "expression": Reader(expression, (Malformed, UnreadableMemory), lambda folder: [bytes.fromhex("77080a0900221a0a")]),
    "debug": Reader(debug, (FindleaksError,), lambda folder: _images(folder)),
    "lines": Reader(
        lines, (FindleaksError,), lambda folder: [struct.pack("<4H", 0x1040, 0x1150, 0x1200, 0x1300) + one for one in _images(folder)]
    ),
    "packed": Reader(packed, (FindleaksError,), lambda folder: _packed()),
    "snapshot": Reader(snapshot, (FindleaksError,), lambda folder: [_snapshot(folder)]),
    "rows": Reader(rows, (FindleaksError,), lambda folder: [_rows(folder)]),
    "residency": Reader(side_file, (FindleaksError,), lambda folder: [_side_file(folder)]),
    "note": Reader(lambda data: snapshot_note.decode_note(memoryview(data), 4096), (snapshot_note.Damaged,), lambda folder: [bytes(200)]),
    "suppressions": Reader(
        lambda data: suppressions.parse_rules(data.decode("utf-8", "replace"), "file"),
        (FindleaksError,),
        lambda folder: [b"leak:*x*\ntype:std::*\nsize:16-4k\n# c\n"],
    ),
    "names": Reader(
        names, (), lambda folder: [b"_ZNSt3mapISsiSt4lessISsESaISt4pairIKSsiEEEixERS3_", b"_ZTIN3fooIiE3barE", b"_RNvC3foo3bar"]
    ),
}


@contextlib.contextmanager
def _file(data: bytes):  # type: ignore[no-untyped-def]
    fd = os.memfd_create("file")
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _core() -> bytes:
    mapped = [(0x10000, 0x12000, 0, "/bin/prog"), (0x12000, 0x13000, 0x2000, "/lib/libc.so.6")]
    loads = [Load(0x10000, 0x2000, b"\x7fELF".ljust(0x300, b"\0"), "r-x"), Load(0x7FFF0000, 0x1000, b"s" * 0x200)]
    tasks = [Task(7, {"rsp": 0x7FFF0080, "rip": 0x10040}), Task(8, extra=[(b"LINUX", 0x202, bytes(700))])]
    return elfcore.core(loads, tasks, mapped=mapped, vector={3: 0x10040, 5: 4, 9: 0x10080, 33: 0x7FFF0000}, unaligned=True)


def _minidump(whole: bool) -> bytes:
    stack, dump = 0x7FFF0000, minidumps.Dump()
    dump.system()
    first = minidumps.Task(7, {"rsp": stack + 64, "rip": 0x10040}, vectors=[stack])
    dump.threads([first, minidumps.Task(8, flags=minidumps.LLDB, bases=(stack, 0))])
    (dump.memory64 if whole else dump.memory)([(0x10000, b"\x7fELF".ljust(0x300, b"\0")), (stack, b"s" * 0x200)])
    dump.stream(minidumps.MAPS, b"10000-12000 r-xp 00000000 00:00 7 /bin/prog\n7fff0000-7fff1000 rw-p 00000000 00:00 0 [stack]\n")
    dump.stream(minidumps.AUXV, struct.pack("<4Q", 3, 0x10040, 0, 0))
    dump.stream(minidumps.STATUS, b"Name:\tprog\nTgid:\t7\n")
    dump.modules([(0x10000, 0x2000, "/bin/prog", b"LEpB" + bytes(20))])
    dump.exception(first, 11, 1)
    dump.info([(0x10000, 0x2000, 0x20), (stack, 0x1000, 4)])
    return dump.bytes()


def _rows(folder: Path) -> bytes:
    path = folder / "one.sqlite"
    leaks, found = (LeakSum("9f3a01c2", "64 B", "hint", 10, 20, 640, 4096),), (FindingLine("lost", 640, "Lost."),)
    row = Row("/core", OK, "shop", "ab" * 20, "SIGSEGV", "crash", 17e8, 20, 640, found, leaks, ("one",), 0.25, "", 4096)
    with contextlib.closing(triage_store.create(str(path), "1")) as base:
        base.add(Source("/core", "/core", 4096, 77), row)
    return path.read_bytes()


class Resident(fake.FakeTarget):
    """Of every two pages, one is resident."""

    def presence(self, progress: object) -> Presence:
        return Presence("pagemap", Runs.of([Range(BIAS, BIAS + 8192)]), Runs.of([Range(BIAS, BIAS + 4096)]), Runs.of(()), 4096)


def _side_file(folder: Path) -> bytes:
    residency.save_residency(Session(Resident({BIAS: bytes(8192)})), str(folder / "one.residency"))
    return (folder / "one.residency").read_bytes()


def _images(folder: Path) -> list[bytes]:
    """Return small programs, with and without debug information."""
    made = []
    for number, flags in enumerate((["-g", "-no-pie"], ["-g", "-gdwarf-4", "-gz", "-pie"], ["-s", "-O1"])):
        program = folder / str(number)
        command = ["g++", "-x", "c++", "-", "-o", str(program), "-Wl,-z,noseparate-code", *flags]
        subprocess.run(command, input=PROGRAM, text=True, check=True)
        made.append(program.read_bytes())
    return made


def _arm_image(thumb: bool) -> bytes:
    """Return a waiting thread's registers and stack, and functions with and without tables."""
    whole = arm_images.image([(0x100, 1), (0x200, 0x8002A8B0), (0x240, arm_images.TABLES[0]), (0x280, 1)], arm_images.CODE)
    registers = [0] * 13 + [256 - 24, BIAS + 0x213, BIAS + (0x21E if thumb else 0x280), 0x20 if thumb else 0, 0]
    stack = [7, BIAS + 0x213, 0, 0, 4, BIAS + 0x203]
    return struct.pack("<18I", *registers).ljust(256 - 4 * len(stack), b"\0") + struct.pack("<6I", *stack) + whole


def _packed() -> list[bytes]:
    data = _core()
    zstd = subprocess.run(["zstd", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return [gzip.compress(data), lzma.compress(data), zstd]


def _snapshot(folder: Path) -> bytes:
    path = folder / "one.snapshot"
    figures = [Figure("total", "resident", None, 1 << 20), Figure("root", "g_cache", 3, 4096, "", "note")]
    store.save(Snapshot("one", Clock(100.0), Identity("shop", "5e0b"), figures, {"verdict": {"a": 1}}, ("careful",)), path, "1")
    return path.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--runs", type=int, default=-1)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--input", type=Path, help="only this one, as kept")
    words = parser.parse_args()
    reader = READERS[words.reader]
    kept = ROOT / "build" / "fuzz" / words.reader
    (kept / "corpus").mkdir(parents=True, exist_ok=True)

    def one(data: bytes) -> None:
        with contextlib.suppress(*reader.raises):
            reader.read(data)

    if words.input:
        one(words.input.read_bytes())
        return
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(reader.seeds(Path(folder))):
            (kept / "corpus" / f"seed{number}").write_bytes(seed)
    limits = ["-timeout=20", "-rss_limit_mb=1500", "-max_len=100000", f"-runs={words.runs}", f"-max_total_time={words.seconds}", "-seed=1"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={kept}/", str(kept / "corpus")], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
