"""How the command line ends: the exit status, and the one line that each kind of failure prints."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from fake import FakeTarget
from heaps import ListAllocator, Listed, session

from findleaks import cli, commands
from findleaks.engine.terms import State
from findleaks.errors import FindleaksError, Interrupted, TargetError, UsageError


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (TargetError("core: not there"), 2, "findleaks: core: not there"),
        (Interrupted(), 130, "findleaks: interrupted"),
        (KeyboardInterrupt(), 130, "findleaks: interrupted"),
        (MemoryError(), 2, "findleaks: out of memory: close other programs, or use a machine with more memory"),
        (TargetError("held by \x1b]0;evil\x07\n\x9b2J"), 2, "findleaks: held by \\x1b]0;evil\\x07\\n\\u009b2J"),
    ],
)
def test_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str) -> None:
    def fails(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(cli, "_open", fails)
    assert cli.main(["find", "core"]) == status
    assert capsys.readouterr() == ("", line + "\n")


def test_an_expected_error_is_one_escaped_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object) -> NoReturn:
        raise KeyError("\x1b[2J\n")

    monkeypatch.setattr(cli, "_open", fails)
    assert cli.main(["find", "core"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "report it: KeyError" in err
    assert "\x1b" not in err


def test_ctrl_c_inside_the_creation_of_a_class(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object) -> NoReturn:
        raise RuntimeError("Error calling __set_name__ on 'Field' instance 'rules'") from KeyboardInterrupt()

    monkeypatch.setattr(cli, "_open", fails)
    assert cli.main(["find", "core"]) == 130
    assert capsys.readouterr().err == "findleaks: interrupted\n"


def test_messages_are_cut_before_they_fill_the_terminal() -> None:
    assert len(str(FindleaksError("x" * 5000))) == 1000


def test_examples_in_help_parse(capsys: pytest.CaptureFixture[str]) -> None:
    """tests/integration/test_help_examples.py runs them all."""
    assert cli.main(["find", "--help"]) == 0
    assert capsys.readouterr().out.endswith("Example:\n  findleaks find --kind definite --limit 5 core\n")


@pytest.mark.parametrize("words", [["watch"], ["track"], ["count", "malloc"]], ids=lambda words: words[0])
def test_commands_of_live_processes_offer_no_core(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([words[0], "--help"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("--pid 4711\n")
    assert not [option for option in ("the core", "--exe", "--sysroot") if option in text]
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"findleaks: {words[0]} needs a running process: --pid PID\n"


HEAP = 0x10000


@pytest.mark.parametrize(("state", "status"), [(State.IN_USE, 0), (State.FREE, 2)])
@pytest.mark.parametrize("words", [["blocks"], ["blocks", "--json"], ["find"]])
def test_no_blocks_in_use_is_a_failure(words: list[str], state: State, status: int) -> None:
    made = session(FakeTarget({HEAP: bytes(0x1000)}), [ListAllocator(HEAP, HEAP + 0x1000, [Listed(HEAP, 48, state)])])
    assert commands.execute(lambda: made, words, io.StringIO()) == status


def test_an_unknown_allocator_is_an_error() -> None:
    made = session(FakeTarget({HEAP: bytes(0x1000)}), [ListAllocator(HEAP, HEAP + 0x1000, [Listed(HEAP, 48)])])
    with pytest.raises(UsageError, match="no allocator 'other' in this process; found: listed"):
        commands.execute(lambda: made, ["blocks", "--allocator", "other"], io.StringIO())


@pytest.mark.parametrize("limit", ["-1", "x", "1.5", "9" * 5000])
@pytest.mark.parametrize("words", [["blocks"], ["refs", "0x10000"], ["path", "0x10000"]])
def test_a_limit_is_a_count(words: list[str], limit: str) -> None:
    made = session(FakeTarget({HEAP: bytes(0x1000)}), [ListAllocator(HEAP, HEAP + 0x1000, [Listed(HEAP, 48)])])
    with pytest.raises(UsageError, match=r"--limit: '.*' is not a count: write 0"):
        commands.execute(lambda: made, [*words, "--limit", limit], io.StringIO())
    out = io.StringIO()
    assert commands.execute(lambda: made, [*words, "--limit", "9" * 30], out) == 0
    assert "0x10000" in out.getvalue()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--exe", "none"], "--exe none: no such file"),
        (["--exe", "folder"], "--exe folder: not a file"),
        (["--sysroot", "none"], "--sysroot none: no such directory"),
        (["--sysroot", "file"], "--sysroot file: not a directory"),
    ],
)
def test_missing_files_are_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    assert cli.main(["find", *words, "core"]) == 2
    assert capsys.readouterr() == ("", f"findleaks: {line}\n")


def test_init_takes_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "x"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "unexpected argument 'x'; `findleaks init --help` lists the arguments" in err
    assert cli.main(["init", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: findleaks init [-h] [--install | --remove]")


def test_the_largest_blocks_first() -> None:
    sizes = [48, 4096, 16, 4096, 512]
    starts = [HEAP + 0x2000 * at for at in range(len(sizes))]
    listed = [Listed(start, size) for start, size in zip(starts, sizes)]
    made = session(FakeTarget({HEAP: bytes(0x10000)}), [ListAllocator(HEAP, HEAP + 0x10000, listed)])

    def addresses(*words: str) -> list[int]:
        out = io.StringIO()
        assert commands.execute(lambda: made, ["blocks", "--json", *words], out) == 0
        return [int(row["address"], 16) for row in map(json.loads, out.getvalue().splitlines()) if "address" in row]

    largest = [starts[at] for at in (1, 3, 4, 0, 2)]
    assert addresses() == addresses("--sort", "address") == starts
    assert addresses("--sort", "size") == largest
    assert addresses("--sort", "size", "--limit", "3") == largest[:3]


class TwoLines:
    """A result of two lines. If `pressed`, Ctrl-C arrives between them."""

    status = 0

    def __init__(self, word: str, pressed: bool = False) -> None:
        self.word, self.pressed = word, pressed

    def json(self) -> list[dict[str, object]]:
        return [{"name": self.word}]

    def text(self, width: int, invocation: commands.Invocation) -> Iterator[str]:
        yield f"{self.word} 1"
        if self.pressed:
            raise KeyboardInterrupt
        yield f"{self.word} 2"


def make_command(ends_well: bool) -> commands.Command:
    """Run a command whose first result is interrupted while it is printed. If `ends_well`, the command then prints a last result."""

    def run(session: object, args: argparse.Namespace) -> Generator[commands.Result, None, None]:
        try:
            yield TwoLines("moment", pressed=True)
            yield TwoLines("another moment")
        except KeyboardInterrupt:
            if not ends_well:
                raise
        yield TwoLines("summary")

    return commands.Command(commands.CATALOGUE["snapshot"], run, lambda parser: None)


@pytest.mark.parametrize("ends_well", [True, False])
def test_ctrl_c_while_one_of_several_results_is_printed(ends_well: bool) -> None:
    out, made = io.StringIO(), session(FakeTarget({0x1000: bytes(64)}), [ListAllocator(0x1000, 0x1040, [])])
    with contextlib.nullcontext() if ends_well else pytest.raises(KeyboardInterrupt):
        commands.emit(make_command(ends_well), made, argparse.Namespace(json=False), out, commands.Invocation(), 80)
    assert out.getvalue().splitlines() == ["moment 1", *(["summary 1", "summary 2"] if ends_well else [])]
