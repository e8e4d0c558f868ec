"""Programs that refer to their blocks by disguised pointers: findleaks reports the state that the program prints for each block, also if
there are random words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import building
import pytest
import truth
from debuggers import findleaks, gdb, lldb, objects
from variants import mark_matrix_except

import cores
import findleaks as findleaks_api
from findleaks.graph.disguises import search_disguises
from findleaks.session import reference_graphs
from findleaks.target.base import Range
from findleaks.target.ranges import intersection

FLAGS = ("-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
FORMS = {
    "tagged": ("tagged", "tagged pointers (tags in the top 16 bits"),
    "nan": ("tagged", "tagged pointers (tags in the top 16 bits"),
    "itype": ("tagged", "tagged pointers (tags in the top 16 bits"),
    "topbyte": ("tagged", "tagged pointers (tags in the top 16 bits"),
    "shifted": ("shifted_left", "shifted pointers (address << 16)"),
    "small": ("shifted_left", "shifted pointers (address << 1)"),
    "pages": ("shifted_right", "shifted pointers (address >> 4)"),
    "compressed": ("compressed", "compressed pointers (32 bits, 0x"),
    "cage": ("compressed", "compressed pointers (32 bits, 0x"),
    "packed": ("unaligned", "unaligned pointers"),
    "halves": ("unaligned", "unaligned pointers"),
    "crossing": ("unaligned", "unaligned pointers"),
    "swapped": ("halves", "split pointers (lower and upper half"),
    "context": ("halves", "split pointers (lower and upper half"),
    "six": ("six_bytes", "six-byte pointers (48 bits"),
    "tags16": ("tagged", "tagged pointers (tags in the top 16 bits"),
    "shifted16": ("shifted_left", "shifted pointers (address << 8)"),
    "safe": ("safe_linked", "safe-linked pointers (address XOR own address >> 12"),
    "relative": ("relative", "relative pointers (distance from the pointer itself"),
    "bytes": ("byte_swapped", "byte-swapped pointers (address in the other"),
    "jump": ("mangled", "mangled pointers (address XOR a random key"),
    "keyed": ("mangled", "mangled pointers (address XOR a random key"),
    "rotated": ("mangled", "mangled pointers (address XOR a random key"),
    "xor": ("linked", "XOR links (addresses of both neighbours"),
    "xor-ends": ("linked", "XOR links (addresses of both neighbours"),
}
IN_FOUR_BYTES = ("packed", "halves", "crossing", "xor", "none", "noise-random", "noise-text", "noise-counters")
NOISE = ("none", "noise-random", "noise-text", "noise-counters", "noise-numbers", "noise-halves", "noise-six")
COUNT = 300


def compile_program(folder: Path, compiler: str) -> Path:
    return building.compile_program(folder, "disguised.c", *FLAGS, compiler=compiler)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("x86-64"), "cc")


@pytest.fixture(scope="module")
def program_32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("i386"), "i686-linux-gnu-gcc")


def find(*words: str) -> dict[str, Any]:
    return dict(json.loads(findleaks("find", "--json", *words)))


def check(program: Path, folder: Path, kind: str, by_chance: int = 0, first: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Check the kind of each block of a live process. Return what `find --json` reports about disguised pointers, and the text of `find`.

    by_chance: the largest number of leaked blocks to which random words may refer.
    first: words of the command line before the program.
    """
    with cores.Running([*first, str(program), kind, str(COUNT)], folder) as run:
        records = truth.parse(run.output)
        where = ("--pid", str(run.pid))
        verdict = truth.compare(records, truth.ask(*where)[0])
        assert not (verdict.false or verdict.wrong or len(verdict.missed) > by_chance), str(verdict)
        return find(*where)["heuristics"]["disguised"], findleaks("find", *where)


@pytest.mark.parametrize("kind", FORMS)
def test_state_of_each_block(program: Path, tmp_path: Path, kind: str) -> None:
    said, text = check(program, tmp_path, kind)
    form, words = FORMS[kind]
    (one,) = said["conventions"]
    assert (one["disguise"], one["sizes"]) == (form, [72])
    assert words in " ".join(text.split())


def test_tags_in_low_bits(program: Path, tmp_path: Path) -> None:
    """Pointers with tags from 0 to 15 refer to places inside the blocks: it is one convention."""
    said, text = check(program, tmp_path, "low")
    assert said["conventions"] == [] and "are referenced by pointers with tags in the low bits" in " ".join(text.split())


