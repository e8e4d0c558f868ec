"""The lines of `runtime -o FILE.json` equal the lines of ObjectSpace.dump_all at the same stop, and heapy can read the file."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import debian
import debuggers
import pytest
import rubies
import truth
from variants import mark_matrix_except

PROGRAM = truth.PROGRAMS / "ruby_dump.rb"
HEAPY: debian.Pins = {("ruby-heapy", "0.2.0-2"): "34a9392b5a44e9d734b7080ddc7b6eeb28c6b3a14f11110e1f4893333b636136"}
CONTAINERS = ("OBJECT", "ARRAY", "HASH", "STRUCT", "STRING")
"""Types whose references are exact. Those of classes, methods and extensions come from a search of their memory."""
SIZED = (*CONTAINERS, "BIGNUM", "FLOAT", "SYMBOL", "COMPLEX", "RATIONAL")
EQUAL = ("type", "class", "struct", "length", "size", "imemo_type", "shared", "fstring", "file", "line", "method", "generation")
Line = dict[str, Any]


class Dumps(NamedTuple):
    """The objects that Ruby and findleaks write, by address, and the file of findleaks."""

    own: dict[str, Line]
    found: dict[str, Line]
    file: Path


def objects(file: Path) -> dict[str, Line]:
    found = {}
    for line in file.read_text(errors="replace").splitlines():
        try:
            one = json.loads(line)
        except json.JSONDecodeError:  # Ruby 2.7 does not escape all characters
            continue
        if one["type"] not in ("ROOT", "SHAPE"):
            found[one["address"]] = one
    return found


def dump(version: str, folder: Path, picture: str) -> Dumps:
    with rubies.Pausing(version, PROGRAM, folder / "run", str(folder / "own.json"), "traced") as program:
        where = ("--pid", str(program.pid)) if picture == "live" else (str(program.gcore()),)
        text = debuggers.findleaks("runtime", "--only", "ruby", "-o", str(folder / "found.json"), *where)
        program.go(1)
    assert "as ObjectSpace.dump_all writes" in text
    check_text(folder / "found.json")
    return Dumps(objects(folder / "own.json"), objects(folder / "found.json"), folder / "found.json")


def check_text(file: Path) -> None:
    """sheap reads the type and the references with patterns, not with a parser of JSON. It searches paths from the lines of type ROOT."""
    lines = file.read_text(errors="replace").splitlines()
    assert all(re.search(r'"type":"[A-Z]+"', line) for line in lines)
    found = [json.loads(line) for line in lines if '"type":"ROOT"' in line]
    read = [re.search(r'"references":\[([",0-9a-fx ]+)\]', line) for line in lines if '"type":"ROOT"' in line]
    assert len(found) > 10
    assert [one["references"] for one in found] == [match[1].replace('"', "").split(", ") if match else [] for match in read]


def references(one: Line, among: dict[str, Line]) -> set[str]:
    return {each for each in one.get("references", ()) if each in among and each != one["address"]}


def check(dumps: Dumps, version: str) -> None:
    both = dumps.own.keys() & dumps.found.keys()
    # dump_all itself creates some objects, and the program frees none.
    assert len(both) > 10_000 and len(dumps.own) - len(both) < 20 and len(dumps.found) - len(both) < 20
    compared: Counter[str] = Counter()
    for address in both:
        own, found = dumps.own[address], dumps.found[address]
        is_internal = own["type"] == "IMEMO"
        assert {name: found.get(name) for name in EQUAL if name in own and not (is_internal and name == "class")} == {
            name: own[name] for name in EQUAL if name in own and not (is_internal and name == "class")
        }
        if own["type"] == "STRING" and own.get("value", ".") != ".":  # the program reads "." when it continues
            assert found.get("value", own["value"]) == own["value"]
        # Ruby counts variables of objects that are not T_OBJECTs, too, which a few Strings have.
        if own["type"] in SIZED and own["memsize"] != found["memsize"]:
            assert own["type"] == "STRING" and own["memsize"] > found["memsize"], own
            compared["with variables"] += 1
        if own["type"] in CONTAINERS:
            expected = references(own, dumps.own) & both
            assert expected == references(found, dumps.found) & both, own
            compared[own["type"]] += bool(expected)
    assert all(compared[one] >= 10 for one in CONTAINERS), compared
    assert 20 <= compared["with variables"] < 50


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "gcore"], "gcore"))
@pytest.mark.parametrize("version", mark_matrix_except(rubies.READ, rubies.SYSTEM))
def test_objects_references_and_allocation_sites_are_rubys_own(version: str, picture: str, tmp_path: Path) -> None:
    dumps = dump(version, tmp_path, picture)
    check(dumps, version)
    items = [one for one in dumps.found.values() if one.get("method") == "new" and one["type"] == "OBJECT"]
    assert len([one for one in items if one["file"] == str(PROGRAM)]) >= 800
    if picture == "gcore":
        read_with_heapy(dumps, version)


def read_with_heapy(dumps: Dumps, version: str) -> None:
    """heapy adds up objects by the line that allocated them, from the file of findleaks."""
    folder = debian.cache() / "heapy"
    debian.unpack_packages("bookworm", ("ruby-heapy",), folder, HEAPY)
    (library,) = folder.glob("root/usr/share/rubygems-integration/all/gems/heapy-*/lib")
    ruby = rubies.get(version)
    script = 'require "json"; require "heapy/analyzer"; Heapy::Analyzer.new(ARGV[0]).drill_down("all", 5)'
    words = [*ruby.words, "-I", str(library), "-e", script, str(dumps.file)]
    text = subprocess.run(words, env=dict(ruby.environment), check=True, capture_output=True, text=True).stdout
    lines = Counter(f"{one['file']}:{one['line']}" for one in dumps.found.values() if "file" in one)
    (place, count) = lines.most_common(1)[0]
    part = text[text.index("object count") :]
    assert f"{count}  {place}" in part, text


def test_what_classes_retain(tmp_path: Path) -> None:
    """The Hash of a constant retains its objects, and the objects retain their texts."""
    with rubies.Pausing(rubies.SYSTEM, PROGRAM, tmp_path / "run", str(tmp_path / "own.json")) as program:
        answer = json.loads(debuggers.findleaks("runtime", "--only", "ruby", "--json", "--pid", str(program.pid)))
    (found,) = answer["runtimes"]
    rows = {row["name"]: row for row in found["types"]}
    # An Item has a String of about 50 bytes in a block of malloc, an Array of 5 elements, and a String in this Array.
    item = rows["Item"]
    assert item["objects"] == 801 - 1
    assert item["objects"] * (40 + 40 + 40 + 40 + 40) * 0.9 <= item["retained_bytes"]
    # A stale word on the stack may refer to an object from which many of them are reachable. The Hash alone does not retain such objects.
    assert rows["Hash"]["retained_bytes"] >= item["retained_bytes"] / 3
    assert all(row["retained_bytes"] is not None for row in rows.values())
