"""Run commands on one damaged core in a separate process, and report their faults.

These are faults: a crash; a traceback ("internal error" to a user); more than ten times the processor time, or several times the memory, of
the sound core; a control character or active markup in the output; invalid JSON; an opened file that is not a regular one; a started
process.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pkgutil
import random
import resource
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Optional

import fuzz_outputs

import findleaks
from findleaks import cli, debugger_session
from findleaks.commands import triage
from findleaks.debuginfo.elftools_loader import load_elftools
from findleaks.disasm.capstone_loader import load_capstone
from findleaks.engine.native import library
from findleaks.errors import FindleaksError
from findleaks.session import Session
from findleaks.target import separate
from findleaks.target.core import open_core
from findleaks.triage import examine

TIMES = 10
"""The limit of processor time, as a multiple of the time that the command takes on the sound core."""
FLOOR, HANGS = 3, 30
"""Processor seconds that each core may take in any case; and the limit until the time of the sound core is known."""
MEMORY = 4
SPARE = 128 << 20
"""The limit of memory: a multiple of the memory that the command takes on the sound core, and additional bytes."""
LITTLE, MUCH = 192 << 20, 2 << 30
"""Bytes of memory that each core may take in any case; and the limit until the memory for the sound core is known."""
SANITIZED = os.environ.get("FINDLEAKS_TEST_KERNEL", "")
"""The C engine built with sanitizers, which need additional time and memory; "" for the usual one."""
SLOWER = 6
PATIENCE = 600.0
"""Seconds of wall time after which a command is considered to wait forever."""
NAMED = "NAMED"
"""A placeholder for an address in a command."""

COMMANDS: Mapping[str, int] = {
    "find": 6,
    "find --json": 3,
    "find --by type": 1,
    "find --by site": 2,
    "find -o PAGE.html": 1,
    "find -o PAGE.heap": 1,
    "find -o PAGE.csv": 1,
    "blocks --json": 4,
    "blocks --kind lost --sort size": 1,
    "blocks -o PAGE.csv": 1,
    "blocks -o PAGE.sqlite": 1,
    "blocks -o PAGE.speedscope.json": 1,
    "caches": 3,
    "caches --by-arena --json": 2,
    "caches --by-thread": 2,
    "caches --sites --json": 1,
    f"whatis {NAMED} {NAMED} {NAMED} {NAMED}": 4,
    f"whatis --json {NAMED} {NAMED} {NAMED} {NAMED}": 1,
    f"refs {NAMED}": 2,
    f"path {NAMED}": 2,
    "roots": 3,
    "roots --json --depth 6": 2,
    "roots --lost": 2,
    "roots -o PAGE.pb.gz": 1,
    "roots -o PAGE.folded": 1,
    "verify": 3,
    "verify --json": 2,
    "map": 1,
    "map -o PAGE.html": 2,
    "map -o PAGE.svg": 1,
    "map --json": 1,
    "verdict": 3,
    "verdict --json": 2,
    "runtime": 4,
    "runtime --json --by package": 2,
    "scopes": 2,
    "scopes --json": 1,
    "stacks": 3,
    "stacks --json": 1,
    "stacks --folded": 1,
    "stacks -o PAGE.pb.gz": 1,
    "stacks -o PAGE.html": 1,
    "snapshot -o PAGE.snapshot": 2,
    "diff PAGE.clean CORE": 1,
    "diff --json PAGE.clean CORE": 1,
    "diff -o PAGE.html PAGE.clean CORE": 1,
    "diff --json SOUND CORE": 1,
    "diff CORE SOUND": 1,
    "triage": 1,
    "triage --json -o PAGE.html -o PAGE.rows.sqlite": 3,
}
"""Commands, and how often each is run for 100 cores. PAGE is the path of the damaged file, CORE the core (appended if it is not named),
SOUND the undamaged one."""

OF_SAVED: Mapping[str, Mapping[str, int]] = {
    "snapshot": {
        "diff PAGE CORE": 2,
        "diff CORE PAGE": 1,
        "diff --json PAGE CORE": 2,
        "diff -o PAGE.html PAGE CORE": 2,
        "diff --by survivors PAGE CORE": 2,
        "diff -o PAGE.pb.gz PAGE CORE": 1,
    },
    "triage": {"triage --baseline PAGE": 2, "triage --json --baseline PAGE": 1, "triage --resume -o PAGE -o PAGE.html": 4},
    "map": {
        "map --residency PAGE": 2,
        "map --json --residency PAGE": 2,
        "verdict --residency PAGE": 1,
        "map -o PAGE.html --residency PAGE": 1,
    },
}
"""The same for damaged files that findleaks saved."""


class Asked(NamedTuple):
    """The values for CORE, PAGE and SOUND in COMMANDS, and arguments for all commands."""

    core: Path
    page: Path
    sound: Path
    more: Sequence[str] = ()

    def line(self, words: Sequence[str]) -> list[str]:
        made = [{"CORE": str(self.core), "SOUND": str(self.sound)}.get(word, word.replace("PAGE", str(self.page))) for word in words]
        return [*made, *self.more, *([] if "CORE" in words else [str(self.core)])]


class Limits(NamedTuple):
    """Limits of commands: processor seconds, and bytes of resident memory."""

    seconds: float
    memory: int


class Outcome(NamedTuple):
    """`problem` is "" if there is none; `seconds` of processor time; `memory`: maximum of resident bytes."""

    problem: str
    seconds: float
    memory: int


def import_all() -> None:
    """Import all modules of findleaks, so that forked processes do not have to."""
    for module in pkgutil.walk_packages(findleaks.__path__, "findleaks."):
        if not module.name.startswith(("findleaks.gdb", "findleaks.lldb", "findleaks.__main__")):
            with suppress(ImportError):
                import_module(module.name)
    if SANITIZED:
        library.LIBRARY = SANITIZED
        os.__dict__.pop("RTLD_DEEPBIND", None)  # capstone would load its library with this flag, which AddressSanitizer refuses
    separate.FOLDERS = ()  # the libraries' debug information is always the same, and takes half of the time
    load_elftools()
    load_capstone()
    gc.collect()
    gc.freeze()  # otherwise each child copies the pages of the objects that its garbage collections visit


def choose_commands(rng: random.Random, addresses: Sequence[int], count: int, commands: Mapping[str, int] = COMMANDS) -> list[list[str]]:
    """Return some commands, chosen at random."""
    lines = rng.choices(list(commands), list(commands.values()), k=count)
    return [insert_addresses(line, rng, addresses) for line in lines]


def insert_addresses(line: str, rng: random.Random, addresses: Sequence[int]) -> list[str]:
    """Return a line of COMMANDS as words, with addresses."""
    return [hex(rng.choice(addresses) + rng.choice((0, 0, 0, 1, 8, -8))) if word == NAMED else word for word in line.split()]


def run(asked: Asked, commands: Sequence[Sequence[str]], limits: Optional[Limits] = None) -> Outcome:
    """Run commands on a core, all in one process and in one session."""
    with open(os.memfd_create("problem"), "r+b", buffering=0) as report:
        child = os.fork()
        if child == 0:
            _child(asked, commands, limits, report.fileno())
        status, usage, waited = _wait(child)
        report.seek(0)
        problem = report.read().decode("utf-8", "backslashreplace")
    seconds, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
    if waited:
        problem += f"\nwaits for something: no end after {PATIENCE:.0f} s"
    elif os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        problem += "\n" + (f"hangs: more than {seconds:.1f} s of a processor" if name == "SIGXCPU" else f"crashed: {name}")
    elif os.WEXITSTATUS(status):
        problem += f"\nended with {os.WEXITSTATUS(status)}"
    elif limits and memory > limits.memory:
        problem += f"\ntakes {memory >> 20} MiB, more than {limits.memory >> 20}"
    elif limits and seconds > limits.seconds:
        problem += f"\ntakes {seconds:.1f} s, more than {limits.seconds:.1f}"
    return Outcome(problem.strip(), seconds, memory)


def _wait(child: int) -> tuple[int, resource.struct_rusage, bool]:
    limit = time.monotonic() + PATIENCE
    pause = 0.001
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return status, usage, False
        if time.monotonic() > limit:
            os.kill(child, signal.SIGABRT)  # faulthandler prints the position
            _, status, usage = os.wait4(child, 0)
            return status, usage, True
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _child(asked: Asked, commands: Sequence[Sequence[str]], limits: Optional[Limits], report: int) -> NoReturn:
    status = 1
    try:
        faulthandler.enable(report)
        if limits:
            ceiling = int(limits.seconds) + 1
            faulthandler.register(signal.SIGXCPU, report, chain=True)
            resource.setrlimit(resource.RLIMIT_CPU, (ceiling, ceiling + 5))
            if not SANITIZED:  # AddressSanitizer's shadow memory takes most of the address space
                resource.setrlimit(resource.RLIMIT_AS, (_mapped() + asked.core.stat().st_size * 3 + limits.memory + (1 << 30),) * 2)
        found = _watched(asked, commands)
        os.write(report, found.encode("utf-8", "backslashreplace"))
        status = 0
    except BaseException:
        os.write(report, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(status)


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _watched(asked: Asked, commands: Sequence[Sequence[str]]) -> str:
    """Return the first problem of these commands, "" if there is none."""
    opened: list[str] = []
    sys.addaudithook(_auditor(opened))
    raised: list[str] = []
    kept: list[Session] = []

    def opened_once(args: Any, path: str, progress: Any = None) -> Session:
        if path != str(asked.core):
            return Session(open_core(path), progress=progress)
        if not kept:
            kept.append(Session(open_core(path, sysroot=args.sysroot), progress=progress))
            kept[0].close = lambda: None  # type: ignore[method-assign]
        return kept[0]

    def unexpected(prog: str, words: Sequence[str], error: BaseException) -> str:
        raised.append("".join(traceback.format_exception(type(error), error, error.__traceback__)[-12:]))
        return "internal error"

    def examined(sources: Sequence[examine.Source], limits: Any, waiting: Any) -> Iterator[tuple[examine.Source, Any]]:
        """Examine the core in this process. A defect raises its exception, and is not turned into a row."""
        for source in sources:
            try:
                yield source, examine._of_session(source, opened_once(limits, source.path))
            except FindleaksError as error:
                yield source, examine.make_failure(source, str(error))

    cli._open = opened_once  # type: ignore[assignment]
    triage.examine_all = examined  # type: ignore[assignment]
    debugger_session.describe_internal_error = unexpected
    for words in commands:
        line = asked.line(words)
        made = [Path(word) for before, word in zip(line, line[1:]) if before == "-o" and word != str(asked.page)]
        for path in made:
            path.unlink(missing_ok=True)
        status, out, err = _run(line)
        problem = "".join(raised) or fuzz_outputs.wrong_text(line, status, out, err)
        problem = problem or "".join(fuzz_outputs.wrong_file(path) for path in made if path.exists()) or "".join(opened)
        if problem:
            return f"{' '.join(words)}: {problem}"
    return ""


def _run(words: Sequence[str]) -> tuple[int, bytes, bytes]:
    with open(os.memfd_create("out"), "w+b") as out, open(os.memfd_create("err"), "w+b") as err:
        sys.stdout = open(out.fileno(), "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(err.fileno(), "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        status = cli.main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        return status, *(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (out, err))  # type: ignore[return-value]


_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "socket.connect")


def _auditor(found: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    """Record opened files that are not regular, and started processes. If a file is opened by its descriptor, its path is a number."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], (str, bytes)) and args[0] not in ("/dev/null", b"/dev/null"):
            with suppress(OSError, ValueError):
                mode = os.stat(args[0]).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    found.append(f"opens {args[0]!r}")
        elif event in _STARTS:
            found.append(f"{event} {args!r:.200}")

    return hook


