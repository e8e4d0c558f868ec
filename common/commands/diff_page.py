"""Write the page of `diff -o FILE.html`: the text of `diff`, and the figures of every sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from findleaks.commands.diff_text import findings, headline, label, sentence
from findleaks.history.growth import Growth
from findleaks.history.snapshot import differences
from findleaks.report.growth.html import Words, render_html


def page(growth: Growth, sections: Mapping[str, Sequence[str]], by: str, warnings: Sequence[str]) -> bytes:
    """Return the page. The category `by` is expanded; if it is "", the category "what grew" is."""
    sentences = [sentence(row, bool(growth.several)) for row in findings(growth)]
    words = Words(headline(growth), sentences, list(differences(growth.snapshots)), warnings, label)
    return render_html(growth, sections, words, by).encode("utf-8", "replace")
