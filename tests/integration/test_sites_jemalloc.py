"""jemalloc's heap profile in a core: every block has its stack, and the figures equal those that prof.dump writes at the same stop."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import debuggers
import libcs
import mallocs_jemalloc
import pytest
import recorded
import rubies
import truth
from variants import mark_matrix_except

import cores
from findleaks.allocators.jemalloc.instance import Jemalloc
from findleaks.allocators.sites import Recording
from findleaks.session import Session
from findleaks.target.core import open_core

OWN = recorded.in_library("libjemalloc")
EVERY = "prof:true,lg_prof_sample:0"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Build the program once for each libc."""
    made: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("programs")

    def build(version: str) -> Path:
        libc = mallocs_jemalloc.LIBCS.get(version, "")
        if libc not in made:
            output = folder / f"sites-{len(made)}"
            made[libc] = libcs.get(libc).compile(recorded.SOURCE, output, recorded.FLAGS) if libc else recorded.compile_(output)
        return made[libc]

    return build


def take(program: Path, folder: Path, version: str, conf: str, scale: int = 100) -> recorded.Picture:
    library = str(mallocs_jemalloc.get(version).library)
    return recorded.take(program, folder, 3, scale, LD_PRELOAD=library, MALLOC_CONF=conf)


def own(picture: recorded.Picture) -> Recording:
    (found,) = Session(open_core(str(picture.core))).sites.recordings
    assert not found.warnings
    return found


def figures(found: Recording) -> dict[recorded.Stack, recorded.Figures]:
    return {
        tuple(frame for frame in site.frames if isinstance(frame, int)): (*site.live, *(site.allocated or (0, 0)))
        for site in found.sites
        if site.live.blocks or site.allocated
    }


def parse_dump(picture: recorded.Picture) -> dict[recorded.Stack, recorded.Figures]:
    found = recorded.heap_text((picture.folder / "account").read_text())
    assert len(found) > 10
    return found


@pytest.fixture(scope="module")
def every(build, tmp_path_factory: pytest.TempPathFactory) -> recorded.Picture:
    """Run the program under 5.3.0 with all allocations recorded, including freed ones."""
    return take(build("5.3.0"), tmp_path_factory.mktemp("every"), "5.3.0", f"{EVERY},prof_accum:true")


def test_every_block(every: recorded.Picture) -> None:
    recorded.check_every_block(every, OWN)


def test_profile_equals_the_dump(every: recorded.Picture) -> None:
    found = own(every)
    assert found.interval == 1
    assert figures(found) == parse_dump(every)


def test_find_names_the_next_command(every: recorded.Picture) -> None:
    """Each front end prints the suggested command in its own syntax, as it does after `find --by site`."""
    answer, by_site = every.ask("find"), every.ask("find", "--by", "site")
    assert answer["next"][-1] == "find --by site"
    assert f"findleaks find --by site {every.core}" in " ".join(every.text("find").split())
    example = by_site["groups"][0]["examples"][0]
    assert by_site["next"] == [f"blocks --site {by_site['groups'][0]['site']['number']}", f"path {example}"]


def questions(picture: recorded.Picture) -> list[list[str]]:
    lost = next(hex(made.address) for made in picture.made if made.kind == "lost")
    asked = [["find", "--by", "site"], ["caches", "--sites", "--size", "1k-"], ["blocks", "--site", "3"], ["whatis", lost], ["verdict"]]
    return [[*words, "--json"] for words in asked]


def test_front_ends(every: recorded.Picture, build) -> None:
    """GDB, LLDB and the command line list the same stacks."""
    words = questions(every)
    program, core = str(build("5.3.0")), str(every.core)
    answers = [line for one in words for line in debuggers.objects(debuggers.findleaks(*one, core, "--exe", program))]
    assert len(answers) > len(words)
    typed = ["leaks " + " ".join(one) for one in words]
    printed = debuggers.gdb([*typed, "leaks find"], program, core)
    assert debuggers.objects(printed) == answers
    assert "leaks find --by site" in " ".join(printed.splitlines()[-20:])
    assert debuggers.objects(debuggers.lldb(typed, program, "-c", core)) == answers


