"""Which files triage reads."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from findleaks.errors import TargetError
from findleaks.triage.examine import examine
from findleaks.triage.sources import source, sources

BOOT = "0123456789abcdef0123456789abcdef"


def list_cores(*words: object, **more: object) -> list[str]:
    return [one.core for one in sources([str(word) for word in words], **more).cores]  # type: ignore[arg-type]


def test_folders_are_read_recursively_without_links(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_text("x")
    for name in ("b", "a", "deep/c", "deep/.hidden"):
        (tmp_path / "in" / name).write_text("x")
    os.symlink(outside, tmp_path / "in" / "link")
    os.symlink(tmp_path, tmp_path / "in" / "up")
    os.symlink("a", tmp_path / "in" / "again")
    found = sources([str(tmp_path / "in")])
    assert [os.path.relpath(one.core, tmp_path / "in") for one in found.cores] == ["a", "b", "deep/.hidden", "deep/c"]
    assert found.links == 3
    # A link that is named by the user is followed. Each file has one row, even if it is named several times.
    assert list_cores(tmp_path / "in" / "again", tmp_path / "in" / "a", tmp_path / "in") == [
        str(tmp_path / "in" / name) for name in ("again", "b", "deep/.hidden", "deep/c")
    ]
    assert str(tmp_path / "in" / "b") not in list_cores(tmp_path / "in", left_out=[str(tmp_path / "in" / "b")])


def test_lists(tmp_path: Path) -> None:
    names = tmp_path / "list"
    names.write_bytes(b"/x/one\r\n\n/x/two \n")
    assert list_cores(f"@{names}") == ["/x/one", "/x/two "]
    names.write_bytes(b"/x/one\n\0/x/\xff\0")
    assert list_cores(f"@{names}", "/x/three") == ["/x/one\n", "/x/\udcff", "/x/three"]
    assert list_cores("-", standard_input=io.BytesIO(b"/x/one\n/x/two")) == ["/x/one", "/x/two"]
    with pytest.raises(TargetError, match="the list cannot be read: no such file"):
        list_cores(f"@{tmp_path}/none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError, match="not a regular file"):
        list_cores(f"@{tmp_path}/pipe")


@pytest.mark.parametrize(
    ("name", "program", "time"),
    [
        (f"core.shop.1000.{BOOT}.4711.1700000000123456.zst", "shop", 1700000000.123456),
        (f"core.a\\x2eb\\x20c.0.{BOOT}.1.1700000000000000", "a.b c", 1700000000.0),
        (f"core.k\\xc3\\xa4se.0.{BOOT}.1.1700000000000000.lz4", "käse", 1700000000.0),
        (f"core.a.b.0.{BOOT}.1.1700000000000000.xz", "a.b", 1700000000.0),
        (f"core.shop.1000.{BOOT}.4711.99999999999999999999", "shop", None),
        ("core.shop.1000.4711", "", None),
        ("core", "", None),
    ],
)
def test_names_of_systemd(tmp_path: Path, name: str, program: str, time: object) -> None:
    file = tmp_path / name
    file.write_text("no core")
    found = source(str(file))
    assert (found.program, found.time) == (program, time)
    row = examine(found)
    assert (row.status, row.program) == ("failed", program)
    assert row.time == pytest.approx(time if time is not None else file.stat().st_mtime, abs=0.001)


def test_special_files_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    errors = {name: examine(source(name)).error for name in (str(tmp_path / "pipe"), "/dev/null", str(tmp_path), "/no/such", "a\0b")}
    assert list(errors.values()) == [
        "a named pipe, not a core file",
        "a device, not a core file",
        "a directory, not a core file",
        "No such file or directory",
        "embedded null byte",
    ]
