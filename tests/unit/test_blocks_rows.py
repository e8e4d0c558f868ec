"""`blocks --json`: the rows that the C engine prints are, byte for byte, those that Python prints."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path

import fake
import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptmalloc import BITS_32, NARROW, WIDE, Image, Places

from findleaks.allocators.glibc import layout
from findleaks.audit import block_rows
from findleaks.audit.address_info import STATES
from findleaks.audit.block_table import BlockTable
from findleaks.block_types import naming
from findleaks.commands import Invocation, parse, parser
from findleaks.commands.blocks import Listing, blocks
from findleaks.engine.columns import NO_GROUP
from findleaks.engine.contract import Engine
from findleaks.engine.terms import Kind, State
from findleaks.errors import Interrupted
from findleaks.escaping import json_line
from findleaks.session import Session
from findleaks.target.arch import X86_64, Arch
from findleaks.target.core import open_core

SAMPLE = Path(__file__).parents[2] / "cores" / "sample.core.gz"
SEEDS = st.integers(0, 2**32 - 1)
ALPHABETS = ("abc XYZ019-", 'a"\\\t\n\r\x1b\x7f\x01', "aé\u00a0\u0301ßж", "a中字한", "a\u200b\u202e\ud7ff\ue000", "a😀𝔘")
OPTIONS = (
    [],
    ["--state", "all"],
    ["--state", "free"],
    ["--kind", "lost"],
    ["--kind", "definite,reachable", "--size", "40-"],
    ["--size", "24-100"],
    ["--type", "std::*"],
    ["--type", "*"],
    ["--type", "no such type"],
    ["--allocator", "glibc", "--limit", "5"],
    ["--sort", "size"],
    ["--sort", "size", "--limit", "7", "--state", "all"],
    ["--limit", "3"],
)


VARIANTS = tuple(
    arch._replace(byteorder=order)
    for arch in (X86_64, BITS_32)
    for order in ("little", "big")
    if (arch.word, order) in [(built.word, built.byteorder) for built in graphs.ARCHES]
)
LOW = Places(0x404000, 0x414000, 0x900000, 0x800000, 0x1000000)
PLACES = {8: (WIDE, WIDE._replace(heap=0x555555564000), LOW), 4: (NARROW, LOW)}
"""By word size, where an image lies. Pointers into a heap at the second place, which is usual without ASLR, are "@@VUUU" and the like."""


class MovedImage(Image):
    """An image at other addresses."""

    where = WIDE

    @property
    def places(self) -> Places:
        return self.where


def select_row(table: Sequence[object], arch: Arch) -> object:
    return next(one for one in table if one.word == arch.word and one.since <= (2, 36) <= one.until)  # type: ignore[attr-defined]


def make_content(rng: random.Random, size: int, addresses: Sequence[int], own: int, arch: Arch = X86_64) -> bytes:
    """Return random contents of a block: texts, pointers, `std::string`s and numbers, some of which are almost texts."""
    text = "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(30))).encode("utf-8", "surrogatepass")
    way, words, head = rng.randrange(8), arch.pack, 2 * arch.word
    if way == 0:
        made = rng.randbytes(size)
    elif way == 1:
        made = text + b"\0" * rng.randrange(3)
    elif way == 2:
        made = words((rng.choice(addresses) + rng.choice((0, 0, 8, 1)),)) + text + b"\0" * rng.randrange(2)
    elif way == 3:
        made = text[: rng.randrange(len(text) + 1)] + b"\0" + rng.randbytes(20)
    elif way == 4:  # a std::string with a short text inside the object, intact or almost intact
        body = text[:15]
        made = words((own + rng.choice((head, head, head, 8)), len(body) + rng.choice((0, 0, 1)))) + body.ljust(16, b"\0")
    elif way == 5:  # a std::string whose text is in another block
        made = words((rng.choice((*addresses, 5)), rng.randrange(40), rng.choice((20, 60, arch.mask >> 1))))
    elif way == 6:
        made = words((rng.randrange(4), rng.randrange(20))) + text
    else:
        made = rng.choice((b"", b"\xfb\xad"[::-1].rjust(4, b"\0"), b"\xf4\x90\x80\x80abcd", b"\xed\xa0\x80abcde", b"\xe0\x80\x80abcd"))
    return made[:size].ljust(size, b"\0")


def session(rng: random.Random, engine: Engine, where: Places = WIDE) -> Session:
    arch = engine.arch
    tables = (select_row(table, arch) for table in (layout.STATES, layout.PARS, layout.TCACHES, layout.HEAP_INFOS))
    image = MovedImage(*tables, mangled=True, arch=arch)  # type: ignore[arg-type]
    image.where = where
    image.chunks = [*image.chunks, *((rng.choice((0x20, 0x30, 0x30, 0x40, 0x70, 0x100)), "used") for _ in range(60))]
    target = image.build()
    for block in image.blocks["used"]:
        size = (target.word(block - arch.word) & ~7) - arch.word
        target.write(block, make_content(rng, size, image.blocks["used"], block, arch))
    return Session(target, engine)


def make_listing(made: Session, *words: str) -> Listing:
    args = parse(parser(blocks, "findleaks"), [*words, "--json"])
    assert args is not None
    return blocks.run(made, args)  # type: ignore[return-value]


def check_agreement(made: Session, *words: str) -> str:
    """Check that the C engine and Python print the same text."""
    rows = "".join(make_listing(made, *words).json_lines())
    assert rows == "".join(json_line(item) + "\n" for item in make_listing(made, *words).json())
    told = [one for one in map(json.loads, rows.splitlines()) if "address" in one]
    for one in told:  # columns have texts
        one["type_from"], one["type_sure"] = one.get("type_from") or "", {None: "", True: "true", False: "false"}[one.get("type_sure")]
    assert read_columns(make_listing(made, *words)) == told
    return rows


def read_columns(made: Listing) -> list[dict[str, object]]:
    """Return the JSON of the blocks as columns."""
    found: list[dict[str, object]] = []
    limit = made.limit or 0
    for batch in made.rows.batches(made.rows.largest_first(limit) if made.by_size else None, limit):
        rows = zip(batch.addresses, batch.sizes, batch.names, batch.hints or repeat(""), batch.sites or repeat(0))
        for address, size, number, hint, site in rows:
            names = made.rows.names[number]._asdict()
            row = {"address": hex(address), "size": size, **names, "site": site or None, "hint": hint or None}
            found.append({**row, "kind": row["kind"] or None, "type": row["type"] or None})
    return found


def test_c_engine_makes_most_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(random.Random(3), graphs.native())
    asked: list[int] = []
    alone = block_rows.BlockRows._line
    monkeypatch.setattr(block_rows, "MANY_ODD", 1)
    monkeypatch.setattr(block_rows.BlockRows, "_line", lambda self, index: asked.append(index) or alone(self, index))
    list(make_listing(made).json_lines())
    assert 60 > 2 * len(asked) > 0


@settings(max_examples=graphs.share(50), deadline=None)
@given(SEEDS, st.sampled_from([1, 500]), st.sampled_from(VARIANTS), st.integers(0, 2))
def test_all_contents(seed: int, many: int, arch: Arch, where: int) -> None:
    """`many`: the C engine knows all characters from the first row with a rare one on. Otherwise, it never does."""
    places = PLACES[arch.word][where % len(PLACES[arch.word])]
    made = session(random.Random(seed), graphs.native(arch), places)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_rows, "MANY_ODD", many)
        check_agreement(made)


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_all_options_with_and_without_the_c_engine(words: list[str]) -> None:
    found = []
    for engine in (graphs.native(), graphs.pure()):
        made = session(random.Random(11), engine)
        text = next(iter(make_listing(made, *words).text(80, Invocation())), "")
        found.append((check_agreement(made, *words), text))
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [graphs.native, graphs.pure])
def test_a_pointer_of_printable_bytes_is_no_text(make: Callable[[], Engine]) -> None:
    """A pointer to the next node of a list, at the addresses of a process without ASLR, has bytes like "@@VUUU". Text
    that is not an address of a block stays text."""
    made = session(random.Random(1), make(), PLACES[8][1])
    target, blocks = made.target, made.directory.blocks
    assert isinstance(target, fake.FakeTarget)
    node, text = (blocks.address(index) for index in [i for i in range(len(blocks)) if blocks.state(i) == State.IN_USE][:2])
    target.write(node, (0x555555564040).to_bytes(8, "little") + bytes(16))
    target.write(text, (0x555555564040 + (1 << 40)).to_bytes(8, "little") + bytes(16))
    hints = {item["address"]: item["hint"] for item in map(json.loads, check_agreement(made).splitlines())}
    assert (hints[hex(node)], hints[hex(text)]) == (None, '"@@VUUV"')


def test_totals_without_types_read_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the process uses C++ matters only if types are printed or selected."""
    made = session(random.Random(7), graphs.native())
    expected = make_listing(made, "--type", "*").rows.totals()
    made = session(random.Random(7), graphs.native())
    monkeypatch.setattr(naming, "may_have_strings", lambda target: pytest.fail("the modules were read"))
    assert make_listing(made).rows.totals() == expected