def test_python_engine(every: recorded.Picture) -> None:
    """The Python reference engine reads the stacks in one second. Its search for leaks takes ten seconds, and the next test compares the
    results."""
    words = ["caches", "--sites", "--size", "1k-", "--json", str(every.core)]
    assert debuggers.findleaks(*words, FINDLEAKS_PURE="1") == debuggers.findleaks(*words)


@pytest.mark.matrix
def test_python_engine_finds_the_same(every: recorded.Picture) -> None:
    for words in questions(every):
        assert debuggers.findleaks(*words, str(every.core), FINDLEAKS_PURE="1") == debuggers.findleaks(*words, str(every.core))


def test_linked_in(tmp_path: Path) -> None:
    """If jemalloc is linked into the program, stacks are printed from the caller of jemalloc's functions."""
    program = recorded.compile_(tmp_path / "sites", *mallocs_jemalloc.get("5.3.0").static)
    picture = recorded.take(program, tmp_path / "run", 2, 20, "-", MALLOC_CONF=EVERY)
    known = {name for made in picture.made for name in made.functions}
    recorded.check_every_block(picture, lambda frame: frame["function"] not in known)
    for made in picture.made[:: len(picture.made) // 6]:
        lines = picture.text("whatis", hex(made.address)).splitlines()
        assert lines[2].strip().startswith(made.functions[0] + "+")


def test_running(build, tmp_path: Path) -> None:
    """A live process has the same stacks as its core."""
    library = str(mallocs_jemalloc.get("5.3.0").library)
    command, environment = [str(build("5.3.0")), "2", "20", "-"], {"LD_PRELOAD": library, "MALLOC_CONF": EVERY}
    with cores.Running(command, tmp_path, {**os.environ, **environment}) as running:
        live = debuggers.run_cli("find", "--by", "site", "--json", "--pid", str(running.pid), check=True).stdout
        picture = recorded.Picture(running.kernel_core(), recorded.parse(running.output), tmp_path)
    assert json.loads(live)["groups"] == picture.ask("find", "--by", "site")["groups"] != []


def test_suppressed_by_stack(every: recorded.Picture, tmp_path: Path) -> None:
    """leak:FUNCTION matches a function anywhere on the stack, as in LeakSanitizer."""
    rules = tmp_path / "rules"
    rules.write_text("leak:by_other\nleak:nowhere_at_all\n")
    before = every.ask("find", "--by", "site")
    after = every.ask("find", "--by", "site", "--suppressions", str(rules))
    taken = [group for group in before["groups"] if any(frame["function"] == "by_other" for frame in group["site"]["frames"])]
    assert taken and [group for group in before["groups"] if group not in taken] == after["groups"]
    assert after["suppressed"][0]["blocks"] == sum(group["blocks"] for group in taken)
    assert after["unused_suppressions"] == ["leak:nowhere_at_all"]


def test_stacks_in_whatis_and_verdict(every: recorded.Picture) -> None:
    made = next(made for made in every.made if made.kind == "lost" and made.functions == ("inner_small", "by_other"))
    text = every.text("whatis", hex(made.address + 3))
    assert "jemalloc's heap profiler" in text and text.index("inner_small+") < text.index("by_other+") < text.index("fill+")
    assert "libjemalloc" not in text
    verdict = every.ask("verdict")
    (lost,) = [finding for finding in verdict["findings"] if finding["finding"] == "lost"]
    assert lost["evidence"]["site"]["stack"][0].startswith("by_mapping+") and "find --by site --kind definite" in lost["next"]


def test_damaged(every: recorded.Picture) -> None:
    """Damaged stacks are omitted with a warning, and blocks of other stacks keep their stacks."""
    session = Session(open_core(str(every.core)))
    jemalloc = next(one for one in session.directory.allocators if isinstance(one, Jemalloc))
    victim, offset = max(jemalloc.profiler.contexts.items())
    jemalloc.profiler.contexts[victim] = offset + 8  # the following words are not a stack
    count = next(at for at, words in jemalloc.profiler.counts.items() if words[12] != victim and words[4])
    del jemalloc.profiler.counts[count]
    before = own(every)
    (after,) = jemalloc.recordings(session.directory.blocks)
    assert len(after.sites) == len(before.sites) - 1
    assert len(after.addresses) < len(before.addresses)
    assert any(hex(victim) in warning for warning in after.warnings)
    assert any("has no record of it" in warning for warning in after.warnings)
    kept = {before.addresses[i]: before.sites[before.site_of[i]].frames for i in range(len(before.addresses))}
    assert all(kept[address] == after.sites[site].frames for address, site in zip(after.addresses, after.site_of))


@pytest.mark.parametrize("version", mark_matrix_except(["5.2.1", "5.3.1"], "5.2.1"))
def test_other_releases(build, tmp_path: Path, version: str) -> None:
    # By default, 5.3.1 rounds large blocks up in its dump, to sizes of classes that no longer exist.
    raw = ",prof_unbias:false" if version == "5.3.1" else ""
    picture = take(build(version), tmp_path, version, EVERY + raw)
    recorded.check_every_block(picture, OWN)
    assert figures(own(picture)) == parse_dump(picture)


@pytest.mark.parametrize("version", mark_matrix_except(["5.2.1", "5.3.0", "5.3.1"], "5.3.0"))
def test_sampled(build, tmp_path: Path, version: str) -> None:
    """findleaks reads the same samples as the dump contains, and each sampled block has its stack."""
    raw = "" if version == "5.2.1" else ",prof_unbias:false"
    picture = take(build(version), tmp_path, version, f"prof:true,lg_prof_sample:12{raw}", 400)
    found = own(picture)
    assert found.interval == 1 << 12
    assert figures(found) == parse_dump(picture)
    assert sum(site.live.blocks for site in found.sites) == len(found.addresses)
    groups = picture.ask("find", "--by", "site")["groups"]
    sampled = [group for group in groups if group["site"]]
    assert sampled and all(group["estimated"]["blocks"] >= group["blocks"] for group in sampled)
    text = picture.text("find", "--by", "site")
    assert "≈ " in text and "takes one sample every 4.0 KiB on average" in text


def test_sampled_and_estimated(build, tmp_path: Path) -> None:
    """The dump of 5.3 contains values that jeprof scales by a mean size to jemalloc's estimates (prof_do_unbias)."""
    picture = take(build("5.3.0"), tmp_path, "5.3.0", "prof:true,lg_prof_sample:12", 400)
    found, interval = own(picture), 1 << 12
    for stack, (blocks, size, _, _) in parse_dump(picture).items():
        (site,) = [site for site in found.sites if site.frames == stack]
        assert site.estimated is not None
        # Its counts have three fractional bits, and ours are whole blocks.
        mean = site.estimated.bytes / site.estimated.blocks
        scale = -math.expm1(-mean / interval)
        assert size == pytest.approx(site.estimated.bytes * scale, rel=0.02, abs=1)
        assert blocks == pytest.approx(site.estimated.blocks * scale, rel=0.05, abs=1)


@pytest.mark.matrix
def test_ruby(tmp_path: Path) -> None:
    """A Ruby program leaks native memory by three calls. The three stacks have all blocks that were allocated there."""
    library = str(mallocs_jemalloc.get("5.3.0").library)
    program = truth.PROGRAMS / "sites_ruby.rb"
    with rubies.Pausing(rubies.SYSTEM, program, tmp_path / "run", LD_PRELOAD=library, MALLOC_CONF=EVERY) as running:
        picture = recorded.Picture(running.kernel_core(), (), tmp_path)
    groups = picture.ask("find", "--by", "site", "--kind", "definite", "--limit", "3")["groups"]
    found = sorted((group["site"]["live"]["blocks"], group["sizes"]) for group in groups)
    assert found == [(300, [448, 448]), (700, [32, 32]), (1000, [5120, 5120])]
    for group in groups:
        # Ruby's collector treats numbers on stacks as pointers, and so does findleaks.
        assert group["site"]["live"]["blocks"] * 0.9 <= group["blocks"] <= group["site"]["live"]["blocks"]
        names = {frame["module"] for frame in group["site"]["frames"]}
        assert "fiddle.so" in names
        rows = picture.rows("--site", str(group["site"]["number"]))
        assert len(rows) == group["site"]["live"]["blocks"] and {row["size"] for row in rows} == {group["size"]}
