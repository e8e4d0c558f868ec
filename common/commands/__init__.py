"""Commands: one file each. A command is a function under `@command`; nothing registers itself on import.

    @command("whatis", "say what an address is", arguments=_arguments, example="whatis 0x55d0c0a012a0")
    def whatis(session, args) -> Result: ...

The first paragraph of the function's docstring is the description in its help. `commands()` collects them from an explicit
list of modules; `execute()` is what each front end calls.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TextIO

from findleaks.errors import FindleaksError, UsageError
from findleaks.session import Session

MODULES = ("find", "blocks", "whatis", "refs", "path")
SCHEMA = "findleaks/1"


class Result(Protocol):
    """What a command found. `status` is the exit status it asks for."""

    status: int

    def json(self) -> Iterable[Mapping[str, object]]:
        """The JSON objects to print, one a line; nearly always a single one."""
        ...

    def text(self, width: int, prog: str) -> Iterable[str]:
        """Lines at most `width` columns wide, where the content allows; `prog` stands before suggested commands."""
        ...


@dataclass(frozen=True)
class Command:
    name: str
    summary: str
    run: Callable[[Session, argparse.Namespace], Result]
    arguments: Callable[[argparse.ArgumentParser], None]
    example: str = ""
    words: tuple[str, ...] = field(default=())  # completions of positional words

    @property
    def description(self) -> str:
        return (self.run.__doc__ or self.summary).strip()


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting: inside a debugger SystemExit would show as a traceback."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see `{self.prog} --help`)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Finished(status, message or "")


class _Finished(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def command(
    name: str, summary: str, *, arguments: Callable[[argparse.ArgumentParser], None], example: str = ""
) -> Callable[[Callable[[Session, argparse.Namespace], Result]], Command]:
    """Make a function `run(session, args) -> Result` the command `name`."""

    def decorate(run: Callable[[Session, argparse.Namespace], Result]) -> Command:
        return Command(name, summary, run, arguments, example)

    return decorate


def commands() -> dict[str, Command]:
    """All commands by name, in the order of the help."""
    found: dict[str, Command] = {}
    for module in MODULES:
        found.update(
            (value.name, value)
            for value in vars(importlib.import_module(f"findleaks.commands.{module}")).values()
            if isinstance(value, Command)
        )
    return found


def parser(cmd: Command, prog: str) -> argparse.ArgumentParser:
    """The argument parser of one command; GDB's `-option` style is accepted beside `--option`."""
    made = _Parser(
        prog=f"{prog} {cmd.name}",
        description=cmd.description,
        epilog=f"Example:\n  {prog} {cmd.example}" if cmd.example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    cmd.arguments(made)
    made.add_argument("--json", action="store_true", help="print JSON instead of text")
    return made


def options(cmd: Command) -> list[str]:
    """Its long options, for completion."""
    return sorted(o for action in parser(cmd, "leaks")._actions for o in action.option_strings if o.startswith("--"))


def complete(words: Sequence[str], last: str) -> list[str]:
    """Completions of `last`, the word under the cursor, after the finished `words` (the command's name first)."""
    known = commands()
    if not words:
        return [name for name in known if name.startswith(last)]
    cmd = known.get(words[0])
    if cmd is None:
        return []
    if last.startswith("-"):
        return [o for o in options(cmd) if o.startswith(last)]
    for action in parser(cmd, "leaks")._actions:
        if words[-1] in action.option_strings and action.choices:
            return [str(c) for c in action.choices if str(c).startswith(last)]
    return []


def normalise(words: Sequence[str]) -> list[str]:
    """GDB users write `-json`; argparse wants `--json`. Numbers and single letters are left alone."""
    return ["-" + w if len(w) > 2 and w[0] == "-" and w[1].isalpha() else w for w in words]


def execute(session: Callable[[], Session], words: Sequence[str], out: TextIO, *, prog: str = "leaks", width: int = 80) -> int:
    """Run one command line (`["find", "--json"]`) and print its result to `out`; returns the exit status.

    `session` is called only once the words have parsed. Help is printed and gives 0. Raises FindleaksError (UsageError for bad words):
    the front end prints it in its own way.
    """
    known = commands()
    if not words or words[0] in ("help", "-h", "--help"):
        out.write(overview(prog))
        return 0
    cmd = known.get(words[0])
    if cmd is None:
        raise UsageError(f"{prog}: no command {words[0]!r}; there are: {', '.join(known)}")
    try:
        args = parser(cmd, prog).parse_args(normalise(words[1:]))
    except _Finished as finished:
        return finished.status
    return emit(cmd, session(), args, out, prog=prog, width=width)


def emit(cmd: Command, session: Session, args: argparse.Namespace, out: TextIO, *, prog: str, width: int) -> int:
    """Run a parsed command and print what it found."""
    result = cmd.run(session, args)
    if args.json:
        for item in result.json():
            out.write(json.dumps(item, separators=(", ", ": ")) + "\n")
    else:
        for line in result.text(width, prog):
            out.write(line + "\n")
    return result.status


def overview(prog: str) -> str:
    """The list of commands, a line each."""
    lines = [f"{prog} COMMAND …: hunt memory leaks in this process or core.", ""]
    lines += [f"  {name:8} {cmd.summary}" for name, cmd in commands().items()]
    lines += ["", f"`{prog} COMMAND --help` says more."]
    return "\n".join(lines) + "\n"


__all__ = ["Any", "Command", "FindleaksError", "Result", "command", "commands", "complete", "execute", "overview", "parser"]
