"""Ruby's reader on synthetic heaps of three layouts, intact and damaged."""

from __future__ import annotations

import importlib
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import graphs
import pytest
import rubyimage as r
from fake import FakeTarget
from rubyimage import Image

from findleaks.allocators.directory import build_directory
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.errors import Interrupted
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.ruby import find
from findleaks.runtimes.ruby.reported import reported_at
from findleaks.target.base import Module

VERSIONS = ["2.7", "3.1", "3.3"]


def find_ruby(target: FakeTarget, engine: Engine | None = None) -> Runtime:
    engine = engine or graphs.pure()
    (found,) = find(target, engine, build_directory(target, engine))
    return found


def find_types(found: Runtime) -> dict[str, int]:
    return {one.name: one.objects for one in found.types()}


def make_heap(version: str) -> Image:
    image = Image(version)
    plain = image.new_class("Outer::Plain") if version != "3.3" else 0
    if version != "3.3":
        singleton = image.new_class(None, r.T_CLASS | r.SINGLETON, plain)
        included = image.put(r.T_ICLASS, 0, singleton)
        nameless = image.new_class(None)
        for _ in range(5):
            image.put(r.T_OBJECT, plain)
        image.put(r.T_OBJECT, singleton)
        image.put(r.T_OBJECT, included)
        image.put(r.T_OBJECT, nameless)
    for _ in range(3):
        image.string("text", image.klass["String"])
    image.put(r.T_ARRAY, 0)
    image.put(r.T_IMEMO | 7 << 12, 0x1111)
    image.put(r.T_IMEMO | 7 << 12 | 1 << 20, 0x2222)
    kind = image.data_type("wrapped")
    image.put(r.T_DATA, image.klass["Object"], kind, 1, 0)
    image.put(r.T_DATA, image.klass["Object"], 0x1234, 0x5678, 0)
    image.page(80 if version == "3.3" else 40)
    image.put(r.T_ARRAY, image.klass["Array"])
    return image


@pytest.mark.parametrize("engine", [graphs.pure(), graphs.native()], ids=lambda one: one.name)
@pytest.mark.parametrize("version", VERSIONS)
def test_an_intact_heap(version: str, engine: Engine) -> None:
    image = make_heap(version)
    found = find_ruby(image.target(), engine)
    assert found.problems == []
    assert (found.name, found.version, found.where) == ("Ruby", version + ".9", "libruby.so")
    counted = find_types(found)
    expected = {"String": 3, "T_ARRAY (hidden)": 1, "imemo_iseq": 2, "Object [wrapped]": 1, "Object": 1, "Array": 1}
    if version != "3.3":
        nameless = next(name for name in counted if name.startswith("#<Class:0x"))
        expected.update({"Outer::Plain": 7, nameless: 1, "Class (singleton)": 1, "T_ICLASS": 1})
        assert len(nameless) == len("#<Class:0x>") + 16
    expected["Class"] = 4 if version == "3.3" else 6
    expected["T_STRING (hidden)"] = counted["T_STRING (hidden)"]
    assert counted == expected
    assert counted["T_STRING (hidden)"] == (4 if version == "3.3" else 5)
    (part,) = found.parts()
    slots = sum(image.count(number) for number in range(len(image.bodies)))
    live = sum(counted.values())
    assert part.detail == f"{len(image.bodies)} pages of {image.layout.page >> 10} KiB: {live} slots live, {slots - live:,} free"
    assert part.used == sum(one.bytes for one in found.types())
    dead = found.dead()
    assert sum(end - start for start, end in dead) == sum(image.count(n) * image.sizes[n] for n in range(len(image.bodies))) - part.used
    holders = found.holders()
    assert holders is not None
    assert list(holders.addresses) == sorted(holders.addresses)
    assert len(holders.addresses) == slots
    assert sum(kind != NO_ROOT for kind in holders.types) == live
    counters = {name: count.value for name, count in found.counters().items()}
    assert counters["TOTAL"] == counters["heap_available_slots"] == slots
    assert (counters["FREE"], counters["T_STRING"]) == (slots - live, counted["String"] + counted["T_STRING (hidden)"])
    assert (counters["count"], counters["minor_gc_count"], counters["major_gc_count"]) == (7, 3, 4)
    assert (counters["malloc_increase_bytes"], counters["malloc_increase_bytes_limit"]) == (1000, 16 << 20)
    assert (counters["oldmalloc_increase_bytes"], counters["old_objects"], counters["heap_final_slots"]) == (2000, 13, 2)
    assert ("read_barrier_faults" in counters) is (version != "2.7")
    if version != "3.3":
        assert (counters["heap_live_slots"], counters["total_allocated_objects"]) == (5000 - 900 - 2, 5000)


