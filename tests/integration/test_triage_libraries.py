"""`triage` on leaks of published libraries, caused by their users: 20 runs of each leak in each build give one group for each leak."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import commandline
import library_leaks
import pytest
import rubies
import triaged

WAYS = re.findall(r"WAY\((\w+)\)[,}]", library_leaks.SOURCE.read_text())
CHANGED = {"curl_handle", "expat_parser", "pq_options", "tls_connection"}
"""Objects whose size differs in the other release: curl's handle, expat's parser, libpq's options, OpenSSL's connection."""
RUNS = 20
LEAST = 0.95
"""Minimum share of a leak's blocks that must be in its group, and of a group's blocks that must be of its leak. Libraries leave stale words
in memory. If such words point to lost blocks, a block may look like a block of another leak, or several leaks may form one cycle."""


def runs(build: library_leaks.Build, folder: Path, port: int, seed: int) -> list[library_leaks.Core]:
    """Return compressed cores: each leak occurs in one of three runs, together with others, RUNS times."""
    chance = random.Random(seed)
    plans = []
    for turn in range(RUNS):
        ways = chance.sample(WAYS, len(WAYS))
        plans += [(turn, part, ways[part::3]) for part in range(3)]

    def one(plan: tuple[int, int, list[str]]) -> library_leaks.Core:
        turn, part, ways = plan
        made = library_leaks.core(build, folder / f"{turn}-{part}", port, seed + 3 * turn + part, (60, 12, 200)[turn % 3], *ways)
        subprocess.run(["zstd", "-q", "-1", "--rm", made.path], check=True)
        return made._replace(path=Path(f"{made.path}.zst"))

    with ThreadPoolExecutor(2) as both:
        return list(both.map(one, plans))


@pytest.mark.matrix
def test_what_users_of_libraries_forget(tmp_path: Path) -> None:
    builds = [
        library_leaks.build("bookworm", tmp_path / "gcc", "gcc", "-O0"),
        library_leaks.build("bookworm", tmp_path / "clang", "clang-19", "-O2"),
        library_leaks.build("trixie", tmp_path / "trixie", "gcc", "-O2"),
    ]
    with rubies.postgres(tmp_path) as port:
        cores = [runs(build, tmp_path / f"cores{at}", port, 1000 * at) for at, build in enumerate(builds)]
    (tmp_path / "list").write_text("".join(f"{core.path}\n" for several in cores for core in several))
    done = subprocess.run(
        [sys.executable, "-m", "findleaks", "triage", "--json", f"@{tmp_path / 'list'}"],
        capture_output=True,
        timeout=10 * commandline.PATIENCE,
    )
    rows, last = triaged.parse_rows(done.stdout.decode())
    group = triaged.group_of(last)
    found: list[Counter[tuple[str, str]]] = []  # blocks that are leak heads, by leak and group, of each build
    for several in cores:
        having: Counter[tuple[str, str]] = Counter()
        leaks: Counter[tuple[str, str]] = Counter()
        leading: Counter[str] = Counter()
        for core in several:
            seen = Counter[tuple[str, str]]()
            for leak in rows[str(core.path)]["signatures"]:
                seen[core.made[int(leak["example"], 16)][0], group[leak["signature"]]] += leak["leaks"]
            leaks += seen
            having.update(set(seen))
            leading.update({way for way, _ in seen})
        found.append(leaks)
        for way in WAYS:
            most = main(way, leaks)
            assert leading[way] >= RUNS // 2, f"{way}: leak heads in {leading[way]} cores only"
            assert having[way, most] >= LEAST * leading[way] - 1, (
                f"{way}: in {leading[way]} cores, and its main group {most} in {having[way, most]}"
            )
    check(found[0] + found[1], WAYS)
    check(found[0] + found[1] + found[2], [way for way in WAYS if way not in CHANGED])
    check(found[2], WAYS)


def main(way: str, leaks: Counter[tuple[str, str]]) -> str:
    """Return the group with most of the blocks of a leak."""
    return max((count, group) for (one, group), count in leaks.items() if one == way)[1]


def check(leaks: Counter[tuple[str, str]], ways: list[str]) -> None:
    """Check that each leak is one group, except for a few blocks, and that no group contains two leaks."""
    groups = {way: main(way, leaks) for way in ways}
    assert len(set(groups.values())) == len(ways), groups
    for way, most in groups.items():
        own = leaks[way, most]
        others = {group: count for (one, group), count in leaks.items() if one == way and group != most}
        assert own >= LEAST * (own + sum(others.values())), f"{way}: {own} blocks in group {most}, and {others} in other groups"
        foreign = {one: count for (one, group), count in leaks.items() if group == most and one != way}
        assert own >= LEAST * (own + sum(foreign.values())), (
            f"{way}: {own} blocks in group {most}, which also contains {foreign} of other leaks"
        )
