"""Compare findleaks' results with what programs/go_truth.go prints about itself, and with the goroutines in pprof profiles and in Go's
crash messages."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from debuggers import findleaks, runtime_page

COUNT = 300
Place = tuple[str, int]


def profile(text: str) -> dict[int, tuple[str, tuple[Place, ...], Place]]:
    """Parse a pprof profile. Return for each goroutine, by number: wait reason, functions outside the package runtime, creator."""
    found = {}
    for part in text.split("\n\n"):
        head, *lines = part.strip().split("\n")
        number, state = re.match(r"goroutine (\d+) .*?\[([^,\]]*)", head).groups()  # type: ignore[union-attr]
        places = []
        for name, where in zip(lines[::2], lines[1::2]):
            plain = re.sub(r"\((?:[^()]|\{[^}]*\})*\)$", "", re.sub(r" in goroutine \d+$", "", name))
            places.append((plain, int(where.split()[0].rsplit(":", 1)[1])))
        creator = places.pop() if lines[-2].startswith("created by ") else ("created by ", 0)
        own = tuple(one for one in places if not one[0].startswith("runtime."))
        found[int(number)] = state, own, (creator[0].removeprefix("created by "), creator[1])
    return found


def crash_message(text: str) -> dict[int, tuple[Place, ...]]:
    """Return the functions of package main in a message of GOTRACEBACK=crash, by goroutine. Leave out functions that the compiler
    generated."""
    parts = [part.split("\n-----", 1)[0] for part in text.split("\n\n") if re.match(r"goroutine [1-9]", part)]
    plain = [re.sub(r"^(\t.*?:\d+).*$", r"\1", part, flags=re.M) for part in parts if "\n\t" in part]
    found = {number: _of_main(own) for part in plain for number, (_, own, _) in profile(part).items()}
    return {number: own for number, own in found.items() if own}


def _of_main(places: tuple[Place, ...]) -> tuple[Place, ...]:
    return tuple(one for one in places if one[0].startswith("main.") and one[0].count(".") == 1)


def check_interrupted(text: str, version: str, *where: str) -> None:
    """Compare the stacks of programs/go_interrupted.go with its crash message `text`. Up to Go 1.20, the message has the line of the
    instruction before the interrupted one."""
    wanted = crash_message(text)
    mine = {number: _of_main(own) for number, (_, own, _) in parse_goroutines(json.loads(findleaks("stacks", "--json", *where))).items()}
    exact = not version or tuple(map(int, version.split(".")[:2])) > (1, 20)
    assert all(wanted[number] == mine[number] for number in wanted if exact or number == 1)
    functions = [[name for name, _ in mine[number]] for number in wanted]
    assert functions.count(["main.count"]) == 4
    assert ["main.number", *["main.sum"] * 4, "main.main"] in functions


def parse_goroutines(found: dict[str, Any]) -> dict[int, tuple[str, tuple[Place, ...], Place]]:
    """Return goroutines from findleaks' JSON, in the form of `profile`."""
    made = {}
    for group in found["user_stacks"]:
        own = tuple((one["function"], one["line"]) for one in group["frames"] if not one["function"].startswith("runtime."))
        creator = (group["creator"]["function"], group["creator"]["line"]) if group["creator"] else ("", 0)
        assert group["count"] == len(group["numbers"])
        if not group["internal"]:
            made.update(dict.fromkeys(group["numbers"], (group["reason"], own, creator)))
    return made


def objects_as_counted(page: dict[str, Any], figures: dict[str, int]) -> None:
    """Check that the numbers of objects that the program creates are exact. The figures for all
    objects may differ by 0.5 %, because the program continues to run after it has printed them."""
    types = {one["name"]: one for one in page["types"]}
    # The program holds 10 * COUNT Sessions, and each goroutine one more. Only stacks refer to the latter.
    assert types["main.Session"]["objects"] == 11 * COUNT
    assert types["func main.fill.func1"]["objects"] == COUNT
    assert types["chan *main.Session"]["objects"] == COUNT
    assert (types["map[string]*main.User"]["objects"], types["main.User"]["objects"]) == (1, COUNT)
    check_retained(types)
    whole = [sum(one["objects"] + one["own"]["garbage_objects"] for one in types.values())]
    whole.append(sum(one["bytes"] + one["own"]["garbage_bytes"] for one in types.values()))
    for mine, name in zip(whole, ("HeapObjects", "HeapAlloc")):
        assert abs(mine - figures[name]) <= figures[name] // 200, (name, mine, figures[name])
    garbage = [one["own"]["garbage_objects"] for one in types.values()]
    assert sum(garbage) >= COUNT - 1


