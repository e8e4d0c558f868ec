"""Messages about progress and time: never "100 %" of unfinished work, and no second is counted twice."""

from __future__ import annotations

import io

import pytest
from fake import FakeTarget
from heaps import ListAllocator, Listed, session

from findleaks import progress
from findleaks import session as sessions
from findleaks.graph.unread import Doubtful, Unread

HEAP = 0x100000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("part", "shown"), [(0.004, " 0%"), (0.5, "50%"), (0.996, "99%"), (1.0, "99%"), (1.2, "99%")])
def test_unfinished_work_is_never_at_100_percent(part: float, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    out = Terminal()
    bar = progress.Bar(out)
    bar("reading the heaps", part)
    assert f" {shown} (" in out.getvalue() and "100" not in out.getvalue()
    bar.clear()
    assert out.getvalue().endswith("\r\x1b[K")


class Clock:
    """A clock that advances only when the test advances it."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_no_second_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def slow(*_: object) -> Unread:
        clock.now += 5.0
        return Unread()

    monkeypatch.setattr(sessions, "time", clock)
    monkeypatch.setattr(sessions, "unread", slow)
    monkeypatch.setattr(sessions, "doubtful", lambda *_: Doubtful([], [HEAP + 16], Unread(), {}, True))
    made = session(FakeTarget({HEAP: bytes(4096)}), [ListAllocator(HEAP, HEAP + 4096, [Listed(HEAP + 16, 100)])])
    made.graph()
    assert (made.seconds["unread"], made.seconds["mark"]) == (5.0, 0.0)
    assert sum(made.seconds.values()) == 5.0
