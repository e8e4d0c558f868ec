"""What the GDB and LLDB front ends share: from a command line to its output, one session per stopped process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol, TextIO

from findleaks.errors import FindleaksError, Interrupted, TargetError, UsageError

if TYPE_CHECKING:
    from findleaks.progress import Bar
    from findleaks.session import Session
    from findleaks.target.base import Target

HELP = ("help", "-h", "--help", "-help")
NO_PROCESS = "no process or core: start or attach to a process, or load a core file, and try again"
RUNNING = "the process is running: stop it first"


class Subject(NamedTuple):
    """The process or core that a command is about. While `owner` and `state` stay the same, what was computed of it holds."""

    owner: Hashable  # the debugger's inferior
    state: Hashable  # of a core, which file; of a process, which stop
    live: bool
    open: Callable[[], Target]
    told: bool = True  # whether `state` changes, or `drop_live` is called, also when the user writes to its memory or registers


class Debugger(Protocol):
    """What a front end knows that the others do not."""

    def subject(self) -> Subject:
        """What the user has selected; TargetError when there is nothing, or when it runs."""
        ...

    def evaluate(self, expression: str) -> int:
        """An expression of the debugger's language as an address; UsageError says in one line why it is none."""
        ...


class Front:
    """Runs the commands of one debugger. Everything that outlives a command is kept here."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._sessions: dict[Hashable, tuple[Subject, Session]] = {}
        self._bar: Optional[Bar] = None
        self._used: Optional[Session] = None  # by the command that runs: it is closed after it, whatever the process does meanwhile

    def run(self, words: Sequence[str], out: TextIO, width: int, prog: str = "leaks", target: str = "") -> int:
        """Run one command line and print what it found to `out`; returns the status it asks for. `target` are the words that name the
        process to a shell, where the user is at one.

        Raises FindleaksError with one line for the user, whatever went wrong; Interrupted when it was Ctrl-C.
        """
        from findleaks.commands import execute

        bar = self._bar = _bar()
        try:
            fresh = words[:1] == ["find"]
            return execute(lambda: self.session(fresh), self._evaluated(words), out, prog=prog, target=target, width=width)
        except (Interrupted, KeyboardInterrupt):
            # An interrupt may strike anywhere: what is half done is not to be trusted.
            self.drop()
            raise Interrupted from None
        except FindleaksError:
            raise
        except RecursionError as error:
            raise FindleaksError(unexpected(prog, words, error)) from None
        except MemoryError:
            self.drop()
            raise FindleaksError(f"{prog}: out of memory: run findleaks outside of the debugger, or on a machine with more") from None
        except Exception as error:
            raise FindleaksError(unexpected(prog, words, error)) from error
        finally:
            if bar is not None:
                bar.clear()
            used, self._used = self._used, None
            if used is not None and not any(session is used for _, session in self._sessions.values()):
                used.close()

    def session(self, fresh: bool = False) -> Session:
        """The session of what the user has selected, made when there is none that still holds.

        With `fresh`, one that may not hold is made anew too: `find` is what users repeat after a change, and the other commands
        speak of what it showed.
        """
        from findleaks.session import Session

        subject = self._debugger.subject()
        kept = self._sessions.get(subject.owner)
        if kept is not None and kept[0].state == subject.state and (subject.told or not fresh):
            session = kept[1]
        else:
            self.drop(subject.owner)
            session = Session(subject.open())
            self._sessions[subject.owner] = (subject, session)
        session.progress = self._bar
        self._used = session
        return session

    def drop(self, owner: Optional[Hashable] = None) -> None:
        """Forget what was computed of one inferior, or of all."""
        for key in list(self._sessions) if owner is None else [owner]:
            kept = self._sessions.pop(key, None)
            if kept is not None and kept[1] is not self._used:
                kept[1].close()

    def drop_live(self) -> None:
        """Some process ran, or was changed by its user: forget what was computed of any. Cores stay as they are."""
        for key, (subject, _) in list(self._sessions.items()):
            if subject.live:
                self.drop(key)

    def _evaluated(self, words: Sequence[str]) -> list[str]:
        """The words with the debugger's expressions (`$rsp`, `&main_arena`) replaced by the addresses they stand for."""
        from findleaks.commands import named, parser

        cmd = named(words[0]) if words else None
        if cmd is not None and cmd.subject:  # a name stays a name
            return [self._name_or_address(word) for word in words]
        if cmd is None or not cmd.positional or any(word in HELP[1:] for word in words[1:]):
            return list(words)
        made = parser(cmd, "leaks")
        valued = {option for action in made._actions if action.nargs != 0 for option in action.option_strings}
        before, expressions = _separate(words[1:], valued)
        return [words[0], *before, *self._addresses(expressions)]

    def _name_or_address(self, word: str) -> str:
        """An expression's value, or the word itself where it has none: `(anonymous namespace)::cache` is a name, `(char *)p` is not."""
        if word[:1] not in ("$", "&", "*", "("):
            return word
        try:
            return hex(self._debugger.evaluate(word))
        except UsageError:
            return word

    def _addresses(self, expressions: Sequence[str]) -> list[str]:
        try:
            return [word if _plain(word) else hex(self._debugger.evaluate(word)) for word in expressions]
        except UsageError as error:
            if len(expressions) < 2:
                raise
            try:  # one expression written with spaces: `leaks whatis p + 8`
                return [hex(self._debugger.evaluate(" ".join(expressions)))]
            except UsageError:
                raise error from None


