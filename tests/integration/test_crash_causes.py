"""The finding about a crash names the cause of the fault and the origin of the pointer. The program prints the expected addresses."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import building
import libcs
import mallocs_musl
import pytest
from debuggers import gdb, lldb, objects, run_cli
from kernel_cores import run_until_crash

from findleaks.target.notes import NT_SIGINFO

_WORDS = ("-g", "-w", "-fcf-protection=none", "-lm")
program = building.fixture("crash_causes.c", "-O2", *_WORDS)
others = building.fixture("crash_origins.cpp", "-O2", *_WORDS, "-no-pie")
containers = building.fixture("crash_containers.cpp", "-O1", *_WORDS)
headerless = building.fixture("crash_causes.c", "-O2", *_WORDS, "-Wl,--no-eh-frame-hdr", name="headerless")
unoptimized = building.fixture("crash_causes.c", "-O0", *_WORDS, name="unoptimized")


def run(program: Path, word: str, folder: Path) -> tuple[Path, dict[str, Any], dict[str, str]]:
    """Run the program. Return its core, the first finding, and the values that it printed, by name."""
    core, printed = run_until_crash([str(program), word], folder)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["finding"] == "crash", found
    return core, dict(found), dict(re.findall(r"(\w+)=(\S+)", printed.splitlines()[0]))


# By argument of the program: the signal, the end of the text, and a pattern of the cause. {NAME} is the value that the program printed.
CAUSES = {
    "division": ("SIGFPE", "it divided an integer by zero.", r"loaded from (config\.scale, at )?offset 8 of .* at {config}\."),
    "modulo": ("SIGFPE", "it divided an integer by zero.", r"The divisor(, in \w+,)? was loaded from common_factor \("),
    "quotient": (
        "SIGFPE",
        "it divided -2,147,483,648 by -1, and the result does not fit into the register.",
        r"loaded from narrow_factor \(",
    ),
    "float": ("SIGFPE", "it divided a floating-point number by zero.", None),
    "trap": ("SIGILL", "it reached a trap instruction (ud2).", "__builtin_trap"),
    "breakpoint": ("SIGTRAP", "it reached a trap instruction (int3).", "__builtin_trap"),
    "privileged": ("SIGSEGV", "hlt is an invalid or privileged instruction.", None),
    "raised": ("SIGFPE", "it sent the signal to itself, as raise() does.", None),
    "unaligned": ("SIGSEGV", "but movaps requires a multiple of 16.", None),
    "truncated": ("SIGBUS", "where a page of a mapped file is missing.", r"offset 5,000 of /.*/{file}\. The file was truncated"),
    "interior": (
        "SIGABRT",
        "free(): invalid pointer.",
        r"free\(\) was called with .*: 16 bytes into .* at {block} .*not the start of a block",
    ),
    "stack": ("SIGABRT", None, r"free\(\) was called with {local}: stack of thread 1 .*No allocator returned this address\."),
    "static": ("SIGABRT", None, r"free\(\) was called with {static}: static_buffer.*No allocator returned this address\."),
    "twice": ("SIGABRT", "free(): double free detected in tcache 2.", r"free\(\) was called with {block}: a cached .*was already free"),
    "grown": ("SIGABRT", "realloc(): invalid pointer.", r"realloc\(\) was called with .*: 16 bytes into .* at {block}"),
    "empty": ("SIGSEGV", "it called a null pointer.", r"loaded from (task\.run, at )?offset 8 of .* at {task}\."),
    "tabled": ("SIGSEGV", "it called a null pointer.", r"loaded from commands\[4\] \("),
    "hook": ("SIGSEGV", "it called a null pointer.", r"loaded from hook \("),
    "freed": (
        "SIGSEGV",
        "which is not a valid address.",
        r"offset 8 of a cached .* at {task}\. Probable cause: the block was used after it was freed",
    ),
    "reused": ("SIGSEGV", '("ex.html "), which is not a valid address.', r'offset 8 of (?=.*"GET /index.html HTTP/1.1").* at {task}\.'),
    "closed": (
        "SIGABRT",
        "free(): double free detected in tcache 2.",
        r"fclose\(\) was called with the stream at {stream}, but its memory is free\.",
    ),
    "reopened": (
        "SIGSEGV",
        "an offset from a null pointer.",
        r"fputs\(\) was called with {stream} as a stream, but .* not contain a stream\. Possible causes: the stream was used after ",
    ),
    "onstack": ("SIGSEGV", "which is not executable.", r"offset 8 of .* at {task}\."),
    "returned": ("SIGSEGV", '0x4545454545454545 ("EEEEEEEE"), which is not a valid address.', "^The return address, at 0x"),
    "parent": ("SIGSEGV", "it used a null pointer.", r"loaded from (config\.parent, at )?offset 16 of .* at {config}\."),
    "changed": ("SIGSEGV", "it used a null pointer.", r"is in a local variable of read_changed\.$"),
    "name": ("SIGSEGV", "it used a null pointer.", r"loaded from (config\.name, at )?offset 24 of .* at {config}\."),
    "beyond": ("SIGBUS", "where a page of shared memory is missing.", r"offset 9,000 of /dev/zero \(deleted\)\. This offset is beyond"),
    "unmapped": ("SIGSEGV", "which is not mapped.", r"^The pointer, in \w+, was loaded from mapped_words \("),
    "switched": ("SIGSEGV", "an offset from a null pointer.", r"loaded from (command\.next, at )?offset 8 of .* at {command}\."),
    "switched-twice": ("SIGSEGV", "an offset from a null pointer.", r"loaded from (command\.next, at )?offset 8 of .* at {next}\."),
    "thread-local": ("SIGSEGV", "it used a null pointer.", r"loaded from local_config \(\w+, thread-local, thread 1 "),
    "segment": ("SIGSEGV", "it accessed address 0x28, relative to the register gs, which contains 0x0.", None),
    "poisoned": (
        "SIGSEGV",
        "which is not a valid address.",
        r"loaded from list \d+ of thread \d+'s cache, .* malloc took it from the first word of the block at {freed}, which was overwritten",
    ),
    "counted": ("SIGABRT", None, r"Probable cause: a reference count in a block was decremented after the block was freed; malloc"),
    # malloc read zeros as a link, because the program wrote to the block after it was freed. Other blocks begin with zeros too, so
    # findleaks cannot tell which block it was.
    "zeroed": (
        "SIGABRT",
        None,
        r"^The heap is corrupt: thread cache of thread \d+ at 0x\w+: list \d+ starts at 0x\w+, which is not a chunk of its size\.",
    ),
    "deep": ("SIGSEGV", "just below its stack pointer: the stack overflowed.", r"^recurse is on the stack \d+ times or more\.$"),
}


def check(program: Path, word: str, folder: Path) -> None:
    _, found, printed = run(program, word, folder)
    signal, end, cause = CAUSES[word]
    assert found["evidence"]["signal"] == signal
    assert end is None or found["text"].endswith(end), found["text"]
    pattern = cause and re.sub(r"\{(\w+)\}", lambda match: re.escape(printed[match[1]]), cause)
    assert re.search(pattern, found["cause"]) if pattern else not found["cause"], found["cause"]


@pytest.mark.parametrize("word", CAUSES)
def test_causes(word: str, program: Path, tmp_path: Path) -> None:
    check(program, word, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("word", sorted(CAUSES.keys() - {"unmapped"}))  # unoptimized code adds the index first
def test_causes_in_unoptimized_code(word: str, unoptimized: Path, tmp_path: Path) -> None:
    check(unoptimized, word, tmp_path)


@pytest.mark.parametrize("word", ["interior", "name"])
def test_a_program_without_a_header_of_its_unwind_table(word: str, headerless: Path, tmp_path: Path) -> None:
    """musl-gcc links such programs."""
    assert b"GNU_EH_FRAME" not in subprocess.run(["readelf", "-lW", headerless], check=True, capture_output=True).stdout
    check(headerless, word, tmp_path)


@pytest.mark.parametrize("word", ["caught", "jumped", "reentered", "moved"])
def test_a_pointer_whose_origin_is_not_certain(word: str, others: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(others), word], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert found["text"].endswith("it used a null pointer.")
    source = found["evidence"]["loaded_from"]
    if word == "jumped" and source is not None:
        # Which variant of strlen() glibc uses depends on the processor. In most of them, the register still contains the argument.
        assert found["cause"] == "The null pointer, in rdi, is an argument of strlen (passed in rdi)."
    else:
        assert not found["cause"] and source is None, found["cause"]


# By argument of the program: the function of the C++ library that called free(), and a pattern of the end of the cause.
CONTAINERS = {
    "string": (r"std::string::_M_dispose", r"a cached 104-byte block at {block} .*The block was already free\."),
    "vector": (r"(std::(_Vector_base|vector)<.*)?", r"a cached 328-byte block at {block} .*The block was already free\."),
    "map": (r"std::string::_M_dispose|std::_Rb_tree<.*", r"a cached 56-byte block at {block} .*The block was already free\."),
    "shared": (r"std::_Sp_counted_ptr<.*|std::_Sp_counted_base<.*|", r"a cached 24-byte block at {block} .*The block was already free\."),
    "interior": (r"std::string::_M_dispose", r"16 bytes into .* 104-byte block.* at {block} .*This is not the start of a block\."),
    "either": ("", r"a cached 72-byte block at {block} .*The block was already free\."),
}


@pytest.mark.parametrize("word", CONTAINERS)
def test_a_block_that_a_container_freed_twice(word: str, containers: Path, tmp_path: Path) -> None:
    _, found, printed = run(containers, word, tmp_path)
    by, pattern = CONTAINERS[word]
    beginning = r"^free\(\) was called (by .*\(\) )?with .*: "
    assert re.search(beginning + pattern.format(block=printed["block"]), found["cause"]), found["cause"]
    assert re.fullmatch(by, found["evidence"]["released_pointer"]["by"] or ""), found["evidence"]


def test_a_pointer_that_an_exception_handler_frees(others: Path, tmp_path: Path) -> None:
    """GCC moves the handler to another section, and its code is found from that of the function."""
    core, _ = run_until_crash([str(others), "handler"], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert "16 bytes into" in found["cause"], found["cause"]
    assert re.search(r"The pointer was loaded from first\S* \(crash_origins, data\)\.$", found["cause"]), found["cause"]


def test_a_function_that_may_jump_to_another_one(others: Path, tmp_path: Path) -> None:
    """The address of the other function is in a register, as in calls of virtual functions at the end of a function."""
    core, _ = run_until_crash([str(others), "passed"], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert re.fullmatch(r"The null pointer, in rdi, was loaded from first\S* \(crash_origins, data\)\.", found["cause"]), found["cause"]


# By argument of the program: how the cause ends if the code of a loop does not show the origin of the pointer.
LOOPS = {
    "listed": r'only one word has this value: .*offset 8 of .* at {block}\. The memory there contains the text "GET /ind"\.',
    "keyed": r"glibc writes into blocks when they are freed: \d+ free blocks? contains? it\. Probable cause: .* after it was freed\.",
}


@pytest.mark.parametrize("word", LOOPS)
def test_a_pointer_that_a_loop_loaded(word: str, others: Path, tmp_path: Path) -> None:
    _, found, printed = run(others, word, tmp_path)
    assert re.search(rf"{LOOPS[word].format(**printed)}$", found["cause"] or ""), found["cause"]
    equal = found["evidence"]["equal_words"]
    assert equal["distance"] == 0 and (equal["freed_blocks_with_key"] > 0) == (word == "keyed")


@pytest.mark.parametrize("word", ["base", "table"])
def test_an_index_in_the_place_of_a_pointer(word: str, others: Path, tmp_path: Path) -> None:
    core, _ = run_until_crash([str(others), word], tmp_path)
    fault = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]["evidence"]["fault"]
    assert (fault["kind"], fault["value"]) == ("index", 1 << 40)


_RELEASED = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct record { char *blocks[4]; };
__attribute__((noinline)) static char *skip(char *text) { while (*text == ' ') text++; return text; }
__attribute__((noinline)) void print(char *text) { text = skip(text); if (*text) puts(text); free(text); } /* jumps to free() */
__attribute__((noinline)) void release_first(struct record *one) { free(one->blocks[0]); }
__attribute__((noinline)) void release_all(char **blocks, int count) { for (int i = 0; i < count; i++) free(blocks[i]); }
int main(int count, char **words) {
    struct record *one = malloc(sizeof *one);
    for (int i = 0; i < 4; i++) one->blocks[i] = malloc(100);
    char word = words[1][0], *block = one->blocks[word == 'l'];
    fprintf(stderr, "block=%p\\n", block);
    if (word == 't') free(block), release_first(one);
    if (word == 'i') one->blocks[0] += 16, release_first(one);
    if (word == 's' || word == 'p') {
        strcpy(block, word == 's' ? "   text" : "                text");
        print(block);
    }
    if (word == 'l') one->blocks[1] += 16, release_all(one->blocks, 4);
    return 0;
}
"""


