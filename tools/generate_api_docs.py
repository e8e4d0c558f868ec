"""Write docs/python-reference.md and docs/python-results.md, from the docstrings of the Python API and of the results.

usage: .venv/bin/python tools/generate_api_docs.py

A test fails if the pages are not what this program makes."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generate_schema import field_texts

import findleaks
from findleaks.results import (
    addresses,
    amounts,
    block_types,
    caches,
    count,
    growth,
    heap_map,
    leaks,
    note_parts,
    notes,
    references,
    roots,
    runtimes,
    scopes,
    sites,
    snapshots,
    stacks,
    track,
    triage,
    untyped,
    verdict,
    verify,
    written,
)
from findleaks.results.record import Record

DOCS = Path(__file__).parents[1] / "docs"

FUNCTIONS = (findleaks.open, findleaks.attach, findleaks.load, findleaks.diff, findleaks.current)
CLASSES = (findleaks.Process, findleaks.Blocks, findleaks.BlockTable, findleaks.Snapshot)
RESULTS = (
    leaks,
    untyped,
    block_types,
    addresses,
    references,
    roots,
    verdict,
    stacks,
    runtimes,
    scopes,
    caches,
    heap_map,
    verify,
    growth,
    snapshots,
    count,
    track,
    triage,
    sites,
    notes,
    note_parts,
    amounts,
    written,
)


def pages() -> dict[Path, str]:
    """All pages with their text."""
    return {
        DOCS / "python-reference.md": _page("Python reference", _REFERENCE, [*_functions(), *_classes()]),
        DOCS / "python-results.md": _page("Results", _RESULTS, list(_results())),
    }


_REFERENCE = "All functions and classes of `import findleaks`. [python-api.md](python-api.md) shows how to use them, and "
_REFERENCE += "[python-results.md](python-results.md) has the results that they return."
_RESULTS = "This page lists the frozen dataclasses that the functions of the [Python API](python-api.md) return. "
_RESULTS += "`to_json()` makes the object that the commands print with `--json`."


def _page(title: str, introduction: str, lines: list[str]) -> str:
    return "\n".join([f"# {title}", "", introduction, "", *lines]).rstrip() + "\n"


def _functions() -> Iterator[str]:
    for function in FUNCTIONS:
        yield from _callable(f"findleaks.{function.__name__}", function, "##")


def _classes() -> Iterator[str]:
    for one in CLASSES:
        yield from (f"## `findleaks.{one.__name__}`", "", *_paragraphs(one.__doc__), "")
        if hasattr(one, "__dataclass_fields__"):
            yield from _table(one)
        for name, member in vars(one).items():
            if name.startswith("_"):
                continue
            if isinstance(member, property):
                yield from (f"- `{name}: {_annotation(member.fget)}`: {' '.join(_paragraphs(member.__doc__))}", "")
            elif inspect.isfunction(member):
                yield from _callable(name, member, "###")


def _results() -> Iterator[str]:
    for module in RESULTS:
        yield from (f"## `{module.__name__}`", "", *_paragraphs(module.__doc__), "")
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, Record) and one.__module__ == module.__name__:
                yield from (f"**{one.__name__}**: {' '.join(_paragraphs(one.__doc__))}", "")
                yield from _table(one)


def _table(one: type) -> Iterator[str]:
    texts = field_texts(one)
    yield from ("| attribute | type | |", "|---|---|---|")
    for name, what in texts.items():
        kind = next(base.__annotations__[name] for base in one.__mro__ if name in vars(base).get("__annotations__", {}))
        yield f"| `{name}` | `{kind}` | {what.replace('|', chr(92) + '|')} |"
    for name, member in vars(one).items():
        if isinstance(member, property) and issubclass(one, Record):
            yield f"| `{name}` | `{_annotation(member.fget)}` | {' '.join(_paragraphs(member.__doc__))} |"
    yield ""


def _callable(name: str, function: Any, level: str) -> Iterator[str]:
    yield from (f"{level} `{name}{_signature(function)}`", "", *_paragraphs(function.__doc__), "")


def _signature(function: Any) -> str:
    """The signature as in the source, without `self`. What `inspect` prints differs between
    versions of Python."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef) and tree.returns is not None
    tree.args.args = [one for one in tree.args.args if one.arg != "self"]
    return f"({ast.unparse(tree.args)}) -> {ast.unparse(tree.returns)}".replace("'", '"')


def _annotation(function: Any) -> str:
    return str(function.__annotations__["return"])


def _paragraphs(docstring: str | None) -> list[str]:
    """Paragraphs, each on one line, with an empty line between them. Code stays unchanged."""
    found = []
    for paragraph in inspect.cleandoc(docstring or "").split("\n\n"):
        found += ["", paragraph] if paragraph.startswith("    ") else ["", " ".join(paragraph.split())]
    return found[1:]


if __name__ == "__main__":
    for file, made in pages().items():
        file.write_text(made, encoding="utf-8")
        sys.stdout.write(f"{file}\n")
