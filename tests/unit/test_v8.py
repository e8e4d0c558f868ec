"""V8's handle scopes in synthetic processes, intact and damaged."""

from __future__ import annotations

import io
import json
import random
from array import array
from collections import Counter
from typing import Any

import pytest
import v8image
from fake import FakeTarget, thread
from v8image import BLOCKS, CODE, HANDLES, NEXT, TLS, UNDEFINED, Image

from findleaks import commands
from findleaks.engine.reference.engine import PureEngine
from findleaks.errors import Interrupted
from findleaks.runtimes.v8 import values as values_
from findleaks.runtimes.v8.layout import Layout, derive
from findleaks.runtimes.v8.scopes import Candidate, chain, fitting
from findleaks.session import Session
from findleaks.target.arch import X86_64
from findleaks.target.base import Module

EVERY = 3 * HANDLES + 10


def run(target: FakeTarget, *words: str) -> tuple[int, str]:
    made = Session(target, PureEngine(target.arch))
    out = io.StringIO()
    status = commands.execute(lambda: made, ["scopes", *words], out)
    return status, out.getvalue()


def run_json(target: FakeTarget) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(target, "--json")[1])
    return answer


def test_offsets_come_from_the_code() -> None:
    expected = Layout(v8image.IMPLEMENTER, NEXT, v8image.LEVEL, 8, 0x18, 8, HANDLES, 0, TLS)
    assert derive(Image().target()) == expected


def test_one_isolate() -> None:
    (isolate,) = run_json(Image().target())["isolates"]
    assert (isolate["handles"], isolate["blocks"], isolate["bytes"], isolate["level"]) == (EVERY, 4, 4 * HANDLES * 8, 1)
    assert isolate["values"] == [{"value": "undefined", "handles": EVERY, "objects": 1}]
    (scope,) = isolate["scopes"]
    assert (scope["function"], scope["handles"], scope["thread"], scope["heap"]) == ("work", EVERY, 1, False)
    assert isolate["globals"] == {"handles": 300, "weak": 3, "blocks": 2, "bytes": 2 * 8192, "problem": None}
    assert isolate["problem"] is None


def test_text_names_the_largest_scope() -> None:
    status, text = run(Image(blocks=11).target())
    assert status == 0
    assert "Too many handles in one scope: 11,252 handles belong to the scope opened by work+0x5; 100 %" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "No scope has 10,000 handles or more." in run(Image(blocks=1).target())[1]


def test_several_isolates() -> None:
    image = Image(isolates=3)
    image.threads.append(thread(9))  # a thread without an isolate
    found = run_json(image.target())
    assert [isolate["address"] for isolate in found["isolates"]] == [hex(isolate) for isolate in image.isolates]
    assert [isolate["threads"] for isolate in found["isolates"]] == [[1], [2], [3]]
    assert {isolate["handles"] for isolate in found["isolates"]} == {EVERY}
    assert found["warnings"] == []


def test_targets_of_handles() -> None:
    """Three kinds of handles: small integers, objects by their map, and handles without an object."""
    image = Image(blocks=0, used=6)
    image.words(v8image.OBJECTS + 0x500, v8image.OBJECTS + 0x601)
    image.words(BLOCKS, 8 << 32, 8 << 32, UNDEFINED, v8image.OBJECTS + 0x501, v8image.OBJECTS + 0x501, 0x999999001)
    (isolate,) = run_json(image.target())["isolates"]
    assert isolate["values"] == [
        {"value": f"objects of map {v8image.OBJECTS + 0x600:#x}", "handles": 2, "objects": 1},
        {"value": "small integers", "handles": 2, "objects": 1},
        {"value": "objects that cannot be read", "handles": 1, "objects": 1},
        {"value": "undefined", "handles": 1, "objects": 1},
    ]


def no_symbols(image: Image) -> FakeTarget:
    return image.target(list(v8image.NAMES))


