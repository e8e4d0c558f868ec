"""The scripts behind `make` and continuous integration: they say what is missing, keep the status, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import layouts
import pytest
from layouts import ROOT, run

SUPPORT = ROOT / "tests" / "support"
NEEDED_BY_SH = ("sh", "bash", "cat", "grep", "ls", "mktemp", "rm", "sed", "tail", "tee", "dirname", "dpkg-query")


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of the barest: what shell scripts need, nothing that the tests need."""
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
    """A machine that can run these tests has it all."""
    calls = tools.parent / "calls"
    for name in ("apt-get", "apt-cache", "id"):
        script(tools / name, f"#!/bin/sh\necho {name} >> {calls}\nexit 1\n")
    done = run("sh", SUPPORT / "install.sh", env={"PATH": f"{tools}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout, done.stderr, calls.exists()) == (0, "", "", False)


def test_without_apt_the_packages_are_named(tools: Path) -> None:
    done = run(tools / "sh", SUPPORT / "install.sh", env={"PATH": str(tools)})
    assert done.returncode == 1
    assert "no apt-get" in done.stderr
    assert "gdb gdbserver lldb-19" in done.stderr


def test_no_virtual_environment_possible_is_said_plainly(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'#!/bin/sh\n[ "$1" = -m ] && echo "No module named $2" >&2 && exit 1\nexec {layouts.BASE} "$@"\n')
    source = layouts.checkout(tmp_path / "checkout")
    done = run("make", "venv", f"PYTHON={python}", cwd=source)
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr
    assert "No module named venv" in done.stderr
    assert not (source / ".venv").exists()


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    python = script(tmp_path / "python", '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.8.18 && exit\nexit 1\n')
    done = run("sh", SUPPORT / "venv.sh", python, tmp_path / "venv")
    assert (done.returncode, "is Python 3.8.18: 3.9 or newer is needed" in done.stderr) == (1, True)


@pytest.mark.slow
def test_make_demo_on_a_fresh_clone_without_the_module_venv(tmp_path: Path) -> None:
    """With the package index alone: virtualenv is fetched, findleaks is installed, and finds the sample's leaks."""
    python = script(tmp_path / "python", f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] && exit 1\nexec {layouts.sys.executable} "$@"\n')
    source = layouts.checkout(tmp_path / "checkout")
    done = run("make", "demo", f"PYTHON={python}", cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "definite" in done.stdout
    ready = (source / ".venv" / ".ready").stat()
    again = run("make", "demo", f"PYTHON={python}", cwd=source)
    assert (again.returncode, "definite" in again.stdout) == (0, True)
    assert (source / ".venv" / ".ready").stat() == ready


def test_help_names_every_target() -> None:
    done = run("make", cwd=ROOT)
    words = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")}
    assert words == {"help", "demo", "test", "test-matrix", "lint", "bench", "venv", "kernel", "clean"}


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


def test_interrupts_are_heard_where_the_tests_are_a_background_job(tmp_path: Path) -> None:
    """Of a script, which has it ignore SIGINT: `make test &`."""
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "test_it.py").write_text(INTERRUPTED)
    pytest_ = Path(layouts.sys.executable).parent / "pytest"
    words = [pytest_, "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, folder]
    done = run("sh", "-c", 'trap "" INT; exec "$@"', "sh", *words, cwd=tmp_path)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_a_process_left_running_fails_the_tests(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    test = "import subprocess\n\ndef test_it():\n    subprocess.run(['sh', '-c', 'sleep 77 >/dev/null 2>&1 & sleep 0.5'], check=True)\n"
    (folder / "test_it.py").write_text(test)
    done = run(Path(layouts.sys.executable).parent / "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, folder, cwd=tmp_path)
    assert (done.returncode, "1 passed" in done.stdout) == (1, True)
    assert "left running by the tests, now killed" in done.stderr
    assert "sleep 77" in done.stderr
