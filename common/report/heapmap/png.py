"""Render heaps as a PNG with Pillow."""

from __future__ import annotations

import importlib
import importlib.util
import io
from typing import Any

from findleaks.engine.pages import PageState
from findleaks.errors import FindleaksError
from findleaks.escaping import visible
from findleaks.report.heapmap.cells import BY_STATE, FAINT_LIGHT, LOOKS, Picture, blend
from findleaks.report.heapmap.layout import WIDTH, place_picture

SCALE = 2  # pixels of the file per pixel of the layout, so that text is sharp in print


def require_pillow() -> None:
    """Raise FindleaksError if Pillow is not installed. Called before any work."""
    if importlib.util.find_spec("PIL") is None:
        raise FindleaksError(
            "a .png needs Pillow, which this Python lacks; pip install pillow, or write .svg or .html; "
            "outside of a debugger, run `findleaks map -o map.png CORE`"
        )


def render_png(picture: Picture) -> bytes:
    require_pillow()
    image_, draw_, font_ = (importlib.import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
    made = place_picture(picture)
    canvas = image_.new("RGB", (WIDTH * SCALE, made.height * SCALE), "#ffffff")
    draw: Any = draw_.Draw(canvas)
    fonts = {size: _font(font_, size * SCALE) for size in {words.size for words in made.words}}
    for words in made.words:
        if words.look >= 0:
            box = [SCALE * at for at in (words.x - 18, words.y - 11, words.x - 6, words.y + 1)]
            draw.rectangle(box, fill=LOOKS[words.look].light)
        place = (words.x * SCALE, words.y * SCALE)
        text = visible(words.text).encode("latin-1", "replace").decode("latin-1")
        colour = "#5a6370" if words.faint else "#1b1f24"
        try:
            draw.text(place, text, fill=colour, font=fonts[words.size], anchor="ls")
        except ValueError:  # Pillow's built-in bitmap font does not support anchors
            draw.text((place[0], place[1] - 11), text, fill=colour, font=fonts[words.size])
    for x, y, length, cell in made.strips:
        colour = BY_STATE[cell.state].light
        if cell.state == PageState.IN_USE and cell.share:
            colour = blend(FAINT_LIGHT, colour, cell.share)
        draw.rectangle([x * SCALE, y * SCALE, (x + length * made.cell) * SCALE - 1, (y + made.cell) * SCALE - 1], fill=colour)
    out = io.BytesIO()
    canvas.save(out, "PNG", optimize=True)
    return out.getvalue()


def _font(module: Any, size: int) -> Any:
    try:
        return module.load_default(size)  # since Pillow 10.1, if built with FreeType
    except (TypeError, ImportError, OSError):
        return module.load_default()
