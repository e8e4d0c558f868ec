"""Names in a jemalloc that was built with a prefix, derived from constants in the file that contains it."""

from __future__ import annotations

import pytest
from fake import FakeTarget, thread

from findleaks.allocators.jemalloc.names import find_variable, rename_settings
from findleaks.target.base import Module

RODATA, DATA = 0x10000, 0x20000


def variable(constants: bytes) -> str:
    module = Module("/lib/libthing.so", RODATA, RODATA, DATA + 0x1000)
    memory = {RODATA: constants.ljust(0x3000, b"\0"), DATA: b"\0WRITABLE_MALLOC_CONF\0".ljust(0x1000, b"\0")}
    target = FakeTarget(memory, permissions={RODATA: "r--"}, threads=[thread(1)])
    return find_variable(target, module)


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        (b"x\0MALLOC_CONF\0/etc/malloc.conf\0", "MALLOC_CONF"),
        (b"x\0_RJEM_MALLOC_CONF\0", "_RJEM_MALLOC_CONF"),
        (b"x\0JE_MALLOC_CONF\0MALLOC_CONF\0", "JE_MALLOC_CONF"),  # the program also contains the text MALLOC_CONF
        (b"x\0see MALLOC_CONF\0MALLOC_CONF_2\0no" + b"A" * 100 + b"MALLOC_CONF\0", ""),
        (b"", ""),
    ],
)
def test_the_variable_is_read_from_the_constants(constants: bytes, expected: str) -> None:
    assert variable(constants) == expected


def test_names_have_the_prefix() -> None:
    words = 'MALLOC_CONF=dirty_decay_ms:1000, or mallctl("arena.4096.purge")'
    assert rename_settings(words, "_RJEM_MALLOC_CONF") == '_RJEM_MALLOC_CONF=dirty_decay_ms:1000, or _rjem_mallctl("arena.4096.purge")'
    assert rename_settings(words, "MALLOC_CONF") == rename_settings(words, "") == words
