"""`leaks …` in GDB: a command for each word, and the events that make what was computed stale."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Optional, TextIO, cast

import gdb
from findleaks.catalogue import CATALOGUE
from findleaks.debugger_session import Front, Subject, failure, words_of_find
from findleaks.errors import FindleaksError
from findleaks.report.columns import terminal_columns
from findleaks.report.encoding import plain

LEAKS = """Hunt memory leaks in this process or core.

Example:
  leaks find

Each command answers `--help` with all its options."""
FINDLEAKS = """Another name of `leaks`; alone, and with options only, it is `leaks find`.

Example:
  findleaks --kind definite"""

# Events after which a live process may not be what it was. Not all of them are in GDB 9.
STALE = ("cont", "stop", "exited", "new_thread", "inferior_call", "memory_changed", "register_changed")


def encodable(text: str) -> str:
    """Text in the characters that GDB can pass on in its locale, which may be as few as ASCII has."""
    return plain(text, gdb.host_charset() if hasattr(gdb, "host_charset") else "ascii")


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
    """What the commands ask of this debugger. The target's module is imported when a command first needs it."""

    def subject(self) -> Subject:
        from findleaks.gdb.target import subject

        return subject()

    def evaluate(self, expression: str) -> int:
        from findleaks.gdb.target import evaluate

        return evaluate(expression)


class Door:
    """findleaks in one GDB: owns all its state."""

    def __init__(self) -> None:
        self._front = Front(Gdb())
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
        """Run a command line; whatever goes wrong becomes GDB's error of one line."""
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
            raise gdb.GdbError(failure(prog, words[0], status))

    def _stale(self, event: Any) -> None:
        self._front.drop_live()


class Word(gdb.Command):
    """`leaks WORD`, or `findleaks WORD`."""

    def __init__(self, door: Door, prefix: str, word: str, text: str) -> None:
        self.__doc__ = encodable(text)  # GDB takes its help from here, while the command is made
        super().__init__(f"{prefix} {word}", gdb.COMMAND_DATA)
        self._door, self._prefix, self._word = door, prefix, word

    def invoke(self, argument: str, from_tty: bool) -> None:
        """GDB calls this to run the command."""
        self.dont_repeat()
        self._door.run([self._word, *split(argument)], self._prefix)

    def complete(self, text: str, word: Optional[str]) -> Any:
        """GDB calls this to complete the last word of `text`, of which it will replace the tail `word`."""
        return completions(self._word, text, word)


class Prefix(gdb.Command):
    """`leaks` and `findleaks` themselves. GDB hands us what is not one of their words, as the class has `invoke`."""

    def __init__(self, door: Door, name: str, text: str) -> None:
        self.__doc__ = encodable(text)
        super().__init__(name, gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)
        self._door, self._name = door, name

    def invoke(self, argument: str, from_tty: bool) -> None:
        """GDB calls this when no word of ours follows."""
        self.dont_repeat()
        words = split(argument)
        self._door.run(words_of_find(words) if self._name == "findleaks" else words, self._name)


def split(argument: str) -> list[str]:
    """The words of a command line, as GDB splits them."""
    try:
        return list(gdb.string_to_argv(argument))
    except gdb.error as error:
        raise gdb.GdbError(f"leaks: {error}") from None


def completions(command: str, text: str, word: Optional[str]) -> Any:
    """What may stand for the last word of `text`. GDB splits words at punctuation too, and replaces only the part behind it."""
    if word is None:  # GDB asks where the last word begins; its default is what the next call is made for
        return None
    from findleaks import commands

    *before, last = text.split(" ")
    before = [command, *filter(None, before)]
    found = commands.complete(before, last)
    if found:
        kept = len(last) - len(word) if last.endswith(word) else 0
        return [choice[kept:] for choice in found]
    if last.startswith("-"):
        return gdb.COMPLETE_NONE
    if before[-1] in ("--suppressions", "-suppressions"):
        return gdb.COMPLETE_FILENAME
    cmd = commands.named(command)
    return gdb.COMPLETE_EXPRESSION if cmd is not None and cmd.positional else gdb.COMPLETE_NONE


def width() -> int:
    """Columns for text output: GDB's setting. Where it is unlimited (`set width 0`, and always with -batch), as everywhere else; the
    variable COLUMNS says nothing, as GDB itself sets it."""
    wanted = gdb.parameter("width")
    return terminal_columns(str(wanted) if isinstance(wanted, int) else "")


def register() -> Door:
    """Add the commands to this GDB."""
    return Door()