@pytest.mark.parametrize("version", ["2.31", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("2.36", "2.41", "2.43"))])
@pytest.mark.parametrize("word", ["loop", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("twice", "interior", "padded"))])
def test_pointers_in_releases_of_glibc(word: str, version: str, tmp_path: Path) -> None:
    """free() of glibc 2.31 and 2.43 jumps to the function that finds the error, so that it has no frame."""
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_RELEASED)
    libcs.get(version).compile(source, program, ("-O2", "-w"))
    _, found, printed = run(program, word, tmp_path / "run")
    released = int(found["evidence"]["released_pointer"]["value"], 16)
    assert released == int(printed["block"], 16) + {"twice": 0, "skipped": 3}.get(word, 16)
    assert found["cause"].startswith("free() was called with "), found["cause"]
    assert ("result of" in found["cause"]) is False, found["cause"]
    # release_all() returns to its loop, and the other functions jump to free().
    place = {"loop": ("release_all", None), "padded": ("main", "print")}.get(word, ("main", "release_first"))
    assert (found["evidence"]["function"], found["evidence"]["called"]) == place, found["text"]


_REPLACED = """#include <stdio.h>
#include <stdlib.h>
char buffer[64], *replaced;
__attribute__((noipa)) void check(char *block, int is_last) { if (is_last) *(volatile int *)0 = *block; }
__attribute__((noipa)) void release(char *block) { check(block, 0); check(block, 1); check(block, 0); }
__attribute__((noipa)) char *start_of(char *block) { return replaced ? replaced : block; }
void free(void *block) { if (!((long)block & 8)) block = start_of(block); release(block); __asm__ volatile(""); }
__attribute__((noipa)) void *choose(void) { return buffer; }
int main(void) {
    replaced = buffer + 16;
    fprintf(stderr, "block=%p\\n", buffer);
    free(choose());
    return 0;
}
"""


