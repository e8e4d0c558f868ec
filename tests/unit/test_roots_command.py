"""`roots` on a small synthetic process: its rows as text and as JSON, a single root or block, invalid arguments, interruption."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import graphs
import pytest
from containers import DATA, HEAP, ROOM, Building
from heaps import session as made_session

from findleaks import commands
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted, UsageError
from findleaks.session import Session

MAP, LIST, PAIR_A, PAIR_B, UNNAMED = (DATA + 0x100 * n for n in range(1, 6))
SEVERAL = tuple((f"g_{n}", 0x100 * n) for n in range(1, 7))  # names and offsets of variables; fewer variables would be one root


@pytest.fixture(params=[graphs.native, graphs.pure], ids=["native", "pure"])
def process(request: pytest.FixtureRequest) -> tuple[Building, Session]:
    """Return a process with these variables: g_map refers to an object with a map of 20 and a list of 5; g_list to a
    list of 30; g_a and g_b each to a block that refers to another; a word without a name to an array. Two blocks are
    leaked."""
    made = Building()
    owner = made.block(120)
    made.map(owner + 16, 20)
    made.put(owner + 64, made.chain(5, 40, 0)[0])
    made.put(made.variable("g_map", 0x100, 8), owner)
    made.put(made.variable("g_list", 0x200, 8), made.chain(30, 72, 24)[0])
    both = made.block(24, made.block(200))
    made.put(made.variable("g_a", 0x300, 8), both)
    made.put(made.variable("g_b", 0x400, 8), both)
    made.put(UNNAMED, made.block(40))
    made.block(56, made.block(88))
    engine: Engine = request.param()
    return made, made.session(engine)


def run(session: Session, *words: str) -> tuple[int, str]:
    out = io.StringIO()
    return commands.execute(lambda: session, words, out), out.getvalue()


def run_json(session: Session, *words: str) -> dict[str, Any]:
    status, text = run(session, "roots", *words, "--json")
    assert status == 0
    answer: dict[str, Any] = json.loads(text)
    assert (answer["schema"], answer["command"]) == ("findleaks/1", "roots")
    return answer


def test_rows(process: tuple[Building, Session]) -> None:
    _, session = process
    found = run_json(session, "--limit", "0")
    rows = {row["name"]: (row["sort"], row["retained_blocks"], row["retained_bytes"]) for row in found["roots"]}
    assert rows == {
        "g_map (prog, data)": ("variable", 26, 120 + 20 * 56 + 5 * 40),
        "g_list (prog, data)": ("variable", 30, 30 * 72),
        "prog, data+0x500": ("variable", 1, 40),
    }
    assert (found["shared"]["retained_blocks"], found["shared"]["retained_bytes"]) == (2, 224)
    assert [row["holders"] for row in found["shared"]["children"]] == [["g_a (prog, data)", "g_b (prog, data)"]]
    assert found["total"] == {"blocks": 59, "bytes": 120 + 1120 + 200 + 2160 + 40 + 224}
    by_name = {row["name"]: row for row in found["roots"]}
    fields = {row["offset"]: row for row in by_name["g_map (prog, data)"]["children"]}
    assert {offset: (row["name"], row["retained_blocks"]) for offset, row in fields.items()} == {
        16: ("block of 120 B, offset 0x10", 20),
        64: ("block of 120 B, offset 0x40", 5),
    }
    assert fields[16]["container"] == {
        "what": "std::map or set",
        "length": 20,
        "unit": "nodes",
        "recorded_length": 20,
        "nodes": 20,
        "node_sizes": [56, 56],
        "tables": [],
        "others": [],
        "problem": None,
    }
    assert by_name["g_list (prog, data)"]["container"]["what"] == "linked list"


def test_text_and_json_agree(process: tuple[Building, Session]) -> None:
    _, session = process
    _, text = run(session, "roots", "--limit", "0")
    assert "g_list (prog, data): linked list, 30 nodes of 72 B" in text
    assert "└ block of 120 B, offset 0x10: std::map or set, 20 nodes of 56 B" in " ".join(text.split())
    assert "prog, data+0x500: block of 40 B, zeros" in text
    assert "← g_a (prog, data), g_b (prog, data)" in " ".join(text.split())
    assert text.rstrip().splitlines()[-1].strip().startswith("next: leaks whatis 0x400200")
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure], ids=["native", "pure"])
def test_many_equal_blocks_with_several_roots(engine: Callable[[], Engine]) -> None:
    """Like an interpreter's arenas: several tables refer to all arenas, so that no table retains them. Each arena
    retains two more blocks."""
    made = Building()
    arenas = [made.block(4088, made.block(24), made.block(40)) for _ in range(120)]
    for name, at in SEVERAL:
        made.put(made.variable(name, at, 8), made.block(8 * len(arenas), *arenas))
    session = made.session(engine())
    shared = run_json(session)["shared"]
    assert shared["retained_blocks"] == 3 * 120
    assert shared["sizes"] == [{"size": 4088, "blocks": 120, "retained_blocks": 360, "retained_bytes": 120 * (4088 + 24 + 40)}]
    _, text = run(session, "roots")
    assert "retained by several roots: 120 blocks of 4.0 KiB retain 487 KiB" in " ".join(text.split())
    assert f"next: leaks path {min(arenas):#x}" in text


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure], ids=["native", "pure"])
def test_an_equal_block_that_retains_more_has_its_own_row(engine: Callable[[], Engine]) -> None:
    made = Building()
    records = [made.block(64) for _ in range(150)]
    large = made.block(64, made.block(4096))
    for name, at in SEVERAL:
        made.put(made.variable(name, at, 8), made.block(8 * 151, *records, large))
    rows = run_json(made.session(engine()))["shared"]["children"]
    assert [(row["name"], row["address"]) for row in rows] == [
        ("150 blocks of 64 B", hex(records[0])),
        (f"block of 64 B at {large:#x}", hex(large)),
    ]


def test_roots_of_a_few_equal_blocks_are_not_those_of_all() -> None:
    """Other variables also refer to the five blocks that retain most, as stale words do."""
    made = Building()
    records = [made.block(64, made.block(256)) for _ in range(5)] + [made.block(64) for _ in range(300)]
    for name, at in SEVERAL:
        made.put(made.variable(name, at, 8), made.block(8 * len(records), *records))
    for number, record in enumerate(records[:5]):
        made.put(made.variable(f"g_stale{number}", 0x800 + 8 * number, 8), record)
    (row,) = run_json(made.session(graphs.pure()))["shared"]["children"]
    assert row["name"] == "305 blocks of 64 B"
    assert row["holders"] == [f"{name} (prog, data)" for name, _ in SEVERAL]


def test_selecting_a_root_or_a_block(process: tuple[Building, Session]) -> None:
    made, session = process
    (row,) = run_json(session, "g_map")["roots"]
    assert row["name"] == "g_map (prog, data)"
    assert [row["name"] for row in run_json(session, "g_*")["roots"]] == [
        "g_list (prog, data)",
        "g_map (prog, data)",
        "g_a (prog, data)",
        "g_b (prog, data)",
    ]
    owner = made.get(DATA + 0x100)
    (block,) = run_json(session, hex(owner + 5))["roots"]
    assert (block["address"], block["holder"], block["retained_blocks"]) == (hex(owner), "g_map (prog, data)", 26)
    (shared,) = run_json(session, hex(made.get(DATA + 0x300)))["roots"]
    assert (shared["holder"], shared["retained_blocks"]) == ("several roots", 2)
    lone = made.blocks[-1].address
    (lost,) = run_json(session, hex(lone))["roots"]
    assert (lost["kind"], lost["holder"], lost["retained_blocks"]) == ("definite", None, 2)
    assert run_json(session, hex(DATA + 0x104))["roots"] == [row]
    _, text = run(session, "roots", hex(owner))
    assert "retained by g_map (prog, data)" in text


def test_leaked_blocks(process: tuple[Building, Session]) -> None:
    made, session = process
    found = run_json(session, "--lost")
    assert [(row["kind"], row["retained_blocks"], row["retained_bytes"]) for row in found["roots"]] == [("definite", 2, 144)]
    assert found["roots"][0]["address"] == hex(made.blocks[-1].address)
    assert found["total"] == {"blocks": 2, "bytes": 144}


def test_a_list_with_two_ends_is_one_row(process: tuple[Building, Session]) -> None:
    """The nodes have pointers in both directions, and two variables refer to the ends. Each node is retained by both variables together."""
    made, session = process
    nodes = made.chain(50, 40, 8)
    for before, node in zip([0, *nodes], nodes):
        made.put(node, before)
    made.put(made.variable("g_first", 0x600, 8), nodes[0])
    made.put(made.variable("g_last", 0x700, 8), nodes[-1])
    (joint,) = (row for row in run_json(made.session(session.engine))["roots"] if row["name"] == "g_first and g_last (prog, data)")
    assert (joint["retained_blocks"], joint["retained_bytes"]) == (50, 50 * 40)
    rows = [joint, *joint["children"]]
    assert [(row["container"]["what"], row["container"]["length"]) for row in rows if row["container"]] == [("doubly linked list", 50)]


def test_a_stale_pointer_does_not_divide_a_map(process: tuple[Building, Session]) -> None:
    made, session = process
    owner = made.get(DATA + 0x100)
    made.put(made.variable("g_stale", 0x600, 8), made.get(owner + 16 + 16))  # refers to the root node of the map
    again = {row["name"]: row["retained_blocks"] for row in run_json(made.session(session.engine), "--limit", "0")["roots"]}
    assert again["g_map (prog, data)"] == 26
    assert "g_stale (prog, data)" not in again


@pytest.mark.parametrize("words", [["no_owner"], ["0x10"], ["0x10", "0x20"], ["--depth", "x"], ["--limit", "-1"], ["--lost", "g_map"]])
def test_invalid_arguments_give_one_line(process: tuple[Building, Session], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        run(process[1], "roots", *words)
    assert "\n" not in str(caught.value)


def test_interruption(process: tuple[Building, Session]) -> None:
    made, session = process
    whole = made.session(session.engine)
    whole.target._left = 1 << 20  # type: ignore[attr-defined]
    run(whole, "roots")
    needed = (1 << 20) - whole.target._left  # type: ignore[attr-defined]
    assert needed > 20
    for polls in (0, needed // 3, needed // 2, needed - 1):
        fresh = made.session(session.engine)
        fresh.target._left = polls  # type: ignore[attr-defined]
        with pytest.raises(Interrupted):
            run(fresh, "roots")


def test_an_empty_process_is_reported() -> None:
    made = Building()
    session = made_session(made.session().target, [])  # type: ignore[arg-type]
    assert run(session, "roots")[0] == 2


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure], ids=["native", "pure"])
def test_a_shared_list_that_leads_into_free_memory(engine: Callable[[], Engine]) -> None:
    """Damage: the node after the 40th is at addresses of the heap that are in no block."""
    made = Building()
    nodes = made.chain(40, 48, 0)
    for name, at in SEVERAL:
        made.put(made.variable(name, at, 8), made.block(8 * len(nodes), *nodes))
    free = HEAP + ROOM // 2
    made.put(nodes[-1], free)
    for at in range(free, free + 0x400, 16):
        made.put(at, at + 16)
    shared = run_json(made.session(engine()))["shared"]
    assert shared["retained_blocks"] == 40
    assert len(shared["children"]) == 10
