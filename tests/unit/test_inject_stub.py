"""The stub runs in the test process, on synthetic stacks. Its results are compared with those of the Python model."""

from __future__ import annotations

import ctypes
import os
import struct
import threading

import pytest
import schemas
from counts import until
from hypothesis import given
from hypothesis import strategies as st
from stubs import WORDS, Machine, harness

from findleaks.injection.stub.readable_pages import ReadablePages
from findleaks.injection.stub.rule_server import Rules
from findleaks.injection.stub.table import (
    ASKED,
    BY_FP,
    BY_SP,
    ENABLED,
    EXACT,
    FUNCTION,
    INTERPRETED,
    ISOLATE,
    LAST,
    PROBES,
    SERVED,
    SIGNAL,
    STACK,
    STATES,
    SWITCH,
    THROUGH_FP,
    VALUE,
    CountTable,
    Scoped,
    pack,
    place,
    unpack,
)
from findleaks.injection.stub.unwind_rules import CHAINED, Step, follow

INTERPRETERS = [pack(INTERPRETED, 0, 0, bytecode) for bytecode in (-64, -56)]
A, B, C, D = 0x401111, 0x402222, 0x7F0000403333, 0x7F0000404444


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return harness(tmp_path_factory.mktemp("stub"))


def test_bytes_are_assembled_from_the_source() -> None:
    assembler = schemas.tool("assemble_stubs")
    assert assembler.COUNT_CODE.read_text() == assembler.counting()
    assert assembler.TRACK_CODE.read_text() == assembler.tracking()


def test_registers_flags_and_red_zone_are_preserved(library: ctypes.CDLL) -> None:
    """Also if the stub asks the server and gets no answer."""
    for asks in (False, True):
        machine = Machine(library, patience=10**6)
        returning(machine)
        if not asks:
            machine.seed({Machine.key: pack(LAST)}, bounded=False)
        for seed in (0, 0x0123456789ABCDEF, 0xFFFFFFFFFFFFFFFF - 40, 0x8C1, 0x801, 0x45, 0x884):
            out = (ctypes.c_uint64 * 17)()
            library.preserved(machine.count, seed, out)
            wanted = [seed + n & 2**64 - 1 for n in (0, 1, 2, 3, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)]
            assert list(out)[1:16] == [wanted[0], wanted[1], wanted[2], wanted[3], *wanted[4:]]
            assert out[0] & 0x8D5 == seed & 0x8D5
            assert out[16] == seed
        assert machine.counters[0] == 7


def returning(machine: Machine) -> None:
    """Make the end of the stub return, instead of jumping to the address on the stack."""
    end = len(schemas.tool("assemble_stubs").count_stubs()["count"])
    machine.code[end : end + 1] = b"\xc3"


def test_each_kind_of_rule(library: ctypes.CDLL) -> None:
    machine = Machine(library)
    back, sp = machine.back, machine.sp
    machine.seed(
        {
            Machine.key: pack(BY_SP, 8),
            back: pack(BY_SP, 24, 1, -16),  # sp+8: the frame has 24 bytes, and the frame pointer is saved in its middle
            A: pack(BY_FP, 16, 2, 0),
            B: pack(THROUGH_FP, -8, 2, 8),
            C: CHAINED,
            D: CHAINED,
            A | 1 << 40: pack(LAST),
        }
    )
    words = [0] * 60
    place_of = lambda number: sp + 8 + 8 * number  # noqa: E731
    words[1], words[2] = place_of(6), A  # the frame of `back`
    words[6], words[7] = place_of(20), B  # the frame of A, found by the frame pointer, which is saved where it points to
    # The frame of B: the word before the address in the frame pointer refers to it
    words[19], words[20], words[21] = place_of(30), 0, place_of(40)
    words[29] = C
    words[40], words[41] = place_of(50), D  # two links of the chain of frames
    words[50], words[51] = 0, A | 1 << 40
    machine.call(words, fp=0)
    assert machine.counted() == {(Machine.key, back, A, B, C, D, A | 1 << 40): (1, 0)}


