"""Sessions in a debugger: they are kept while the process is stopped, dropped when it runs, and never closed during a
command that uses them."""

from __future__ import annotations

import io
from collections.abc import Sequence

from fake import FakeTarget

from findleaks.debugger_session import DebuggerSession, Subject
from findleaks.target.base import Region

AT = 0x10000


class Process(FakeTarget):
    """A live process. Whenever its regions are listed, the debugger reports that the process has changed."""

    front: DebuggerSession
    closed = 0

    def regions(self) -> Sequence[Region]:
        assert not self.closed
        self.front.drop_live()
        return super().regions()

    def close(self) -> None:
        self.closed += 1
        super().close()


class Debugger:
    def __init__(self) -> None:
        self.opened: list[Process] = []
        self.front = DebuggerSession(self)

    def subject(self) -> Subject:
        return Subject(1, "the same stop", True, self.open)

    def open(self) -> Process:
        self.opened.append(Process({AT: bytes(0x1000)}, live=True))
        self.opened[-1].front = self.front
        return self.opened[-1]

    def evaluate(self, expression: str) -> int:
        raise AssertionError(expression)


def test_a_change_during_a_command_closes_its_session_after_it() -> None:
    debugger = Debugger()
    for count in (1, 2):
        out = io.StringIO()
        assert debugger.front.run(["whatis", hex(AT)], out, 80) == 0
        assert hex(AT) in out.getvalue()
        assert [one.closed for one in debugger.opened] == [1] * count
