"""The kernel under AddressSanitizer and UndefinedBehaviorSanitizer, and where it runs: a process that has their runtimes loaded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import debian
from hypothesis import settings

from findleaks.engine.native.sources import checksum, options

ROOT = Path(__file__).parents[2]
CLANG = "clang-19"  # builds it in half the time that GCC takes
FLAGS = ("-fsanitize=address,undefined", "-shared-libasan", "-fno-sanitize-recover=all", "-O0", "-g1")  # -O1 takes three times as long


SANITIZED = os.environ.get("FINDLEAKS_TEST_KERNEL", "")
"""A sanitizer's build of the C engine, which then is what is tested."""

SOME = ("_native.so",)
"""The variants of the C engine that `make test` builds with a sanitizer; each needs ten seconds of CPU time. The matrix and `make fuzz`
build all four."""


def environment(folder: Path, every: bool = False) -> dict[str, str]:
    """An environment with the sanitizers' runtimes, in which FINDLEAKS_TEST_KERNEL names a build of the C engine for them.

    Its variants lie beside it: SOME, or with `every` all four. They are built once for these sources, below `folder`.
    """
    folder /= f"sanitized-{checksum()}-{'all' if every else 'some'}"
    library = folder / "_native.so"
    with debian.locked(folder):
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
    # It has UndefinedBehaviorSanitizer's in it.
    runtime = subprocess.run([CLANG, "-print-file-name=libclang_rt.asan-x86_64.so"], check=True, capture_output=True, text=True).stdout
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        "LD_PRELOAD": runtime.strip(),
        # Python allocates much, and of where it did a few callers are enough.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:malloc_context_size=3",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",  # or the sanitizer would not see where Python's buffers end
        "FINDLEAKS_TEST_KERNEL": str(library),
        "FINDLEAKS_TEST_SHARE": "3" if every else "24",
    }


def share(examples: int) -> int:
    """Return the number of random examples to try. `make test` tries half of them, the same ones each time; the matrix tries all.
    A build with a sanitizer tries fewer, but at least three: other builds compare all examples with the Python engine, and a sanitizer
    finds its faults in any example of a kind."""
    if SANITIZED:
        return min(examples, max(3, examples // int(os.environ.get("FINDLEAKS_TEST_SHARE", "6"))))
    return -(-examples // 2) if settings.default is not None and settings.default.derandomize else examples
