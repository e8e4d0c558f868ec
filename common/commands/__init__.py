"""Commands, one file each: a function under `@command`. Importing one registers nothing.

    @command(arguments=_arguments, positional="addresses")
    def whatis(session, args) -> Result: ...

The catalogue has its name, summary and example; its docstring is the description in its help.
`named()` loads a command; front ends run one with `execute()`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn, Optional, Protocol, TextIO, Union, cast, runtime_checkable

from findleaks.catalogue import CATALOGUE, Entry, meant
from findleaks.commands.options import add_json
from findleaks.errors import TargetError, UsageError
from findleaks.escaping import Markup, json_line, visible
from findleaks.quoting import debugger_quoted, for_debugger, shell_quoted
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.session import Progress, Session

_NEXT = 100  # columns of a line with several suggestions, at most


class Invocation(NamedTuple):
    """How findleaks was called, so that suggestions can be pasted: `prog` WORDS `target`."""

    prog: str = "leaks"
    target: str = ""  # "core", "--pid 4711"; "" in a debugger

    def line(self, words: str) -> str:
        """ "leaks whatis 0x…" or "findleaks whatis 0x… core"; `words` are `shell_quoted`."""
        return " ".join(part for part in (self.prog, words if self.target else for_debugger(words), self.target) if part)

    def next(self, width: int, *suggestions: str) -> Iterator[str]:
        """Lines of at most `width` columns that suggest commands."""
        line = "  next: " + self.line(suggestions[0])
        for words in suggestions[1:]:
            if len(line) + 3 + len(self.line(words)) > min(width, _NEXT):
                yield line
                line = "        " + self.line(words)
            else:
                line += " · " + self.line(words)
        yield line


class Result(Protocol):
    """What a command found. `status` is its exit status."""

    status: int

    def json(self) -> Iterable[Mapping[str, object]]:
        """The JSON objects to print, one a line; nearly always a single one."""
        ...

    def text(self, width: int, invocation: Invocation) -> Iterable[str]:
        """Lines of at most `width` columns, unless a word is longer."""
        ...


@runtime_checkable
class Rows(Result, Protocol):
    """Result of many rows, with a faster way to its JSON."""

    def json_lines(self) -> Iterable[str]:
        """The objects of `json` as strings of one or more lines, by `json_line` or the C engine."""
        ...


Found = Union[Result, Generator[Result, None, None]]
"""What a command returns: a generator if it follows a process, which runs on after each result."""


class Shell(Protocol):
    """The command line, for commands that open several targets, or none."""

    out: TextIO
    width: int

    def open(self, core: str, progress: Progress) -> Session:
        """The core of this path, as --exe and --sysroot say; the process of --pid if it is ""."""
        ...

    def invocation(self, core: Optional[str]) -> Invocation:
        """How to suggest commands for a core, for the process of --pid (""), or for none (None)."""
        ...


class Command(NamedTuple):
    """A command. `positional`: the argparse destination of its addresses; `subject`: that of an
    optional name or address; "" where it takes none. `heapless`: it also answers where the target
    lacks the heap. `check`: raises UsageError for options that are wrong, before anything is
    opened. `takes_snapshots`: words are names of snapshots. `in_shell`: runs it on the command line
    if it opens several targets; returns the exit status."""

    entry: Entry
    run: Callable[[Session, argparse.Namespace], Found]
    arguments: Callable[[argparse.ArgumentParser], None]
    positional: str = ""
    subject: str = ""
    heapless: bool = False
    check: Optional[Callable[[argparse.Namespace], object]] = None
    takes_snapshots: bool = False
    in_shell: Optional[Callable[[argparse.Namespace, Shell], int]] = None

    @property
    def name(self) -> str:
        return self.entry.word

    @property
    def description(self) -> str:
        """The docstring as paragraphs, wrapped for the help."""
        import textwrap  # only the help needs it

        paragraphs = (self.run.__doc__ or self.entry.summary).split("\n\n")
        return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), 78) for paragraph in paragraphs)


class Parser(argparse.ArgumentParser):
    """Parser that raises: SystemExit would show a traceback in a debugger. Help goes to `out`."""

    out: Optional[TextIO] = None
    command: Optional[Command] = None  # describes itself in the help

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see `{self.prog} --help`)")

    def exit(self, status: int = 0, message: Optional[str] = None) -> NoReturn:
        raise _Finished

    def format_help(self) -> str:
        if self.command is not None:
            self.description = self.command.description
        return super().format_help()

    def print_help(self, file: object = None) -> None:
        (self.out or sys.stdout).write(self.format_help())


class _Finished(Exception):
    """Help was printed; there is nothing to run."""


def command(
    *,
    arguments: Callable[[argparse.ArgumentParser], None],
    positional: str = "",
    subject: str = "",
    heapless: bool = False,
    check: Optional[Callable[[argparse.Namespace], object]] = None,
    takes_snapshots: bool = False,
    in_shell: Optional[Callable[[argparse.Namespace, Shell], int]] = None,
) -> Callable[[Callable[[Session, argparse.Namespace], Found]], Command]:
    """Make `run(session, args) -> Found` the command of its name; the rest is in the catalogue."""

    def decorate(run: Callable[[Session, argparse.Namespace], Found]) -> Command:
        entry = CATALOGUE[run.__name__]
        return Command(entry, run, arguments, positional, subject, heapless, check, takes_snapshots, in_shell)

    return decorate


def named(word: str) -> Optional[Command]:
    """The command of this name, or None. Imports its module only, to keep the start short."""
    return load(word) if word in CATALOGUE else None


def load(word: str) -> Command:
    return cast(Command, getattr(importlib.import_module(f"findleaks.commands.{word}"), word))


def parser(cmd: Command, prog: str, out: Optional[TextIO] = None, target: str = "") -> Parser:
    """Argument parser of one command. Help goes to `out`; the example in it ends in `target`."""
    example = f"findleaks {cmd.entry.example}" if cmd.entry.shell else Invocation(prog, target).line(cmd.entry.example)
    made = Parser(
        prog=f"{prog} {cmd.name}",
        epilog=f"Example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.out, made.command = out, cmd
    cmd.arguments(made)
    add_json(made)
    return made


def parse(made: Parser, words: Sequence[str]) -> Optional[argparse.Namespace]:
    """Parse a command's words (-json is --json, as GDB users write it). None: help was printed."""
    try:
        return made.parse_intermixed_args(["-" + w if len(w) > 2 and w[0] == "-" and w[1].isalpha() else w for w in words])
    except _Finished:
        return None


