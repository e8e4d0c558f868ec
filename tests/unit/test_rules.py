"""What scope rules read from runtimes, in synthetic processes: CPython's lock by the code that reads it, functions of
JNI by their table."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from fake import FakeTarget

from findleaks.errors import Interrupted
from findleaks.runtimes import gil, jni
from findleaks.target.base import Module, Symbol

CODE, DATA, STORAGE, STATE = 0x400000, 0x500000, 0x7E0000000000, 0x600000
GETTER, STUB, ADDR = CODE, CODE + 0x100, CODE + 0x200
THREAD, OTHER = STORAGE + 0x800, STORAGE + 0x900


class Image:
    """Memory with code, data, thread-local storage of two threads, and a thread state. `code` is that of PyThreadState_Get."""

    def __init__(self, code: str = "", name: str = "PyThreadState_Get") -> None:
        self.memory = {start: bytearray(0x1000) for start in (CODE, DATA, STORAGE, STATE)}
        self.put(GETTER, bytes.fromhex(code))
        self.symbols = [Symbol(name, GETTER, len(bytes.fromhex(code))), Symbol("__tls_get_addr", ADDR, 1)]

    def put(self, address: int, data: bytes) -> None:
        start = address & ~0xFFF
        self.memory[start][address - start : address - start + len(data)] = data

    def words(self, address: int, *values: int) -> None:
        self.put(address, struct.pack(f"<{len(values)}Q", *values))

    def target(self) -> FakeTarget:
        return FakeTarget({at: bytes(data) for at, data in self.memory.items()}, permissions={CODE: "r-x"}, symbols=self.symbols)

    def is_held(self, thread_pointer: int) -> bool:
        target = self.target()
        lock = gil.derive(target)
        assert lock is not None
        return lock.is_held_by(target.word, thread_pointer)


def relative(opcode: str, at: int, to: int) -> str:
    code = bytes.fromhex(opcode)
    return (code + (to - at - len(code) - 4).to_bytes(4, "little", signed=True)).hex()


def variable(image: Image, where: int) -> None:
    """The current thread state is in one variable for all threads, and contains the id of its thread."""
    assert not image.is_held(THREAD)
    image.words(where, STATE)
    image.words(STATE + 176, THREAD)
    assert image.is_held(THREAD)
    assert not image.is_held(OTHER)
    image.words(STATE + 176, OTHER)
    assert not image.is_held(THREAD)
    image.words(where, 0x999999000)
    assert not image.is_held(THREAD)


def test_a_variable_of_the_program() -> None:
    """Python 3.6 to 3.11: mov rax,[rip+…]  test rax,rax  je …"""
    variable(Image(relative("488b05", GETTER, DATA + 0x40) + "4885c0 7401 c3"), DATA + 0x40)


def test_a_variable_of_a_library() -> None:
    """mov rax,[rip+…]  mov rax,[rax+0x240]  ret, with a table of addresses."""
    image = Image(relative("488b05", GETTER, DATA + 8) + "488b8040020000 c3", "_PyThreadState_UncheckedGet")
    image.words(DATA + 8, DATA + 0x100)
    variable(image, DATA + 0x340)


def test_a_thread_local_variable() -> None:
    """Python 3.12 and later: endbr64  mov rax,fs:[-0x18]  ret"""
    image = Image("f30f1efa 64488b0425e8ffffff c3", "PyThreadState_GetUnchecked")
    assert not image.is_held(THREAD)
    image.words(THREAD - 0x18, STATE)
    assert image.is_held(THREAD)
    assert not image.is_held(OTHER)


def test_a_thread_local_variable_through_a_table() -> None:
    """mov rax,[rip+…]  mov rax,fs:[rax]  ret"""
    image = Image(relative("488b05", GETTER, DATA + 0x40) + "64488b00 c3")
    image.words(DATA + 0x40, (1 << 64) - 0x18)
    assert not image.is_held(THREAD)
    image.words(THREAD - 0x18, STATE)
    assert image.is_held(THREAD)
    assert not image.is_held(OTHER)


def general(to: int = STUB, load: str = "488b00") -> Image:
    """sub rsp,8  lea rdi,[rip+…]  call __tls_get_addr@plt  mov rax,[rax]"""
    image = Image("4883ec08" + relative("66488d3d", GETTER + 4, DATA) + relative("666648e8", GETTER + 12, to) + load)
    image.put(STUB, bytes.fromhex(relative("ff25", STUB, DATA + 0x80)))
    image.words(DATA + 0x80, ADDR)
    image.words(DATA, 2, 0x30)
    image.words(THREAD, THREAD, STORAGE)  # struct tcbhead_t: tcb, dtv
    image.words(OTHER, OTHER, STORAGE + 0x100)
    image.words(STORAGE + 32, STATE)
    image.words(STORAGE + 0x100 + 32, (1 << 64) - 1)  # the thread has not used the variable yet
    return image


@pytest.mark.parametrize(("load", "offset"), [("488b00", 0), ("488b4008", 8)])
def test_a_thread_local_variable_of_a_library(load: str, offset: int) -> None:
    image = general(load=load)
    assert not image.is_held(THREAD)
    image.words(STATE + 0x30 + offset, 1)
    assert image.is_held(THREAD)
    assert not image.is_held(OTHER)
    assert not image.is_held(0x123000)


def test_unknown_code() -> None:
    """The lock is not found (None) if the code is not recognised."""
    assert gil.derive(Image().target()) is None
    assert gil.derive(Image("31c0c3").target()) is None
    assert gil.derive(general(CODE + 0x300).target()) is None
    assert gil.derive(Image(relative("488b05", GETTER, 0x990000) + "488b8040020000c3").target()) is None
    assert gil.derive(Image("c3", "main").target()) is None
    assert gil.derive(general(load="c3").target()) is None
    image = general()
    image.words(DATA, 1 << 40, 0x30)
    assert gil.derive(image.target()) is None


def jvm(tables: Sequence[int], made: Sequence[int] = (), short: int = 0) -> FakeTarget:
    """Return a libjvm with tables at these offsets of its data. In the first table, the entries `made` refer to code
    generated at run time."""
    image = Image()
    for number, at in enumerate(tables):
        entries = [CODE + 0x400 * number + 4 * place for place in range(len(jni.NAMES))]
        for place in made if not number else ():
            entries[place] = STATE + place
        image.words(DATA + at, 0, 0, 0, 0, *entries[: len(entries) - short])
    image.symbols = [Symbol(jni.EXPORTED, CODE + 8, 4)]
    target = image.target()
    target._modules = [Module("/usr/lib/jvm/lib/server/libjvm.so", CODE, CODE, DATA + 0x1000)]
    return target


def test_the_functions_of_the_java_native_interface() -> None:
    assert len(jni.NAMES) == len(set(jni.NAMES)) == 229
    found = jni.functions(jvm([0x20, 0x800], made=range(40, 48)))
    assert found["jni_PushLocalFrame"] == CODE + 4 * (19 - 4)
    assert found["jni_GetVersion"] == CODE
    assert found["jni_GetObjectRefType"] == CODE + 4 * (232 - 4)
    assert jni.functions(jvm([])) == {}
    assert jni.functions(jvm([0x20], short=1)) == {}
    assert jni.functions(jvm([0x20], made=range(60))) == {}
    assert jni.functions(FakeTarget({CODE: bytes(16)})) == {}


def test_ctrl_c_during_the_search_for_the_table() -> None:
    target = jvm([0x20])
    target._left = 0
    with pytest.raises(Interrupted):
        jni.functions(target)
