"""The commands on a small synthetic process: their text, their JSON, and the errors for invalid arguments."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fake import FakeTarget, thread
from heaps import ListAllocator, Listed, session

from findleaks import commands
from findleaks import session as sessions
from findleaks.arg_types import SizeRange, parse_size, parse_size_range
from findleaks.audit.address_info import Describer
from findleaks.audit.block_rows import BlockRows
from findleaks.block_types import Types
from findleaks.catalogue import CATALOGUE
from findleaks.commands.find import HEURISTIC_WORDS
from findleaks.engine.terms import Heuristic, State
from findleaks.errors import Interrupted, UsageError
from findleaks.formatting import size
from findleaks.graph.unread import Doubtful, Unread
from findleaks.session import Session
from findleaks.target.base import Module, Symbol

HEAP, DATA, STACK = 0x10000, 0x400000, 0x7F0000
HELD, INNER, LONE, HEAD, TAIL, RING_A, RING_B, FREED, BEHIND = (HEAP + 0x100 * i for i in range(9))


def words(size: int, **at: int) -> bytes:
    data = bytearray(size)
    for offset, value in at.items():
        struct.pack_into("<Q", data, int(offset[1:], 16), value)
    return bytes(data)


@pytest.fixture
def made() -> Session:
    """A global variable refers to HELD, and a word on the stack points into INNER. LONE has a text. HEAD refers to
    TAIL, RING_A and RING_B to each other, and FREED to BEHIND."""
    heap = bytearray(0x1000)

    def put(address: int, data: bytes) -> None:
        heap[address - HEAP : address - HEAP + len(data)] = data

    put(LONE, b"GET /index.html HTTP/1.1\0")
    put(HEAD, struct.pack("<Q", TAIL))
    put(RING_A, struct.pack("<QQ", 0, RING_B))
    put(RING_B, struct.pack("<QQ", 0, RING_A))
    put(FREED, struct.pack("<QQ", 0, BEHIND))
    target = FakeTarget(
        {HEAP: bytes(heap), DATA: words(0x100, _40=HELD), STACK: words(0x1000, _100=LONE, _808=INNER + 8)},
        names={DATA: "/bin/prog", STACK: "[stack]"},
        threads=[thread(77, sp=STACK + 0x800)],
        modules=[Module("/bin/prog", 0, DATA, DATA + 0x100)],
        symbols=[Symbol("g_held", DATA + 0x40, 8, "prog")],
    )
    blocks = [Listed(a, 48) for a in (HELD, INNER, LONE, HEAD, TAIL, RING_A, RING_B, BEHIND)]
    blocks.append(Listed(FREED, 48, State.FREE))
    return session(target, [ListAllocator(HEAP, HEAP + 0x1000, blocks)])


def run(made: Session, *line: str) -> tuple[int, str]:
    out = io.StringIO()
    status = commands.execute(lambda: made, list(line), out)
    return status, out.getvalue()


def run_json(made: Session, *line: str) -> Any:
    return json.loads(run(made, *line, "--json")[1])


def test_find_totals(made: Session) -> None:
    found = run_json(made, "find")
    assert found["schema"] == "findleaks/1"
    assert found["command"] == "find"
    assert found["trusted"] is True
    totals = {name: entry["blocks"] for name, entry in found["totals"].items()}
    assert totals == {"in_use": 8, "reachable": 1, "possible": 1, "definite": 4, "indirect": 2}
    assert found["totals"]["definite"]["bytes"] == 4 * 48


def test_find_groups_leak_heads_with_their_indirect_blocks(made: Session) -> None:
    groups = run_json(made, "find", "--kind", "definite")["groups"]
    shapes = {(g["cycle"], g["blocks"], g["indirect_blocks"]): g["examples"] for g in groups}
    assert shapes[2, 1, 1] == [hex(RING_A)]
    assert shapes[1, 1, 1] == [hex(HEAD)]
    assert shapes[1, 2, 0] == [hex(a) for a in (LONE, BEHIND)]


def test_find_text_names_the_next_command(made: Session) -> None:
    status, text = run(made, "find")
    assert status == 0
    assert "8 blocks in use" in text
    assert "cycle of 2" in text
    assert "leaked: " in text
    assert f"leaks refs {LONE:#x}" in text
    assert all(len(line) <= 80 for line in text.splitlines() if "next:" not in line)


def test_fail_over(made: Session) -> None:
    assert run(made, "find", "--fail-over", "0")[0] == 1
    assert run(made, "find", "--fail-over", str(6 * 48))[0] == 0
    assert run(made, "find", "--fail-over", str(6 * 48 - 1))[0] == 1


def test_suppressed_leaks_are_counted(made: Session, tmp_path: Any) -> None:
    rules = tmp_path / "rules"
    rules.write_text("# all of this size\nsize:48\n")
    found = run_json(made, "find", "--suppressions", str(rules))
    assert found["groups"] == []
    assert sum(entry["blocks"] for entry in found["suppressed"]) == 7
    assert found["totals"]["definite"]["blocks"] == 4
    text = run(made, "find", "--suppressions", str(rules))[1]
    assert "  leaked: 288 B in 6 blocks (4 leaks)\n" in text
    assert "  of these suppressed by size:48: 336 B in 7 blocks\n" in text


def test_suppressions_that_matched_nothing_are_listed(made: Session, tmp_path: Any) -> None:
    rules = tmp_path / "rules"
    rules.write_text("leak:Misspelt\nsize:48\ntype:Fixed*\n")
    found = run_json(made, "find", "--suppressions", str(rules))
    assert found["unused_suppressions"] == ["leak:Misspelt", "type:Fixed*"]
    assert [entry["rule"] for entry in found["suppressed"]] == ["size:48"]
    assert run_json(made, "find")["unused_suppressions"] == []


@pytest.mark.parametrize(("by", "rows"), [("kind", 2), ("size", 2), ("type", 2)])
def test_by_merges(made: Session, by: str, rows: int) -> None:
    groups = run_json(made, "find", "--by", by)["groups"]
    assert len(groups) == rows
    assert sum(g["blocks"] + g["indirect_blocks"] for g in groups) == 7


def test_blocks_prints_one_object_a_line(made: Session) -> None:
    lines = [json.loads(line) for line in run(made, "blocks", "--json")[1].splitlines()]
    assert [line["address"] for line in lines] == [hex(a) for a in sorted((HELD, INNER, LONE, HEAD, TAIL, RING_A, RING_B, BEHIND))]
    kinds = {int(line["address"], 16): line["kind"] for line in lines}
    assert kinds[HELD] == "reachable"
    assert kinds[INNER] == "possible"
    assert kinds[TAIL] == "indirect"
    assert kinds[BEHIND] == "definite"


def test_blocks_filters(made: Session) -> None:
    free = [json.loads(line) for line in run(made, "blocks", "--state", "free", "--json")[1].splitlines()]
    assert [(line["address"], line["state"], line["kind"]) for line in free] == [(hex(FREED), "free", None)]
    lost = run(made, "blocks", "--kind", "lost", "--json")[1].splitlines()
    assert len(lost) == 6
    assert run(made, "blocks", "--size", "49-", "--json")[1] == ""


def test_blocks_are_described_only_when_they_are_printed(made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heap can have millions of blocks. The last line counts all of them."""
    described: list[int] = []
    block = Describer.block
    monkeypatch.setattr(Describer, "block", lambda self, index: described.append(index) or block(self, index))
    for line, count in (
        (["blocks"], 8),
        (["blocks", "--state", "all"], 9),
        (["blocks", "--state", "free"], 1),
        (["blocks", "--kind", "lost"], 6),
        (["blocks", "--kind", "lost", "--state", "free"], 0),
        (["blocks", "--size", "48"], 8),
        (["blocks", "--allocator", "listed"], 8),
        (["blocks", "--type", "*"], 8),
    ):
        described.clear()
        text = run(made, *line, "--limit", "2")[1]
        assert f"  {count} block{'' if count == 1 else 's'}, {size(48 * count)}" in text
        assert (f"{count - 2} not shown" in text) == (count > 2)
        assert len(described) == min(count, 2)


