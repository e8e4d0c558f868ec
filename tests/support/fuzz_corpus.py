"""The files that tests/fuzz damages: a small core of each allocator and runtime, minidumps, and other files that findleaks reads. They are
made once and cached with the other downloads.

tests/programs/mutated.cpp runs with each malloc, and mutated.c with each libc. Runtimes run a few lines of their own language.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import asan
import building
import debian
import fuzz_pools
import go_programs
import jvms
import libcs
import mallocs_google
import mallocs_jemalloc
import mallocs_mimalloc
import mallocs_musl
import mallocs_python
import mallocs_scudo
import mallocs_tcmalloc
import minidump_writers
import nodes
import real
import rubies
import sqlites
import truth

import cores

SOURCE, PLAIN = truth.PROGRAMS / "mutated.cpp", truth.PROGRAMS / "mutated.c"
FLAGS = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-pthread", "-fno-builtin")
PLAIN_FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-pthread", "-fno-builtin")
PAGE = 4096
GLIB = "/usr/lib/x86_64-linux-gnu/libglib-2.0.so.0"
ROOT = Path(__file__).parents[2]

RUBY = """
require "zlib"
class Plain; def initialize(n); @n, @text = n, "long enough to be elsewhere, surely #{n}"; end; end
Row = Struct.new(:left, :right)
$kept = (1..60).map { |n| [Plain.new(n), Row.new(n, [n] * 40), { n => "x" * 50 }, Zlib::Deflate.new] }
$other = Thread.new { sleep }
$stdout.write("ready\\n"); $stdout.flush
sleep
"""
PYTHON = """
import threading, time, os
class Plain:
    def __init__(self, n): self.n, self.text, self.names = n, str(n) * 40, {n: [n] * 9}
kept = [Plain(i) for i in range(60)] + [bytes(700), {1.5, (2, "x")}, (x for x in [1])]
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
os.write(1, b"ready\\n"); time.sleep(1e6)
"""
NODE = """
const kept = [];
const zlib = require('zlib');
for (let i = 0; i < 30; i++) {
  const one = zlib.createDeflate();
  one.write('x');
  kept.push(one, Buffer.alloc(9000, i), { i, name: 'n' + i });
}
setTimeout(() => { require('fs').writeSync(1, 'ready\\n'); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0); }, 300);
"""


def get(name: str) -> Path:
    """Return the core or other file with this name. It is made at the first use, and again if its sources have changed."""
    folder = debian.cache() / "fuzz" / name
    made, stamp = folder / "core", folder / "stamp"
    wanted = str(zlib.crc32(b"".join(path.read_bytes() for path in (Path(__file__), Path(fuzz_pools.__file__), SOURCE, PLAIN))))
    with debian.hold_lock(folder):
        if not (made.exists() and stamp.exists() and stamp.read_text() == wanted):
            work = folder / "run"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            MAKERS[name](work).rename(made)
            folder.joinpath("clean.snapshot").unlink(missing_ok=True)
            shutil.rmtree(work)
            stamp.write_text(wanted)
    return made


def _core(folder: Path, *command: object, **environment: str) -> Path:
    with cores.Running([str(word) for word in command], folder, {**os.environ, **environment}) as running:
        return running.kernel_core()


def _compiled(folder: Path, *more: str) -> Path:
    """Compile the program. It is kept next to the core, because findleaks reads its debug information."""
    program = folder.parent / "mutated"
    subprocess.run(["g++", *FLAGS, str(SOURCE), "-o", str(program), *more], check=True)
    return program


def _glibc(folder: Path) -> Path:
    return _core(folder, _compiled(folder))


def _gslice(folder: Path) -> Path:
    """GLib's slices: see tests/integration/test_gslice.py."""
    program = folder.parent / "gslice"
    subprocess.run(["gcc", "-O1", "-pthread", str(truth.PROGRAMS / "gslice.c"), "-o", str(program), GLIB], check=True)
    return _core(folder, program)


def _pmr(folder: Path) -> Path:
    """Pool resources of libstdc++: see tests/integration/test_pmr.py."""
    return _core(folder, building.compile_program(folder.parent, "pmr_pools.cpp", "-std=c++17", "-O1", "-pthread"))


def _sqlite(folder: Path) -> Path:
    """Lookaside buffers of SQLite: see tests/integration/test_sqlite.py."""
    return _core(folder, sqlites.program(folder.parent))


def _php(folder: Path) -> Path:
    """PHP's heap and values: see tests/integration/test_php.py."""
    return _core(folder, real.executable("php"), "-n", truth.PROGRAMS / "values.php", "drop")


def _perl(folder: Path) -> Path:
    """Perl's arenas and values: see tests/integration/test_perl.py."""
    return _core(folder, real.executable("perl"), truth.PROGRAMS / "values.pl", "leak")


def _lua(name: str) -> Callable[[Path], Path]:
    """Lua's objects: see tests/integration/test_lua.py and test_luajit.py."""

    def make(folder: Path) -> Path:
        with cores.Running([real.executable(name), str(truth.PROGRAMS / "objects.lua"), "drop"], folder, stdin=subprocess.PIPE) as made:
            return made.kernel_core()

    return make


