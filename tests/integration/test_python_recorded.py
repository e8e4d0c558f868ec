"""Python frames of the calls that `count` counts and of the blocks that `track` records are those that Python lists for the same calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import native_calls
import pytest
import truth
from native_calls import Calls
from other_pythons import PYTHONS

ROUNDS, SIZES, KIND = 3, "48-2000", "Python"
CALLS = 40  # calls in one round, plus one for each code object that is freed
VERSIONS = [version for version in PYTHONS if not version.endswith("t")]
QUICK = [("3.11", "track")]
EACH = [
    pytest.param(version, way, marks=() if (version, way) in QUICK else pytest.mark.matrix, id=f"{version}-{way}")
    for version in VERSIONS
    for way in native_calls.WAYS
]


@contextmanager
def calling(version: str, folder: Path, changing: int) -> Iterator[Calls]:
    python, library = PYTHONS[version](), native_calls.library(folder)
    command = python.command(str(truth.PROGRAMS / "python_native_calls.py"), str(library), str(changing))
    program = Calls(command, library, python.environment())
    try:
        yield program
    finally:
        program.end()


@pytest.mark.parametrize(("version", "way"), EACH)
def test_frames_of_recorded_calls(version: str, way: str, tmp_path: Path) -> None:
    with calling(version, tmp_path, 250) as program:
        found = native_calls.record(program, way, ROUNDS, CALLS + 250, SIZES)
    listed = native_calls.parse_listed(found.printed)
    assert native_calls.count_recorded(found, KIND) == listed
    assert listed.total() == ROUNDS * (CALLS + 250)
    assert native_calls.check_callbacks(found, KIND, ["from_c"]) >= 3
    frames = [one for stack in found.stacks for one in stack["frames"] if one.get("kind") == KIND]
    assert {(one["address"], one["offset"], one["module"]) for one in frames} == {(None, None, None)}
    assert all(stack["complete"] for stack in found.stacks if native_calls.select_managed(stack, KIND))


@pytest.mark.matrix
@pytest.mark.parametrize("version", VERSIONS)
def test_code_objects_that_are_freed(version: str, tmp_path: Path) -> None:
    """The address of a freed code object is reused for other code objects, with other names, files and lines."""
    with calling(version, tmp_path, 4000) as program:
        found = native_calls.record(program, "track", ROUNDS, 0, SIZES)
    assert set(native_calls.count_recorded(found, KIND)) <= set(native_calls.parse_listed(found.printed))
    assert native_calls.check_sizes(found, KIND) > 100
