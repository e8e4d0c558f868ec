"""`findleaks init --install` and `--remove`: the debuggers' start-up files before and after."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from findleaks import cli
from findleaks.launcher import gdb_line
from findleaks.startup_files import BEGIN, END, edit_text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


def test_install_and_remove(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user's own lines, the file's mode and a symbolic link do not change. GDB loads findleaks with the file that was written."""
    own = home / "dotfiles"
    own.write_bytes(b"set pagination off\n# \xff\n")
    own.chmod(0o600)
    (home / ".gdbinit").symlink_to(own)
    assert cli.main(["init", "--install"]) == 2
    assert "pass --yes" in capsys.readouterr().err
    assert own.read_bytes() == b"set pagination off\n# \xff\n"
    assert cli.main(["init", "--install", "--yes"]) == 0
    out = capsys.readouterr().out
    assert f"+{gdb_line()}" in out
    assert (home / ".gdbinit").is_symlink()
    assert own.read_bytes().startswith(b"set pagination off\n# \xff\n\n" + BEGIN.encode())
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert BEGIN in (home / ".lldbinit").read_text()
    gdb = shutil.which("gdb") or ""
    loaded = subprocess.run(
        [gdb, "-batch", "-ex", "help leaks find"], capture_output=True, text=True, env={**os.environ, "HOME": str(home)}
    )
    assert "List leaked blocks" in loaded.stdout
    assert cli.main(["init", "--install", "--yes"]) == 0
    assert "load findleaks already" in capsys.readouterr().out
    assert cli.main(["init", "--remove", "--yes"]) == 0
    assert own.read_bytes() == b"set pagination off\n# \xff\n"
    assert (home / ".lldbinit").read_text() == ""
    assert sorted(os.listdir(home)) == [".gdbinit", ".lldbinit", "dotfiles"]


def test_user_answers_no(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter(["n\n", "y\n"])

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return next(answers)

    monkeypatch.setattr("sys.stdin", Terminal())
    assert cli.main(["init", "--install"]) == 0
    assert "Nothing was changed." in capsys.readouterr().out
    assert os.listdir(home) == []
    assert cli.main(["init", "--install"]) == 0
    assert sorted(os.listdir(home)) == [".gdbinit", ".lldbinit"]


def test_the_file_of_xdg(home: Path) -> None:
    """GDB reads this file first, and then does not read ~/.gdbinit."""
    file = home / ".config" / "gdb" / "gdbinit"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert cli.main(["init", "--install", "--yes"]) == 0
    assert BEGIN in file.read_text()
    assert not (home / ".gdbinit").exists()


def test_errors(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".gdbinit").mkdir()
    assert cli.main(["init", "--install", "--yes"]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert cli.main(["init", "--install", "--remove"]) == 2
    assert cli.main(["init", "--yes"]) == 2
    monkeypatch.setenv("PATH", str(home))
    assert cli.main(["init", "--install", "--yes"]) == 2
    assert "neither GDB nor LLDB is installed" in capsys.readouterr().err.splitlines()[-1]


def test_texts() -> None:
    lines = ["source x"]
    part = f"{BEGIN}\nsource x\n{END}\n"
    assert edit_text("", lines) == part
    assert edit_text("a", lines) == "a\n\n" + part
    assert edit_text("a\n", lines) == "a\n\n" + part
    assert edit_text(edit_text("a\n", lines), ["source y"]) == "a\n\n" + part.replace("x", "y")
    assert edit_text(part + "b\n", []) == "b\n"