def stripped(image: Image) -> FakeTarget:
    image.put(CODE + 0xF00, b"Cannot create a handle without a HandleScope")
    target = no_symbols(image)
    target._modules = [Module("/usr/bin/libother.so", 0x1000, 0x1000, 0x2000), Module("/usr/bin/node", CODE, CODE, CODE + 0x1000, "ab12cd")]
    return target


def other_count(image: Image) -> FakeTarget:
    image.put(v8image.COUNT, bytes(range(0x50, 0x58)) * 8)
    return image.target()


def unknown_instruction(image: Image) -> FakeTarget:
    image.put(v8image.COUNT, b"\x06\xea")
    return image.target()


def other_current(image: Image) -> FakeTarget:
    image.put(v8image.GET, b"\x31\xc0\xc3")
    return image.target()


def no_isolate(image: Image) -> FakeTarget:
    image.words(v8image.STORAGE + 0x400 + TLS, 0)
    return image.target()


def wild_isolate(image: Image) -> FakeTarget:
    image.words(v8image.STORAGE + 0x400 + TLS, 0xDEAD0000BEE8)
    return image.target()


def other_architecture(image: Image) -> FakeTarget:
    return FakeTarget({CODE: bytes(64)}, arch=X86_64._replace(name="RISC-V"))


WHY = [
    (no_symbols, "no readable loaded file contains V8"),
    (stripped, "node contains V8, but not its symbols: install them as /usr/lib/debug/.build-id/ab/12cd.debug"),
    (other_count, "v8::HandleScope::NumberOfHandles has unexpected code"),
    (unknown_instruction, "v8::HandleScope::NumberOfHandles "),
    (other_current, "v8::Isolate::GetCurrent has unexpected code"),
    (no_isolate, "no thread is in an isolate"),
    (wild_isolate, "no thread is in an isolate"),
    (other_architecture, "x86-64 and AArch64 only, not on RISC-V"),
]


@pytest.mark.parametrize(("damage", "why"), WHY)
def test_failures_are_reported(damage: Any, why: str) -> None:
    """One line reports the reason, and the exit status is that of a failure."""
    target = damage(Image())
    status, text = run(target)
    assert status == 2
    assert why in text
    assert len(text.splitlines()) == 1
    assert why in run_json(target)["problem"]


def twice(image: Image, isolate: int) -> None:
    image.words(image.vector(isolate) + 16, image.blocks[isolate][0])


def wild(image: Image, isolate: int) -> None:
    image.words(image.vector(isolate) + 16, 0x5_0000_0000)


def crooked(image: Image, isolate: int) -> None:
    image.words(image.vector(isolate) + 16, image.blocks[isolate][2] + 3)


def huge(image: Image, isolate: int) -> None:
    image.words(isolate + 0x10018, 1 << 60)


def many(image: Image, isolate: int) -> None:
    image.words(isolate + 0x10018, 1 << 20)


def elsewhere(image: Image, isolate: int) -> None:
    image.words(isolate + NEXT, image.blocks[isolate][1] + 8)


def nowhere(image: Image, isolate: int) -> None:
    image.words(isolate + 0x10008, 0x1234)


def between(image: Image, isolate: int) -> None:
    image.words(isolate + v8image.NEXT, image.blocks[isolate][-1] + 13)


DAMAGE = [
    (between, 3, "block 4 of 4, {3}, does not contain the next handle: only handles before it are counted"),
    (twice, 2, "block 3 of 4, {2}, is in the list twice: only handles before it are counted"),
    (wild, 2, "block 3 of 4, 0x500000000, cannot be read: only handles before it are counted"),
    (crooked, 2, "block 3 of 4, {2}, is misaligned: only handles before it are counted"),
    (huge, 0, "is corrupt: it counts 1,152,921,504,606,846,976 blocks of handles"),
    (many, 0, "the list of its 1,048,576 blocks of handles at"),
    (elsewhere, 3, "block 4 of 4, {3}, does not contain the next handle: only handles before it are counted"),
    (nowhere, 0, "the list of its 4 blocks of handles at 0x1234 cannot be read"),
]


