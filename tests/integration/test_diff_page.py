"""The page of `diff -o FILE.html` in a browser: it opens, has the figures of the JSON, sorts and filters rows, and draws the chosen
rows."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import browser
import debuggers
import pytest
import samples
from growthpage import Page
from variants import mark_matrix_except

from findleaks.commands import Invocation
from findleaks.commands.diff import Comparison, compare
from findleaks.formatting import size
from findleaks.history.figures import Figure
from findleaks.history.snapshot import Clock, Snapshot

PROGRAMS = Path(__file__).parents[1] / "programs"
WORDS = ("share", "mapping", "kind", "cache", "root", "type", "lost", "runtime", "handles", "threads")
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def arguments(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"output": "", "format": None, "by": None, "limit": None, "json": False, **more})


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("three") / "growth.html"
    compare(samples.samples(3, 3600.0, names=[HOSTILE]), arguments(output=str(file)))
    return file


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("many") / "growth.html"
    compare(samples.samples(500, more=190), arguments(output=str(file)))
    return file


def list_growth(by: str = "") -> list[dict[str, Any]]:
    (body,) = Comparison(samples.samples(3, 3600.0, names=[HOSTILE]), by=by).json()
    return json.loads(json.dumps(body))["grown"]


SEEN = """
const $ = id => document.getElementById(id);
const tab = async word => { document.querySelector("#tabs [data-word=" + word + "]").click(); await sleep(40); };
const cells = () => [...document.querySelectorAll("#rows tbody tr")].map(line => [...line.cells].slice(0, 6).map(cell => cell.textContent));
const column = async word => { document.querySelector("#rows [data-column=" + word + "]").click(); await sleep(20); };
const sorted = () => [...document.querySelectorAll("#rows th")].map(head => head.getAttribute("aria-sort")).join();
const filter = async text => { $("filter").value = text; $("filter").dispatchEvent(new Event("input")); await sleep(20); };
const press = async (on, key) => {
  on.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  await sleep(20);
};
const all = (within, what) => [...within.querySelectorAll(what)];
const legend = () => all(document, "#legend .entry").map(line => all(line, "span").map(one => one.textContent));
const over = async (part, high) => {
  const box = $("chart").getBoundingClientRect();
  const clientX = box.left + part * box.width, clientY = box.top + high * box.height;
  $("chart").dispatchEvent(new PointerEvent("pointermove", {clientX, clientY, bubbles: true}));
  await sleep(20);
  return $("tip").hidden ? "" : $("tip").innerText;
};
const axis = () => [...document.querySelectorAll("#chart .grid text")].map(one => {
  const box = one.getBoundingClientRect();
  return {text: one.textContent, left: box.left, right: box.right, top: box.top, bottom: box.bottom};
});
"""


def driven(page: Path, script: str, folder: Path, dark: bool = False) -> Any:
    reported = browser.drive(page, SEEN + script, folder, dark)
    assert reported["wrong"] == []
    assert reported["loaded"] == []
    return reported["answer"]


def amount(value: int, unit: str) -> str:
    return size(value) if unit == "bytes" else f"{value:,}"


def format_amount(value: float, unit: str) -> str:
    return f"{'−' if value < 0 else '+'} {amount(abs(round(value)), unit)}" if value else "0"


def test_its_tables_have_the_figures_of_the_json(three: Path, tmp_path: Path) -> None:
    script = """
    const found = {};
    for (const one of document.querySelectorAll("#tabs button")) { await tab(one.dataset.word); found[one.dataset.word] = cells(); }
    const findings = all($("findings"), "li").map(one => one.textContent);
    return {found, title: document.title, headline: $("headline").textContent, findings};
    """
    answer = driven(three, script, tmp_path)
    for word in (None, *WORDS):
        rows = answer["found"][word or "grew"]
        expected = []
        for row in list_growth(word):
            rated = row["per_hour"] and row["trend"] in ("growing", "falling")
            hour = format_amount(row["per_hour"]["rate"], row["unit"]) if rated else "–"
            figures = [amount(row[name], row["unit"]) for name in ("before", "after")]
            expected.append([*figures, format_amount(row["delta"], row["unit"]), hour, row["trend"]])
        assert sorted(cells[1:] for cells in rows) == sorted(expected)
    assert len(answer["found"]["all"]) == sum(len(answer["found"][word]) for word in WORDS)
    assert answer["title"] == "What grew: shop"
    text = list(Comparison(samples.samples(3, 3600.0, names=[HOSTILE])).text(10_000, Invocation()))
    assert answer["headline"] == text[0] and "+ 340 MiB" in text[0]
    assert answer["findings"] == [line[5:] for line in text if re.match(r"  \d\. ", line)] != []
    assert any(HOSTILE in cells[0] for cells in answer["found"]["lost"])  # as text


def test_page_sorts_and_filters(three: Path, tmp_path: Path) -> None:
    script = """
    await tab("all");
    const told = {start: [sorted(), cells()]};
    for (const word of ["before", "after", "growth", "hour", "what"]) {
      await column(word);
      const once = [sorted(), cells()];
      await column(word);
      told[word] = [once, [sorted(), cells()]];
    }
    await filter("G_SESSIONS cart");
    told.filtered = [$("matches").textContent, cells()];
    await filter("no such thing");
    told.nothing = [$("matches").textContent, cells(), $("more").textContent];
    await press($("filter"), "Escape");
    told.cleared = [$("filter").value, cells().length];
    $("trend").value = [...$("trend").options].find(one => one.text === "plateau").value;
    $("trend").dispatchEvent(new Event("change"));
    told.plateau = cells();
    return told;
    """
    answer = driven(three, script, tmp_path)
    rows = [row for by in WORDS for row in list_growth(by)]
    assert answer["start"][0] == "none,none,none,descending,none,none,"
    for at, word, key in ((1, "before", "before"), (2, "after", "after"), (3, "growth", "delta")):
        for (state, cells), down in zip(answer[word], (True, False)):
            assert state.split(",")[at] == ("descending" if down else "ascending")
            values = [
                amount(row[key], unit) if key != "delta" else format_amount(row[key], unit)
                for unit in ("bytes", "count")
                for row in sorted((row for row in rows if row["unit"] == unit), key=lambda row: row[key], reverse=down)
            ]
            assert [line[at] for line in cells] == values
    names = [line[0].lower() for line in answer["what"][0][1]]
    assert answer["what"][0][0].startswith("ascending") and names != [line[0].lower() for line in answer["start"][1]]
    assert names[0] != names[-1] == answer["what"][1][1][0][0].lower()
    assert answer["filtered"][0] == f"2 of {len(rows)} rows" and all("g_sessions" in line[0] for line in answer["filtered"][1])
    assert answer["nothing"] == [f"0 of {len(rows)} rows", [], "no row matches"]
    assert answer["cleared"] == ["", len(rows)]
    assert len(answer["plateau"]) == len([row for row in rows if row["trend"] == "plateau"]) > 0


def test_tooltips(three: Path, tmp_path: Path) -> None:
    script = """
    const told = {first: await over(0.11, 0.5), middle: await over(0.52, 0.5), last: await over(0.97, 0.5)};
    told.dots = document.querySelectorAll("#cross circle").length;
    $("chart").dispatchEvent(new PointerEvent("pointerleave"));
    told.gone = $("tip").hidden;
    $("chart").focus();
    await press($("chart"), "Home");
    told.home = $("tip").innerText;
    await press($("chart"), "ArrowRight");
    told.right = $("tip").innerText;
    told.said = $("said").textContent;
    await press($("chart"), "Escape");
    told.escaped = $("tip").hidden;
    await tab("share");
    told.share = await over(0.97, 0.3);
    return told;
    """
    answer = driven(three, script, tmp_path)
    snapshots = samples.samples(3, 3600.0)
    top = list_growth()[0]
    for at, name in enumerate(("first", "middle", "last")):
        text = answer[name]
        assert text.startswith(f"{at + 1} of 3 {snapshots[at].name}")
        assert size(snapshots[at].total().bytes or 0) in text and size(top["bytes"][at]) in text
    assert ("+ 60 min" in answer["middle"], "+ 2 h" in answer["last"]) == (True, True)
    assert format_amount(top["delta"], "bytes") in answer["last"] and answer["dots"] > 3
    assert answer["gone"] and answer["escaped"]
    assert (answer["home"], answer["right"]) == (answer["first"], answer["middle"])
    assert snapshots[1].name in answer["said"] and size(top["bytes"][1]) in answer["said"]
    for row in list_growth("share"):
        assert size(row["after"]) in answer["share"]


def test_a_chosen_row_is_drawn(three: Path, tmp_path: Path) -> None:
    script = """
    await tab("root");
    const line = text => [...document.querySelectorAll("#rows tbody tr")].find(one => one.textContent.includes(text));
    const told = {before: legend().length};
    line("g_cache").click();
    await sleep(40);
    const curves = document.querySelectorAll("#chart .curve").length;
    told.chosen = [legend(), line("g_cache").getAttribute("aria-selected"), curves, $("legend").innerText];
    line("main thread").dispatchEvent(new MouseEvent("click", {bubbles: true, ctrlKey: true}));
    await sleep(40);
    told.both = legend().length;
    await press(document.body, "Escape");
    told.cleared = [legend().length, document.querySelectorAll("[aria-selected=true][data-row]").length];
    const first = document.querySelector("#rows tbody tr");
    first.focus();
    await press(first, "ArrowDown");
    told.second = document.activeElement === document.querySelectorAll("#rows tbody tr")[1];
    await press(document.activeElement, "Enter");
    told.entered = [legend()[0][0], document.activeElement.cells[0].textContent, $("said").textContent];
    document.querySelector("#units [data-word=count]").click();
    await sleep(40);
    told.counts = legend();
    await press(document.querySelector("#tabs [aria-selected=true]"), "ArrowRight");
    told.next = [document.activeElement.dataset.word, document.querySelector("#tabs [aria-selected=true]").dataset.word];
    return told;
    """
    answer = driven(three, script, tmp_path)
    warm = next(row for row in list_growth("root") if row["name"].startswith("g_cache"))
    assert answer["before"] > 2 and answer["both"] == 2
    curves, selected, drawn, text = answer["chosen"]
    assert (len(curves), selected, drawn) == (1, "true", 1) and curves[0][1] == format_amount(warm["delta"], "bytes")
    assert f"0 → {warm['counts'][-1]:,}" in text and "plateau" in text
    assert answer["cleared"] == [answer["before"], 0]
    assert answer["second"] and answer["entered"][0] == answer["entered"][1]
    assert answer["counts"][0][1] == "+ 743,111"
    assert answer["next"] == ["type", "type"]


def level(colour: str) -> int:
    return sum(int(value) for value in re.findall(r"\d+", colour)[:3])


@pytest.mark.parametrize("dark", mark_matrix_except({"light": False, "dark": True}, "light"))  # the script changes the theme, too
def test_colours(three: Path, tmp_path: Path, dark: bool) -> None:
    script = """
    const colours = () => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color, $("theme").textContent];
    const told = [colours()];
    for (let at = 0; at < 2; at++) { $("theme").click(); await sleep(20); told.push(colours()); }
    return told;
    """
    first, other, again = driven(three, script, tmp_path, dark)
    assert first == again
    for (ground, ink, _), is_dark in ((first, dark), (other, not dark)):
        assert (level(ground) < 150) == is_dark and (level(ink) > 600) == is_dark


def test_five_hundred_samples(many: Path, tmp_path: Path) -> None:
    script = """
    const told = {headings: {}};
    for (const one of document.querySelectorAll("#tabs button")) { await tab(one.dataset.word); told.headings[one.dataset.word] = axis(); }
    await tab("cache");
    told.rows = [cells().length, $("matches").textContent, $("rest").textContent];
    document.querySelector("#more button").click();
    await sleep(40);
    told.all = cells().length;
    told.points = Math.max(...[...document.querySelectorAll("#chart .curve")].map(one => one.getAttribute("d").split("L").length));
    told.spark = Math.max(...[...document.querySelectorAll(".spark path")].map(one => one.getAttribute("d").split("L").length));
    told.wide = document.documentElement.scrollWidth <= innerWidth;
    $("samples").open = true;
    await sleep(60);
    told.samples = [$("samples").querySelectorAll("tbody tr").length, $("samples").querySelector("tbody tr:last-child").innerText];
    return told;
    """
    answer = driven(many, script, tmp_path)
    assert answer["rows"][:2] == [100, "200 rows"] and answer["all"] == 200 and answer["rows"][2].startswith("3 more rows")
    assert answer["points"] == 500 and answer["spark"] <= 60 and answer["wide"]
    assert answer["samples"][0] == 500 and "shop-4711-0500.snapshot" in answer["samples"][1]
    for word, texts in answer["headings"].items():
        assert len(texts) >= 6, word
        for at, one in enumerate(texts):
            assert one["left"] >= 0 and not any(_overlap(one, other) for other in texts[:at]), (word, one)
    assert any(text["text"].endswith(" MiB") for text in answer["headings"]["grew"])


def test_samples_without_times_and_figures(tmp_path: Path) -> None:
    """Samples without times are numbered along the axis. A total of None is drawn as a gap."""
    figures = [[Figure("total", "resident", None, amount)] for amount in (1 << 30, None, 3 << 30)]
    identity = samples.samples(1)[0].identity
    compare([Snapshot(f"core.{at}", Clock(), identity, figures[at]) for at in range(3)], arguments(output=str(tmp_path / "few.html")))
    script = """
    $("samples").open = true;
    await sleep(40);
    return {axis: axis().map(one => one.text), tabs: $("tabs").children.length, tip: await over(0.97, 0.5), empty: $("more").textContent,
            samples: all($("samples"), "tbody tr").map(line => line.innerText)};
    """
    answer = driven(tmp_path / "few.html", script, tmp_path)
    assert {"1", "2", "3", "sample"} <= set(answer["axis"]) and answer["tabs"] == 1 and answer["empty"] == "no row matches"
    assert answer["tip"].startswith("3 of 3 core.2") and "3.0 GiB" in answer["tip"]
    assert [line.split("\t")[-1] for line in answer["samples"]] == ["1.0 GiB", "–", "3.0 GiB"]


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(
        one["left"] < other["right"]
        and other["left"] < one["right"]
        and one["top"] + 2 < other["bottom"]
        and other["top"] + 2 < one["bottom"]
    )


@pytest.mark.parametrize("debugger", ["gdb", "lldb"])
def test_between_two_stops_of_a_debugger(debugger: str, tmp_path: Path) -> None:
    program, page = tmp_path / "two_stops", tmp_path / "page.html"
    subprocess.run(["cc", "-g", "-o", program, PROGRAMS / "two_stops.c"], check=True)
    lines = [
        "break stop",
        "run",
        "leaks snapshot before",
        "continue",
        f"leaks diff before -o {page}",
        "leaks diff before -o page.pdf",
        "kill",
    ]
    if debugger == "lldb":
        lines[:2] = ["breakpoint set -n stop", "run"]
    output = (debuggers.gdb if debugger == "gdb" else debuggers.lldb)(lines, str(program))
    assert f"written to {page} (" in " ".join(output.split()), output
    assert "end its name in .html" in output and "Traceback" not in output
    found = Page(page)
    assert [name for name, *_ in found.meta["samples"]] == ["before", "now"]
    rows = [row for row in found.rows("root") if row[2].startswith("g_list")]
    assert rows and rows[0][3][-1] - rows[0][3][0] == 30_000 * 40 and rows[0][4][-1] - rows[0][4][0] == 30_000
