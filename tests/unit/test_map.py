"""`map` on a fake process: text, pictures and errors, with the C engine and with the reference engine."""

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import re
import zlib
from pathlib import Path
from typing import Any, Optional

import graphs
import pytest
from fake import FakeTarget
from heaps import ListAllocator, Listed, session

from findleaks.audit.pages import read_areas
from findleaks.audit.residency import read_residency
from findleaks.commands import Invocation
from findleaks.commands.map import map as command
from findleaks.engine.pages import PageState
from findleaks.engine.terms import State
from findleaks.errors import FindleaksError, Interrupted, UsageError
from findleaks.report.heapmap.cells import Picture, blend, format_sums, make_cells, pages_per_cell
from findleaks.report.heapmap.terminal import Style, render_lines
from findleaks.session import Session
from findleaks.target.base import Module, Symbol
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs

BASE, PAGE = 0x7F0000000000, 4096
ENGINES = [graphs.native, graphs.pure]

# The pages: in use, half in use, untouched, cached, metadata, kept, returned.
BLOCKS = [
    Listed(BASE, PAGE - 16),
    Listed(BASE + PAGE, 2048),
    Listed(BASE + 2 * PAGE, PAGE),
    Listed(BASE + 3 * PAGE, 1000, State.CACHED),
    Listed(BASE + 4 * PAGE, 1000, State.METADATA),
    Listed(BASE + 5 * PAGE, 2 * PAGE, State.FREE),
]
HELD = [(BASE, BASE + 2 * PAGE), (BASE + 3 * PAGE, BASE + 6 * PAGE)]


def make_session(engine: Any, known: bool = True, stop_after: Optional[int] = None) -> Session:
    target = FakeTarget({BASE: bytes(8 * PAGE)}, pid=7, stop_after=stop_after)
    if known:
        target.pages = Presence("pagemap", Runs.of([(BASE, BASE + 8 * PAGE)]), Runs.of(HELD), Runs.of(()), 5 * PAGE)
    return session(target, [ListAllocator(BASE, BASE + 8 * PAGE, BLOCKS)], engine())


def arguments(**more: Any) -> argparse.Namespace:
    plain = {"output": "", "format": None, "allocator": None, "limit": 8, "residency": "", "save_residency": "", "json": False}
    return argparse.Namespace(**{**plain, **more})


def read_json(result: Any) -> dict[str, Any]:
    (found,) = result.json()
    return json.loads(json.dumps(found))


@pytest.mark.parametrize("engine", ENGINES)
def test_json(engine: Any) -> None:
    found = read_json(command.run(make_session(engine), arguments()))
    states = ["in_use", "untouched", "cached", "metadata", "kept", "returned"]
    assert [run["state"] for run in found["heaps"][0]["pages"]] == states
    assert [run["pages"] for run in found["heaps"][0]["pages"]] == [2, 1, 1, 1, 1, 2]
    assert [run["in_use"] for run in found["heaps"][0]["pages"]] == [PAGE + 2048, PAGE, 0, 0, 0, 0]
    assert found["heaps"][0]["pages"][0]["address"] == hex(BASE)
    assert found["totals"]["pages"] == {
        **dict.fromkeys(("unknown", "free"), 0), **dict(zip(states, (2 * PAGE, PAGE, PAGE, PAGE, PAGE, 2 * PAGE)))
    }  # fmt: skip
    assert (found["totals"]["resident"], found["totals"]["mapped"], found["totals"]["in_use"]) == (5 * PAGE, 8 * PAGE, 2 * PAGE + 2048)
    assert (found["heaps"][0]["cached"], found["heaps"][0]["metadata"]) == (1000, 1000)


@pytest.mark.parametrize("engine", ENGINES)
def test_unknown_residency_is_not_guessed(engine: Any) -> None:
    result = command.run(make_session(engine, known=False), arguments())
    found = read_json(result)
    assert [run["state"] for run in found["heaps"][0]["pages"]] == ["in_use", "cached", "metadata", "free"]
    assert found["residency"]["source"] == "unknown" and found["totals"]["resident"] is None
    text = "\n".join(result.text(80, Invocation("findleaks", "core")))
    assert "resident pages are unknown" in text and "--save-residency" in text and "may have been returned" in text


def test_text() -> None:
    text = list(command.run(make_session(graphs.native), arguments()).text(80, Invocation()))
    assert text[0].startswith("20 KiB resident in 1 heap (32 KiB mapped), 10 KiB in use")
    assert f"  {BASE:#014x}  █▓□cmo··" in text
    assert all(len(line) <= 80 for line in text)
    assert text[-3:] == ["  next: leaks map -o map.html", "        leaks caches --by-arena --sort waste", "        leaks verdict"]


def test_in_use_has_one_meaning_in_all_pictures() -> None:
    """In use is the number of bytes in blocks, computed by one function. Whole pages are counted by state, and the text says this."""
    from findleaks.report.heapmap.html import render_html
    from findleaks.report.heapmap.layout import place_picture

    session = make_session(graphs.native)
    known = read_residency(session)
    picture = Picture("a fake", read_areas(session, known), known, PAGE)
    said = format_sums(picture.areas[0])
    assert said == "32 KiB mapped, 20 KiB resident, 10 KiB in use"
    text = " ".join(" ".join(render_lines(picture, 80, Style(), 0)).split())
    assert picture.headline in text
    assert f"{said}; pages: 8.0 KiB occupied, 4.0 KiB untouched" in text
    assert "the state is that of the whole page" in text
    html = render_html(session, picture)
    assert f'"sums":"{said}"' in html.replace('": "', '":"') and picture.headline in html
    words = [word.text for word in place_picture(picture).words]
    assert said in words and picture.headline in words
    found = read_json(command.run(session, arguments()))
    assert found["totals"]["in_use"] == found["heaps"][0]["in_use"] == 10 << 10