def test_frames_of_an_interpreter(library: ctypes.CDLL) -> None:
    """Two words of each frame are nodes of the stack. The caller's stack pointer is in the frame, or right above it."""
    machine = Machine(library)
    sp = machine.sp
    rules = {Machine.key: pack(BY_SP, 8), machine.back: pack(INTERPRETED, 0, 0, -64), A: pack(INTERPRETED, 0, 0, -56), B: pack(LAST)}
    machine.seed({**rules, 0x7777 | VALUE: pack(LAST), 0x8888 | VALUE: pack(LAST)})
    words = [0] * 60
    place_of = lambda number: sp + 8 + 8 * number  # noqa: E731
    words[12], words[4], words[9], words[11], words[13] = place_of(30), 0x1234, 0x7777, place_of(16), A
    words[30], words[23], words[27], words[29], words[31] = 0, 0, 0x8888, 0, B
    machine.call(words, fp=place_of(12))
    stack = (Machine.key, machine.back, 0x1234 | VALUE, 0x7777 | VALUE, A, VALUE, 0x8888 | VALUE, B)
    assert machine.counted() == {stack: (1, 0)}
    words[9] = 0x9999  # no function refers to this word
    machine.memory[SERVED] = 0
    machine.call(words, fp=place_of(12))
    assert machine.counted() == {stack: (1, 0), (*stack[:3], 0x9999 | VALUE): (0, 1)}


