"""The database of triage: rows are read as they were added, a run can be resumed, and a damaged database is refused with one line."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from findleaks.errors import FindleaksError
from findleaks.triage import store
from findleaks.triage.examine import Source
from findleaks.triage.groups import group_leaks
from findleaks.triage.parquet import table
from findleaks.triage.row import FAILED, OK, FindingLine, LeakSum, Row, unpack_row

LEAK = LeakSum("9f3a01c2", "64 B", '"GET …"', 10, 20, 1 << 70, (1 << 64) - 16, "", 64, True, ("held", "→ 24 B", "."))
GOOD = Row(
    *("/a/core", OK, "shop", "ab" * 20, "SIGSEGV", "crash_here", 1700000000.5, 20, 640),
    findings=(FindingLine("lost", 640, "Lost: 640 B."), FindingLine("kept", 9, "Kept.")),
    signatures=(LEAK._replace(bytes=640), LEAK._replace(signature="0000", hint="", bytes=1, size=80)),
    warnings=("one", "two", "one"),
    seconds=0.25,
    size=4096,
)
BAD = Row("/a/\udcff\n'\"", FAILED, error="empty \udcfe", time=None)


def make_database(path: Path, *rows: Row) -> None:
    with closing(store.create(str(path), "1")) as base:
        for row in rows:
            base.add(Source(row.core, row.core, row.size, 77), row)


def test_rows_come_back(tmp_path: Path) -> None:
    make_database(tmp_path / "a.db", GOOD, BAD)
    good, bad = sorted(store.rows(str(tmp_path / "a.db")), key=lambda row: row.status, reverse=True)
    assert good == GOOD
    assert bad == dataclasses.replace(BAD, core="/a/\\xff\n'\"", error="empty \\xfe")
    assert unpack_row(GOOD.pack()) == GOOD
    with closing(store.resume(str(tmp_path / "a.db"), "1")) as base:
        assert base.list_done() == {"/a/core": (4096, 77), "/a/\\xff\n'\"": (0, 77)}
        base.add(Source("/a/core", "/a/core", 1, 2), dataclasses.replace(GOOD, status=FAILED, signatures=(), findings=(), warnings=()))
        assert base.list_done()["/a/core"] == (1, 2)
    (again,) = [row for row in store.rows(str(tmp_path / "a.db")) if row.core == "/a/core"]
    assert (again.signatures, again.findings, again.warnings) == ((), (), ())


def test_the_documented_query(tmp_path: Path) -> None:
    rows = [dataclasses.replace(GOOD, core=f"/{at}", time=100.0 + at) for at in range(3)]
    make_database(tmp_path / "a.db", *rows, BAD)
    found = group_leaks(rows)
    with closing(store.resume(str(tmp_path / "a.db"), "1")) as base:
        base.name(found.groups)
    query = re.search(r"^    (SELECT signature.*?;)$", store.__doc__ or "", re.M | re.S)
    assert query
    with closing(sqlite3.connect(tmp_path / "a.db")) as base:
        rows_found = base.execute(query[1]).fetchall()
    expected = [(one.signature, one.what, one.cores, one.blocks, one.bytes, one.first, one.last) for one in found.groups]
    assert rows_found == expected and [one[2:] for one in expected] == [(3, 60, 1920, 100.0, 102.0), (3, 60, 3, 100.0, 102.0)]
    assert expected[0][1] == "cycle of 64 B → 24 B; refers to live blocks"
    again = next(row for row in store.rows(str(tmp_path / "a.db")) if row.core == "/0")
    assert [leak._replace(what="64 B") for leak in again.signatures] == list(rows[0].signatures)


def test_existing_files_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_text("precious")
    with pytest.raises(FindleaksError, match="exists; resume it with --resume"):
        store.create(str(path), "1")
    assert path.read_text() == "precious"
    with pytest.raises(FindleaksError):
        store.resume(str(path), "1")
    assert path.read_text() == "precious"
    with pytest.raises(FindleaksError, match="unable to open database file"):
        store.create(str(tmp_path / "none" / "a.db"), "1")


def test_an_empty_database_can_be_resumed(tmp_path: Path) -> None:
    for at, begin in enumerate((lambda path: None, lambda path: path.touch(), lambda path: make_database(path))):
        path = tmp_path / str(at)
        begin(path)
        with closing(store.resume(str(path), "1")) as base:
            base.add(Source("/a/core", "/a/core"), GOOD)
        assert len(list(store.rows(str(path)))) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("PRAGMA user_version = 2", "written by a newer findleaks"),
        ("PRAGMA application_id = 1", "not a triage database of findleaks"),
        ("DROP TABLE leaks", "its tables are not those of this format"),
        ("DROP TABLE leaks; CREATE VIEW leaks AS SELECT 1", "its tables are not those of this format"),
        ("UPDATE cores SET status = 'x'", "the status 'x' is not valid"),
        ("UPDATE cores SET time = 'soon'", "damaged"),
        ("UPDATE leaks SET example = 'x'", "damaged"),
        ("UPDATE leaks SET bytes = -1", "a count was expected"),
        ("UPDATE cores SET seconds = 'nan'", "a time was expected"),
        ("UPDATE cores SET seconds = 9e999", "a time was expected"),
        ("UPDATE leaks SET what = CAST(x'ff' AS TEXT)", "damaged"),
    ],
)
def test_another_database_is_refused(tmp_path: Path, change: str, why: str) -> None:
    path = tmp_path / "a.db"
    make_database(path, GOOD)
    with closing(sqlite3.connect(path)) as base, base:
        base.executescript(change)
    with pytest.raises(FindleaksError, match=why):
        list(store.rows(str(path)))


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    make_database(tmp_path / "a.db", *(dataclasses.replace(GOOD, core=f"/{at}") for at in range(20)))
    data = (tmp_path / "a.db").read_bytes()
    for at in range(0, len(data), 997):
        (tmp_path / "b.db").write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        for read in (list_rows, resume):
            try:
                assert len(read(str(tmp_path / "b.db"))) <= 20
            except FindleaksError as error:
                assert "\n" not in str(error)


def list_rows(path: str) -> list[Row]:
    return list(store.rows(path))


def resume(path: str) -> dict[str, tuple[int, int]]:
    with closing(store.resume(path, "1")) as base:
        return base.list_done()


def test_cyclic_pages_are_refused(tmp_path: Path) -> None:
    """Otherwise a b-tree with a page that is its own child would be read forever."""
    path = tmp_path / "a.db"
    make_database(path, *(dataclasses.replace(GOOD, core=f"/{at}" + "x" * 400) for at in range(100)))
    with closing(sqlite3.connect(path)) as base:
        (page,) = base.execute("SELECT rootpage FROM sqlite_master WHERE name = 'cores'").fetchone()
        (size,) = base.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    at = (page - 1) * size
    assert data[at] == 5  # an interior page of a table (https://www.sqlite.org/fileformat.html)
    data[at + 8 : at + 12] = page.to_bytes(4, "big")
    path.write_bytes(data)
    for read in (list_rows, resume):
        with pytest.raises(FindleaksError, match="damaged"):
            read(str(path))


def test_an_index_without_its_rows_is_refused(tmp_path: Path) -> None:
    """SQLite reads a file with this damage without an error, and fails only when a row is changed: after all cores were examined."""
    path = tmp_path / "a.sqlite"
    make_database(path, GOOD)
    with closing(sqlite3.connect(path)) as base:
        (entry,) = base.execute("SELECT * FROM sqlite_master WHERE name = 'leaks_by_own'").fetchall()
        base.execute("PRAGMA writable_schema = ON")
        base.execute("DELETE FROM sqlite_master WHERE name = 'leaks_by_own'")
        base.commit()
    with closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE leaks SET own = own || 'x'")
        base.execute("PRAGMA writable_schema = ON")
        base.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", entry)
        base.commit()
    for use in (list_rows, resume):
        with pytest.raises(FindleaksError, match=r"the triage database is damaged: .*leaks_by_own"):
            use(str(path))


def test_parquet_has_the_rows(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    (tmp_path / "a.parquet").write_bytes(table([GOOD, BAD]))
    good, bad = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    expected = GOOD.result().to_json()
    assert good.pop("time").timestamp() == expected.pop("time")
    assert good == expected
    assert bad["core"] == "/a/\\xff\n'\"" and bad["status"] == FAILED and bad["signatures"] == [] and bad["time"] is None
