"""`make site`: Sphinx renders the documentation without a warning. The pages work from a local disk, with search and navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import browser
import pytest
from debuggers import ROOT
from schemas import tool

SEARCH = """
for (let at = 0; at < 200 && !document.querySelector("#search-results li"); at++) await sleep(50);
return [...document.querySelectorAll("#search-results li a")].map(link => link.getAttribute("href"));
"""


@pytest.mark.matrix
def test_the_site(tmp_path: Path) -> None:
    needs = tool("build_site").needs()
    assert len(needs) == 3
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", tmp_path / "libraries", *needs], check=True)
    words = [sys.executable, str(ROOT / "tools" / "build_site.py"), str(tmp_path / "site")]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path / "libraries")})
    assert (done.returncode, done.stderr) == (0, "")
    html = tmp_path / "site" / "html"
    assert done.stdout == f"{html / 'index.html'}\n"
    index = (html / "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'<p class="caption"[^>]*><span class="caption-text">([^<]+)', index)
    assert captions == ["Tutorial", "How-to pages", "Reference", "Internals"]
    outside = re.findall(r'(?:src|href)="(?:https?:)?//[^"]*"', index)
    assert all("github.com/pradyunsg/furo" in link or "sphinx-doc.org" in link or "pradyunsg.me" in link for link in outside), outside
    (html / "search.html").rename(html / "plain.html")
    text = (html / "plain.html").read_text(encoding="utf-8")
    # Pages opened from a disk have no query string, so the test sets one.
    (html / "search.html").write_text(text.replace("<head>", "<head><script>history.replaceState(0, '', '?q=jemalloc')</script>", 1))
    told = browser.drive(html / "search.html", SEARCH, html)
    assert any("allocators" in link for link in told["answer"]), told
