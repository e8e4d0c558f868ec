"""Validate the JSON that commands print against findleaks' schema. Objects must have only the keys that the schema describes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
ITEMS = 6
"""Number of items of each array that are validated, from the beginning. The others have the same form, and validation takes 20 µs per
value."""
ROWS = 20
"""Number of rows of `blocks` and `triage` that are validated."""
_LINES = {'{"address"': "Block", '{"core"': "TriagedCore"}
"""Beginnings of such rows, and the names of their definitions."""


def tool(name: str) -> Any:
    """Import a module of the folder tools/."""
    sys.path.append(str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tools"))


def load_generator() -> Any:
    """Import the module tools/generate_schema.py."""
    return tool("generate_schema")


@cache
def _definitions() -> Any:
    return load_generator().schema(closed=True)["$defs"]


@cache
def _validator(name: str, alternative: int = -1) -> Draft202012Validator:
    """Return the validator of a definition, or of one of its alternatives."""
    place = f"{name}/anyOf/{alternative}" if alternative >= 0 else name
    return Draft202012Validator({"$ref": f"#/$defs/{place}", "$defs": _definitions()})


def _closest(name: str, found: dict[str, Any]) -> int:
    """Return the alternative of a definition that shares most required keys with an object, so that errors are about this alternative. -1:
    the definition has no alternatives."""
    shared = [len(found.keys() & set(one.get("required", ()))) for one in _definitions()[name].get("anyOf", ())]
    return shared.index(max(shared)) if shared and all("required" in one for one in _definitions()[name]["anyOf"]) else -1


def check_output(words: Sequence[str], output: str) -> None:
    """Raise ValidationError unless each JSON object that the command `words` printed has the form that the schema describes."""
    if not any(word in ("--json", "-json") for word in words):
        return
    rows = 0
    for line in output.splitlines():
        if line.startswith('{"schema"'):
            check_object(json.loads(line))
            continue
        name = next((name for start, name in _LINES.items() if line.startswith(start)), None)
        if name is not None and rows < ROWS:
            rows += 1
            _validator(name).validate(_shortened(json.loads(line)))


def check_object(found: dict[str, Any]) -> None:
    """Raise ValidationError unless the object of a command has the form that the schema describes."""
    word = found.get("command")
    name = str(word) if word in load_generator().DOCUMENTS else "other"
    _validator(name, _closest(name, found)).validate(_shortened(found))


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(one) for key, one in value.items()}
    return [_shortened(one) for one in value[:ITEMS]] if isinstance(value, list) else value
