"""Names in a target cannot control the user's terminal, forge a line, or get lost. Each command runs, as text and JSON, on a core whose
names have escape sequences, line ends and bidirectional marks, and on the same core with harmless names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import debuggers
import escapes
import fuzz_outputs
import mallocs_python
import pytest
from escapes import ask, check

import cores


class Cores(NamedTuple):
    """The same core with harmless names and with harmful names, and addresses in both."""

    built: escapes.Built
    harmless: Path
    acting: Path
    damaged: Path
    at: dict[str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cores]:
    folder = tmp_path_factory.mktemp("escapes")
    built = escapes.build(folder / "files")
    escapes.rename_files(built)
    found = []
    for how in ("sound", "damaged"):
        with escapes.running(built, folder / how, how) as one:
            core = one.kernel_core()
            data = core.read_bytes()
            core.unlink()
        for name, bytes_ in (("harmless", escapes.harmless(data)), ("acting", escapes.replace_names(data))):
            found.append(folder / f"{how}.{name}")
            found[-1].write_bytes(bytes_)
    found.pop(2).unlink()
    at = addresses(found[0])
    yield Cores(built, *found, at)
    for core in found:
        core.unlink()


def addresses(core: Path) -> dict[str, str]:
    """Return four addresses: of the global variable, of the block that it points to, of a lost block with the type, and of the mapped
    file."""
    roots = ask("roots", "--limit", "0", "--json", str(core)).objects()[0]["roots"]
    by_name = {row["name"]: row for row in roots}
    (owner,) = (row for name, row in by_name.items() if escapes.SYMBOLS["global"] in name)
    (mapped,) = (row for name, row in by_name.items() if name.startswith(escapes.DATA[:60]))
    blocks = ask("blocks", "--json", str(core)).objects()
    lost = next(one["address"] for one in blocks if one.get("type") == escapes.SYMBOLS["type"] and one["kind"] == "definite")
    (held,) = (one["address"] for one in blocks if one.get("size") == 808)
    return {"global": owner["address"], "held": held, "lost": lost, "mapped": mapped["address"]}


COMMANDS = [
    ["find"],
    ["find", "--by", "type"],
    ["blocks", "--limit", "0"],
    ["caches", "--by-arena"],
    ["caches", "--by-thread"],
    ["whatis", "global", "held", "lost", "mapped"],
    ["refs", "held"],
    ["refs", "lost"],
    ["path", "held"],
    ["roots", "--limit", "0"],
    ["roots", "mapped"],
    ["roots", "--lost"],
    ["verify"],
    ["map"],
    ["verdict"],
    ["runtime"],
    ["scopes"],
    ["stacks"],
]


def words_of(made: Cores, command: list[str]) -> list[str]:
    return [made.at.get(word, word) for word in command]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_text_escapes_every_name(made: Cores, command: list[str]) -> None:
    words = words_of(made, command)
    clean, reported = ask(*words, str(made.harmless)), ask(*words, str(made.acting))
    narrow = ask(*words, str(made.acting), width=80)
    for printed in (reported, narrow):
        check(printed.out, command)
        check(printed.err, command)
    assert reported.status == clean.status == narrow.status
    assert reported.out.count(b"\n") == clean.out.count(b"\n"), (clean.out, reported.out)
    assert b"\\x1b[1m\\x9b" in reported.out or b"\\x1b[31m\\x9b2J\\u009b3J\\nFORGED\\r" in reported.out or b"\\u202e" in reported.out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_json_is_of_the_same_shape(made: Cores, command: list[str]) -> None:
    words = words_of(made, command)
    clean, reported = ask(*words, "--json", str(made.harmless)), ask(*words, "--json", str(made.acting))
    check(reported.out, command)
    check(reported.err, command)
    assert escapes.shape(reported.objects()) == escapes.shape(clean.objects())


def test_folded_stacks(made: Cores) -> None:
    clean, reported = ask("stacks", "--folded", str(made.harmless)), ask("stacks", "--folded", str(made.acting))
    check(reported.out, "stacks --folded")
    assert reported.out.count(b"\n") == clean.out.count(b"\n") > 1 and b"\\x1b[31m" in reported.out


def test_damage(made: Cores) -> None:
    """`verify` quotes the text that overwrote the heap, and the address, without control characters."""
    reported = ask("verify", str(made.damaged))
    check(reported.out, "verify")
    assert reported.status == 1 and b"glibc" in reported.out and b"(libc\\x1b[1m\\x9b): CORRUPT" in reported.out
    answer = ask("verify", "--json", str(made.damaged))
    check(answer.out, "verify --json")
    assert answer.objects()[0]["allocators"][0]["where"] == "libc\x1b[1m\\x9b"


def test_json_has_the_original_names(made: Cores) -> None:
    regions = [
        one["region"]["name"]
        for one in ask("whatis", "--json", made.at["global"], made.at["mapped"], str(made.acting)).objects()[0]["answers"]
    ]
    folder = str(made.built.library.parent)
    library, data = (f"{folder}/{escapes.as_json(escapes.acting(name))}" for name in (escapes.LIBRARY, escapes.DATA))
    assert regions == [library, data]
    assert "\x1b]0;T\x07" in library and "\n" in library and "\u202e" in library and "\x9b3J" in library and "\\x9b2J" in library
    frames = [frame for stack in ask("stacks", "--json", str(made.acting)).objects()[0]["stacks"] for frame in stack["frames"]]
    function = escapes.as_json(escapes.acting(escapes.SYMBOLS["function"]))
    assert {frame["module"] for frame in frames} >= {os.path.basename(library)}
    assert any(function in (frame["function"] or "") for frame in frames)


@pytest.mark.parametrize("extension", ["html", "svg"])
def test_pictures(made: Cores, tmp_path: Path, extension: str) -> None:
    pages = []
    for core in (made.harmless, made.acting):
        file = tmp_path / f"{core.name}.{extension}"
        check(ask("map", "-o", str(file), str(core)).out, "map -o")
        pages.append(file.read_text(encoding="utf-8"))
    clean, reported = pages
    check(reported.encode(), extension)
    assert reported.count("<script") == clean.count("<script")
    assert [reported.count(mark) for mark in "<"] == [clean.count(mark) for mark in "<"]
    if extension == "svg":
        title = ElementTree.fromstring(reported).find("{http://www.w3.org/2000/svg}title")
        assert title is not None and title.text is not None and "\\x1b[31m" in title.text
    else:
        meta = re.search(r'<script type="application/json" id="meta">(.*?)</script>', reported, re.DOTALL)
        assert meta is not None and "\\u202e" in json.loads(meta[1])["title"]


FILES = [
    *(f"{word} -o {word}.{end}" for word in ("find", "blocks") for end in ("html", "folded", "pb.gz", "speedscope.json", "csv", "sqlite")),
    *(f"{word} -o {word}.{end}" for word in ("roots", "stacks") for end in ("html", "folded", "pb.gz", "speedscope.json")),
    *(
        "diff -o grown.html one.snapshot",
        "diff --format flamegraph -o flames.html one.snapshot",
        "triage --json -o fleet.html -o fleet.sqlite",
    ),
]


def test_files_for_other_programs(made: Cores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spreadsheet does not evaluate a name, a browser does not run it, and text formats contain no control characters."""
    monkeypatch.chdir(tmp_path)
    ask("snapshot", "-o", str(tmp_path / "one.snapshot"), str(made.harmless))
    pages: dict[str, list[str]] = {}
    for line in FILES:
        for core in (made.harmless, made.acting):
            words = line.split()
            files = [Path(word) for before, word in zip(words, words[1:]) if before == "-o"]
            for file in files:
                file.unlink(missing_ok=True)
            reported = ask(*words, str(core))
            check(reported.out, line)
            check(reported.err, line)
            for file in files:
                assert fuzz_outputs.wrong_file(file) == "", line
                if file.suffix not in (".gz", ".sqlite", ".csv"):
                    check(file.read_bytes(), line)
                if file.suffix == ".html":
                    pages.setdefault(line, []).append(file.read_text(encoding="utf-8"))
    for line, (clean, reported_page) in pages.items():
        assert [reported_page.count(mark) for mark in ("<script", "<")] == [clean.count(mark) for mark in ("<script", "<")], line
    assert "\\u202e" in Path("stacks.folded").read_text() and len(pages) == 7


