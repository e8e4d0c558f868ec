"""`diff` reports which descriptors were opened and not closed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import truth
from debuggers import run_cli
from growing import Rounds, run_diff

FOLDER = "files 2026"
# By the name of a figure: the number before and after the round.
OPENED = {
    "/journal": (10, 210),
    "/page-#.bin": (3, 83),
    "TCP socket": (5, 35),
    "pipe": (8, 58),
    "anon_inode:[eventfd]": (2, 62),
    "/memfd:frame (deleted)": (1, 71),
}
PIPES = 3  # descriptors of pipes before the program starts: at most its standard streams


def test_descriptors_that_are_not_closed(tmp_path: Path) -> None:
    """Kinds with fewer than 16 more descriptors have no row. A core that findleaks did not write has no data about descriptors."""
    program, folder, core = tmp_path / "opens", tmp_path / FOLDER, tmp_path / "own.core"
    folder.mkdir()
    subprocess.run(["gcc", "-O2", "-o", program, truth.PROGRAMS / "growth_descriptors.c"], check=True)
    with Rounds([str(program), str(folder)], tmp_path / "run") as one:
        first = one.snapshot("first")
        one.round()
        last = one.snapshot("last")
        run_cli("snapshot", "--weight", "core", "-o", str(core), "--pid", str(one.pid), check=True)
        foreign = one.core("gcore", 1)
        answer, text = run_diff(first, last)
    samples = [json.loads(run_cli("diff", "--json", *words).stdout) for words in (map(str, (first, core)), map(str, (first, foreign)))]
    for sample in (answer, samples[0]):
        rows = {row["name"].removeprefix("files ").replace(str(folder), ""): row for row in sample["grown"] if row["what"] == "descriptor"}
        (pages,) = (name for name in rows if name.endswith("/page-#.bin"))  # other numbers in the path are replaced, too
        rows["/page-#.bin"] = rows.pop(pages)
        assert rows.keys() == OPENED.keys()
        for name, row in rows.items():
            before, after = row["counts"]
            assert after - before == OPENED[name][1] - OPENED[name][0]
            assert 0 <= before - OPENED[name][0] <= PIPES * (name == "pipe")
            assert (row["unit"], row["bytes"]) == ("count", None)
    for words in (
        "open TCP sockets",
        "open pipe ends",
        "open eventfds",
        "open memfds named frame",
        f"open descriptors of {folder}/journal",
    ):
        assert words in text
    found = re.search(r"\d\. More descriptors are open, .*?: open descriptors of (\S+ \S+)\. Each of them takes kernel memory", text)
    assert found is not None
    assert found[1] == f"{folder}/journal"
    assert "descriptor" not in {row["what"] for row in samples[1]["grown"]}
