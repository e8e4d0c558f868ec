"""Fields of one owner: arrays of pointers, more words than rows, and fields with equal contents."""

from __future__ import annotations

import io
import json
from typing import Any

import graphs
import pytest
from containers import Building

from findleaks import commands
from findleaks.audit import fields
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State


@pytest.fixture(params=[graphs.native, graphs.pure], ids=["native", "pure"])
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.param()
    return made


def run_json(made: Building, engine: Engine, *words: str) -> dict[str, Any]:
    out = io.StringIO()
    session = made.session(engine)
    assert commands.execute(lambda: session, ["roots", *words, "--json"], out) == 0
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def run_text(made: Building, engine: Engine, *words: str) -> str:
    out = io.StringIO()
    session = made.session(engine)
    assert commands.execute(lambda: session, ["roots", *words], out) == 0
    return " ".join(out.getvalue().split())


def test_an_array_of_pointers_to_blocks_of_all_sizes(engine: Engine) -> None:
    """Every fifth element is null, also the first. One word refers to the array."""
    made = Building()
    sizes = [24 + 16 * (n % 9) for n in range(500)]
    slots = [made.block(size) if n % 5 else 0 for n, size in enumerate(sizes)]
    array = made.block(8 * len(slots), *slots)
    made.put(made.variable("g_array", 0x100, 8), made.block(40, 7, array))
    (row,) = run_json(made, engine)["roots"]
    held = [size for n, size in enumerate(sizes) if n % 5]
    assert row["retained_blocks"] == 2 + len(held)
    (field,) = row["children"] or [row]
    assert field["retained_bytes"] in (8 * 500 + sum(held), 8 * 500 + sum(held) + 40)
    assert (field["container"]["what"], field["container"]["length"]) == ("array of pointers", 400)
    assert "array of pointers, 400 pointers and 400 blocks of 24–152 B" in run_text(made, engine)


def test_an_array_within_its_owner(engine: Engine) -> None:
    """A structure that contains an array of 300 elements, and other words that do not belong to the array."""
    made = Building()
    slots = [made.block(24 + 16 * (n % 9)) for n in range(300)]
    lone = made.block(200, made.block(48))
    owner = made.block(8 * 304, 5, lone, 6, *slots)
    made.put(made.variable("g_owner", 0x100, 8), owner)
    (row,) = run_json(made, engine, "g_owner", "--limit", "0")["roots"]
    by_offset = {field["offset"]: field for field in row["children"]}
    assert {offset: field["retained_blocks"] for offset, field in by_offset.items()} == {8: 2, 24: 300}
    assert by_offset[24]["container"]["what"] == "array of pointers"
    assert by_offset[24]["retained_bytes"] == sum(24 + 16 * (n % 9) for n in range(300))


@pytest.mark.parametrize("looked", [1 << 15, 20], ids=["one by one", "by size only"])
def test_more_words_than_fields(engine: Engine, monkeypatch: pytest.MonkeyPatch, looked: int) -> None:
    """An array of structures {number, text}: the rows are ordered by the size of the blocks that the words refer to,
    including all memory reachable from them."""
    monkeypatch.setattr(fields, "MOST", 16)
    monkeypatch.setattr(fields, "LOOKED", looked)
    made = Building()
    records: list[int] = []
    for n in range(120):
        records += [n + 1, made.block(40, made.block(72)) if n % 3 else made.block(104)]
    made.put(made.variable("g_records", 0x100, 8), made.block(8 * len(records), *records))
    (row,) = run_json(made, engine)["roots"]
    found = {(field["alike"]["fields"], field["retained_blocks"], field["retained_bytes"]) for field in row["children"]}
    assert found == {(80, 160, 80 * 112), (40, 40, 40 * 104)}
    said = run_text(made, engine)
    assert "80 fields like block of 1.9 KiB, offset 0x18: 80 blocks of 40 B, and 80 blocks of 72 B below them" in said
    assert "40 fields like block of 1.9 KiB, offset 0x8: 40 blocks of 104 B" in said
    assert sum(field["retained_blocks"] for field in row["children"]) + 1 == row["retained_blocks"]


@pytest.mark.parametrize("slots", [40, 400], ids=["structures", "array"])
def test_first_of_many_words_refers_to_a_freed_block(engine: Engine, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    """The first word retains nothing. The description of the others is made from the first word that retains memory."""
    monkeypatch.setattr(fields, "MOST", 16)
    monkeypatch.setattr(fields, "LOOKED", 20)
    made = Building()
    blocks = [made.block(40) for _ in range(slots)]
    made.blocks[0] = made.blocks[0]._replace(state=State.FREE)
    words = [word for number, block in enumerate(blocks) for word in ((number + 1, block) if slots == 40 else (block,))]
    made.put(made.variable("g_owner", 0x100, 8), made.block(8 * len(words), *words))
    (row,) = run_json(made, engine)["roots"]
    assert row["retained_blocks"] == slots
    found = row["children"] or [row]
    assert sum(one["retained_blocks"] for one in found) in (slots - 1, slots)


def make_objects(made: Building, count: int, each: int) -> list[int]:
    """Return words {number, pointer} that refer to objects. Each object retains `each` blocks, including itself."""
    words: list[int] = []
    for n in range(count):
        words += [n + 1, made.block(88, n + 1, *(made.block(136) for _ in range(each - 1)))]
    return words


def test_equal_fields(engine: Engine) -> None:
    """Twenty objects that retain five blocks each are one row. An object that retains far more has its own row. A few
    equal objects are not put together."""
    made = Building()
    words = [*make_objects(made, 20, 5), *make_objects(made, 1, 11), 1, made.block(312), 1, made.block(312)]
    made.put(made.variable("g_objects", 0x100, 8 * len(words)), *words)
    (row,) = run_json(made, engine)["roots"]
    alike = [field for field in row["children"] if "alike" in field]
    assert [field["alike"] for field in alike] == [{"fields": 20, "least_blocks": 5, "most_blocks": 5}]
    assert (alike[0]["retained_blocks"], alike[0]["retained_bytes"]) == (100, 20 * (88 + 4 * 136))
    assert [(size["size"], size["blocks"]) for size in alike[0]["sizes"]] == [(136, 80), (88, 20)]
    assert sorted(field["retained_blocks"] for field in row["children"]) == [1, 1, 11, 100]
    expected = "20 fields like g_objects+0x8: each retains 5 blocks, such as block of 88 B, and 4 blocks of 136 B below it"
    assert expected in run_text(made, engine)


def test_a_small_root_with_equal_fields(engine: Engine) -> None:
    """The fields of a root are listed even if another root retains much more, because the root has no other description."""
    made = Building()
    words = make_objects(made, 20, 2)
    made.put(made.variable("g_objects", 0x100, 8 * len(words)), *words)
    made.put(made.variable("g_large", 0x800, 8), made.block(4 << 20))
    assert "20 fields like g_objects+0x8: each retains 2 blocks" in run_text(made, engine)


def test_all_fields_one_by_one(engine: Engine) -> None:
    """`--limit 0` shows each field in its own row. The sum is the same."""
    made = Building()
    words = make_objects(made, 20, 5)
    made.put(made.variable("g_objects", 0x100, 8 * len(words)), *words)
    (row,) = run_json(made, engine, "g_objects", "--limit", "0")["roots"]
    assert [field["retained_blocks"] for field in row["children"]] == [5] * 20
    assert not any("alike" in field for field in row["children"])
