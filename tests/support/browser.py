"""Open a page in headless Chromium, without network. A script of the test operates the page and returns what it saw."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

PATIENCE = 180
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,900", "--virtual-time-budget=20000"),
    *("--disable-background-networking", "--no-first-run", "--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND"),
)

_DRIVER = """
<script>
"use strict";
const wrong = [];
addEventListener("error", event => wrong.push(String(event.message)));
addEventListener("unhandledrejection", event => wrong.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", event => wrong.push("policy: " + event.violatedDirective + " " + event.blockedURI));
const sleep = time => new Promise(done => setTimeout(done, time));
addEventListener("load", async () => {
  const told = {};
  try {
    for (let at = 0; at < 400 && document.documentElement.dataset.ready !== "yes"; at++) await sleep(25);
    told.answer = await (async () => { @SCRIPT@ })();
  } catch (error) { wrong.push(String(error.stack || error)); }
  told.wrong = wrong;
  told.loaded = performance.getEntriesByType("resource").map(entry => entry.name);
  const report = document.createElement("pre");
  report.id = "report";
  report.textContent = JSON.stringify(told);
  document.body.append(report);
});
</script>
</body>"""


def drive(page: Path, script: str, folder: Path, dark: bool = False) -> dict[str, Any]:
    """Run `script`, the body of an async function, in the page. Return its result as `answer`, errors of the page as `wrong`, and the URLs
    that the page loaded as `loaded`."""
    copy = folder / "driven.html"
    text = page.read_text(encoding="utf-8")
    assert text.count("</body>") == 1
    copy.write_text(text.replace("</body>", _DRIVER.replace("@SCRIPT@", script)), encoding="utf-8")
    printed = _chromium(copy, folder, "--dump-dom", *_theme(dark))
    found = re.search(r'<pre id="report">(.*?)</pre>', printed, re.DOTALL)
    assert found, printed[-2000:]
    answer: dict[str, Any] = json.loads(unescape(found[1]))
    return answer


def screenshot(page: Path, image: Path, folder: Path, dark: bool = False) -> None:
    """Take a screenshot of the page as it looks right after loading."""
    _chromium(page, folder, f"--screenshot={image}", *_theme(dark))


def _theme(dark: bool) -> list[str]:
    return ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]


def _chromium(page: Path, folder: Path, *flags: str) -> str:
    words = ["chromium", *_FLAGS, f"--user-data-dir={folder / 'chromium'}", *flags, page.resolve().as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
