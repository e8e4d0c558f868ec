"""Run findleaks and other tools on one program (comparison.c), and print what each finds and how much time and memory it takes.
docs/comparison.md has the figures.

usage: python tests/bench/comparison.py [BLOCKS]

Tools that are not installed are left out. The environment variables CHAP and MEMRAY name programs that Debian does not package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

HERE = Path(__file__).resolve().parent
JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
LOOP = "kept = [bytes(16 + n % 512) for n in range(300_000)]; del kept"


def run(name: str, words: Sequence[object], pattern: str, **more: str) -> str:
    """Run a command. Print its seconds, its memory and its findings: the lines that match `pattern`. Return the whole output."""
    if shutil.which(str(words[0])) is None:
        print(f"{name:34} not installed")
        return ""
    begun = time.monotonic()
    environment = {**os.environ, **more}
    with subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    cpu, seconds = usage.ru_utime + usage.ru_stime, time.monotonic() - begun
    print(f"{name:32} {cpu:6.2f} s CPU {seconds:6.2f} s {usage.ru_maxrss >> 10:5} MiB  {' '.join(map(str, words))}")
    for line in re.findall(pattern, output, re.M):
        print(f"{'':36}{line.strip()}")
    return output


def main(blocks: str) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        for compiled, options in {"plain": [], "sanitized": ["-fsanitize=address"]}.items():
            subprocess.run(["gcc", "-O1", "-g", *options, "-o", compiled, str(HERE / "comparison.c")], check=True)
        took = r"^\d+ records.*$"
        run("the program", ["./plain", blocks], took)
        run("LeakSanitizer, with ASan (gcc)", ["./sanitized", blocks], rf"{took}|^SUMMARY.*$", ASAN_OPTIONS="detect_leaks=1")
        run("Valgrind", ["valgrind", "--leak-check=full", "./plain", blocks], rf"{took}|(?:definitely|indirectly) lost:.*$")
        run("heaptrack, recording", ["heaptrack", "-o", "trace", "./plain", blocks], took)
        if file := next(folder.glob("trace*"), None):
            run("heaptrack, report", ["heaptrack_print", "-l", "1", str(file)], r"^total memory leaked.*$|^total runtime.*$")
        profiled = {"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": "prof:true,prof_final:true,prof_prefix:jeprof"}
        run("jemalloc's profiler, recording", ["./plain", blocks], took, **profiled)
        if profile := next(folder.glob("jeprof*.heap"), None):
            run("jeprof, report", ["jeprof", "--text", "./plain", profile], r"^Total:.*$")
        with subprocess.Popen(["./plain", blocks, "wait"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline(), process.stdout.readline()
            try:
                run("findleaks, live", ["findleaks", "find", "--pid", process.pid], r"^  leaked.*$|\d+\.\d\d s$")
                run("gcore", ["gcore", "-o", "core", process.pid], r"$^")
                core = next(folder.glob("core.*"), folder / "core")
            finally:
                process.kill()
        run("findleaks, core", ["findleaks", "find", core], r"^  leaked.*$|\d+\.\d\d s$")
        run("findleaks verdict, core", ["findleaks", "verdict", core], r"^  1\. .*$")
        chap, memray = os.environ.get("CHAP", "chap"), os.environ.get("MEMRAY", "memray")
        if shutil.which(chap):
            (folder / "script").write_text("count leaked\nsummarize leaked\n")
            run("chap, core", ["sh", "-c", f"{chap} {core} < script"], r"^\d+ allocations.*$")
        python_loop(memray)
    return 0


def python_loop(memray: str) -> Optional[str]:
    """Measure Memray with a loop in Python, because it cannot run a C program."""
    if shutil.which(memray) is None:
        print("memray: not installed")
        return None
    Path("loop.py").write_text(LOOP)
    python = str(Path(shutil.which(memray) or "").resolve().parent / "python3")
    run("a loop in Python", [python, "loop.py"], r"$^")
    run("memray, recording", [memray, "run", "-q", "--native", "-o", "loop.bin", "loop.py"], r"$^")
    return run("memray, report", [memray, "summary", "loop.bin"], r"$^")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "2000000"))
