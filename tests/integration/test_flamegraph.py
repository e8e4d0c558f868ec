"""The flame graph of `-o FILE.html` in a browser: its boxes, zoom and search, with the pointer and with the keyboard alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import browser
import pytest

from findleaks.report.flamegraph.html import render
from findleaks.report.profile import Frame, Measure, Profile, Sample

HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'
BOTH = (Measure("lost_blocks", "count", "Lost blocks"), Measure("lost_bytes", "bytes", "Lost bytes"))
START, MAIN = Frame("_start", 1, "shop"), Frame("main", 2, "shop")
PARSE, STRDUP = Frame("parse_header", 3, "shop"), Frame("strdup", 4, "libc.so.6")
SERVE, RECURSE = Frame("serve", 5, "shop"), Frame("visit", 6, "libvisit.so")

SAMPLES = [
    Sample((START, MAIN, PARSE, STRDUP), (300, 60_000)),
    Sample((START, MAIN, SERVE, PARSE, STRDUP), (10, 20_000)),
    Sample((START, MAIN, SERVE), (5, 10_000)),
    Sample((START, MAIN, RECURSE, RECURSE, RECURSE), (1, 10_000)),
]
BEFORE = [(100, 20_000), (40, 80_000), (5, 10_000), (0, 0)]

SEEN = """
const $ = id => document.getElementById(id);
const graph = $("graph"), canvas = $("canvas"), context = canvas.getContext("2d");
const frame = () => sleep(40);
const press = async (...names) => {
  for (const key of names) { graph.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true})); await frame(); }
  return $("said").textContent;
};
const send = async (kind, part, row) => {
  const box = graph.getBoundingClientRect();
  const clientX = box.left + 8 + part * (box.width - 16), clientY = box.top + 8 + row * 20 + 9;
  graph.dispatchEvent(new PointerEvent(kind, {clientX, clientY, bubbles: true}));
  await frame();
};
const over = async (part, row) => { await send("pointermove", part, row); return $("tip").hidden ? "" : $("tip").innerText; };
const click = async (part, row) => { await send("click", part, row); return $("detail").textContent; };
const search = async text => {
  $("search").value = text;
  $("search").dispatchEvent(new Event("input"));
  await frame();
  return $("matches").textContent;
};
const choose = async word => { document.querySelector("[data-word='" + word + "']").click(); await frame(); };
const pixel = (part, row) => {
  const ratio = devicePixelRatio, wide = graph.clientWidth - 16;
  const data = context.getImageData(Math.floor((8 + part * wide) * ratio), Math.floor((8 + row * 20 + 2) * ratio), 1, 1).data;
  return Array.from(data.slice(0, 3));
};
const table = async () => {
  await choose("table");
  return [...document.querySelectorAll("tbody tr")].map(row => [...row.cells].map(cell => cell.textContent));
};
"""


def page(folder: Path, compared: bool = False, samples: list[Sample] = SAMPLES) -> Path:
    rows = [one._replace(before=before) for one, before in zip(samples, BEFORE)] if compared else samples
    file = folder / "flames.html"
    file.write_bytes(render(Profile(f"Leaked blocks: {HOSTILE}", BOTH, rows, compared)))
    return file


def driven(file: Path, script: str, folder: Path, dark: bool = False) -> Any:
    reported = browser.drive(file, SEEN + script, folder, dark)
    assert reported["wrong"] == []
    assert reported["loaded"] == []
    return reported["answer"]


def test_pointer_and_search(tmp_path: Path) -> None:
    script = """
    const told = {title: document.title, heading: $("title").textContent, sum: $("sum").textContent};
    told.tips = [await over(0.3, 0), await over(0.3, 3), await over(0.75, 4), await over(0.75, 8)];
    told.found = await search("PARSE");
    told.pattern = await search("/^(serve|strdup)$/");
    told.file = await search("libvisit");
    told.bad = await search("/(/");
    told.none = await search("nowhere");
    await search("strdup");
    told.yellow = [pixel(0.3, 4), pixel(0.65, 5), pixel(0.3, 3)];
    await search("");
    told.zoomed = await click(0.75, 3);
    told.wide = await over(0.95, 3);
    told.reset = !$("whole").hidden;
    $("whole").click();
    await frame();
    told.back = await over(0.3, 3);
    await choose("lost_blocks");
    told.blocks = [$("sum").textContent, await over(0.5, 3)];
    return told;
    """
    told = driven(page(tmp_path), script, tmp_path)
    assert told["title"] == told["heading"] == f"Leaked blocks: {HOSTILE}"
    assert told["sum"] == "98 KiB; 4 stacks"
    root, parse, deep, none = (text.split("\n") for text in told["tips"])
    assert root[1] == "98 KiB" and none == [""]
    assert (
        parse[0] == "parse_header [shop]" and parse[1] == "59 KiB, 60 % of all" and parse[-1] == "Lost blocks: 300 lost blocks, 95 % of all"
    )
    assert deep[0] == "parse_header [shop]" and deep[1] == "20 KiB, 20 % of all"
    assert told["found"] == "78 KiB (80 %) in 2 places"
    assert told["pattern"] == "88 KiB (90 %) in 2 places"  # the strdup below serve is included
    assert told["file"] == "9.8 KiB (10 %) in 1 place"
    assert (told["bad"], told["none"]) == ("no pattern", "nothing found")
    assert told["yellow"][0] == told["yellow"][1] == [255, 225, 77] != told["yellow"][2]
    assert told["zoomed"] == "serve [shop]: 29 KiB, 30 % of all; 9.8 KiB its own"
    assert told["wide"].startswith("serve") and told["reset"]
    assert told["back"].startswith("parse_header")
    assert told["blocks"][0] == "316 lost blocks; 4 stacks" and told["blocks"][1].startswith("parse_header")


def test_keys_alone(tmp_path: Path) -> None:
    script = """
    graph.focus();
    const told = {focus: document.activeElement === graph};
    told.steps = [];
    for (const way of ["Down", "Down", "Down", "Down", "Right", "Right", "Left", "Down", "Up"]) told.steps.push(await press("Arrow" + way));
    await press("Enter");
    told.zoomed = [!$("whole").hidden, await over(0.99, 3)];
    await press("Escape");
    told.out = $("whole").hidden;
    document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "/", bubbles: true, cancelable: true}));
    told.searching = document.activeElement === $("search");
    await search("strdup");
    $("search").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
    await frame();
    told.matches = [$("said").textContent, await press("n"), await press("p")];
    await press("Escape");
    told.cleared = [$("search").value, $("matches").textContent];
    told.labels = [graph.getAttribute("aria-roledescription"), graph.tabIndex, $("said").getAttribute("aria-live")];
    return told;
    """
    told = driven(page(tmp_path), script, tmp_path)
    assert told["focus"]
    names = [step.split(",")[0] for step in told["steps"]]
    assert names == ["all", "_start", "main", "parse_header", "serve", "visit", "serve", "parse_header", "serve"]
    assert told["steps"][4] == "serve, level 3: 29 KiB, 30 % of all; 9.8 KiB its own"
    assert told["zoomed"][0] and told["zoomed"][1].startswith("serve") and told["out"] and told["searching"]
    # From serve to the next match, and then to the first match again.
    assert [re.split(r", level |:", text)[1] for text in told["matches"]] == ["5", "4", "5"]
    assert told["cleared"] == ["", ""]
    assert told["labels"] == ["flame graph", 0, "polite"]


def test_its_table(tmp_path: Path) -> None:
    script = """
    const told = {rows: await table(), names: [...document.querySelectorAll("th")].map(one => one.textContent)};
    document.querySelector("[data-column=all]").click();
    told.all = [...document.querySelectorAll("tbody td.name")].map(one => one.textContent);
    document.querySelector("tbody button").click();
    await frame();
    told.searched = [$("search").value, graph.hidden];
    return told;
    """
    told = driven(page(tmp_path), script, tmp_path)
    assert sorted(told["rows"]) == sorted(
        [
            ["78 KiB", "78 KiB", "strdup", "libc.so.6"],
            ["9.8 KiB", "29 KiB", "serve", "shop"],
            ["9.8 KiB", "9.8 KiB", "visit", "libvisit.so"],  # the function called itself twice
            ["0 B", "98 KiB", "_start", "shop"],
            ["0 B", "98 KiB", "main", "shop"],
            ["0 B", "78 KiB", "parse_header", "shop"],
        ]
    )
    assert told["rows"][0][2] == "strdup" and set(told["all"][:2]) == {"_start", "main"}
    assert told["searched"] == [told["all"][0], False]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_two_snapshots(dark: bool, tmp_path: Path) -> None:
    script = """
    const told = {sum: $("sum").textContent, legend: $("legend").innerText};
    told.tips = [];
    for (const part of [0.05, 0.7, 0.97]) told.tips.push(await over(part, 3));
    told.colours = [0.05, 0.7, 0.97].map(part => pixel(part, 3));
    told.ground = getComputedStyle(document.body).backgroundColor;
    told.rows = await table();
    return told;
    """
    told = driven(page(tmp_path, True), script, tmp_path, dark)
    # A width is the larger one of both snapshots: serve 90,000, parse_header 60,000, visit 10,000.
    assert told["sum"] == "107 KiB → 98 KiB, − 9.8 KiB; 4 stacks"
    serve, parse, visit = (text.split("\n") for text in told["tips"])
    assert serve[:2] == ["serve [shop]", "88 KiB → 29 KiB, − 59 KiB"]
    assert parse[:2] == ["parse_header [shop]", "20 KiB → 59 KiB, + 39 KiB"]
    assert visit[:2] == ["visit [libvisit.so]", "0 B → 9.8 KiB, + 9.8 KiB"]
    (r1, _, b1), (r2, _, b2), (r3, _, b3) = told["colours"]
    assert b1 > r1 and r2 > b2 and r3 > b3 and r3 - b3 > r2 - b2
    assert "+ grew" in told["legend"] and "− shrank" in told["legend"]
    level = [int(value) for value in re.findall(r"\d+", told["ground"])[:3]]
    assert sum(level) < 150 if dark else sum(level) > 700
    assert [row[0] for row in told["rows"] if row[3] in ("serve", "visit")] == ["− 59 KiB", "+ 9.8 KiB"]


def test_deep_and_empty(tmp_path: Path) -> None:
    """A stack of 3,000 frames can be scrolled. A graph without stacks shows a message."""
    deep = tuple(Frame(f"f{at}", at + 1, "shop") for at in range(3000))
    script = """
    graph.focus();
    await search("f2999");
    const said = await press("n");
    return {said, shown: graph.scrollTop > 50000, rows: $("space").offsetHeight};
    """
    told = driven(page(tmp_path, samples=[Sample(deep, (1, 64))]), script, tmp_path)
    assert told["said"].startswith("f2999, level 3000: 64 B") and told["shown"] and told["rows"] == 3001 * 20 + 16
    empty = driven(page(tmp_path, samples=[]), "return [$('sum').textContent, await over(0.5, 0), (await table()).length];", tmp_path)
    assert empty[0] == "0 B; 0 rows" and empty[2] == 0
