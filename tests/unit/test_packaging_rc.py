"""Which debugger is started, with which arguments, and the message if none is installed."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import layouts
import pytest
from layouts import run

from findleaks import cli
from findleaks import launcher as rc
from findleaks.errors import FindleaksError


def program(path: Path) -> None:
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def start(front: str, *words: str, path: Path) -> list[str]:
    code = f"from findleaks import cli; import sys; sys.exit(cli.main(['{front}', *sys.argv[1:]]))"
    done = run(layouts.sys.executable, "-c", code, *words, env={"PATH": str(path)})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_lldb_without_a_version_is_preferred(tmp_path: Path) -> None:
    line = rc.lldb_line()
    for name in ("lldb-13", "lldb-14", "lldb-9", "lldb-21", "lldb-19"):
        program(tmp_path / name)
    assert start("lldb", "-b", "a core", path=tmp_path) == [str(tmp_path / "lldb-21"), "-O", line, "-b", "a core"]
    program(tmp_path / "lldb")
    assert start("lldb", path=tmp_path) == [str(tmp_path / "lldb"), "-O", line]


def test_gdb_gets_the_line_of_findleaks_first(tmp_path: Path) -> None:
    program(tmp_path / "gdb")
    assert start("gdb", "-ex", "leaks find", "a core", path=tmp_path) == [
        str(tmp_path / "gdb"),
        *("-ex", rc.gdb_line(), "-ex", "leaks find", "a core"),
    ]


@pytest.mark.parametrize(("front", "what"), [("gdb", "gdb is not on the PATH"), ("lldb", "neither lldb nor lldb-14 to")])
def test_missing_debugger_is_reported_in_one_line(
    front: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main([front, "core"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert what in err


def test_a_debugger_that_cannot_start_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gdb").write_text("#!/no/such/interpreter\n")
    (tmp_path / "gdb").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FindleaksError, match="gdb does not start: No such file"):
        rc.start_debugger("gdb", [])


def test_init_prints_both_lines_with_a_comment_each() -> None:
    out = io.StringIO()
    assert rc.print_init(out) == 0
    lines = [line for line in out.getvalue().splitlines() if line and not line.startswith("#")]
    assert lines == [f"source {rc.loader_path('gdb')}", f"command script import {rc.loader_path('lldb')}"]
    assert Path(rc.loader_path("gdb")).is_file()
    assert Path(rc.loader_path("lldb")).is_file()
