"""Write common/results/findleaks-1.schema.json, the JSON schema of what commands print with --json.

usage: .venv/bin/python tools/generate_schema.py

The schema (draft 2020-12) is made of the annotations of the results in common/results, their docstrings and the strings below
their fields. A test fails if the file is not what this program makes."""

from __future__ import annotations

import ast
import inspect
import json
import pkgutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from findleaks import results
from findleaks.catalogue import CATALOGUE
from findleaks.results import (
    addresses,
    block_types,
    caches,
    count,
    environment,
    growth,
    heap_map,
    leaks,
    references,
    roots,
    runtimes,
    scopes,
    snapshots,
    stacks,
    track,
    triage,
    untyped,
    verdict,
    verify,
    written,
)
from findleaks.results.record import SCHEMA, Record, json_fields

FILE = Path(__file__).parents[1] / "common" / "results" / "findleaks-1.schema.json"

DOCUMENTS: Mapping[str, Union[type[Record], tuple[type[Record], ...]]] = {
    "blocks": block_types.BlockTypes,
    "find": (leaks.Leaks, untyped.Untyped),
    "caches": caches.Caches,
    "whatis": addresses.Addresses,
    "refs": references.References,
    "path": references.Path,
    "roots": roots.Roots,
    "verdict": verdict.Verdict,
    "runtime": runtimes.Runtimes,
    "stacks": stacks.Stacks,
    "scopes": scopes.Scopes,
    "map": (heap_map.HeapMap, heap_map.SavedResidency),
    "verify": verify.Verification,
    "diff": growth.Growth,
    "snapshot": (snapshots.TakenSnapshot, snapshots.WrittenCore, snapshots.SnapshotSeries),
    "watch": growth.Watched,
    "count": count.Calls,
    "track": track.Tracked,
    "triage": triage.Triage,
    "doctor": environment.Environment,
}
"""The class of the result of each command; several if it depends on the options."""

LINES: Sequence[type[Record]] = (addresses.Block, triage.TriagedCore)
"""Results that a command prints one a line, without the command's name (`blocks`, `triage`)."""

_MODULES = [import_module(f"{results.__name__}.{one.name}") for one in pkgutil.iter_modules(results.__path__)]
_NAMES = {name: one for module in _MODULES for name, one in vars(module).items() if isinstance(one, type) and issubclass(one, Record)}
"""Classes by name. Modules of results import some of them for type checkers only."""

_ADDRESS = {"type": "string", "pattern": "^0x[0-9a-f]+$"}
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_WARNINGS = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Sentences about what limits the result. Each states the consequence.",
}


def schema(closed: bool = False) -> dict[str, Any]:
    """The whole schema. `closed`: objects must not have other keys. User programs must accept
    further keys."""
    definitions = _Definitions(closed)
    documents = {word: definitions.documents(word, records) for word, records in DOCUMENTS.items()}
    lines = [definitions.of(record) for record in LINES]
    others = [word for word in CATALOGUE if word not in DOCUMENTS or word == "blocks"]
    documents["other"] = {
        "description": "The warnings of a command that prints its results one a line.",
        "type": "object",
        "properties": {"schema": {"const": SCHEMA}, "command": {"enum": others}, "warnings": _WARNINGS},
        "required": ["schema", "command"],
    }
    # Rows of `blocks` are lines; its sums are one object.
    documents["blocks"] = {"anyOf": [documents["blocks"], {"$ref": "#/$defs/other"}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:findleaks:findleaks-1",
        "title": "findleaks/1",
        "description": "One line of what a command of findleaks prints with --json. Addresses are hexadecimal strings, sizes are bytes.",
        "anyOf": [*({"$ref": f"#/$defs/{word}"} for word in documents), *lines],
        "$defs": {**documents, **dict(sorted(definitions.made.items()))},
    }


class _Definitions:
    """The definitions of classes of results. Each is made when it is first referred to."""

    def __init__(self, closed: bool) -> None:
        self.made: dict[str, Any] = {}
        self._classes: dict[str, type[Record]] = {}
        self._closed = closed

    def documents(self, word: str, records: Union[type[Record], tuple[type[Record], ...]]) -> dict[str, Any]:
        """The object that the command `word` prints: one of these results."""
        if isinstance(records, tuple):
            return {"anyOf": [self._document(word, record) for record in records]}
        return self._document(word, records)

    def _document(self, word: str, record: type[Record]) -> dict[str, Any]:
        """The object that the command `word` prints: the result, and the keys that every command
        adds."""
        made = self._object(record)
        made["properties"] = {
            "schema": {"const": SCHEMA},
            "command": {"const": word},
            **made["properties"],
            **(
                {}
                if "written" in made["properties"]
                else {"written": {**self.of(written.WrittenFile), "description": "The file that was written."}}
            ),
            "warnings": _WARNINGS,
        }
        made["required"] = ["schema", "command", *made["required"], "warnings"]
        return made

    def of(self, record: type[Record]) -> dict[str, Any]:
        """A reference to the definition of a class."""
        name = record.__name__
        if self._classes.setdefault(name, record) is not record:
            raise ValueError(f"two classes of results have the name {name}")
        if name not in self.made:
            # Set before the definition is made, as a class may refer to itself.
            self.made[name] = {}
            self.made[name] = self._object(record)
        return {"$ref": f"#/$defs/{name}"}

    def _object(self, record: type[Record]) -> dict[str, Any]:
        hints, texts = get_type_hints(record, localns=_NAMES), field_texts(record)
        properties: dict[str, Any] = {}
        required, merged = [], False
        for one in json_fields(record):
            merged = merged or one.merged
            if not one.merged:
                properties[one.key] = {**self._type(hints[one.name], one.address), "description": texts[one.name]}
                required += [] if one.optional or one.beside else [one.key]
        made: dict[str, Any] = {
            "description": _text(record.__doc__ or ""),
            "type": "object",
            "properties": properties,
            "required": required,
        }
        if self._closed and not merged:
            made["additionalProperties"] = False
        return made

    def _type(self, hint: Any, address: bool) -> dict[str, Any]:
        origin, words = get_origin(hint), get_args(hint)
        if hint is Any:
            return {}
        if origin is Literal:
            return {"enum": list(words)}
        if origin is Union:
            return self._union([self._type(one, address) for one in words])
        if isinstance(hint, type) and issubclass(hint, Record):
            return self.of(hint)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self._type(words[1], address)}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self._type(words[0], address)}
        return dict(_ADDRESS) if hint is int and address else {"type": _PLAIN[hint]}

    @staticmethod
    def _union(kinds: list[dict[str, Any]]) -> dict[str, Any]:
        """Plain types in one list; all others as alternatives."""
        null = {"type": "null"}
        if len(kinds) == 2 and null in kinds:
            (kind,) = (one for one in kinds if one != null)
            if isinstance(kind.get("type"), str):
                return {**kind, "type": [kind["type"], "null"]}
            if "enum" in kind:
                return {"enum": [*kind["enum"], None]}
        return {"anyOf": kinds}


def field_texts(record: type) -> dict[str, str]:
    """The string below each field of a class and of its bases. ValueError: a field has none."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if base is Record or not hasattr(base, "__dataclass_fields__"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, [*tree.body[1:], None]):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)):
                    raise ValueError(f"{base.__name__}.{statement.target.id} has no string below it")
                found[statement.target.id] = _text(str(following.value.value))
    return found


def _text(docstring: str) -> str:
    return " ".join(docstring.split())


def text() -> str:
    """The content of the schema file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
