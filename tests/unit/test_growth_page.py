"""The page of `diff -o`: its contents, the parts that it leaves out, and that names from the target stay text.
test_diff_page.py tests it in a browser."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import stat
from pathlib import Path
from typing import Any, Optional

import escapes
import pytest
import samples
from growthpage import Page, unpack_series

from findleaks import cli
from findleaks.commands import Invocation
from findleaks.commands.diff import Comparison, check, compare
from findleaks.errors import FindleaksError, UsageError
from findleaks.history.figures import Figure
from findleaks.history.snapshot import Clock, Snapshot
from findleaks.report.files import write_file
from findleaks.report.growth import html
from findleaks.report.growth.html import MAX_PAGE, MAX_ROWS, MAX_SAMPLES
from findleaks.report.pack import LARGEST, pack_series

WORDS = ("share", "mapping", "kind", "cache", "root", "type", "lost", "runtime", "handles", "threads")


def arguments(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"output": "", "format": None, "by": None, "limit": None, "json": False, **more})


def make_page(snapshots: list[Snapshot], folder: Path, **more: Any) -> tuple[Page, Comparison]:
    found = compare(snapshots, arguments(output=str(folder / "growth.html"), **more))
    return Page(folder / "growth.html"), found


def read_rows(snapshots: list[Snapshot], by: Optional[str]) -> list[dict[str, Any]]:
    (body,) = Comparison(snapshots, by=by or "").json()
    return json.loads(json.dumps(body))["grown"]


@pytest.mark.parametrize("count", [2, 3, 9])
def test_figures_equal_those_of_the_json(count: int, tmp_path: Path) -> None:
    snapshots = samples.samples(count, 3600.0)
    page, found = make_page(snapshots, tmp_path)
    for word in (None, *WORDS):
        grown = read_rows(snapshots, word)
        rows = page.rows(word or "grew")
        expected = [
            (row["what"], row["within"] or "", row["name"], row["bytes"], row["counts"], row["trend"], row["per_hour"]) for row in grown
        ]
        assert len(rows) == len(expected) > 0
        for got, (*left, hour) in zip(sorted(rows, key=str), sorted(expected, key=str)):
            assert list(got[:-1]) == left
            assert got[-1] == (hour and pytest.approx([hour["rate"], hour["low"], hour["high"]], abs=0.001))
        growths = [((row[3] or row[4])[-1] or 0) - ((row[3] or row[4])[0] or 0) for row in rows if row[3]]
        assert growths == sorted(growths, reverse=True)
    assert page.series[page.meta["total"]["series"]][0] == [one.total().bytes for one in snapshots]
    assert page.meta["headline"] == next(iter(found.text(10_000, Invocation())))
    assert page.meta["times"] == [3600.0 * at for at in range(count)]
    assert [name for name, *_ in page.meta["samples"]] == [one.name for one in snapshots]


def test_text_and_json_name_the_page(tmp_path: Path) -> None:
    _, found = make_page(samples.samples(3), tmp_path)
    file = tmp_path / "growth.html"
    (body,) = found.json()
    assert body["written"] == {"file": str(file), "bytes": file.stat().st_size, "format": "page", "notes": []}
    text = " ".join(" ".join(found.text(100, Invocation())).split())
    assert f"written to {file}" in text
    (plain,) = Comparison(samples.samples(3)).json()
    assert "written" not in plain
    assert [path.name for path in tmp_path.iterdir()] == ["growth.html"]


def test_command_line_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = samples.save_samples(samples.samples(3), tmp_path / "series")
    file = tmp_path / "a b.html"
    assert cli.main(["diff", str(folder), "-o", str(file), "--by", "root"]) == 0
    assert f"written to {file}" in " ".join(capsys.readouterr().out.split())
    page = Page(file)
    assert page.meta["opened"] == "root" and len(page.meta["samples"]) == 3 and set(page.categories) == {"grew", *WORDS}
    for words, line in (
        (["-o", str(tmp_path / "x.pdf")], "end its name in .html"),
        (["-o", str(tmp_path / "none" / "x.html")], "none/x.html: cannot be written: no such file or directory"),
    ):
        assert cli.main(["diff", str(folder), *words]) == 2
        error = capsys.readouterr().err
        assert line in error and error.count("\n") == 1
    # The name of the output file is checked before a core is read.
    assert cli.main(["diff", str(tmp_path / "no such core"), "-o", "x.pdf"]) == 2
    assert "end its name in .html" in capsys.readouterr().err


HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "</title><img src=x onerror=alert(1)>",
    "<!--<script>",
    "@META@ @page.js@ @TITLE@",
    "\x1b[31mred\x07",
    "\u202eexe.txt\u2066",
    "\u2028line\u2029",
    "]]>&amp;\"'\\u003c",
    "\udc80\udcff",
]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    snapshots = samples.samples(3, names=HOSTILE)
    snapshots = [
        dataclasses.replace(
            one,
            name=HOSTILE[at % len(HOSTILE)],
            identity=dataclasses.replace(one.identity, program=HOSTILE[0], build_id=HOSTILE[1]),
            warnings=tuple(HOSTILE),
        )
        for at, one in enumerate(snapshots)
    ]
    page, _ = make_page(snapshots, tmp_path)
    escapes.check(page.text.encode(), "a page")
    plain, _ = make_page(samples.samples(3), tmp_path)
    for mark in ("<script", "</script", "<!--", "<img", "</title>"):
        assert page.text.count(mark) == plain.text.count(mark), mark
    assert "\\u003c/script>\\u003cscript>" in page.text
    names = {row[2] for row in page.rows("lost")}
    assert {HOSTILE[0], HOSTILE[1], HOSTILE[3]} <= names and r"\x1b[31mred\x07" in names
    assert page.meta["title"] == f"What grew: {HOSTILE[0]}"


def make_noise(count: int, each: int) -> list[Snapshot]:
    """Return snapshots whose figures change at random in every section. They compress badly."""
    noise = random.Random(3)
    sections = ("mapping", "share", "kind", "cache", "root", "lost", "runtime type", "handles", "threads")
    name = "a rather long name, of the kind that templates have: std::map<std::string, std::vector<std::pair<int, int>>> "
    kept = []
    for at in range(count):
        figures = [Figure("total", "resident", None, noise.randrange(1 << 40))]
        for section in sections:
            whole = "definite" if section == "lost" else ""
            for number in range(each):
                figures.append(Figure(section, f"{name}{number}", noise.randrange(1 << 32), noise.randrange(1 << 40), whole))
        kept.append(Snapshot(f"{at}", Clock(1e9 + at), samples.samples(1)[0].identity, figures))
    return kept


def test_many_random_figures_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows only the rows that changed most, so that it does not become larger. It says how many rows are left out."""
    snapshots, most = make_noise(30, 90), 400 << 10
    whole, _ = make_page(snapshots, tmp_path)
    monkeypatch.setattr(html, "MAX_PAGE", most)
    page, _ = make_page(snapshots, tmp_path)
    assert most // 2 < len(page.text) <= most < len(whole.text) and len(whole.categories["cache"]["rows"]) == 90
    for word in ("mapping", "cache", "root"):
        one = page.categories[word]
        assert 20 <= len(one["rows"]) < 90 and len(one["rows"]) + one["rest"][0] == 90
    swings = sorted((max(row["bytes"]) - min(row["bytes"]) for row in read_rows(snapshots, "mapping")), reverse=True)
    shown = sorted((max(row[3]) - min(row[3]) for row in page.rows("mapping")), reverse=True)
    assert shown == swings[: len(shown)]


