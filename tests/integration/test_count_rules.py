"""`count` with the built-in scope rules, on Node, a JVM and CPython. The native code of each program prints what it called and from
where."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import jvms
import mallocs_python as pythons
import nodes
import pytest
import truth
from counts import DOORS, Counting, Places, Words, by_command_line, check_unharmed, code, count_calls, parse_expected, parse_tables, places

from cores import Running
from findleaks.runtimes import jni

THREADS = 3
CALLS = 300
"""Number of threads of the programs."""
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-shared", "-fPIC")


JVM = "lib/server/libjvm.so"


class Subject(NamedTuple):
    """A program that calls `function` at the place `at` a known number of times inside and outside the scopes of a rule. `whole`: its
    stacks are complete."""

    running: Running
    rule: str
    function: str
    at: Places
    calls: int
    whole: bool = True


def build(folder: Path, name: str, *flags: str) -> Path:
    output = folder / f"{name}.so"
    subprocess.run(["gcc", *FLAGS, *flags, "-o", output, truth.PROGRAMS / f"{name}.c"], check=True)
    return output


@contextmanager
def node(folder: Path, version: str = nodes.NEWEST) -> Iterator[Subject]:
    """The main thread and workers, each with its own isolate."""
    addon = build(folder, "node_scoped").rename(folder / "scoped.node")
    program = Path(nodes.get(version))
    with Running([str(program), str(truth.PROGRAMS / "node_scoped.js"), str(addon), str(THREADS - 1)], folder / "run") as running:
        yield Subject(running, "napi", "napi_create_object", places(running.pid, program, ["napi_create_object"], None, "-D"), CALLS)


@contextmanager
def java(folder: Path, home: Path | None = None, *options: str) -> Iterator[Subject]:
    """Java threads that call native code. Not all Java frames can be unwound."""
    there = jdk()
    library = build(folder, "jni_scoped", f"-I{there}/include", f"-I{there}/include/linux")
    jvms.compile_java(truth.PROGRAMS / "JniScoped.java", folder)
    command = [str((home or there) / "bin" / "java"), "-Xint", *options, "-cp", str(folder), "JniScoped", str(library), str(THREADS)]
    with Running(command, folder / "run") as running:
        at = places(running.pid, (home or there) / JVM, ["jni_NewLocalRef"], there / JVM)
        yield Subject(running, "jni", "jni_NewLocalRef", at, CALLS, whole=False)


def jdk() -> Path:
    return Path(shutil.which("javac") or "").resolve().parents[1]


def strip_jdk(folder: Path) -> Path:
    """Return a copy of the machine's JDK whose files are links, except for a libjvm without symbols, and the files that locate it by
    their own path."""
    home = folder / "jdk"
    subprocess.run(["cp", "-as", f"{jdk()}/", home], check=True)
    for name in (JVM, "bin/java"):
        (home / name).unlink()
        shutil.copy(jdk() / name, home / name)
    subprocess.run(["strip", home / JVM], check=True)
    return home


@contextmanager
def python(folder: Path, version: str = "3.11", embedded: bool = False) -> Iterator[Subject]:
    """Threads of C code, and one thread of Python code."""
    pythons.extension(truth.PROGRAMS / "gil_scoped.c", folder)
    interpreter, script = pythons.get(version), str(truth.PROGRAMS / "gil_threads.py")
    file, command = interpreter.root / "usr" / "bin" / f"python{version}", interpreter.command(script)
    if embedded:
        file, program = interpreter.library(), folder / "embedded"
        flags = ["-Wl,--no-as-needed", file, "-Wl,--allow-shlib-undefined"]
        subprocess.run(["gcc", *pythons.FLAGS, *flags, "-o", program, truth.PROGRAMS / "pymalloc_embedded.c"], check=True)
        command = [*interpreter.command()[:3], str(program), script]
    with Running(command, folder / "run", interpreter.environment(folder, THREADS=str(THREADS))) as running:
        yield Subject(running, "python-gil", "PyLong_AsLong", places(running.pid, file, ["PyLong_AsLong"], None, "-D"), 175)


def outside(subject: Subject, front_end: Words) -> None:
    """Check that exactly the calls outside a scope are counted, by their stacks, and that the program continues unharmed."""
    running, at = subject.running, subject.at
    before = code(running.pid, at)
    counting = Counting(
        front_end, [subject.function, "--outside-scope", subject.rule, "--events", str(subject.calls), "--json"], running, at
    )
    (running.folder / "go").touch()
    (table,) = parse_tables(counting.finish())
    assert count_calls(table, subject.whole) == parse_expected(running, 2), table
    assert table["matched"] == sum(parse_expected(running, 2).values())
    assert table["events"] == sum(parse_expected(running, 1).values())
    assert [one["function"] for one in table["functions"]] == [subject.function]
    check_unharmed(running, at, before)


def always(make: object, front_end: str) -> bool:
    """Return whether `make test` runs this combination. The matrix tests the other combinations: front ends do not differ by runtime,
    except that LLDB sees the signals of a JVM."""
    return (make, front_end) in ((python, "gdb"), (node, "command line"), (java, "lldb"))


EVERY = [
    pytest.param(make, DOORS[front_end], id=f"{make.__name__}-{front_end}", marks=() if always(make, front_end) else pytest.mark.matrix)
    for make in (node, java, python)
    for front_end in DOORS
]


@pytest.mark.parametrize(("make", "front_end"), EVERY)
def test_calls_outside_a_scope(make: Callable[[Path], AbstractContextManager[Subject]], front_end: Words, tmp_path: Path) -> None:
    """Threads are counted separately. Calls in nested scopes and in each kind of scope of the rule are not reported as outside."""
    with make(tmp_path) as subject:
        outside(subject, front_end)


@pytest.mark.matrix
@pytest.mark.parametrize("version", [version for version in nodes.WITH_WORKERS if version != nodes.NEWEST])
def test_node_releases(version: str, tmp_path: Path) -> None:
    with node(tmp_path, version) as subject:
        outside(subject, by_command_line)


@pytest.mark.parametrize("version", ["3.11", pytest.param("3.13", marks=pytest.mark.matrix)])
def test_libpython(version: str, tmp_path: Path) -> None:
    """libpython finds its variables through tables: of addresses up to Python 3.11, and of thread-local storage in later releases."""
    with python(tmp_path, version, embedded=True) as subject:
        outside(subject, by_command_line)


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["3.13", "3.14"])
def test_python_releases(version: str, tmp_path: Path) -> None:
    with python(tmp_path, version) as subject:
        outside(subject, by_command_line)


def test_a_jvm_without_symbols(tmp_path: Path) -> None:
    """findleaks finds the JVM's functions in the table through which native code calls them (JNIEnv)."""
    with java(tmp_path, strip_jdk(tmp_path)) as subject:
        outside(subject, by_command_line)


