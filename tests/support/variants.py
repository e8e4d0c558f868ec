"""Test parameters of which `make test` runs some, and `make test-matrix` the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

REPEATED = Path(__file__).with_name("repeated.txt")
"""The list of tests that only the matrix runs, because another test proves the same code."""


def read_repeated() -> set[tuple[str, str]]:
    """Return the tests in REPEATED: the path of the file, relative to tests/, and the name of the test with its parameters."""
    found, file = set[tuple[str, str]](), ""
    for line in REPEATED.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            function, *parameters = line.strip().split(" | ")
            found.update((file, f"{function}[{one}]") for one in parameters)
            if not parameters:
                found.add((file, function))
        elif not line.startswith("#"):
            file = line
    return found


def mark_repeated(items: Iterable[pytest.Item], tests: Path) -> None:
    """Add the mark `matrix` to the tests in REPEATED. `tests`: the folder tests/."""
    repeated = read_repeated()
    for item in items:
        if item.path.is_relative_to(tests) and (item.path.relative_to(tests).as_posix(), item.name) in repeated:
            item.add_marker(pytest.mark.matrix)


def mark_matrix_except(values: Mapping[str, Any] | Collection[Any], *kept: Any) -> list[Any]:
    """Return values for pytest.mark.parametrize: all but `kept` have the mark `matrix`.

    If the values are a mapping, its keys are the ids, and `kept` are keys. Raises ValueError if one of `kept` is missing, because it would
    never run.
    """
    if missing := [one for one in kept if one not in values]:
        raise ValueError(f"no such variants: {missing}")
    named = values.items() if isinstance(values, Mapping) else [(None, value) for value in values]
    marks = [() if (value if name is None else name) in kept else pytest.mark.matrix for name, value in named]
    return [pytest.param(value, id=name, marks=mark) for (name, value), mark in zip(named, marks)]