def _talloc(folder: Path) -> Path:
    """talloc's chunks: see tests/integration/test_talloc.py."""
    program = folder.parent / "talloc_chunks"
    subprocess.run(["gcc", "-O1", str(truth.PROGRAMS / "talloc_chunks.c"), "-o", str(program), "-ltalloc"], check=True)
    return _core(folder, program)


def _preloaded(library: Callable[[], Path]) -> Callable[[Path], Path]:
    return lambda folder: _core(folder, _compiled(folder), LD_PRELOAD=str(library()))


def _libc(version: str) -> Callable[[Path], Path]:
    return lambda folder: _core(folder, libcs.get(version).compile(PLAIN, folder.parent / "mutated", PLAIN_FLAGS))


def _jemalloc(version: str) -> Callable[[Path], Path]:
    """jemalloc with recorded stacks. It needs a newer libc than this machine's."""

    def make(folder: Path) -> Path:
        program = libcs.get(mallocs_jemalloc.LIBCS[version]).compile(PLAIN, folder.parent / "mutated", PLAIN_FLAGS)
        return _core(folder, program, LD_PRELOAD=str(mallocs_jemalloc.get(version).library), MALLOC_CONF=RECORDS)

    return make


RECORDS = "prof:true,lg_prof_sample:0,prof_final:false"


def _jemalloc_profiled(folder: Path) -> Path:
    return _core(folder, _compiled(folder), LD_PRELOAD=str(mallocs_jemalloc.get("5.3.0").library), MALLOC_CONF=RECORDS)


def _tcmalloc(version: str) -> Callable[[Path], Path]:
    """tcmalloc with its own libc, and with sampled allocations."""

    def make(folder: Path) -> Path:
        malloc = mallocs_tcmalloc.get(version)
        program = malloc.compile(PLAIN, folder.parent / "mutated", PLAIN_FLAGS)
        return _core(folder, program, **malloc.environment(full=True), TCMALLOC_SAMPLE_PARAMETER="2000")

    return make


def _google(folder: Path) -> Path:
    program = _compiled(folder)
    return _core(folder, program, LD_PRELOAD=str(mallocs_google.Google("8k", folder.parent).library()))


def _musl(name: str, link: str) -> Callable[[Path], Path]:
    return lambda folder: _core(folder, mallocs_musl.choose(name, link).compile(PLAIN, folder.parent / "mutated", link))


