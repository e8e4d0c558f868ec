"""In damaged memory, many tasks or greenlets may have the same long chain: the number of frames that are read is limited."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.runtimes.cpython import greenlets, tasks
from findleaks.unwind.stacks import NamedFrame

PAGE, NUMBER = 0x1000, 3000  # bytes between two coroutines; tasks or greenlets


class Coroutines:
    """Memory of CPython 3.9 in which each coroutine waits for the one in the next page, without end."""

    size = 8

    def word(self, address: int) -> int:
        """Return the frame of a coroutine (gi_frame), or what it waits for: the value on top of the stack of its frame."""
        return address - 16 + 0x100 if address % PAGE == 16 else address - 0x200 + PAGE

    def words(self, address: int, number: int) -> tuple[int, ...]:
        """Return f_valuestack and f_stacktop of a frame, or the words of a task."""
        page = address & -PAGE
        return (page + 0x200, page + 0x208, 0) if number == 3 else (0, PAGE)


def test_tasks_with_endless_chains_of_coroutines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_MOST_COROUTINES", 1 << 12)
    names = SimpleNamespace(
        layout=SimpleNamespace(has_frames=False),
        release=(3, 9),
        is_supported=True,
        is_suspended=lambda address: address > 0 and address % PAGE == 0,
        type_name=lambda address: "",
    )
    known = SimpleNamespace(list_derived=lambda names: [0], offsets=[0], text=lambda address: "")
    blocks = SimpleNamespace(address=lambda index: 16 * index, size=lambda index: 16)
    frames = SimpleNamespace(name_frame=lambda frame: NamedFrame(0, "wait", 0, ""))
    given: tuple[Any, ...] = (Coroutines(), blocks, known, SimpleNamespace(found=[0] * NUMBER), names, frames)
    lengths = [len(one.coroutines) for one in tasks.TaskReader(*given).list(lambda: False)]
    assert len(lengths) == NUMBER and lengths[0] == 1 << 10 and lengths[-1] == 16
    assert sum(lengths) <= (1 << 12) + (1 << 10) + 16 * NUMBER


def test_greenlets_whose_chains_end_in_a_damaged_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    class Frames:
        has_inner_frames, number_read = False, 0

        def name_frames(self, frame: int, most: int) -> tuple[NamedFrame, ...]:
            read.append(most)
            self.number_read += most
            return ()

    one = greenlets.SuspendedGreenlet(0, 0, 0, ())
    monkeypatch.setattr(greenlets, "find_frame_reader", lambda target: Frames())
    monkeypatch.setattr(greenlets, "iterate_suspended", lambda *given: [one] * NUMBER)
    monkeypatch.setattr(greenlets, "_MOST_FRAMES", 1 << 16)
    target: Any = SimpleNamespace(is_interrupted=lambda: False, arch=SimpleNamespace(word=8, byteorder="little"))
    known: Any = SimpleNamespace(shift=0)
    blocks: Any = None
    tally: Any = SimpleNamespace(found=[])
    assert not list(greenlets.read_greenlets(target, blocks, known, tally))
    assert len(read) == NUMBER and sum(read) <= (1 << 16) + (1 << 14) + 16 * NUMBER
