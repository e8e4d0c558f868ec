"""Write common/completions/, the completion scripts of bash, zsh and fish, and man/, a manual page for each command.

usage: .venv/bin/python tools/generate_shell_files.py

Both are made of the parsers of the commands, by shtab and argparse-manpage. A test fails if the files are not what this program
makes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shtab
from argparse_manpage.manpage import Manpage

from findleaks import __version__, commands
from findleaks.catalogue import CATALOGUE, FRONT, SETUP
from findleaks.cli import command_parser
from findleaks.setup_commands import SHELLS, debugger_parser, setup_parser

ROOT = Path(__file__).parents[1]
PROCESS = {"bash": "_findleaks_processes", "zsh": "_pids", "fish": "(__fish_complete_pids)"}
PREAMBLE = {"bash": '_findleaks_processes() { compgen -W "$(cd /proc && printf "%s\\n" [0-9]*)" -- "$1"; }'}
FILES = {"FILE", "FOLDER", "CORE", "core", "cores", "PATH", "DIR", "arguments"}


def parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """The word, the summary and the parser of each command of the command line."""
    for word, entry in CATALOGUE.items():
        yield word, entry.summary, command_parser(commands.load(word))
    for word, summary in FRONT.items():
        yield word, summary, debugger_parser(word)
    for word, summary in SETUP.items():
        yield word, summary, setup_parser(word)


def completions() -> dict[str, str]:
    """The completion scripts, by the name of their file."""
    whole = argparse.ArgumentParser(prog="findleaks", description="Find native memory leaks post-mortem.", allow_abbrev=False)
    whole.add_argument("-V", "--version", action="store_true", help="print the version")
    chosen = whole.add_subparsers(dest="command")
    for word, summary, made in parsers():
        for action in made._actions:
            _complete(action)
        chosen.add_parser(word, help=summary.replace("%", "%%"), parents=[made], add_help=False, allow_abbrev=False)
    return {file: shtab.complete(whole, shell, preamble=PREAMBLE).rstrip() + "\n" for shell, file in SHELLS.items()}


def _complete(action: Any) -> None:
    """Say how the value of an argument is completed, as shtab reads it."""
    if action.dest == "pid":
        action.complete = PROCESS
    elif action.choices is None and action.nargs != 0 and {action.metavar, action.dest} & FILES:
        action.complete = shtab.FILE


def manual() -> dict[str, str]:
    """The manual pages, by the name of their file: findleaks.1 and one for each command."""
    pages = {f"findleaks-{word}.1": _page(made, summary) for word, summary, made in parsers()}
    whole = argparse.ArgumentParser(
        prog="findleaks",
        usage="findleaks COMMAND [options] CORE | findleaks COMMAND [options] --pid PID",
        description="Find native memory leaks post-mortem. Without COMMAND, findleaks runs verdict.",
        add_help=False,
    )
    listed = whole.add_argument_group("commands")
    for word, summary, _ in parsers():
        listed.add_argument(word, help=summary.replace("%", "%%"))
    pages["findleaks.1"] = _page(whole, "find native memory leaks post-mortem")
    return pages


def _page(made: argparse.ArgumentParser, summary: str) -> str:
    """The manual page of one command. argparse-manpage has no sections for the example and the exit
    statuses, puts the description behind all options, and takes a space in the command's name as
    the end of the page's title."""
    name = made.prog.replace(" ", "-")
    about = {"prog": name, "project_name": "findleaks", "version": __version__, "description": summary, "manual_title": "findleaks"}
    example = (made.epilog or "").partition("Example:\n")[2].strip()
    made.format_help()  # which sets the description of most commands
    described = (made.description or summary).strip()
    made.description = made.epilog = None
    text = str(Manpage(made, _data={**about, "date": " ", "format": "single-commands-section"}))
    text = re.sub(r"^\.TH .*?\"1\"", f'.TH {name.upper()} "1"', text, flags=re.M)
    text = re.sub(r"(?<=^\.SH NAME\n).*? \\-", lambda _: f"{name} \\-", text, flags=re.M)
    text = text.replace(f".B findleaks\n{name.partition('-')[2]} ", f".B {made.prog}\n", 1)
    synopsis, options = text.split("\n\n", 1)
    synopsis = re.sub(r"\{.*?\}", lambda choices: choices[0].replace(",", ",\\:"), synopsis)  # long ones are broken
    text = f"{synopsis}\n.SH DESCRIPTION\n{_paragraphs(described)}\n\n{options}"
    if example:
        text += f".SH EXAMPLE\n.nf\n{_escaped(example)}\n.fi\n"
    see = "findleaks(1)" if name != "findleaks" else "findleaks-verdict(1), findleaks-find(1), gdb(1), lldb(1)"
    return f"{text.rstrip()}\n.SH EXIT STATUS\n{_STATUS}\n.SH SEE ALSO\n{_escaped(see)}\n"


def _paragraphs(text: str) -> str:
    """Text whose paragraphs have an empty line between them."""
    return _escaped(re.sub(r"\n\s*\n", "\n.PP\n", text))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


_STATUS = """0: success. 1: what the command looks for was found, such as more leaks than \\-\\-fail\\-over allows.
2: an error. 130: ended by Ctrl\\-C."""


def main() -> None:
    """Write all files."""
    for folder, made in ((ROOT / "common" / "completions", completions()), (ROOT / "man", manual())):
        folder.mkdir(exist_ok=True)
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