@pytest.mark.matrix
def test_jvm_with_checked_jni(tmp_path: Path) -> None:
    """With -Xcheck:jni, the JVM has a second table. Its functions call the functions of the first table."""
    for home in (None, strip_jdk(tmp_path)):
        folder = tmp_path / ("stripped" if home else "whole")
        folder.mkdir()
        with java(folder, home, "-Xcheck:jni") as subject:
            outside(subject, by_command_line)


def test_the_order_of_the_table(tmp_path: Path) -> None:
    """The functions have the order of jni.h of the JDK."""
    source, program = tmp_path / "order.c", tmp_path / "order"
    lines = "".join(f"OF({name})\n" for name in jni.NAMES)
    of = '#define OF(name) printf("%zu\\n", offsetof(struct JNINativeInterface_, name) / sizeof(void *));'
    source.write_text(f"#include <jni.h>\n#include <stddef.h>\n#include <stdio.h>\n{of}\nint main(void) {{\n{lines}}}\n")
    subprocess.run(["gcc", f"-I{jdk()}/include", f"-I{jdk()}/include/linux", "-o", program, source], check=True)
    reported = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert [int(place) for place in reported.split()] == list(range(jni.RESERVED, jni.RESERVED + len(jni.NAMES)))


def by_stub(pid: int, words: Sequence[str]) -> list[str]:
    return by_command_line(pid, [*words, "--inject"])


@pytest.mark.parametrize("make", [node, java, pytest.param(lambda folder: python(folder, "3.13"), id="python", marks=pytest.mark.matrix)])
def test_with_a_stub(make: Callable[[Path], AbstractContextManager[Subject]], tmp_path: Path) -> None:
    """`--inject` also patches the functions that open and close scopes, or makes the stub check whether the thread holds the lock."""
    with make(tmp_path) as subject:
        outside(subject, by_stub)
