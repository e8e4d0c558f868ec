"""Snapshot files: each is written completely or not at all, and an invalid file under this name gives one line of error."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from findleaks.commands.samples import gather
from findleaks.errors import TargetError
from findleaks.history.figures import Figure
from findleaks.history.growth import Growth
from findleaks.history.snapshot import Clock, Identity, Snapshot, differences, seconds
from findleaks.history.store import load, save
from findleaks.session import Session
from findleaks.target.core import open_core

HOSTILE = "\x1b[31mred\x1b]0;title\x07\n\u202enul\0end"


def make_snapshot(name: str = "one", held: int = 1 << 20, when: Clock = Clock(100.0, 10.0, "boot")) -> Snapshot:  # noqa: B008
    figures = [
        Figure("total", "resident", None, held),
        Figure("root", "g_cache (shop, data)", held // 64, held),
        Figure("field", HOSTILE, 1, 64, "g_cache (shop, data)", HOSTILE),
    ]
    return Snapshot(name, when, Identity("shop", "5e0b", 4711, 9, ("glibc 2.36",)), figures, {"verdict": {"a": 1}}, (HOSTILE,))


def open_session(path: str) -> Session:
    raise TargetError(f"{path}: not a core")


def test_snapshots_are_read_as_written(tmp_path: Path) -> None:
    save(make_snapshot(), tmp_path / "one.snapshot", "1")
    assert load(str(tmp_path / "one.snapshot"), answers=True) == Snapshot(**{**vars(make_snapshot()), "name": "one.snapshot"})
    assert [path.name for path in tmp_path.iterdir()] == ["one.snapshot"]


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    """The limit of the file size acts like a full disk: SQLite cannot write."""
    path = tmp_path / "one.snapshot"
    save(make_snapshot(), path, "1")
    before = path.read_bytes()
    large = Snapshot("large", Clock(), Identity(), [Figure("root", f"root {number}", 1, 1) for number in range(20_000)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, limits[1]))
        with pytest.raises(TargetError, match=r"one\.snapshot: the snapshot cannot be written: "):
            save(large, path, "1")
        with pytest.raises(TargetError, match="cannot be written"):
            save(large, tmp_path / "other.snapshot", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["one.snapshot"]


@pytest.mark.parametrize(
    ("where", "why"),
    [("missing/one.snapshot", "no such file"), ("file/one.snapshot", "not a directory"), ("x" * 300, "file name too long")],
)
def test_invalid_paths(tmp_path: Path, where: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TargetError, match=f"the snapshot cannot be written: {why}"):
        save(make_snapshot(), tmp_path / where, "1")


def test_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError, match="pipe: the snapshot cannot be written: not a regular file"):
        save(make_snapshot(), tmp_path / "pipe", "1")
    assert (tmp_path / "pipe").is_fifo()


KILLED = """
import os, signal, sys
from pathlib import Path
from findleaks.history import store
from findleaks.history.figures import Figure
from findleaks.history.snapshot import Clock, Identity, Snapshot
def kill(*words):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(*{"replace": (store.os, "replace"), "fsync": (store.os, "fsync"), "fill": (store.json, "dumps")}[sys.argv[1]], kill)
store.save(Snapshot("x", Clock(), Identity(), [Figure("total", "resident", None, 1)], {"verdict": {}}), Path(sys.argv[2]), "1")
"""


@pytest.mark.parametrize("at", ["fill", "fsync", "replace"])
def test_process_killed_while_writing(tmp_path: Path, at: str) -> None:
    """No file with the final name exists then. The next diff of the folder ignores the temporary file."""
    save(make_snapshot("a", when=Clock(100.0)), tmp_path / "a.snapshot", "1")
    save(make_snapshot("b", when=Clock(200.0)), tmp_path / "b.snapshot", "1")
    done = subprocess.run([sys.executable, "-c", KILLED, at, str(tmp_path / "c.snapshot")])
    assert done.returncode == -signal.SIGKILL
    left = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in left if not name.startswith(".")] == ["a.snapshot", "b.snapshot"]
    assert len(left) == 3 and left[0].endswith(".part")
    snapshots, warnings = gather([str(tmp_path)], open_session)
    assert ([one.name for one in snapshots], warnings) == (["a.snapshot", "b.snapshot"], [])


def execute(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        for statement in statements:
            base.execute(statement)


def clear_pages(path: Path) -> None:
    """Replace all pages but the first by zeros."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\0" * (size - 4096))