class Reads:
    """The addresses that findleaks reads word by word in a sound core: the data of allocators and runtimes."""

    MOST = 50_000

    def __init__(self) -> None:
        self.found: dict[int, None] = {}

    def of(self, core: Path, commands: Sequence[Sequence[str]]) -> list[int]:
        """Return the addresses that these commands read; run them in this process."""
        from findleaks.target.core import CoreTarget

        word, read = CoreTarget.word, CoreTarget.read

        def noted_word(target: CoreTarget, address: int) -> int:
            self._note(address, 8)
            return word(target, address)

        def noted_read(target: CoreTarget, address: int, size: int) -> bytes:
            self._note(address, size)
            return read(target, address, size)

        CoreTarget.word, CoreTarget.read = noted_word, noted_read  # type: ignore[method-assign]
        try:
            session = Session(open_core(str(core)))
            for words in commands:
                with suppress(FindleaksError), open(os.devnull, "w") as out:
                    from findleaks.commands import execute

                    execute(lambda: session, words, out)
            session.close()
        finally:
            CoreTarget.word, CoreTarget.read = word, read  # type: ignore[method-assign]
        return list(self.found)

    def _note(self, address: int, size: int) -> None:
        if size <= 512 and len(self.found) < self.MOST:
            for at in range(address & -8, address + size, 8):
                self.found[at] = None
