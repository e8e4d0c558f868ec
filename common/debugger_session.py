"""The common part of the GDB and LLDB front ends. It runs commands, with one session for each
stopped process."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol, TextIO

from findleaks.catalogue import CATALOGUE
from findleaks.errors import FindleaksError, Interrupted, TargetError, UsageError, is_interruption

if TYPE_CHECKING:
    from findleaks.progress import Bar
    from findleaks.session import Session
    from findleaks.target.base import Target
    from findleaks.target.image_target import ImageTarget

HELP = ("help", "-h", "--help", "-help")
NO_PROCESS = "no process or core: start or attach to a process, or load a core file, and try again"
_TYPE = ("--type", "-type")
RUNNING = "the process is running: stop it first"


class Subject(NamedTuple):
    """A process or core. A session of it is valid as long as `owner` and `state` are unchanged."""

    owner: Hashable  # the debugger's inferior
    state: Hashable  # identifies the file of a core, or one stop of a process
    live: bool
    open: Callable[[], Target]
    reports_writes: bool = True  # whether writes by the user change `state` or call `drop_live`


class Debugger(Protocol):
    """The interface of a front end."""

    def subject(self) -> Subject:
        """Return the process or core that the user has selected.
        Raises TargetError if there is none, or if it is running."""
        ...

    def evaluate(self, expression: str) -> int:
        """Evaluate an expression in the debugger's language as an address.
        Raises UsageError with the reason if that fails."""
        ...


class DebuggerSession:
    """Runs the commands of one debugger, and owns all state that is kept between commands."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._sessions: dict[Hashable, tuple[Subject, Session]] = {}
        # Snapshots by name. They are kept longer than their sessions.
        self._kept: dict[str, object] = {}
        self._bar: Optional[Bar] = None
        # The session of the running command. It is closed at the end of the command, even if the
        # process changes in the meantime.
        self._used: Optional[Session] = None

    def kept_names(self) -> list[str]:
        """Return the names of the snapshots that were taken in this debugger."""
        return list(self._kept)

    def run(self, words: Sequence[str], out: TextIO, width: int, prog: str = "leaks", target: str = "") -> int:
        """Run one command line and print its result to `out`. Returns the exit status.

        `target`: the words that name the process in a shell ("" in a debugger). Raises
        FindleaksError, with one line for the user, for every failure, and Interrupted for
        Ctrl-C."""
        from findleaks.commands import execute

        bar = self._bar = _bar()
        try:
            entry = CATALOGUE.get(words[0]) if words else None
            fresh = entry is not None and entry.rereads
            return execute(lambda: self.session(fresh), self._with_values(words), out, prog=prog, target=target, width=width)
        except (Interrupted, KeyboardInterrupt):
            # Ctrl-C can interrupt at any place, so partial results cannot be trusted.
            self.drop()
            raise Interrupted from None
        except FindleaksError:
            raise
        except RecursionError as error:
            raise FindleaksError(describe_internal_error(prog, words, error)) from None
        except MemoryError:
            self.drop()
            raise FindleaksError(
                f"{prog}: out of memory: run findleaks outside of the debugger, or on a machine with more memory"
            ) from None
        except Exception as error:
            if is_interruption(error):
                self.drop()
                raise Interrupted from None
            raise FindleaksError(describe_internal_error(prog, words, error)) from error
        finally:
            if bar is not None:
                bar.clear()
            used, self._used = self._used, None
            if used is not None and not any(session is used for _, session in self._sessions.values()):
                used.close()

    def session(self, fresh: bool = False) -> Session:
        """Return the session of what the user has selected. A new session is made if none is valid.
        With `fresh`, a session that may have missed a change by the user is also replaced. Commands
        that users repeat after a change set this (Entry.rereads). Other commands use the same
        session as the last of these commands."""
        from findleaks.session import Session
        from findleaks.session.host import DebuggerHost

        subject = self._debugger.subject()
        kept = self._sessions.get(subject.owner)
        if kept is not None and kept[0].state == subject.state and (subject.reports_writes or not fresh):
            session = kept[1]
        else:
            self.drop(subject.owner)
            session = Session(subject.open())
            self._sessions[subject.owner] = (subject, session)
        session.progress, session.host = self._bar, DebuggerHost(self._kept)
        self._used = session
        return session

    def drop(self, owner: Optional[Hashable] = None) -> None:
        """Close the session of one inferior, or all sessions."""
        for key in list(self._sessions) if owner is None else [owner]:
            kept = self._sessions.pop(key, None)
            if kept is not None and kept[1] is not self._used:
                kept[1].close()

    def drop_live(self) -> None:
        """Close the sessions of live processes, after one of them ran or was changed. Sessions of
        cores stay open."""
        for key, (subject, _) in list(self._sessions.items()):
            if subject.live:
                self.drop(key)

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """Return the words. Expressions of the debugger (`$rsp`, `&main_arena`) are replaced by
        their values."""
        from findleaks.commands import find_command, parser

        cmd = find_command(words[0]) if words else None
        if cmd is not None and cmd.subject:  # the word is a name, and is passed unchanged
            return [self._name_or_address(word) for word in self._hints(words)]
        if cmd is None or not cmd.positional or any(word in HELP[1:] for word in words[1:]):
            return [*words[:1], *self._hints(words[1:])]
        words = [words[0], *self._hints(words[1:])]
        made = parser(cmd, "leaks")
        valued = {option for action in made._actions if action.nargs != 0 for option in action.option_strings}
        before, expressions = _split_options(words[1:], valued)
        return [words[0], *before, *self._addresses(expressions)]

    def _hints(self, words: Sequence[str]) -> list[str]:
        """Return the words, with the address in each --type ADDR=TYPE replaced by its value."""
        found: list[str] = []
        for word in words:
            option, equals, value = word.partition("=")
            if equals and option in _TYPE:
                found.append(f"{option}={self._hint(value)}")
            else:
                found.append(self._hint(word) if found and found[-1] in _TYPE else word)
        return found

    def _hint(self, word: str) -> str:
        from findleaks.arg_types import is_number, is_type_hint, split_type_hint

        if not is_type_hint(word):
            return word
        address, name = split_type_hint(word)
        return f"{address if is_number(address) else hex(self._debugger.evaluate(address))}={name}"

    def _name_or_address(self, word: str) -> str:
        """Return the value of an expression; the word itself if it is a name.
        `(anonymous namespace)::cache` is a name, `(char *)p` is an expression."""
        if word[:1] not in ("$", "&", "*", "("):
            return word
        try:
            return hex(self._debugger.evaluate(word))
        except UsageError:
            return word

    def _addresses(self, expressions: Sequence[str]) -> list[str]:
        from findleaks.arg_types import is_number

        try:
            return [word if is_number(word) else hex(self._debugger.evaluate(word)) for word in expressions]
        except UsageError as error:
            if len(expressions) < 2:
                raise
            try:  # one expression that is written with spaces: `leaks whatis p + 8`
                return [hex(self._debugger.evaluate(" ".join(expressions)))]
            except UsageError:
                raise error from None