@pytest.mark.parametrize(("damage", "blocks", "problem"), DAMAGE)
def test_a_corrupt_list_of_blocks(damage: Any, blocks: int, problem: str) -> None:
    """Blocks before the damage are counted, the damage is reported, and the other isolate is not affected."""
    image = Image(isolates=2)
    damage(image, image.isolates[0])
    target = image.target()
    listed = [hex(target.word(image.vector(image.isolates[0]) + 8 * number)) for number in range(4)]
    found = run_json(target)
    first, second = found["isolates"]
    assert problem.format(*listed) in first["problem"]
    assert first["problem"].startswith(f"isolate {image.isolates[0]:#x}")
    assert found["warnings"] == [first["problem"]]
    assert (first["blocks"], first["handles"]) == (blocks, blocks * HANDLES)
    assert (second["handles"], second["problem"]) == (EVERY, None)
    status, text = run(target)
    assert status == 0
    assert " ".join(found["warnings"][0].split()) in " ".join(text.split())


def test_corrupt_global_handles() -> None:
    cases = {
        "block 3, {first}, is in the list twice": (300, "first"),
        "block 3, 0x7000, cannot be read": (300, 0x7000),
        "block 3, 0x7001, is misaligned": (300, 0x7001),
    }
    for problem, (handles, following) in cases.items():
        image = Image()
        first = image.isolates[0] + 0x20000
        image.words(image.isolates[0] + 0x28000 + 0x2018, first if following == "first" else int(following))
        found = run_json(image.target())
        (isolate,) = found["isolates"]
        assert problem.format(first=hex(first)) in isolate["globals"]["problem"]
        assert isolate["globals"]["handles"] == handles
        assert found["warnings"] == [isolate["globals"]["problem"]]


def test_global_handles_that_cannot_be_derived() -> None:
    found = run_json(Image().target([v8image.STATS]))
    (isolate,) = found["isolates"]
    assert isolate["globals"] is None
    assert isolate["handles"] == EVERY
    assert "global handles are not counted" in found["warnings"][0]


def test_interrupted() -> None:
    target = Image().target()
    target._left = 0
    with pytest.raises(Interrupted):
        run(target)


def test_a_scope_on_the_heap() -> None:
    """Node-API has its scopes on the heap. They are reported from the words that the ordinals leave over."""
    image = Image()
    isolate = image.isolates[0]
    block = image.blocks[isolate][2]
    image.words(v8image.OBJECTS + 0x800, isolate, block + 80, block + 8 * HANDLES)
    image.words(v8image.OBJECTS + 0x840, isolate, 0, 0)
    image.words(v8image.OBJECTS + 0x880, isolate, block + 80, block + 8)
    image.words(isolate + v8image.LEVEL, 2)
    found = run_json(image.target())
    heap, stack = found["isolates"][0]["scopes"]
    assert (heap["heap"], heap["address"], heap["handles"]) == (True, hex(v8image.OBJECTS + 0x800), HANDLES - 10 + 10)
    assert (stack["function"], stack["handles"]) == ("work", 2 * HANDLES + 10)
    assert found["warnings"] == []


def test_a_scope_that_is_not_found_is_reported() -> None:
    image = Image()
    image.words(image.isolates[0] + v8image.LEVEL, 3)
    found = run_json(image.target())
    assert "has 3 open scopes, 1 were found" in found["warnings"][0]


