"""Types from recorded allocation stacks, and types that such stacks could contradict."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import asan
import pytest
from typed_programs import PROGRAMS, measure

import cores
from findleaks.engine.terms import State
from findleaks.engine.type_spread import LAYOUT_MASK
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.target.copied import attach
from findleaks.types.recorded import RecordedTypes
from findleaks.types.spread import Spreading

COUNT = 60
RECORDED = ("-O1", "-fsanitize=address", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")


@pytest.mark.platform("x86-64", "AddressSanitizer")
def test_stacks_give_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaked numbers, and targets of void pointers, have the types that their constructors return, or that other blocks of the stack have.
    A buffer that a constructor allocates, too, has no type. Without stacks, all of these blocks are ambiguous."""
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    for name in ("recorded", "plain"):
        (tmp_path / name).mkdir()
    figures = measure("typed_recorded.c", tmp_path / "recorded", COUNT, 1, *RECORDED)
    every = figures.held + figures.leaked
    assert not figures.wrong, figures.wrong[:12]
    assert every["none"] == COUNT, every  # the pixels
    assert sum(every.values()) == 6 * COUNT
    plain = measure("typed_recorded.c", tmp_path / "plain", COUNT, 1, "-O1")
    assert plain.held["none"] + plain.leaked["none"] >= 4 * COUNT, plain


@pytest.mark.platform("x86-64", "AddressSanitizer")
def test_stacks_contradict_no_certain_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost function that returns a pointer to a struct of the block's size returns a pointer to the certain type of the block.
    The stacks are not used for the types here."""
    program = tmp_path / "truth"
    subprocess.run(["gcc", "-g", *RECORDED, "-o", program, PROGRAMS / "typed_truth.c", "-pthread"], check=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with cores.Running([str(program), "3000", "1"], tmp_path / "run", asan.environment(detect_leaks="0")) as running:
        found = compare_with_stacks(running.pid, monkeypatch)
    assert found["same"] > 500, found
    assert set(found) == {"same"}, found


def compare_with_stacks(pid: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the blocks with a certain type that is a struct and a constructor on their stack: "same", or both types."""
    stored: list[RecordedTypes] = []
    monkeypatch.setattr(Spreading, "add_recorded", lambda search, recorded, graph: stored.append(recorded))
    session, found = Session(attach(pid)), Counter[str]()
    session.use_debug_types(True)
    known, blocks = known_types(session), session.directory.blocks
    assert known is not None
    for index in range(len(blocks)):
        one = known.of(index, blocks.size(index)) if blocks.state(index) == State.IN_USE else None
        site = session.sites.of(blocks.address(index))
        if one is None or not one.is_sure or not site or known.is_array(known.claims[index] & LAYOUT_MASK):
            continue
        constructed = stored[0].constructed_type(site, blocks.size(index))
        if constructed is not None:
            name = known.table.expression(constructed[0].type)
            found["same" if name == one.name else f"{one.name}, but {name}"] += 1
    session.target.close()
    return found
