"""Environment variables of a process are read from the end of its stack."""

from __future__ import annotations

from typing import Optional

import pytest
from fake import FakeTarget, thread

from findleaks.allocators.environment import read_variable
from findleaks.allocators.memory import Memory

STACK = 0x7FFD_0000_0000
ENVIRONMENT = b"./orders\0LD_PRELOAD=libjemalloc.so.2\0MALLOC_CONF=prof:true,lg_prof_sample:0\0HOME=/\0./orders\0" + bytes(8)


@pytest.mark.parametrize(
    ("lower", "variable", "value"),
    [
        (b"", "MALLOC_CONF", "prof:true,lg_prof_sample:0"),
        (b"\0./orders\0MALLOC_CONF=prof:true,l\0\0", "MALLOC_CONF", "prof:true,lg_prof_sample:0"),  # an incomplete copy
        (b"", "HOME", "/"),
        (b"", "CONF", None),
    ],
)
def test_variable_of_the_environment(lower: bytes, variable: str, value: Optional[str]) -> None:
    data = bytes(64) + lower + bytes(64) + ENVIRONMENT
    target = FakeTarget({STACK: data}, threads=[thread(1, sp=STACK + 16)])
    assert read_variable(Memory(target), variable) == value