def test_a_library() -> None:
    """Functions of the library call each other through stubs, and find its variables through a table of addresses (Debian's libnode)."""
    image = Image()
    slots, key, stub = v8image.OBJECTS + 0x800, v8image.OBJECTS + 0x900, CODE + 0x800

    def relative(*opcode: int, at: int, to: int) -> bytes:
        return bytes(opcode) + (to - at - len(opcode) - 4).to_bytes(4, "little", signed=True)

    image.words(slots, key, v8image.INITIALIZE, v8image.CREATE)
    image.words(key, 5)
    image.put(v8image.GET, relative(0x48, 0x8B, 0x05, at=v8image.GET, to=slots) + bytes.fromhex("8b38 e900000000"))
    image.words(v8image.STORAGE + 0x400 + TLS, 0)
    image.words(v8image.STORAGE + 0x400 + 0x310 + 16 * 5, 1, image.isolates[0])
    for number in (1, 2):  # endbr64  jmp [rip+…]
        place = stub + 16 * number
        image.put(place, bytes.fromhex("f30f1efa") + relative(0xFF, 0x25, at=place + 4, to=slots + 8 * number))
    image.put(v8image.WORK, relative(0xE8, at=v8image.WORK, to=stub + 16))
    image.put(v8image.GLOBALIZE + 7, relative(0xE8, at=v8image.GLOBALIZE + 7, to=stub + 32))
    found = run_json(image.target())
    (isolate,) = found["isolates"]
    assert derive(image.target()).key == key
    assert [scope["function"] for scope in isolate["scopes"]] == ["work"]
    assert isolate["globals"]["handles"] == 300
    assert found["warnings"] == []


def test_a_stack_that_cannot_be_followed() -> None:
    """The scope is found in an outer frame. The function that opened it is not guessed."""
    image = Image()
    one = image.threads[0]
    image.threads[0] = thread(1, one.sp, {"rip": v8image.CREATE, "rbp": 1}, one.thread_pointer)
    found = run_json(image.target())
    (opened,) = found["isolates"][0]["scopes"]
    assert (opened["handles"], opened["thread"], opened["frame"]) == (EVERY, 1, "a frame that could not be reached")
    assert opened["function"] is None
    assert found["warnings"] == []


def scope(frame: int, before: int, certain: bool = True) -> Candidate:
    return Candidate(0x1000 * frame + before, before, certain, frame)


def test_the_longest_chain_whose_ordinals_never_grow() -> None:
    real = [scope(1, 500), scope(2, 40), scope(4, 7), scope(6, 0)]
    stale = [scope(0, 3), scope(3, 450, False), scope(5, 900)]
    assert chain([*stale, *real], 1000) == real
    assert chain(real, 450) == real[1:]
    assert chain([], 10) == []
    # The scopes in one frame may be in any order.
    assert chain([Candidate(0x2000, 5, True, 1), Candidate(0x1000, 9, True, 1)], 10) == [
        Candidate(0x1000, 9, True, 1),
        Candidate(0x2000, 5, True, 1),
    ]


def test_no_more_scopes_than_are_open() -> None:
    found = [scope(1, 5), scope(2, 5), scope(3, 2), scope(3, 1), scope(4, 0)]
    assert fitting(found, 5) == found
    assert fitting(found, 4) == found[1:]
    assert fitting(found, 3) == [found[1], found[3], found[4]]


@pytest.mark.parametrize("slice_", [7, 1 << 20])
def test_values_are_counted(slice_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_, "SLICE", slice_)
    rng = random.Random(7)
    target = Image().target()
    for length in (0, 1, 50, 5000):
        for kinds in (1, 3, 40, 10**9):
            values = array("Q", (2 * rng.randrange(kinds) + 1 for _ in range(length)))
            values.extend([99, 100, 99] * (length // 4))
            counts = Counter(values)
            distinct, handles = values_.tally(target, PureEngine(target.arch), values)
            assert distinct.tolist() == sorted(counts)
            assert dict(zip(distinct, handles)) == counts


def test_targets_of_many_handles_of_many_kinds() -> None:
    """Many maps, with few objects each."""
    maps = 36
    image = Image(blocks=0, used=3 * maps)
    held = []
    for number in range(maps):
        place = v8image.OBJECTS + 0x500 + 16 * number
        image.words(place, v8image.OBJECTS + 0x801 + 8 * number)
        held += [place + 1, place + 1, UNDEFINED]
    image.words(BLOCKS, *held)
    (isolate,) = run_json(image.target())["isolates"]
    assert isolate["values"][0] == {"value": "undefined", "handles": maps, "objects": 1}
    assert {(value["handles"], value["objects"]) for value in isolate["values"][1:]} == {(2, 1)}
    assert len(isolate["values"]) == maps + 1