def test_terminal_styles() -> None:
    kept = make_session(graphs.native)
    from findleaks.audit.pages import read_areas
    from findleaks.audit.residency import read_residency

    known = read_residency(kept)
    picture = Picture("a fake", read_areas(kept, known), known, PAGE)
    plain = list(render_lines(picture, 80, Style(plain=True), 0))
    assert all(line.isascii() for line in plain) and any("#+_cmo.." in line for line in plain)
    coloured = "\n".join(render_lines(picture, 80, Style(colour=True), 0))
    assert "\x1b[34m█▓\x1b[36m□" in coloured and re.sub(r"\x1b\[\d+m", "", coloured) == "\n".join(render_lines(picture, 80, Style(), 0))
    (whole,) = make_cells(picture.areas[0], 8)
    assert (whole.state, whole.pages, whole.share) == (PageState.IN_USE, 8, (255 + 128) // 2)
    assert pages_per_cell(1000, 100) == 16 and pages_per_cell(100, 100) == 1
    assert blend("#000000", "#ff8000", 255) == "#ff8000" and blend("#000000", "#ff8000", 0) == "#000000"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["map.svg", "map.png", "map.html"])
def test_pictures(engine: Any, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    result = command.run(make_session(engine), arguments(output=str(file)))
    assert read_json(result)["written"] == {
        "file": str(file),
        "bytes": file.stat().st_size,
        "format": {"html": "map"}.get(name[4:], name[4:]),
        "notes": [],
    }
    assert f"written to {file} (" in " ".join(result.text(1000, Invocation()))
    assert file.read_bytes().startswith({"svg": b"<svg ", "png": b"\x89PNG", "html": b"<!doctype html>"}[name[4:]])


def test_both_engines_draw_the_same_page(tmp_path: Path) -> None:
    for number, engine in enumerate(ENGINES):
        command.run(make_session(engine), arguments(output=str(tmp_path / f"{number}.html")))
    assert (tmp_path / "0.html").read_bytes() == (tmp_path / "1.html").read_bytes()


def test_png_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FindleaksError, match=r"needs Pillow.*pip install pillow") as error:
        command.run(make_session(graphs.native), arguments(output=str(tmp_path / "map.png")))
    assert "\n" not in str(error.value)


def test_invalid_arguments() -> None:
    for more in ({"output": "x.gif"}, {"save_residency": "x", "output": "x.svg"}, {"allocator": "nonsense"}):
        with pytest.raises(UsageError):
            command.run(make_session(graphs.native), arguments(**more))


def test_no_heap() -> None:
    empty = session(FakeTarget({BASE: bytes(PAGE)}), [])
    result = command.run(empty, arguments())
    assert result.status == 2 and next(iter(result.text(80, Invocation()))) == "no heap of a known allocator"
    assert read_json(result)["heaps"] == []


@pytest.mark.parametrize("after", range(3))
def test_interrupted(after: int, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        command.run(make_session(graphs.native, stop_after=after), arguments(output=str(tmp_path / "map.html")))


def test_types_of_blocks_and_pages(tmp_path: Path) -> None:
    """Addresses of functions as first words: of most blocks in a page, and of one block among others."""
    code = 0x400000
    data = bytearray(8 * PAGE)
    symbols = [Symbol(name, code + 64 * at, 64, "prog") for at, name in enumerate(("many", "single"))]
    starts = range(BASE, BASE + PAGE, 64)
    for number, start in enumerate(starts):
        data[start - BASE : start - BASE + 8] = (code + 64 * (number == 5)).to_bytes(8, "little")
    target = FakeTarget(
        {BASE: bytes(data), code: bytes(PAGE)},
        names={code: "/prog"},
        permissions={code: "r-x"},
        modules=[Module("/prog", 0, code, code + PAGE)],
        symbols=symbols,
    )
    made = session(target, [ListAllocator(BASE, BASE + 8 * PAGE, [Listed(start, 64) for start in starts])], graphs.native())
    command.run(made, arguments(output=str(tmp_path / "map.html")))
    text = (tmp_path / "map.html").read_text()
    found = json.loads(re.search(r'<script type="application/json" id="meta">(.*?)</script>', text)[1])  # type: ignore[index]
    assert sorted(found["types"]) == ["", *sorted(made.types.name(symbol.address) for symbol in symbols)]
    planes = zlib.decompress(base64.b64decode(re.search(r'id="data">(.*?)</script>', text)[1]))  # type: ignore[index]
    of_pages, of_blocks = planes[8 * 64 + 2 * 8 : 8 * 64 + 3 * 8], planes[-64:]
    assert found["types"][of_pages[0]] == made.types.name(code) and not any(of_pages[1:])
    assert [found["types"][number] for number in of_blocks] == [made.types.name(symbols[at == 5].address) for at in range(64)]