def test_blocks_of_an_array_type_are_found_by_the_name_find_prints(made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockRows, "_rows", lambda self, typed: None)  # the C engine cannot print the rows
    monkeypatch.setattr(Types, "of_block", lambda self, address, size: "Item[5]" if address == LONE else "Item5")
    lines = run(made, "blocks", "--type", "Item[5]", "--json")[1].splitlines()
    assert [json.loads(line)["address"] for line in lines] == [hex(LONE)]


def test_ctrl_c_ends_long_listings(made: Session) -> None:
    for line in (["blocks", "--size", "48"], ["refs", hex(HELD)], ["find"]):
        run(made, *line)
        made.target._left = 0  # type: ignore[attr-defined]
        made.drop_computed()
        with pytest.raises(Interrupted):
            run(made, *line)
        made.target._left = None  # type: ignore[attr-defined]


def test_no_command_depends_on_an_earlier_one(made: Session) -> None:
    """A heuristic makes a block reachable. A session keeps one graph for each choice of heuristics."""
    made.target.write(INNER, struct.pack("<Q", 40))  # type: ignore[attr-defined]  # memcheck's length64
    lines = (["whatis", hex(INNER)], ["refs", hex(INNER)], ["path", hex(HELD)], ["blocks"])
    before = [run(made, *line, "--json")[1] for line in lines]
    graph, found = made.graph(), {words: run_json(made, "find", "--heuristics", words) for words in ("all", "none", "auto", "all")}
    assert found["all"]["totals"]["possible"] != found["none"]["totals"]["possible"]
    assert [run(made, *line, "--json")[1] for line in lines] == before
    assert made.graph() is graph
    assert made.with_heuristics(HEURISTIC_WORDS["all"]) is made.with_heuristics(HEURISTIC_WORDS["all"]) is not made
    assert made.with_heuristics(Heuristic.AUTO) is made


