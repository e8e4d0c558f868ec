"""Commands. Each file defines one command: a function with the decorator `@command`.

    @command(arguments=_arguments, positional="addresses")
    def whatis(session, args) -> Result: ...

The catalogue contains the name, the summary and the example of each command. The function's
docstring is the description in the command's help. Importing this package imports no command.
`find_command()` imports a command, and front ends run it with `execute()`."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn, Optional, Protocol, TextIO, Union, cast, runtime_checkable

from findleaks.catalogue import CATALOGUE, Entry, suggest_word
from findleaks.commands.help import HelpFormatter, HelpRequested, add_help_all, short_help
from findleaks.commands.options import add_json, add_pools
from findleaks.errors import TargetError, UsageError
from findleaks.escaping import Markup, json_line, visible
from findleaks.formatting import hanging, shorten
from findleaks.quoting import debugger_quoted, for_debugger, shell_quoted
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.session import Progress, Session

_LONGEST = 4000  # Maximum number of characters of a line.
WITHOUT_POOLS = frozenset(("count", "scopes", "stacks", "track"))
"""Commands without --pools: they read no blocks, or follow the calls of the outer allocator."""


class Invocation(NamedTuple):
    """The words that called findleaks, in the order: `prog`, words of the command, `target`. They
    are used for suggested commands, which users can paste."""

    prog: str = "leaks"
    target: str = ""  # "core", "--pid 4711"; "" in a debugger, whose commands need no target
    options: str = ""  # options that suggested commands need, too, such as "--pools FILE"

    def line(self, words: str) -> str:
        """Return a whole command line: "leaks whatis 0x…" or "findleaks whatis 0x… core". `words`
        must be `shell_quoted`."""
        quoted = words if self.target else for_debugger(words)
        return " ".join(part for part in (self.prog, quoted, self.options, self.target) if part)

    def next(self, *suggestions: str) -> Iterator[str]:
        """Yield lines that suggest these commands. Each command has a line, so that users can copy
        a whole line."""
        for at, words in enumerate(suggestions):
            yield ("        " if at else "  next: ") + self.line(words)


class Result(Protocol):
    """The output of a command. `status` is its exit status."""

    status: int

    def json(self) -> Iterable[Mapping[str, object]]:
        """Return the JSON objects to print, one per line. Usually there is one object."""
        ...

    def text(self, width: int, invocation: Invocation) -> Iterable[str]:
        """Return lines of at most `width` columns. A line with a longer word is longer."""
        ...


@runtime_checkable
class Rows(Result, Protocol):
    """A result of many rows whose JSON is written faster than by `json()`."""

    def json_lines(self) -> Iterable[str]:
        """Return the objects of `json` as strings of one or more lines, written by `json_line` or
        by the C engine."""
        ...


Found = Union[Result, Generator[Result, None, None]]
"""What a command returns. A command that follows a process is a generator, and the process runs
between two results."""


class Shell(Protocol):
    """The command line as it appears to commands that open several targets, or none."""

    out: TextIO
    width: int

    def open(self, core: str, progress: Progress) -> Session:
        """Open the core with this path, with the options --exe and --sysroot. If the path is "",
        open the process of --pid."""
        ...

    def invocation(self, core: Optional[str]) -> Invocation:
        """Return the Invocation for suggested commands. `core`: the path of a core; "" for the
        process of --pid; None for commands without a target."""
        ...


class Command(NamedTuple):
    """A command and its properties.

    `positional`: the argparse destination of the command's addresses; "" if it takes none.
    `subject`: the destination of an optional name or address; "" if it takes none. `heapless`:
    whether the command also works if the heap is missing from the target. `check`: raises
    UsageError for wrong options before a target is opened. `takes_snapshots`: whether the command's
    words are names of snapshots. `in_shell`: on the command line, this function runs a command that
    opens several targets, and returns the exit status."""

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
        import textwrap  # imported here: only the help needs it

        paragraphs = (self.run.__doc__ or self.entry.summary).split("\n\n")
        return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), 78) for paragraph in paragraphs)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of exiting, because SystemExit would show a
    traceback in a debugger. Help is written to `out`."""

    out: Optional[TextIO] = None
    command: Optional[Command] = None  # The command whose help is printed.

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^the following arguments are required: (.*)", r"expected \1", message)
        raise UsageError(f"{self.prog}: {message} (see `{self.prog} --help`)")

    def refuse_words(self, words: Sequence[str]) -> NoReturn:
        """Report words that the command does not take. An unknown option is reported first, because
        its value is an unknown word, too."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-") and word != "-"), "")
        if option:
            known = (name for action in self._actions for name in action.option_strings if name.startswith("--"))
            self.error(f"unknown option {option}{suggest_word(option, known)}")
        if "core" in (action.dest for action in self._actions):
            self.error(f"unexpected argument {words[0]!r}: the command takes one core file")
        self.error(f"unexpected argument {words[0]!r}")

    def format_help(self) -> str:
        if self.command is not None:
            self.description = self.command.description
        return super().format_help()

    def print_help(self, file: object = None) -> NoReturn:
        raise HelpRequested(whole=False)

    def write_help(self, whole: bool) -> None:
        """Write the help to `out`. `whole`: whether to describe all options."""
        text = self.format_help()  # also sets `description`, which short_help needs
        (self.out or sys.stdout).write(text if whole or self.command is None else short_help(self))


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
    """Make a command of the decorated function `run(session, args) -> Result`. The command has the
    name of the function. The catalogue contains its summary and its example."""

    def decorate(run: Callable[[Session, argparse.Namespace], Found]) -> Command:
        entry = CATALOGUE[run.__name__]
        return Command(entry, run, arguments, positional, subject, heapless, check, takes_snapshots, in_shell)

    return decorate


def find_command(word: str) -> Optional[Command]:
    """Return the command with this name, or None. Only the command's module is imported, so that
    findleaks starts fast."""
    return load(word) if word in CATALOGUE else None


def load(word: str) -> Command:
    return cast(Command, getattr(importlib.import_module(f"findleaks.commands.{word}"), word))


def parser(cmd: Command, prog: str, out: Optional[TextIO] = None, target: str = "") -> Parser:
    """Return the argument parser of a command. Help is written to `out`. The example in the help
    ends in `target`."""
    example = cmd.entry.shell_example if cmd.entry.only_in_shell else Invocation(prog, target).line(cmd.entry.example)
    made = Parser(
        prog=f"{prog} {cmd.name}",
        epilog=f"Example:\n  {example}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    made.out, made.command = out, cmd
    add_help_all(made)
    cmd.arguments(made)
    if not cmd.entry.shell and cmd.name not in WITHOUT_POOLS:
        add_pools(made)
    add_json(made)
    return made


def parse(made: Parser, words: Sequence[str]) -> Optional[argparse.Namespace]:
    """Parse the words of a command. -json, as GDB's own commands spell it, means --json. Returns
    None if help was printed."""
    made.usage = ""  # argparse would format the usage first, but our errors do not print it
    try:
        found, unknown = made.parse_known_intermixed_args(["-" + w if len(w) > 2 and w[0] == "-" and w[1].isalpha() else w for w in words])
        if unknown:
            made.refuse_words(unknown)
        return found
    except HelpRequested as request:
        made.usage = None
        made.write_help(request.whole)
        return None


def complete(words: Sequence[str], last: str, kept: Iterable[str] = ()) -> list[str]:
    """Return the completions of `last`, the word under the cursor. `words`: the words before
    `last`; the first is the command. `kept`: names of a debugger's snapshots."""
    if not words:
        return [name for name in CATALOGUE if name.startswith(last)]
    cmd = find_command(words[0])
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
    """Whether the argument of this option is a file or a directory."""
    return any(isinstance(action.metavar, str) and action.metavar.startswith(("FILE", "DIR")) for action in _actions_of(cmd, option))


