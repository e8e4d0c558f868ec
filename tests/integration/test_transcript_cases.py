"""A new user finds the cause of each kind of growth with at most three commands.

Each row of the table is a program with one problem, the commands after `verdict`, and what the last output must name. Each output must
suggest the next command.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import building
import debian
import go_programs
import jvms
import libraries_cpp
import maven
import nodes
import published
import pytest
import real
import truth
from transcripts import follow

import cores

PERL = """
package Watcher;
sub watch { my @data = map { "entry $_ of many entries" } 1 .. 6; my $again; $again = sub { push @data, 1; $again->() if @data < 0 }; 1 }
package main;
watch() for 1 .. 0; Watcher::watch() for 1 .. 5000;
$| = 1; print "ready\\n"; sleep 3600;
"""
PHP = """
class DebugStack { public array $queries = []; }
$logger = new DebugStack;
for ($n = 0; $n < 40000; $n++) $logger->queries[] = ['sql' => "select $n from table_of_orders where id = $n", 'params' => [$n]];
echo "ready\\n"; sleep(3600);
"""
PYTHON = """
import time
def serve():
    sessions = [bytearray(b"x" * 300_000) for _ in range(60)]
    print("ready", flush=True)
    time.sleep(3600)
serve()
"""
OCAML = """
let unused = ref 0
let table = Hashtbl.create 16
let () =
  for i = 1 to 3000 do
    let data = Bigarray.Array1.create Bigarray.char Bigarray.c_layout 4000 in
    Bigarray.Array1.fill data 'x';
    Hashtbl.replace table i data
  done;
  print_endline "ready";
  Unix.sleep 3600;
  ignore (Hashtbl.length table)