def test_copied_memory_is_read_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = check_agreement(session(random.Random(5), graphs.pure()))
    monkeypatch.setattr(block_rows, "WINDOW", 0x2000)
    made = session(random.Random(5), graphs.native())
    assert not isinstance(next(iter(made.target.pieces(*made.heap_ranges()[0]))).data.obj, block_rows.mmap.mmap)
    assert check_agreement(made) == expected


@pytest.mark.parametrize("words", [[], ["--type", "*::*"], ["--kind", "lost", "--sort", "size"], ["--state", "all"]], ids=" ".join)
def test_a_program_in_cpp(words: list[str]) -> None:
    """The sample has classes, functions, and strings."""
    with open_core(str(SAMPLE)) as target:
        text = check_agreement(Session(target), *words)
    assert words == ["--state", "all"] or '"type": "' in text


def test_interruption() -> None:
    made = session(random.Random(5), graphs.native())
    rows = make_listing(made)
    assert isinstance(made.target, fake.FakeTarget)
    made.target._left = 0
    with pytest.raises(Interrupted):
        list(rows.json_lines())


@pytest.mark.parametrize("words", [[], ["--state", "all"], ["--kind", "lost"], ["--sort", "size", "--limit", "7"]], ids=" ".join)
def test_table_and_json_have_the_same_rows(words: list[str]) -> None:
    """With and without the C engine. The rows of one leak have the number of its head."""
    for engine in (graphs.native(), graphs.pure()):
        made = session(random.Random(5), engine)
        of = make_listing(made, *words)
        rows = [row for row in of.json() if "address" in row]
        table = BlockTable(made, of.filters, of.limit or 0, of.by_size)
        names = zip(table.state, table.kind, table.owner, table.type)
        assert [
            (
                hex(address),
                size,
                STATES[State(state)],
                Kind(kind).name.lower() if kind else None,
                *table.owners[owner],
                table.types[number] or None,
            )
            for address, size, (state, kind, owner, number) in zip(table.address, table.size, names)
        ] == [tuple(row[key] for key in ("address", "size", "state", "kind", "allocator", "arena", "type")) for row in rows]
        assert list(table.site) == [0] * len(rows) and rows
        blocks, graph = made.directory.blocks, of.rows.graph
        heads = [graph.leak_head(blocks.find(address)) for address in table.address]
        assert list(table.group) == [NO_GROUP if head < 0 else head for head in heads]
