"""The page of `map -o FILE.html` in a browser: its drawing, zoom, tooltips and search."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import browser
import pagetruth
import pytest
from debuggers import findleaks
from pagetruth import PAGE, Truth
from variants import mark_matrix_except

from cores import Running
from findleaks.engine.pages import PageState
from findleaks.report.heapmap.cells import BY_STATE


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    folder = tmp_path_factory.mktemp("drawn")
    with Running([str(pagetruth.build(folder))], folder / "run") as running:
        findleaks("map", "-o", str(folder / "map.html"), "--pid", str(running.pid))
        return folder / "map.html", pagetruth.truth(running.output)


SEEN = """
const canvas = document.getElementById("canvas"), context = canvas.getContext("2d");
const colours = () => {
  const data = context.getImageData(0, 0, canvas.width, canvas.height).data, found = {};
  for (let at = 0; at < data.length; at += 4) {
    const key = "#" + [0, 1, 2].map(i => data[at + i].toString(16).padStart(2, "0")).join("");
    found[key] = (found[key] || 0) + 1;
  }
  return found;
};
const press = async name => { document.body.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true})); await sleep(60); };
const scale = () => document.getElementById("scale").textContent;
const tip = () => document.getElementById("tip").hidden ? "" : document.getElementById("tip").innerText;
const over = async (x, y) => {
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + x, clientY: box.top + y, bubbles: true}));
  await sleep(30);
  return tip();
};
const at = async address => {
  const field = document.getElementById("address");
  field.value = address;
  field.dispatchEvent(new Event("change"));
  await sleep(30);
  return tip();
};
"""


def driven(drawn: tuple[Path, Truth], script: str, folder: Path, dark: bool = False) -> Any:
    reported = browser.drive(drawn[0], SEEN + script, folder, dark)
    assert reported["wrong"] == []
    assert reported["loaded"] == []
    return reported["answer"]


def cell(state: PageState, dark: bool) -> str:
    look = BY_STATE[state]
    return look.dark if dark else look.light


@pytest.mark.parametrize("dark", mark_matrix_except({"light": False, "dark": True}, "light"))
def test_drawing_and_zoom(drawn: tuple[Path, Truth], tmp_path: Path, dark: bool) -> None:
    script = """
    const steps = [{scale: scale(), colours: colours()}];
    for (const name of ["+", "+", "-", "0"]) { await press(name); steps.push({scale: scale(), colours: colours()}); }
    return {steps, ratio: devicePixelRatio, ground: getComputedStyle(document.body).backgroundColor};
    """
    answer = driven(drawn, script, tmp_path, dark)
    first, once, twice, back, whole = answer["steps"]
    counts = {state: list(drawn[1].states().values()).count(state) for state in PageState}
    assert first["scale"].startswith("a cell is a page")
    pixels = {}
    for state in (PageState.KEPT, PageState.RETURNED, PageState.UNTOUCHED):
        pixels[state] = first["colours"].get(cell(state, dark), 0) / counts[state]
    assert min(pixels.values()) >= 16  # each page has a cell
    assert max(pixels.values()) < min(pixels.values()) * 1.2
    assert first["scale"] == whole["scale"] and first["colours"] == whole["colours"]
    assert once["scale"] == back["scale"] and once["colours"] == back["colours"]
    assert len({json.dumps(step["colours"]) for step in (first, once, twice)}) == 3
    level = [int(value) for value in re.findall(r"\d+", answer["ground"])[:3]]
    assert sum(level) < 150 if dark else sum(level) > 700


def test_tooltips(drawn: tuple[Path, Truth], tmp_path: Path) -> None:
    truth = drawn[1]
    states = truth.states()
    wanted = {state: next(page for page, found in states.items() if found == state) for state in set(states.values())}
    asked = json.dumps({state.name: hex(page) for state, page in wanted.items()})
    block = truth.used[5][0]
    script = f"""
    const told = {{}};
    for (const [state, address] of Object.entries({asked})) told[state] = await at(address);
    told.block = await at("{block:#x}");
    told.none = await at("0x10");
    told.top = await at("{truth.heaps[0][1] - PAGE:#x}");
    await press("Escape");
    told.gone = tip();
    scroller.scrollTop = 0;
    await press("0");
    const rows = [];
    for (let y = 0; y < 320; y += 3) {{ const text = await over(300, y); if (text) rows.push(text); }}
    told.rows = rows;
    told.outside = await over(3, 3);
    return told;
    """
    answer = driven(drawn, script, tmp_path)
    for state, page in wanted.items():
        text = answer[state.name]
        assert text.split("\n")[0].endswith(BY_STATE[state].name)
        low, high = (int(word, 16) for word in re.search(r"(0x[0-9a-f]+) – (0x[0-9a-f]+)", text).groups())
        assert low <= page < high
        alike = re.search(r"([\d,]+) pages alike|a page,", text)
        assert (int(alike[1].replace(",", "")) if alike[1] else 1) == (high - low) // PAGE
        assert {states[at] for at in range(low, high, PAGE)} == {state}
    start, end = truth.used[5]
    assert re.search(rf"{start:#x}\s+{end - start - 8:,} B\s+in use", answer["block"])
    assert "the allocator's “top”" in answer["top"] and "“" not in answer["block"]
    assert answer["none"] == answer["block"] and answer["gone"] == "" and answer["outside"] == ""
    names = {text.split("\n")[0] for text in answer["rows"]}
    assert len(names) >= 3 and names <= {look.name for look in BY_STATE.values()}


def test_search(drawn: tuple[Path, Truth], tmp_path: Path) -> None:
    script = """
    const before = colours(), chips = [...document.querySelectorAll("#chips button")];
    const matches = () => document.getElementById("matches").textContent;
    const told = {before, states: {}};
    for (const chip of chips) {
      chip.click();
      told.states[chip.innerText.split("\\n")[0]] = [matches(), chip.getAttribute("aria-pressed"), colours()];
      chip.click();
    }
    told.none = matches();
    const select = document.getElementById("sizes"), bands = {};
    for (const option of select.options) {
      select.value = option.value;
      select.dispatchEvent(new Event("change"));
      bands[option.text] = matches();
    }
    told.bands = bands;
    return told;
    """
    answer = driven(drawn, script, tmp_path)
    states = list(drawn[1].states().values())
    assert answer["none"] == ""
    for state in set(states):
        look = BY_STATE[state]
        text, pressed, colours = next(
            found
            for name, found in answer["states"].items()
            if name.startswith(look.name) and (state != PageState.IN_USE or "untouched" not in name)
        )
        assert text.startswith(f"{states.count(state):,} of {len(states):,} pages") and pressed == "true"
        if state != PageState.KEPT:  # cells that do not match are dimmed
            assert colours.get(BY_STATE[PageState.KEPT].light, 0) < answer["before"][BY_STATE[PageState.KEPT].light] / 4
    listed = {name: found for name, found in answer["bands"].items() if name != "all"}
    assert len(listed) > 3
    for name, found in listed.items():
        assert found.split()[0] == re.search(r"\(([\d,]+) pages\)", name)[1]


def test_names_are_escaped(tmp_path: Path) -> None:
    from findleaks.report.heapmap.html import _assemble_page

    title = '</script><script>document.title="owned"</script>@META@<img src=x onerror=alert(1)>'
    text = _assemble_page({"title": title, "pages": 0}, "eA==")
    assert text.count("<script") == 3 and "<img" not in text and "owned" in text
