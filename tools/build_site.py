"""Build the documentation as web pages: `python tools/build_site.py [FOLDER]`, by default build/site.

The pages of docs/ and of the repository's root are copied, links between them are adapted, and
docs/index.md becomes the navigation. Sphinx renders them with MyST and Furo (the extra `docs`), with
a search that works without a server. Each dead link, and each page that docs/index.md does not list,
is an error."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "cores/README.md": "sample-cores.md",
    "tests/README.md": "tests.md",
}
"""Pages outside docs/, with their names in the site."""
PARTS = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)[^\n]*\n.*?^(?P=indent)(?P=fence) *$"
    r"|(?P<text>!?\[(?:`[^`]*`|\[[^\]]*\]|[^\[\]`])*\])\((?P<target>[^)\s]+)\)"
    r"|(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)",
    re.M | re.S,
)
"""Fenced code, links and images, and code in sentences: what looks like a link in code is none."""
CONFIGURATION = """
project = "findleaks"
html_title = "findleaks {version}"
author = "the findleaks authors"
project_copyright = "the findleaks authors, Apache-2.0"
version = release = "{version}"
extensions = ["myst_parser"]
html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
highlight_language = "none"
myst_heading_anchors = 5
suppress_warnings = ["misc.highlighting_failure"]
"""


def main(folder: Path) -> int:
    """Write the site to `folder`, and return Sphinx's exit status: not 0 if there was a warning."""
    source = folder / "source"
    shutil.rmtree(folder, ignore_errors=True)
    write_source(source)
    words = [
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-d",
        str(folder / "doctrees"),
        str(source),
        str(folder / "html"),
    ]
    status = subprocess.run([sys.executable, *words], env={**os.environ, "SOURCE_DATE_EPOCH": "0"}).returncode
    if status == 0:
        print(folder / "html" / "index.html")
    return status


def write_source(source: Path) -> None:
    """Write the pages, the pictures and the configuration that Sphinx reads."""
    source.mkdir(parents=True)
    for name, page in pages().items():
        text = adapt_links(name, (ROOT / name).read_text(encoding="utf-8"))
        (source / page).write_text(text + navigation(text) if page == "index.md" else text, encoding="utf-8")
    for picture in (ROOT / "docs").glob("*.png"):
        shutil.copy(picture, source)
    version = re.findall(r'^__version__ = "([^"]+)"', (ROOT / "common/__init__.py").read_text(encoding="utf-8"), re.M)[0]
    (source / "conf.py").write_text(CONFIGURATION.format(version=version), encoding="utf-8")


def pages() -> dict[str, str]:
    """Names of the pages in the site, by path below the repository's root."""
    return {**{f"docs/{page.name}": page.name for page in sorted((ROOT / "docs").glob("*.md"))}, **OTHERS}


def adapt_links(name: str, text: str) -> str:
    """Return the text of a page with links to other pages as the site needs them. A link to a file
    of the repository that is not a page becomes its text."""
    known = pages()

    def adapt(part: re.Match[str]) -> str:
        if not part["text"]:
            return part[0]
        target, _, anchor = part["target"].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return part[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        if path in known:
            return f"{part['text']}({known[path]}{'#' + anchor if anchor else ''})"
        if part["text"].startswith("!") or not (ROOT / path).exists():
            return part[0]
        return part["text"][1:-1]

    return PARTS.sub(adapt, text)


def links(text: str) -> list[str]:
    """Return the targets of the links and images of a page."""
    return [part["target"] for part in PARTS.finditer(text) if part["text"]]


def navigation(index: str) -> str:
    """Return hidden tables of contents, one for each section of the index, of the pages linked there.
    A page belongs to the first section that links to it."""
    made, listed = "", set[str]()
    for section in re.split(r"^## ", index, flags=re.M)[1:]:
        names = [target.partition("#")[0] for target in links(section)]
        names = [name for name in dict.fromkeys(names) if name.endswith(".md") and name not in listed]
        listed.update(names)
        if names:
            lines = "\n".join(name.removesuffix(".md") for name in names)
            made += f"\n```{{toctree}}\n:hidden:\n:caption: {section.splitlines()[0]}\n\n{lines}\n```\n"
    return made


def needs() -> list[str]:
    """Return the requirements of the extra `docs`, as the installed findleaks declares them."""
    declared = metadata.requires("findleaks") or []
    return [need.partition(";")[0].strip() for need in declared if need.endswith('extra == "docs"')]


if __name__ == "__main__":
    if sys.argv[1:] == ["--needs"]:
        print("\n".join(needs()))
        sys.exit()
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()))
