"""How the command line ends: the status and the one line of each way to fail."""

from __future__ import annotations

from typing import NoReturn

import pytest

from findleaks import cli
from findleaks.errors import FindleaksError, Interrupted, TargetError


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (TargetError("core: not there"), 2, "findleaks: core: not there"),
        (Interrupted(), 130, "findleaks: interrupted"),
        (KeyboardInterrupt(), 130, "findleaks: interrupted"),
        (MemoryError(), 2, "findleaks: out of memory: close other programs, or use a machine with more"),
        (TargetError("held by \x1b]0;evil\x07\n\x9b2J"), 2, "findleaks: held by \\x1b]0;evil\\x07\\n\\x9b2J"),
    ],
)
def test_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str) -> None:
    def fails(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(cli, "_open", fails)
    assert cli.main(["find", "core"]) == status
    assert capsys.readouterr() == ("", line + "\n")


def test_an_error_of_ours_is_one_safe_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object) -> NoReturn:
        raise KeyError("\x1b[2J\n")

    monkeypatch.setattr(cli, "_open", fails)
    assert cli.main(["find", "core"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "please report it: KeyError" in err
    assert "\x1b" not in err


def test_messages_are_cut_before_they_fill_the_terminal() -> None:
    assert len(str(FindleaksError("x" * 5000))) == 1000


def test_the_examples_of_help_can_be_typed_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["find", "--help"]) == 0
    assert capsys.readouterr().out.endswith("Example:\n  findleaks find --kind definite --limit 5 core\n")