@pytest.mark.parametrize("count", [8, COUNT])
def test_links_with_flags_in_their_low_bits(count: int, tmp_path: Path) -> None:
    """Blocks of a tree of any size are reachable, and the tree is reported as a binary tree. Other leaked blocks are still reported."""
    program = building.compile_program(tmp_path, "tagged_links.c", *FLAGS)
    with cores.Running([str(program), str(count)], tmp_path / "run") as run:
        where = ("--pid", str(run.pid))
        verdict = truth.compare(truth.parse(run.output), truth.ask(*where)[0])
        assert not (verdict.false or verdict.wrong or verdict.missed), str(verdict)
        assert find(*where)["totals"]["possible"]["blocks"] == 0
        roots = {row["name"].split()[0]: row for row in json.loads(findleaks("roots", "--json", *where))["roots"]}
    for name in ("records", "intervals"):
        assert roots[name]["container"]["what"] == "binary tree"
        assert roots[name]["container"]["length"] == count


@pytest.mark.parametrize("kind", mark_matrix_except(NOISE, "none", "noise-random", "noise-halves"))
def test_noise_hides_no_leak(program: Path, tmp_path: Path, kind: str) -> None:
    said, text = check(program, tmp_path, kind)
    assert said["conventions"] == [] and "count as reachable" not in text


@pytest.mark.platform("i386", "live, on the command line")
@pytest.mark.parametrize("kind", mark_matrix_except(IN_FOUR_BYTES, "packed", "xor", "none", "noise-random"))
def test_words_of_four_bytes(program_32: Path, tmp_path: Path, kind: str) -> None:
    # One in several thousand random words is a heap address. The XOR of two heap addresses may also be a heap address, so setarch -R makes
    # the address of the heap the same in each run.
    said, _ = check(program_32, tmp_path, kind, 8 if kind == "noise-random" else 0, ("setarch", "-R"))
    assert [one["disguise"] for one in said["conventions"]] == ([FORMS[kind][0]] if kind in FORMS else [])


def test_every_command_and_front_end(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), "tagged", str(COUNT)], tmp_path) as run:
        records = truth.parse(run.output)
        core = str(run.kernel_core())
    item = next(one for one in records if one.category == "disguised")
    below = next(one for one in records if one.category == "below")
    (step, plain) = json.loads(findleaks("path", "--json", hex(below.address), core))["path"]
    assert (step["disguise"], step["offset"]) == ("tagged pointer: tags in the top 16 bits", 0) and "disguise" not in plain
    assert "(tagged pointer: tags in the top 16 bits)" in findleaks("path", hex(below.address), core)
    (reference,) = json.loads(findleaks("refs", "--json", hex(item.address), core))["references"]
    assert (reference["address"], reference["live"], reference["disguise"]) == (step["address"], True, step["disguise"])
    assert "referenced by a tagged pointer" in findleaks("whatis", hex(item.address), core)
    assert json.loads(findleaks("roots", "--json", core))["roots"][0]["retained_blocks"] == 2 * COUNT
    assert "referenced only by tagged pointers" in " ".join(findleaks("verdict", core).split())
    plainly = find("--heuristics", "none", core)
    assert plainly["totals"]["definite"]["blocks"] == COUNT + 40 and plainly["heuristics"]["disguised"]["conventions"] == []
    found = find(core)
    for output in (gdb(["leaks find --json"], "-c", core), lldb(["leaks find --json"], "-c", core)):
        (other,) = [json.loads(one) for one in objects(output)]
        assert other["heuristics"]["disguised"] == found["heuristics"]["disguised"] and other["totals"] == found["totals"]


def test_numbers_of_the_linker_are_no_compressed_pointers(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ld.so, the upper half of the variable start_time is a small number that grows with the uptime of the machine."""
    searched: list[Range] = []

    def search(graph: Any, engine: Any, blocks: Any, session: Any, roots: Sequence[Range], mangled: Any) -> Any:
        searched.extend(roots)
        return search_disguises(graph, engine, blocks, session, roots, mangled)

    monkeypatch.setattr(reference_graphs, "search_disguises", search)
    with cores.Running([str(program), "compressed", str(COUNT)], tmp_path) as run, findleaks_api.attach(run.pid) as process:
        process._session.graph()
        names = {module.path.rsplit("/", 1)[-1][:5]: Range(module.start, module.end) for module in process._session.target.modules()}
    assert intersection(searched, [names["libc."]])
    assert not intersection(searched, [names["ld-li"]])