def test_signal_handlers(library: ctypes.CDLL) -> None:
    """The interrupted address is looked up with the rules for interrupted code. It is on another stack."""
    machine = Machine(library)
    sp = machine.sp
    machine.seed({Machine.key: pack(BY_SP, 8), machine.back: pack(SIGNAL), A | EXACT: pack(BY_FP, 8), B: pack(LAST)})
    words = [0] * 200
    words[120 // 8], words[160 // 8], words[168 // 8] = sp + 8 * 101, sp + 8 * 90, A
    words[100] = B
    machine.call(words)
    assert machine.counted() == {(Machine.key, machine.back, A | EXACT, B): (1, 0)}


def test_code_that_was_called_on_another_stack(library: ctypes.CDLL) -> None:
    """The frame pointer leads to the caller's frame on the other stack. No word beyond the end of that stack is read."""
    machine = Machine(library)
    other = (ctypes.c_uint64 * 16)()
    at = ctypes.addressof(other)
    other[10], other[11], other[13] = 0, A, B
    rules = {Machine.key: pack(BY_SP, 8), machine.back: pack(SWITCH), A: pack(BY_SP, 16), B: pack(LAST)}
    machine.seed({**rules, STACK | at + 80 >> 12: at + 128})
    machine.call([0], fp=at + 80)
    assert machine.counted() == {(Machine.key, machine.back, A, B): (1, 0)}
    machine = Machine(library)
    machine.seed({**rules, machine.back: pack(SWITCH), STACK | at + 80 >> 12: at + 88})
    machine.call([0], fp=at + 80)
    assert machine.counted() == {(Machine.key, machine.back): (0, 1)}


@pytest.mark.parametrize(
    ("rule", "fp"),
    [
        (pack(SWITCH), 0),
        (pack(SWITCH), 1),
        (pack(SWITCH), 1 << 40),
        (pack(BY_SP, -64), 0),
        (pack(BY_SP, 1 << 20), 0),
        (pack(BY_FP, 0), 1 << 40),
        (pack(THROUGH_FP, 0), 8),
        (pack(THROUGH_FP, -8), 0),
        (pack(BY_SP, 16, 2, -8), 0),
        (INTERPRETERS[0], 0),
        (INTERPRETERS[0], 1 << 40),
        (INTERPRETERS[1], 1),
        (CHAINED, 1),
        (CHAINED, 8),
    ],
)
def test_an_invalid_stack_is_not_followed(rule: int, fp: int, library: ctypes.CDLL) -> None:
    machine = Machine(library)
    machine.seed({Machine.key: pack(BY_SP, 8), machine.back: rule})
    machine.call([A, B], fp)
    assert machine.counted() == {(Machine.key, machine.back): (0, 1)}


def test_a_frame_at_address_zero_is_not_followed(library: ctypes.CDLL) -> None:
    """The stub finds the caller's frame through a word that is 0, and does not read the word before it."""
    machine = Machine(library)
    machine.seed({Machine.key: pack(BY_SP, 8), machine.back: pack(THROUGH_FP, 16)})
    machine.call([0, 0, 0, 0], fp=machine.sp)
    assert machine.counted() == {(Machine.key, machine.back): (0, 1)}


def test_no_server_answers(library: ctypes.CDLL) -> None:
    """The stub waits once. After that, each call is counted with the frames for which there are rules."""
    machine = Machine(library, patience=10**6)
    machine.seed({Machine.key: pack(BY_SP, 8)})
    for _ in range(5):
        machine.call([A])
    assert machine.counted() == {(Machine.key, machine.back): (0, 5)}
    assert machine.counters == (5, 0, 0, 1)


def test_disabled_and_limited(library: ctypes.CDLL) -> None:
    machine = Machine(library, limit=3)
    machine.seed({Machine.key: pack(LAST)})
    for _ in range(7):
        machine.call([])
    assert machine.counted() == {(Machine.key,): (3, 0)}
    machine.memory[ENABLED] = 0
    machine.call([])
    assert machine.counters[0] == 7


def test_stacks_are_distinguished_despite_collisions(library: ctypes.CDLL) -> None:
    """The table has 64 slots, of which 61 are used: searches are long, and different stacks are still counted
    separately. Calls without a slot are counted together."""
    machine = Machine(library, nodes=64)
    starts = [0x500000 + 16 * number for number in range(80)]
    machine.seed({Machine.key: pack(BY_SP, 8), machine.back: pack(BY_SP, 8), **{pc: pack(LAST) for pc in starts}})
    for number, pc in enumerate(starts[:59]):
        for _ in range(number + 1):
            machine.call([pc])
    wanted = {(Machine.key, machine.back, pc): (number + 1, 0) for number, pc in enumerate(starts[:59])}
    assert machine.counted() == wanted
    for pc in starts[59:]:
        machine.call([pc])
    assert machine.counters[1] == 21 - 3
    assert {keys: calls for keys, calls in machine.counted().items() if keys in wanted} == wanted
    assert sum(calls for calls, _ in machine.counted().values()) + machine.counters[1] == machine.counters[0]


def test_two_stacks_of_one_hash(library: ctypes.CDLL) -> None:
    """Two rules with one hash are distinguished by their keys."""
    one = 0x7F1234567890
    other = next(pc for pc in range(one + 1, one + 10**7) if place(pc, 1 << 15) == place(one, 1 << 15))
    machine = Machine(library)
    machine.seed({Machine.key: pack(BY_SP, 8), machine.back: pack(BY_SP, 8), one: pack(LAST), other: pack(BY_SP, 8), A: pack(LAST)})
    machine.call([one, A])
    machine.call([other, A])
    machine.call([other, A])
    back = machine.back
    assert machine.counted() == {(Machine.key, back, one): (1, 0), (Machine.key, back, other, A): (2, 0)}


def test_scopes_that_are_counted(library: ctypes.CDLL) -> None:
    """Scopes are counted for each thread. Scopes that were entered before counting began are unknown, and leaving such
    a scope has no effect."""
    machine = Machine(library, Scoped(2))
    machine.seed({Machine.key: pack(LAST)})

    def work() -> None:
        for stub_ in (machine.closes, machine.count, machine.opens, machine.opens, machine.count, machine.closes, machine.count):
            machine.call([], stub=stub_)
        machine.call([], stub=machine.closes)
        machine.call([], stub=machine.count)

    work()
    assert machine.counted() == {(Machine.key,): (2, 0)}
    machine.call([], stub=machine.opens)
    thread = threading.Thread(target=work)  # each thread has a separate depth
    thread.start()
    thread.join()
    assert machine.counted() == {(Machine.key,): (4, 0)}
    machine.call([])
    assert machine.counted() == {(Machine.key,): (4, 0)}


def test_the_level_of_an_isolate(library: ctypes.CDLL) -> None:
    """A thread pointer points to itself. It serves as an isolate whose level is the thread's id, which glibc stores nearby."""
    pthread_self = ctypes.CDLL(None).pthread_self
    pthread_self.restype = ctypes.c_ulong
    isolate, level = pthread_self(), threading.get_native_id()
    at = next(at for at in range(0x100, 0x400, 4) if ctypes.c_uint32.from_address(isolate + at).value == level)
    for baseline, known, wanted in ((level, 1, 1), (level - 1, 1, 0), (level, 2, 0)):
        machine = Machine(library, Scoped(1, 0, at, baseline))
        machine.seed({Machine.key: pack(LAST), isolate | ISOLATE: known})
        machine.call([])
        assert sum(calls for calls, _ in machine.counted().values()) == wanted
    machine = Machine(library, Scoped(1, 0, at, level), patience=10**6)
    machine.seed({Machine.key: pack(LAST)})
    machine.call([])
    assert machine.counters == (1, 0, 1, 1)  # no_owner recorded whether it is an isolate


def test_a_word_of_the_thread(library: ctypes.CDLL) -> None:
    """0 means outside: the thread does not have CPython's lock."""
    pthread_self = ctypes.CDLL(None).pthread_self
    pthread_self.restype = ctypes.c_ulong
    free = next(at for at in range(0x30, 0x300, 8) if ctypes.c_uint64.from_address(pthread_self() + at).value == 0)
    for origin, wanted in ((free, 1), (0, 0)):
        machine = Machine(library, Scoped(3, origin))
        machine.seed({Machine.key: pack(LAST)})
        machine.call([])
        assert sum(calls for calls, _ in machine.counted().values()) == wanted
        assert machine.counters == (1, 0, 0, 0)


class FixedRules(Rules):
    """Rules that a test defines."""

    def __init__(self, rules: dict[int, int], machine: Machine) -> None:
        self.lock = threading.Lock()
        self.rules, self.machine = rules, machine
        self.steps = {}
        self.pages = ReadablePages(os.getpid())
        self._read = lambda address, size: ctypes.string_at(address, size)

    def step(self, key: int) -> Step:
        return Step(self.rules.get(key, pack(LAST)))

    def answer(self, request):  # type: ignore[no-untyped-def]
        if request.key & STACK and not request.key & EXACT:
            return [(request.key, self.machine.end)]
        return [(request.key, self.step(request.key).value)]


def test_threads_that_ask_at_the_same_time(library: ctypes.CDLL) -> None:
    """Each thread has its own stack. Every call of every thread is counted once, with the stack of its thread."""
    machine = Machine(library, patience=10**11)
    rules = {Machine.key: pack(BY_SP, 8), machine.back: pack(BY_SP, 8)}
    rules.update({pc: pack(BY_SP, 8) for pc in range(0x600000, 0x600040)})
    service = machine.service(FixedRules(rules, machine))
    stacks = [(ctypes.c_uint64 * WORDS)() for _ in range(6)]
    machine.seed({}, bounded=False)

    def work(number: int) -> None:
        stack = stacks[number]
        sp = ctypes.addressof(stack) + 8 * 1024
        for turn in range(2000):
            for at in range(4):
                stack[1025 + at] = 0x600000 + (turn >> 2 * at & 3) + 4 * at + 16 * (number // 2)
            stack[1029] = 0x700000
            library.run(machine.count, sp, 0)

    machine.end = max(ctypes.addressof(stack) for stack in stacks) + 8 * WORDS
    service.start()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service.finish()
    counted = machine.counted()
    assert machine.counters[:3] == (12000, 0, 0)
    assert sum(calls for calls, broken in counted.values()) == 12000
    assert len(counted) == 3 * 256
    for keys, (calls, broken) in counted.items():
        turn = sum((key & 3) << 2 * at for at, key in enumerate(keys[2:6]))
        assert (calls, broken) == (2 * len(range(turn, 2000, 256)), 0)


@pytest.mark.parametrize("served", [True, False])
def test_a_thread_that_waits_when_counting_ends(served: bool, library: ctypes.CDLL) -> None:
    """The call was counted before. The thread gets its answer, unless the server has ended."""
    machine = Machine(library, patience=10**12)
    machine.seed({}, bounded=False)
    rules = {Machine.key: pack(BY_SP, 8), machine.back: pack(LAST)}
    thread = threading.Thread(target=machine.call, args=([],))
    thread.start()
    until(lambda: machine.memory[STATES] == ASKED, "the thread to ask")
    machine.memory[ENABLED] = 0
    service = machine.service(FixedRules(rules, machine))
    if served:
        service.start()
    else:
        machine.memory[SERVED] = 0
    thread.join()
    service.finish()
    assert machine.counters[:2] == (1, 0)
    assert sum(calls for calls, _ in machine.counted().values()) == served
    assert sum(broken for _, broken in machine.counted().values()) == (not served)


@given(data=st.data())
def test_any_rules_on_any_stack(library: ctypes.CDLL, data: st.DataObject) -> None:
    """With any rules and any stack, the stub visits the same frames as the Python model."""
    machine = Machine(library, patience=1)
    pcs = [A, B, C, D, A | EXACT, B | EXACT]
    near = st.integers(-2, 12).map(lambda n: 8 * n)
    values = st.one_of(
        st.builds(pack, st.sampled_from([BY_SP, BY_FP, THROUGH_FP]), near, st.integers(0, 2), near),
        st.sampled_from([pack(LAST), CHAINED, pack(SIGNAL), *INTERPRETERS]),
    )
    rules = {pc: data.draw(values) for pc in pcs}
    rules.update({Machine.key: pack(BY_SP, 8), machine.back: data.draw(values)})
    word = st.one_of(st.sampled_from([A, B, C, D, 0]), st.integers(-4, 40).map(lambda n: machine.sp + 8 * n))
    words = [data.draw(word) for _ in range(40)]
    fp = data.draw(word)
    functions = {at + 8 * n | VALUE: pack(LAST) for at in (machine.sp,) for n in range(-4, 41)}
    machine.seed({**rules, **functions, **{pc | VALUE: pack(LAST) for pc in (A, B, C, D, 0, machine.back)}})
    machine.call(words, fp)
    read = lambda at: ctypes.c_uint64.from_address(at).value  # noqa: E731
    keys, key, sp, low = [Machine.key], Machine.key, machine.sp, machine.sp
    while len(keys) < 200:
        found = follow(rules[key], key, sp, fp, low, machine.end, read)
        if found is not None and rules[key] in INTERPRETERS:
            keys += [read(fp + at) | VALUE for at in (unpack(rules[key]).pointer, FUNCTION)]
        if found is None or not found[0]:
            break
        if not machine.sp >> 12 <= found[1] >> 12 <= machine.end >> 12:
            break
        if rules[key] & 0xFF == SIGNAL:
            low = found[1]
        key, sp, fp = found
        keys.append(key)
        if key not in rules:
            break
    (made,) = machine.counted()
    assert list(made)[:200] == keys[:200]


def test_seeds_are_found_where_the_stub_looks() -> None:
    layout = CountTable(0x10000, nodes=8, rules=64, threads=8)
    made = layout.seeds([(key, key + 1) for key in range(1, 100)])
    assert 40 < len(made) <= 64
    assert all(struct.unpack("<2Q", data)[1] == struct.unpack("<2Q", data)[0] + 1 for data in made.values())
    assert PROBES == 64