@pytest.mark.parametrize("version", VERSIONS)
def test_addresses_are_described(version: str) -> None:
    image = Image(version)
    text = image.string("twelve chars", image.klass["String"])
    found = find_ruby(image.target())
    assert found.describe(text) == "Ruby String, 12 bytes"
    assert found.describe(text + 9) == "Ruby String, 12 bytes, 9 bytes into it"
    assert found.describe(image.klass["Array"]) == "Ruby Class Array"
    assert found.describe(text + 40 * 3 if version != "3.3" else text + 40) == "free slot of Ruby's heap"
    assert "header" in found.describe(image.address(0) + 4)
    assert found.describe(0x1000) == found.describe(image.address(9)) == ""


def test_no_ruby_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("findleaks.runtimes.ruby.")]:
        monkeypatch.delitem(sys.modules, name)
    target = FakeTarget({0x1000: bytes(4096)}, modules=[Module("/usr/bin/python3", 0, 0x1000, 0x2000)])
    finder = importlib.import_module("findleaks.runtimes.ruby").find
    assert finder(target, graphs.pure(), build_directory(target, graphs.pure())) == []
    assert not [name for name in sys.modules if name.startswith("findleaks.runtimes.ruby.")]
    other = FakeTarget({0x1000: bytes(4096)}, modules=[Module("/usr/lib/ruby/json.so", 0, 0x1000, 0x2000)])
    assert finder(other, graphs.pure(), build_directory(other, graphs.pure())) == []


def test_a_collection_is_reported() -> None:
    for mode, name in ((1, "marking"), (2, "sweeping"), (3, "compacting")):
        image = Image()
        image.flags = 1 << 5 | mode
        assert [one.what for one in find_ruby(image.target()).problems if f"middle of a garbage collection ({name})" in one.what]
    image.flags = 2  # between two steps of a lazy sweep
    assert find_ruby(image.target()).problems == []


def test_unknown_code_does_not_affect_other_results() -> None:
    image = Image()
    target = image.target()
    target.write(r.CODE + 0x40, b"\xc3")
    found = find_ruby(target)
    assert [one.what for one in found.problems] == ["Ruby 3.1.9: rb_gc_adjust_memory_usage has unexpected code: malloc_increase is omitted"]
    assert find_types(found)["Class"] == 4
    assert "malloc_increase_bytes" not in found.counters()
    target.write(r.CODE, b"\xc3")
    found = find_ruby(target)
    assert [one for one in found.problems if "rb_gc_count has unexpected code" in one.what]
    assert (list(found.types()), found.parts(), found.holders(), list(found.dead())) == ([], [], None, [])
    assert found.describe(image.address(0) + 80) == ""


def test_a_missing_heap() -> None:
    image = Image()
    target = image.target()
    target.write_word(r.SPACE + image.layout.sorted, 0)
    found = find_ruby(target)
    assert [one for one in found.problems if "no array of heap pages" in one.what]
    assert found.counters()["count"].value == 7
    assert found.counters()["malloc_increase_bytes"].value == 1000


def read_damaged(image: Image) -> tuple[FakeTarget, Runtime]:
    target = image.target()
    return target, find_ruby(target)


def test_damaged_pages_are_reported_and_left_out() -> None:
    image = Image()
    for _ in range(9):
        image.page()
        image.put(r.T_ARRAY, image.klass["Array"])
    target = image.target()
    target.write_word(image.address(2), 0x41414141)  # the header points to another address
    target.write(r.HEADERS + 3 * 0x400 + 2, b"\xff\x7f")  # more slots than fit
    target.write_word(r.HEADERS - 0x8000 + 8 * 4, 0x6161616161616161)
    target.write_word(r.HEADERS - 0x8000 + 8 * 5, r.HEADERS + 0x400)  # the second page again
    found = find_ruby(target)
    assert find_types(found)["Array"] == 5
    shown = [one.what for one in found.problems]
    assert len(shown) == 4
    assert f"{r.HEADERS + 0x800:#x} and its page" in shown[0]
    assert "which is not a page" in shown[1]
    assert "0x6161616161616161 cannot be read" in shown[2]
    assert shown[3] == "1 more pages of Ruby's heap are also ignored"