def sparse_map(*where: str) -> None:
    found = json.loads(findleaks("verdict", "--json", *where))["findings"]
    (one,) = [finding for finding in found if finding["finding"] == "go-map"]
    assert one["evidence"]["entries"] == 1
    assert one["evidence"]["slots"] >= 40_000
    assert one["evidence"]["type"] == "map[uint64][12]uint64"
    assert one["bytes"] >= 40_000 * 104


def addresses(output: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in output.splitlines()[1].split())


def refs_in_objects(address: str, *where: str) -> list[dict[str, Any]]:
    """Return the references to an object from other objects. Those from stacks and registers may be stale."""
    return [one for one in ask("refs", address, *where)["references"] if "object" in one["from"]]


def ask(command: str, address: str, *where: str) -> dict[str, Any]:
    return dict(json.loads(findleaks(command, address, "--limit", "0", "--json", *where)))


def check_objects(at: dict[str, str], *where: str) -> None:
    """Check types, fields, referrers and paths of objects whose addresses the program printed."""
    (found,) = json.loads(findleaks("whatis", at["holder"], "--json", *where))["answers"]
    assert found["object"] == {"address": at["holder"], "size": 24, "type": "main.Holder", "runtime": "Go", "live": True}
    assert [(word["member"], word["value"]) for word in found["words"]] == [
        (".Number", "0x5"),
        (".Data", at["data"]),
        (".Shared", at["shared"]),
    ]
    (field,) = refs_in_objects(at["data"], *where)
    assert (field["address"], field["live"]) == (hex(int(at["holder"], 16) + 8), True)
    assert (field["from"]["member"], field["from"]["object"]["type"]) == (".Data", "main.Holder")
    shared = refs_in_objects(at["shared"], *where)
    assert [(one["from"]["member"], one["live"]) for one in shared] == [(".Shared", True)] * COUNT
    root, array, holder = ask("path", at["data"], *where)["path"]
    assert root["in"]["is"] == "module"
    assert array["in"]["object"]["type"] == "[]*main.Holder"
    assert array["in"]["member"] == "[5]"
    assert (holder["in"]["object"]["address"], holder["in"]["member"]) == (at["holder"], ".Data")
    stacks = [one for one in ask("refs", at["waiting"], *where)["references"] if "object" not in one["from"]]
    assert [one["from"]["text"] for one in stacks if one["from"]["text"].endswith("(waiting, chan receive), in main.waitOn")]
    gone = ask("path", at["dropped"], *where)
    assert (gone["target"]["object"]["live"], gone["path"]) == (False, [])


def check_roots(at: dict[str, str], *where: str) -> None:
    """Check that variables of a stripped program are named by the functions that use them, and that goroutines that wait in the same
    function are one root."""
    (heap,) = json.loads(findleaks("roots", "--json", *where))["heaps"]
    roots = heap["roots"]
    assert sum(one["objects"] for one in roots) + heap["shared_objects"] == heap["objects"]
    assert sum(one["bytes"] for one in roots) + heap["shared_bytes"] == heap["bytes"]
    (holders,) = (one for one in roots if [each for each in one["types"] if each["type"] == "main.Holder"])
    assert "(used in main.fill" in holders["name"]
    # A stale word of a stack may refer to the data of one Holder. This data then has two holders, but variables come first.
    assert holders["objects"] == 2 * COUNT + 2  # with the array, and the 8,192 bytes that all Holders share
    (waiting,) = (one for one in roots if one["name"] == "goroutines in main.waitOn (chan receive), created by main.start")
    assert waiting["threads"] == COUNT
    assert waiting["objects"] >= COUNT
    name = holders["name"].removeprefix("variable ")
    (found,) = json.loads(findleaks("roots", name, "--json", *where))["heaps"]
    assert [(one["name"], one["objects"]) for one in found["roots"]] == [(holders["name"], holders["objects"])]
    (found,) = json.loads(findleaks("roots", at["holder"], "--json", *where))["heaps"]
    (one,) = found["roots"]
    assert (one["sort"], one["holder"].split(" at ")[0]) == ("object", "[]*main.Holder")
    assert one["objects"] in (1, 2)  # the Holder, and its data unless a stale word also refers to the data


