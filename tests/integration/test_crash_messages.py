"""`verdict` prints the message with which a library ended the process, and the innermost function outside of the library."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import mallocs_tcmalloc
import pytest
from debuggers import run_cli
from kernel_cores import run_until_crash

_GLIB = """#include <glib.h>
#include <string.h>
__attribute__((noinline)) void check(GList *list) { g_assert_cmpint(g_list_length(list), ==, 3); }
__attribute__((noinline)) void open_database(const char *name) { g_error("cannot open the database %s: locked", name); }
__attribute__((noinline)) int count(GList *list) { g_return_val_if_fail(list == NULL, 1); return 0; }
__attribute__((noipa)) void use(char *own) {}
__attribute__((noipa)) void warn(char *text, int size) { char own[size]; use(own); g_warning("%s %d", text, size); use(own); }
__attribute__((noinline)) void clear(GMutex *mutex) { g_mutex_lock(mutex); g_mutex_clear(mutex); }
__attribute__((noinline)) void *reserve(gsize size) { return g_malloc(size); }
int main(int words, char **word) {
    GList *list = g_list_append(NULL, word[1]);
    GMutex mutex = {0};
    char text[] = "an earlier message";
    for (int size = 16; size < 8192; size += 1500) warn(text, size);
    if (!strcmp(word[1], "check")) check(list);
    if (!strcmp(word[1], "open_database")) open_database("users.db");
    if (!strcmp(word[1], "count")) { g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL); return count(list); }
    if (!strcmp(word[1], "clear")) clear(&mutex);
    if (!strcmp(word[1], "reserve")) return reserve(G_MAXSIZE / 8) != NULL;
    return words;
}
"""


@pytest.fixture(scope="module")
def glib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glib")
    source, program = folder / "program.c", folder / "program"
    source.write_text(_GLIB)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "glib-2.0"], check=True, capture_output=True, text=True).stdout.split()
    subprocess.run(["gcc", "-O1", "-g", source, "-o", program, *flags], check=True)
    return program


@pytest.mark.parametrize("word", ["check", "open_database", "count", pytest.param("reserve", marks=pytest.mark.matrix)])
def test_messages_of_glib(word: str, glib: Path, tmp_path: Path) -> None:
    core, printed = run_until_crash([str(glib), word], tmp_path)
    line = printed.strip().splitlines()[-1].removeprefix("**").strip()  # "(process:12): GLib-ERROR **: 03:04:05.678: the message"
    message = line if word == "check" else line.split(": ", 3)[3]
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["evidence"]["message"] == message, printed
    assert found["evidence"]["function"] == word
    assert f" in {word} (program): {message.rstrip('.')}." in found["text"]
    assert not found["cause"]


def test_earlier_messages_of_glib(glib: Path, tmp_path: Path) -> None:
    """g_mutex_clear() calls abort() after it printed its message with fprintf()."""
    core, _ = run_until_crash([str(glib), "clear"], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)
    assert "earlier" not in str(found) and not any((one["evidence"] or {}).get("message") for one in found["findings"])
    assert "SIGABRT in clear (program), which called abort() and left no message" in str(found)


def test_a_log_line_is_not_a_message_of_tcmalloc(tmp_path: Path) -> None:
    """glog prints lines of the same form."""
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_LOGGING)
    subprocess.run(["gcc", "-O1", "-g", "-w", source, "-o", program], check=True)
    core, _ = run_until_crash([str(program)], tmp_path / "run")
    assert "connected" not in run_cli("verdict", "--json", str(core)).stdout


_LOGGING = """#include <stdio.h>
#include <stdlib.h>
__attribute__((noipa)) void print(char *line) { fputs(line, stderr); }
int main(void) { char line[80]; sprintf(line, "src/server.cc:%d] client connected\\n", 120); print(line); abort(); }
"""


_TCMALLOC = """#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) void drop(void *block) { free(block); asm volatile(""); }
int main(void) { char *block = malloc(40); fprintf(stderr, "block=%p\\n", block); drop((void *)0x123456789000); return 0; }
"""


@pytest.mark.parametrize(
    "version", [pytest.param(one, marks=() if one == "2.10" else pytest.mark.matrix) for one in mallocs_tcmalloc.SUITES]
)
def test_the_message_of_tcmalloc(version: str, tmp_path: Path) -> None:
    tcmalloc, source = mallocs_tcmalloc.get(version), tmp_path / "program.c"
    source.write_text(_TCMALLOC)
    program = tcmalloc.compile(source, tmp_path / "program", ("-O1", "-g", "-w"))
    environment = [f"{name}={value}" for name, value in tcmalloc.environment().items()]
    core, printed = run_until_crash(["env", *environment, str(program)], tmp_path)
    (line,) = re.findall(r"^.*Attempt to free invalid pointer.*$", printed, re.MULTILINE)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["evidence"]["message"] == line.strip()
    assert found["evidence"]["signal"] == ("SIGABRT" if version in ("2.8.1", "2.10") else "SIGILL")
    assert found["evidence"]["function"] == "drop"


_SANITIZED = """#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char *volatile kept;
static volatile int number = 5;
static int table[4];
__attribute__((noinline)) static void work(const char *word) {
    if (strstr("freed recovered second", word)) { kept = malloc(40); fprintf(stderr, "block=%p\\n", kept); free(kept); kept[3] = 1; }
    if (!strcmp(word, "wild")) { kept = (char *)0x123456789000; kept[0] = 1; }
    if (strstr("index second", word)) table[number] = 1; /* line 11 */
    if (!strcmp(word, "twice")) { kept = malloc(40); free(kept); free(kept); }
    if (strstr("abort recovered", word)) abort();
}
static void *run(void *word) { work(word); return NULL; }
int main(int words, char **word) {
    pthread_t thread;
    char *digits = memset(malloc(6000), '1', 6000); /* not the number of a process */
    memcpy(digits, "==", 2);
    strcpy(digits + 5900, "==ERROR: AddressSanitizer: nothing\\n");
    pthread_create(&thread, NULL, run, word[1]);
    return pthread_join(thread, NULL);
}
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "program.c").write_text(_SANITIZED)
    command = ["gcc", "-O1", "-g", "-w", "-fsanitize=address,undefined", "program.c", "-o", "program"]
    command += ["-fno-sanitize-recover=all", "-fsanitize-recover=address"]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "program"