def test_more_pages_than_there_is_memory_for() -> None:
    image = Image()
    target = image.target()
    target.write_word(r.SPACE + image.layout.sorted + 8, 1 << 23)
    target.write_word(r.SPACE + image.layout.sorted + 24, 1 << 23)
    found = find_ruby(target)
    assert find_types(found) in ({}, {"Class": 4, "T_STRING (hidden)": 4})
    assert [one for one in found.problems if "pages" in one.what]


def test_damaged_classes() -> None:
    """Three cases: a class that is its own superclass, a class that consists of text, and endless tables."""
    image = Image()
    around = image.new_class(None, r.T_CLASS | r.SINGLETON, 0)
    struct.pack_into("<Q", image.bodies[0], around - image.address(0) + 16, around)
    table = image.room(56)
    image.write(table, struct.pack("<7Q", 2, r.CODE, 1 << 40, 0, 0, 1 << 50, r.TABLES))
    extension = image.room(96)
    image.write(extension, struct.pack("<3Q", 0, table, 0))
    endless = image.put(r.T_CLASS, 0, 0, extension, 0)
    for klass in (around, 0x4141414141414141, endless, image.put(r.T_ARRAY, 0)):
        image.put(r.T_OBJECT, klass)
    counted = find_types(find_ruby(image.target()))
    assert counted[f"T_OBJECT of class {around:#x}"] == 1
    assert counted["T_OBJECT of class 0x4141414141414141"] == 1
    assert counted[f"#<Class:{endless:#018x}>"] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_any_byte_may_be_wrong(version: str) -> None:
    """Any bytes are overwritten: no exception, and both engines agree."""
    rng = random.Random(int(version.replace(".", "")))
    for _ in range(60):
        image = make_heap(version)
        target = image.target()
        for _ in range(rng.randrange(1, 12)):
            where, size = rng.choice(
                [
                    (r.SPACE, 0x700),
                    (r.HEADERS, 0x30),
                    (r.HEADERS + 0x400, 0x30),
                    (r.HEADERS - 0x8000, 8 * len(image.bodies)),
                    (image.address(0), 0x800),
                    (r.TABLES, 0x800),
                    (r.CODE, 0x80),
                ]
            )
            value = rng.choice([rng.randbytes(8), bytes(8), b"\xff" * 8, struct.pack("<Q", image.address(0) + 40 * rng.randrange(50))])
            target.write(where + rng.randrange(size // 8) * 8, value)
        pages = [_everything(target, engine) for engine in (graphs.pure(), graphs.native())]
        assert pages[0] == pages[1]


def _everything(target: FakeTarget, engine: Engine) -> list[Any]:
    found = find(target, engine, build_directory(target, engine))
    pages: list[Any] = []
    for one in found:
        holders = one.holders()
        shown = [one.reported_bytes(kind.name) for kind in one.types()]
        described = [one.describe(0x7F0000000000 + 8 * n) for n in range(0, 200, 7)]
        held = (list(holders.addresses), list(holders.types), holders.names) if holders else None
        pages.append([one.counters(), one.parts(), sorted(one.types()), held, shown, one.dead(), described, [p.what for p in one.problems]])
    return pages


def test_ctrl_c() -> None:
    for polls in (0, 1):
        target = make_heap("3.1").target()
        found = find_ruby(target)
        target.stop_after(polls)
        with pytest.raises(Interrupted):
            found.types()


# The instructions of functions that free memory, before they call rb_gc_adjust_memory_usage, and the offset of the word that they subtract.
FREES: Sequence[tuple[str, int | None]] = [
    ("53 4889fb 488b3f 4885ff 7400 488b7b28 48f7df", 0x28),  # push rbx  mov rbx,rdi  mov rdi,[rdi]  test  je  mov rdi,[rbx+0x28]  neg rdi
    ("55 4889e5 48897df8 488b4730 48f7d8 4889c7", 0x30),  # through rax, with a frame
    ("4889f8 31ff 482b7840", 0x40),  # mov rax,rdi  xor edi,edi  sub rdi,[rax+0x40]
    ("488b7f18 48f7df", 0x18),
    ("488b7f18", None),  # not negated: memory is added, not subtracted
    ("48c7c7f0ffffff", None),  # a constant
    ("488b07 488b7828 48f7df", None),  # a word of a structure to which the object points
    ("488b5f28 e800000000 4889df 48f7df", 0x28),  # kept in rbx during a call
    ("488b4728 e800000000 4889c7 48f7df", None),  # in rax, which a call overwrites
]


@pytest.mark.parametrize(("before", "offset"), FREES)
@pytest.mark.parametrize("through", ["direct", "stub", "table", "inner"])
def test_reports_that_are_subtracted_again(before: str, offset: int | None, through: str) -> None:
    stub, table, inner = r.EXTENSION + 0x200, r.EXTENSION + 0x300, r.EXTENSION + 0x400
    image = Image()
    kind = image.data_type("results", r.EXTENSION)
    adjust = r.CODE + 0x40
    start = r.EXTENSION if through != "inner" else inner
    body = bytes.fromhex(before.replace("e800000000", "e8" + (0x80).to_bytes(4, "little").hex()))
    at = start + len(body)
    if through == "table":  # call *[rip+…]
        body += b"\xff\x15" + (table - at - 6).to_bytes(4, "little", signed=True)
    else:
        goal = adjust if through == "direct" else stub
        body += b"\xe8" + (goal - at - 5).to_bytes(4, "little", signed=True)
    memory = bytearray(b"\xc3" * 0x1000)
    memory[start - r.EXTENSION : start - r.EXTENSION + len(body)] = body
    if through == "inner":  # mov rax,rdi  call inner
        memory[0:9] = b"\x48\x89\xf8\x90\xe8" + (inner - r.EXTENSION - 9).to_bytes(4, "little", signed=True)
    memory[0x200:0x20A] = b"\xf3\x0f\x1e\xfa\xff\x25" + (table - stub - 10).to_bytes(4, "little", signed=True)
    memory[0x300:0x308] = adjust.to_bytes(8, "little")
    target = image.target(extra={r.EXTENSION: bytes(memory)})
    assert reported_at(target, kind, adjust) == offset


def test_reported_bytes_are_those_of_live_objects() -> None:
    image = Image()
    code = bytes.fromhex("488b7f18 48f7df") + b"\xe8" + (r.CODE + 0x40 - r.EXTENSION - 12).to_bytes(4, "little", signed=True) + b"\xc3"
    image.extra[r.EXTENSION] = code.ljust(0x1000, b"\xc3")
    kind, silent = image.data_type("results", r.EXTENSION), image.data_type("silent", r.EXTENSION + 0x100)
    for size in (100, 0, 2_000_000, (1 << 64) - 5):  # a negative size does not count
        structure = image.room(64)
        image.write(structure, struct.pack("<4Q", 1, 2, 3, size))
        image.put(r.T_DATA, image.klass["Object"], kind, 1, structure)
    image.put(r.T_DATA, image.klass["Object"], kind, 1, 0)
    image.put(r.T_DATA, image.klass["Object"], silent, 1, image.room(64))
    found = find_ruby(image.target())
    assert found.reported_bytes("Object [results]") == 2_000_100
    assert found.reported_bytes("Object [silent]") is found.reported_bytes("Class") is found.reported_bytes("nothing") is None


def test_time_for_many_classes_is_linear_in_slots() -> None:
    """Every object has its own class, and every data type is different. The work is still proportional to the heap."""
    image = Image()
    for number in range(40):
        image.page()
        for at in range(200):
            other = 1000 * number + at
            image.put(r.T_OBJECT, 0x10000 + 8 * other)
            image.put(r.T_DATA, 0, 0x20000000 + 8 * other, 1, 0x30)
    found = find_ruby(image.target(), graphs.native())
    assert len(find_types(found)) > 8000
    assert found.holders() is not None
    assert {found.reported_bytes(name) for name in find_types(found)} == {None}