def test_diff_and_triage(made: Cores) -> None:
    for line in ("diff {0} {1}", "diff {1} {0}", "diff --json {0} {1}", "diff --by root {0} {1}", "triage {1}", "triage --json {1} {0}"):
        reported = ask(*line.format(made.harmless, made.acting).split())
        check(reported.out, line)
        check(reported.err, line)
        assert reported.out and reported.status == 0, reported.err


def test_suggested_commands_can_be_pasted(made: Cores, tmp_path: Path) -> None:
    """The core may have any file name: the suggested command quotes it for a shell."""
    core = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"core " + escapes.ACTING)))
    core.hardlink_to(made.acting) if hasattr(core, "hardlink_to") else os.link(made.acting, core)
    reported = ask("blocks", str(core))
    check(reported.out, "blocks")
    (line,) = (line for line in reported.out.decode().splitlines() if "next: " in line)
    first = line.split("next: ")[1]
    assert first.startswith("findleaks whatis 0x")
    done = subprocess.run(["bash", "-c", first.replace("findleaks", "printf '%s\\0'", 1)], stdout=subprocess.PIPE, check=True)
    assert done.stdout.split(b"\0")[-2] == os.fsencode(core)
    missing = ask("find", str(core) + "\x1b[2J.gone")
    assert missing.status == 2 and b"\\x1b[2J" in missing.err
    check(missing.err, "no such core")