def test_a_warning_is_only_in_results_that_it_concerns(made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of a debugger prints the same warnings as on the command line, whatever was computed before."""
    unread = Unread()
    unread.warning = "some code cannot be read"
    monkeypatch.setattr(sessions, "unread", lambda *_: unread)
    monkeypatch.setattr(sessions, "doubtful", lambda *_: Doubtful([], [LONE], Unread(), {}, True))
    lines = (["caches"], ["find"], ["stacks"], ["caches"], ["whatis", hex(HELD)], ["find"], ["whatis", "0x10"])
    warned = ["some code cannot be read" in run_json(made, *line)["warnings"] for line in lines]
    assert warned == [False, True, False, False, True, True, False]


def test_words_that_threads_read_again_are_added_once(made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command may compute many paths. In a JVM, finding these words takes 20 ms."""
    monkeypatch.setattr(sessions, "doubtful", lambda *_: Doubtful([], [LONE], Unread(), {}, True))
    block = made.directory.blocks.find(HELD)
    chain = made.path(block)
    calls: list[Session] = []
    monkeypatch.setattr(Session, "register_words", lambda self: calls.append(self) or [])
    assert [made.path(block) for _ in range(3)] == [chain] * 3 and chain
    assert not calls


def test_all_text_from_the_target_is_escaped(made: Session) -> None:
    target = made.target
    assert isinstance(target, FakeTarget)
    target._modules = [Module("/bin/\x1b]0;owned\x07\x1b[31mprog", 0, DATA, DATA + 0x100)]
    target._symbols = [Symbol("g_\x1b[2Jheld", DATA + 0x40, 8, "prog")]
    target.warnings = ["\x1b[2J: not on this machine"]
    for line in (["find"], ["blocks"], ["whatis", hex(DATA + 0x40), hex(DATA)], ["refs", hex(HELD)], ["path", hex(HELD)]):
        text = run(made, *line)[1]
        assert all(character.isprintable() or character == "\n" for character in text), line
        assert "\\x1b" in text


def test_an_anonymous_mapping_with_a_stack_pointer_is_no_stack() -> None:
    """A mapping that contains the stack of one coroutine is a pool: most of it is not a stack."""
    target = FakeTarget({DATA: bytes(0x4000)}, threads=[thread(5, sp=DATA + 0x3000)])
    made = session(target, [ListAllocator(HEAP, HEAP + 0x100, [])])
    (answer,) = run_json(made, "whatis", hex(DATA + 0x10))["answers"]
    assert answer["is"] == "mapping"
    assert answer["root"] is True


def test_a_block_that_is_a_stack_is_reachable() -> None:
    """The stack of a coroutine is a block from malloc. Only the stack pointer refers to it, into its middle. The blocks
    that it refers to are reachable."""
    heap = bytearray(0x1000)
    struct.pack_into("<Q", heap, 0x500, HEAP + 0x800)
    target = FakeTarget({HEAP: bytes(heap)}, threads=[thread(1, sp=HEAP + 0x480)])
    made = session(target, [ListAllocator(HEAP, HEAP + 0x1000, [Listed(HEAP, 0x700), Listed(HEAP + 0x800, 48)])])
    assert run_json(made, "find")["totals"]["reachable"]["blocks"] == 2
    assert run_json(made, "path", hex(HEAP))["path"][0]["from"] == "register rsp of thread 1"


def test_whatis(made: Session) -> None:
    answers = run_json(made, "whatis", hex(HELD + 8), hex(DATA + 0x40), hex(STACK + 0x900), hex(STACK + 0x10), hex(FREED), "0x10")[
        "answers"
    ]
    assert [a["is"] for a in answers] == ["block", "module", "stack", "stack", "block", "unmapped"]
    assert answers[0]["offset"] == 8
    assert answers[0]["block"]["kind"] == "reachable"
    assert answers[1]["symbol"] == "g_held"
    assert answers[1]["root"] is True
    assert answers[2]["root"] is True
    assert answers[3]["root"] is False
    assert "dead" in answers[3]["text"]
    assert answers[4]["block"]["state"] == "free"


def test_refs_distinguishes_live_and_dead_references(made: Session) -> None:
    dead = run_json(made, "refs", hex(LONE))["references"]
    assert [(r["address"], r["live"]) for r in dead] == [(hex(STACK + 0x100), False)]
    behind = run_json(made, "refs", hex(BEHIND))["references"]
    assert [(r["address"], r["live"], r["from"]["block"]["state"]) for r in behind] == [(hex(FREED + 8), False, "free")]
    held = run_json(made, "refs", hex(HELD + 40))["references"]
    assert [(r["address"], r["live"], r["interior"]) for r in held] == [(hex(DATA + 0x40), True, False)]


def test_refs_counts_unlisted_references(made: Session) -> None:
    heap = struct.pack("<Q", HEAP + 0x800) * 200 + bytes(0x1000 - 1600)
    target = FakeTarget({HEAP: heap}, threads=[thread(1, sp=0)])
    made = session(
        target, [ListAllocator(HEAP, HEAP + 0x1000, [Listed(HEAP, 400), Listed(HEAP + 400, 1200, State.FREE), Listed(HEAP + 0x800, 16)])]
    )
    found = run_json(made, "refs", hex(HEAP + 0x800))
    assert (found["count"], found["live"], len(found["references"])) == (200, 50, 100)
    assert len(run_json(made, "refs", "--limit", "0", hex(HEAP + 0x800))["references"]) == 200
    text = run(made, "refs", "--limit", "3", hex(HEAP + 0x800))[1]
    assert "200 references, 50 of them in roots or blocks in use, 197 more not shown (--limit 0)" in text


def _read_small(read: Callable[[int, int], bytes], start: int, size: int) -> bytes:
    assert size <= 64, "a whole block was read"
    return read(start, size)


def test_path_through_a_block_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block can be gigabytes large. The first word that points to the start of the next block is named. If no word
    points to its start, the first pointer into the block is named."""
    for at, value, interior in ((0x300, HEAP + 0x800, False), (0x400, HEAP + 0x808, True)):
        heap = bytearray(0x1000)
        struct.pack_into("<Q", heap, 0x100, HEAP + 0x808)
        struct.pack_into("<Q", heap, at, value)
        target = FakeTarget({HEAP: bytes(heap), DATA: words(8, _0=HEAP)})
        made = session(target, [ListAllocator(HEAP, HEAP + 0x1000, [Listed(HEAP, 0x700), Listed(HEAP + 0x800, 16)])])
        monkeypatch.setattr(target, "read", partial(_read_small, target.read))
        monkeypatch.setattr("findleaks.audit.address_info.find_hint", lambda *_: "")
        monkeypatch.setattr(Types, "of_block", lambda *_: "")
        step = run_json(made, "path", hex(HEAP + 0x800))["path"][1]
        assert (step["address"], step["interior"]) == (hex(HEAP + (0x100 if interior else at)), interior)


def test_path_from_a_root_and_from_a_leak_head(made: Session) -> None:
    held = run_json(made, "path", hex(HELD))
    assert [step["address"] for step in held["path"]] == [hex(DATA + 0x40)]
    assert held["leak_head"] is None
    tail = run_json(made, "path", hex(TAIL))
    assert tail["leak_head"] == hex(HEAD)
    assert [step["address"] for step in tail["path"]] == [hex(HEAD)]
    inner = run_json(made, "path", hex(INNER))
    assert inner["path"][0]["interior"] is True
    assert inner["path"][0]["offset"] == 8
    assert "g_held" in run(made, "path", hex(HELD))[1]


@pytest.mark.parametrize(
    "line",
    [
        ["leak"],
        ["find", "--kind", "lots"],
        ["find", "--limit", "x"],
        ["find", "--fail-over", "much"],
        ["find", "--fail-over", "9" * 5000],
        ["find", "--fail-over", "9" * 400 + ".5"],
        ["find", "--heuristics", "some"],
        ["find", "extra"],
        ["blocks", "--size", "9-3"],
        ["blocks", "--kind", "odd"],
        ["whatis"],
        ["whatis", "here"],
        ["whatis", "0x1ffffffffffffffff"],
        ["path", hex(DATA)],
        ["path", "0x1", "0x2"],
    ],
)
def test_invalid_arguments_give_one_line(made: Session, line: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        run(made, *line)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_has_an_example_and_needs_no_session() -> None:
    def none() -> Session:
        raise AssertionError("help must not open anything")

    for name in CATALOGUE:
        out = io.StringIO()
        assert commands.execute(none, [name, "--help"], out) == 0
        assert f"leaks {name}" in out.getvalue()
        assert "Example:" in out.getvalue()


def test_completion() -> None:
    assert commands.complete([], "fi") == ["find"]
    assert "--suppressions" in commands.complete(["find"], "--su")
    assert commands.complete(["blocks", "--state"], "ca") == ["cached"]
    assert commands.complete(["nothing"], "-") == []


def test_gdb_style_options(made: Session) -> None:
    assert json.loads(run(made, "find", "-json")[1])["command"] == "find"


def test_sizes() -> None:
    assert (parse_size("64k"), parse_size("1.5MiB"), parse_size("0x10")) == (65536, 1572864, 16)
    assert (parse_size("08"), parse_size("010k")) == (8, 10 << 10)
    assert parse_size_range("16-64") == SizeRange(16, 64)
    assert parse_size_range("48") == SizeRange(48, 48)
    assert parse_size_range("4k-").low == 4096
    assert parse_size_range("-64") == SizeRange(0, 64)


@pytest.mark.parametrize(
    ("length", "limit", "shown", "skipped"),
    [(100, 25, 26, 74), (100, 5, 6, 94), (100, 0, 100, 0), (100, 200, 100, 0), (100, 1, 2, 98), (4, 2, 3, 1), (5, 2, 3, 2)],
)
def test_middle_of_a_long_path_is_left_out(length: int, limit: int, shown: int, skipped: int) -> None:
    """A list that a global variable refers to: the path has one step for the root, and one link less than nodes."""
    nodes = [HEAP + 0x20 * i for i in range(length)]
    heap = b"".join(struct.pack("<QQQQ", following, 0, 0, 0) for following in [*nodes[1:], 0])
    target = FakeTarget({HEAP: heap, DATA: words(0x100, _40=HEAP)}, threads=[thread(1, sp=0)])
    made = session(target, [ListAllocator(HEAP, HEAP + 0x20 * length, [Listed(a, 24) for a in nodes])])
    found = run_json(made, "path", "--limit", str(limit), hex(nodes[-1]))
    assert found["blocks"] == length
    assert len(found["path"]) == shown
    assert (found["skipped"] or {"steps": 0})["steps"] == skipped
    text = run(made, "path", "--limit", str(limit), hex(nodes[-1]))[1]
    assert text.count("→") == shown
    assert (f"… {skipped} more step{'' if skipped == 1 else 's'} (" in text) == bool(skipped)
    linked = [(step["address"], step["value"]) for step in found["path"][1:]]
    assert linked == sorted(set(linked))
    assert hex(nodes[-2 if limit != 1 else 0]) in text
