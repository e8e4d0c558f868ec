"""Scripts for `make` and continuous integration: they report what is missing, return the exit status, and leave no files behind."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import layouts
import pytest
from counts import until
from layouts import ROOT, run
from variants import mark_matrix_except

SUPPORT = ROOT / "tests" / "support"
NEEDED_BY_SH = ("sh", "bash", "cat", "grep", "ls", "mktemp", "rm", "sed", "tail", "tee", "dirname", "dpkg-query")


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Return a PATH with only the programs that shell scripts need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED_BY_SH:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def test_missing_packages_are_named_with_the_line_that_installs_them(tools: Path) -> None:
    script(tools / "id", "#!/bin/sh\necho 1000\n")
    script(tools / "apt-get", "#!/bin/sh\nexit 99\n")
    done = run(tools / "sh", SUPPORT / "install.sh", env={"PATH": str(tools)})
    assert done.returncode == 1
    assert done.stdout == ""
    line = done.stderr.splitlines()[1].split()
    assert line[:6] == ["apt-get", "update", "&&", "apt-get", "install", "-y"]
    assert {"gdb", "lldb-19", "clang-19", "valgrind", "redis-server"} <= set(line)


def test_nothing_is_installed_when_all_is_there(tools: Path) -> None:
    """If everything is installed, as on a machine that runs these tests, nothing is installed."""
    calls = tools.parent / "calls"
    for name in ("apt-get", "apt-cache", "id"):
        script(tools / name, f"#!/bin/sh\necho {name} >> {calls}\nexit 1\n")
    done = run("sh", SUPPORT / "install.sh", env={"PATH": f"{tools}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout, done.stderr, calls.exists()) == (0, "", "", False)


def test_without_apt_the_packages_are_named(tools: Path) -> None:
    done = run(tools / "sh", SUPPORT / "install.sh", env={"PATH": str(tools)})
    assert done.returncode == 1
    assert "no apt-get" in done.stderr
    assert "gdb gdb-multiarch gdbserver lldb-19" in done.stderr


def test_apt_get_is_run_again_if_a_mirror_is_busy(tools: Path) -> None:
    """apt-get is run again after the answer 503, and not after another failure."""
    calls = tools.parent / "calls"
    busy = "E: Failed to fetch http://mirror/InRelease  503  Service Unavailable"
    script(tools / "apt-get", f'#!/bin/sh\necho "$1" >> {calls}\ncase $(grep -c . {calls}) in 1) echo "{busy}" ;; esac\nexit 100\n')
    script(tools / "id", "#!/bin/sh\necho 0\n")
    script(tools / "sleep", f"#!/bin/sh\necho sleep >> {calls}\n")
    done = run(tools / "sh", SUPPORT / "install.sh", env={"PATH": str(tools)})
    assert (done.returncode, done.stderr) == (1, "apt-get update failed\n")
    assert calls.read_text().split() == ["update", "sleep", "update"]


def test_missing_venv_is_reported(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'#!/bin/sh\n[ "$1" = -m ] && echo "No module named $2" >&2 && exit 1\nexec {layouts.BASE} "$@"\n')
    source = layouts.checkout(tmp_path / "checkout")
    done = run("make", "venv", f"PYTHON={python}", cwd=source)
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr
    assert "No module named venv" in done.stderr
    assert not (source / ".venv").exists()


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    python = script(tmp_path / "python", '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.8.18 && exit\nexit 1\n')
    done = run("sh", SUPPORT / "venv.sh", python, tmp_path / "venv", ".")
    assert (done.returncode, "is Python 3.8.18: 3.9 or newer is needed" in done.stderr) == (1, True)


@pytest.mark.matrix
@pytest.mark.slow
def test_make_demo_on_a_fresh_clone_without_the_module_venv(tmp_path: Path) -> None:
    """Only a package index is available: virtualenv is downloaded, findleaks is installed, and it finds the sample's leaks."""
    python = script(tmp_path / "python", f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] && exit 1\nexec {layouts.sys.executable} "$@"\n')
    source = layouts.checkout(tmp_path / "checkout", whole=True)
    # Compiling everything that pip installs would take half of the time.
    environment = {**os.environ, "PIP_NO_COMPILE": "1"}
    done = run("make", "demo", f"PYTHON={python}", cwd=source, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "definite" in done.stdout
    ready = (source / ".venv" / ".installed").stat()
    again = run("make", "demo", f"PYTHON={python}", cwd=source, env=environment)
    assert (again.returncode, "definite" in again.stdout) == (0, True)
    assert (source / ".venv" / ".installed").stat() == ready


def test_help_names_every_target() -> None:
    done = run("make", cwd=ROOT)
    words = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")}
    running = {"wheels", "test", "test-matrix", "test-arm64", "platforms", "lint", "bench", "fuzz", "fuzz-guided", "site"}
    assert words == {"help", "demo", "venv", "native", "clean", *running}


PYTEST = """#!/bin/sh
echo "tests/unit/test_a.py F"
echo "= 1 failed, 2 passed in 0.50s ="
echo "make: *** [test] Error 1" >&2
exit {status}
"""


@pytest.mark.parametrize("status", [0, 2])
def test_continuous_integration_ends_with_pytests_closing_line_and_status(status: int, tmp_path: Path) -> None:
    script(tmp_path / "make", PYTEST.format(status=status))
    done = run(ROOT / ".ci" / "run", env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout.splitlines()[-1]) == (status, "= 1 failed, 2 passed in 0.50s =")


INTERRUPTED = """
import os, signal, subprocess, pytest

def test_here():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)

def test_in_a_process():
    done = subprocess.run(["sh", "-c", "kill -INT $$"], check=False)
    assert done.returncode == -signal.SIGINT
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Return an empty folder of tests with the conftest.py of this repository."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "support").symlink_to(SUPPORT)
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    return folder


def words(suite: Path, *more: str) -> list[object]:
    """Return the command that runs the tests of the folder."""
    return [Path(layouts.sys.executable).parent / "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", suite.parent, *more, suite]


WORKERS = pytest.mark.parametrize("workers", mark_matrix_except({"alone": (), "side-by-side": ("-n", "2")}, "side-by-side"))


@WORKERS
def test_interrupt_ends_tests_in_a_background_job(workers: tuple[str, ...], suite: Path) -> None:
    """A script starts `make test &`, so SIGINT is ignored in the background job."""
    (suite / "test_it.py").write_text(INTERRUPTED)
    done = run("sh", "-c", 'trap "" INT; exec "$@"', "sh", *words(suite, *workers), cwd=suite.parent)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


LEAVES = """
import subprocess

def test_it():
    subprocess.run(["sh", "-c", "sleep 77 >/dev/null 2>&1 & sleep 0.5"], check=True)
"""


IMPATIENT = {**os.environ, "FINDLEAKS_TEST_SECONDS_TO_END": "2"}  # the process must not end earlier


@WORKERS
def test_a_process_left_running_fails_the_tests(workers: tuple[str, ...], suite: Path) -> None:
    (suite / "test_it.py").write_text(LEAVES)
    done = run(*words(suite, *workers), cwd=suite.parent, env=IMPATIENT)
    assert (done.returncode, "1 passed" in done.stdout) == (1, True)
    assert "left running by the tests, now killed" in done.stderr
    assert "sleep 77" in done.stderr


def test_a_process_left_running_by_a_worker_that_crashes_fails_the_tests(suite: Path) -> None:
    (suite / "test_it.py").write_text(LEAVES + "    import os\n    os._exit(3)\n")
    done = run(*words(suite, "-n", "1"), cwd=suite.parent, env=IMPATIENT)
    assert (done.returncode, "crashed" in done.stdout) == (1, True)
    assert "sleep 77" in done.stderr


HELD = """
import os, pathlib, subprocess, pytest

@pytest.mark.parametrize("number", range(2))
def test_it(number):
    folder = pathlib.Path(os.environ["THERE"])
    with subprocess.Popen(["sleep", "78"]) as process:
        try:
            (folder / str(number)).write_text(str(process.pid))  # in the `try`: Ctrl-C may follow at once
            process.wait()
        finally:
            process.kill()
            (folder / f"ended-{number}").touch()
"""


@WORKERS
def test_ctrl_c_ends_the_tests_and_what_they_started(workers: tuple[str, ...], suite: Path, tmp_path: Path) -> None:
    """Ctrl-C at a terminal reaches all workers. Each worker runs the `finally` blocks of its test."""
    (suite / "test_it.py").write_text(HELD)
    environment = {**os.environ, "THERE": str(tmp_path)}
    command = [str(word) for word in words(suite, *workers)]
    with open(tmp_path / "said", "wb") as said:
        tests = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            wanted = 2 if workers else 1
            until(lambda: len([f for f in tmp_path.glob("[01]") if f.read_text()]) == wanted, "the tests to be under way")
            os.killpg(tests.pid, signal.SIGINT)
            assert tests.wait(180) == pytest.ExitCode.INTERRUPTED
        finally:
            tests.kill()
            tests.wait()
    assert len(list(tmp_path.glob("ended-*"))) == wanted
    text = (tmp_path / "said").read_text()
    assert "KeyboardInterrupt" in text and "left running" not in text


SPANS = """
import os, pathlib, time, pytest

@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("how", ["shared", pytest.param("alone", marks=pytest.mark.alone)])
def test_it(how, number):
    start = time.monotonic()
    time.sleep(0.1)
    (pathlib.Path(os.environ["THERE"]) / f"{how}-{number}").write_text(f"{start} {time.monotonic()}")
"""


def test_no_test_runs_beside_one_that_is_marked_alone(suite: Path, tmp_path: Path) -> None:
    (suite / "test_it.py").write_text(SPANS)
    there = tmp_path / "spans"
    there.mkdir()
    done = run(*words(suite, "-n", "2", "--dist", "load"), cwd=suite.parent, env={**os.environ, "THERE": str(there)})
    assert (done.returncode, "8 passed" in done.stdout) == (0, True), done.stdout
    spans = {file.name: tuple(map(float, file.read_text().split())) for file in there.iterdir()}
    assert len(spans) == 8
    for name, (start, end) in spans.items():
        if name.startswith("alone"):
            assert all(later >= end or earlier <= start for other, (later, earlier) in spans.items() if other != name)
