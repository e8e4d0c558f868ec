"""The page of `triage -o FILE.html` in a browser: it has the figures of the groups, it sorts and filters rows, and opens one core."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import browser
import pytest

from findleaks.formatting import size
from findleaks.report.fleet.html import MAX_GROUPS, MAX_ROWS, render_html
from findleaks.triage.groups import Grouped, group_leaks
from findleaks.triage.row import FAILED, OK, PARTIAL, FindingLine, LeakSum, Row

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
DAY = 86400


def rows() -> list[Row]:
    """Return 60 rows: cores of two programs, three builds and 30 days. The last ten files are not cores."""
    made: list[Row] = []
    for at in range(50):
        program = "shop" if at % 5 else "imgproxy"
        leaks = [LeakSum(f"{program}-texts", 'text "GET"', '"GET /orders"', 10 + at, 10 + at, 640 + at, 0x1000, 'text "GET"')]
        if at % 3 == 0:
            leaks.append(LeakSum(f"{program}-late", f"Part {HOSTILE}", "", 1, 2, 100_000 + at, 0x2000, f"Part {HOSTILE}"))
        made.append(
            Row(
                *(f"/crash/{at:03} of it", PARTIAL if at % 10 == 3 else OK, program, f"{at // 20}" * 40, "SIGSEGV", "crash_here"),
                time=1.7e9 + at * DAY / 2,
                lost_blocks=sum(leak.blocks for leak in leaks),
                lost_bytes=sum(leak.bytes for leak in leaks),
                findings=(FindingLine("lost", 1, f"Lost: a lot {HOSTILE}"), FindingLine("kept", 1, "Kept: little.")),
                signatures=tuple(leaks),
                warnings=("truncated",) if at % 10 == 3 else (),
                size=1 << 20,
            )
        )
    return [*made, *(Row(f"/crash/{HOSTILE}/{at}", FAILED, error="the file is empty", time=None) for at in range(10))]


def compare() -> Grouped:
    """Compare with a baseline that contains one of the leaks."""
    return group_leaks(rows(), [dataclasses.replace(row, signatures=row.signatures[:1]) for row in rows()[1:2]])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fleet") / "fleet.html"
    file.write_text(render_html(compare().rows, compare().groups, f"60 cores {HOSTILE}"), encoding="utf-8")
    return file


SEEN = """
const $ = id => document.getElementById(id);
const cells = table => [...document.querySelectorAll("#" + table + " tr.line")].map(line => [...line.cells].map(cell => cell.textContent));
const set = async (id, value) => {
  $(id).value = value; $(id).dispatchEvent(new Event("input")); $(id).dispatchEvent(new Event("change")); await sleep(20);
};
const column = async (table, word) => { document.querySelector(`#${table} [data-column=${word}] button`).click(); await sleep(20); };
const click = async (table, at) => { document.querySelectorAll("#" + table + " tr.line")[at].click(); await sleep(20); };
const builds = () => [...document.querySelectorAll("#builds .id, #builds .n")].map(one => one.textContent);
"""


def driven(page: Path, script: str, folder: Path, dark: bool = False) -> Any:
    reported = browser.drive(page, SEEN + script, folder, dark)
    assert reported["wrong"] == []
    assert reported["loaded"] == []
    return reported["answer"]


def test_its_figures_are_those_of_the_groups(page: Path, tmp_path: Path) -> None:
    answer = driven(
        page, 'return {groups: cells("groups"), rows: cells("rows"), title: document.title, head: $("headline").textContent};', tmp_path
    )
    groups = compare().groups
    assert len(groups) == 4
    for got, group in zip(answer["groups"], groups):
        leak = group.what + (f" e.g. {group.hint}" if group.hint else "") + ("NEW" if group.new else "")
        expected = [str(group.cores), group.program, size(group.bytes), size(group.bytes // group.cores), leak, group.signature]
        assert got[:6] == expected
        assert got[8] == str(len(group.builds))
    assert [got[-2] for got in answer["groups"]] == ["3"] * 4
    lost = sorted(((row.lost_bytes or -1, row.core) for row in rows()), key=lambda pair: (-pair[0], pair[1]))
    assert [got[0] for got in answer["rows"]] == [core for _, core in lost]
    assert {got[1] for got in answer["rows"]} == {OK, PARTIAL, FAILED}
    assert answer["title"] == "Cores: 60 cores" and HOSTILE in answer["head"]


def test_page_sorts_filters_and_opens(page: Path, tmp_path: Path) -> None:
    script = """
    const found = {};
    found.builds = builds();
    await set("program", "imgproxy");
    found.program = [cells("groups"), cells("rows").length, $("groupcount").textContent];
    await set("build", "1".repeat(40));
    found.build = cells("groups").map(one => [one[0], one[8]]);
    $("clear").click(); await sleep(20);
    await set("status", "failed");
    found.failed = [cells("rows").length, cells("groups").length];
    $("clear").click(); await sleep(20);
    await set("filter", "owned empty");
    found.words = cells("rows").length;
    $("clear").click(); await sleep(20);
    $("new").checked = true; await set("new", "on");
    found.fresh = cells("groups").length;
    $("clear").click(); await sleep(20);
    found.cleared = [cells("rows").length, $("clear").disabled];
    await column("groups", "bytes");
    found.bytes = cells("groups").map(one => one[5]);
    await column("groups", "bytes");
    found.reversed = cells("groups").map(one => one[5]);
    await column("rows", "core");
    found.cores = cells("rows").map(one => one[0]);
    await click("groups", 0);
    found.group = [cells("rows").length, document.querySelectorAll("#chart rect.has").length > 5, $("legend").textContent];
    await click("rows", 0);
    found.details = document.querySelector("tr.details").innerText;
    document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true})); await sleep(20);
    found.escaped = cells("rows").length;
    document.querySelectorAll("#chart rect.zone")[0].dispatchEvent(new MouseEvent("click", {bubbles: true})); await sleep(20);
    found.bucket = cells("rows").length;
    const before = document.documentElement.dataset.theme;
    $("theme").click();
    found.theme = [before, document.documentElement.dataset.theme];
    return found;
    """
    answer = driven(page, script, tmp_path, dark=True)
    made = compare().rows
    imgproxy = [row for row in made if row.program == "imgproxy"]
    assert answer["program"][1:] == [len(imgproxy), "2 groups of 4"]
    assert [one[0] for one in answer["program"][0]] == ["10", str(sum(len(row.signatures) == 2 for row in imgproxy))]
    second = [row for row in imgproxy if row.build_id.startswith("1")]
    assert answer["build"] == [[str(len(second)), "1"], [str(sum(len(row.signatures) == 2 for row in second)), "1"]]
    assert len(answer["builds"]) == 6 and answer["builds"][1].startswith("20 cores")
    assert answer["failed"] == [10, 0] and answer["words"] == 10 and answer["fresh"] == 3
    assert answer["cleared"] == [60, True]
    by_bytes = [group.signature for group in sorted(group_leaks(made).groups, key=lambda group: -group.bytes)]
    assert answer["bytes"] == by_bytes and answer["reversed"] == by_bytes[::-1]
    assert answer["cores"] == sorted(row.core for row in made)
    smallest = by_bytes[-1]
    having = sorted(row.core for row in made if any(leak.signature == smallest for leak in row.signatures))
    assert answer["group"][:2] == [len(having), True]
    assert f"findleaks verdict '{having[0]}'" in answer["details"] and "Kept: little." in answer["details"]
    assert answer["escaped"] == 60
    assert 0 < answer["bucket"] < 10
    assert answer["theme"] == ["dark", "light"]


def test_page_size_is_limited() -> None:
    """Cores with the smallest leaks are omitted, and their number is shown."""
    one = rows()[3]
    many = [dataclasses.replace(one, core=f"/{at}", lost_bytes=at, signatures=()) for at in range(MAX_ROWS + 7)]
    leaks = tuple(LeakSum(f"{at}", "64 B", "", 1, 1, at, 0, f"Part {at}") for at in range(MAX_GROUPS + 3))
    found = [*many, dataclasses.replace(one, signatures=leaks, lost_bytes=1 << 40)]
    page = render_html(group_leaks(found).rows, group_leaks(found).groups, "")
    assert '"left_out": [8, 3]' in page
    assert len(page) < 8 << 20
