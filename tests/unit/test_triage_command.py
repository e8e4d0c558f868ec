"""`triage` on the command line: arguments, files, cores that systemd keeps. Debuggers refuse it with one line."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import zstandard

from findleaks import cli, commands
from findleaks.catalogue import CATALOGUE
from findleaks.commands import triage
from findleaks.errors import UsageError
from findleaks.triage import examine

SAMPLE = Path(__file__).parents[2] / "cores" / "sample.core.gz"
BOOT = "0123456789abcdef0123456789abcdef"


def no_session() -> NoReturn:
    raise AssertionError("a session was asked for")


def test_debuggers_print_the_shell_command() -> None:
    """Also after the command `map` was loaded, which is a submodule of `commands`."""
    assert commands.find_command("map") is not None
    out = io.StringIO()
    with pytest.raises(UsageError, match=r"type in a shell: findleaks triage '/a core' -o x\.db$"):
        commands.execute(no_session, ["triage", "/a core", "-o", "x.db"], out)
    assert commands.execute(no_session, ["triage", "--help"], out) == 0
    assert "\n  findleaks triage /var/crash -o crashes.sqlite\n" in out.getvalue()
    assert "  findleaks triage /var/crash" in CATALOGUE["triage"].help("leaks")
    assert "--resume" in commands.complete(["triage"], "--")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "name cores, or directories of cores"),
        (["-o", "a.txt"], "end its name in .sqlite, .parquet or .html"),
        (["-o", "a.db", "-o", "b.sqlite"], "one database"),
        (["--resume"], "--resume needs the database: -o FILE.sqlite"),
        (["--resume", "-o", "a.html"], "--resume needs the database: -o FILE.sqlite"),
        (["--fail-over", "many"], "'many' is not a size"),
        (["--memory", "x"], "'x' is not a size"),
        (["--baseline", "none.db"], "none.db: no such file"),
        (["--baseline", "text.db"], "not a triage database of findleaks"),
        (["--sysroot", "none"], "no such directory"),
        (["@none"], "the list cannot be read"),
        (["empty"], "no files in"),
        (["-o", "folder/none/a.db", "a"], "cannot be written"),
        (["-o", "text.db", "a"], "text.db exists"),
        (["--resume", "-o", "text.db", "a"], "text.db"),
    ],
)
def test_invalid_arguments_give_one_line(
    words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.db").write_text("not a database, but long enough to be taken for one" * 20)
    Path("a").touch()
    Path("empty").mkdir()
    before = sorted(os.listdir())
    given = words if words in ([], ["empty"], ["@none"]) or "a" in words else [*words, "a"]
    assert cli.main(["triage", *given]) == 2
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1
    assert sorted(os.listdir()) == before


def test_missing_pyarrow_is_reported_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setattr(triage, "examine_all", lambda *_: pytest.fail("cores were read"))
    assert cli.main(["triage", str(SAMPLE), "-o", str(tmp_path / "a.parquet")]) == 2
    error = capsys.readouterr().err
    assert "pip install 'findleaks[parquet]'" in error and error.count("\n") == 1


def test_cores_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A real core, packed with zstd and named by systemd; a file that is not a core; and the list of coredumpctl."""
    folder, programs = tmp_path / "coredump", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    packed = zstandard.ZstdCompressor(level=1).compress(gzip.decompress(SAMPLE.read_bytes()))
    (folder / f"core.shop.1000.{BOOT}.4711.1700000000000000.zst").write_bytes(packed)
    (folder / f"core.gone\\x20away.0.{BOOT}.5.1600000000000000.zst").write_bytes(packed[:4])
    states = ["present", "missing", "missing", "truncated", "none"]
    (programs / "coredumpctl").write_text(f"#!/bin/sh\necho '{json.dumps([{'pid': 1, 'corefile': state} for state in states])}'\n")
    (programs / "coredumpctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(triage, "COREDUMPS", str(folder))
    assert cli.main(["triage", "--coredumpctl", "--json"]) == 0
    *rows, last = map(json.loads, capsys.readouterr().out.splitlines())
    by_program = {row["program"]: row for row in rows}
    assert by_program["shop"]["status"] == "ok" and by_program["shop"]["time"] == 1700000000
    assert by_program["gone away"]["status"] == "failed" and by_program["gone away"]["time"] == 1600000000
    assert last["warnings"] == ["coredumpctl lists 3 more crashes whose cores cannot be read: 2 missing, 1 none"]
    for answer in ("echo no json", "exit 1", "echo '{}'"):
        (programs / "coredumpctl").write_text(f"#!/bin/sh\n{answer}\n")
        assert cli.main(["triage", "--coredumpctl", "--json"]) == 0
        warnings = json.loads(capsys.readouterr().out.splitlines()[-1])["warnings"]
        assert warnings == (["coredumpctl gave no list (JSONDecodeError): only core files are read"] if "no" in answer else [])


def test_a_minidump_of_stacks_has_no_heap() -> None:
    path = SAMPLE.with_name("doors_stacks.dmp.gz")
    row = examine.examine(examine.Source(str(path), path.name))
    assert (row.status, row.program, row.lost_bytes, row.findings, row.signatures) == ("partial", "doors", None, (), ())
    assert row.error.startswith("the minidump has the threads' stacks and no other writable memory")


def test_an_internal_error_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(examine, "open_core", broken)
    row = examine.examine(examine.Source(str(SAMPLE), "core"))
    assert (row.status, row.error) == ("failed", "internal error: ZeroDivisionError: by zero")
