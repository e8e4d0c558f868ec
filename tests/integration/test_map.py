"""`map` reports the pages of a heap that the program prints: live, in a kernel's core, and in gcore's core with residency that was saved
before."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import building
import libcs
import pagetruth
import pytest
from debuggers import findleaks, gdb, lldb, objects
from pagetruth import PAGE, Truth
from variants import mark_matrix_except

from cores import Running
from findleaks.engine.pages import PageState


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pagetruth.build(tmp_path_factory.mktemp("program"))


running = building.running()


@pytest.fixture(scope="module")
def saved(running: Running, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return gcore's core, and the residency that was saved before it."""
    side = tmp_path_factory.mktemp("saved") / "side"
    findleaks("map", "--save-residency", str(side), "--pid", str(running.pid))
    return running.gcore(), side


@pytest.fixture(scope="module")
def kernel_core(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    with Running([str(program)], tmp_path_factory.mktemp("kernel")) as run:
        return run.kernel_core(), pagetruth.truth(run.output)


def run_map(*words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(findleaks("map", "--json", *words))
    return answer


def states(answer: dict[str, Any]) -> dict[int, PageState]:
    """Return the state of every page by address."""
    return {
        int(run["address"], 16) // PAGE * PAGE + PAGE * at: PageState[run["state"].upper()]
        for heap in answer["heaps"]
        for run in heap["pages"]
        for at in range(run["pages"])
    }


def check(answer: dict[str, Any], truth: Truth, source: str) -> None:
    """Check that every page has the state that the program prints, and that all sums agree."""
    known = source != "unknown"
    assert answer["residency"]["source"] == source
    found, expected = states(answer), truth.states(known)
    assert {hex(at): (found.get(at), state) for at, state in expected.items() if found.get(at) != state} == {}
    assert found.keys() == expected.keys()
    kinds = set(found.values())
    wanted = {PageState.IN_USE, PageState.CACHED, PageState.METADATA}
    assert wanted | ({PageState.UNTOUCHED, PageState.KEPT, PageState.RETURNED} if known else {PageState.FREE}) == kinds
    by_state = answer["totals"]["pages"]
    for state in PageState:
        assert by_state[state.name.lower()] == PAGE * sum(one == state for one in found.values())
    used = sum(end - start for start, end in truth.used)
    assert used - 16 * len(truth.heaps) <= answer["totals"]["in_use"] <= used  # the last chunk of a heap has no header after it
    assert answer["totals"]["in_use"] == sum(run["in_use"] for heap in answer["heaps"] for run in heap["pages"])
    if known:
        assert answer["totals"]["resident"] == PAGE * sum(truth.present.values())
        assert [(one["allocator"], one["bytes"]) for one in answer["trim"]] == [("glibc", truth.trim)]
    else:
        assert answer["totals"]["resident"] is None and answer["trim"] == []
    assert truth.trim > 100 * PAGE


def test_live(running: Running) -> None:
    check(run_map("--pid", str(running.pid)), pagetruth.truth(running.output), "pagemap")


def test_kernel_core(program: Path, kernel_core: tuple[Path, Truth], tmp_path: Path) -> None:
    core, truth = kernel_core
    check(run_map(str(core)), truth, "holes of the core")
    whole = tmp_path / "whole"
    whole.write_bytes(core.read_bytes())
    check(run_map(str(whole)), truth, "unknown")
    sparse = tmp_path / "sparse"  # the file has holes for all zeros, so holes say nothing about pages
    subprocess.run(["cp", "--sparse=always", str(whole), str(sparse)], check=True)
    assert os.stat(sparse).st_blocks < os.stat(whole).st_blocks
    check(run_map(str(sparse)), truth, "unknown")
    assert "copy or pack" in findleaks("map", "--save-residency", f"{whole}.gz.residency", str(core))
    subprocess.run(["gzip", "-1", str(whole)], check=True)
    check(run_map(f"{whole}.gz"), truth, "side file")


def test_gcore_with_its_side_file(running: Running, saved: tuple[Path, Path], tmp_path: Path) -> None:
    core, side = saved
    truth = pagetruth.truth(running.output)
    check(run_map(str(core)), truth, "unknown")
    check(run_map("--residency", str(side), str(core)), truth, "side file")
    beside = tmp_path / "core"
    beside.symlink_to(core)
    (tmp_path / "core.residency").symlink_to(side)
    check(run_map(str(beside)), truth, "side file")


def test_side_file_of_another_process(kernel_core: tuple[Path, Truth], saved: tuple[Path, Path], tmp_path: Path) -> None:
    core, _ = kernel_core
    side = saved[1]
    refused = findleaks("map", "--residency", str(side), str(core))
    assert "belongs to process" in refused and "but the target is process" in refused and len(refused.strip().splitlines()) == 1
    (tmp_path / "core").symlink_to(core)
    (tmp_path / "core.residency").symlink_to(side)
    # The file beside the core is of another process: a warning names it, and the holes of the core are used instead.
    answer = run_map(str(tmp_path / "core"))
    assert answer["residency"]["source"] == "holes of the core" and any("belongs to process" in warning for warning in answer["warnings"])


def test_debuggers_agree(program: Path, kernel_core: tuple[Path, Truth], saved: tuple[Path, Path]) -> None:
    core, truth = kernel_core
    reported = objects(findleaks("map", "--json", str(core), "--exe", str(program)))
    assert objects(gdb(["leaks map --json"], str(program), str(core))) == reported
    assert objects(lldb(["leaks map --json"], str(program), "-c", str(core))) == reported
    gcore, side = saved
    reported = objects(findleaks("map", "--json", "--residency", str(side), str(gcore)))
    assert objects(gdb([f"leaks map --json --residency {side}"], str(program), str(gcore))) == reported
    assert objects(lldb([f"leaks map --json --residency {side}"], str(program), "-c", str(gcore))) == reported
    assert truth.trim


def test_debuggers_live(program: Path, running: Running, tmp_path: Path) -> None:
    truth = pagetruth.truth(running.output)
    for number, debugger in enumerate((gdb, lldb)):
        side = tmp_path / f"side{number}"
        lines = [f"leaks map --save-residency {side}", "leaks map --json"]
        reported = objects(debugger(lines, "-p", str(running.pid)))
        check(json.loads(reported[-1]), truth, "pagemap")
        check(run_map("--residency", str(side), "--pid", str(running.pid)), truth, "side file")


def test_text_has_the_figures_of_the_json(kernel_core: tuple[Path, Truth]) -> None:
    core, truth = kernel_core
    answer, text = run_map(str(core)), findleaks("map", str(core), COLUMNS="100")
    rows = {}
    for line in text.splitlines():
        for key, name in (("in_use", "occupied"), ("kept", "free, kept"), ("returned", "free, returned"), ("untouched", "untouched")):
            if line[5:].startswith(name + " "):
                rows[key] = int(line[5 + len(name) :].split()[0].replace(",", ""))
    assert rows == {key: answer["totals"]["pages"][key] // PAGE for key in rows} and len(rows) == 4
    assert f"malloc_trim(0) would return {truth.trim >> 10} KiB" in text.replace(".0 KiB", " KiB")
    assert all(len(line) <= 100 for line in text.splitlines() if " -m findleaks " not in line)  # text that users paste is not wrapped
    drawn = [line for line in text.splitlines() if line.startswith("  0x")]
    assert drawn and all(set(line.split("  ", 2)[2]) <= set("█▓▒□cmo·-?") for line in drawn)


def test_pictures(kernel_core: tuple[Path, Truth], tmp_path: Path) -> None:
    core, _ = kernel_core
    for name in ("map.svg", "map.png", "map.html"):
        assert f"written to {tmp_path / name} (" in " ".join(findleaks("map", str(core), "-o", str(tmp_path / name)).split())
    svg = (tmp_path / "map.svg").read_text()
    import xml.etree.ElementTree as ET

    tree = ET.fromstring(svg)
    kinds = {element.get("class") for element in tree.iter("{http://www.w3.org/2000/svg}rect")}
    assert {f"s{int(PageState.KEPT)}", f"s{int(PageState.RETURNED)}", "u255"} <= kinds
    from PIL import Image

    with Image.open(tmp_path / "map.png") as image:
        colours = {colour: count for count, colour in image.getcolors(1 << 24)}
    from findleaks.report.heapmap.cells import BY_STATE

    for state in (PageState.KEPT, PageState.RETURNED):
        text = BY_STATE[state].light
        assert colours[tuple(int(text[at : at + 2], 16) for at in (1, 3, 5))] > 1000


def test_bad_arguments(kernel_core: tuple[Path, Truth], tmp_path: Path) -> None:
    core = str(kernel_core[0])
    assert "end its name in .html, .svg or .png" in findleaks("map", core, "-o", "map.pdf")
    assert "no such file" in findleaks("map", core, "--residency", str(tmp_path / "none"))
    assert "cannot be written" in findleaks("map", core, "-o", str(tmp_path / "no" / "map.svg"))
    assert "nothing to save" in findleaks("map", str(_whole(core, tmp_path)), "--save-residency", str(tmp_path / "x"))
    (tmp_path / "text").write_text("hello\n")
    assert "not a residency file" in findleaks("map", core, "--residency", str(tmp_path / "text"))


def _whole(core: str, folder: Path) -> Path:
    made = folder / "whole"
    made.write_bytes(Path(core).read_bytes())
    return made


@pytest.mark.matrix
@pytest.mark.parametrize("version", mark_matrix_except(["2.31", "2.41", "2.43"], "2.31", "2.43"))
def test_other_glibcs(version: str, tmp_path: Path) -> None:
    made = libcs.get(version).compile(building.PROGRAMS / "pages.c", tmp_path / "pages", ["-O1"])
    with Running([str(made)], tmp_path / "run") as run:
        live, truth = run_map("--pid", str(run.pid)), pagetruth.truth(run.output)
        core = run.kernel_core()
    for answer in (live, run_map(str(core))):
        found, expected = states(answer), truth.states()
        if version == "2.43":  # the thread cache of this version is not the first chunk
            expected[truth.heaps[0][0]] = PageState.KEPT
        assert found == expected
        assert [one["bytes"] for one in answer["trim"]] == [truth.trim]
