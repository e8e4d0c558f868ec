"""Commands that prepare this machine and open no process: `init`, `doctor` and `completion`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, Optional, TextIO

from findleaks.catalogue import FRONT, SETUP
from findleaks.commands import Parser, parse
from findleaks.errors import FindleaksError, UsageError
from findleaks.escaping import json_line, visible
from findleaks.formatting import hanging, shorten
from findleaks.results.written import document

if TYPE_CHECKING:
    from findleaks.results.environment import Environment

SHELLS = {"bash": "findleaks", "zsh": "_findleaks", "fish": "findleaks.fish"}
"""For each shell, the name of its file in the directory completions/. The names are those that the
shells expect."""


def run_setup(word: str, words: Sequence[str], out: TextIO, width: int) -> int:
    """Run `init`, `doctor` or `completion`, and return the exit status: 0, or 1 if something that
    is installed does not work."""
    args = parse(setup_parser(word, out), words)
    if args is None:
        return 0
    if word == "init":
        return _init(args, out)
    if word == "doctor":
        return _doctor(args.json, out, width)
    with open(completion_file(args.shell), encoding="utf-8") as file:
        out.write(file.read())
    return 0


class _Parser(Parser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists the arguments")


def _parser(word: str, summary: str, example: str, add_help: bool = True) -> _Parser:
    """Return a parser without arguments. `example`: the words after the command in the example of
    the help."""
    return _Parser(
        prog=f"findleaks {word}",
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"Example:\n  findleaks {word} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=add_help,
    )


def setup_parser(word: str, out: Optional[TextIO] = None) -> Parser:
    """Return the parser of `init`, `doctor` or `completion`. Help is written to `out`."""
    examples = {"init": "--install", "doctor": "--json", "completion": "bash > ~/.local/share/bash-completion/completions/findleaks"}
    made = _parser(word, SETUP[word], examples[word])
    made.out = out
    if word == "init":
        group = made.add_mutually_exclusive_group()
        group.add_argument("--install", action="store_true", help="add the lines to the start-up files; without it they are only printed")
        group.add_argument("--remove", action="store_true", help="remove the lines that --install added")
        made.add_argument("--yes", action="store_true", help="do not ask before a file is changed")
    elif word == "doctor":
        made.add_argument("--json", action="store_true", help="print one JSON object")
    else:
        made.add_argument("shell", choices=list(SHELLS), help="the shell that reads the script")
    return made


def debugger_parser(word: str) -> argparse.ArgumentParser:
    """Return the argument parser of the command `gdb` or `lldb`, for its help and the manual
    page."""
    made = _parser(word, FRONT[word], "program core", add_help=False)
    made.add_argument("arguments", nargs="*", metavar="ARGUMENT", help=f"arguments of the debugger, which `{word} --help` lists")
    return made


def completion_file(shell: str) -> str:
    """Return the path of the completion script for "bash", "zsh" or "fish"."""
    return os.path.join(os.path.dirname(os.path.realpath(__file__)), "completions", SHELLS[shell])


def _init(args: argparse.Namespace, out: TextIO) -> int:
    """Print the lines for the start-up files, or change the files."""
    from findleaks.launcher import print_init
    from findleaks.startup_files import list_edits, write_edit

    if not (args.install or args.remove):
        if args.yes:
            raise UsageError("--yes needs --install or --remove")
        return print_init(out)
    edits = list_edits(args.remove)
    if not edits:
        out.write(f"The start-up files {'do not load findleaks' if args.remove else 'load findleaks already'}; nothing to change.\n")
        return 0
    for edit in edits:
        out.writelines(visible(line) + "\n" for line in edit.format_diff())
    if not args.yes and not _confirm(out):
        out.write("Nothing was changed.\n")
        return 0
    for edit in edits:
        write_edit(edit)
        out.write(f"{visible(edit.path)} was changed.\n")
    return 0


def _confirm(out: TextIO) -> bool:
    """Ask the user for permission. Raises FindleaksError if nobody can answer."""
    if not sys.stdin.isatty():
        raise FindleaksError("standard input is not a terminal, so nobody can confirm the change; pass --yes to make it")
    out.write("Write these changes? [y/N] ")
    out.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _doctor(json: bool, out: TextIO, width: int) -> int:
    from findleaks.doctor import examine_environment

    found = examine_environment()
    if json:
        out.write(json_line(document("doctor", found, ())) + "\n")
    else:
        out.writelines(visible(line) + "\n" for line in environment_lines(found, width))
    return int(any(check.state == "failed" for check in found.checks))


def environment_lines(found: Environment, width: int) -> Iterator[str]:
    """Yield the text of `doctor`: a line for each check, and the command that changes what is not
    ok."""
    yield f"findleaks {found.version}, Python {found.python}, in {shorten(found.folder)}"
    area = ""
    wide = max((len(check.name) for check in found.checks), default=0)
    for check in found.checks:
        if check.area != area:
            area = check.area
            yield ""
            yield area
        yield from hanging(f"  {check.state:<8} {check.name:<{wide}}  ", shorten(check.detail, 400), width)
        if check.remedy:
            yield " " * (wide + 13) + f"→ {check.remedy}"