def _bar() -> Optional[Bar]:
    """Progress on the real standard error, as a debugger's own stream would count the line for its pager. None in an editor's window."""
    from findleaks.progress import Bar

    return Bar(sys.__stderr__) if sys.__stderr__ is not None and os.environ.get("TERM", "dumb") != "dumb" else None


def _separate(words: Sequence[str], valued: set[str]) -> tuple[list[str], list[str]]:
    """Options with their values, and the other words. `valued` are the options that take a value."""
    options: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += rest
        elif len(word) > 1 and word[0] == "-" and not _plain(word[1:]):
            options.append(word)
            name = word if word.startswith("--") else "-" + word
            if name in valued or word in valued:
                options += [value for value in [next(rest, None)] if value is not None]
        else:
            others.append(word)
    return options, others


def _plain(word: str) -> bool:
    """A number as the commands read it."""
    try:
        int(word, 0)
    except ValueError:
        return False
    return True


def words_of_find(words: Sequence[str]) -> list[str]:
    """The command line behind `findleaks`: one that begins with a command's word, or else `find` with these options."""
    return list(words) if words and (words[0][:1] != "-" or words[0] in HELP) else ["find", *words]


def failure(prog: str, word: str, status: int) -> str:
    """Why a command whose result is printed is still an error to scripts."""
    why = "the question could not be answered"
    if status == 1:
        why = "the heap is corrupt" if word == "verify" else "more is lost than --fail-over allows"
    return f"{prog} {word}: {why} (status {status})"


def file_state(path: str) -> Hashable:
    """Changes when the file is replaced or written to."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise TargetError(f"{path}: {os.strerror(error.errno or 0).lower()}: the debugger's core file is gone") from None
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def held_by(pid: int, debugger: int) -> bool:
    """Whether the process `pid` of this machine is traced by the process `debugger` or a descendant of it.

    A debugger's process may be on another machine; then its pid here names nothing, or somebody else's process.
    """
    tracer = _status(pid, "TracerPid")
    for _ in range(8):
        if tracer <= 1:
            return False
        if _status(tracer, "Tgid") == debugger:
            return True
        tracer = _status(tracer, "PPid")
    return False


def _status(pid: int, field: str) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:  # its name may have \r
            for line in file:
                name, _, value = line.partition(":")
                if name == field:
                    return int(value)
    except (OSError, ValueError):
        pass
    return 0


def unexpected(prog: str, words: Sequence[str], error: BaseException) -> str:
    """One line on an error of ours, with the place it happened at: enough for a report."""
    at, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "findleaks" in trace.tb_frame.f_globals.get("__name__", ""):
            at = f" ({os.path.basename(code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    command = " ".join([prog, *words[:1]])
    return f"{command}: a mistake in findleaks, please report it: {type(error).__name__}: {' '.join(str(error).split())}{at}"
