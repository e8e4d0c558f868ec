"""gperftools' heap profile and samples in a core: every block has its stack, and the figures equal those that the profiler wrote at the
same stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import fuzz_files
import mallocs_tcmalloc
import pytest
import recorded

from findleaks.allocators.memory import Memory
from findleaks.allocators.sites import Recording
from findleaks.allocators.tcmalloc import heap_profile
from findleaks.allocators.tcmalloc.instance import Tcmalloc
from findleaks.session import Session
from findleaks.target.core import open_core

OWN = recorded.in_library("libtcmalloc")


def take(version: str, folder: Path, link: str = "", **environment: str) -> recorded.Picture:
    tcmalloc = mallocs_tcmalloc.get(version)
    program = tcmalloc.compile(recorded.SOURCE, folder / "sites", recorded.FLAGS, link, full=True)
    return recorded.take(program, folder / "run", 3, 100, **tcmalloc.environment(full=True, preload=not link), **environment)


@pytest.mark.parametrize("version", ["2.10", *(pytest.param(v, marks=pytest.mark.matrix) for v in ("2.8.1", "2.16", "2.18.1"))])
def test_profiled(tmp_path: Path, version: str) -> None:
    picture = take(version, tmp_path, HEAPPROFILE=str(tmp_path / "profile"))
    recorded.check_every_block(picture, OWN)
    assert picture.ask("find")["warnings"] == []  # the profiler's own memory belongs to no other allocator
    (found,) = Session(open_core(str(picture.core))).sites.recordings
    assert not found.warnings and found.interval == 1
    (written,) = tmp_path.glob("profile.*.heap")
    figures = {site.frames: (*site.live, *(site.allocated or (0, 0))) for site in found.sites}
    assert figures == recorded.heap_text(written.read_text())
    check_damaged(picture, found, tmp_path / "damaged")


def check_damaged(picture: recorded.Picture, sound: Recording, copy: Path) -> None:
    """A wild pointer is in the profiler's map. Only the blocks after it have no stack, and the message says where the damage begins."""
    session = Session(open_core(str(picture.core)))
    memory, profile = Memory(session.target), next(one for one in session.directory.allocators if isinstance(one, Tcmalloc)).profile
    assert profile is not None
    entries = heap_profile.read(memory, session.engine, profile).entries
    victim = next(entry for entry in entries if memory.word(entry.address))
    behind, link = set[int](), memory.word(victim.address)
    while link:
        behind.add(memory.words(link, 2)[1])
        link = memory.word(link)
    shutil.copyfile(picture.core, copy)
    core = fuzz_files.Subject(picture.core)
    core.close()
    place = core.offset(victim.address)
    assert place is not None
    with open(copy, "r+b") as file:
        file.seek(place)
        file.write((1 << 46).to_bytes(8, "little"))
    (found,) = Session(open_core(str(copy))).sites.recordings
    assert set(sound.addresses) - set(found.addresses) == behind
    assert any(hex(1 << 46) in warning for warning in found.warnings)
    stacks = {address: found.sites[site].frames for address, site in zip(found.addresses, found.site_of)}
    assert all(stacks[address] == sound.sites[site].frames for address, site in zip(sound.addresses, sound.site_of) if address in stacks)


def test_sampled(tmp_path: Path) -> None:
    """Every sampled block has the stack that the program prints, and samples are scaled."""
    picture = take("2.10", tmp_path, TCMALLOC_SAMPLE_PARAMETER="2000")
    (found,) = Session(open_core(str(picture.core))).sites.recordings
    assert not found.warnings and found.interval == 2000
    made = {one.address: one.functions for one in picture.made}
    names = {row["site"]["number"]: recorded.functions(row["site"], OWN) for row in picture.ask("caches", "--sites")["sites"]}
    rows = [row for row in picture.rows() if row["site"]]
    assert len(rows) == len(found.addresses) > 100
    compared = [(tuple(names[row["site"]]), made[int(row["address"], 16)]) for row in rows if int(row["address"], 16) in made]
    assert len(compared) > 100 and all(names[: len(functions)] == functions for names, functions in compared)
    assert "≈ " in picture.text("find", "--by", "site")
    assert "find --by site" in picture.ask("find")["next"]