def test_free_that_passes_another_pointer(tmp_path: Path) -> None:
    """On one of two paths, free() passes another pointer than its argument to the function that crashes."""
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_REPLACED)
    subprocess.run(["gcc", "-O1", "-w", "-fno-builtin", source, "-o", program], check=True)
    _, found, printed = run(program, "", tmp_path / "run")
    released = found["evidence"]["released_pointer"]
    assert released is None or released["value"] == printed["block"], found["cause"]


_EITHER = """#include <stdio.h>
#include <stdlib.h>
struct record { char *text, *block; } record = {(char *)0x1234, 0};
__attribute__((noinline)) int either(struct record *one, int count) {
    if (count > 9) { free(one->block); return 0; }
    return puts(one->text);
}
int main(int count, char **words) {
    record.block = malloc(40);
    return either(&record, count) + 1;
}
"""


def test_a_jump_to_free_that_was_not_executed(tmp_path: Path) -> None:
    """The function jumps to puts(), in which the process crashes, or to free()."""
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_EITHER)
    subprocess.run(["gcc", "-O2", *_WORDS, str(source), "-o", program], check=True)
    core, _ = run_until_crash([str(program)], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    assert (found["evidence"]["signal"], found["evidence"]["released_pointer"]) == ("SIGSEGV", None)
    assert (found["evidence"]["function"], found["evidence"]["called"]) == ("main", "either")


_MUSL = """#include <stdlib.h>
char *volatile block;
__attribute__((noinline)) static void fill(volatile char *array, int size) { for (int i = 0; i < size; i++) array[i] = 'x'; }
int main(int count, char **words) {
    char array[16];
    block = malloc(40);
    if (words[1][0] == 'f') free(block + 8);
    if (words[1][0] == 's') fill(array, 40);
    if (words[1][0] == 'h') __asm__ volatile("hlt");
    return 0;
}
"""
_ALLOCATOR = "it executed hlt in musl's allocator, which found an error: an invalid pointer was passed to free()"
_ANY = "it executed hlt, a privileged instruction. Functions of musl execute it if they find an error: "
# By link, whether the program is stripped, and its argument: the text.
MUSL = {
    ("dynamic", False, "free"): _ALLOCATOR,
    ("dynamic", False, "stack"): "it executed hlt in musl's __stack_chk_fail(): a local array was written past its end",
    ("static", False, "free"): _ALLOCATOR,
    ("static", False, "stack"): "it executed hlt in musl's __stack_chk_fail(): a local array was written past its end",
    ("static", False, "hlt"): "hlt is an invalid or privileged instruction",
    ("static", True, "free"): _ANY,
    ("static", True, "hlt"): _ANY,
}


@pytest.mark.parametrize(
    ("link", "is_stripped", "word"), [pytest.param(*one, marks=() if one[0] == "dynamic" else pytest.mark.matrix) for one in MUSL]
)
def test_the_instruction_with_which_musl_ends_a_process(link: str, is_stripped: bool, word: str, tmp_path: Path) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_MUSL)
    words = ("-w", "-fstack-protector-all", *(["-s"] if is_stripped else []))
    mallocs_musl.choose("1.2.3", link).compile(source, program, link, *words)
    core, _ = run_until_crash([str(program), word], tmp_path)
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"][0]
    text = MUSL[link, is_stripped, word]
    assert f": {text}" in found["text"]
    assert found["evidence"]["allocator_check"] == ("musl" if text == _ALLOCATOR else None)


