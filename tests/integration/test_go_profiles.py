"""Profiles of a stripped Go program, read by `go tool pprof`, equal those that the program wrote of itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from debuggers import findleaks, runtime_page
from go_programs import VERSIONS, build

from cores import Running

COUNT = 2000
Stacks = dict[tuple[str, ...], tuple[int, ...]]


def environment() -> dict[str, str]:
    return {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "0", "GOTRACEBACK": "crash"}


def read(file: Path) -> Stacks:
    """Return the values of a profile by stack, with the innermost function first and without the function in which each goroutine
    begins."""
    done = subprocess.run(["go", "tool", "pprof", "-raw", str(file)], env=environment(), capture_output=True, text=True, check=True)
    body, _, rest = done.stdout.partition("Locations\n")
    places: dict[str, list[str]] = {}
    number = ""
    for line in rest.partition("Mappings")[0].splitlines():
        found = re.match(r"\s*(?:(\d+): 0x[0-9a-f]+ (?:M=\d+ )?)?(.+?) (?:\S*:\d+:\d+ )?s=\d+", line)
        assert found, line
        number = found[1] or number
        places.setdefault(number, []).append(found[2])
    stacks: Stacks = {}
    for values, numbers in re.findall(r"^\s*([\d\s]+): ([\d ]+)$", body, re.MULTILINE):
        names = tuple(name for one in numbers.split() for name in places[one] if name != "runtime.goexit")
        before = stacks.get(names, (0,) * len(values.split()))
        stacks[names] = tuple(map(sum, zip(before, map(int, values.split()))))  # type: ignore[arg-type]
    return stacks


def of_program(stacks: Stacks) -> Stacks:
    """The stacks of the functions that go_profile's first goroutine calls."""
    return {names: values for names, values in stacks.items() if set(names) & {"main.addItem", "main.addBuffer", "main.drop"}}


@pytest.mark.platform("x86-64", "Go")
@pytest.mark.parametrize(
    ("version", "rate"),
    [("", 512 << 10), *(pytest.param(*case, marks=pytest.mark.matrix) for case in (("", 1), *((one, 4096) for one in VERSIONS)))],
)
def test_profiles_equal_those_of_the_program(version: str, rate: int, tmp_path: Path) -> None:
    program, own = build(tmp_path, version, "-ldflags=-s -w", name="go_profile"), tmp_path / "own.pb.gz"
    heap, types, goroutines = (tmp_path / f"{name}.pb.gz" for name in ("heap", "types", "goroutines"))
    with Running([str(program), str(COUNT), str(own), str(rate)], tmp_path / "run", environment()) as run:
        core = str(run.kernel_core())
    text = findleaks("runtime", "--only", "go", "--by", "site", "-o", str(heap), core)
    wanted, found = of_program(read(own)), of_program(read(heap))
    assert len(wanted) == 3  # inlined functions included
    assert found == wanted
    assert ("main.makeItem", "main.addItem", "main.main", "runtime.main") in found
    if rate > 1:
        assert "figures with ≈ are estimates" in text
        assert "content: estimates: the recorder takes one sample every" in text
    else:
        assert found["main.makeItem", "main.addItem", "main.main", "runtime.main"] == 2 * (COUNT, COUNT * 2048)
    page = runtime_page("go", core)
    assert page["sites"][0]["frames"][0].startswith("main.addBuffer at ")
    assert page["sites"][0].get("interval") == (rate if rate > 1 else None)
    (finding,) = (one for one in json.loads(findleaks("verdict", "--json", core))["findings"] if one["finding"] == "retained-objects")
    assert finding["evidence"]["site"]["stack"] == page["sites"][0]["frames"]
    assert " of live objects were allocated by main.addBuffer at " in finding["cause"]
    findleaks("stacks", "-o", str(goroutines), core)
    waiting = {names: values for names, values in read(goroutines).items() if "main.main" not in names}
    assert waiting == {names: values for names, values in read(Path(f"{own}.goroutines")).items() if "main.main" not in names}
    assert sum(count for (count,) in waiting.values()) == 40
    findleaks("runtime", "--only", "go", "-o", str(types), core)
    if version and int(version.split(".")[1]) < 22:  # objects of earlier versions have no headers
        return
    # Stale words of stacks may refer to some items, too.
    (count, size), root = max((values, names[1]) for names, values in read(types).items() if names[0] == "main.Item")
    assert COUNT - 4 <= count <= COUNT
    assert size == count * 2048
    assert root.startswith("variable at 0x")
