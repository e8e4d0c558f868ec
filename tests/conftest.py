"""Set-up of all tests: modules of tests/support can be imported, no folder of findleaks shadows a debugger's module, and tests leave no
process running."""

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

# `python -m pytest` and PYTHONPATH=. put the checkout's root on sys.path, which contains findleaks' gdb/ and lldb/.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
SUPPORT = ROOT / "tests" / "support"
sys.path.append(str(SUPPORT))
# Failed assertions in helpers show their values, as in tests.
pytest.register_assert_rewrite(*(file.stem for file in SUPPORT.glob("*.py")))

UNTIMED: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""Settings of Hypothesis without time limits, so that tests do not fail on a busy machine."""
settings.register_profile("steady", **UNTIMED, derandomize=True, max_examples=50)
settings.register_profile("random", **UNTIMED)
settings.load_profile("steady")

OPEN_FILES = 4096
"""The limit on open files for tests, if the caller's limit is lower."""

SECONDS_TO_END = float(os.environ.get("FINDLEAKS_TEST_SECONDS_TO_END", "60"))
"""Seconds that processes have to end after the last test, such as a debugger whose parent was killed. On a busy machine, this takes some
seconds. If no process is left, the run does not wait."""

LONGEST = {"test_graph_sanitizers.py", "test_graph_threads.py"}
"""Files with tests that take up to a minute each."""

DAYS_KEPT = 7
"""Days for which the output of a compiler is kept after its last use."""

LEFT = pytest.StashKey[dict[int, str]]()
"""The command lines of processes that tests of pytest-xdist's workers left running, by pid."""


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
    # Each test starts Python many times, also in debuggers. Half of a start is compiling modules, unless compiled ones are kept.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    _keep_what_compilers_make(config)
    # Orphans of the processes that tests start become children of this process, so that it finds them at the end.
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
            with contextlib.suppress(OSError):  # another run is removing it as well
                if file.stat().st_mtime < time.time() - DAYS_KEPT * 86_400:
                    file.unlink()


def _refuse_a_stale_library() -> None:
    """Raise an error if the C engine was built from other sources than the checkout's: each test would use the Python engine, and take ten
    times as long."""
    from findleaks.engine.load import PURE
    from findleaks.engine.native.library import StaleLibrary, library

    if os.environ.get(PURE) == "1":
        return
    try:
        library()
    except StaleLibrary as error:
        pytest.exit(f"{error}: run make native", pytest.ExitCode.USAGE_ERROR)
    except OSError:
        pass  # there is no C engine


def _repeat_the_same_draws() -> None:
    """Start programs at the same addresses and with the same hash seeds in each run, if the kernel allows this. The same words then look
    like pointers by chance in each run, and findleaks names the same one of several holders."""
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    os.environ.update(PYTHONHASHSEED="0", PERL_HASH_SEED="0")


def _leave_the_callers_ways() -> None:
    """Undo the settings that each program inherits from the caller's process: `nohup make test` ignores SIGHUP, background jobs of scripts
    ignore SIGINT, and runners of continuous integration may have limits, a umask, a locale of their own, and no home."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:  # Python ignores the last two
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES <= hard or hard == resource.RLIM_INFINITY != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    with contextlib.suppress(ValueError, OSError):  # only root may do this; programs that dump core raise the soft limit up to this one
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
    """A folder that all workers of this run share. Files in it are built once, under a lock (debian.hold_lock)."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(request.config, "workerinput") else base  # each worker has its own folder inside the run's folder


@pytest.hookimpl(tryfirst=True)  # before -m selects tests by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that only the matrix runs. Run the longest tests first: if they ran last, one worker would run them while the others
    are idle. Run tests with the mark `alone` last, because all workers wait for each other before such a test."""
    from variants import mark_repeated

    mark_repeated(items, ROOT / "tests")
    items.sort(key=lambda item: (item.get_closest_marker("alone") is not None, item.path.name not in LONGEST))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """If workers run tests side by side, run a test with the mark `alone` only while no other test runs.

    Each test holds a lock while it runs: exclusive for `alone`, otherwise shared. A second lock makes tests wait for the first one in turn,
    so that other tests do not overtake a test that needs the exclusive lock.
    """
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = Path(item.config.option.basetemp).parent  # the run's folder, which contains a folder for each worker
    with open(folder / "turn.lock", "w") as turn, open(folder / "running.lock", "w") as running:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(running, fcntl.LOCK_UN)  # a process that the test has forked may have the file open as well


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the processes that an ended worker has found running. A worker that crashed has reported nothing; its processes are now
    children of this process."""
    found = getattr(node, "workeroutput", {}).get("left", {})
    node.config.stash.setdefault(LEFT, {}).update({int(pid): name for pid, name in found.items()})


@pytest.hookimpl(trylast=True)  # after the workers have ended: they are also children
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Kill each process that is still running after the tests, and let the run fail."""
    commandline = sys.modules.get("commandline")
    if commandline is not None:  # a test has started this process
        commandline.end()
    limit = time.monotonic() + SECONDS_TO_END
    while (left := _running_children()) and time.monotonic() < limit:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # in a worker: the status of the whole run is set by the main process
        output["left"] = {str(pid): name for pid, name in left.items()}
        return
    left.update(session.config.stash.get(LEFT, {}))
    for pid, name in left.items():
        sys.stderr.write(f"\nleft running by the tests, now killed: {pid} {name}\n")
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _running_children() -> dict[int, str]:
    """Return the command lines of this process's children by pid, without zombies."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue  # the thread has just ended
        for word in children:
            try:
                state = Path(f"/proc/{word}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found[int(word)] = Path(f"/proc/{word}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue  # the process has just ended
    return found
