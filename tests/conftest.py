"""What all tests share: helpers importable from tests/support, no folder of ours shadowing a debugger's module, no process left behind."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
ADDR_NO_RANDOMIZE = 0x40000  # linux/personality.h

# The checkout's root, which `python -m pytest` and PYTHONPATH=. put there, has our gdb/ and lldb/.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
SUPPORT = ROOT / "tests" / "support"
sys.path.append(str(SUPPORT))
# What a helper asserts is shown with its values, as in a test itself.
pytest.register_assert_rewrite(*(file.stem for file in SUPPORT.glob("*.py")))

UNTIMED: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""Settings of Hypothesis without time limits, so that tests do not fail on a busy machine."""
settings.register_profile("steady", **UNTIMED, derandomize=True)
settings.register_profile("random", **UNTIMED)
settings.load_profile("steady")

OPEN_FILES = 4096
"""The limit with which tests run, if that of the caller is lower."""

SECONDS_TO_END = float(os.environ.get("FINDLEAKS_TEST_SECONDS_TO_END", "60"))
"""Seconds that processes have to end after the last test, such as a debugger whose parent was killed. On a busy machine, they need some
seconds. If no process is left, the run does not wait."""

LONGEST = {"test_graph_sanitizers.py", "test_graph_threads.py"}
"""Files whose tests take up to a minute each."""

DAYS_KEPT = 7
"""Days for which the output of a compiler is kept after its last use."""

LEFT = pytest.StashKey[dict[int, str]]()
"""Processes that tests of pytest-xdist's workers left running, by pid: their command lines."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="append to this file the CPU seconds that each test takes")


def pytest_configure(config: pytest.Config) -> None:
    _leave_the_callers_ways()
    _refuse_a_stale_library()
    if config.getoption("--hypothesis-profile") != "random":
        _repeat_the_same_draws()
    if path := config.getoption("cpu_times"):
        from cpu_times import CpuTimes

        config.pluginmanager.register(CpuTimes(os.path.abspath(path)))
    # Each test starts Python many times, inside debuggers too: half of such a start is compiling, unless the compiled modules are kept.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    _keep_what_compilers_make(config)
    # Orphans of the processes that tests start become our children, so that we see them at the end.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _keep_what_compilers_make(config: pytest.Config) -> None:
    """Put the folder support/compilers at the front of PATH. Outputs that were not used for DAYS_KEPT days are removed."""
    from debian import cache

    folder = cache() / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["FINDLEAKS_TEST_COMPILED"] = str(folder)
    os.environ["PATH"] = f"{SUPPORT / 'compilers'}:{os.environ['PATH']}"
    if not hasattr(config, "workerinput"):
        for file in folder.iterdir():
            with contextlib.suppress(OSError):  # another run removes it as well
                if file.stat().st_mtime < time.time() - DAYS_KEPT * 86_400:
                    file.unlink()


def _refuse_a_stale_library() -> None:
    """A C engine of other sources than the checkout's is not loaded: each test would use the Python engine, and take ten times as long."""
    from findleaks.engine.load import PURE
    from findleaks.engine.native.library import StaleLibrary, library

    if os.environ.get(PURE) == "1":
        return
    try:
        library()
    except StaleLibrary as error:
        pytest.exit(f"{error}: run make native", pytest.ExitCode.USAGE_ERROR)
    except OSError:
        pass  # none is built


def _repeat_the_same_draws() -> None:
    """Start programs at the same addresses and with the same hash seeds in each run, if the kernel allows this. Then the same words look
    like pointers by chance in each run, and findleaks names the same one of several holders."""
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    os.environ.update(PYTHONHASHSEED="0", PERL_HASH_SEED="0")


def _leave_the_callers_ways() -> None:
    """Undo what the caller's process hands down to every program that a test starts: `nohup make test` ignores SIGHUP, background jobs of
    scripts ignore SIGINT, runners of continuous integration have limits, a umask, no home and a locale of their own."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:  # Python ignores the last two
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES <= hard or hard == resource.RLIM_INFINITY != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    with contextlib.suppress(ValueError, OSError):  # only root may; programs that shall dump core raise the soft limit up to this one
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.RLIM_INFINITY))
    os.umask(0o022)
    # Workers of pytest-xdist have COLUMNS=80, which readline sets in their parent. Without COLUMNS, output into a pipe is not cut.
    for name in [name for name in os.environ if name in ("TZ", "LANG", "LANGUAGE", "COLUMNS", "LINES") or name.startswith("LC_")]:
        del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    time.tzset()
    if not os.access(os.environ.get("HOME", ""), os.W_OK | os.X_OK):
        os.environ["HOME"] = tempfile.mkdtemp(prefix="findleaks-tests-home-")
        atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def shared_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share: what is built in it, is built once (under a lock: debian.locked)."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(request.config, "workerinput") else base  # each worker has a folder in that of the run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first: if they ran last, one worker would run them while the others have nothing left to do. Run tests that
    are marked `alone` last, because all workers wait for each other before such a test."""
    items.sort(key=lambda item: (item.get_closest_marker("alone") is not None, item.path.name not in LONGEST))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Where workers run tests side by side, one that is marked `alone` waits until the others have finished theirs, and they wait for it.

    Each test holds one lock while it runs: alone for itself, else shared. It takes it in turn, under another lock, so that whoever wants to
    be alone is not overtaken again and again.
    """
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = Path(item.config.option.basetemp).parent  # that of the run, in which each worker has one
    with open(folder / "turn.lock", "w") as turn, open(folder / "running.lock", "w") as running:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(running, fcntl.LOCK_UN)  # a process that the test has forked may have the file as well


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended: hand on what it found left running. A worker that crashed found nothing; what it started is our child now."""
    found = getattr(node, "workeroutput", {}).get("left", {})
    node.config.stash.setdefault(LEFT, {}).update({int(pid): name for pid, name in found.items()})


@pytest.hookimpl(trylast=True)  # when the workers, which are children too, have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that outlives the tests fails them: it is named, and ended."""
    commandline = sys.modules.get("commandline")
    if commandline is not None:  # a test has asked for it
        commandline.end()
    limit = time.monotonic() + SECONDS_TO_END
    while (left := _running_children()) and time.monotonic() < limit:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # a worker: the status of the whole run is not its own
        output["left"] = {str(pid): name for pid, name in left.items()}
        return
    left.update(session.config.stash.get(LEFT, {}))
    for pid, name in left.items():
        sys.stderr.write(f"\nleft running by the tests, now killed: {pid} {name}\n")
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _running_children() -> dict[int, str]:
    """Our children but zombies, by pid: their command lines."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue  # the thread ended just now
        for word in children:
            try:
                state = Path(f"/proc/{word}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found[int(word)] = Path(f"/proc/{word}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue  # it ended just now
    return found