def complete(words: Sequence[str], last: str, kept: Iterable[str] = ()) -> list[str]:
    """Completions of `last`, the word under the cursor; `words` before it begin with a command.
    `kept`: names of a debugger's snapshots."""
    if not words:
        return [name for name in CATALOGUE if name.startswith(last)]
    cmd = named(words[0])
    if cmd is None:
        return []
    actions = parser(cmd, "leaks")._actions
    for action in actions:
        if words[-1] in action.option_strings and action.nargs != 0:
            return [str(c) for c in action.choices or () if str(c).startswith(last)]
    if last.startswith("-"):
        options = sorted(o for action in actions for o in action.option_strings if o.startswith("--"))
        return [o for o in options if o.startswith(last)] or [o[1:] for o in options if o[1:].startswith(last)]
    if cmd.takes_snapshots:
        return sorted(name for name in kept if name.startswith(last) and debugger_quoted(name) == name)
    return []


def takes_file(cmd: Command, option: str) -> bool:
    """Whether the word behind this option is a file or a folder."""
    spellings = (option, "-" + option)
    found = (action for action in parser(cmd, "leaks")._actions if any(one in action.option_strings for one in spellings))
    return any(isinstance(action.metavar, str) and action.metavar.startswith(("FILE", "FOLDER")) for action in found)


def execute(
    session: Callable[[], Session], words: Sequence[str], out: TextIO, *, prog: str = "leaks", target: str = "", width: int = 80
) -> int:
    """Run one command line (`["find", "--json"]`) in a debugger and print its result to `out`;
    returns the exit status (help: 0). `prog` and `target` are Invocation's. `session` is called
    after the words have parsed. The front end handles FindleaksError (UsageError for bad words)."""
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("help", "-h", "--help"):
        out.write(overview(prog))
        return 0
    cmd = named(words[0])
    if cmd is None:
        raise UsageError(f"{prog}: no command {words[0]!r}" + (meant(words[0], CATALOGUE) or f"; there are: {', '.join(CATALOGUE)}"))
    args = parse(parser(cmd, prog, out), words[1:])
    if args is None:
        return 0
    if cmd.entry.shell:
        line = " ".join([shell_quoted(word) for word in words])  # `map` is a submodule of this one
        raise UsageError(f"{cmd.name} reads files on its own, without a debugger: in a shell, type: findleaks {line}")
    if cmd.check is not None:
        cmd.check(args)
    return emit(cmd, session(), args, out, Invocation(prog, target), width)


def emit(cmd: Command, session: Session, args: argparse.Namespace, out: TextIO, invocation: Invocation, width: int) -> int:
    """Run a parsed command and print each result; returns the last one's status. If printing fails,
    the generator is closed, and undoes what it did to the process; a Ctrl-C meanwhile is thrown
    into it, for it may have last words. All output passes here: text of the target is escaped, so
    that it cannot break a line or control the terminal."""
    if session.target.lacks and not cmd.heapless:
        raise TargetError(session.target.lacks)
    session.begin_command()
    found = cmd.run(session, args)
    if not isinstance(found, Generator):
        session.done()
        return emit_result(found, args.json, out, invocation, width)
    status = 0
    with closing(found):
        result = next(found, None)
        while result is not None:
            try:
                session.done()
                status = emit_result(result, args.json, out, invocation, width)
                out.flush()  # the next result may be long in coming
            except KeyboardInterrupt as stop:
                try:
                    result = found.throw(stop)
                except StopIteration:
                    raise stop from None
            else:
                result = next(found, None)
    return status


def emit_result(result: Result, json: bool, out: TextIO, invocation: Invocation, width: int) -> int:
    """Print one result; returns its status."""
    if not json:
        out.writelines(line + "\n" for line in safe_lines(result, invocation, width))
    elif isinstance(result, Rows):
        out.writelines(result.json_lines())
    else:
        out.writelines(json_line(item) + "\n" for item in result.json())
    return result.status


def safe_lines(result: Result, invocation: Invocation, width: int) -> Iterator[str]:
    """The lines of a result's text, with what the target says made `visible`."""
    return (line if isinstance(line, Markup) else visible(line) for line in result.text(width, invocation))


def overview(prog: str) -> str:
    """Help text that lists the commands, a line each."""
    lines = [f"{prog} COMMAND …: hunt memory leaks in this process or core.", ""]
    lines += [f"  {entry.word:8} {entry.summary}" for entry in CATALOGUE.values()]
    lines += ["", f"`{prog} COMMAND --help` says more."]
    return "\n".join(lines) + "\n"
