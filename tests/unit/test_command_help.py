"""--help of each command fits on a screen and names every option; --help-all describes every option."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from findleaks import cli, commands
from findleaks.catalogue import CATALOGUE, FRONT, SETUP
from findleaks.commands.help import RARE

LINES = 40
"""Lines of a screen of 80 columns."""


def list_options(word: str) -> Iterator[str]:
    """Return the long options that the help of a command lists."""
    for action in cli.command_parser(commands.load(word))._actions:
        if action.help != argparse.SUPPRESS and action.option_strings:
            yield action.option_strings[-1]


def run_help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("word", CATALOGUE)
def test_help_fits_a_screen(word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = run_help(capsys, word, "--help"), run_help(capsys, word, "--help-all")
    assert len(short.splitlines()) <= LINES
    assert max(map(len, short.splitlines())) <= 80
    for option in set(list_options(word)) - {"--help", "--help-all"}:
        assert f"{option} " in short or f"{option}," in short or f"{option}." in short.replace("\n", " "), option
        assert re.search(rf"^  (-., )?{option}( |$)", whole, re.MULTILINE), option
    assert commands.load(word).description in whole
    assert whole.endswith(short[short.index("Example:\n") :])


@pytest.mark.parametrize("word", [*FRONT, *SETUP])
def test_help_of_the_other_commands(word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for option in ("-h", "--help"):
        text = run_help(capsys, word, option)
        assert text.startswith(f"usage: findleaks {word} ")
        assert "Example:\n" in text
        assert len(text.splitlines()) <= LINES


def test_usage_names_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_help(capsys, "whatis", "--help").startswith("usage: findleaks whatis [options] ADDR [ADDR ...] [core]\n")
    assert run_help(capsys, "count", "--help").startswith("usage: findleaks count [options] FUNCTION\n")


def test_rare_options_exist() -> None:
    assert not RARE - {option for word in CATALOGUE for option in list_options(word)}
