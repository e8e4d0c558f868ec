"""Counting without a debugger: rules for scopes, names of functions, the table, and the cache of unwound stacks."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Optional

import fake
import pytest

from findleaks.commands.count import breakpoint_host, list_wanted
from findleaks.commands.count_text import CountResult
from findleaks.counting.counter import Counter, StackCount, Table
from findleaks.errors import TargetError, UsageError
from findleaks.gdb_subprocess import drop_pid_option
from findleaks.injection.stub.unwind_cache import UnwindCache
from findleaks.runtimes.rules import RULES, rule
from findleaks.target.arch import AARCH64, X86_64, Arch
from findleaks.target.control import Outcome
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame

CODE, STACK, DEEP = 0x10000, 0x20000, 0x4000


def frames_by_pointer(rng: random.Random, returns: Sequence[int], sp: int, fp: int) -> bytes:
    """Return a stack with a chain of frame pointers from `sp` on, and random words between them. The last function returns to 0."""
    data = bytearray(rng.randbytes(DEEP)[: STACK + DEEP - sp])
    for number, where in enumerate(returns):
        following = fp + rng.choice((0x20, 0x60, 0x300)) if number < len(returns) - 1 else 0
        data[fp - sp : fp - sp + 16] = following.to_bytes(8, "little") + where.to_bytes(8, "little")
        fp = following
    return bytes(data)


class Image:
    """A target with code outside of all modules, and a stack that the test changes."""

    def __init__(self, arch: Arch = X86_64) -> None:
        self.stack, self.arch = bytearray(DEEP), arch
        self.target = fake.FakeTarget({CODE: bytes(0x1000), STACK: bytes(DEEP)}, permissions={CODE: "r-x"}, arch=arch)
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        at = address - STACK
        return bytes(self.stack[at : at + size]) if 0 <= at < DEEP else b""

    def fresh(self, pc: int, sp: int, fp: int) -> tuple[int, ...]:
        """Return the frames that the unwinder finds without the cache."""
        target = fake.FakeTarget({CODE: bytes(0x1000), STACK: bytes(self.stack)}, permissions={CODE: "r-x"}, arch=self.arch)
        trace = Unwinder(target).trace(fake.thread(1, sp, {self.arch.pc: pc, self.arch.frame_pointer: fp}, arch=self.arch))
        assert not trace.end
        return tuple(frame.pc for frame in trace.frames)


@pytest.mark.parametrize("arch", [X86_64, AARCH64], ids=lambda arch: arch.name)
def test_cached_stacks_equal_those_of_the_unwinder(arch: Arch) -> None:
    """A few stacks at changing addresses, with random words between the frames. The cached result is compared with that of the unwinder."""
    rng = random.Random(11)
    image = Image(arch)
    cache = UnwindCache(image.target, image.read)
    shapes = [[CODE + 0x10 * rng.randrange(1, 200) for _ in range(rng.randrange(1, 9))] + [0] for _ in range(12)]
    for _ in range(600):
        seed = rng.randrange(12)
        sp = STACK + 8 * rng.randrange(0, 200)
        fp = sp + 8 * (seed % 3 + 1)
        data = frames_by_pointer(random.Random(seed), shapes[seed], sp, fp)
        image.stack[sp - STACK :] = data
        for noise in range(sp, fp, 8):
            image.stack[noise - STACK : noise - STACK + 8] = rng.randbytes(8)
        trace = cache.lookup_or_unwind(CODE + 5, sp, fp)
        assert tuple(frame.pc for frame in trace.frames) == image.fresh(CODE + 5, sp, fp)
    assert cache.misses == len(shapes)
    assert cache.hits == 600 - cache.misses


def test_stacks_that_differ_in_an_outer_frame() -> None:
    """The innermost bytes of two stacks are equal. The cache compares stacks up to their end."""
    image = Image()
    cache = UnwindCache(image.target, image.read)
    sp = STACK + 0x100
    far = STACK + 0x3000
    found = set()
    for caller in (CODE + 0x100, CODE + 0x200, CODE + 0x100):
        image.stack[sp + 8 - STACK : sp + 24 - STACK] = far.to_bytes(8, "little") + (CODE + 0x50).to_bytes(8, "little")
        image.stack[far - STACK : far + 16 - STACK] = (far + 32).to_bytes(8, "little") + caller.to_bytes(8, "little")
        image.stack[far + 32 - STACK : far + 48 - STACK] = bytes(16)
        found.add(tuple(frame.pc for frame in cache.lookup_or_unwind(CODE, sp, sp + 8).frames))
    assert found == {(CODE, CODE + 0x50, CODE + 0x100), (CODE, CODE + 0x50, CODE + 0x200)}
    assert (cache.misses, cache.hits) == (2, 1)


def test_link_register_distinguishes_calls_to_invalid_addresses() -> None:
    image = Image(AARCH64)
    cache = UnwindCache(image.target, image.read)
    sp = STACK + 0x100
    for caller in (CODE + 0x100, CODE + 0x200, CODE + 0x100):
        trace = cache.lookup_or_unwind(8, sp, sp + 8, caller)
        assert [frame.pc for frame in trace.frames][:2] == [8, caller]
    assert (cache.misses, cache.hits) == (2, 1)


def test_stacks_without_an_end_are_cached_by_their_top() -> None:
    image = Image()
    cache = UnwindCache(image.target, image.read)
    sp = STACK + 0x100
    first = cache.lookup_or_unwind(CODE, sp, 0x1234)
    assert first.end
    assert cache.lookup_or_unwind(CODE, sp, 0x1234) == first
    image.stack[0x108] = 1
    cache.lookup_or_unwind(CODE, sp, 0x1234)
    assert (cache.misses, cache.hits) == (2, 1)


def test_unreadable_stack() -> None:
    image = Image()
    trace = UnwindCache(image.target, image.read).lookup_or_unwind(CODE, 0x999000, 0x999010)
    assert [frame.pc for frame in trace.frames] == [CODE]
    assert trace.end


def test_rules() -> None:
    assert rule("v8") is RULES["v8"]
    assert set(RULES) == {"v8", "napi", "jni", "python-gil"}
    for one in RULES.values():
        assert one.enter and one.leave and one.guarded
    own = rule("", ["a", "b"], ["c"])
    assert (own.enter, own.leave, own.state) == (("a", "b"), ("c",), "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nix", (), ()), "no such rule; use one of v8, napi"),
        (("v8", ("a",), ("b",)), "expected either --outside-scope or"),
        (("", ("a",), ()), "--leave is missing"),
        (("", (), ("a",)), "--enter is missing"),
    ],
)
def test_invalid_rules(words: tuple[str, Sequence[str], Sequence[str]], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        rule(*words)


def arguments(**more: object) -> argparse.Namespace:
    plain = {"inject": False, "outside_scope": "", "enter": [], "leave": [], "when": "", "every": 0.0, "seconds": 0.0, "events": 0}
    return argparse.Namespace(
        **{
            "function": "f",
            "json": False,
            "folded": False,
            "limit": 10,
            "frames": 40,
            "no_lines": False,
            "output": "",
            "format": None,
            **plain,
            **more,
        }
    )


def test_wanted() -> None:
    assert list_wanted(arguments()).rule is None
    assert list_wanted(arguments(outside_scope="napi")).rule is RULES["napi"]
    with pytest.raises(UsageError, match="not both"):
        list_wanted(arguments(json=True, folded=True))


def test_words_for_gdb() -> None:
    assert drop_pid_option(["f", "--pid", "12", "--for", "1"]) == ["f", "--for", "1"]
    assert drop_pid_option(["--pid=12", "f"]) == ["f"]
    assert drop_pid_option(["f", "-pid", "12"]) == ["f"]


def test_count_needs_a_process_in_the_debugger() -> None:
    for live, line in ((False, "not a core"), (True, "on processes of this machine only")):
        target = fake.FakeTarget({CODE: bytes(16)})
        target.live = live
        with pytest.raises(TargetError, match=line):
            breakpoint_host(target)


class ScriptedProcess:
    """A process whose threads reach addresses in the order of a script: (thread, address), or None if time passes."""

    pid = 1 << 30  # no process can have this number

    def __init__(self, image: Image, script: Sequence[Optional[tuple[int, int]]]) -> None:
        self.image, self.script = image, list(script)
        self.armed: list[int] = []
        self.at = 0
        self.disarmed = 0

    def arm(self, addresses: Sequence[int], hit: Callable[[int], bool]) -> None:
        self.armed, self.hit = list(addresses), hit

    def disarm(self) -> None:
        self.armed = []
        self.disarmed += 1

    def close(self) -> None:
        self.closed = True

    def run(self, seconds: Optional[float]) -> Outcome:
        while self.script:
            step = self.script.pop(0)
            if step is None:
                return Outcome("time")
            self.at, address = step
            if address in self.armed and self.hit(address):
                return Outcome("asked")
        return Outcome("interrupt")

    def open_target(self) -> fake.FakeTarget:
        return self.image.target

    def thread(self) -> int:
        return self.at

    def register(self, name: str) -> int:
        return {"rsp": STACK + 0x100, "rbp": STACK + 0x108}[name]

    def read(self, address: int, size: int) -> bytes:
        return self.image.read(address, size)

    def holds(self, expression: str) -> bool:
        if expression == "bad":
            raise UsageError("--when 'bad' cannot be evaluated")
        return self.at == int(expression)


F, ENTER, LEAVE = (hex(CODE + offset) for offset in (0x40, 0x80, 0xC0))


def run_script(script: Sequence[Optional[tuple[int, int]]], **more: object) -> tuple[list[Table], ScriptedProcess]:
    image = Image()
    image.stack[0x108:0x118] = (STACK + 0x200).to_bytes(8, "little") + (CODE + 0x10).to_bytes(8, "little")
    process = ScriptedProcess(image, script)
    return list(Counter(process, list_wanted(arguments(function=F, **more))).tables()), process


def make_step(thread: int, place: str) -> tuple[int, int]:
    return thread, int(place, 16)


def test_table_is_printed_repeatedly_and_at_the_end() -> None:
    found, process = run_script([make_step(1, F), None, make_step(2, F), make_step(1, F), None, make_step(1, F)], every=1.0)
    assert [(table.events, table.matched, table.last) for table in found] == [(1, 1, False), (3, 3, False), (4, 4, True)]
    assert [stack.count for stack in found[-1].stacks] == [4]
    assert found[-1].outcome.why == "interrupt"
    assert process.armed == []


def test_scopes_are_counted_by_thread() -> None:
    script = [
        make_step(1, LEAVE),
        make_step(1, F),
        make_step(1, ENTER),
        make_step(1, F),
        make_step(2, F),
        make_step(1, ENTER),
        make_step(1, LEAVE),
        make_step(1, F),
        make_step(1, LEAVE),
        make_step(1, F),
    ]
    ((last,), _) = run_script(script, enter=[ENTER], leave=[LEAVE])
    assert (last.events, last.matched) == (5, 3)


def test_events_end_it_and_when_selects() -> None:
    ((last,), process) = run_script([make_step(1, F), make_step(2, F), make_step(2, F), make_step(1, F)], events=3, when="2")
    assert (last.events, last.matched, last.outcome.why) == (3, 2, "asked")
    assert process.script == [make_step(1, F)]


def test_breakpoints_are_removed_after_an_error() -> None:
    image = Image()
    process = ScriptedProcess(image, [make_step(1, F)])
    made = Counter(process, list_wanted(arguments(function=F, when="bad")))
    with pytest.raises(UsageError, match="cannot be evaluated"):
        list(made.tables())
    assert process.disarmed and not process.armed


def test_one_function_cannot_open_and_close_a_scope() -> None:
    with pytest.raises(TargetError, match="both opens and closes"):
        run_script([], enter=[ENTER], leave=[ENTER])
    with pytest.raises(UsageError, match="itself opens or closes"):
        run_script([], enter=[F], leave=[LEAVE])


def test_text() -> None:
    from findleaks.commands import Invocation

    args = arguments(function=F, limit=1)
    frames = (NamedFrame(CODE, "ns::f(int)", 0, "prog"), NamedFrame(CODE + 9, "main", 9, "prog"))
    table = Table(
        1234, 1200, 2.5, [StackCount(1100, frames, ""), StackCount(100, frames[:1], "")], True, Outcome("stop", "it received SIGSEGV")
    )
    lines = list(CountResult(Counter(ScriptedProcess(Image(), []), list_wanted(args)), table, 0, args).text(80, Invocation()))
    assert lines[:5] == [
        "2.5 s: 1,234 calls, 2 stacks",
        "",
        "  1,100  ns::f",
        "         main+0x9",
        "  1 more stack of 100 calls (--limit 0)",
    ]
    assert lines[6].startswith("  stopped (it received SIGSEGV); the breakpoints were removed.")