def test_a_block_that_was_only_marked_as_free_was_not_freed_twice(program: Path, tmp_path: Path) -> None:
    _, found, printed = run(program, "marked", tmp_path)
    assert found["evidence"]["message"] == "double free or corruption (!prev)"
    assert found["evidence"]["released_pointer"]["value"] == printed["marked"]
    assert "already free" not in found["cause"]
    assert "was written past its end" in found["cause"]


def test_a_core_without_a_record_of_the_signal(program: Path, tmp_path: Path) -> None:
    """QEMU 7.2 writes such cores of the programs that it emulates. The finding names the signal, and where the thread was."""
    core, _, _ = run(program, "name", tmp_path)
    core.write_bytes(core.read_bytes().replace(struct.pack("<I", NT_SIGINFO) + b"CORE\0", struct.pack("<I", NT_SIGINFO) + b"NONE\0"))
    found = json.loads(run_cli("verdict", "--json", str(core)).stdout)
    assert found["findings"][0]["finding"] != "crash"
    assert found["notes"][0].startswith("The process got SIGSEGV, and the core does not record why (it has no NT_SIGINFO note). Thread ")
    assert " (crash_causes). `stacks` shows all threads" in found["notes"][0]


def test_facts(program: Path, tmp_path: Path) -> None:
    _, found, printed = run(program, "interior", tmp_path / "interior")
    released = found["evidence"]["released_pointer"]
    assert int(released["value"], 16) == int(printed["block"], 16) + 16
    assert (released["function"], released["place"]["block"]["address"]) == ("free", printed["block"])
    _, found, printed = run(program, "freed", tmp_path / "freed")
    loaded = found["evidence"]["loaded_from"]
    assert (loaded["source"], loaded["place"]["block"]["address"], loaded["place"]["block"]["state"]) == (
        "memory",
        printed["task"],
        "cached",
    )
    assert int(loaded["place"]["address"], 16) == int(printed["task"], 16) + 8
    _, found, _ = run(program, "quotient", tmp_path / "quotient")
    fault = found["evidence"]["fault"]
    assert (fault["kind"], fault["value"], fault["dividend"]) == ("division-overflow", -1, -(1 << 31))
    _, found, printed = run(program, "truncated", tmp_path / "truncated")
    fault = found["evidence"]["fault"]
    assert (fault["kind"], fault["file"], fault["file_offset"]) == ("file", str(tmp_path / "truncated" / printed["file"]), 5000)
    _, found, _ = run(program, "deep", tmp_path / "deep")
    assert found["evidence"]["recursion"]["function"] == "recurse"