ENDLESS = "CREATE VIEW {} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'root' section, 'x' name, "
ENDLESS += (
    "'' within, 1 count, 1 bytes, '' note, NULL time, NULL uptime, '' boot, '' program, '' build_id, 1 pid, 1 started, '' text FROM n"
)
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2), "is damaged"),
    "only the header": (lambda path: os.truncate(path, 20), "is damaged"),
    "zeros": (clear_pages, "is damaged"),
    "foreign": (lambda path: execute(path, "PRAGMA application_id = 7"), "not a snapshot of findleaks"),
    "newer": (lambda path: execute(path, "PRAGMA user_version = 99"), "written by a newer findleaks: format version 99"),
    "no tables": (lambda path: execute(path, "DROP TABLE figures"), "its table `figures` is missing"),
    "no rows": (lambda path: execute(path, "DELETE FROM snapshot"), "its table `snapshot` is empty"),
    "an endless view": (lambda path: execute(path, "DROP TABLE figures", ENDLESS.format("figures")), "its table `figures` is another"),
    "an endless head": (lambda path: execute(path, "DROP TABLE snapshot", ENDLESS.format("snapshot")), "its table `snapshot` is another"),
    "a computed column": (
        lambda path: execute(path, "ALTER TABLE figures ADD COLUMN more AS (hex(zeroblob(100000000)))"),
        "its table `figures` is another",
    ),
    "a name that is no text": (lambda path: execute(path, "UPDATE figures SET name = x'00ff'"), "its name is not text"),
    "a size that is not a number": (lambda path: execute(path, "UPDATE figures SET bytes = 'many'"), "a figure is not a number"),
    "a huge size": (lambda path: execute(path, "UPDATE figures SET bytes = 9223372036854775807"), "too large"),
    "a fraction": (lambda path: execute(path, "UPDATE figures SET count = 1.5"), "a figure is not a number"),
    "a time that never was": (lambda path: execute(path, "UPDATE snapshot SET time = 9e999"), "a time was expected"),
    "a time in words": (lambda path: execute(path, "UPDATE snapshot SET uptime = 'noon'"), "a time was expected"),
    "a pid in words": (lambda path: execute(path, "UPDATE snapshot SET pid = '12abc'"), "a number was expected"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    """One line reports the damage. In a folder of snapshots, the damaged file is skipped with a warning."""
    for number, one in enumerate("abc"):
        save(make_snapshot(one, when=Clock(100.0 + number)), tmp_path / f"{one}.snapshot", "1")
    damage, why = DAMAGE[name]
    damage(tmp_path / "b.snapshot")
    with pytest.raises(TargetError, match=why) as raised:
        gather([str(tmp_path / "b.snapshot")], open_session)
    assert str(raised.value).startswith(f"{tmp_path}/b.snapshot: ")
    assert str(raised.value).isprintable()
    snapshots, warnings = gather([str(tmp_path)], open_session)
    assert [one.name for one in snapshots] == ["a.snapshot", "c.snapshot"]
    assert len(warnings) == 1 and warnings[0].startswith("skipped: ")


def test_triggers_and_further_tables_are_not_used(tmp_path: Path) -> None:
    """A user may add an index or a table. Triggers do not run."""
    path = tmp_path / "a.snapshot"
    save(make_snapshot(), path, "1")
    before = load(str(path))
    execute(path, "CREATE INDEX by_name ON figures (name)", "CREATE TABLE notes (text)", ENDLESS.format("further"))
    execute(path, "CREATE TRIGGER t AFTER INSERT ON figures BEGIN DELETE FROM figures; END")
    assert load(str(path)) == before


def test_pages_that_are_used_repeatedly(tmp_path: Path) -> None:
    """All rows of a table are the same long row, so that its sums are larger than the file can contain."""
    path = tmp_path / "a.snapshot"
    rows = [Figure("root", f"{number:08}" + "x" * 300, 1, 1) for number in range(4000)]
    save(Snapshot("a", Clock(), Identity(), rows), path, "1")
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    interior = [at for at in range(page, len(data), page) if data[at] == 5 and int.from_bytes(data[at + 3 : at + 5], "big") > 100]
    assert interior
    for at in interior:  # every cell of the interior page refers to the same child
        cells = [
            int.from_bytes(data[at + 12 + 2 * i : at + 14 + 2 * i], "big") for i in range(int.from_bytes(data[at + 3 : at + 5], "big"))
        ]
        first = data[at + cells[0] : at + cells[0] + 4]
        for cell in cells:
            data[at + cell : at + cell + 4] = first
    path.write_bytes(data)
    os.truncate(path, len(data))
    try:
        read = load(str(path))
    except TargetError as error:
        assert "is damaged" in str(error)
    else:
        assert sum(len(figure.name) for figure in read.figures) <= len(data)


def test_other_files(tmp_path: Path) -> None:
    """Five cases: a text, an empty file, a pipe, a folder without snapshots, and a folder with damaged snapshots only."""
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("notes.txt", "empty", "pipe"):
        with pytest.raises(TargetError, match=f"{name}: not a core"):
            gather([str(tmp_path / name)], open_session)
    with pytest.raises(TargetError, match=r"gone: no such file"):
        gather([str(tmp_path / "gone")], open_session)
    with pytest.raises(TargetError, match=r"no snapshots and no cores in this directory; .*2 files skipped, .*: empty, notes\.txt"):
        gather([str(tmp_path)], open_session)
    save(make_snapshot(), tmp_path / "a.snapshot", "1")
    snapshots, warnings = gather([str(tmp_path)], open_session)
    assert len(snapshots) == 1 and "2 files skipped" in warnings[0]


def test_files_of_one_name_are_named_with_their_folders(tmp_path: Path) -> None:
    for folder, name in (("monday", "shop.snapshot"), ("tuesday", "shop.snapshot"), ("tuesday", "other.snapshot")):
        (tmp_path / folder).mkdir(exist_ok=True)
        save(make_snapshot(), tmp_path / folder / name, "test")
    single = str(tmp_path / "monday" / "shop.snapshot")
    found, _ = gather([single, str(tmp_path / "tuesday")], open_session)
    assert {one.name for one in found} == {single, str(tmp_path / "tuesday" / "shop.snapshot"), "other.snapshot"}
    found, _ = gather([single, single], open_session)
    assert [one.name for one in found] == ["shop.snapshot"] * 2


def test_a_snapshot_is_no_core(tmp_path: Path) -> None:
    save(make_snapshot(), tmp_path / "one.snapshot", "1")
    with pytest.raises(TargetError, match="expected a core file, got an SQLite database"):
        open_core(str(tmp_path / "one.snapshot"))


def test_clock_set_back(tmp_path: Path) -> None:
    """As long as the machine was not restarted, its uptime is used: order and rate are right."""
    times = (Clock(5000.0, 100.0, "boot"), Clock(4000.0, 460.0, "boot"), Clock(3000.0, 820.0, "boot"))
    for number, when in enumerate(times):
        save(make_snapshot("", (number + 1) << 20, when), tmp_path / f"{'cab'[number]}.snapshot", "1")
    snapshots, warnings = gather([str(tmp_path)], open_session)
    assert ([one.clock for one in snapshots], warnings) == (list(times), [])
    growth = Growth(snapshots)
    assert growth.times == [100.0, 460.0, 820.0]
    assert growth.total.per_hour is not None and growth.total.per_hour.slope == 10 << 20
    assert list(differences(snapshots)) == []


def test_machine_restarted_in_between() -> None:
    snapshots = [make_snapshot(when=Clock(5000.0, 100.0, "one")), make_snapshot(when=Clock(4000.0, 460.0, "other"))]
    assert seconds(snapshots) == [5000.0, 4000.0]
    said = " / ".join(differences(snapshots))
    assert "restarted" in said and "not in the order of their times" in said


def test_ctrl_c_while_sqlite_reads_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives in a callback from SQLite, where Python drops the exception. The read stops early, before the
    limit of steps for a file of this size."""
    save(make_snapshot(), tmp_path / "one.snapshot", "1")

    class Steps:
        """An endless list of steps. Ctrl-C arrives at the second one."""

        number = 0

        def __iter__(self) -> Iterator[bool]:
            return self

        def __next__(self) -> bool:
            self.number += 1
            if self.number == 2:
                signal.raise_signal(signal.SIGINT)
            return False

    monkeypatch.setattr("findleaks.history.store._steps", lambda size: Steps())
    monkeypatch.setattr("findleaks.history.store.STEP", 1)
    with pytest.raises(KeyboardInterrupt):
        gather([str(tmp_path)], open_session)


def test_invalid_utf_8_and_invalid_numbers(tmp_path: Path) -> None:
    """A damaged core can have both. SQLite refuses lone surrogates and numbers of more than 64 bits."""
    path = tmp_path / "one.snapshot"
    figures = [Figure("root", "caf\udce9", 1, 1 << 64, "\udcff", "\udc80"), Figure("type", "half \ud83d", 1 << 63, -1)]
    save(Snapshot("one", Clock(), Identity("\udce2", pid=1 << 63, allocators=("\udcff",)), figures, {}, ("\udc9b",)), path, "1")
    read = load(str(path))
    assert list(read.figures) == [
        Figure("root", "caf\udce9", 1, None, "\udcff", "\udc80"),
        Figure("type", "half \\ud83d", None, -1),
    ]
    assert (read.identity.program, read.identity.pid, read.identity.allocators) == ("\udce2", None, ("\udcff",))
    assert read.warnings == ("\udc9b",)