def _asan(build: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        program = asan.build(build, "mutated.c", folder.parent / "mutated", *asan.STACKS)
        return _core(folder, program, **asan.environment(quarantine_size_mb="1", detect_leaks="0"))

    return make


def _python(version: str, **more: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        python = mallocs_python.get(version)
        with cores.Running(python.command("-S", "-c", PYTHON), folder, python.environment(**more)) as running:
            return running.kernel_core()

    return make


def _ruby(version: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        ruby = rubies.get(version)
        with cores.Running([*ruby.words, "--disable-gems", "-e", RUBY], folder, ruby.environment) as running:
            return running.kernel_core()

    return make


def _node(version: str) -> Callable[[Path], Path]:
    """Node. Node 0.10 has V8's handle scopes with symbols; new versions have the current layout of spaces."""
    program = ["-e", NODE] if version != "0.10.21" else [truth.PROGRAMS / "node_closing.js", "200"]
    return lambda folder: _core(folder, nodes.get(version), *program)


JAVA = ("-Xmx8m", "-Xint", "-XX:ReservedCodeCacheSize=4m", "-XX:NativeMemoryTracking=summary", "-Xshare:off")


def _java(version: str, *options: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        jvms.compile_java(truth.PROGRAMS / "HeldDeflaters.java", folder.parent, "--release", "17")
        made = _core(folder, jvms.get(version) / "bin/java", *JAVA, *options, "-cp", folder.parent, "HeldDeflaters", 20)
        return _thinned(made)

    return make


_PUNCH = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h


def _thinned(core: Path) -> Path:
    """Remove memory that is not writable, as in the cores of most systems: it is in the files."""
    libc = ctypes.CDLL(None, use_errno=True)
    with core.open("r+b") as file:
        head = file.read(64)
        (phoff,), (count,) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<H", head, 56)
        for number in range(count):
            at = phoff + 56 * number
            kind, flags, offset, _, _, size = struct.unpack("<IIQQQQ", os.pread(file.fileno(), 40, at))
            if kind == 1 and not flags & 2 and size > PAGE:
                os.pwrite(file.fileno(), struct.pack("<Q", PAGE), at + 32)
                libc.fallocate(file.fileno(), _PUNCH, ctypes.c_long(offset + PAGE), ctypes.c_long(size - PAGE))
    return core


def _go(folder: Path) -> Path:
    program = go_programs.build(folder.parent, "", name="go_holds", cgo=True)
    return _core(folder, program, 20, 10, GOTRACEBACK="crash")


def _sample(folder: Path) -> Path:
    """The core in the repository: a problem that is found with it can become a test."""
    made = folder / "core"
    made.write_bytes(gzip.decompress((ROOT / "cores" / "sample.core.gz").read_bytes()))
    return made


def _lldb(folder: Path) -> Path:
    """LLDB's minidump in the repository."""
    made = folder / "core"
    made.write_bytes(gzip.decompress((ROOT / "cores" / "doors.dmp.gz").read_bytes()))
    return made


def _breakpad(folder: Path) -> Path:
    """Breakpad's minidump, with all writable memory."""
    program = _compiled(folder)
    made = folder / "core"
    with cores.Running([str(program)], folder) as running:
        subprocess.run([minidump_writers.breakpad(), str(running.pid), made, "all"], check=True, stdout=subprocess.DEVNULL)
    return made


def _program(folder: Path) -> Path:
    """A program with debug information; the core next to it names the program."""
    program = _compiled(folder, "-gdwarf-5")
    _core(folder, program).rename(folder.parent / "sound.core")
    return _copied(program, folder)


def _packed_program(folder: Path) -> Path:
    """A program with older and compressed debug information."""
    program = _compiled(folder, "-gdwarf-4", "-gz", "-ffunction-sections")
    _core(folder, program).rename(folder.parent / "sound.core")
    return _copied(program, folder)


def _copied(file: Path, folder: Path) -> Path:
    return Path(shutil.copy(file, folder / "core"))


def _saved(option: str, *words: str) -> Callable[[Path], Path]:
    """A file that findleaks writes from a sound core."""

    def make(folder: Path) -> Path:
        sound = _glibc(folder).rename(folder.parent / "sound.core")
        command = [sys.executable, "-m", "findleaks", *words, str(sound), option, f"saved{SAVED[words[0]]}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return (folder / f"saved{SAVED[words[0]]}").rename(folder / "core")

    return make


PROGRAMS = ("program", "packed-program")
"""Programs with debug information, which a sound core names."""
SAVED = {"snapshot": ".snapshot", "triage": ".sqlite", "map": ".residency"}
"""Files that findleaks itself wrote, by the command."""

MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "sample": _sample,
    "glibc": _glibc,
    "gslice": _gslice,
    "pmr": _pmr,
    "sqlite": _sqlite,
    "php": _php,
    **fuzz_pools.MAKERS,
    "perl": _perl,
    "lua": _lua("lua5.4"),
    "luajit": _lua("luajit"),
    "talloc": _talloc,
    "glibc-2.31": _libc("2.31"),
    "glibc-2.41": _libc("2.41"),
    "glibc-2.43": _libc("2.43"),
    "jemalloc-5.2.1": _preloaded(lambda: mallocs_jemalloc.get("5.2.1").library),
    "jemalloc": _jemalloc_profiled,
    "jemalloc-5.3.1": _jemalloc("5.3.1"),
    "tcmalloc-2.8.1": _tcmalloc("2.8.1"),
    "tcmalloc": _preloaded(lambda: mallocs_tcmalloc.get("2.10").library(full=True)),
    "tcmalloc-2.16": _tcmalloc("2.16"),
    "tcmalloc-2.18.1": _tcmalloc("2.18.1"),
    "google": _google,
    "mimalloc": _preloaded(lambda: mallocs_mimalloc.library("2.0.9")),
    "mimalloc-2.1.7": _preloaded(lambda: mallocs_mimalloc.library("2.1.7")),
    "mimalloc-2.2.5": _preloaded(lambda: mallocs_mimalloc.library("2.2.5")),
    "mimalloc-3.0.1": _preloaded(lambda: mallocs_mimalloc.library("3.0.1")),
    "mimalloc3": _preloaded(lambda: mallocs_mimalloc.library("3.2.8")),
    "scudo": _preloaded(lambda: mallocs_scudo.library(mallocs_scudo.INSTALLED)),
    "musl-1.2.2": _musl("1.2.2", "static"),
    "musl": _musl("1.2.3", "dynamic"),
    "musl-1.2.6": _musl("1.2.6", "dynamic"),
    "oldmalloc": _musl("1.2.3-old", "static"),
    "asan": _asan("gcc"),
    "asan-clang": _asan("clang"),
    "python-3.9": _python("3.9"),
    "python": _python("3.11", PYTHONTRACEMALLOC="5"),
    "python-3.14": _python("3.14"),
    "ruby": _ruby(rubies.SYSTEM),
    "ruby-3.3": _ruby("3.3"),
    "node": _node("22.12.0"),
    "node-24": _node("24.0.0"),
    "node0": _node("0.10.21"),
    "java": _java(jvms.SYSTEM, "-XX:+UseSerialGC"),
    "java-g1": _java(jvms.SYSTEM, "-XX:+UseG1GC"),
    "java-25": _java("25.0.2", "-XX:+UseSerialGC"),
    "go": _go,
    "lldb": _lldb,
    "breakpad": _breakpad,
    "program": _program,
    "packed-program": _packed_program,
    "snapshot": _saved("-o", "snapshot"),
    "triage": _saved("-o", "triage"),
    "map": _saved("--save-residency", "map"),
}
"""Functions that make the core (or another file), by its name. They work in a folder that is removed afterwards; what they write into its
parent folder is kept."""
