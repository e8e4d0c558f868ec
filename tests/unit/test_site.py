"""The links in the documentation lead to existing pages and headings, the index lists every page, and the tests that
pages name exist. `make site` renders the pages; that takes 10 seconds, so it is in the matrix
(tests/integration/test_install_site.py)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from documented import ROOT, blocks, pages
from schemas import tool

SITE = tool("build_site")


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = page.read_text(encoding="utf-8")
    code = {number for block in blocks(text) for number, _ in block}
    found: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if number not in code and (heading := re.match(r"#+ (.*)", line)):
            words = re.sub(r"\]\([^)]*\)", "", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
            found.add(slug if slug not in found else next(f"{slug}-{n}" for n in range(1, 99) if f"{slug}-{n}" not in found))
    return found


def test_links_have_targets() -> None:
    dead, seen = [], 0
    for name in pages():
        for target in SITE.links((ROOT / name).read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                assert target.startswith("https://"), f"{name}: {target}"
                continue
            page = (ROOT / name).parent / path if path else ROOT / name
            seen += 1
            if not page.exists() or (anchor and anchor not in anchors(page)):
                dead.append(f"{name}: {target}")
    assert dead == []
    assert seen > 200


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"^[\w-]+$", SITE.navigation(SITE.adapt_links("docs/index.md", (ROOT / "docs/index.md").read_text())), re.M)
    assert sorted(listed) == sorted(page.removesuffix(".md") for page in SITE.pages().values() if page != "index.md")


def test_links_in_the_site() -> None:
    text = "[`a`](../SECURITY.md#b) [c [d]](map.md) ![e](map.png) `[f](g.md)` [h](../LICENSE) [i](none.md) [j](https://k.example/)\n"
    made = SITE.adapt_links("docs/find.md", text + f"```\n{text}```\n")
    assert made == (
        "[`a`](security.md#b) [c [d]](map.md) ![e](map.png) `[f](g.md)` h [i](none.md) [j](https://k.example/)\n" + f"```\n{text}```\n"
    )


def test_named_tests_exist() -> None:
    """Pages name the tests that prove their statements, such as `tests/integration/test_scopes.py::test_mended`."""
    seen = 0
    for name in pages():
        text = (ROOT / name).read_text(encoding="utf-8")
        for file, function in re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", text):
            seen += 1
            assert (ROOT / file).is_file(), f"{name}: {file}"
            assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), f"{name}: {file}::{function}"
    assert seen > 10