def test_names_are_quoted_in_commands(made: Cores) -> None:
    """The root that retains most has a name with quotes. In a suggested command, it is one quoted word or an address."""
    reported = ask("roots", "--limit", "0", str(made.acting)).out.decode()
    lines = reported[reported.index("next: ") + len("next: ") :].splitlines()
    after = next(line.strip() for line in lines if re.match(r"(findleaks )?(whatis 0x|roots )", line.strip()))
    pasted = after.replace("findleaks", "printf '%s\\0'", 1)
    done = subprocess.run(["bash", "-c", pasted], capture_output=True, check=True)
    words = done.stdout.split(b"\0")
    assert (done.stderr, words[0] in (b"whatis", b"roots"), words[-2:]) == (b"", True, [os.fsencode(made.acting), b""])
    (row,) = ask("roots", words[1].decode(), "--json", str(made.acting)).objects()[0]["roots"]
    assert row["retained_bytes"] > 0


LIVE = (
    ["find"],
    ["stacks"],
    ["verdict", "--json"],
    ["watch", "--every", "0.3", "--for", "0.5"],
    ["snapshot", "x"],
    ["snapshot", "--weight", "core", "y"],
    ["map", "--save-residency", "z"],
    ["track", "--for", "0.2"],
)


def test_a_process(made: Cores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    built = escapes.rename_files(made.built)
    with escapes.running(built, made.harmless.parent / "live") as one:
        for words in LIVE:
            for line in (words, words if "--json" in words else [*words, "--json"]):
                reported = ask(*line, "--pid", str(one.pid))
                check(reported.out, line)
                check(reported.err, line)
                assert reported.out and reported.status == 0, (line, reported)
                assert "--json" not in line or reported.objects()
        found = ask("roots", "--limit", "0", "--json", "--pid", str(one.pid)).objects()[0]["roots"]
        (mapped,) = (row["address"] for row in found if row["sort"] == "mapping" and row["name"].startswith(escapes.DATA[:12]))
        answer = ask("whatis", "--json", mapped, "--pid", str(one.pid)).objects()[0]["answers"][0]
        assert answer["region"]["name"] == f"{built.data.parent}/{escapes.as_json(escapes.acting(escapes.DATA))}"


def test_count(made: Cores) -> None:
    """The names of a function and of its caller are escaped."""
    with escapes.running(escapes.rename_files(made.built), made.harmless.parent / "ticking", "ticking") as one:
        reported = ask("count", "escapes_tick", "--events", "3", "--pid", str(one.pid))
        answer = ask("count", "escapes_tick", "--events", "3", "--json", "--pid", str(one.pid))
    for printed in (reported, answer):
        check(printed.out, "count")
        check(printed.err, "count")
    assert reported.out.count(b"Escapes_call\\x1b[31m\\x9b2J\\u009b3J\\nFORGED") == 1
    frames = [frame for stack in answer.objects()[-1]["stacks"] for frame in stack["frames"]]
    assert any(escapes.as_json(escapes.acting(escapes.SYMBOLS["caller"])) in (frame["function"] or "") for frame in frames)


INSIDE = (
    ["find"],
    ["roots"],
    ["stacks"],
    ["verify"],
    ["whatis", "global", "lost", "mapped", "--json"],
    ["verdict"],
    ["map"],
    ["whatis", "0x]"],
)


def test_in_gdb(made: Cores) -> None:
    program = os.fsdecode(os.path.join(os.fsencode(made.built.program.parent), escapes.acting(escapes.PROGRAM)))
    words = ["gdb", "-nx", "-batch", *debuggers.INDEXED, "-ex", f"source {debuggers.GDB_LOADER}", "-ex", r"echo \n@@begin\n"]
    for command in INSIDE:
        words += ["-ex", "leaks " + " ".join(words_of(made, command))]
    reported = escapes.read_printed([*words, "-ex", r"echo \n@@end\n", program, str(made.acting)], debuggers.environment())
    check(reported, "gdb")
    assert b"\\x1b[31m" in reported and b"\\u202e" in reported and b"CORRUPT" not in reported and b"heap sound" in reported


def test_in_lldb(made: Cores) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".lldb") as file:
        lines = [" ".join(["leaks", *words_of(made, command)]) for command in INSIDE]
        file.write("\n".join([r"script print('\n@@begin')", *lines, r"script print('\n@@end')", ""]))
        file.flush()
        words = [
            debuggers.LLDB,
            "-x",
            "--no-use-colors",
            "-b",
            "-O",
            debuggers.QUICKLY,
            "-O",
            f"command script import {debuggers.LLDB_LOADER}",
        ]
        reported = escapes.read_printed(
            [*words, "-o", f"command source -e false {file.name}", "-c", str(made.acting)], debuggers.environment()
        )
    check(reported, "lldb")
    assert b"\\x1b[31m" in reported and b"\\u202e" in reported and b"heap sound" in reported


