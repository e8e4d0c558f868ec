"""Render a profile as a flame graph with search and zoom, from page.html, page.css and the scripts.
The size of the embedded data is limited: long names are shortened, and nodes that are too small for
any screen are merged into their parents."""

from __future__ import annotations

import html
import os

from findleaks.formatting import format_count, printable
from findleaks.report.flamegraph.tree import Tree, build_tree
from findleaks.report.pack import pack_series
from findleaks.report.page import fill_template, script_json
from findleaks.report.profile import Profile

MAX_NODES = 1_000_000
"""Maximum number of nodes on the page. The largest are included."""
_NAME, _LINE = 400, 2000  # most characters of a name and of a sentence


def render(profile: Profile) -> bytes:
    """Render the page."""
    found = build_tree(profile, MAX_NODES)
    notes = list(profile.notes)
    if found.left_out:
        notes.append(f"{format_count(found.left_out, 'frame')} too small to be seen are merged into their callers")
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
    return fill_template(os.path.dirname(os.path.abspath(__file__)), made).encode("utf-8", "replace")


def _data(found: Tree) -> str:
    """Pack depths, labels, and columns of values."""
    return pack_series([found.depth, found.label, *found.own])