def check_plugin(output: str, file: Path, *where: str) -> dict[int, tuple[str, tuple[Place, ...], Place]]:
    """Compare the goroutines and objects that findleaks reports for programs/go_plugin_host.go with the program's `output` and the profile
    in `file`. Return the goroutines. Only goroutines refer to half of the objects."""
    figures = dict(pair.split("=") for pair in output.split()[:-1])
    found = json.loads(findleaks("stacks", "--json", *where))
    mine, wanted = parse_goroutines(found), profile(file.read_text())
    del mine[1], wanted[1]  # the program's first goroutine wrote the profile
    assert mine == wanted and len(wanted) == COUNT
    (group,) = (one for one in found["user_stacks"] if one["count"] == COUNT)
    assert {frame["module"] for frame in group["frames"] if frame["function"].endswith(".wait")} == {"go_plugin"}
    page = runtime_page("go", *where)
    assert {one["name"]: one["objects"] for one in page["types"]}["main.Item"] == 2 * COUNT
    whole = sum(one["objects"] + one["own"]["garbage_objects"] for one in page["types"])
    assert abs(whole - int(figures["HeapObjects"])) <= 20
    (heap,) = json.loads(findleaks("roots", "--json", *where))["heaps"]
    (items,) = (one for one in heap["roots"] if [of for of in one["types"] if of["type"] == "[]*main.Item"])
    assert ".items" in items["name"] or ".Start" in items["name"]
    assert {of["type"]: of["objects"] for of in items["types"]}["main.Item"] == COUNT
    return mine


def check_retained(types: dict[str, dict[str, Any]]) -> None:
    """Check that each Holder retains its data, and that all of them share 8,192 bytes. Stale words of stacks may refer to the data of one
    Holder, to the shared bytes, and to a few Holders; the array does not retain these."""
    whole = COUNT * (24 + 4096)
    assert whole - 4096 <= types["main.Holder"]["retained_bytes"] <= whole
    array = types["[]*main.Holder"]
    assert whole * 9 // 10 <= array["retained_bytes"] - array["bytes"] <= whole + 8192
    assert types["[4096]uint8"]["retained_bytes"] == types["[4096]uint8"]["bytes"] == COUNT * 4096


def compare(output: str, file: Path, *where: str, slack: int = 128 << 10) -> None:
    """Compare goroutines and counters with `output` and the profile in `file`. `slack`: bytes that the program may allocate afterwards."""
    figures = {name: int(value) for name, value in (pair.split("=") for pair in output.splitlines()[0].split())}
    found = json.loads(findleaks("stacks", "--json", *where))
    wanted, mine = profile(file.read_text()), parse_goroutines(found)
    assert found["user_threads"] == figures["goroutines"] == COUNT + 12 == len(mine)
    del wanted[1], mine[1]  # the program's first goroutine wrote the profile, and is waiting now
    assert mine == wanted
    assert Counter(reason for reason, _, _ in mine.values())["chan receive"] == COUNT
    page = runtime_page("go", *where)
    counters = page["counters"]
    assert [counters[name] for name in ("NumGC", "NumForcedGC")] == [figures[name] for name in ("NumGC", "NumForcedGC")]
    # Writing the heap profile may allocate more buckets, which Go never frees.
    assert figures["BuckHashSys"] <= counters["BuckHashSys"] <= figures["BuckHashSys"] + slack
    objects_as_counted(page, figures)
    for name in ("HeapSys", "HeapInuse", "StackInuse", "MSpanSys", "MCacheSys", "GCSys", "OtherSys"):
        assert abs(counters[name] - figures[name]) <= figures[name] // 100 + slack, name


def read_objects(output: str) -> dict[str, tuple[int, str]]:
    """Return the number and the kind of each object that the program printed, by address."""
    found = (line.split(" ", 3) for line in output.splitlines() if line.startswith("object "))
    return {address: (int(number), kind) for _, number, address, kind in found}


def are_live(objects: Mapping[str, object], *where: str) -> dict[str, Optional[bool]]:
    """Return whether findleaks reports each object as live, by address; None if findleaks finds no
    object at the address."""
    found = json.loads(findleaks("whatis", "--json", *objects, *where))["answers"]
    return {address: one["object"]["live"] if one["object"] else None for address, one in zip(objects, found)}


def is_garbage(kind: str) -> bool:
    """Return whether an object of this kind in programs/go_stack_maps.go is garbage. It is
    garbage if its function does not use it again, or if only an integer refers to it."""
    return "not used" in kind or kind == "dead local" or kind.startswith("integer")