def _bar() -> Optional[Bar]:
    """Return a progress bar that writes to the real stderr, which the debugger's pager does not
    see.
    Returns None in editors (TERM unset or "dumb")."""
    from findleaks.progress import Bar

    return Bar(sys.__stderr__) if sys.__stderr__ is not None and os.environ.get("TERM", "dumb") != "dumb" else None


def _split_options(words: Sequence[str], valued: set[str]) -> tuple[list[str], list[str]]:
    """Split words into options with their values, and other words. `valued`: the options that take
    a value."""
    from findleaks.arg_types import is_number

    options: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += rest
        elif len(word) > 1 and word[0] == "-" and not is_number(word[1:]):
            options.append(word)
            if word in valued or "-" + word in valued:
                options += islice(rest, 1)
        else:
            others.append(word)
    return options, others


def add_find_word(words: Sequence[str]) -> list[str]:
    """Return arguments for `findleaks`. `find` is added unless the first word is the name of a
    command."""
    return list(words) if words and (words[0][:1] != "-" or words[0] in HELP) else ["find", *words]


def describe_failure(prog: str, word: str, status: int) -> str:
    """Return an error message for scripts about a command that printed its result, but has a
    nonzero status."""
    why = "the command failed, or its result is not reliable"
    if status == 1:
        why = CATALOGUE[word].failed
    return f"{prog} {word}: {why} (status {status})"


def open_core_subject(
    owner: Hashable, path: str, exe: str, sysroot: str, remedy: str, with_sources: Callable[[ImageTarget], ImageTarget]
) -> Subject:
    """Return a core that a debugger has loaded from the file `path`. For the other arguments see
    `open_core`.
    `with_sources` returns a target that asks the debugger for source lines."""

    def open_target() -> Target:
        from findleaks.target.core import open_core

        return with_sources(open_core(path, exe=exe, sysroot=sysroot, remedy=remedy))

    return Subject(owner, ("core", read_file_state(path), exe, sysroot), False, open_target)


def read_file_state(path: str) -> Hashable:
    """Return the identity of a file. It changes when the file is replaced or written to."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise TargetError(
            f"{path}: {os.strerror(error.errno or 0).lower()}: the debugger's core file was removed; load another core"
        ) from None
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def is_traced_by(pid: int, debugger: int) -> bool:
    """Whether process `pid` of this machine is traced by process `debugger` or by a descendant of
    it.
    If the debugger's process is on another machine, its pid does not exist here, or belongs to an
    unrelated process."""
    from findleaks.target.ptrace import status

    tracer = int(status(pid).get("TracerPid", 0))
    for _ in range(8):
        found = status(tracer) if tracer > 1 else {}
        if found.get("Tgid") == str(debugger):
            return True
        tracer = int(found.get("PPid", 0))
    return False


def describe_internal_error(prog: str, words: Sequence[str], error: BaseException) -> str:
    """Return one line about an internal error, with the place where it occurred, for a bug report.
    If the system has no more file descriptors, the line says this instead."""
    import traceback  # loading findleaks into a debugger does not need this

    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{' '.join([prog, *words[:1]])}: too many open files: raise the limit (ulimit -n), or close other programs"
    at = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if "findleaks" in frame.f_globals.get("__name__", ""):
            at = f" ({os.path.basename(frame.f_code.co_filename)}:{line})"
    command = " ".join([prog, *words[:1]])
    return f"{command}: internal error, report it: {type(error).__name__}: {' '.join(str(error).split())}{at}"
