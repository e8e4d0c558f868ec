"""The list of tests that only the matrix runs names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from variants import read_repeated

TESTS = Path(__file__).parents[1]


def test_every_listed_test_exists() -> None:
    listed = read_repeated()
    assert len(listed) > 100
    texts = {file: (TESTS / file).read_text() for file in {file for file, _ in listed}}
    assert [(file, name) for file, name in listed if not re.search(rf"^def {re.escape(name.partition('[')[0])}\(", texts[file], re.M)] == []
