"""Emulation of functions that only compute from memory: the results are those of the processor, and emulation of any
other function ends."""

from __future__ import annotations

import ctypes
import random
import struct
import subprocess
from pathlib import Path

import pytest
from fake import FakeTarget

from findleaks.disasm.formula import LONGEST, evaluate_function
from findleaks.errors import UnreadableMemory
from findleaks.target.arch import X86_64

SOURCE = """
typedef unsigned long word;
struct half { word (*const *functions)(void *); word heap, committed, pages[3]; unsigned small; int sign; };
struct space { word (*const *functions)(void *); struct half *next, to, from; word top, start, factor; };
_Static_assert(sizeof(struct space) == WORDS * sizeof(word), "all that the functions read is there");
word sum(struct space *s) { return s->to.committed + s->from.committed; }
word difference(struct space *s) { return s->top - s->start; }
word product(struct space *s) { return (s->top - s->start) * s->factor + 0x3eec0 * (s->factor >> 18); }
word shifted(struct space *s) { return (s->top << 3 | s->start >> 7) ^ (s->factor & 0xffff0); }
word signs(struct space *s) { return s->to.sign + s->from.small; }
word narrow(struct space *s) { return (unsigned)s->top * 3u + s->to.small; }
word followed(struct space *s) { return s->next->pages[2] + s->next->pages[1] * 8; }
word indexed(struct space *s, word i) { return s->to.pages[i] + (word)&s->from.pages[i] - (word)s; }
word large(struct space *s) { return s->top + 0x123456789abcdef0; }
word masked(struct space *s) { return ((s->start + 0x12f) & -8L) + 0x40000; }
word nothing(struct space *s) { (void)s; return 0; }
static word table_value(void *s) { return ((struct half *)s)->committed * 2; }
word __attribute__((noinline)) allocatable(void) { __asm__ volatile(""); return 0x3eed0; }
word calls(struct space *s) { return ((s->factor - 0x40000) >> 18) * allocatable() + s->top; }
word (*const table[])(void *) = {0, 0, table_value};
word virtual_one(struct space *s) { return s->to.functions[2](&s->to) + 1; }
word virtual_last(struct space *s) { return s->to.functions[2](&s->to); }
"""
NAMES = (
    *("sum", "difference", "product", "shifted", "signs", "narrow", "followed", "indexed", "large", "masked", "nothing"),
    *("calls", "virtual_one", "virtual_last"),
)
WORDS = 19
"""Of a struct space; the compiler checks it."""


