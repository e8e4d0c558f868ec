"""Run the commands that findleaks suggests, as a new user does."""

from __future__ import annotations

import re
import shlex

from debuggers import run_cli


def list_suggestions(text: str) -> list[list[str]]:
    """Return the commands after `next:`, split into words, without the program's name."""
    lines = [line for part in text.split("next: ")[1:] for line in re.split(r"\n(?! {6,}\S*(?:python|findleaks))", part)[:1]]
    commands = [command for line in lines for command in line.splitlines()]
    return [shlex.split(re.sub(r"^.*?findleaks ", "", command.strip())) for command in commands]


def follow(where: list[str], *choices: str) -> str:
    """Return the output of the last command. `choices`: the words of the commands after `verdict`; each must be suggested by the previous
    command."""
    assert len(choices) <= 2, "three commands at most"
    text = run_cli("verdict", *where).stdout
    for choice in choices:
        found = [words for words in list_suggestions(text) if words[0] == choice]
        assert found, f"{choice} is not suggested:\n{text}"
        text = run_cli(*found[0]).stdout
    return " ".join(text.split())
