"""Reports of ThreadSanitizer and MemorySanitizer, which keep no text in memory, and reports of AddressSanitizer in several pieces."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import fake
import pytest
from debuggers import gdb, lldb, objects, run_cli
from kernel_cores import run_until_crash

from findleaks.audit.crash.sanitizer_report import _find_report
from findleaks.session import Session

_THREADS = """#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int counter;
char buffer[64], *volatile kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noinline)) static void *work(void *word) {
    if (!strcmp(word, "race")) counter++;
    if (!strcmp(word, "copy")) memcpy(buffer, word, 5);
    if (!strcmp(word, "freed")) {
        free((void *)(kept = malloc(40)));
        fprintf(stderr, "address=%p\\n", (void *)(kept + 3));
        kept[3] = 1;
    }
    if (!strcmp(word, "unlock")) pthread_mutex_unlock(&lock);
    if (!strcmp(word, "abort")) abort();
    return NULL;
}
int main(int words, char **word) {
    pthread_t threads[2];
    if (!strcmp(word[1], "race")) fprintf(stderr, "address=%p\\n", (void *)&counter);
    for (int i = 0; i < 2; i++) pthread_create(threads + i, NULL, work, word[1]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return words;
}
"""

_UNINITIALIZED = """#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) static int work(int *block, int at) { return block[at] ? puts("set") : 0; }
int main(int words, char **word) { return work(malloc(40), words); }
"""

MESSAGES = {
    "race": r"ThreadSanitizer: data race or use after free, (?:read|write) of 4 bytes at {address}",
    "freed": r"ThreadSanitizer: data race or use after free, write of 1 byte at {address}",
    "copy": r"ThreadSanitizer: report about memcpy\(\)",
    "unlock": r"ThreadSanitizer: report about pthread_mutex_unlock\(\)",
}
"""By argument of the program: a pattern of the message. {address} is the address that the program printed."""


@pytest.fixture(scope="module", params=["gcc", pytest.param("clang-19", marks=pytest.mark.matrix)])
def threads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    (folder / "program.c").write_text(_THREADS)
    command = [request.param, "-O1", "-g", "-w", "-fno-builtin", "-fsanitize=thread", "program.c", "-o", "program"]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "program"


def find_crash(body: dict[str, Any]) -> dict[str, Any]:
    (found,) = (one for one in body["findings"] if one["finding"] == "crash")
    return dict(found)


def run(program: Path, word: str, folder: Path) -> tuple[Path, dict[str, str], dict[str, Any]]:
    """Run the program without random addresses, which old releases of ThreadSanitizer do not support. Return its core, the values that it
    printed, and the result of `verdict`."""
    options = "abort_on_error=1:halt_on_error=1:disable_coredump=0:symbolize=0"
    command = ["env", f"TSAN_OPTIONS={options}", f"MSAN_OPTIONS={options}", "setarch", "-R", str(program), word]
    core, printed = run_until_crash(command, folder)
    return core, dict(re.findall(r"(\w+)=(\S+)", printed)), json.loads(run_cli("verdict", "--json", str(core)).stdout)


@pytest.mark.parametrize("word", ["race", "freed", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("copy", "unlock"))])
def test_reports_of_thread_sanitizer(word: str, threads: Path, tmp_path: Path) -> None:
    core, printed, body = run(threads, word, tmp_path)
    found = find_crash(body)
    assert (found["evidence"]["signal"], found["evidence"]["function"]) == ("SIGABRT", "work")
    assert re.fullmatch(MESSAGES[word].format(**printed), found["evidence"]["message"]), (found["evidence"]["message"], printed)
    if word != "race":
        return
    for other in (gdb(["leaks verdict --json"], str(threads), str(core)), lldb(["leaks verdict --json"], str(threads), "-c", str(core))):
        assert find_crash(json.loads(objects(other)[0]))["evidence"]["message"] == found["evidence"]["message"]


def test_abort_of_a_program_with_thread_sanitizer(threads: Path, tmp_path: Path) -> None:
    """ThreadSanitizer intercepts abort()."""
    _, _, body = run(threads, "abort", tmp_path)
    assert "Sanitizer: " not in json.dumps(body)
    assert any("SIGABRT in work (program), which called abort()" in one for one in body["notes"]), body["notes"]


def test_reports_of_memory_sanitizer(tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(_UNINITIALIZED)
    subprocess.run(["clang-19", "-O1", "-g", "-w", "-fsanitize=memory", "program.c", "-o", "program"], check=True, cwd=tmp_path)
    _, _, body = run(tmp_path / "program", "", tmp_path / "run")
    found = find_crash(body)
    assert (found["evidence"]["signal"], found["evidence"]["function"]) == ("SIGABRT", "work")
    assert found["evidence"]["message"] == "MemorySanitizer: use-of-uninitialized-value"


@pytest.mark.parametrize("at", [4090, 4096 - 60, 4096 - 2])
@pytest.mark.parametrize("gap", [0, 4096])
def test_reports_that_lie_across_two_pieces(at: int, gap: int) -> None:
    """The line begins in one mapping and ends in the next one, if there is no gap between them."""
    line = b"==42==ERROR: AddressSanitizer: heap-use-after-free on address 0x604000000013 at pc 0x5500\n"
    data = (bytes(at) + line).ljust(8192, b"\0")
    session = Session(fake.FakeTarget({0x10000: data[:4096], 0x11000 + gap: data[4096:]}, pid=42))
    assert _find_report(session) == ("" if gap else "AddressSanitizer: heap-use-after-free on address 0x604000000013")
