"""`leaks …` in GDB: a command for each word; results are dropped when the process changes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Optional, TextIO, cast

import gdb
from findleaks.catalogue import CATALOGUE
from findleaks.debugger_session import DebuggerSession, Subject, add_find_word, describe_failure
from findleaks.errors import FindleaksError
from findleaks.report.columns import terminal_columns
from findleaks.report.encoding import substitute_text

LEAKS = """Find memory leaks in this process or core.

Example:
  leaks find

`leaks COMMAND --help` lists the options of a command."""
FINDLEAKS = """Another name of `leaks`. Without a command, it runs `leaks find`.

Example:
  findleaks --kind definite"""

# Events after which results for a live process are stale. Not all of them are in GDB 9.
STALE = ("cont", "stop", "exited", "new_thread", "inferior_call", "memory_changed", "register_changed")


def encodable(text: str) -> str:
    """Text in characters that GDB can print in its locale, which may be ASCII only."""
    return substitute_text(text, gdb.host_charset() if hasattr(gdb, "host_charset") else "ascii")


class Quit(FindleaksError):
    """The user left GDB's pager."""


class Output(io.TextIOBase):
    """Standard output through GDB's pager, redirections and logging."""

    def write(self, text: str) -> int:
        try:
            gdb.write(encodable(text))
        except KeyboardInterrupt:
            raise Quit from None
        return len(text)


class Gdb:
    """The interface of GDB that commands use. The target's module is imported on first use."""

    def subject(self) -> Subject:
        from findleaks.gdb.target import subject

        return subject()

    def evaluate(self, expression: str) -> int:
        from findleaks.gdb.target import evaluate

        return evaluate(expression)


class GdbFrontEnd:
    """findleaks in one GDB. It owns all state; creating it adds the commands."""

    def __init__(self) -> None:
        self._front = DebuggerSession(Gdb())
        for event in STALE:
            registry = getattr(gdb.events, event, None)
            if registry is not None:
                registry.connect(self._stale)
        Prefix(self, "leaks", LEAKS)
        Prefix(self, "findleaks", FINDLEAKS)
        for entry in CATALOGUE.values():
            for prefix in ("leaks", "findleaks"):
                Word(self, prefix, entry.word, entry.help(prefix))

    def run(self, words: Sequence[str], prog: str) -> None:
        """Run a command line. Any error becomes a GDB error of one line."""
        try:
            status = self._front.run(words, cast(TextIO, Output()), width(), prog)
        except Quit:
            raise gdb.GdbError("Quit") from None
        except KeyboardInterrupt:
            raise gdb.GdbError(f"{prog}: interrupted") from None
        except FindleaksError as error:
            text = str(error)
            raise gdb.GdbError(text if text.startswith(prog) else f"{prog}: {text}") from None
        if status:
            raise gdb.GdbError(describe_failure(prog, words[0], status))

    def kept_names(self) -> list[str]:
        """The names of snapshots taken in this GDB."""
        return self._front.kept_names()

    def _stale(self, event: Any) -> None:
        self._front.drop_live()


class Word(gdb.Command):
    """The command `leaks WORD` or `findleaks WORD`."""

    def __init__(self, front_end: GdbFrontEnd, prefix: str, word: str, text: str) -> None:
        # GDB reads the help from here while the command is created.
        self.__doc__ = encodable(text)
        super().__init__(f"{prefix} {word}", gdb.COMMAND_DATA)
        self._front_end, self._prefix, self._word = front_end, prefix, word

    def invoke(self, argument: str, from_tty: bool) -> None:
        self.dont_repeat()
        self._front_end.run([self._word, *split(argument)], self._prefix)

    def complete(self, text: str, word: Optional[str]) -> Any:
        """Complete the last word of `text`. GDB calls this, and replaces `word`, the end of
        `text`."""
        return completions(self._word, text, word, self._front_end.kept_names())


class Prefix(gdb.Command):
    """The commands `leaks` and `findleaks` themselves. GDB calls `invoke` for words that are not
    subcommands."""

    def __init__(self, front_end: GdbFrontEnd, name: str, text: str) -> None:
        self.__doc__ = encodable(text)
        super().__init__(name, gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)
        self._front_end, self._name = front_end, name

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Run the command. GDB calls this if no subcommand follows."""
        self.dont_repeat()
        words = split(argument)
        self._front_end.run(add_find_word(words) if self._name == "findleaks" else words, self._name)


def split(argument: str) -> list[str]:
    """The words of a command line, split as GDB does."""
    try:
        return list(gdb.string_to_argv(argument))
    except gdb.error as error:
        raise gdb.GdbError(f"leaks: {error}") from None


def completions(command: str, text: str, word: Optional[str], names: Sequence[str]) -> Any:
    """Return completions of the last word. GDB also splits words at punctuation, so that they begin
    after the last punctuation.
    `names`: names of snapshots."""
    # GDB first asks where the last word begins. A second call, made for GDB's default, returns the
    # completions.
    if word is None:
        return None
    from findleaks import commands

    *before, last = text.split(" ")
    before = [command, *filter(None, before)]
    found = commands.complete(before, last, names)
    if found:
        kept = len(last) - len(word) if last.endswith(word) else 0
        return [choice[kept:] for choice in found]
    if last.startswith("-"):
        return gdb.COMPLETE_NONE
    cmd = commands.find_command(command)
    if cmd is not None and (cmd.takes_snapshots or commands.takes_file(cmd, before[-1])):
        return gdb.COMPLETE_FILENAME
    return gdb.COMPLETE_EXPRESSION if cmd is not None and cmd.positional else gdb.COMPLETE_NONE


def width() -> int:
    """Columns of text: GDB's setting. If it is unlimited (`set width 0`, and always with -batch),
    the same default as everywhere. COLUMNS is ignored, as GDB itself sets it."""
    wanted = gdb.parameter("width")
    return terminal_columns(str(wanted) if isinstance(wanted, int) else "")
