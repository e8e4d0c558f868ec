"""Names of functions, as users select them; DWARF expressions; invalid call frame information."""

from __future__ import annotations

import random

import fake
import pytest

from findleaks.target.base import Module
from findleaks.unwind.cfi import FrameTable, Malformed
from findleaks.unwind.expression import evaluate
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, Stack, filter_stacks, matches_function, without_parameters

BARE = {
    "main": "main",
    "node::Start(int, char**)": "node::Start",
    "node::(anonymous namespace)::PlatformWorkerThread(void*)": "node::(anonymous namespace)::PlatformWorkerThread",
    "Foo::operator()(int) const": "Foo::operator()",
    "Foo::operator<(Foo const&)": "Foo::operator<",
    "std::function<void (int)>::operator()(int) const": "std::function<void (int)>::operator()",
    "void f<void (*)(int)>(int)": "void f<void (*)(int)>",
    "operator new(unsigned long)": "operator new",
    "main::{lambda()#1}::operator()() const": "main::{lambda()#1}::operator()",
    "Foo::operator->() const": "Foo::operator->",
}


@pytest.mark.parametrize(("function", "expected"), BARE.items())
def test_parameters_are_cut_off(function: str, expected: str) -> None:
    assert without_parameters(function) == expected


def frame(function: str, module: str = "prog") -> NamedFrame:
    return NamedFrame(0x1000, function, 4, module)


def test_the_short_name_of_a_block_of_ruby_is_complete() -> None:
    """Parentheses in Ruby's labels do not contain parameters."""
    label = "block (2 levels) in Pool#work"
    assert NamedFrame(0, label, 0, "", "pool.rb", 20, kind="Ruby").short_name() == label
    assert NamedFrame(0x1000, "node::Start(int, char**)", 4, "node").short_name() == "node::Start"


def test_functions_are_selected_by_full_name_or_last_part() -> None:
    started = frame("node::MakeCallback(v8::Handle<v8::Object>, char const*)")
    for pattern in ("MakeCallback", "node::MakeCallback", started.function, "node::Make*", "*Callback", "MakeCall?ack"):
        assert matches_function(started, pattern), pattern
    for pattern in ("Make", "Callback", "node::", "v8::Handle"):
        assert not matches_function(started, pattern), pattern
    assert not matches_function(frame(""), "*")


def test_filters() -> None:
    stacks = [
        Stack((frame("read", "libc.so.6"), frame("work"), frame("main")), "", [1]),
        Stack((frame("poll", "libc.so.6"), frame("main")), "", [2]),
        Stack((frame("", "libz.so.1"), frame("work")), "", [3]),
    ]

    def threads(function: str = "", module: str = "", *not_under: str) -> list[int]:
        return [tid for stack in filter_stacks(stacks, function, module, not_under) for tid in stack.threads]

    assert threads() == [1, 2, 3]
    assert threads("work") == [1, 3]
    assert threads("work", "libc.so.6") == [1]
    assert threads("", "libz*") == [3]
    assert threads("", "", "main") == [3]
    assert threads("", "", "work", "poll") == []


def test_expressions() -> None:
    def value(*code: int) -> int:
        return evaluate(bytes(code), 8, "little", {7: 0x1000}.get, lambda address: address + 1)

    assert value(0x77, 8) == 0x1008
    assert value(0x77, 0x78) == 0x1000 - 8
    assert value(0x77, 8, 0x06) == 0x1009
    # An expression of the procedure linkage table: sp + 8 + (((pc & 15) >= 11) << 3).
    assert value(0x77, 8, 0x08, 0x1C, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22) == 0x1008 + 8
    assert value(0x09, 0xFF, 0x31, 0x22) == 0
    assert value(0x31, 0x32, 0x16, 0x1C) == 1
    assert value(0x35, 0x31, 0x32, 0x16, 0x1C, 0x22) == 5 + 1  # the value below the two that are swapped does not change
    for code in ((), (0x22,), (0x76, 0), (0xFF,), (0x2F, 0xFD, 0xFF), (0x0E, 1, 2), (0x2F, 0x10, 0), (0x31, 0x30, 0x1B)):
        with pytest.raises(Malformed):
            value(*code)


def test_random_bytes_give_no_information() -> None:
    """A module has random bytes as tables: no exception, and unwinding ends."""
    rng = random.Random(5)
    for _ in range(300):
        data = bytearray(rng.choice((rng.randbytes(0x1000), bytes(0x1000))))
        data[:4] = b"\x7fELF"
        data[4:7] = b"\x02\x01\x01"
        data[16:64] = (
            b"\x03\x00\x3e\x00\x01\x00\x00\x00" + bytes(8) + (64).to_bytes(8, "little") + bytes(8) + bytes(4) + b"\x40\x00\x38\x00\x01\x00"
        ).ljust(48, b"\0")
        data[64:120] = b"".join(
            n.to_bytes(s, "little") for n, s in ((0x6474E550, 4), (4, 4), (0x200, 8), (0x200, 8), (0x200, 8), (0xE00, 8))
        )
        data[0x200:0x204] = b"\x01\x1b\x03\x3b"
        data[0x204:0x20C] = (0x100).to_bytes(4, "little") + rng.randrange(1, 40).to_bytes(4, "little")
        for at in range(40):
            data[0x20C + 8 * at : 0x214 + 8 * at] = (at * 16).to_bytes(4, "little") + rng.randrange(0x800).to_bytes(4, "little")
        module = Module("/lib/x.so", 0x10000, 0x10000, 0x11000)
        registers = {"rip": 0x10300 + rng.randrange(0x200), "rbp": 0x20100, "rbx": rng.getrandbits(64)}
        target = fake.FakeTarget(
            {0x10000: bytes(data), 0x20000: rng.randbytes(0x1000)},
            permissions={0x10000: "r-x"},
            modules=[module],
            threads=[fake.thread(1, 0x20080, registers)],
        )
        FrameTable(target, module).row(registers["rip"])
        trace = Unwinder(target).trace(target.threads()[0])
        assert 1 <= len(trace.frames) <= 4096