@pytest.mark.parametrize(
    "word", ["freed", "second", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("index", "twice", "wild", "abort", "recovered"))]
)
def test_reports_of_sanitizers(word: str, sanitized: Path, tmp_path: Path) -> None:
    """The outermost functions of a thread are AddressSanitizer's, too. Two processes continue after the first report."""
    options = f"abort_on_error=1:disable_coredump=0:halt_on_error={int(word not in ('recovered', 'second'))}"
    command = ["env", f"ASAN_OPTIONS={options}", f"UBSAN_OPTIONS={options}", str(sanitized), word]
    core, printed = run_until_crash(command, tmp_path)
    output = run_cli("verdict", "--json", str(core)).stdout
    if word in ("abort", "recovered"):
        assert ("heap-use-after-free" in printed) is (word == "recovered") and "Sanitizer: " not in output
        assert any("SIGABRT in work (program), which called abort()" in one for one in json.loads(output)["notes"]), output
        return
    (found,) = (one for one in json.loads(output)["findings"] if one["finding"] == "crash")
    assert (found["evidence"]["function"], found["evidence"]["called"]) == ("work", None)
    if word in ("index", "second"):
        assert re.search(r"program\.c:11:\d+: runtime error: index 5 out of bounds", printed), printed
        assert found["evidence"]["message"] == "UndefinedBehaviorSanitizer: out of bounds at program.c:11"
        return
    message = found["evidence"]["message"]
    assert f"ERROR: {message}" in printed and message.startswith("AddressSanitizer: "), printed
    if word == "twice":
        assert "attempting double-free" in message
        return
    address = re.search(r"on (?:unknown )?address 0x0*(\w+)", message)
    assert address is not None
    if word == "freed":
        block = int(printed.splitlines()[0].partition("=")[2], 16)
        assert int(address[1], 16) == block + 3
        assert found["next"] == [f"whatis 0x{address[1]}", "stacks"]
        text = run_cli(*found["next"][0].split(), str(core)).stdout
        assert f"3 bytes into a free 40-byte block at {block:#x}" in text and "freed by\n    work+" in text, text
    else:
        assert found["next"] == ["stacks"]
