"""Which threads may make system calls for findleaks."""

from __future__ import annotations

import ctypes
import struct

import pytest

from findleaks.injection import seized
from findleaks.injection.requests import CS, ORIG_RAX, RIP, Requests


def test_a_thread_in_a_restartable_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """struct rseq is at 0x1000, and its rseq_cs describes the code at [0x5000, 0x5010)."""
    memory = {0x1008: struct.pack("<Q", 0x2000), 0x2000: struct.pack("<IIQQ", 0, 0, 0x5000, 0x10)}
    requests = Requests()

    def attempt(request: int, tid: int, address: int = 0, data: int = 0) -> bool:
        if request == seized._RSEQ_CONFIGURATION:
            ctypes.memmove(data, struct.pack("<Q", 0x1000), 8)
        return request == seized._RSEQ_CONFIGURATION

    monkeypatch.setattr(requests, "attempt", attempt)

    def why(at: int, call: int = (1 << 64) - 1) -> str:
        words = [0] * 27
        words[RIP], words[CS], words[ORIG_RAX] = at, 0x33, call
        return seized.unsuitable(requests, 1, tuple(words), lambda address, size: memory.get(address, b""))

    assert "rseq" in why(0x5000) and "rseq" in why(0x500F)
    assert why(0x4FFF) == why(0x5010) == why(0x5000, 7) == ""
    memory[0x1008] = bytes(8)
    assert why(0x5000) == ""
