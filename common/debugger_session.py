"""What the GDB and LLDB front ends share: they run commands, with a session per stopped process."""

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
RUNNING = "the process is running: stop it first"


class Subject(NamedTuple):
    """A process or core. Its session is valid as long as `owner` and `state` are the same."""

    owner: Hashable  # the debugger's inferior
    state: Hashable  # identifies a core's file, or a process's stop
    live: bool
    open: Callable[[], Target]
    reports_writes: bool = True  # the user's writes change `state` or call `drop_live`


class Debugger(Protocol):
    """What a front end must provide."""

    def subject(self) -> Subject:
        """What the user has selected. TargetError if there is nothing, or if it runs."""
        ...

    def evaluate(self, expression: str) -> int:
        """An expression in the debugger's language as an address. UsageError says why not."""
        ...


class DebuggerSession:
    """Runs the commands of one debugger, and owns all state that outlives a command."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._sessions: dict[Hashable, tuple[Subject, Session]] = {}
        self._kept: dict[str, object] = {}  # snapshots by name, which outlive their sessions
        self._bar: Optional[Bar] = None
        # Session of the running command, closed after it even if the process changes meanwhile.
        self._used: Optional[Session] = None

    def kept_names(self) -> list[str]:
        """The names of the snapshots that were taken here."""
        return list(self._kept)

    def run(self, words: Sequence[str], out: TextIO, width: int, prog: str = "leaks", target: str = "") -> int:
        """Run one command line and print its result to `out`; returns the exit status. `target`:
        the words that name the process in a shell ("" in a debugger). Whatever goes wrong,
        FindleaksError has one line for the user; Interrupted is Ctrl-C."""
        from findleaks.commands import execute

        bar = self._bar = _bar()
        try:
            entry = CATALOGUE.get(words[0]) if words else None
            fresh = entry is not None and entry.rereads
            return execute(lambda: self.session(fresh), self._with_values(words), out, prog=prog, target=target, width=width)
        except (Interrupted, KeyboardInterrupt):
            # Ctrl-C can interrupt anywhere, so what is half done cannot be trusted.
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
            if is_interruption(error):
                self.drop()
                raise Interrupted from None
            raise FindleaksError(unexpected(prog, words, error)) from error
        finally:
            if bar is not None:
                bar.clear()
            used, self._used = self._used, None
            if used is not None and not any(session is used for _, session in self._sessions.values()):
                used.close()

    def session(self, fresh: bool = False) -> Session:
        """The session of what the user has selected; a new one if none is valid. `fresh` also
        replaces one that may have missed a change by the user. Commands that users repeat after a
        change ask for this (Entry.rereads); the other ones refer to what these showed."""
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
        """Close the session of one inferior, or of all."""
        for key in list(self._sessions) if owner is None else [owner]:
            kept = self._sessions.pop(key, None)
            if kept is not None and kept[1] is not self._used:
                kept[1].close()

    def drop_live(self) -> None:
        """Close live processes' sessions: one ran, or the user changed it. Cores keep theirs."""
        for key, (subject, _) in list(self._sessions.items()):
            if subject.live:
                self.drop(key)

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """The words, with the debugger's expressions (`$rsp`, `&main_arena`) replaced by values."""
        from findleaks.commands import named, parser

        cmd = named(words[0]) if words else None
        if cmd is not None and cmd.subject:  # a name is left as it is
            return [self._name_or_address(word) for word in words]
        if cmd is None or not cmd.positional or any(word in HELP[1:] for word in words[1:]):
            return list(words)
        made = parser(cmd, "leaks")
        valued = {option for action in made._actions if action.nargs != 0 for option in action.option_strings}
        before, expressions = _split_options(words[1:], valued)
        return [words[0], *before, *self._addresses(expressions)]

    def _name_or_address(self, word: str) -> str:
        """An expression's value, or the word itself if it has none: `(anonymous namespace)::cache`
        is a name, `(char *)p` is not."""
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
            try:  # one expression written with spaces: `leaks whatis p + 8`
                return [hex(self._debugger.evaluate(" ".join(expressions)))]
            except UsageError:
                raise error from None


def _bar() -> Optional[Bar]:
    """Progress bar on the real stderr, past the pager. None in editors (TERM unset or "dumb")."""
    from findleaks.progress import Bar

    return Bar(sys.__stderr__) if sys.__stderr__ is not None and os.environ.get("TERM", "dumb") != "dumb" else None


def _split_options(words: Sequence[str], valued: set[str]) -> tuple[list[str], list[str]]:
    """The options with their values, and the other words. `valued`: options that take a value."""
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


def words_of_find(words: Sequence[str]) -> list[str]:
    """Arguments of `findleaks`, with `find` in front unless they begin with a command's name."""
    return list(words) if words and (words[0][:1] != "-" or words[0] in HELP) else ["find", *words]


def failure(prog: str, word: str, status: int) -> str:
    """Error message for scripts, where a command printed its result but has a nonzero status."""
    why = "the question could not be answered"
    if status == 1:
        why = CATALOGUE[word].failed
    return f"{prog} {word}: {why} (status {status})"


def core_subject(
    owner: Hashable, path: str, exe: str, sysroot: str, remedy: str, with_sources: Callable[[ImageTarget], ImageTarget]
) -> Subject:
    """A core that a debugger has loaded from the file `path`; see `open_core` for the rest.
    `with_sources` returns the target, which will ask the debugger about sources."""

    def opened() -> Target:
        from findleaks.target.core import open_core

        return with_sources(open_core(path, exe=exe, sysroot=sysroot, remedy=remedy))

    return Subject(owner, ("core", file_state(path), exe, sysroot), False, opened)


def file_state(path: str) -> Hashable:
    """Identity of a file, which changes when it is replaced or written to."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise TargetError(f"{path}: {os.strerror(error.errno or 0).lower()}: the debugger's core file is gone") from None
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def held_by(pid: int, debugger: int) -> bool:
    """Whether process `pid` here is traced by process `debugger` or a descendant of it. If the
    debugger's process is on another machine, its pid is unused here, or of an unrelated process."""
    from findleaks.target.ptrace import status

    tracer = int(status(pid).get("TracerPid", 0))
    for _ in range(8):
        found = status(tracer) if tracer > 1 else {}
        if found.get("Tgid") == str(debugger):
            return True
        tracer = int(found.get("PPid", 0))
    return False


def unexpected(prog: str, words: Sequence[str], error: BaseException) -> str:
    """One line about an internal error, with the place where it happened: enough for a report. If
    the system has no more file descriptors, a line that says so."""
    import traceback  # not needed for loading into a debugger

    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{' '.join([prog, *words[:1]])}: too many open files: raise the limit (ulimit -n), or close other programs"
    at = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if "findleaks" in frame.f_globals.get("__name__", ""):
            at = f" ({os.path.basename(frame.f_code.co_filename)}:{line})"
    command = " ".join([prog, *words[:1]])
    return f"{command}: internal error, report it: {type(error).__name__}: {' '.join(str(error).split())}{at}"
