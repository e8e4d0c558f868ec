"""Test parameters of which `make test` runs some, and `make test-matrix` the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest


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
