"""Collections in Ruby's variables have the lengths that the program prints. There is one collection in each kind of variable, and one of
them grows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import debuggers
import pytest
import rubies
import truth
from growing import Rounds, run_diff
from variants import mark_matrix_except

PROGRAM = truth.PROGRAMS / "growth_ruby.rb"
VERSIONS = [pytest.param(v, marks=() if v == rubies.SYSTEM else pytest.mark.matrix) for v in rubies.READ]
ALL = (
    ("$cache", "Array", "elements"),
    ("$sizes", "Hash", "entries"),
    ("@kept", "Array", "elements"),
    ("Shop::CACHE", "Hash", "entries"),
    ("Shop::SEEN", "Set", "elements"),
    ("Shop.@queue", "Array", "elements"),
    ("Shop.@@prices", "Hash", "entries"),
    ("CART.@lines", "Array", "elements"),
    ("CART.@index", "Hash", "entries"),
)
"""The collections that can grow, their types, and the unit of their lengths."""
FIRST, MORE = 500, 4000
GROWING = ("$cache", "Shop.@queue", "CART.@index", "@kept", "Shop::CACHE", "Shop.@@prices")
REDUCED = 3
"""The number of elements of GROWING that `make test` tests, from the first one on. The matrix tests all."""


class Moment(NamedTuple):
    """Two snapshots, and the length that the program prints at each of them."""

    first: Path
    last: Path
    before: int
    after: int


@pytest.fixture(scope="module", params=VERSIONS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rounds]:
    ruby = rubies.get(request.param)
    with Rounds([*ruby.words, str(PROGRAM)], tmp_path_factory.mktemp("ruby"), ruby.environment) as one:
        for name, _, _ in ALL:
            one.round(f"{name} {FIRST}")
        yield one


def lengths(lines: Sequence[str]) -> dict[str, int]:
    """Return the lengths that the program prints in a round."""
    return {name: int(length) for name, length in (line.rsplit(" ", 1) for line in lines)}


def roots(*where: str) -> dict[str, dict[str, Any]]:
    """Return the variables that `roots` lists, by name."""
    answer = json.loads(debuggers.run_cli("roots", "--json", *where, check=True).stdout)
    return {row["name"].removesuffix(" (Ruby variable)"): row for row in answer["roots"] if row["sort"] == "managed-variable"}


def test_every_collection_has_its_length_and_its_objects(program: Rounds) -> None:
    """Live, in gcore's core and in the kernel's core: each collection has its length, and each element is a String with its own block."""
    said = lengths(program.round("$cache 7"))
    pictures = {"live": roots("--pid", str(program.pid)), "core": roots(str(program.gcore()))}
    for picture, rows in pictures.items():
        assert {name: rows[name]["container"]["length"] for name in said if name in rows} == {
            name: length for name, length in said.items() if name in rows
        }
        for name, what, unit in ALL:
            row = rows[name]
            assert (row["container"]["what"], row["container"]["unit"]) == (what, unit), (picture, name)
            inner = what == "Set"  # the elements of a Set are in a Hash
            assert row["objects"] == {"runtime": "Ruby", "count": said[name] + 1 + inner, "bytes": row["objects"]["bytes"]}, (picture, name)
            assert row["objects"]["bytes"] >= 40 * said[name]
            # If a stale word also refers to a block, the variable does not retain the block.
            assert 0.9 * said[name] <= row["retained_blocks"] <= said[name] + 8, (picture, name)
            assert 0.9 * said[name] * 700 <= row["retained_bytes"] <= said[name] * 900
        assert rows["$old"]["container"]["length"] == said["$old"] == 300 - len(ALL) - 1


@pytest.fixture(scope="module")
def moments(request: pytest.FixtureRequest, program: Rounds) -> dict[str, Moment]:
    """Between two snapshots, one element of GROWING grows by MORE, and nothing else grows. The test does this for each element."""
    tested = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    said = lengths(program.round("$sizes 0"))
    last = program.snapshot("0")
    found: dict[str, Moment] = {}
    for number, name in enumerate([name for name in GROWING if name in tested], 1):
        before, first = said[name], last
        said = lengths(program.round(f"{name} {MORE}"))
        last = program.snapshot(str(number))
        found[name] = Moment(first, last, before, said[name])
    return found


@pytest.mark.parametrize("name", mark_matrix_except(GROWING, *GROWING[:REDUCED]))
def test_the_one_that_grows_is_named_first(moments: dict[str, Moment], name: str) -> None:
    first, last, before, after = moments[name]
    (what, unit) = next(rest for each, *rest in ALL if each == name)
    assert after - before == MORE
    answer, text = run_diff(first, last)
    row = answer["grown"][0]
    assert row["name"] == f"{name} (Ruby variable)"
    (container,) = [part for part in row["inside"] if part["what"] == "container"]
    assert container["counts"] == [before, after]
    (objects,) = [part for part in row["inside"] if part["what"] == "objects"]
    assert objects["counts"][1] - objects["counts"][0] == MORE
    headline = " ".join(text.split()).partition(" BEFORE ")[0]
    assert f"retained by {name} (Ruby variable): {what}, {before:,} → {after:,} {unit}" in headline
    # glibc may retain memory that the collector freed.
    others = [other["name"] for other in answer["grown"][1:] if other["delta"] > row["delta"] / 4]
    assert [other for other in others if "glibc" not in other] == []


def test_path_from_a_variable_to_a_block(program: Rounds) -> None:
    """`path` lists the objects between the variable and the block, and `refs` on the collection names the variable."""
    program.round("$cache 1")
    core = str(program.gcore())
    kept = roots(core)["Shop.@queue"]
    shown = debuggers.findleaks("roots", "Shop.@queue", "--depth", "0", core)
    assert f"Shop.@queue (Ruby variable): Array, {kept['container']['length']:,} elements" in " ".join(shown.split())
    rows = [json.loads(line) for line in debuggers.run_cli("blocks", "--json", "--limit", "0", core, check=True).stdout.splitlines()]
    texts = [row for row in rows if "Shop.@queue has element" in (row.get("hint") or "")]
    assert len(texts) == kept["container"]["length"]
    steps = json.loads(debuggers.run_cli("path", "--json", texts[-1]["address"], core, check=True).stdout)["path"]
    assert steps[0]["from"] == "Shop.@queue (Ruby variable)"
    assert steps[-1]["from"].startswith("Ruby String, ")
    named = json.loads(debuggers.run_cli("refs", "--json", steps[0]["value"], core, check=True).stdout)["references"]
    assert any(row.get("from", {}).get("text", "").endswith("; Shop.@queue (Ruby variable)") for row in named)