def takes_value(cmd: Command, option: str) -> bool:
    """Whether a value follows this option."""
    return any(action.nargs != 0 for action in _actions_of(cmd, option))


def _actions_of(cmd: Command, option: str) -> list[argparse.Action]:
    """Return the actions of an option, which may be written with one hyphen as in GDB."""
    spellings = (option, "-" + option)
    return [action for action in parser(cmd, "leaks")._actions if any(one in action.option_strings for one in spellings)]


def execute(
    session: Callable[[], Session], words: Sequence[str], out: TextIO, *, prog: str = "leaks", target: str = "", width: int = 80
) -> int:
    """Run one command line (`["find", "--json"]`) in a debugger, print its result to `out`, and
    return the exit status (0 for help).

    `prog` and `target`: see Invocation. `session` is called after the words have been parsed.
    Raises FindleaksError, which the front end prints, and UsageError for wrong words."""
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("help", "-h", "--help"):
        out.write(overview(prog, width))
        return 0
    cmd = find_command(words[0])
    if cmd is None:
        raise UsageError(
            f"{prog}: no command {words[0]!r}" + (suggest_word(words[0], CATALOGUE) or f"; the commands are: {', '.join(CATALOGUE)}")
        )
    args = parse(parser(cmd, prog, out), words[1:])
    if args is None:
        return 0
    if cmd.entry.shell:
        # `map` is also the name of a submodule of this package.
        line = " ".join([shell_quoted(word) for word in words])
        raise UsageError(f"{cmd.name} reads files without a debugger; type in a shell: findleaks {line}")
    if cmd.check is not None:
        cmd.check(args)
    return emit(cmd, session(), args, out, Invocation(prog, target), width)


