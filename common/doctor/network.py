"""Reports whether findleaks may download debug information. No server is contacted."""

from __future__ import annotations

import os
from collections.abc import Iterator

from findleaks.results.environment import Check

AREA = "network"


def check_network() -> Iterator[Check]:
    """Report DEBUGINFOD_URLS, the only setting that makes findleaks use the network."""
    urls = os.environ.get("DEBUGINFOD_URLS", "").split()
    if urls:
        yield Check(AREA, "debuginfod", "ok", f"debug information is downloaded from {', '.join(urls)}", "")
    else:
        detail = "DEBUGINFOD_URLS is not set: findleaks uses no network, and no debug information that is not installed"
        yield Check(AREA, "debuginfod", "missing", detail, "export DEBUGINFOD_URLS=https://debuginfod.elfutils.org")
