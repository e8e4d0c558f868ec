"""Ruby frames of the calls that `count` counts and of the blocks that `track` records are those that Ruby lists for the same calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import frame_stops
import native_calls
import pytest
import rubies
import truth
from native_calls import Calls, Frames

ROUNDS, SIZES, KIND = 3, "48-2000", "Ruby"
CALLS = 26  # calls in one round, plus one for each method that is removed
CHANGING = 100
QUICK = [(rubies.SYSTEM, "track")]
EACH = [
    pytest.param(version, way, marks=() if (version, way) in QUICK else pytest.mark.matrix, id=f"{version}-{way}")
    for version in rubies.SUITES
    for way in native_calls.WAYS
]


@contextmanager
def calling(version: str, folder: Path, changing: int) -> Iterator[Calls]:
    ruby, library = rubies.get(version), native_calls.library(folder)
    command = [*ruby.words, str(truth.PROGRAMS / "ruby_native_calls.rb"), str(library), str(changing)]
    program = Calls(command, library, ruby.environment)
    try:
        yield program
    finally:
        program.end()


def as_caller(frames: Frames, version: str) -> Frames:
    """Return the frames as `caller` lists them, without the innermost one (Fiddle::Function#call)."""
    return tuple(frame_stops.listed_by_caller(frames, version == "3.4"))[1:]


def parse_stacks(printed: str) -> Counter[Frames]:
    """Return the frames that the program prints."""
    found: Counter[Frames] = Counter()
    for frames, count in native_calls.parse_listed(printed).items():
        found[tuple(frame_stops.without_classes(frames))] += count
    return found


@pytest.mark.parametrize(("version", "way"), EACH)
def test_frames_of_recorded_calls(version: str, way: str, tmp_path: Path) -> None:
    with calling(version, tmp_path, CHANGING) as program:
        found = native_calls.record(program, way, ROUNDS, CALLS + CHANGING, SIZES)
    recorded: Counter[Frames] = Counter()
    for frames, count in native_calls.count_recorded(found, KIND).items():
        assert frames[0] == ("call", "", 0)
        recorded[as_caller(frames, version)] += count
    assert recorded == parse_stacks(found.printed)
    assert recorded.total() == ROUNDS * (CALLS + CHANGING)
    assert native_calls.check_callbacks(found, KIND, ["call"]) >= 3


@pytest.mark.matrix
@pytest.mark.parametrize("version", rubies.SUITES)
def test_sequences_that_are_freed(version: str, tmp_path: Path) -> None:
    """The address of a freed instruction sequence is reused for other instruction sequences, with other labels, paths and lines."""
    with calling(version, tmp_path, 3000) as program:
        found = native_calls.record(program, "track", ROUNDS, 0, SIZES)
    recorded = {as_caller(frames, version) for frames in native_calls.count_recorded(found, KIND) if frames}
    assert recorded <= set(parse_stacks(found.printed))
    assert native_calls.check_sizes(found, KIND) > 100
