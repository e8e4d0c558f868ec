"""How the command line interprets its arguments: no command, a misspelt command, a process by name, a number that is no
file, closed streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from counts import until

from findleaks import cli
from findleaks.errors import TargetError
from findleaks.report.encoding import substitute_text


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, str]]:
    """Return a list to which (--pid, core) of each requested target is appended. No target is opened."""
    asked: list[tuple[object, str]] = []

    def refuse(args: object, core: str, _: object) -> NoReturn:
        asked.append((getattr(args, "pid", None), core))
        raise TargetError("asked")

    monkeypatch.setattr(cli, "_open", refuse)
    return asked


def test_verdict_is_the_default_command(
    opened: list[tuple[object, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a core").touch()
    for words in (["a core"], ["--json", "a core"], ["--pid", "4711"], ["--pid=4711"]):
        assert cli.main(words) == 2
    assert opened == [(None, "a core")] * 2 + [(4711, "")] * 2
    capsys.readouterr()
    assert cli.main(["--help"]) == 0
    assert "Without COMMAND, findleaks runs `verdict`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "hint"), [("fnid", "did you mean 'find'?"), ("verfy", "did you mean 'verify'?"), ("zzz", "the commands are: ")]
)
def test_a_misspelt_command(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word, "core"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"findleaks: no command and no file {word!r}")
    assert hint in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["find", "--lmit", "3", "a"], "findleaks find: unknown option --lmit: did you mean '--limit'? (see `findleaks find --help`)"),
        (["watch", "--seconds", "3", "a"], "findleaks watch: unknown option --seconds (see `findleaks watch --help`)"),
        (["find", "--nosuch=3", "a"], "findleaks find: unknown option --nosuch (see `findleaks find --help`)"),
        (["find", "a", "b"], "findleaks find: unexpected argument 'b': the command takes one core file (see `findleaks find --help`)"),
        (["find", "a", "-"], "findleaks find: unexpected argument '-': the command takes one core file (see `findleaks find --help`)"),
        (["whatis", "--json"], "findleaks whatis: expected ADDR (see `findleaks whatis --help`)"),
        (["find", ""], "findleaks: name a core file, or --pid PID"),
        (["diff", "", "a"], "findleaks: the name of a sample is empty"),
        (["triage", ""], "findleaks: the name of a core is empty"),
    ],
)
def test_words_that_a_command_does_not_take(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr() == ("", f"{line}\n")


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["find", "--help"]) == 0
    said = capsys.readouterr().out
    assert cli.main(["help", "find"]) == 0
    assert capsys.readouterr().out == said


def test_the_list_of_commands_fits_into_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  blocks    list single blocks, filtered by kind, state, size or type" in lines


def test_a_number_that_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["find", "15511"]) == 2
    assert capsys.readouterr().err == "findleaks: 15511: no such file; for the process of this number: --pid 15511\n"


def start_sleeper(program: Path) -> subprocess.Popen[bytes]:
    """Start a process and wait until it has its name and its command line. Linux sets them only after Popen has returned."""
    process = subprocess.Popen([str(program), "600"])
    proc = Path(f"/proc/{process.pid}")
    until(lambda: (proc / "comm").read_text() == f"{program.name[:15]}\n" and program.name in (proc / "cmdline").read_text(), "its name")
    return process


def test_a_process_by_its_name(opened: list[tuple[object, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"sleeper{os.getpid()}"
    link = tmp_path / name
    link.symlink_to(Path("/bin/sleep").resolve())
    one = start_sleeper(link)
    two = None
    try:
        assert cli.main(["find", "--pid", name]) == 2
        assert opened == [(one.pid, "")]
        capsys.readouterr()
        two = start_sleeper(link)
        assert cli.main(["find", "--pid", name]) == 2
        said = capsys.readouterr().err
        assert f"2 processes are called {name!r}: {min(one.pid, two.pid)}, {max(one.pid, two.pid)}; choose one by its pid" in said
        assert cli.main(["find", "--pid", name + "x"]) == 2
        assert f"no process is called {name + 'x'!r}" in capsys.readouterr().err
        assert len(opened) == 1
    finally:
        for process in filter(None, (one, two)):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("redirected", "status", "line"),
    [
        (">&-", 2, "findleaks: cannot write the output: standard output is closed\n"),
        ("2>&-", 0, ""),
        (">&- 2>&-", 2, ""),
        ("<&- >/dev/null 2>&-", 0, ""),
    ],
)
def test_closed_streams(redirected: str, status: int, line: str) -> None:
    command = f'"$0" -m findleaks help {redirected}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, line)


def test_text_for_a_terminal_of_few_characters() -> None:
    assert substitute_text("a – b → c … 中 é", "ascii") == "a - b > c ~ \\u4e2d \\xe9"
    assert substitute_text("5 × 3 µs – é", "latin-1") == "5 × 3 µs - é"
    assert substitute_text("a – b", "utf-8") == "a – b"
