"""Repeated samples of one process: when there are no more samples, and why."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.session.host import LiveHost
from findleaks.session.repeated_reads import Ended, read_repeatedly

AUXV = {3: 0x40, 9: 0x1000, 25: 0x7000}
"""Where the program's headers, its entry and its random bytes are."""


def session(auxv: dict[int, int], *later: dict[int, int]) -> Any:
    """Return a session of this process. `auxv`: its auxiliary vector. `later`: the vectors that it has when it is read again."""
    rest = [session(one) for one in later]
    target = SimpleNamespace(pid=os.getpid(), auxv=auxv, exe_path="/usr/bin/other", called="")
    return SimpleNamespace(target=target, pool_file=None, close=lambda: None, host=LiveHost(lambda: rest.pop(0), lambda seconds: None))


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ({**AUXV, 25: 0x8000}, "runs another program now: other"),
        ({}, "has ended"),  # Linux has removed the memory of the process
    ],
)
def test_reason_for_the_last_sample(last: dict[int, int], why: str) -> None:
    samples = read_repeatedly(session(AUXV, AUXV, last), 0.001)
    assert [next(samples).target.auxv, next(samples).target.auxv] == [AUXV, AUXV]
    with pytest.raises(Ended, match=f"^pid {os.getpid()} {why}$"):
        next(samples)