"""

Build = Callable[[Path], Sequence[str]]


class Case(NamedTuple):
    """`choices`: the first words of the commands after `verdict`. `cause`: a pattern in the last output, whose lines are joined."""

    build: Build
    choices: tuple[str, ...]
    cause: str


def c(source: str, *words: str, options: Sequence[str] = ()) -> Build:
    return lambda folder: [str(building.compile_program(folder, source, "-O1", *options)), *words]


def glib(*words: str) -> Build:
    def build(folder: Path) -> Sequence[str]:
        found = subprocess.run(["pkg-config", "--cflags", "--libs", "gobject-2.0"], check=True, capture_output=True, text=True)
        return [str(building.compile_program(folder, "gobject_program.c", "-O1", *found.stdout.split())), *words]

    return build


def script(program: str, *words: str) -> Build:
    return lambda folder: [real.executable(program), *words]


def python(*words: str) -> Build:
    return script("/usr/bin/python3", str(truth.PROGRAMS / words[0]), *words[1:])


def java(name: str, *words: str, options: Sequence[str] = ()) -> Build:
    def build(folder: Path) -> Sequence[str]:
        jvms.compile_java(truth.PROGRAMS / f"{name}.java", folder, "--release", "17")
        return [str(jvms.jdk() / "bin" / "java"), "-Xmx256m", *options, "-cp", str(folder), name, *words]

    return build


def pydantic(*words: str) -> Build:
    """Return pydantic 2.7.0 and its dependencies."""
    releases = (("pydantic", "2.7.0"), ("pydantic-core", "2.18.1"), ("annotated-types", "0.6.0"), ("typing-extensions", "4.11.0"))

    def build(folder: Path) -> Sequence[str]:
        python, version = published.interpreter()
        path = ":".join(str(published.install(*release, version)) for release in releases)
        return ["/usr/bin/env", f"PYTHONPATH={path}", python, "-S", str(truth.PROGRAMS / "published_pydantic.py"), *words]

    return build


def multidict(*words: str) -> Build:
    """Return a function that builds a program with multidict 4.7.3 and returns its command."""

    def build(folder: Path) -> Sequence[str]:
        python, version = published.interpreter()
        assert python == sys.executable, "pip builds the extension for the Python that runs the tests"
        path = str(published.install("multidict", "4.7.3", version, built=True))
        return ["/usr/bin/env", f"PYTHONPATH={path}", python, "-S", str(truth.PROGRAMS / "published_multidict.py"), *words]

    return build


def histograms(*words: str) -> Build:
    """Return version 2.1.8 of HdrHistogram."""
    release = ("org.hdrhistogram:HdrHistogram:2.1.8", "2776b755bafe3ddc8b4d7e7b64bff1635d37e480c84e3337f4d05b62a0055299")

    def build(folder: Path) -> Sequence[str]:
        library = maven.jar(*release, debian.cache() / "libraries" / "java")
        jvms.compile_java(truth.PROGRAMS / "DroppedHistograms.java", folder, "-cp", str(library))
        return [str(jvms.jdk() / "bin" / "java"), "-Xmx256m", "-cp", f"{library}:{folder}", "DroppedHistograms", *words]

    return build


def node(*words: str) -> Build:
    return lambda folder: [nodes.get(nodes.NEWEST), "--expose-gc", *nodes.STEADY, str(truth.PROGRAMS / "v8_holders.js"), *words]


def go(*words: str) -> Build:
    return lambda folder: [str(go_programs.build(folder, "", name="go_dropped")), *words]


def rust(source: str, *words: str) -> Build:
    def build(folder: Path) -> Sequence[str]:
        rustc, made = shutil.which("rustc"), folder / "program"
        assert rustc is not None, "rustc comes with cargo: apt-get install cargo"
        subprocess.run([rustc, "--edition=2021", "-O", str(truth.PROGRAMS / source), "-o", str(made)], check=True)
        return [str(made), *words]

    return build


def with_library(flags: Callable[[], Sequence[str]], *words: str) -> Build:
    def build(folder: Path) -> Sequence[str]:
        program = str(folder / "grown_containers")
        command = ["g++", "-O1", "-std=c++17", str(truth.PROGRAMS / "grown_containers.cpp"), "-o", program, *flags()]
        subprocess.run(command, check=True)
        return [program, *words]

    return build


def ocaml(folder: Path) -> Sequence[str]:
    (folder / "bigarrays.ml").write_text(OCAML)
    return [real.executable("ocaml"), "unix.cma", str(folder / "bigarrays.ml")]


def native_ocaml(folder: Path) -> Sequence[str]:
    (folder / "bigarrays.ml").write_text(OCAML)
    subprocess.run([real.executable("ocamlopt"), "unix.cmxa", "bigarrays.ml", "-o", "bigarrays"], cwd=folder, check=True)
    return [str(folder / "bigarrays")]


CASES = {
    "a memory resource": Case(
        c("grown_containers.cpp", "resource", "60000", options=["-std=c++17"]),
        (),
        r"chunk of std::pmr::monotonic_buffer_resource.* reached from .*scratch \(grown_containers, data\)",
    ),
    "a list with a stale pointer": Case(
        c("grown_containers.cpp", "records", "60000", options=["-std=c++17"]),
        (),
        r"records \(grown_containers, data\) alone retains .* doubly linked list, 60,000 nodes",
    ),
    "a container of a template": Case(
        c("grown_containers.cpp", "ring", "60000", options=["-std=c++17", "-g"]),
        (),
        r"ring \(grown_containers, data\) alone retains .* Its type is Ring<Record>\.",
    ),
    "a small table of GLib": Case(glib("9000"), (), r"sessions \(gobject_program, data\) alone retains .*GHashTable, 9,000 entries"),
    "leaked GObjects": Case(glib("0", "9000"), (), r"a g_object_unref is missing \(9,000 of AppSession"),
    "tagged pointers": Case(c("disguised.c", "tagged", "4000"), (), r"referenced only by tagged pointers"),
    "a missing Py_DECREF": Case(
        python("missing_decref.py", "instance", "5000"), (), r"a Py_DECREF is missing \((5,000|4,9\d\d) of __main__\.Session"
    ),
    "strings of Python": Case(python("missing_decref.py", "str", "9000"), ("find",), r"definite (9,000|8,9\d\d) .* str \(96 B\)"),
    "a collector that is disabled": Case(
        python("missing_decref.py", "cycle", "4000"), (), r"__main__\.Node.*collection is disabled.*gc\.collect"
    ),
    "a local variable of Python": Case(
        script("/usr/bin/python3", "-c", PYTHON),
        ("roots",),
        r"serve \(CPython frame, main thread\): local variable sessions: list of 60",
    ),
    "closures of Perl": Case(script("perl", "-e", PERL), (), r"cycle of .*closure at -e:3.*Perl never frees cycles"),
    "a table of OCaml": Case(
        native_ocaml,
        (),
        r"Field 2 of the module Bigarrays \(hash table, 3,000 entries\) refers to \d\d?,\d+ objects and 3,000 blocks of malloc",
    ),
    "queries of PHP": Case(script("php", "-r", PHP), (), r"DebugStack->queries \(PHP variable\) alone retains"),
}
"""The cases that take little time."""

OTHERS = {
    "a B-tree of Abseil": Case(
        with_library(lambda: ["-DWITH_ABSEIL", *libraries_cpp.abseil("20220623")], "btree", "60000"),
        (),
        r"sessions.* alone retains .*absl::btree_map or set, 60,000 entries",
    ),
    "a queue of boost::lockfree": Case(
        with_library(lambda: ["-DWITH_BOOST", "-mcx16", *libraries_cpp.boost("1.74"), "-latomic"], "jobs", "3000"),
        ("roots",),
        r"jobs.* \(grown_containers, data\)",
    ),
    "a map of Boost": Case(
        with_library(lambda: ["-g", "-DWITH_BOOST", "-mcx16", *libraries_cpp.boost("1.74"), "-latomic"], "map", "60000"),
        (),
        r"cached.* \(grown_containers, data\) alone retains .* Its type is unordered_map<long",
    ),
    "a static of Rust": Case(rust("rust_statics.rs", "30000"), ("roots",), r"INDEX .*BTreeMap or BTreeSet, 30,000 entries"),
    "a list of Rust": Case(rust("rust_statics.rs", "30000"), ("roots",), r"LIST .*doubly linked list, 30,000 nodes"),
    "an emptied map of Rust": Case(rust("rust_statics.rs", "30000"), ("roots",), r"BURST .*HashSet\), 0 entries in 65,536 places"),
    "cycles of Rust": Case(rust("rust_statics.rs", "30000"), ("find",), r"definite 500 .* cycle of 2: 120 B"),
    "direct buffers": Case(
        java("DirectBuffers", "60", "1000000"),
        (),
        r"60 objects of java\.nio\.DirectByteBuffer retain .*java\.lang\.Thread",
    ),
    "class loaders": Case(java("ClassLoaders", "3000", "0"), ("path",), r"ClassLoaders static \.KEPT|ClassLoaders\$Loader"),
    "native memory of Java objects": Case(
        java("HeldDeflaters", "300"), (), r"300 objects of java\.util\.zip\.Deflater\$DeflaterZStreamRef retain"
    ),
    "dead Java objects": Case(
        histograms("500"),
        (),
        r"50[0-9] objects of java\.util\.zip\.Inflater\$InflaterZStreamRef retain .*; 500 of these are garbage that was not collected yet"
        r", and retain [\d.]+ MiB; a collection \(jcmd PID GC\.run\) frees this memory",
    ),
    "iterators of pydantic": Case(pydantic("3000"), (), r"(2,9\d\d|3,000) × cycle of 3: pydantic_core\._pydantic_core\.ValidatorIterator"),
    "views of a MultiDict": Case(multidict("5000"), (), r"a Py_DECREF is missing \((4,9\d\d|5,000) of multidict\._multidict\._KeysView"),
    "lists with a missing Py_DECREF": Case(
        python("missing_decref.py", "list", "9000"), (), r"a Py_DECREF is missing \((8,9\d\d|9,000) of list"
    ),
    "dicts with a missing Py_DECREF": Case(
        python("missing_decref.py", "dict", "9000"), (), r"a Py_DECREF is missing \((8,9\d\d|9,000) of dict"
    ),
    "listeners of Node": Case(node("listeners", "30000", ""), (), r"variable bus .*onData"),
    "goroutines": Case(go("goroutines", "600"), (), r"600 goroutines wait in main\.expire .*1[12],\d\d\d main\.Session"),
    "an emptied map of Go": Case(go("map", "200000"), (), r"variable main\.registry takes .* for 1 entry.* never shrinks"),
    "arrays of OCaml": Case(ocaml, (), r"where OCaml stores its objects.* 3,000 of these blocks have 4,0\d\d B"),
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.matrix) for name in OTHERS)])
def test_cause(name: str, tmp_path: Path) -> None:
    case = {**CASES, **OTHERS}[name]
    with cores.Running(case.build(tmp_path), tmp_path / "run") as run:
        text = follow(["--pid", str(run.pid)], *case.choices)
    assert re.search(case.cause, text), text
