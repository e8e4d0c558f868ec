"""The page that `diff -o FILE.html` writes: what the text says, and every moment's figures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from findleaks.commands.diff_text import findings, headline, label, sentence
from findleaks.errors import UsageError
from findleaks.formatting import printable
from findleaks.history.growth import Growth
from findleaks.history.snapshot import differences
from findleaks.report.files import write_file
from findleaks.report.growth.html import Words, render_html


def require_html(file: str) -> None:
    """UsageError for the name of a file that is no page."""
    if os.path.splitext(file)[1].lower() not in (".html", ".htm"):
        raise UsageError(f"-o {printable(file)}: end its name in .html")


def write_page(growth: Growth, sections: Mapping[str, Sequence[str]], by: str, warnings: Sequence[str], file: str) -> int:
    """Write the page, with the category `by` opened ("": what grew); returns its bytes."""
    sentences = [sentence(row) for row in findings(growth)]
    words = Words(headline(growth), sentences, list(differences(growth.snapshots)), warnings, label)
    data = render_html(growth, sections, words, by).encode("utf-8", "replace")
    write_file(file, data)
    return len(data)
