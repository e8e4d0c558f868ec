"""Render a heap map as SVG. Text stays text, and colours follow the reader's light or dark
theme."""

from __future__ import annotations

from xml.sax.saxutils import escape

from findleaks.engine.pages import PageState
from findleaks.escaping import visible
from findleaks.report.heapmap.cells import BY_STATE, FAINT_DARK, FAINT_LIGHT, LOOKS, Picture, blend
from findleaks.report.heapmap.layout import WIDTH, place_picture

_SHARES = range(31, 256, 32)


def _colours(dark: bool) -> str:
    rules = [f".s{int(look.state)}{{fill:{look.dark if dark else look.light}}}" for look in LOOKS]
    used = BY_STATE[PageState.IN_USE]
    faint, full = (FAINT_DARK, used.dark) if dark else (FAINT_LIGHT, used.light)
    rules += [f".u{share}{{fill:{blend(faint, full, share)}}}" for share in _SHARES]
    ground, ink, pale = ("#14181d", "#e8eaed", "#9aa3ad") if dark else ("#ffffff", "#1b1f24", "#5a6370")
    return f"svg{{background:{ground}}}.g{{fill:{ground}}}text{{fill:{ink}}}.f{{fill:{pale}}}" + "".join(rules)


def render_svg(picture: Picture) -> str:
    made = place_picture(picture)
    size = f'viewBox="0 0 {WIDTH} {made.height}" width="{WIDTH}" height="{made.height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" role="img">',
        f"<title>{escape(visible(made.words[0].text))}</title>",
        f"<style>{_colours(False)}@media (prefers-color-scheme: dark){{{_colours(True)}}}",
        ".m{font-family:ui-monospace,monospace}text{white-space:pre}</style>",
        f'<rect class="g" width="{WIDTH}" height="{made.height}"/>',
    ]
    for words in made.words:
        kinds = " ".join(name for name, on in (("f", words.faint), ("m", words.mono)) if on)
        if words.look >= 0:
            place = f'x="{words.x - 18}" y="{words.y - 11}" width="12" height="12" rx="2"'
            out.append(f'<rect class="s{int(LOOKS[words.look].state)}" {place}/>')
        kind = f' class="{kinds}"' if kinds else ""
        out.append(f'<text x="{words.x}" y="{words.y}" font-size="{words.size}"{kind}>{escape(visible(words.text))}</text>')
    for x, y, length, cell in made.strips:
        kind = f"u{cell.share}" if cell.state == PageState.IN_USE and cell.share else f"s{int(cell.state)}"
        out.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{length * made.cell}" height="{made.cell}"/>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