def test_five_hundred_snapshots(tmp_path: Path) -> None:
    snapshots = samples.samples(500, more=190)
    page, _ = make_page(snapshots, tmp_path)
    assert len(page.text) < MAX_PAGE
    assert len(page.meta["samples"]) == 500 and len(page.categories["cache"]["rows"]) == MAX_ROWS
    assert page.categories["cache"]["rest"][0] == len(read_rows(snapshots[:2], "cache")) - MAX_ROWS
    sessions = next(row for row in page.rows("root") if row[0] == "root" and row[2].startswith("g_sessions"))
    expected = [next(figure for figure in one.figures if figure.name.startswith("g_sessions")) for one in snapshots]
    assert sessions[3] == [figure.bytes for figure in expected] and sessions[4] == [figure.number for figure in expected]


def test_more_samples_than_a_curve_needs(tmp_path: Path) -> None:
    count = 2 * MAX_SAMPLES + 7
    identity = samples.samples(1)[0].identity
    figures = [[Figure("total", "resident", None, at)] for at in range(count)]
    page, _ = make_page([Snapshot(f"{at}", Clock(1e9 + at), identity, figures[at]) for at in range(count)], tmp_path)
    assert len(page.meta["samples"]) == MAX_SAMPLES and page.meta["of"] == count
    total = page.series[page.meta["total"]["series"]][0]
    assert total is not None
    assert (total[0], total[-1]) == (0, count - 1)
    assert total == [ordinal - 1 for _, ordinal, _ in page.meta["samples"]] == page.meta["times"]


