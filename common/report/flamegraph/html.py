"""A profile as a page to search and to zoom, from page.html, page.css and the scripts. What is
embedded is bounded: names are cut, and nodes that no screen could show are their parents'."""

from __future__ import annotations

import html
import os

from findleaks.formatting import counted, printable
from findleaks.report.flamegraph.tree import Tree, tree
from findleaks.report.pack import packed
from findleaks.report.page import assembled, script_json
from findleaks.report.profile import Profile

MAX_NODES = 1_000_000
"""Nodes of the page, at most: the largest ones."""
_NAME, _LINE = 400, 2000  # characters of a name and of a sentence, at most


def render(profile: Profile) -> bytes:
    """The page."""
    found = tree(profile, MAX_NODES)
    notes = list(profile.notes)
    if found.left_out:
        notes.append(f"{counted(found.left_out, 'frame')} too small to be seen are left out: what they have is shown as their callers' own")
    modules = list(dict.fromkeys(module for _, module in found.labels))
    numbers = {module: number for number, module in enumerate(modules)}
    meta = {
        "title": printable(profile.title, _LINE),
        "notes": [printable(note, _LINE) for note in notes],
        "measures": [{"name": one.name, "unit": one.unit, "title": one.title} for one in profile.measures],
        "main": profile.main,
        "compared": profile.compared,
        "samples": len(profile.samples),
        "nodes": len(found.label),
        "names": [printable(name, _NAME) for name, _ in found.labels],
        "modules": [printable(module, _NAME) for module in modules],
        "moduleOf": [numbers[module] for _, module in found.labels],
    }
    made = {"TITLE": html.escape(str(meta["title"])), "META": script_json(meta), "DATA": _data(found)}
    return assembled(os.path.dirname(os.path.abspath(__file__)), made).encode("utf-8", "replace")


def _data(found: Tree) -> str:
    """Depths, labels, and columns of values, packed."""
    return packed([found.depth, found.label, *found.own])