def emit(cmd: Command, session: Session, args: argparse.Namespace, out: TextIO, invocation: Invocation, width: int) -> int:
    """Run a parsed command, print each result, and return the exit status of the last result.

    If printing fails, the generator is closed, and it then undoes its changes to the process. If
    the user presses Ctrl-C during printing, KeyboardInterrupt is thrown into the generator, which
    may yield a last result. All output passes through this function. It escapes text from the
    target, so that this text cannot break a line or control the terminal."""
    if session.target.lacks and not cmd.heapless:
        raise TargetError(session.target.lacks)
    session.begin_command()
    use_pools(session, args)
    use_types(session, args)
    if getattr(args, "pools", None):
        invocation = invocation._replace(options=f"--pools {shell_quoted(args.pools)}")
    found = cmd.run(session, args)
    if not isinstance(found, Generator):
        session.end_progress()
        return emit_result(found, args.json, out, invocation, width)
    status = 0
    with closing(found):
        result = next(found, None)
        while result is not None:
            try:
                session.end_progress()
                status = emit_result(result, args.json, out, invocation, width)
                out.flush()  # Flush now, because the next result may take long.
            except KeyboardInterrupt as stop:
                try:
                    result = found.throw(stop)
                except StopIteration:
                    raise stop from None
            else:
                result = next(found, None)
    return status


def use_pools(session: Session, args: argparse.Namespace) -> None:
    """Use the pool file that the command names. Raises UsageError if it cannot be read."""
    path = getattr(args, "pools", None)
    if path or session.pool_file is not None:
        from findleaks.allocators.described.file import read_pool_file  # Few commands have pools.
        from findleaks.session.block_directory import use_pool_file

        use_pool_file(session, read_pool_file(path) if path else None)


def use_types(session: Session, args: argparse.Namespace) -> None:
    """Choose how the session finds the types of blocks, as the options of the command say. Raises
    UsageError if a hint is impossible."""
    words, file = getattr(args, "hints", ()), getattr(args, "hint_file", None)
    if not words and not file:
        session.use_debug_types(getattr(args, "debug_types", None))
        return
    from findleaks.arg_types import parse_address, split_type_hint  # Few commands have hints.
    from findleaks.session.known_types import check_hints
    from findleaks.types.hint_files import read_hint_file
    from findleaks.types.hints import AddressHint, UserHints

    pairs = [split_type_hint(word) for word in words]  # `map` is also a submodule of this package.
    addresses = tuple(AddressHint(parse_address(address), name) for address, name in pairs)
    session.use_debug_types(args.debug_types, UserHints(addresses, read_hint_file(file) if file else None))
    check_hints(session)


def emit_result(result: Result, json: bool, out: TextIO, invocation: Invocation, width: int) -> int:
    """Print one result and return its exit status."""
    if not json:
        out.writelines(line + "\n" for line in safe_lines(result, invocation, width))
    elif isinstance(result, Rows):
        out.writelines(result.json_lines())
    else:
        out.writelines(json_line(item) + "\n" for item in result.json())
    return result.status


def safe_lines(result: Result, invocation: Invocation, width: int) -> Iterator[str]:
    """Yield the lines of a result's text. Text from the target is escaped with `visible`, and long
    lines are shortened, so that long names cannot fill the terminal."""
    return (line if isinstance(line, Markup) else visible(shorten(line, _LONGEST)) for line in result.text(width, invocation))


def overview(prog: str, width: int) -> str:
    """Return the help text that lists the commands, each with its summary."""
    lines = [f"{prog} COMMAND …: find memory leaks in a process or core.", ""]
    for entry in CATALOGUE.values():
        lines += hanging(f"  {entry.word:8}  ", entry.summary, width)
    lines += ["", f"`{prog} COMMAND --help` describes a command."]
    return "\n".join(lines) + "\n"
