"""The cores that tests/fuzz damages: a small one of each allocator and runtime, made once and kept beside the other downloads.

tests/programs/mutated.cpp runs with each malloc; the runtimes run a few lines of their own language.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import debian
import elfcore
import jvms
import mallocs_google
import mallocs_jemalloc
import mallocs_mimalloc
import mallocs_musl
import mallocs_python
import mallocs_tcmalloc
import nodes
import rubies
import truth
import umemimage

import cores

SOURCE = truth.PROGRAMS / "mutated.cpp"
FLAGS = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-pthread", "-fno-builtin")
PAGE = 4096
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
    """The core of this name; made on first use, and again where what makes it has changed."""
    folder = debian.cache() / "fuzz" / name
    made, stamp = folder / "core", folder / "stamp"
    wanted = str(Path(__file__).stat().st_mtime_ns) + str(SOURCE.stat().st_mtime_ns)
    with debian.locked(folder):
        if not (made.exists() and stamp.exists() and stamp.read_text() == wanted):
            work = folder / "run"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            MAKERS[name](work).rename(made)
            shutil.rmtree(work)
            stamp.write_text(wanted)
    return made


def _core(folder: Path, *command: object, **environment: str) -> Path:
    with cores.Running([str(word) for word in command], folder, {**os.environ, **environment}) as running:
        return running.kernel_core()


def _compiled(folder: Path, *more: str) -> Path:
    """The program, kept beside the core: findleaks reads its debug information."""
    program = folder.parent / "mutated"
    subprocess.run(["g++", *FLAGS, str(SOURCE), "-o", str(program), *more], check=True)
    return program


def _glibc(folder: Path) -> Path:
    return _core(folder, _compiled(folder))


def _preloaded(library: Callable[[], Path]) -> Callable[[Path], Path]:
    return lambda folder: _core(folder, _compiled(folder), LD_PRELOAD=str(library()))


def _google(folder: Path) -> Path:
    program = _compiled(folder)
    return _core(folder, program, LD_PRELOAD=str(mallocs_google.Google("8k", folder.parent).library()))


def _musl(folder: Path) -> Path:
    program = mallocs_musl.get("1.2.3").compile(truth.PROGRAMS / "musl_caches.c", folder.parent / "program", "dynamic")
    return _core(folder, program)


def _musl_old(folder: Path) -> Path:
    program = mallocs_musl.chosen("1.2.3-old", "static").compile(truth.PROGRAMS / "musl_caches.c", folder.parent / "program", "static")
    return _core(folder, program)


def _umem(folder: Path) -> Path:
    """Written, not dumped: no Linux distribution has libumem any more. Its file is mapped; stacks hold some blocks."""
    image = umemimage.UmemImage()
    held = [image.malloc(size) for size in (20, 100, 100, 100, 900, 5000, 50000)]
    for block, way in zip([image.malloc(100) for _ in range(4)], ("slab", "loaded", "depot", "depot")):
        image.release(block - 16, 8, way)
    image.write()
    stack = 0x7FFE_0000_0000
    loads = [elfcore.Load(start, -(-len(data) // PAGE) * PAGE, bytes(data)) for start, data in sorted(image.memory.items())]
    loads.append(elfcore.Load(stack, PAGE, b"".join(block.to_bytes(8, "little") for block in held[::2]).rjust(PAGE, b"\0")))
    rows = [(start, start + load.size, 0, "/usr/lib/libumem.so.1") for load in loads if (start := load.start) == umemimage.DATA]
    core = elfcore.core(loads, [elfcore.Task(1, {"rsp": stack + 64}), elfcore.Task(2, {"rsp": stack + 512})], mapped=rows)
    made = folder / "core"
    made.write_bytes(core)
    return made


def _python(folder: Path) -> Path:
    python = mallocs_python.get("3.11")
    with cores.Running(python.command("-S", "-c", PYTHON), folder, python.environment()) as running:
        return running.kernel_core()


def _ruby(folder: Path) -> Path:
    ruby = rubies.get(rubies.SYSTEM)
    with cores.Running([*ruby.words, "--disable-gems", "-e", RUBY], folder, ruby.environment) as running:
        return running.kernel_core()


def _node(version: str) -> Callable[[Path], Path]:
    """Node 0.10 has V8's handle scopes with symbols; new ones have spaces as of today."""
    program = ["-e", NODE] if version != "0.10.21" else [truth.PROGRAMS / "node_closing.js", "200"]
    return lambda folder: _core(folder, nodes.get(version), *program)


def _java(folder: Path) -> Path:
    classes = folder.parent
    jvms.compile_java(truth.PROGRAMS / "HeldDeflaters.java", classes)
    options = ["-Xmx8m", "-Xint", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=4m", "-XX:NativeMemoryTracking=summary", "-Xshare:off"]
    return _core(folder, jvms.jdk() / "bin/java", *options, "-cp", classes, "HeldDeflaters", 20)


def _go(folder: Path) -> Path:
    program = folder.parent / "program"
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "1"}
    subprocess.run(["go", "build", "-o", str(program), str(truth.PROGRAMS / "go_holds.go")], check=True, env=environment)
    return _core(folder, program, 20, 10, GOTRACEBACK="crash")


def _sample(folder: Path) -> Path:
    """The core of the repository: what is found with it can be kept as a test."""
    made = folder / "core"
    made.write_bytes(gzip.decompress((ROOT / "cores" / "sample.core.gz").read_bytes()))
    return made


MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "sample": _sample,
    "glibc": _glibc,
    "jemalloc": _preloaded(lambda: mallocs_jemalloc.get("5.3.0").library),
    "tcmalloc": _preloaded(lambda: mallocs_tcmalloc.get("2.10").library(full=True)),
    "google": _google,
    "mimalloc": _preloaded(lambda: mallocs_mimalloc.library("2.0.9")),
    "mimalloc3": _preloaded(lambda: mallocs_mimalloc.library("3.2.8")),
    "musl": _musl,
    "oldmalloc": _musl_old,
    "umem": _umem,
    "python": _python,
    "ruby": _ruby,
    "node": _node("22.12.0"),
    "node0": _node("0.10.21"),
    "java": _java,
    "go": _go,
}
"""By name, what makes the core in a folder that is gone afterwards; what it leaves in the folder above is kept."""
