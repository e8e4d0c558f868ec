"""Build web pages that consist of one file: a template into which the script, the style and the
data are inserted.

Text from the target is data: it is escaped, and is in an element that browsers do not run. The page
loads no other files."""

from __future__ import annotations

import os
from collections.abc import Mapping

from findleaks.escaping import json_line, visible


def fill_template(folder: str, data: Mapping[str, str]) -> str:
    """Fill the template `page.html` in `folder`. Each @NAME@ is replaced by the value of this name
    in `data`. If `data` lacks the name, @NAME@ is replaced by the content of the file with this
    name in `folder`."""
    pieces = _file(folder, "page.html").split("@")  # @NAME@ in inserted text is not replaced
    return "".join((data[piece] if piece in data else _file(folder, piece)) if at % 2 else piece for at, piece in enumerate(pieces))


def _file(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="utf-8") as source:
        return source.read()


def script_json(value: object) -> str:
    """Encode a value as JSON for a script element. Text is made `visible`, because marks of text
    direction also act in browsers. Nothing in the text can end the element."""
    return json_line(_show_value(value)).replace("<", "\\u003c")


def _show_value(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, (list, tuple)):
        return [_show_value(one) for one in value]
    return {name: _show_value(one) for name, one in value.items()} if isinstance(value, dict) else value
