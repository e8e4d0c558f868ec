"""Real shells run the completion scripts, and groff reads the manual pages."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest
from schemas import tool

from findleaks import cli
from findleaks.catalogue import CATALOGUE, SETUP
from findleaks.setup_commands import SHELLS, completion_file

ROOT = Path(__file__).parents[2]


def test_files_have_all_options() -> None:
    """The files are generated. After a new command or option, run `.venv/bin/python tools/generate_shell_files.py`."""
    texts = {shell: Path(completion_file(shell)).read_text(encoding="utf-8") for shell in SHELLS}
    main = (ROOT / "man" / "findleaks.1").read_text(encoding="utf-8")
    words = []
    for word, _, made in tool("generate_shell_files").parsers():
        words.append(word)
        assert f"\\fB{word}\\fR" in main
        page = (ROOT / "man" / f"findleaks-{word}.1").read_text(encoding="utf-8")
        bash = next(line for line in texts["bash"].splitlines() if line.startswith(f"_shtab_findleaks_{word}_option_strings="))
        shown = [action for action in made._actions if action.help != argparse.SUPPRESS]
        for option in (one for action in shown for one in action.option_strings if one not in ("-h", "--help")):
            assert option in bash.partition("(")[2].rstrip(")").split()
            assert f"\\fB{option}\\fR".replace("-", "\\-") in page
            assert option in texts["zsh"]
            assert f"-{'l' if option.startswith('--') else 's'} {option.lstrip('-')}" in texts["fish"]
        for choices in (" ".join(action.choices) for action in shown if action.choices):
            assert f"({choices})" in texts["bash"] and f"({choices})" in texts["zsh"] and f'"{choices}"' in texts["fish"]
    assert words == [*CATALOGUE, "gdb", "lldb", *SETUP]
    assert {file.stem for file in (ROOT / "man").iterdir()} == {"findleaks", *(f"findleaks-{word}" for word in words)}


def test_bash(tmp_path: Path) -> None:
    """Bash completes a command, an option, a value, a file and a process."""
    (tmp_path / "core.1").touch()
    program = f"""
        source {completion_file("bash")}
        offer() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _shtab_findleaks
            printf '%s ' "${{COMPREPLY[@]}}"; echo
        }}
        offer findleaks ver
        offer findleaks find --fail
        offer findleaks find --by s
        offer findleaks find core
        offer findleaks find --pid $$
    """
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[:4] == [["verdict", "verify"], ["--fail-over"], ["size", "site"], ["core.1"]]
    assert len(lines[4]) >= 1
    assert all(one.isdigit() for one in lines[4])


def test_fish(tmp_path: Path) -> None:
    def complete(line: str) -> list[str]:
        words = ["fish", "--no-config", "-c", f"source {completion_file('fish')}; complete -C {line!r}"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
        return [one.partition("\t")[0] for one in done.stdout.splitlines()]

    assert complete("findleaks ver") == ["verdict", "verify"]
    assert complete("findleaks find --fail") == ["--fail-over"]
    assert {"size", "site"} <= set(complete("findleaks find --by s"))


ZSH = r"""
zmodload zsh/zpty
zpty terminal zsh -f -i
zpty -w terminal "fpath=($1 \$fpath); autoload -Uz compinit; compinit -D -u; print READ''Y"
zpty -r terminal text '*READY*'
offer() {
    zpty -w -n terminal "$1"$'\t'
    zpty -r terminal text "$2"
    print -r -- "$2"
    zpty -w -n terminal $'\x15'
}
offer 'findleaks ver' '*verdict*verify*'
offer 'findleaks find --fail' '*--fail-over*'
offer 'findleaks find --by ' '*kind*site*size*type*'
zpty -d terminal
"""
"""Zsh offers completions in a terminal only. Each read waits until the terminal shows what the pattern matches."""


def test_zsh(tmp_path: Path) -> None:
    folder = Path(completion_file("zsh")).parent
    words = ["zsh", "-f", "-c", ZSH, "zsh", str(folder)]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.stdout.splitlines(), done.stderr) == (["*verdict*verify*", "*--fail-over*", "*kind*site*size*type*"], "")
    assert Path(completion_file("zsh")).read_text(encoding="utf-8").startswith("#compdef findleaks\n")


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert cli.main(["completion", shell]) == 0
        assert capsys.readouterr().out == Path(completion_file(shell)).read_text(encoding="utf-8")
    assert cli.main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err


def test_manual_pages_are_valid() -> None:
    pages = sorted((ROOT / "man").glob("*.1"))
    done = subprocess.run(["groff", "-Kutf8", "-man", "-ww", "-z", *map(str, pages)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert f".SH NAME\n{page.stem} \\- " in text
        assert ".SH EXIT STATUS" in text
        assert len(text.partition(".SH DESCRIPTION\n")[2].split("\n.SH", 1)[0]) > 20