def test_a_core_that_gdb_wrote_at_a_breakpoint_has_no_crash(program: Path, tmp_path: Path) -> None:
    core = tmp_path / "core"
    commands = ["break refuse", "run trap 2>/dev/null", f"generate-core-file {core}", "kill"]
    subprocess.run(
        ["gdb", "-q", "-batch", *(word for one in commands for word in ("-ex", one)), str(program)], check=True, capture_output=True
    )
    assert [one["finding"] for one in json.loads(run_cli("verdict", "--json", str(core)).stdout)["findings"]] == ["nothing-lost"]


def test_stripped_and_in_each_front_end(program: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", str(stripped), str(program)], check=True)
    core, found, printed = run(stripped, "reused", tmp_path / "run")
    assert found["evidence"]["loaded_from"]["place"]["block"]["address"] == printed["task"]
    assert "GET /index.html HTTP/1.1" in found["cause"]
    for other in (gdb(["leaks verdict --json"], str(stripped), str(core)), lldb(["leaks verdict --json"], str(stripped), "-c", str(core))):
        assert json.loads(objects(other)[0])["findings"][0] == found
    row = json.loads(run_cli("triage", "--json", str(core)).stdout.splitlines()[0])
    assert row["findings"][0]["kind"] == "crash" and "not a valid address" in row["findings"][0]["title"]
