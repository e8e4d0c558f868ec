"""Check the output of `roots` for tests/programs/roots_maps.cpp and roots_c.c, which print what each variable and field holds."""

from __future__ import annotations

import json
from typing import Any

from debuggers import run_cli

Row = dict[str, Any]

WHAT = {
    "names": "std::map or set",
    "sites": "std::map or set",
    "words": "std::map or set",
    "counts": "std::unordered_map or set",
    "events": "std::list",
    "recent": "linked list",
    "order": "std::vector of pointers",
    "samples": "std::vector",
    "waiting": "std::deque",
}
KNOWN = {"names": "std::map", "sites": "std::map", "words": "std::set", "counts": "std::unordered_map"}
"""Names of containers that are known only with debug information; for other fields, WHAT has the name."""

BYTES = ("samples", "waiting")
"""Fields whose length is reported in bytes: elements have 8 bytes."""


def run_roots(*words: str) -> Row:
    done = run_cli("roots", "--json", *words, check=True)
    made: Row = json.loads(done.stdout)
    return made


def parse_output(output: str) -> dict[str, list[int]]:
    """Parse the program's output: numbers by name."""
    rows = (line.split() for line in output.splitlines())
    return {row[0]: [int(word) for word in row[1:]] for row in rows if len(row) > 3}


def check_maps(expected: dict[str, list[int]], members: bool, *target: str) -> None:
    """Check every field of the Profiler, and the map that is a variable. `members`: debug information names the fields."""
    every, agent, fields = _profiler(*target)
    of_agent = {name: row for name, row in expected.items() if name not in ("agent", "local_sites")}
    assert agent["retained_blocks"] == 1 + sum(row[2] for row in of_agent.values())
    assert agent["retained_bytes"] == expected["agent"][3] + sum(row[3] for row in of_agent.values())
    assert set(fields) == {row[0] for row in of_agent.values()}
    for name, (offset, length, blocks, size) in of_agent.items():
        row = fields[offset]
        assert (name, row["retained_blocks"], row["retained_bytes"]) == (name, blocks, size)
        _check_field(name, row, offset, length, members)
    offset, length, blocks, size = expected["local_sites"]
    sites = [row for row in every["roots"] if row["retained_blocks"] == blocks and row["retained_bytes"] == size]
    what = "std::map" if members else "std::map or set"
    assert [(row["container"]["what"], row["container"]["length"]) for row in sites] == [(what, length)]
    total = sum(row["retained_blocks"] for row in every["roots"]) + every["shared"]["retained_blocks"]
    assert total == every["total"]["blocks"]


def check_containers(expected: dict[str, list[int]], members: bool, *target: str) -> None:
    """Check only the containers of the Profiler. If words have 4 bytes, a number may refer to a block by chance: then the field that holds
    the block retains less, and one field retains nothing."""
    every, _, fields = _profiler(*target)
    rows = {name: row for name, row in expected.items() if name not in ("agent", "local_sites")}
    assert len([name for name, row in rows.items() if row[0] not in fields]) <= 1
    for name, (offset, length, *_) in rows.items():
        if offset in fields:
            _check_field(name, fields[offset], offset, length, members)
    maps = [row["container"]["length"] for row in every["roots"] if row["container"] and row["container"]["what"].startswith("std::map")]
    assert maps == [expected["local_sites"][1]]


def _profiler(*target: str) -> tuple[Row, Row, dict[int, Row]]:
    """Return all roots, the Profiler, and its fields by offset."""
    every = run_roots("--limit", "0", *target)
    agent = max(every["roots"], key=lambda row: row["retained_bytes"])
    return every, agent, {row["offset"]: row for row in run_roots(agent["name"], "--limit", "0", *target)["roots"][0]["children"]}


def _check_field(name: str, row: Row, offset: int, length: int, members: bool) -> None:
    assert row["name"] == (f"Profiler.{name}" if members else f"Profiler+{offset:#x}")
    if name in WHAT:
        container = row["container"]
        assert (container["what"], container["problem"]) == (KNOWN.get(name, WHAT[name]) if members else WHAT[name], None)
        assert container["length"] == length * (8 if name in BYTES else 1)


C_FIELDS = {
    "server.jobs": ("circular list", 1),
    "server.keys": ("hash table", 3),
    "server.first": ("linked list", 6),
    "server.index": ("binary tree", 9),
    "server.clients": ("array of pointers", 10),
}
"""For each name: its description, and its offset in words."""


def check_c(expected: dict[str, list[int]], found: Row, word: int = 8) -> None:
    """Check every variable and field of the C program. `word`: bytes of a pointer. If they are 4, retained sizes are not compared, because
    a number may refer to a block by chance."""
    roots = {row["name"]: row for row in found["roots"]}
    fields = {row["offset"]: row for row in roots["server (roots_c, data)"]["children"]}
    assert {row["name"] for row in fields.values()} == set(C_FIELDS)
    for name, (what, offset) in C_FIELDS.items():
        length, *held = expected[name]
        row = fields[offset * word]
        assert name and (word == 4 or [row["retained_blocks"], row["retained_bytes"]] == held)
        assert (row["container"]["what"], row["container"]["length"], row["container"]["problem"]) == (what, length, None)
    strings = fields[3 * word]["container"]["others"]
    assert [other["strings"] for other in strings] == [True]
    assert 900 < strings[0]["blocks"] <= 1000 if word == 4 else strings[0]["blocks"] == 1000
    for name, label in {
        "cache": "cache (roots_c, data)",
        "queue": "queue (roots_c, data)",
        "mine": "mine (roots_c, thread-local, thread 2)",
        "local": "thread 2's stack (worker)",
    }.items():
        length, *held = expected[name]
        assert word == 4 or (name, roots[label]["retained_blocks"], roots[label]["retained_bytes"]) == (name, *held)
    assert roots["mine (roots_c, thread-local, thread 2)"]["container"]["length"] == expected["mine"][0]
    both = ["shared_a (roots_c, data)", "shared_b (roots_c, data)"]
    shared = [row for row in found["shared"]["children"] if sorted(row["holders"]) == both]
    assert [row["container"]["length"] for row in shared] == [expected["shared"][0]]
    assert word == 4 or [row["retained_blocks"] for row in shared] == [expected["shared"][1]]
