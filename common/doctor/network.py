"""Report whether findleaks may download debug information. No server is contacted."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.debuginfo.debuginfod import Client
from findleaks.results.environment import Check

AREA = "network"


def check_network() -> Iterator[Check]:
    """Report DEBUGINFOD_URLS, the only setting that makes findleaks use the network."""
    servers = Client().servers
    if servers:
        yield Check(AREA, "debuginfod", "ok", f"debug information is downloaded from {', '.join(servers)}", "")
    else:
        detail = "DEBUGINFOD_URLS is not set: findleaks uses no network, and no debug information that is not installed"
        yield Check(AREA, "debuginfod", "missing", detail, "export DEBUGINFOD_URLS=https://debuginfod.elfutils.org")
