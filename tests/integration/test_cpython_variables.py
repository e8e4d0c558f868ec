"""A reference in a Python module or dictionary has the name of the variable or the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import debuggers
import mallocs_python
import pytest

import cores

VERSIONS = [pytest.param(v, marks=() if v == "3.11" else pytest.mark.matrix) for v in mallocs_python.SUITES]

KEEPS = """
import signal
kept = {"first key": object(), 3: object()}
plain = {"first key": object(), "second key": object()}
gone = {"first key": object(), "second key": object()}
del gone["first key"]
last = gone["second key"]
print(*map(id, (kept, kept["first key"], kept[3], plain["second key"], last)), flush=True)
print("ready", flush=True)
while True:
    signal.pause()
"""


def names(address: str, *where: str) -> set[str]:
    """Return the names of the references to an object from blocks in use, if they are variables or values of dictionaries."""
    found: dict[str, Any] = json.loads(debuggers.findleaks("refs", "--json", address, *where))
    # A reference without a block is in a register.
    texts = [row["from"]["text"].rpartition("; ")[2] for row in found["references"] if row["live"] and "from" in row]
    return {text for text in texts if text.startswith(("Python variable", "value of"))}


@pytest.mark.parametrize("version", VERSIONS)
def test_references_are_named(version: str, tmp_path: Path) -> None:
    python = mallocs_python.get(version)
    with cores.Running(python.command("-c", KEEPS), tmp_path, python.environment()) as one:
        core = str(one.kernel_core())
    kept, first, third, second, last = [names(hex(int(word)), core) for word in one.output.splitlines()[0].split()]
    assert kept == {"Python variable: __main__.kept"}
    assert first == {'value of "first key" in a Python dict'}
    assert third == set(), "a key that is no string has no name"
    assert second == {'value of "second key" in a Python dict'}
    assert last == {"Python variable: __main__.last", 'value of "second key" in a Python dict'}
