"""The command line: `findleaks WORD [options] CORE` or `--pid PID`."""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import io
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Optional, cast

from findleaks import __version__
from findleaks.arg_types import is_number
from findleaks.catalogue import CATALOGUE, FRONT, SETUP, Entry, Opens, suggest_word
from findleaks.errors import FindleaksError, Interrupted, TargetError, UsageError, is_interruption
from findleaks.escaping import visible
from findleaks.quoting import shell_quoted
from findleaks.report.columns import terminal_columns
from findleaks.report.encoding import HANDLER, install
from findleaks.startup import repeat_interrupt, restore_process

if TYPE_CHECKING:
    from findleaks import commands
    from findleaks.commands import Command, Invocation, Result
    from findleaks.session import Progress, Session
    from findleaks.target.base import Target

TROUBLE = 2
INTERRUPTED = 130  # exit statuses: TROUBLE after an error, INTERRUPTED after Ctrl-C
DEFAULT = "verdict"  # the default command, which `findleaks core` and `findleaks --pid 4711` run

FRONT_HELP = (
    "COMMAND takes a core file, or --pid and a process id or name: `findleaks find core`. Without COMMAND, findleaks runs `verdict`. Also:"
)


def run() -> NoReturn:
    """Run the command of sys.argv, and end the process with its exit status.

    The process ends by os._exit(). A normal exit of Python first frees every object, which takes
    longer than many commands."""
    restore_process()
    status = main()
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit status: 0, 1 (--fail-over, corruption), 2 (error), 130
    (Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    closed = _open_standard_streams()
    install()
    sys.unraisablehook = repeat_interrupt
    # With Python's default of 700, `find` would take 10 % longer on a large Python process.
    gc.set_threshold(50_000)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)
    try:
        if closed:
            raise FindleaksError("cannot write the output: standard output is closed")
        status = _run(words, _program() if argv is None else "findleaks")
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`). End without a message, as other tools do.
        _drop_output()
        return 141
    except (KeyboardInterrupt, Interrupted):
        return _print_error("interrupted", INTERRUPTED)
    except MemoryError:
        return _print_error("out of memory: close other programs, or use a machine with more memory")
    except FindleaksError as error:
        return _print_error(str(error))
    except Exception as error:
        if is_interruption(error):
            return _print_error("interrupted", INTERRUPTED)
        if isinstance(error, OSError) and _output_fails(error):
            _drop_output()
            return _print_error(f"cannot write the output: {os.strerror(error.errno or errno.EIO).lower()}")
        from findleaks.debugger_session import describe_internal_error

        return _print_error(describe_internal_error("findleaks", words, error))


def _open_standard_streams() -> bool:
    """If some of the descriptors 0 to 2 are closed, open /dev/null for them, so that other files do
    not get these numbers. Returns whether standard output was closed (`>&-`); in this case
    sys.stdout is None."""
    closed = sys.stdout is None
    if not os.access(os.devnull, os.R_OK | os.W_OK):
        return closed  # A file system without devices, as in a bare chroot.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    return closed


def _output_fails(error: OSError) -> bool:
    """Whether writing to standard output failed. Text that was not written stays buffered, and
    writing it fails again."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return True
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Redirect standard output to /dev/null. Otherwise the interpreter's last flush would fail
    again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str], prog: str) -> int:
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        return _help()
    if words[0] in ("-V", "--version"):
        return _version()
    if words[0] in SETUP:
        from findleaks.setup_commands import run_setup

        return run_setup(words[0], words[1:], sys.stdout, _width())
    if words[0] in FRONT and words[1:] in (["-h"], ["--help"], ["--help-all"]):
        from findleaks.setup_commands import debugger_parser

        sys.stdout.write(debugger_parser(words[0]).format_help())
        return 0
    if words[0] in FRONT:
        from findleaks.launcher import start_debugger

        start_debugger(words[0], words[1:])
    return _command(words, prog)


def _version() -> int:
    from findleaks.engine.load import missing_native

    print(f"findleaks {__version__}" + (f" ({why})" if (why := missing_native()) else ""))
    return 0


def _program() -> str:
    """Return the words that call findleaks again: `findleaks` if the shell finds it, else the words
    that the user typed."""
    typed = sys.argv[0]
    if os.path.basename(typed) == "__main__.py":
        return f"{shell_quoted(sys.executable)} -m findleaks"
    if typed.endswith(".py"):
        return f"{shell_quoted(sys.executable)} {shell_quoted(typed)}"
    places = (os.path.join(folder, "findleaks") for folder in os.environ.get("PATH", os.defpath).split(os.pathsep))
    found = next((path for path in places if os.path.isfile(path) and os.access(path, os.X_OK)), "")
    return "findleaks" if found and os.path.realpath(found) == os.path.realpath(typed) else shell_quoted(typed)


def _command(words: list[str], prog: str) -> int:
    from findleaks import commands

    if words[0] not in CATALOGUE:
        if not words[0].startswith("-") and not os.path.exists(words[0]):
            raise UsageError(_describe_unknown(words[0]))
        words = [DEFAULT, *words]
    cmd = commands.load(words[0])
    args = commands.parse(command_parser(cmd), words[1:])
    if args is None:
        return 0
    if cmd.entry.live and args.pid is None and args.core is None:
        raise UsageError(f"{cmd.name} needs a running process: --pid PID")
    if cmd.check is not None:
        cmd.check(args)
    if cmd.in_shell is not None:
        return cmd.in_shell(args, _Shell(args, prog))
    core = _subject_and_core(args, cmd.subject) if cmd.subject else _core_word(args, cmd.positional)
    live, opens = args.pid is not None, cmd.entry.opens
    if live and opens is Opens.DEBUGGED:
        from findleaks.gdb_subprocess import drop_pid_option, run_in_gdb

        return run_in_gdb(args.pid, [cmd.name, *drop_pid_option(words[1:])], _width())
    invocation = commands.Invocation(prog, _process_words(args, core))
    if live and opens is Opens.REPEATED and not args.json and _has_screen():
        return _on_screen(cmd, args, invocation)
    return _on_session(cmd, args, core, invocation)


def command_parser(cmd: Command) -> commands.Parser:
    """Return the parser of a command, with the options that name the process or the core."""
    from findleaks import commands

    made = commands.parser(cmd, "findleaks", sys.stdout, cmd.entry.target)
    _add_target(made.add_argument_group("the process"), cmd.entry)
    return made


def _on_session(cmd: Command, args: argparse.Namespace, core: str, invocation: Invocation) -> int:
    """Open the core or the process, and run the command on it."""
    from findleaks import commands
    from findleaks.progress import Bar
    from findleaks.session.host import LiveHost

    bar = Bar(sys.stderr)
    if cmd.entry.opens is Opens.REPEATED:
        bar.off()
    is_running = args.pid is not None and cmd.entry.opens is Opens.RUNNING
    try:
        with closing(_running(args.pid) if is_running else _open(args, core, bar)) as session:
            if args.pid is not None:
                session.host = LiveHost(lambda: _open(args, core, bar))
            return commands.emit(cmd, session, args, sys.stdout, invocation, _width())
    except (KeyboardInterrupt, Interrupted):
        if not getattr(args, "every", 0):
            raise
        return 0  # Ctrl-C is the normal end of a command that repeats until then.
    finally:
        bar.clear()


class _Shell:
    """Implements commands.Shell on the command line, for commands that open several targets."""

    def __init__(self, args: argparse.Namespace, prog: str) -> None:
        self.out, self.width = sys.stdout, _width()
        self._args, self._prog = args, prog

    def open(self, core: str, progress: Progress) -> Session:
        return _open(self._args, core, progress)

    def invocation(self, core: Optional[str]) -> Invocation:
        from findleaks.commands import Invocation

        return Invocation(self._prog, "" if core is None else _process_words(self._args, core))


def _add_target(group: argparse._ArgumentGroup, entry: Entry) -> None:
    """Add the options that name what the command reads. A command for live processes also accepts a
    core, but its help does not list it. With a core, the command prints what to do instead."""
    from findleaks.commands.options import add_sysroot

    def for_cores(text: str) -> str:
        return argparse.SUPPRESS if entry.live else text

    if entry.opens is not Opens.CORES:
        if entry.opens is not Opens.SAMPLES:
            group.add_argument("core", nargs="?", help=for_cores("the core file, before or after the addresses"))
        stopped = "" if entry.live else "; it is stopped while it is read, then resumed"
        group.add_argument("--pid", type=_process, metavar="PID|NAME", help=f"a live process{stopped}")
        program = "the program that dumped the core, if the path recorded in the core is wrong"
        group.add_argument("--exe", default="", metavar="FILE", help=for_cores(program))
    add_sysroot(group, hidden=entry.live)


def _has_screen() -> bool:
    # Only `watch` needs this, so it is imported here.
    from findleaks.report.screen import has_screen

    return has_screen(sys.stdout)


def _on_screen(cmd: Command, args: argparse.Namespace, invocation: Invocation) -> int:
    """Run `watch` on a terminal. Each result is drawn over the preceding one, until `q` or
    Ctrl-C."""
    from findleaks.commands import safe_lines
    from findleaks.report.screen import Screen
    from findleaks.session.host import LiveHost

    last: Optional[Result] = None
    with suppress(KeyboardInterrupt, Interrupted), Screen(sys.stdin, sys.stdout) as screen:
        screen.show(lambda width: [f"findleaks: reading pid {args.pid} …"])
        with closing(_open(args, "", screen)) as session:
            session.host = LiveHost(lambda: _open(args, "", screen), screen.wait)
            for last in cast("Generator[Result, None, None]", cmd.run(session, args)):
                screen.show(partial(safe_lines, last, invocation))
    if last is not None:
        sys.stdout.writelines(line + "\n" for line in safe_lines(last, invocation, _width()))
    return 0


def _describe_unknown(word: str) -> str:
    words = [*CATALOGUE, *FRONT, *SETUP]
    return f"no command and no file {word!r}" + (suggest_word(word, words) or f"; the commands are: {', '.join(words)}")


def _process(word: str) -> int:
    """Return the process id for --pid. `word`: a number, or a name that exactly one process has."""
    from findleaks.target.processes import find_process

    return find_process(word)


def _process_words(args: argparse.Namespace, core: str) -> str:
    """Return the words that name this process or core, quoted for a shell."""
    if args.pid is not None:
        return f"--pid {args.pid}"
    words = [word for option in (("--exe", args.exe), ("--sysroot", args.sysroot)) if option[1] for word in option]
    return " ".join(map(shell_quoted, [*words, core]))


def _subject_and_core(args: argparse.Namespace, subject: str) -> str:
    """Return the name of the core; "" with --pid. Of two words, the core is the one that is a file.
    The other word stays in `args`."""
    words = [word for word in (getattr(args, subject), args.core) if word is not None]
    files = [word for word in words if os.path.isfile(word) and not is_number(word)]
    core = _one_core(args, [] if args.pid is not None and len(words) == 1 else (files or words)[-1:])
    if core:
        words.remove(core)
    setattr(args, subject, words[0] if words else None)
    return core


def _core_word(args: argparse.Namespace, positional: str) -> str:
    """Return the name of the core; "" with --pid. Among addresses, the core is the word that is not
    a number."""
    words = [] if args.core is None else [args.core]
    if positional:
        given = getattr(args, positional)
        many = isinstance(given, list)
        words = [*(given if many else [given]), *words]
        numbers = [word for word in words if is_number(word)]
        words = [word for word in words if not is_number(word)]
        if not numbers:
            raise UsageError(f"{words[0]!r} is not an address: write 0x and hexadecimal digits")
        if not many and len(numbers) > 1:
            raise UsageError(f"expected one address, got {len(numbers)}")
        setattr(args, positional, numbers if many else numbers[0])
    return _one_core(args, words)


def _one_core(args: argparse.Namespace, words: list[str]) -> str:
    """Return the only word; "" with --pid, which allows no word."""
    if len(words) > 1:
        raise UsageError(f"expected one core file, got {len(words)}: {' '.join(words)}")
    if not any(words) and args.pid is None:
        raise UsageError("name a core file, or --pid PID")
    if words and args.pid is not None:
        raise UsageError("a core file or --pid, not both")
    return words[0] if words else ""


def _open(args: argparse.Namespace, core: str, progress: Progress) -> Session:
    from findleaks.session import Session

    for option, path, right, kind in (("--exe", args.exe, os.path.isfile, "file"), ("--sysroot", args.sysroot, os.path.isdir, "directory")):
        if path and not right(path):
            raise TargetError(f"{option} {path}: " + (f"not a {kind}" if os.path.exists(path) else f"no such {kind}"))
    if core.isdigit() and not os.path.exists(core):
        raise TargetError(f"{core}: no such file; for the process of this number: --pid {core}")
    target: Target
    if not core:
        target = _attach(args, progress)
    else:
        from findleaks.target.core import open_core

        target = open_core(core, exe=args.exe, sysroot=args.sysroot, progress=progress)
    return Session(target, progress=progress)


def _running(pid: int) -> Session:
    """Open a live process as a target, without stopping it."""
    from findleaks.session import Session
    from findleaks.target.live import LiveTarget
    from findleaks.target.ptrace import explain_refusal, status

    if status(pid).get("TracerPid", "0") != "0":
        raise TargetError(explain_refusal(pid))
    return Session(LiveTarget(pid))


def _attach(args: argparse.Namespace, progress: Progress) -> Target:
    """Return a copy of the live process. With --fork, it is a copy of the process's clone."""
    if getattr(args, "fork", False):
        from findleaks.injection.forked import fork

        return fork(args.pid, lambda part: progress("copying a clone of the process", part))
    from findleaks.target.copied import attach

    return attach(args.pid, lambda part: progress("making space for a copy", part))


def _width() -> int:
    return terminal_columns(os.environ.get("COLUMNS", ""))


def _help() -> int:
    import textwrap  # imported here: few calls print the list of commands

    from findleaks import commands
    from findleaks.formatting import hanging

    width = _width()
    version = "print the version, and whether the C engine is in use"
    others = {**{f"{word} …": summary for word, summary in FRONT.items()}, **SETUP, "-V": version}
    lines = (line for word, summary in others.items() for line in hanging(f"  {word:10}  ", summary, width))
    print(commands.overview("findleaks", width), *textwrap.wrap(FRONT_HELP, width), "", *lines, sep="\n")
    return 0


def _print_error(text: str, status: int = TROUBLE) -> int:
    sys.stdout.flush()
    print(visible(text if text.startswith("findleaks") else f"findleaks: {text}"), file=sys.stderr)
    return status
