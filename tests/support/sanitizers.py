"""Build the C engine with AddressSanitizer and UndefinedBehaviorSanitizer, and set up a process that loads their runtimes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import debian
from hypothesis import settings

from findleaks.engine.native.sources import checksum, options

ROOT = Path(__file__).parents[2]
CLANG = "clang-19"  # takes half of GCC's time
FLAGS = (
    "-fsanitize=address,undefined",
    "-shared-libasan",
    "-fno-sanitize-recover=all",
    "-O0",
    "-g1",
)  # compiling with -O1 takes three times as long


SANITIZED = os.environ.get("FINDLEAKS_TEST_KERNEL", "")
"""The path of a C engine that was built with a sanitizer, or "". If there is a path, tests load this library instead of the usual C
engine."""

SOME = ("_native.so",)
"""The variants of the C engine that `make test` builds with a sanitizer; each needs ten seconds of CPU time. The matrix and `make fuzz`
build all four."""


def environment(folder: Path, every: bool = False) -> dict[str, str]:
    """Return an environment with the sanitizers' runtimes, in which FINDLEAKS_TEST_KERNEL names a build of the C engine with sanitizers.

    Its variants are in the same folder: SOME, or with `every` all four. They are built once for the current sources, below `folder`.
    """
    folder /= f"sanitized-{checksum()}-{'all' if every else 'some'}"
    library = folder / "_native.so"
    with debian.hold_lock(folder):
        if not library.exists():
            sources = sorted(str(path) for path in ROOT.glob("common/native/*.c"))
            made = []
            for name, variant in options().items():
                if not every and name not in SOME:
                    continue
                command = [CLANG, "-std=c11", *FLAGS, *variant, "-fPIC", "-shared", "-o", str(folder / f"{name}.part"), *sources]
                made.append((name, subprocess.Popen(command)))
            assert [process.wait() for _, process in made] == [0] * len(made)
            for name, _ in reversed(made):
                (folder / f"{name}.part").rename(folder / name)
    # This runtime contains UndefinedBehaviorSanitizer's as well.
    runtime = subprocess.run([CLANG, "-print-file-name=libclang_rt.asan-x86_64.so"], check=True, capture_output=True, text=True).stdout
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        "LD_PRELOAD": runtime.strip(),
        # Python allocates very often; a few frames of each allocation are enough.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:malloc_context_size=3",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",  # otherwise the sanitizer does not know the bounds of Python's buffers
        "FINDLEAKS_TEST_KERNEL": str(library),
        "FINDLEAKS_TEST_SHARE": "3" if every else "24",
    }


def share(examples: int) -> int:
    """Return the number of random examples to try. `make test` tries a quarter of them, always the same; the matrix tries all. A build with
    a sanitizer tries fewer, but at least three: other builds compare all examples with the Python engine, and any example of a kind is
    enough for a sanitizer."""
    if SANITIZED:
        return min(examples, max(3, examples // int(os.environ.get("FINDLEAKS_TEST_SHARE", "6"))))
    return -(-examples // 4) if settings.default is not None and settings.default.derandomize else examples