class OwnMemory(FakeTarget):
    """The readable memory of the test process."""

    def __init__(self) -> None:
        super().__init__({})
        self._maps = [
            (int(start, 16), int(end, 16))
            for start, _, end in (line.split()[0].partition("-") for line in Path("/proc/self/maps").read_text().splitlines())
        ]

    def read(self, address: int, size: int) -> bytes:
        if not any(start <= address and address + size <= end for start, end in self._maps):
            raise UnreadableMemory(address, size)
        return ctypes.string_at(address, size)


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-Os", "-O3"])
def test_results_equal_those_of_the_processor(tmp_path: Path, level: str) -> None:
    source, library = tmp_path / "formulas.c", tmp_path / "formulas.so"
    source.write_text(SOURCE)
    flags = [level, f"-DWORDS={WORDS}", "-w", "-fcf-protection", "-shared", "-fPIC", "-Wl,-z,now"]
    subprocess.run(["gcc", *flags, "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    pick = random.Random(level)
    followed = 0
    for _ in range(20):
        space = (ctypes.c_uint64 * WORDS)(*(pick.getrandbits(64) for _ in range(WORDS)))
        half = (ctypes.c_uint64 * 8)(*(pick.getrandbits(64) for _ in range(8)))
        space[1] = ctypes.addressof(half)
        space[2] = ctypes.addressof(ctypes.c_uint64.in_dll(loaded, "table"))
        target = OwnMemory()
        for name in NAMES:
            function = getattr(loaded, name)
            function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_uint64]
            found = evaluate_function(target, ctypes.cast(function, ctypes.c_void_p).value or 0, ctypes.addressof(space), 1)
            assert found in (None, function(space, 1)), name
            followed += found is not None
    assert followed == 20 * len(NAMES) or level == "-O0"  # 32-bit values on the stack are not emulated
    assert followed >= 20 * len(NAMES) // 2


CODE = 0x401000
DATA = 0x500000


def run(code: bytes, *arguments: int) -> object:
    return evaluate_function(FakeTarget({CODE: code, DATA: struct.pack("<4Q", 1, 2, 3, 4)}), CODE, *arguments)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("488b4718 c3", 4),  # mov 0x18(%rdi),%rax; ret
        ("488b4720 c3", None),  # after the data
        ("48894708 c3", None),  # mov %rax,0x8(%rdi): a store
        ("ebfe", None),  # jmp to itself
        ("e8fbffffff", None),  # a call of the function itself
        ("7402 31c0 c3", None),  # je: not emulated
        (
            "488b07 483b4708 7203 31c0c3 b805000000 c3 0f1f4000",
            5,
        ),  # mov (%rdi),%rax; cmp 0x8(%rdi),%rax; jb to mov $5,%eax
        ("488b07 483b4708 7703 31c0c3 b805000000 c3 0f1f4000", 0),  # the same with ja
        (
            "488b07 48394708 7703 31c0c3 b805000000 c3 0f1f4000",
            5,
        ),  # cmp %rax,0x8(%rdi): the operands in the other order
        ("488b07 4885c0 7403 b005c3 488b07 c3", None),  # test %rax,%rax; je; mov $5,%al: 8 bits
        ("488b07 483b4708 48ffc0 7203 31c0c3 c3", None),  # inc after cmp: its flags are not emulated
        ("64488b0425000000000000 c3", None),  # mov %fs:0,%rax
        ("66 8b07 c3", None),  # mov (%rdi),%ax: 16 bits
        ("f0 48010f c3", None),  # lock add
        ("58 c3", None),  # pop of more words than were pushed: no return address
        ("53 5b 488b07 c3", 1),  # push %rbx; pop %rbx
        ("4154 4989fc 498b442408 415c c3", 2),  # push %r12; mov %rdi,%r12; mov 0x8(%r12),%rax; pop %r12; ret
        ("488b07 48ffc0 48ffc0 48ffc8 c3", 2),  # inc, inc, dec
        ("4990 c3", None),  # xchg %r8,%rax: without its prefix, it would be nop
        ("48", None),  # incomplete
        ("", None),
    ],
)
def test_handwritten_functions(code: str, result: object) -> None:
    assert run(bytes.fromhex(code.replace(" ", "")), DATA) == result


def test_any_bytes_end() -> None:
    """For any bytes, a bounded number of instructions is emulated, and no memory is read that causes an exception."""
    pick = random.Random(7)
    common = bytes.fromhex("488b8d8903012b29c1e8ffc3505866c9b8050f1e90eb")
    for _ in range(3000):
        code = bytes(pick.choice(common) if pick.random() < 0.6 else pick.randrange(256) for _ in range(40))
        found = run(code, DATA, pick.getrandbits(64))
        assert found is None or 0 <= int(str(found)) < 1 << 64
    assert run(b"\x90" * (LONGEST - 2) + b"\xc3", DATA) == 0
    assert run(b"\x90" * (LONGEST + 2) + b"\xc3", DATA) is None


def test_other_processors_are_not_followed() -> None:
    assert evaluate_function(FakeTarget({CODE: b"\xc3"}, arch=X86_64._replace(name="AArch64")), CODE) is None
    assert evaluate_function(FakeTarget({CODE: b"\xc3"}, arch=X86_64), CODE) == 0