PYTHON = """
import os, signal, tracemalloc
tracemalloc.start(1)
name = bytes.fromhex(%r).decode("utf-8", "ignore")
plain = name.encode("ascii", "ignore").decode()
class Base: pass
kept = [type("Evil" + name, (Base,), {"__slots__": ("x",)})() for _ in range(2)]
many = [type(kept[0])() for _ in range(3000)]
exec(compile("made = [bytearray(5000) for _ in range(200)]", "/evil" + plain, "exec"), globals())
globals()["evil" + plain] = {n: bytearray(900) for n in range(500)}
os.write(1, b"ready\\n")
signal.pause()
"""


def test_a_managed_runtime(tmp_path: Path) -> None:
    """Names in CPython may be any text: of types, of variables, and of source files."""
    python = mallocs_python.get("3.11")
    with cores.Running(python.command("-c", PYTHON % escapes.ACTING.hex()), tmp_path, python.environment()) as one:
        core = one.kernel_core()
    name = escapes.ACTING.decode("utf-8", "ignore")
    plain = name.encode("ascii", "ignore").decode()
    reported = {words: ask(*words.split(), str(core)) for words in ("runtime --limit 0", "runtime --json", "roots")}
    for words, printed in reported.items():
        check(printed.out, words)
        check(printed.err, words)
    assert b"Evil\\x1b[31m" in reported["runtime --limit 0"].out and b"/evil\\x1b[31m" in reported["runtime --limit 0"].out
    (found,) = reported["runtime --json"].objects()[0]["runtimes"]
    assert any("Evil" + name in row["name"] for row in found["types"])
    assert any("/evil" + plain in frame for site in found["sites"] for frame in site["frames"])
    core.unlink()


def test_front_end_writes_all_output() -> None:
    """All output of a findleaks process is escaped, because only the front end writes to streams."""
    done = subprocess.run([sys.executable, "-m", "findleaks", "find", "a\x1b[2J\n" + escapes.FORGED], capture_output=True)
    assert done.returncode == 2
    check(done.stdout + done.stderr, "find")
