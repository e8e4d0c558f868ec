"""Run the examples of the README and the documentation.

Examples on cores of the repository must print the documented output. Examples on processes that have ended run on another core: their
options must work, and no command may fail for a reason other than that core.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import building
import commandline
import documented
import pytest
from debuggers import ROOT, gdb, run_cli
from documented import Example

from cores import Running
from findleaks import cli
from findleaks.catalogue import CATALOGUE, FRONT, SETUP

SAMPLE = ROOT / "cores" / "sample.core.gz"
ADDRESS, ROOT_NAME = "0x557d0e65ea60", "shop, data+0x61a8"
"""The address of a block and the name of a root of that core."""
CORE = re.compile(r"[\w.-]*core|(core|shop)\.\d+|[\w.-]+\.(gcore|core\.gz|core\.zst|dmp)")
"""Names of cores that the repository does not have."""
SNAPSHOTS = {"kept": 2, "series": 2, "before.snapshot": 1, "after.snapshot": 1}
"""Names of snapshots in examples, and of folders with two of them."""
ROOTS = {"g_agent", "sessions", "Ruby's heap pages"}
ELSEWHERE = ("--scheduler",)
"""Options that need other machines. Other tests cover these options."""
REASONS = (
    "no managed runtime",
    "no debug information was found",
    "no handle scopes can be read",
    "no allocator 'mimalloc'",
    "no site 3",
    "residency is unknown",
    "no variable session_pool in any loaded file",
    "known.supp: cannot read suppressions",
    "none/lost.csv: cannot be written",
)
"""Accepted error messages of commands on a C++ program. The last two are about a file of the user, and about what the example shows."""


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in a folder that has the files of the examples. Return its exit status, output and errors. Opened cores stay open."""
    opened = commandline.opening_once(cli._open)
    monkeypatch.setattr(cli, "_open", lambda args, core, progress: opened(args, os.path.realpath(core) if core else core, progress))
    monkeypatch.setenv("COLUMNS", documented.COLUMNS)
    monkeypatch.setenv("DEBUGINFOD_URLS", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cores").symlink_to(ROOT / "cores")
    (tmp_path / "sample.core.gz").symlink_to(SAMPLE)
    (tmp_path / "pools.toml").write_text(documented.pool_file())

    def one(*words: str) -> tuple[int, str, str]:
        status = cli.main(words)
        out, err = capsys.readouterr()
        return status, out, err

    return one


def examples(wanted: Callable[[list[str]], bool]) -> list[tuple[Example, list[str]]]:
    """Return each example with the words of its command, if `wanted` returns true for these words."""
    found = [(example, words) for example in documented.examples() if example.prompt == "$" for words in documented.calls(example)]
    return [(example, words) for example, words in found if words[0] not in (*FRONT, *SETUP) and wanted(words)]


def needs_process(words: list[str]) -> bool:
    """Return whether the command needs a live process and cannot read a core."""
    return CATALOGUE[words[0]].live or (words[0] == "snapshot" and ("--weight" in words or "--every" in words))


def test_examples_on_cores_of_the_repository(run: Run) -> None:
    wrong, seen = [], 0
    for example, words in examples(documented.is_shipped):
        status, out, err = run(*words)
        seen += 1
        if status != 0 or (difference := documented.differences(example.output, (out + err).splitlines())):
            wrong.append(f"{example.place}: {example.command}: {difference if status == 0 else err}")
    assert not wrong, "\n".join(wrong)
    assert seen >= 15


def test_other_programs_read_what_is_exported(tmp_path: Path) -> None:
    """Run the session at the top of the page, with Go's pprof and SQLite, in a shell."""
    (tmp_path / "shop.core.gz").symlink_to(SAMPLE)
    text = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
    end = next(documented.blocks(text))[-1][0]
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "COLUMNS": documented.COLUMNS, "DEBUGINFOD_URLS": "", "PPROF_TMPDIR": str(tmp_path)}
    seen = 0
    for example in documented.parse("docs/exports.md", "\n".join(text.splitlines()[:end])):
        done = subprocess.run(["sh", "-c", example.command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if example.output and not list(documented.calls(example)):  # the size of a profile depends on the version of protobuf
            assert documented.differences(example.output, done.stdout.splitlines()) == "", example.place
            seen += 1
    assert seen == 3


def test_examples_on_another_core(run: Run, tmp_path: Path) -> None:
    for name, number in SNAPSHOTS.items():
        names = [name.removesuffix(".snapshot")] if number == 1 else [f"{name}/{at}" for at in range(number)]
        (tmp_path / names[0]).parent.mkdir(exist_ok=True)
        assert [run("snapshot", one, str(SAMPLE))[0] for one in names] == [0] * number
    (tmp_path / "crash").mkdir()
    shutil.copy(SAMPLE, tmp_path / "crash" / "core")  # symbolic links are not followed
    wrong, seen = [], 0
    for example, words in examples(lambda words: not documented.is_shipped(words)):
        if needs_process(words) or any(word in words for word in ELSEWHERE):
            continue
        for word in words[1:]:
            if CORE.fullmatch(word) and not Path(word).exists():
                Path(word).symlink_to(SAMPLE)
        words = [re.sub("^0x[0-9a-f]+", ADDRESS, word) if word.startswith("0x") else ROOT_NAME if word in ROOTS else word for word in words]
        if "--pid" in words:
            at = words.index("--pid")
            words = [*words[:at], *words[at + 2 :], str(SAMPLE)]
        status, out, err = run(*words)
        seen += 1
        if status not in (0, 1) and not any(reason in out + err for reason in REASONS):
            wrong.append(f"{example.place}: {' '.join(words)}: {status} {err or out}")
    assert not wrong, "\n".join(wrong)
    assert seen > 80


def test_examples_in_gdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All examples run on the sample core. The session of the tutorial prints the documented output."""
    monkeypatch.chdir(tmp_path)
    sessions = [one for one in documented.examples() if one.prompt == "(gdb)" and one.command.startswith("leaks ")]
    core = tmp_path / "sample.core"
    core.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    commands = ["leaks snapshot before"]
    for at, example in enumerate(sessions):
        typed = f"try: gdb.execute({example.command.partition('  #')[0]!r})\nexcept Exception as error: print('FAILED', error)"
        commands += [f'printf "example {at}\\n"', f"python exec({typed!r})"]
    printed = gdb(commands, "-c", str(core), COLUMNS=documented.COLUMNS)
    parts = re.split(r"example \d+\n", printed)[1:]
    wrong = [
        f"{example.place}: {difference}\n{part}"
        for example, part in zip(sessions, parts)
        if example.page == "docs/tutorial.md" and (difference := documented.differences(example.output, part.splitlines()))
    ]
    assert not wrong, "\n".join(wrong)
    assert len(parts) == len(sessions) >= 8
    assert not [part for part in parts if "FAILED" in part or "Traceback" in part or not part.strip()]
    assert (tmp_path / "growth.html").exists()


FUNCTIONS = {"EVP_MD_CTX_new", "node::MakeCallback", "napi_create_object", "deflateInit2_", "probed"}
SHORTER = {"--for": "1", "--events": "20", "--every": "1"}
"""Values of options that make examples end soon."""
NOT_THERE = ("no readable loaded file contains V8", "napi_open_handle_scope")
"""Accepted error messages of commands on a process without Node."""
program = building.fixture("help_examples.c", "-g", "-O1")
running = building.running()


@pytest.mark.matrix
def test_examples_on_a_process(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands that need a process. `watch` runs until Ctrl-C, and is tested in test_help_examples.py."""
    seen = 0
    monkeypatch.chdir(tmp_path)
    for example, words in examples(lambda words: needs_process(words) and words[0] != "watch"):
        for option, value in {**SHORTER, "--pid": str(running.pid)}.items():
            if option in words:
                words[words.index(option) + 1] = value
        if words[0] == "snapshot":
            words += ["--count", "2"] if "--every" in words else []
        elif "--for" not in words and "--events" not in words:
            words += ["--for", "2"]
        words = ["malloc" if word in FUNCTIONS else word for word in words]
        done = run_cli(*words)
        seen += 1
        assert done.returncode == 0 or any(reason in done.stderr for reason in NOT_THERE), f"{example.place}: {done.stderr}"
    assert seen >= 8
