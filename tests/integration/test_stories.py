"""The investigations in docs/stories.md. Each program is started, and the commands of its section print what the page shows, except for
numbers.

The tests that each section names check the exact figures of these programs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import commandline
import documented
import jvms
import mallocs_jemalloc
import nodes
import pytest
import rubies
import truth
from debuggers import environment

from cores import Running

LIKE = 0.8
"""Minimum share of the words of a page's output that must be printed again, in the same order. Numbers count as equal, and long texts
may wrap at other places."""
THREADS = 600
SIGNAL_STACK = 16 << 10
"""Bytes that Ruby allocates for each thread's alternate signal stack."""

pytestmark = pytest.mark.matrix


def check_section(number: int, **pids: int) -> None:
    """Run the commands of a section. `pids`: by subcommand, the process to use instead of the process on the page; `every` for all other
    subcommands."""
    lines = (documented.ROOT / "docs/stories.md").read_text(encoding="utf-8").split("\n")
    start = next(at for at, line in enumerate(lines) if line.startswith(f"## {number}. "))
    end = next(at for at in range(start + 1, len(lines) + 1) if at == len(lines) or lines[at].startswith("## "))
    seen = 0
    for example in documented.parse("docs/stories.md", "\n".join(lines[start:end])):
        for words in documented.calls(example) if example.output else ():
            pid = pids.get(words[0], pids.get("every"))
            if pid is None:
                continue
            words[words.index("--pid") + 1] = str(pid)
            done = commandline.run(words, environment(COLUMNS=documented.COLUMNS))
            assert (done.returncode, done.stderr.count("findleaks: ")) == (0, 0), done.stderr
            like = documented.likeness(example.output, (done.stdout + done.stderr).splitlines())
            assert like >= LIKE, f"section {number}, {example.command}: {like:.0%}\n{done.stdout}"
            seen += 1
    assert seen


def test_handles_that_nobody_closes(tmp_path: Path) -> None:
    program = nodes.get("0.10.21")
    with Running([program, str(truth.PROGRAMS / "node_closing.js"), "100000"], tmp_path) as run:
        check_section(1, verdict=run.pid, scopes=run.pid)
    with subprocess.Popen([program, str(truth.PROGRAMS / "node_forever.js")], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            check_section(1, count=process.pid)
        finally:
            process.kill()


def test_memory_that_glibc_does_not_return(tmp_path: Path) -> None:
    with Running([str(shutil.which("ruby")), str(truth.PROGRAMS / "verdict_threads.rb")], tmp_path) as run:
        check_section(2, every=run.pid)


def test_results_that_the_collector_does_not_see(tmp_path: Path) -> None:
    shim = tmp_path / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, truth.PROGRAMS / "pg_shim.c", "-ldl"], check=True)
    more = {"LD_PRELOAD": str(shim), "MALLOC_PERTURB_": "165", "PG_UNCOUNTED": "1"}
    words = (str(800), str(100_000))
    with (
        rubies.postgres(tmp_path) as port,
        rubies.Pausing(rubies.SYSTEM, truth.PROGRAMS / "ruby_pg.rb", tmp_path / "run", str(port), *words, **more) as run,
    ):
        check_section(3, every=run.pid)


def test_a_profilers_maps_and_fragmentation(tmp_path: Path) -> None:
    home = Path(shutil.which("javac") or "").resolve().parents[1]
    library = tmp_path / "libagent.so"
    options = ["-O1", "-shared", "-fPIC", "-Wl,-Bsymbolic-functions", f"-I{home}/include", f"-I{home}/include/linux"]
    subprocess.run(["g++", *options, str(truth.PROGRAMS / "roots_agent.cpp"), "-o", str(library)], check=True)
    small = ["-XX:CompressedClassSpaceSize=16m", "-XX:ReservedCodeCacheSize=16m"]
    for source in ("Threads.java", "VerdictDeflaters.java"):
        jvms.compile_java(truth.PROGRAMS / source, tmp_path)
    words = ["java", "-Xmx32m", *small, f"-agentpath:{library}", "-cp", str(tmp_path), "Threads", str(library), "30000"]
    with Running(words, tmp_path / "agent") as run:
        check_section(4, roots=run.pid)
    words = ["java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *small, "-cp", str(tmp_path), "VerdictDeflaters"]
    with Running(words, tmp_path / "deflaters") as run:
        check_section(4, verdict=run.pid)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Start Ruby with jemalloc and THREADS threads that wait forever."""
    ruby = rubies.get(rubies.SYSTEM)
    preload = {"LD_PRELOAD": str(mallocs_jemalloc.get("5.3.0").library)}
    words = [*ruby.words, str(truth.PROGRAMS / "ruby_waiting_threads.rb"), str(THREADS)]
    with Running(words, tmp_path_factory.mktemp("waiting"), {**os.environ, **ruby.environment, **preload}) as run:
        yield run


def test_threads_that_wait(waiting: Running) -> None:
    pid = str(waiting.pid)
    asked = {
        words[0]: json.loads(commandline.run([*words, "--json", "--pid", pid], environment()).stdout)
        for words in (["caches", "--size", str(SIGNAL_STACK)], ["stacks"], ["verdict"])
    }
    (row,) = [row for row in asked["caches"]["caches"] if row["allocator"] == "jemalloc" and row["size"] == SIGNAL_STACK]
    assert THREADS <= row["in_use"] <= THREADS + 5
    assert max(group["count"] for group in asked["stacks"]["stacks"]) == THREADS
    assert any(one["text"].startswith(f"{THREADS + 1} threads run") for one in asked["verdict"]["findings"])


def test_what_the_page_shows_of_them(waiting: Running) -> None:
    check_section(5, every=waiting.pid)