@pytest.mark.parametrize(
    "times", [(None, 1.0, 2.0), (2.0, 1.0, 3.0), (5.0, 5.0, 5.0), (0.0, float("inf"), float("inf")), (1e300, 2e300, 3e300)], ids=str
)
def test_samples_without_times_are_numbered(times: tuple[Optional[float], ...], tmp_path: Path) -> None:
    snapshots = [Snapshot(one.name, Clock(time), one.identity, one.figures) for one, time in zip(samples.samples(3), times)]
    page, _ = make_page(snapshots, tmp_path)
    assert page.meta["times"] is None
    assert [ordinal for _, ordinal, _ in page.meta["samples"]] == [1, 2, 3]


def test_packed_series() -> None:
    series = [[0, 0, 0], [None, 5, None], [-3, 1 << 40, -(1 << 40)], [LARGEST + 9, -LARGEST - 9, 7], [63, 64, -64], [None] * 3]
    assert unpack_series(pack_series(series), 3) == [
        *series[:3],
        [LARGEST, -LARGEST, 7],
        *series[4:],
    ]


def test_a_section_that_a_sample_lacks(tmp_path: Path) -> None:
    """A section without data means that its figure was 0."""
    snapshots = samples.samples(4)
    snapshots[1] = dataclasses.replace(snapshots[1], figures=[one for one in snapshots[1].figures if one.section != "lost"])
    page, _ = make_page(snapshots, tmp_path)
    row = next(row for row in page.rows("lost") if row[2] == "64 B")
    assert row[3][1] == 0 and row[3][0] == 190 * 64


def test_files_are_written_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.html"
    mask = os.umask(0o027)
    try:
        write_file(str(file), b"one")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.chmod(0o604)
    (tmp_path / "link.html").symlink_to(file)
    write_file(str(tmp_path / "link.html"), b"two")
    assert file.read_bytes() == b"two" and (tmp_path / "link.html").is_symlink() and stat.S_IMODE(file.stat().st_mode) == 0o604

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FindleaksError, match=r"page\.html: cannot be written: no space left on device"):
        write_file(str(file), b"three")
    assert file.read_bytes() == b"two" and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(FindleaksError, match="cannot be written: is a directory"):
        write_file(str(tmp_path), b"four")


def test_devices_are_written_to(tmp_path: Path) -> None:
    """/dev/stdout and the like are not replaced."""
    read, write = os.pipe()
    try:
        write_file(f"/proc/self/fd/{write}", b"page")
        assert os.read(read, 9) == b"page"
    finally:
        os.close(read)
        os.close(write)
    write_file("/dev/null", b"page")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_output_must_be_html() -> None:
    for name in ("growth", "growth.svg", "growth.html.gz"):
        with pytest.raises(UsageError, match=r"end its name in \.html"):
            check(arguments(output=name))
    check(arguments(output="GROWTH.HTML"))
    check(arguments())
